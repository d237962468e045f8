//! The host's side of the mailbox.

use crate::error::Result;
use crate::gpu::HostMemory;
use crate::shared::{observe, publish};
use cudarc::driver::CudaContext;
use ringdove_kernels::program::{BATCHES, MAILBOX_ITERATIONS, Mailbox, PARAMETERS, RESULTS};
use std::mem::offset_of;
use std::sync::Arc;

/// A mailbox of one program.
#[derive(Debug)]
pub(super) struct HostMailbox {
    memory: HostMemory,
    results: usize,
}

impl HostMailbox {
    /// One that is empty, for so many results of an iteration.
    pub fn new(context: &Arc<CudaContext>, results: usize) -> Result<Self> {
        Ok(Self { memory: HostMemory::zeroed(context, size_of::<Mailbox>())?, results })
    }

    /// Device address.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    /// Parameters of an iteration that is not granted yet.
    pub fn set_parameters(&self, iteration: u64, values: &[f32; PARAMETERS]) -> Result<()> {
        let place = iteration as usize % MAILBOX_ITERATIONS;
        let offset = offset_of!(Mailbox, parameters) + place * size_of_val(values);
        self.memory.region().copy_in(offset, bytemuck::cast_slice(values))
    }

    /// Where the batches of an iteration lie that is not granted yet.
    pub fn set_batches(&self, iteration: u64, addresses: &[u64]) -> Result<()> {
        let place = iteration as usize % MAILBOX_ITERATIONS;
        let offset = offset_of!(Mailbox, batches) + place * BATCHES * size_of::<u64>();
        self.memory.region().copy_in(offset, bytemuck::cast_slice(addresses))
    }

    /// Grants all iterations before this one.
    pub fn grant(&self, end: u64) -> Result<()> {
        // Pairs with `MailboxPoll` of program.cuh: the parameters come first.
        publish(&self.memory.region().word64(offset_of!(Mailbox, granted))?, end);
        Ok(())
    }

    /// Shall the launch end when the granted iterations are done?
    pub fn set_stop(&self, stop: bool) -> Result<()> {
        // Pairs with `MailboxPoll`.
        publish(&self.memory.region().word64(offset_of!(Mailbox, stop))?, stop.into());
        Ok(())
    }

    /// Iterations that are done.
    pub fn done(&self) -> Result<u64> {
        // Pairs with `tell_host` of program.cuh: results can be read then.
        Ok(observe(&self.memory.region().word64(offset_of!(Mailbox, done))?))
    }

    /// The results of an iteration that is done.
    pub fn results(&self, iteration: u64) -> Result<Vec<f32>> {
        let place = iteration as usize % MAILBOX_ITERATIONS;
        let offset = offset_of!(Mailbox, results) + place * RESULTS * size_of::<f32>();
        let mut values = vec![0f32; self.results];
        self.memory.region().copy_out(offset, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }
}
