//! Mutated modules: whatever a program hands to the driver as PTX is an error or a module, in
//! bounded time and memory, and a module's kernels end, fault or run on, but never break the
//! interpreter. If this fails, a text takes down the process of whoever loads it.
//!
//! See `tests/support/mutation.rs` at the root for the variables that make it longer, or play one
//! case again.

#[path = "../../../tests/support/mutation.rs"]
mod mutation;

use hwsim_ptx::flat::FlatMemory;
use hwsim_ptx::{Block, Clock, Fault, Kernel, Launch, LinkedModule, Module, Progress};
use mutation::{Campaign, Input, corpus, mutate};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::cell::Cell;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// All that one case may ask for, freed or not: far above what the largest of the corpus takes, far
/// below what a small machine has.
const ALLOCATED_MAX: usize = 1 << 30;
/// Warp instructions that a kernel may take.
const STEPS_MAX: u64 = 20_000;
/// Where the kernels' memory is, and how much of it.
const BASE: u64 = 0x7000_0000_0000;
const MEMORY_BYTES: usize = 1 << 20;
/// What a launch is given at most: the driver refuses the rest.
const PARAM_BYTES_MAX: usize = 4096;
const SHARED_BYTES_MAX: u32 = 227 << 10;

struct Ticks(AtomicU64);

impl Clock for Ticks {
    fn now_ns(&self) -> u64 {
        self.0.fetch_add(100, Ordering::Relaxed)
    }

    fn print(&self, text: &str) {
        assert!(text.len() < 1 << 20, "a kernel printed {} bytes at once", text.len());
    }
}

/// Where each variable is put, if all of them find room.
fn place(module: &Module) -> Option<HashMap<String, u64>> {
    let mut end = MEMORY_BYTES as u64 / 2;
    let mut addresses = HashMap::new();
    for global in module.globals() {
        end = end.checked_next_multiple_of(u64::from(global.align.max(1)))?;
        addresses.insert(global.name.clone(), BASE + end);
        end = end.checked_add(global.size_bytes)?;
    }
    (end <= MEMORY_BYTES as u64).then_some(addresses)
}

/// Runs one block of a kernel until it ends or has had its steps.
fn run(kernel: Arc<Kernel>, memory: &FlatMemory) -> Option<Result<Progress, Fault>> {
    if kernel.param_bytes > PARAM_BYTES_MAX || kernel.static_shared_bytes > SHARED_BYTES_MAX {
        return None;
    }
    // Words that are addresses, and as halves small numbers and large ones.
    let words = (0u64..).flat_map(|word| (BASE + 4096 * word).to_le_bytes());
    let launch = Launch {
        params: words.take(kernel.param_bytes).collect(),
        kernel,
        grid: [2, 1, 1],
        cluster: None,
        block: [40, 1, 1],
        dynamic_shared_bytes: 1024,
        grid_id: 1,
        sm_count: 4,
        grid_workspace: 0,
    };
    let clock = Ticks(AtomicU64::new(0));
    let mut block = Block::new(Arc::new(launch), [1, 0, 0], 1);
    let mut left = STEPS_MAX;
    loop {
        let turn = left.min(1000);
        left -= turn;
        match block.run(memory, &clock, turn) {
            Ok(Progress::Finished) => return Some(Ok(Progress::Finished)),
            Ok(progress) if left == 0 => return Some(Ok(progress)),
            Ok(_) => {}
            Err(fault) => return Some(Err(fault)),
        }
    }
}

/// What became of the inputs.
#[derive(Debug, Default)]
struct Tally {
    refused: Cell<u64>,
    loaded: Cell<u64>,
    finished: Cell<u64>,
    faulted: Cell<u64>,
    unfinished: Cell<u64>,
}

fn count(cell: &Cell<u64>) {
    cell.set(cell.get() + 1);
}

fn run_all(module: &LinkedModule, names: &[String], tally: &Tally) -> Result<(), String> {
    let memory = FlatMemory::new(BASE, MEMORY_BYTES);
    for (name, image) in module.images() {
        if image.len() > MEMORY_BYTES / 2 {
            return Err(format!("the image of {name} has {} bytes", image.len()));
        }
    }
    for name in names {
        let kernel = module.kernel(name).ok_or_else(|| format!("kernel {name} is lost"))?;
        match run(kernel, &memory) {
            None => {}
            Some(Ok(Progress::Finished)) => count(&tally.finished),
            Some(Ok(_)) => count(&tally.unfinished),
            Some(Err(fault)) => {
                count(&tally.faulted);
                let words = fault.to_string();
                if words.is_empty() || words.len() > 2000 {
                    return Err(format!("a fault of {} bytes: {words}", words.len()));
                }
            }
        }
    }
    Ok(())
}

/// Loads a text and runs what it holds.
fn play(bytes: &[u8], tally: &Tally) -> Result<(), String> {
    // As the driver takes it: up to the first NUL, and not as UTF-8 that it is not.
    let text = String::from_utf8_lossy(bytes);
    let before = Region::new(ALLOCATOR);
    let outcome = match Module::load(&text) {
        Err(error) => {
            count(&tally.refused);
            let words = error.to_string();
            let lines = text.lines().count() + 1;
            if error.line as usize > lines || words.len() > 2000 {
                return Err(format!("an error of {} bytes, {lines} lines: {words}", words.len()));
            }
            Ok(())
        }
        Ok(module) => {
            count(&tally.loaded);
            let names: Vec<String> = module.kernels().map(str::to_owned).collect();
            match place(&module).map(|addresses| module.link(&addresses)) {
                // Too large for this memory, or a name that nothing defines.
                None | Some(Err(_)) => Ok(()),
                Some(Ok(module)) => run_all(&module, &names, tally),
            }
        }
    };
    let allocated = before.change().bytes_allocated;
    if allocated > ALLOCATED_MAX {
        return Err(format!(
            "{allocated} bytes were allocated, at most {ALLOCATED_MAX} are needed"
        ));
    }
    outcome
}

/// What has failed once, the fixtures of the parser, and the kernels that the library ships.
fn texts() -> Vec<Input> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = [
        "tests/corpus",
        "tests/by_hand",
        "tests/fixtures/clang19_sm70",
        "tests/fixtures/nvcc13_sm75",
        "tests/fixtures/nvrtc12_sm70",
    ];
    folders.iter().flat_map(|folder| corpus(&root.join(folder), "ptx")).collect()
}

/// One test, because what it allocates is counted over the process.
#[test]
fn mutated_modules_load_and_run_or_are_refused() {
    let campaign = Campaign {
        target: "-p hwsim-ptx --test fuzz",
        test: "mutated_modules_load_and_run_or_are_refused",
        cases: 3000,
    };
    let texts = texts();
    let tally = Tally::default();
    campaign.replay(&texts, |bytes| play(bytes, &tally));
    assert!(tally.finished.get() > 20, "hardly a kernel of the corpus runs: {tally:?}");
    campaign.run(|rng| mutate(rng, &texts), |bytes| play(bytes, &tally));
    println!("{tally:?}");
}
