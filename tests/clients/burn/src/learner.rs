//! Data-parallel training by Burn's own learner: `ExecutionStrategy::ddp`.

use std::sync::Mutex;
use std::time::Instant;

use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::Device;
use burn::tensor::distributed::{DistributedConfig, ReduceOperation};
use burn::train::metric::LossMetric;
use burn::train::{
    ExecutionStrategy, InferenceStep, Learner, RegressionOutput, SupervisedTraining, TrainOutput,
    TrainStep,
};

use crate::data::{BATCH, Batch, Batches, STEPS, Sample};
use crate::model::{LEARNING_RATE, Mlp, Seen, optimizer};

/// The learner has threads of its own, and returns the model of its first device alone: each step
/// notes here what it has seen.
static RANKS: Mutex<Vec<Rank>> = Mutex::new(Vec::new());

struct Rank {
    device: Device,
    last: Instant,
    seen: Seen,
}

fn with_rank<R>(device: &Device, note: impl FnOnce(&mut Rank) -> R) -> R {
    let mut ranks = RANKS.lock().expect("no rank panics");
    let rank = ranks.iter_mut().find(|rank| rank.device == *device).expect("a device of the list");
    note(rank)
}

fn device_of(model: &Mlp) -> Device {
    model.devices().swap_remove(0)
}

impl TrainStep for Mlp {
    type Input = Batch;
    type Output = RegressionOutput;

    fn step(&self, batch: Batch) -> TrainOutput<RegressionOutput> {
        let (output, loss) = self.forward(&batch);
        let gradients = loss.backward();
        let value = loss.clone().into_scalar();
        with_rank(&device_of(self), |rank| rank.seen.losses.push(value));
        TrainOutput::new(self, gradients, RegressionOutput::new(loss, output, batch.targets))
    }

    fn optimize(
        self,
        optimizer: &mut ModuleOptimizer,
        rate: ModuleLearningRate,
        gradients: GradientsParams,
    ) -> Self {
        let model = optimizer.step(rate, self, gradients);
        let device = device_of(&model);
        let steps = with_rank(&device, |rank| {
            rank.seen.seconds.push(rank.last.elapsed().as_secs_f64());
            rank.last = Instant::now();
            rank.seen.seconds.len()
        });
        if steps == STEPS {
            let weights = model.weights();
            with_rank(&device, |rank| rank.seen.weights = weights);
        }
        model
    }
}

impl InferenceStep for Mlp {
    type Input = Batch;
    type Output = RegressionOutput;

    fn step(&self, batch: Batch) -> RegressionOutput {
        let (output, loss) = self.forward(&batch);
        RegressionOutput::new(loss, output, batch.targets)
    }
}

/// What each rank has seen, and the weights of the model that the learner returns.
pub fn train(devices: &[Device], samples: &[Sample]) -> (Vec<Seen>, Vec<f32>) {
    let rank = |device: &Device| Rank {
        device: device.clone(),
        last: Instant::now(),
        seen: Seen::default(),
    };
    *RANKS.lock().expect("no rank panics") = devices.iter().map(rank).collect();
    let loader = |samples: &[Sample]| {
        DataLoaderBuilder::new(Batches)
            .batch_size(BATCH / devices.len())
            .set_device(devices[0].clone())
            .build(InMemDataset::new(samples.to_vec()))
    };
    let config = DistributedConfig { all_reduce_op: ReduceOperation::Mean };
    let result =
        SupervisedTraining::<Mlp>::new("learner", loader(samples), loader(&samples[..BATCH]))
            .metric_train_numeric(LossMetric::new())
            .metric_valid_numeric(LossMetric::new())
            .num_epochs(1)
            .with_training_strategy(ExecutionStrategy::ddp(devices.to_vec(), config).into())
            .launch(Learner::new(
                Mlp::new(&devices[0].clone().autodiff()),
                optimizer(),
                LEARNING_RATE,
            ));
    assert!(result.error.is_none(), "the learner ended with {:?}", result.error);
    let ranks = std::mem::take(&mut *RANKS.lock().expect("no rank panics"));
    (ranks.into_iter().map(|rank| rank.seen).collect(), result.model.weights())
}
