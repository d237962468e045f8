//! `mov`: copies, packs and unpacks.

use super::DecodeError;
use super::function::{Class, FunctionDecoder};
use super::select::{Words, size_bytes};
use crate::ast::{Instruction, Operand, ScalarType as T};
use crate::exec::program::{Constant, Op};
use crate::exec::registers::{AluFn, Args, Registers, map1, map2};

macro_rules! alu {
    ($map:ident, $f:expr) => {{
        fn run(r: &mut Registers, i: &Args, mask: u32) {
            $map(r, i, mask, $f);
        }
        run as AluFn
    }};
}

/// Copies a register of a class.
pub fn copy_of(class: Class) -> AluFn {
    match class {
        Class::Narrow => alu!(map1, |a: u16| a),
        Class::Word => alu!(map1, |a: u32| a),
        Class::Wide => alu!(map1, |a: u64| a),
        Class::Predicate => |r, i, mask| {
            let bits = r.predicate(i.a);
            r.set_predicate(i.d, bits, mask);
        },
    }
}

impl FunctionDecoder<'_, '_> {
    /// `mov`
    pub(super) fn mov(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        let [to, from] = self.operands::<2>(instruction)?;
        let mut words = Words::new(&instruction.modifiers);
        let vector = words.take_any(&["v2", "v4", "v8"]).is_some();
        let ty = self.type_of(&mut words, instruction)?;
        self.all_taken(&words, instruction)?;
        match (to, from) {
            (Operand::Vector(to), Operand::Vector(from)) if vector => self.copy_parts(to, from, ty),
            // A register of 128 bits is a pair of 64.
            (Operand::Vector(to), Operand::Vector(from)) if ty == T::B128 => {
                self.copy_parts(to, from, T::B64)
            }
            _ if vector => Err(self.unsupported(instruction)),
            (Operand::Vector(parts), _) => self.unpack(parts, from, ty),
            (_, Operand::Vector(parts)) => self.pack(to, parts, ty),
            (_, Operand::Name(name)) if ty == T::Pred && name == "%is_explicit_cluster" => {
                self.explicit_cluster(to)
            }
            _ if ty == T::Pred => {
                let a = self.predicate_source(from)?;
                let d = self.destination(to, ty)?;
                let args = Args { d, a, ..Args::default() };
                self.emit(Op::Alu(copy_of(Class::Predicate), args));
                Ok(())
            }
            (Operand::Name(_), Operand::Name(name)) if super::special::find(name).is_some() => {
                let Some((which, _)) = super::special::find(name) else { return Ok(()) };
                let (d, class) = self.destination_of(to, Class::Word)?;
                self.emit(Op::Special { d, which, width: class.bytes() });
                Ok(())
            }
            _ => {
                let a = self.source(from, ty)?;
                let d = self.destination(to, ty)?;
                let class = Class::of(ty).unwrap_or(Class::Wide);
                self.pending.is_pure = true;
                self.emit(Op::Alu(copy_of(class), Args { d, a, ..Args::default() }));
                Ok(())
            }
        }
    }

    /// `mov.v2.b32 {a, b}, {c, d}`: all sources are read before anything is written.
    fn copy_parts(&mut self, to: &[Operand], from: &[Operand], ty: T) -> Result<(), DecodeError> {
        if to.len() != from.len() {
            return Err(self.error(format!("{} parts", to.len()), from.len().to_string()));
        }
        let class = Class::of(ty).unwrap_or(Class::Wide);
        let mut copies = Vec::with_capacity(from.len());
        for part in from {
            let copy = self.fresh(class);
            let a = self.source(part, ty)?;
            let d = self.write(copy);
            self.pending.is_pure = true;
            self.emit(Op::Alu(copy_of(class), Args { d, a, ..Args::default() }));
            copies.push(copy);
        }
        for (part, copy) in to.iter().zip(copies).filter(|(part, _)| **part != Operand::Sink) {
            let a = self.read(copy);
            let d = self.destination(part, ty)?;
            self.pending.is_pure = true;
            self.emit(Op::Alu(copy_of(class), Args { d, a, ..Args::default() }));
        }
        Ok(())
    }

    /// `mov.b64 {a, b}, c`: each part by itself.
    fn unpack(&mut self, parts: &[Operand], from: &Operand, ty: T) -> Result<(), DecodeError> {
        let bytes = size_bytes(ty) / (parts.len() as u32).max(1);
        let exec = match (size_bytes(ty), bytes) {
            (4, 2) => alu!(map2, |a: u32, n: u32| (a >> (n * 16)) as u16),
            (8, 2) => alu!(map2, |a: u64, n: u32| (a >> (n * 16)) as u16),
            (8, 4) => alu!(map2, |a: u64, n: u32| (a >> (n * 32)) as u32),
            _ => return Err(self.error("parts of 16 or 32 bits", format!("{bytes} bytes"))),
        };
        let part_type = if bytes == 2 { T::B16 } else { T::B32 };
        // The source may be among the parts: it is read from a copy.
        let wide = Class::of(ty).unwrap_or(Class::Wide);
        let copy = self.fresh(wide);
        let a = self.source(from, ty)?;
        let d = self.write(copy);
        self.emit(Op::Alu(copy_of(wide), Args { d, a, ..Args::default() }));
        for (number, part) in parts.iter().enumerate() {
            if *part == Operand::Sink {
                continue;
            }
            let b = self.constant(Constant::Bits(number as u64), 4);
            let a = self.read(copy);
            let d = self.destination(part, part_type)?;
            self.emit(Op::Alu(exec, Args { d, a, b, ..Args::default() }));
        }
        Ok(())
    }

    /// `mov.b64 c, {a, b}`
    fn pack(&mut self, to: &Operand, parts: &[Operand], ty: T) -> Result<(), DecodeError> {
        let join_words = alu!(map2, |a: u32, b: u32| u64::from(b) << 32 | u64::from(a));
        match (size_bytes(ty), parts) {
            (4, [low, high]) => {
                let (a, b) = (self.source(low, T::B16)?, self.source(high, T::B16)?);
                let d = self.destination(to, ty)?;
                self.emit(Op::Alu(crate::exec::half::join, Args { d, a, b, ..Args::default() }));
            }
            (8, [low, high]) => {
                let (a, b) = (self.source(low, T::B32)?, self.source(high, T::B32)?);
                let d = self.destination(to, ty)?;
                self.emit(Op::Alu(join_words, Args { d, a, b, ..Args::default() }));
            }
            (8, [first, second, third, fourth]) => {
                let mut words = [None; 2];
                for (word, (low, high)) in words.iter_mut().zip([(first, second), (third, fourth)])
                {
                    let (a, b) = (self.source(low, T::B16)?, self.source(high, T::B16)?);
                    let joined = self.fresh(Class::Word);
                    let d = self.write(joined);
                    self.emit(Op::Alu(
                        crate::exec::half::join,
                        Args { d, a, b, ..Args::default() },
                    ));
                    *word = Some(joined);
                }
                if let [Some(low), Some(high)] = words {
                    let (a, b) = (self.read(low), self.read(high));
                    let d = self.destination(to, ty)?;
                    self.emit(Op::Alu(join_words, Args { d, a, b, ..Args::default() }));
                }
            }
            _ => return Err(self.error("2 parts of a half, or 4 of a quarter", "others")),
        }
        Ok(())
    }
}
