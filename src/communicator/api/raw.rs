//! Calls on device addresses, for bindings to other languages and for owners of memory that
//! `cudarc` does not know. What the safe calls get from types, the caller of these promises.
//!
//! Nothing here dereferences an address: each function hands its contract on to its caller.

use super::collective::CollectiveSpec;
use super::core::Communicator;
use super::group::{Group, RawElements};
use crate::communicator::call::Reduction;
use crate::error::Result;
use crate::id::Registration;
use crate::plan::{Collective, Direction};
use cudarc::driver::CudaStream;
use ringdove_kernels::element::DataType;
use std::sync::Arc;

impl Communicator {
    /// All-reduce on device addresses: `count` elements of `data_type` from `send` to `receive`,
    /// in place where the two are equal.
    ///
    /// # Safety
    /// Until `stream` has passed this call: the memory at `receive` stays allocated and nobody else
    /// reads or writes it; the memory at `send` stays allocated and nobody writes it. Both are
    /// memory that the kernels of this communicator's device reach.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`], and [`Error::Argument`](crate::Error::Argument) for memory
    /// that is unknown to the driver, too small, misaligned or overlapping.
    pub unsafe fn all_reduce_raw(
        &self,
        send: u64,
        receive: u64,
        count: usize,
        data_type: DataType,
        reduction: impl Into<Reduction>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let spec = CollectiveSpec {
            collective: Collective::AllReduce,
            data_type,
            reduction: Some(reduction.into()),
        };
        self.call_at(spec, count, [send, receive], stream)
    }

    /// Any collective on device addresses, input and output, with NCCL's `count` and rules for
    /// calls in place. An address that this rank has no use for is not looked at.
    ///
    /// # Safety
    /// As [`Communicator::all_reduce_raw`], of the sizes that the collective gives its buffers.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_raw`], and [`Error::Argument`](crate::Error::Argument) for a
    /// root that does not exist.
    pub unsafe fn collective_raw(
        &self,
        spec: CollectiveSpec,
        buffers: [u64; 2],
        count: usize,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        self.call_at(spec, count, buffers, stream)
    }

    /// Registers `bytes` bytes of device memory at `address`, as [`Communicator::register`] does
    /// with a buffer that it keeps.
    ///
    /// # Safety
    /// The memory stays allocated at this address until every rank of the communicator was dropped,
    /// in this process and in others: their engines write into it. Within calls that use it, nobody
    /// but the communicator touches it.
    ///
    /// # Errors
    /// As [`Communicator::register`].
    pub unsafe fn register_raw(&self, address: u64, bytes: usize) -> Result<Registration> {
        self.register_at(address, bytes as u64)
    }

    /// Registers memory for this rank alone: what it sends from there is put straight from where it
    /// lies, and what it receives there is put there, where the sender knows the memory: from the
    /// second transfer of its size on, or later. The other ranks need not register anything, and
    /// nobody waits. Memory that was freed, and allocated again, is not used by it any more.
    ///
    /// # Safety
    /// The memory stays allocated until [`Communicator::deregister_local`] has returned, or the
    /// communicator was dropped on all ranks; or nobody passes it, or memory that was allocated in
    /// its place, to this communicator any more before.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) for memory that is unknown to the driver. What
    /// the driver does not share with other processes is registered for sends alone there.
    pub unsafe fn register_local_raw(&self, address: u64, bytes: usize) -> Result<Registration> {
        self.register_local_at(address, bytes as u64)
    }

    /// Takes back what [`Communicator::register_local_raw`] did: waits until this rank's launches
    /// have ended, and the other ranks know the memory no more.
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`](crate::Error::HostWaitExpired) where they do not within
    /// [`Settings::bootstrap_timeout`](crate::Settings::bootstrap_timeout);
    /// [`Error::Argument`](crate::Error::Argument) for a registration of another kind.
    pub fn deregister_local(&self, registration: Registration) -> Result<()> {
        let limit = self.connected.settings.bootstrap_timeout;
        self.connected.deregister_local(registration, limit)
    }

    /// Takes back what [`Communicator::register_raw`] did, as [`Communicator::deregister`] does.
    /// From then on the memory may be freed.
    ///
    /// # Errors
    /// As [`Communicator::deregister`]; the memory then stays allocated as before.
    pub fn deregister_raw(&self, registration: Registration) -> Result<()> {
        self.connected.deregister(registration, self.connected.settings.bootstrap_timeout)
    }
}

impl Group<'_> {
    /// Adds a send of `count` elements at device address `address` to `peer`.
    ///
    /// # Safety
    /// From [`Group::launch`] until its stream has passed the call, the memory stays allocated and
    /// nobody writes it.
    ///
    /// # Errors
    /// As [`Group::send`].
    pub unsafe fn send_raw(
        &mut self,
        address: u64,
        count: usize,
        data_type: DataType,
        peer: u32,
    ) -> Result<&mut Self> {
        self.add_raw(Direction::Send, RawElements { address, count, data_type }, peer)
    }

    /// Adds a receive of `count` elements from `peer` to device address `address`.
    ///
    /// # Safety
    /// From [`Group::launch`] until its stream has passed the call, the memory stays allocated and
    /// nobody else reads or writes it.
    ///
    /// # Errors
    /// As [`Group::send`].
    pub unsafe fn receive_raw(
        &mut self,
        address: u64,
        count: usize,
        data_type: DataType,
        peer: u32,
    ) -> Result<&mut Self> {
        self.add_raw(Direction::Receive, RawElements { address, count, data_type }, peer)
    }

    /// Adds any collective on device addresses, as [`Communicator::collective_raw`].
    ///
    /// # Safety
    /// From [`Group::launch`] on, as [`Communicator::collective_raw`].
    pub unsafe fn collective_raw(
        &mut self,
        spec: CollectiveSpec,
        buffers: [u64; 2],
        count: usize,
    ) -> &mut Self {
        self.add_collective(spec, buffers, count)
    }
}
