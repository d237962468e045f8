//! What has been learnt: which samples matter, and how much.

use super::data::Problem;
use std::fmt::Write as _;

/// What two samples have to do with each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kernel {
    /// Their product.
    Linear,
    /// exp(-width |a - b|²)
    Radial { width: f64 },
}

/// A trained machine, with a value for each sample of its problem.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    pub alphas: Vec<f64>,
    /// Of each sample: what the others say of it, less its label.
    pub gammas: Vec<f64>,
    pub cost: f64,
}

impl Model {
    /// The least value that training looks for: half of alpha Q alpha, less the sum of all alphas.
    pub fn objective(&self, problem: &Problem) -> f64 {
        let terms = self.alphas.iter().zip(&self.gammas).zip(&problem.labels);
        terms.map(|((alpha, gamma), label)| alpha * (label * gamma - 1.0) / 2.0).sum()
    }

    /// Beyond it a sample is of the class +1: the mean of what those say that are on the margin.
    pub fn threshold(&self, problem: &Problem) -> f64 {
        let on_margin = self.alphas.iter().zip(&self.gammas);
        let on_margin: Vec<f64> = on_margin
            .filter(|(alpha, _)| **alpha > 0.0 && **alpha < self.cost)
            .map(|(_, gamma)| *gamma)
            .collect();
        if on_margin.is_empty() {
            let (up, low) = self.extremes(problem);
            return (up + low) / 2.0;
        }
        on_margin.iter().sum::<f64>() / on_margin.len() as f64
    }

    /// The least gamma of a sample whose alpha y may grow, and the greatest of one whose may fall.
    pub fn extremes(&self, problem: &Problem) -> (f64, f64) {
        let mut extremes = (f64::INFINITY, f64::NEG_INFINITY);
        for ((alpha, gamma), label) in self.alphas.iter().zip(&self.gammas).zip(&problem.labels) {
            let (grows, falls) = (*alpha < self.cost, *alpha > 0.0);
            let (grows, falls) = if *label > 0.0 { (grows, falls) } else { (falls, grows) };
            if grows {
                extremes.0 = extremes.0.min(*gamma);
            }
            if falls {
                extremes.1 = extremes.1.max(*gamma);
            }
        }
        extremes
    }

    pub fn support_vectors(&self) -> usize {
        self.alphas.iter().filter(|alpha| **alpha > 0.0).count()
    }

    /// The share of its own samples that it takes for what they are.
    pub fn accuracy(&self, problem: &Problem) -> f64 {
        let threshold = self.threshold(problem);
        let values = self.gammas.iter().zip(&problem.labels);
        let right = values.filter(|(gamma, label)| (*gamma + *label - threshold) * *label > 0.0);
        right.count() as f64 / problem.len() as f64
    }

    /// The largest difference between a gamma and what the alphas make of it, on the host: how far
    /// eliminated samples and their rebuilt gammas can be trusted.
    pub fn drift(&self, problem: &Problem, kernel: Kernel) -> f64 {
        let mut spread = vec![0.0; problem.width as usize];
        let mut wanted: Vec<f64> = problem.labels.iter().map(|label| -label).collect();
        let squares: Vec<f64> = (0..problem.len()).map(|it| problem.square(it)).collect();
        for vector in (0..problem.len()).filter(|it| self.alphas[*it] > 0.0) {
            problem.row(vector).for_each(|(column, value)| spread[column as usize] = value);
            let weight = self.alphas[vector] * problem.labels[vector];
            for (sample, sum) in wanted.iter_mut().enumerate() {
                let product =
                    problem.row(sample).map(|(column, value)| value * spread[column as usize]);
                let product: f64 = product.sum();
                *sum += weight
                    * match kernel {
                        Kernel::Linear => product,
                        Kernel::Radial { width } => {
                            (-width * (squares[sample] + squares[vector] - 2.0 * product)).exp()
                        }
                    };
            }
            problem.row(vector).for_each(|(column, _)| spread[column as usize] = 0.0);
        }
        let apart = wanted.iter().zip(&self.gammas).map(|(wanted, seen)| (wanted - seen).abs());
        apart.fold(0.0, f64::max)
    }

    /// As a file that LIBSVM's programs read.
    pub fn file(&self, problem: &Problem, kernel: Kernel) -> String {
        let (kind, width) = match kernel {
            Kernel::Linear => ("linear", String::new()),
            Kernel::Radial { width } => ("rbf", format!("gamma {width}\n")),
        };
        let of = |label: f64| {
            let all = (0..problem.len()).filter(move |it| problem.labels[*it] == label);
            all.filter(|it| self.alphas[*it] > 0.0)
        };
        let [up, low] = problem.names;
        let mut text = format!(
            "svm_type c_svc\nkernel_type {kind}\n{width}nr_class 2\ntotal_sv {}\nrho {}\n\
             label {up} {low}\nnr_sv {} {}\nSV\n",
            self.support_vectors(),
            self.threshold(problem),
            of(1.0).count(),
            of(-1.0).count(),
        );
        for vector in of(1.0).chain(of(-1.0)) {
            let weight = self.alphas[vector] * problem.labels[vector];
            write!(text, "{weight:.17e}").expect("a string takes it");
            for (column, value) in problem.row(vector) {
                write!(text, " {}:{value}", column + 1).expect("a string takes it");
            }
            text.push('\n');
        }
        text
    }
}
