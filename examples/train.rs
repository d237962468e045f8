//! Synchronous data-parallel training: a small network learns a function of two variables on all
//! GPUs. Each has a part of the samples. The gradients of a layer are all-reduced on one stream
//! while the layer before it is computed on another. A single GPU with all samples is the
//! reference.
//!
//! Then the same on 1, 2, 4 and 8 ranks with reproducible reductions: the weights have the bits of
//! one GPU that computes the gradients of all parts of the samples, and adds them in their order.
//!
//! `cargo run --release --example train [FOLDER]`, or on virtual hardware
//! `hwsim run --machine pcie4 -- target/release/examples/train [FOLDER]`, draws the loss and a
//! timeline to FOLDER (`target`). The kernels are in `kernels/cuda/example_train.cu`.

use cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaSlice, CudaStream, DeviceRepr, LaunchConfig,
    PushKernelArg, sys::CUevent_flags,
};
use cudarc::nvrtc::Ptx;
use ringdove::{Communicator, ReduceOp, Settings, device_count, open_device};
use ringdove_figures::run::{Curve, Span, curves, timeline};
use ringdove_kernels::ptx::EXAMPLE_TRAIN;
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Values of a sample before, between and after the layers.
pub(crate) const WIDTHS: [usize; 4] = [2, 32, 32, 1];
pub(crate) const SAMPLES: usize = 256;
pub(crate) const STEPS: usize = 100;
pub(crate) const RATE: f32 = 0.2;
pub(crate) const SEED: u64 = 7;
const ROWS: [&str; 2] = ["compute", "all-reduce"];
/// Ranks whose weights are compared bit for bit; those beyond the number of GPUs share them.
const RANKS: [usize; 4] = [1, 2, 4, 8];

/// One layer, and as many samples as a kernel sees: the device's `Shape`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) samples: u32,
    pub(crate) inputs: u32,
    pub(crate) outputs: u32,
}

// SAFETY: plain numbers, laid out as in the kernels' source.
unsafe impl DeviceRepr for Shape {}

struct Layer {
    shape: Shape,
    /// A row of weights for each input, then the biases.
    parameters: CudaSlice<f32>,
    gradients: CudaSlice<f32>,
    outputs: CudaSlice<f32>,
    /// Derivatives of the loss by what stands before the activation.
    delta: CudaSlice<f32>,
}

struct Kernels {
    forward: CudaFunction,
    loss: CudaFunction,
    gradients: CudaFunction,
    backward: CudaFunction,
    descend: CudaFunction,
}

/// One GPU with its part of the samples; without a communicator, the reference.
pub(crate) struct Worker<'c> {
    communicator: Option<&'c Communicator>,
    compute: Arc<CudaStream>,
    reduce: Arc<CudaStream>,
    kernels: Kernels,
    inputs: CudaSlice<f32>,
    targets: CudaSlice<f32>,
    losses: CudaSlice<f32>,
    layers: Vec<Layer>,
    marks: Vec<Mark>,
}

/// What ran between two events.
struct Mark {
    row: usize,
    name: String,
    events: [CudaEvent; 2],
}

/// Samples, and what is to be learnt of them.
pub(crate) struct Samples {
    pub(crate) inputs: Vec<f32>,
    pub(crate) targets: Vec<f32>,
}

impl Samples {
    pub(crate) fn new() -> Self {
        let mut random = fastrand::Rng::with_seed(SEED);
        let inputs: Vec<f32> = (0..SAMPLES * WIDTHS[0]).map(|_| random.f32() * 2.0 - 1.0).collect();
        let target = |sample: &[f32]| (2.0 * sample[0]).sin() + 0.5 * sample[1];
        let targets = inputs.chunks_exact(WIDTHS[0]).map(target).collect();
        Self { inputs, targets }
    }

    /// Part `number` of `count`.
    pub(crate) fn part(&self, number: usize, count: usize) -> Self {
        let range = SAMPLES * number / count..SAMPLES * (number + 1) / count;
        let inputs = self.inputs[range.start * WIDTHS[0]..range.end * WIDTHS[0]].to_vec();
        Self { inputs, targets: self.targets[range].to_vec() }
    }
}

/// The parameters that a layer begins with.
pub(crate) fn first_parameters(
    random: &mut fastrand::Rng,
    inputs: usize,
    outputs: usize,
) -> Vec<f32> {
    let scale = (1.0 / inputs as f32).sqrt();
    (0..(inputs + 1) * outputs).map(|_| (random.f32() * 2.0 - 1.0) * scale).collect()
}

impl Kernels {
    fn load(context: &Arc<CudaContext>) -> Result<Self> {
        let module = context.load_module(Ptx::from_src(EXAMPLE_TRAIN))?;
        Ok(Self {
            forward: module.load_function("train_forward")?,
            loss: module.load_function("train_loss")?,
            gradients: module.load_function("train_gradients")?,
            backward: module.load_function("train_backward")?,
            descend: module.load_function("train_descend")?,
        })
    }
}

impl<'c> Worker<'c> {
    /// Allocates and loads everything: before the first collective runs, as the README says.
    pub(crate) fn new(
        context: &Arc<CudaContext>,
        samples: &Samples,
        communicator: Option<&'c Communicator>,
    ) -> Result<Self> {
        let compute = context.new_stream()?;
        let mut random = fastrand::Rng::with_seed(SEED);
        let count = samples.targets.len();
        let mut layers = Vec::new();
        for widths in WIDTHS.windows(2) {
            let (inputs, outputs) = (widths[0], widths[1]);
            let parameters = first_parameters(&mut random, inputs, outputs);
            layers.push(Layer {
                shape: Shape {
                    samples: count as u32,
                    inputs: inputs as u32,
                    outputs: outputs as u32,
                },
                parameters: compute.clone_htod(&parameters)?,
                gradients: compute.alloc_zeros(parameters.len())?,
                outputs: compute.alloc_zeros(count * outputs)?,
                delta: compute.alloc_zeros(count * outputs)?,
            });
        }
        let mut worker = Self {
            communicator,
            reduce: context.new_stream()?,
            kernels: Kernels::load(context)?,
            inputs: compute.clone_htod(&samples.inputs)?,
            targets: compute.clone_htod(&samples.targets)?,
            losses: compute.alloc_zeros(count)?,
            layers,
            marks: Vec::new(),
            compute,
        };
        worker.rehearse()?;
        Ok(worker)
    }

    /// Launches every kernel once. Drivers load a kernel at its first launch, and wait for the GPU
    /// to do so: beside a collective that waits for another GPU, they would wait for ever.
    fn rehearse(&mut self) -> Result<()> {
        self.forward()?;
        for number in (0..self.layers.len()).rev() {
            self.gradients(number)?;
            self.backward(number)?;
        }
        self.descend(0.0)?;
        Ok(self.compute.synchronize()?)
    }

    fn forward(&mut self) -> Result<()> {
        for number in 0..self.layers.len() {
            let (before, from) = self.layers.split_at_mut(number);
            let input = before.last().map_or(&self.inputs, |layer| &layer.outputs);
            let is_last = u32::from(from.len() == 1);
            let layer = &mut from[0];
            let values = LaunchConfig::for_num_elems(layer.outputs.len() as u32);
            let mut launch = self.compute.launch_builder(&self.kernels.forward);
            launch.arg(input).arg(&layer.parameters).arg(&mut layer.outputs);
            launch.arg(&layer.shape).arg(&is_last);
            // SAFETY: the arguments are those of the kernel, in type and order, and the buffers
            // have the lengths that its shape says. So it is with the launches below.
            unsafe { launch.launch(values) }?;
        }
        let last = self.layers.last_mut().expect("there are layers");
        let (count, scale) = (self.losses.len() as u32, 1.0 / SAMPLES as f32);
        let mut launch = self.compute.launch_builder(&self.kernels.loss);
        launch.arg(&last.outputs).arg(&self.targets).arg(&mut self.losses).arg(&mut last.delta);
        launch.arg(&count).arg(&scale);
        // SAFETY: as above.
        unsafe { launch.launch(LaunchConfig::for_num_elems(count)) }?;
        Ok(())
    }

    fn gradients(&mut self, number: usize) -> Result<()> {
        let (before, from) = self.layers.split_at_mut(number);
        let input = before.last().map_or(&self.inputs, |layer| &layer.outputs);
        let layer = &mut from[0];
        let values = LaunchConfig::for_num_elems(layer.gradients.len() as u32);
        let mut launch = self.compute.launch_builder(&self.kernels.gradients);
        launch.arg(input).arg(&layer.delta).arg(&mut layer.gradients).arg(&layer.shape);
        // SAFETY: as above.
        unsafe { launch.launch(values) }?;
        Ok(())
    }

    /// Adds a layer's gradients over all GPUs, in place, once they are complete.
    fn reduce(&mut self, number: usize) -> Result<()> {
        let Some(communicator) = self.communicator else { return Ok(()) };
        self.reduce.join(&self.compute)?;
        let gradients = &mut self.layers[number].gradients;
        Ok(communicator.all_reduce_in_place(gradients, ReduceOp::Sum, &self.reduce)?)
    }

    fn backward(&mut self, number: usize) -> Result<()> {
        let (before, from) = self.layers.split_at_mut(number);
        let Some(before) = before.last_mut() else { return Ok(()) };
        let layer = &from[0];
        let values = LaunchConfig::for_num_elems(before.delta.len() as u32);
        let mut launch = self.compute.launch_builder(&self.kernels.backward);
        launch.arg(&layer.parameters).arg(&layer.delta).arg(&before.outputs);
        launch.arg(&mut before.delta).arg(&layer.shape);
        // SAFETY: as above.
        unsafe { launch.launch(values) }?;
        Ok(())
    }

    fn descend(&mut self, rate: f32) -> Result<()> {
        self.compute.join(&self.reduce)?;
        for layer in &mut self.layers {
            let count = layer.parameters.len() as u32;
            let mut launch = self.compute.launch_builder(&self.kernels.descend);
            launch.arg(&mut layer.parameters).arg(&layer.gradients).arg(&count).arg(&rate);
            // SAFETY: as above.
            unsafe { launch.launch(LaunchConfig::for_num_elems(count)) }?;
        }
        Ok(())
    }

    /// Runs `body`, and remembers when its work on a stream ran, where `is_marked`.
    fn marked(
        &mut self,
        is_marked: bool,
        row: usize,
        name: &str,
        body: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        if !is_marked {
            return body(self);
        }
        let stream = [&self.compute, &self.reduce][row].clone();
        if row == 1 {
            // Not the time in which it waits for the gradients.
            stream.join(&self.compute)?;
        }
        let event = || stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        let start = event()?;
        body(self)?;
        self.marks.push(Mark { row, name: name.to_owned(), events: [start, event()?] });
        Ok(())
    }

    /// The loss of its samples in the step that was enqueued last. Waits for it.
    fn loss(&self) -> Result<f64> {
        let losses = self.compute.clone_dtoh(&self.losses)?;
        self.compute.synchronize()?;
        self.reduce.synchronize()?;
        self.communicator.map_or(Ok(()), Communicator::check)?;
        Ok(losses.iter().map(|loss| f64::from(*loss)).sum())
    }

    pub(crate) fn parameters(&self) -> Result<Vec<Vec<f32>>> {
        self.layers.iter().map(|layer| Ok(self.compute.clone_dtoh(&layer.parameters)?)).collect()
    }

    /// Goes on with these parameters.
    pub(crate) fn assign(&mut self, parameters: &[Vec<f32>]) -> Result<()> {
        for (layer, parameters) in self.layers.iter_mut().zip(parameters) {
            self.compute.memcpy_htod(parameters, &mut layer.parameters)?;
        }
        Ok(())
    }

    /// Its share of the loss, and of the gradient of each layer.
    pub(crate) fn compute(&mut self) -> Result<(f64, Vec<Vec<f32>>)> {
        self.forward()?;
        for number in (0..self.layers.len()).rev() {
            self.gradients(number)?;
            self.backward(number)?;
        }
        let gradients = self.layers.iter().map(|layer| self.compute.clone_dtoh(&layer.gradients));
        let gradients = gradients.collect::<std::result::Result<_, _>>()?;
        Ok((self.loss()?, gradients))
    }

    /// What ran when in the marked step, in milliseconds from its beginning.
    fn spans(&self) -> Result<Vec<Span>> {
        let Some(first) = self.marks.first() else { return Ok(Vec::new()) };
        let since = |event: &CudaEvent| first.events[0].elapsed_ms(event).map(f64::from);
        let span = |mark: &Mark| {
            let (start, end) = (since(&mark.events[0])?, since(&mark.events[1])?);
            Ok(Span { row: mark.row, name: mark.name.clone(), start, end })
        };
        self.marks.iter().map(span).collect()
    }
}

/// Enqueues one step on all workers. Each all-reduce is enqueued on all of them before anything
/// else is, for one thread drives them all.
fn step<'c>(workers: &mut [Worker<'c>], is_marked: bool) -> Result<()> {
    let mut each = |row: usize, name: &str, body: &dyn Fn(&mut Worker<'c>) -> Result<()>| {
        let mut numbered = workers.iter_mut().enumerate();
        numbered.try_for_each(|(number, it)| it.marked(is_marked && number == 0, row, name, body))
    };
    each(0, "forward", &Worker::forward)?;
    for number in (0..WIDTHS.len() - 1).rev() {
        each(0, &format!("gradients {number}"), &|worker| worker.gradients(number))?;
        each(1, &format!("sum {number}"), &|worker| worker.reduce(number))?;
        each(0, &format!("backward {number}"), &|worker| worker.backward(number))?;
    }
    each(0, "descend", &|worker| worker.descend(RATE))
}

/// Trains, and returns the loss of each step.
pub(crate) fn train(workers: &mut [Worker<'_>]) -> Result<Vec<f64>> {
    (0..STEPS)
        .map(|number| {
            step(workers, number == STEPS - 1)?;
            workers.iter().map(Worker::loss).sum()
        })
        .collect()
}

/// Trains on one GPU, with all samples.
pub(crate) fn on_one_gpu(context: &Arc<CudaContext>, samples: &Samples) -> Result<Vec<f64>> {
    train(&mut [Worker::new(context, samples, None)?])
}

/// Trains on one GPU, part by part: the gradients of `count` parts of the samples are added in
/// their order.
fn by_parts(context: &Arc<CudaContext>, samples: &Samples, count: usize) -> Result<Vec<Vec<f32>>> {
    let parts = (0..count).map(|number| Worker::new(context, &samples.part(number, count), None));
    let mut parts = parts.collect::<Result<Vec<_>>>()?;
    let mut parameters = parts[0].parameters()?;
    for _ in 0..STEPS {
        let mut sum = parts[0].compute()?.1;
        for part in &mut parts[1..] {
            let gradients = part.compute()?.1;
            for (sum, gradient) in sum.iter_mut().flatten().zip(gradients.iter().flatten()) {
                *sum += gradient;
            }
        }
        for (parameter, gradient) in parameters.iter_mut().flatten().zip(sum.iter().flatten()) {
            *parameter -= RATE * gradient;
        }
        parts.iter_mut().try_for_each(|part| part.assign(&parameters))?;
    }
    Ok(parameters)
}

/// Trains on so many ranks, with reproducible reductions, and compares every bit.
fn reproducibly(contexts: &[Arc<CudaContext>], samples: &Samples, count: usize) -> Result<()> {
    let settings = Settings { reproducible: true, ..Settings::from_env()? };
    let shared: Vec<_> = (0..count).map(|rank| contexts[rank % contexts.len()].clone()).collect();
    let expected = by_parts(&contexts[0], samples, count)?;
    let communicators = Communicator::init_all(&shared, &settings)?;
    let mut workers = Vec::new();
    for (number, communicator) in communicators.iter().enumerate() {
        let part = samples.part(number, count);
        workers.push(Worker::new(&shared[number], &part, Some(communicator))?);
    }
    train(&mut workers)?;
    let bits = |parameters: Vec<Vec<f32>>| -> Vec<u32> {
        parameters.into_iter().flatten().map(f32::to_bits).collect()
    };
    let expected = bits(expected);
    for (number, worker) in workers.iter().enumerate() {
        let seen = bits(worker.parameters()?);
        let apart = seen.iter().zip(&expected).filter(|(seen, expected)| seen != expected).count();
        if apart > 0 {
            return Err(format!("{count} ranks: {apart} weights differ on rank {number}").into());
        }
    }
    println!("{count} ranks, reproducible: all weights have the bits of one GPU");
    Ok(())
}

/// The folder for drawings, the only argument; it is made here, and not after minutes of training.
pub fn folder() -> Result<PathBuf> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let folder = PathBuf::from(match &arguments[..] {
        [] => "target".as_ref(),
        [folder] if !folder.to_string_lossy().starts_with('-') => folder.as_os_str(),
        _ => return Err(format!("arguments {arguments:?}: expected [FOLDER], for drawings").into()),
    });
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}

fn main() -> Result<()> {
    let folder = folder()?;
    let contexts =
        (0..device_count()?.min(8)).map(open_device).collect::<std::result::Result<Vec<_>, _>>()?;
    let (samples, count) = (Samples::new(), contexts.len());

    let reference = on_one_gpu(&contexts[0], &samples)?;
    let communicators = Communicator::init_all(&contexts, &Settings::from_env()?)?;
    let mut workers = Vec::new();
    for (number, (context, communicator)) in contexts.iter().zip(&communicators).enumerate() {
        workers.push(Worker::new(context, &samples.part(number, count), Some(communicator))?);
    }
    let losses = train(&mut workers)?;

    for number in (0..STEPS).step_by(STEPS / 6).chain([STEPS - 1]) {
        println!(
            "step {number:3}: loss {:.6}, on one GPU {:.6}",
            losses[number], reference[number]
        );
    }
    let parameters = workers[0].parameters()?;
    for worker in &workers[1..] {
        if worker.parameters()? != parameters {
            return Err("weights differ between GPUs".into());
        }
    }
    println!("the same weights on all {count} GPUs");
    let apart = losses.iter().zip(&reference).map(|(one, other)| (one - other).abs());
    let apart = apart.fold(0.0, f64::max);
    println!("the loss is that of one GPU within {apart:.1e}");
    if apart > 1e-5 || losses[STEPS - 1] > losses[0] / 10.0 {
        return Err(format!("loss {} after {}", losses[STEPS - 1], losses[0]).into());
    }

    RANKS.iter().try_for_each(|count| reproducibly(&contexts, &samples, *count))?;

    let both = [(format!("{count} GPUs"), losses), ("one GPU".into(), reference)]
        .map(|(name, values)| Curve { name, values });
    let title = match contexts[0].name()?.contains("(virtual)") {
        true => "One step on GPU 0 (wall-clock times of a simulation)",
        false => "One step on GPU 0",
    };
    for (name, drawing) in [
        ("train-loss.svg", curves("Training", "loss", &both)?),
        ("train-timeline.svg", timeline(title, &ROWS, &workers[0].spans()?)?),
    ] {
        let path = folder.join(name);
        std::fs::write(&path, drawing)?;
        println!("drawn: {}", path.display());
    }
    Ok(())
}
