//! Calls, as the steps of their way see them.

use super::element::Reduction;
use super::operation::Operation;
use crate::plan::Transfer;
use ringdove_kernels::element::DataType;

/// A call of a collective by one rank.
#[derive(Clone, Copy, Debug)]
pub(in crate::communicator) struct Call {
    pub operation: &'static Operation,
    pub shape: Shape,
    /// Device addresses of input and output. What a rank does not hold is not looked at.
    pub buffers: Buffers,
}

/// What must be the same on all ranks, but for the scalar of the reduction.
#[derive(Clone, Copy, Debug)]
pub(in crate::communicator) struct Shape {
    /// Elements; [`Operation::input`] and [`Operation::output`] say how many a buffer has.
    pub count: usize,
    pub data_type: DataType,
    /// Of operations that reduce.
    pub reduction: Option<Reduction>,
    /// Of operations with a root.
    pub root: Option<u32>,
}

/// Input and output, in this order: each operation has one of each at most.
pub(in crate::communicator) type Buffers = [u64; 2];

/// Place of the input in [`Buffers`], and its number in a launch.
pub(super) const INPUT: usize = 0;
/// Place of the output.
pub(super) const OUTPUT: usize = 1;

impl Call {
    /// Is there nothing to do? Other ranks then skip the call, too.
    pub fn is_empty(&self) -> bool {
        self.shape.count == 0 && self.operation.moves_data()
    }

    /// Bytes of `count` elements.
    pub fn count_bytes(&self) -> u64 {
        self.shape.count as u64 * self.shape.data_type.size_bytes() as u64
    }

    /// Are input and output on `rank` laid out as the operation's rule for calls in place says?
    pub fn is_in_place(&self, rank: u32) -> bool {
        let offset = self.operation.in_place.output_offset(rank, self.count_bytes());
        let [input, output] = self.buffers;
        offset.is_some_and(|offset| input.wrapping_add_signed(offset) == output)
    }
}

/// A group whose addresses are known.
#[derive(Debug)]
pub(in crate::communicator) struct GroupCall {
    pub transfers: Vec<Transfer>,
    /// Of each transfer.
    pub data_types: Vec<DataType>,
}

impl GroupCall {
    /// Each transfer with its data type.
    pub fn members(&self) -> impl Iterator<Item = (&Transfer, DataType)> {
        self.transfers.iter().zip(self.data_types.iter().copied())
    }
}
