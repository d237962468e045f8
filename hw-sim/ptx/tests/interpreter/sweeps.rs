//! Loops over memory that are run in one go, against the same loops with an instruction in them
//! that keeps them from it. What is left in memory and in registers must be the same.

use crate::common::{Bench, SIZE, module_text};

/// Where what a loop leaves in its registers is stored.
const REGISTERS: usize = 1 << 19;

/// Runs a body of 256 threads over random memory, twice; gives memory after each.
fn both(prologue: &str, body: &str, after: &str) -> [Result<Vec<u8>, String>; 2] {
    ["", "mov.b32 %r31, 7;\n"].map(|blocker| {
        let text = format!(
            "{prologue}\nLOOP:\n{body}{blocker}setp.lt.u64 %p0, %d0, %d1;\n@%p0 bra LOOP;\n\
             mad.lo.u64 %d31, %o8, 4, %base;\nst.global.u64 [%d31+{REGISTERS}], %d0;\n\
             st.global.u64 [%d31+{}], %d2;\n{after}\n",
            REGISTERS + 8
        );
        let bench = Bench::new(&module_text(&text));
        let mut random = crate::arithmetic::random(0x243f_6a88_85a3_08d3);
        // No NaN of any width: their payloads are not specified.
        let random: Vec<u64> = std::iter::repeat_with(|| random.u64(..) & 0x3fff_ffff_3fff_ffff)
            .take(REGISTERS / 8)
            .collect();
        bench.put(0, &random);
        match bench.run("test", 1, 256, &[crate::common::BASE]) {
            Ok(()) => Ok(bench.get::<u8>(0, SIZE / 2)),
            Err(fault) => Err(format!("{:?} at {:x?}", fault.kind, fault.address)),
        }
    })
}

fn same(what: &str, prologue: &str, body: &str) {
    same_after(what, prologue, body, "");
}

/// As `same`, with what stands behind the loop.
fn same_after(what: &str, prologue: &str, body: &str, after: &str) {
    let [swept, plain] = both(prologue, body, after);
    let (swept, plain) = (swept.expect(what), plain.expect(what));
    let differs = swept.iter().zip(&plain).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{what}: first byte that differs");
}

/// `%d0` counts bytes from 16 times the thread's number, `%d1` is the end, `%d2` the address.
const BYTES: &str = "shl.b64 %d0, %o8, 1;\nmov.u64 %d1, @end;\nadd.s64 %d2, %base, %d0;\n";

fn bytes(end: u64) -> String {
    BYTES.replace("@end", &end.to_string())
}

const ON: &str = "add.s64 %d2, %d2, 4096;\nadd.s64 %d0, %d0, 4096;\n";

#[test]
fn copies_of_every_length_end_alike() {
    let body = format!(
        "ld.global.v4.u32 {{%r1,%r2,%r3,%r4}}, [%d2];\n\
         st.global.v4.u32 [%d2+131072], {{%r1,%r2,%r3,%r4}};\n{ON}"
    );
    for end in [1, 16, 4095, 4096, 4097, 8192, 65536, 100_000, 131_072] {
        same(&format!("{end} bytes"), &bytes(end), &body);
    }
}

/// If this fails, a loop that reads what an earlier iteration wrote reads something else.
#[test]
fn overlapping_copies_go_forward() {
    for shift in [4096, 8192, 512, 16] {
        let body = format!(
            "ld.global.v4.u32 {{%r1,%r2,%r3,%r4}}, [%d2];\n\
             st.global.v4.u32 [%d2+{shift}], {{%r1,%r2,%r3,%r4}};\n{ON}"
        );
        same(&format!("shift {shift}"), &bytes(65536), &body);
    }
}

#[test]
fn reductions_combine_what_belongs_together() {
    let pairs = [
        ("v4.f32", "add.f32", "%f", 4),
        ("v4.u32", "min.s32", "%r", 4),
        ("v2.u64", "add.s64", "%d1", 2),
        ("v2.f64", "mul.f64", "%g", 2),
        ("v2.u64", "max.u64", "%d1", 2),
    ];
    for (vector, op, prefix, count) in pairs {
        let name = |number: usize| format!("{prefix}{number}");
        let list = |from: usize| (from..from + count).map(name).collect::<Vec<_>>().join(",");
        let ops: String = (1..=count)
            .map(|n| format!("{op} {}, {}, {};\n", name(n), name(n), name(n + 4)))
            .collect();
        let body = format!(
            "ld.global.{vector} {{{}}}, [%d2];\nld.global.{vector} {{{}}}, [%d2+131072];\n{ops}\
             st.global.{vector} [%d2+262144], {{{}}};\n{ON}",
            list(1),
            list(5),
            list(1)
        );
        same(&format!("{op} elsewhere"), &bytes(65536), &body);
        same(&format!("{op} in place"), &bytes(65536), &body.replace("+262144", "+131072"));
    }
}

/// If this fails, a part of an iteration is done before another whose loads it changes, or whose
/// stores it should follow.
#[test]
fn parts_of_an_iteration_that_meet_keep_their_order() {
    // 2 KiB for each warp in an iteration, in four vectors of each lane.
    let tiles = "shr.u64 %d3, %o8, 8;\nmul.lo.u64 %d3, %d3, 1536;\nshl.b64 %d0, %o8, 1;\n\
                 add.s64 %d0, %d0, %d3;\nmov.u64 %d1, 65536;\nadd.s64 %d2, %base, %d0;\n\
                 mov.u64 %d4, %d2;\n";
    let vector = |first: usize| {
        let names: Vec<_> = (first..first + 4).map(|number| format!("%r{number}")).collect();
        names.join(",")
    };
    let loads: String = (0..4)
        .map(|row| format!("ld.global.v4.u32 {{{}}}, [%d2+{}];\n", vector(1 + 4 * row), 512 * row))
        .collect();
    let stores = |order: [usize; 4], apart: usize, from: usize| -> String {
        let store = |row: usize| {
            let place = from + apart * row;
            format!("st.global.v4.u32 [%d4+{place}], {{{}}};\n", vector(1 + 4 * row))
        };
        order.into_iter().map(store).collect()
    };
    let on = |step: usize| {
        format!("add.s64 %d2, %d2, 16384;\nadd.s64 %d4, %d4, {step};\nadd.s64 %d0, %d0, 16384;\n")
    };
    for (what, order, apart, from, step) in [
        ("elsewhere", [0, 1, 2, 3], 512, 131_072, 16384),
        ("in place", [0, 1, 2, 3], 512, 0, 16384),
        ("a row further", [0, 1, 2, 3], 512, 512, 16384),
        ("half a row further", [0, 1, 2, 3], 512, 256, 16384),
        ("an iteration further", [0, 1, 2, 3], 512, 16384, 16384),
        ("over one another", [0, 1, 2, 3], 0, 131_072, 16384),
        ("over one another, backwards", [3, 2, 1, 0], 0, 131_072, 16384),
        ("partly over one another", [2, 0, 3, 1], 256, 131_072, 16384),
        ("at a step of its own", [0, 1, 2, 3], 512, 512, 32768),
        ("that stays where it is", [0, 1, 2, 3], 512, 65536, 0),
    ] {
        same(what, tiles, &format!("{loads}{}{}", stores(order, apart, from), on(step)));
    }
}

/// Each warp has 8 KiB of its own, of which an iteration copies so many vectors of each lane.
fn rows(vectors: usize, to: usize) -> (String, String) {
    let names = |first: usize| {
        let names: Vec<_> = (first..first + 4).map(|number| format!("%r{number}")).collect();
        names.join(",")
    };
    let accesses: [String; 2] = [
        (0..vectors)
            .map(|n| format!("ld.global.v4.u32 {{{}}}, [%d2+{}];\n", names(1 + 4 * n), 512 * n))
            .collect(),
        (0..vectors)
            .map(|n| {
                format!("st.global.v4.u32 [%d2+{}], {{{}}};\n", to + 512 * n, names(1 + 4 * n))
            })
            .collect(),
    ];
    let step = 512 * vectors;
    let prologue = "shr.u64 %d3, %o8, 8;\nmul.lo.u64 %d4, %d3, 256;\nsub.s64 %d4, %o8, %d4;\n\
                    shl.b64 %d4, %d4, 1;\nmul.lo.u64 %d3, %d3, 8192;\nmov.u64 %d0, 0;\n\
                    mov.u64 %d1, 8192;\nadd.s64 %d2, %base, %d3;\nadd.s64 %d2, %d2, %d4;\n";
    let body = format!(
        "{}{}add.s64 %d2, %d2, {step};\nadd.s64 %d0, %d0, {step};\n",
        accesses[0], accesses[1]
    );
    (prologue.to_string(), body)
}

/// If this fails, a row that is copied at once is not the row that the iterations copy.
#[test]
fn rows_that_lie_in_one_piece_are_copied_alike() {
    for vectors in [1, 2, 4] {
        for to in [131_072, 65536, 8192, 4096, 2048, 1024, 512, 256, 16] {
            let (prologue, body) = rows(vectors, to);
            // Warps that copy over the rows of others take turns, in the same order either way.
            same(&format!("{vectors} vectors, {to} bytes further"), &prologue, &body);
        }
    }
}

/// If this fails, what a loop leaves in its registers is missing where somebody reads it.
#[test]
fn what_was_loaded_last_can_be_read_behind_the_loop() {
    let (prologue, body) = rows(2, 131_072);
    let after = format!(
        "add.u32 %r1, %r1, %r8;\nst.global.u32 [%d31+{}], %r1;\n\
         selp.b32 %r1, 3, 4, %p0;\nst.global.u32 [%d31+{}], %r1;\n",
        REGISTERS + 16,
        REGISTERS + 20
    );
    same_after("a sum of what was loaded last", &prologue, &body, &after);
    let predicate =
        format!("selp.b32 %r20, 3, 4, %p0;\nst.global.u32 [%d31+{}], %r20;\n", REGISTERS + 16);
    same_after("the predicate", &prologue, &body, &predicate);
}

/// If this fails, a loop whose lanes end at different times, or whose lanes are not side by side,
/// is run as if they did.
#[test]
fn lanes_may_differ() {
    let body = format!("ld.global.u32 %r1, [%d2];\nst.global.u32 [%d2+131072], %r1;\n{ON}");
    let ragged = "mul.lo.u64 %d0, %o4, 97;\nmov.u64 %d1, 90000;\nadd.s64 %d2, %base, %o4;\n";
    same("ragged ends", ragged, &body);
    let scattered = "mov.u64 %d0, 0;\nmov.u64 %d1, 90000;\nadd.s64 %d2, %base, %o8;\n";
    same("gaps", scattered, &body);
    let stepping = "mov.u64 %d0, 0;\nmov.u64 %d1, 90000;\nadd.s64 %d2, %base, %o4;\n\
                    add.s64 %d3, %o4, 4096;\n";
    let own_step = "ld.global.u32 %r1, [%d2];\nst.global.u32 [%d2+131072], %r1;\n\
                    add.s64 %d2, %d2, %d3;\nadd.s64 %d0, %d0, 4096;\n";
    same("steps of their own", stepping, own_step);
}

/// If this fails, what a loop carries from one iteration to the next is lost.
#[test]
fn what_an_iteration_leaves_reaches_the_next() {
    let carried = format!(
        "st.global.v4.u32 [%d2+131072], {{%r1,%r2,%r3,%r4}};\n\
         ld.global.v4.u32 {{%r1,%r2,%r3,%r4}}, [%d2];\n{ON}"
    );
    let start = format!(
        "{}mov.b32 %r1, 1;\nmov.b32 %r2, 2;\nmov.b32 %r3, 3;\nmov.b32 %r4, 4;\n",
        bytes(65536)
    );
    same("stored before loaded", &start, &carried);
    let summed = format!(
        "ld.global.u32 %r1, [%d2];\nadd.u32 %r2, %r2, %r1;\n\
                          st.global.u32 [%d2+131072], %r2;\n{ON}"
    );
    same("a running sum", &format!("{}mov.b32 %r2, 9;\n", bytes(65536)), &summed);
    let growing = "ld.global.v4.u32 {%r1,%r2,%r3,%r4}, [%d2];\n\
                   st.global.v4.u32 [%d2+131072], {%r1,%r2,%r3,%r4};\n\
                   add.s64 %d2, %d2, %d3;\nadd.s64 %d0, %d0, 4096;\nadd.s64 %d3, %d3, 0;\n";
    same("a step that is written", &format!("{}mov.u64 %d3, 4096;\n", bytes(65536)), growing);
}

#[test]
fn faults_are_the_same() {
    let body = format!(
        "ld.global.v4.u32 {{%r1,%r2,%r3,%r4}}, [%d2];\n\
         st.global.v4.u32 [%d2+1048576], {{%r1,%r2,%r3,%r4}};\n{ON}"
    );
    // The stores run out of memory half way.
    let [swept, plain] = both(&bytes(4 << 20), &body, "");
    assert_eq!(swept.expect_err("runs out"), plain.expect_err("runs out"));
    let crooked = format!("{}add.s64 %d2, %d2, 4;\n", bytes(65536));
    let [swept, plain] = both(&crooked, &body, "");
    assert_eq!(swept.expect_err("misaligned"), plain.expect_err("misaligned"));
}
