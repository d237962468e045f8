//! What is measured: operations, their sizes as nccl-tests counts them, and who gets what.

use ringdove::plan::{CollectiveRequest, Delivery};
use ringdove::{DataType, ReduceOp};
use std::ops::Range;

/// nccl-tests cuts parts of a buffer to a multiple of this many bytes.
const PART_ALIGNMENT: usize = 16;

/// What runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// Every rank contributes a buffer and holds the reduction of all afterwards.
    AllReduce,
    /// Every rank holds all ranks' inputs afterwards.
    AllGather,
    /// Every rank holds its part of the reduction afterwards.
    ReduceScatter,
    /// Every rank holds the root's input afterwards.
    Broadcast,
    /// The root holds the reduction afterwards.
    Reduce,
    /// Every rank holds its part of every rank's input afterwards.
    AllToAll,
    /// The root holds all ranks' inputs afterwards.
    Gather,
    /// Every rank holds its part of the root's input afterwards.
    Scatter,
    /// Every rank sends to the next rank and receives from the one before.
    SendRecv,
}

impl Collective {
    /// The subcommand's name.
    pub fn name(self) -> &'static str {
        self.library(0).map_or("send-recv", ringdove::Collective::name)
    }

    /// The library's collective with this root; send-recv is none.
    pub fn library(self, root: u32) -> Option<ringdove::Collective> {
        Some(match self {
            Self::AllReduce => ringdove::Collective::AllReduce,
            Self::AllGather => ringdove::Collective::AllGather,
            Self::ReduceScatter => ringdove::Collective::ReduceScatter,
            Self::Broadcast => ringdove::Collective::Broadcast { root },
            Self::Reduce => ringdove::Collective::Reduce { root },
            Self::AllToAll => ringdove::Collective::AllToAll,
            Self::Gather => ringdove::Collective::Gather { root },
            Self::Scatter => ringdove::Collective::Scatter { root },
            Self::SendRecv => return None,
        })
    }

    /// Whether input and output may be one buffer. A message that arrives where another leaves
    /// from has no defined result.
    pub fn has_in_place(self) -> bool {
        self != Self::SendRecv
    }

    /// Whether one rank has another role than the others.
    pub fn has_root(self) -> bool {
        self.library(0).is_some_and(|collective| collective.root().is_some())
    }

    /// Whether inputs are combined.
    pub fn reduces(self) -> bool {
        self.library(0).is_some_and(ringdove::Collective::reduces)
    }

    /// Whether the larger buffer has a part for each rank.
    fn has_parts(self) -> bool {
        match self {
            Self::AllReduce | Self::Broadcast | Self::Reduce | Self::SendRecv => false,
            Self::AllGather | Self::ReduceScatter | Self::AllToAll => true,
            Self::Gather | Self::Scatter => true,
        }
    }

    /// Elements of a message or part where the larger buffer has at most `bytes` bytes. Parts are
    /// rounded down as nccl-tests does, to multiples of 16 bytes.
    pub fn count(self, bytes: usize, data_type: DataType, rank_count: usize) -> usize {
        let element = data_type.size_bytes();
        let elements = bytes / element;
        match self.has_parts() {
            true => elements / rank_count / (PART_ALIGNMENT / element) * (PART_ALIGNMENT / element),
            false => elements,
        }
    }
}

/// One of a rank's two buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// Input of an out-of-place operation.
    Send,
    /// Output, and input too when the operation is in place.
    Receive,
}

/// One operation, the same on every rank.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// What runs.
    pub collective: Collective,
    /// Type of the elements.
    pub data_type: DataType,
    /// How they combine; ignored by operations that do not.
    pub reduction: ReduceOp,
    /// The root; ignored by operations that have none.
    pub root: u32,
    /// Number of ranks.
    pub rank_count: usize,
    /// Elements of a message, or of one rank's part.
    pub count: usize,
    /// Input and output are the same buffer.
    pub in_place: bool,
}

impl Operation {
    /// Bytes of the larger buffer.
    pub fn bytes(&self) -> usize {
        self.part_bytes() * if self.collective.has_parts() { self.rank_count } else { 1 }
    }

    /// Where the input lies.
    pub fn input(&self) -> Buffer {
        if self.in_place { Buffer::Receive } else { Buffer::Send }
    }

    /// The bytes of its buffer that are `rank`'s input.
    pub fn input_range(&self, rank: usize) -> Range<usize> {
        let Some(request) = self.request() else { return 0..self.part_bytes() };
        let start = self.in_place_offsets(rank).0;
        start..start + request.input_bytes(rank as u32) as usize
    }

    /// The bytes of its buffer that are `rank`'s output.
    pub fn output_range(&self, rank: usize) -> Range<usize> {
        let Some(request) = self.request() else { return 0..self.part_bytes() };
        let start = self.in_place_offsets(rank).1;
        start..start + request.output_bytes(rank as u32) as usize
    }

    /// What `rank` gets: parts of `count` elements. Offsets are in bytes of output and inputs.
    pub fn deliveries(&self, rank: usize) -> Vec<Delivery> {
        let previous = (rank + self.rank_count - 1) % self.rank_count;
        match self.request() {
            Some(request) => request.deliveries(rank as u32),
            None => vec![Delivery { offset: 0, source: 0, from: Some(previous as u32) }],
        }
    }

    /// Whether all ranks get the same.
    pub fn gives_all_the_same(&self) -> bool {
        let same = [Collective::AllReduce, Collective::AllGather, Collective::Broadcast];
        same.contains(&self.collective)
    }

    /// Bytes of a message, or of one rank's part.
    fn part_bytes(&self) -> usize {
        self.count * self.data_type.size_bytes()
    }

    fn in_place_offsets(&self, rank: usize) -> (usize, usize) {
        let request = self.request().filter(|request| request.in_place_on(rank as u32));
        let offsets = request.map_or((0, 0), |request| request.in_place_offsets(rank as u32));
        (offsets.0 as usize, offsets.1 as usize)
    }

    fn request(&self) -> Option<CollectiveRequest> {
        Some(CollectiveRequest {
            collective: self.collective.library(self.root)?,
            rank_count: self.rank_count as u32,
            bytes: self.part_bytes() as u64,
            element_bytes: self.data_type.size_bytes() as u32,
            reduce_op: self.reduction,
            in_place: self.in_place,
            registered: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, sizes and counts in the table are not those of nccl-tests.
    #[test]
    fn parts_are_rounded_as_nccl_tests_does() {
        let count = |collective: Collective, bytes| collective.count(bytes, DataType::F32, 3);
        assert_eq!(count(Collective::AllReduce, 100), 25);
        assert_eq!(count(Collective::Broadcast, 102), 25);
        assert_eq!(count(Collective::AllGather, 100), 8);
        assert_eq!(count(Collective::AllToAll, 1 << 20), (1 << 20) / 48 * 4);
        assert_eq!(count(Collective::Scatter, 8), 0);
    }

    /// If this fails, an input is filled, or an output looked at, where it is not.
    #[test]
    fn ranges_in_place_are_those_of_nccl() {
        let operation = |collective| Operation {
            collective,
            data_type: DataType::F32,
            reduction: ReduceOp::Sum,
            root: 1,
            rank_count: 4,
            count: 4,
            in_place: true,
        };
        let of = |collective, rank| {
            let operation = operation(collective);
            assert_eq!(operation.bytes(), 64);
            (operation.input_range(rank), operation.output_range(rank))
        };
        assert_eq!(of(Collective::AllGather, 2), (32..48, 0..64));
        assert_eq!(of(Collective::ReduceScatter, 2), (0..64, 32..48));
        assert_eq!(of(Collective::Gather, 1), (16..32, 0..64));
        assert_eq!(of(Collective::Gather, 2), (0..16, 0..0));
        assert_eq!(of(Collective::Scatter, 1), (0..64, 16..32));
        assert_eq!(of(Collective::Scatter, 2), (0..0, 0..16));
    }
}
