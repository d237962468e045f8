//! Device memory that is filled from the host, in two halves that take turns: room is made without
//! waiting for launches that were enqueued just now.

use crate::error::{Error, Result};
use crate::gpu::{Upload, keeping_errors, outside_captures};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream};
use std::sync::Arc;

/// Alignment of what is uploaded, for the executor's 16-byte loads.
const ALIGN: usize = 256;

/// Memory in two halves.
#[derive(Debug)]
pub(crate) struct Halves {
    upload: Upload,
    /// Bytes of the current half that are taken.
    used: usize,
    /// For each half, recorded when the other one took over: after it, nobody reads what was
    /// uploaded to this half before.
    left: [Option<CudaEvent>; 2],
    turn: Turn,
}

/// How often the halves have changed. What was uploaded in a turn stays for that one and the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Turn(u64);

/// Where something was uploaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uploaded {
    /// Device address.
    pub address: u64,
    pub turn: Turn,
}

impl Turn {
    /// Is what was uploaded in this turn still there in turn `now`?
    pub fn stays_in(self, now: Self) -> bool {
        now.0 <= self.0 + 1
    }

    fn half(self) -> usize {
        (self.0 % 2) as usize
    }
}

impl Halves {
    /// Memory of `bytes` in `context`.
    pub fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Self> {
        let upload = Upload::new(context, bytes)?;
        Ok(Self { upload, used: 0, left: [None, None], turn: Turn::default() })
    }

    /// Bytes of room, for both halves.
    pub fn bytes(&self) -> usize {
        self.upload.bytes()
    }

    /// The most bytes that fit.
    pub fn bytes_max(&self) -> usize {
        self.bytes() / 2
    }

    /// The current turn.
    pub fn turn(&self) -> Turn {
        self.turn
    }

    /// True if `bytes` fit into the current half.
    pub fn has_room(&self, bytes: &[u8]) -> bool {
        self.used + size_of_part(bytes) <= self.bytes_max()
    }

    /// Enqueues the upload of at most [`bytes_max`](Self::bytes_max) bytes on `stream`, which waits
    /// for the launches before.
    ///
    /// # Errors
    /// [`Error::Cuda`] where the driver refuses.
    pub fn enqueue(&mut self, bytes: &[u8], stream: &CudaStream) -> Result<Uploaded> {
        let size = size_of_part(bytes);
        if !self.has_room(bytes) {
            self.turn_over(stream)?;
        }
        let offset = self.turn.half() * self.bytes_max() + self.used;
        self.upload.enqueue(offset, bytes, stream)?;
        self.used += size;
        Ok(Uploaded { address: self.upload.address(offset), turn: self.turn })
    }

    /// Makes the other half current and empty.
    fn turn_over(&mut self, stream: &CudaStream) -> Result<()> {
        // The stream waits for the launches before, so what it has reached now, they have ended.
        let event = keeping_errors(stream.context(), || stream.record_event(None))
            .map_err(Error::from_driver("cuEventRecord"))?;
        self.left[self.turn.half()] = Some(event);
        let next = Turn(self.turn.0 + 1);
        if let Some(event) = self.left[next.half()].take() {
            let waited =
                keeping_errors(stream.context(), || outside_captures(|| event.synchronize()));
            waited.map_err(Error::from_driver("cuEventSynchronize"))?;
        }
        (self.turn, self.used) = (next, 0);
        Ok(())
    }
}

/// What the upload of `bytes` takes.
fn size_of_part(bytes: &[u8]) -> usize {
    bytes.len().next_multiple_of(ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, a plan is taken for one that its memory no longer holds.
    #[test]
    fn what_was_uploaded_stays_for_one_more_turn() {
        let stays: Vec<bool> = (3..7).map(|now| Turn(3).stays_in(Turn(now))).collect();
        assert_eq!(stays, [true, true, false, false]);
        assert_ne!(Turn(3).half(), Turn(4).half());
        assert_eq!(Turn(3).half(), Turn(5).half(), "the half that is filled anew");
    }
}
