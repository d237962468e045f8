//! A network of 8, 32 and 1 units, its seeded weights, and what a training of it has seen.

use std::time::Instant;

use burn::data::dataloader::batcher::Batcher;
use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, Relu};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor, TensorData};

use crate::data::{Batch, Batches, FEATURES, Numbers, Sample};

const HIDDEN: usize = 32;
pub const LEARNING_RATE: f64 = 0.01;

#[derive(Module, Debug)]
pub struct Mlp {
    hidden: Linear,
    activation: Relu,
    output: Linear,
}

impl Mlp {
    /// The same weights on every device.
    pub fn new(device: &Device) -> Self {
        let mut numbers = Numbers(7);
        Self {
            hidden: linear(&mut numbers, FEATURES, HIDDEN, device),
            activation: Relu::new(),
            output: linear(&mut numbers, HIDDEN, 1, device),
        }
    }

    pub fn forward(&self, batch: &Batch) -> (Tensor<2>, Tensor<1>) {
        let hidden = self.activation.forward(self.hidden.forward(batch.features.clone()));
        let output = self.output.forward(hidden);
        let loss = MseLoss::new().forward(output.clone(), batch.targets.clone(), Reduction::Mean);
        (output, loss)
    }

    pub fn weights(&self) -> Vec<f32> {
        struct Weights(Vec<f32>);
        impl ModuleVisitor for Weights {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                self.0
                    .extend(param.val().into_data().try_to_vec::<f32>().expect("weights are f32"));
            }
        }
        let mut weights = Weights(Vec::new());
        self.visit(&mut weights);
        weights.0
    }
}

/// As Burn initialises a layer: uniform, within one over the root of its inputs.
fn linear(numbers: &mut Numbers, inputs: usize, outputs: usize, device: &Device) -> Linear {
    let scale = 1.0 / (inputs as f32).sqrt();
    let mut uniform = |count| numbers.many(count).iter().map(|n| n * scale).collect::<Vec<f32>>();
    let weight = TensorData::new(uniform(inputs * outputs), [inputs, outputs]);
    let bias = TensorData::new(uniform(outputs), [outputs]);
    Linear { weight: Param::from_data(weight, device), bias: Some(Param::from_data(bias, device)) }
}

pub fn optimizer() -> ModuleOptimizer {
    AdamConfig::new().init()
}

/// What a rank has seen of a training.
#[derive(Clone, Default)]
pub struct Seen {
    /// Of its part of each batch.
    pub losses: Vec<f32>,
    /// Seconds of each step, from one loss to the next.
    pub seconds: Vec<f64>,
    /// After the last step.
    pub weights: Vec<f32>,
}

/// Trains on one device.
pub fn train_alone(device: &Device, batches: impl IntoIterator<Item = Vec<Sample>>) -> Seen {
    let device = device.clone().autodiff();
    let (mut seen, mut optimizer) = (Seen::default(), optimizer());
    let mut model = Mlp::new(&device);
    for batch in batches {
        let began = Instant::now();
        let batch = Batches.batch(batch, &device);
        let (_, loss) = model.forward(&batch);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(LEARNING_RATE, model, gradients);
        seen.losses.push(loss.into_scalar());
        seen.seconds.push(began.elapsed().as_secs_f64());
    }
    seen.weights = model.weights();
    seen
}
