//! Decodes one function. It is done twice: first to learn which registers live when, then, once
//! they have their places, for good.

use foldhash::{HashMap, HashMapExt};
use smallvec::SmallVec;

use super::allocate::Allocation;
use super::builder::DecodeState;
use super::layout::{LayoutCursor, float_bits, variable_align, variable_bytes};
use super::role::Role;
use super::select::{register_bytes, size_bytes};
use super::vectors::component;
use super::{DecodeError, special};
use crate::ast::{self, Operand, ScalarType, StateSpace, Variable};
use crate::exec::program::{Constant, Instruction, NO_SLOT, Op};
use crate::exec::registers::{AluFn, Args, map2, predicate};
use crate::exec::windows;

/// Kinds of register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// 16 bits.
    Narrow,
    /// 32 bits.
    Word,
    /// 64 bits.
    Wide,
    /// One bit.
    Predicate,
}

impl Class {
    /// Bytes in a lane; predicates have none.
    pub const fn bytes(self) -> u8 {
        match self {
            Self::Narrow => 2,
            Self::Word => 4,
            Self::Wide => 8,
            Self::Predicate => 0,
        }
    }

    /// The class that holds a type.
    pub fn of(ty: ScalarType) -> Option<Self> {
        if ty == ScalarType::Pred {
            return Some(Self::Predicate);
        }
        Some(match register_bytes(ty) {
            2 => Self::Narrow,
            4 => Self::Word,
            8 => Self::Wide,
            _ => return None,
        })
    }
}

/// What a pass learns of an instruction.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Registers read.
    pub uses: SmallVec<[u32; 4]>,
    /// Registers written.
    pub defs: SmallVec<[u32; 4]>,
    /// Some lanes may not do it.
    pub guarded: bool,
    /// Where it may jump, by index in the function.
    pub targets: Vec<usize>,
    /// May it go on behind itself?
    pub falls_through: bool,
    /// What it may be to a loop.
    pub role: Role,
    /// It does nothing but write the registers noted here, of those noted here.
    pub is_pure: bool,
}

/// What is said of a register, or of a numbered family, where it is declared.
#[derive(Clone, Copy, Debug)]
pub struct RegisterDeclaration {
    /// Members of the family.
    pub count: Option<u32>,
    /// Type of a part.
    pub scalar: ScalarType,
    /// Parts.
    pub vector: u8,
}

/// A register, or the place of one.
#[derive(Clone, Copy, Debug)]
pub struct RegisterRef {
    /// Its number among the function's registers.
    pub number: u32,
    /// Its kind.
    pub class: Class,
}

/// A function on its way to decoded form.
pub struct FunctionDecoder<'m, 's> {
    pub(super) shared: &'s mut DecodeState<'m>,
    pub(super) function: &'m ast::Function,
    pub(super) body: &'m ast::Body,
    exact: HashMap<&'m str, RegisterDeclaration>,
    /// Some registers are vectors.
    pub(super) has_vectors: bool,
    named: HashMap<String, RegisterRef>,
    pub(super) classes: Vec<Class>,
    /// Places, in the second pass.
    allocation: Option<&'s Allocation>,
    row_base: u32,
    predicate_base: u32,
    /// Local variables, parameters and results: offset in the frame.
    pub(super) frame: HashMap<&'m str, (u64, &'m Variable)>,
    pub(super) frame_bytes: u32,
    /// Kernel parameters: offset in the parameter buffer.
    params: HashMap<&'m str, (u64, &'m Variable)>,
    pub(super) code: Vec<Instruction>,
    pub(super) records: Vec<Record>,
    pub(super) pending: Record,
    pub(super) labels: HashMap<&'m str, u32>,
    pub(super) line: u32,
    pub(super) guard: u32,
    guard_register: Option<u32>,
}

impl<'m, 's> FunctionDecoder<'m, 's> {
    /// Ready to decode. `placed` gives the places and their bases in the second pass.
    pub fn new(
        shared: &'s mut DecodeState<'m>,
        function: &'m ast::Function,
        body: &'m ast::Body,
        placed: Option<(&'s Allocation, u32, u32)>,
    ) -> Result<Self, DecodeError> {
        let own = function.returns.iter().chain(&function.params);
        let exact: HashMap<_, _> = body
            .registers
            .iter()
            .map(|register| {
                let ast::Register { name, count, scalar, vector } = register;
                (name.as_str(), RegisterDeclaration::new(*count, *scalar, *vector))
            })
            .chain(own.filter(|variable| variable.space == StateSpace::Reg).map(|variable| {
                let Variable { name, scalar, vector, .. } = variable;
                (name.as_str(), RegisterDeclaration::new(None, *scalar, *vector))
            }))
            .collect();
        let mut decoder = Self {
            shared,
            function,
            body,
            has_vectors: exact.values().any(|declaration| declaration.vector > 1),
            exact,
            named: HashMap::new(),
            classes: Vec::new(),
            allocation: placed.map(|placed| placed.0),
            row_base: placed.map_or(0, |placed| placed.1),
            predicate_base: placed.map_or(0, |placed| placed.2),
            frame: HashMap::new(),
            frame_bytes: 0,
            params: HashMap::new(),
            code: Vec::with_capacity(body.statements.len()),
            records: Vec::with_capacity(body.statements.len()),
            pending: Record::default(),
            labels: HashMap::new(),
            line: function.line,
            guard: predicate::TRUE,
            guard_register: None,
        };
        decoder.lay_out()?;
        Ok(decoder)
    }

    /// Places parameters, results and local variables.
    fn lay_out(&mut self) -> Result<(), DecodeError> {
        let mut frame = LayoutCursor::default();
        if self.function.is_entry {
            let mut params = LayoutCursor::default();
            for param in &self.function.params {
                let offset = params.place(variable_bytes(param)?, variable_align(param));
                self.params.insert(&param.name, (offset, param));
            }
        } else {
            for variable in self.function.returns.iter().chain(&self.function.params) {
                let offset = frame.place(variable_bytes(variable)?, variable_align(variable));
                self.frame.insert(&variable.name, (offset, variable));
            }
        }
        for variable in &self.body.variables {
            if matches!(variable.space, StateSpace::Local | StateSpace::Param) {
                let offset = frame.place(variable_bytes(variable)?, variable_align(variable));
                self.frame.insert(&variable.name, (offset, variable));
            }
        }
        let bytes = frame.end.next_multiple_of(16);
        self.frame_bytes = u32::try_from(bytes).map_err(|_| {
            let found = format!("{bytes} bytes in `{}`", self.function.name);
            DecodeError::new(self.function.line, "less than 4 GiB of local memory", found)
        })?;
        Ok(())
    }

    /// An error at the current line.
    pub fn error(&self, expected: impl Into<String>, found: impl Into<String>) -> DecodeError {
        DecodeError::new(self.line, expected, found)
    }

    /// Decodes the whole body.
    pub fn decode(&mut self) -> Result<(), DecodeError> {
        self.number_labels();
        self.register_parameters()?;
        for statement in &self.body.statements {
            match statement {
                ast::Statement::Label(name) => {
                    let here = self.code.len() as u32;
                    if let Some(number) = self.labels.get(name.as_str()) {
                        self.shared.label_places[*number as usize] = here;
                    }
                }
                ast::Statement::Instruction(instruction) => {
                    self.line = instruction.line;
                    self.guard = predicate::TRUE;
                    self.guard_register = None;
                    if let Some(guard) = &instruction.guard {
                        let register = self.register(&guard.register)?;
                        self.expect_class(&guard.register, register, Class::Predicate)?;
                        self.guard_register = Some(register.number);
                        let flip = if guard.negated { predicate::NEGATED } else { 0 };
                        self.guard = self.place(register) | flip;
                    }
                    self.instruction(instruction)?;
                }
            }
        }
        // A body may end without `ret`; then the function returns here.
        self.guard = predicate::TRUE;
        self.guard_register = None;
        self.finish_return()?;
        self.patch();
        Ok(())
    }

    /// Labels get numbers at first; places when all are known.
    fn number_labels(&mut self) {
        self.shared.label_places.clear();
        for statement in &self.body.statements {
            if let ast::Statement::Label(name) = statement {
                self.labels.insert(name, self.shared.label_places.len() as u32);
                self.shared.label_places.push(0);
            }
        }
    }

    /// Turns label numbers into indices.
    fn patch(&mut self) {
        let places = &self.shared.label_places;
        for (instruction, record) in self.code.iter_mut().zip(&mut self.records) {
            match &mut instruction.op {
                Op::Branch(target) => {
                    *target = places[*target as usize];
                    record.targets.push(*target as usize);
                }
                Op::BranchIndex(table) => {
                    for target in &mut table.targets {
                        *target = places[*target as usize];
                        record.targets.push(*target as usize);
                    }
                }
                _ => {}
            }
        }
    }

    /// Looks a register up.
    pub fn register(&mut self, name: &str) -> Result<RegisterRef, DecodeError> {
        self.find_register(name)
            .ok_or_else(|| self.error("a declared register", format!("`{name}`")))
    }

    /// Looks a register up, by its own name or by the prefix of a numbered family.
    pub fn find_register(&mut self, name: &str) -> Option<RegisterRef> {
        if let Some(known) = self.named.get(name) {
            return Some(*known);
        }
        if let Some((vector, part)) = name.rsplit_once('.') {
            let (part, declaration) = (component(part)?, self.declaration(vector)?);
            let canonical = format!("{vector}.{part}");
            return match canonical == name {
                _ if part >= declaration.vector || declaration.vector == 1 => None,
                true => self.name_register(canonical, declaration.scalar),
                false => self.find_register(&canonical),
            };
        }
        let declaration = self.declaration(name)?;
        if declaration.vector > 1 {
            return None;
        }
        self.name_register(name.to_owned(), declaration.scalar)
    }

    /// What is said of a register where it, or its family, is declared.
    pub(super) fn declaration(&self, name: &str) -> Option<RegisterDeclaration> {
        if let Some(declaration) = self.exact.get(name).filter(|found| found.count.is_none()) {
            return Some(*declaration);
        }
        let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
        // `%rd1` may be number 1 of `%rd` or number 21 of `%rd2`: the declared one wins.
        (prefix.len()..name.len()).find_map(|cut| {
            let declaration = self.exact.get(&name[..cut])?;
            let number: u32 = name[cut..].parse().ok()?;
            (number < declaration.count?).then_some(*declaration)
        })
    }

    fn name_register(&mut self, name: String, scalar: ScalarType) -> Option<RegisterRef> {
        let reference = self.fresh(Class::of(scalar)?);
        self.named.insert(name, reference);
        Some(reference)
    }

    /// A register that no text names.
    pub fn fresh(&mut self, class: Class) -> RegisterRef {
        let number = self.classes.len() as u32;
        self.classes.push(class);
        RegisterRef { number, class }
    }

    /// The slot of a register; in the first pass its number.
    pub fn place(&self, register: RegisterRef) -> u32 {
        let Some(allocation) = self.allocation else { return register.number };
        let place = allocation.places.get(register.number as usize).copied().unwrap_or(0);
        place + if register.class == Class::Predicate { self.predicate_base } else { self.row_base }
    }

    /// Notes that the instruction to be emitted reads a register; gives its slot.
    pub fn read(&mut self, register: RegisterRef) -> u32 {
        self.pending.uses.push(register.number);
        self.place(register)
    }

    /// Notes that the instruction to be emitted writes a register; gives its slot.
    pub fn write(&mut self, register: RegisterRef) -> u32 {
        self.pending.defs.push(register.number);
        self.place(register)
    }

    /// Checks a register's kind.
    pub fn expect_class(
        &self,
        name: &str,
        register: RegisterRef,
        class: Class,
    ) -> Result<(), DecodeError> {
        if register.class == class {
            return Ok(());
        }
        let describe = |class: Class| match class {
            Class::Predicate => "a predicate".to_owned(),
            other => format!("a register of {} bits", u32::from(other.bytes()) * 8),
        };
        Err(self.error(describe(class), format!("`{name}`, {}", describe(register.class))))
    }

    /// Appends an instruction.
    pub fn emit(&mut self, op: Op) {
        let mut record = std::mem::take(&mut self.pending);
        // Not from `guard`: before registers have places, one's number may look like `TRUE`.
        record.guarded = self.guard_register.is_some();
        record.uses.extend(self.guard_register);
        record.falls_through = record.guarded
            || !matches!(op, Op::Branch(_) | Op::BranchIndex(_) | Op::Return | Op::Exit | Op::Trap);
        self.records.push(record);
        self.code.push(Instruction { op, guard: self.guard, line: self.line });
    }

    /// A constant register of so many bytes.
    pub fn constant(&mut self, value: Constant, bytes: u8) -> u32 {
        self.shared.constant(value, bytes)
    }

    /// A source operand of a type; its register must have just the type's width.
    pub fn source(&mut self, operand: &Operand, ty: ScalarType) -> Result<u32, DecodeError> {
        let (slot, bytes) = self.source_of(operand, ty)?;
        if bytes != register_bytes(ty) {
            let found = format!("{}, {} bits", describe(operand), u32::from(bytes) * 8);
            let expected = format!("an operand of {} bits", u32::from(register_bytes(ty)) * 8);
            return Err(self.error(expected, found));
        }
        Ok(slot)
    }

    /// A source operand whose register may be wider than the type: slot and bytes.
    pub fn source_of(
        &mut self,
        operand: &Operand,
        ty: ScalarType,
    ) -> Result<(u32, u8), DecodeError> {
        let bytes = register_bytes(ty);
        let bits = match operand {
            Operand::Name(name) => return self.named_source(name, 0, bytes),
            Operand::NameOffset(name, offset) => return self.named_source(name, *offset, bytes),
            Operand::Integer(value) => match crate::exec::float::format_of(ty) {
                Some(_) if size_bytes(ty) > 2 && !is_packed(ty) => float_bits(*value as f64, ty),
                _ => *value as u64,
            },
            Operand::Float(value) => float_bits(*value, ty),
            Operand::FloatBits32(bits) if size_bytes(ty) == 8 => {
                f64::from(f32::from_bits(*bits)).to_bits()
            }
            Operand::FloatBits32(bits) if matches!(ty, ScalarType::F16 | ScalarType::BF16) => {
                float_bits(f32::from_bits(*bits).into(), ty)
            }
            Operand::FloatBits32(bits) => u64::from(*bits),
            other => return Err(self.error("a register or constant", describe(other))),
        };
        let keep = u64::MAX >> (64 - u32::from(bytes) * 8);
        Ok((self.constant(Constant::Bits(bits & keep), bytes), bytes))
    }

    /// A register, a special register, or the address of something.
    fn named_source(
        &mut self,
        name: &str,
        offset: i64,
        bytes: u8,
    ) -> Result<(u32, u8), DecodeError> {
        if let Some(register) = self.find_register(name) {
            if register.class == Class::Predicate {
                return Err(self.error("a register that holds a number", format!("`{name}`")));
            }
            let register =
                if offset == 0 { register } else { self.plus_constant(register, offset) };
            return Ok((self.read(register), register.class.bytes()));
        }
        if name == "WARP_SZ" {
            return Ok((self.constant(Constant::Bits(32), bytes), bytes));
        }
        if let Some((which, natural)) = special::find(name) {
            // Emitted before the instruction that asks for it, whose notes must wait.
            let pending = std::mem::take(&mut self.pending);
            let class = Class::of(natural).unwrap_or(Class::Word);
            let temporary = self.fresh(class);
            let d = self.write(temporary);
            self.emit(Op::Special { d, which, width: class.bytes() });
            self.pending = pending;
            return Ok((self.read(temporary), class.bytes()));
        }
        if let Some(&(at, variable)) = self.frame.get(name)
            && (variable.space, bytes) == (StateSpace::Param, 8)
        {
            // Not among the kernel's parameters, which a `.param` access would look at.
            let address = at.wrapping_add_signed(offset) | windows::LOCAL;
            return Ok((self.frame_address(address, bytes), bytes));
        }
        let slot = self.address_of(name, offset, bytes)?;
        Ok((slot, bytes))
    }

    /// `register + constant`, in a register that no text names. Emitted before the instruction that
    /// asks for it, whose notes must wait.
    fn plus_constant(&mut self, register: RegisterRef, offset: i64) -> RegisterRef {
        let pending = std::mem::take(&mut self.pending);
        let sum = self.fresh(register.class);
        let bytes = register.class.bytes();
        let a = self.read(register);
        let b = self.constant(Constant::Bits(offset as u64), bytes);
        let d = self.write(sum);
        let exec: AluFn = match bytes {
            2 => |r, i, mask| map2(r, i, mask, |a: u16, b: u16| a.wrapping_add(b)),
            4 => |r, i, mask| map2(r, i, mask, |a: u32, b: u32| a.wrapping_add(b)),
            _ => |r, i, mask| map2(r, i, mask, |a: u64, b: u64| a.wrapping_add(b)),
        };
        self.emit(Op::Alu(exec, Args { d, a, b, ..Args::default() }));
        self.pending = pending;
        sum
    }

    /// A register with the address of a variable or function, in its own space.
    pub fn address_of(&mut self, name: &str, offset: i64, bytes: u8) -> Result<u32, DecodeError> {
        if let Some(&(at, _)) = self.frame.get(name) {
            return Ok(self.frame_address(at.wrapping_add_signed(offset), bytes));
        }
        let constant = if let Some(&(at, _)) = self.params.get(name) {
            Constant::Bits(at.wrapping_add_signed(offset))
        } else if let Some(at) = self.shared.shared_variable(name, self.body) {
            Constant::Bits(at.wrapping_add_signed(offset))
        } else if let Some(number) = self.shared.function_number(name) {
            self.shared.takes_address = true;
            Constant::Bits(crate::exec::windows::FUNCTION | number as u64)
        } else if self.shared.is_global(name) {
            Constant::Symbol(name.to_owned(), offset)
        } else {
            return Err(self.error("a declared name", format!("`{name}`")));
        };
        Ok(self.constant(constant, bytes))
    }

    /// A register with an address in the running function's frame.
    pub fn frame_address(&mut self, offset: u64, bytes: u8) -> u32 {
        let constant = self.constant(Constant::Bits(offset), 8);
        // A kernel's frame is at 0; so is a 32-bit local address only ever a kernel's.
        if self.function.is_entry || bytes != 8 {
            return self.constant(Constant::Bits(offset), bytes);
        }
        let pending = std::mem::take(&mut self.pending);
        let temporary = self.fresh(Class::Wide);
        let d = self.write(temporary);
        let args = Args { d, a: self.shared.frame_slot(), b: constant, ..Args::default() };
        self.emit(Op::Alu(|r, i, mask| map2(r, i, mask, |a: u64, b: u64| a.wrapping_add(b)), args));
        self.pending = pending;
        self.read(temporary)
    }

    /// A kernel parameter's offset.
    pub fn param_offset(&self, name: &str) -> Option<u64> {
        self.params.get(name).map(|entry| entry.0)
    }

    /// A destination register of a type.
    pub fn destination(&mut self, operand: &Operand, ty: ScalarType) -> Result<u32, DecodeError> {
        let class = Class::of(ty)
            .ok_or_else(|| self.error("a type of at most 64 bits", format!("{ty:?}")))?;
        let (slot, found) = self.destination_of(operand, class)?;
        if found != class
            && let Operand::Name(name) = operand
        {
            let register = self.register(name)?;
            self.expect_class(name, register, class)?;
        }
        Ok(slot)
    }

    /// A destination of any width: slot and class. `_` gets its own register.
    pub fn destination_of(
        &mut self,
        operand: &Operand,
        if_unwanted: Class,
    ) -> Result<(u32, Class), DecodeError> {
        let register = match operand {
            Operand::Sink => self.fresh(if_unwanted),
            Operand::Name(name) => self.register(name)?,
            other => return Err(self.error("a register to write", describe(other))),
        };
        Ok((self.write(register), register.class))
    }

    /// A predicate source, maybe negated.
    pub fn predicate_source(&mut self, operand: &Operand) -> Result<u32, DecodeError> {
        let (name, flip) = match operand {
            Operand::Name(name) => (name, 0),
            Operand::Negated(name) => (name, predicate::NEGATED),
            Operand::Integer(0) => return Ok(predicate::TRUE | predicate::NEGATED),
            Operand::Integer(_) => return Ok(predicate::TRUE),
            other => return Err(self.error("a predicate", describe(other))),
        };
        let register = self.register(name)?;
        self.expect_class(name, register, Class::Predicate)?;
        Ok(self.read(register) | flip)
    }

    /// A predicate destination; [`NO_SLOT`] for `_`.
    pub fn predicate_destination(&mut self, operand: &Operand) -> Result<u32, DecodeError> {
        match operand {
            Operand::Sink => Ok(NO_SLOT),
            Operand::Name(name) => {
                let register = self.register(name)?;
                self.expect_class(name, register, Class::Predicate)?;
                Ok(self.write(register))
            }
            other => Err(self.error("a predicate to write", describe(other))),
        }
    }

    /// The kind of register that an operand is, if it is one.
    pub fn class_of(&mut self, operand: &Operand) -> Option<Class> {
        match operand {
            Operand::Name(name) => self.find_register(name).map(|register| register.class),
            _ => None,
        }
    }
}

fn is_packed(ty: ScalarType) -> bool {
    matches!(ty, ScalarType::F16x2 | ScalarType::BF16x2)
}

/// An operand in words, for errors.
pub fn describe(operand: &Operand) -> String {
    format!("`{}`", super::text::operand(operand))
}
