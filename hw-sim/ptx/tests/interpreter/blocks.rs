//! Blocks that follow one another in the same room: what the first one computed for all of them is
//! right for each, and what it computed for itself is gone.

use super::common::{BASE, Bench};
use hwsim_ptx::Block;
use std::sync::Arc;

const BLOCKS: u32 = 3;
const THREADS: u32 = 48;

/// Each thread of each block stores what the body leaves in `%r9`. All blocks, in one room.
fn stored(body: &str) -> Vec<u32> {
    let bench = Bench::of_body(&format!(
        "{body}\nmov.u32 %r20, %ctaid.x;\nmad.lo.u32 %r21, %r20, {THREADS}, %t;\n\
         mul.wide.u32 %d20, %r21, 4;\nadd.s64 %d20, %base, %d20;\nst.global.u32 [%d20], %r9;"
    ));
    let launch = bench.launch("test", BLOCKS, THREADS, &[BASE]);
    let mut block = Block::new(Arc::clone(&launch), [0; 3], 0);
    bench.finish(&mut block).expect("no fault");
    for index in 1..BLOCKS {
        block.restart([index, 0, 0]);
        bench.finish(&mut block).expect("no fault");
    }
    bench.get(0, (BLOCKS * THREADS) as usize)
}

fn each(value: impl Fn(u32, u32) -> u32) -> Vec<u32> {
    let threads = (0..BLOCKS).flat_map(|block| (0..THREADS).map(move |t| (block, t)));
    threads.map(|(block, t)| value(block, t)).collect()
}

/// If this fails, blocks take over what they do not have in common.
#[test]
fn what_depends_on_the_block_is_computed_anew() {
    let body = "mov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %ntid.x;\nshl.b32 %r3, %t, 8;\n\
                mul.lo.u32 %r4, %r1, %r2;\nadd.u32 %r9, %r3, %r4;";
    assert_eq!(stored(body), each(|block, t| (t << 8) + block * THREADS));
}

/// If this fails, a register that is written again later keeps the later value for the next block.
#[test]
fn registers_that_are_written_twice_begin_anew() {
    let body = "mov.u32 %r1, %t;\nshl.b32 %r2, %r1, 1;\nadd.u32 %r1, %r1, 5;\n\
                add.u32 %r9, %r1, %r2;\nmov.u32 %r2, 77;\nadd.u32 %r9, %r9, %r2;";
    assert_eq!(stored(body), each(|_, t| 3 * t + 82));
}

/// If this fails, instructions that some lanes skip, or that hand on a carry, are taken for
/// ones that all blocks have in common.
#[test]
fn guards_and_carries_stay_in_their_places() {
    let body = "setp.lt.u32 %p1, %t, 10;\nmov.u32 %r1, 0;\n@%p1 mov.u32 %r1, 100;\n\
                mov.u32 %r2, -1;\nmov.u32 %r3, 0;\nadd.cc.u32 %r4, %t, %r2;\n\
                addc.u32 %r5, %r3, 0;\nsub.cc.u32 %r6, %t, %t;\nadd.u32 %r9, %r1, %r5;";
    let expected = |_, t: u32| if t < 10 { 100 } else { 0 } + u32::from(t > 0);
    assert_eq!(stored(body), each(expected));
}

/// If this fails, a kernel whose loop goes back to its first instruction loses its counts.
#[test]
fn loops_from_the_start_are_run_as_they_stand() {
    let body = "mov.u32 %r7, 0;\nmov.u32 %r8, 0;\nLOOP:\nmov.u32 %r1, %tid.x;\n\
                add.u32 %r8, %r8, %r1;\nadd.u32 %r7, %r7, 1;\nsetp.lt.u32 %p1, %r7, 4;\n\
                @%p1 bra LOOP;\nmov.u32 %r9, %r8;";
    assert_eq!(stored(body), each(|_, t| 4 * t));
}

/// If this fails, the start of a kernel that parts its lanes is not there for all of them.
#[test]
fn lanes_that_end_early_come_back_in_the_next_block() {
    let body = "mov.u32 %r1, %ctaid.x;\nshl.b32 %r2, %t, 2;\nand.b32 %r3, %t, 1;\n\
                setp.eq.u32 %p1, %r3, %r1;\n@%p1 exit;\nadd.u32 %r9, %r2, %r1;\n\
                add.u32 %r9, %r9, 1;";
    assert_eq!(stored(body), each(|block, t| if t & 1 == block { 0 } else { 4 * t + block + 1 }));
}
