//! Copies between the memory of work requests and rings. Each checks keys, ranges and rights, and
//! holds the table of regions while it copies.

use super::access::Access;
use super::completion::CompletionStatus;
use super::connection::Connection;
use super::work::{Data, Piece, parts};
use crate::fabric::copy;

impl Connection {
    /// Copies a piece of a request's data to `target`.
    pub(super) fn gather(
        &self,
        data: &Data,
        offset: u64,
        length: u64,
        target: u64,
    ) -> Result<(), CompletionStatus> {
        let pieces = match data {
            Data::Pieces(pieces) => pieces,
            Data::Inline(bytes) => {
                let source = bytes.as_ptr() as u64 + offset;
                // SAFETY: `target` is room for `length` bytes in a ring, and the message has
                // `length` more bytes at `offset`.
                unsafe { copy::fetch(target, source, length as usize) };
                return Ok(());
            }
        };
        let held = self.host.hold();
        for (part, place) in parts(pieces, offset, length) {
            let Piece { address, length, key } = part;
            let source =
                held.resolve(self.domain, key, address, u64::from(length), Access::NONE)?;
            // SAFETY: the region holds the range, and stays while `held` lives; the parts fill
            // `target` exactly.
            unsafe { copy::fetch(target + place, source, length as usize) };
        }
        Ok(())
    }

    /// Copies data that came back to where a request wants it.
    pub(super) fn scatter(
        &self,
        data: &Data,
        offset: u64,
        length: u64,
        source: u64,
    ) -> Result<(), CompletionStatus> {
        let Data::Pieces(pieces) = data else {
            return Err(CompletionStatus::LocalOperation);
        };
        self.land(self.domain, pieces, (offset, length), source)
    }

    /// Copies `length` bytes of a message to their place at `offset` in a request's memory, which
    /// is of this protection domain.
    pub(super) fn land(
        &self,
        domain: u64,
        pieces: &[Piece],
        (offset, length): (u64, u64),
        source: u64,
    ) -> Result<(), CompletionStatus> {
        let held = self.host.hold();
        for (part, place) in parts(pieces, offset, length) {
            let Piece { address, length, key } = part;
            let target =
                held.resolve(domain, key, address, u64::from(length), Access::LOCAL_WRITE)?;
            // SAFETY: as in `gather`, the other way; the parts lie inside the source.
            unsafe { copy::land(target, source + place, length as usize) };
            held.written(target, u64::from(length));
        }
        Ok(())
    }
}
