//! Operators on a GPU: those that ONNX files of small networks have, of 32-bit floats; images have
//! two dimensions.

use crate::launches::{self, Launch};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, DevicePtr, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;
use ringdove::DataType;
use ringdove::graph::{Buffer, Compute, Extent, Graph, Kind, Operator, TensorNumber};
use std::collections::BTreeMap;
use std::sync::Arc;

const KERNELS: &str = include_str!("kernels/operators.ptx");

/// The operators of one rank, with memory for every tensor that it has.
pub struct Executor {
    graph: Graph,
    kernels: BTreeMap<&'static str, CudaFunction>,
    stream: Arc<CudaStream>,
    memory: BTreeMap<TensorNumber, CudaSlice<f32>>,
    /// Leaves the kernels out, so that transfers alone remain.
    pub is_idle: bool,
}

/// Elements of a shape that is known, as all of these models are.
///
/// # Panics
/// For a tensor of another one.
pub fn counts(graph: &Graph, tensor: TensorNumber) -> Vec<usize> {
    let shape = graph.tensors()[tensor].shape.as_ref().expect("a shape");
    let count = |extent: &Extent| match extent {
        Extent::Fixed(count) => *count as usize,
        Extent::Unknown(name) => panic!("{name} is not known"),
    };
    shape.iter().map(count).collect()
}

/// Values of an input or a parameter, the same on every rank; zeros for what is computed. Numbers
/// of rows stand in the bits.
///
/// # Panics
/// For tensors of unknown shape.
pub fn values(graph: &Graph, number: TensorNumber) -> Vec<f32> {
    let tensor = &graph.tensors()[number];
    let count = counts(graph, number).iter().product();
    if tensor.producer.is_some() {
        return vec![0.0; count];
    }
    let seed = tensor.name.bytes().fold(7u64, |hash, byte| hash * 31 % (1 << 40) + u64::from(byte));
    let mut random = fastrand::Rng::with_seed(seed);
    let is_variance = |of: &Operator| of.kind == Kind::BatchNormalization && of.inputs[4] == number;
    let is_divisor = |of: &Operator| of.kind == Kind::Divide && of.inputs[1] == number;
    if graph.operators().iter().any(|of| is_variance(of) || is_divisor(of)) {
        return (0..count).map(|_| 0.5 + f32::from(random.u8(0..128)) / 128.0).collect();
    }
    let reads = |of: &&Operator| of.kind == Kind::Gather && of.inputs[1] == number;
    if let Some(reader) = graph.operators().iter().find(reads) {
        let rows = counts(graph, reader.inputs[0])[0] as u32;
        return (0..count).map(|_| f32::from_bits(random.u32(0..rows))).collect();
    }
    // Weights are small, so that sums of thousands are not.
    let scale = if tensor.name.ends_with(".weight") { 1.0 / 4096.0 } else { 1.0 / 128.0 };
    (0..count).map(|_| f32::from(random.i8(-100..=100)) * scale).collect()
}

impl Executor {
    /// With memory for the tensors that `rank` keeps, computes or reads, allocated before work is
    /// launched that waits for other ranks.
    ///
    /// # Panics
    /// For tensors of unknown shape, other elements than f32 and i32, and what the driver refuses.
    pub fn new(
        graph: &Graph,
        rank: u32,
        context: &Arc<CudaContext>,
        stream: &Arc<CudaStream>,
    ) -> Self {
        let module = context.load_module(Ptx::from_src(KERNELS.to_owned())).unwrap();
        let load = |name| module.load_function(name).unwrap();
        let is_own = |number: &TensorNumber| {
            let here = graph.operators().iter().filter(|of| of.rank == rank);
            graph.tensors()[*number].rank == rank
                || here.into_iter().any(|of| of.inputs.contains(number))
        };
        let allocate = |number: TensorNumber| {
            let data_type = graph.tensors()[number].data_type;
            assert!(matches!(data_type, DataType::F32 | DataType::I32), "{data_type:?}");
            // What comes from another rank is not here yet.
            let memory = match graph.tensors()[number].rank == rank {
                true => stream.clone_htod(&values(graph, number)),
                false => stream.alloc_zeros(counts(graph, number).iter().product()),
            };
            (number, memory.unwrap())
        };
        let memory = (0..graph.tensors().len()).filter(is_own).map(allocate).collect();
        let executor = Self {
            graph: graph.clone(),
            kernels: launches::KERNELS.iter().map(|(name, _)| (*name, load(name))).collect(),
            stream: stream.clone(),
            memory,
            is_idle: false,
        };
        executor.load();
        executor
    }

    /// Drivers load a kernel at its first launch, and wait for kernels that run by then: each is
    /// launched once, over nothing.
    fn load(&self) {
        for (name, over_nothing) in &launches::KERNELS {
            self.launch(&over_nothing(name), &self.stream);
        }
        self.stream.synchronize().unwrap();
    }

    fn launch(&self, launch: &Launch, stream: &Arc<CudaStream>) {
        let mut builder = stream.launch_builder(&self.kernels[launch.kernel]);
        for address in &launch.addresses {
            builder.arg(address);
        }
        if let Some(block) = &launch.block {
            builder.arg(block);
        }
        for number in &launch.numbers {
            builder.arg(number);
        }
        let config = LaunchConfig::for_num_elems(launch.threads.max(1));
        // SAFETY: the arguments are those of the kernel's source; the graph's shapes were checked,
        // and the plan's places and this rank's memory are as large as the tensors.
        unsafe { builder.launch(config) }.unwrap();
    }

    /// The memory of a tensor.
    pub fn own(&self, tensor: TensorNumber) -> &CudaSlice<f32> {
        &self.memory[&tensor]
    }

    /// The same, for writing.
    ///
    /// # Panics
    /// For a tensor that the rank does not have.
    pub fn own_mut(&mut self, tensor: TensorNumber) -> &mut CudaSlice<f32> {
        self.memory.get_mut(&tensor).expect("a tensor of this rank")
    }

    /// Runs an operator on memory of its own.
    ///
    /// # Errors
    /// None: what fails panics, as in all of this crate.
    pub fn run_alone(&mut self, operator: &Operator) -> ringdove::Result<()> {
        let inputs: ringdove::Result<Vec<_>> =
            operator.inputs.iter().map(|&input| self.memory(input)).collect();
        let (inputs, output) = (inputs?, self.memory(operator.output)?);
        let stream = self.stream.clone();
        self.run(operator, &inputs, output, &stream).map(|_| ())
    }
}

impl Compute for Executor {
    fn memory(&mut self, tensor: TensorNumber) -> ringdove::Result<Buffer> {
        let memory = &self.memory[&tensor];
        let (address, sync) = memory.device_ptr(&self.stream);
        drop(sync);
        Ok(Buffer { address, bytes: 4 * memory.len() as u64 })
    }

    fn run(
        &mut self,
        operator: &Operator,
        inputs: &[Buffer],
        output: Buffer,
        stream: &Arc<CudaStream>,
    ) -> ringdove::Result<Buffer> {
        let count = counts(&self.graph, operator.output).iter().product::<usize>() as u64;
        let made = Buffer { bytes: 4 * count, ..output };
        if operator.kind.is_alias() {
            // Where a rank runs it alone, both have memory of their own.
            if output.address != inputs[0].address {
                self.copy(inputs[0], output.address, stream)?;
            }
            return Ok(made);
        }
        if self.is_idle {
            return Ok(made);
        }
        let addresses: Vec<_> = inputs.iter().map(|input| input.address).collect();
        for launch in launches::of(&self.graph, operator, &addresses, output.address) {
            self.launch(&launch, stream);
        }
        Ok(made)
    }

    fn copy(&mut self, from: Buffer, to: u64, stream: &Arc<CudaStream>) -> ringdove::Result<()> {
        let (bytes, stream) = (from.bytes as usize, stream.cu_stream());
        // SAFETY: both ranges are device memory of the rank, as large as the tensor.
        unsafe { cudarc::driver::result::memcpy_dtod_async(to, from.address, bytes, stream) }
            .unwrap();
        Ok(())
    }
}
