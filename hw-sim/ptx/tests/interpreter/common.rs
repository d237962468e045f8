//! What the interpreter's tests share: a kernel, its arguments, its memory, its end.
#![allow(dead_code)] // Each test file uses a part.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hwsim_ptx::flat::FlatMemory;
use hwsim_ptx::{Block, Clock, Fault, Launch, LinkedModule, Module, Progress};

/// Where test memory begins.
pub const BASE: u64 = 0x7000_0000_0000;
/// Where module variables begin: an offset in the same memory.
pub const GLOBALS: usize = 1 << 20;
/// Size of test memory.
pub const SIZE: usize = 2 << 20;

/// A clock that ticks when somebody looks, and keeps what kernels print.
#[derive(Default)]
pub struct TestClock {
    now: AtomicU64,
    pub printed: std::sync::Mutex<String>,
}

impl Clock for TestClock {
    fn now_ns(&self) -> u64 {
        self.now.fetch_add(1, Ordering::Relaxed)
    }

    fn print(&self, text: &str) {
        self.printed.lock().unwrap().push_str(text);
    }
}

/// A module with its variables placed in memory.
pub struct Bench {
    pub memory: FlatMemory,
    pub clock: TestClock,
    module: LinkedModule,
}

impl Bench {
    /// Loads a whole module.
    pub fn new(text: &str) -> Self {
        let module = Module::load(text).unwrap_or_else(|error| panic!("{error}"));
        let memory = FlatMemory::new(BASE, SIZE);
        let mut addresses = HashMap::new();
        let mut end = GLOBALS as u64;
        for global in module.globals() {
            end = end.next_multiple_of(u64::from(global.align));
            addresses.insert(global.name.clone(), BASE + end);
            end += global.size_bytes;
        }
        let module = module.link(&addresses).unwrap();
        for (name, image) in module.images() {
            memory.fill((addresses[name] - BASE) as usize, image);
        }
        Self { memory, clock: TestClock::default(), module }
    }

    /// A kernel `test(u64 base)` around a body, with registers of every kind.
    pub fn of_body(body: &str) -> Self {
        Self::new(&module_text(body))
    }

    pub fn launch(&self, kernel: &str, grid: u32, block: u32, params: &[u64]) -> Arc<Launch> {
        let kernel = self.module.kernel(kernel).expect("the kernel is in the module");
        let params = params.iter().flat_map(|param| param.to_le_bytes()).collect();
        Arc::new(Launch {
            kernel,
            grid: [grid, 1, 1],
            cluster: None,
            block: [block, 1, 1],
            dynamic_shared_bytes: 4096,
            params,
            grid_id: 1,
            sm_count: 4,
            grid_workspace: 0,
        })
    }

    /// Runs a grid to its end, a block after the other.
    pub fn run(&self, kernel: &str, grid: u32, block: u32, params: &[u64]) -> Result<(), Fault> {
        let launch = self.launch(kernel, grid, block, params);
        for index in 0..grid {
            let mut block = Block::new(Arc::clone(&launch), [index, 0, 0], index % 4);
            self.finish(&mut block)?;
        }
        Ok(())
    }

    /// Runs a grid in clusters of this shape to its end, a cluster after the other.
    pub fn run_clusters(
        &self,
        (grid, cluster): ([u32; 3], [u32; 3]),
        block: u32,
        params: &[u64],
    ) -> Result<(), Fault> {
        let launch = self.launch("test", 1, block, params);
        let launch = Arc::new(Launch { grid, cluster: Some(cluster), ..(*launch).clone() });
        let [x, y, z] = launch.clusters();
        let mut running: Option<Block> = None;
        for number in 0..x * y * z {
            let index = [number % x, number / x % y, number / (x * y)];
            // What another cluster has left behind is used again, as the machine does.
            match &mut running {
                Some(block) => block.restart(index),
                None => running = Some(Block::on(Arc::clone(&launch), index, 1..4)),
            }
            self.finish(running.as_mut().unwrap())?;
        }
        Ok(())
    }

    /// Runs a block to its end; a kernel that hangs fails the test.
    pub fn finish(&self, block: &mut Block) -> Result<(), Fault> {
        for _ in 0..500 {
            if block.run(&self.memory, &self.clock, 100_000)? == Progress::Finished {
                return Ok(());
            }
        }
        panic!("the block does not end");
    }

    pub fn put<T: bytemuck::NoUninit>(&self, offset: usize, values: &[T]) {
        self.memory.fill(offset, bytemuck::cast_slice(values));
    }

    pub fn get<T: bytemuck::AnyBitPattern>(&self, offset: usize, count: usize) -> Vec<T> {
        let bytes = self.memory.copy(offset, count * size_of::<T>());
        bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
    }
}

/// A module whose one kernel `test` takes a 64-bit base address in `%base`; `%t` is the thread's
/// number, `%a4` and `%a8` are base + 4 and 8 bytes times that.
pub fn module_text(body: &str) -> String {
    format!(
        ".version 8.4\n.target sm_90\n.address_size 64\n\
         .visible .entry test(.param .u64 p0) {{\n\
         .reg .pred %p<16>;\n.reg .b16 %h<32>;\n.reg .b32 %r<32>;\n.reg .b64 %d<32>;\n\
         .reg .f32 %f<32>;\n.reg .f64 %g<32>;\n.reg .b64 %base, %a2, %a4, %a8, %o2, %o4, %o8;\n\
         .reg .b32 %t;\n\
         ld.param.u64 %base, [p0];\nmov.u32 %t, %tid.x;\n\
         mul.wide.u32 %o2, %t, 2;\nmul.wide.u32 %o4, %t, 4;\nmul.wide.u32 %o8, %t, 8;\n\
         add.s64 %a2, %base, %o2;\nadd.s64 %a4, %base, %o4;\nadd.s64 %a8, %base, %o8;\n\
         {body}\nret;\n}}\n"
    )
}
