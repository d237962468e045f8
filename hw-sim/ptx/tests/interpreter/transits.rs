//! Loads, sums and stores that are carried out on rows of bytes, against the same kernels with an
//! instruction in them that keeps them from it. What is left in memory must be the same.

use std::sync::Arc;

use hwsim_ptx::Block;

use crate::common::{BASE, Bench, module_text};

/// Where what a kernel leaves in its registers is stored.
const REGISTERS: usize = 1 << 19;
/// Bytes that are compared.
const BYTES: usize = 3 << 18;
/// Blocks, which begin one after the other in the same place.
const BLOCKS: u32 = 3;
const THREADS: u32 = 96;

/// Runs a body over random memory, twice: `#` stands for what keeps runs apart. Its thread's number
/// in the grid is `%r30`, that times 16 and the base is `%d0`.
fn both(body: &str) -> [Result<Vec<u8>, String>; 2] {
    ["", "bar.warp.sync -1;\n"].map(|blocker| {
        let text = format!(
            "mov.u32 %r29, %ctaid.x;\nmad.lo.u32 %r30, %r29, {THREADS}, %t;\n\
             mul.wide.u32 %d31, %r30, 16;\nadd.s64 %d0, %base, %d31;\n{}",
            body.replace('#', blocker)
        );
        let bench = Bench::new(&module_text(&text));
        let mut random = crate::arithmetic::random(0x1319_8a2e_0370_7344);
        // No NaN of any width: their payloads are not specified.
        let random: Vec<u64> = std::iter::repeat_with(|| random.u64(..) & 0x3fff_ffff_3fff_ffff)
            .take(BYTES / 8)
            .collect();
        bench.put(0, &random);
        let launch = bench.launch("test", BLOCKS, THREADS, &[BASE]);
        let mut block = Block::new(Arc::clone(&launch), [0; 3], 0);
        for index in 0..BLOCKS {
            if index > 0 {
                block.restart([index, 0, 0]);
            }
            if let Err(fault) = bench.finish(&mut block) {
                let place = (fault.line, fault.thread, fault.block);
                return Err(format!("{:?} at {:x?}, {place:?}", fault.kind, fault.address));
            }
        }
        Ok(bench.get::<u8>(0, BYTES))
    })
}

fn same(what: &str, body: &str) {
    let [whole, apart] = both(body);
    let (whole, apart) = (whole.expect(what), apart.expect(what));
    let differs = whole.iter().zip(&apart).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{what}: first byte that differs\n{body}");
}

/// If this fails, elementwise kernels whose last block is not full copy too much, or too little.
#[test]
fn guards_hold_for_each_lane() {
    for end in [0, 1, 31, 32, 33, 95, 96, 100, 200, 287, 288, 1000] {
        let body = format!(
            "setp.lt.u32 %p1, %r30, {end};\nmov.u64 %d11, 7;\nmov.u64 %d12, 8;\n\
             @%p1 ld.global.v2.u64 {{%d11, %d12}}, [%d0];\nadd.s64 %d1, %d0, 65536;\n\
             mov.u64 %d13, 9;\nmov.u64 %d14, 10;\n\
             @%p1 ld.global.v2.u64 {{%d13, %d14}}, [%d0+8192];\n#\
             @%p1 st.global.v2.u64 [%d1], {{%d11, %d12}};\n\
             add.s64 %d2, %d1, 8192;\nst.global.v2.u64 [%d2], {{%d13, %d14}};\n"
        );
        same(&format!("up to {end}"), &body);
    }
}

/// If this fails, lanes that do not load have something else than what was computed last for them.
#[test]
fn what_was_computed_last_stays() {
    for [first, second] in [
        ["mov.u64 %d11, 7;", "add.s64 %d11, %o8, 5;"],
        ["add.s64 %d11, %o8, 5;", "mov.u64 %d11, 7;"],
        ["mov.u64 %d11, 7;", "mov.u64 %d11, 8;"],
    ] {
        let body = format!(
            "setp.lt.u32 %p1, %r30, 40;\n{first}\nmov.u64 %d12, 9;\n{second}\n\
             @%p1 ld.global.v2.u64 {{%d11, %d12}}, [%d0];\n#\
             st.global.v2.u64 [%d0+65536], {{%d11, %d12}};\n"
        );
        same(&format!("{first} {second}"), &body);
    }
}

/// Kernels at random: what is loaded, how it is combined, what stands among that, and a slip here
/// and there that forbids to carry them out at once.
#[test]
fn random_kernels_leave_the_same() {
    let seed = 0x243f_6a88_85a3_08d3;
    println!("seed {seed}");
    let mut random = crate::arithmetic::random(seed);
    for number in 0..400 {
        let (kind, op, prefix, most) = [
            ("u32", "add.s32", "%r", 4),
            ("f32", "add.f32", "%f", 4),
            ("f32", "mul.f32", "%f", 4),
            ("u32", "sub.s32", "%r", 4),
            ("u64", "add.s64", "%d", 2),
            ("f64", "min.f64", "%g", 2),
        ][random.usize(..6)];
        let words = if most == 4 { [1, 2, 4][random.usize(..3)] } else { random.usize(1..3) };
        // `%d0` to `%d2` are addresses.
        let name = |value: usize, word: usize| format!("{prefix}{}", value * words + word + 3);
        let list = |load: usize| {
            let names: Vec<_> = (0..words).map(|word| name(load, word)).collect();
            format!("{{{}}}", names.join(", "))
        };
        let vector = if words == 1 { String::new() } else { format!(".v{words}") };
        let loads = random.usize(1..5);
        let width = words * if kind.ends_with("64") { 8 } else { 4 };
        // Lanes lie side by side, or with gaps.
        let step = if random.usize(..6) == 0 { 16 } else { width };
        let mut body = format!(
            "mul.wide.u32 %d29, %r30, {step};\nadd.s64 %d0, %base, %d29;\n\
             setp.lt.u32 %p1, %r30, {};\n",
            [0, 40, 64, 200, 288][random.usize(..5)]
        );
        let guard = |pick: usize| if pick == 0 { "@%p1 " } else { "" };
        for load in 0..loads {
            let guard = guard(random.usize(..3));
            // What lanes have that do not load must be said.
            if !guard.is_empty() || random.bool() {
                for word in 0..words {
                    let zero = if kind.starts_with('f') { "0f3f800000" } else { "5" };
                    let zero = if kind == "f64" { "0d3ff0000000000000" } else { zero };
                    let ty = if kind.starts_with('f') { kind } else { &kind.replace('u', "b") };
                    body += &format!("mov.{ty} {}, {zero};\n", name(load, word));
                }
            }
            let base = if random.bool() {
                body += &format!("add.s64 %d2{load}, %d0, {};\n", load * 16384);
                format!("%d2{load}")
            } else {
                format!("%d0+{}", load * 16384)
            };
            body += &format!("{guard}ld.global{vector}.{kind} {}, [{base}];\n", list(load));
        }
        body += "#";
        let (mut left, mut values): (Vec<usize>, _) = ((0..loads).collect(), loads);
        while left.len() > 1 && random.usize(..4) > 0 {
            let b = left.swap_remove(random.usize(..left.len()));
            let a = left.swap_remove(random.usize(..left.len()));
            let slip = random.usize(..12) == 0;
            for word in 0..words {
                let other = if slip { (word + 1) % words } else { word };
                let [mut x, mut y] = [name(a, word), name(b, other)];
                if random.usize(..8) == 0 {
                    std::mem::swap(&mut x, &mut y);
                }
                body += &format!("{op} {}, {x}, {y};\n", name(values, word));
            }
            left.push(values);
            values += 1;
        }
        for load in left {
            let place = [0, 16384, 131072, 262144][random.usize(..4)] + load * 16384;
            let guard = guard(random.usize(..4));
            let list = if random.usize(..30) == 0 && words > 1 {
                list(load).replacen(&name(load, 0), &name(load, 1), 1)
            } else {
                list(load)
            };
            body += &format!("{guard}st.global{vector}.{kind} [%d0+{place}], {list};\n");
        }
        if random.usize(..10) == 0 {
            let ty = kind.replace(['u', 'f'], "b");
            body += &format!("st.global.{ty} [%a8+{REGISTERS}], {};\n", name(0, 0));
        }
        same(&format!("kernel {number}"), &body);
    }
}

/// If this fails, a fault is blamed on another instruction or thread, or is not found at all.
#[test]
fn faults_are_those_of_the_single_instructions() {
    for (what, address) in [
        ("misaligned", "add.s64 %d1, %d0, 2;"),
        ("outside", "add.s64 %d1, %d0, 0x7fff00000000;"),
        ("the last lanes outside", "mad.lo.u64 %d1, %o8, 65536, %base;"),
    ] {
        let body = format!(
            "{address}\nld.global.u32 %r1, [%d0];\nld.global.u32 %r2, [%d1];\n\
             add.s32 %r3, %r1, %r2;\n#st.global.u32 [%d0+4096], %r3;\n"
        );
        let [whole, apart] = both(&body);
        let (whole, apart) = (whole.expect_err(what), apart.expect_err(what));
        let line = |text: &str| text.split(", (").next().map(str::to_owned);
        assert_eq!(line(&whole), line(&apart), "{what}");
        assert_eq!(whole, apart, "{what}");
    }
}

/// If this fails, experts' results in bf16 are added wrongly: halves that trade places, a product
/// that is not rounded, a NaN of another kind, or lanes that did not take part.
#[test]
fn sums_of_bf16_are_the_same_in_one_go() {
    let mut body = format!(
        ".reg .b32 %w<48>;\n.reg .f32 %v<48>;\nadd.s64 %d1, %d0, {REGISTERS};\n\
         ld.global.v4.u32 {{%r1, %r2, %r3, %r4}}, [%d0];\nld.global.f32 %f9, [%d0+4096];\n"
    );
    for sum in 1..=8 {
        body += &format!("ld.global.f32 %f{sum}, [%d0+{}];\n", 8192 + 4 * sum);
    }
    // The last of these sums are NaN.
    let factors = ["", "%f9", "0f7f800000", "0fff800000"];
    for (round, factor) in factors.into_iter().enumerate() {
        for half in 0..8 {
            let (value, word, sum) = (8 * round + half, half / 2 + 1, half + 1);
            body += &match half % 2 {
                0 => format!("shl.b32 %w{value}, %r{word}, 16;\n#"),
                _ => format!("and.b32 %w{value}, %r{word}, 0xffff0000;\n#"),
            };
            // Half of the sums have no factor in any round.
            body += &match factor {
                "" => format!("add.rn.f32 %f{sum}, %f{sum}, %w{value};\n"),
                _ if half >= 4 => format!("add.f32 %f{sum}, %w{value}, %f{sum};\n"),
                _ => format!(
                    "mul.rn.f32 %v{value}, %w{value}, {factor};\n\
                     add.rn.f32 %f{sum}, %v{value}, %f{sum};\n"
                ),
            };
        }
    }
    body += "st.global.v4.f32 [%d1], {%f1, %f2, %f3, %f4};\n\
             st.global.v4.f32 [%d1+65536], {%f5, %f6, %f7, %f8};\n";
    same("all lanes", &body);
    same("a warp that is not full", &format!("setp.ge.u32 %p1, %r30, 100;\n@%p1 ret;\n{body}"));
    let guarded = format!("setp.ge.u32 %p1, %r30, 100;\n@%p1 bra END;\n{body}END:\n");
    same("lanes that wait elsewhere", &guarded);
}
