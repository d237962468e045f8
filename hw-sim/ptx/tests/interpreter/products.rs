//! What products of matrices are made of: words of shared memory that many lanes load alike, and
//! fused multiply-adds in a row.

use std::sync::Arc;

use hwsim_ptx::{Block, FaultKind, Progress};

use crate::common::{BASE, Bench};

/// Where results lie.
const OUT: usize = 0x10000;

/// Loads `words` words for each lane, from the places in shared memory that stand at the base.
fn load(words: usize) -> String {
    let suffix = match words {
        1 => String::new(),
        many => format!(".v{many}"),
    };
    let registers: Vec<_> = (10..10 + words).map(|number| format!("%r{number}")).collect();
    let list = registers.join(", ");
    let list = if words == 1 { list } else { format!("{{{list}}}") };
    let bytes = words * 4;
    format!(
        ".shared .align 16 .b8 tile[4096];\nmov.u32 %r1, tile;\nmov.u32 %r2, %t;\n\
         FILL:\nmad.lo.u32 %r3, %r2, 4, %r1;\nmul.lo.u32 %r4, %r2, 0x9e3779b1;\n\
         st.shared.u32 [%r3], %r4;\nadd.u32 %r2, %r2, 32;\nsetp.lt.u32 %p1, %r2, 1024;\n\
         @%p1 bra FILL;\nbar.sync 0;\n\
         ld.global.u32 %r5, [%a4];\nmad.lo.u32 %r6, %r5, {bytes}, %r1;\n\
         mad.wide.u32 %d1, %t, {bytes}, %base;\n\
         ld.shared{suffix}.b32 {list}, [%r6];\nst.global{suffix}.b32 [%d1+{OUT}], {list};\n"
    )
}

/// If this fails, lanes get what another lane loads.
#[test]
fn lanes_that_load_alike_get_what_is_there() {
    let mut random = fastrand::Rng::with_seed(20_261_129);
    for words in [1, 2, 4] {
        let places = 1024 / words as u32;
        let (a, b) = (random.u32(..places), random.u32(..places));
        let shuffled: [u32; 8] = std::array::from_fn(|_| random.u32(..places));
        let mut patterns: Vec<[u32; 32]> = vec![
            [a; 32],
            std::array::from_fn(|lane| if lane < 16 { a } else { b }),
            std::array::from_fn(|lane| lane as u32 / 8),
            std::array::from_fn(|lane| lane as u32 % 16),
            std::array::from_fn(|lane| lane as u32 % 8),
            std::array::from_fn(|lane| shuffled[lane % 8]),
            std::array::from_fn(|lane| shuffled[lane % 24 % 8]),
            std::array::from_fn(|lane| places - 1 - lane as u32),
        ];
        // Those whose groups differ in one lane, too.
        for lane in 0..32 {
            for number in 0..4 {
                let mut odd = patterns[number];
                odd[lane] = random.u32(..places);
                patterns.push(odd);
            }
        }
        patterns.extend((0..50).map(|_| std::array::from_fn(|_| random.u32(..places))));
        let bench = Bench::of_body(&load(words));
        for pattern in patterns {
            bench.put(0, &pattern);
            bench.run("test", 1, 32, &[BASE]).unwrap();
            let found: Vec<u32> = bench.get(OUT, 32 * words);
            for lane in 0..32 {
                let first = pattern[lane] * words as u32;
                let expected = (first..first + words as u32).map(|at| at.wrapping_mul(0x9e37_79b1));
                let found = &found[lane * words..][..words];
                assert!(expected.eq(found.iter().copied()), "{words}: lane {lane} of {pattern:?}");
            }
        }
    }
}

/// If this fails, a load outside of shared memory goes unnoticed where many lanes make it.
#[test]
fn loads_outside_are_found_in_any_group() {
    for words in [1, 2, 4] {
        let bench = Bench::of_body(&load(words));
        // Behind the block's variables and its dynamic memory.
        let outside = (64 << 10) / (4 * words as u32);
        for lanes in [0..32, 0..8, 24..32, 13..14] {
            let pattern: [u32; 32] =
                std::array::from_fn(|lane| if lanes.contains(&lane) { outside } else { 3 });
            bench.put(0, &pattern);
            let fault = bench.run("test", 1, 32, &[BASE]).unwrap_err();
            assert_eq!(fault.kind, FaultKind::SharedOutOfBounds, "{words}: {lanes:?}");
        }
    }
}

/// Products of four values a lane: one chain of 80 products, whose sums within nobody sees, and
/// three sums that take turns; then all of it once more, for lanes whose first value is positive.
fn chains() -> String {
    let chain: String = (0..80)
        .map(|step| {
            // A register of its own for each step, as compilers write it.
            let [from, to] = [step, step + 1].map(|number| match number {
                0 => "%f1".to_owned(),
                80 => "%f5".to_owned(),
                number => format!("%c{number}"),
            });
            format!("fma.rn.f32 {to}, %f2, %f{}, {from};\n", 3 + step % 2)
        })
        .collect();
    let turns: String = (0..30)
        .map(|step| format!("fma.rn.f32 %f{0}, %f{1}, %f4, %f{0};\n", 6 + step % 3, 2 + step % 2))
        .collect();
    format!(
        ".reg .f32 %c<81>;\nmad.wide.u32 %d1, %t, 16, %base;\n\
         ld.global.v4.f32 {{%f1, %f2, %f3, %f4}}, [%d1];\n\
         mov.f32 %f6, %f1;\nmov.f32 %f7, %f2;\nmov.f32 %f8, 0f3F800000;\n{chain}{turns}\
         setp.gt.f32 %p1, %f1, 0f00000000;\n@!%p1 bra END;\n{chain}{turns}END:\n\
         st.global.v4.f32 [%d1+{OUT}], {{%f5, %f6, %f7, %f8}};\n"
    )
}

fn canonical(value: f32) -> u32 {
    if value.is_nan() { 0x7fff_ffff } else { value.to_bits() }
}

/// What one lane has in the end.
fn sums([first, a, b, c]: [f32; 4]) -> [u32; 4] {
    let mut turns = [first, a, 1.0];
    let mut chain = first;
    for _ in 0..if first > 0.0 { 2 } else { 1 } {
        chain = (0..80).fold(first, |sum, step| a.mul_add([b, c][step % 2], sum));
        for step in 0..30 {
            turns[step % 3] = [a, b][step % 2].mul_add(c, turns[step % 3]);
        }
    }
    [canonical(chain), canonical(turns[0]), canonical(turns[1]), canonical(turns[2])]
}

/// If this fails, products have other bits where they are made in one go: for whole warps, those of
/// which lanes have ended or gone another way, and turns that end within.
#[test]
fn chains_of_products_have_the_bits_of_single_ones() {
    let mut random = fastrand::Rng::with_seed(20_261_129);
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, f32::MAX, 1e-45, -2.0];
    let bench = Bench::of_body(&chains());
    for (threads, turn) in [(32, 100_000), (20, 100_000), (64, 100_000), (32, 7), (45, 50)] {
        let value = |random: &mut fastrand::Rng| match random.u8(..4) {
            0 => special[random.usize(..special.len())],
            _ => random.f32() * 4.0 - 2.0,
        };
        let values: Vec<[f32; 4]> =
            (0..threads).map(|_| std::array::from_fn(|_| value(&mut random))).collect();
        bench.put(0, &values);
        let launch = bench.launch("test", 1, threads, &[BASE]);
        let mut block = Block::new(Arc::clone(&launch), [0, 0, 0], 0);
        let mut turns = 0;
        while block.run(&bench.memory, &bench.clock, turn).unwrap() != Progress::Finished {
            turns += 1;
            assert!(turns < 10_000, "the block does not end");
        }
        let found: Vec<[u32; 4]> = bench.get(OUT, threads as usize);
        for (lane, (found, values)) in found.iter().zip(&values).enumerate() {
            assert_eq!(*found, sums(*values), "{threads} threads, lane {lane}: {values:?}");
        }
    }
}
