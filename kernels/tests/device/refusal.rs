//! Plans that the executor refuses: each ends with a record that says what was wrong, and none
//! with a wild access (which the arena would report as a fault).

use crate::rank::{
    PlanText, Rank, TIMEOUT_NS, address, advance, buffer, copy, listed, op, put, reduce, slot,
    wait_completion, wait_signal,
};
use ringdove_kernels::element::{DataType, ReduceOp};
use ringdove_kernels::launch::{
    CallArguments, LAUNCH_CALLS_MAX, LaunchArguments, PlanFault, WaitKind,
};
use ringdove_kernels::op::{Op, OpCode, Operand, flags};
use ringdove_kernels::port::Port;

/// Ports by place: 0 a send port with slots, 1 a receive port, 2 a send port without slots.
fn three_ports() -> Rank {
    let mut rank = Rank::new(3, 2, &[]);
    let port = Port { slot_bytes: 64, peer: 1, ..Default::default() };
    rank.add_port(port, 2, true);
    rank.add_port(port, 2, false);
    rank.add_port(Port { slot_bytes: 0, ..port }, 0, true);
    rank
}

fn expect(rank: &mut Rank, arguments: &CallArguments, fault: PlanFault, what: &str) {
    rank.execute(arguments, (1, 64), |_| {});
    let record = rank.record();
    assert_eq!((record.state, record.kind), (1, WaitKind::BadPlan as u32), "{what}: {record:?}");
    assert_eq!(PlanFault::from_code(record.position), Some(fault), "{what}: {record:?}");
    assert_eq!(record.sequence, 77, "{what}");
    assert_eq!(rank.poll(), None, "{what}: nothing was rung");
    assert!(record.waited_ns < TIMEOUT_NS);
}

/// If this fails, a wrong op becomes a wild access or a wrong transfer.
#[test]
fn bad_ops_are_refused() {
    let far = Operand { number: 4, ..buffer(0, 0) };
    let nowhere = Operand::default();
    let big = 4 * 1024 * 1024 + 1;
    let cases: Vec<(PlanFault, &str, Op)> = vec![
        (PlanFault::OpCode, "code 0", Op { code: 0, ..op(OpCode::Copy, 0) }),
        (PlanFault::OpCode, "code 11", Op { code: 11, ..op(OpCode::Copy, 0) }),
        (PlanFault::OpPort, "wait", wait_signal(3, 0)),
        (PlanFault::OpPort, "advance", advance(3, 0, 0)),
        (PlanFault::OpPort, "credit", op(OpCode::Credit, 900)),
        (PlanFault::OpPort, "put", put(3, slot(0, 0, 0), slot(0, 0, 0), 1, 0)),
        (PlanFault::OpPort, "slot of a copy", copy(buffer(0, 0), slot(3, 0, 0), 1)),
        (PlanFault::SlotRange, "past the slot", copy(buffer(0, 0), slot(1, 0, 8), 57)),
        (PlanFault::SlotRange, "far past it", copy(buffer(0, 0), slot(1, 0, u64::MAX), 1)),
        (PlanFault::SlotRange, "no slots", copy(buffer(0, 0), slot(2, 0, 0), 1)),
        (PlanFault::SlotRange, "put", put(0, slot(0, 0, 1), slot(0, 0, 0), 64, 0)),
        (PlanFault::OpPort, "grant", op(OpCode::Grant, 3)),
        (PlanFault::SlotRange, "grant without slots", op(OpCode::Grant, 2)),
        (PlanFault::SlotPort, "foreign slot", put(0, slot(1, 0, 0), slot(0, 0, 0), 1, 0)),
        (PlanFault::BufferNumber, "buffer 4", copy(buffer(0, 0), far, 1)),
        (PlanFault::BufferNumber, "unbound", copy(buffer(3, 0), buffer(0, 0), 1)),
        (PlanFault::BufferNumber, "put", put(2, far, buffer(0, 0), 1, 0)),
        (PlanFault::BufferNumber, "entry 1 of no table", copy(buffer(0, 0), listed(1, 0), 1)),
        (PlanFault::Space, "copy from nowhere", copy(buffer(0, 0), nowhere, 1)),
        (PlanFault::Space, "put of an address", put(2, buffer(0, 0), address(64), 1, 0)),
        (PlanFault::Space, "put of slot to buffer", put(0, buffer(0, 0), slot(0, 0, 0), 1, 0)),
        (PlanFault::PutLength, "4 MiB and 1", put(2, buffer(1, 0), buffer(0, 0), big, 0)),
        (PlanFault::DescriptorOffset, "1 TiB", put(2, buffer(1, 1 << 40), buffer(0, 0), 1, 0)),
        (PlanFault::NoSignal, "completion of a receive port", wait_completion(1, 1)),
        (
            PlanFault::Alignment,
            "two bytes of an f32",
            reduce(buffer(1, 0), buffer(0, 0), buffer(0, 2), 4, flags::FINISH),
        ),
    ];
    for (fault, what, bad) in cases {
        let mut rank = three_ports();
        // Ops that are fine go before, so that the record's place means something.
        let ops = [advance(0, 1, 0), copy(buffer(1, 0), buffer(0, 0), 16), bad];
        let mut arguments = rank.arguments(&PlanText::single(64, &[0, 1, 2], &ops));
        arguments.buffers = [rank.arena.allocate(64, 0), rank.arena.allocate(64, 0), 0, 0];
        expect(&mut rank, &arguments, fault, what);
        assert_eq!(rank.record().op, 2, "{what}");
        assert!(rank.ports().iter().all(|port| port.position == 0), "{what}");
    }
}

/// If this fails, a launch that does not fit its plan runs anyway.
#[test]
fn launches_that_do_not_fit_the_plan_are_refused() {
    let ops = [advance(0, 1, 0)];
    let cases: Vec<(PlanFault, &str, Vec<u8>)> = vec![
        (PlanFault::ThreadCount, "threads", PlanText::single(96, &[0], &ops)),
        (PlanFault::PortNumber, "port 3", PlanText::single(64, &[3], &ops)),
        (PlanFault::PortCount, "33 ports", PlanText::single(64, &[0; 33], &ops)),
        (PlanFault::Magic, "magic", patched(&ops, 0, 0)),
        (PlanFault::Range, "size", patched(&ops, 8, 40)),
        (PlanFault::BlockCount, "blocks", patched(&ops, 12, 2)),
        (PlanFault::Range, "segments beyond the end", patched(&ops, 32, 4096)),
        (PlanFault::Range, "misaligned segments", patched(&ops, 32, 52)),
        (PlanFault::Range, "too many segments", patched(&ops, 36, 0x1000_0000)),
        (PlanFault::Range, "ports beyond the end", patched(&ops, 40, 0xffff_fff0)),
    ];
    for (fault, what, plan) in cases {
        let mut rank = three_ports();
        let arguments = rank.arguments(&plan);
        expect(&mut rank, &arguments, fault, what);
    }
    let plan = PlanText::single(64, &[0], &ops);
    let types = DataType::ALL.len() as u32;
    let reductions = ReduceOp::ALL.len() as u32;
    let codes = [(types, 0, PlanFault::DataType), (0, reductions, PlanFault::ReduceOp)];
    for (data_type, reduce_op, fault) in codes {
        let mut rank = three_ports();
        let arguments = CallArguments { data_type, reduce_op, ..rank.arguments(&plan) };
        expect(&mut rank, &arguments, fault, "code");
    }
    for call_count in [0, LAUNCH_CALLS_MAX as u32 + 1, u32::MAX] {
        let mut rank = three_ports();
        let call = rank.arguments(&plan);
        let launch = LaunchArguments { call_count, ..rank.launch(&[call; LAUNCH_CALLS_MAX]) };
        rank.execute_launch(&launch, (1, 64), |_| {});
        let fault = PlanFault::from_code(rank.record().position);
        assert_eq!(fault, Some(PlanFault::CallCount), "{call_count}");
        assert!(rank.ports().iter().all(|port| port.position == 0), "{call_count}");
    }
}

/// The plan of `ops` with one 32-bit word replaced.
fn patched(ops: &[Op], offset: usize, word: u32) -> Vec<u8> {
    let mut plan = PlanText::single(64, &[0], ops);
    plan[offset..offset + 4].copy_from_slice(&word.to_le_bytes());
    plan
}
