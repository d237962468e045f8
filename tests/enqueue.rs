//! What a call whose plan is cached costs its caller. Its own test, since it counts allocations of
//! the whole process.

mod hardware;

use cudarc::driver::{CudaSlice, CudaStream};
use hardware::engines::BY_TABLE;
use hardware::{is_real, on_machine_env};
use nix::time::{ClockId, clock_gettime};
use ringdove::{Communicator, ReduceOp, Registered, Settings, open_device};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region as Allocations, StatsAlloc};
use std::alloc::System;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const RANKS: usize = 4;
/// What goes over lanes of stores, and what goes through an engine.
const STORED_BYTES: usize = 8 << 10;
const RUNG_BYTES: usize = 256 << 10;
/// Rounds of calls on all ranks, in each series.
const ROUNDS: usize = 25;
const SERIES: usize = 3;
/// Series until one meets the bar: what slows a machine down may last for some of them.
const SERIES_MAX: usize = 40;
/// The most calls of a rank in one round.
const IN_ROW_MAX: usize = 8;
/// The bar: nanoseconds of a call, the virtual driver's share left out.
const CALL_NS_MAX: u64 = 3_000;

struct Rank {
    communicator: Communicator,
    stream: Arc<CudaStream>,
    registered: Registered<f32>,
    plain: CudaSlice<f32>,
}

fn ranks(bytes: usize) -> Vec<Rank> {
    let contexts: Vec<_> = (0..RANKS).map(|ordinal| open_device(ordinal).unwrap()).collect();
    let communicators = Communicator::init_all(&contexts, &Settings::from_env().unwrap()).unwrap();
    let rank = |communicator: Communicator| {
        let stream = communicator.context().new_stream().unwrap();
        let buffer = || stream.alloc_zeros::<f32>(bytes / 4).unwrap();
        let (registered, plain) = (buffer(), buffer());
        stream.synchronize().unwrap();
        let registered = communicator.register(registered).unwrap();
        Rank { communicator, stream, registered, plain }
    };
    communicators.into_iter().map(rank).collect()
}

/// Processor time, in nanoseconds: of this thread, and of it what the virtual driver takes.
struct Clock {
    driver: extern "C" fn() -> u64,
    /// What one look at the clock takes.
    look: u64,
    _library: libloading::Library,
}

impl Clock {
    fn open() -> Self {
        // SAFETY: the library is loaded already, by the same name.
        let library = unsafe { libloading::Library::new("libcuda.so.1") }.unwrap();
        // SAFETY: this is the function's type, and the library is kept.
        let driver = unsafe { library.get("hwsim_driver_nanoseconds") }.map(|symbol| *symbol);
        let mut clock = Self { driver: driver.unwrap(), look: 0, _library: library };
        let (began, looks) = (clock.now()[0], 1_000);
        (1..looks).for_each(|_| _ = clock.now());
        clock.look = (clock.now()[0] - began) / looks;
        clock
    }

    fn now(&self) -> [u64; 2] {
        let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
        let whole = time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64;
        [whole, (self.driver)()]
    }
}

/// What calls take of the library, in nanoseconds: the least, the median and the mean.
fn measure(ranks: &mut [Rank], clock: &Clock, in_row: usize, registered: bool) -> [u64; 3] {
    let mut all = [0; ROUNDS * RANKS * IN_ROW_MAX];
    let mut count = 0;
    for _ in 0..ROUNDS {
        for Rank { communicator, stream, registered: buffer, plain } in &mut *ranks {
            for _ in 0..in_row {
                let before = clock.now();
                let called = match registered {
                    true => communicator.all_reduce_in_place(buffer, ReduceOp::Sum, stream),
                    false => communicator.all_reduce_in_place(plain, ReduceOp::Sum, stream),
                };
                let [whole, driver] = clock.now();
                called.unwrap();
                all[count] = (whole - before[0]).saturating_sub(driver - before[1] + clock.look);
                count += 1;
            }
        }
        ranks.iter().for_each(|rank| rank.stream.synchronize().unwrap());
    }
    let calls = &mut all[..count];
    calls.sort_unstable();
    [calls[0], calls[count / 2], calls.iter().sum::<u64>() / count as u64]
}

/// The same and the allocations of all threads: of each the least of the series, since others use
/// the machine, too, and other threads may allocate now and then.
fn least(ranks: &mut [Rank], clock: &Clock, in_row: usize, registered: bool) -> [u64; 4] {
    // The first calls make plans.
    measure(ranks, clock, in_row, registered);
    let mut least = [u64::MAX; 4];
    for series in 0..SERIES_MAX {
        if series >= SERIES && is_met(in_row, least) {
            break;
        }
        let allocations = Allocations::new(ALLOCATOR);
        let [fastest, median, mean] = measure(ranks, clock, in_row, registered);
        let change = allocations.change();
        let allocated = (change.allocations + change.reallocations) as u64;
        let seen = [fastest, median, mean, allocated];
        least = std::array::from_fn(|index| least[index].min(seen[index]));
    }
    least
}

/// What else the machine does lengthens medians (benches/README.md has them of a quiet one), but
/// cannot lengthen every call. After a wait a call finds nothing in the caches: the data of virtual
/// GPUs has passed them, as none of real ones would.
fn is_met(in_row: usize, [fastest, _, _, allocated]: [u64; 4]) -> bool {
    (in_row == 1 || fastest <= CALL_NS_MAX) && allocated == 0
}

/// If this fails, whoever enqueues small calls pays more for each than its work on the GPU.
#[test]
fn a_call_on_a_cached_plan_is_cheap_and_allocates_nothing() {
    on_machine_env("pcie4", &[], &[BY_TABLE], || {
        if is_real() {
            return tally::skip("virtual-only", "this test leaves the virtual driver's share out");
        }
        let clock = Clock::open();
        let mut missed = Vec::new();
        for bytes in [STORED_BYTES, RUNG_BYTES] {
            let mut ranks = ranks(bytes);
            for (registered, in_row) in [(true, 1), (false, 1), (true, 8), (false, 8)] {
                let seen = least(&mut ranks, &clock, in_row, registered);
                let [fastest, median, mean, allocated] = seen;
                let calls = ROUNDS * RANKS * in_row;
                let name = format!(
                    "{bytes} bytes, registered: {registered}, {in_row} in a row: fastest \
                     {fastest} ns, median {median} ns, mean {mean} ns; {allocated} allocations in \
                     {calls} calls"
                );
                println!("{name}");
                if !is_met(in_row, seen) {
                    missed.push(name);
                }
            }
        }
        assert!(missed.is_empty(), "at most {CALL_NS_MAX} ns and none: {missed:#?}");
    });
}
