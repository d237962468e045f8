//! Calls, as the steps of their way see them. What a collective is (counts of its buffers, root,
//! rule for calls in place) stands in [`CollectiveRequest`], and nowhere else.

use super::element::Reduction;
use crate::plan::{Collective, CollectiveRequest, PointToPoint};
use ringdove_kernels::element::{DataType, ReduceOp};
use ringdove_kernels::op::ADDRESS_NUMBER_SHIFT;

/// A call of a collective by one rank.
#[derive(Clone, Copy, Debug)]
pub(in crate::communicator) struct Call {
    pub shape: Shape,
    /// Device addresses of input and output. What the rank does not have is not looked at.
    pub buffers: Buffers,
}

/// What must be the same on all ranks, but for the scalar of the reduction.
#[derive(Clone, Copy, Debug)]
pub(in crate::communicator) struct Shape {
    pub collective: Collective,
    /// Elements, as NCCL counts them: see [`CollectiveRequest::bytes`].
    pub count: usize,
    pub data_type: DataType,
    /// Of collectives that reduce.
    pub reduction: Option<Reduction>,
}

/// Input and output, in this order: each collective has one of each at most.
pub(in crate::communicator) type Buffers = [u64; 2];

/// Place of the input in [`Buffers`], and its number in a launch.
pub(super) const INPUT: usize = 0;
/// Place of the output.
pub(super) const OUTPUT: usize = 1;

impl Shape {
    /// Bytes of the count. [`check`](super::check) has made sure that they fit.
    pub fn bytes(&self) -> u64 {
        (self.count as u64).saturating_mul(self.data_type.size_bytes() as u64)
    }

    /// The reduction, if the collective reduces.
    pub fn reduction(&self) -> Option<Reduction> {
        self.reduction.filter(|_| self.collective.reduces())
    }

    /// What this asks of a plan, out of place and of buffers that are not registered.
    pub fn request(&self, rank_count: u32) -> CollectiveRequest {
        CollectiveRequest {
            collective: self.collective,
            rank_count,
            bytes: self.bytes(),
            element_bytes: self.data_type.size_bytes() as u32,
            // One plan serves all calls that reduce nothing.
            reduce_op: self.reduction().map_or(ReduceOp::Sum, |reduction| reduction.op),
            in_place: false,
            registered: false,
        }
    }
}

impl Call {
    /// What the call asks of a plan on `rank`.
    pub fn request(&self, rank: u32, rank_count: u32, registered: bool) -> CollectiveRequest {
        let request = self.shape.request(rank_count);
        // With a root, this is about the root alone.
        let concerned = self.shape.collective.root().is_none_or(|root| root == rank);
        let (input, output) = request.in_place_offsets(rank);
        let [send, receive] = self.buffers;
        let in_place = send.wrapping_sub(input) == receive.wrapping_sub(output);
        CollectiveRequest { in_place: concerned && in_place, registered, ..request }
    }

    /// Is there nothing to do? Other ranks then skip the call, too.
    pub fn is_empty(&self) -> bool {
        self.shape.count == 0 && self.shape.collective != Collective::Barrier
    }
}

/// Calls that are made together.
#[derive(Clone, Copy, Debug)]
pub(in crate::communicator) struct Calls<'a> {
    pub collectives: &'a [Call],
    pub messages: Option<&'a GroupCall>,
}

impl Calls<'_> {
    /// What errors call them.
    pub fn name(&self) -> &'static str {
        match (self.collectives, self.messages) {
            ([call], None) => call.shape.collective.name(),
            ([], _) => "a group of sends and receives",
            _ => "a group of calls",
        }
    }
}

/// A group whose addresses are known.
#[derive(Clone, Debug)]
pub(in crate::communicator) struct GroupCall {
    /// Their addresses are entries of the table of a launch, as [`Self::new`] numbers them.
    pub transfers: Vec<PointToPoint>,
    /// Of each transfer.
    pub data_types: Vec<DataType>,
    /// The device address of each entry.
    pub addresses: Vec<u64>,
    /// The table as a launch has it: these addresses, and places of registered memory.
    pub table: Vec<u64>,
    /// Memory that is received into may be that of other transfers.
    pub may_overlap: bool,
}

impl GroupCall {
    /// A group of these transfers, at device addresses.
    pub fn new(mut transfers: Vec<PointToPoint>, data_types: Vec<DataType>) -> Self {
        let mut addresses: Vec<u64> = Vec::with_capacity(transfers.len());
        for transfer in &mut transfers {
            // Equal addresses keep one number: a plan leaves out copies to where data is.
            let known = addresses.iter().position(|known| *known == transfer.address);
            let number = known.unwrap_or_else(|| {
                addresses.push(transfer.address);
                addresses.len() - 1
            });
            transfer.address = (number as u64 + 1) << ADDRESS_NUMBER_SHIFT;
        }
        let table = addresses.clone();
        Self { transfers, data_types, addresses, table, may_overlap: false }
    }

    /// The same, where transfers overlap and are not refused for it. Each has a number of its own,
    /// so that a plan knows nothing of their overlap.
    pub fn overlapping(mut transfers: Vec<PointToPoint>, data_types: Vec<DataType>) -> Self {
        let addresses: Vec<u64> = transfers.iter().map(|transfer| transfer.address).collect();
        for (number, transfer) in (1..).zip(&mut transfers) {
            transfer.address = number << ADDRESS_NUMBER_SHIFT;
        }
        let table = addresses.clone();
        Self { transfers, data_types, addresses, table, may_overlap: true }
    }

    /// Has transfer `number` use registered memory, at the place that `word` names.
    pub fn place(&mut self, number: usize, word: u64) {
        let transfer = &mut self.transfers[number];
        let entry = (transfer.address >> ADDRESS_NUMBER_SHIFT) as usize - 1;
        self.addresses.push(self.addresses[entry]);
        self.table.push(word);
        transfer.address = (self.table.len() as u64) << ADDRESS_NUMBER_SHIFT;
        transfer.registered = true;
    }

    /// Each transfer, at its device address, with its data type.
    pub fn members(&self) -> impl Iterator<Item = (PointToPoint, DataType)> {
        let transfers = self.transfers.iter().map(|transfer| {
            let number = (transfer.address >> ADDRESS_NUMBER_SHIFT) as usize - 1;
            PointToPoint { address: self.addresses[number], ..*transfer }
        });
        transfers.zip(self.data_types.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Direction;

    /// If this fails, a group on other buffers is planned anew, or plans of groups whose buffers
    /// coincide in another way are taken for one another.
    #[test]
    fn groups_differ_in_how_their_buffers_coincide_and_not_in_where_they_lie() {
        let group = |addresses: [u64; 3]| {
            let transfer = |address| PointToPoint {
                peer: 1,
                direction: Direction::Send,
                address,
                bytes: 8,
                registered: false,
            };
            GroupCall::new(addresses.map(transfer).to_vec(), vec![DataType::U8; 3])
        };
        let first = group([0x7f00_0000_1000, 0x7f00_0000_2000, 0x7f00_0000_1000]);
        assert_eq!(first.transfers, group([7, 3, 7]).transfers);
        assert_ne!(first.transfers, group([7, 3, 4]).transfers);
        assert_eq!(first.addresses, [0x7f00_0000_1000, 0x7f00_0000_2000]);
        let at: Vec<u64> = first.members().map(|(transfer, _)| transfer.address).collect();
        assert_eq!(at, [0x7f00_0000_1000, 0x7f00_0000_2000, 0x7f00_0000_1000]);
    }

    /// If this fails, a group that receives into memory that it sends has no plan.
    #[test]
    fn transfers_that_may_overlap_are_apart_for_their_plan() {
        let transfer = |direction| PointToPoint {
            peer: 1,
            direction,
            address: 0x7f00_0000_1000,
            bytes: 8,
            registered: false,
        };
        let both = [Direction::Send, Direction::Receive].map(transfer).to_vec();
        let call = GroupCall::overlapping(both.clone(), vec![DataType::U8; 2]);
        assert_ne!(call.transfers[0].address, call.transfers[1].address);
        let seen: Vec<_> = call.members().map(|(transfer, _)| transfer).collect();
        assert_eq!(seen, both);
    }
}
