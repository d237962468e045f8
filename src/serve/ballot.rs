//! The word that a member shows of where it stands in the votes. One word, so that nobody sees half
//! of it.
//!
//! | bits | what |
//! |---|---|
//! | 0 to 31 | servers that are removed |
//! | 32 to 48 | the round in which the next one is chosen |
//! | 49 to 54 | this member's vote in that round: 1 + a server; 0: none yet |
//! | 55 to 60 | what it reports of the votes: 1 + a server; 63: of no server; 0: nothing yet |
//! | 61 | its vote is bound by reports of the round before |
//! | 62, 63 | [`OBSERVER`], [`LEFT`] |

use super::layout::{LEFT, OBSERVER};

/// Sets of servers are bits of a word.
pub(super) type Servers = u64;

const VOTE: u32 = 49;
const REPORT: u32 = 55;
const BOUND: u64 = 1 << 61;
const NOBODY: u64 = 63;
/// The last round of a choice: bits 32 to 48.
pub(super) const ROUND_MAX: u64 = (1 << 17) - 1;

/// Where a member stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ballot {
    pub(super) removed: Servers,
    pub(super) round: u64,
    pub(super) vote: Option<usize>,
    /// Of a server, or of none.
    pub(super) report: Option<Option<usize>>,
    pub(super) is_bound: bool,
    /// [`LEFT`], [`OBSERVER`].
    pub(super) marks: u64,
}

impl Ballot {
    pub(super) fn encode(&self) -> u64 {
        let vote = self.vote.map_or(0, |server| 1 + server as u64);
        let report = |report: Option<usize>| report.map_or(NOBODY, |server| 1 + server as u64);
        let bound = if self.is_bound { BOUND } else { 0 };
        let report = self.report.map_or(0, report);
        self.removed | self.round << 32 | vote << VOTE | report << REPORT | bound | self.marks
    }

    /// None where this is no word of a job with so many servers.
    pub(super) fn decode(word: u64, servers: usize) -> Option<Self> {
        let server = |code: u64| {
            let server = code.checked_sub(1).map(|server| server as usize);
            server.is_none_or(|it| it < servers).then_some(server)
        };
        let report = match word >> REPORT & 63 {
            NOBODY => Some(None),
            code => server(code)?.map(Some),
        };
        let ballot = Self {
            removed: word & u64::from(u32::MAX),
            round: word >> 32 & ROUND_MAX,
            vote: server(word >> VOTE & 63)?,
            report,
            is_bound: word & BOUND != 0,
            marks: word & (LEFT | OBSERVER),
        };
        // One server is always left, and who is bound has voted.
        let is_whole = ballot.removed < (1 << servers) - 1;
        (is_whole && (!ballot.is_bound || ballot.vote.is_some())).then_some(ballot)
    }

    pub(super) fn has_left(&self) -> bool {
        self.marks & LEFT != 0
    }

    /// A choice, and its round: nobody goes back.
    pub(super) fn place(&self) -> (u32, u64) {
        (self.removed.count_ones(), self.round)
    }

    /// What a member says later is not before what it has said.
    pub(super) fn order(&self) -> (u32, u64, bool, bool) {
        let (choice, round) = self.place();
        (choice, round, self.report.is_some(), self.vote.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// If this fails, members read what nobody has said.
        #[test]
        fn a_word_is_read_as_it_was_written(word: u64, servers in 1..33_usize) {
            let all = (1_u64 << servers) - 1;
            let word = word & !u64::from(u32::MAX) | word & (all >> 1);
            if let Some(ballot) = Ballot::decode(word, servers) {
                prop_assert_eq!(ballot.encode(), word);
                prop_assert!(ballot.removed & !all == 0 && ballot.removed.count_ones() < 32);
                let named = ballot.vote.into_iter().chain(ballot.report.flatten());
                prop_assert!(named.into_iter().all(|server| server < servers));
            }
        }

        #[test]
        fn every_place_fits_into_a_word(
            servers in 2..33_usize,
            removed: u32,
            round in 0..=ROUND_MAX,
            vote in 0..32_usize,
            report in prop::option::of(prop::option::of(0..32_usize)),
            bits in 0..8_u64,
        ) {
            let report = report.map(|report| report.map(|server| server % servers));
            let all = (1_u64 << servers) - 1;
            let ballot = Ballot {
                removed: u64::from(removed) & (all >> 1),
                round,
                vote: Some(vote % servers),
                report,
                is_bound: bits & 4 != 0,
                marks: bits << 62,
            };
            prop_assert_eq!(Ballot::decode(ballot.encode(), servers), Some(ballot));
        }
    }

    #[test]
    fn words_of_no_such_job_are_refused() {
        // Of two servers: both removed; one that there is not; a vote for it; bound to nothing.
        for word in [0b11, 0b100, 3 << VOTE, 3 << REPORT, BOUND] {
            assert_eq!(Ballot::decode(word, 2), None, "{word:#x}");
        }
    }
}
