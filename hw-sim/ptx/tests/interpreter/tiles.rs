//! `ldmatrix`, `stmatrix`, `movmatrix`, and `wmma`, whose fragments only `wmma` itself can read.

use crate::common::{BASE, Bench};
use crate::number::{Kind, Rng, Value, product, seed};
use hwsim_ptx::{FaultKind, Module};

/// Shared memory is filled with numbers of 16 bits; each lane's address of its row is in `%row`.
fn tiles(instructions: &str) -> String {
    format!(
        ".version 8.4\n.target sm_90\n.address_size 64\n\
         .visible .entry test(.param .u64 p0) {{\n\
         .shared .align 16 .b8 s[1024];\n.reg .b32 %t, %row, %step, %v, %r<4>;\n\
         .reg .b64 %base, %at;\nld.param.u64 %base, [p0];\nmov.u32 %t, %tid.x;\n\
         mad.wide.u32 %at, %t, 4, %base;\nmov.u32 %row, s;\nmad.lo.u32 %step, %t, 4, %row;\n\
         {fill}\
         mul.lo.u32 %v, %t, 112;\nadd.u32 %v, %v, 64;\nand.b32 %v, %v, 0x1f0;\n\
         add.u32 %row, %row, %v;\nbar.sync 0;\n{instructions}\nbar.sync 0;\n\
         ret;\n}}\n",
        fill = (0..8)
            .map(|part| format!(
                "ld.global.b32 %v, [%at+{0}];\nst.shared.b32 [%step+{0}], %v;\n",
                128 * part
            ))
            .collect::<String>()
    )
}

/// Where lane `lane` points to, in halves.
fn row(lane: usize) -> usize {
    ((lane * 112 + 64) & 0x1f0) / 2
}

#[test]
fn matrices_come_from_rows_that_lanes_name() {
    for (count, name) in [(1, "x1"), (2, "x2"), (4, "x4")] {
        for transposed in [false, true] {
            let list = ["%r0", "%r1", "%r2", "%r3"][..count].join(", ");
            let word = if transposed { ".trans" } else { "" };
            let mut text =
                format!("ldmatrix.sync.aligned.m8n8.{name}{word}.shared.b16 {{{list}}}, [%row];\n");
            for number in 0..count {
                text += &format!("st.global.b32 [%at+{}], %r{number};\n", 4096 + 128 * number);
            }
            let bench = Bench::new(&tiles(&text));
            let halves: Vec<u16> = (0..512).map(|number| number * 7 + 1).collect();
            bench.put(0, &halves);
            bench.run("test", 1, 32, &[BASE]).unwrap();
            for number in 0..count {
                let got: Vec<[u16; 2]> = bench.get(4096 + 128 * number, 32);
                for (lane, got) in got.into_iter().enumerate() {
                    for (half, got) in got.into_iter().enumerate() {
                        let (mut i, mut j) = (lane / 4, lane % 4 * 2 + half);
                        if transposed {
                            (i, j) = (j, i);
                        }
                        let wanted = halves[row(8 * number + i) + j];
                        assert_eq!(got, wanted, "{name}{word} {number}, lane {lane}");
                    }
                }
            }
        }
    }
}

/// What one stores, the other loads; and a matrix turned around twice is what it was.
#[test]
fn stored_matrices_come_back() {
    for (word, turn) in [("", false), (".trans", true)] {
        let mut text = format!(
            "ld.global.b32 %r0, [%at];\nld.global.b32 %r1, [%at+128];\n\
             mov.u32 %row, s;\nmad.lo.u32 %row, %t, 16, %row;\n\
             stmatrix.sync.aligned.m8n8.x2{word}.shared.b16 [%row], {{%r0, %r1}};\n\
             ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{%r2, %r3}}, [%row];\n"
        );
        if turn {
            text += "movmatrix.sync.aligned.m8n8.trans.b16 %r2, %r2;\n\
                     movmatrix.sync.aligned.m8n8.trans.b16 %r3, %r3;\n";
        }
        text += "st.global.b32 [%at+4096], %r2;\nst.global.b32 [%at+4224], %r3;\n";
        let bench = Bench::new(&tiles(&text));
        let halves: Vec<u16> = (0..512).map(|number| number * 3 + 5).collect();
        bench.put(0, &halves);
        bench.run("test", 1, 32, &[BASE]).unwrap();
        assert_eq!(bench.get::<u16>(4096, 128), halves[..128], "{word}");
    }
}

#[test]
fn rows_are_aligned_and_inside() {
    for (address, kind) in
        [("[%row+8]", FaultKind::Misaligned), ("[%row+65536]", FaultKind::SharedOutOfBounds)]
    {
        let text =
            format!("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r0, %r1, %r2, %r3}}, {address};");
        let fault = Bench::new(&tiles(&text)).run("test", 1, 32, &[BASE]).unwrap_err();
        assert_eq!(fault.kind, kind, "{fault}");
    }
}

#[test]
fn tiles_are_refused_below_their_architecture() {
    let text = tiles("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%row];");
    let refused = Module::load(&text.replace("sm_90", "sm_70")).expect_err("sm_70 has none");
    assert!(refused.expected.contains("sm_75"), "{refused}");
    let text = tiles("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%row], {%r0};");
    let refused = Module::load(&text.replace("sm_90", "sm_80")).expect_err("sm_80 has none");
    assert!(refused.expected.contains("sm_90"), "{refused}");
}

/// A form of `wmma`.
#[derive(Clone, Copy, Debug)]
struct Form {
    shape: (usize, usize, usize),
    kinds: [Kind; 3],
    d: Kind,
    by_row: [bool; 3],
    shared: bool,
}

/// Elements between lines beyond what a line has.
const GAP: usize = 8;
/// Where A, B, C and D lie.
const PLACES: [usize; 4] = [0, 0x2000, 0x4000, 0x6000];

impl Form {
    /// Rows and columns of each matrix.
    fn extents(self) -> [(usize, usize); 4] {
        let (m, n, k) = self.shape;
        [(m, k), (k, n), (m, n), (m, n)]
    }

    fn kinds(self) -> [Kind; 4] {
        [self.kinds[0], self.kinds[1], self.kinds[2], self.d]
    }

    fn by_row(self) -> [bool; 4] {
        [self.by_row[0], self.by_row[1], self.by_row[2], !self.by_row[2]]
    }

    /// Elements from one line to the next.
    fn stride(self, side: usize) -> usize {
        let (rows, columns) = self.extents()[side];
        GAP + if self.by_row()[side] { columns } else { rows }
    }

    /// Registers of a fragment, as the PTX ISA lists them.
    fn registers(self, side: usize) -> usize {
        let (m, n, k) = self.shape;
        match (self.kinds()[side], side) {
            (Kind::F64, 0 | 1) => 1,
            (Kind::F64, _) => 2,
            (Kind::F16, 0 | 1) => 8,
            (Kind::F16, _) => 4,
            (Kind::BF16, 0) => m * k / 64,
            (Kind::BF16, _) => k * n / 64,
            (Kind::S8 | Kind::U8, 0) => m * k / 128,
            (Kind::S8 | Kind::U8, _) => k * n / 128,
            (Kind::Tf32, _) => 4,
            _ => 8,
        }
    }

    fn text(self, target: u32) -> String {
        let (m, n, k) = self.shape;
        let shape = format!("m{m}n{n}k{k}");
        let word = |by_row: bool| if by_row { "row" } else { "col" };
        let (kinds, by_row) = (self.kinds(), self.by_row());
        let (mut body, mut declared, mut lists) = (String::new(), String::new(), Vec::new());
        for (side, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
            let ty = match kinds[side] {
                Kind::F64 => "f64",
                Kind::F32 => "f32",
                _ => "b32",
            };
            let count = self.registers(side);
            declared += &format!(".reg .{ty} %{name}<{count}>;\n");
            let names: Vec<String> = (0..count).map(|number| format!("%{name}{number}")).collect();
            lists.push(format!("{{{}}}", names.join(", ")));
            let space = if self.shared { "shared" } else { "global" };
            let base = if self.shared { "s" } else { "%base" };
            let (layout, place) = (word(by_row[side]), PLACES[side]);
            let (kind, stride) = (kinds[side].name(), self.stride(side));
            if side < 3 {
                body += &format!(
                    "wmma.load.{name}.sync.aligned.{layout}.{shape}.{space}.{kind} {}, \
                     [{base}+{place}], {stride};\n",
                    lists[side]
                );
            } else {
                let types = match self.kinds[0] {
                    Kind::F16 => format!("{}.{}", self.d.name(), self.kinds[2].name()),
                    a => format!(
                        "{}.{}.{}.{}",
                        self.d.name(),
                        a.name(),
                        a.name(),
                        self.kinds[2].name()
                    ),
                };
                body += &format!(
                    "wmma.mma.sync.aligned.{}.{}.{shape}.{types} {}, {}, {}, {};\n\
                     mov.u32 %stride, {stride};\n\
                     wmma.store.d.sync.aligned.{layout}.{shape}.{space}.{kind} \
                     [{base}+{place}], {}, %stride;\n",
                    word(by_row[0]),
                    word(by_row[1]),
                    lists[3],
                    lists[0],
                    lists[1],
                    lists[2],
                    lists[3],
                );
            }
        }
        let copy = |from: &str, to: &str, name: &str| {
            format!(
                "mov.u32 %i, %tid.x;\n{name}:\nmad.wide.u32 %at, %i, 4, %base;\n\
                 mov.u32 %v, s;\nmad.lo.u32 %v, %i, 4, %v;\nld.{from};\nst.{to};\n\
                 add.u32 %i, %i, 32;\nsetp.lt.u32 %p, %i, 8192;\n@%p bra {name};\nbar.sync 0;\n"
            )
        };
        if self.shared {
            let fill = copy("global.b32 %w, [%at]", "shared.b32 [%v], %w", "FILL");
            let drain = copy("shared.b32 %w, [%v]", "global.b32 [%at], %w", "DRAIN");
            body = format!("{fill}{body}bar.sync 0;\n{drain}");
        }
        format!(
            ".version 8.4\n.target sm_{target}\n.address_size 64\n\
             .visible .entry test(.param .u64 p0) {{\n.shared .align 32 .b8 s[32768];\n\
             {declared}.reg .b64 %base, %at;\n.reg .b32 %stride, %i, %v, %w;\n.reg .pred %p;\n\
             ld.param.u64 %base, [p0];\n{body}ret;\n}}\n"
        )
    }

    /// Where an element lies.
    fn index(self, side: usize, row: usize, column: usize) -> usize {
        let stride = self.stride(side);
        if self.by_row()[side] { row * stride + column } else { column * stride + row }
    }

    fn check(self, target: u32, mut value: impl FnMut(Kind) -> Value) {
        let bench = Bench::new(&self.text(target));
        let (kinds, extents) = (self.kinds(), self.extents());
        let mut matrices = Vec::new();
        for side in 0..3 {
            let (rows, columns) = extents[side];
            let mut matrix = Vec::new();
            for row in 0..rows {
                for column in 0..columns {
                    let value = kinds[side].rounded(value(kinds[side]));
                    let at = PLACES[side] + self.index(side, row, column) * kinds[side].bytes();
                    bench.put(at, &kinds[side].bytes_of(value));
                    matrix.push(value);
                }
            }
            matrices.push(matrix);
        }
        bench.run("test", 1, 32, &[BASE]).unwrap();
        let expected = product(self.shape, &matrices[0], &matrices[1], &matrices[2], false);
        let (rows, columns) = extents[3];
        for row in 0..rows {
            for column in 0..columns {
                let at = PLACES[3] + self.index(3, row, column) * self.d.bytes();
                let wanted = self.d.bytes_of(self.d.rounded(expected[row * columns + column]));
                let got: Vec<u8> = bench.get(at, self.d.bytes());
                assert_eq!(got, wanted, "{self:?}: row {row}, column {column}");
            }
        }
    }
}

/// All forms, each with the architecture that brought it.
fn forms() -> Vec<(Form, u32)> {
    use Kind::{BF16, F16, F32, F64, S8, S32, Tf32, U8};
    let mut kinds = Vec::new();
    for shape in [(16, 16, 16), (32, 8, 16), (8, 32, 16)] {
        for (c, d) in [(F16, F16), (F16, F32), (F32, F16), (F32, F32)] {
            kinds.push((shape, F16, c, d, 70));
        }
        kinds.push((shape, BF16, F32, F32, 80));
        kinds.push((shape, S8, S32, S32, 72));
        kinds.push((shape, U8, S32, S32, 72));
    }
    kinds.push(((16, 16, 8), Tf32, F32, F32, 80));
    kinds.push(((8, 8, 4), F64, F64, F64, 80));
    let mut forms = Vec::new();
    for (number, (shape, a, c, d, target)) in kinds.into_iter().enumerate() {
        for layouts in 0..4 {
            let by_row = [layouts & 1 == 0, layouts & 2 == 0, number % 2 == layouts % 2];
            let shared = (number + layouts) % 2 == 0;
            forms.push((Form { shape, kinds: [a, a, c], d, by_row, shared }, target));
        }
    }
    forms
}

#[test]
fn wmma_multiplies_small_integers_exactly() {
    let mut rng = Rng::new(seed());
    for (form, target) in forms() {
        form.check(target, |kind| kind.small(&mut rng));
    }
}

#[test]
fn wmma_follows_the_documented_order() {
    let mut rng = Rng::new(seed());
    for (form, target) in forms() {
        form.check(target, |kind| kind.random(&mut rng));
    }
}

#[test]
fn wmma_is_refused_below_its_architecture() {
    for (form, target) in forms().into_iter().filter(|(_, target)| *target > 70) {
        let refused = Module::load(&form.text(70)).expect_err("refused");
        assert!(refused.expected.contains(&format!("sm_{target}")), "{form:?}: {refused}");
        assert!(refused.expected.contains("wmma"), "{form:?}: {refused}");
    }
}
