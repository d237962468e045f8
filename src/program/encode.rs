//! From a verified program to the image that the kernel reads (`ringdove_kernels::program`).

use super::memory::ALIGN;
use super::plan::{Kept, Program, lanes};
use super::task::{Task, uses_tensor_cores};
use super::tensor::{Origin, Tensor, TensorId, View, batches};
use super::verify::Exchange;
use bytemuck::bytes_of;
use ringdove_kernels::launch::CallArguments;
use ringdove_kernels::program::{
    BATCH_NUMBER_SHIFT, BATCH_OPERANDS_SHIFT, MATRIX_TENSOR_CORES, NO_COUNTER, PROGRAM_MAGIC,
    ProgramBlock, ProgramHeader, ProgramState, ProgramTask, ProgramWait, TASK_ELEMENT_BITS,
    TASK_OPERANDS, TaskElement, TaskKind, TaskOperand,
};
use std::collections::HashMap;

/// Where everything lies in the program's memory, by offsets.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// Of each tensor.
    pub tensors: Vec<usize>,
    /// The tensors whose address each iteration brings.
    pub batches: Vec<TensorId>,
    /// Of each tensor that is kept: the first place, and the distance to the next.
    pub kept: Vec<(usize, usize)>,
    /// Of the [`ProgramState`].
    pub state: usize,
    /// Of the image, whose first part is its header.
    pub image: usize,
    /// Bytes in all.
    pub bytes: usize,
    /// Of the words of messages, which all ranks have at one place, and of what is behind them:
    /// other ranks reach what is before that. Where there are no messages, both are 0.
    pub words: usize,
    pub window: usize,
    counters: usize,
    tables: [usize; 6],
}

impl Layout {
    /// The layout of a program, on one of so many ranks.
    pub fn of(program: &Program, messages: Option<&Exchange>, ranks: u32) -> Self {
        let mut end = program.memory.bytes as usize;
        let (mut words, mut window) = (0, 0);
        if let Some(exchange) = messages {
            words = (exchange.bytes as usize).next_multiple_of(ALIGN as usize);
            window = words + ranks as usize * size_of::<u64>();
            end = window;
        }
        let mut place = |bytes: usize| {
            let offset = end.next_multiple_of(ALIGN as usize);
            end = offset + bytes;
            offset
        };
        let tensors = program.memory.offsets.iter().map(|&offset| offset as usize).collect();
        let mut keep = |kept: &Kept, TensorId(tensor): &TensorId| {
            let bytes = program.tensors[*tensor as usize].bytes() as usize;
            let distance = bytes.next_multiple_of(ALIGN as usize);
            (place(distance * kept.places() as usize), distance)
        };
        let kept = program.kept.iter();
        let kept = kept.flat_map(|kept| kept.tensors.iter().map(move |one| (kept, one)));
        let kept = kept.map(|(kept, one)| keep(kept, one)).collect();
        let counters = place(program.counters as usize * 8);
        let state = place(size_of::<ProgramState>());
        let image = place(size_of::<ProgramHeader>());
        let waits: usize = program.tasks.iter().map(|task| task.waits.len()).sum();
        let instructions: usize = program.operators.iter().map(|one| one.expression.len()).sum();
        // Blocks of collectives share one list of steps; their number is known at the start.
        let steps = program.tasks.len();
        let tables = [
            place((program.blocks.len() + SERVICE_BLOCKS_MAX) * size_of::<ProgramBlock>()),
            place(steps * size_of::<u32>()),
            place(steps * size_of::<ProgramTask>()),
            place(waits * size_of::<ProgramWait>()),
            place(instructions * size_of::<u64>()),
            place(program.service.len() * size_of::<CallArguments>()),
        ];
        let batches = batches(&program.tensors).collect();
        Self {
            tensors,
            batches,
            kept,
            state,
            image,
            bytes: end.max(1),
            words,
            window,
            counters,
            tables,
        }
    }

    /// Device address of a tensor, in memory that begins at `base`. Of a batch: its number, above
    /// the bits of an offset.
    pub fn address(&self, base: u64, tensor: TensorId) -> u64 {
        match self.batches.iter().position(|&batch| batch == tensor) {
            Some(number) => (number as u64) << BATCH_NUMBER_SHIFT,
            None => base + self.tensors[tensor.0 as usize] as u64,
        }
    }
}

/// The most blocks of collectives.
pub(super) const SERVICE_BLOCKS_MAX: usize = 256;

/// What is known when a program starts.
pub(super) struct Start<'a> {
    /// Device address of the program's memory.
    pub base: u64,
    /// Device address of the mailbox.
    pub mailbox: u64,
    /// Of each collective, in order.
    pub calls: &'a [CallArguments],
    /// Blocks that run them.
    pub service_blocks: u32,
    /// Device address of the rings of stamps, and stamps of each; 0 where none are taken.
    pub stamps: (u64, u32),
}

/// The image, to be copied to `layout.image`.
pub(super) fn encode(program: &Program, layout: &Layout, start: &Start<'_>) -> Vec<u8> {
    let address = |offset: usize| start.base + offset as u64;
    let [blocks, steps, tasks, waits, instructions, calls] = layout.tables.map(address);
    let service_blocks = if program.service.is_empty() { 0 } else { start.service_blocks };
    let header = ProgramHeader {
        magic: PROGRAM_MAGIC,
        block_count: service_blocks + program.blocks.len() as u32,
        service_blocks,
        task_count: program.tasks.len() as u32,
        result_count: program.results,
        blocks,
        steps,
        tasks,
        waits,
        instructions,
        calls,
        counters: address(layout.counters),
        state: address(layout.state),
        mailbox: start.mailbox,
        stamps: start.stamps.0,
        stamp_capacity: start.stamps.1,
        batch_count: layout.batches.len() as u32,
        // Known when all ranks have come so far.
        handle: 0,
        words: layout.words as u64,
    };
    let mut image = Image { bytes: vec![0; layout.bytes - layout.image], first: layout.image };
    image.put(layout.image, &header);
    image.put_lists(program, layout, service_blocks);
    image.put_tasks(program, layout, start);
    for (number, call) in start.calls.iter().enumerate() {
        image.put(layout.tables[5] + number * size_of::<CallArguments>(), call);
    }
    image.bytes
}

struct Image {
    bytes: Vec<u8>,
    /// Offset of its first byte in the program's memory.
    first: usize,
}

impl Image {
    fn put<T: bytemuck::NoUninit>(&mut self, offset: usize, value: &T) {
        let at = offset - self.first;
        self.bytes[at..at + size_of::<T>()].copy_from_slice(bytes_of(value));
    }

    /// Blocks, and the list of steps of each.
    fn put_lists(&mut self, program: &Program, layout: &Layout, service_blocks: u32) {
        let [blocks, steps, ..] = layout.tables;
        let service = program.service.len() as u32;
        let mut first = service;
        for number in 0..service_blocks as usize {
            let block = ProgramBlock { first: 0, count: service };
            self.put(blocks + number * size_of::<ProgramBlock>(), &block);
        }
        for (number, list) in (service_blocks as usize..).zip(&program.blocks) {
            let block = ProgramBlock { first, count: list.len() as u32 };
            self.put(blocks + number * size_of::<ProgramBlock>(), &block);
            first += block.count;
        }
        let all = program.service.iter().chain(program.blocks.iter().flatten());
        for (place, task) in all.enumerate() {
            self.put(steps + place * size_of::<u32>(), task);
        }
    }

    fn put_tasks(&mut self, program: &Program, layout: &Layout, start: &Start<'_>) {
        let [_, _, tasks, waits, instructions, _] = layout.tables;
        let mut expressions = Vec::with_capacity(program.operators.len());
        let mut instruction = 0u32;
        for operator in &program.operators {
            expressions.push(instruction);
            // All tiles of an operator have the same tensors.
            let first = &program.tasks[operator.tasks.0 as usize];
            for word in operator.expression.encoded(elements(first, &program.tensors)) {
                self.put(instructions + instruction as usize * size_of::<u64>(), &word);
                instruction += 1;
            }
        }
        let raises = raises(program, start.service_blocks);
        let numbers = numbers(&program.tasks);
        let mut wait = 0u32;
        for (number, task) in program.tasks.iter().enumerate() {
            let operator = &program.operators[task.operator as usize];
            let mut record = record(task, program, layout, start.base);
            (record.waits, record.wait_count) = (wait, task.waits.len() as u32);
            record.expression = match &operator.user {
                Some(call) => call.function,
                None => expressions[task.operator as usize],
            };
            if task.kind == TaskKind::Keep {
                keep(&mut record, task, program, layout);
            }
            if let Some(&(number, count)) = numbers.get(&(number as u32)) {
                (record.value, record.inner) = (number, count);
            }
            record.expression_length = operator.expression.len() as u32;
            if uses_tensor_cores(task, operator, &program.tensors) {
                record.option = MATRIX_TENSOR_CORES;
            }
            if task.kind == TaskKind::Collective {
                let call = program.service.iter().position(|&one| one as usize == number);
                record.option = call.expect("verified: each collective is in the list") as u32;
            }
            self.put(tasks + number * size_of::<ProgramTask>(), &record);
            for one in &task.waits {
                let (all, each) = raises[one.counter as usize];
                let (raises, count) = (all * each, one.count * each);
                let record = ProgramWait { counter: one.counter, raises, count, lag: one.lag };
                self.put(waits + wait as usize * size_of::<ProgramWait>(), &record);
                wait += 1;
            }
        }
    }
}

/// For each counter: tasks that raise it, and how often each of them does. Every block of a
/// collective raises its counter.
fn raises(program: &Program, service_blocks: u32) -> Vec<(u32, u32)> {
    let mut raises = vec![(0, 1); program.counters as usize];
    for task in &program.tasks {
        if let Some(counter) = task.raises {
            let (count, each) = &mut raises[counter as usize];
            *count += 1;
            if task.kind == TaskKind::Collective {
                *each = service_blocks;
            }
        }
    }
    raises
}

/// Of each task that sends or awaits a message: its number among those of its lane, and how many
/// there are.
fn numbers(tasks: &[Task]) -> HashMap<u32, (u32, u32)> {
    let lanes = lanes(tasks).into_values();
    let of = |lane: Vec<u32>| {
        let count = lane.len() as u32;
        (0u32..).zip(lane).map(move |(number, task)| (task, (number, count)))
    };
    lanes.flat_map(of).collect()
}

/// The types of a task's operands.
fn elements(task: &Task, tensors: &[Tensor]) -> [TaskElement; TASK_OPERANDS] {
    let of = |view: View| tensors[view.tensor.0 as usize].element.of_task();
    task.operands.map(|view| view.map(of).unwrap_or_default())
}

fn record(task: &Task, program: &Program, layout: &Layout, base: u64) -> ProgramTask {
    let of = |view: &View| {
        let element = program.tensors[view.tensor.0 as usize].element;
        operand(view, layout.address(base, view.tensor), element.bytes() as u32)
    };
    let operands = task.operands.map(|view| view.as_ref().map(of).unwrap_or_default());
    let types = (0u32..).zip(elements(task, &program.tensors));
    let elements =
        types.fold(0, |all, (number, one)| all | (one as u32) << (number * TASK_ELEMENT_BITS));
    let is_batch = |view: &View| program.tensors[view.tensor.0 as usize].origin == Origin::Batch;
    let in_batches = (0u32..).zip(&task.operands).fold(0, |all, (number, view)| {
        let bit = u32::from(view.as_ref().is_some_and(is_batch));
        all | bit << (BATCH_OPERANDS_SHIFT + number)
    });
    ProgramTask {
        kind: task.kind as u32,
        raises: task.raises.unwrap_or(NO_COUNTER),
        rows: task.shape.0,
        columns: task.shape.1,
        inner: task.inner,
        option: task.option,
        operands,
        value: task.value.to_bits(),
        elements: elements | in_batches,
        ..ProgramTask::default()
    }
}

/// Where a tile that is kept goes: as it lies in its tensor.
fn keep(record: &mut ProgramTask, task: &Task, program: &Program, layout: &Layout) {
    let view = task.operands[1].expect("a task that keeps has a tensor");
    let kept = program.kept.as_ref().expect("or there were no such task");
    let number = kept.tensors.iter().position(|&one| one == view.tensor);
    let (first, distance) = layout.kept[number.expect("one of them")];
    let [to, from, step, ..] = &mut record.operands;
    *to = *from;
    to.address = to.address - layout.tensors[view.tensor.0 as usize] as u64 + first as u64;
    step.address = distance as u64;
}

/// A view of a tensor that lies at this address.
fn operand(view: &View, address: u64, element: u32) -> TaskOperand {
    let row = view.row_elements * element;
    let offset = u64::from(view.area.rows.0) * u64::from(row)
        + u64::from(view.area.columns.0) * u64::from(element);
    let (rows, columns) = if view.transposed { (element, row) } else { (row, element) };
    TaskOperand {
        address: address + offset,
        row_bytes: if view.repeated_rows.is_some() { 0 } else { rows },
        column_bytes: if view.repeated_columns.is_some() { 0 } else { columns },
    }
}
