//! How ranks of different processes notice that their calls differ.
//!
//! A call is never held up for it. Each process writes down what its ranks call and tells it, a few
//! milliseconds later and in one message for all calls of that time, to the process above it in the
//! control plane's tree. There the calls take part in the board's comparison like those of ranks of
//! that process. Every process has one above it but the first, so calls that are equal along every
//! edge of the tree are equal everywhere, and nobody hears of more calls than it makes itself,
//! times the processes directly below it.
//!
//! The two sides of a message are compared where both are known: in the lowest process of the tree
//! that has both ranks at or below it. Until there they are passed on.
//!
//! Why not digests, and questions where they differ: both sides' values are to be named, and the
//! one asked may have forgotten. Equal signatures go once for each message, so calls in a loop cost
//! a few bytes each.

use super::agreement::Signature;
use crate::id::Rank;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How long calls are gathered before they are told: far below any timeout, far above what it costs
/// to tell.
pub(super) const INTERVAL: Duration = Duration::from_millis(5);
/// Signatures of one message that a further one is compared with.
const KNOWN_MAX: usize = 64;

/// A call, as one process tells it to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Event {
    /// A collective, the first one being number 0.
    Collective { rank: u32, number: u64 },
    /// The next message from one rank to another, as one of them names it.
    Transfer { rank: u32, from: u32, to: u32 },
}

/// What a process has not told yet.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    calls: Vec<(Event, Signature)>,
}

/// What is told at once.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Batch {
    signatures: Vec<Signature>,
    /// Each with the place of its signature.
    events: Vec<(Event, u32)>,
}

impl Outbox {
    /// True if this is the first call since the last [`take`](Self::take).
    pub fn add(&mut self, event: Event, signature: Signature) -> bool {
        self.calls.push((event, signature));
        self.calls.len() == 1
    }

    /// Everything so far, as bytes; none if there is nothing.
    pub fn take(&mut self) -> Vec<u8> {
        if self.calls.is_empty() {
            return Vec::new();
        }
        let mut batch = Batch::default();
        for (event, signature) in self.calls.drain(..) {
            let known = batch.signatures.iter().rev().take(KNOWN_MAX);
            let back = known.into_iter().position(|known| *known == signature);
            let place = match back {
                Some(back) => batch.signatures.len() - 1 - back,
                None => {
                    batch.signatures.push(signature);
                    batch.signatures.len() - 1
                }
            };
            batch.events.push((event, place as u32));
        }
        postcard::to_allocvec(&batch).expect("writing to memory does not fail")
    }
}

/// What another process has told; `None` for bytes that are none.
pub(super) fn read(bytes: &[u8]) -> Option<Vec<(Event, Signature)>> {
    let Batch { signatures, events } = postcard::from_bytes(bytes).ok()?;
    let resolve = |(event, place): (Event, u32)| {
        signatures.get(place as usize).map(|signature| (event, signature.clone()))
    };
    events.into_iter().map(resolve).collect()
}

/// This process among those of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// How many ranks are of this process.
    pub local: usize,
    /// Processes directly below.
    pub below: usize,
    /// By rank: is it of this process, or of one below?
    pub covers: Vec<bool>,
    /// There is a process above.
    pub has_above: bool,
}

impl Place {
    /// The place of the process that `own` names. Of each rank, `ranks` has its process and the
    /// rank above it in the control plane's tree.
    pub fn of<Name: PartialEq>(own: &Name, ranks: &[(Name, Option<u32>)]) -> Self {
        // A process's lowest rank stands below one of another process, since ranks rise downwards.
        let lowest = |name: &Name| ranks.iter().position(|(process, _)| process == name);
        let above = |name: &Name| {
            let above = ranks[lowest(name)?].1? as usize;
            Some(&ranks.get(above)?.0)
        };
        let covered = |name: &Name| {
            // The way up visits each process once at most.
            let way = std::iter::successors(Some(name), |name| above(name));
            way.take(ranks.len()).any(|process| process == own)
        };
        let is_first = |(rank, (name, _)): &(usize, &(Name, _))| lowest(name) == Some(*rank);
        let processes = ranks.iter().enumerate().filter(is_first).map(|(_, (name, _))| name);
        Self {
            local: ranks.iter().filter(|(name, _)| name == own).count(),
            below: processes.filter(|name| above(name) == Some(own)).count(),
            covers: ranks.iter().map(|(name, _)| covered(name)).collect(),
            has_above: above(own).is_some(),
        }
    }

    /// The place of a process that has all of `ranks` ranks.
    pub fn alone(ranks: usize) -> Self {
        Self { local: ranks, below: 0, covers: vec![true; ranks], has_above: false }
    }

    /// Is the rank of this process, or of one below?
    pub fn covers(&self, rank: Rank) -> bool {
        self.covers.get(rank.index()).copied().unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::super::agreement::{Value, signature};
    use super::*;

    #[test]
    fn what_is_told_is_read_and_equal_signatures_go_once() {
        let mut outbox = Outbox::default();
        let mut told = Vec::new();
        for number in 0..1000 {
            let event = match number % 3 {
                0 => Event::Transfer { rank: 1, from: 1, to: 2 },
                _ => Event::Collective { rank: 3, number },
            };
            let signature = signature([("count", Value::Number(number % 4))]);
            assert_eq!(outbox.add(event.clone(), signature.clone()), number == 0);
            told.push((event, signature));
        }
        let bytes = outbox.take();
        assert!(bytes.len() < 8000, "{}", bytes.len());
        assert_eq!(read(&bytes).unwrap(), told);
        assert!(outbox.take().is_empty());
        for cut in 0..bytes.len() {
            assert_eq!(read(&bytes[..cut]), None);
        }
    }

    /// If this fails, calls of some process are compared with nobody's, or twice.
    #[test]
    fn every_process_but_the_first_has_one_above_and_is_covered_by_it() {
        // Nine ranks of four processes, in a tree with two ranks below each.
        let processes = ["a", "a", "b", "b", "b", "c", "d", "d", "a"];
        let above = |rank: u32| (rank > 0).then(|| (rank - 1) / 2);
        let ranks: Vec<_> = processes.into_iter().zip((0..).map(above)).collect();
        let place = |name| Place::of(&name, &ranks);
        let counts = |name| (place(name).local, place(name).below, place(name).has_above);
        assert_eq!(counts("a"), (3, 1, false));
        assert_eq!(counts("b"), (3, 2, true));
        assert_eq!((counts("c"), counts("d")), ((1, 0, true), (2, 0, true)));
        assert_eq!(place("a").covers, [true; 9]);
        let of_b = [false, false, true, true, true, true, true, true, false];
        assert_eq!(place("b").covers, of_b);
    }
}
