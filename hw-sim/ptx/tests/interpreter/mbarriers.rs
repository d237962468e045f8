//! `mbarrier`: warps that wait for each other by words in shared memory.

use crate::common::{BASE, Bench};
use hwsim_ptx::{Block, FaultKind, Module, Progress};

/// A kernel with a barrier in shared memory: `%bar` its address, `%t` the thread, `%out` a word of
/// each thread, `%n` the threads of the block.
fn text(body: &str) -> String {
    format!(
        ".version 8.4\n.target sm_80\n.address_size 64\n\
         .visible .entry test(.param .u64 p0) {{\n.shared .align 8 .b8 bar[16];\n\
         .shared .align 4 .b8 sum[4];\n\
         .reg .b32 %bar, %t, %n, %r<9>;\n.reg .b64 %base, %out, %d<9>;\n.reg .pred %p<4>;\n\
         ld.param.u64 %base, [p0];\nmov.u32 %t, %tid.x;\nmov.u32 %n, %ntid.x;\n\
         mov.u32 %bar, bar;\nmad.wide.u32 %out, %t, 4, %base;\n\
         setp.ne.u32 %p1, %t, 0;\n@%p1 bra READY;\n\
         mbarrier.init.shared.b64 [%bar], %n;\nREADY:\nbar.sync 0;\n{body}\nret;\n}}\n"
    )
}

fn run(body: &str, threads: u32) -> Vec<u32> {
    let bench = Bench::new(&text(body));
    bench.run("test", 1, threads, &[BASE]).unwrap_or_else(|fault| panic!("{fault}"));
    bench.get(0, threads as usize)
}

/// The loop that compilers make of a wait.
const WAIT: &str = "WAIT:\nmbarrier.test_wait.shared.b64 %p2, [%bar], %d1;\n@!%p2 bra WAIT;\n";

/// If this fails, `cuda::barrier` lets threads go before all have come, or holds them for ever.
#[test]
fn nobody_goes_on_before_all_have_come() {
    let body = format!(
        "atom.shared.add.u32 %r1, [sum], %t;\n\
         mbarrier.arrive.shared.b64 %d1, [%bar];\n{WAIT}\
         ld.shared.u32 %r2, [sum];\nst.global.u32 [%out], %r2;\n"
    );
    for threads in [1, 31, 32, 33, 256] {
        let sum = threads * (threads - 1) / 2;
        assert_eq!(run(&body, threads), vec![sum; threads as usize], "{threads} threads");
    }
}

/// A block that waits for arrivals that nobody makes stops running, so that others may.
#[test]
fn who_waits_lets_others_run() {
    let body = "setp.ne.u32 %p3, %t, 0;\n@%p3 bra END;\n\
         add.u32 %r1, %n, 1;\nmbarrier.init.shared.b64 [%bar+8], %r1;\n\
         mbarrier.arrive.shared.b64 %d1, [%bar+8];\nEND:\n\
         WAIT:\nmbarrier.test_wait.shared.b64 %p2, [%bar+8], %d1;\n@!%p2 bra WAIT;\n";
    let bench = Bench::new(&text(body));
    let mut block = Block::new(bench.launch("test", 1, 1, &[BASE]), [0, 0, 0], 0);
    let seen = block.run(&bench.memory, &bench.clock, 100_000).unwrap();
    assert_eq!(seen, Progress::Waiting);
}

/// Phases follow each other: a loop of rounds, with generic addresses and the parity of the phase.
#[test]
fn a_barrier_serves_many_rounds() {
    // Two phases a round, of which the first has the parity 0.
    let body = "cvta.shared.u64 %d2, bar;\nmov.u32 %r3, 0;\nROUND:\n\
         atom.shared.add.u32 %r1, [sum], 1;\nmbarrier.arrive.b64 _, [%d2];\n\
         WAIT:\nmbarrier.test_wait.parity.b64 %p2, [%d2], 0;\n@!%p2 bra WAIT;\n\
         ld.shared.u32 %r2, [sum];\nadd.u32 %r3, %r3, 1;\n\
         mul.lo.u32 %r5, %r3, %n;\nsub.u32 %r2, %r2, %r5;\nst.global.u32 [%out], %r2;\n\
         mbarrier.arrive.b64 %d1, [%d2];\n\
         HOLD:\nmbarrier.test_wait.b64 %p2, [%d2], %d1;\n@!%p2 bra HOLD;\n\
         setp.lt.u32 %p3, %r3, 5;\n@%p3 bra ROUND;\n";
    assert_eq!(run(body, 96), [0; 96], "what is missing of the round's arrivals");
}

/// A warp of producers hands values to a warp of consumers, each waiting for the other alone.
#[test]
fn producers_and_consumers_take_turns() {
    let body = "setp.ge.u32 %p3, %t, 32;\n@%p3 bra CONSUME;\n\
         mad.lo.u32 %r1, %t, 3, 1;\natom.shared.add.u32 %r2, [sum], %r1;\n\
         mbarrier.arrive.shared.b64 %d1, [%bar];\nret;\n\
         CONSUME:\nmbarrier.arrive.shared.b64 %d1, [%bar];\n\
         WAIT:\nmbarrier.test_wait.shared.b64 %p2, [%bar], %d1;\n@!%p2 bra WAIT;\n\
         ld.shared.u32 %r2, [sum];\nst.global.u32 [%out], %r2;\n";
    let seen = run(body, 64);
    assert_eq!(seen[32..], [3 * 496 + 32; 32]);
}

/// If this fails, threads that have left a barrier are waited for.
#[test]
fn who_drops_out_is_not_waited_for() {
    let body = format!(
        "setp.lt.u32 %p3, %t, 40;\n@%p3 bra STAY;\n\
         mbarrier.arrive_drop.shared.b64 %d1, [%bar];\nret;\n\
         STAY:\nmbarrier.arrive.shared.b64 %d1, [%bar];\n{WAIT}\
         mbarrier.arrive.shared.b64 %d1, [%bar];\n{}\
         st.global.u32 [%out], 7;\n",
        WAIT.replace("WAIT", "AGAIN")
    );
    let mut expected = vec![7; 40];
    expected.resize(64, 0);
    assert_eq!(run(&body, 64), expected);
}

/// What is pending is what the phase waited for before the arrival.
#[test]
fn arrivals_are_counted() {
    let body = "setp.ne.u32 %p3, %t, 5;\n@%p3 bra END;\n\
         mbarrier.arrive.noComplete.shared.b64 %d1, [%bar], 30;\n\
         mbarrier.pending_count.b64 %r1, %d1;\nst.global.u32 [%out], %r1;\n\
         mbarrier.arrive.shared.b64 %d1, [%bar];\n\
         mbarrier.pending_count.b64 %r1, %d1;\nst.global.u32 [%out+4], %r1;\nEND:\n";
    assert_eq!(run(body, 64)[5..7], [64, 34]);
}

/// Copies are there when the phase that waits for them is over. With `.noinc` the arrival is one of
/// those awaited; without, one more is awaited for it.
#[test]
fn copies_arrive_at_barriers() {
    let copy = "mov.u32 %r1, sum;\nmov.u32 %r3, 9;\nst.global.u32 [%base], %r3;\n\
         cp.async.ca.shared.global [%r1], [%base], 4;\n";
    let read = "ld.shared.u32 %r2, [sum];\nst.global.u32 [%out], %r2;\n";
    let plain = format!(
        "{copy}cp.async.mbarrier.arrive.shared.b64 [%bar];\n\
         mbarrier.arrive.shared.b64 %d1, [%bar];\n{WAIT}{read}"
    );
    assert_eq!(run(&plain, 64), [9; 64]);
    // Whether the phase is over shows in the parity: there is no state.
    let counted = format!(
        "{copy}cp.async.mbarrier.arrive.noinc.shared.b64 [%bar];\n\
         WAIT:\nmbarrier.test_wait.parity.shared.b64 %p2, [%bar], 0;\n@!%p2 bra WAIT;\n{read}"
    );
    assert_eq!(run(&counted, 64), [9; 64]);
}

/// What would be undefined on a GPU ends the kernel, and says what was wrong.
#[test]
fn misuse_is_a_fault() {
    let one = "setp.ne.u32 %p3, %t, 0;\n@%p3 bra END;\n";
    for (body, kind) in [
        ("mbarrier.init.shared.b64 [%bar], 0;\n", FaultKind::InvalidBarrier),
        ("mbarrier.init.shared.b64 [%bar+4], 1;\n", FaultKind::Misaligned),
        ("mbarrier.init.shared.b64 [%bar+65536], 1;\n", FaultKind::SharedOutOfBounds),
        ("mbarrier.init.b64 [%base], 1;\n", FaultKind::SharedOutOfBounds),
        ("mbarrier.arrive.noComplete.shared.b64 _, [%bar], 33;\n", FaultKind::InvalidBarrier),
        ("mbarrier.arrive.noComplete.shared.b64 _, [%bar], 32;\n", FaultKind::InvalidBarrier),
        (
            "mbarrier.inval.shared.b64 [%bar];\nmbarrier.arrive.shared.b64 _, [%bar];\n",
            FaultKind::InvalidBarrier,
        ),
    ] {
        let bench = Bench::new(&text(&format!("{one}{body}END:\n")));
        assert_eq!(bench.run("test", 1, 32, &[BASE]).unwrap_err().kind, kind, "{body}");
    }
}

/// Forms of later GPUs are refused by name, as are words that are no form at all.
#[test]
fn other_forms_are_refused() {
    for body in [
        "mbarrier.expect_tx.relaxed.cta.shared.b64 [%bar], 16;",
        "mbarrier.arrive.expect_tx.shared.b64 %d1, [%bar], 16;",
        "mbarrier.arrive.shared.b64 %d1, [%bar], 2;",
        "mbarrier.try_wait.shared.b64 %p2, [%bar], %d1;",
        "mbarrier.arrive.shared::cluster.b64 _, [%bar];",
        "mbarrier.init.shared.b32 [%bar], 1;",
        "mbarrier.inval.noComplete.shared.b64 [%bar];",
    ] {
        let refused = Module::load(&text(body)).expect_err(body);
        assert!(format!("{refused}").contains("mbarrier"), "{refused}");
    }
    let later = text("mbarrier.try_wait.shared.b64 %p2, [%bar], %d1, 100;");
    Module::load(&later.replace("sm_80", "sm_90")).expect("sm_90 has it");
    let refused = Module::load(&text("").replace("sm_80", "sm_75")).expect_err("sm_75 has none");
    assert!(refused.expected.contains("sm_80"), "{refused}");
}
