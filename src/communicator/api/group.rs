//! Send and receive, in groups.

use super::core::Communicator;
use crate::communicator::call::{self, Element, GroupCall, check};
use crate::error::{Error, Result};
use crate::gpu::{DeviceBuffer, DeviceBufferMut};
use crate::plan::{self, Direction, PointToPoint};
use cudarc::driver::{CudaStream, SyncOnDrop};
use ringdove_kernels::element::DataType;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// Sends and receives that run together. Their order inside the group cannot dead-lock; messages
/// between two ranks match in the order in which they were named. Nothing runs before
/// [`Group::launch`]; until then the group borrows its buffers.
///
/// ```no_run
/// # fn exchange(rank: &ringdove::Communicator) -> Result<(), Box<dyn std::error::Error>> {
/// let stream = rank.context().new_stream()?;
/// let (mine, mut theirs) = (stream.clone_htod(&[1f32; 64])?, stream.alloc_zeros::<f32>(64)?);
/// let mut group = rank.group();
/// group.send(&mine, (rank.rank() + 1) % rank.rank_count())?;
/// group.receive(&mut theirs, (rank.rank() + rank.rank_count() - 1) % rank.rank_count())?;
/// group.launch(&stream)?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a group runs when it is launched"]
pub struct Group<'a> {
    communicator: &'a Communicator,
    members: Vec<Member<'a>>,
    may_overlap: bool,
}

/// A send or a receive.
struct Member<'a> {
    direction: Direction,
    peer: u32,
    bytes: u64,
    data_type: DataType,
    memory: Memory<'a>,
}

/// Elements at a device address.
#[derive(Clone, Copy)]
pub(super) struct RawElements {
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

/// A borrowed buffer of any element type.
trait Buffer {
    /// Its address, for a use on `stream` that is enqueued before the second part is dropped.
    fn address<'s>(&'s mut self, stream: &'s CudaStream) -> (u64, SyncOnDrop<'s>);
}

/// A buffer of `T` that is read.
struct Source<'a, T, B>(&'a B, PhantomData<T>);

impl<T, B: DeviceBuffer<T>> Buffer for Source<'_, T, B> {
    fn address<'s>(&'s mut self, stream: &'s CudaStream) -> (u64, SyncOnDrop<'s>) {
        self.0.device_ptr(stream)
    }
}

/// A buffer of `T` that is written.
struct Destination<'a, T, B>(&'a mut B, PhantomData<T>);

impl<T, B: DeviceBufferMut<T>> Buffer for Destination<'_, T, B> {
    fn address<'s>(&'s mut self, stream: &'s CudaStream) -> (u64, SyncOnDrop<'s>) {
        self.0.device_ptr_mut(stream)
    }
}

impl Communicator {
    /// An empty group.
    pub fn group(&self) -> Group<'_> {
        Group { communicator: self, members: Vec::new(), may_overlap: false }
    }

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
        let memory = Memory::Borrowed(Box::new(Source(buffer, PhantomData)));
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
        let memory = Memory::Borrowed(Box::new(Destination(buffer, PhantomData)));
        self.add(Member { direction: Direction::Receive, peer, bytes, data_type, memory })
    }

    /// Lets members that were added by address receive into memory of other members. Transfers of a
    /// group have no order, so what such memory then holds, and what is sent of it, is not defined;
    /// NCCL takes such groups, and programs measure with them.
    pub fn allow_overlap(&mut self) -> &mut Self {
        self.may_overlap = true;
        self
    }

    /// Adds a member at a device address. Whoever calls it keeps the memory until the stream has
    /// passed the group.
    pub(super) fn add_raw(
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
        self.members.push(member);
        Ok(self)
    }

    /// Enqueues the group on `stream` and returns. The buffers may be reused when the stream has
    /// passed this point.
    ///
    /// # Errors
    /// [`Error::Disagreement`] where the other side of a message named another size or type;
    /// [`Error::Argument`] for misaligned buffers, for memory that cannot be used, for sends to the
    /// own rank without matching receives, for a stream of another context, and for a group whose
    /// plan is too large; the error that ended the communicator before, if any.
    pub fn launch(self, stream: &Arc<CudaStream>) -> Result<()> {
        let Self { communicator, mut members, may_overlap } = self;
        let connected = &communicator.connected;
        connected.check()?;
        // Before the addresses are taken: cudarc then already enqueues on the stream.
        check::stream(connected, "a group of sends and receives", stream)?;
        if members.is_empty() {
            return Ok(());
        }
        let data_types: Vec<DataType> = members.iter().map(|member| member.data_type).collect();
        // Dropped when the launch is enqueued: then the stream is past all uses of the buffers.
        let (transfers, _uses): (Vec<PointToPoint>, Vec<_>) =
            members.iter_mut().map(|member| member.resolve(stream)).unzip();
        let overlaps = || plan::check_overlap(connected.rank().0, &transfers).is_err();
        let call = match may_overlap && overlaps() {
            true => GroupCall::overlapping(transfers, data_types),
            false => GroupCall::new(transfers, data_types),
        };
        call::group(connected, &call, stream)
    }
}

/// Checks that a buffer of `bytes` bytes holds elements of `data_type`, and not too many.
fn member_bytes(what: &str, bytes: usize, data_type: DataType) -> Result<u64> {
    check::bytes(check::elements(what, bytes, data_type)? as u64, data_type)
}

impl fmt::Debug for Group<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("members", &self.members.len()).finish_non_exhaustive()
    }
}

impl Member<'_> {
    /// The transfer, for a use on `stream`.
    fn resolve<'s>(&'s mut self, stream: &'s CudaStream) -> (PointToPoint, Option<SyncOnDrop<'s>>) {
        let &mut Self { direction, peer, bytes, .. } = self;
        let (address, used) = match &mut self.memory {
            Memory::Raw(address) => (*address, None),
            Memory::Borrowed(buffer) => {
                let (address, used) = buffer.address(stream);
                (address, Some(used))
            }
        };
        (PointToPoint { peer, direction, address, bytes }, used)
    }
}
