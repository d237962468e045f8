//! Ranks must make the same calls in the same order. The board notices where they do not, before
//! anything is launched, and names both sides' values.

use crate::error::{Error, Result};
use crate::id::Rank;
use std::collections::{HashMap, VecDeque};
use std::fmt::{Debug, Display};

/// How far one rank may run ahead of the slowest before its calls are refused: a bound for the
/// board, far above what any stream can hold.
const AHEAD_MAX: usize = 1 << 16;

/// Values that must be equal, with their names.
pub(crate) type Signature = Vec<(&'static str, Value)>;

/// One value of a [`Signature`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// A number.
    Number(u64),
    /// A word.
    Word(&'static str),
}

impl Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Word(word) => f.write_str(word),
        }
    }
}

/// Compares `theirs` with `ours` and names the first difference.
pub(crate) fn compare(
    call: &str,
    (rank, ours): (Rank, &Signature),
    (peer, theirs): (Rank, &Signature),
) -> Result<()> {
    let differs = |((name, our_value), (_, their_value)): (&(_, Value), &(_, Value))| {
        (our_value != their_value).then(|| Error::Disagreement {
            what: format!("{name} of {call}"),
            rank,
            value: our_value.to_string(),
            peer,
            peer_value: their_value.to_string(),
        })
    };
    ours.iter().zip(theirs).find_map(differs).map_or(Ok(()), Err)
}

/// What the ranks of one communicator have called.
#[derive(Debug, Default)]
pub(crate) struct Board {
    /// Collectives that not all ranks have called yet; the front is number `first`.
    collectives: VecDeque<Posted>,
    first: u64,
    /// Collectives that each rank has called.
    calls: Vec<u64>,
    /// How many ranks post here: those of this process.
    posting: usize,
    /// Sends and receives that wait for their counterpart, by (from, to).
    transfers: HashMap<(Rank, Rank), Unmatched>,
}

#[derive(Debug)]
struct Posted {
    rank: Rank,
    signature: Signature,
    calls: u32,
}

/// Messages of one direction that only one side has named so far.
#[derive(Debug, Default)]
struct Unmatched {
    by: Option<Rank>,
    signatures: VecDeque<Signature>,
}

impl Board {
    /// A board for `rank_count` ranks.
    pub fn new(rank_count: u32) -> Self {
        let calls = vec![0; rank_count as usize];
        Self { posting: calls.len(), calls, ..Self::default() }
    }

    /// Only so many of the ranks post here.
    pub fn expect(&mut self, posting: usize) {
        self.posting = posting;
    }

    /// Ranks that have called fewer collectives than others.
    pub fn behind(&self) -> Vec<Rank> {
        let most = self.calls.iter().max().copied().unwrap_or(0);
        if self.posting < self.calls.len() {
            // Ranks elsewhere are behind only as far as this board can see.
            return Vec::new();
        }
        let ranks = (0..).zip(&self.calls).filter(|&(_, &calls)| calls < most);
        ranks.map(|(rank, _)| Rank(rank)).collect()
    }

    /// `rank` makes its collective number `number`, the first one being 0.
    ///
    /// # Errors
    /// [`Error::Disagreement`] where another rank's call with this number differs.
    pub fn collective(&mut self, rank: Rank, number: u64, signature: Signature) -> Result<()> {
        self.calls[rank.index()] = number + 1;
        let index = (number - self.first) as usize;
        if index >= AHEAD_MAX {
            return Err(self.too_far(rank, number));
        }
        if index == self.collectives.len() {
            self.collectives.push_back(Posted { rank, signature, calls: 1 });
        } else {
            let posted = &mut self.collectives[index];
            let call = format!("collective {number}");
            compare(&call, (rank, &signature), (posted.rank, &posted.signature))?;
            posted.calls += 1;
        }
        while self.collectives.front().is_some_and(|posted| posted.calls as usize == self.posting) {
            self.collectives.pop_front();
            self.first += 1;
        }
        Ok(())
    }

    /// `rank` names the next message from `from` to `to`; it is one of the two.
    ///
    /// # Errors
    /// [`Error::Disagreement`] where the other side named another size or type.
    pub fn transfer(
        &mut self,
        rank: Rank,
        (from, to): (Rank, Rank),
        signature: Signature,
    ) -> Result<()> {
        let waiting = self.transfers.entry((from, to)).or_default();
        if waiting.by == Some(rank) || waiting.signatures.is_empty() {
            if waiting.signatures.len() >= AHEAD_MAX {
                return Err(self.too_far(rank, AHEAD_MAX as u64));
            }
            waiting.by = Some(rank);
            waiting.signatures.push_back(signature);
            return Ok(());
        }
        let peer = if rank == from { to } else { from };
        let theirs = waiting.signatures.pop_front().expect("checked to be non-empty");
        let call = format!("a message from {from} to {to}");
        compare(&call, (rank, &signature), (peer, &theirs))
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
    use super::*;

    fn signature(count: u64) -> Signature {
        vec![("operation", Value::Word("all-reduce")), ("count", Value::Number(count))]
    }

    #[test]
    fn equal_calls_pass_and_are_forgotten() {
        let mut board = Board::new(3);
        for number in 0..1000 {
            for rank in 0..3 {
                board.collective(Rank(rank), number, signature(number)).unwrap();
            }
        }
        assert!(board.collectives.is_empty());
    }

    #[test]
    fn a_difference_names_both_sides() {
        let mut board = Board::new(2);
        board.collective(Rank(0), 0, signature(1)).unwrap();
        let message = board.collective(Rank(1), 0, signature(2)).unwrap_err().to_string();
        for part in ["count", "rank 1 says 2", "rank 0 says 1"] {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn one_rank_may_run_ahead_but_not_without_bound() {
        let mut board = Board::new(2);
        for number in 0..AHEAD_MAX as u64 {
            board.collective(Rank(0), number, signature(4)).unwrap();
        }
        assert_eq!(board.behind(), [Rank(1)]);
        board.collective(Rank(0), AHEAD_MAX as u64, signature(4)).unwrap_err();
    }

    #[test]
    fn messages_match_in_order_whichever_side_comes_first() {
        let mut board = Board::new(2);
        let pair = (Rank(0), Rank(1));
        board.transfer(Rank(0), pair, signature(1)).unwrap();
        board.transfer(Rank(0), pair, signature(2)).unwrap();
        board.transfer(Rank(1), pair, signature(1)).unwrap();
        board.transfer(Rank(1), pair, signature(2)).unwrap();
        board.transfer(Rank(1), pair, signature(3)).unwrap();
        board.transfer(Rank(0), pair, signature(4)).unwrap_err();
    }
}
