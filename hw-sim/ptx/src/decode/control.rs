//! Which decoder takes an instruction, and everything about jumps and calls.

use super::DecodeError;
use super::function::{Class, FunctionDecoder, RegisterDeclaration, describe};
use super::layout::{LayoutCursor, variable_align, variable_bytes};
use super::select::{Words, register_bytes, size_bytes};
use crate::ast::{Instruction, Operand, ScalarType, StateSpace, Variable};
use crate::exec::program::{
    Access, BranchIndex, Builtin, BuiltinKind, Call, Compare, Constant, CopyLocal, NO_SLOT, Op,
    Space, Target,
};
use crate::memory::Strength;

/// What a function gives back and takes.
struct Signature<'m> {
    returns: &'m [Variable],
    params: &'m [Variable],
}

/// Functions of the device runtime that the interpreter answers: declared by modules, defined by
/// none.
pub const BUILTINS: [&str; 4] = ["vprintf", "__assertfail", "malloc", "free"];

impl<'m> FunctionDecoder<'m, '_> {
    /// Decodes one instruction.
    pub(super) fn instruction(&mut self, instruction: &'m Instruction) -> Result<(), DecodeError> {
        if instruction.opcode == "call" {
            return self.call(instruction);
        }
        match self.with_parts(instruction) {
            Some(instruction) => self.dispatch(&instruction),
            None => self.dispatch(instruction),
        }
    }

    /// All but calls.
    fn dispatch(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        match instruction.opcode.as_str() {
            "mov" => self.mov(instruction),
            "ld" | "ldu" => self.load_or_store(instruction, false),
            "st" => self.load_or_store(instruction, true),
            "atom" => self.atomic(instruction, true),
            "red" => self.atomic(instruction, false),
            "fence" | "membar" => self.fence(instruction),
            "cvta" => self.convert_address(instruction),
            "isspacep" => self.is_in_space(instruction),
            "setp" => self.set_predicate(instruction),
            "set" => self.set(instruction),
            "selp" => self.select(instruction),
            "slct" => self.select_by_sign(instruction),
            "testp" => self.test_property(instruction),
            "bra" => self.branch(instruction),
            "brx" => self.branch_index(instruction),
            "ret" => self.finish_return(),
            "exit" => self.plain(instruction, Op::Exit, &[]),
            "trap" | "brkpt" => self.plain(instruction, Op::Trap, &[]),
            "nanosleep" => self.plain(instruction, Op::Nanosleep, &["u32"]),
            // Hints and events that change no result.
            "prefetch" | "prefetchu" | "discard" | "applypriority" | "pmevent"
            | "griddepcontrol" | "setmaxnreg" => {
                self.emit(Op::Nop);
                Ok(())
            }
            "bar" | "barrier" => self.barrier(instruction),
            "shfl" => self.shuffle(instruction),
            "vote" | "match" | "redux" | "elect" => self.collective(instruction),
            "activemask" => self.active_mask(instruction),
            "mma" => self.mma(instruction),
            "wmma" => self.wmma(instruction),
            "ldmatrix" => self.move_tiles(instruction, false),
            "stmatrix" => self.move_tiles(instruction, true),
            "movmatrix" => self.move_matrix(instruction),
            "cp" => self.copy_async(instruction),
            "mbarrier" => self.mbarrier(instruction),
            "wgmma" => self.wgmma(instruction),
            "tensormap" => self.tensor_map(instruction),
            "mapa" => self.map_address(instruction),
            "getctarank" => self.rank_of_address(instruction),
            opcode if super::video::is_video(opcode) => self.video(instruction),
            _ => self.compute(instruction),
        }
    }

    /// An instruction whose operands do not matter.
    fn plain(
        &mut self,
        instruction: &Instruction,
        op: Op,
        allowed: &[&'static str],
    ) -> Result<(), DecodeError> {
        let mut words = Words::new(&instruction.modifiers);
        words.take_any(allowed);
        self.all_taken(&words, instruction)?;
        self.emit(op);
        Ok(())
    }

    fn label(&self, name: &str) -> Result<u32, DecodeError> {
        let label = self.labels.get(name).copied();
        label.ok_or_else(|| self.error("a label of this function", format!("`{name}`")))
    }

    /// `bra`
    fn branch(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        let mut words = Words::new(&instruction.modifiers);
        words.take("uni");
        self.all_taken(&words, instruction)?;
        let [Operand::Name(name)] = self.operands::<1>(instruction)? else {
            return Err(self.unsupported(instruction));
        };
        let target = self.label(name)?;
        self.emit(Op::Branch(target));
        Ok(())
    }

    /// `brx.idx`
    fn branch_index(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        let mut words = Words::new(&instruction.modifiers);
        let by_index = words.take("idx");
        words.take("uni");
        self.all_taken(&words, instruction)?;
        let [index, Operand::Name(list)] = self.operands::<2>(instruction)? else {
            return Err(self.unsupported(instruction));
        };
        let names = self.body.target_lists.iter().find(|entry| entry.0 == *list);
        let (Some((_, names)), true) = (names, by_index) else {
            return Err(self.error("a `.branchtargets` list", format!("`{list}`")));
        };
        let targets = names.iter().map(|name| self.label(name)).collect::<Result<_, _>>()?;
        let index = self.source(index, ScalarType::U32)?;
        self.emit(Op::BranchIndex(Box::new(BranchIndex { index, targets })));
        Ok(())
    }

    /// Takes parameters that are registers from the frame, where the caller put them.
    pub(super) fn register_parameters(&mut self) -> Result<(), DecodeError> {
        if self.function.is_entry {
            return Ok(());
        }
        let function = self.function;
        for param in function.params.iter().filter(|param| param.space == StateSpace::Reg) {
            let offset = self.frame.get(param.name.as_str()).map_or(0, |entry| entry.0);
            let to = Operand::Name(param.name.clone());
            self.move_frame_register(offset, &to, param, false)?;
        }
        Ok(())
    }

    /// `ret`, and results that are registers before it.
    pub(super) fn finish_return(&mut self) -> Result<(), DecodeError> {
        let function = self.function;
        for result in function.returns.iter().filter(|result| result.space == StateSpace::Reg) {
            let offset = self.frame.get(result.name.as_str()).map_or(0, |entry| entry.0);
            let from = Operand::Name(result.name.clone());
            self.move_frame_register(offset, &from, result, true)?;
        }
        self.emit(Op::Return);
        Ok(())
    }

    /// Moves between a register and a place in this function's frame, or behind it. A vector goes
    /// part by part.
    fn move_frame_register(
        &mut self,
        offset: u64,
        operand: &Operand,
        variable: &Variable,
        store: bool,
    ) -> Result<(), DecodeError> {
        let declared = RegisterDeclaration::new(None, variable.scalar, variable.vector);
        let parts = match operand {
            Operand::Vector(parts) => parts.clone(),
            single => self.parts_of(single).unwrap_or_else(|| vec![single.clone()]),
        };
        if parts.len() != usize::from(declared.vector) {
            let expected = format!("{} parts for `{}`", declared.vector, variable.name);
            return Err(self.error(expected, describe(operand)));
        }
        for (number, part) in (0..).zip(&parts) {
            let offset = offset + number * u64::from(size_bytes(declared.scalar));
            let base = self.frame_address(offset, 8);
            match (declared.scalar, store) {
                (ScalarType::Pred, true) => self.store_predicate(base, part)?,
                (ScalarType::Pred, false) => self.load_predicate(base, part)?,
                (ty, _) => self.move_frame_part(base, part, ty, store)?,
            }
        }
        Ok(())
    }

    fn move_frame_part(
        &mut self,
        base: u32,
        operand: &Operand,
        ty: ScalarType,
        store: bool,
    ) -> Result<(), DecodeError> {
        let (slot, bytes) = if store {
            self.source_of(operand, ty)?
        } else {
            let class = Class::of(ty).unwrap_or(Class::Wide);
            let (slot, class) = self.destination_of(operand, class)?;
            (slot, class.bytes())
        };
        let mut access = local_access(base, slot, bytes);
        access.element_bytes = size_bytes(ty).min(u32::from(bytes)) as u8;
        let access = Box::new(access);
        self.emit(if store { Op::Store(access) } else { Op::Load(access) });
        Ok(())
    }

    /// A predicate as a byte.
    fn store_predicate(&mut self, base: u32, operand: &Operand) -> Result<(), DecodeError> {
        let pending = std::mem::take(&mut self.pending);
        let number = self.fresh(Class::Narrow);
        let e = self.predicate_source(operand)?;
        let d = self.write(number);
        self.emit_choice(Class::Narrow, 1, d, e);
        self.pending = pending;
        let slot = self.read(number);
        let access = Access { element_bytes: 1, ..local_access(base, slot, 2) };
        self.emit(Op::Store(Box::new(access)));
        Ok(())
    }

    /// The reverse of [`FunctionDecoder::store_predicate`].
    fn load_predicate(&mut self, base: u32, operand: &Operand) -> Result<(), DecodeError> {
        let number = self.fresh(Class::Narrow);
        let slot = self.write(number);
        let access = Access { element_bytes: 1, ..local_access(base, slot, 2) };
        self.emit(Op::Load(Box::new(access)));
        let Some(test) = self.comparison("ne", ScalarType::U16, false) else { return Ok(()) };
        let (a, b) = (self.read(number), self.constant(Constant::Bits(0), 2));
        let p = self.predicate_destination(operand)?;
        let compare = Compare { test, a, b, combine: None, p, q: NO_SLOT };
        self.emit(Op::Compare(Box::new(compare)));
        Ok(())
    }

    /// `call`
    fn call(&mut self, instruction: &'m Instruction) -> Result<(), DecodeError> {
        let mut words = Words::new(&instruction.modifiers);
        words.take("uni");
        self.all_taken(&words, instruction)?;
        let mut operands = instruction.operands.iter().peekable();
        let empty: &[Operand] = &[];
        let returns = match operands.peek() {
            Some(Operand::List(items)) => {
                operands.next();
                items.as_slice()
            }
            _ => empty,
        };
        let Some(Operand::Name(callee)) = operands.next() else {
            return Err(self.error("the name of what to call", "another operand"));
        };
        let arguments = match operands.peek() {
            Some(Operand::List(items)) => {
                operands.next();
                items.as_slice()
            }
            _ => empty,
        };
        if let Some(register) = self.find_register(callee) {
            let Some(Operand::Name(prototype)) = operands.next() else {
                return Err(self.error("the prototype of an indirect call", "none"));
            };
            let signature = self.prototype(prototype)?;
            self.shared.calls_indirectly = true;
            return self.call_with(signature, returns, arguments, |decoder| {
                Ok(Target::Indirect(decoder.read(register)))
            });
        }
        let Some(number) = self.shared.function_number(callee) else {
            return Err(self.error("a declared function", format!("`{callee}`")));
        };
        let function = self.shared.function(number);
        if function.body.is_none() {
            return self.builtin(callee, returns, arguments);
        }
        self.shared.callees.push(number);
        let signature = Signature { returns: &function.returns, params: &function.params };
        self.call_with(signature, returns, arguments, |_| Ok(Target::Direct(number as u32)))
    }

    /// Results and parameters of a prototype, or of the functions in a list of targets.
    fn prototype(&self, name: &str) -> Result<Signature<'m>, DecodeError> {
        if let Some((_, returns, params)) =
            self.body.prototypes.iter().find(|entry| entry.0 == name)
        {
            return Ok(Signature { returns, params });
        }
        let list = self.body.target_lists.iter().find(|entry| entry.0 == name);
        let first = list.and_then(|entry| entry.1.first());
        let number = first.and_then(|first| self.shared.function_number(first));
        match number {
            Some(number) => {
                let function = self.shared.function(number);
                Ok(Signature { returns: &function.returns, params: &function.params })
            }
            None => Err(self.error("a `.callprototype` or `.calltargets`", format!("`{name}`"))),
        }
    }

    /// Puts arguments where the callee's frame will be, calls, and fetches results.
    fn call_with(
        &mut self,
        signature: Signature<'_>,
        returns: &[Operand],
        arguments: &[Operand],
        target: impl FnOnce(&mut Self) -> Result<Target, DecodeError>,
    ) -> Result<(), DecodeError> {
        let Signature { returns: results, params } = signature;
        if results.len() != returns.len() || params.len() != arguments.len() {
            let expected = format!("{} results and {} arguments", results.len(), params.len());
            let found = format!("{} and {}", returns.len(), arguments.len());
            return Err(self.error(expected, found));
        }
        let mut cursor = LayoutCursor { end: 0 };
        let base = u64::from(self.frame_bytes);
        let mut place = |variable: &Variable| -> Result<u64, DecodeError> {
            Ok(base + cursor.place(variable_bytes(variable)?, variable_align(variable)))
        };
        let result_places = results.iter().map(&mut place).collect::<Result<Vec<_>, _>>()?;
        let param_places = params.iter().map(&mut place).collect::<Result<Vec<_>, _>>()?;
        for ((argument, param), to) in arguments.iter().zip(params).zip(param_places) {
            self.pass(argument, param, to, true)?;
        }
        let target = target(self)?;
        let call = Call { target, frame_bytes: self.frame_bytes, save: None };
        self.emit(Op::Call(Box::new(call)));
        for ((result, variable), from) in returns.iter().zip(results).zip(result_places) {
            if *result != Operand::Sink {
                self.pass(result, variable, from, false)?;
            }
        }
        Ok(())
    }

    /// Moves one argument to the callee's frame, or one result back.
    fn pass(
        &mut self,
        operand: &Operand,
        variable: &Variable,
        there: u64,
        is_argument: bool,
    ) -> Result<(), DecodeError> {
        if let Operand::Name(name) = operand
            && self.frame_space(name).is_some_and(|space| space != StateSpace::Reg)
        {
            let here = self.frame.get(name.as_str()).map_or(0, |entry| entry.0);
            let bytes = variable_bytes(variable)? as u32;
            let (here, there) = (self.frame_address(here, 8), self.frame_address(there, 8));
            let (from, to) = if is_argument { (here, there) } else { (there, here) };
            self.emit(Op::CopyLocal(Box::new(CopyLocal { from, to, bytes })));
            return Ok(());
        }
        self.move_frame_register(there, operand, variable, is_argument)
    }

    /// A function of the device runtime.
    fn builtin(
        &mut self,
        name: &str,
        returns: &[Operand],
        arguments: &[Operand],
    ) -> Result<(), DecodeError> {
        let kind = match name {
            "vprintf" => BuiltinKind::Print,
            "__assertfail" => BuiltinKind::AssertFail,
            "malloc" => BuiltinKind::Allocate,
            "free" => BuiltinKind::Free,
            _ => {
                let expected = "a function with a body, `vprintf`, `__assertfail`, or `malloc`";
                return Err(self.error(expected, format!("`{name}`")));
            }
        };
        let mut registers = Vec::new();
        for argument in arguments {
            registers.push(self.builtin_argument(argument)?);
        }
        let arguments = registers.into_iter().map(|register| self.read(register)).collect();
        // `malloc` gives a pointer, the others a count.
        let class = if kind == BuiltinKind::Allocate { Class::Wide } else { Class::Word };
        let result = match returns.first() {
            None | Some(Operand::Sink) => None,
            Some(operand) => Some((self.fresh(class), operand)),
        };
        let slot = result.map_or(NO_SLOT, |(register, _)| self.write(register));
        self.emit(Op::Builtin(Box::new(Builtin { kind, arguments, result: slot })));
        let Some((register, Operand::Name(name))) = result else { return Ok(()) };
        if let Some(&(offset, _)) = self.frame.get(name.as_str()) {
            let base = self.frame_address(offset, 8);
            let slot = self.read(register);
            self.emit(Op::Store(Box::new(local_access(base, slot, class.bytes()))));
        } else {
            let a = self.read(register);
            let ty = if class == Class::Wide { ScalarType::B64 } else { ScalarType::B32 };
            let d = self.destination(&Operand::Name(name.clone()), ty)?;
            let args = crate::exec::registers::Args { d, a, ..Default::default() };
            self.emit(Op::Alu(super::moves::copy_of(class), args));
        }
        Ok(())
    }

    /// An argument of a built-in function in a 64-bit register.
    fn builtin_argument(
        &mut self,
        argument: &Operand,
    ) -> Result<super::function::RegisterRef, DecodeError> {
        let register = self.fresh(Class::Wide);
        if let Operand::Name(name) = argument
            && let Some(&(offset, variable)) = self.frame.get(name.as_str())
        {
            let base = self.frame_address(offset, 8);
            let bytes = variable_bytes(variable)?.min(8) as u8;
            let slot = self.write(register);
            let mut access = local_access(base, slot, 8);
            access.element_bytes = bytes.max(1);
            self.emit(Op::Load(Box::new(access)));
            return Ok(register);
        }
        let (a, bytes) = self.source_of(argument, ScalarType::B64)?;
        if bytes != register_bytes(ScalarType::B64) {
            return Err(self.error("an argument of 64 bits", describe(argument)));
        }
        let d = self.write(register);
        let args = crate::exec::registers::Args { d, a, ..Default::default() };
        self.emit(Op::Alu(super::moves::copy_of(Class::Wide), args));
        Ok(register)
    }
}

/// A plain access of one register to local memory.
fn local_access(base: u32, slot: u32, bytes: u8) -> Access {
    Access {
        space: Space::Local,
        base,
        narrow_base: false,
        offset: 0,
        registers: vec![slot],
        register_bytes: bytes,
        element_bytes: bytes,
        signed: false,
        strength: Strength::WEAK,
    }
}
