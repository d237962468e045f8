//! How the control plane reaches a transport that an engine already runs.

use super::arrivals::Inbound;
use super::endpoint::Endpoint;
use super::region::{LocalRegion, MemoryRegion, RemoteRegion};
use super::signals::SignalWriter;
use crate::error::{Error, Result};
use crate::id::{LaneId, Rank};
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) enum Command {
    Peer(Box<NewPeer>),
    Local(LocalRegion),
    RemoveLocal { key: u32 },
    Remote { rank: Rank, region: RemoteRegion },
    RemoveRemote { rank: Rank, key: u32 },
    BreakOff { rank: Rank },
    Arrivals(Box<Inbound>),
}

/// A peer that transfers may go to, and where they may write.
pub(super) struct NewPeer {
    pub(super) rank: Rank,
    pub(super) endpoint: Endpoint,
    pub(super) regions: Vec<RemoteRegion>,
    pub(super) lanes: Vec<LaneId>,
}

/// Adds peers and memory to a transport. What was added before a doorbell rang is known when
/// its transfer is submitted.
pub struct VerbsControl {
    sender: Sender<Command>,
    sent: Arc<AtomicU64>,
}

/// The transport's end.
pub(super) struct Commands {
    receiver: Receiver<Command>,
    sent: Arc<AtomicU64>,
    taken: u64,
}

pub(super) fn control() -> (VerbsControl, Commands) {
    let (sender, receiver) = unbounded();
    let sent = Arc::new(AtomicU64::new(0));
    (VerbsControl { sender, sent: sent.clone() }, Commands { receiver, sent, taken: 0 })
}

impl VerbsControl {
    /// A connected peer, its memory that transfers may write, and the lanes that lead to it. All at
    /// once: a transfer that waited for a lane is submitted as soon as the lane is there.
    ///
    /// # Errors
    /// [`Error::Argument`] if the endpoint is not connected; [`Error::EngineStopped`] if the
    /// transport is gone.
    pub fn add_peer(
        &self,
        rank: Rank,
        endpoint: Endpoint,
        regions: &[RemoteRegion],
        lanes: &[LaneId],
    ) -> Result<()> {
        if !endpoint.is_connected() {
            return Err(Error::argument("endpoint", "connected", "not connected"));
        }
        let (regions, lanes) = (regions.to_vec(), lanes.to_vec());
        self.send(Command::Peer(Box::new(NewPeer { rank, endpoint, regions, lanes })))
    }

    /// Memory of this side that transfers may read.
    ///
    /// # Errors
    /// [`Error::EngineStopped`] if the transport is gone.
    pub fn add_local(&self, region: &MemoryRegion) -> Result<()> {
        self.send(Command::Local(region.local()))
    }

    /// Forgets memory of this side. No transfer may name it any more.
    ///
    /// # Errors
    /// As [`add_local`](Self::add_local).
    pub fn remove_local(&self, region: &MemoryRegion) -> Result<()> {
        self.send(Command::RemoveLocal { key: region.local().lkey })
    }

    /// More memory of a peer that was added, for transfers to write. That of one that comes later
    /// is brought by [`add_peer`](Self::add_peer).
    ///
    /// # Errors
    /// As [`add_local`](Self::add_local).
    pub fn add_remote(&self, rank: Rank, region: RemoteRegion) -> Result<()> {
        self.send(Command::Remote { rank, region })
    }

    /// Forgets memory of a peer. No transfer may name it any more.
    ///
    /// # Errors
    /// As [`add_local`](Self::add_local).
    pub fn remove_remote(&self, rank: Rank, region: RemoteRegion) -> Result<()> {
        self.send(Command::RemoveRemote { rank, key: region.rkey })
    }

    /// Where peers raise signals by immediate data: word 0 of theirs is the first of `region`.
    /// `writer` raises them; with `flush`, after a read of the region through the adapter.
    /// Without this, a transport whose settings ask for immediate data takes none.
    ///
    /// # Errors
    /// As [`add_local`](Self::add_local); [`Error::System`] where the adapter refuses what a flush
    /// needs.
    pub fn receive_signals(
        &self,
        region: &MemoryRegion,
        writer: Box<dyn SignalWriter>,
        flush: bool,
    ) -> Result<()> {
        self.send(Command::Arrivals(Box::new(Inbound::new(region, writer, flush)?)))
    }

    /// Ends all traffic with a peer at the engine's next step: what is in flight fails, and
    /// nothing more arrives from it. For an abort that shall not wait for the adapter's retries.
    ///
    /// # Errors
    /// As [`add_local`](Self::add_local).
    pub fn break_off(&self, rank: Rank) -> Result<()> {
        self.send(Command::BreakOff { rank })
    }

    fn send(&self, command: Command) -> Result<()> {
        self.sender.send(command).map_err(|_| Error::EngineStopped {
            engine: "verbs transport".into(),
            why: "it was dropped".into(),
        })?;
        // Release: whoever sees the count can receive the command. Pairs with Commands::next.
        self.sent.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

impl Commands {
    /// The next command, if there is one. Costs one load where there is none.
    pub(super) fn next(&mut self) -> Option<Command> {
        // Acquire: pairs with VerbsControl::send.
        if self.sent.load(Ordering::Acquire) == self.taken {
            return None;
        }
        let command = self.receiver.try_recv().ok()?;
        self.taken += 1;
        Some(command)
    }
}
