//! Several calls in one launch.

use crate::rank::{
    BlockText, PlanText, Rank, advance, buffer, copy, put, reduce, slot, wait_signal,
};
use ringdove_kernels::element::{DataType, ReduceOp};
use ringdove_kernels::launch::{CallArguments, PlanFault, WaitKind};
use ringdove_kernels::op::flags;
use ringdove_kernels::port::Port;

/// Each call has its own plan, buffers, type and reduction, blocks and threads; a block that a plan
/// lacks does nothing for it. If this fails, a call of a launch reads what belongs to another one.
#[test]
fn calls_of_a_launch_have_their_own_arguments() {
    const LENGTH: usize = 96;
    let mut rank = Rank::new(2, 2, &[]);
    let memory = |rank: &Rank, bytes: &[u8]| {
        let address = rank.arena.allocate(bytes.len(), 0);
        rank.arena.put(address, bytes);
        address
    };
    let ops = [reduce(buffer(1, 0), buffer(0, 0), buffer(1, 0), LENGTH as u32, flags::FINISH)];
    let narrow = PlanText::single(32, &[], &ops);
    let half = LENGTH as u64 / 2;
    let part = |at| BlockText::once(&[], &[copy(buffer(1, at), buffer(0, at), LENGTH as u32 / 2)]);
    let wide = PlanText { threads: 96, blocks: vec![part(0), part(half)] }.encode();
    let integers: Vec<i32> = (0..LENGTH as i32 / 4).collect();
    let floats: Vec<f64> = (0..LENGTH / 8).map(|number| number as f64 + 0.5).collect();
    let bytes: Vec<u8> = (0..LENGTH as u8).collect();
    let inputs = [bytemuck::cast_slice(&integers), bytemuck::cast_slice(&floats), &bytes];
    let places = inputs.map(|input: &[u8]| (memory(&rank, input), memory(&rank, input)));
    let bound = |plan: &[u8], (input, output): (u64, u64)| CallArguments {
        buffers: [input, output, 0, 0],
        ..rank.arguments(plan)
    };
    let sum = CallArguments {
        data_type: DataType::I32 as u32,
        reduce_op: ReduceOp::Sum as u32,
        ..bound(&narrow, places[0])
    };
    let product = CallArguments {
        data_type: DataType::F64 as u32,
        reduce_op: ReduceOp::Prod as u32,
        ..bound(&narrow, places[1])
    };
    let moved = bound(&wide, places[2]);
    let launch = rank.launch(&[sum, product, moved, sum]);
    rank.execute_launch(&launch, (2, 96), |_| {});
    assert_eq!(rank.record().state, 0, "{:?}", rank.record());
    let read = |rank: &Rank, at: usize| rank.arena.get(places[at].1, LENGTH);
    let tripled: Vec<i32> = integers.iter().map(|value| 3 * value).collect();
    let squared: Vec<f64> = floats.iter().map(|value| value * value).collect();
    assert_eq!(read(&rank, 0), bytemuck::cast_slice::<_, u8>(&tripled));
    assert_eq!(read(&rank, 1), bytemuck::cast_slice::<_, u8>(&squared));
    assert_eq!(read(&rank, 2), bytes);
    let ended: u64 = rank.arena.read_as(rank.communicator.launches_ended);
    assert_eq!(ended, 78, "one launch, however many calls");
}

/// If this fails, a call of a launch takes the slots or signals of the call before it.
#[test]
fn positions_go_on_from_call_to_call() {
    let mut rank = Rank::new(3, 2, &[]);
    let port = Port { slot_bytes: 64, peer: 1, route: 7, ..Default::default() };
    rank.add_port(port, 2, true);
    let ops = [
        copy(slot(0, 0, 0), buffer(0, 0), 16),
        put(0, slot(0, 0, 0), slot(0, 0, 0), 16, flags::ARRIVAL),
        advance(0, 1, 0),
    ];
    let plan = PlanText::single(64, &[0], &ops);
    let input = rank.arena.allocate(16, 0);
    let call = CallArguments { buffers: [input, 0, 0, 0], ..rank.arguments(&plan) };
    let launch = rank.launch(&[call; 3]);
    let mut rung = Vec::new();
    rank.execute_launch(&launch, (1, 64), |rank| {
        while let Some(descriptor) = rank.poll() {
            rung.push(descriptor);
        }
    });
    assert_eq!(rank.record().state, 0, "{:?}", rank.record());
    let offsets: Vec<u64> = rung.iter().map(|descriptor| descriptor.destination_offset).collect();
    assert_eq!(offsets, [0, 64, 0], "two slots take turns");
    assert_eq!(rank.ports()[0].position, 3);
}

/// If this fails, calls behind one that has failed go on, on positions that nobody can trust.
#[test]
fn nothing_runs_behind_a_call_that_fails() {
    let waits = PlanText::single(64, &[0], &[wait_signal(0, 1)]);
    let no_plan = vec![0; 64];
    for (plan, kind) in [(waits, WaitKind::Arrival), (no_plan, WaitKind::BadPlan)] {
        let mut rank = Rank::new(3, 2, &[]);
        rank.add_port(Port { slot_bytes: 64, peer: 1, ..Default::default() }, 2, false);
        let (input, output) = (rank.arena.allocate(16, 0), rank.arena.allocate(16, 0));
        rank.arena.put(input, &[9; 16]);
        let fails = rank.arguments(&plan);
        let copies = PlanText::single(64, &[], &[copy(buffer(1, 0), buffer(0, 0), 16)]);
        let buffers = [input, output, 0, 0];
        let behind = CallArguments { buffers, ..rank.arguments(&copies) };
        let launch = rank.launch(&[fails, behind]);
        rank.execute_launch(&launch, (1, 64), |_| {});
        let record = rank.record();
        assert_eq!((record.kind, record.call), (kind as u32, 0), "{record:?}");
        let fault = PlanFault::from_code(record.position);
        assert_eq!(fault == Some(PlanFault::Magic), kind == WaitKind::BadPlan);
        assert_eq!(rank.arena.get(output, 16), [0; 16]);
    }
}
