//! Seeded samples of a function that a small network learns, and their batches.

use burn::data::dataloader::batcher::Batcher;
use burn::tensor::{Device, Tensor, TensorData};

pub const FEATURES: usize = 8;
pub const BATCH: usize = 64;
pub const STEPS: usize = 60;

#[derive(Clone, Debug)]
pub struct Sample {
    features: [f32; FEATURES],
    target: f32,
}

#[derive(Clone, Debug)]
pub struct Batch {
    pub features: Tensor<2>,
    pub targets: Tensor<2>,
}

/// Numbers in [-1, 1), the same in every run (SplitMix64).
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        (word >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn many(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next()).collect()
    }
}

/// The samples of a training of [`STEPS`] batches.
pub fn samples(seed: u64) -> Vec<Sample> {
    let mut numbers = Numbers(seed);
    (0..STEPS * BATCH)
        .map(|_| {
            let features: [f32; FEATURES] = std::array::from_fn(|_| numbers.next());
            let [a, b, c, d, ..] = features;
            Sample { features, target: (2.0 * a).sin() + b * c - 0.5 * d.abs() }
        })
        .collect()
}

/// The samples that rank `rank` of `ranks` takes in step `step`: each rank has a share that lies in
/// one piece, as Burn's data loaders split a dataset.
pub fn part(samples: &[Sample], rank: usize, ranks: usize, step: usize) -> Vec<Sample> {
    let begin = samples.len() / ranks * rank + BATCH / ranks * step;
    samples[begin..begin + BATCH / ranks].to_vec()
}

/// What all ranks together take in each step.
pub fn whole(samples: &[Sample], ranks: usize) -> impl Iterator<Item = Vec<Sample>> {
    let parts = move |step| (0..ranks).flat_map(move |rank| part(samples, rank, ranks, step));
    (0..STEPS).map(move |step| parts(step).collect())
}

#[derive(Clone)]
pub struct Batches;

impl Batcher<Sample, Batch> for Batches {
    fn batch(&self, items: Vec<Sample>, device: &Device) -> Batch {
        let count = items.len();
        let features: Vec<f32> = items.iter().flat_map(|item| item.features).collect();
        let targets: Vec<f32> = items.iter().map(|item| item.target).collect();
        Batch {
            features: Tensor::from_data(TensorData::new(features, [count, FEATURES]), device),
            targets: Tensor::from_data(TensorData::new(targets, [count, 1]), device),
        }
    }
}
