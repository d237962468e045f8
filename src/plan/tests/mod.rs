//! Plans, from request to data: built, verified, encoded, and run on host memory by an executor of
//! its own under random interleavings.

mod all_reduce;
mod candidates;
pub(super) mod collectives;
mod drafts;
mod encoding;
mod few_hops;
mod fuse;
mod group;
mod hierarchical;
mod large;
mod ordered;
mod packed;
mod reproducible;
mod stores;
pub(super) mod symmetric;
mod two_shot_nodes;

use super::host::{Algebra, Element, Event, Host, HostLane, HostPort, HostRank};
use super::*;
use ringdove_kernels::element::ReduceOp;

pub(super) fn limits(blocks_max: u32, slot_bytes: u32, slot_count: u32) -> Limits {
    Limits::new(blocks_max, slot_bytes, slot_count)
}

/// A sum of 4-byte elements, out of place, in buffers that are not registered.
pub(crate) fn request(rank_count: u32, bytes: u64) -> CollectiveRequest {
    CollectiveRequest::new(Collective::AllReduce, rank_count, bytes)
}

/// All-pairs for 100 bytes of three ranks, in LL messages of up to `low_latency_bytes`.
pub(super) fn all_pairs(low_latency_bytes: u32) -> (Plan, Promise) {
    let request = request(3, 100);
    let limits = Limits { low_latency_bytes, ..limits(1, 64, 4) };
    let mut choice = select(&request, &limits).expect("valid");
    choice.all_pairs(&limits);
    choice.set_slice_bytes(low_latency_bytes);
    (build(&choice), request.promise())
}

/// What the ranks of a request compute on their elements.
fn element(request: &CollectiveRequest) -> Element {
    Element {
        bytes: request.element_bytes as usize,
        reduce_op: request.reduce_op,
        scalar: 3,
        rank_count: u64::from(request.rank_count),
        algebra: Algebra::Integers,
    }
}

/// Runs a collective on random data, and checks what every rank has in the end.
fn run(request: &CollectiveRequest, verified: &Verified, seed: u64) {
    if let Err(wrong) = try_run(request, verified, seed) {
        panic!("{request:?}, seed {seed}: {wrong}");
    }
}

/// As [`run`]; says what is wrong. Two launches on the same lanes: the second finds what the first
/// left.
pub(super) fn try_run(
    request: &CollectiveRequest,
    verified: &Verified,
    seed: u64,
) -> Result<(), String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let element = element(request);
    let mut host = host(verified, element, 5);
    for launch in 0..2 {
        let mut bytes = |count: u64| -> Vec<u8> { (0..count).map(|_| random.u8(..)).collect() };
        let ranks = 0..request.rank_count;
        let inputs: Vec<_> = ranks.map(|rank| bytes(request.input_bytes(rank))).collect();
        let mut wanted = Vec::new();
        for (rank, state) in (0..).zip(&mut host.ranks) {
            let input = inputs[rank as usize].clone();
            let mut output = vec![0xcc; request.output_bytes(rank) as usize];
            let result = result(request, &element, &inputs, rank as usize);
            if request.in_place_on(rank) {
                let (from, to) = request.in_place_offsets(rank);
                let (from, to) = (from as usize, to as usize);
                state.in_place = Some([from, to]);
                // One memory, as large as the larger of both.
                let mut memory = vec![0xcc; input.len().max(output.len())];
                memory[from..from + input.len()].copy_from_slice(&input);
                let mut after = memory.clone();
                after[to..to + output.len()].copy_from_slice(&result);
                state.memory = [memory, Vec::new(), Vec::new()];
                wanted.push([after, Vec::new(), Vec::new()]);
            } else {
                state.memory = [input.clone(), output.clone(), Vec::new()];
                output.copy_from_slice(&result);
                wanted.push([input, output, Vec::new()]);
            }
        }
        host.launch(&mut random).map_err(|stuck| format!("launch {launch}: stuck at {stuck}"))?;
        for (rank, (state, wanted)) in host.ranks.iter().zip(&wanted).enumerate() {
            if state.memory != *wanted {
                return Err(format!("launch {launch}: rank {rank} is wrong"));
            }
        }
    }
    Ok(())
}

/// What `rank` has to get, from what MPI and NCCL say of each collective.
fn result(
    request: &CollectiveRequest,
    element: &Element,
    inputs: &[Vec<u8>],
    rank: usize,
) -> Vec<u8> {
    let bytes = request.bytes as usize;
    let part = |data: &[u8], number: usize| data[number * bytes..(number + 1) * bytes].to_vec();
    match request.collective {
        Collective::AllReduce => reduce_all(element, inputs),
        Collective::ReduceScatter => part(&reduce_all(element, inputs), rank),
        Collective::AllGather => inputs.concat(),
        Collective::Broadcast { root } => inputs[root as usize].clone(),
        Collective::Scatter { root } => part(&inputs[root as usize], rank),
        Collective::Reduce { root } if rank == root as usize => reduce_all(element, inputs),
        Collective::Gather { root } if rank == root as usize => inputs.concat(),
        Collective::AllToAll => {
            inputs.iter().map(|input| part(input, rank)).collect::<Vec<_>>().concat()
        }
        Collective::Reduce { .. } | Collective::Gather { .. } | Collective::Barrier => Vec::new(),
    }
}

fn reduce_all(element: &Element, inputs: &[Vec<u8>]) -> Vec<u8> {
    let mut result = Vec::new();
    for start in (0..inputs[0].len()).step_by(element.bytes) {
        let load = |input: &Vec<u8>| element.scale(element.load(&input[start..][..element.bytes]));
        let total = inputs.iter().map(load).reduce(|a, b| element.combine(a, b)).expect("a rank");
        let value = element.finish(total);
        result.extend_from_slice(&value.to_le_bytes()[..element.bytes]);
    }
    result
}

/// The world as the communicator would set it up for a verified plan: lanes, ports, programs. Lanes
/// have been used before, up to message `position`.
pub(super) fn host(plan: &Verified, element: Element, position: u64) -> Host {
    let slots = plan.plan().slots;
    let lanes: Vec<Lane> = plan.lanes().to_vec();
    let host_lane = |lane: &Lane| {
        let count = if lane.kind == LaneKind::Direct { 0 } else { u64::from(slots.count) };
        let mut host = HostLane::new(lane.to as usize, slots.bytes as usize, count, position);
        if lane.kind == LaneKind::LowLatency {
            host.zero();
            // Lanes of both kinds between the same ranks.
            host.stores = !(lane.from + 2 * lane.to).is_multiple_of(3);
        }
        host
    };
    let mut ranks = Vec::new();
    for rank in 0..plan.plan().ranks.len() as u32 {
        // A port table with gaps and in another order than the block's lists.
        let mut table: Vec<LaneEnd> = plan.ports(rank).map(|(_, end)| end).collect();
        table.reverse();
        let find = |end: LaneEnd| table.iter().position(|it| *it == end).map(|it| it as u32);
        let program = plan.encode(rank, &find).expect("every port is in the table");
        let port = |end: &LaneEnd| HostPort {
            lane: lanes.binary_search(&end.lane).expect("a listed lane"),
            sends: end.side == Side::Send,
            position,
            completion_position: position,
        };
        let ports = table.iter().map(port).collect();
        ranks.push(HostRank { ports, program, ..Default::default() });
    }
    Host { events: Vec::new(), element, ranks, lanes: lanes.iter().map(host_lane).collect() }
}

#[test]
fn a_plan_prints_one_op_a_line_with_names() {
    let group = group(
        0,
        2,
        &[PointToPoint {
            peer: 1,
            direction: Direction::Send,
            address: 0x100,
            bytes: 40,
            registered: false,
        }],
        &limits(1, 32, 2),
    );
    let text = group.expect("valid").plan.to_string();
    let expected = "\
plan: 2 ranks, 128 threads per block, 2 slots of 32 bytes
rank 0 block 0
  2 rounds, 32 bytes apart, up to 40 bytes
    wait for signal -1 at send port of lane 0->1 slots 0
    copy 32 bytes: slot of message 0 at send port of lane 0->1 slots 0 = address 0x100
    put 32 bytes on send port of lane 0->1 slots 0: message 0, raise arrival
    advance by 1 signals, 0 completions at send port of lane 0->1 slots 0
rank 1 block 0
";
    assert!(text.starts_with(expected), "{text}");
}
