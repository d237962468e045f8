//! Send and receive.

use super::Group;
use super::buffers::{Buffer, destination, source};
use crate::communicator::api::Communicator;
use crate::communicator::call::{Element, check};
use crate::error::{Error, Result};
use crate::gpu::{DeviceBuffer, DeviceBufferMut};
use crate::plan::{Direction, PointToPoint};
use cudarc::driver::{CudaStream, SyncOnDrop};
use ringdove_kernels::element::DataType;
use std::sync::Arc;

/// A send or a receive.
pub struct Member<'a> {
    direction: Direction,
    peer: u32,
    bytes: u64,
    data_type: DataType,
    memory: Memory<'a>,
}

/// Elements at a device address.
#[derive(Clone, Copy)]
pub(in crate::communicator::api) struct RawElements {
    pub address: u64,
    pub count: usize,
    pub data_type: DataType,
}

/// Where a member's elements lie.
enum Memory<'a> {
    /// At this device address.
    Raw(u64),
    /// In a buffer that is borrowed.
    Borrowed(Box<dyn Buffer + 'a>),
}

impl Communicator {
    /// Sends `buffer` to `peer`: a group of one.
    ///
    /// # Errors
    /// As [`Group::send`] and [`Group::launch`].
    pub fn send<T: Element>(
        &self,
        buffer: &impl DeviceBuffer<T>,
        peer: u32,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let mut group = self.group();
        group.send(buffer, peer)?;
        group.launch(stream)
    }

    /// Receives into `buffer` from `peer`: a group of one.
    ///
    /// # Errors
    /// As [`Group::receive`] and [`Group::launch`].
    pub fn receive<T: Element>(
        &self,
        buffer: &mut impl DeviceBufferMut<T>,
        peer: u32,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let mut group = self.group();
        group.receive(buffer, peer)?;
        group.launch(stream)
    }
}

impl<'a> Group<'a> {
    /// Adds a send of `buffer` to `peer`.
    ///
    /// # Errors
    /// [`Error::Argument`] for a peer that does not exist or a buffer of another context.
    pub fn send<T: Element>(
        &mut self,
        buffer: &'a impl DeviceBuffer<T>,
        peer: u32,
    ) -> Result<&mut Self> {
        self.add_source(T::DATA_TYPE, buffer, peer)
    }

    /// Adds a receive from `peer` into `buffer`.
    ///
    /// # Errors
    /// As [`Group::send`].
    pub fn receive<T: Element>(
        &mut self,
        buffer: &'a mut impl DeviceBufferMut<T>,
        peer: u32,
    ) -> Result<&mut Self> {
        self.add_destination(T::DATA_TYPE, buffer, peer)
    }

    /// As [`Group::send`], of bytes that hold elements of `data_type`.
    ///
    /// # Errors
    /// As [`Group::send`], and [`Error::Argument`] for a number of bytes that is no number of
    /// elements.
    pub fn send_bytes(
        &mut self,
        data_type: DataType,
        buffer: &'a impl DeviceBuffer<u8>,
        peer: u32,
    ) -> Result<&mut Self> {
        self.add_source(data_type, buffer, peer)
    }

    /// As [`Group::receive`], of bytes that hold elements of `data_type`.
    ///
    /// # Errors
    /// As [`Group::send_bytes`].
    pub fn receive_bytes(
        &mut self,
        data_type: DataType,
        buffer: &'a mut impl DeviceBufferMut<u8>,
        peer: u32,
    ) -> Result<&mut Self> {
        self.add_destination(data_type, buffer, peer)
    }

    fn add_source<T: 'a>(
        &mut self,
        data_type: DataType,
        buffer: &'a impl DeviceBuffer<T>,
        peer: u32,
    ) -> Result<&mut Self> {
        check::buffer(&self.communicator.connected, "send buffer", buffer)?;
        let bytes = member_bytes("send buffer", buffer.num_bytes(), data_type)?;
        let memory = Memory::Borrowed(source(buffer));
        self.add(Member { direction: Direction::Send, peer, bytes, data_type, memory })
    }

    fn add_destination<T: 'a>(
        &mut self,
        data_type: DataType,
        buffer: &'a mut impl DeviceBufferMut<T>,
        peer: u32,
    ) -> Result<&mut Self> {
        check::buffer(&self.communicator.connected, "receive buffer", buffer)?;
        let bytes = member_bytes("receive buffer", buffer.num_bytes(), data_type)?;
        let memory = Memory::Borrowed(destination(buffer));
        self.add(Member { direction: Direction::Receive, peer, bytes, data_type, memory })
    }

    /// Adds a member at a device address. Whoever calls it keeps the memory until the stream has
    /// passed the group.
    pub(in crate::communicator::api) fn add_raw(
        &mut self,
        direction: Direction,
        elements: RawElements,
        peer: u32,
    ) -> Result<&mut Self> {
        let RawElements { address, count, data_type } = elements;
        let bytes = check::bytes(count as u64, data_type)?;
        self.add(Member { direction, peer, bytes, data_type, memory: Memory::Raw(address) })
    }

    fn add(&mut self, member: Member<'a>) -> Result<&mut Self> {
        let (peer, ranks) = (member.peer, self.communicator.rank_count());
        if peer >= ranks {
            return Err(Error::argument("peer", format!("a rank less than {ranks}"), peer));
        }
        self.messages.push(member);
        Ok(self)
    }
}

/// Checks that a buffer of `bytes` bytes holds elements of `data_type`, and not too many.
fn member_bytes(what: &str, bytes: usize, data_type: DataType) -> Result<u64> {
    check::bytes(check::elements(what, bytes, data_type)? as u64, data_type)
}

impl Member<'_> {
    /// Type of the elements.
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// The transfer, for a use on `stream`.
    pub fn resolve<'s>(
        &'s mut self,
        stream: &'s CudaStream,
    ) -> (PointToPoint, Option<SyncOnDrop<'s>>) {
        let &mut Self { direction, peer, bytes, .. } = self;
        let (address, used) = match &mut self.memory {
            Memory::Raw(address) => (*address, None),
            Memory::Borrowed(buffer) => {
                let (address, used) = buffer.address(stream);
                (address, Some(used))
            }
        };
        (PointToPoint { peer, direction, address, bytes, registered: false }, used)
    }
}
