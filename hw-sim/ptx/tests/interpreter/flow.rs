//! Lanes that part and meet, warps that wait for each other.

use std::sync::Arc;

use hwsim_ptx::{Block, FaultKind, Progress};

use crate::common::{BASE, Bench};

#[test]
fn lanes_diverge_and_reconverge() {
    // Even lanes take one way, odd lanes another; then all vote, which only works if they met.
    let bench = Bench::of_body(
        "and.b32 %r1, %t, 1; setp.eq.u32 %p1, %r1, 0; @%p1 bra EVEN;\n\
         mul.lo.u32 %r2, %t, 3; bra.uni MEET;\nEVEN:\nadd.u32 %r2, %t, 100;\nMEET:\n\
         activemask.b32 %r3; st.global.u32 [%a4], %r2; st.global.u32 [%a4+128], %r3;",
    );
    bench.run("test", 1, 32, &[BASE]).unwrap();
    for (lane, value) in bench.get::<u32>(0, 32).into_iter().enumerate() {
        let lane = lane as u32;
        assert_eq!(value, if lane.is_multiple_of(2) { lane + 100 } else { lane * 3 });
    }
    assert_eq!(bench.get::<u32>(128, 32), [u32::MAX; 32], "the lanes did not meet");
}

/// The loop's end stands in front of its head, and half of the lanes go there early; what is rare
/// stands behind the loop. If this fails, they run ahead of the others, turn after turn.
#[test]
fn lanes_meet_in_each_turn_wherever_the_loop_stands() {
    let bench = Bench::of_body(
        "mov.u32 %r1, 0; and.b32 %r2, %t, 1; setp.eq.u32 %p1, %r2, 0; bra.uni HEAD;\n\
         NEXT:\nadd.u32 %r1, %r1, 1; setp.eq.u32 %p2, %r1, 8; @%p2 bra END;\n\
         HEAD:\nactivemask.b32 %r3; st.global.u32 [%a4], %r3; setp.ne.u32 %p2, %r3, 0xffffffff;\n\
         @%p2 bra APART;\n@%p1 bra NEXT;\n\
         mul.lo.u32 %r4, %t, 3; setp.eq.u32 %p2, %t, 5; @%p2 bra RARE;\n\
         BACK:\nadd.u32 %r4, %r4, 1; bra.uni NEXT;\n\
         RARE:\nadd.u32 %r4, %r4, 7; bra.uni BACK;\n\
         APART:\nst.global.u32 [%a4+128], 1; bra.uni NEXT;\nEND:\n",
    );
    bench.run("test", 1, 32, &[BASE]).unwrap();
    assert_eq!(bench.get::<u32>(0, 32), [u32::MAX; 32], "the last turn");
    assert_eq!(bench.get::<u32>(128, 32), [0; 32], "a turn without all lanes");
}

/// The guard is the second register that the kernel names, and lane 0 falls through it each turn.
/// If this fails, what is alive behind such a branch loses its place to `%r5`.
#[test]
fn a_branch_by_the_second_register_may_fall_through() {
    let bench = Bench::new(
        ".version 7.0\n.target sm_70\n.address_size 64\n\
         .visible .entry test(.param .u64 base) {\n\
         .reg .pred %p<3>; .reg .b32 %r<6>; .reg .b64 %rd<2>;\n\
         mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0;\n\
         ld.param.u64 %rd1, [base]; mov.u32 %r2, 5; mov.u32 %r3, 0;\nLOOP:\n\
         @%p1 bra SKIP;\n\
         st.global.u32 [%rd1], %r2;\nSKIP:\n\
         add.u32 %r5, %r3, 77; st.global.u32 [%rd1+4], %r5;\n\
         add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 2; @%p2 bra LOOP;\n ret;\n}\n",
    );
    bench.run("test", 1, 32, &[BASE]).unwrap();
    assert_eq!(bench.get::<u32>(0, 2), [5, 78]);
}

#[test]
fn loops_of_different_length() {
    let bench = Bench::of_body(
        "mov.u32 %r1, 0; mov.u32 %r2, 0;\nLOOP:\nadd.u32 %r1, %r1, %r2; add.u32 %r2, %r2, 1;\n\
         setp.le.u32 %p1, %r2, %t; @%p1 bra LOOP;\nst.global.u32 [%a4], %r1;",
    );
    bench.run("test", 1, 64, &[BASE]).unwrap();
    for (lane, value) in bench.get::<u32>(0, 64).into_iter().enumerate() {
        assert_eq!(value as usize, lane * (lane + 1) / 2);
    }
}

/// A lane that holds a lock stands later in the code than those that spin for it: it must get on.
#[test]
fn spin_lock_within_a_warp() {
    let bench = Bench::of_body(
        "SPIN:\natom.global.cas.b32 %r1, [%base], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra SPIN;\n\
         ld.global.u32 %r2, [%base+8]; add.u32 %r2, %r2, 1; st.global.u32 [%base+8], %r2;\n\
         membar.gl; atom.global.exch.b32 %r3, [%base], 0;",
    );
    bench.run("test", 1, 96, &[BASE]).unwrap();
    assert_eq!(bench.get::<u32>(8, 1), [96]);
}

#[test]
fn no_warp_spins_away_the_whole_budget() {
    let bench = Bench::of_body(
        "WAIT:\nld.acquire.sys.global.u32 %r1, [%base]; setp.eq.u32 %p1, %r1, 0; @%p1 bra WAIT;\n\
         st.global.u32 [%base+4], %r1;",
    );
    let launch = bench.launch("test", 1, 64, &[BASE]);
    let mut block = Block::new(launch, [0; 3], 0);
    for _ in 0..3 {
        let progress = block.run(&bench.memory, &bench.clock, u64::MAX).unwrap();
        assert_eq!(progress, Progress::Waiting);
    }
    bench.put(0, &[5_u32]);
    bench.finish(&mut block).unwrap();
    assert_eq!(bench.get::<u32>(4, 1), [5]);
}

/// Polling with an atomic that changes nothing is polling all the same.
#[test]
fn atomic_polls_are_spins() {
    let bench = Bench::of_body(
        "WAIT:\natom.global.add.u32 %r1, [%base], 0; setp.eq.u32 %p1, %r1, 0; @%p1 bra WAIT;",
    );
    let mut block = Block::new(bench.launch("test", 1, 32, &[BASE]), [0; 3], 0);
    let progress = block.run(&bench.memory, &bench.clock, u64::MAX).unwrap();
    assert_eq!(progress, Progress::Waiting);
}

/// Lanes that spin on plain loads show no sign of it, but must not keep their warp for ever.
#[test]
fn lanes_that_spin_unseen_yield_to_their_warp() {
    let bench = Bench::of_body(
        "setp.eq.u32 %p2, %t, 3; @%p2 bra WRITE;\n\
         WAIT:\nld.global.u32 %r1, [%base]; setp.eq.u32 %p1, %r1, 0; @%p1 bra WAIT;\n\
         bra.uni END;\nWRITE:\nst.global.u32 [%base], 1;\nEND:\nst.global.u32 [%a4+8], 7;",
    );
    bench.run("test", 1, 32, &[BASE]).unwrap();
    assert_eq!(bench.get::<u32>(8, 32), [7; 32]);
}

/// Retired register files are used again: what the constants in them say must still hold.
#[test]
fn blocks_follow_one_another() {
    let bench = Bench::of_body(
        "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r3, %r1, %r2, %t;\n\
         mul.wide.u32 %d1, %r3, 4; add.s64 %d1, %d1, %base; mul.lo.u32 %r3, %r3, 77;\n\
         st.global.u32 [%d1], %r3;",
    );
    bench.run("test", 50, 96, &[BASE]).unwrap();
    for (thread, value) in bench.get::<u32>(0, 50 * 96).into_iter().enumerate() {
        assert_eq!(value as usize, thread * 77);
    }
}

#[test]
fn a_nap_lets_others_run() {
    let bench = Bench::of_body(
        "WAIT:\nld.volatile.global.u32 %r1, [%base]; setp.ne.u32 %p1, %r1, 0; @%p1 bra DONE;\n\
         nanosleep.u32 100; bra WAIT;\nDONE:\nst.global.u32 [%base+4], 1;",
    );
    let launch = bench.launch("test", 1, 32, &[BASE]);
    let mut block = Block::new(launch, [0; 3], 0);
    let progress = block.run(&bench.memory, &bench.clock, 1 << 40).unwrap();
    assert_eq!(progress, Progress::Waiting);
    bench.put(0, &[1_u32]);
    bench.finish(&mut block).unwrap();
}

#[test]
fn a_budget_stops_a_busy_block_and_it_goes_on_later() {
    let bench = Bench::of_body(
        "mov.u32 %r1, 0;\nLOOP:\nadd.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 1000; @%p1 bra LOOP;\n\
         st.global.u32 [%a4], %r1;",
    );
    let launch = bench.launch("test", 1, 64, &[BASE]);
    let mut block = Block::new(Arc::clone(&launch), [0; 3], 0);
    let mut turns = 0;
    while block.run(&bench.memory, &bench.clock, 500).unwrap() == Progress::Budget {
        turns += 1;
    }
    assert!((10..=14).contains(&turns), "2 warps of 3000 instructions in turns of 500: {turns}");
    assert_eq!(bench.get::<u32>(0, 64), [1000; 64]);
}

#[test]
fn barriers_order_warps() {
    // Each warp reads what another one wrote before the barrier, many times over.
    let bench = Bench::of_body(
        ".shared .b32 box[128];\n.reg .b32 %s, %n, %k;\n.reg .b64 %sb, %sn;\n\
         mov.u64 %sb, box; add.s64 %sb, %sb, %o4; mov.u32 %k, 0; mov.u32 %r1, %t;\n\
         add.u32 %n, %t, 37; and.b32 %n, %n, 127; mul.wide.u32 %sn, %n, 4; mov.u64 %d1, box;\n\
         add.s64 %sn, %sn, %d1;\nROUND:\nst.shared.u32 [%sb], %r1; bar.sync 0;\n\
         ld.shared.u32 %r1, [%sn]; bar.sync 0;\n\
         add.u32 %k, %k, 1; setp.lt.u32 %p1, %k, 50; @%p1 bra ROUND;\nst.global.u32 [%a4], %r1;",
    );
    bench.run("test", 1, 128, &[BASE]).unwrap();
    for (thread, value) in bench.get::<u32>(0, 128).into_iter().enumerate() {
        assert_eq!(value as usize, (thread + 37 * 50) % 128);
    }
}

#[test]
fn threads_that_ended_are_not_waited_for() {
    let bench = Bench::of_body(
        "setp.ge.u32 %p1, %t, 40; @%p1 bra END;\nbar.sync 0; st.global.u32 [%a4], 1;\nEND:",
    );
    bench.run("test", 1, 128, &[BASE]).unwrap();
    assert_eq!(bench.get::<u32>(0, 41)[39..], [1, 0]);
}

#[test]
fn a_divergent_barrier_is_a_fault() {
    let bench = Bench::of_body(
        "setp.lt.u32 %p1, %t, 7; @%p1 bra OTHER;\nbar.sync 0; bra.uni END;\n\
         OTHER:\nbar.sync 1;\nEND:",
    );
    let fault = bench.run("test", 1, 32, &[BASE]).unwrap_err();
    assert_eq!(fault.kind, FaultKind::DivergentBarrier);
    assert!(fault.instruction.starts_with("bar.sync"), "{fault}");
    // Two warps at different barriers of the whole block can never go on either.
    let bench = Bench::of_body(
        "setp.lt.u32 %p1, %t, 32; @%p1 bra OTHER;\nbar.sync 0; bra.uni END;\n\
         OTHER:\nbar.sync 1;\nEND:",
    );
    let fault = bench.run("test", 1, 64, &[BASE]).unwrap_err();
    assert_eq!(fault.kind, FaultKind::DivergentBarrier);
}

#[test]
fn jump_tables() {
    let bench = Bench::of_body(
        "and.b32 %r1, %t, 3;\nTABLE: .branchtargets A, B, C, A;\nbrx.idx %r1, TABLE;\n\
         A:\nmov.u32 %r2, 10; bra.uni END;\nB:\nmov.u32 %r2, 20; bra.uni END;\n\
         C:\nmov.u32 %r2, 30;\nEND:\nst.global.u32 [%a4], %r2;",
    );
    bench.run("test", 1, 32, &[BASE]).unwrap();
    for (lane, value) in bench.get::<u32>(0, 32).into_iter().enumerate() {
        assert_eq!(value, [10, 20, 30, 10][lane % 4]);
    }
}

/// A shuffle names lanes that are still on their way: they must be waited for.
#[test]
fn a_shuffle_waits_for_its_members() {
    let bench = Bench::of_body(
        "mov.u32 %r1, %t; setp.lt.u32 %p1, %t, 16; @%p1 bra JOIN;\n\
         mul.lo.u32 %r1, %r1, 2; nanosleep.u32 5; add.u32 %r1, %r1, 1;\nJOIN:\n\
         shfl.sync.bfly.b32 %r2|%p2, %r1, 16, 0x1f, -1; st.global.u32 [%a4], %r2;",
    );
    bench.run("test", 1, 32, &[BASE]).unwrap();
    for (lane, value) in bench.get::<u32>(0, 32).into_iter().enumerate() {
        let source = lane as u32 ^ 16;
        assert_eq!(value, if source < 16 { source } else { source * 2 + 1 });
    }
}

#[test]
fn warp_reductions() {
    let bench = Bench::of_body(
        "redux.sync.add.u32 %r1, %t, -1; redux.sync.max.s32 %r2, %t, -1;\n\
         vote.sync.ballot.b32 %r3, %p1, -1; elect.sync %r4|%p2, -1; selp.u32 %r5, 1, 0, %p2;\n\
         st.global.u32 [%a4], %r1; st.global.u32 [%a4+128], %r2; st.global.u32 [%a4+256], %r5;",
    );
    bench.run("test", 1, 32, &[BASE]).unwrap();
    assert_eq!(bench.get::<u32>(0, 32), [496; 32]);
    assert_eq!(bench.get::<u32>(128, 32), [31; 32]);
    assert_eq!(bench.get::<u32>(256, 32).iter().sum::<u32>(), 1);
}

/// Lanes of one warp that name different lanes are groups of their own, as of a
/// `labeled_partition` of cooperative groups: if this fails, they see each other's values.
#[test]
fn groups_of_a_warp_look_at_themselves() {
    // Three groups, by lane modulo 3; of lane 31 alone, a fourth one.
    let bench = Bench::of_body(
        "rem.u32 %r1, %t, 3; setp.eq.u32 %p1, %t, 31; selp.u32 %r1, 9, %r1, %p1;\n\
         match.any.sync.b32 %r2, %r1, -1;\n\
         redux.sync.max.u32 %r3, %t, %r2; setp.gt.u32 %p1, %t, 15;\n\
         vote.sync.ballot.b32 %r4, %p1, %r2; setp.lt.u32 %p1, %t, 31;\n\
         vote.sync.all.pred %p2, %p1, %r2; selp.u32 %r5, 1, 0, %p2;\n\
         elect.sync %r1|%p1, %r2; bar.warp.sync %r2;\n\
         st.global.u32 [%a4], %r2; st.global.u32 [%a4+128], %r3; st.global.u32 [%a4+256], %r4;\n\
         st.global.u32 [%a4+384], %r5; st.global.u32 [%a4+512], %r1;",
    );
    bench.run("test", 1, 32, &[BASE]).unwrap();
    let seen: [Vec<u32>; 5] = std::array::from_fn(|place| bench.get(place * 128, 32));
    for lane in 0..32 {
        let same = |other: &u32| match lane {
            31 => *other == 31,
            _ => *other < 31 && other % 3 == lane % 3,
        };
        let group: Vec<u32> = (0..32).filter(same).collect();
        let bits = |lanes: &[u32]| lanes.iter().map(|lane| 1 << lane).sum::<u32>();
        let upper: Vec<u32> = group.iter().copied().filter(|lane| *lane > 15).collect();
        let expected =
            [bits(&group), *group.last().unwrap(), bits(&upper), u32::from(lane < 31), group[0]];
        let of_lane: [u32; 5] = std::array::from_fn(|place| seen[place][lane as usize]);
        assert_eq!(of_lane, expected, "lane {lane}");
    }
}

/// Cooperative groups of several warps keep what they share there: if this fails, they have no
/// room, or write over the program's own variables.
#[test]
fn the_system_has_shared_memory_of_its_own() {
    let bench = Bench::of_body(
        ".shared .b32 own[5];\n.reg .b32 %first, %last, %size, %all;\n.reg .b64 %at;\n\
         mov.u32 %first, %reserved_smem_offset_1; mov.u32 %last, %reserved_smem_offset_end;\n\
         mov.u32 %size, %reserved_smem_offset_cap; mov.u32 %all, %total_smem_size;\n\
         cvt.u64.u32 %at, %first; ld.shared.u32 %r1, [%at];\n\
         cvt.u64.u32 %at, %last; st.shared.u32 [%at+-4], 7; ld.shared.u32 %r2, [%at+-4];\n\
         sub.u32 %r3, %last, %first; setp.ge.u32 %p1, %first, %all; selp.u32 %r4, 1, 0, %p1;\n\
         st.global.v4.u32 [%base], {%r1, %r2, %r3, %r4}; st.global.u32 [%base+16], %size;",
    );
    bench.run("test", 1, 32, &[BASE]).unwrap();
    assert_eq!(bench.get::<u32>(0, 5), [0, 7, 768, 1, 1024]);
}

#[test]
fn special_registers() {
    let bench = Bench::of_body(
        "mov.u32 %r1, %laneid; mov.u32 %r2, %warpid;\n\
         mov.u32 %r3, %ctaid.x; mov.u32 %r4, %nctaid.x;\n\
         mov.u32 %r5, %lanemask_lt; mov.u32 %r6, %dynamic_smem_size; mov.u64 %d1, %clock64;\n\
         st.global.v4.u32 [%base], {%r1, %r2, %r3, %r4}; st.global.v2.u32 [%base+16], {%r5, %r6};",
    );
    bench.run("test", 3, 64, &[BASE]).unwrap();
    // The last lane of the last warp of the last block wrote last.
    assert_eq!(bench.get::<u32>(0, 6), [31, 1, 2, 3, i32::MAX as u32, 4096]);
}

/// If this fails, a block finds what another block of its kernel has left in shared memory, in
/// local memory, at its barriers, or in its place of the grid.
#[test]
fn a_block_that_is_used_again_begins_anew() {
    let body = ".shared .align 4 .b8 sum[4];\n.local .align 4 .b8 own[8];\n\
         mov.u32 %r1, %ctaid.x;\nmov.u32 %r2, sum;\n\
         ld.local.u32 %r3, [own];\nadd.u32 %r3, %r3, %t;\nst.local.u32 [own], %r3;\n\
         atom.shared.add.u32 %r4, [%r2], %r3;\nbar.sync 0;\nld.shared.u32 %r5, [%r2];\n\
         mul.lo.u32 %r6, %r1, 40;\nadd.u32 %r6, %r6, %t;\nmul.wide.u32 %o4, %r6, 4;\n\
         add.s64 %a4, %base, %o4;\nmad.lo.u32 %r5, %r1, 1000, %r5;\nst.global.u32 [%a4], %r5;\n\
         setp.gt.u32 %p1, %t, 3;\n@%p1 exit;\nbar.warp.sync 15;";
    let bench = Bench::of_body(body);
    let mut block = Block::new(bench.launch("test", 3, 40, &[BASE]), [2, 0, 0], 0);
    for index in [2, 0, 1] {
        block.restart([index, 0, 0]);
        bench.finish(&mut block).unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!(block.index(), [index, 0, 0]);
    }
    let sum: u32 = (0..40).sum();
    let wanted: Vec<u32> = (0..120).map(|thread| thread / 40 * 1000 + sum).collect();
    assert_eq!(bench.get::<u32>(0, 120), wanted);
}
