//! The network on one GPU: a dense layer, the experts of this GPU with their router, and a dense
//! layer again. Router and dense layers are the same on all GPUs.

use super::exchange::{Arrived, Choices, Exchange, Given, Sent};
use super::results::Results;
use super::train::{RATE, Result, SAMPLES, SEED, Samples, Shape as DenseShape};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, DeviceRepr, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;
use ringdove_kernels::ptx::{EXAMPLE_MOE, EXAMPLE_TRAIN};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

pub const EXPERTS: usize = 8;
pub const TOP_K: usize = 2;
/// Values of a token.
pub const HIDDEN: usize = 32;

const OF_TRAIN: [&str; 4] = ["train_forward", "train_loss", "train_gradients", "train_descend"];
const OF_MOE: [&str; 11] = [
    "moe_scores",
    "moe_choose",
    "moe_activate",
    "moe_results",
    "moe_deltas",
    "moe_backward",
    "moe_gradients",
    "moe_router_deltas",
    "moe_output_gradients",
    "moe_input_deltas",
    "moe_descend",
];

/// Tokens or rows, and experts: the device's `Shape`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Shape {
    rows: u32,
    hidden: u32,
    experts: u32,
    top_k: u32,
    group: u32,
}

// SAFETY: plain numbers, laid out as in the kernels' source.
unsafe impl DeviceRepr for Shape {}

/// A layer that all GPUs have.
struct Dense {
    shape: DenseShape,
    /// A row of weights for each input, then the biases.
    parameters: CudaSlice<f32>,
    /// Of all parts of the samples, one after the other.
    gradients: CudaSlice<f32>,
    outputs: CudaSlice<f32>,
    /// Derivatives of the loss by what stands before the activation.
    deltas: CudaSlice<f32>,
}

/// This GPU's experts, and the rows that come for them.
struct Experts {
    shape: Shape,
    parameters: CudaSlice<f32>,
    gradients: CudaSlice<f32>,
    rows: CudaSlice<f32>,
    counts: CudaSlice<u32>,
    choices: Choices,
    /// For each choice of a row what its expert gives, and the derivatives before the activation.
    values: CudaSlice<f32>,
    deltas: CudaSlice<f32>,
    results: CudaSlice<f32>,
    by_results: CudaSlice<f32>,
    by_rows: CudaSlice<f32>,
    by_weights: CudaSlice<f32>,
}

/// This GPU's tokens: the samples between the layers.
struct Tokens {
    shape: Shape,
    choices: Choices,
    /// What comes back from the experts, and the derivatives by it.
    outputs: CudaSlice<f32>,
    by_outputs: CudaSlice<f32>,
    /// Derivatives by the tokens and by the weights of their choices, as the experts give them.
    by_tokens: CudaSlice<f32>,
    by_weights: CudaSlice<f32>,
}

/// The kernels, and the stream on which all of a worker's work is.
struct Program {
    stream: Arc<CudaStream>,
    kernels: HashMap<&'static str, CudaFunction>,
}

/// One GPU with its part of the samples.
pub struct Worker<'c> {
    exchange: Exchange<'c>,
    program: Program,
    /// Parts of the samples that this worker has, of how many.
    parts: Range<usize>,
    inputs: CudaSlice<f32>,
    targets: CudaSlice<f32>,
    losses: CudaSlice<f32>,
    first: Dense,
    router: Dense,
    last: Dense,
    tokens: Tokens,
    experts: Experts,
}

/// Launches a kernel with so many threads.
macro_rules! launch {
    ($program:ident, $name:literal, $threads:expr, $($argument:expr),+) => {{
        let threads = LaunchConfig::for_num_elems($threads as u32);
        let mut launch = $program.stream.launch_builder(&$program.kernels[$name]);
        $(launch.arg($argument);)+
        // SAFETY: the arguments are those of the kernel, in type and order, and the buffers have
        // the lengths that its shape says.
        unsafe { launch.launch(threads) }?;
    }};
}

/// What a worker is made of, and draws its first weights from.
struct Maker {
    stream: Arc<CudaStream>,
    random: fastrand::Rng,
}

impl Maker {
    fn zeros(&self, length: usize) -> Result<CudaSlice<f32>> {
        Ok(self.stream.alloc_zeros(length)?)
    }

    /// Parameters of `count` layers with so many inputs and outputs.
    fn draw(&mut self, count: usize, inputs: usize, outputs: usize) -> Vec<f32> {
        let scale = (1.0 / inputs as f32).sqrt();
        let values = (0..count * (inputs + 1) * outputs).map(|_| self.random.f32() * 2.0 - 1.0);
        values.map(|value| value * scale).collect()
    }

    fn dense(&mut self, [inputs, outputs]: [usize; 2], samples: usize) -> Result<Dense> {
        let parameters = self.draw(1, inputs, outputs);
        Ok(Dense {
            shape: DenseShape {
                samples: samples as u32,
                inputs: inputs as u32,
                outputs: outputs as u32,
            },
            gradients: self.zeros(super::PARTS * parameters.len())?,
            parameters: self.stream.clone_htod(&parameters)?,
            outputs: self.zeros(samples * outputs)?,
            deltas: self.zeros(samples * outputs)?,
        })
    }

    fn choices(&self, rows: usize) -> Result<Choices> {
        let experts = self.stream.alloc_zeros(rows * TOP_K)?;
        Ok(Choices { experts, weights: self.zeros(rows * TOP_K)? })
    }

    fn tokens(&self, count: usize) -> Result<Tokens> {
        Ok(Tokens {
            shape: shape(count, EXPERTS, EXPERTS),
            choices: self.choices(count)?,
            outputs: self.zeros(count * HIDDEN)?,
            by_outputs: self.zeros(count * HIDDEN)?,
            by_tokens: self.zeros(count * HIDDEN)?,
            by_weights: self.zeros(count * TOP_K)?,
        })
    }

    /// Those of `own`, out of all that are drawn. At most all samples come for them.
    fn experts(&mut self, own: Range<usize>, group: usize) -> Result<Experts> {
        let (all, of_one) = (self.draw(EXPERTS, HIDDEN, HIDDEN), (HIDDEN + 1) * HIDDEN);
        let parameters = &all[own.start * of_one..own.end * of_one];
        Ok(Experts {
            shape: shape(SAMPLES, own.len(), group),
            parameters: self.stream.clone_htod(parameters)?,
            gradients: self.zeros(parameters.len())?,
            rows: self.zeros(SAMPLES * HIDDEN)?,
            counts: self.stream.alloc_zeros(own.len() + 1)?,
            choices: self.choices(SAMPLES)?,
            values: self.zeros(SAMPLES * TOP_K * HIDDEN)?,
            deltas: self.zeros(SAMPLES * TOP_K * HIDDEN)?,
            results: self.zeros(SAMPLES * HIDDEN)?,
            by_results: self.zeros(SAMPLES * HIDDEN)?,
            by_rows: self.zeros(SAMPLES * HIDDEN)?,
            by_weights: self.zeros(SAMPLES * TOP_K)?,
        })
    }
}

fn shape(rows: usize, experts: usize, group: usize) -> Shape {
    let [rows, experts, group] = [rows, experts, group].map(|count| count as u32);
    Shape { rows, hidden: HIDDEN as u32, experts, top_k: TOP_K as u32, group }
}

impl Program {
    fn load(context: &Arc<CudaContext>) -> Result<Self> {
        let mut kernels = HashMap::new();
        for (text, names) in [(EXAMPLE_TRAIN, &OF_TRAIN[..]), (EXAMPLE_MOE, &OF_MOE)] {
            let module = context.load_module(Ptx::from_src(text))?;
            for name in names {
                kernels.insert(*name, module.load_function(name)?);
            }
        }
        Ok(Self { stream: context.new_stream()?, kernels })
    }

    /// The gradients of a layer, for each part of the samples that is here.
    fn gradients(
        &self,
        layer: &mut Dense,
        inputs: &CudaSlice<f32>,
        parts: &Range<usize>,
    ) -> Result<()> {
        let count = layer.parameters.len();
        let samples = layer.shape.samples as usize / parts.len();
        let shape = DenseShape { samples: samples as u32, ..layer.shape };
        let widths = [shape.inputs as usize, shape.outputs as usize];
        for (nth, part) in parts.clone().enumerate() {
            let of_part = |width: usize| nth * samples * width..(nth + 1) * samples * width;
            let inputs = inputs.slice(of_part(widths[0]));
            let deltas = layer.deltas.slice(of_part(widths[1]));
            let mut own = layer.gradients.slice_mut(part * count..(part + 1) * count);
            launch!(self, "train_gradients", count, &inputs, &deltas, &mut own, &shape);
        }
        Ok(())
    }

    fn descend(
        &self,
        parameters: &mut CudaSlice<f32>,
        gradients: &CudaSlice<f32>,
        parts: u32,
        rate: f32,
    ) -> Result<()> {
        let count = parameters.len() as u32;
        launch!(self, "moe_descend", count, parameters, gradients, &count, &parts, &rate);
        Ok(())
    }
}

impl<'c> Worker<'c> {
    /// The phases of a step, in order.
    pub const PHASES: [fn(&mut Self) -> Result<()>; 17] = [
        Self::route,
        Self::send_tokens,
        Self::receive_tokens,
        Self::compute_experts,
        Self::give_results,
        Self::take_results,
        Self::compute_loss,
        Self::send_gradients,
        Self::receive_gradients,
        Self::backward_through_experts,
        Self::give_gradients,
        Self::take_gradients,
        Self::backward_through_router,
        |worker| worker.exchange.gather(&mut worker.first.gradients, &worker.program.stream),
        |worker| worker.exchange.gather(&mut worker.router.gradients, &worker.program.stream),
        |worker| worker.exchange.gather(&mut worker.last.gradients, &worker.program.stream),
        |worker| worker.descend(RATE),
    ];

    /// A worker with these parts of the samples, one of `workers` that have a share of the experts
    /// each; or the only one, which adds as these would.
    pub fn new(
        context: &Arc<CudaContext>,
        samples: &Samples,
        parts: Range<usize>,
        exchange: Exchange<'c>,
        workers: usize,
    ) -> Result<Self> {
        let count = samples.targets.len();
        let (experts, group) = (EXPERTS / super::PARTS, EXPERTS / workers);
        let own = parts.start * experts..parts.end * experts;
        let program = Program::load(context)?;
        let stream = program.stream.clone();
        let random = fastrand::Rng::with_seed(SEED);
        let mut maker = Maker { stream: stream.clone(), random };
        let mut worker = Self {
            exchange,
            program,
            parts,
            inputs: stream.clone_htod(&samples.inputs)?,
            targets: stream.clone_htod(&samples.targets)?,
            losses: maker.zeros(count)?,
            first: maker.dense([samples.inputs.len() / count, HIDDEN], count)?,
            router: maker.dense([HIDDEN, EXPERTS], count)?,
            last: maker.dense([HIDDEN, 1], count)?,
            tokens: maker.tokens(count)?,
            experts: maker.experts(own, group)?,
        };
        worker.rehearse()?;
        Ok(worker)
    }

    /// Launches every kernel once, as `train.rs` does and for its reason. No rows have come yet.
    fn rehearse(&mut self) -> Result<()> {
        for phase in [Self::route, Self::compute_experts, Self::compute_loss] {
            phase(self)?;
        }
        self.backward_through_experts()?;
        self.backward_through_router()?;
        self.descend(0.0)?;
        Ok(self.program.stream.synchronize()?)
    }

    /// Tokens out of samples, and which experts each of them chooses.
    fn route(&mut self) -> Result<()> {
        let Self { program, first, router, tokens, .. } = self;
        let (outputs, is_last) = (&mut first.outputs, 0u32);
        let (inputs, parameters, shape) = (&self.inputs, &first.parameters, &first.shape);
        launch!(
            program,
            "train_forward",
            outputs.len(),
            inputs,
            parameters,
            outputs,
            shape,
            &is_last
        );
        let (scores, shape) = (&mut router.outputs, &tokens.shape);
        launch!(
            program,
            "moe_scores",
            scores.len(),
            &first.outputs,
            &router.parameters,
            scores,
            shape
        );
        let Choices { experts, weights } = &mut tokens.choices;
        launch!(program, "moe_choose", shape.rows, &router.outputs, experts, weights, shape);
        Ok(())
    }

    fn send_tokens(&mut self) -> Result<()> {
        let Self { first, tokens, .. } = self;
        let (count, choices) = (tokens.shape.rows, &tokens.choices);
        self.exchange.send(&Sent { tokens: &first.outputs, count, choices }, &self.program.stream)
    }

    fn receive_tokens(&mut self) -> Result<()> {
        let Self { first, tokens, experts, .. } = self;
        let (count, choices) = (tokens.shape.rows, &tokens.choices);
        let sent = Sent { tokens: &first.outputs, count, choices };
        let Experts { rows, counts, choices, .. } = experts;
        self.exchange.receive(&sent, Arrived { rows, counts, choices }, &self.program.stream)
    }

    /// What this GPU's experts give for each row.
    fn compute_experts(&mut self) -> Result<()> {
        let program = &self.program;
        let Experts { shape, parameters, rows, counts, choices, values, results, .. } =
            &mut self.experts;
        let Choices { experts, weights } = choices;
        let count = counts.slice(counts.len() - 1..);
        launch!(
            program,
            "moe_activate",
            values.len(),
            &*rows,
            &*experts,
            &count,
            &*parameters,
            &mut *values,
            &*shape
        );
        launch!(
            program,
            "moe_results",
            results.len(),
            &*experts,
            &*weights,
            &count,
            &*values,
            results,
            &*shape
        );
        Ok(())
    }

    fn give_results(&mut self) -> Result<()> {
        let given = Given { values: &mut self.experts.results, weights: None };
        self.exchange.give_back(&given, &self.program.stream)
    }

    fn take_results(&mut self) -> Result<()> {
        let given = Given { values: &mut self.experts.results, weights: None };
        let into = Given { values: &mut self.tokens.outputs, weights: None };
        self.exchange.take_back(&given, into, &self.program.stream)
    }

    /// The last layer, the loss, and the derivatives by what the experts gave.
    fn compute_loss(&mut self) -> Result<()> {
        let Self { program, last, tokens, .. } = self;
        let (count, is_last, scale) = (self.losses.len(), 1u32, 1.0 / SAMPLES as f32);
        let Dense { shape, parameters, outputs, deltas, .. } = last;
        launch!(
            program,
            "train_forward",
            count,
            &tokens.outputs,
            &*parameters,
            &mut *outputs,
            &*shape,
            &is_last
        );
        let samples = count as u32;
        launch!(
            program,
            "train_loss",
            count,
            &*outputs,
            &self.targets,
            &mut self.losses,
            &mut *deltas,
            &samples,
            &scale
        );
        let by_outputs = &mut tokens.by_outputs;
        launch!(
            program,
            "moe_output_gradients",
            by_outputs.len(),
            &*parameters,
            &*deltas,
            by_outputs,
            &tokens.shape,
            &shape.outputs
        );
        Ok(())
    }

    fn send_gradients(&mut self) -> Result<()> {
        let Tokens { shape, choices, by_outputs, .. } = &self.tokens;
        let sent = Sent { tokens: by_outputs, count: shape.rows, choices };
        self.exchange.send_again(&sent, &self.program.stream)
    }

    fn receive_gradients(&mut self) -> Result<()> {
        let Tokens { shape, choices, by_outputs, .. } = &self.tokens;
        let sent = Sent { tokens: by_outputs, count: shape.rows, choices };
        let Experts { by_results: rows, counts, choices, .. } = &mut self.experts;
        self.exchange.receive(&sent, Arrived { rows, counts, choices }, &self.program.stream)
    }

    /// Derivatives by the parameters of this GPU's experts, the rows, and the rows' weights.
    fn backward_through_experts(&mut self) -> Result<()> {
        let program = &self.program;
        let own = &mut self.experts;
        let (by_rows, by_weights) = (&mut own.by_rows, &mut own.by_weights);
        let (gradients, parameters, rows) = (&mut own.gradients, &own.parameters, &own.rows);
        let (shape, counts) = (&own.shape, &own.counts);
        let Choices { experts, weights } = &own.choices;
        let count = counts.slice(counts.len() - 1..);
        launch!(
            program,
            "moe_deltas",
            by_weights.len(),
            experts,
            weights,
            &count,
            &own.values,
            &own.by_results,
            &mut own.deltas,
            by_weights,
            shape
        );
        launch!(
            program,
            "moe_backward",
            by_rows.len(),
            experts,
            &count,
            parameters,
            &own.deltas,
            by_rows,
            shape
        );
        launch!(
            program,
            "moe_gradients",
            gradients.len(),
            rows,
            experts,
            &count,
            &own.deltas,
            gradients,
            shape
        );
        Ok(())
    }

    fn give_gradients(&mut self) -> Result<()> {
        let Experts { by_rows: values, by_weights, .. } = &mut self.experts;
        let given = Given { values, weights: Some(by_weights) };
        self.exchange.give_back(&given, &self.program.stream)
    }

    fn take_gradients(&mut self) -> Result<()> {
        let Experts { by_rows: values, by_weights, .. } = &mut self.experts;
        let given = Given { values, weights: Some(by_weights) };
        let Tokens { by_tokens: values, by_weights, .. } = &mut self.tokens;
        let into = Given { values, weights: Some(by_weights) };
        self.exchange.take_back(&given, into, &self.program.stream)
    }

    /// Derivatives by the scores of the router and by the first layer, and the gradients of all
    /// dense layers for this worker's samples.
    fn backward_through_router(&mut self) -> Result<()> {
        let Self { program, first, router, last, tokens, .. } = self;
        let Tokens { shape, choices, outputs, by_tokens, by_weights, .. } = tokens;
        let Choices { experts, weights } = choices;
        launch!(
            program,
            "moe_router_deltas",
            shape.rows,
            &router.outputs,
            &*experts,
            &*weights,
            &*by_weights,
            &mut router.deltas,
            &*shape
        );
        launch!(
            program,
            "moe_input_deltas",
            by_tokens.len(),
            &first.outputs,
            &*by_tokens,
            &router.parameters,
            &router.deltas,
            &mut first.deltas,
            &*shape
        );
        program.gradients(last, outputs, &self.parts)?;
        program.gradients(router, &first.outputs, &self.parts)?;
        program.gradients(first, &self.inputs, &self.parts)
    }

    fn descend(&mut self, rate: f32) -> Result<()> {
        let Self { program, first, router, last, experts, .. } = self;
        for Dense { parameters, gradients, .. } in [first, router, last] {
            program.descend(parameters, gradients, super::PARTS as u32, rate)?;
        }
        program.descend(&mut experts.parameters, &experts.gradients, 1, rate)
    }

    /// What the step has computed. Waits for it.
    pub fn results(&self) -> Result<Results> {
        let stream = &self.program.stream;
        let read = |slice: &CudaSlice<f32>| stream.clone_dtoh(slice);
        let Self { first, router, last, tokens, experts, .. } = self;
        let results = Results {
            losses: read(&self.losses)?,
            outputs: read(&tokens.outputs)?,
            by_tokens: read(&tokens.by_tokens)?,
            by_weights: read(&tokens.by_weights)?,
            expert_gradients: read(&experts.gradients)?,
            experts: read(&experts.parameters)?,
            dense: [first, router, last]
                .into_iter()
                .map(|layer| read(&layer.parameters))
                .collect::<std::result::Result<_, _>>()?,
            choices: stream.clone_dtoh(&tokens.choices.experts)?,
        };
        stream.synchronize()?;
        self.exchange.check()?;
        Ok(results)
    }
}
