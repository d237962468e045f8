//! Messages that ranks of other nodes have not read yet.
//!
//! A rank whose own calls have ended may still have such messages in its peers' slots. If its
//! process ended now, the peers' credits would find nobody, and a peer cannot tell that from a
//! failure.

use super::memory::RankMemory;
use crate::error::Result;
use crate::id::Rank;
use crate::plan::{LaneKind, Side};
use ringdove_kernels::port::Port;

/// Messages that a rank has sent, and their receiver has not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unread {
    pub receiver: Rank,
    pub messages: u64,
}

impl RankMemory {
    /// The first rank of another node that has not returned all credits for what was sent to it.
    /// Launches of this rank have ended. User lanes do not count: kernels of the program's own
    /// decide about their credits.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda) where memory cannot be read.
    pub fn unread(&self) -> Result<Option<Unread>> {
        let (near, count) = (self.layout.intra_node_ports(), self.layout.port_count());
        let mut ports = vec![Port::default(); (count - near) as usize];
        self.read_ports(near, &mut ports)?;
        let signals = self.inter_node_signals()?;
        let begin = self.layout.inter_node().signals;
        for place in self.layout.ports().filter(|place| place.is_inter_node) {
            let sends = place.end.side == Side::Send;
            let counts = match place.end.lane.kind {
                LaneKind::Slots | LaneKind::Direct | LaneKind::Rail => true,
                LaneKind::LowLatency | LaneKind::Stores | LaneKind::User => false,
            };
            if !sends || !counts {
                continue;
            }
            let sent = ports[(place.number - near) as usize].position;
            let returned = signals[((place.signal - begin) / size_of::<u64>() as u64) as usize];
            if returned < sent {
                let messages = sent - returned;
                return Ok(Some(Unread { receiver: place.peer(), messages }));
            }
        }
        Ok(None)
    }
}
