//! Matrix instructions: `mma`, `wmma`, `ldmatrix` and their kin.

mod group;
mod layout;
mod memory;

pub use layout::{Form, Layout, Side};

use super::DecodeError;
use super::function::FunctionDecoder;
use crate::ast::{Instruction, Operand, ScalarType as T};
use crate::exec::matrix::element::{Directed, ELEMENTS_MAX, Element, MatrixRegisters};
use crate::exec::matrix::multiply::{Multiply, Shape, run};
use crate::exec::program::Op;
use crate::exec::registers::Registers;
use crate::exec::rounding::Rounding;

/// The dotted words of a matrix instruction.
#[derive(Debug, Default)]
struct MatrixWords<'i> {
    shape: Option<Shape>,
    /// `.row`, or else `.col`, in order.
    by_row: Vec<bool>,
    elements: Vec<Element>,
    saturate: bool,
    rounding: Option<Rounding>,
    /// The others.
    rest: Vec<&'i str>,
}

impl<'i> MatrixWords<'i> {
    fn of(instruction: &'i Instruction) -> Self {
        let mut words = Self::default();
        for word in instruction.modifiers.iter().map(String::as_str) {
            match word {
                "row" | "col" => words.by_row.push(word == "row"),
                "satfinite" => words.saturate = true,
                "rn" => words.rounding = Some(Rounding::Nearest),
                "rz" => words.rounding = Some(Rounding::Zero),
                "rm" => words.rounding = Some(Rounding::Down),
                "rp" => words.rounding = Some(Rounding::Up),
                _ => {
                    if let Some(element) = Element::named(word) {
                        words.elements.push(element);
                    } else if let Some(shape) = shape(word) {
                        words.shape = Some(shape);
                    } else {
                        words.rest.push(word);
                    }
                }
            }
        }
        words
    }
}

/// `m16n8k16`
fn shape(word: &str) -> Option<Shape> {
    let (m, rest) = word.strip_prefix('m')?.split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    Some(Shape { m: m.parse().ok()?, n: n.parse().ok()?, k: k.parse().ok()? })
}

/// Types of the four matrices, in the order in which `mma` names them.
#[derive(Clone, Copy, Debug)]
struct Types {
    d: Element,
    a: Element,
    b: Element,
    c: Element,
}

/// The architecture that brought a form of `mma`; None if there is no such form.
fn mma_architecture(shape: Shape, types: Types) -> Option<u32> {
    use Element::{BF16, E4m3, E5m2, F16, F32, F64, S8, S32, Tf32, U8};
    let Types { d, a, b, c } = types;
    let same = |element| (d, c) == (element, element);
    let halves = same(F16) || same(F32);
    Some(match (shape.m, shape.n, shape.k, a, b) {
        // D may be wider than C, not narrower.
        (8, 8, 4, F16, F16) if halves || (d, c) == (F32, F16) => 70,
        (16, 8, 8, F16, F16) if halves => 75,
        (16, 8, 16, F16, F16) if halves => 80,
        (16, 8, 8 | 16, BF16, BF16) if same(F32) => 80,
        (16, 8, 4 | 8, Tf32, Tf32) if same(F32) => 80,
        (8, 8, 16, S8 | U8, S8 | U8) if same(S32) => 75,
        (16, 8, 16 | 32, S8 | U8, S8 | U8) if same(S32) => 80,
        (16, 8, 32, E4m3 | E5m2, E4m3 | E5m2) if same(F32) => 89,
        (8, 8, 4, F64, F64) if same(F64) => 80,
        (16, 8, 4 | 8 | 16, F64, F64) if same(F64) => 90,
        _ => return None,
    })
}

/// The same of `wmma`.
fn wmma_architecture(shape: Shape, types: Types) -> Option<u32> {
    use Element::{BF16, F16, F32, F64, S8, S32, Tf32, U8};
    let Types { d, a, b, c } = types;
    if a != b {
        return None;
    }
    let large = matches!((shape.m, shape.n, shape.k), (16, 16, 16) | (32, 8, 16) | (8, 32, 16));
    let same = |element| (d, c) == (element, element);
    Some(match a {
        F16 if large && matches!(d, F16 | F32) && matches!(c, F16 | F32) => 70,
        BF16 if large && same(F32) => 80,
        S8 | U8 if large && same(S32) => 72,
        Tf32 if (shape.m, shape.n, shape.k) == (16, 16, 8) && same(F32) => 80,
        F64 if (shape.m, shape.n, shape.k) == (8, 8, 4) && same(F64) => 80,
        _ => return None,
    })
}

/// What multiplies matrices of so many elements at most.
fn runner(d: Element, words: &MatrixWords<'_>, elements: usize) -> fn(&mut Registers, &Multiply) {
    macro_rules! of {
        ($ty:ty) => {
            match elements {
                ..=128 => run::<$ty, 128>,
                129..=256 => run::<$ty, 256>,
                _ => run::<$ty, ELEMENTS_MAX>,
            }
        };
    }
    match (d, words.rounding) {
        (Element::F64, Some(Rounding::Zero)) => of!(Directed<{ Rounding::Zero.code() }>),
        (Element::F64, Some(Rounding::Down)) => of!(Directed<{ Rounding::Down.code() }>),
        (Element::F64, Some(Rounding::Up)) => of!(Directed<{ Rounding::Up.code() }>),
        (Element::F64, _) => of!(f64),
        (Element::S32, _) if words.saturate => of!(i64),
        (Element::S32, _) => of!(i32),
        _ => of!(f32),
    }
}

impl FunctionDecoder<'_, '_> {
    /// Refuses an instruction that the module's `.target` does not have.
    pub(super) fn require(
        &self,
        instruction: &Instruction,
        architecture: u32,
    ) -> Result<(), DecodeError> {
        let found = self.shared.architecture();
        if found >= architecture {
            return Ok(());
        }
        let opcode = super::text::opcode(instruction);
        let expected = format!("`.target sm_{architecture}` or above for `{opcode}`");
        Err(self.error(expected, format!("sm_{found}")))
    }

    /// `mma`
    pub(super) fn mma(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        let words = MatrixWords::of(instruction);
        let (Some(shape), [d, a, b, c], [a_by_row, b_by_row], ["sync", "aligned"]) = (
            words.shape,
            words.elements.as_slice(),
            words.by_row.as_slice(),
            words.rest.as_slice(),
        ) else {
            return Err(self.unsupported(instruction));
        };
        let types = Types { d: *d, a: *a, b: *b, c: *c };
        let Some(architecture) = mma_architecture(shape, types) else {
            return Err(self.unsupported(instruction));
        };
        let quads = (shape.m, types.a) == (8, Element::F16);
        if !quads && (*a_by_row, *b_by_row) != (true, false) {
            return Err(self.error("the layouts `.row.col`", super::text::opcode(instruction)));
        }
        self.require(instruction, architecture)?;
        let forms = match quads {
            true => [Form::Quads { by_row: *a_by_row }, Form::Quads { by_row: *b_by_row }],
            false => [Form::Warp; 2],
        };
        self.emit_multiply(instruction, &words, (shape, types), forms)
    }

    /// `wmma`
    pub(super) fn wmma(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        let words = MatrixWords::of(instruction);
        match words.rest.as_slice() {
            ["mma", "sync", "aligned"] => self.wmma_multiply(instruction, &words),
            ["load" | "store", ..] => self.wmma_move(instruction, &words),
            _ => Err(self.unsupported(instruction)),
        }
    }

    /// `wmma.mma`: of halves it names the types of D and C alone.
    fn wmma_multiply(
        &mut self,
        instruction: &Instruction,
        words: &MatrixWords<'_>,
    ) -> Result<(), DecodeError> {
        let types = match *words.elements.as_slice() {
            [d, c] => Types { d, a: Element::F16, b: Element::F16, c },
            [d, a, b, c] if a != Element::F16 => Types { d, a, b, c },
            _ => return Err(self.unsupported(instruction)),
        };
        let form = words.shape.and_then(|shape| Some((shape, wmma_architecture(shape, types)?)));
        let (Some((shape, architecture)), 2) = (form, words.by_row.len()) else {
            return Err(self.unsupported(instruction));
        };
        self.require(instruction, architecture)?;
        self.emit_multiply(instruction, words, (shape, types), [Form::Linear; 2])
    }

    /// Reads the operands D, A, B, C and emits.
    fn emit_multiply(
        &mut self,
        instruction: &Instruction,
        words: &MatrixWords<'_>,
        (shape, types): (Shape, Types),
        [a_form, b_form]: [Form; 2],
    ) -> Result<(), DecodeError> {
        let [to, a, b, c] = self.operands::<4>(instruction)?;
        let (integers, doubles) = (types.d == Element::S32, types.d == Element::F64);
        if (words.saturate && !integers) || (words.rounding.is_some() && !doubles) {
            return Err(self.unsupported(instruction));
        }
        let layout = |side, form, element| Layout { side, form, shape, element };
        let a = self.matrix_registers(a, layout(Side::A, a_form, types.a), false)?;
        let b = self.matrix_registers(b, layout(Side::B, b_form, types.b), false)?;
        let c = self.matrix_registers(c, layout(Side::C, a_form, types.c), false)?;
        let d = self.matrix_registers(to, layout(Side::C, a_form, types.d), true)?;
        let count = if matches!(a_form, Form::Quads { .. }) { 4 } else { 1 };
        let Shape { m, n, k } = shape;
        let run = runner(types.d, words, count * (m * n).max(m * k).max(n * k));
        self.emit(Op::Multiply(Box::new(Multiply { shape, count, a, b, c, d, run })));
        Ok(())
    }

    /// The registers of a matrix, and what lies where in them.
    fn matrix_registers(
        &mut self,
        operand: &Operand,
        layout: Layout,
        is_destination: bool,
    ) -> Result<MatrixRegisters, DecodeError> {
        let slots =
            self.matrix_slots(operand, layout.registers(), layout.element, is_destination)?;
        let places = self.shared.places(layout);
        Ok(MatrixRegisters { element: layout.element, slots, places })
    }

    /// So many registers in braces; one may stand without.
    fn matrix_slots(
        &mut self,
        operand: &Operand,
        count: usize,
        element: Element,
        is_destination: bool,
    ) -> Result<Vec<u32>, DecodeError> {
        let parts = match operand {
            Operand::Vector(parts) => parts.as_slice(),
            single => std::slice::from_ref(single),
        };
        if parts.len() != count {
            return Err(self.error(format!("{count} registers"), parts.len().to_string()));
        }
        let ty = match element {
            Element::F64 => T::F64,
            Element::F32 => T::F32,
            _ => T::B32,
        };
        let mut slots = Vec::with_capacity(count);
        for part in parts {
            slots.push(match is_destination {
                true => self.destination(part, ty)?,
                false => self.source(part, ty)?,
            });
        }
        Ok(slots)
    }
}
