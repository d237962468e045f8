//! What has arrived and was kept, where writes land out of order, lands.

use super::access::Access;
use super::connection::Connection;
use super::responder::ReceiveSide;

impl Connection {
    /// Lands what has arrived, before it is reported.
    pub(super) fn place(&self, side: &mut ReceiveSide) {
        if side.unplaced.is_empty() {
            return;
        }
        let (held, party) = (self.host.hold(), self.party_of(side));
        side.unplaced.place(|part, from| {
            let (length, right) = (part.length as u64, Access::REMOTE_WRITE);
            // It was checked when it arrived; what its owner has given up since takes nothing.
            if let Ok(target) =
                held.resolve_for_peer(party, part.key, (part.address, length), right)
            {
                // SAFETY: the region holds the range, and stays while `held` lives; `place` gives
                // the address of as many bytes.
                unsafe { self.host.land(target, from, part.length) };
                held.written(target, length);
            }
        });
    }
}
