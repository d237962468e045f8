//! Windows of pinned host memory.

use super::windows::Window;
use crate::error::{Error, Result};
use crate::gpu::HostMemory;
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
        let offset = self.inside(offset, bytes)?;
        let mut copied = vec![0; bytes as usize];
        self.memory.region().copy_out(offset, &mut copied)?;
        Ok(copied)
    }

    /// Copies bytes into this rank's part.
    ///
    /// # Errors
    /// [`Error::Argument`] for a range outside.
    pub fn store(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let offset = self.inside(offset, bytes.len() as u64)?;
        self.memory.region().copy_in(offset, bytes)
    }

    fn inside(&self, offset: u64, bytes: u64) -> Result<usize> {
        let all = self.window.bytes();
        if offset.checked_add(bytes).is_none_or(|end| end > all) {
            let seen = format!("{bytes} bytes from {offset}");
            return Err(Error::argument("part of a window", format!("within {all} bytes"), seen));
        }
        Ok(offset as usize)
    }
}
