//! Send and receive, in groups.

use super::agreement::{Board, Value, signature};
use super::all_reduce::{data_type_name, internal};
use super::element::Element;
use super::launcher::{Launcher, PlanKey};
use super::world::lock;
use super::{Communicator, buffers};
use crate::error::{Error, Result};
use crate::id::Rank;
use crate::plan::{self, Direction, Transfer};
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};
use ringdove_kernels::element::DataType;
use ringdove_kernels::launch::LaunchArguments;
use std::sync::Arc;

/// Sends and receives that run together. Their order inside the group cannot dead-lock; messages
/// between two ranks match in the order in which they were named. Nothing runs before
/// [`Group::launch`].
#[derive(Debug)]
#[must_use = "a group runs when it is launched"]
pub struct Group<'a> {
    communicator: &'a Communicator,
    members: Vec<(Transfer, DataType)>,
}

impl Communicator {
    /// An empty group.
    pub fn group(&self) -> Group<'_> {
        Group { communicator: self, members: Vec::new() }
    }

    /// Sends `buffer` to `peer`: a group of one.
    ///
    /// # Errors
    /// As [`Group::send_raw`] and [`Group::launch`].
    pub fn send<T: Element>(
        &self,
        buffer: &impl DevicePtr<T>,
        peer: u32,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let (address, _use) = buffer.device_ptr(stream);
        let mut group = self.group();
        group.send_raw(address, buffer.len(), T::DATA_TYPE, peer)?;
        group.launch(stream)
    }

    /// Receives into `buffer` from `peer`: a group of one.
    ///
    /// # Errors
    /// As [`Group::receive_raw`] and [`Group::launch`].
    pub fn receive<T: Element>(
        &self,
        buffer: &mut impl DevicePtrMut<T>,
        peer: u32,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let count = buffer.len();
        let (address, _use) = buffer.device_ptr_mut(stream);
        let mut group = self.group();
        group.receive_raw(address, count, T::DATA_TYPE, peer)?;
        group.launch(stream)
    }
}

impl Group<'_> {
    /// Adds a send of `count` elements at device address `address` to `peer`.
    ///
    /// # Errors
    /// [`Error::Argument`] for a peer that does not exist or memory that cannot be used.
    pub fn send_raw(
        &mut self,
        address: u64,
        count: usize,
        data_type: DataType,
        peer: u32,
    ) -> Result<&mut Self> {
        self.add(Direction::Send, address, count, data_type, peer)
    }

    /// Adds a receive of `count` elements from `peer` to device address `address`.
    ///
    /// # Errors
    /// As [`Group::send_raw`].
    pub fn receive_raw(
        &mut self,
        address: u64,
        count: usize,
        data_type: DataType,
        peer: u32,
    ) -> Result<&mut Self> {
        self.add(Direction::Receive, address, count, data_type, peer)
    }

    fn add(
        &mut self,
        direction: Direction,
        address: u64,
        count: usize,
        data_type: DataType,
        peer: u32,
    ) -> Result<&mut Self> {
        let ranks = self.communicator.rank_count();
        if peer >= ranks {
            return Err(Error::argument("peer", format!("a rank less than {ranks}"), peer));
        }
        let bytes = buffers::bytes(count, data_type)?;
        let what = match direction {
            Direction::Send => "send buffer",
            Direction::Receive => "receive buffer",
        };
        buffers::check(what, address, bytes, data_type)?;
        self.members.push((Transfer { peer, direction, address, bytes }, data_type));
        Ok(self)
    }

    /// Enqueues the group on `stream` and returns. The buffers may be reused when the stream has
    /// passed this point.
    ///
    /// # Errors
    /// [`Error::Disagreement`] where the other side of a message named another size or type;
    /// [`Error::Argument`] for sends to the own rank without matching receives, for a stream of
    /// another context, and for a group whose plan is too large; the error that ended the
    /// communicator before, if any.
    pub fn launch(self, stream: &Arc<CudaStream>) -> Result<()> {
        let communicator = self.communicator;
        communicator.check()?;
        communicator.check_stream(stream)?;
        if self.members.is_empty() {
            return Ok(());
        }
        let mut launcher = lock(&communicator.launcher);
        let transfers: Vec<Transfer> = self.members.iter().map(|&(member, _)| member).collect();
        // Building comes first: a group that is refused has told the other ranks nothing.
        let group = self.plan(&transfers)?;
        self.agree().map_err(|error| communicator.condemn(error))?;
        let enqueued = self.enqueue(&mut launcher, transfers, group, stream);
        enqueued.map_err(|error| communicator.condemn(error))
    }

    fn enqueue(
        &self,
        launcher: &mut Launcher,
        transfers: Vec<Transfer>,
        group: plan::Group,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let communicator = self.communicator;
        launcher.order(stream)?;
        let plan = launcher.resident(PlanKey::Group(transfers), stream, || {
            let verified = plan::verify(group.plan, &group.promise);
            communicator.encode(&verified.map_err(|error| internal("group's plan", &error))?)
        })?;
        let mut arguments = LaunchArguments {
            communicator: communicator.seat.memory.communicator(),
            // A group moves bytes and reduces nothing.
            data_type: DataType::U8 as u32,
            ..LaunchArguments::default()
        };
        communicator.engine().wake();
        launcher.launch(&plan, &mut arguments, stream)
    }

    fn plan(&self, transfers: &[Transfer]) -> Result<plan::Group> {
        let geometry = &self.communicator.world.geometry;
        let limits = geometry.limits(geometry.pair_slot_bytes());
        let (rank, ranks) = (self.communicator.rank.0, geometry.rank_count);
        plan::group(rank, ranks, transfers, &limits)
            .map_err(|error| Error::argument("group", "transfers that match", error))
    }

    fn agree(&self) -> Result<()> {
        self.communicator.world.on_board(|board| self.agree_on(board))
    }

    fn agree_on(&self, board: &mut Board) -> Result<()> {
        let rank = self.communicator.rank;
        for (transfer, data_type) in &self.members {
            let peer = Rank(transfer.peer);
            if peer == rank {
                continue;
            }
            let pair = match transfer.direction {
                Direction::Send => (rank, peer),
                Direction::Receive => (peer, rank),
            };
            let size = data_type.size_bytes() as u64;
            let signature = signature([
                ("count", Value::Number(transfer.bytes / size)),
                ("data type", Value::word(data_type_name(*data_type))),
            ]);
            board.transfer(rank, pair, signature)?;
        }
        Ok(())
    }
}
