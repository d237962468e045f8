//! Registration of buffers.

use super::core::Communicator;
use crate::communicator::call::{Element, check};
use crate::error::{Error, Result};
use crate::gpu::{Allocation, Current, GpuRange, Registered};
use crate::id::Registration;
use crate::shared::DeviceRange;
use cudarc::driver::{CudaSlice, DevicePtr};
use std::sync::Arc;

impl Communicator {
    /// Registers a buffer, so that engines may read and write it: collectives on it, or on parts of
    /// it, then move data straight between the ranks' buffers, without staging.
    ///
    /// Registration is collective: every rank registers a buffer of the same size, in the same
    /// order, and calls on registered buffers use the same offsets on every rank. The buffer goes
    /// on to be used through what is returned, and stays allocated until all ranks of the
    /// communicator are gone, also when that is dropped before.
    ///
    /// The call does not wait for the other ranks; the first collective that uses the buffer does,
    /// and where ranks run in several processes of a node it also waits until the GPUs of this one
    /// are idle. So there that call is not captured into a graph.
    ///
    /// # Errors
    /// [`Error::Argument`] where the buffer is empty, of another context, or of memory that the
    /// driver does not share with other processes; [`Error::Disagreement`] where another rank
    /// registered another size. The buffer is then freed.
    pub fn register<T: Element>(&self, buffer: CudaSlice<T>) -> Result<Registered<T>> {
        check::buffer(&self.connected, "registered buffer", &buffer)?;
        let (address, sync) = buffer.device_ptr(buffer.stream());
        drop(sync);
        let registration = self.register_at(address, buffer.num_bytes() as u64)?;
        Ok(Registered::new(buffer, registration, self.connected.state.memory.registered().clone()))
    }

    /// As [`Communicator::register`], for memory that `cudarc` does not own. The range is kept
    /// until all ranks of the communicator are gone.
    ///
    /// # Errors
    /// As [`Communicator::register`].
    pub fn register_range(&self, range: Arc<GpuRange>) -> Result<Registration> {
        let registration = self.register_at(range.address(), range.length_bytes())?;
        self.connected.state.memory.registered().keep(range);
        Ok(registration)
    }

    /// Takes back what [`Communicator::register`] did: gives the buffer, which is then like any
    /// other. Calls on it are staged again.
    ///
    /// Deregistration is collective: every rank deregisters the same registration, in the same
    /// order among its other calls. It waits until the launches of this rank have ended, and where
    /// ranks run in several processes, also for one rank of each. A thread that drives several
    /// ranks makes all their earlier calls first. Graphs that were captured with the buffer must
    /// not be launched any more: such a launch is refused, and ends the communicator.
    ///
    /// # Errors
    /// [`Error::Argument`] for a buffer that another communicator registered;
    /// [`Error::HostWaitExpired`] where launches have not ended after
    /// [`Settings::bootstrap_timeout`](crate::Settings::bootstrap_timeout);
    /// [`Error::Disagreement`] where another rank makes another call, which ends the communicator.
    /// The buffer is then kept as if its [`Registered`] were dropped.
    pub fn deregister<T: Element>(&self, buffer: Registered<T>) -> Result<CudaSlice<T>> {
        let connected = &self.connected;
        if !buffer.is_kept_by(connected.state.memory.registered()) {
            let expected = "one that this communicator registered";
            return Err(Error::argument("registered buffer", expected, "one of another"));
        }
        let limit = connected.settings.bootstrap_timeout;
        connected.deregister(buffer.registration(), limit)?;
        Ok(buffer.into_slice())
    }

    /// Registers memory that somebody keeps.
    pub(super) fn register_at(&self, address: u64, bytes: u64) -> Result<Registration> {
        self.connected.register(address, bytes, self.registrable(address, bytes)?)
    }

    /// Registers memory that somebody keeps, for this rank alone.
    pub(super) fn register_local_at(&self, address: u64, bytes: u64) -> Result<Registration> {
        self.connected.register_local(address, bytes, self.registrable(address, bytes)?)
    }

    fn registrable(&self, address: u64, bytes: u64) -> Result<Allocation> {
        self.connected.check()?;
        let what = "registered buffer";
        let current = Current::bind(self.context())?;
        let allocation = check::range(&current, what, address, bytes)?;
        if bytes == 0 || !allocation.on_device {
            let seen = format!("{bytes} bytes at {address:#x}");
            return Err(Error::argument(what, "some bytes of device memory", seen));
        }
        Ok(allocation)
    }
}
