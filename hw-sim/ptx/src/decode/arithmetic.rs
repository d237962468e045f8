//! Instructions that only compute.

use super::DecodeError;
use super::function::{Class, FunctionDecoder, RegisterRef, describe};
use super::role::Role;
use super::select::{Compute, Words, register_bytes};
use crate::ast::{Instruction, Operand, ScalarType as T};
use crate::exec::float::{self, Mode};
use crate::exec::program::{Compare, Constant, Logic, NO_SLOT, Op};
use crate::exec::registers::{AluFn, Args, FULL, LANES, Lane, Registers, TestFn, map2, only};
use crate::exec::{convert, half, integer, pack};

/// `d = p ? a : b`; the predicate reference is in `e`.
fn select_run<L: Lane>(r: &mut Registers, i: &Args, mask: u32) {
    let p = r.predicate(i.e);
    let (a, b) = (r.get::<L>(i.a), r.get::<L>(i.b));
    if let Some(lane) = only(mask) {
        let one = if p >> lane & 1 != 0 { a[lane] } else { b[lane] };
        r.get_mut::<L>(i.d)[lane] = one;
        return;
    }
    // Mostly all lanes choose alike.
    if mask == FULL && (p == FULL || p == 0) {
        let all = if p == FULL { *a } else { *b };
        *r.get_mut::<L>(i.d) = all;
        return;
    }
    let mut d = [L::zeroed(); LANES];
    for lane in 0..LANES {
        d[lane] = if p >> lane & 1 != 0 { a[lane] } else { b[lane] };
    }
    r.put(i.d, &d, mask);
}

/// The select of a class.
fn select_of(class: Class) -> AluFn {
    match class {
        Class::Narrow => select_run::<u16>,
        Class::Word => select_run::<u32>,
        _ => select_run::<u64>,
    }
}

/// Logic on predicates.
fn logic_run(r: &mut Registers, i: &Args, mask: u32, f: impl Fn(u32, u32) -> u32) {
    let bits = f(r.predicate(i.a), r.predicate(i.b));
    r.set_predicate(i.d, bits, mask);
}

/// What an instruction that computes may be to a loop.
fn role_of(instruction: &Instruction, compute: &Compute) -> Role {
    let alike = compute.sources == [compute.dst, compute.dst];
    let carries = instruction.modifiers.iter().any(|word| word == "cc");
    let class = Class::of(compute.dst);
    let is_wide = matches!(compute.dst, T::S64 | T::U64);
    // To nearest, and nothing else.
    let is_plain_single = compute.dst == T::F32 && compute.extra == 0;
    match instruction.opcode.as_str() {
        "shl" if class == Some(Class::Word) && last_is(instruction, 16) => Role::Low,
        "and" if class == Some(Class::Word) && last_is(instruction, 0xffff_0000) => Role::High,
        "fma" | "mad" if is_plain_single => Role::FusedF32,
        _ if !alike || carries => Role::None,
        "add" if is_wide => Role::Sum,
        "add" if is_plain_single => Role::SumF32,
        "mul" if is_plain_single => Role::ProductF32,
        "add" | "sub" | "mul" | "min" | "max" | "and" | "or" | "xor" => match class {
            Some(Class::Word | Class::Wide) => Role::Pair,
            _ => Role::None,
        },
        _ => Role::None,
    }
}

/// Is the last operand this number of 32 bits?
fn last_is(instruction: &Instruction, number: u32) -> bool {
    matches!(instruction.operands.last(), Some(Operand::Integer(value)) if *value as u32 == number)
}

impl FunctionDecoder<'_, '_> {
    /// Anything that `select` of some type knows.
    pub(super) fn compute(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        let opcode = instruction.opcode.as_str();
        let mut words = Words::new(&instruction.modifiers);
        let last = instruction.modifiers.iter().rev();
        let ty = last.filter_map(|word| super::select::scalar_type(word)).next();
        if ty == Some(T::Pred) {
            return self.predicate_logic(instruction);
        }
        if opcode == "cvt"
            && let Some((compute, architecture)) = pack::select(&mut words)
        {
            self.require(instruction, architecture)?;
            self.all_taken(&words, instruction)?;
            return self.emit_compute(instruction, compute);
        }
        let chosen = match ty {
            _ if opcode == "cvt" => {
                let widths = self.convert_widths(instruction)?;
                convert::select(&mut words, widths)
            }
            Some(T::F32 | T::F64) => {
                let mode = Mode::take(&mut words);
                words.take_type().and_then(|ty| float::select(opcode, mode, ty))
            }
            Some(T::F16 | T::F16x2 | T::BF16 | T::BF16x2) => {
                let mode = Mode::take(&mut words);
                words.take_type().and_then(|ty| half::select(opcode, mode, ty))
            }
            _ => integer::select(opcode, &mut words),
        };
        let Some(compute) = chosen else { return Err(self.unsupported(instruction)) };
        self.all_taken(&words, instruction)?;
        self.emit_compute(instruction, compute)
    }

    /// Bytes of the registers of a `cvt`, which may be wider than its types.
    fn convert_widths(&mut self, instruction: &Instruction) -> Result<(u8, u8), DecodeError> {
        let mut types = instruction.modifiers.iter().filter_map(|w| super::select::scalar_type(w));
        let (Some(dst), Some(src)) = (types.next(), types.next()) else {
            return Err(self.unsupported(instruction));
        };
        let mut width = |operand: Option<&Operand>, ty: T| {
            let class = operand.and_then(|operand| self.class_of(operand));
            class.map_or(register_bytes(ty), Class::bytes)
        };
        let widths =
            (width(instruction.operands.first(), dst), width(instruction.operands.get(1), src));
        if widths.0 < register_bytes(dst) || widths.1 < register_bytes(src) {
            let expected = format!(
                "registers of at least {} and {} bytes",
                register_bytes(dst),
                register_bytes(src)
            );
            return Err(self.error(expected, format!("{} and {}", widths.0, widths.1)));
        }
        Ok(widths)
    }

    /// Reads operands by their types and emits the instruction.
    fn emit_compute(
        &mut self,
        instruction: &Instruction,
        compute: Compute,
    ) -> Result<(), DecodeError> {
        let operands = &instruction.operands;
        let table = instruction.opcode == "lop3";
        let needed = 1 + compute.sources.len() + usize::from(table);
        if operands.len() != needed {
            return Err(self.error(format!("{needed} operands"), operands.len().to_string()));
        }
        let any_width = compute.any_width;
        let mut slots = [None; 4];
        for (number, ty) in compute.sources.iter().enumerate() {
            let operand = &operands[1 + number];
            slots[number] = Some(if any_width {
                self.source_of(operand, *ty)?.0
            } else {
                self.source(operand, *ty)?
            });
        }
        // Operands that are not there repeat the first, so that every slot is one of its width.
        let a = slots[0].unwrap_or(0);
        let (b, c) = (slots[1].unwrap_or(a), slots[2].unwrap_or(a));
        let mut e = slots[3].unwrap_or(compute.extra);
        if table {
            e = match &operands[needed - 1] {
                Operand::Integer(value) if (0..256).contains(value) => *value as u32,
                other => return Err(self.error("a table from 0 to 255", describe(other))),
            };
        }
        let d = if any_width {
            let class = Class::of(compute.dst).unwrap_or(Class::Wide);
            self.destination_of(&operands[0], class)?.0
        } else {
            self.destination(&operands[0], compute.dst)?
        };
        self.pending.role = role_of(instruction, &compute);
        let carries = matches!(instruction.opcode.as_str(), "addc" | "subc" | "madc")
            || instruction.modifiers.iter().any(|word| word == "cc");
        self.pending.is_pure = !carries;
        self.emit(Op::Alu(compute.exec, Args { d, a, b, c, e }));
        Ok(())
    }

    /// `and.pred` and its kin.
    fn predicate_logic(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        let exec: AluFn = match instruction.opcode.as_str() {
            "and" => |r, i, mask| logic_run(r, i, mask, |a, b| a & b),
            "or" => |r, i, mask| logic_run(r, i, mask, |a, b| a | b),
            "xor" => |r, i, mask| logic_run(r, i, mask, |a, b| a ^ b),
            "not" => |r, i, mask| logic_run(r, i, mask, |a, _| !a),
            _ => return Err(self.unsupported(instruction)),
        };
        let [to, sources @ ..] = instruction.operands.as_slice() else {
            return Err(self.error("operands", "none"));
        };
        if sources.len() != if instruction.opcode == "not" { 1 } else { 2 } {
            return Err(self.unsupported(instruction));
        }
        let a = self.predicate_source(&sources[0])?;
        let b = match sources.get(1) {
            Some(operand) => self.predicate_source(operand)?,
            None => a,
        };
        let d = self.destination(to, T::Pred)?;
        self.emit(Op::Alu(exec, Args { d, a, b, ..Args::default() }));
        Ok(())
    }

    /// The comparison that the words of `setp` and `set` ask for.
    pub(super) fn comparison(&self, operator: &str, ty: T, ftz: bool) -> Option<TestFn> {
        match ty {
            T::F32 | T::F64 => float::comparison(operator, ty, ftz),
            T::F16 | T::BF16 => half::comparison(operator, ty),
            _ => integer::comparison(operator, ty),
        }
    }

    /// `setp`
    pub(super) fn set_predicate(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        let mut words = Words::new(&instruction.modifiers);
        let (operator, combine, ftz) = comparison_words(&mut words);
        let ty = self.type_of(&mut words, instruction)?;
        self.all_taken(&words, instruction)?;
        let half = half::half_of(ty);
        let test = operator.and_then(|operator| self.comparison(operator, half.unwrap_or(ty), ftz));
        let Some(test) = test else { return Err(self.unsupported(instruction)) };
        let operands = &instruction.operands;
        if operands.len() != 3 + usize::from(combine.is_some()) {
            return Err(self.unsupported(instruction));
        }
        if half.is_some() {
            let Operand::Pair(low, high) = &operands[0] else {
                return Err(self.unsupported(instruction));
            };
            for (number, to) in [low, high].into_iter().enumerate() {
                let (a, b) = self.halves(operands, ty, number)?;
                let combine = self.combined(combine, operands)?;
                let (a, b) = (self.read(a), self.read(b));
                let p = self.predicate_destination(to)?;
                self.emit(Op::Compare(Box::new(Compare { test, a, b, combine, p, q: NO_SLOT })));
            }
            return Ok(());
        }
        let (a, b) = (self.source(&operands[1], ty)?, self.source(&operands[2], ty)?);
        let is_below = matches!(operator, Some("lt" | "lo")) && ty == T::U64;
        let combine = self.combined(combine, operands)?;
        let (p, q) = match &operands[0] {
            Operand::Pair(p, q) => (self.predicate_destination(p)?, self.predicate_destination(q)?),
            single => (self.predicate_destination(single)?, NO_SLOT),
        };
        self.pending.role = if is_below { Role::Below } else { Role::None };
        self.emit(Op::Compare(Box::new(Compare { test, a, b, combine, p, q })));
        Ok(())
    }

    /// The third predicate of a comparison, where there is one.
    fn combined(
        &mut self,
        logic: Option<Logic>,
        operands: &[Operand],
    ) -> Result<Option<(Logic, u32)>, DecodeError> {
        match logic {
            Some(logic) => Ok(Some((logic, self.predicate_source(&operands[3])?))),
            None => Ok(None),
        }
    }

    /// The lower or upper halves of both sources of a packed comparison.
    fn halves(
        &mut self,
        operands: &[Operand],
        ty: T,
        number: usize,
    ) -> Result<(RegisterRef, RegisterRef), DecodeError> {
        let mut half = |operand| {
            let part = self.fresh(Class::Narrow);
            let b = self.constant(Constant::Bits(16 * number as u64), 4);
            let a = self.source(operand, ty)?;
            let d = self.write(part);
            let exec: AluFn = |r, i, mask| map2(r, i, mask, |a: u32, n: u32| (a >> n) as u16);
            self.emit(Op::Alu(exec, Args { d, a, b, ..Args::default() }));
            Ok(part)
        };
        Ok((half(&operands[1])?, half(&operands[2])?))
    }

    /// `set`: a comparison whose result is a number.
    pub(super) fn set(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        let mut words = Words::new(&instruction.modifiers);
        let (operator, combine, ftz) = comparison_words(&mut words);
        let dst = self.type_of(&mut words, instruction)?;
        let ty = self.type_of(&mut words, instruction)?;
        self.all_taken(&words, instruction)?;
        let half = half::half_of(ty);
        let test = operator.and_then(|operator| self.comparison(operator, half.unwrap_or(ty), ftz));
        // Of a pair, each half says so in 16 bits.
        let own = match (half, dst) {
            (Some(_), T::U32 | T::S32) => Some(T::U16),
            (Some(_), _) => half::half_of(dst),
            (None, _) => Some(dst),
        };
        let yes = match own {
            Some(T::U16 | T::S16) => 0xffff,
            Some(T::U32 | T::S32) => 0xffff_ffff,
            Some(T::F32) => 0x3f80_0000,
            Some(T::F16) => 0x3c00,
            Some(T::BF16) => 0x3f80,
            _ => return Err(self.unsupported(instruction)),
        };
        let Some(test) = test else { return Err(self.unsupported(instruction)) };
        let operands = &instruction.operands;
        if operands.len() != 3 + usize::from(combine.is_some()) {
            return Err(self.unsupported(instruction));
        }
        if half.is_none() {
            let (a, b) = (self.source(&operands[1], ty)?, self.source(&operands[2], ty)?);
            let combine = self.combined(combine, operands)?;
            let e = self.outcome(test, (a, b), combine);
            let class = Class::of(dst).unwrap_or(Class::Word);
            let d = self.destination(&operands[0], dst)?;
            self.emit_choice(class, yes, d, e);
            return Ok(());
        }
        let mut parts = Vec::new();
        for number in 0..2 {
            let (a, b) = self.halves(operands, ty, number)?;
            let combine = self.combined(combine, operands)?;
            let (a, b) = (self.read(a), self.read(b));
            let e = self.outcome(test, (a, b), combine);
            let part = self.fresh(Class::Narrow);
            let d = self.write(part);
            self.emit_choice(Class::Narrow, yes, d, e);
            parts.push(part);
        }
        let (a, b) = (self.read(parts[0]), self.read(parts[1]));
        let d = self.destination(&operands[0], dst)?;
        self.emit(Op::Alu(half::join, Args { d, a, b, ..Args::default() }));
        Ok(())
    }

    /// Compares into a predicate that no text names; gives its slot, noted as read.
    fn outcome(&mut self, test: TestFn, (a, b): (u32, u32), combine: Option<(Logic, u32)>) -> u32 {
        let outcome = self.fresh(Class::Predicate);
        let p = self.write(outcome);
        self.emit(Op::Compare(Box::new(Compare { test, a, b, combine, p, q: NO_SLOT })));
        self.read(outcome)
    }

    /// `d = condition ? yes : 0`
    pub(super) fn emit_choice(&mut self, class: Class, yes: u64, d: u32, condition: u32) {
        let a = self.constant(Constant::Bits(yes), class.bytes());
        let b = self.constant(Constant::Bits(0), class.bytes());
        self.emit(Op::Alu(select_of(class), Args { d, a, b, e: condition, ..Args::default() }));
    }

    /// `selp`
    pub(super) fn select(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        let mut words = Words::new(&instruction.modifiers);
        let ty = self.type_of(&mut words, instruction)?;
        self.all_taken(&words, instruction)?;
        let [to, yes, no, condition] = self.operands::<4>(instruction)?;
        let (a, b) = (self.source(yes, ty)?, self.source(no, ty)?);
        let e = self.predicate_source(condition)?;
        let d = self.destination(to, ty)?;
        let class = Class::of(ty).unwrap_or(Class::Wide);
        self.emit(Op::Alu(select_of(class), Args { d, a, b, e, ..Args::default() }));
        Ok(())
    }

    /// `slct`: by the sign of a third operand.
    pub(super) fn select_by_sign(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        let mut words = Words::new(&instruction.modifiers);
        let ftz = words.take("ftz");
        let ty = self.type_of(&mut words, instruction)?;
        let by = self.type_of(&mut words, instruction)?;
        self.all_taken(&words, instruction)?;
        let test = match by {
            T::S32 | T::F32 => self.comparison("ge", by, ftz),
            _ => None,
        };
        let Some(test) = test else { return Err(self.unsupported(instruction)) };
        let [to, yes, no, sign] = self.operands::<4>(instruction)?;
        let a = self.source(sign, by)?;
        let b = self.constant(Constant::Bits(0), 4);
        let e = self.outcome(test, (a, b), None);
        let (a, b) = (self.source(yes, ty)?, self.source(no, ty)?);
        let d = self.destination(to, ty)?;
        let class = Class::of(ty).unwrap_or(Class::Wide);
        self.emit(Op::Alu(select_of(class), Args { d, a, b, e, ..Args::default() }));
        Ok(())
    }

    /// `testp`
    pub(super) fn test_property(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        let mut words = Words::new(&instruction.modifiers);
        let property =
            words.take_any(&["finite", "infinite", "number", "notanumber", "normal", "subnormal"]);
        let ty = self.type_of(&mut words, instruction)?;
        self.all_taken(&words, instruction)?;
        let test = property.and_then(|property| float::property(property, ty));
        let Some(test) = test else { return Err(self.unsupported(instruction)) };
        let [to, from] = self.operands::<2>(instruction)?;
        let a = self.source(from, ty)?;
        let p = self.predicate_destination(to)?;
        let compare = Compare { test, a, b: a, combine: None, p, q: NO_SLOT };
        self.emit(Op::Compare(Box::new(compare)));
        Ok(())
    }

    /// The first type among the words.
    pub(super) fn type_of(
        &self,
        words: &mut Words<'_>,
        instruction: &Instruction,
    ) -> Result<T, DecodeError> {
        words.take_type().ok_or_else(|| self.unsupported(instruction))
    }

    /// Exactly so many operands.
    pub(super) fn operands<'i, const N: usize>(
        &self,
        instruction: &'i Instruction,
    ) -> Result<&'i [Operand; N], DecodeError> {
        instruction.operands.as_slice().try_into().map_err(|_| {
            let found = instruction.operands.len().to_string();
            self.error(format!("{N} operands"), found)
        })
    }

    /// Every word must have been understood.
    pub(super) fn all_taken(
        &self,
        words: &Words<'_>,
        instruction: &Instruction,
    ) -> Result<(), DecodeError> {
        match words.left_over() {
            None => Ok(()),
            Some(word) => {
                let found = format!("`.{word}` in `{}`", super::text::opcode(instruction));
                Err(self.error("an instruction of the supported subset", found))
            }
        }
    }

    /// An unknown instruction.
    pub(super) fn unsupported(&self, instruction: &Instruction) -> DecodeError {
        let found = format!("`{}`", super::text::instruction(instruction));
        self.error("an instruction of the supported subset", found)
    }
}

/// Operator, boolean combination and `.ftz` of a comparison.
fn comparison_words(words: &mut Words<'_>) -> (Option<&'static str>, Option<Logic>, bool) {
    let operator = words.take_any(&[
        "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu",
        "gtu", "geu", "num", "nan",
    ]);
    let combine = words.take_map(|word| match word {
        "and" => Some(Logic::And),
        "or" => Some(Logic::Or),
        "xor" => Some(Logic::Xor),
        _ => None,
    });
    (operator, combine, words.take("ftz"))
}
