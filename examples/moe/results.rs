//! What a step computes, and whether it is what one GPU computes.

use super::train::Result;
use super::worker::EXPERTS;

/// What one step has computed: values of samples, and of experts, in their order.
#[derive(Default)]
pub struct Results {
    pub losses: Vec<f32>,
    pub outputs: Vec<f32>,
    pub by_tokens: Vec<f32>,
    pub by_weights: Vec<f32>,
    pub expert_gradients: Vec<f32>,
    pub experts: Vec<f32>,
    /// Weights of the other layers, which all workers have.
    pub dense: Vec<Vec<f32>>,
    pub choices: Vec<i32>,
}

impl Results {
    /// Those of the next worker.
    pub fn append(&mut self, next: Self) -> Result<()> {
        if !self.dense.is_empty() && self.dense != next.dense {
            return Err("weights of a dense layer differ between GPUs".into());
        }
        self.losses.extend(next.losses);
        self.outputs.extend(next.outputs);
        self.by_tokens.extend(next.by_tokens);
        self.by_weights.extend(next.by_weights);
        self.expert_gradients.extend(next.expert_gradients);
        self.experts.extend(next.experts);
        self.dense = next.dense;
        self.choices.extend(next.choices);
        Ok(())
    }

    /// What there is to compare, by name.
    fn parts(&self) -> [(&'static str, &[f32]); 9] {
        [
            ("losses", &self.losses),
            ("outputs of the experts", &self.outputs),
            ("gradients of tokens", &self.by_tokens),
            ("gradients of the choices' weights", &self.by_weights),
            ("gradients of the experts", &self.expert_gradients),
            ("weights of the experts", &self.experts),
            ("weights of the first layer", &self.dense[0]),
            ("weights of the router", &self.dense[1]),
            ("weights of the last layer", &self.dense[2]),
        ]
    }

    /// Fails where a bit differs.
    pub fn equals(&self, expected: &Self) -> Result<()> {
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        for ((what, seen), (_, wanted)) in self.parts().into_iter().zip(expected.parts()) {
            if bits(seen) != bits(wanted) {
                return Err(format!("{what} differ from those of one GPU").into());
            }
        }
        Ok(())
    }

    pub fn loss(&self) -> f64 {
        self.losses.iter().map(|loss| f64::from(*loss)).sum()
    }

    /// How many tokens have chosen each expert.
    pub fn loads(&self) -> [usize; EXPERTS] {
        let mut loads = [0; EXPERTS];
        self.choices.iter().for_each(|expert| loads[*expert as usize] += 1);
        loads
    }
}
