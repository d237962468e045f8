//! Random programs of a block, whose threads part and meet, against a reference that runs them one
//! after the other. Between two meetings (shuffles, votes, barriers) a thread touches nothing of
//! the others but counters that it adds to, so the order of threads cannot matter.
//!
//! The seed of a failure is printed; `HWSIM_PROGRAM_SEED=N` runs that program alone.

use std::fmt::Write;

use fastrand::Rng;

use crate::common::{BASE, Bench};

/// Programs of one run.
const PROGRAMS: u64 = 400;
/// The first seed of those that run every time; later seeds are new with each run.
const FIRST_SEED: u64 = 1;
/// Registers of a thread.
const REGISTERS: usize = 6;
/// Counters of the block.
const COUNTERS: usize = 16;
/// Deepest nesting of branches and loops.
const DEPTH_MAX: u32 = 3;
/// Where the results lie: registers, then counters.
const OUT: usize = 0x1000;
const COUNTS: usize = 0x8000;

/// What a thread does by itself.
#[derive(Clone, Debug)]
enum Own {
    /// `d = a op b`
    Compute { op: usize, d: usize, a: usize, b: usize },
    /// Where `a < b`, and elsewhere.
    If { a: usize, b: usize, yes: Vec<Own>, no: Vec<Own> },
    /// As often as the low bits of `a` say.
    Loop { a: usize, number: usize, body: Vec<Own> },
    /// Adds `b` to the counter that `a` names.
    Count { a: usize, b: usize },
    /// Ends this block of code early where `a` is odd: a jump over the rest.
    Skip { a: usize, rest: Vec<Own> },
}

/// Where threads meet.
#[derive(Clone, Debug)]
enum Meeting {
    /// `shfl.sync`: mode, and lane or distance.
    Shuffle { mode: &'static str, d: usize, a: usize, by: u32 },
    /// `vote.sync.ballot` of the lowest bit.
    Ballot { d: usize, a: usize },
    /// `match.any.sync` of the low bits.
    Match { d: usize, a: usize },
    /// `redux.sync`
    Reduce { op: &'static str, d: usize, a: usize },
    /// Through shared memory, behind a barrier: from the thread whose number differs by these bits.
    Exchange { d: usize, a: usize, bits: u32 },
    /// `barrier.red.popc` of the lowest bit.
    BlockCount { d: usize, a: usize },
}

/// An instruction, and what it does.
type Operation = (&'static str, fn(u32, u32) -> u32);

const OPS: [Operation; 12] = [
    ("add.u32", u32::wrapping_add),
    ("sub.u32", u32::wrapping_sub),
    ("mul.lo.u32", u32::wrapping_mul),
    ("and.b32", |a, b| a & b),
    ("or.b32", |a, b| a | b),
    ("xor.b32", |a, b| a ^ b),
    ("min.s32", |a, b| (a as i32).min(b as i32) as u32),
    ("max.u32", u32::max),
    ("shl.b32", |a, b| a.checked_shl(b).unwrap_or(0)),
    ("shr.u32", |a, b| a.checked_shr(b).unwrap_or(0)),
    ("sad.u32", |a, b| a.abs_diff(b).wrapping_add(b)),
    ("mul.hi.u32", |a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32),
];

/// A program: each part of a thread's own, and the meeting behind it.
struct Program {
    parts: Vec<(Vec<Own>, Meeting)>,
    loops: usize,
    threads: usize,
}

struct Maker {
    random: Rng,
    loops: usize,
}

impl Maker {
    fn register(&mut self) -> usize {
        self.random.usize(..REGISTERS)
    }

    fn own(&mut self, depth: u32) -> Vec<Own> {
        let count = self.random.usize(1..6);
        (0..count).map(|_| self.statement(depth)).collect()
    }

    fn statement(&mut self, depth: u32) -> Own {
        let (a, b, d) = (self.register(), self.register(), self.register());
        let kind = if depth == 0 { self.random.u32(..6) } else { self.random.u32(..10) };
        match kind {
            0..5 => Own::Compute { op: self.random.usize(..OPS.len()), d, a, b },
            5 => Own::Count { a, b },
            6 | 7 => Own::If { a, b, yes: self.own(depth - 1), no: self.own(depth - 1) },
            8 => Own::Skip { a, rest: self.own(depth - 1) },
            _ => {
                self.loops += 1;
                Own::Loop { a, number: self.loops - 1, body: self.own(depth - 1) }
            }
        }
    }

    fn meeting(&mut self) -> Meeting {
        let (a, d) = (self.register(), self.register());
        match self.random.u32(..6) {
            0 => {
                let mode = ["up", "down", "bfly", "idx"][self.random.usize(..4)];
                Meeting::Shuffle { mode, d, a, by: self.random.u32(..32) }
            }
            1 => Meeting::Ballot { d, a },
            2 => Meeting::Match { d, a },
            3 => {
                let op = ["add.u32", "min.s32", "xor.b32"][self.random.usize(..3)];
                Meeting::Reduce { op, d, a }
            }
            4 => Meeting::Exchange { d, a, bits: self.random.u32(..32) },
            _ => Meeting::BlockCount { d, a },
        }
    }
}

fn program(seed: u64) -> Program {
    let mut maker = Maker { random: Rng::with_seed(seed), loops: 0 };
    let threads = 32 * maker.random.usize(1..4);
    let count = maker.random.usize(2..7);
    let parts = (0..count).map(|_| (maker.own(DEPTH_MAX), maker.meeting())).collect();
    Program { parts, loops: maker.loops, threads }
}

/// What a thread's registers hold at first.
fn start(thread: usize, register: usize) -> u32 {
    (thread as u32 + 1).wrapping_mul(0x9e37_79b9).rotate_left(register as u32 * 5) ^ thread as u32
}

fn run_own(code: &[Own], registers: &mut [u32; REGISTERS], counts: &mut [u32; COUNTERS]) {
    for statement in code {
        match statement {
            Own::Compute { op, d, a, b } => {
                registers[*d] = OPS[*op].1(registers[*a], registers[*b]);
            }
            Own::If { a, b, yes, no } => {
                let taken = if registers[*a] < registers[*b] { yes } else { no };
                run_own(taken, registers, counts);
            }
            Own::Loop { a, body, .. } => {
                for _ in 0..registers[*a] & 3 {
                    run_own(body, registers, counts);
                }
            }
            Own::Count { a, b } => {
                let count = &mut counts[registers[*a] as usize % COUNTERS];
                *count = count.wrapping_add(registers[*b]);
            }
            Own::Skip { a, rest } => {
                if registers[*a] & 1 == 0 {
                    run_own(rest, registers, counts);
                }
            }
        }
    }
}

/// The value that a thread gets where all meet.
fn met(meeting: &Meeting, all: &[[u32; REGISTERS]], thread: usize) -> (usize, u32) {
    let (first, lane) = (thread / 32 * 32, thread % 32);
    let warp = |register: usize| (0..32).map(move |lane| all[first + lane][register]);
    let bits = |holds: &dyn Fn(u32) -> bool, register: usize| {
        warp(register)
            .enumerate()
            .fold(0, |bits, (lane, value)| bits | u32::from(holds(value)) << lane)
    };
    match *meeting {
        Meeting::Shuffle { mode, d, a, by } => {
            let by = by as usize;
            let from = match mode {
                "up" if lane >= by => lane - by,
                "down" if lane + by < 32 => lane + by,
                "bfly" => lane ^ by,
                "idx" => by,
                _ => lane,
            };
            (d, all[first + from][a])
        }
        Meeting::Ballot { d, a } => (d, bits(&|value| value & 1 == 1, a)),
        Meeting::Match { d, a } => {
            let own = all[thread][a] & 3;
            (d, bits(&|value| value & 3 == own, a))
        }
        Meeting::Reduce { op, d, a } => {
            let combine: fn(u32, u32) -> u32 = match op {
                "add.u32" => u32::wrapping_add,
                "min.s32" => |a, b| (a as i32).min(b as i32) as u32,
                _ => |a, b| a ^ b,
            };
            (d, warp(a).reduce(combine).unwrap())
        }
        Meeting::Exchange { d, a, bits } => (d, all[thread ^ bits as usize][a]),
        Meeting::BlockCount { d, a } => {
            (d, all.iter().filter(|registers| registers[a] & 1 == 1).count() as u32)
        }
    }
}

/// Registers of all threads, and the counters.
fn reference(program: &Program) -> (Vec<[u32; REGISTERS]>, [u32; COUNTERS]) {
    let mut all: Vec<[u32; REGISTERS]> = (0..program.threads)
        .map(|thread| std::array::from_fn(|register| start(thread, register)))
        .collect();
    let mut counts = [0; COUNTERS];
    for (own, meeting) in &program.parts {
        for registers in &mut all {
            run_own(own, registers, &mut counts);
        }
        let before = all.clone();
        for (thread, registers) in all.iter_mut().enumerate() {
            let (d, value) = met(meeting, &before, thread);
            registers[d] = value;
        }
    }
    (all, counts)
}

/// Writes code as a compiler might: with branches over what is not done, or with predicates.
struct Writer {
    text: String,
    labels: usize,
}

impl Writer {
    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn label(&mut self) -> String {
        self.labels += 1;
        format!("L{}", self.labels)
    }

    fn own(&mut self, code: &[Own]) {
        for statement in code {
            match statement {
                Own::Compute { op, d, a, b } => {
                    let name = OPS[*op].0;
                    // The one with three operands has the second one twice.
                    let third = if name == "sad.u32" { format!(", %x{b}") } else { String::new() };
                    self.line(&format!("{name} %x{d}, %x{a}, %x{b}{third};"));
                }
                Own::If { a, b, yes, no } => {
                    let (other, end) = (self.label(), self.label());
                    self.line(&format!("setp.ge.u32 %p, %x{a}, %x{b};\n@%p bra {other};"));
                    self.own(yes);
                    self.line(&format!("bra {end};\n{other}:"));
                    self.own(no);
                    self.line(&format!("{end}:"));
                }
                Own::Loop { a, number, body } => {
                    let (head, end) = (self.label(), self.label());
                    self.line(&format!("and.b32 %n{number}, %x{a}, 3;\n{head}:"));
                    self.line(&format!("setp.eq.u32 %p, %n{number}, 0;\n@%p bra {end};"));
                    self.own(body);
                    self.line(&format!("sub.u32 %n{number}, %n{number}, 1;\nbra {head};\n{end}:"));
                }
                Own::Count { a, b } => {
                    self.line(&format!(
                        "and.b32 %r1, %x{a}, 15;\nmad.lo.u32 %r1, %r1, 4, %counts;"
                    ));
                    self.line(&format!("red.shared.add.u32 [%r1], %x{b};"));
                }
                Own::Skip { a, rest } => {
                    let end = self.label();
                    self.line(&format!("and.b32 %r1, %x{a}, 1;\nsetp.ne.u32 %p, %r1, 0;"));
                    self.line(&format!("@%p bra {end};"));
                    self.own(rest);
                    self.line(&format!("{end}:"));
                }
            }
        }
    }

    fn meeting(&mut self, meeting: &Meeting) {
        let odd = |a: usize| format!("and.b32 %r1, %x{a}, 1;\nsetp.ne.u32 %p, %r1, 0;\n");
        let text = match *meeting {
            Meeting::Shuffle { mode, d, a, by } => {
                let clamp = if mode == "up" { 0 } else { 31 };
                format!("shfl.sync.{mode}.b32 %x{d}, %x{a}, {by}, {clamp}, -1;")
            }
            Meeting::Ballot { d, a } => format!("{}vote.sync.ballot.b32 %x{d}, %p, -1;", odd(a)),
            Meeting::Match { d, a } => {
                format!("and.b32 %r1, %x{a}, 3;\nmatch.any.sync.b32 %x{d}, %r1, -1;")
            }
            Meeting::Reduce { op, d, a } => format!("redux.sync.{op} %x{d}, %x{a}, -1;"),
            Meeting::Exchange { d, a, bits } => format!(
                "mad.lo.u32 %r1, %t, 4, %places;\nst.shared.u32 [%r1], %x{a};\nbar.sync 0;\n\
                 xor.b32 %r1, %t, {bits};\nmad.lo.u32 %r1, %r1, 4, %places;\n\
                 ld.shared.u32 %x{d}, [%r1];\nbar.sync 0;"
            ),
            Meeting::BlockCount { d, a } => format!("{}bar.red.popc.u32 %x{d}, 0, %p;", odd(a)),
        };
        // Threads may come parted: here the warp meets first, as compilers see to.
        self.line(&format!("bar.warp.sync -1;\n{text}"));
    }
}

fn text(program: &Program) -> String {
    let mut writer = Writer { text: String::new(), labels: 0 };
    for (own, meeting) in &program.parts {
        writer.own(own);
        writer.meeting(meeting);
    }
    let mut store = String::new();
    for register in 0..REGISTERS {
        writeln!(store, "st.global.u32 [%out+{}], %x{register};", OUT + register * 4).unwrap();
    }
    let mut load = String::new();
    for register in 0..REGISTERS {
        writeln!(load, "ld.global.u32 %x{register}, [%out+{}];", OUT + register * 4).unwrap();
    }
    format!(
        ".version 8.4\n.target sm_90\n.address_size 64\n.visible .entry test(.param .u64 p0) {{\n\
         .shared .align 4 .b8 counts[{}];\n.shared .align 4 .b8 places[512];\n\
         .reg .b32 %x<{REGISTERS}>, %n<{}>, %r<4>, %t, %counts, %places;\n\
         .reg .b64 %base, %out;\n.reg .pred %p;\n\
         ld.param.u64 %base, [p0];\nmov.u32 %t, %tid.x;\nmov.u32 %counts, counts;\n\
         mov.u32 %places, places;\nmad.wide.u32 %out, %t, {}, %base;\n{load}\
         mov.u32 %r2, 0;\nsetp.lt.u32 %p, %t, {COUNTERS};\nmad.lo.u32 %r1, %t, 4, %counts;\n\
         @%p st.shared.u32 [%r1], %r2;\nbar.sync 0;\n{}bar.sync 0;\n{store}\
         setp.ge.u32 %p, %t, {COUNTERS};\n@%p bra END;\n\
         mad.lo.u32 %r1, %t, 4, %counts;\nld.shared.u32 %r2, [%r1];\n\
         mad.wide.u32 %out, %t, 4, %base;\nst.global.u32 [%out+{COUNTS}], %r2;\nEND:\nret;\n}}\n",
        COUNTERS * 4,
        program.loops.max(1),
        REGISTERS * 4,
        writer.text,
    )
}

fn check(seed: u64) {
    let program = program(seed);
    let text = text(&program);
    let bench = Bench::new(&text);
    let starts: Vec<u32> = (0..program.threads)
        .flat_map(|thread| (0..REGISTERS).map(move |register| start(thread, register)))
        .collect();
    bench.put(OUT, &starts);
    bench
        .run("test", 1, program.threads as u32, &[BASE])
        .unwrap_or_else(|fault| panic!("HWSIM_PROGRAM_SEED={seed}: {fault}\n{text}"));
    let (registers, counts) = reference(&program);
    let found: Vec<u32> = bench.get(OUT, program.threads * REGISTERS);
    for (thread, wanted) in registers.iter().enumerate() {
        let found = &found[thread * REGISTERS..][..REGISTERS];
        assert_eq!(found, wanted, "HWSIM_PROGRAM_SEED={seed}: thread {thread}\n{text}");
    }
    let found: Vec<u32> = bench.get(COUNTS, COUNTERS);
    assert_eq!(found, counts, "HWSIM_PROGRAM_SEED={seed}: counters\n{text}");
}

/// If this fails, threads that part and meet again compute something else than they would alone.
#[test]
fn random_programs_of_a_block() {
    if let Ok(seed) = std::env::var("HWSIM_PROGRAM_SEED") {
        return check(seed.parse().expect("a number"));
    }
    let fresh = fastrand::u64(..);
    for number in 0..PROGRAMS {
        check(if number % 2 == 0 { FIRST_SEED + number } else { fresh.wrapping_add(number) });
    }
}
