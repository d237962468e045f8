//! A piece of device memory, as other processes open it.

use crate::error::{Error, Result};
use crate::gpu::{Export, HANDLE_BYTES};
use crate::id::Rank;
use serde::{Deserialize, Serialize};

/// An [`Export`] as ranks send it to each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExportedMemory {
    handle: Vec<u8>,
    offset: u64,
}

impl From<Export> for ExportedMemory {
    fn from(export: Export) -> Self {
        Self { handle: export.handle.to_vec(), offset: export.offset }
    }
}

impl ExportedMemory {
    /// What the driver takes. `rank` has sent it as `what`, for messages.
    ///
    /// # Errors
    /// [`Error::PeerValue`] where the handle has a wrong size.
    pub fn export(&self, rank: Rank, what: &str) -> Result<Export> {
        let handle = self.handle.as_slice().try_into().map_err(|_| {
            let expected = format_args!("a handle of {HANDLE_BYTES} bytes").to_string();
            Error::peer_value(rank, what, expected, format!("{} bytes", self.handle.len()))
        })?;
        Ok(Export { handle, offset: self.offset })
    }
}
