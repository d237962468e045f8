//! Plans, from request to data: built, verified, encoded, and run on host memory by an executor of
//! its own under random interleavings.

mod all_reduce;
mod drafts;
mod encoding;
mod group;
mod hierarchical;

use super::host::{Element, Event, Host, HostLane, HostPort, HostRank, Random};
use super::*;
use ringdove_kernels::element::ReduceOp;

pub(super) fn limits(blocks_max: u32, slot_bytes: u32, slot_count: u32) -> Limits {
    Limits { blocks_max, slot_bytes, slot_count, ranks_per_node: 0, flagged_bytes: 0 }
}

/// The world as the communicator would set it up for a verified plan: lanes, ports, programs. Lanes
/// have been used before, up to message `position`.
pub(super) fn host(plan: &Verified, element: Element, position: u64) -> Host {
    let slots = plan.plan().slots;
    let lanes: Vec<LaneId> = plan.lanes().to_vec();
    let host_lane = |lane: &LaneId| {
        let count = if lane.kind == LaneKind::Direct { 0 } else { u64::from(slots.count) };
        let mut host = HostLane::new(lane.to as usize, slots.bytes as usize, count, position);
        if lane.kind == LaneKind::Flagged {
            host.zero();
        }
        host
    };
    let mut ranks = Vec::new();
    for rank in 0..plan.plan().ranks.len() as u32 {
        // A port table with gaps and in another order than the block's lists.
        let mut table: Vec<LaneEnd> = plan.ports(rank).collect();
        table.reverse();
        let find = |end: LaneEnd| table.iter().position(|it| *it == end).map(|it| it as u32);
        let program = plan.encode(rank, &find).expect("every port is in the table");
        let port = |end: &LaneEnd| HostPort {
            lane: lanes.iter().position(|lane| *lane == end.lane).expect("a listed lane"),
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
        &[Transfer { peer: 1, direction: Direction::Send, address: 0x100, bytes: 40 }],
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
