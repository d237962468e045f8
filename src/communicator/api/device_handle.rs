//! Users' kernels that put, signal and wait by themselves.

use super::core::Communicator;
use crate::communicator::call;
use crate::error::Result;
use crate::gpu::DeviceMemory;
use crate::id::Registration;
use std::marker::PhantomData;

/// What a user's kernel needs to put, signal and wait: pass its [`address`](Self::address) to the
/// kernel, which includes `ringdove.cuh`.
///
/// The handle lies in device memory, and stays there until it is dropped. A kernel that has it must
/// have ended before that, and before its communicator is dropped: neither knows of the kernel.
#[derive(Debug)]
pub struct DeviceHandle<'c> {
    memory: DeviceMemory,
    communicator: PhantomData<&'c Communicator>,
}

impl DeviceHandle<'_> {
    /// Device address of the handle, for the kernel's parameter: in `ringdove.cuh`, the argument
    /// of `ringdove::Device`.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }
}

impl Communicator {
    /// What users' kernels need to put data into other ranks' memory, to signal and to wait,
    /// without the host. `windows` are registered buffers ([`Communicator::register`]), which the
    /// kernel knows by their place in the list; it reads its own rank's part, and writes the
    /// peers' parts. All ranks name the same registrations in the same order. Without windows,
    /// kernels send messages through slots, on any machine.
    ///
    /// [`Settings::user_lanes`](crate::Settings::user_lanes) says how many lanes lead from each
    /// rank to each other. Collectives do not use them, and may run at the same time. A user's
    /// kernel and collectives share the rank's doorbell ring and engine, and its errors: a wait of
    /// the kernel that expires ends the communicator, and [`Communicator::check`] names it.
    ///
    /// Waits until all ranks have registered the windows, and allocates: as with
    /// [`Communicator::init_all`], before work is launched that waits for other ranks. From then on
    /// the rank's engine rests 200 µs at most, since nobody tells it of users' launches.
    ///
    /// Windows stay registered until the last kernel that uses them has ended. They take routes:
    /// for each pair of windows, [`Settings::user_lanes`](crate::Settings::user_lanes) for each
    /// peer, of 1,048,576 in all.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) without user lanes; for windows where ranks do
    /// not reach each other's GPU memory; for a registration that was taken back; where there are
    /// too many routes. As [`Communicator::register`] where ranks have not registered the same.
    pub fn device_handle(&self, windows: &[Registration]) -> Result<DeviceHandle<'_>> {
        self.device_handle_for(windows, call::Rings::Anytime)
    }

    /// As [`device_handle`](Self::device_handle), for kernels of the library that ring the doorbell
    /// for peers alone whose windows stores do not reach: without such peers the engine rests as if
    /// there were no handle.
    pub(crate) fn device_handle_by_stores(
        &self,
        windows: &[Registration],
    ) -> Result<DeviceHandle<'_>> {
        self.device_handle_for(windows, call::Rings::WhereNoStoresReach)
    }

    fn device_handle_for(
        &self,
        windows: &[Registration],
        rings: call::Rings,
    ) -> Result<DeviceHandle<'_>> {
        let memory = call::device_handle(&self.connected, windows, rings)?;
        Ok(DeviceHandle { memory, communicator: PhantomData })
    }
}
