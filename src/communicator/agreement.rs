//! Ranks must make the same calls in the same order. The board notices where they do not, before
//! anything is launched, and names both sides' values.

use super::gossip::{Event, Outbox, Place};
use crate::error::{Error, Result};
use crate::id::Rank;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::fmt::{Debug, Display};

/// How far one rank may run ahead of the slowest before its calls are refused: a bound for the
/// board, far above what any stream can hold.
const AHEAD_MAX: usize = 1 << 16;

/// Values that must be equal, with their names.
pub(crate) type Signature = Vec<(Cow<'static, str>, Value)>;

/// One value of a [`Signature`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Value {
    /// A number.
    Number(u64),
    /// A word.
    Word(Cow<'static, str>),
}

impl Value {
    /// A word.
    pub const fn word(word: &'static str) -> Self {
        Self::Word(Cow::Borrowed(word))
    }
}

/// A signature of these terms.
pub(crate) fn signature<const COUNT: usize>(terms: [(&'static str, Value); COUNT]) -> Signature {
    terms.map(|(name, value)| (Cow::Borrowed(name), value)).into()
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
    call: &dyn Display,
    (rank, ours): (Rank, &Signature),
    (peer, theirs): (Rank, &Signature),
) -> Result<()> {
    let differs = |((name, our_value), (_, their_value)): (&(Cow<str>, Value), &(_, Value))| {
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

/// What the ranks of one communicator have called: those of this process, and, for each process
/// directly below it, whoever called first there.
#[derive(Debug)]
pub(crate) struct Board {
    /// Collectives that not all who post here have called yet; the front is number `first`.
    collectives: VecDeque<Posted>,
    first: u64,
    /// Collectives that each rank has called, as far as it is known here.
    calls: Vec<u64>,
    place: Place,
    /// What the process above has not heard yet.
    outbox: Outbox,
    /// The process above must be told of something soon.
    has_news: bool,
    /// Sends and receives that wait for their counterpart, by (from, to).
    transfers: HashMap<(Rank, Rank), Unmatched>,
}

#[derive(Debug)]
struct Posted {
    rank: Rank,
    signature: Signature,
    calls: u32,
    /// A rank of this process has called it.
    is_own: bool,
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
        Self {
            collectives: VecDeque::new(),
            first: 0,
            place: Place::alone(calls.len()),
            calls,
            outbox: Outbox::default(),
            has_news: false,
            transfers: HashMap::new(),
        }
    }

    /// Where this process stands among others.
    pub fn settle(&mut self, place: Place) {
        self.place = place;
    }

    /// Ranks that have called fewer collectives than others.
    pub fn behind(&self) -> Vec<Rank> {
        let most = self.calls.iter().max().copied().unwrap_or(0);
        if self.place.local < self.calls.len() {
            // Of ranks elsewhere nothing is known, or only what was told some time ago.
            return Vec::new();
        }
        let ranks = (0..).zip(&self.calls).filter(|&(_, &calls)| calls < most);
        ranks.map(|(rank, _)| Rank(rank)).collect()
    }

    /// `rank`, of this process, makes its collective number `number`, the first one being 0.
    ///
    /// # Errors
    /// [`Error::Disagreement`] where another rank's call with this number differs.
    pub fn collective(&mut self, rank: Rank, number: u64, signature: Signature) -> Result<()> {
        self.post(rank, number, signature, true)
    }

    fn post(&mut self, rank: Rank, number: u64, signature: Signature, is_own: bool) -> Result<()> {
        let strange = || Error::argument("collective that is told", "the next one", number);
        *self.calls.get_mut(rank.index()).ok_or_else(strange)? = number + 1;
        let index = number.checked_sub(self.first).ok_or_else(strange)? as usize;
        if index >= AHEAD_MAX {
            return Err(self.too_far(rank, number));
        }
        if index > self.collectives.len() {
            return Err(strange());
        }
        if index == self.collectives.len() {
            let posted = Posted { rank, signature, calls: 0, is_own: false };
            self.collectives.push_back(posted);
        } else {
            let posted = &self.collectives[index];
            let call = format_args!("collective {number}");
            compare(&call, (rank, &signature), (posted.rank, &posted.signature))?;
        }
        let posted = &mut self.collectives[index];
        posted.calls += 1;
        // The own ranks' calls are equal, so the process above hears of the first one.
        if is_own && !std::mem::replace(&mut posted.is_own, true) && self.place.has_above {
            let event = Event::Collective { rank: rank.0, number };
            self.has_news |= self.outbox.add(event, posted.signature.clone());
        }
        let posting = self.place.local + self.place.below;
        while self.collectives.front().is_some_and(|posted| posted.calls as usize == posting) {
            self.collectives.pop_front();
            self.first += 1;
        }
        Ok(())
    }

    /// A process below tells of a call.
    ///
    /// # Errors
    /// [`Error::Disagreement`] as for calls of this process; [`Error::Argument`] for one that no
    /// process can have told.
    pub fn heard(&mut self, event: Event, signature: Signature) -> Result<()> {
        match event {
            Event::Collective { rank, number } => self.post(Rank(rank), number, signature, false),
            Event::Transfer { rank, from, to } => {
                self.transfer(Rank(rank), (Rank(from), Rank(to)), signature)
            }
        }
    }

    /// True if the process above must be told within a while, and was not going to be.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    /// What the process above has not heard yet.
    pub fn tell(&mut self) -> Vec<u8> {
        self.outbox.take()
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
        if !(self.place.covers(from) && self.place.covers(to)) {
            let event = Event::Transfer { rank: rank.0, from: from.0, to: to.0 };
            self.has_news |= self.outbox.add(event, signature);
            return Ok(());
        }
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
        let call = format_args!("a message from {from} to {to}");
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
        let terms = [("operation", Value::word("all-reduce")), ("count", Value::Number(count))];
        super::signature(terms)
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

    /// Two processes of two ranks each, the second below the first: what the boards tell each
    /// other has the same effect as one board would have.
    #[test]
    fn calls_of_a_process_below_are_compared_too() {
        let ranks = [('a', None), ('a', Some(0)), ('b', Some(0)), ('b', Some(0))];
        let mut boards = ['a', 'b'].map(|name| {
            let mut board = Board::new(4);
            board.settle(Place::of(&name, &ranks));
            board
        });
        let pass = |boards: &mut [Board; 2]| -> Result<()> {
            let told = crate::communicator::gossip::read(&boards[1].tell()).unwrap_or_default();
            told.into_iter().try_for_each(|(event, signature)| boards[0].heard(event, signature))
        };
        for number in 0..100 {
            for rank in 0..4 {
                let board = &mut boards[rank as usize / 2];
                board.collective(Rank(rank), number, signature(number)).unwrap();
            }
            assert_eq!(boards[1].take_news(), number % 10 == 0, "once for each batch");
            if number % 10 == 9 {
                assert_eq!(boards[0].collectives.len(), 10);
                pass(&mut boards).unwrap();
            }
        }
        assert!(boards.iter().all(|board| board.collectives.is_empty() && !board.has_news));
        let pair = (Rank(3), Rank(1));
        boards[0].transfer(Rank(1), pair, signature(5)).unwrap();
        boards[1].transfer(Rank(3), pair, signature(5)).unwrap();
        pass(&mut boards).unwrap();
        boards[1].transfer(Rank(3), pair, signature(6)).unwrap();
        boards[0].transfer(Rank(1), pair, signature(5)).unwrap();
        let message = pass(&mut boards).unwrap_err().to_string();
        assert!(message.contains("rank 3 says 6, rank 1 says 5"), "{message}");
        boards[1].collective(Rank(2), 100, signature(1)).unwrap();
        pass(&mut boards).unwrap();
        let message = boards[0].collective(Rank(0), 100, signature(2)).unwrap_err().to_string();
        assert!(message.contains("rank 0 says 2, rank 2 says 1"), "{message}");
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
