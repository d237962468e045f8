//! Litmus tests: small programs, and what may come of them in the weak memory. They show whether
//! the memory is PTX's: `hwsim litmus FILE...` runs them.

mod condition;
mod parse;

use std::collections::{BTreeMap, HashMap};

pub use condition::{Formula, Name, Outcome, Quantifier};
pub use parse::{LitmusError, parse};

use crate::memory::{AtomicOp, AtomicType, Order, Strength};
use crate::weak::{AgentId, Choose, Every, Options, Place, WeakMemory};

/// Steps of one thread, at most: loops that go on for longer are cut off.
const STEPS_MAX: usize = 24;

/// An operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A constant.
    Number(i64),
    /// What a register holds.
    Register(String),
}

/// One step of a thread. Locations are words of 32 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names are PTX's own.
pub enum Instruction {
    Move(String, Value),
    Add(String, Value, Value),
    Load(Strength, String, String),
    Store(Strength, String, Value),
    Fence(Strength),
    Atomic {
        strength: Strength,
        op: AtomicOp,
        register: Option<String>,
        location: String,
        operand: Value,
        compare: Value,
    },
    /// Of all threads of the block.
    Barrier(Value),
    /// If both are equal, or unequal: go there.
    Branch(Value, Value, bool, String),
    Jump(String),
    Label(String),
}

impl Instruction {
    fn target(&self) -> Option<&str> {
        match self {
            Self::Branch(.., label) | Self::Jump(label) => Some(label),
            _ => None,
        }
    }

    fn location(&self) -> Option<&str> {
        match self {
            Self::Load(_, _, location)
            | Self::Store(_, location, _)
            | Self::Atomic { location, .. } => Some(location),
            _ => None,
        }
    }

    /// Does another thread notice when it is done?
    fn is_private(&self) -> bool {
        match self {
            Self::Fence(strength) => strength.order != Order::SequentiallyConsistent,
            Self::Load(..) | Self::Store(..) | Self::Atomic { .. } | Self::Barrier(_) => false,
            _ => true,
        }
    }
}

/// A test.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Test {
    /// Its name.
    pub name: String,
    /// Initial values.
    pub locations: Vec<(String, i64)>,
    /// The same of registers, by thread.
    pub registers: Vec<(usize, String, i64)>,
    /// Where each thread runs, and its instructions.
    pub threads: Vec<(Place, Vec<Instruction>)>,
    /// What is claimed.
    pub claim: Option<(Quantifier, Formula)>,
}

/// What came of all runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Each outcome, and in how many runs.
    pub outcomes: BTreeMap<Outcome, u64>,
    /// Runs that ended.
    pub runs: u64,
    /// Runs in which a thread went on for too long, or waits for good.
    pub cut: u64,
    /// Were these all runs that there are?
    pub is_complete: bool,
}

impl Report {
    /// Does the test's claim hold? None if it has none.
    pub fn verdict(&self, test: &Test) -> Option<bool> {
        let (quantifier, formula) = test.claim.as_ref()?;
        let mut outcomes = self.outcomes.keys();
        Some(match quantifier {
            Quantifier::Exists => outcomes.any(|outcome| formula.holds(outcome)),
            Quantifier::NotExists => !outcomes.any(|outcome| formula.holds(outcome)),
            Quantifier::Forall => outcomes.all(|outcome| formula.holds(outcome)),
        })
    }
}

impl Test {
    /// Runs it in every way, but at most so many ways.
    pub fn enumerate(&self, runs_max: u64) -> Report {
        let mut every = Every::default();
        let mut report = Report::default();
        while report.runs + report.cut < runs_max {
            let shared = Shared(std::rc::Rc::new(std::cell::RefCell::new(every)));
            match self.run(Box::new(shared.clone())) {
                Some(outcome) => {
                    *report.outcomes.entry(outcome).or_default() += 1;
                    report.runs += 1;
                }
                None => report.cut += 1,
            }
            every = shared.0.take();
            if !every.advance() {
                report.is_complete = true;
                break;
            }
        }
        report
    }

    /// One run. None if it was cut off.
    pub fn run(&self, choices: Box<dyn Choose>) -> Option<Outcome> {
        let memory = WeakMemory::new(choices, Options::default());
        let mut addresses = HashMap::new();
        for (name, value) in &self.locations {
            let address = memory.allocate(name, 4);
            memory.set(address, &(*value as u32).to_le_bytes()).ok()?;
            addresses.insert(name.as_str(), address);
        }
        let mut machine = Machine { test: self, memory, addresses, threads: Vec::new() };
        for (number, (place, _)) in self.threads.iter().enumerate() {
            let registers = self.registers.iter().filter(|(thread, ..)| *thread == number);
            machine.threads.push(Thread {
                agent: machine.memory.agent(*place),
                pc: 0,
                steps: 0,
                registers: registers.map(|(_, name, value)| (name.clone(), *value)).collect(),
                late: HashMap::new(),
                barrier: None,
                generations: HashMap::new(),
            });
        }
        machine.run()
    }
}

/// Choices that are needed again when the run is over.
#[derive(Clone)]
struct Shared(std::rc::Rc<std::cell::RefCell<Every>>);

impl Choose for Shared {
    fn choose(&mut self, among: usize) -> usize {
        self.0.borrow_mut().choose(among)
    }
}

struct Thread {
    agent: AgentId,
    pc: usize,
    steps: usize,
    registers: HashMap<String, i64>,
    /// Loads that nothing depends on: their numbers, by register.
    late: HashMap<String, u64>,
    /// The barrier that it waits at.
    barrier: Option<u8>,
    /// How often it passed each.
    generations: HashMap<u8, u64>,
}

struct Machine<'a> {
    test: &'a Test,
    memory: WeakMemory,
    addresses: HashMap<&'a str, u64>,
    threads: Vec<Thread>,
}

impl Machine<'_> {
    fn run(mut self) -> Option<Outcome> {
        for thread in 0..self.threads.len() {
            self.run_privately(thread)?;
        }
        loop {
            let can_run = |thread: &usize| {
                let ended = self.threads[*thread].pc >= self.test.threads[*thread].1.len();
                !ended && self.threads[*thread].barrier.is_none()
            };
            let ready: Vec<usize> = (0..self.threads.len()).filter(can_run).collect();
            if ready.is_empty() {
                let waits = self.threads.iter().any(|thread| thread.barrier.is_some());
                return if waits { None } else { Some(self.outcome()) };
            }
            let thread = ready[self.memory.choose(ready.len())];
            self.step(thread)?;
            self.take_news();
            self.run_privately(thread)?;
        }
    }

    /// What nobody else notices needs no choice.
    fn run_privately(&mut self, thread: usize) -> Option<()> {
        let code = &self.test.threads[thread].1;
        while self.threads[thread].barrier.is_none()
            && code.get(self.threads[thread].pc).is_some_and(Instruction::is_private)
        {
            self.step(thread)?;
        }
        Some(())
    }

    fn outcome(&self) -> Outcome {
        let mut outcome = Outcome::new();
        let Some((_, formula)) = &self.test.claim else { return outcome };
        for name in formula.names() {
            let value = match &name {
                Name::Register(thread, register) => {
                    let thread = self.threads.get(*thread);
                    thread.and_then(|thread| thread.registers.get(register)).copied()
                }
                Name::Location(location) => self.addresses.get(location.as_str()).map(|address| {
                    let mut bytes = [0; 4];
                    let _ = self.memory.get(*address, &mut bytes);
                    i64::from(i32::from_le_bytes(bytes))
                }),
            };
            outcome.insert(name, value.unwrap_or(0));
        }
        outcome
    }

    /// Sets registers anew whose loads have come to see a later store.
    fn take_news(&mut self) {
        for (number, value) in self.memory.take_news() {
            for thread in &mut self.threads {
                let late = thread.late.iter().find(|(_, it)| **it == number);
                if let Some((register, _)) = late {
                    thread.registers.insert(register.clone(), i64::from(value as u32 as i32));
                }
            }
        }
    }

    /// Sets a register; what it held before is of no use to anybody.
    fn set(&mut self, thread: usize, register: &str, value: i64) {
        let thread = &mut self.threads[thread];
        if let Some(number) = thread.late.remove(register) {
            self.memory.settle(number);
        }
        thread.registers.insert(register.to_owned(), value);
    }

    fn value(&self, thread: usize, value: &Value) -> i64 {
        match value {
            Value::Number(number) => *number,
            Value::Register(name) => {
                let thread = &self.threads[thread];
                if let Some(number) = thread.late.get(name) {
                    self.memory.settle(*number);
                }
                thread.registers.get(name).copied().unwrap_or(0)
            }
        }
    }

    fn jump(&mut self, thread: usize, label: &str) {
        let code = &self.test.threads[thread].1;
        let is_label = |it: &Instruction| matches!(it, Instruction::Label(name) if name == label);
        self.threads[thread].pc = code.iter().position(is_label).unwrap_or(code.len());
    }

    /// One instruction. None if the thread has gone on for too long.
    fn step(&mut self, thread: usize) -> Option<()> {
        let test = self.test;
        let state = &mut self.threads[thread];
        let instruction = &test.threads[thread].1[state.pc];
        (state.pc, state.steps) = (state.pc + 1, state.steps + 1);
        if state.steps > STEPS_MAX {
            return None;
        }
        let agent = state.agent;
        match instruction {
            Instruction::Move(register, value) => {
                let value = self.value(thread, value);
                self.set(thread, register, value);
            }
            Instruction::Add(register, a, b) => {
                let value = self.value(thread, a) + self.value(thread, b);
                self.set(thread, register, value);
            }
            Instruction::Load(strength, register, location) => {
                let mut bytes = [0; 4];
                let address = self.addresses[location.as_str()];
                let number = self.memory.read_late(agent, address, *strength, &mut bytes).ok()?;
                self.set(thread, register, i64::from(i32::from_le_bytes(bytes)));
                self.threads[thread].late.insert(register.clone(), number);
            }
            Instruction::Store(strength, location, value) => {
                let bytes = (self.value(thread, value) as i32).to_le_bytes();
                let address = self.addresses[location.as_str()];
                self.memory.write(agent, address, 4, *strength, &bytes).ok()?;
            }
            Instruction::Fence(strength) => self.memory.fence(agent, *strength),
            Instruction::Atomic { strength, op, register, location, operand, compare } => {
                let operand = self.value(thread, operand) as u32;
                let compare = self.value(thread, compare) as u32;
                let (address, ty) = (self.addresses[location.as_str()], AtomicType::B32);
                let (operand, compare) = (operand.into(), compare.into());
                let old = self
                    .memory
                    .atomic(agent, address, *op, ty, *strength, operand, compare)
                    .ok()?;
                if let Some(register) = register {
                    let old = i64::from(old as u32 as i32);
                    self.set(thread, register, old);
                }
            }
            Instruction::Barrier(id) => {
                let id = self.value(thread, id) as u8;
                self.arrive(thread, id);
            }
            Instruction::Branch(a, b, equal, label) => {
                if (self.value(thread, a) == self.value(thread, b)) == *equal {
                    self.jump(thread, label);
                }
            }
            Instruction::Jump(label) => self.jump(thread, label),
            Instruction::Label(_) => {}
        }
        Some(())
    }

    /// Comes to a barrier of its block, and ends it if it is the last one.
    fn arrive(&mut self, thread: usize, id: u8) {
        let place = self.test.threads[thread].0;
        let generation = self.threads[thread].generations.get(&id).copied().unwrap_or(0);
        self.memory.arrive(self.threads[thread].agent, id, generation);
        self.threads[thread].barrier = Some(id);
        let members = (0..self.threads.len()).filter(|other| self.test.threads[*other].0 == place);
        let members: Vec<usize> = members.collect();
        if members.iter().any(|member| self.threads[*member].barrier != Some(id)) {
            return;
        }
        for member in members {
            let state = &mut self.threads[member];
            state.barrier = None;
            *state.generations.entry(id).or_default() += 1;
            self.memory.leave(state.agent, id, generation);
        }
    }
}
