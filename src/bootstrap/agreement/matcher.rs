//! Ranks must make the same calls in the same order. The matcher finds where they do not, before
//! anything is launched, and names both sides' values.

use super::position::ProcessTreePosition;
use super::record::{CallRecord, Outbox};
use super::signature::{NamedValue, Signature, compare};
use crate::error::{Error, Result};
use crate::id::Rank;
use std::collections::{HashMap, VecDeque};

/// How far one rank may run ahead of the slowest before its calls are refused: a bound for the
/// matcher, far above what any stream can hold.
const AHEAD_MAX: usize = 1 << 16;

/// Signatures whose memory is kept: as many as calls that wait for other ranks in most programs.
const SPARE_MAX: usize = 64;

/// What the ranks of one communicator have called: those of this process, and, for each process
/// that is its child, whoever called first there.
#[derive(Debug)]
pub(crate) struct CallMatcher {
    /// Collectives that not all who post here have called yet; the front is number `first`.
    collectives: VecDeque<Posted>,
    first: u64,
    /// Collectives that each rank has called, as far as it is known here.
    calls: Vec<u64>,
    position: ProcessTreePosition,
    /// Records that the parent process has not received yet.
    outbox: Outbox,
    /// The outbox has become non-empty, and nobody has been asked to send it.
    must_schedule: bool,
    /// Sends and receives that wait for their counterpart, by (from, to).
    transfers: HashMap<Pair, Unmatched>,
    /// Signatures that are done with: the next ones take their memory.
    spare: Vec<Signature>,
}

#[derive(Debug)]
struct Posted {
    rank: Rank,
    signature: Signature,
    calls: u32,
    /// A rank of this process has called it.
    is_own: bool,
}

/// Whom a message is from, and to whom it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pair {
    pub from: Rank,
    pub to: Rank,
}

/// Messages of one direction that only one side has named so far.
#[derive(Debug, Default)]
struct Unmatched {
    by: Option<Rank>,
    signatures: VecDeque<Signature>,
}

impl CallMatcher {
    /// A matcher for `rank_count` ranks.
    pub fn new(rank_count: u32) -> Self {
        let calls = vec![0; rank_count as usize];
        Self {
            collectives: VecDeque::new(),
            first: 0,
            position: ProcessTreePosition::alone(calls.len()),
            calls,
            outbox: Outbox::default(),
            must_schedule: false,
            transfers: HashMap::new(),
            spare: Vec::new(),
        }
    }

    /// Sets the position of this process among others; without it, all ranks are of this process.
    pub fn set_position(&mut self, position: ProcessTreePosition) {
        self.position = position;
    }

    /// Ranks that have called fewer collectives than others.
    pub fn behind(&self) -> Vec<Rank> {
        let most = self.calls.iter().max().copied().unwrap_or(0);
        if self.position.local < self.calls.len() {
            // Of ranks elsewhere nothing is known, or only what was sent some time ago.
            return Vec::new();
        }
        let ranks = (0..).zip(&self.calls).filter(|&(_, &calls)| calls < most);
        ranks.map(|(rank, _)| Rank(rank)).collect()
    }

    /// `rank`, of this process, makes its collective number `number`, the first one being 0.
    ///
    /// # Errors
    /// [`Error::Disagreement`] where another rank's call with this number differs.
    pub fn collective(&mut self, rank: Rank, number: u64, signature: &[NamedValue]) -> Result<()> {
        self.post(rank, number, signature, true)
    }

    fn post(
        &mut self,
        rank: Rank,
        number: u64,
        signature: &[NamedValue],
        is_own: bool,
    ) -> Result<()> {
        let unexpected =
            || Error::argument("number of a collective", "the next one of its rank", number);
        *self.calls.get_mut(rank.index()).ok_or_else(unexpected)? = number + 1;
        let index = number.checked_sub(self.first).ok_or_else(unexpected)? as usize;
        if index >= AHEAD_MAX {
            return Err(self.too_far(rank, number));
        }
        if index > self.collectives.len() {
            return Err(unexpected());
        }
        if index == self.collectives.len() {
            let signature = self.kept(signature);
            let posted = Posted { rank, signature, calls: 0, is_own: false };
            self.collectives.push_back(posted);
        } else {
            let posted = &self.collectives[index];
            let call = format_args!("collective {number}");
            compare(&call, rank, signature, posted.rank, &posted.signature)?;
        }
        let posted = &mut self.collectives[index];
        posted.calls += 1;
        // The calls of this process's ranks are equal, so the parent process is sent the first one.
        if is_own && !std::mem::replace(&mut posted.is_own, true) && self.position.has_parent {
            let record = CallRecord::Collective { rank: rank.0, number };
            self.must_schedule |= self.outbox.add(record, &posted.signature);
        }
        let posting = self.position.local + self.position.children;
        while self.collectives.front().is_some_and(|posted| posted.calls as usize == posting) {
            let posted = self.collectives.pop_front().expect("it was looked at");
            self.give_back(posted.signature);
            self.first += 1;
        }
        Ok(())
    }

    /// A call that a child process has sent.
    ///
    /// # Errors
    /// [`Error::Disagreement`] as for calls of this process; [`Error::Argument`] for one that no
    /// process can have sent.
    pub fn receive(&mut self, record: CallRecord, signature: Signature) -> Result<()> {
        match record {
            CallRecord::Collective { rank, number } => {
                self.post(Rank(rank), number, &signature, false)
            }
            CallRecord::Transfer { rank, from, to } => {
                let pair = Pair { from: Rank(from), to: Rank(to) };
                self.transfer(Rank(rank), pair, &signature)
            }
        }
    }

    /// A signature to keep. In a program that repeats its calls this allocates nothing.
    fn kept(&mut self, terms: &[NamedValue]) -> Signature {
        let mut signature = self.spare.pop().unwrap_or_default();
        signature.extend_from_slice(terms);
        signature
    }

    /// Takes the memory of a signature that is done with.
    fn give_back(&mut self, mut signature: Signature) {
        if self.spare.len() < SPARE_MAX {
            signature.clear();
            self.spare.push(signature);
        }
    }

    /// True once after the outbox has become non-empty: the caller then schedules sending it.
    pub fn take_must_schedule(&mut self) -> bool {
        std::mem::take(&mut self.must_schedule)
    }

    /// Encodes the records for the parent process, which are then no longer in the outbox.
    pub fn take_outbox(&mut self) -> Vec<u8> {
        self.outbox.take()
    }

    /// `rank` names the next message of a pair; it is one of the two.
    ///
    /// # Errors
    /// [`Error::Disagreement`] where the other side named another size or type.
    pub fn transfer(&mut self, rank: Rank, pair: Pair, signature: &[NamedValue]) -> Result<()> {
        let Pair { from, to } = pair;
        if !(self.position.covers(from) && self.position.covers(to)) {
            let record = CallRecord::Transfer { rank: rank.0, from: from.0, to: to.0 };
            self.must_schedule |= self.outbox.add(record, signature);
            return Ok(());
        }
        let waiting = self.transfers.entry(pair).or_default();
        if waiting.by == Some(rank) || waiting.signatures.is_empty() {
            if waiting.signatures.len() >= AHEAD_MAX {
                return Err(self.too_far(rank, AHEAD_MAX as u64));
            }
            waiting.by = Some(rank);
            let mut kept = self.spare.pop().unwrap_or_default();
            kept.extend_from_slice(signature);
            waiting.signatures.push_back(kept);
            return Ok(());
        }
        let peer = if rank == from { to } else { from };
        let theirs = waiting.signatures.pop_front().expect("checked to be non-empty");
        let call = format_args!("a message from {from} to {to}");
        compare(&call, rank, signature, peer, &theirs)?;
        self.give_back(theirs);
        Ok(())
    }

    fn too_far(&self, rank: Rank, number: u64) -> Error {
        Error::argument(
            "order of calls",
            format!("a call that is at most {AHEAD_MAX} ahead of the slowest rank"),
            format!("call {number} of {rank} while a rank is still at {}", self.first),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::signature::{Value, signature as of};
    use super::*;

    fn signature(count: u64) -> [NamedValue; 2] {
        let terms = [("operation", Value::word("all-reduce")), ("count", Value::Number(count))];
        of(terms)
    }

    #[test]
    fn equal_calls_pass_and_are_forgotten() {
        let mut matcher = CallMatcher::new(3);
        for number in 0..1000 {
            for rank in 0..3 {
                matcher.collective(Rank(rank), number, &signature(number)).unwrap();
            }
        }
        assert!(matcher.collectives.is_empty());
    }

    #[test]
    fn a_difference_names_both_sides() {
        let mut matcher = CallMatcher::new(2);
        matcher.collective(Rank(0), 0, &signature(1)).unwrap();
        let message = matcher.collective(Rank(1), 0, &signature(2)).unwrap_err().to_string();
        for part in ["count", "rank 1 says 2", "rank 0 says 1"] {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn one_rank_may_run_ahead_but_not_without_bound() {
        let mut matcher = CallMatcher::new(2);
        for number in 0..AHEAD_MAX as u64 {
            matcher.collective(Rank(0), number, &signature(4)).unwrap();
        }
        assert_eq!(matcher.behind(), [Rank(1)]);
        matcher.collective(Rank(0), AHEAD_MAX as u64, &signature(4)).unwrap_err();
    }

    /// Two processes of two ranks each, the second a child of the first: what the matchers send
    /// each other has the same effect as one matcher would have.
    #[test]
    fn calls_of_a_child_process_are_compared_too() {
        let ranks = [('a', None), ('a', Some(0)), ('b', Some(0)), ('b', Some(0))];
        let mut matchers = ['a', 'b'].map(|name| {
            let mut matcher = CallMatcher::new(4);
            matcher.set_position(ProcessTreePosition::of(&name, &ranks));
            matcher
        });
        let pass = |matchers: &mut [CallMatcher; 2]| -> Result<()> {
            let received = crate::bootstrap::agreement::record::decode(&matchers[1].take_outbox())
                .unwrap_or_default();
            received
                .into_iter()
                .try_for_each(|(record, signature)| matchers[0].receive(record, signature))
        };
        for number in 0..100 {
            for rank in 0..4 {
                let matcher = &mut matchers[rank as usize / 2];
                matcher.collective(Rank(rank), number, &signature(number)).unwrap();
            }
            assert_eq!(matchers[1].take_must_schedule(), number % 10 == 0, "once for each batch");
            if number % 10 == 9 {
                assert_eq!(matchers[0].collectives.len(), 10);
                pass(&mut matchers).unwrap();
            }
        }
        assert!(
            matchers.iter().all(|matcher| matcher.collectives.is_empty() && !matcher.must_schedule)
        );
        let pair = Pair { from: Rank(3), to: Rank(1) };
        matchers[0].transfer(Rank(1), pair, &signature(5)).unwrap();
        matchers[1].transfer(Rank(3), pair, &signature(5)).unwrap();
        pass(&mut matchers).unwrap();
        matchers[1].transfer(Rank(3), pair, &signature(6)).unwrap();
        matchers[0].transfer(Rank(1), pair, &signature(5)).unwrap();
        let message = pass(&mut matchers).unwrap_err().to_string();
        assert!(message.contains("rank 3 says 6, rank 1 says 5"), "{message}");
        matchers[1].collective(Rank(2), 100, &signature(1)).unwrap();
        pass(&mut matchers).unwrap();
        let message = matchers[0].collective(Rank(0), 100, &signature(2)).unwrap_err().to_string();
        assert!(message.contains("rank 0 says 2, rank 2 says 1"), "{message}");
    }

    #[test]
    fn messages_match_in_order_whichever_side_comes_first() {
        let mut matcher = CallMatcher::new(2);
        let pair = Pair { from: Rank(0), to: Rank(1) };
        matcher.transfer(Rank(0), pair, &signature(1)).unwrap();
        matcher.transfer(Rank(0), pair, &signature(2)).unwrap();
        matcher.transfer(Rank(1), pair, &signature(1)).unwrap();
        matcher.transfer(Rank(1), pair, &signature(2)).unwrap();
        matcher.transfer(Rank(1), pair, &signature(3)).unwrap();
        matcher.transfer(Rank(0), pair, &signature(4)).unwrap_err();
    }
}
