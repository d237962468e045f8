//! How a server changes parameters by a gradient.

use super::words::CHUNK;
use crate::error::{Error, Result};
use bytemuck::{cast_slice, cast_slice_mut};
use ringdove_kernels::optimizer::{
    OPTIMIZER_ADAM, OPTIMIZER_MOMENTUM, OPTIMIZER_SGD, OptimizerCall,
};
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

/// A chunk of words with two parameters each, in the order of memory, and what the optimiser keeps
/// beside them.
pub(super) struct Weights {
    pub(super) parameters: [u64; CHUNK],
    pub(super) states: [[u64; CHUNK]; 2],
}

impl Default for Weights {
    fn default() -> Self {
        Self { parameters: [0; CHUNK], states: [[0; CHUNK]; 2] }
    }
}

impl Optimizer {
    /// Constants with which parameters stay numbers.
    pub(super) fn check(&self) -> Result<()> {
        let within = |what, value: f32, is_fine: bool, expected: &str| {
            is_fine.then_some(()).ok_or_else(|| Error::argument(what, expected, value))
        };
        let rate =
            |rate: f32| within("learning rate", rate, rate.is_finite() && rate >= 0.0, "0 or more");
        let part = |what, part: f32| within(what, part, (0.0..1.0).contains(&part), "0 to below 1");
        match *self {
            Self::Sgd { rate: value } => rate(value),
            Self::Momentum { rate: value, momentum } => {
                rate(value)?;
                part("momentum", momentum)
            }
            Self::Adam { rate: value, beta1, beta2, epsilon } => {
                rate(value)?;
                part("first beta of Adam", beta1)?;
                part("second beta of Adam", beta2)?;
                let is_fine = epsilon.is_finite() && epsilon > 0.0;
                within("epsilon of Adam", epsilon, is_fine, "a number above 0")
            }
        }
    }

    /// Numbers that are kept beside each parameter.
    pub(super) fn states(&self) -> usize {
        match self {
            Self::Sgd { .. } => 0,
            Self::Momentum { .. } => 1,
            Self::Adam { .. } => 2,
        }
    }

    /// The kernel's kind and constants.
    pub(super) fn call(&self) -> OptimizerCall {
        let call = OptimizerCall::default();
        match *self {
            Self::Sgd { rate } => OptimizerCall { kind: OPTIMIZER_SGD, rate, ..call },
            Self::Momentum { rate, momentum } => {
                OptimizerCall { kind: OPTIMIZER_MOMENTUM, rate, first: momentum, ..call }
            }
            Self::Adam { rate, beta1, beta2, epsilon } => {
                let (first, second) = (beta1, beta2);
                OptimizerCall { kind: OPTIMIZER_ADAM, rate, first, second, epsilon, ..call }
            }
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
    /// For the kernel.
    pub(super) fn corrections(&self) -> [f32; 2] {
        self.corrections
    }

    /// Changes the weights by these gradients, two in a word. The loops are such that a compiler
    /// makes vectors of them.
    pub(super) fn apply(&self, weights: &mut Weights, gradients: &[u64; CHUNK]) {
        let gradients: &[f32] = cast_slice(gradients);
        let parameters: &mut [f32] = cast_slice_mut(&mut weights.parameters);
        let [first, second] = weights.states.each_mut().map(|state| cast_slice_mut(state));
        let all = parameters.iter_mut().zip(gradients);
        match self.optimizer {
            Optimizer::Sgd { rate } => {
                all.for_each(|(parameter, gradient)| *parameter -= rate * gradient);
            }
            Optimizer::Momentum { rate, momentum } => {
                for ((parameter, gradient), first) in all.zip::<&mut [f32]>(first) {
                    *first = momentum * *first + gradient;
                    *parameter -= rate * *first;
                }
            }
            Optimizer::Adam { rate, beta1, beta2, epsilon } => {
                let states = first.iter_mut().zip::<&mut [f32]>(second);
                for ((parameter, gradient), (first, second)) in all.zip(states) {
                    *first = beta1 * *first + (1.0 - beta1) * gradient;
                    *second = beta2 * *second + (1.0 - beta2) * gradient * gradient;
                    let mean = *first / self.corrections[0];
                    let deviation = (*second / self.corrections[1]).sqrt();
                    *parameter -= rate * mean / (deviation + epsilon);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(optimizer: Optimizer, gradients: &[f32]) -> f32 {
        let all =
            |value: f32| [u64::from(value.to_bits()) << 32 | u64::from(value.to_bits()); CHUNK];
        let mut weights = Weights { parameters: all(1.0), ..Weights::default() };
        for (step, gradient) in (1..).zip(gradients) {
            optimizer.at(step).apply(&mut weights, &all(*gradient));
        }
        let parameters: &[f32] = cast_slice(&weights.parameters);
        assert!(parameters.iter().all(|parameter| *parameter == parameters[0]));
        parameters[0]
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
