//! A rank that is connected with all others: its state and its engine.

use super::attach::RankEngine;
use super::inter_node::InterNodeConnections;
use super::places::Places;
use crate::bootstrap::Succession;
use crate::communicator::state::{Launcher, ProcessState, RankState, Tidy, Unread, lock};
use crate::engine::{Alarm, Snapshot};
use crate::error::{Error, Result};
use crate::flight::{RankRecorder, WatchedRank};
use crate::id::Rank;
use crate::lived::Lived;
use crate::plan::{LaneEnd, PortResolver};
use crate::settings::Settings;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// How long a rank whose kernels have ended waits for transfers to other nodes. Those that somebody
/// waits for are acknowledged within milliseconds; credits for a rank that has left already never
/// are, and the adapter would repeat them until its timeout.
const FINAL_ACK_TIMEOUT: Duration = Duration::from_secs(2);

/// From one look at the credits of other nodes to the next, while a rank waits for the last ones.
const UNREAD_LOOK: Duration = Duration::from_micros(200);

/// One rank of a communicator.
pub(in crate::communicator) struct ConnectedRank {
    pub settings: Settings,
    /// What the ranks of this process share.
    pub process: Arc<ProcessState>,
    pub state: Arc<RankState>,
    pub(super) launcher: Arc<Mutex<Launcher>>,
    /// `None` only while the rank is being dropped.
    pub(super) engine: Option<RankEngine>,
    pub(super) inter_node: Option<InterNodeConnections>,
    /// Places in registered memory, of this rank and of others.
    pub places: Arc<Places>,
    pub succession: Succession,
    /// What it calls and launches is recorded here.
    pub flight: Arc<RankRecorder>,
    /// `None` only while the rank is being dropped.
    pub(super) watched: Option<WatchedRank>,
    /// Dropped last: frees what the others gave up.
    pub(super) _tidy: Tidy,
}

impl ConnectedRank {
    /// This rank's number.
    pub fn rank(&self) -> Rank {
        self.state.rank
    }

    /// Number of ranks.
    pub fn rank_count(&self) -> u32 {
        self.process.geometry.rank_count
    }

    /// Plans, routes and launches. Calls take effect in the order in which they lock it.
    pub fn launcher(&self) -> MutexGuard<'_, Launcher> {
        lock(&self.launcher)
    }

    /// The rank's engine.
    pub fn engine(&self) -> &RankEngine {
        self.engine.as_ref().expect("present until drop")
    }

    /// The counters of the rank's engine.
    pub fn engine_statistics(&self) -> Snapshot {
        self.engine.as_ref().map(RankEngine::statistics).unwrap_or_default()
    }

    /// The error that ended the communicator, if any.
    ///
    /// # Errors
    /// The first error, on every rank alike.
    pub fn check(&self) -> Result<()> {
        if let Some(engine) = &self.engine {
            engine.look();
        }
        // A launch may have ended by an error whose delivery is under way.
        self.process.settle();
        self.state.check()
    }

    /// Fails the communicator on all ranks; gives the error back.
    pub fn fail(&self, error: Error) -> Error {
        self.process.raise(error.clone());
        error
    }

    /// Waits until the launches of this rank have ended, at most `limit`.
    pub fn drained(&self, limit: Duration) -> bool {
        self.launcher().wait(limit)
    }

    /// Waits until the launches of this rank have ended, its engine has ended all transfers, and
    /// ranks of other nodes have read all messages.
    ///
    /// # Errors
    /// The error that ended the communicator, if any; [`Error::HostWaitExpired`] where one of the
    /// three takes longer than `limit`.
    pub fn finalize(&self, limit: Duration) -> Result<()> {
        if !self.drained(limit) {
            return Err(Error::HostWaitExpired {
                what: format!("the launches of {}", self.rank()),
                expected: "all ended".into(),
                seen: "some that have not".into(),
                waited: limit,
            });
        }
        self.check()?;
        let idle = self.engine().wait_idle(self.state.memory.head()?, limit);
        // What ended the communicator says more than work that is left.
        self.check().and(idle)?;
        self.all_read(limit)
    }

    /// Waits until ranks of other nodes have read what this one has sent. Its launches have ended.
    fn all_read(&self, limit: Duration) -> Result<()> {
        if self.inter_node.is_none() {
            return Ok(());
        }
        let mut lived = Lived::new();
        while let Some(Unread { receiver, messages }) = self.state.memory.unread()? {
            self.check()?;
            if lived.look() >= limit {
                return Err(Error::HostWaitExpired {
                    what: format!("{receiver} to read what {} has sent", self.rank()),
                    expected: "credits for all messages".into(),
                    seen: format!("{messages} without"),
                    waited: lived.time(),
                });
            }
            std::thread::sleep(UNREAD_LOOK);
        }
        Ok(())
    }
}

impl PortResolver for ConnectedRank {
    fn port(&self, end: LaneEnd) -> Option<u32> {
        Some(self.state.memory.layout.port(end)?.number)
    }
}

impl Drop for ConnectedRank {
    fn drop(&mut self) {
        let rank = self.rank();
        let mut ended = self.drained(self.settings.drop_timeout);
        if !ended {
            let why = "the communicator was dropped before its work had ended".to_owned();
            self.process.raise(Error::Aborted { by: Some(rank), why });
            ended = self.drained(self.settings.drop_timeout);
            if !ended {
                // A kernel that ignores its abort word still uses all of this memory.
                tracing::error!(rank = rank.0, "a kernel does not end, so its memory is leaked");
                std::mem::forget((self.launcher.clone(), self.process.clone()));
            }
        }
        // What it reads of the engine is about to go.
        drop(self.watched.take());
        if let Some(connections) = self.inter_node.as_ref().filter(|_| self.process.is_raised()) {
            connections.close();
        }
        let mut limit = self.settings.drop_timeout;
        if ended && self.inter_node.is_some() {
            limit = limit.min(FINAL_ACK_TIMEOUT);
            // Or their credits would find nobody once this process has ended.
            if !self.process.is_raised()
                && let Err(error) = self.all_read(limit)
            {
                tracing::debug!(%error, rank = rank.0, "dropped before the others have read all");
            }
        }
        if let Some(engine) = self.engine.take()
            && let Err(error) =
                engine.detach(|| self.state.memory.head().ok().filter(|_| ended), limit)
        {
            tracing::warn!(%error, rank = rank.0, "the engine still had work");
        }
    }
}
