//! Memory of a program that other ranks put into.

use super::super::verify::Exchange;
use super::Resident;
use crate::communicator::Communicator;
use crate::error::{Error, Result, TaskName};
use crate::gpu::DeviceMemory;
use crate::id::Registration;
use ringdove_kernels::program::ProgramHeader;
use std::mem::offset_of;
use std::sync::Arc;

/// The tensors of a program as a window of its communicator, and what is known of other ranks.
#[derive(Debug)]
pub(super) struct Window {
    registration: Registration,
    /// The device handle, when all ranks have registered.
    handle: Option<DeviceMemory>,
    senders: Vec<(u32, TaskName)>,
}

impl Window {
    /// Registers the first bytes of a program's memory, if it exchanges messages. The communicator
    /// keeps the memory then. Does not wait for the other ranks.
    pub fn register(
        communicator: &Communicator,
        messages: Option<&Exchange>,
        memory: &Arc<DeviceMemory>,
        bytes: usize,
    ) -> Result<Option<Self>> {
        let Some(Exchange { rank, senders, .. }) = messages else { return Ok(None) };
        if *rank != communicator.rank() {
            let expected = format!("that of rank {}", communicator.rank());
            return Err(Error::argument("program", expected, format!("that of rank {rank}")));
        }
        let registration = communicator.register_program(memory, bytes as u64)?;
        Ok(Some(Self { registration, handle: None, senders: senders.clone() }))
    }

    /// The task of another rank that sends what a task waits for.
    pub fn sender(&self, task: u32) -> Option<&TaskName> {
        self.senders.iter().find_map(|(wait, sender)| (*wait == task).then_some(sender))
    }
}

impl Resident<'_> {
    /// Reaches for the memory of other ranks that this one's tasks put into: waits until all ranks
    /// have prepared their programs. [`Resident::start`] does it, where it was not done before. It
    /// allocates: where ranks share a GPU, all of them call this before one of them starts.
    ///
    /// # Errors
    /// As [`Communicator::device_handle`]: among others for settings without user lanes, and where
    /// ranks do not reach each other's GPU memory.
    pub fn open(&mut self) -> Result<()> {
        let Some(window) = self.window.as_mut().filter(|window| window.handle.is_none()) else {
            return Ok(());
        };
        let handle = self.communicator.open_window(window.registration)?;
        let address = handle.address();
        window.handle = Some(handle);
        let place = self.layout.image + offset_of!(ProgramHeader, handle);
        self.memory().write(place, &address.to_le_bytes())
    }
}
