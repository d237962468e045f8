//! Device memory for what captured launches read. A graph may be launched at any time, and nobody
//! says when it has gone: nothing here is given to another use before the communicator ends.
//!
//! The graph itself brings the bytes to the device, by a copy ahead of its first launch that reads
//! them. They wait in pinned memory: no other way neither waits nor is forbidden in a capture.

use crate::error::{Error, Result};
use crate::gpu::Upload;
use cudarc::driver::{CudaContext, CudaStream};
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes of a rank for all of its captured launches. A plan takes a few KiB, and different graphs
/// share it.
const KEPT_BYTES: usize = 1 << 20;
/// What must be left for a call, whose plan is made after the ranks have agreed on the call.
const ROOM_BYTES: usize = 128 << 10;
/// Alignment, for the executor's 16-byte loads.
const ALIGN: usize = 256;

/// What captured launches read.
#[derive(Debug)]
pub(super) struct Kept {
    upload: Upload,
    used: usize,
    /// By their bytes, where they are.
    known: HashMap<Vec<u8>, u64>,
    parts: HashMap<u64, Part>,
}

#[derive(Debug)]
struct Part {
    offset: usize,
    bytes: usize,
    /// The capture whose graph has its copy.
    capture: Option<u64>,
}

impl Kept {
    /// Room in `context`.
    pub fn new(context: &Arc<CudaContext>) -> Result<Self> {
        let upload = Upload::new(context, KEPT_BYTES)?;
        Ok(Self { upload, used: 0, known: HashMap::new(), parts: HashMap::new() })
    }

    /// Bytes of room.
    pub fn bytes(&self) -> usize {
        self.upload.bytes()
    }

    /// Refuses where there may be no room for one more call.
    pub fn check_room(&self) -> Result<()> {
        if self.used + ROOM_BYTES <= KEPT_BYTES { Ok(()) } else { Err(self.full(ROOM_BYTES)) }
    }

    fn full(&self, wanted: usize) -> Error {
        let left = KEPT_BYTES - self.used;
        let expected = format!(
            "captured calls whose plans and tables take {KEPT_BYTES} bytes together: make a \
             communicator of its own for more different ones"
        );
        Error::argument("captured call", expected, format!("{wanted} bytes, of which {left} left"))
    }

    /// Keeps bytes, once for all calls that read the same; gives their device address.
    pub fn add(&mut self, bytes: &[u8]) -> Result<u64> {
        if let Some(address) = self.known.get(bytes) {
            return Ok(*address);
        }
        let address = self.add_apart(bytes)?;
        self.known.insert(bytes.to_vec(), address);
        Ok(address)
    }

    /// Keeps bytes that no other call shares, so that they can be cleared; gives their device
    /// address.
    pub fn add_apart(&mut self, bytes: &[u8]) -> Result<u64> {
        let (offset, size) = (self.used, bytes.len().next_multiple_of(ALIGN));
        if size > KEPT_BYTES - offset {
            return Err(self.full(size));
        }
        self.upload.put(offset, bytes);
        self.used += size;
        let address = self.upload.address(offset);
        self.parts.insert(address, Part { offset, bytes: bytes.len(), capture: None });
        Ok(address)
    }

    /// Zeros what was added apart; launches that read it find nothing there. None of them runs.
    pub fn clear(&mut self, address: u64) {
        let Some(part) = self.parts.get(&address) else { return };
        self.upload.put(part.offset, &vec![0; part.bytes]);
    }

    /// Adds the copy to the graph that a capture makes, unless it is there.
    pub fn upload(&mut self, address: u64, stream: &CudaStream, capture: u64) -> Result<()> {
        let Some(part) = self.parts.get_mut(&address) else { return Ok(()) };
        if part.bytes > 0 && part.capture != Some(capture) {
            self.upload.copy(part.offset, part.bytes, stream)?;
            part.capture = Some(capture);
        }
        Ok(())
    }
}
