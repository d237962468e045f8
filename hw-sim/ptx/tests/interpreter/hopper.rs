//! Instructions of `sm_90`: products of four warps from shared memory, bulk copies with and without
//! tensor maps, barriers that count bytes. Clusters of several blocks have files of their own.

use hwsim_ptx::tensor_map::{Field, Swizzle, TensorMap};
use hwsim_ptx::{FaultKind, Module};

use crate::common::{BASE, Bench};

/// Where the images of A and B, the result, and a start value lie in memory.
const A: usize = 0x4000;
const B: usize = 0x8000;
pub const D: usize = 0x20000;
/// Bytes of the images of A and B.
const A_BYTES: usize = 0x4000;
const B_BYTES: usize = 0x8000;

/// Small whole numbers, so that every order of the sums gives the same.
fn value(row: usize, column: usize, salt: usize) -> i32 {
    (row * 7 + column * 3 + row * column + salt) as i32 % 9 - 4
}

/// Types of A and B.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    F16,
    Bf16,
    Tf32,
    E4m3,
    E5m2,
    S8,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Tf32 => "tf32",
            Self::E4m3 => "e4m3",
            Self::E5m2 => "e5m2",
            Self::S8 => "s8",
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::Tf32 => 4,
            _ => 1,
        }
    }

    fn encode(self, value: i32) -> Vec<u8> {
        let float = value as f32;
        let sign = if value < 0 { 0x80 } else { 0 };
        let magnitude = value.unsigned_abs() as usize;
        match self {
            Self::F16 => half::f16::from_f32(float).to_le_bytes().to_vec(),
            Self::Bf16 => half::bf16::from_f32(float).to_le_bytes().to_vec(),
            Self::Tf32 => float.to_le_bytes().to_vec(),
            Self::E4m3 => vec![[0, 0x38, 0x40, 0x44, 0x48][magnitude] | sign],
            Self::E5m2 => vec![[0, 0x3c, 0x40, 0x42, 0x44][magnitude] | sign],
            Self::S8 => vec![value as i8 as u8],
        }
    }
}

/// How a matrix lies in shared memory: lines of so many bytes, chunks of 16 of which change places
/// with the number of their line; or without lines, as blocks of 8 chunks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Plain,
    Lines(usize),
}

impl Form {
    /// The chunk's place among those of its line, as CUTLASS draws it.
    fn swizzled(self, chunk: usize, line: usize) -> usize {
        match self {
            Self::Plain => chunk,
            Self::Lines(32) => chunk ^ (line / 4 % 2),
            Self::Lines(64) => chunk ^ (line / 2 % 4),
            Self::Lines(_) => chunk ^ (line % 8),
        }
    }

    fn bits(self) -> u64 {
        match self {
            Self::Plain => 0,
            Self::Lines(128) => 1,
            Self::Lines(64) => 2,
            Self::Lines(_) => 3,
        }
    }
}

/// A matrix of `lines` rows of A (or columns of B) with `k` elements each, as bytes of shared
/// memory, with its descriptor for an image that begins at `start`.
fn image(
    (kind, form, transposed): (Kind, Form, bool),
    (lines, k): (usize, usize),
    (start, salt): (u64, usize),
    size: usize,
) -> (Vec<u8>, u64) {
    let mut image = vec![0; size];
    let per_chunk = 16 / kind.bytes();
    // Distances between blocks of 8 lines, or of 8 elements of a sum: see the PTX ISA.
    let (chunks, width) = match form {
        Form::Plain => (1, 16),
        Form::Lines(bytes) => (bytes / 16, bytes),
    };
    let (leading, stride);
    let place: Box<dyn Fn(usize, usize) -> usize> = match (transposed, form) {
        (false, Form::Plain) => {
            // Blocks of 8 rows of one chunk, block after block along k, then along rows.
            (leading, stride) = (128, 256);
            Box::new(move |line, step| {
                let chunk = step / per_chunk;
                line / 8 * 256 + chunk * 128 + line % 8 * 16 + step % per_chunk * kind.bytes()
            })
        }
        (false, _) => {
            (leading, stride) = (16, 8 * width);
            Box::new(move |line, step| {
                let chunk = form.swizzled(step / per_chunk, line);
                line * width + chunk * 16 + step % per_chunk * kind.bytes()
            })
        }
        (true, Form::Plain) => {
            // Chunks of 8 lines; blocks of 8 elements of a sum.
            (leading, stride) = (128 * (lines / 8), 128);
            Box::new(move |line, step| {
                step / 8 * leading + line / 8 * 128 + step % 8 * 16 + line % 8 * kind.bytes()
            })
        }
        (true, _) => {
            let per_line = width / kind.bytes();
            (leading, stride) = (k / 8 * 8 * width, 8 * width);
            Box::new(move |line, step| {
                let chunk = form.swizzled(line % per_line / per_chunk, step);
                let atom = line / per_line * leading + step * width;
                atom + chunk * 16 + line % per_chunk * kind.bytes()
            })
        }
    };
    assert!(chunks * 16 == width);
    for line in 0..lines {
        for step in 0..k {
            let at = place(line, step);
            image[at..at + kind.bytes()].copy_from_slice(&kind.encode(value(line, step, salt)));
        }
    }
    let field = |bytes: usize| (bytes as u64 >> 4) & 0x3fff;
    let descriptor = start >> 4 | field(leading) << 16 | field(stride) << 32 | form.bits() << 62;
    (image, descriptor)
}

/// One multiplication: types, columns, forms.
#[derive(Clone, Copy, Debug)]
struct Product {
    a: Kind,
    b: Kind,
    d: &'static str,
    n: usize,
    form: Form,
    transposed: (bool, bool),
    a_in_registers: bool,
}

fn check(product: Product) {
    let Product { a, b, d, n, form, transposed, a_in_registers } = product;
    let k = 32 / a.bytes();
    let (a_image, a_descriptor) = image((a, form, transposed.0), (64, k), (0, 1), A_BYTES);
    let (b_image, b_descriptor) =
        image((b, form, transposed.1), (n, k), (A_BYTES as u64, 5), B_BYTES);
    let per_register = if d == "f16" { 2 } else { 1 };
    let count = n / 2 / per_register;
    let registers: Vec<String> = (0..count).map(|i| format!("%x{i}")).collect();
    let list = registers.join(", ");
    let start = match d {
        "f16" => "0x3c003c00",
        "s32" => "1",
        _ => "0f3F800000",
    };
    let clear: String = registers.iter().map(|x| format!("mov.b32 {x}, {start};\n")).collect();
    let store: String = registers
        .iter()
        .enumerate()
        .map(|(i, x)| format!("st.global.b32 [%out+{}], {x};\n", i * 4))
        .collect();
    let left = if a_in_registers { "{%r4, %r5, %r6, %r7}" } else { "%da" };
    let signs = match (d, a, a_in_registers) {
        ("s32", _, _) => String::new(),
        (_, Kind::F16 | Kind::Bf16, true) => format!(", 1, -1, {}", u8::from(transposed.1)),
        (_, Kind::F16 | Kind::Bf16, false) => {
            format!(", 1, -1, {}, {}", u8::from(transposed.0), u8::from(transposed.1))
        }
        _ => ", 1, -1".to_owned(),
    };
    let types = format!("{d}.{}.{}", a.word(), b.word());
    // A of a lane: rows lane / 4 and + 8 of its warp, 4 bytes at lane % 4, and 16 bytes further.
    let text = format!(
        ".version 8.4\n.target sm_90a\n.address_size 64\n\
         .visible .entry test(.param .u64 p0) {{\n\
         .shared .align 1024 .b8 s[{shared}];\n\
         .reg .b64 %base, %in, %out, %da, %db, %o;\n.reg .b32 %t, %i, %to, %w, %r<9>;\n\
         .reg .b32 %x<{count}>;\n.reg .pred %p, %q;\n\
         ld.param.u64 %base, [p0];\nmov.u32 %t, %tid.x;\nmul.lo.u32 %i, %t, 4;\n\
         FILL:\ncvt.u64.u32 %o, %i;\nadd.s64 %in, %base, %o;\nld.global.b32 %w, [%in+{A}];\n\
         mov.u32 %to, s;\nadd.u32 %to, %to, %i;\nst.shared.b32 [%to], %w;\nadd.u32 %i, %i, 512;\n\
         setp.lt.u32 %p, %i, {shared};\n@%p bra FILL;\n\
         shr.u32 %r0, %t, 5;\nmul.lo.u32 %r0, %r0, 512;\nand.b32 %r1, %t, 31;\n\
         mad.lo.u32 %r0, %r1, 4, %r0;\ncvt.u64.u32 %o, %r0;\nadd.s64 %in, %base, %o;\n\
         ld.global.b32 %r4, [%in+{C}];\nld.global.b32 %r5, [%in+{C}+128];\n\
         ld.global.b32 %r6, [%in+{C}+256];\nld.global.b32 %r7, [%in+{C}+384];\n\
         mul.lo.u32 %r2, %t, {stride};\ncvt.u64.u32 %o, %r2;\nadd.s64 %out, %base, %o;\n\
         add.s64 %out, %out, {D};\n\
         mov.b64 %da, {a_descriptor};\nmov.b64 %db, {b_descriptor};\n{clear}\
         setp.eq.u32 %q, 0, 0;\nfence.proxy.async.shared::cta;\nbar.sync 0;\n\
         wgmma.fence.sync.aligned;\n\
         wgmma.mma_async.sync.aligned.m64n{n}k{k}.{types} {{{list}}}, {left}, %db, %q{signs};\n\
         wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n{store}ret;\n}}\n",
        shared = A_BYTES + B_BYTES,
        C = A + A_BYTES + B_BYTES,
        stride = count * 4,
    );
    let bench = Bench::new(&text);
    bench.put(A, &a_image);
    bench.put(B, &b_image);
    // A as registers: warp, register, lane.
    let mut fragments = Vec::new();
    for warp in 0..4 {
        for register in 0..4 {
            for lane in 0..32 {
                let row = warp * 16 + lane / 4 + register % 2 * 8;
                let first = (register / 2 * 16 + lane % 4 * 4) / a.bytes();
                for part in 0..4 / a.bytes() {
                    fragments.extend(a.encode(value(row, first + part, 1)));
                }
            }
        }
    }
    bench.put(A + A_BYTES + B_BYTES, &fragments);
    bench.run("test", 1, 128, &[BASE]).unwrap_or_else(|fault| panic!("{product:?}: {fault}"));
    let words: Vec<u32> = bench.get(D, 128 * count);
    for thread in 0..128 {
        for element in 0..n / 2 {
            let lane = thread % 32;
            let row = thread / 32 * 16 + lane / 4 + element / 2 % 2 * 8;
            let column = element / 4 * 8 + lane % 4 * 2 + element % 2;
            let sum: i32 = (0..k).map(|k| value(row, k, 1) * value(column, k, 5)).sum();
            let wanted = if d == "s32" { 1 + sum } else { 1 - sum };
            let word = words[thread * count + element / per_register];
            let found = match d {
                "f16" => half::f16::from_bits((word >> (element % 2 * 16)) as u16).to_f32(),
                "s32" => word as i32 as f32,
                _ => f32::from_bits(word),
            };
            assert_eq!(found, wanted as f32, "{product:?}: row {row}, column {column}");
        }
    }
}

/// If this fails, products of matrices on Hopper are wrong, or read the wrong places.
#[test]
fn products_of_four_warps() {
    let forms = [Form::Plain, Form::Lines(32), Form::Lines(64), Form::Lines(128)];
    for form in forms {
        let plain = Product {
            a: Kind::F16,
            b: Kind::F16,
            d: "f32",
            n: 64,
            form,
            transposed: (false, false),
            a_in_registers: false,
        };
        check(plain);
        check(Product { n: 256, ..plain });
        check(Product { n: 8, d: "f16", ..plain });
        check(Product { n: 24, a_in_registers: true, ..plain });
        for transposed in [(true, false), (false, true), (true, true)] {
            check(Product { transposed, ..plain });
            check(Product { transposed, n: 128, a: Kind::Bf16, b: Kind::Bf16, ..plain });
        }
        check(Product { transposed: (false, true), a_in_registers: true, ..plain });
        check(Product { a: Kind::Tf32, b: Kind::Tf32, n: 40, ..plain });
        check(Product { a: Kind::E4m3, b: Kind::E5m2, ..plain });
        check(Product { a: Kind::E5m2, b: Kind::E4m3, d: "f16", a_in_registers: true, ..plain });
        check(Product { a: Kind::S8, b: Kind::S8, d: "s32", ..plain });
    }
}

#[test]
fn other_products_are_refused() {
    let whole = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r0, %r1, %r2, %r3}, \
                 %d0, %d1, %p0, 1, 1, 0, 0;";
    let load = |text: &str| Module::load(&crate::common::module_text(text));
    load(whole).unwrap_or_else(|error| panic!("{error}"));
    for (from, to) in [
        ("n8k16", "n12k16"),
        ("n8k16", "n264k16"),
        ("m64", "m32"),
        ("f32.f16.f16", "f32.f16.bf16"),
        ("f32.f16.f16", "f32.s8.s8"),
        ("1, 1, 0, 0", "1, 2, 0, 0"),
        ("1, 1, 0, 0", "1, 1, 0"),
        ("%r0, %r1, %r2, %r3", "%r0, %r1"),
        ("wgmma.mma_async", "wgmma.mma_async.sp"),
    ] {
        assert!(load(&whole.replacen(from, to, 1)).is_err(), "{to}");
    }
}

/// A kernel of 32 threads with a barrier `bar`, a tile and a buffer in shared memory; thread 0 does
/// `one`, then all wait for the barrier's first phase and do `all`.
pub fn copying(one: &str, all: &str) -> Bench {
    Bench::new(&format!(
        ".version 8.4\n.target sm_90\n.address_size 64\n\
         .visible .entry test(.param .u64 p0, .param .u64 p1) {{\n\
         .shared .align 1024 .b8 tile[8192];\n.shared .align 8 .b8 bar[8];\n\
         .reg .b64 %base, %map, %out, %o;\n.reg .b32 %t, %bar, %tile, %i, %w, %r<9>;\n\
         .reg .pred %p, %one, %done;\n\
         ld.param.u64 %base, [p0];\nld.param.u64 %map, [p1];\nmov.u32 %t, %tid.x;\n\
         mov.u32 %bar, bar;\nmov.u32 %tile, tile;\nsetp.ne.u32 %one, %t, 0;\n\
         @%one bra READY;\nmbarrier.init.shared::cta.b64 [%bar], 1;\n\
         fence.mbarrier_init.release.cluster;\nREADY:\nbar.sync 0;\n\
         @%one bra WAIT;\n{one}\nWAIT:\n\
         mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], 0;\n@!%done bra WAIT;\n\
         {all}\n\
         mul.lo.u32 %i, %t, 4;\nDUMP:\nadd.u32 %r1, %tile, %i;\nld.shared.b32 %w, [%r1];\n\
         cvt.u64.u32 %o, %i;\nadd.s64 %out, %base, %o;\nst.global.b32 [%out+{D}], %w;\n\
         add.u32 %i, %i, 128;\nsetp.lt.u32 %p, %i, 8192;\n@%p bra DUMP;\nret;\n}}\n"
    ))
}

/// If this fails, a kernel reads what a bulk copy has not brought, or waits for it forever.
#[test]
fn bulk_copies_move_bytes_and_end_phases() {
    let one = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 4096;\n\
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes \
         [%tile], [%base+16], 1536, [%bar];\n\
         cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes \
         [%tile+1536], [%base+1552], 2560, [%bar];";
    let all = "@%one bra SKIP;\n\
         cp.async.bulk.global.shared::cta.bulk_group [%base+65536], [%tile+32], 64;\n\
         cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;\nSKIP:";
    let bench = copying(one, all);
    let source: Vec<u32> = (0..2048).map(|i| i * 0x0101_0101 + 7).collect();
    bench.put(0, &source);
    bench.run("test", 1, 32, &[BASE, 0]).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(bench.get::<u32>(D, 1024), source[4..1028]);
    assert_eq!(bench.get::<u32>(65536, 16), source[12..28]);
    let wrong = [("1536, [%bar]", "1544, [%bar]"), ("%base+16]", "%base+20]")];
    for (from, to) in wrong {
        let bench = copying(&one.replacen(from, to, 1), "");
        let fault = bench.run("test", 1, 32, &[BASE, 0]).unwrap_err();
        assert!(matches!(fault.kind, FaultKind::InvalidBulk | FaultKind::Misaligned), "{fault}");
    }
}

/// A tensor of 3 dimensions of f32 with gaps between rows and planes.
fn tensor(swizzle: Swizzle, fills_nan: bool, boxes: [u32; 3], steps: [u32; 3]) -> TensorMap {
    TensorMap {
        address: BASE + 0x1000,
        element: 7,
        rank: 3,
        interleave: 0,
        swizzle,
        fills_nan,
        extents: [20, 10, 3, 0, 0],
        strides: [96, 1056, 0, 0],
        boxes: [boxes[0], boxes[1], boxes[2], 0, 0],
        steps: [steps[0], steps[1], steps[2], 0, 0],
        corners: None,
    }
}

/// What a box holds, by its own definition: element after element, with chunks of 16 bytes at
/// places that their line of 128 bytes decides on.
fn boxed(map: &TensorMap, at: [i64; 3], memory: &[u32]) -> Vec<u32> {
    let mut tile = vec![0; 2048];
    let mut number = 0;
    let counts: Vec<u32> = (0..3)
        .map(|axis| map.boxes[axis].div_ceil(if axis == 0 { 1 } else { map.steps[axis] }))
        .collect();
    for z in 0..counts[2] {
        for y in 0..counts[1] {
            for x in 0..counts[0] {
                let place = [x, y * map.steps[1], z * map.steps[2]];
                let place: Vec<i64> =
                    place.iter().zip(at).map(|(&own, at)| i64::from(own) + at).collect();
                let inside =
                    (0..3).all(|axis| (0..map.extents[axis] as i64).contains(&place[axis]));
                let value = if inside {
                    let bytes = place[0] * 4 + place[1] * 96 + place[2] * 1056;
                    memory[bytes as usize / 4]
                } else if map.fills_nan {
                    0x7fff_ffff
                } else {
                    0
                };
                let (chunk, line) = (number / 4, number / 32);
                // Of each line of 128 bytes, whatever the box's own lines are.
                let modes = [0, line % 2, line % 4, line % 8];
                tile[(chunk ^ modes[map.swizzle as usize]) * 4 + number % 4] = value;
                number += 1;
            }
        }
    }
    tile
}

/// If this fails, tiles that kernels load by tensor maps hold the wrong elements.
#[test]
fn boxes_of_tensors_come_and_go() {
    let memory: Vec<u32> = (0..1024).map(|i| 0x4000_0000 + i).collect();
    let cases = [
        (Swizzle::None, false, [16, 4, 2], [1, 1, 1], [0, 0, 0]),
        (Swizzle::Bytes128, false, [32, 8, 1], [1, 1, 1], [4, 3, 1]),
        (Swizzle::Bytes64, true, [16, 8, 2], [1, 1, 1], [-3, -2, 2]),
        (Swizzle::Bytes32, false, [8, 4, 3], [1, 1, 1], [17, 8, 0]),
        (Swizzle::None, true, [4, 8, 3], [1, 2, 1], [5, 1, 0]),
        (Swizzle::None, false, [8, 2, 1], [1, 1, 1], [40, 0, 0]),
    ];
    for (swizzle, fills_nan, boxes, steps, at) in cases {
        let map = tensor(swizzle, fills_nan, boxes, steps);
        let bytes: u64 = (0..3).map(|axis| map.count(axis)).product::<u64>() * 4;
        let coordinates = at.map(|at: i64| at.to_string()).join(", ");
        let one = format!(
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {bytes};\n\
             cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes \
             [%tile], [%map, {{{coordinates}}}], [%bar];"
        );
        // Back, to a tensor of the same form elsewhere.
        let all = format!(
            "@%one bra SKIP;\nmov.u32 %r2, 0;\n\
             cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group \
             [%map+128, {{{coordinates}}}], [%tile];\ncp.async.bulk.commit_group;\n\
             cp.async.bulk.wait_group 0;\nSKIP:"
        );
        let bench = copying(&one, &all);
        bench.put(0x1000, &memory);
        bench.put(0, &map.to_bytes());
        bench.put(128, &TensorMap { address: BASE + 0x3000, ..map }.to_bytes());
        bench.run("test", 1, 32, &[BASE, BASE]).unwrap_or_else(|fault| panic!("{map:?}: {fault}"));
        let wanted = boxed(&map, at, &memory);
        let words = bytes as usize / 4;
        assert_eq!(bench.get::<u32>(D, words), wanted[..words], "{map:?}");
        let inside: Vec<u32> =
            wanted.into_iter().filter(|&word| word >> 30 == 1 && word != 0x7fff_ffff).collect();
        let back: Vec<u32> = bench.get::<u32>(0x3000, 1024);
        let mut moved: Vec<u32> = back.iter().copied().filter(|&word| word != 0).collect();
        assert!(back.iter().zip(&memory).all(|(back, word)| *back == 0 || back == word), "{map:?}");
        let mut inside = inside;
        inside.sort_unstable();
        moved.sort_unstable();
        assert_eq!(moved, inside, "{map:?}");
    }
}

/// If this fails, maps that a kernel makes do not work, as Triton's tensor descriptors.
#[test]
fn kernels_make_maps() {
    let map = tensor(Swizzle::Bytes128, false, [32, 8, 1], [1, 1, 1]);
    let replace = |word: &str, ty: &str, operands: &str| {
        format!("tensormap.replace.tile.{word}.shared::cta.b1024.{ty} [%tile+4096], {operands};\n")
    };
    let mut one = String::new();
    one += &format!("add.s64 %o, %base, 4096;\n{}", replace("global_address", "b64", "%o"));
    one += &replace("rank", "b32", "2");
    for axis in 0..3 {
        for (word, value) in [
            ("box_dim", map.boxes[axis]),
            ("global_dim", map.extents[axis] as u32),
            ("element_stride", map.steps[axis]),
        ] {
            one += &format!("mov.b32 %r3, {value};\n");
            one += &replace(word, "b32", &format!("{axis}, %r3"));
        }
    }
    for axis in 0..2 {
        // In units of 16 bytes, as before PTX 8.5.
        one += &format!("mov.b64 %o, {};\n", map.strides[axis] / 16);
        one += &replace("global_stride", "b64", &format!("{axis}, %o"));
    }
    for (word, value) in
        [("elemtype", 7), ("interleave_layout", 0), ("swizzle_mode", 3), ("fill_mode", 0)]
    {
        one += &replace(word, "b32", &value.to_string());
    }
    one += "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned \
            [%map], [%tile+4096], 128;\n\
            fence.proxy.tensormap::generic.acquire.gpu [%map], 128;\n\
            mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%bar], 1024;\n\
            mbarrier.arrive.shared::cta.b64 _, [%bar];\n\
            cp.async.bulk.tensor.3d.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint \
            [%tile], [%map, {4, 3, 1}], [%bar], %base;";
    let memory: Vec<u32> = (0..1024).map(|i| 0x4000_0000 + i).collect();
    let bench = copying(&one, "");
    bench.put(0x1000, &memory);
    bench.run("test", 1, 32, &[BASE, BASE + 256]).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(bench.get::<u8>(256, 128), map.to_bytes());
    assert_eq!(bench.get::<u32>(D, 256), boxed(&map, [4, 3, 1], &memory)[..256]);
    assert!(Field::named("rank").is_some());
}

/// If this fails, a kernel that was given something else than a tensor map ends without a word.
#[test]
fn what_is_no_map_is_named() {
    let one = "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes \
               [%tile], [%map, {0, 0}], [%bar];";
    let fault = copying(one, "").run("test", 1, 32, &[BASE, BASE]).unwrap_err();
    assert_eq!(fault.kind, FaultKind::InvalidBulk);
    assert!(fault.detail.contains("tensor map"), "{fault}");
}

/// If this fails, kernels that are written for clusters do not run as clusters of one block.
#[test]
fn a_cluster_of_one_block() {
    let body = "mov.u32 %r1, %cluster_ctarank;\nmov.u32 %r2, %cluster_nctarank;\n\
         setmaxnreg.inc.sync.aligned.u32 232;\n\
         barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n\
         mapa.shared::cluster.u32 %r3, %t, 0;\ngetctarank.shared::cluster.u32 %r4, %r3;\n\
         add.u32 %r5, %r1, %r2;\nadd.u32 %r5, %r5, %r3;\nadd.u32 %r5, %r5, %r4;\n\
         barrier.cluster.arrive;\nbarrier.cluster.wait;\nst.global.u32 [%a4], %r5;";
    let bench = Bench::of_body(body);
    bench.run("test", 1, 96, &[BASE]).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(bench.get::<u32>(0, 96), (1..97).collect::<Vec<u32>>());
}
