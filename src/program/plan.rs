//! The planner: from a graph to blocks, their order, and the waits between tasks.
//!
//! Every operator has one counter, which each of its tiles raises. A tile waits for the operators
//! that write what it reads, and for those that use what it writes: of this iteration, if they come
//! before it, and of the last one, if they come after it. A wait that others imply is left out.
//! Tiles go to the block that is free first by the nominal [`cost`](super::cost), in the order of
//! operators, so that all waits of an iteration lead back in that order and no order of residents
//! can deadlock. Collectives have blocks of their own, and begin as soon as their operand is
//! complete.
//!
//! Tensors that share bytes are to the planner what one tensor is: whoever writes there waits for
//! those that used the tensor before.

use super::cost::task_ns;
use super::error::ProgramError;
use super::function::Function;
use super::graph::Graph;
use super::memory::{Memory, may_share};
use super::task::{Access, Operator, Task, Wait, accesses, is_message, is_sent, uses_tensor_cores};
use super::tensor::{Tensor, TensorId};
use ringdove_kernels::op::THREADS_MAX;
use ringdove_kernels::program::TaskKind;
use std::collections::{BTreeMap, HashSet};

/// The most blocks of a program that compute.
const BLOCKS_MAX: u32 = 1024;
/// The most operators: their dependencies are closed over in bits.
const OPERATORS_MAX: usize = 16_384;

/// Tasks in the order of their blocks, with all their waits: what is verified, encoded and run.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// By number.
    pub tensors: Vec<Tensor>,
    /// By number.
    pub operators: Vec<Operator>,
    /// By number: in the order of operators.
    pub tasks: Vec<Task>,
    /// For each block that computes, the numbers of its tasks.
    pub blocks: Vec<Vec<u32>>,
    /// The numbers of the collectives, in their order; blocks of their own run them together.
    pub service: Vec<u32>,
    /// Counters.
    pub counters: u32,
    /// Threads of each block, at least.
    pub threads: u32,
    /// Results of an iteration.
    pub results: u32,
    /// Users' functions, by number.
    pub functions: Vec<Function>,
    /// What is kept for the time after a failure.
    pub kept: Option<Kept>,
    /// Where tensors lie.
    pub memory: Memory,
}

impl Program {
    /// How many tasks tensor cores compute ([`Graph::use_tensor_cores`]), on GPUs that have them
    /// for bf16, too.
    pub fn tensor_core_tasks(&self) -> usize {
        let uses = |task: &&Task| {
            let operator = &self.operators[task.operator as usize];
            uses_tensor_cores(task, operator, &self.tensors)
        };
        self.tasks.iter().filter(uses).count()
    }
}

/// Tensors whose values are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// After every so many iterations.
    pub every: u32,
    /// Which ones.
    pub tensors: Vec<TensorId>,
}

impl Kept {
    /// How many states there is room for. Two iterations are under way at a time, and may be
    /// writing: two states if each iteration has one, else one. One more is the last that is
    /// complete. Another rank may be behind by two iterations if a collective is in each, so the
    /// states before it stay, as many as two iterations have.
    pub fn places(&self) -> u32 {
        if self.every == 1 { 5 } else { 3 }
    }

    /// Those of them that nobody writes.
    pub(super) fn complete(&self) -> u32 {
        if self.every == 1 { 3 } else { 2 }
    }

    /// The place of the state after so many iterations.
    pub(super) fn place(&self, iterations: u64) -> u64 {
        iterations / u64::from(self.every) % u64::from(self.places())
    }
}

/// A set of operators.
#[derive(Clone)]
struct Operators(Vec<u64>);

impl Operators {
    fn none(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    fn contains(&self, number: usize) -> bool {
        self.0[number / 64] >> (number % 64) & 1 != 0
    }

    fn insert(&mut self, number: usize) {
        self.0[number / 64] |= 1 << (number % 64);
    }

    fn extend(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(own, other)| *own |= other);
    }
}

/// The operators that one waits for.
#[derive(Clone, Debug, Default)]
struct Dependencies {
    /// In the same iteration.
    now: Vec<u32>,
    /// In the one before.
    before: Vec<u32>,
}

impl Graph {
    /// Plans the graph for so many blocks that compute.
    ///
    /// # Errors
    /// [`ProgramError::Count`] for a number of blocks, threads or operators that is out of range.
    pub fn plan(mut self, blocks: u32, threads: u32) -> Result<Program, ProgramError> {
        let fault = |what, expected: String, seen: usize| ProgramError::Count {
            what,
            expected,
            seen: seen as u64,
        };
        if !(1..=BLOCKS_MAX).contains(&blocks) {
            return Err(fault("blocks", format!("1 to {BLOCKS_MAX}"), blocks as usize));
        }
        if !(32..=THREADS_MAX).contains(&threads) || !threads.is_multiple_of(32) {
            let expected = format!("a multiple of 32, to {THREADS_MAX}");
            return Err(fault("threads", expected, threads as usize));
        }
        self.add_keeping()?;
        if self.operators.is_empty() || self.operators.len() > OPERATORS_MAX {
            return Err(fault("operators", format!("1 to {OPERATORS_MAX}"), self.operators.len()));
        }
        let results = self.results();
        let Self { tensors, operators, mut tasks, functions, kept, apart, .. } = self;
        let service: Vec<u32> = (0u32..)
            .zip(&tasks)
            .filter_map(|(number, task)| (task.kind == TaskKind::Collective).then_some(number))
            .collect();
        let users = users(&tensors, &operators, &tasks);
        let apart = apart.map(|apart| [apart, opened(&tasks)].concat());
        let memory = memory(&tensors, &users, apart.as_deref());
        let mut conflicts = conflicts(&tensors, &users, &memory, operators.len());
        chain(&service, &tasks, &mut conflicts);
        lanes(&tasks).values().for_each(|lane| chain(lane, &tasks, &mut conflicts));
        for list in &mut conflicts {
            list.sort_unstable();
            list.dedup();
        }
        let dependencies = reduced(&conflicts);
        for task in &mut tasks {
            task.raises = Some(task.operator);
            let of = |list: &[u32], lag: u32| -> Vec<Wait> {
                let count = |number: u32| operators[number as usize].tiles();
                list.iter().map(|&counter| Wait { counter, count: count(counter), lag }).collect()
            };
            let needed = &dependencies[task.operator as usize];
            task.waits = [of(&needed.now, 0), of(&needed.before, 1)].concat();
        }
        let blocks = assign((&operators, &tasks, &tensors), &dependencies, blocks as usize);
        let counters = operators.len() as u32;
        Ok(Program {
            tensors,
            operators,
            tasks,
            blocks,
            service,
            counters,
            threads,
            results,
            functions,
            kept,
            memory,
        })
    }
}

/// What each operator does to each tensor, all tiles together.
fn operator_accesses(operators: &[Operator], tasks: &[Task]) -> Vec<Vec<Access>> {
    let of = |operator: &Operator| {
        let mut all: Vec<Access> = Vec::new();
        let own = &tasks[operator.tasks.0 as usize..operator.tasks.1 as usize];
        for task in own {
            for access in accesses(task, operator) {
                let same = all
                    .iter_mut()
                    .find(|known| known.tensor == access.tensor && known.writes == access.writes);
                match same {
                    // The hull: it has elements that no tile uses only where tiles leave gaps.
                    Some(known) => {
                        let hull = |a: (u32, u32), b: (u32, u32)| (a.0.min(b.0), a.1.max(b.1));
                        known.area.rows = hull(known.area.rows, access.area.rows);
                        known.area.columns = hull(known.area.columns, access.area.columns);
                    }
                    None => all.push(access),
                }
            }
        }
        all
    };
    operators.iter().map(of).collect()
}

/// Of each tensor, the operators that use it, in their order, and how.
type Users = Vec<Vec<(u32, Access)>>;

fn users(tensors: &[Tensor], operators: &[Operator], tasks: &[Task]) -> Users {
    let mut of_tensor: Users = vec![Vec::new(); tensors.len()];
    for (number, accesses) in (0..).zip(&operator_accesses(operators, tasks)) {
        for access in accesses {
            let TensorId(tensor) = access.tensor;
            of_tensor[tensor as usize].push((number, *access));
        }
    }
    of_tensor
}

/// Tensors that tasks write share bytes, but for those that are to be `apart`; `None`: no tensor
/// shares any.
fn memory(tensors: &[Tensor], users: &Users, apart: Option<&[TensorId]>) -> Memory {
    let Some(apart) = apart else { return Memory::apart(tensors) };
    let lifetime = |number: usize| {
        let shares = may_share(&tensors[number]) && !apart.contains(&TensorId(number as u32));
        let (first, last) = users[number].first().zip(users[number].last())?;
        shares.then_some((first.0, last.0))
    };
    let lifetimes: Vec<_> = (0..tensors.len()).map(lifetime).collect();
    Memory::shared(tensors, &lifetimes)
}

/// For each operator, those whose data meets its own, or is to lie in the same bytes, where one of
/// the two writes.
fn conflicts(
    tensors: &[Tensor],
    users: &Users,
    memory: &Memory,
    operators: usize,
) -> Vec<Vec<u32>> {
    let mut found: Vec<Vec<u32>> = vec![Vec::new(); operators];
    let mut conflict = |one: u32, other: u32| {
        found[one as usize].push(other);
        found[other as usize].push(one);
    };
    for users in users {
        for (place, (own, access)) in users.iter().enumerate() {
            for (other, second) in &users[..place] {
                if own != other
                    && (access.writes || second.writes)
                    && access.area.meets(&second.area)
                {
                    conflict(*own, *other);
                }
            }
        }
    }
    let begins = |tensor: usize| users[tensor].first().map(|(first, _)| *first);
    let mut proved = HashSet::new();
    for stretch in memory.stretches(tensors, begins) {
        // Neighbours in time; the last one's neighbour is the first one of the next iteration.
        let pairs = stretch.iter().zip(stretch.iter().cycle().skip(1));
        for (one, other) in pairs.filter(|pair| proved.insert((*pair.0, *pair.1))) {
            for (own, access) in &users[*one] {
                for (other, second) in &users[*other] {
                    if access.writes || second.writes {
                        conflict(*own, *other);
                    }
                }
            }
        }
    }
    found
}

/// From what meets to what must be waited for: without what other waits imply.
fn reduced(conflicts: &[Vec<u32>]) -> Vec<Dependencies> {
    let count = conflicts.len();
    let none = Operators::none(count);
    // Complete before the operator begins: in its iteration, and of the iteration before.
    let (mut now, mut before): (Vec<Operators>, Vec<Operators>) = (Vec::new(), Vec::new());
    let mut found = Vec::with_capacity(count);
    for (own, list) in conflicts.iter().enumerate() {
        let (mut here, mut last) = (none.clone(), none.clone());
        let mut needed = Dependencies::default();
        for &other in list.iter().rev().filter(|other| (**other as usize) < own) {
            if !here.contains(other as usize) {
                needed.now.push(other);
                here.insert(other as usize);
                here.extend(&now[other as usize]);
                last.extend(&before[other as usize]);
            }
        }
        now.push(here);
        before.push(last);
        found.push(needed);
    }
    // What comes later in the order is complete in the iteration before if something that waits
    // for it is.
    for own in 0..count {
        // Those before it may have gained waits since.
        let mut last = before[own].clone();
        for &other in &found[own].now {
            last.extend(&before[other as usize]);
        }
        for &other in conflicts[own].iter().rev().filter(|other| **other as usize >= own) {
            if !last.contains(other as usize) {
                found[own].before.push(other);
                last.insert(other as usize);
                last.extend(&now[other as usize]);
            }
        }
        before[own] = last;
    }
    found
}

/// Collectives share lanes: each waits for the one before it, the first for the last of the
/// iteration before, which may be itself. That is, neighbours conflict.
fn chain(service: &[u32], tasks: &[Task], conflicts: &mut [Vec<u32>]) {
    let operator = |number: &u32| tasks[*number as usize].operator;
    let ends = service.first().zip(service.last());
    let neighbours = service.windows(2).map(|pair| (&pair[0], &pair[1])).chain(ends);
    for (one, other) in neighbours {
        let (one, other) = (operator(one), operator(other));
        conflicts[one as usize].push(other);
        conflicts[other as usize].push(one);
    }
}

/// Tasks that exchange messages with another rank, in their order: by that rank, and whether they
/// send. As collectives do, they share a lane.
pub(super) fn lanes(tasks: &[Task]) -> BTreeMap<(u32, bool), Vec<u32>> {
    let mut lanes: BTreeMap<_, Vec<u32>> = BTreeMap::new();
    for (number, task) in (0..).zip(tasks).filter(|(_, task)| is_message(task.kind)) {
        lanes.entry((task.option, is_sent(task.kind))).or_default().push(number);
    }
    lanes
}

/// Tensors that other ranks put into. They write when they are told, so no other tensor is there.
pub(super) fn opened(tasks: &[Task]) -> Vec<TensorId> {
    let messages = tasks.iter().filter(|task| is_message(task.kind));
    messages.filter_map(|task| task.operands[0].map(|view| view.tensor)).collect()
}

/// Gives each tile to the block that is free first.
fn assign(
    (operators, tasks, tensors): (&[Operator], &[Task], &[Tensor]),
    dependencies: &[Dependencies],
    count: usize,
) -> Vec<Vec<u32>> {
    let mut blocks = vec![Vec::new(); count];
    let mut free_ns = vec![0u64; count];
    let mut ended_ns = vec![0u64; operators.len()];
    for (number, operator) in operators.iter().enumerate() {
        let needed = &dependencies[number].now;
        let ready = needed.iter().map(|&other| ended_ns[other as usize]).max().unwrap_or(0);
        for place in operator.tasks.0..operator.tasks.1 {
            let task = &tasks[place as usize];
            let took = task_ns(task, operator, tensors);
            let ended = if task.kind == TaskKind::Collective {
                ready + took
            } else {
                // Among blocks that are free when the tile is ready, the one that works least.
                let key = |block: &usize| (free_ns[*block].max(ready), free_ns[*block]);
                let block = (0..count).min_by_key(key).expect("there are blocks");
                free_ns[block] = free_ns[block].max(ready) + took;
                blocks[block].push(place);
                free_ns[block]
            };
            ended_ns[number] = ended_ns[number].max(ended);
        }
    }
    blocks.retain(|steps| !steps.is_empty());
    blocks
}
