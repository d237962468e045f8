//! `wgmma`.

use super::{Form, Layout, Side};
use crate::ast::{Instruction, Operand, ScalarType as T};
use crate::decode::DecodeError;
use crate::decode::function::{FunctionDecoder, describe};
use crate::exec::matrix::element::{Element, MatrixRegisters};
use crate::exec::matrix::group::{
    COLUMNS_MAX, GroupA, GroupMultiply, GroupRun, ROWS, SharedMatrix, run,
};
use crate::exec::matrix::multiply::Shape;
use crate::exec::program::Op;

/// Is there such a multiplication, of 64 rows?
fn exists(shape: Shape, d: Element, a: Element, b: Element) -> bool {
    use Element::{BF16, E4m3, E5m2, F16, F32, S8, S32, Tf32, U8};
    let types = match (d, a, b) {
        (F16 | F32, F16, F16) | (F32, BF16, BF16) => shape.k == 16,
        (F32, Tf32, Tf32) => shape.k == 8,
        (F16 | F32, E4m3 | E5m2, E4m3 | E5m2) | (S32, S8 | U8, S8 | U8) => shape.k == 32,
        _ => false,
    };
    let n = shape.n;
    let columns = match d {
        // Of integers there are fewer sizes.
        S32 => n == 8 || n == 24 || n.is_multiple_of(16),
        _ => n.is_multiple_of(8),
    };
    types && columns && shape.m == 64 && (8..=COLUMNS_MAX).contains(&n)
}

impl FunctionDecoder<'_, '_> {
    /// `wgmma`: products are done at once, so fences, groups and waits have nothing to do.
    pub(in crate::decode) fn wgmma(
        &mut self,
        instruction: &Instruction,
    ) -> Result<(), DecodeError> {
        let words: Vec<&str> = instruction.modifiers.iter().map(String::as_str).collect();
        let is_void = match words.as_slice() {
            ["fence" | "commit_group", "sync", "aligned"] => instruction.operands.is_empty(),
            ["wait_group", "sync", "aligned"] => {
                matches!(instruction.operands.as_slice(), [Operand::Integer(0..)])
            }
            ["mma_async", "sync", "aligned", rest @ ..] => {
                self.require(instruction, 90)?;
                return self.multiply_in_group(instruction, rest);
            }
            _ => false,
        };
        if !is_void {
            return Err(self.unsupported(instruction));
        }
        self.require(instruction, 90)?;
        self.emit(Op::Nop);
        Ok(())
    }

    fn multiply_in_group(
        &mut self,
        instruction: &Instruction,
        words: &[&str],
    ) -> Result<(), DecodeError> {
        let (words, saturates) = match words {
            [words @ .., "satfinite"] => (words, true),
            words => (words, false),
        };
        let &[shape, d, a, b] = words else { return Err(self.unsupported(instruction)) };
        let types = [d, a, b].map(Element::named);
        let (Some(shape), [Some(d), Some(a), Some(b)]) = (super::shape(shape), types) else {
            return Err(self.unsupported(instruction));
        };
        if !exists(shape, d, a, b) || (saturates && d != Element::S32) {
            return Err(self.unsupported(instruction));
        }
        let [to, left, right, adds, rest @ ..] = instruction.operands.as_slice() else {
            return Err(self.unsupported(instruction));
        };
        let in_registers = matches!(left, Operand::Vector(_));
        let (signs, transposes) = match d {
            Element::S32 => (0, 0),
            _ if matches!(a, Element::F16 | Element::BF16) => (2, if in_registers { 1 } else { 2 }),
            _ => (2, 0),
        };
        if rest.len() != signs + transposes {
            let expected = format!("{} operands", 4 + signs + transposes);
            return Err(self.error(expected, instruction.operands.len().to_string()));
        }
        let negates_a = signs > 0 && self.is_negative(&rest[0])?;
        let negates_b = signs > 0 && self.is_negative(&rest[1])?;
        let transposed = |decoder: &Self, index: usize| match rest.get(index) {
            None | Some(Operand::Integer(0)) => Ok(false),
            Some(Operand::Integer(1)) => Ok(true),
            Some(other) => Err(decoder.error("0 or 1", describe(other))),
        };
        let a_transposed = !in_registers && transposed(self, signs)?;
        let b_transposed = transposed(self, signs + transposes.saturating_sub(1))?;
        let b_transposed = transposes > 0 && b_transposed;
        let adds = self.predicate_source(adds)?;
        let source = match in_registers {
            true => {
                let shape = Shape { m: ROWS, ..shape };
                let layout = Layout { side: Side::A, form: Form::Warp, shape, element: a };
                let registers: MatrixRegisters = self.matrix_registers(left, layout, false)?;
                GroupA::Registers(registers)
            }
            false => {
                let descriptor = self.source(left, T::B64)?;
                GroupA::Shared(SharedMatrix { descriptor, transposed: a_transposed })
            }
        };
        let descriptor = self.source(right, T::B64)?;
        let count = shape.n / 2 / d.per_register();
        // D is read and written, as lanes or all.
        self.matrix_slots(to, count, d, false)?;
        let slots = self.matrix_slots(to, count, d, true)?;
        let run: GroupRun = match d {
            Element::S32 if saturates => run::<i64>,
            Element::S32 => run::<i32>,
            _ => run::<f32>,
        };
        self.emit(Op::GroupMultiply(Box::new(GroupMultiply {
            n: shape.n,
            a_element: a,
            b_element: b,
            a: source,
            b: SharedMatrix { descriptor, transposed: b_transposed },
            d_element: d,
            d: slots,
            adds,
            negates_a,
            negates_b,
            run,
        })));
        Ok(())
    }

    /// `-1`, or else `1`.
    fn is_negative(&self, operand: &Operand) -> Result<bool, DecodeError> {
        match operand {
            Operand::Integer(1) => Ok(false),
            Operand::Integer(-1) => Ok(true),
            other => Err(self.error("1 or -1", describe(other))),
        }
    }
}
