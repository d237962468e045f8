//! Tensors and views of them: what tasks read and write.

use bytemuck::{AnyBitPattern, NoUninit};
use half::{bf16, f16};
use ringdove_kernels::element::DataType;
use ringdove_kernels::program::TaskElement;
use std::ops::Range;

/// What the elements of a tensor are. Tasks compute in f32: they widen 16-bit elements when they
/// read them, and round to nearest even when they write them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// `f32`.
    F32,
    /// `u32`: classes, and rows of tables.
    U32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16.
    BF16,
}

impl Element {
    /// Bytes of one.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F32 | Self::U32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }

    /// As the kernel knows it.
    pub(super) fn of_task(self) -> TaskElement {
        match self {
            Self::F32 | Self::U32 => TaskElement::Word,
            Self::F16 => TaskElement::F16,
            Self::BF16 => TaskElement::BF16,
        }
    }

    /// As collectives know it.
    pub(super) fn data_type(self) -> DataType {
        match self {
            Self::F32 => DataType::F32,
            Self::U32 => DataType::U32,
            Self::F16 => DataType::F16,
            Self::BF16 => DataType::BF16,
        }
    }

    /// The memory of such values, each rounded to nearest even; `None` for numbers.
    pub(super) fn memory_of(self, values: &[f32]) -> Option<Vec<u8>> {
        fn all<T: NoUninit>(values: &[f32], round: fn(f32) -> T) -> Vec<u8> {
            let rounded: Vec<T> = values.iter().map(|&value| round(value)).collect();
            bytemuck::cast_slice(&rounded).to_vec()
        }
        match self {
            Self::F32 => Some(bytemuck::cast_slice(values).to_vec()),
            Self::U32 => None,
            Self::F16 => Some(all(values, f16::from_f32)),
            Self::BF16 => Some(all(values, bf16::from_f32)),
        }
    }

    /// The values in such memory; `None` for numbers.
    pub(super) fn values_in(self, memory: &[u8]) -> Option<Vec<f32>> {
        fn all<T: AnyBitPattern>(memory: &[u8], widen: fn(T) -> f32) -> Vec<f32> {
            memory
                .chunks_exact(size_of::<T>())
                .map(bytemuck::pod_read_unaligned)
                .map(widen)
                .collect()
        }
        match self {
            Self::F32 => Some(all(memory, |value: f32| value)),
            Self::U32 => None,
            Self::F16 => Some(all(memory, f16::to_f32)),
            Self::BF16 => Some(all(memory, bf16::to_f32)),
        }
    }
}

/// Where the first values of a tensor come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The host writes it before the program starts, or while it is paused; tasks may change it.
    Host,
    /// A task writes it in each iteration, before any other reads it.
    Tasks,
    /// It lies where the host says for each iteration
    /// ([`Resident::set_batch`](super::Resident::set_batch)), in memory that is not the program's:
    /// tasks only read it. A program has eight of them at most.
    Batch,
    /// It is the tensor `of` of another rank, whose memory is laid out like this one's:
    /// [`Graph::remote`](super::Graph::remote).
    Remote {
        /// The rank that has it.
        rank: u32,
        /// The tensor with the same place and shape here.
        of: TensorId,
    },
}

/// A named array of rows, in the memory of the program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tensor {
    /// Unique in its program.
    pub name: String,
    /// Rows.
    pub rows: u32,
    /// Elements of each.
    pub columns: u32,
    /// Their type.
    pub element: Element,
    /// Who writes it first.
    pub origin: Origin,
}

impl Tensor {
    /// Elements of all rows.
    pub fn elements(&self) -> u64 {
        u64::from(self.rows) * u64::from(self.columns)
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> u64 {
        self.elements() * self.element.bytes()
    }

    /// Does it lie in the program's memory?
    pub(super) fn is_placed(&self) -> bool {
        matches!(self.origin, Origin::Host | Origin::Tasks)
    }

    /// The rank whose tensor it is, if that is another one.
    pub fn remote(&self) -> Option<u32> {
        match self.origin {
            Origin::Remote { rank, .. } => Some(rank),
            _ => None,
        }
    }
}

/// The batches of a program, by their numbers.
pub(super) fn batches(tensors: &[Tensor]) -> impl Iterator<Item = TensorId> {
    let all = (0u32..).zip(tensors);
    all.filter(|(_, tensor)| tensor.origin == Origin::Batch).map(|(number, _)| TensorId(number))
}

/// A tensor of a program, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub u32);

/// Rows and columns of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Area {
    /// The first row, and the one behind the last.
    pub rows: (u32, u32),
    /// The same of columns.
    pub columns: (u32, u32),
}

impl Area {
    /// How many elements there are.
    pub fn elements(&self) -> u64 {
        let length = |(start, end): (u32, u32)| u64::from(end.saturating_sub(start));
        length(self.rows) * length(self.columns)
    }

    /// Do the two have an element in common?
    pub fn meets(&self, other: &Self) -> bool {
        let meets = |a: (u32, u32), b: (u32, u32)| a.0.max(b.0) < a.1.min(b.1);
        meets(self.rows, other.rows) && meets(self.columns, other.columns)
    }

    /// What is left of this without `other`: up to four areas.
    pub fn without(&self, other: &Self) -> Vec<Self> {
        if !self.meets(other) {
            return vec![*self];
        }
        let rows = (self.rows.0.max(other.rows.0), self.rows.1.min(other.rows.1));
        let parts = [
            Self { rows: (self.rows.0, rows.0), ..*self },
            Self { rows: (rows.1, self.rows.1), ..*self },
            Self { rows, columns: (self.columns.0, other.columns.0.max(self.columns.0)) },
            Self { rows, columns: (other.columns.1.min(self.columns.1), self.columns.1) },
        ];
        let is_there = |area: &Self| area.rows.0 < area.rows.1 && area.columns.0 < area.columns.1;
        parts.into_iter().filter(is_there).collect()
    }
}

/// An area of a tensor as an operator sees it: perhaps transposed, or with one row or column that
/// stands for many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// Of which tensor.
    pub tensor: TensorId,
    /// What of it.
    pub area: Area,
    /// Elements from one row of the tensor to the next.
    pub row_elements: u32,
    /// Rows of the view are columns of the tensor.
    pub transposed: bool,
    /// The view has so many rows, all of which are its first.
    pub repeated_rows: Option<u32>,
    /// The view has so many columns, all of which are its first.
    pub repeated_columns: Option<u32>,
}

impl View {
    /// All of a tensor.
    pub fn all(tensor: TensorId, rows: u32, columns: u32) -> Self {
        let area = Area { rows: (0, rows), columns: (0, columns) };
        Self {
            tensor,
            area,
            row_elements: columns,
            transposed: false,
            repeated_rows: None,
            repeated_columns: None,
        }
    }

    /// Rows are columns. Of a view without repetitions.
    #[must_use]
    pub fn transpose(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }

    /// Some of the rows.
    #[must_use]
    pub fn rows(self, rows: Range<u32>) -> Self {
        self.part(rows, 0..self.shape().1)
    }

    /// Some of the columns.
    #[must_use]
    pub fn columns(self, columns: Range<u32>) -> Self {
        self.part(0..self.shape().0, columns)
    }

    /// Its one row, for each of so many rows.
    #[must_use]
    pub fn repeat_rows(self, rows: u32) -> Self {
        Self { repeated_rows: Some(rows), ..self }
    }

    /// Its one column, for each of so many columns.
    #[must_use]
    pub fn repeat_columns(self, columns: u32) -> Self {
        Self { repeated_columns: Some(columns), ..self }
    }

    /// Whole rows of a tensor with so many columns, as they lie in memory?
    pub(super) fn is_contiguous(&self, columns: u32) -> bool {
        self.area.columns == (0, columns)
            && !self.transposed
            && self.repeated_rows.is_none()
            && self.repeated_columns.is_none()
    }

    /// Rows and columns, as the operator sees them.
    pub fn shape(&self) -> (u32, u32) {
        let rows = self.area.rows.1.saturating_sub(self.area.rows.0);
        let columns = self.area.columns.1.saturating_sub(self.area.columns.0);
        let (rows, columns) = if self.transposed { (columns, rows) } else { (rows, columns) };
        (self.repeated_rows.unwrap_or(rows), self.repeated_columns.unwrap_or(columns))
    }

    /// A tile of it.
    #[must_use]
    pub fn part(self, rows: Range<u32>, columns: Range<u32>) -> Self {
        let mut part = self;
        let cut = |whole: (u32, u32), range: &Range<u32>| {
            (whole.0.saturating_add(range.start), whole.0.saturating_add(range.end))
        };
        let area = &mut part.area;
        let (to_rows, to_columns) = match self.transposed {
            false => (&mut area.rows, &mut area.columns),
            true => (&mut area.columns, &mut area.rows),
        };
        match self.repeated_rows {
            Some(_) => part.repeated_rows = Some(rows.end.saturating_sub(rows.start)),
            None => *to_rows = cut(*to_rows, &rows),
        }
        match self.repeated_columns {
            Some(_) => part.repeated_columns = Some(columns.end.saturating_sub(columns.start)),
            None => *to_columns = cut(*to_columns, &columns),
        }
        part
    }
}
