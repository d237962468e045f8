//! Where ranks of a job meet to form another one without its control plane, which ends when one of
//! them dies.
//!
//! Some ranks keep a listener open from the beginning, whose addresses all others know. Nobody
//! serves it until the rank is the first of those that are left. What ranks prove to one another is
//! derived from the secret of their job, so that nothing secret travels.

use super::{ControlPlane, Root, Secret, UniqueId, exchange};
use crate::error::{Error, Result};
use crate::id::Rank;
use crate::settings::Settings;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The most ranks that keep a listener open: of a large job, ranks at equal distances, so
/// that whole nodes may go.
const PLACES_MAX: u64 = 64;

/// Does this rank keep a listener open?
fn keeps_place(rank: Rank, rank_count: u32) -> bool {
    let (rank, count) = (u64::from(rank.0), u64::from(rank_count));
    let places = count.min(PLACES_MAX);
    // The first rank at or after each multiple of `count / places`.
    (rank * places).div_ceil(count) * count / places == rank
}

/// What the ranks of one process know of these places.
#[derive(Debug, Default)]
pub(crate) struct Successors {
    secret: OnceLock<Secret>,
    /// Unset where all ranks are of one process.
    places: OnceLock<Vec<(Rank, Vec<SocketAddr>)>>,
    /// Those of ranks of this process.
    listeners: Mutex<Vec<(Rank, TcpListener)>>,
}

impl Successors {
    /// Opens the places of this process's ranks, and tells all others where they are.
    ///
    /// # Errors
    /// As [`exchange`].
    pub fn open(
        &self,
        id: &UniqueId,
        planes: &[Arc<ControlPlane>],
        settings: &Settings,
    ) -> Result<()> {
        let own: Vec<_> = planes.iter().map(|plane| self.open_place(plane, settings)).collect();
        self.set(id.secret()?, exchange(planes, &own)?);
        Ok(())
    }

    /// Where a rank listens: nowhere, if others do, or if the system gives no socket.
    fn open_place(&self, plane: &ControlPlane, settings: &Settings) -> Vec<SocketAddr> {
        let rank = plane.rank();
        if !keeps_place(rank, plane.rank_count()) {
            return Vec::new();
        }
        match Root::listen(settings) {
            Ok((listener, addresses)) => {
                lock(&self.listeners).push((rank, listener));
                addresses
            }
            Err(error) => {
                tracing::warn!(rank = rank.0, %error, "no place where ranks meet if others die");
                Vec::new()
            }
        }
    }

    /// Ranks run in several processes. `addresses`: where each rank listens, if it does.
    fn set(&self, secret: Secret, addresses: Vec<Vec<SocketAddr>>) {
        let places = (0..).map(Rank).zip(addresses).filter(|(_, addresses)| !addresses.is_empty());
        // All ranks of the process have received the same.
        self.secret.get_or_init(|| secret);
        self.places.get_or_init(|| places.collect());
    }

    /// The name under which the ranks that are left meet for the `attempt`-th time; and the root,
    /// where it is for `rank` to be it. It has to live until all have met.
    ///
    /// # Errors
    /// [`Error::Argument`] where no rank is left that keeps a place; [`Error::System`] where the
    /// system refuses.
    pub fn meet(
        &self,
        rank: Rank,
        attempt: u64,
        settings: &Settings,
        is_left: impl Fn(Rank) -> bool,
    ) -> Result<(UniqueId, Option<Root>)> {
        let Some(places) = self.places.get() else {
            let fresh = Secret::random()?;
            let secret = self.secret.get_or_init(|| fresh).of_successor(attempt);
            return Ok((UniqueId::with(&[], secret), None));
        };
        let Some((first, addresses)) = places.iter().find(|(rank, _)| is_left(*rank)) else {
            let kept: Vec<_> = places.iter().map(|(rank, _)| rank.0).collect();
            let expected = format!("one of the ranks {kept:?} left, with whom the others meet");
            return Err(Error::argument("excluded ranks", expected, "all of them"));
        };
        let secret = self.secret.get().expect("set before the places").of_successor(attempt);
        let listeners = lock(&self.listeners);
        let own = listeners.iter().find(|(owner, _)| owner == first && *owner == rank);
        let listener = own.map(|(_, listener)| listener.try_clone()).transpose();
        let listener = listener.map_err(|cause| Error::System {
            what: "the listener for the ranks that are left".into(),
            cause: cause.to_string(),
        })?;
        let id = UniqueId::with(addresses, secret);
        let root = listener.map(|listener| Root::serve(listener, id, settings)).transpose()?;
        Ok((id, root))
    }

    /// Do ranks keep places? Not where all are of one process.
    pub fn has_places(&self) -> bool {
        self.places.get().is_some()
    }

    /// The rank at whose place those that are left meet.
    pub fn place(&self, is_left: impl Fn(Rank) -> bool) -> Option<Rank> {
        let places = self.places.get()?;
        places.iter().map(|(rank, _)| *rank).find(|rank| is_left(*rank))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one assignment or one push.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What one rank keeps for communicators that are made of its own.
#[derive(Debug, Default)]
pub(crate) struct Succession {
    attempts: AtomicU64,
    growth: Mutex<Option<Root>>,
}

impl Succession {
    /// The number of this attempt to meet those that are left. Relaxed: only the number counts.
    pub fn next_attempt(&self) -> u64 {
        self.attempts.fetch_add(1, Ordering::Relaxed)
    }

    /// Keeps the root where new ranks will come, in place of an earlier one.
    pub fn keep_growth(&self, root: Root) {
        *lock(&self.growth) = Some(root);
    }

    /// The root where new ranks come, if this rank has one.
    pub fn take_growth(&self) -> Option<Root> {
        lock(&self.growth).take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(count: u32) -> Vec<u32> {
        (0..count).filter(|rank| keeps_place(Rank(*rank), count)).collect()
    }

    /// If this fails, ranks that are left have nowhere to meet, or every rank of a large
    /// communicator keeps a listener open.
    #[test]
    fn places_are_few_and_far_apart() {
        for count in [1, 2, 5, 64] {
            assert_eq!(kept(count), (0..count).collect::<Vec<_>>());
        }
        for count in [65, 100, 1000, 65_536] {
            let kept = kept(count);
            assert_eq!(kept.len(), 64, "{count}");
            let gaps = kept.windows(2).map(|pair| pair[1] - pair[0]);
            assert!(gaps.max().unwrap() <= count.div_ceil(64), "{count}: {kept:?}");
        }
    }

    /// If this fails, ranks that are left look for one another at different places, or two attempts
    /// are taken for one.
    #[test]
    fn the_first_that_is_left_serves() {
        let successors = Successors::default();
        let place = |port| vec![SocketAddr::from(([127, 0, 0, 1], port))];
        successors.set(Secret::random().unwrap(), vec![place(1), Vec::new(), place(3)]);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        successors.listeners.lock().unwrap().push((Rank(2), listener));
        let settings = Settings::default();
        let meet = |rank, attempt, is_left: fn(Rank) -> bool| {
            successors.meet(Rank(rank), attempt, &settings, is_left)
        };
        let (id, own) = meet(2, 0, |rank| rank != Rank(0)).unwrap();
        assert!(own.is_some() && id.addresses().unwrap() == place(3));
        let (same, other) = meet(1, 0, |rank| rank != Rank(0)).unwrap();
        assert!(other.is_none() && same == id);
        assert_ne!(meet(1, 1, |rank| rank != Rank(0)).unwrap().0, id);
        assert_eq!(meet(2, 0, |_| true).unwrap().0.addresses().unwrap(), place(1));
        let error = meet(1, 0, |rank| rank == Rank(1)).unwrap_err();
        assert!(error.to_string().contains("[0, 2]"), "{error}");
    }
}
