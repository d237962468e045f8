//! How fast one core interprets matrix instructions: multiplications in a second.
//! `cargo bench -p hwsim-ptx --bench matrices`
//!
//! These are speeds of the host, not of any GPU.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use hwsim_ptx::flat::FlatMemory;
use hwsim_ptx::{Block, Clock, Launch, Module, Progress};

/// Times that the instruction stands in the kernel.
const COPIES: usize = 64;

struct Wall(Instant);

impl Clock for Wall {
    fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

fn measure(criterion: &mut Criterion, name: &str, elements: u64, instruction: &str) {
    let text = format!(
        ".version 8.4\n.target sm_90\n.address_size 64\n.visible .entry test() {{\n\
         .shared .align 16 .b8 s[4096];\n.reg .b32 %a<8>, %at;\n.reg .f32 %c<8>;\n\
         .reg .b32 %i<8>;\nmov.u32 %at, s;\n{}ret;\n}}\n",
        format!("{instruction};\n").repeat(COPIES)
    );
    let module = Module::load(&text).expect("the bench's own kernel");
    let module = module.link(&HashMap::new()).expect("no variables");
    let memory = FlatMemory::new(0x7000_0000_0000, 4096);
    let launch = Arc::new(Launch {
        kernel: module.kernel("test").expect("its name"),
        grid: [1; 3],
        cluster: None,
        block: [32, 1, 1],
        dynamic_shared_bytes: 0,
        params: Vec::new(),
        grid_id: 0,
        sm_count: 1,
        grid_workspace: 0,
    });
    let clock = Wall(Instant::now());
    let mut group = criterion.benchmark_group("matrices");
    group.throughput(Throughput::Elements(elements * COPIES as u64));
    group.bench_function(name, |bencher| {
        bencher.iter(|| {
            let mut block = Block::new(Arc::clone(&launch), [0; 3], 0);
            while block.run(&memory, &clock, 1 << 20).expect("no fault") != Progress::Finished {}
        });
    });
    group.finish();
}

fn matrices(criterion: &mut Criterion) {
    let float = "{%c0, %c1, %c2, %c3}, {%a0, %a1, %a2, %a3}, {%a4, %a5}, {%c0, %c1, %c2, %c3}";
    let whole = float.replace("%c", "%i");
    let mma = |types: &str, registers: &str| format!("mma.sync.aligned.{types} {registers}");
    let f16 = mma("m16n8k16.row.col.f32.f16.f16.f32", float);
    measure(criterion, "mma m16n8k16 f16", 16 * 8 * 16, &f16);
    let tf32 = mma("m16n8k8.row.col.f32.tf32.tf32.f32", float);
    measure(criterion, "mma m16n8k8 tf32", 16 * 8 * 8, &tf32);
    let s8 = mma("m16n8k32.row.col.s32.s8.s8.s32", &whole);
    measure(criterion, "mma m16n8k32 s8", 16 * 8 * 32, &s8);
    let load = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%a0, %a1, %a2, %a3}, [%at]";
    measure(criterion, "ldmatrix x4", 256, load);
}

criterion_group!(benches, matrices);
criterion_main!(benches);
