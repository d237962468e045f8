//! Which servers are removed: a member's votes, and what follows from those of all. No memory, no
//! clocks.

use super::layout::{LEFT, OBSERVER};

/// Sets of servers are bits of a word.
pub(super) type Servers = u64;

/// What a member knows of the others, apart from clocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Poll {
    servers: usize,
    own: usize,
    /// Votes of each member, with what it says of itself. Bits are never taken back.
    votes: Vec<u64>,
}

/// What a member sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sight {
    /// Servers that do not answer.
    pub(super) suspects: Servers,
    /// Servers that have been seen alive since some other server accused them, or they another.
    pub(super) well: Servers,
    /// Do all shards have a replica, with the servers that are removed?
    pub(super) redundant: bool,
}

fn only_votes(word: u64) -> Servers {
    word & !(LEFT | OBSERVER)
}

impl Poll {
    pub(super) fn new(servers: usize, members: usize, own: usize) -> Self {
        Self { servers, own, votes: vec![0; members] }
    }

    pub(super) fn votes(&self, member: usize) -> u64 {
        self.votes[member]
    }

    /// Takes note of votes of `member`. What is no server's bit is not looked at.
    pub(super) fn learn(&mut self, member: usize, word: u64) {
        let known = ((1 << self.servers) - 1) | LEFT | OBSERVER;
        // A member's word about itself comes from itself alone.
        if let Some(votes) = self.votes.get_mut(member).filter(|_| member != self.own) {
            *votes |= word & known;
        }
    }

    /// Marks this member.
    pub(super) fn mark(&mut self, bits: u64) {
        self.votes[self.own] |= bits & (LEFT | OBSERVER);
    }

    /// Members with this mark.
    pub(super) fn marked(&self, mark: u64) -> u64 {
        let marked = |(_, word): &(usize, &u64)| **word & mark != 0;
        self.votes.iter().enumerate().filter(marked).fold(0, |set, (member, _)| set | 1 << member)
    }

    /// Servers that more than half of the members have voted out. Who has left without any vote
    /// does not count: it never will vote. (Who has left with one counts: it may be a part of
    /// another majority, and two of them must have a member in common.)
    pub(super) fn removed(&self) -> Servers {
        let is_silent = |word: &&u64| **word & LEFT != 0 && only_votes(**word) == 0;
        let silent = self.votes.iter().filter(is_silent).count();
        let is_removed = |server: &usize| {
            let yes = |word: &&u64| **word >> server & 1 == 1;
            let count = self.votes.iter().filter(yes).count();
            2 * count > self.votes.len() - silent
        };
        (0..self.servers).filter(is_removed).fold(0, |set, server| set | 1 << server)
    }

    /// Servers that are accused by another server, which is not removed, or that accuse one.
    pub(super) fn quarrel(&self) -> Servers {
        let removed = self.removed();
        (0..self.servers).filter(|server| removed >> server & 1 == 0).fold(0, |set, server| {
            match only_votes(self.votes[server]) & !removed {
                0 => set,
                accused => set | accused | 1 << server,
            }
        })
    }

    /// Casts this member's next vote, if it has one to cast; gives the server.
    pub(super) fn vote(&mut self, sight: Sight) -> Option<usize> {
        let removed = self.removed();
        let all = (1 << self.servers) - 1;
        let live: Servers = all & !removed;
        let word = self.votes[self.own];
        let undecided = only_votes(word) & !removed;
        let own: Servers = if self.own < self.servers { 1 << self.own } else { 0 };
        let first = removed == 0;
        if word & LEFT != 0 || undecided != 0 || live.count_ones() < 2 || removed & own != 0 {
            return None;
        }
        // Who removes a second server must know that no shard had its replica there.
        if !first && !sight.redundant {
            return None;
        }
        let others = live & !own;
        let suspects = sight.suspects & others;
        let chosen = if suspects != 0 {
            // Who reaches nobody is itself the one that is cut off, unless there is only one other.
            let cut_off = suspects == others && (others.count_ones() > 1 || own == 0);
            (!cut_off).then(|| suspects.trailing_zeros())?
        } else {
            // Two servers do not reach each other, and both are well: the higher one goes.
            let quarrel = self.quarrel() & live;
            let both = quarrel.count_ones() >= 2 && quarrel & sight.well == quarrel & !own;
            both.then(|| 63 - quarrel.leading_zeros()).filter(|server| own != 1 << server)?
        };
        self.votes[self.own] |= 1 << chosen;
        Some(chosen as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn polls(servers: usize, members: usize) -> Vec<Poll> {
        (0..members).map(|own| Poll::new(servers, members, own)).collect()
    }

    /// Everyone of `who` hears of everyone of `who`.
    fn talk(polls: &mut [Poll], who: &[usize]) {
        for from in who {
            let word = polls[*from].votes(*from);
            who.iter().for_each(|to| polls[*to].learn(*from, word));
        }
    }

    #[test]
    fn a_server_that_dies_is_removed_by_those_that_are_left() {
        let mut polls = polls(2, 6);
        let left = [1, 2, 3, 4, 5];
        let sight = Sight { suspects: 1, ..Sight::default() };
        for (count, member) in (1..).zip(left) {
            // The fifth knows already.
            assert_eq!(polls[member].vote(sight), (count < 5).then_some(0));
            assert_eq!(polls[member].vote(sight), None, "one vote each");
            talk(&mut polls, &left);
            assert_eq!(polls[1].removed(), u64::from(count > 3), "{count} of 6");
        }
        // The last server stays, whatever is seen of it.
        let sight = Sight { suspects: 2, redundant: true, ..Sight::default() };
        assert_eq!(polls[2].vote(sight), None);
    }

    #[test]
    fn servers_that_lose_sight_of_one_another_keep_the_lower() {
        let mut polls = polls(2, 4);
        assert_eq!(polls[1].vote(Sight { suspects: 1, ..Sight::default() }), Some(0));
        talk(&mut polls, &[1, 2, 3]);
        assert_eq!(polls[2].quarrel(), 0b11);
        // Not before both have been seen well since.
        assert_eq!(polls[2].vote(Sight { well: 0b10, ..Sight::default() }), None);
        assert_eq!(polls[2].vote(Sight { well: 0b11, ..Sight::default() }), Some(1));
        assert_eq!(polls[3].vote(Sight { well: 0b11, ..Sight::default() }), Some(1));
        assert_eq!(polls[0].vote(Sight { suspects: 2, ..Sight::default() }), Some(1));
        talk(&mut polls, &[0, 1, 2, 3]);
        assert!(polls.iter().all(|poll| poll.removed() == 0b10));
    }

    #[test]
    fn who_is_cut_off_votes_nobody_out() {
        let mut polls = polls(3, 5);
        assert_eq!(polls[4].vote(Sight { suspects: 0b111, ..Sight::default() }), None);
        assert_eq!(polls[0].vote(Sight { suspects: 0b110, ..Sight::default() }), None);
        assert_eq!(polls[0].vote(Sight { suspects: 0b100, ..Sight::default() }), Some(2));
    }

    proptest! {
        /// Members see anything, hear anything of what was said, and leave at any time. If this
        /// fails, two servers that hold one shard are both removed, or each believes that it goes
        /// on alone: acknowledged gradients are lost.
        #[test]
        fn of_the_two_that_hold_a_shard_one_at_most_is_removed(
            servers in 2..5_usize,
            workers in 1..5_usize,
            steps in prop::collection::vec(
                (0..9_usize, 0..9_usize, any::<[u8; 2]>(), 0..16_u8),
                1..200,
            ),
        ) {
            let members = servers + workers;
            let mut polls = polls(servers, members);
            for (who, other, [suspects, well], what) in steps {
                let (who, other) = (who % members, other % members);
                match what {
                    0 | 1 => polls[who].mark(LEFT),
                    2..8 => {
                        // The truth, or an older one: who has left votes no more.
                        let word = polls[other].votes(other);
                        let old = word & u64::from(suspects);
                        polls[who].learn(other, if well & 1 == 0 { word } else { old });
                    }
                    _ => {
                        let (suspects, well) = (u64::from(suspects), u64::from(well));
                        polls[who].vote(Sight { suspects, well, redundant: false });
                    }
                }
                // What anybody believes, taken together: without a replica anew, one at most.
                let removed = polls.iter().fold(0, |set, poll| set | poll.removed());
                prop_assert!(removed.count_ones() <= 1, "{removed:b} {polls:?}");
            }
        }
    }
}
