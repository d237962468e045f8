//! How fast one core interprets the kernels that matter: bytes read and written in a second, with
//! buffers that stay in the cache. `cargo bench -p hwsim-ptx`
//!
//! These are speeds of the host, not of any GPU.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use hwsim_ptx::flat::FlatMemory;
use hwsim_ptx::{Block, Clock, Launch, Module, Progress};

/// Bytes of each buffer.
const BUFFER_BYTES: u64 = 128 * 1024;
/// Where memory begins.
const BASE: u64 = 0x7000_0000_0000;
/// Threads of the block.
const THREADS: u32 = 256;

struct Wall(Instant);

impl Clock for Wall {
    fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

/// A loop over `%n` bytes, in steps of the whole block: `body` handles 16 bytes at `%i`.
fn kernel(unroll: u32, loads: &str, stores: &str) -> String {
    let step = THREADS * 16;
    let mut body = String::new();
    for part in [loads, stores] {
        for copy in 0..unroll {
            let offset = copy * step;
            let first = copy * 8;
            let mut text = part.replace("@off", &offset.to_string());
            for register in 0..8 {
                text = text.replace(&format!("@{register}"), &format!("%f{}", first + register));
            }
            body.push_str(&text);
        }
    }
    format!(
        ".version 7.8\n.target sm_80\n.address_size 64\n\
         .visible .entry test(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 n) {{\n\
         .reg .b64 %a, %b, %c, %n, %i;\n.reg .b32 %t;\n.reg .f32 %f<64>;\n.reg .pred %p;\n\
         ld.param.u64 %a, [a];\nld.param.u64 %b, [b];\nld.param.u64 %c, [c];\n\
         ld.param.u64 %n, [n];\nmov.u32 %t, %tid.x;\nmul.wide.u32 %i, %t, 16;\n\
         add.s64 %a, %a, %i;\nadd.s64 %b, %b, %i;\nadd.s64 %c, %c, %i;\n\
         LOOP:\n{body}\
         add.s64 %a, %a, {stride};\nadd.s64 %b, %b, {stride};\nadd.s64 %c, %c, {stride};\n\
         add.s64 %i, %i, {stride};\nsetp.lt.u64 %p, %i, %n;\n@%p bra LOOP;\nret;\n}}\n",
        stride = step * unroll
    )
}

const LOAD_A: &str = "ld.global.v4.f32 {@0, @1, @2, @3}, [%a+@off];\n";
const LOAD_B: &str = "ld.global.v4.f32 {@4, @5, @6, @7}, [%b+@off];\n";
const ADD: &str = "add.f32 @0, @0, @4;\nadd.f32 @1, @1, @5;\nadd.f32 @2, @2, @6;\n\
                   add.f32 @3, @3, @7;\n";
const STORE: &str = "st.global.v4.f32 [%c+@off], {@0, @1, @2, @3};\n";

fn measure(criterion: &mut Criterion, name: &str, text: &str, streams: u64) {
    let module = Module::load(text).expect("the bench's own kernel");
    let module = module.link(&HashMap::new()).expect("no variables");
    let memory = FlatMemory::new(BASE, 3 * BUFFER_BYTES as usize);
    let buffer = |number: u64| BASE + number * BUFFER_BYTES;
    let params = [buffer(0), buffer(1), buffer(2), BUFFER_BYTES];
    let launch = Arc::new(Launch {
        kernel: module.kernel("test").expect("its name"),
        grid: [1; 3],
        cluster: None,
        block: [THREADS, 1, 1],
        dynamic_shared_bytes: 0,
        params: params.iter().flat_map(|param| param.to_le_bytes()).collect(),
        grid_id: 0,
        sm_count: 1,
        grid_workspace: 0,
    });
    let clock = Wall(Instant::now());
    let mut group = criterion.benchmark_group("interpreter");
    group.throughput(Throughput::Bytes(streams * BUFFER_BYTES));
    group.bench_function(name, |bencher| {
        bencher.iter(|| {
            let mut block = Block::new(Arc::clone(&launch), [0; 3], 0);
            while block.run(&memory, &clock, 1 << 20).expect("no fault") != Progress::Finished {}
        });
    });
    group.finish();
}

fn kernels(criterion: &mut Criterion) {
    let scalar_load = "ld.global.f32 @0, [%a+@off];\nld.global.f32 @4, [%b+@off];\n";
    let scalar = kernel(1, scalar_load, "add.f32 @0, @0, @4;\nst.global.f32 [%c+@off], @0;\n")
        .replace("%t, 16", "%t, 4")
        .replace(&(THREADS * 16).to_string(), &(THREADS * 4).to_string());
    measure(criterion, "vector add f32", &scalar, 3);
    measure(criterion, "copy, v4 x 4", &kernel(4, LOAD_A, STORE), 2);
    let reduce = kernel(4, &format!("{LOAD_A}{LOAD_B}"), &format!("{ADD}{STORE}"));
    measure(criterion, "reduce f32, v4 x 4", &reduce, 3);
}

criterion_group!(benches, kernels);
criterion_main!(benches);
