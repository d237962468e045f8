//! Nominal times of tasks, by which the planner divides work and `explain` draws it. They are
//! modelled: from numbers of operations and bytes, with the rates below, for a block of a
//! data-centre GPU with some tens of multiprocessors. Nothing here was measured, and no result
//! depends on it.

use super::memory::Memory;
use super::plan::Program;
use super::task::{Operator, Task, accesses, is_message, uses_tensor_cores};
use super::tensor::Tensor;
use ringdove_kernels::program::TaskKind;
use std::fmt::Write;

/// Of a task: fetching its record, a look at its counters, two barriers.
const TASK_NS: u64 = 1_000;
/// Operations of a block on f32, each nanosecond, without tensor cores.
const OPERATIONS_PER_NS: u64 = 100;
/// The same on f16 and bf16, with tensor cores.
const TENSOR_OPERATIONS_PER_NS: u64 = 800;
/// Bytes of a block, each nanosecond: its share of the memory.
const BYTES_PER_NS: u64 = 15;
/// Of a collective: the hops of a short plan.
const COLLECTIVE_NS: u64 = 10_000;
/// Of a message between ranks: a doorbell or a word, and its way.
const MESSAGE_NS: u64 = 3_000;
/// Bytes of a collective or a put, each nanosecond.
const COLLECTIVE_BYTES_PER_NS: u64 = 10;

/// The nominal time of a task.
pub fn task_ns(task: &Task, operator: &Operator, tensors: &[Tensor]) -> u64 {
    let bytes: u64 = accesses(task, operator)
        .map(|access| access.area.elements() * tensors[access.tensor.0 as usize].element.bytes())
        .sum();
    if is_message(task.kind) {
        let moved = if task.kind == TaskKind::Put { bytes / 2 } else { 0 };
        return MESSAGE_NS + moved / COLLECTIVE_BYTES_PER_NS;
    }
    if task.kind == TaskKind::Collective {
        return COLLECTIVE_NS + bytes / COLLECTIVE_BYTES_PER_NS;
    }
    let elements = u64::from(task.shape.0) * u64::from(task.shape.1);
    let each = match task.kind {
        TaskKind::Matrix | TaskKind::Reduce => 2 * u64::from(task.inner),
        TaskKind::Attention => 4 * u64::from(task.inner),
        _ => 8,
    };
    let operations = elements * (each + operator.expression.len() as u64);
    let rate = match uses_tensor_cores(task, operator, tensors) {
        true => TENSOR_OPERATIONS_PER_NS,
        false => OPERATIONS_PER_NS,
    };
    TASK_NS + (operations / rate).max(bytes / BYTES_PER_NS)
}

/// When a task runs in a modelled iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The task.
    pub task: u32,
    /// Its block; that behind the last stands for the blocks of collectives.
    pub block: u32,
    /// Beginning and end, in nanoseconds.
    pub span_ns: (u64, u64),
    /// The task whose end it waited for, if it waited.
    pub after: Option<u32>,
}

/// Plays one iteration of a verified program with nominal times: by the order of tasks, which is
/// one of those that blocks may take.
pub fn timeline(program: &Program) -> Vec<Slot> {
    let mut free = vec![(0u64, None); program.blocks.len() + 1];
    let mut counters = vec![(0u64, None); program.counters as usize];
    let mut block_of = vec![program.blocks.len(); program.tasks.len()];
    for (block, steps) in program.blocks.iter().enumerate() {
        steps.iter().for_each(|&task| block_of[task as usize] = block);
    }
    let mut slots = Vec::with_capacity(program.tasks.len());
    for (number, task) in (0u32..).zip(&program.tasks) {
        let block = block_of[number as usize];
        let waits = task.waits.iter().filter(|wait| wait.lag == 0);
        let awaited = waits.map(|wait| counters[wait.counter as usize]);
        let (start, after) = awaited.chain([free[block]]).max().unwrap_or_default();
        let end =
            start + task_ns(task, &program.operators[task.operator as usize], &program.tensors);
        free[block] = (end, Some(number));
        if let Some(counter) = task.raises {
            let counter = &mut counters[counter as usize];
            *counter = (*counter).max((end, Some(number)));
        }
        slots.push(Slot { task: number, block: block as u32, span_ns: (start, end), after });
    }
    slots
}

/// A table of operators with modelled times, and the critical path.
pub fn explain(program: &Program) -> String {
    let slots = timeline(program);
    let mut text = String::new();
    let total = slots.iter().map(|slot| slot.span_ns.1).max().unwrap_or(0);
    let micro = |ns: u64| ns as f64 / 1e3;
    let name = |task: u32| {
        let operator = program.tasks[task as usize].operator;
        &program.operators[operator as usize].name
    };
    let mut line = |line: std::fmt::Arguments<'_>| {
        writeln!(text, "{line}").expect("a String takes everything");
    };
    line(format_args!(
        "{} tasks of {} operators on {} blocks, {} collectives; all times are modelled",
        program.tasks.len(),
        program.operators.len(),
        program.blocks.len(),
        program.service.len()
    ));
    let apart = Memory::apart(&program.tensors).bytes;
    line(format_args!(
        "{} bytes of tensors; {apart} where each has bytes of its own",
        program.memory.bytes
    ));
    line(format_args!("{:>10} {:>10} {:>6}  operator", "begins us", "ends us", "tiles"));
    for operator in &program.operators {
        let own = &slots[operator.tasks.0 as usize..operator.tasks.1 as usize];
        let begins = own.iter().map(|slot| slot.span_ns.0).min().unwrap_or(0);
        let ends = own.iter().map(|slot| slot.span_ns.1).max().unwrap_or(0);
        let tiles = operator.tiles();
        line(format_args!(
            "{:>10.1} {:>10.1} {tiles:>6}  {}",
            micro(begins),
            micro(ends),
            operator.name
        ));
    }
    line(format_args!("an iteration: {:.1} us; critical path, from its end:", micro(total)));
    let mut at = slots.iter().find(|slot| slot.span_ns.1 == total);
    while let Some(slot) = at {
        let took = micro(slot.span_ns.1 - slot.span_ns.0);
        line(format_args!("{:>10.1} us  {} (task {})", took, name(slot.task), slot.task));
        at = slot.after.map(|task| &slots[task as usize]);
    }
    text
}
