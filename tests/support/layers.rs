//! Graphs of fully connected layers, and their operators on virtual GPUs, for what runs graphs.

#![allow(dead_code)] // Each binary uses its part.

use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, DevicePtr, DeviceRepr, LaunchConfig,
    PushKernelArg,
};
use cudarc::nvrtc::Ptx;
use ringdove::graph::{Buffer, Compute, Graph, Kind, Operator, TensorNumber};
use ringdove_kernels::ptx::EXAMPLE_TRAIN;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Layers for some samples, on the ranks by turns: what one rank computes the next one reads.
#[derive(Clone, Debug)]
pub struct Model {
    /// Values of a sample before, between and behind the layers.
    pub widths: Vec<u32>,
    pub samples: u32,
    /// Are values between layers in memory that somebody else allocates?
    pub foreign: bool,
}

impl Model {
    /// The graph of it, as a file has it.
    pub fn text(&self, ranks: u32) -> String {
        let (samples, widths) = (self.samples, &self.widths);
        let mut tensors = vec![format!(
            "{{\"name\": \"v0\", \"shape\": [{samples}, {}], \"rank\": 0}}",
            widths[0]
        )];
        let mut operators = Vec::new();
        for (layer, pair) in widths.windows(2).enumerate() {
            let (rank, next) = (layer as u32 % ranks, layer + 1);
            let (inputs, outputs) = (pair[0], pair[1]);
            tensors.push(format!(
                "{{\"name\": \"w{layer}\", \"shape\": [{inputs}, {outputs}], \"rank\": {rank}}}"
            ));
            if self.foreign {
                tensors.push(format!("{{\"name\": \"v{next}\", \"memory\": \"foreign\"}}"));
            }
            operators.push(format!(
                "{{\"name\": \"layer {layer}\", \"kind\": \"dense\", \"rank\": {rank}, \
                 \"inputs\": [\"v{layer}\", \"w{layer}\"], \"output\": \"v{next}\"}}"
            ));
        }
        let (tensors, operators) = (tensors.join(",\n"), operators.join(",\n"));
        format!(
            "{{\"ringdove_graph\": 1, \"ranks\": {ranks},\n\"tensors\": [\n{tensors}],\n\
             \"operators\": [\n{operators}]}}"
        )
    }

    /// The same, read.
    pub fn graph(&self, ranks: u32) -> Graph {
        Graph::read("layers", &self.text(ranks)).unwrap()
    }

    /// The name of the last layer's values.
    pub fn last(&self) -> String {
        format!("v{}", self.widths.len() - 1)
    }

    /// Elements of a tensor, with a row of biases behind the weights, as the kernel wants them.
    fn elements(&self, graph: &Graph, tensor: TensorNumber) -> usize {
        let tensor = &graph.tensors()[tensor];
        let layer = tensor.name.strip_prefix('w').map(|layer| layer.parse::<usize>().unwrap());
        let bias = layer.map_or(0, |layer| self.widths[layer + 1]);
        tensor.bytes().unwrap() as usize / 4 + bias as usize
    }

    /// The values of the last layer, on the host, added in the kernel's order.
    pub fn reference(&self) -> Vec<f32> {
        let graph = self.graph(1);
        let tensor = |name: &str| values(name, self.elements(&graph, graph.tensor(name).unwrap()));
        let mut value = tensor("v0");
        for (layer, pair) in self.widths.windows(2).enumerate() {
            let (inputs, outputs) = (pair[0] as usize, pair[1] as usize);
            let weights = tensor(&format!("w{layer}"));
            let mut next = Vec::new();
            for sample in value.chunks(inputs) {
                for column in 0..outputs {
                    let mut sum = weights[inputs * outputs + column];
                    for (row, x) in sample.iter().enumerate() {
                        sum += x * weights[row * outputs + column];
                    }
                    next.push(sum / (1.0 + sum.abs()));
                }
            }
            value = next;
        }
        value
    }
}

/// Values that are few and small, the same wherever they are asked for.
fn values(tensor: &str, count: usize) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(tensor.bytes().map(u64::from).sum());
    (0..count).map(|_| f32::from(random.i8(-4..=4)) / 4.0).collect()
}

/// What the kernel is given.
#[repr(C)]
#[derive(Clone, Copy)]
struct Shape {
    samples: u32,
    inputs: u32,
    outputs: u32,
}

// SAFETY: plain numbers, laid out as in the kernel's source.
unsafe impl DeviceRepr for Shape {}

/// Layers on one GPU.
pub struct Layers {
    model: Model,
    graph: Graph,
    kernel: CudaFunction,
    stream: Arc<CudaStream>,
    memory: BTreeMap<TensorNumber, CudaSlice<f32>>,
    /// An operator that writes to memory of its own, whatever the plan says.
    pub stubborn: Option<&'static str>,
}

impl Layers {
    /// With memory for all tensors, allocated before work is launched that waits for other ranks.
    pub fn new(
        model: &Model,
        graph: &Graph,
        context: &Arc<CudaContext>,
        stream: &Arc<CudaStream>,
    ) -> Self {
        let module = context.load_module(Ptx::from_src(EXAMPLE_TRAIN.to_owned())).unwrap();
        let kernel = module.load_function("train_forward").unwrap();
        // Drivers load a kernel at its first launch, and wait for kernels that run by then.
        let (none, nothing) = (0u64, Shape { samples: 0, inputs: 0, outputs: 0 });
        let mut builder = stream.launch_builder(&kernel);
        builder.arg(&none).arg(&none).arg(&none).arg(&nothing).arg(&0u32);
        // SAFETY: the arguments are those of the kernel's source; of no samples it touches nothing.
        unsafe { builder.launch(LaunchConfig::for_num_elems(1)) }.unwrap();
        let allocate = |tensor: TensorNumber| {
            let name = &graph.tensors()[tensor].name;
            let count = model.elements(graph, tensor);
            (tensor, stream.clone_htod(&values(name, count)).unwrap())
        };
        let memory = (0..graph.tensors().len()).map(allocate).collect();
        stream.synchronize().unwrap();
        let (model, graph, stream) = (model.clone(), graph.clone(), stream.clone());
        Self { model, graph, kernel, stream, memory, stubborn: None }
    }

    /// Memory of a tensor of its own.
    pub fn own(&self, tensor: TensorNumber) -> &CudaSlice<f32> {
        &self.memory[&tensor]
    }

    /// The same, for writing.
    pub fn own_mut(&mut self, tensor: TensorNumber) -> &mut CudaSlice<f32> {
        self.memory.get_mut(&tensor).unwrap()
    }

    /// The same as an address.
    pub fn address(&self, tensor: TensorNumber) -> u64 {
        let (address, sync) = self.memory[&tensor].device_ptr(&self.stream);
        drop(sync);
        address
    }
}

impl Compute for Layers {
    fn memory(&mut self, tensor: TensorNumber) -> ringdove::Result<Buffer> {
        let bytes = 4 * self.model.elements(&self.graph, tensor) as u64;
        Ok(Buffer { address: self.address(tensor), bytes })
    }

    fn run(
        &mut self,
        operator: &Operator,
        inputs: &[Buffer],
        output: Buffer,
        stream: &Arc<CudaStream>,
    ) -> ringdove::Result<Buffer> {
        assert_eq!(operator.kind, Kind::Dense);
        let output = match self.stubborn == Some(&operator.name) {
            true => self.memory(operator.output)?,
            false => output,
        };
        let layer = operator.name["layer ".len()..].parse::<usize>().unwrap();
        let (samples, widths) = (self.model.samples, &self.model.widths);
        let shape = Shape { samples, inputs: widths[layer], outputs: widths[layer + 1] };
        let launch = LaunchConfig::for_num_elems(samples * shape.outputs);
        let (input, weights, to, last) = (inputs[0].address, inputs[1].address, output.address, 0);
        let mut builder = stream.launch_builder(&self.kernel);
        builder.arg(&input).arg(&weights).arg(&to).arg(&shape).arg(&last);
        // SAFETY: the arguments are those of the kernel's source, and the plan's places and this
        // rank's memory are as large as the tensors.
        unsafe { builder.launch(launch) }.unwrap();
        let bytes = self.graph.tensors()[operator.output].bytes().unwrap();
        Ok(Buffer { bytes, ..output })
    }

    fn copy(&mut self, from: Buffer, to: u64, stream: &Arc<CudaStream>) -> ringdove::Result<()> {
        copy(from, to, stream);
        Ok(())
    }
}

/// Enqueues a copy.
pub fn copy(from: Buffer, to: u64, stream: &Arc<CudaStream>) {
    let (bytes, stream) = (from.bytes as usize, stream.cu_stream());
    // SAFETY: both ranges are device memory of the rank, as large as the tensor.
    unsafe { cudarc::driver::result::memcpy_dtod_async(to, from.address, bytes, stream) }.unwrap();
}
