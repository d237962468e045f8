//! Registered buffers. A *window* is one buffer on each rank, registered by all of them in the
//! same order, so that every engine knows where its peers' buffers lie.

use super::meeting::{Shared, exchange};
use super::world::{lock, missing};
use crate::bootstrap::ControlPlane;
use crate::error::{Error, Result};
use crate::id::Rank;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The most windows of one communicator; each pair of them costs routes.
pub(crate) const WINDOWS_MAX: usize = 1 << 12;

/// All windows of a communicator, by number.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    entries: Mutex<Vec<Entry>>,
    changed: Condvar,
    /// Held while parts travel between processes: windows go in order of their numbers. How many
    /// have gone.
    exchanged: Mutex<usize>,
}

/// One window: what has been posted so far.
#[derive(Debug)]
struct Entry {
    bytes: u64,
    first: Rank,
    parts: Vec<Option<Part>>,
}

/// One rank's part of a window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    /// Device address on that rank.
    pub address: u64,
    /// Bytes, the same on every rank.
    pub bytes: u64,
    /// How other processes reach it; `None` where all ranks are of one process.
    pub export: Option<Shared>,
}

/// A window as one rank's engine reaches it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// Bytes, the same on every rank.
    pub bytes: u64,
    /// Device address of each rank's part.
    pub addresses: Vec<u64>,
}

impl Windows {
    /// `rank` posts its part of window `number`.
    ///
    /// # Errors
    /// [`Error::Disagreement`] where another rank posted another size.
    pub fn post(&self, rank: Rank, rank_count: u32, number: usize, part: Part) -> Result<()> {
        let mut entries = lock(&self.entries);
        if number >= WINDOWS_MAX {
            let most = format_args!("at most {WINDOWS_MAX} for one communicator").to_string();
            return Err(Error::argument("number of registrations", most, number + 1));
        }
        if number == entries.len() {
            let parts = vec![None; rank_count as usize];
            entries.push(Entry { bytes: part.bytes, first: rank, parts });
        }
        let entry = &mut entries[number];
        if entry.bytes != part.bytes {
            return Err(Error::Disagreement {
                what: format!("bytes of registration {number}"),
                rank,
                value: part.bytes.to_string(),
                peer: entry.first,
                peer_value: entry.bytes.to_string(),
            });
        }
        entry.parts[rank.index()] = Some(part);
        self.changed.notify_all();
        Ok(())
    }

    /// The parts of window `number`, once every rank has posted its own. `links` are the control
    /// planes of the ranks of this process, none if all ranks are.
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`] or [`Error::Bootstrap`] names the ranks that have not;
    /// [`Error::Disagreement`] where a rank of another process posted another size.
    pub fn complete(
        &self,
        number: usize,
        limit: Duration,
        links: &[Arc<ControlPlane>],
    ) -> Result<Vec<Part>> {
        if links.is_empty() {
            let entries = self.wait(number, limit, |_| true)?;
            return Ok(entries[number].parts.iter().flatten().cloned().collect());
        }
        // Whoever comes first acts for all ranks of the process, which may share one thread.
        let mut exchanged = lock(&self.exchanged);
        while *exchanged <= number {
            self.exchange(*exchanged, limit, links)?;
            *exchanged += 1;
        }
        let entries = lock(&self.entries);
        Ok(entries[number].parts.iter().flatten().cloned().collect())
    }

    /// Tells the other processes this one's parts of window `number`, and learns theirs.
    fn exchange(&self, number: usize, limit: Duration, links: &[Arc<ControlPlane>]) -> Result<()> {
        let local = |rank: usize| links.iter().any(|plane| plane.rank().index() == rank);
        let entries = self.wait(number, limit, local)?;
        let part = |plane: &Arc<ControlPlane>| entries[number].parts[plane.rank().index()].clone();
        let shown: Vec<Option<Part>> = links.iter().map(part).collect();
        let (first, bytes) = (entries[number].first, entries[number].bytes);
        // Not held meanwhile: others may go on posting.
        drop(entries);
        let mut parts = Vec::new();
        for (rank, part) in (0..).zip(exchange(links, &shown)?) {
            if part.as_ref().map(|part| part.bytes) != Some(bytes) {
                let seen = part.map_or("nothing".into(), |part| part.bytes.to_string());
                return Err(Error::Disagreement {
                    what: format!("bytes of registration {number}"),
                    rank: Rank(rank),
                    value: seen,
                    peer: first,
                    peer_value: bytes.to_string(),
                });
            }
            parts.push(part);
        }
        // What came back of this process's own parts has passed through others: the posted stay.
        let mut entries = lock(&self.entries);
        for (own, told) in entries[number].parts.iter_mut().zip(parts) {
            *own = own.take().or(told);
        }
        Ok(())
    }

    /// Waits until those ranks that `matters` have posted their parts of window `number`.
    fn wait(
        &self,
        number: usize,
        limit: Duration,
        matters: impl Fn(usize) -> bool,
    ) -> Result<MutexGuard<'_, Vec<Entry>>> {
        let started = Instant::now();
        let lacks = |entry: &Entry| {
            (0..entry.parts.len()).any(|rank| matters(rank) && entry.parts[rank].is_none())
        };
        let (entries, _) = self
            .changed
            .wait_timeout_while(lock(&self.entries), limit, |entries| {
                entries.get(number).is_none_or(lacks)
            })
            .unwrap_or_else(PoisonError::into_inner);
        match entries.get(number) {
            Some(entry) if !lacks(entry) => Ok(entries),
            entry => Err(Error::HostWaitExpired {
                what: format!("registration {number}, which is collective"),
                expected: "all ranks to register".into(),
                seen: match entry.and_then(|entry| missing(&entry.parts)) {
                    Some(missing) => format!("nothing from {missing}"),
                    None => "nothing".into(),
                },
                waited: started.elapsed(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(address: u64, bytes: u64) -> Part {
        Part { address, bytes, export: None }
    }

    #[test]
    fn a_window_is_complete_when_every_rank_has_posted() {
        let windows = Windows::default();
        windows.post(Rank(1), 2, 0, part(64, 8)).unwrap();
        let missing = windows.complete(0, Duration::ZERO, &[]).unwrap_err().to_string();
        assert!(missing.contains("rank 0"), "{missing}");
        windows.post(Rank(0), 2, 0, part(32, 8)).unwrap();
        let window = windows.complete(0, Duration::ZERO, &[]).unwrap();
        assert_eq!(window, [part(32, 8), part(64, 8)]);
    }

    #[test]
    fn sizes_must_agree() {
        let windows = Windows::default();
        windows.post(Rank(0), 2, 0, part(64, 8)).unwrap();
        let message = windows.post(Rank(1), 2, 0, part(64, 16)).unwrap_err().to_string();
        assert!(message.contains("rank 1 says 16, rank 0 says 8"), "{message}");
    }
}
