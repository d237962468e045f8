//! One call of all ranks, as one rank of the tree sees it: contributions go up as they come in, so
//! that the top always knows who is missing; the whole comes down once. No sockets here.

use crate::bootstrap::frame::MESSAGE_BYTES_MAX;
use crate::bootstrap::message::{Call, Up};
use crate::error::BootstrapError;
use crate::id::Rank;
use std::collections::HashSet;

/// The most bytes of all contributions together: they travel down in one message, with a length
/// word for each and some bytes in front.
pub(crate) const GATHER_BYTES_MAX: usize = MESSAGE_BYTES_MAX / 2;

/// A contribution.
pub(super) type Part = (Rank, Vec<u8>);

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Collect {
    sequence: u64,
    /// What is called, and a rank that calls it; `None` while nobody has.
    call: Option<(Call, Rank)>,
    /// Not passed on yet.
    pending: Vec<Part>,
    /// At the top: who has contributed what.
    arrived: Vec<Option<Vec<u8>>>,
    arrived_count: u32,
    bytes: usize,
    /// Ranks whose contributions were here, passed on or not: this one, and its descendants.
    contributors: HashSet<Rank>,
}

impl Collect {
    pub fn new() -> Self {
        Self {
            sequence: 0,
            call: None,
            pending: Vec::new(),
            arrived: Vec::new(),
            arrived_count: 0,
            bytes: 0,
            contributors: HashSet::new(),
        }
    }

    /// Number of the call in progress, or of the next.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// What is called, once somebody has.
    pub fn call(&self) -> Option<Call> {
        self.call.map(|(call, _)| call)
    }

    /// Whether this rank's own contribution, or a neighbour's, is there.
    pub fn has(&self, rank: Rank) -> bool {
        self.contributors.contains(&rank)
    }

    /// Takes in contributions for call number `sequence`, as `by` names it.
    pub fn add(
        &mut self,
        sequence: u64,
        call: Call,
        by: Rank,
        parts: Vec<Part>,
    ) -> Result<(), BootstrapError> {
        if sequence != self.sequence {
            return Err(BootstrapError::Protocol {
                peer: by.to_string(),
                expected: format!("contributions to call {}", self.sequence),
                seen: format!("some to call {sequence}"),
            });
        }
        let (known, first) = *self.call.get_or_insert((call, by));
        if known != call {
            return Err(BootstrapError::Disagreement {
                what: format!("control call {sequence}"),
                rank: by,
                value: call.to_string(),
                peer: first,
                peer_value: known.to_string(),
            });
        }
        for (rank, bytes) in parts {
            if !self.contributors.insert(rank) {
                return Err(BootstrapError::Protocol {
                    peer: by.to_string(),
                    expected: "one contribution of each rank".into(),
                    seen: format!("two of {rank}"),
                });
            }
            self.bytes += bytes.len();
            self.pending.push((rank, bytes));
        }
        if self.bytes > GATHER_BYTES_MAX {
            return Err(BootstrapError::TooLarge {
                call: call.to_string(),
                bytes: self.bytes as u64,
                bytes_max: GATHER_BYTES_MAX as u64,
            });
        }
        Ok(())
    }

    /// What is to be passed to the parent, if there is anything.
    pub fn take_up(&mut self) -> Option<(Up, Vec<Vec<u8>>)> {
        let (call, by) = self.call?;
        if self.pending.is_empty() {
            return None;
        }
        let parts = self.pending.iter().map(|(rank, bytes)| (*rank, bytes.len() as u32)).collect();
        let bytes = self.pending.drain(..).map(|(_, bytes)| bytes).collect();
        Some((Up { sequence: self.sequence, call, by, parts }, bytes))
    }

    /// At the top: report who has come. The whole, in order of rank, once nobody is missing.
    pub fn take_whole(&mut self, rank_count: u32) -> Result<Option<Vec<Vec<u8>>>, BootstrapError> {
        self.arrived.resize_with(rank_count as usize, || None);
        for (rank, bytes) in self.pending.drain(..) {
            match self.arrived.get_mut(rank.index()) {
                Some(place @ None) => *place = Some(bytes),
                other => {
                    let seen = if other.is_none() { "of a rank out of range" } else { "twice" };
                    return Err(BootstrapError::Protocol {
                        peer: rank.to_string(),
                        expected: "one contribution of each rank".into(),
                        seen: seen.into(),
                    });
                }
            }
            self.arrived_count += 1;
        }
        if self.arrived_count < rank_count {
            return Ok(None);
        }
        Ok(Some(self.arrived.drain(..).flatten().collect()))
    }

    /// At the top: who has not called yet.
    pub fn missing(&self, rank_count: u32) -> Vec<Rank> {
        let here = |rank: &Rank| self.arrived.get(rank.index()).is_some_and(Option::is_some);
        (0..rank_count).map(Rank).filter(|rank| !here(rank)).collect()
    }

    /// The call is over; the next one may begin.
    pub fn advance(&mut self) {
        *self = Self { sequence: self.sequence + 1, ..Self::new() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(rank: u32) -> Part {
        (Rank(rank), vec![rank as u8; rank as usize])
    }

    #[test]
    fn the_top_puts_contributions_in_order_and_knows_who_is_missing() {
        let mut collect = Collect::new();
        collect.add(0, Call::AllGather, Rank(2), vec![part(2), part(0)]).unwrap();
        assert_eq!(collect.take_whole(4).unwrap(), None);
        assert_eq!(collect.missing(4), [Rank(1), Rank(3)]);
        collect.add(0, Call::AllGather, Rank(1), vec![part(3), part(1)]).unwrap();
        let whole = collect.take_whole(4).unwrap().unwrap();
        assert_eq!(whole, [vec![], vec![1], vec![2, 2], vec![3, 3, 3]]);
    }

    #[test]
    fn different_calls_are_told_with_both_names() {
        let mut collect = Collect::new();
        collect.add(0, Call::Barrier, Rank(1), vec![part(1)]).unwrap();
        let error = collect.add(0, Call::AllGather, Rank(4), vec![part(4)]).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("rank 4 says all_gather, rank 1 says barrier"), "{message}");
    }

    #[test]
    fn a_contribution_of_another_call_or_a_second_one_is_refused() {
        let mut collect = Collect::new();
        collect.add(1, Call::Barrier, Rank(0), vec![]).unwrap_err();
        collect.add(0, Call::Barrier, Rank(0), vec![part(0), part(0)]).unwrap_err();
        let mut collect = Collect::new();
        collect.add(0, Call::Barrier, Rank(1), vec![part(1)]).unwrap();
        collect.take_up().unwrap();
        collect.add(0, Call::Barrier, Rank(1), vec![part(1)]).unwrap_err();
        let mut collect = Collect::new();
        collect.add(0, Call::Barrier, Rank(0), vec![part(3)]).unwrap();
        collect.take_whole(3).unwrap_err();
    }

    #[test]
    fn what_went_up_does_not_go_up_again() {
        let mut collect = Collect::new();
        assert!(collect.take_up().is_none());
        collect.add(0, Call::Barrier, Rank(5), vec![part(5)]).unwrap();
        let (up, bytes) = collect.take_up().unwrap();
        assert_eq!((up.parts, bytes.len()), (vec![(Rank(5), 5)], 1));
        assert!(collect.take_up().is_none());
        collect.advance();
        assert_eq!((collect.sequence(), collect.call()), (1, None));
    }
}
