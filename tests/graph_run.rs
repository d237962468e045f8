//! Graphs that run, with their transfers, on virtual GPUs.

mod hardware;
#[path = "support/layers.rs"]
mod layers;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use hardware::engines::on_engines;
use hardware::{World, on_machine_with, settings, try_join_with};
use layers::{Layers, Model, copy};
use ringdove::graph::{
    Buffer, Compute, Graph, Kind, Method, Operator, Runner, TensorNumber, Trace, TransferPlan, Why,
};
use ringdove::window::Windows;
use ringdove::{Communicator, Settings};
use std::sync::Arc;

fn model() -> Model {
    Model { widths: vec![24, 40, 16, 8], samples: 12, foreign: false }
}

/// Runs a plan some times; gives the last layer's values where this process has them, the copies
/// that were made, and what the ranks saw.
fn play(
    local: &[(&Communicator, &Arc<CudaStream>)],
    plan: &TransferPlan,
    stubborn: Option<&'static str>,
) -> (Option<Vec<f32>>, u64, Trace) {
    let windows: Vec<_> = local.iter().map(|(rank, _)| Windows::open(rank, 0).unwrap()).collect();
    let on_rank = |(rank, stream): &(&Communicator, &Arc<CudaStream>)| {
        let mut layers = Layers::new(&model(), &plan.graph, rank.context(), stream);
        layers.stubborn = stubborn;
        layers
    };
    let mut layers: Vec<_> = local.iter().map(on_rank).collect();
    let made = local.iter().zip(&windows);
    let mut runners: Vec<_> = made
        .map(|((rank, _), windows)| Runner::new(rank, windows, plan.clone()).unwrap())
        .collect();
    runners.iter().for_each(|runner| runner.prepare().unwrap());
    for _ in 0..3 {
        for ((runner, layers), (_, stream)) in runners.iter_mut().zip(&mut layers).zip(local) {
            runner.iterate(layers, stream).unwrap();
        }
    }
    let last = plan.graph.tensor(&model().last()).unwrap();
    let mut result = None;
    for ((runner, own), (rank, stream)) in runners.iter().zip(&layers).zip(local) {
        stream.synchronize().unwrap();
        rank.check().unwrap();
        if plan.graph.tensors()[last].rank == rank.rank() {
            assert_eq!(runner.buffer(last).unwrap().address, own.address(last));
            result = Some(stream.clone_dtoh(own.own(last)).unwrap());
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
        let plan = TransferPlan::of(model().graph(2));
        assert_eq!(plan.edges.len(), 2);
        assert!(plan.edges.iter().all(|edge| edge.method == Method::ZeroCopy));
        let (result, copies, trace) = play(&local, &plan, None);
        assert_eq!(result.unwrap(), model().reference());
        assert_eq!(copies, 0);
        assert_eq!(plan.corrected(&trace).unwrap(), plan, "nothing was where it should not be");

        // An operator that insists on memory of its own: it is copied, and the plan says so then.
        let (result, copies, trace) = play(&local, &plan, Some("layer 0"));
        assert_eq!(result.unwrap(), model().reference());
        assert_eq!(copies, 3, "one in each iteration");
        let corrected = plan.corrected(&trace).unwrap();
        let of_first = corrected.edges.iter().find(|edge| edge.from == 0).unwrap();
        assert_eq!(of_first.method, Method::Staged);
        assert!(matches!(of_first.why, Why::Elsewhere(_)));
        let (result, ..) = play(&local, &corrected, Some("layer 0"));
        assert_eq!(result.unwrap(), model().reference());
        world.finish();
    });
}

/// As above, from node to node.
#[test]
fn a_graph_on_two_nodes_computes_what_the_host_does() {
    on_machine_with("pcie4 x 2", &["--procs", "2"], || {
        let ranks = try_join_with(1, lane()).unwrap();
        let stream = ranks[0].context().new_stream().unwrap();
        let plan = TransferPlan::of(model().graph(2));
        let (result, copies, _) = play(&[(&ranks[0], &stream)], &plan, None);
        assert_eq!((result.is_some(), copies), (ranks[0].rank() == 0, 0));
        if let Some(result) = result {
            assert_eq!(result, model().reference());
        }
        ranks[0].barrier(&stream).unwrap();
        stream.synchronize().unwrap();
    });
}

/// Rank 0 chooses rows, how many in which iteration is told; rank 1 takes what comes.
struct Rows {
    input: CudaSlice<f32>,
    output: CudaSlice<f32>,
    count: u64,
}

const ROWS: usize = 64;
const COLUMNS: usize = 32;

impl Compute for Rows {
    fn memory(&mut self, tensor: TensorNumber) -> ringdove::Result<Buffer> {
        let memory = if tensor == 0 { &self.input } else { &self.output };
        let (address, sync) = memory.device_ptr(memory.stream());
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
        let bytes = match operator.kind {
            Kind::Select => self.count * 4 * COLUMNS as u64,
            _ => inputs[0].bytes,
        };
        copy(Buffer { bytes, ..inputs[0] }, output.address, stream);
        Ok(Buffer { bytes, ..output })
    }

    fn copy(&mut self, from: Buffer, to: u64, stream: &Arc<CudaStream>) -> ringdove::Result<()> {
        copy(from, to, stream);
        Ok(())
    }
}

/// If this fails, a tensor of unknown shape arrives cut off, with too much, or not at all.
#[test]
fn tensors_of_unknown_shape_are_read_as_they_are() {
    let text = format!(
        r#"{{"ringdove_graph": 1, "ranks": 2, "tensors": [
            {{"name": "x", "shape": [{ROWS}, {COLUMNS}], "rank": 0}},
            {{"name": "chosen", "type": "u8", "shape": [{ROWS}], "rank": 0}},
            {{"name": "picked", "bytes_max": {max}}},
            {{"name": "taken", "bytes_max": {max}}}
        ], "operators": [
            {{"name": "pick", "kind": "select", "rank": 0, "inputs": ["x", "chosen"],
              "output": "picked"}},
            {{"name": "take", "kind": "relu", "rank": 1, "inputs": ["picked"], "output": "taken"}}
        ]}}"#,
        max = ROWS * COLUMNS * 4
    );
    // On one node by copies, on two by an adapter's reads.
    for machine in ["pcie4", "pcie4 x 2"] {
        on_machine_with(machine, &["--procs", "2"], || {
            let ranks = try_join_with(1, lane()).unwrap();
            let rank = &ranks[0];
            let stream = rank.context().new_stream().unwrap();
            let windows = Windows::open(rank, 0).unwrap();
            let plan = TransferPlan::of(Graph::read("rows", &text).unwrap());
            assert_eq!(plan.edges[0].method, Method::Read);
            let values: Vec<f32> = (0..ROWS * COLUMNS).map(|value| value as f32).collect();
            let input = stream.clone_htod(&values).unwrap();
            let output = stream.alloc_zeros(ROWS * COLUMNS).unwrap();
            let mut rows = Rows { input, output, count: 0 };
            let mut runner = Runner::new(rank, &windows, plan.clone()).unwrap();
            runner.prepare().unwrap();
            stream.synchronize().unwrap();
            for count in [3, ROWS, 0, 17] {
                rows.count = count as u64;
                runner.iterate(&mut rows, &stream).unwrap();
                stream.synchronize().unwrap();
                if rank.rank() == 1 {
                    let taken = plan.graph.tensor("taken").unwrap();
                    assert_eq!(runner.buffer(taken).unwrap().bytes, 4 * (count * COLUMNS) as u64);
                    let seen: Vec<f32> = stream.clone_dtoh(&rows.output).unwrap();
                    assert_eq!(seen[..count * COLUMNS], values[..count * COLUMNS]);
                }
            }
            rank.barrier(&stream).unwrap();
            stream.synchronize().unwrap();
        });
    }
}
