//! Registered buffers. A *window* is one buffer on each rank, registered by all of them in the
//! same order, so that every engine knows where its peers' buffers lie.

use super::world::{lock, missing};
use crate::error::{Error, Result};
use crate::id::Rank;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The most windows of one communicator; each pair of them costs routes.
pub(crate) const WINDOWS_MAX: usize = 1 << 12;

/// All windows of a communicator, by number.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    entries: Mutex<Vec<Entry>>,
    changed: Condvar,
}

/// One window: what has been posted so far.
#[derive(Debug)]
struct Entry {
    bytes: u64,
    first: Rank,
    addresses: Vec<Option<u64>>,
}

/// A window that every rank has posted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// Bytes, the same on every rank.
    pub bytes: u64,
    /// Device address on each rank.
    pub addresses: Vec<u64>,
}

impl Windows {
    /// `rank` posts its part of window `number`.
    ///
    /// # Errors
    /// [`Error::Disagreement`] where another rank posted another size.
    pub fn post(
        &self,
        rank: Rank,
        rank_count: u32,
        number: usize,
        (address, bytes): (u64, u64),
    ) -> Result<()> {
        let mut entries = lock(&self.entries);
        if number >= WINDOWS_MAX {
            let most = format_args!("at most {WINDOWS_MAX} for one communicator").to_string();
            return Err(Error::argument("number of registrations", most, number + 1));
        }
        if number == entries.len() {
            entries.push(Entry { bytes, first: rank, addresses: vec![None; rank_count as usize] });
        }
        let entry = &mut entries[number];
        if entry.bytes != bytes {
            return Err(Error::Disagreement {
                what: format!("bytes of registration {number}"),
                rank,
                value: bytes.to_string(),
                peer: entry.first,
                peer_value: entry.bytes.to_string(),
            });
        }
        entry.addresses[rank.index()] = Some(address);
        self.changed.notify_all();
        Ok(())
    }

    /// Window `number`, once every rank has posted it.
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`] names the ranks that have not.
    pub fn complete(&self, number: usize, limit: Duration) -> Result<Window> {
        let started = Instant::now();
        let (entries, _) = self
            .changed
            .wait_timeout_while(lock(&self.entries), limit, |entries| {
                entries[number].addresses.iter().any(Option::is_none)
            })
            .unwrap_or_else(PoisonError::into_inner);
        let entry = &entries[number];
        if let Some(missing) = missing(&entry.addresses) {
            return Err(Error::HostWaitExpired {
                what: format!("registration {number}, which is collective"),
                expected: format!("all {} ranks to register", entry.addresses.len()),
                seen: format!("nothing from rank {missing}"),
                waited: started.elapsed(),
            });
        }
        Ok(Window {
            bytes: entry.bytes,
            addresses: entry.addresses.iter().flatten().copied().collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_complete_when_every_rank_has_posted() {
        let windows = Windows::default();
        windows.post(Rank(1), 2, 0, (64, 8)).unwrap();
        let missing = windows.complete(0, Duration::ZERO).unwrap_err().to_string();
        assert!(missing.contains("rank 0"), "{missing}");
        windows.post(Rank(0), 2, 0, (32, 8)).unwrap();
        let window = windows.complete(0, Duration::ZERO).unwrap();
        assert_eq!(window, Window { bytes: 8, addresses: vec![32, 64] });
    }

    #[test]
    fn sizes_must_agree() {
        let windows = Windows::default();
        windows.post(Rank(0), 2, 0, (64, 8)).unwrap();
        let message = windows.post(Rank(1), 2, 0, (64, 16)).unwrap_err().to_string();
        assert!(message.contains("rank 1 says 16, rank 0 says 8"), "{message}");
    }
}
