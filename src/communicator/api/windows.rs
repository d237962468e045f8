//! What one-sided transfers ask of a communicator.

use super::core::Communicator;
use crate::communicator::call::{self, WindowEnd, WindowStep};
use crate::error::{Error, Result};
use crate::gpu::{DeviceMemory, HostMemory};
use crate::id::Registration;
use crate::plan::Side;
use std::sync::Arc;

impl Communicator {
    /// Makes the rank ready for one-sided transfers on a user lane: from now on kernels ring that
    /// the engine is not told of.
    ///
    /// # Errors
    /// [`Error::Argument`] where there is no such lane, or ranks do not reach each other's memory.
    pub(crate) fn expect_windows(&self, lane: u32) -> Result<()> {
        let rank = &self.connected;
        rank.check()?;
        let lanes = rank.process.geometry.user_lanes;
        if lane >= lanes {
            let expected = format!(
                "one of the {lanes} user lanes (RINGDOVE_USER_LANES, Settings::user_lanes)"
            );
            return Err(Error::argument("lane of windows", expected, lane));
        }
        if !rank.process.writes_registered_buffers() {
            let expected = "ranks that reach each other's GPU memory";
            let seen = "pairs whose messages go through host memory";
            return Err(Error::argument("windows", expected, seen));
        }
        let mut launcher = rank.launcher();
        launcher.expect_user_kernels();
        rank.engine().announce(launcher.announced());
        Ok(())
    }

    /// How a one-sided transfer is made.
    ///
    /// # Errors
    /// Those of [`Windows::copy`](crate::window::Windows::copy).
    pub(crate) fn window_step(
        &self,
        lane: u32,
        ends: [&WindowEnd; 2],
        bytes: u64,
    ) -> Result<WindowStep> {
        call::step(&self.connected, lane as u16, ends, bytes)
    }

    /// Do adapters or device engines alone reach the rank?
    pub(crate) fn is_far(&self, rank: u32) -> bool {
        self.connected.is_far(rank)
    }

    /// The send port of a lane to `peer`.
    ///
    /// # Errors
    /// [`Error::Argument`] for a peer that there is not.
    pub(crate) fn window_send_port(&self, lane: u32, peer: u32) -> Result<u32> {
        call::window_port(&self.connected, lane as u16, peer, Side::Send)
    }

    /// The receive port of a lane from `peer`.
    ///
    /// # Errors
    /// As [`Self::window_send_port`].
    pub(crate) fn window_receive_port(&self, lane: u32, peer: u32) -> Result<u32> {
        call::window_port(&self.connected, lane as u16, peer, Side::Receive)
    }

    /// Registers new pinned host memory as this rank's part of the next registration.
    ///
    /// # Errors
    /// [`Error::Argument`] for none; [`Error::System`], [`Error::Cuda`] where there is no such
    /// memory; [`Error::Disagreement`] where another rank registered another size.
    pub(crate) fn register_host(&self, bytes: u64) -> Result<(Registration, Arc<HostMemory>)> {
        self.check()?;
        check_bytes(bytes)?;
        self.connected.register_host(bytes)
    }

    /// Registers new memory of this rank's GPU as its part of the next registration.
    ///
    /// # Errors
    /// As [`Self::register_host`].
    pub(crate) fn register_device(&self, bytes: u64) -> Result<(Registration, Arc<DeviceMemory>)> {
        self.check()?;
        check_bytes(bytes)?;
        let memory = Arc::new(DeviceMemory::zeroed(self.context(), bytes as usize)?);
        let registration = self.register_at(memory.address(), bytes)?;
        self.connected.state.memory.registered().keep(memory.clone());
        Ok((registration, memory))
    }

    /// Waits until every rank has registered, and opens the memory of other processes.
    ///
    /// # Errors
    /// As [`Communicator::device_handle`].
    pub(crate) fn open_registration(&self, registration: Registration) -> Result<()> {
        self.connected.registered_buffer(registration.0).map(|_| ())
    }

    /// Memory of this rank's GPU for data that passes through it, registered for this rank alone;
    /// kept until all ranks of the communicator are gone.
    ///
    /// # Errors
    /// [`Error::Cuda`] where there is none left.
    pub(crate) fn relay_memory(&self, bytes: usize) -> Result<Registration> {
        let memory = DeviceMemory::zeroed(self.context(), bytes)?;
        let registration = self.register_local_at(memory.address(), bytes as u64)?;
        self.connected.state.memory.registered().keep(memory);
        Ok(registration)
    }
}

/// The largest window. No host and no GPU has more.
const BYTES_MAX: u64 = 1 << 44;

fn check_bytes(bytes: u64) -> Result<()> {
    match (1..=BYTES_MAX).contains(&bytes) {
        true => Ok(()),
        false => Err(Error::argument("bytes of a window", format!("1 to {BYTES_MAX}"), bytes)),
    }
}
