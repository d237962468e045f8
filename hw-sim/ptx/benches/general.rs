//! How fast one core interprets general code: a tiled product of matrices, a scan of a block, a
//! histogram with atomics, and what one thread does for its block. An element of criterion is a
//! thread-instruction, of which an instruction of a warp is 32.
//! `cargo bench -p hwsim-ptx --bench general`
//!
//! These are speeds of the host, not of any GPU.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use hwsim_ptx::flat::FlatMemory;
use hwsim_ptx::{Block, Clock, Launch, Module, Progress};

/// Where memory begins.
const BASE: u64 = 0x7000_0000_0000;
/// Its size.
const BYTES: usize = 1 << 20;
/// Threads of the block.
const THREADS: u32 = 256;

struct Wall(Instant);

impl Clock for Wall {
    fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

fn kernel(shared: &str, body: &str) -> String {
    format!(
        ".version 7.8\n.target sm_80\n.address_size 64\n\
         .visible .entry test(.param .u64 base) {{\n{shared}\n\
         .reg .b64 %base, %d<16>;\n.reg .b32 %t, %r<64>;\n.reg .f32 %f<64>;\n.reg .pred %p<8>;\n\
         ld.param.u64 %base, [base];\nmov.u32 %t, %tid.x;\n{body}\nret;\n}}\n"
    )
}

/// A tile of 16 × 16 of a product of 256 × 256, by 16 × 16 threads: the textbook kernel.
fn product() -> String {
    let mut inner = String::new();
    for k in 0..16 {
        inner += &format!(
            "ld.shared.f32 %f1, [%r5+{}];\nld.shared.f32 %f2, [%r6+{}];\n\
            fma.rn.f32 %f0, %f1, %f2, %f0;\n",
            k * 4,
            k * 64
        );
    }
    kernel(
        ".shared .align 4 .b8 left[1024];\n.shared .align 4 .b8 right[1024];",
        &format!(
            "and.b32 %r1, %t, 15;\nshr.u32 %r2, %t, 4;\nmov.u32 %r3, left;\nmov.u32 %r4, right;\n\
             mad.lo.u32 %r5, %r2, 64, %r3;\nmad.lo.u32 %r6, %r1, 4, %r4;\n\
             mad.lo.u32 %r7, %r1, 4, %r5;\nmad.lo.u32 %r8, %r2, 64, %r6;\n\
             mad.lo.u32 %r9, %r2, 256, %r1;\nmul.wide.u32 %d1, %r9, 4;\nadd.s64 %d1, %base, %d1;\n\
             add.s64 %d2, %d1, 262144;\nmov.f32 %f0, 0f00000000;\nmov.u32 %r10, 0;\n\
             LOOP:\nld.global.f32 %f3, [%d1];\nld.global.f32 %f4, [%d2];\n\
             st.shared.f32 [%r7], %f3;\nst.shared.f32 [%r8], %f4;\nbar.sync 0;\n{inner}\
             bar.sync 0;\nadd.s64 %d1, %d1, 64;\nadd.s64 %d2, %d2, 16384;\n\
             add.u32 %r10, %r10, 16;\n\
             setp.lt.u32 %p1, %r10, 256;\n@%p1 bra LOOP;\n\
             mul.wide.u32 %d3, %r9, 4;\nadd.s64 %d3, %base, %d3;\nst.global.f32 [%d3+524288], %f0;"
        ),
    )
}

/// The sum of all words before each thread's, 64 times.
fn scan() -> String {
    let mut steps = String::new();
    for distance in [1, 2, 4, 8, 16] {
        steps += &format!(
            "shfl.sync.up.b32 %r2|%p1, %r1, {distance}, 0, -1;\n@%p1 add.s32 %r1, %r1, %r2;\n"
        );
    }
    let mut sums = String::new();
    for warp in 0..7 {
        sums += &format!(
            "ld.shared.u32 %r6, [sums+{}];\nsetp.gt.u32 %p2, %r4, {warp};\n\
            selp.b32 %r6, %r6, 0, %p2;\n\
             add.s32 %r1, %r1, %r6;\n",
            warp * 4
        );
    }
    kernel(
        ".shared .align 4 .b8 sums[32];",
        &format!(
            "mul.wide.u32 %d1, %t, 4;\nadd.s64 %d1, %base, %d1;\nand.b32 %r3, %t, 31;\n\
             shr.u32 %r4, %t, 5;\nmov.u32 %r5, sums;\nmad.lo.u32 %r5, %r4, 4, %r5;\n\
             mov.u32 %r10, 0;\n\
             LOOP:\nld.global.u32 %r1, [%d1];\n{steps}\
             setp.ne.u32 %p3, %r3, 31;\n@%p3 bra REST;\nst.shared.u32 [%r5], %r1;\nREST:\n\
             bar.sync 0;\n\
             {sums}st.global.u32 [%d1+65536], %r1;\nbar.sync 0;\nadd.u32 %r10, %r10, 1;\n\
             setp.lt.u32 %p4, %r10, 64;\n@%p4 bra LOOP;"
        ),
    )
}

/// Bytes counted in shared memory.
fn histogram() -> String {
    kernel(
        ".shared .align 4 .b8 bins[1024];",
        "mov.u32 %r1, bins;\nmad.lo.u32 %r2, %t, 4, %r1;\nmov.u32 %r3, 0;\n\
        st.shared.u32 [%r2], %r3;\n\
         bar.sync 0;\nmul.wide.u32 %d1, %t, 4;\nadd.s64 %d1, %base, %d1;\nmov.u32 %r10, 0;\n\
         LOOP:\nld.global.u32 %r4, [%d1];\nand.b32 %r5, %r4, 255;\nmad.lo.u32 %r6, %r5, 4, %r1;\n\
         atom.shared.add.u32 %r7, [%r6], 1;\nbfe.u32 %r5, %r4, 8, 8;\n\
         mad.lo.u32 %r6, %r5, 4, %r1;\n\
         atom.shared.add.u32 %r7, [%r6], 1;\nbfe.u32 %r5, %r4, 16, 8;\n\
         mad.lo.u32 %r6, %r5, 4, %r1;\n\
         red.shared.add.u32 [%r6], 1;\nadd.s64 %d1, %d1, 1024;\nadd.u32 %r10, %r10, 1;\n\
         setp.lt.u32 %p1, %r10, 64;\n@%p1 bra LOOP;\nbar.sync 0;\nld.shared.u32 %r3, [%r2];\n\
         mul.wide.u32 %d2, %t, 4;\nadd.s64 %d2, %base, %d2;\nst.global.u32 [%d2+131072], %r3;",
    )
}

/// One thread follows a chain of words and mixes them, while the others wait for it.
fn leader() -> String {
    kernel(
        ".shared .align 8 .b8 result[8];",
        "setp.ne.u32 %p1, %t, 0;\n@%p1 bra REST;\nmov.u32 %r10, 0;\nmov.u32 %r1, 0;\n\
         mov.u64 %d3, 0;\n\
         LOOP:\nmul.wide.u32 %d1, %r1, 4;\nadd.s64 %d1, %base, %d1;\nld.global.u32 %r2, [%d1];\n\
         and.b32 %r1, %r2, 65535;\nshr.u32 %r3, %r2, 16;\ncvt.u64.u32 %d2, %r3;\n\
         xor.b64 %d3, %d3, %d2;\nshl.b64 %d4, %d3, 5;\nadd.s64 %d3, %d3, %d4;\n\
         setp.lt.u32 %p2, %r3, 4096;\nselp.b32 %r4, %r3, %r1, %p2;\nadd.u32 %r5, %r4, %r10;\n\
         mad.lo.u32 %r6, %r5, 3, %r2;\nadd.u32 %r10, %r10, 1;\nsetp.lt.u32 %p3, %r10, 1024;\n\
         @%p3 bra LOOP;\nst.shared.u64 [result], %d3;\nREST:\nbar.sync 0;\n\
         mul.wide.u32 %d5, %t, 8;\nadd.s64 %d5, %base, %d5;\nld.shared.u64 %d6, [result];\n\
         st.global.u64 [%d5+524288], %d6;",
    )
}

fn measure(criterion: &mut Criterion, name: &str, text: &str) {
    let module = Module::load(text).unwrap_or_else(|error| panic!("{error}"));
    let module = module.link(&HashMap::new()).expect("no variables");
    let memory = FlatMemory::new(BASE, BYTES);
    // Any byte for those that count bytes, and as floats ordinary numbers.
    let number = |i: u32| (i.wrapping_mul(2_654_435_761) >> 8) as f32 * 1e-4;
    let words: Vec<u32> = (0..BYTES as u32 / 4).map(|i| number(i).to_bits()).collect();
    memory.fill(0, bytemuck::cast_slice(&words));
    let launch = Arc::new(Launch {
        kernel: module.kernel("test").expect("its name"),
        grid: [1; 3],
        cluster: None,
        block: [THREADS, 1, 1],
        dynamic_shared_bytes: 0,
        params: BASE.to_le_bytes().to_vec(),
        grid_id: 0,
        sm_count: 1,
        grid_workspace: 0,
    });
    let clock = Wall(Instant::now());
    let mut block = Block::new(Arc::clone(&launch), [0; 3], 0);
    let mut run = || {
        block.restart([0; 3]);
        while block.run(&memory, &clock, 1 << 20).expect("no fault") != Progress::Finished {}
        block.take_spent()
    };
    let instructions = run();
    let mut group = criterion.benchmark_group("general");
    group.throughput(Throughput::Elements(32 * instructions));
    group.bench_function(name, |bencher| bencher.iter(&mut run));
    group.finish();
}

fn kernels(criterion: &mut Criterion) {
    measure(criterion, "product of tiles", &product());
    measure(criterion, "scan of a block", &scan());
    measure(criterion, "histogram", &histogram());
    measure(criterion, "one thread for a block", &leader());
}

criterion_group!(benches, kernels);
criterion_main!(benches);
