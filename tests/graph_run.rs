//! Graphs that run: dense layers on virtual GPUs, with their transfers.

mod hardware;

use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, DevicePtr, DeviceRepr, LaunchConfig,
    PushKernelArg,
};
use cudarc::nvrtc::Ptx;
use hardware::engines::on_engines;
use hardware::{World, on_machine_with, settings, try_join_with};
use ringdove::graph::{
    Buffer, Compute, Graph, Kind, Method, Operator, Runner, TensorNumber, Trace, TransferPlan, Why,
};
use ringdove::window::Windows;
use ringdove::{Communicator, Settings};
use ringdove_kernels::ptx::EXAMPLE_TRAIN;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Layers of 24, 40, 16 and 8 values for 12 samples, on two ranks by turns; each layer's parameters
/// have their biases behind the weights, as the kernel wants them. What one rank computes the other
/// reads, and the last layer reads both.
const LAYERS: [u32; 4] = [24, 40, 16, 8];
const SAMPLES: u32 = 12;

fn text(ranks: u32) -> String {
    let mut tensors =
        vec![format!("{{\"name\": \"v0\", \"shape\": [{SAMPLES}, {}], \"rank\": 0}}", LAYERS[0])];
    let mut operators = Vec::new();
    for (layer, pair) in LAYERS.windows(2).enumerate() {
        let (rank, next) = (layer as u32 % ranks, layer + 1);
        let (inputs, outputs) = (pair[0], pair[1]);
        tensors.push(format!(
            "{{\"name\": \"w{layer}\", \"shape\": [{inputs}, {outputs}], \"rank\": {rank}}}"
        ));
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
struct Layers {
    graph: Graph,
    kernel: CudaFunction,
    stream: Arc<CudaStream>,
    memory: BTreeMap<TensorNumber, CudaSlice<f32>>,
    /// An operator that writes to memory of its own, whatever the plan says.
    stubborn: Option<&'static str>,
}

/// Values that are exact in f32, whoever computes them.
fn values(tensor: &str, count: usize) -> Vec<f32> {
    let seed = tensor.bytes().map(u64::from).sum();
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| f32::from(random.i8(-4..=4)) / 4.0).collect()
}

/// Elements of a tensor, with a row of biases for parameters.
fn elements(graph: &Graph, tensor: TensorNumber) -> usize {
    let tensor = &graph.tensors()[tensor];
    let bias = if tensor.name.starts_with('w') {
        LAYERS[1 + tensor.name[1..].parse::<usize>().unwrap()] as usize
    } else {
        0
    };
    tensor.bytes().unwrap() as usize / 4 + bias
}

impl Layers {
    fn new(graph: &Graph, context: &Arc<CudaContext>, stream: &Arc<CudaStream>) -> Self {
        let module = context.load_module(Ptx::from_src(EXAMPLE_TRAIN.to_owned())).unwrap();
        let kernel = module.load_function("train_forward").unwrap();
        kernel.occupancy_max_active_blocks_per_multiprocessor(64, 0, None).unwrap();
        let memory = BTreeMap::new();
        Self { graph: graph.clone(), kernel, stream: stream.clone(), memory, stubborn: None }
    }

    fn address(&self, tensor: TensorNumber) -> u64 {
        let (address, sync) = self.memory[&tensor].device_ptr(&self.stream);
        drop(sync);
        address
    }

    fn allocate(&mut self, tensor: TensorNumber) {
        if !self.memory.contains_key(&tensor) {
            let count = elements(&self.graph, tensor);
            let name = &self.graph.tensors()[tensor].name;
            let slice = self.stream.clone_htod(&values(name, count)).unwrap();
            self.memory.insert(tensor, slice);
        }
    }
}

impl Compute for Layers {
    fn memory(&mut self, tensor: TensorNumber) -> ringdove::Result<Buffer> {
        self.allocate(tensor);
        let bytes = 4 * elements(&self.graph, tensor) as u64;
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
        let shape = Shape { samples: SAMPLES, inputs: LAYERS[layer], outputs: LAYERS[layer + 1] };
        let threads = SAMPLES * shape.outputs;
        let launch = LaunchConfig::for_num_elems(threads);
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
        // SAFETY: both ranges are device memory of the rank, as large as the tensor.
        unsafe {
            cudarc::driver::result::memcpy_dtod_async(
                to,
                from.address,
                from.bytes as usize,
                stream.cu_stream(),
            )
        }
        .unwrap();
        Ok(())
    }
}

/// The same layers on the host, added in the kernel's order.
fn reference(graph: &Graph) -> Vec<f32> {
    let tensor = |name: &str| {
        let number = graph.tensor(name).unwrap();
        values(name, elements(graph, number))
    };
    let mut value = tensor("v0");
    for (layer, pair) in LAYERS.windows(2).enumerate() {
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

/// Runs a plan some times; gives the last layer's values where this process has them, the copies
/// that were made, and what the ranks saw.
fn play(
    local: &[(&Communicator, &Arc<CudaStream>)],
    plan: &TransferPlan,
    stubborn: Option<&'static str>,
) -> (Option<Vec<f32>>, u64, Trace) {
    let windows: Vec<_> = local.iter().map(|(rank, _)| Windows::open(rank, 0).unwrap()).collect();
    let mut layers: Vec<_> = local
        .iter()
        .map(|(rank, stream)| {
            let mut layers = Layers::new(&plan.graph, rank.context(), stream);
            layers.stubborn = stubborn;
            // Allocated before work is launched that waits for other ranks.
            (0..plan.graph.tensors().len()).for_each(|tensor| layers.allocate(tensor));
            layers
        })
        .collect();
    local.iter().for_each(|(_, stream)| stream.synchronize().unwrap());
    let mut runners: Vec<_> = local
        .iter()
        .zip(&windows)
        .map(|((rank, _), windows)| Runner::new(rank, windows, plan.clone()).unwrap())
        .collect();
    for runner in &runners {
        runner.prepare().unwrap();
    }
    for _ in 0..3 {
        for ((runner, layers), (_, stream)) in runners.iter_mut().zip(&mut layers).zip(local) {
            runner.iterate(layers, stream).unwrap();
        }
    }
    let last = plan.graph.tensor(&format!("v{}", LAYERS.len() - 1)).unwrap();
    let mut result = None;
    for ((runner, own), (rank, stream)) in runners.iter().zip(&layers).zip(local) {
        stream.synchronize().unwrap();
        rank.check().unwrap();
        if plan.graph.tensors()[last].rank == rank.rank() {
            assert_eq!(runner.buffer(last).unwrap().address, own.address(last));
            result = Some(stream.clone_dtoh(&own.memory[&last]).unwrap());
        }
    }
    let seen: Vec<_> = runners.iter().map(Runner::traced).collect();
    let copies = runners.iter().map(Runner::copies).sum();
    (result, copies, Runner::trace(&seen))
}

fn lane() -> Settings {
    Settings { user_lanes: 1, ..settings() }
}

/// If this fails, an analysed graph computes something else than one rank does, copies what need
/// not be copied, or does not learn from its first iteration.
#[test]
fn a_graph_on_two_gpus_computes_what_the_host_does() {
    on_engines("pcie4", || {
        let world = World::with(2, &lane());
        let local: Vec<_> = world.ranks().collect();
        let graph = Graph::read("layers", &text(2)).unwrap();
        let plan = TransferPlan::of(graph.clone());
        assert!(plan.edges.len() >= 2);
        assert!(plan.edges.iter().all(|edge| edge.method == Method::ZeroCopy));
        let (result, copies, trace) = play(&local, &plan, None);
        assert_eq!(result.unwrap(), reference(&graph));
        assert_eq!(copies, 0);
        assert_eq!(plan.corrected(&trace).unwrap(), plan, "nothing was where it should not be");

        // An operator that insists on memory of its own: it is copied, and the plan says so then.
        let (result, copies, trace) = play(&local, &plan, Some("layer 0"));
        assert_eq!(result.unwrap(), reference(&graph));
        assert_eq!(copies, 3, "one in each iteration");
        let corrected = plan.corrected(&trace).unwrap();
        let of_first = corrected.edges.iter().find(|edge| edge.from == 0).unwrap();
        assert_eq!(of_first.method, Method::Staged);
        assert!(matches!(of_first.why, Why::Elsewhere(_)));
        let (result, ..) = play(&local, &corrected, Some("layer 0"));
        assert_eq!(result.unwrap(), reference(&graph));
        world.finish();
    });
}

/// As above, from node to node.
#[test]
fn a_graph_on_two_nodes_computes_what_the_host_does() {
    on_machine_with("pcie4 x 2", &["--procs", "2"], || {
        let ranks = try_join_with(1, lane()).unwrap();
        let stream = ranks[0].context().new_stream().unwrap();
        let graph = Graph::read("layers", &text(2)).unwrap();
        let plan = TransferPlan::of(graph.clone());
        let (result, copies, _) = play(&[(&ranks[0], &stream)], &plan, None);
        assert_eq!((result.is_some(), copies), (ranks[0].rank() == 0, 0));
        if let Some(result) = result {
            assert_eq!(result, reference(&graph));
        }
        ranks[0].barrier(&stream).unwrap();
        stream.synchronize().unwrap();
    });
}
