//! Clusters: who is where, barriers of all blocks, and shared memory of the others.

use hwsim_ptx::{FaultKind, Module};

use crate::common::{BASE, Bench, module_text};

/// A kernel with 4 KiB of shared memory `tile`; `%rank` and `%blocks` are those of the cluster,
/// `%tile` is the array's address and `%next` the rank of the block behind this one.
pub fn clustered(body: &str) -> Bench {
    Bench::new(&text(body))
}

pub fn text(body: &str) -> String {
    module_text(&format!(
        ".shared .align 1024 .b8 tile[4096];\n.reg .b32 %rank, %blocks, %tile, %next, %block;\n\
         .reg .b64 %wide, %out;\n\
         mov.u32 %rank, %cluster_ctarank;\nmov.u32 %blocks, %cluster_nctarank;\n\
         mov.u32 %tile, tile;\ncvt.u64.u32 %wide, %tile;\n\
         add.u32 %next, %rank, 1;\nrem.u32 %next, %next, %blocks;\n\
         mov.u32 %block, %ctaid.x;\n{body}"
    ))
}

/// Every thread of all blocks waits for all others of the cluster.
pub const MEET: &str =
    "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n";

/// Stores `%r1` at the thread's place among all threads of a grid of one dimension.
pub const DUMP: &str = "mov.u32 %r30, %ntid.x;\nmad.lo.u32 %r30, %block, %r30, %t;\n\
    mul.wide.u32 %out, %r30, 4;\nadd.s64 %out, %base, %out;\nst.global.b32 [%out+0x4000], %r1;\n";

/// What [`DUMP`] has stored.
pub fn dumped(bench: &Bench, count: usize) -> Vec<u32> {
    bench.get(0x4000, count)
}

pub fn run(bench: &Bench, blocks: u32, cluster: u32, threads: u32) {
    let shape = ([blocks, 1, 1], [cluster, 1, 1]);
    bench.run_clusters(shape, threads, &[BASE]).unwrap_or_else(|fault| panic!("{fault}"));
}

/// If this fails, blocks take other blocks' parts of the work, or none.
#[test]
fn blocks_know_their_places() {
    let names = [
        "%clusterid.x",
        "%clusterid.y",
        "%clusterid.z",
        "%nclusterid.x",
        "%nclusterid.y",
        "%nclusterid.z",
        "%cluster_ctaid.x",
        "%cluster_ctaid.y",
        "%cluster_ctaid.z",
        "%cluster_nctaid.x",
        "%cluster_nctaid.y",
        "%cluster_nctaid.z",
        "%cluster_ctarank",
        "%cluster_nctarank",
        "%smid",
    ];
    let mut body = "mov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %ctaid.y;\nmov.u32 %r3, %ctaid.z;\n\
        mad.lo.u32 %r2, %r3, 2, %r2;\nmad.lo.u32 %r1, %r2, 6, %r1;\n\
        mul.wide.u32 %d1, %r1, 64;\nadd.s64 %d1, %base, %d1;\n"
        .to_owned();
    for (place, name) in names.iter().enumerate() {
        body += &format!("mov.u32 %r4, {name};\nst.global.u32 [%d1+{}], %r4;\n", 4 * place);
    }
    body += "mov.pred %p1, %is_explicit_cluster;\nselp.u32 %r5, 1, 0, %p1;\n\
        st.global.u32 [%d1+60], %r5;";
    let bench = Bench::of_body(&body);
    let (grid, cluster) = ([6, 2, 4], [3, 1, 2]);
    bench.run_clusters((grid, cluster), 1, &[BASE]).unwrap();
    for z in 0..4 {
        for y in 0..2 {
            for x in 0..6 {
                let found = bench.get::<u32>(((z * 2 + y) * 6 + x) * 64, 16);
                let [x, y, z] = [x, y, z].map(|extent| extent as u32);
                let rank = x % 3 + z % 2 * 3;
                let sm = rank.min(2) + 1;
                let wanted = [x / 3, y, z / 2, 2, 2, 2, x % 3, 0, z % 2, 3, 1, 2, rank, 6, sm, 1];
                assert_eq!(found, wanted, "block {x} {y} {z}");
            }
        }
    }
    // Without clusters every block is one of its own, and nobody has said so.
    bench.run("test", 1, 1, &[BASE]).unwrap();
    assert_eq!(bench.get::<u32>(0, 16), [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 1, 0, 0]);
}

/// If this fails, a block reads its own shared memory where another one's is meant, or an old one.
#[test]
fn a_block_reads_and_writes_another_ones_memory() {
    // Each thread leaves rank * 1000 + thread; then reads that of the block behind.
    let fill = "mad.lo.u32 %r1, %rank, 1000, %t;\nmad.lo.u32 %r2, %t, 4, %tile;\n\
        st.shared.u32 [%r2], %r1;\n";
    let reads = [
        // By the cluster's window, 32 and 64 bits wide.
        "mapa.shared::cluster.u32 %r3, %r2, %next;\nld.shared::cluster.u32 %r1, [%r3];\n",
        "cvt.u64.u32 %d1, %r2;\nmapa.shared::cluster.u64 %d1, %d1, %next;\n\
         ld.shared::cluster.u32 %r1, [%d1];\n",
        // By generic addresses.
        "cvt.u64.u32 %d1, %r2;\ncvta.shared.u64 %d1, %d1;\nmapa.u64 %d2, %d1, %next;\n\
         ld.u32 %r1, [%d2];\n",
        "mapa.shared::cluster.u32 %r3, %r2, %next;\ncvt.u64.u32 %d1, %r3;\n\
         cvta.shared::cluster.u64 %d1, %d1;\nld.acquire.cluster.u32 %r1, [%d1];\n",
        "cvt.u64.u32 %d1, %r2;\ncvta.shared.u64 %d1, %d1;\nmapa.u64 %d2, %d1, %next;\n\
         cvta.to.shared::cluster.u64 %d2, %d2;\nld.relaxed.cluster.shared::cluster.u32 %r1, [%d2];",
        // Half of the lanes read their own, which stays as it is.
        "mapa.shared::cluster.u32 %r3, %r2, %next;\ncvt.u64.u32 %d1, %r3;\n\
         cvta.shared::cluster.u64 %d1, %d1;\ncvt.u64.u32 %d2, %r2;\ncvta.shared.u64 %d2, %d2;\n\
         and.b32 %r5, %t, 1;\nsetp.eq.u32 %p1, %r5, 0;\nselp.b64 %d1, %d1, %d2, %p1;\n\
         ld.u32 %r1, [%d1];\n@!%p1 sub.u32 %r1, %r1, %t;\n@!%p1 mad.lo.u32 %r1, %next, 1000, %t;\n",
        // Vectors.
        "mapa.shared::cluster.u32 %r3, %tile, %next;\nand.b32 %r5, %t, 0xfffffffc;\n\
         mad.lo.u32 %r3, %r5, 4, %r3;\n\
         ld.shared::cluster.v4.u32 {%r10, %r11, %r12, %r13}, [%r3];\nand.b32 %r5, %t, 3;\n\
         setp.eq.u32 %p1, %r5, 1;\nselp.u32 %r1, %r11, %r10, %p1;\nsetp.eq.u32 %p1, %r5, 2;\n\
         selp.u32 %r1, %r12, %r1, %p1;\nsetp.eq.u32 %p1, %r5, 3;\nselp.u32 %r1, %r13, %r1, %p1;\n",
    ];
    for read in reads {
        let bench = clustered(&format!("{fill}{MEET}{read}{MEET}{DUMP}"));
        run(&bench, 8, 4, 64);
        let found = dumped(&bench, 8 * 64);
        for (place, value) in found.into_iter().enumerate() {
            let (block, thread) = (place / 64, place % 64);
            assert_eq!(value as usize, (block + 1) % 4 * 1000 + thread, "{read}");
        }
    }
    // And writes there, as other blocks see it.
    for write in [
        "mapa.shared::cluster.u32 %r3, %r2, %next;\nst.shared::cluster.u32 [%r3], %r1;\n",
        "cvt.u64.u32 %d1, %r2;\ncvta.shared.u64 %d1, %d1;\nmapa.u64 %d2, %d1, %next;\n\
         st.u32 [%d2], %r1;\n",
        "mapa.shared::cluster.u32 %r3, %r2, %next;\natom.shared::cluster.exch.b32 _, [%r3], %r1;\n",
        "cvt.u64.u32 %d1, %r2;\ncvta.shared.u64 %d1, %d1;\nmapa.u64 %d2, %d1, %next;\n\
         atom.release.cluster.exch.b32 %r9, [%d2], %r1;\n",
    ] {
        let bench =
            clustered(&format!("{fill}{MEET}{write}{MEET}ld.shared.u32 %r1, [%r2];\n{DUMP}"));
        run(&bench, 8, 4, 64);
        for (place, value) in dumped(&bench, 8 * 64).into_iter().enumerate() {
            let (block, thread) = (place / 64, place % 64);
            assert_eq!(value as usize, (block + 3) % 4 * 1000 + thread, "{write}");
        }
    }
}

/// If this fails, counts that blocks of a cluster keep in one of them are wrong.
#[test]
fn all_blocks_add_in_one() {
    let body = "mapa.shared::cluster.u32 %r3, %tile, 0;\n\
        red.relaxed.cluster.shared::cluster.add.u32 [%r3], 1;\n\
        atom.shared::cluster.add.u64 %d1, [%r3+8], 3;\n\
        cvt.u64.u32 %d2, %tile;\ncvta.shared.u64 %d2, %d2;\nmapa.u64 %d3, %d2, 0;\n\
        mov.f32 %f1, 0f3F000000;\nred.add.f32 [%d3+16], %f1;\n\
        fence.acq_rel.cluster;\n";
    let read = "ld.shared::cluster.u32 %r1, [%r3];\nld.shared::cluster.u32 %r2, [%r3+8];\n\
        ld.shared::cluster.f32 %f2, [%r3+16];\ncvt.rzi.u32.f32 %r4, %f2;\n\
        add.u32 %r1, %r1, %r2;\nadd.u32 %r1, %r1, %r4;\n";
    let bench = clustered(&format!("{body}{MEET}{read}{MEET}{DUMP}"));
    run(&bench, 16, 8, 96);
    // 768 threads: once, thrice, and a half.
    assert_eq!(dumped(&bench, 16 * 96), vec![768 + 3 * 768 + 384; 16 * 96]);
}

/// If this fails, an address leads to another block than a program is told.
#[test]
fn addresses_say_whose_they_are() {
    let body = "cvt.u64.u32 %d1, %tile;\ncvta.shared.u64 %d1, %d1;\nmapa.u64 %d2, %d1, %next;\n\
        mapa.u64 %d3, %d1, %rank;\n\
        getctarank.u64 %r2, %d2;\ngetctarank.u64 %r3, %d1;\ngetctarank.u64 %r4, %d3;\n\
        mapa.shared::cluster.u32 %r5, %tile, %next;\ngetctarank.shared::cluster.u32 %r6, %r5;\n\
        mad.lo.u32 %r1, %r2, 16, %r3;\nmad.lo.u32 %r1, %r1, 16, %r4;\n\
        mad.lo.u32 %r1, %r1, 16, %r6;\n\
        isspacep.shared::cta %p1, %d1;\nisspacep.shared::cta %p2, %d2;\n\
        isspacep.shared %p3, %d3;\nisspacep.shared::cluster %p4, %d2;\n\
        isspacep.global %p5, %d2;\nisspacep.shared::cluster %p6, %base;\n\
        selp.u32 %r10, 1, 0, %p1;\nselp.u32 %r11, 2, 0, %p2;\nselp.u32 %r12, 4, 0, %p3;\n\
        selp.u32 %r13, 8, 0, %p4;\nselp.u32 %r14, 16, 0, %p5;\nselp.u32 %r15, 32, 0, %p6;\n\
        or.b32 %r10, %r10, %r11;\nor.b32 %r10, %r10, %r12;\nor.b32 %r10, %r10, %r13;\n\
        or.b32 %r10, %r10, %r14;\nor.b32 %r10, %r10, %r15;\nmad.lo.u32 %r1, %r1, 64, %r10;\n";
    let bench = clustered(&format!("{body}{DUMP}"));
    run(&bench, 4, 4, 1);
    for (rank, value) in dumped(&bench, 4).into_iter().enumerate() {
        let (own, next) = (rank as u32, (rank as u32 + 1) % 4);
        let ranks = ((next * 16 + own) * 16 + own) * 16 + next;
        assert_eq!(value, ranks * 64 + 0b001101, "block {rank}");
    }
}

/// If this fails, a cluster hangs in which one block works while another waits for it.
#[test]
fn a_block_that_waits_lets_the_others_begin() {
    // The first block waits in its own memory for what the last one stores there.
    let body = "setp.ne.u32 %p1, %rank, 0;\n@%p1 bra OTHER;\n\
        WAIT:\nld.volatile.shared.u32 %r1, [%tile];\nsetp.eq.u32 %p2, %r1, 0;\n@%p2 bra WAIT;\n\
        bra.uni END;\n\
        OTHER:\nsub.u32 %r2, %blocks, 1;\nmov.u32 %r1, 7;\nsetp.ne.u32 %p2, %rank, %r2;\n\
        @%p2 bra END;\nmapa.shared::cluster.u32 %r3, %tile, 0;\n\
        st.release.cluster.shared::cluster.u32 [%r3], 99;\nEND:\n";
    let bench = clustered(&format!("{body}{MEET}{DUMP}"));
    run(&bench, 16, 16, 32);
    let found = dumped(&bench, 16 * 32);
    assert!(found[..32].iter().all(|&value| value == 99), "{found:?}");
    assert!(found[32..].iter().all(|&value| value == 7), "{found:?}");
}

/// If this fails, a barrier of a cluster lets somebody through before all have arrived.
#[test]
fn a_cluster_barrier_waits_for_all_blocks() {
    // Between arriving and waiting, threads may do what concerns nobody.
    let body = "mul.lo.u32 %r2, %rank, 200;\nDELAY:\nsetp.eq.u32 %p1, %r2, 0;\n@%p1 bra GO;\n\
        sub.u32 %r2, %r2, 1;\nbra DELAY;\nGO:\nmad.lo.u32 %r5, %t, 4, %tile;\n\
        add.u32 %r1, %rank, 1;\nst.shared.u32 [%r5], %r1;\n\
        barrier.cluster.arrive;\nmov.u32 %r7, 5;\nbarrier.cluster.wait;\n\
        mov.u32 %r1, 0;\nmov.u32 %r8, 0;\nSUM:\nmapa.shared::cluster.u32 %r6, %r5, %r8;\n\
        ld.shared::cluster.u32 %r9, [%r6];\nadd.u32 %r1, %r1, %r9;\nadd.u32 %r8, %r8, 1;\n\
        setp.lt.u32 %p1, %r8, %blocks;\n@%p1 bra SUM;\n";
    let bench = clustered(&format!("{body}{MEET}{DUMP}"));
    run(&bench, 12, 6, 64);
    assert_eq!(dumped(&bench, 12 * 64), vec![21; 12 * 64]);
    // Once more for each of three rounds, and threads that have ended count as arrived.
    let body = "setp.eq.u32 %p1, %rank, 1;\n@%p1 exit;\nsetp.gt.u32 %p1, %t, 40;\n@%p1 exit;\n\
        mov.u32 %r1, 0;\nROUND:\nbarrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;\n\
        add.u32 %r1, %r1, 1;\nsetp.lt.u32 %p1, %r1, 3;\n@%p1 bra ROUND;\n";
    let bench = clustered(&format!("{body}{DUMP}"));
    run(&bench, 4, 4, 64);
    let found = dumped(&bench, 4 * 64);
    let wanted = |place: usize| if place / 64 == 1 || place % 64 > 40 { 0 } else { 3 };
    assert!(found.iter().enumerate().all(|(place, &value)| value == wanted(place)), "{found:?}");
}

/// If this fails, a wild access to another block's memory is silent, or says nothing of it.
#[test]
fn wild_accesses_are_named() {
    let far = "mapa.shared::cluster.u32 %r3, %tile, 4;\n";
    let next = "mapa.shared::cluster.u32 %r3, %tile, %next;\n";
    let gone = "setp.eq.u32 %p1, %rank, 1;\n@%p1 exit;\nmapa.shared::cluster.u32 %r3, %tile, 1;\n";
    let generic = "cvt.u64.u32 %d1, %r3;\ncvta.shared::cluster.u64 %d1, %d1;\n";
    let cases = [
        (format!("{far}ld.shared::cluster.u32 %r1, [%r3];"), "block 4 of a cluster of 4 blocks"),
        (format!("{far}{generic}st.u32 [%d1], %r1;"), "block 4 of a cluster of 4 blocks"),
        (format!("{next}ld.shared::cluster.u32 %r1, [%r3+16384];"), "in block 1 of the cluster"),
        (format!("{next}red.shared::cluster.add.u32 [%r3+16384], 1;"), "in block 1 of the cluster"),
        (format!("{gone}{MEET}ld.shared::cluster.u32 %r1, [%r3];"), "block 1 of the cluster has"),
        (format!("{gone}{MEET}{generic}atom.add.u32 %r1, [%d1], 1;"), "block 1 of the cluster has"),
        // Without the cluster's window an address is the block's own.
        (format!("{next}ld.shared.u32 %r1, [%r3];"), ""),
        (format!("{next}st.shared::cta.v2.u32 [%r3], {{%r1, %r1}};"), ""),
        (format!("{next}atom.shared.add.u32 %r1, [%r3], 1;"), ""),
    ];
    for (body, detail) in cases {
        let bench = clustered(&format!("{body}\n{MEET}"));
        let fault = bench.run_clusters(([4, 1, 1], [4, 1, 1]), 32, &[BASE]).expect_err(&body);
        assert_eq!(fault.kind, FaultKind::SharedOutOfBounds, "{body}: {fault}");
        assert!(fault.detail.starts_with(detail), "{body}: {fault}");
        assert!(fault.address.is_some() && fault.block[0] < 4, "{fault}");
    }
    // A block by itself has no others.
    let bench =
        clustered("mapa.shared::cluster.u32 %r3, %tile, 1;\nld.shared::cluster.u32 %r1, [%r3];");
    let fault = bench.run("test", 1, 32, &[BASE]).unwrap_err();
    assert_eq!(fault.detail, "block 1 of a cluster of one block");
}

/// If this fails, a cluster that can never go on hangs.
#[test]
fn a_cluster_that_is_stuck_is_named() {
    // The second block's threads wait for each other at two barriers.
    let body = "setp.ne.u32 %p1, %rank, 1;\n@%p1 bra MEET;\nsetp.gt.u32 %p1, %t, 31;\n\
        @%p1 bra OTHER;\nbar.sync 1, 64;\nbra MEET;\nOTHER:\nbar.sync 2, 64;\nMEET:\n";
    let bench = clustered(&format!("{body}{MEET}"));
    let fault = bench.run_clusters(([2, 1, 1], [2, 1, 1]), 64, &[BASE]).unwrap_err();
    assert_eq!(fault.kind, FaultKind::DivergentBarrier, "{fault}");
}

/// If this fails, kernels for older GPUs get clusters that they do not have.
#[test]
fn older_targets_have_no_clusters() {
    for body in ["mapa.shared::cluster.u32 %r1, %tile, 0;", "barrier.cluster.arrive;"] {
        let old = text(body).replace("sm_90", "sm_80");
        let refused = Module::load(&old).expect_err(body);
        assert!(refused.expected.contains("sm_90"), "{refused}");
    }
}
