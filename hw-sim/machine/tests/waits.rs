//! Kernels that wait: what it costs while they do, what wakes them, and when they stop.

use hwsim_machine::command::Command;
use hwsim_machine::copy::{Bulk, Source};
use hwsim_machine::description::Description;
use hwsim_machine::graph::Shape;
use hwsim_machine::wait_value::{Condition, WaitValue, WriteValue};
use hwsim_machine::{Context, Function, LaunchRequest, Machine, Module, Stream};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bodies of loops that wait until the word at `%rd1` reaches `%rd2`, in the forms in which people
/// and compilers write them. `%p1` says who goes on waiting.
const LOOPS: [(&str, &str); 9] = [
    (
        "acquire",
        "WAIT: ld.acquire.sys.u64 %rd5, [%rd1]; setp.lt.u64 %p1, %rd5, %rd2; @%p1 bra WAIT;",
    ),
    (
        "nanosleep",
        "mov.u32 %r1, 8;\nWAIT: ld.volatile.global.u64 %rd5, [%rd1];\n\
         setp.ge.u64 %p1, %rd5, %rd2; @%p1 bra MET; nanosleep.u32 %r1;\n\
         setp.lt.u32 %p2, %r1, 256; @%p2 shl.b32 %r1, %r1, 1; bra WAIT;\nMET:",
    ),
    (
        "several words",
        "WAIT: ld.relaxed.sys.u64 %rd5, [%rd1]; ld.relaxed.sys.u64 %rd6, [%rd1+512];\n\
         or.b64 %rd6, %rd6, %rd5; setp.lt.u64 %p1, %rd6, %rd2; @%p1 bra WAIT;",
    ),
    (
        "one thread, then a barrier",
        "mov.u32 %r1, %tid.x; setp.ne.u32 %p2, %r1, 0; @%p2 bra MET;\n\
         WAIT: ld.acquire.gpu.u64 %rd5, [%rd1]; setp.lt.u64 %p1, %rd5, %rd2; @%p1 bra WAIT;\n\
         MET: bar.sync 0;",
    ),
    (
        "a pointer that is read again each time",
        "WAIT: ld.volatile.global.u64 %rd5, [%rd1]; ld.global.u64 %rd6, [%rd1+8];\n\
         setp.lt.u64 %p1, %rd5, %rd2; @%p1 bra WAIT;",
    ),
    (
        "a sum of zero",
        "WAIT: atom.global.add.u64 %rd5, [%rd1], 0; setp.lt.u64 %p1, %rd5, %rd2; @%p1 bra WAIT;",
    ),
    (
        "an exchange that fails",
        "WAIT: atom.global.cas.b64 %rd5, [%rd1], %rd2, %rd2; setp.lt.u64 %p1, %rd5, %rd2;\n\
         @%p1 bra WAIT;",
    ),
    (
        "a deadline",
        "mov.u64 %rd7, %globaltimer; add.u64 %rd7, %rd7, 60000000000;\n\
         WAIT: ld.acquire.sys.u64 %rd5, [%rd1]; setp.ge.u64 %p1, %rd5, %rd2; @%p1 bra MET;\n\
         mov.u64 %rd6, %globaltimer; setp.lt.u64 %p1, %rd6, %rd7; @%p1 bra WAIT; trap;\nMET:",
    ),
    (
        "a clock every 16 looks",
        "mov.u64 %rd7, %globaltimer; add.u64 %rd7, %rd7, 60000000000;\nROUND: mov.u32 %r1, 0;\n\
         WAIT: ld.relaxed.sys.u64 %rd5, [%rd1]; setp.ge.u64 %p1, %rd5, %rd2; @%p1 bra MET;\n\
         add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 16; @%p1 bra WAIT;\n\
         mov.u64 %rd6, %globaltimer; setp.lt.u64 %p1, %rd6, %rd7; @%p1 bra ROUND; trap;\nMET:",
    ),
];

/// `NAME(watched, value, out)`: waits, then counts itself at `out`.
fn waiting_kernels() -> String {
    let mut text = String::from(".version 7.0\n.target sm_70\n.address_size 64\n");
    for (number, (_, body)) in LOOPS.iter().enumerate() {
        write!(
            text,
            ".visible .entry wait{number}(.param .u64 a, .param .u64 b, .param .u64 c) {{\n\
             .reg .pred %p<4>; .reg .b32 %r<4>; .reg .b64 %rd<9>;\n\
             ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [c];\n{body}\n\
             mov.u32 %r2, %tid.x; setp.ne.u32 %p3, %r2, 0; @%p3 bra DONE;\n\
             atom.global.add.u64 %rd5, [%rd3], 1;\nDONE: ret;\n}}\n"
        )
        .unwrap();
    }
    text
}

const OTHERS: &str = ".version 7.0\n.target sm_70\n.address_size 64\n\
.visible .entry store(.param .u64 a, .param .u64 b, .param .u64 c) {\n\
 .reg .b64 %rd<3>; ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b];\n\
 st.global.u64 [%rd1], %rd2; ret; }\n\
.visible .entry release(.param .u64 a, .param .u64 b, .param .u64 c) {\n\
 .reg .b64 %rd<3>; ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b];\n\
 st.release.sys.global.u64 [%rd1], %rd2; ret; }\n\
.visible .entry max(.param .u64 a, .param .u64 b, .param .u64 c) {\n\
 .reg .b64 %rd<3>; ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b];\n\
 red.global.max.u64 [%rd1], %rd2; ret; }\n\
.visible .entry looks(.param .u64 a, .param .u64 b, .param .u64 c) {\n\
 .reg .pred %p; .reg .b64 %rd<7>; ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b];\n\
 ld.param.u64 %rd3, [c]; ld.global.u64 %rd4, [%rd2];\n\
 WAIT: ld.acquire.sys.u64 %rd5, [%rd1]; setp.eq.u64 %p, %rd5, 0; @%p bra WAIT;\n\
 ld.global.u64 %rd6, [%rd2]; add.u64 %rd6, %rd6, %rd5; st.global.u64 [%rd3], %rd6; ret; }\n\
.visible .entry work(.param .u64 a, .param .u64 b, .param .u64 c) {\n\
 .reg .pred %p; .reg .b64 %rd<5>; ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b];\n\
 mov.u64 %rd3, 0; LOOP: add.u64 %rd3, %rd3, 1; setp.lt.u64 %p, %rd3, %rd2; @%p bra LOOP;\n\
 st.global.u64 [%rd1], %rd3; ret; }\n\
.visible .entry until(.param .u64 a, .param .u64 b, .param .u64 c) {\n\
 .reg .pred %p; .reg .b64 %rd<7>; ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b];\n\
 ld.param.u64 %rd3, [c]; mov.u64 %rd4, %globaltimer; add.u64 %rd4, %rd4, %rd2;\n\
 WAIT: ld.acquire.sys.u64 %rd5, [%rd1]; setp.ne.u64 %p, %rd5, 0; @%p bra DONE;\n\
 mov.u64 %rd6, %globaltimer; setp.lt.u64 %p, %rd6, %rd4; @%p bra WAIT;\n\
 DONE: st.global.u64 [%rd3], 1; ret; }\n\
.visible .entry times(.param .u64 a, .param .u64 b, .param .u64 c) {\n\
 .reg .pred %p; .reg .b64 %rd<7>; ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b];\n\
 ld.param.u64 %rd3, [c]; mov.u64 %rd4, 0;\n\
 WAIT: ld.acquire.sys.u64 %rd5, [%rd1]; setp.ne.u64 %p, %rd5, 0; @%p bra DONE;\n\
 add.u64 %rd4, %rd4, 1; setp.lt.u64 %p, %rd4, %rd2; @%p bra WAIT;\n\
 DONE: st.global.u64 [%rd3], %rd4; ret; }\n\
.visible .entry ring(.param .u64 a, .param .u64 b, .param .u64 c) {\n\
 .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %rd<9>;\n\
 ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [c];\n\
 mov.u32 %r1, %ctaid.x; mov.u32 %r2, %nctaid.x; add.u32 %r3, %r1, 1; rem.u32 %r3, %r3, %r2;\n\
 mad.wide.u32 %rd4, %r1, 24, %rd1; mad.wide.u32 %rd5, %r3, 24, %rd1; mov.u64 %rd6, 0;\n\
 ROUND: add.u64 %rd6, %rd6, 1;\n\
 WAIT: ld.acquire.gpu.u64 %rd7, [%rd4]; setp.lt.u64 %p, %rd7, %rd6; @%p bra WAIT;\n\
 mul.lo.u64 %rd3, %rd3, 6364136223846793005; add.u64 %rd3, %rd3, 1442695040888963407;\n\
 shr.u64 %rd8, %rd3, 58;\n\
 PAUSE: setp.eq.u64 %p, %rd8, 0; @%p bra GO; sub.u64 %rd8, %rd8, 1; bra PAUSE;\n\
 GO: setp.ne.u32 %p, %r3, 0; @!%p add.u64 %rd7, %rd7, 1;\n\
 and.b64 %rd8, %rd3, 4096; setp.eq.u64 %p, %rd8, 0;\n\
 @%p st.global.u64 [%rd5], %rd7; @!%p st.release.gpu.global.u64 [%rd5], %rd7;\n\
 setp.lt.u64 %p, %rd6, %rd2; @%p bra ROUND; ret; }\n";

struct Bench {
    machine: Arc<Machine>,
    context: Arc<Context>,
    waiting: Arc<Module>,
    others: Arc<Module>,
}

impl Bench {
    fn new(workers: usize) -> Self {
        let description = Description::builtin("one-gpu").unwrap();
        let machine = Machine::with_workers(description, workers).unwrap();
        let context = Context::new(Arc::clone(&machine), 0, 0);
        let waiting = Module::load(&context, &waiting_kernels()).unwrap();
        let others = Module::load(&context, OTHERS).unwrap();
        Self { machine, context, waiting, others }
    }

    fn stream(&self) -> Arc<Stream> {
        self.context.create_stream(false, 0)
    }

    /// Device memory that holds zeros.
    fn device(&self) -> u64 {
        let bytes = 4096;
        let address = self.machine.memory.allocate(0, bytes, false, self.context.id).unwrap();
        let source = Source::Pattern { value: 0, width: 4 };
        self.submit(&self.stream(), address, source, bytes);
        self.context.synchronize().unwrap();
        address
    }

    fn submit(&self, stream: &Arc<Stream>, destination: u64, source: Source, bytes: u64) {
        let bulk = Bulk { destination, destination_known: true, source, bytes };
        stream.submit(Command::Bulk(bulk));
    }

    /// A pinned word of the host's.
    fn pinned(&self) -> &'static AtomicU64 {
        let address = self.machine.memory.allocate_host(4096, 0, self.context.id).unwrap();
        // SAFETY: aligned, zero, and mapped until the process ends.
        unsafe { AtomicU64::from_ptr(address as *mut u64) }
    }

    fn read(&self, address: u64) -> u64 {
        // SAFETY: an aligned word of an allocation that lives as long as the machine.
        unsafe { AtomicU64::from_ptr(address as *mut u64) }.load(Ordering::Acquire)
    }

    fn launch(&self, function: &Arc<Function>, grid: u32, stream: &Arc<Stream>, words: [u64; 3]) {
        let shape = Shape {
            grid: [grid, 1, 1],
            block: [64, 1, 1],
            dynamic_shared_bytes: 0,
            cooperative: false,
            cluster: None,
        };
        let params = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        LaunchRequest { function, shape, params }.enqueue(stream).unwrap();
    }

    fn other(&self, name: &str, grid: u32, words: [u64; 3]) -> Arc<Stream> {
        let stream = self.stream();
        self.launch(&self.others.function(name).unwrap(), grid, &stream, words);
        stream
    }

    /// All blocks of every loop's kernel, waiting for the word at `flag` to become 1.
    fn wait_for(&self, flag: u64, grid: u32, out: u64) {
        for number in 0..LOOPS.len() {
            let function = self.waiting.function(&format!("wait{number}")).unwrap();
            self.launch(&function, grid, &self.stream(), [flag, 1, out]);
        }
    }

    /// Tasks of the workers in so much of a quiet while, once everything has settled. On a busy
    /// host the while is longer than asked for.
    fn tasks_in(&self, time: Duration) -> u64 {
        settle(60, || self.machine.scheduler.task_count());
        let (start, before) = (Instant::now(), self.machine.scheduler.task_count());
        std::thread::sleep(time);
        let tasks = self.machine.scheduler.task_count() - before;
        (tasks as f64 * time.as_secs_f64() / start.elapsed().as_secs_f64()) as u64
    }

    fn end(self) {
        self.context.synchronize().unwrap();
        assert_eq!(self.machine.scheduler.rescued_count(), 0, "wake-ups were lost");
        self.machine.stop();
    }
}

/// Lets pass the time in which a count grows by more than `most` in 100 ms.
fn settle(most: u64, count: impl Fn() -> u64) {
    let start = Instant::now();
    let mut before = count();
    while start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(100));
        let now = count();
        if now - before <= most {
            return;
        }
        before = now;
    }
    panic!("blocks that wait do not come to rest");
}

/// Times that are bounded are of a machine with nothing else to do: one of so many tries must keep
/// them, as a test run shares its processors with others.
const TRIES: usize = 5;

/// Does one of a few tries take less than `bar`? None may take very long.
fn is_quick(bar: Duration, mut attempt: impl FnMut() -> Duration) -> bool {
    (0..TRIES).any(|_| {
        let took = attempt();
        assert!(took < bar + Duration::from_secs(20), "{took:?}, expected about {bar:?}");
        took < bar
    })
}

/// One test at a time: the time of the process's processors is measured.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// If this fails, kernels that wait take processors from those that work, or a form of loop is not
/// seen to wait. More blocks than workers, each in each form.
#[test]
fn blocks_that_wait_cost_nothing() {
    let _alone = alone();
    let bench = Bench::new(2);
    // Before anybody waits: to make one waits for all kernels.
    let (flag, out, word) = (bench.device(), bench.device(), bench.device());
    bench.wait_for(flag, 8, out);
    let tasks = bench.tasks_in(Duration::from_millis(500));
    let (start, before) = (Instant::now(), processor_time());
    std::thread::sleep(Duration::from_millis(500));
    let spent = (processor_time() - before).mul_f64(0.5 / start.elapsed().as_secs_f64());
    println!("{} blocks: {tasks} tasks and {spent:?} in 500 ms each", 8 * LOOPS.len());
    // Two forms read clocks: 16 blocks look at theirs every 50 ms.
    assert!(tasks <= 300, "{tasks} tasks in 500 ms");
    // A worker that spins takes all of a processor, or its share of a busy one.
    assert!(spent < Duration::from_millis(150), "{spent:?} of 500 ms");
    // Another kernel runs beside them as if they were not there.
    let working = bench.other("work", 1, [word, 1_000_000, 0]);
    working.wait_idle();
    assert_eq!(bench.read(word), 1_000_000);
    bench.other("release", 1, [flag, 1, 0]);
    bench.context.synchronize().unwrap();
    assert_eq!(bench.read(out), 8 * LOOPS.len() as u64);
    bench.end();
}

/// If this fails, some kind of writer does not wake those who wait: a store, an atomic, a copy, a
/// fill, a stream's write, the host. Each wakes every form of loop.
#[test]
fn every_writer_wakes_every_loop() {
    let _alone = alone();
    type Writer = fn(&Bench, u64);
    let writers: [(&str, Writer); 6] = [
        ("a weak store", |bench, flag| drop(bench.other("store", 1, [flag, 1, 0]))),
        ("a strong store", |bench, flag| drop(bench.other("release", 1, [flag, 1, 0]))),
        ("an atomic", |bench, flag| drop(bench.other("max", 1, [flag, 1, 0]))),
        ("a copy", |bench, flag| {
            let one = bench.pinned();
            one.store(1, Ordering::Release);
            let source = Source::Memory { address: one.as_ptr() as u64, known: true };
            bench.submit(&bench.stream(), flag, source, 8);
        }),
        ("a fill", |bench, flag| {
            bench.submit(&bench.stream(), flag, Source::Pattern { value: 1, width: 1 }, 8);
        }),
        ("a stream", |bench, flag| {
            let write = WriteValue { address: flag, value: 1, wide: true };
            bench.stream().submit(Command::WriteValue(write));
        }),
    ];
    for (name, write) in writers {
        let bench = Bench::new(2);
        let (flag, out) = (bench.device(), bench.device());
        bench.wait_for(flag, 2, out);
        let wait = WaitValue { address: flag, value: 1, condition: Condition::AtLeast, wide: true };
        let stream = bench.stream();
        stream.submit(Command::WaitValue(wait));
        settle(60, || bench.machine.scheduler.task_count());
        assert!(!stream.is_idle());
        let start = Instant::now();
        write(&bench, flag);
        bench.context.synchronize().unwrap();
        println!("{name}: all were awake {:?} later", start.elapsed());
        assert_eq!(bench.read(out), 2 * LOOPS.len() as u64, "{name}");
        bench.end();
    }
}

/// If this fails, a block that waits goes on with memory that was freed meanwhile: what it
/// remembers of allocations outlives them.
#[test]
fn blocks_that_wait_do_not_keep_freed_memory() {
    let _alone = alone();
    for is_freed in [false, true] {
        let bench = Bench::new(2);
        let [flag, other, out] = [(); 3].map(|()| bench.device());
        let reading = bench.other("looks", 1, [flag, other, out]);
        settle(60, || bench.machine.scheduler.task_count());
        assert!(!reading.is_idle());
        if is_freed {
            bench.machine.memory.free(other).unwrap();
        }
        bench.other("release", 1, [flag, 1, 0]);
        let outcome = bench.context.synchronize();
        assert_eq!(outcome.is_err(), is_freed, "{outcome:?}");
        assert_eq!(bench.read(out), u64::from(!is_freed));
        bench.machine.stop();
    }
}

/// If this fails, what the host writes into pinned memory is not seen, or late, or a stream or
/// kernel that waits for it takes a processor.
#[test]
fn the_host_wakes_kernels_without_a_word() {
    let _alone = alone();
    // The next look is due after 2 ms at most. Much more is the work of a rescue.
    assert!(is_quick(Duration::from_millis(300), the_host_wakes));
}

/// How long it takes until kernels and a stream go on that wait for a word of the host's.
fn the_host_wakes() -> Duration {
    let bench = Bench::new(2);
    let (flag, out) = (bench.pinned(), bench.device());
    bench.wait_for(flag.as_ptr() as u64, 2, out);
    let stream = bench.stream();
    let address = flag.as_ptr() as u64;
    let wait = WaitValue { address, value: 1, condition: Condition::AtLeast, wide: true };
    stream.submit(Command::WaitValue(wait));
    // A look every 2 ms, and those of blocks that read clocks.
    settle(100, || bench.machine.scheduler.task_count());
    let start = Instant::now();
    flag.store(1, Ordering::Release);
    bench.context.synchronize().unwrap();
    let late = start.elapsed();
    println!("all were awake {late:?} later");
    assert_eq!(bench.read(out), 2 * LOOPS.len() as u64);
    bench.end();
    late
}

/// If this fails, a wait with a deadline, or with a number of looks, does not end, or far too late.
#[test]
fn bounded_waits_end() {
    let _alone = alone();
    let bench = Bench::new(2);
    let (flag, out) = (bench.device(), bench.device());
    for limit in [Duration::from_micros(20), Duration::from_millis(2), Duration::from_millis(300)] {
        let once = || {
            let start = Instant::now();
            bench.other("until", 4, [flag, limit.as_nanos() as u64, out]).wait_idle();
            let took = start.elapsed();
            println!("until {limit:?}: {took:?}");
            assert!(took >= limit, "{took:?}");
            took
        };
        assert!(is_quick(limit + limit / 4 + Duration::from_millis(200), once), "{limit:?}");
    }
    for looks in [10, 10_000] {
        let start = Instant::now();
        bench.other("times", 1, [flag, looks, out]).wait_idle();
        let took = start.elapsed();
        println!("{looks} looks: {took:?}");
        assert_eq!(bench.read(out), looks);
        assert!(took < Duration::from_secs(10), "{took:?}");
    }
    bench.end();
}

/// If this fails, wake-ups are lost: blocks that go round in a ring, by weak and strong stores into
/// one line, with pauses of a random length, so that stores meet blocks which just fall asleep.
#[test]
fn no_wake_up_is_lost() {
    let _alone = alone();
    for (seed, workers) in [(1u64, 1), (2, 2), (3, 2), (4, 4), (5, 8)] {
        println!("seed {seed}, {workers} workers");
        let bench = Bench::new(workers);
        let mut rings = Vec::new();
        for number in 0..4 {
            let words = bench.device();
            let rounds = 2000;
            rings.push(bench.other("ring", 5, [words, rounds, seed * 1000 + number]));
            // Once: a second thread's store, if it came late, would take the ring's word back.
            let once = Source::Pattern { value: 1, width: 4 };
            bench.submit(&bench.stream(), words, once, 4);
        }
        rings.iter().for_each(|stream| stream.wait_idle());
        bench.end();
    }
}
