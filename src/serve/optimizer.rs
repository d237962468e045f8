//! How a server changes parameters by a gradient.

use std::fmt;

/// An optimiser, with its constants. It is the same for all parameters of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// `p -= rate * g`
    Sgd {
        /// The learning rate.
        rate: f32,
    },
    /// `m = momentum * m + g; p -= rate * m` (Polyak's heavy ball, as PyTorch has it)
    Momentum {
        /// The learning rate.
        rate: f32,
        /// What is kept of the sum of gradients.
        momentum: f32,
    },
    /// Kingma and Ba, 2015, algorithm 1.
    Adam {
        /// The learning rate.
        rate: f32,
        /// What is kept of the mean of gradients.
        beta1: f32,
        /// What is kept of the mean of their squares.
        beta2: f32,
        /// Added to the denominator.
        epsilon: f32,
    },
}

/// One parameter with what the optimiser keeps beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Weight {
    pub(super) parameter: f32,
    pub(super) state: [f32; 2],
}

impl Optimizer {
    /// Numbers that are kept beside each parameter.
    pub(super) fn states(&self) -> usize {
        match self {
            Self::Sgd { .. } => 0,
            Self::Momentum { .. } => 1,
            Self::Adam { .. } => 2,
        }
    }

    /// What the gradients before `step`, counted from 1, have in common.
    pub(super) fn at(self, step: u64) -> Step {
        let (mut first, mut second) = (1.0, 1.0);
        if let Self::Adam { beta1, beta2, .. } = self {
            let step = i32::try_from(step).unwrap_or(i32::MAX);
            first = 1.0 - beta1.powi(step);
            second = 1.0 - beta2.powi(step);
        }
        Step { optimizer: self, corrections: [first, second] }
    }
}

impl fmt::Display for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sgd { rate } => write!(f, "sgd, rate {rate}"),
            Self::Momentum { rate, momentum } => {
                write!(f, "momentum, rate {rate}, momentum {momentum}")
            }
            Self::Adam { rate, beta1, beta2, epsilon } => {
                write!(f, "adam, rate {rate}, beta {beta1} and {beta2}, epsilon {epsilon}")
            }
        }
    }
}

/// An optimiser at one step.
#[derive(Clone, Copy)]
pub(super) struct Step {
    optimizer: Optimizer,
    /// Adam's corrections for the bias of means that began with zero.
    corrections: [f32; 2],
}

impl Step {
    /// The weight after this gradient.
    #[inline]
    pub(super) fn apply(&self, weight: Weight, gradient: f32) -> Weight {
        let Weight { parameter, state: [first, second] } = weight;
        match self.optimizer {
            Optimizer::Sgd { rate } => {
                Weight { parameter: parameter - rate * gradient, state: [first, second] }
            }
            Optimizer::Momentum { rate, momentum } => {
                let first = momentum * first + gradient;
                Weight { parameter: parameter - rate * first, state: [first, second] }
            }
            Optimizer::Adam { rate, beta1, beta2, epsilon } => {
                let first = beta1 * first + (1.0 - beta1) * gradient;
                let second = beta2 * second + (1.0 - beta2) * gradient * gradient;
                let mean = first / self.corrections[0];
                let deviation = (second / self.corrections[1]).sqrt();
                let parameter = parameter - rate * mean / (deviation + epsilon);
                Weight { parameter, state: [first, second] }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(optimizer: Optimizer, gradients: &[f32]) -> f32 {
        let mut weight = Weight { parameter: 1.0, ..Weight::default() };
        for (step, gradient) in (1..).zip(gradients) {
            weight = optimizer.at(step).apply(weight, *gradient);
        }
        weight.parameter
    }

    /// Against values worked out by hand from the formulas.
    #[test]
    fn each_optimizer_does_what_its_formula_says() {
        assert_eq!(after(Optimizer::Sgd { rate: 0.5 }, &[1.0, -0.5]), 0.75);
        // m: 1, then 0.5 * 1 - 0.5 = 0.
        assert_eq!(after(Optimizer::Momentum { rate: 0.5, momentum: 0.5 }, &[1.0, -0.5]), 0.5);
        let adam = Optimizer::Adam { rate: 0.1, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
        // The first step of Adam is the rate, whatever the gradient's size.
        assert!((after(adam, &[7.0]) - 0.9).abs() < 1e-6);
        // m = (0.9 * 0.1 + 0.1 * 2) / 0.19, v = (0.999 * 0.001 + 0.001 * 4) / 0.001999.
        let second = 0.9 - 0.1 * (0.29 / 0.19) / (0.004999_f32 / 0.001999).sqrt();
        assert!((after(adam, &[1.0, 2.0]) - second).abs() < 1e-6);
    }
}
