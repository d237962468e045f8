//! `ldmatrix`, `stmatrix`, `movmatrix`, and `wmma.load` and `.store`.

use super::{Form, Layout, MatrixWords, Side, Types, wmma_architecture};
use crate::ast::{Instruction, Operand, ScalarType as T};
use crate::decode::DecodeError;
use crate::decode::function::FunctionDecoder;
use crate::decode::select::Words;
use crate::exec::matrix::element::Element;
use crate::exec::matrix::memory::{Lines, Tiles, Transpose};
use crate::exec::program::{NO_SLOT, Op};

impl FunctionDecoder<'_, '_> {
    /// `ldmatrix`, `stmatrix`
    pub(in crate::decode) fn move_tiles(
        &mut self,
        instruction: &Instruction,
        stores: bool,
    ) -> Result<(), DecodeError> {
        let mut words = Words::new(&instruction.modifiers);
        let form = [words.take("sync"), words.take("aligned"), words.take("m8n8")];
        let count = words.take_any(&["x1", "x2", "x4"]);
        let transposed = words.take("trans");
        let space = words.take_any(&["shared", "shared::cta"]);
        let halves = words.take("b16");
        self.all_taken(&words, instruction)?;
        let (Some(count), true) = (count, form == [true; 3] && halves) else {
            return Err(self.unsupported(instruction));
        };
        self.require(instruction, if stores { 90 } else { 75 })?;
        let operands = self.operands::<2>(instruction)?;
        let (address, registers) =
            if stores { (&operands[0], &operands[1]) } else { (&operands[1], &operands[0]) };
        let base = self.place_of(address, space)?.base();
        let count = match count {
            "x1" => 1,
            "x2" => 2,
            _ => 4,
        };
        let slots = self.matrix_slots(registers, count, Element::F16, !stores)?;
        self.emit(Op::Tiles(Box::new(Tiles { base, slots, transposed, stores })));
        Ok(())
    }

    /// `movmatrix`
    pub(in crate::decode) fn move_matrix(
        &mut self,
        instruction: &Instruction,
    ) -> Result<(), DecodeError> {
        if instruction.modifiers != ["sync", "aligned", "m8n8", "trans", "b16"] {
            return Err(self.unsupported(instruction));
        }
        self.require(instruction, 75)?;
        let [to, from] = self.operands::<2>(instruction)?;
        let a = self.source(from, T::B32)?;
        let d = self.destination(to, T::B32)?;
        self.emit(Op::Transpose(Transpose { d, a }));
        Ok(())
    }

    /// `wmma.load`, `wmma.store`
    pub(super) fn wmma_move(
        &mut self,
        instruction: &Instruction,
        words: &MatrixWords<'_>,
    ) -> Result<(), DecodeError> {
        let (Some(shape), &[element], &[by_row]) =
            (words.shape, words.elements.as_slice(), words.by_row.as_slice())
        else {
            return Err(self.unsupported(instruction));
        };
        let (stores, side, space) = match *words.rest.as_slice() {
            ["load", side, "sync", "aligned", ref space @ ..] => (false, side, space),
            ["store", "d", "sync", "aligned", ref space @ ..] => (true, "d", space),
            _ => return Err(self.unsupported(instruction)),
        };
        let side = match side {
            "a" => Side::A,
            "b" => Side::B,
            "c" | "d" => Side::C,
            _ => return Err(self.unsupported(instruction)),
        };
        let space = match *space {
            [] => None,
            [space @ ("global" | "shared" | "shared::cta")] => Some(space),
            _ => return Err(self.unsupported(instruction)),
        };
        // There is such a load where there is a multiplication that takes it.
        let architecture = kin(side, element)
            .into_iter()
            .filter_map(|types| wmma_architecture(shape, types))
            .min();
        let Some(architecture) = architecture else { return Err(self.unsupported(instruction)) };
        self.require(instruction, architecture)?;
        let layout = Layout { side, form: Form::Memory { by_row }, shape, element };
        self.emit_lines(instruction, layout, (stores, space))
    }

    fn emit_lines(
        &mut self,
        instruction: &Instruction,
        layout: Layout,
        (stores, space): (bool, Option<&str>),
    ) -> Result<(), DecodeError> {
        let (first, second, stride) = match instruction.operands.as_slice() {
            [first, second] => (first, second, None),
            [first, second, stride] => (first, second, Some(stride)),
            others => return Err(self.error("2 or 3 operands", others.len().to_string())),
        };
        let (address, registers): (&Operand, &Operand) =
            if stores { (first, second) } else { (second, first) };
        let base = self.place_of(address, space)?.base();
        let stride = match stride {
            Some(stride) => self.source(stride, T::U32)?,
            None => NO_SLOT,
        };
        let matrix = self.matrix_registers(registers, layout, !stores)?;
        let (rows, columns) = layout.extents();
        let by_row = layout.form == Form::Memory { by_row: true };
        let (lines, length) = if by_row { (rows, columns) } else { (columns, rows) };
        self.emit(Op::Lines(Box::new(Lines { base, stride, lines, length, matrix, stores })));
        Ok(())
    }
}

/// Multiplications in which a matrix may consist of such elements.
fn kin(side: Side, element: Element) -> Vec<Types> {
    use Element::{BF16, F16, F32, F64, S8, S32, Tf32};
    let of = |a, c| Types { d: c, a, b: a, c };
    match (side, element) {
        (Side::C, F32) => vec![of(F16, F32), of(BF16, F32), of(Tf32, F32)],
        (Side::C, F16) => vec![of(F16, F16)],
        (Side::C, S32) => vec![of(S8, S32)],
        (Side::C, F64) => vec![of(F64, F64)],
        (Side::C, _) => vec![],
        (_, a) => [F32, S32, F64].into_iter().map(|c| of(a, c)).collect(),
    }
}
