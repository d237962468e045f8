//! Data-parallel training with `burn::tensor::distributed`: a thread for each GPU averages the
//! gradients.

use std::thread;
use std::time::Instant;

use burn::data::dataloader::batcher::Batcher;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::distributed::{ReduceOperation, all_reduce};
use burn::tensor::{Device, Tensor, TensorData};

use crate::data::{Batches, STEPS, Sample, part};
use crate::model::{LEARNING_RATE, Mlp, Seen, optimizer};

/// What each rank has seen.
pub fn train(devices: &[Device], samples: &[Sample]) -> Vec<Seen> {
    // A GPU's messages and collectives are on one stream. A copy of the model that another rank
    // still waits for must not come behind an all-reduce that waits for that rank: all ranks have
    // their copies before the first one trains.
    let model = Mlp::new(&devices[0].clone().autodiff());
    let ranks: Vec<_> = devices
        .iter()
        .map(|device| model.clone().fork(&device.clone().autodiff()))
        .inspect(|model| drop(model.weights()))
        .enumerate()
        .collect();
    thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|(rank, model)| scope.spawn(move || train_rank(rank, model, devices, samples)))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

fn train_rank(rank: usize, mut model: Mlp, devices: &[Device], samples: &[Sample]) -> Seen {
    let device = devices[rank].clone().autodiff();
    let (mut seen, mut optimizer) = (Seen::default(), optimizer());
    for step in 0..STEPS {
        let began = Instant::now();
        let batch = Batches.batch(part(samples, rank, devices.len(), step), &device);
        let (_, loss) = model.forward(&batch);
        let mut gradients = GradientsParams::from_grads(loss.backward(), &model);
        model.visit(&mut Average { gradients: &mut gradients, devices });
        model = optimizer.step(LEARNING_RATE, model, gradients);
        seen.losses.push(loss.into_scalar());
        seen.seconds.push(began.elapsed().as_secs_f64());
    }
    seen.weights = model.weights();
    seen
}

struct Average<'a> {
    gradients: &'a mut GradientsParams,
    devices: &'a [Device],
}

impl ModuleVisitor for Average<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let own: Tensor<D> = self.gradients.remove(param.id).expect("each weight has a gradient");
        let average = all_reduce(own, ReduceOperation::Mean, self.devices.to_vec()).resolve();
        self.gradients.register(param.id, average);
    }
}

/// Sums and averages whose results are exact, and a tensor that is moved from GPU to GPU until it
/// is back. Returns how many results were compared.
pub fn collectives(devices: &[Device]) -> usize {
    let ranks = devices.len();
    let sizes = [1, 1000, 65_537];
    thread::scope(|scope| {
        for rank in 0..ranks {
            scope.spawn(move || {
                for size in sizes {
                    reduce(rank, devices, size, ReduceOperation::Sum);
                    reduce(rank, devices, size, ReduceOperation::Mean);
                }
            });
        }
    });
    for size in sizes {
        let sent: Vec<f32> = (0..size).map(|i| i as f32).collect();
        let first = TensorData::new(sent.clone(), [size]);
        let mut tensor = Tensor::<1>::from_data(first, &devices[0]);
        for device in devices[1..].iter().chain(&devices[..1]) {
            tensor = tensor.to_device(device);
        }
        let got = tensor.into_data().try_to_vec::<f32>().expect("f32");
        assert_eq!(got, sent, "{size} values, moved through {ranks} GPUs");
    }
    (2 * ranks + 1) * sizes.len()
}

fn reduce(rank: usize, devices: &[Device], size: usize, operation: ReduceOperation) {
    // Small whole numbers, and counts of ranks that are powers of two: every sum and average is
    // exact.
    let own = |rank: usize| move |i: usize| ((i % 128) * (rank + 1)) as f32;
    let data = TensorData::new((0..size).map(own(rank)).collect::<Vec<f32>>(), [size]);
    let tensor = Tensor::<1>::from_data(data, &devices[rank]);
    let got = all_reduce(tensor, operation, devices.to_vec()).resolve();
    let got = got.into_data().try_to_vec::<f32>().expect("f32");
    let divisor = match operation {
        ReduceOperation::Sum => 1.0,
        ReduceOperation::Mean => devices.len() as f32,
    };
    for (i, got) in got.into_iter().enumerate() {
        let sum: f32 = (0..devices.len()).map(|rank| own(rank)(i)).sum();
        assert_eq!(got, sum / divisor, "{operation:?} of {size} values, value {i}, rank {rank}");
    }
}
