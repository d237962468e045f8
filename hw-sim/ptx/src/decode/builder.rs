//! Puts a kernel together with all functions that it can reach.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::allocate::{Allocation, allocate};
use super::common::Front;
use super::function::FunctionDecoder;
use super::layout::{LayoutCursor, variable_align, variable_bytes};
use super::matrix::Layout;
use super::{DecodeError, text};
use super::{accumulate, fuse, order, products, sweep};
use crate::ast::{self, Linkage, StateSpace, Variable};
use crate::exec::matrix::element::Places;
use crate::exec::program::{Call, Constant, Instruction, Op, Program, Target};
use crate::exec::registers::{CONSTANT, LANES, RegisterSpan, Row, predicate};

/// Local memory kept for recursion, in bytes for each thread.
const RECURSION_BYTES: u32 = 32 * 1024;
/// Local memory of a thread at most, as on all devices.
const LOCAL_BYTES_MAX: u32 = 512 * 1024;
/// Alignment of dynamic shared memory.
const DYNAMIC_ALIGN: u32 = 16;

/// Names of a module, and the functions whose address somebody takes.
pub struct Index<'m> {
    functions: HashMap<&'m str, usize>,
    variables: HashMap<&'m str, &'m Variable>,
    taken: Vec<usize>,
    module: &'m ast::Module,
}

impl<'m> Index<'m> {
    /// Reads the module over.
    pub fn new(module: &'m ast::Module) -> Self {
        let mut functions: HashMap<&str, usize> = HashMap::new();
        for (number, function) in module.functions.iter().enumerate() {
            // A declaration yields to the definition, wherever that stands.
            if function.body.is_some() || !functions.contains_key(function.name.as_str()) {
                functions.insert(&function.name, number);
            }
        }
        let bodies = module.functions.iter().filter_map(|function| function.body.as_ref());
        let inner = bodies.clone().flat_map(|body| &body.variables).filter(|v| is_static(v));
        let variables: HashMap<_, _> =
            module.variables.iter().chain(inner).map(|v| (v.name.as_str(), v)).collect();
        let mut taken = HashSet::new();
        for variable in variables.values() {
            if let Some(initializer) = &variable.initializer {
                names_in(initializer, &mut |name| taken.extend(functions.get(name)));
            }
        }
        for body in bodies {
            for statement in &body.statements {
                if let ast::Statement::Instruction(instruction) = statement
                    && instruction.opcode != "call"
                {
                    for operand in &instruction.operands {
                        if let ast::Operand::Name(name) = operand {
                            taken.extend(functions.get(name.as_str()));
                        }
                    }
                }
            }
        }
        let mut taken: Vec<usize> = taken.into_iter().collect();
        taken.retain(|&number| module.functions[number].body.is_some());
        taken.sort_unstable();
        Self { functions, variables, taken, module }
    }

    /// A function's number.
    pub fn function_number(&self, name: &str) -> Option<usize> {
        self.functions.get(name).copied()
    }
}

/// Does a variable live in memory that the machine places?
pub fn is_static(variable: &Variable) -> bool {
    matches!(variable.space, StateSpace::Global | StateSpace::Const)
}

fn names_in<'a>(initializer: &'a ast::Initializer, f: &mut impl FnMut(&'a str)) {
    match initializer {
        ast::Initializer::List(items) => items.iter().for_each(|item| names_in(item, f)),
        ast::Initializer::Symbol { name, .. } => f(name),
        _ => {}
    }
}

/// What the functions of one program share while they are decoded.
pub struct DecodeState<'m> {
    index: &'m Index<'m>,
    constants: HashMap<(Constant, u8), u32>,
    constant_list: Vec<(u8, Constant)>,
    constant_rows: u32,
    shared_places: HashMap<(String, u32), u64>,
    shared_cursor: LayoutCursor,
    uses_dynamic: bool,
    /// `.extern` variables that have a size of their own, from the end of those of fixed size on.
    sized_cursor: LayoutCursor,
    /// Shared by the matrix instructions that have them.
    places: HashMap<Layout, Places>,
    /// A shared variable that could not be sized.
    failure: Option<DecodeError>,
    /// Index of each label of the function in work.
    pub label_places: Vec<u32>,
    /// Functions that the function in work calls by name.
    pub callees: Vec<usize>,
    /// It calls through pointers.
    pub calls_indirectly: bool,
    /// It takes a function's address.
    pub takes_address: bool,
}

impl<'m> DecodeState<'m> {
    fn new(index: &'m Index<'m>) -> Self {
        Self {
            index,
            constants: HashMap::new(),
            constant_list: Vec::new(),
            constant_rows: 0,
            shared_places: HashMap::new(),
            shared_cursor: LayoutCursor::default(),
            uses_dynamic: false,
            sized_cursor: LayoutCursor::default(),
            places: HashMap::new(),
            failure: None,
            label_places: Vec::new(),
            callees: Vec::new(),
            calls_indirectly: false,
            takes_address: false,
        }
    }

    /// Slot of the frame register: the very first.
    pub const fn frame_slot(&self) -> u32 {
        0
    }

    /// A register that holds a constant in all lanes.
    pub fn constant(&mut self, value: Constant, bytes: u8) -> u32 {
        if let Some(&slot) = self.constants.get(&(value.clone(), bytes)) {
            return slot;
        }
        let slot = CONSTANT + self.constant_rows;
        self.constant_rows += if bytes == 8 { 2 } else { 1 };
        self.constants.insert((value.clone(), bytes), slot);
        self.constant_list.push((bytes, value));
        slot
    }

    /// Offset of a shared variable.
    pub fn shared_variable(&mut self, name: &str, body: &ast::Body) -> Option<u64> {
        let inside = body.variables.iter().find(|variable| variable.name == name);
        let variable = inside.or_else(|| self.index.variables.get(name).copied())?;
        if variable.space != StateSpace::Shared {
            return None;
        }
        let bytes = match variable_bytes(variable) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.failure = Some(error);
                return Some(0);
            }
        };
        let is_extern = variable.linkage == Linkage::Extern;
        self.uses_dynamic |= is_extern || bytes == 0;
        if bytes == 0 {
            return Some(self.shared_bytes());
        }
        // The first pass over the code has placed all of them: those behind begin where they will.
        let begin = if is_extern { self.fixed_bytes() } else { 0 };
        let key = (variable.name.clone(), variable.line);
        if let Some(&offset) = self.shared_places.get(&key) {
            return Some(begin + offset);
        }
        let cursor = if is_extern { &mut self.sized_cursor } else { &mut self.shared_cursor };
        let offset = cursor.place(bytes, variable_align(variable));
        self.shared_places.insert(key, offset);
        Some(begin + offset)
    }

    /// Bytes of the shared variables that are no `.extern` ones.
    fn fixed_bytes(&self) -> u64 {
        let align = if self.uses_dynamic { DYNAMIC_ALIGN } else { 1 };
        self.shared_cursor.end.next_multiple_of(u64::from(align))
    }

    /// Bytes of shared memory whatever a launch asks for; what it asks for begins behind them. An
    /// `.extern` variable with a size has it in any case, and a place of its own: compilers declare
    /// several in one kernel. The last one reaches on into the launch's memory.
    fn shared_bytes(&self) -> u64 {
        let align = if self.uses_dynamic { DYNAMIC_ALIGN } else { 1 };
        self.fixed_bytes() + self.sized_cursor.end.next_multiple_of(u64::from(align))
    }

    /// What lies where in the registers of a matrix.
    pub fn places(&mut self, layout: Layout) -> Places {
        self.places.entry(layout).or_insert_with(|| layout.places()).clone()
    }

    /// The number of the module's architecture.
    pub fn architecture(&self) -> u32 {
        self.index.module.architecture()
    }

    /// The module's `.version`.
    pub fn version(&self) -> (u32, u32) {
        self.index.module.version
    }

    /// A function's number.
    pub fn function_number(&self, name: &str) -> Option<usize> {
        self.index.functions.get(name).copied()
    }

    /// A function.
    pub fn function(&self, number: usize) -> &'m ast::Function {
        &self.index.module.functions[number]
    }

    /// Is it a variable that the machine places?
    pub fn is_global(&self, name: &str) -> bool {
        self.index.variables.get(name).is_some_and(|variable| is_static(variable))
    }

    /// The space of a module variable.
    pub fn space_of(&self, name: &str) -> Option<StateSpace> {
        self.index.variables.get(name).map(|variable| variable.space)
    }
}

/// What the first pass found out about a function.
struct Sketch {
    number: usize,
    /// Its start, of the kernel alone.
    front: Front,
    allocation: Allocation,
    frame_bytes: u32,
    /// All functions that it may call.
    callees: Vec<usize>,
}

/// A finished program and its shared memory.
pub struct Built {
    /// The code.
    pub program: Program,
    /// Bytes of shared memory of fixed size.
    pub static_shared_bytes: u64,
}

/// Decodes a kernel.
pub fn build(index: &Index<'_>, kernel: usize) -> Result<Built, DecodeError> {
    let mut shared = DecodeState::new(index);
    let sketches = sketch_all(&mut shared, index, kernel)?;
    let local_bytes = local_bytes(&sketches);
    if local_bytes > LOCAL_BYTES_MAX {
        let function = &index.module.functions[kernel];
        let expected = format!("at most {LOCAL_BYTES_MAX} bytes of local memory for each thread");
        let found = format!("{local_bytes} bytes in `{}`", function.name);
        return Err(DecodeError::new(function.line, expected, found));
    }
    shared.constants.clear();
    shared.constant_list.clear();
    shared.constant_rows = 0;
    let mut row_base = 2;
    let mut predicate_base = predicate::FIRST;
    let mut program = Program {
        entries: vec![None; index.module.functions.len()],
        frame: shared.frame_slot(),
        local_bytes,
        ..Program::default()
    };
    let mut cargo_rows = 0;
    for sketch in &sketches {
        let function = &index.module.functions[sketch.number];
        let Some(body) = &function.body else { continue };
        let entry = program.code.len() as u32;
        program.entries[sketch.number] = Some(entry);
        let placed = Some((&sketch.allocation, row_base, predicate_base));
        let mut decoder = FunctionDecoder::new(&mut shared, function, body, placed)?;
        decoder.decode()?;
        let mut code = std::mem::take(&mut decoder.code);
        let runs = fuse::gather(&mut code, &mut decoder.records);
        // Found in the plain code, and put over what the fusing leaves at their heads.
        let sweeps = sweep::find(&code, &decoder.records);
        cargo_rows = cargo_rows.max(fuse::fuse(&mut code, &runs));
        cargo_rows = cargo_rows.max(sweep::place(&mut code, sweeps));
        accumulate::place(&mut code, &decoder.records, sketch.front.end);
        products::place(&mut code, &decoder.records, sketch.front.end);
        program.code.extend(code.into_iter().map(|instruction| moved(instruction, entry)));
        let places = order::places(&decoder.records);
        program.places.extend(places.into_iter().map(|place| place + entry));
        let span = Arc::new(RegisterSpan {
            registers: sketch
                .allocation
                .spans
                .iter()
                .map(|&(row, bytes)| (row + row_base, bytes))
                .collect(),
            predicates: predicate_base..predicate_base + sketch.allocation.predicates,
        });
        guard_recursion(&mut program.code[entry as usize..], sketch.number, &sketches, &span);
        row_base += sketch.allocation.rows;
        predicate_base += sketch.allocation.predicates;
        texts_of(body, &mut program.texts);
    }
    resolve_calls(&mut program);
    // The kernel is the first of them.
    if let Some(sketch) = sketches.first() {
        program.follow = sketch.front.append(&mut program.code);
        program.followed = sketch.front.spared();
    }
    program.places.extend(program.places.len() as u32..program.code.len() as u32);
    program.seams = order::seams(&program.places);
    program.texts.sort_by_key(|entry| entry.0);
    program.texts.dedup_by_key(|entry| entry.0);
    program.cargo = row_base;
    program.rows = row_base as usize + cargo_rows;
    program.predicates = predicate_base as usize;
    program.constants = std::mem::take(&mut shared.constant_list);
    match shared.failure.take() {
        Some(error) => Err(error),
        None => {
            let static_shared_bytes = shared.shared_bytes();
            Ok(Built { program, static_shared_bytes })
        }
    }
}

/// The first pass over the kernel and everything that it reaches.
fn sketch_all<'m>(
    shared: &mut DecodeState<'m>,
    index: &'m Index<'m>,
    kernel: usize,
) -> Result<Vec<Sketch>, DecodeError> {
    let mut sketches: Vec<Sketch> = Vec::new();
    let mut seen = HashSet::from([kernel]);
    let mut queue = std::collections::VecDeque::from([kernel]);
    while let Some(number) = queue.pop_front() {
        let function = &index.module.functions[number];
        let Some(body) = &function.body else {
            let found = format!("a call of `{}`, which has no body", function.name);
            return Err(DecodeError::new(function.line, "a function that is defined", found));
        };
        shared.callees.clear();
        shared.calls_indirectly = false;
        let mut decoder = FunctionDecoder::new(shared, function, body, None)?;
        decoder.decode()?;
        fuse::gather(&mut decoder.code, &mut decoder.records);
        let front = match number == kernel {
            true => Front::of(&decoder.code, &decoder.records),
            false => Front::default(),
        };
        let allocation = allocate(&decoder.records, &decoder.classes, &front.kept);
        let frame_bytes = decoder.frame_bytes;
        let mut callees = std::mem::take(&mut shared.callees);
        if shared.calls_indirectly {
            callees.extend(&index.taken);
        }
        callees.sort_unstable();
        callees.dedup();
        queue.extend(callees.iter().copied().filter(|callee| seen.insert(*callee)));
        sketches.push(Sketch { number, front, allocation, frame_bytes, callees });
    }
    Ok(sketches)
}

/// Shifts jump targets by where the function starts.
fn moved(mut instruction: Instruction, base: u32) -> Instruction {
    match &mut instruction.op {
        Op::Branch(target) => *target += base,
        Op::BranchIndex(table) => table.targets.iter_mut().for_each(|target| *target += base),
        _ => {}
    }
    instruction
}

/// Turns the numbers of called functions into places in the code.
fn resolve_calls(program: &mut Program) {
    for instruction in &mut program.code {
        if let Op::Call(call) = &mut instruction.op
            && let Target::Direct(number) = call.target
            && let Some(entry) = program.entries[number as usize]
        {
            call.target = Target::Direct(entry);
        }
    }
}

/// Calls that may come back into the function that makes them must save its registers.
fn guard_recursion(
    code: &mut [Instruction],
    number: usize,
    sketches: &[Sketch],
    span: &Arc<RegisterSpan>,
) {
    for instruction in code {
        let Op::Call(call) = &mut instruction.op else { continue };
        let Call { target, save, .. } = call.as_mut();
        let starts = match *target {
            Target::Direct(callee) => vec![callee as usize],
            Target::Indirect(_) => callees_of(sketches, number).to_vec(),
        };
        if reaches(sketches, starts, number) {
            *save = Some(Arc::clone(span));
        }
    }
}

fn callees_of(sketches: &[Sketch], number: usize) -> &[usize] {
    let sketch = sketches.iter().find(|sketch| sketch.number == number);
    sketch.map_or(&[], |sketch| &sketch.callees)
}

/// Can a chain of calls from `starts` come to `goal`?
fn reaches(sketches: &[Sketch], starts: Vec<usize>, goal: usize) -> bool {
    let mut seen = HashSet::new();
    let mut stack = starts;
    while let Some(number) = stack.pop() {
        if number == goal {
            return true;
        }
        if seen.insert(number) {
            stack.extend(callees_of(sketches, number));
        }
    }
    false
}

/// Local memory of a thread: the deepest chain of frames, and room where chains have no end.
fn local_bytes(sketches: &[Sketch]) -> u32 {
    let recursive =
        sketches.iter().any(|sketch| reaches(sketches, sketch.callees.clone(), sketch.number));
    if recursive {
        let frames = sketches.iter().map(|sketch| sketch.frame_bytes);
        return frames.fold(RECURSION_BYTES, u32::saturating_add);
    }
    // Without cycles the chains settle after as many rounds as there are functions.
    let mut depth: HashMap<usize, u32> = HashMap::new();
    for _ in 0..sketches.len() {
        for sketch in sketches {
            let below = sketch.callees.iter().filter_map(|callee| depth.get(callee)).max();
            let own = sketch.frame_bytes.saturating_add(below.copied().unwrap_or(0));
            depth.insert(sketch.number, own);
        }
    }
    sketches.first().and_then(|sketch| depth.get(&sketch.number)).copied().unwrap_or(0)
}

/// Texts of a body's instructions, for faults.
fn texts_of(body: &ast::Body, texts: &mut Vec<(u32, String, Arc<str>)>) {
    let mut locations = body.locations.iter().peekable();
    let mut source: Arc<str> = Arc::from("");
    for (number, statement) in body.statements.iter().enumerate() {
        while let Some((_, file, line)) = locations.next_if(|place| place.0 <= number) {
            let named = body.files.iter().find(|named| named.0 == *file);
            source = named.map_or_else(String::new, |(_, name)| format!("{name}:{line}")).into();
        }
        if let ast::Statement::Instruction(instruction) = statement {
            let text = text::instruction(instruction);
            texts.push((instruction.line, text, source.clone()));
        }
    }
}

/// Do its constants contain the address of a variable?
pub fn has_symbols(program: &Program) -> bool {
    program.constants.iter().any(|(.., constant)| matches!(constant, Constant::Symbol(..)))
}

/// Fills in a program's constants.
pub fn fill_constants(
    program: &mut Program,
    address: impl Fn(&str) -> Option<u64>,
) -> Result<(), String> {
    let mut rows = Vec::new();
    for (bytes, constant) in &program.constants {
        let value = match constant {
            Constant::Bits(bits) => *bits,
            Constant::Symbol(name, offset) => {
                address(name).ok_or_else(|| name.clone())?.wrapping_add_signed(*offset)
            }
        };
        let words = [value as u32, (value >> 32) as u32];
        match bytes {
            2 => rows.push(Row([(value & 0xffff) as u32 * 0x1_0001; LANES])),
            4 => rows.push(Row([words[0]; LANES])),
            // 64-bit lanes lie side by side over two rows, low word first.
            _ => rows.extend([Row(std::array::from_fn(|place| words[place % 2])); 2]),
        }
    }
    program.constant_rows = rows.into();
    Ok(())
}
