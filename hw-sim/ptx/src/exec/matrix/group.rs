//! `wgmma.mma_async`: `D = A × B + D` by four warps, with B, and maybe A, in shared memory.
//!
//! Each warp has 16 of the 64 rows, and needs of the others nothing but what they have written to
//! shared memory before. So each computes its rows by itself, at once: fences, groups and waits
//! have nothing to do, and a kernel that forgets them does not show. The order of the sums is that
//! of `mma` ([`super::multiply`]).

use super::element::{Element, MatrixRegisters, Number, ROW_MAX};
use super::multiply::accumulate;
use crate::exec::fault::{FaultKind, Trouble};
use crate::exec::program::NO_SLOT;
use crate::exec::registers::LANES;
use crate::exec::warp::{Context, Flow, Warp};
use crate::kernel::Clock;
use crate::memory::Memory;
use crate::tensor_map::Swizzle;

/// Rows of one warp.
pub const ROWS: usize = 16;
/// Bytes of a row of A and of a column of B, whatever they consist of.
const LINE_BYTES: usize = 32;
/// Most elements of such a line.
const K_MAX: usize = 32;
/// Most columns.
pub const COLUMNS_MAX: usize = 256;
/// Columns that are computed together.
const PANEL: usize = 8;

/// The instruction.
#[derive(Clone, Debug)]
pub struct GroupMultiply {
    /// Columns of B and D.
    pub n: usize,
    /// What A consists of.
    pub a_element: Element,
    /// What B consists of.
    pub b_element: Element,
    /// Where A is.
    pub a: GroupA,
    /// B in shared memory.
    pub b: SharedMatrix,
    /// What D consists of.
    pub d_element: Element,
    /// D's registers.
    pub d: Vec<u32>,
    /// Predicate: D counts; else the sums begin with zero.
    pub adds: u32,
    /// A is negated.
    pub negates_a: bool,
    /// B is negated.
    pub negates_b: bool,
    /// Does the work, in the type that the sums need.
    pub run: GroupRun,
}

/// Where A is.
#[derive(Clone, Debug)]
pub enum GroupA {
    /// In registers, of 16 rows each warp.
    Registers(MatrixRegisters),
    /// In shared memory.
    Shared(SharedMatrix),
}

/// A matrix in shared memory.
#[derive(Clone, Copy, Debug)]
pub struct SharedMatrix {
    /// Slot of its descriptor.
    pub descriptor: u32,
    /// Rows of A, or columns of B, lie side by side, and not the elements of a sum.
    pub transposed: bool,
}

/// What does the work: A by rows of 16, B by panels of columns, D by panels.
pub type GroupRun = fn(&mut Warp, &GroupMultiply, &Lines, &Lines);

/// The lines of a matrix, as bytes: each has the elements of a sum.
pub struct Lines {
    bytes: [[u8; LINE_BYTES]; COLUMNS_MAX],
}

impl Lines {
    const ZERO: Self = Self { bytes: [[0; LINE_BYTES]; COLUMNS_MAX] };
}

/// A descriptor, read.
struct Descriptor {
    start: u64,
    leading: u64,
    stride: u64,
    swizzle: Swizzle,
}

impl Descriptor {
    /// None where it says something that is not supported.
    fn of(bits: u64) -> Option<Self> {
        let field = |shift: u32| (bits >> shift & 0x3fff) << 4;
        let swizzle = match bits >> 62 {
            0 => Swizzle::None,
            1 => Swizzle::Bytes128,
            2 => Swizzle::Bytes64,
            _ => Swizzle::Bytes32,
        };
        let has_base_offset = bits >> 49 & 7 != 0;
        let (start, leading, stride) = (field(0), field(16), field(32));
        (!has_base_offset).then_some(Self { start, leading, stride, swizzle })
    }

    /// Where 16 bytes lie, by their place in the canonical layouts of the PTX ISA: `along` counts
    /// chunks of 16 bytes in the direction that is contiguous, `across` single elements.
    fn place(&self, along: u64, across: u64, transposed: bool) -> u64 {
        let Self { start, leading, stride, swizzle } = *self;
        let line = swizzle.line_bytes();
        let inside = match (transposed, swizzle) {
            (false, Swizzle::None) => along * leading + across / 8 * stride + across % 8 * 16,
            (false, _) => along * 16 + across / 8 * stride + across % 8 * line,
            (true, Swizzle::None) => along * stride + across / 8 * leading + across % 8 * 16,
            (true, _) => {
                let chunks = line / 16;
                let atom = along / chunks * leading + along % chunks * 16;
                atom + across / 8 * stride + across % 8 * line
            }
        };
        swizzle.place(start + inside)
    }
}

impl Warp {
    /// `wgmma.mma_async`
    #[inline(never)]
    pub(in crate::exec) fn multiply_in_group<M: Memory, C: Clock>(
        &mut self,
        context: &Context<'_, M, C>,
        multiply: &GroupMultiply,
        mask: u32,
        active: u32,
    ) -> Result<Flow, Box<Trouble>> {
        if let Some(wait) = self.whole_warp(mask, active)? {
            return Ok(wait);
        }
        let shared = context.block.bytes.as_slice();
        let b = self.shared_lines(shared, multiply.b, multiply.b_element, 0..multiply.n)?;
        let a = match &multiply.a {
            GroupA::Registers(_) => Lines::ZERO,
            GroupA::Shared(matrix) => {
                let first = self.number as usize % 4 * ROWS;
                self.shared_lines(shared, *matrix, multiply.a_element, first..first + ROWS)?
            }
        };
        (multiply.run)(self, multiply, &a, &b);
        Ok(Flow::Next)
    }

    /// Reads rows of A, or columns of B.
    fn shared_lines(
        &self,
        shared: &[u8],
        matrix: SharedMatrix,
        element: Element,
        lines: std::ops::Range<usize>,
    ) -> Result<Lines, Box<Trouble>> {
        let bits = self.registers.get::<u64>(matrix.descriptor)[0];
        let trouble = |address: u64, detail: String| {
            let trouble = Trouble::at(FaultKind::InvalidBulk, 0, address, 16);
            Box::new(Trouble { detail, ..*trouble })
        };
        let Some(descriptor) = Descriptor::of(bits) else {
            return Err(trouble(0, format!("a matrix descriptor with a base offset: {bits:#x}")));
        };
        let chunk_at = |along: u64, across: u64| -> Result<[u8; 16], Box<Trouble>> {
            let address = descriptor.place(along, across, matrix.transposed);
            let found = shared.get(address as usize..).and_then(|bytes| bytes.first_chunk());
            found.copied().ok_or_else(|| Trouble::at(FaultKind::SharedOutOfBounds, 0, address, 16))
        };
        let mut found = Lines::ZERO;
        let width = element.bytes();
        if !matrix.transposed {
            for (line, into) in lines.zip(&mut found.bytes) {
                for (half, into) in into.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                    *into = chunk_at(half as u64, line as u64)?;
                }
            }
            return Ok(found);
        }
        // Chunks hold one element of several lines.
        let per_chunk = 16 / width;
        for step in 0..LINE_BYTES / width {
            for (number, line) in lines.clone().step_by(per_chunk).enumerate() {
                let chunk = chunk_at((line / per_chunk) as u64, step as u64)?;
                for (part, element) in chunk.chunks_exact(width).enumerate() {
                    let into = &mut found.bytes[number * per_chunk + part];
                    into[step * width..(step + 1) * width].copy_from_slice(element);
                }
            }
        }
        Ok(found)
    }
}

/// The work, with sums of one type.
pub fn run<T: Number>(warp: &mut Warp, multiply: &GroupMultiply, a: &Lines, b: &Lines) {
    let k = LINE_BYTES / multiply.a_element.bytes();
    let mut left = [T::ZERO; ROWS * K_MAX];
    match &multiply.a {
        GroupA::Shared(_) => {
            for (line, into) in a.bytes.iter().zip(left.chunks_exact_mut(k)).take(ROWS) {
                T::line(line, multiply.a_element, into);
            }
        }
        GroupA::Registers(registers) => {
            let mut row = [T::ZERO; ROW_MAX];
            for (slot, places) in registers.rows() {
                T::read(&warp.registers, slot, registers.element, &mut row);
                registers.drop(places, &row, &mut left);
            }
        }
    }
    if multiply.negates_a != multiply.negates_b {
        left.iter_mut().for_each(|value| *value = value.negated());
    }
    let adds = warp.registers.predicate(multiply.adds) != 0;
    let mut line = [T::ZERO; K_MAX];
    for panel in 0..multiply.n / PANEL {
        let mut right = [T::ZERO; K_MAX * PANEL];
        for column in 0..PANEL {
            T::line(&b.bytes[panel * PANEL + column], multiply.b_element, &mut line[..k]);
            // Even columns first, odd ones behind: as lanes have them, see `Layout::place`.
            let place = column % 2 * 4 + column / 2;
            for (step, value) in line[..k].iter().enumerate() {
                right[step * PANEL + place] = *value;
            }
        }
        let mut sums = [T::ZERO; ROWS * PANEL];
        if adds {
            move_sums(warp, multiply, panel, &mut sums, false);
        }
        accumulate::<T, PANEL>(k, &left[..ROWS * k], &right[..k * PANEL], &mut sums);
        move_sums(warp, multiply, panel, &mut sums, true);
    }
}

/// Between the registers of a panel and its sums. A lane has two columns side by side of row
/// `lane / 4`, and the same of the row eight further down.
fn move_sums<T: Number>(
    warp: &mut Warp,
    multiply: &GroupMultiply,
    panel: usize,
    sums: &mut [T; ROWS * PANEL],
    writes: bool,
) {
    let per_register = multiply.d_element.per_register();
    let count = 4 / per_register;
    let mut row = [T::ZERO; ROW_MAX];
    for register in 0..count {
        let slot = multiply.d[panel * count + register];
        if slot == NO_SLOT {
            continue;
        }
        if !writes {
            T::read(&warp.registers, slot, multiply.d_element, &mut row);
        }
        for lane in 0..LANES {
            for part in 0..per_register {
                let element = register * per_register + part;
                let place = (lane / 4 + element / 2 * 8) * PANEL + element % 2 * 4 + lane % 4;
                let own = lane * per_register + part;
                if writes {
                    row[own] = sums[place];
                } else {
                    sums[place] = row[own];
                }
            }
        }
        if writes {
            T::write(&mut warp.registers, slot, multiply.d_element, &row);
        }
    }
}
