//! Copies: every alignment, length and block size; clipping and rounds.

use crate::rank::{BlockText, PlanText, Rank, address, buffer, copy, listed};
use proptest::prelude::*;
use ringdove_kernels::launch::CallArguments;
use ringdove_kernels::op::{Op, Segment, THREADS_MAX};

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 37 + i / 251) as u8).collect()
}

fn check(threads: u32, length: usize, to_offset: usize, from_offset: usize) {
    let mut rank = Rank::new(2, 1, &[]);
    let source = rank.arena.allocate(length, from_offset);
    let destination = rank.arena.allocate(length, to_offset);
    rank.arena.put(source, &pattern(length));
    let op = copy(address(destination), address(source), length as u32);
    let arguments = rank.arguments(&PlanText::single(threads, &[], &[op]));
    rank.execute(&arguments, (1, threads), |_| {});
    assert_eq!(rank.record().state, 0);
    // Bytes beyond either end would fault: they belong to no allocation.
    assert!(
        rank.arena.get(destination, length) == pattern(length),
        "{threads} threads, {length} bytes, to +{to_offset}, from +{from_offset}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// If this fails, some alignment or length loses, doubles or misplaces bytes.
    #[test]
    fn copies_are_exact(
        warps in prop_oneof![Just(1u32), Just(3), Just(8), Just(32)],
        length in prop_oneof![0usize..100, 2000usize..2100, 0usize..20_000],
        offsets in prop_oneof![(0usize..16).prop_map(|o| (o, o)), (0usize..16, 0usize..16)],
    ) {
        check(warps * 32, length, offsets.0, offsets.1);
    }
}

/// A whole block of as many threads as can be, several tiles each, and a tail of each kind.
#[test]
fn large_copies_are_exact() {
    check(THREADS_MAX, 300_001, 0, 0);
    check(32, 70_016, 0, 0);
}

/// If this fails, a plan whose addresses are bound at launch reads or writes elsewhere: an operand
/// names an entry of the launch's table, counted from 1, and bytes behind it.
#[test]
fn addresses_come_from_the_table_of_the_launch() {
    const LENGTH: usize = 500;
    let mut rank = Rank::new(2, 1, &[]);
    let source = rank.arena.allocate(LENGTH + 8, 0);
    let destination = rank.arena.allocate(LENGTH + 3, 0);
    let table = rank.arena.allocate(3 * size_of::<u64>(), 0);
    rank.arena.put(source + 8, &pattern(LENGTH));
    rank.arena.put(table, bytemuck::cast_slice(&[u64::MAX, destination, source]));
    let op = copy(listed(2, 3), listed(3, 8), LENGTH as u32);
    let plan = PlanText::single(64, &[], &[op]);
    let arguments = CallArguments { addresses: table, address_count: 3, ..rank.arguments(&plan) };
    rank.execute(&arguments, (1, 64), |_| {});
    assert_eq!(rank.record().state, 0);
    assert!(rank.arena.get(destination + 3, LENGTH) == pattern(LENGTH));
}

/// `clamp(limit - (extent + r * stride), 0, length)`, and buffers move with the round: if this
/// fails, the last round of a count that no chunk divides reads or writes past the user's buffer.
#[test]
fn rounds_move_buffers_and_clip_lengths() {
    const CHUNK: u64 = 64;
    const TOTAL: usize = 5 * 2 * CHUNK as usize + 70;
    let mut rank = Rank::new(2, 1, &[]);
    let input = rank.arena.allocate(TOTAL, 0);
    let output = rank.arena.allocate(TOTAL, 0);
    rank.arena.put(input, &pattern(TOTAL));
    let ops: Vec<Op> = (0..2)
        .map(|chunk| {
            let offset = chunk * CHUNK;
            Op { extent: offset, ..copy(buffer(1, offset), buffer(0, offset), CHUNK as u32) }
        })
        .collect();
    // One round more than there is data: it must do nothing.
    let segment =
        Segment { rounds: 7, round_stride: 2 * CHUNK, limit: TOTAL as u64, ..Default::default() };
    let block = BlockText { ports: Vec::new(), segments: vec![(segment, ops)] };
    let mut arguments = rank.arguments(&PlanText { threads: 64, blocks: vec![block] }.encode());
    arguments.buffers = [input, output, 0, 0];
    rank.execute(&arguments, (1, 64), |_| {});
    assert_eq!(rank.arena.get(output, TOTAL), pattern(TOTAL));
}

/// Each op reads what the one before wrote. The alignments differ from op to op, so other threads
/// move other bytes each time. If this fails, a barrier is missing between two ops.
#[test]
fn ops_see_each_other() {
    const LENGTH: usize = 5000;
    const OFFSETS: [usize; 12] = [0, 0, 1, 0, 0, 8, 0, 0, 2, 4, 0, 0];
    let mut rank = Rank::new(2, 1, &[]);
    let buffers = OFFSETS.map(|offset| rank.arena.allocate(LENGTH, offset));
    rank.arena.put(buffers[0], &pattern(LENGTH));
    let ops: Vec<Op> = buffers
        .windows(2)
        .map(|pair| copy(address(pair[1]), address(pair[0]), LENGTH as u32))
        .collect();
    let arguments = rank.arguments(&PlanText::single(256, &[], &ops));
    rank.execute(&arguments, (1, 256), |_| {});
    assert_eq!(rank.arena.get(buffers[OFFSETS.len() - 1], LENGTH), pattern(LENGTH));
}
