//! `mma` against plain products of matrices. The tables of fragments are written here once more,
//! from the figures of the PTX ISA.

use crate::common::{BASE, Bench};
use crate::number::{Kind, Rng, Value, product, seed};

const LANES: usize = 32;
/// Where each operand lies in memory, and the result.
const PLACES: [usize; 4] = [0x1000, 0x4000, 0x8000, 0xc000];

/// A form of `mma`: extents, kinds of A, B and of C and D.
#[derive(Clone, Copy, Debug)]
struct Form {
    shape: (usize, usize, usize),
    a: Kind,
    b: Kind,
    c: Kind,
    d: Kind,
    layouts: (&'static str, &'static str),
}

const fn form(shape: (usize, usize, usize), a: Kind, b: Kind, c: Kind) -> Form {
    Form { shape, a, b, c, d: c, layouts: ("row", "col") }
}

/// Row and column (in A and C), or k and column (in B), of element `i` of a lane, and which matrix.
type Spot = (usize, usize, usize);

fn spot_a(form: Form, lane: usize, i: usize) -> Spot {
    let (g, t) = (lane / 4, lane % 4);
    match (form.shape, form.a) {
        ((8, 8, 4), Kind::F16) => {
            let high = if lane < 16 { 0 } else { 4 };
            let quad = (lane % 16) / 4;
            if form.layouts.0 == "row" { (t + high, i, quad) } else { (i + high, t, quad) }
        }
        ((8, 8, 4), _) => (g, t, 0),
        ((8, 8, 16), _) => (g, 4 * t + i, 0),
        ((16, 8, 8), Kind::F16 | Kind::BF16) => (if i < 2 { g } else { g + 8 }, 2 * t + i % 2, 0),
        ((16, 8, 16), Kind::F16 | Kind::BF16) => {
            let row = if matches!(i, 0 | 1 | 4 | 5) { g } else { g + 8 };
            (row, 2 * t + i % 2 + if i < 4 { 0 } else { 8 }, 0)
        }
        ((16, 8, 16), Kind::S8 | Kind::U8) => (if i < 4 { g } else { g + 8 }, 4 * t + i % 4, 0),
        ((16, 8, 32), _) => {
            let row = if matches!(i, 0..4 | 8..12) { g } else { g + 8 };
            (row, 4 * t + i % 4 + if i < 8 { 0 } else { 16 }, 0)
        }
        ((16, 8, 4), _) => (if i == 0 { g } else { g + 8 }, t, 0),
        ((16, 8, 8), _) => {
            (if matches!(i, 0 | 2) { g } else { g + 8 }, if i < 2 { t } else { t + 4 }, 0)
        }
        ((16, 8, 16), _) => {
            let odd = i % 2;
            (if odd == 0 { g } else { g + 8 }, if odd == 0 { 2 * i } else { 2 * i - 2 } + t, 0)
        }
        other => panic!("no table for {other:?}"),
    }
}

fn spot_b(form: Form, lane: usize, i: usize) -> Spot {
    let (g, t) = (lane / 4, lane % 4);
    match (form.shape, form.b) {
        ((8, 8, 4), Kind::F16) => {
            let high = if lane < 16 { 0 } else { 4 };
            let quad = (lane % 16) / 4;
            if form.layouts.1 == "row" { (t, i + high, quad) } else { (i, t + high, quad) }
        }
        ((8, 8, 4) | (16, 8, 4), _) => (t, g, 0),
        ((8, 8, 16), _) => (4 * t + i, g, 0),
        ((16, 8, 8), Kind::F16 | Kind::BF16) => (2 * t + i, g, 0),
        ((16, 8, 16), Kind::F16 | Kind::BF16) => (2 * t + i % 2 + if i < 2 { 0 } else { 8 }, g, 0),
        ((16, 8, 16), Kind::S8 | Kind::U8) => (4 * t + i, g, 0),
        ((16, 8, 32), _) => (4 * t + i % 4 + if i < 4 { 0 } else { 16 }, g, 0),
        ((16, 8, 8), _) => (if i == 0 { t } else { t + 4 }, g, 0),
        ((16, 8, 16), _) => (t + 4 * i, g, 0),
        other => panic!("no table for {other:?}"),
    }
}

fn spot_c(form: Form, kind: Kind, lane: usize, i: usize) -> Spot {
    let (g, t) = (lane / 4, lane % 4);
    match (form.shape, form.a, kind) {
        ((8, 8, 4), Kind::F16, Kind::F16) => {
            (t + if lane < 16 { 0 } else { 4 }, i, (lane % 16) / 4)
        }
        ((8, 8, 4), Kind::F16, _) => {
            let x = (lane & 0b1) + (i & 0b10);
            let row = if lane < 16 { x } else { x + 4 };
            (row, (i & 0b100) + (lane & 0b10) + (i & 0b1), (lane % 16) / 4)
        }
        _ => (if i < 2 { g } else { g + 8 }, 2 * t + i % 2, 0),
    }
}

/// Elements of a matrix that a lane holds.
fn own(form: Form, rows: usize, columns: usize) -> usize {
    let count = if form.shape == (8, 8, 4) && form.a == Kind::F16 { 4 } else { 1 };
    count * rows * columns / LANES
}

/// `{%x0, %x1}`
fn braces(name: &str, count: usize) -> String {
    let names: Vec<String> = (0..count).map(|number| format!("%{name}{number}")).collect();
    format!("{{{}}}", names.join(", "))
}

fn registers(kind: Kind, elements: usize) -> usize {
    elements * kind.bytes() / kind.bytes().max(4)
}

/// The kernel: each lane loads its registers, multiplies, and stores its registers.
fn kernel(form: Form, suffix: &str, target: u32) -> String {
    let (m, n, k) = form.shape;
    let sides = [
        ("a", form.a, own(form, m, k)),
        ("b", form.b, own(form, k, n)),
        ("c", form.c, own(form, m, n)),
        ("d", form.d, own(form, m, n)),
    ];
    let (mut declared, mut loads, mut stores) = (String::new(), String::new(), String::new());
    for ((name, kind, elements), place) in sides.into_iter().zip(PLACES) {
        let ty = match kind {
            Kind::F64 => "f64",
            Kind::F32 => "f32",
            _ => "b32",
        };
        let bytes = kind.bytes().max(4);
        let count = registers(kind, elements);
        declared += &format!(".reg .{ty} %{name}<{count}>;\n");
        loads += &format!("mad.lo.u64 %at, %lane, {}, %base;\n", bytes * count);
        stores += &format!("mad.lo.u64 %at, %lane, {}, %base;\n", bytes * count);
        for number in 0..count {
            let at = place + number * bytes;
            if name == "d" {
                stores += &format!("st.global.{ty} [%at+{at}], %d{number};\n");
            } else {
                loads += &format!("ld.global.{ty} %{name}{number}, [%at+{at}];\n");
            }
        }
    }
    let lists: Vec<String> = sides
        .iter()
        .map(|(name, kind, elements)| braces(name, registers(*kind, *elements)))
        .collect();
    let (rows, columns) = form.layouts;
    format!(
        ".version 8.4\n.target sm_{target}\n.address_size 64\n\
         .visible .entry test(.param .u64 p0) {{\n{declared}.reg .b64 %base, %at, %lane;\n\
         .reg .b32 %t;\nld.param.u64 %base, [p0];\nmov.u32 %t, %tid.x;\n\
         cvt.u64.u32 %lane, %t;\n{loads}\
         mma.sync.aligned.m{m}n{n}k{k}.{rows}.{columns}{suffix}.{}.{}.{}.{} {}, {}, {}, {};\n\
         {stores}ret;\n}}\n",
        form.d.name(),
        form.a.name(),
        form.b.name(),
        form.c.name(),
        lists[3],
        lists[0],
        lists[1],
        lists[2],
    )
}

/// A matrix, or four of them: by number, row, column.
type Matrix = Vec<Value>;

/// The bytes of all lanes, by the table.
fn spread(
    kind: Kind,
    elements: usize,
    spot: impl Fn(usize, usize) -> usize,
    from: &Matrix,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    for lane in 0..LANES {
        for i in 0..elements {
            bytes.extend(kind.bytes_of(from[spot(lane, i)]));
        }
    }
    bytes
}

/// Runs a form on matrices, and compares every element of the result.
fn check(form: Form, suffix: &str, target: u32, mut values: impl FnMut(Kind) -> Value) {
    let (m, n, k) = form.shape;
    let count = if form.shape == (8, 8, 4) && form.a == Kind::F16 { 4 } else { 1 };
    let mut matrix = |kind: Kind, size: usize| -> Matrix {
        (0..count * size).map(|_| kind.rounded(values(kind))).collect()
    };
    let (a, b, c) = (matrix(form.a, m * k), matrix(form.b, k * n), matrix(form.c, m * n));
    let bench = Bench::new(&kernel(form, suffix, target));
    let at_a = |lane, i| {
        let (row, column, number) = spot_a(form, lane, i);
        number * m * k + row * k + column
    };
    let at_b = |lane, i| {
        let (row, column, number) = spot_b(form, lane, i);
        number * k * n + row * n + column
    };
    let at_c = |kind| {
        move |lane, i| {
            let (row, column, number) = spot_c(form, kind, lane, i);
            number * m * n + row * n + column
        }
    };
    bench.put(PLACES[0], &spread(form.a, own(form, m, k), at_a, &a));
    bench.put(PLACES[1], &spread(form.b, own(form, k, n), at_b, &b));
    bench.put(PLACES[2], &spread(form.c, own(form, m, n), at_c(form.c), &c));
    bench.run("test", 1, 32, &[BASE]).unwrap();
    let mut expected: Matrix = Vec::new();
    for number in 0..count {
        let part = |all: &Matrix, size: usize| all[number * size..][..size].to_vec();
        let (a, b, c) = (part(&a, m * k), part(&b, k * n), part(&c, m * n));
        expected.extend(product(form.shape, &a, &b, &c, suffix == ".satfinite"));
    }
    let expected: Matrix = expected.into_iter().map(|value| form.d.rounded(value)).collect();
    let wanted = spread(form.d, own(form, m, n), at_c(form.d), &expected);
    let got: Vec<u8> = bench.get(PLACES[3], wanted.len());
    assert!(got == wanted, "{form:?}: {got:x?}\nexpected {wanted:x?}");
}

/// All forms with the architecture that brought them.
fn forms() -> Vec<(Form, u32)> {
    use Kind::{BF16, E4m3, E5m2, F16, F32, F64, S8, S32, Tf32, U8};
    let mut forms = vec![
        (form((16, 8, 8), F16, F16, F16), 75),
        (form((16, 8, 8), F16, F16, F32), 75),
        (form((16, 8, 16), F16, F16, F16), 80),
        (form((16, 8, 16), F16, F16, F32), 80),
        (form((16, 8, 8), BF16, BF16, F32), 80),
        (form((16, 8, 16), BF16, BF16, F32), 80),
        (form((16, 8, 4), Tf32, Tf32, F32), 80),
        (form((16, 8, 8), Tf32, Tf32, F32), 80),
        (form((8, 8, 4), F64, F64, F64), 80),
        (form((16, 8, 4), F64, F64, F64), 90),
        (form((16, 8, 8), F64, F64, F64), 90),
        (form((16, 8, 16), F64, F64, F64), 90),
    ];
    for (a, b) in [(S8, S8), (S8, U8), (U8, S8), (U8, U8)] {
        forms.push((form((8, 8, 16), a, b, S32), 75));
        forms.push((form((16, 8, 16), a, b, S32), 80));
        forms.push((form((16, 8, 32), a, b, S32), 80));
    }
    for (a, b) in [(E4m3, E4m3), (E4m3, E5m2), (E5m2, E4m3), (E5m2, E5m2)] {
        forms.push((form((16, 8, 32), a, b, F32), 89));
    }
    for rows in ["row", "col"] {
        for columns in ["row", "col"] {
            for (c, d) in [(F16, F16), (F16, F32), (F32, F32)] {
                let form = Form { c, d, ..form((8, 8, 4), F16, F16, F32) };
                forms.push((Form { layouts: (rows, columns), ..form }, 70));
            }
        }
    }
    forms
}

/// Small integers, whose sums are exact in every order: if this fails, an element is in the wrong
/// place.
#[test]
fn products_of_small_integers_are_exact() {
    let mut rng = Rng::new(seed());
    for (form, target) in forms() {
        check(form, "", target, |kind| kind.small(&mut rng));
    }
}

/// If this fails, sums are not taken in the order that `exec/matrix/multiply.rs` documents.
#[test]
fn random_products_follow_the_documented_order() {
    let mut rng = Rng::new(seed());
    for (form, target) in forms() {
        for _ in 0..4 {
            check(form, "", target, |kind| kind.random(&mut rng));
        }
    }
}

/// Sums that leave 32 bits: without `.satfinite` they wrap, with it they stay at the bound.
#[test]
fn integer_sums_wrap_or_are_clamped() {
    let form = form((16, 8, 32), Kind::U8, Kind::U8, Kind::S32);
    for suffix in ["", ".satfinite"] {
        check(form, suffix, 80, |kind| match kind {
            Kind::S32 => Value::Integer(i64::from(i32::MAX) - 10),
            _ => Value::Integer(255),
        });
    }
}

/// The direction in which sums of f64 are rounded: 1 and a product that is not seen beside it.
#[test]
fn sums_of_doubles_are_rounded_as_the_instruction_says() {
    let form = form((8, 8, 4), Kind::F64, Kind::F64, Kind::F64);
    let results = ["", ".rn", ".rz", ".rm", ".rp"].map(|word| {
        let text =
            kernel(form, "", 80).replace(".f64.f64.f64.f64", &format!(".f64.f64.f64.f64{word}"));
        let bench = Bench::new(&text);
        bench.put(PLACES[0], &[1e-9_f64; 32]);
        bench.put(PLACES[1], &[-1e-9_f64; 32]);
        bench.put(PLACES[2], &[1.0_f64; 64]);
        bench.run("test", 1, 32, &[BASE]).unwrap();
        let results = bench.get::<f64>(PLACES[3], 64);
        assert!(results.iter().all(|result| *result == results[0]), "{word}: {results:?}");
        results[0]
    });
    let below = (0..4).fold(1.0_f64, |sum, _| sum.next_down());
    assert_eq!(results, [1.0, 1.0, below, below, 1.0]);
    let f32 = kernel(Form { c: Kind::F32, d: Kind::F32, ..form }, "", 80);
    assert!(hwsim_ptx::Module::load(&f32).is_err());
}

/// A driver refuses what the module's architecture does not have; so does this one, by name.
#[test]
fn forms_are_refused_below_their_architecture() {
    for (form, target) in forms().into_iter().filter(|(_, target)| *target > 70) {
        let below = match target {
            75 => 70,
            80 => 75,
            89 => 86,
            _ => 89,
        };
        let refused = hwsim_ptx::Module::load(&kernel(form, "", below)).expect_err("refused");
        assert!(refused.expected.contains(&format!("sm_{target}")), "{form:?}: {refused}");
        assert!(refused.expected.contains("mma.sync.aligned"), "{form:?}: {refused}");
    }
}

/// What has no such form is refused with its name.
#[test]
fn other_forms_are_refused() {
    let known = form((16, 8, 16), Kind::F16, Kind::F16, Kind::F32);
    let text = kernel(known, "", 90);
    let cases = [
        ("m16n8k16.row.col", "m16n8k16.col.row"),
        ("m16n8k16.row.col", "m16n8k24.row.col"),
        ("mma.sync.aligned", "mma.sp.sync.aligned"),
        ("f32.f16.f16.f32", "f32.f16.bf16.f32"),
        ("{%b0, %b1}", "{%b0}"),
    ];
    for (from, to) in cases {
        assert!(text.contains(from), "{from}");
        let text = text.replace(from, to);
        assert!(hwsim_ptx::Module::load(&text).is_err(), "{to}");
    }
}

/// Registers of lanes that are not there have no value.
#[test]
fn a_warp_that_is_not_whole_is_an_error() {
    let form = form((16, 8, 16), Kind::F16, Kind::F16, Kind::F32);
    let bench = Bench::new(&kernel(form, "", 80));
    let fault = bench.run("test", 1, 24, &[BASE]).unwrap_err();
    assert_eq!(fault.kind, hwsim_ptx::FaultKind::PartialWarp);
}

/// Nobody is to search for what a module lacks: the error names it.
#[test]
fn later_instructions_are_refused_by_name() {
    for example in [
        "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {%f1}, %d1, %d2, 0, 0, 1, 1, 1, 0, 0",
        "tcgen05.wait::ld.sync.aligned",
        "multimem.ld_reduce.relaxed.sys.global.add.f32 %f1, [%base]",
        "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes \
         [%t], [%base, {%r1, %r2}], [%r3]",
        "multimem.red.relaxed.sys.global.add.f32 [%base], %f1",
        "mma.sync.aligned.m8n8k32.row.col.s32.s4.s4.s32 {%r0, %r1}, {%r2}, {%r3}, {%r0, %r1}",
        "redux.sync.min.f32 %f1, %f2, -1",
    ] {
        let text = crate::common::module_text(&format!("{example};"));
        let refused = hwsim_ptx::Module::load(&text).expect_err(example);
        let opcode = example.split(' ').next().unwrap();
        assert!(refused.found.contains(opcode), "{example}: {refused}");
    }
}
