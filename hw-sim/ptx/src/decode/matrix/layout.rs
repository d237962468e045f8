//! Which element of a matrix lies in which register of which lane.

use crate::exec::matrix::element::{Element, Places};
use crate::exec::matrix::multiply::Shape;
use crate::exec::registers::LANES;

/// Which of the matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// `m × k`
    A,
    /// `k × n`
    B,
    /// `m × n`, C and D
    C,
}

/// How a matrix is spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// That of `mma`, as the PTX ISA draws it.
    Warp,
    /// That of `mma.m8n8k4` on halves: lanes 0 to 3 with 16 to 19, and so on, have a matrix each.
    Quads {
        /// `.row`, for A and B.
        by_row: bool,
    },
    /// That of `wmma`, which PTX leaves open: elements in order, first all of lane 0.
    /// A and C go by rows, B by columns. Halves of A and B are there several times.
    Linear,
    /// As [`Form::Linear`], with places in the order in which they lie in memory.
    Memory {
        /// Rows lie side by side.
        by_row: bool,
    },
}

/// All that a layout depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Which matrix.
    pub side: Side,
    /// How it is spread.
    pub form: Form,
    /// Of the whole multiplication.
    pub shape: Shape,
    /// What it consists of.
    pub element: Element,
}

impl Layout {
    /// Rows and columns.
    pub fn extents(self) -> (usize, usize) {
        let Shape { m, n, k } = self.shape;
        match self.side {
            Side::A => (m, k),
            Side::B => (k, n),
            Side::C => (m, n),
        }
    }

    /// Registers of a lane.
    pub fn registers(self) -> usize {
        let (rows, columns) = self.extents();
        let own = rows * columns / (LANES * self.element.per_register());
        match self.form {
            // A quarter of the lanes has a whole matrix.
            Form::Quads { .. } => 4 * rows * columns / (LANES * self.element.per_register()),
            Form::Linear | Form::Memory { .. }
                if self.element == Element::F16 && self.side != Side::C =>
            {
                8
            }
            _ => own,
        }
    }

    /// The places of all elements: by register, lane, and place in the register.
    pub fn places(self) -> Places {
        let mut places = Vec::new();
        for register in 0..self.registers() {
            for lane in 0..LANES {
                for part in 0..self.element.per_register() {
                    let element = register * self.element.per_register() + part;
                    places.push(self.place(lane, element) as u16);
                }
            }
        }
        Places::new(&places)
    }

    /// The place of an element of a lane.
    fn place(self, lane: usize, element: usize) -> usize {
        let (rows, columns) = self.extents();
        let (row, column) = match self.form {
            Form::Warp => self.in_warp(lane, element),
            Form::Quads { by_row } => self.in_quads(by_row, lane, element),
            Form::Linear | Form::Memory { .. } => self.linear(lane, element),
        };
        let quad = if matches!(self.form, Form::Quads { .. }) { lane / 4 % 4 } else { 0 };
        // `mma` gives a lane two columns side by side, in two registers. With even columns first
        // and odd ones behind them, the registers of four lanes lie side by side.
        let column = match (self.form, self.side) {
            (Form::Warp, Side::B | Side::C) => column % 2 * 4 + column / 2,
            _ => column,
        };
        let by_row = self.form != Form::Memory { by_row: false };
        let inside = if by_row { row * columns + column } else { column * rows + row };
        quad * rows * columns + inside
    }

    /// Four lanes have 16 bytes of a row of A (or of a column of B), and the next four those of the
    /// next. Registers go through 8 rows, then the next 8, then on in k.
    fn in_warp(self, lane: usize, element: usize) -> (usize, usize) {
        let (group, member) = (lane / 4, lane % 4);
        let width = self.element.per_register();
        let (register, part) = (element / width, element % width);
        let along = member * width + part;
        let halves = self.shape.m / 8;
        match self.side {
            Side::A => (group + 8 * (register % halves), register / halves * 4 * width + along),
            Side::B => (register * 4 * width + along, group),
            Side::C => (group + 8 * (element / 2), 2 * member + element % 2),
        }
    }

    fn in_quads(self, by_row: bool, lane: usize, element: usize) -> (usize, usize) {
        let (member, upper) = (lane % 4, if lane < 16 { 0 } else { 4 });
        match (self.side, by_row) {
            (Side::A, true) => (member + upper, element),
            (Side::A, false) => (element + upper, member),
            (Side::B, true) => (member, element + upper),
            (Side::B, false) => (element, member + upper),
            (Side::C, _) if self.element == Element::F16 => (member + upper, element),
            (Side::C, _) => {
                ((lane & 1) + (element & 2) + upper, (element & 4) + (lane & 2) + (element & 1))
            }
        }
    }

    fn linear(self, lane: usize, element: usize) -> (usize, usize) {
        let (rows, columns) = self.extents();
        let own = self.registers() * self.element.per_register();
        let index = (lane * own + element) % (rows * columns);
        match self.side {
            Side::B => (index % rows, index / rows),
            _ => (index / columns, index % columns),
        }
    }
}
