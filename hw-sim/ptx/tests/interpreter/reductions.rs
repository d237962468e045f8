//! `cp.reduce.async.bulk`: what lies in shared memory is added to what is elsewhere.

use half::{bf16, f16};
use hwsim_ptx::tensor_map::{Swizzle, TensorMap};
use hwsim_ptx::{FaultKind, Module};

use crate::clusters::{DUMP, MEET, clustered, dumped, run};
use crate::common::{BASE, Bench, module_text};
use crate::hopper::copying;
use crate::remote::{OWN, WAIT, barriers};

/// Bytes that each test reduces.
const BYTES: usize = 256;
/// Where the result is.
const TO: usize = 0x10000;

/// Runs a reduction of the bytes at 0, once they are in shared memory, with those at [`TO`]; the
/// second time with what the first one has left.
fn reduce(reduction: &str, from: &[u8], to: &[u8]) -> Vec<u8> {
    let one = format!(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {BYTES};\n\
         cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes \
         [%tile], [%base], {BYTES}, [%bar];"
    );
    let once = format!(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group{reduction} \
         [%base+{TO}], [%tile], {BYTES};\ncp.async.bulk.commit_group;\n"
    );
    let all = format!("@%one bra SKIP;\n{once}{once}cp.async.bulk.wait_group 0;\nSKIP:");
    let bench = copying(&one, &all);
    bench.put(0, from);
    bench.put(TO, to);
    bench.run("test", 1, 32, &[BASE, 0]).unwrap_or_else(|fault| panic!("{reduction}: {fault}"));
    bench.get(TO, BYTES)
}

/// Checks a reduction on words of `N` bytes.
fn check<const N: usize>(reduction: &str, f: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    let from: Vec<u8> = (0..BYTES).map(|at| (at * 37 + at / 7) as u8 & 0xbf).collect();
    let to: Vec<u8> = (0..BYTES).map(|at| (at * 101 + 3 + at / 5) as u8 & 0xbf).collect();
    let words = |bytes: &[u8]| bytes.as_chunks::<N>().0.to_vec();
    let twice = |(own, other): ([u8; N], [u8; N])| f(f(own, other), other);
    let wanted: Vec<[u8; N]> = words(&to).into_iter().zip(words(&from)).map(twice).collect();
    let found = reduce(reduction, &from, &to);
    assert_eq!(words(&found), wanted, "{reduction}");
}

macro_rules! on {
    ($ty:ty, $f:expr) => {
        |own, other| {
            let f: fn($ty, $ty) -> $ty = $f;
            f(<$ty>::from_le_bytes(own), <$ty>::from_le_bytes(other)).to_le_bytes()
        }
    };
}

/// If this fails, kernels that add up tiles in global memory leave wrong sums there.
#[test]
fn words_of_global_memory_are_reduced() {
    check(".add.u32", on!(u32, |a, b| a.wrapping_add(b)));
    check(".add.s32", on!(i32, |a, b| a.wrapping_add(b)));
    check(".add.u64", on!(u64, |a, b| a.wrapping_add(b)));
    check(".add.f32", on!(f32, |a, b| a + b));
    check(".add.f64", on!(f64, |a, b| a + b));
    check(".add.noftz.f16", on!(f16, |a, b| a + b));
    check(".add.noftz.bf16", on!(bf16, |a, b| a + b));
    check(".min.u32", on!(u32, |a, b| a.min(b)));
    check(".max.s32", on!(i32, |a, b| a.max(b)));
    check(".min.s64", on!(i64, |a, b| a.min(b)));
    check(".max.u64", on!(u64, |a, b| a.max(b)));
    check(".max.f16", on!(f16, |a, b| a.max(b)));
    check(".min.bf16", on!(bf16, |a, b| a.min(b)));
    check(".inc.u32", on!(u32, |a, b| if a >= b { 0 } else { a + 1 }));
    check(".dec.u32", on!(u32, |a, b| if a == 0 || a > b { b } else { a - 1 }));
    check(".and.b32", on!(u32, |a, b| a & b));
    check(".or.b64", on!(u64, |a, b| a | b));
    check(".xor.b32", on!(u32, |a, b| a ^ b));
    check(".xor.b64", on!(u64, |a, b| a ^ b));
}

/// If this fails, sums that blocks of a cluster collect from each other are wrong, or come late.
#[test]
fn words_of_another_block_are_reduced() {
    for (reduction, wanted) in [
        ("add.u32", [5 + 40, 5 + 1000]),
        ("add.s32", [5 + 40, 5 + 1000]),
        ("max.u32", [40, 1000]),
        ("min.s32", [5, 5]),
        ("inc.u32", [6, 6]),
        ("or.b32", [5 | 40, 5 | 1000]),
    ] {
        // Thread t of each block brings 40, or 1000 in the second half, to a word that holds 5.
        let fill = "mad.lo.u32 %r2, %t, 4, %tile;\nsetp.lt.u32 %p1, %t, 32;\n\
            selp.u32 %r3, 40, 1000, %p1;\nst.shared.u32 [%r2+1024], %r3;\n\
            mov.u32 %r4, 5;\nst.shared.u32 [%r2], %r4;\n";
        let send = format!(
            "@%p9 bra SENT;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {BYTES};\n\
             add.u32 %r4, %tile, 1024;\n\
             cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes\
             .{reduction} [%data], [%r4], {BYTES}, [%there];\nSENT:\n"
        );
        let body = format!("{}{fill}{MEET}{send}{WAIT}{OWN}{MEET}{DUMP}", barriers("1"));
        let bench = clustered(&body);
        run(&bench, 8, 4, 64);
        for (place, found) in dumped(&bench, 8 * 64).into_iter().enumerate() {
            assert_eq!(found, wanted[place % 64 / 32], "{reduction}: {place}");
        }
    }
}

fn tensor(element: u8) -> TensorMap {
    TensorMap {
        address: BASE + TO as u64,
        element,
        rank: 2,
        swizzle: Swizzle::None,
        extents: [12, 3, 0, 0, 0],
        strides: [64, 0, 0, 0],
        boxes: [8, 4, 0, 0, 0],
        steps: [1; 5],
        ..TensorMap::default()
    }
}

/// Fills a tile with its words' numbers, and reduces it at (4, 1) by the map at 0.
fn tiled(op: &str) -> Bench {
    let all = format!(
        "mul.lo.u32 %r1, %t, 4;\nadd.u32 %r1, %r1, %tile;\nst.shared.u32 [%r1], %t;\nbar.sync 0;\n\
         @%one bra SKIP;\n\
         cp.reduce.async.bulk.tensor.2d.global.shared::cta.{op}.tile.bulk_group\
         .L2::cache_hint [%map, {{4, 1}}], [%tile], %base;\n\
         cp.async.bulk.commit_group;\nSKIP:"
    );
    copying("mbarrier.arrive.shared::cta.b64 _, [%bar];", &all)
}

/// If this fails, tiles are added up in the wrong place, or beyond the end of the tensor.
#[test]
fn tiles_of_tensors_are_reduced() {
    let before: Vec<u32> = (0..64).map(|word| 1000 + word).collect();
    for (op, element) in [("add", 2_u8), ("max", 3), ("or", 3), ("min", 2)] {
        let bench = tiled(op);
        bench.put(0, &tensor(element).to_bytes());
        bench.put(TO, &before);
        bench.run("test", 1, 32, &[BASE, BASE]).unwrap_or_else(|fault| panic!("{op}: {fault}"));
        for (place, (found, before)) in bench.get::<u32>(TO, 64).iter().zip(&before).enumerate() {
            let (x, y) = (place % 16, place / 16);
            // The box reaches from (4, 1) to (11, 4), the tensor to (11, 2).
            let inside = (4..12).contains(&x) && (1..3).contains(&y);
            let own = ((y.wrapping_sub(1)) * 8).wrapping_add(x.wrapping_sub(4)) as u32;
            let wanted = match op {
                _ if !inside => *before,
                "add" => before + own,
                "or" => before | own,
                "max" => *before,
                _ => own,
            };
            assert_eq!(*found, wanted, "{op} at {x}, {y}");
        }
    }
    // What there is none of on elements of such a type.
    for (op, element) in [("inc", 3), ("and", 6), ("add", 5), ("min", 7), ("add", 0), ("add", 11)] {
        let bench = tiled(op);
        let map = tensor(element);
        let boxes = [16, 4, 0, 0, 0];
        bench.put(0, &TensorMap { boxes, ..map }.to_bytes());
        let fault = bench.run("test", 1, 32, &[BASE, BASE]).unwrap_err();
        assert_eq!(fault.kind, FaultKind::InvalidBulk, "{op} of {element}: {fault}");
        assert!(fault.detail.contains("of elements of type"), "{fault}");
    }
}

/// If this fails, a reduction that no GPU has runs here.
#[test]
fn other_reductions_are_refused() {
    let global = "cp.reduce.async.bulk.global.shared::cta.bulk_group.OP [%d1], [%r1], 16;";
    let cluster = "cp.reduce.async.bulk.shared::cluster.shared::cta\
        .mbarrier::complete_tx::bytes.OP [%r1], [%r2], 16, [%r3];";
    let load = |text: &str| Module::load(&module_text(text));
    for op in ["add.u32", "or.b64", "min.f16", "add.noftz.bf16"] {
        load(&global.replace("OP", op)).unwrap_or_else(|error| panic!("{op}: {error}"));
    }
    for op in [
        "add.f16",
        "add.noftz.f32",
        "add.s64",
        "add.b32",
        "inc.s32",
        "xor.u32",
        "min.f32",
        "exch.b32",
        "cas.b32",
        "add",
        "add.u16",
        "add.f16x2",
    ] {
        assert!(load(&global.replace("OP", op)).is_err(), "{op}");
    }
    load(&cluster.replace("OP", "add.u64")).unwrap();
    for op in ["add.f32", "or.b64", "min.u64", "add.noftz.f16"] {
        assert!(load(&cluster.replace("OP", op)).is_err(), "{op}");
    }
    let text = module_text(&global.replace("OP", "add.u32"));
    assert!(Module::load(&text.replace("sm_90", "sm_80")).is_err());
    for text in [
        cluster.replace("OP", "add.u32").replace(", [%r3]", ""),
        global.replace("OP", "add.u32").replace(".bulk_group", ""),
        global.replace("OP", "add.u32").replace("global.shared::cta", "shared::cta.global"),
        "cp.reduce.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group \
         [%d1, {0}], [%r1];"
            .to_owned(),
        "cp.reduce.async.bulk.tensor.1d.shared::cluster.global.add.mbarrier::complete_tx::bytes \
         [%r1], [%d1, {0}], [%r2];"
            .to_owned(),
    ] {
        assert!(load(&text).is_err(), "{text}");
    }
}
