//! What blocks of a cluster do in each other's memory by themselves: arrivals at barriers there,
//! asynchronous stores, sums and copies.

use hwsim_ptx::tensor_map::{Swizzle, TensorMap};
use hwsim_ptx::{FaultKind, Module};

use crate::clusters::{DUMP, MEET, clustered, dumped, run, text};
use crate::common::BASE;

/// A barrier at `%bar`, behind the tile's data, that waits for so many arrivals; all blocks have
/// made theirs. `%there` is that of the next block, `%data` the next block's tile.
pub fn barriers(arrivals: &str) -> String {
    format!(
        ".reg .b32 %bar, %there, %data;\nadd.u32 %bar, %tile, 2048;\n\
         setp.ne.u32 %p9, %t, 0;\n@%p9 bra READY;\n\
         mbarrier.init.shared::cta.b64 [%bar], {arrivals};\n\
         fence.mbarrier_init.release.cluster;\nREADY:\n{MEET}\
         mapa.shared::cluster.u32 %there, %bar, %next;\n\
         mapa.shared::cluster.u32 %data, %tile, %next;\n"
    )
}

/// Waits for the first phase of the block's own barrier.
pub const WAIT: &str = "WAIT:\n\
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p8, [%bar], 0;\n\
    @!%p8 bra WAIT;\n";

/// Loads the word of this thread from the block's own tile.
pub const OWN: &str = "mad.lo.u32 %r29, %t, 4, %tile;\nld.shared.u32 %r1, [%r29];\n";

/// If this fails, a block waits for good for others that have arrived, or for none.
#[test]
fn blocks_arrive_at_barriers_of_others() {
    let arrivals = [
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%there];\n",
        "mbarrier.arrive.shared::cluster.b64 _, [%there], 1;\n",
        "mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [%there], 0;\n",
        "cvt.u64.u32 %d1, %bar;\ncvta.shared.u64 %d1, %d1;\nmapa.u64 %d1, %d1, %next;\n\
         mbarrier.arrive.release.cluster.b64 _, [%d1];\n",
    ];
    for arrival in arrivals {
        // What was stored before is there behind the wait.
        let store = "mad.lo.u32 %r2, %t, 4, %data;\nadd.u32 %r3, %rank, 10;\n\
            st.shared::cluster.u32 [%r2], %r3;\n";
        let body = format!("{}{store}{arrival}{WAIT}{OWN}{MEET}{DUMP}", barriers("96"));
        let bench = clustered(&body);
        run(&bench, 6, 3, 96);
        for (place, value) in dumped(&bench, 6 * 96).into_iter().enumerate() {
            assert_eq!(value as usize, (place / 96 + 2) % 3 + 10, "{arrival}");
        }
    }
    // Too few arrivals let nobody through: here one thread of each block arrives where 96 are due.
    let one = "@%p9 bra DONE;\nmbarrier.arrive.shared::cluster.b64 _, [%there];\nDONE:\n";
    let look =
        "mbarrier.test_wait.parity.shared::cta.b64 %p7, [%bar], 0;\nselp.u32 %r1, 1, 2, %p7;\n";
    let bench = clustered(&format!("{}{one}{MEET}{look}{MEET}{DUMP}", barriers("96")));
    run(&bench, 3, 3, 96);
    assert_eq!(dumped(&bench, 3 * 96), vec![2; 3 * 96]);
}

/// If this fails, bytes of asynchronous stores are missing when their barrier lets through.
#[test]
fn asynchronous_stores_bring_bytes_and_say_so() {
    let expect = |bytes: u32| {
        format!(
            "@%p9 bra EXPECTED;\n\
             mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {bytes};\nEXPECTED:\n"
        )
    };
    let value = "mad.lo.u32 %r3, %rank, 1000, %t;\n";
    let words = "mad.lo.u32 %r2, %t, 4, %data;\n\
        st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r2], %r3, [%there];\n";
    let weak = words.replace("st.async", "st.async.weak");
    // Two threads of four store for all: pairs and quadruples of words.
    let pairs = "mad.lo.u32 %r2, %t, 4, %data;\nand.b32 %r4, %t, 1;\nsetp.eq.u32 %p1, %r4, 0;\n\
        add.u32 %r5, %r3, 1;\n\
        @%p1 st.async.mbarrier::complete_tx::bytes.v2.b32 [%r2], {%r3, %r5}, [%there];\n";
    let fours = "mad.lo.u32 %r2, %t, 4, %data;\nand.b32 %r4, %t, 3;\nsetp.eq.u32 %p1, %r4, 0;\n\
        add.u32 %r5, %r3, 1;\nadd.u32 %r6, %r3, 2;\nadd.u32 %r7, %r3, 3;\n\
        @%p1 st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.s32 \
        [%r2], {%r3, %r5, %r6, %r7}, [%there];\n";
    let longs = "mad.lo.u32 %r2, %t, 4, %data;\nand.b32 %r4, %t, 1;\nsetp.eq.u32 %p1, %r4, 0;\n\
        add.u32 %r5, %r3, 1;\nmov.b64 %d1, {%r3, %r5};\n\
        @%p1 st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%r2], %d1, [%there];\n";
    for store in [words, &weak, pairs, fours, longs] {
        let start = barriers("1") + &expect(4 * 64);
        let bench = clustered(&format!("{start}{value}{store}{WAIT}{OWN}{MEET}{DUMP}"));
        run(&bench, 8, 4, 64);
        for (place, found) in dumped(&bench, 8 * 64).into_iter().enumerate() {
            assert_eq!(found as usize, (place / 64 + 3) % 4 * 1000 + place % 64, "{store}");
        }
    }
    // Sums: all blocks add to one word of each thread in the first block.
    let sums = [("add.u32", 6, 4), ("max.s32", 4, 4), ("or.b32", 7, 4), ("add.u64", 6, 8)];
    for (op, wanted, bytes) in sums {
        let (register, widen) = match bytes {
            8 => ("%d5", "cvt.u64.u32 %d5, %r3;\n"),
            _ => ("%r3", ""),
        };
        let start = barriers("1").replace("%next;", "0;") + &expect(3 * 32 * bytes);
        let sum = format!(
            "mov.u32 %r3, 1;\nshl.b32 %r3, %r3, %rank;\nsetp.eq.u32 %p2, %rank, 0;\n\
             setp.eq.u32 %p3, %rank, 3;\n@%p3 mov.u32 %r3, 1;\n{widen}\
             mad.lo.u32 %r2, %t, {bytes}, %data;\n\
             @!%p2 red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{op} \
             [%r2], {register}, [%there];\n@%p2 bra WAIT;\nbra PAST;\n"
        );
        let own =
            format!("PAST:\nmad.lo.u32 %r29, %t, {bytes}, %tile;\nld.shared.u32 %r1, [%r29];\n");
        let bench = clustered(&format!("{start}{sum}{WAIT}{own}{MEET}{DUMP}"));
        run(&bench, 4, 4, 32);
        let wanted = if op == "add.u32" || op == "add.u64" { 2 + 4 + 1 } else { wanted };
        assert_eq!(dumped(&bench, 32), vec![wanted; 32], "{op}");
    }
}

/// If this fails, a copy between blocks loses bytes, or its barrier lets through too early.
#[test]
fn bulk_copies_go_from_block_to_block() {
    let fill = "mad.lo.u32 %r2, %t, 4, %tile;\nmad.lo.u32 %r3, %rank, 1000, %t;\n\
        st.shared.u32 [%r2+1024], %r3;\nfence.proxy.async.shared::cta;\nbar.sync 0;\n\
        @%p9 bra SENT;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 256;\n\
        add.u32 %r4, %tile, 1024;\n\
        cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes \
        [%data], [%r4], 256, [%there];\nSENT:\n";
    let bench = clustered(&format!("{}{fill}{WAIT}{OWN}{MEET}{DUMP}", barriers("1")));
    run(&bench, 8, 4, 64);
    for (place, found) in dumped(&bench, 8 * 64).into_iter().enumerate() {
        assert_eq!(found as usize, (place / 64 + 3) % 4 * 1000 + place % 64);
    }
    // The barrier must be where the bytes go.
    let wrong = fill.replace("256, [%there]", "256, [%bar]");
    let bench = clustered(&format!("{}{wrong}{WAIT}{MEET}", barriers("1")));
    let fault = bench.run_clusters(([4, 1, 1], [4, 1, 1]), 64, &[BASE]).unwrap_err();
    assert_eq!(fault.kind, FaultKind::InvalidBulk);
    let own = fault.block[0];
    let detail = format!("in block {own} of the cluster, the bytes in {}", (own + 1) % 4);
    assert_eq!(fault.detail, detail);
}

/// If this fails, a tile that one block loads for several is missing in one of them.
#[test]
fn copies_go_to_several_blocks_at_once() {
    // The blocks of mask 0b1011 wait; the first one loads for them.
    let load = "mov.b16 %h1, 11;\nshr.u32 %r2, 11, %rank;\nand.b32 %r2, %r2, 1;\n\
        setp.eq.u32 %p1, %r2, 0;\n@%p1 bra OUT;\n@%p9 bra SENT;\n\
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 256;\nSENT:\n";
    let start = "barrier.cluster.arrive;\nbarrier.cluster.wait;\n\
        setp.ne.u32 %p2, %rank, 0;\nor.pred %p2, %p2, %p9;\n@%p2 bra WAIT;\n";
    let bulk = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes\
        .multicast::cluster [%tile], [%base], 256, [%bar], %h1;\n";
    let hinted = "mov.b64 %d1, 0;\ncp.async.bulk.shared::cluster.global\
        .mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint \
        [%tile], [%base], 256, [%bar], %h1, %d1;\n";
    let tensor = "add.s64 %d2, %base, 1024;\n\
        cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes\
        .multicast::cluster [%tile], [%d2, {0, 0}], [%bar], %h1;\n";
    let map = TensorMap {
        address: BASE,
        element: 7,
        rank: 2,
        interleave: 0,
        swizzle: Swizzle::None,
        fills_nan: false,
        extents: [16, 4, 0, 0, 0],
        strides: [64, 0, 0, 0],
        boxes: [16, 4, 0, 0, 0],
        steps: [1, 1, 0, 0, 0],
        corners: None,
    };
    let source: Vec<u32> = (0..64).map(|word| word * 3 + 5).collect();
    for copy in [bulk, hinted, tensor] {
        let split = load.replace("@%p1 bra OUT;\n", "");
        // Blocks outside of the mask expect nothing, and their tiles stay empty.
        let expect = split.replace("@%p9 bra SENT;", "@%p1 bra SENT;\n@%p9 bra SENT;");
        let body = format!(
            "{}{expect}{start}{copy}{}OUT:\n{OWN}{MEET}{DUMP}",
            barriers("1"),
            WAIT.replacen("WAIT:\n", "WAIT:\n@%p1 bra OUT;\n", 1),
        );
        let body = body.replacen("OUT:\n", &format!("OUT:\n{MEET}"), 1);
        let bench = clustered(&body);
        bench.put(0, &source);
        bench.put(1024, &map.to_bytes());
        run(&bench, 8, 4, 64);
        for (block, found) in dumped(&bench, 8 * 64).chunks(64).enumerate() {
            let wanted = if block % 4 == 2 { vec![0; 64] } else { source.clone() };
            assert_eq!(found, wanted, "block {block}: {copy}");
        }
    }
    // A block that the cluster does not have.
    let wild = bulk.replace("%h1;", "16;");
    let body = format!("{}{load}{start}{wild}{WAIT}OUT:\n{MEET}", barriers("1"));
    let bench = clustered(&body);
    let fault = bench.run_clusters(([4, 1, 1], [4, 1, 1]), 64, &[BASE]).unwrap_err();
    assert_eq!(fault.detail, "block 4 of a cluster of 4 blocks", "{fault}");
}

/// If this fails, a kernel that misuses another block's barrier ends without a word.
#[test]
fn misuse_is_named() {
    let generic = "cvt.u64.u32 %d1, %bar;\ncvta.shared.u64 %d1, %d1;\nmapa.u64 %d1, %d1, %next;\n";
    let cases = [
        (format!("{generic}mbarrier.init.b64 [%d1], 1;\n"), "the barrier is in block {next}"),
        (format!("{generic}mbarrier.inval.b64 [%d1];\n"), "the barrier is in block {next}"),
        (
            format!("{generic}mbarrier.test_wait.parity.b64 %p1, [%d1], 0;\n"),
            "the barrier is in block {next}",
        ),
        (format!("{generic}mbarrier.arrive.b64 %d2, [%d1];\n"), "the barrier is in block {next}"),
        (
            "st.async.mbarrier::complete_tx::bytes.u32 [%data], %t, [%bar];\n".to_owned(),
            "it is in block {own} of the cluster, the data in {next}",
        ),
        (
            "red.async.relaxed.cluster.mbarrier::complete_tx::bytes.add.u32 \
             [%tile], %t, [%there];\n"
                .to_owned(),
            "it is in block {next} of the cluster, the data in {own}",
        ),
        ("mbarrier.arrive.shared::cluster.b64 _, [%there], 9;\n".to_owned(), "9 arrivals, where"),
    ];
    for (body, detail) in cases {
        let bench = clustered(&format!("{}{body}{MEET}", barriers("1")));
        let fault = bench.run_clusters(([2, 1, 1], [2, 1, 1]), 1, &[BASE]).expect_err(&body);
        assert_eq!(fault.kind, FaultKind::InvalidBarrier, "{body}: {fault}");
        let (own, next) = (fault.block[0], 1 - fault.block[0]);
        let detail = detail.replace("{own}", &own.to_string());
        let detail = detail.replace("{next}", &next.to_string());
        assert!(fault.detail.starts_with(&detail), "{body}: {fault}");
    }
    for body in [
        "mbarrier.arrive.shared::cluster.b64 %d1, [%r1];",
        "mbarrier.init.shared::cluster.b64 [%r1], 1;",
        "mbarrier.try_wait.shared::cluster.b64 %p1, [%r1], %d1;",
        "st.async.shared::cta.mbarrier::complete_tx::bytes.u32 [%r1], %r2, [%r3];",
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.u16 [%r1], %h2, [%r3];",
        "st.async.release.gpu.global.u32 [%d1], %r2;",
        "red.async.relaxed.cluster.mbarrier::complete_tx::bytes.exch.b32 [%r1], %r2, [%r3];",
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.multicast::cluster \
         [%r1], [%d1], 16, [%r3], %h1;",
        "cp.async.bulk.tensor.2d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes \
         [%r1], [%d1, {0, 0}], [%r3];",
    ] {
        assert!(Module::load(&text(body)).is_err(), "{body}");
    }
}
