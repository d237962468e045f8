//! Memory of windows.

use super::windows::Window;
use crate::error::{Error, Result};
use crate::gpu::{DeviceMemory, HostMemory};
use cudarc::driver::CudaStream;
use std::sync::Arc;

/// This rank's part of a window, in pinned memory of its host. Dropped, the memory stays until all
/// ranks of the communicator are gone: others may write there.
#[derive(Debug)]
pub struct HostWindow {
    pub(super) window: Window,
    pub(super) memory: Arc<HostMemory>,
}

impl HostWindow {
    /// The window, to name parts of it.
    pub fn window(&self) -> Window {
        self.window
    }

    /// Copies bytes out of this rank's part. What a signal has announced is there once a
    /// [`wait`](super::Windows::wait) for it has ended; what others write meanwhile may be seen
    /// byte by byte.
    ///
    /// # Errors
    /// [`Error::Argument`] for a range outside.
    pub fn load(&self, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        let offset = inside(self.window, offset, bytes)?;
        let mut copied = vec![0; bytes as usize];
        self.memory.region().copy_out(offset, &mut copied)?;
        Ok(copied)
    }

    /// Copies bytes into this rank's part.
    ///
    /// # Errors
    /// [`Error::Argument`] for a range outside.
    pub fn store(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let offset = inside(self.window, offset, bytes.len() as u64)?;
        self.memory.region().copy_in(offset, bytes)
    }
}

/// This rank's part of a window, in memory of its GPU that processes can share. Dropped, the memory
/// stays until all ranks of the communicator are gone.
#[derive(Debug)]
pub struct DeviceWindow {
    pub(super) window: Window,
    pub(super) memory: Arc<DeviceMemory>,
}

impl DeviceWindow {
    /// The window, to name parts of it.
    pub fn window(&self) -> Window {
        self.window
    }

    /// Device address of this rank's part, for kernels.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    /// Copies bytes out of this rank's part, behind what is enqueued on `stream`; waits for that.
    ///
    /// # Errors
    /// [`Error::Argument`] for a range outside; [`Error::Cuda`] with the driver's answer.
    pub fn load(&self, offset: u64, bytes: u64, stream: &CudaStream) -> Result<Vec<u8>> {
        inside(self.window, offset, bytes)?;
        let mut copied = vec![0; bytes as usize];
        self.memory.read_behind(offset, &mut copied, stream)?;
        Ok(copied)
    }

    /// Enqueues a copy of bytes into this rank's part. The bytes are taken at once.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn store(&self, offset: u64, bytes: &[u8], stream: &CudaStream) -> Result<()> {
        self.memory.enqueue_write(offset, bytes, stream)
    }
}

fn inside(window: Window, offset: u64, bytes: u64) -> Result<usize> {
    let all = window.bytes();
    if offset.checked_add(bytes).is_none_or(|end| end > all) {
        let seen = format!("{bytes} bytes from {offset}");
        return Err(Error::argument("part of a window", format!("within {all} bytes"), seen));
    }
    Ok(offset as usize)
}
