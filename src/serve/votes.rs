//! Which servers are removed, one after the other. No memory, no clocks.
//!
//! Each removal is a *choice* of its own, made in *rounds* of two steps, after Ben-Or (1983):
//!
//! 1. Each member votes for one server that it suspects. Who sees more than half of all votes for
//!    one server reports that server. Who sees more than half of all votes, and that none can get
//!    so many, or that the others do not come, reports nobody.
//! 2. Where more than half report one server, it is removed, and the next choice begins. Else, when
//!    more than half have reported, the next round begins. Who has seen a report of a server votes
//!    for that one in it; all others are free to choose again.
//!
//! What a member has said in a step is final; who is behind goes on where another one is, and as
//! that one: bound as it is, with its report.
//!
//! *Agreement*: two halves of the members have one in common, which votes once, so that the reports
//! of a round name one server at most. Where more than half report it, everyone who begins the next
//! round has seen such a report: all votes there are for this server. So no two members ever see
//! different servers removed in the same choice. Who leaves says nothing more: from then on a half
//! is one of the others, and two halves have one in common still.
//!
//! *Progress*: a vote that nobody sees, of a member that died, holds up nothing, since the reports
//! decide, and not the votes. When all members that live suspect one server, among others or not,
//! and hear of one another within the time that they wait, then one round later all are free or
//! bound alike; the first choice among suspects goes round with the rounds, so that they choose
//! the same after as many rounds as there are servers. It takes more members that live than have
//! died, of those that have not left and are not removed. Without an end to the delays no rules can
//! promise it (Fischer, Lynch, Paterson 1985).

use super::ballot::{Ballot, ROUND_MAX, Servers};
use super::layout::{LEFT, OBSERVER, SERVERS_MAX};

/// What a member knows of the others, apart from clocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Poll {
    servers: usize,
    own: usize,
    /// The newest word of each member.
    ballots: Vec<Ballot>,
    /// Of each server, whom it does not reach now: a vote stays when a connection comes back. All,
    /// of one that has not said it.
    out_of_reach: Vec<Servers>,
}

/// What a member sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sight {
    /// Servers that do not answer.
    pub(super) suspects: Servers,
    /// Servers that have been seen alive since some other server accused them, or they another.
    pub(super) well: Servers,
    /// Nobody answers: this member is the one that is cut off.
    pub(super) alone: bool,
    /// Do all shards have a replica, with the servers that are removed?
    pub(super) redundant: bool,
    /// The step that has [waited](Poll::waits) for members long enough.
    pub(super) waited: Option<Step>,
}

/// A step of a round of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    place: (u32, u64),
    has_reported: bool,
}

/// What the members have said in a step.
struct Tally {
    /// For each server; behind them, for none.
    counts: [usize; SERVERS_MAX + 1],
    /// Of those who may still say something.
    missing: usize,
}

impl Tally {
    fn said(&self) -> usize {
        self.counts.iter().sum()
    }

    fn is_more_than_half(&self, count: usize) -> bool {
        2 * count > self.said() + self.missing
    }

    /// A server that was named.
    fn named(&self) -> Option<usize> {
        self.counts[..SERVERS_MAX].iter().position(|count| *count > 0)
    }

    /// The server that more than half have named.
    fn chosen(&self) -> Option<usize> {
        self.counts[..SERVERS_MAX].iter().position(|count| self.is_more_than_half(*count))
    }

    /// Have enough members said something to go on without a server that is chosen?
    fn is_enough(&self) -> bool {
        self.chosen().is_none() && self.is_more_than_half(self.said())
    }

    /// Can still a server be chosen?
    fn is_open(&self) -> bool {
        self.counts[..SERVERS_MAX].iter().any(|count| self.is_more_than_half(count + self.missing))
    }
}

impl Poll {
    pub(super) fn new(servers: usize, members: usize, own: usize) -> Self {
        let ballots = vec![Ballot::default(); members];
        Self { servers, own, ballots, out_of_reach: vec![Servers::MAX; servers] }
    }

    /// The word of a member.
    pub(super) fn word(&self, member: usize) -> u64 {
        self.ballots[member].encode()
    }

    /// Takes note of a word of `member`, perhaps an old one. What is none is not looked at.
    pub(super) fn learn(&mut self, member: usize, word: u64) {
        // A member's word about itself comes from itself alone.
        let ballot = self.ballots.get_mut(member).filter(|_| member != self.own);
        let (Some(ballot), Some(said)) = (ballot, Ballot::decode(word, self.servers)) else {
            return;
        };
        let marks = ballot.marks | said.marks;
        if said.order() > ballot.order() {
            *ballot = said;
        }
        ballot.marks = marks;
    }

    /// Takes note of the servers that `server` does not reach now.
    pub(super) fn learn_reach(&mut self, server: usize, out_of_reach: Servers) {
        self.out_of_reach.get_mut(server).into_iter().for_each(|it| *it = out_of_reach);
    }

    /// Marks this member.
    pub(super) fn mark(&mut self, marks: u64) {
        self.ballots[self.own].marks |= marks & (LEFT | OBSERVER);
    }

    /// Members with this mark.
    pub(super) fn marked(&self, mark: u64) -> u64 {
        let marked = |(_, ballot): &(usize, &Ballot)| ballot.marks & mark != 0;
        self.ballots.iter().enumerate().filter(marked).fold(0, |set, (member, _)| set | 1 << member)
    }

    /// Servers that are removed.
    pub(super) fn removed(&self) -> Servers {
        self.ballots[self.own].removed
    }

    /// Pairs of servers of which one has voted for the other one, and does not reach it.
    fn accusations(&self) -> impl Iterator<Item = (usize, usize)> {
        let removed = self.removed();
        let is_live = move |server: usize| removed >> server & 1 == 0;
        let votes = self.ballots[..self.servers].iter().enumerate();
        votes
            .filter(move |(server, ballot)| ballot.removed == removed && is_live(*server))
            .filter_map(|(server, ballot)| ballot.vote.map(|accused| (server, accused)))
            .filter(|(server, accused)| self.out_of_reach[*server] >> accused & 1 == 1)
    }

    /// Servers that are accused by another one, or that accuse one.
    pub(super) fn quarrel(&self) -> Servers {
        self.accusations().fold(0, |set, (server, accused)| set | 1 << server | 1 << accused)
    }

    /// Goes on as far as what is known permits; gives the server that this member has voted for,
    /// if it has done so now.
    pub(super) fn turn(&mut self, sight: Sight) -> Option<usize> {
        if self.ballots[self.own].has_left() {
            return None;
        }
        self.catch_up();
        let vote = self.vote(sight);
        let waited = sight.waited == Some(self.step());
        if self.ballots[self.own].report.is_none() {
            self.report(waited);
        } else {
            self.decide(waited);
        }
        vote
    }

    /// The step in which this member waits for others, though enough have said something.
    pub(super) fn waits(&self) -> Option<Step> {
        let tally = if self.step().has_reported { self.reports() } else { self.votes() };
        tally.is_enough().then_some(self.step())
    }

    fn step(&self) -> Step {
        let own = self.ballots[self.own];
        Step { place: own.place(), has_reported: own.report.is_some() }
    }

    /// Goes on where another one is: bound if that one was, else free.
    fn catch_up(&mut self) {
        let newest = self.ballots.iter().max_by_key(|ballot| ballot.place()).copied();
        let own = &mut self.ballots[self.own];
        if let Some(newest) = newest.filter(|newest| newest.place() > own.place()) {
            let vote = newest.vote.filter(|_| newest.is_bound);
            *own = Ballot { vote, report: None, marks: own.marks, ..newest };
        }
    }

    /// Casts this member's vote, if it has none and sees a reason for one.
    fn vote(&mut self, sight: Sight) -> Option<usize> {
        let own = self.ballots[self.own];
        if own.vote.is_some() || own.report.is_some() {
            return None;
        }
        let chosen = self.choose(sight)?;
        self.ballots[self.own].vote = Some(chosen);
        Some(chosen)
    }

    /// The server that this member would remove next.
    fn choose(&self, sight: Sight) -> Option<usize> {
        let (removed, round) = (self.removed(), self.ballots[self.own].round as usize);
        let live: Servers = ((1 << self.servers) - 1) & !removed;
        let own: Servers = if self.own < self.servers { 1 << self.own } else { 0 };
        if sight.alone || live.count_ones() < 2 || removed & own != 0 {
            return None;
        }
        // Who removes a second server must know that no shard had its replica there.
        if removed != 0 && !sight.redundant {
            return None;
        }
        let suspects = sight.suspects & live & !own;
        if suspects != 0 {
            let turns = (round..).map(|server| server % self.servers).take(self.servers);
            return turns.into_iter().find(|server| suspects >> server & 1 == 1);
        }
        // Servers do not reach each other, and all are well: the one with the most quarrels goes,
        // the higher one of those.
        let quarrel = self.quarrel() & live;
        if quarrel.count_ones() < 2 || quarrel & sight.well != quarrel & !own {
            return None;
        }
        let mut quarrels = [0_u64; SERVERS_MAX];
        for (server, accused) in self.accusations() {
            quarrels[server] |= 1 << accused;
            quarrels[accused] |= 1 << server;
        }
        let worst = (0..self.servers).max_by_key(|it| (quarrels[*it].count_ones(), *it));
        worst.filter(|server| own != 1 << server)
    }

    /// Counts what members have said in this member's round. Who is removed does not count, and who
    /// has left without a word neither: it never will say one.
    fn tally(&self, said: impl Fn(&Ballot) -> Option<Option<usize>>) -> Tally {
        let own = self.ballots[self.own];
        let mut tally = Tally { counts: [0; SERVERS_MAX + 1], missing: 0 };
        for (member, ballot) in self.ballots.iter().enumerate() {
            if member < self.servers && own.removed >> member & 1 == 1 {
                continue;
            }
            let is_here = ballot.place() == own.place();
            match said(ballot).filter(|_| is_here) {
                Some(named) => tally.counts[named.unwrap_or(SERVERS_MAX)] += 1,
                None if ballot.has_left() && ballot.place() <= own.place() => {}
                None => tally.missing += 1,
            }
        }
        tally
    }

    fn votes(&self) -> Tally {
        self.tally(|ballot| ballot.vote.map(Some))
    }

    fn reports(&self) -> Tally {
        self.tally(|ballot| ballot.report)
    }

    /// Ends the first step of a round.
    fn report(&mut self, waited: bool) {
        let (votes, reports) = (self.votes(), self.reports());
        let report = if let Some(server) = votes.chosen().or(reports.named()) {
            Some(Some(server))
        } else if reports.said() > 0 || votes.is_enough() && (waited || !votes.is_open()) {
            Some(None)
        } else {
            None
        };
        self.ballots[self.own].report = report;
    }

    /// Ends the second step of a round.
    fn decide(&mut self, waited: bool) {
        let reports = self.reports();
        let own = &mut self.ballots[self.own];
        let fresh = Ballot { removed: own.removed, marks: own.marks, ..Ballot::default() };
        if let Some(server) = reports.chosen() {
            *own = Ballot { removed: own.removed | 1 << server, ..fresh };
        } else if reports.is_enough() && (waited || !reports.is_open()) && own.round < ROUND_MAX {
            let vote = reports.named();
            *own = Ballot { round: own.round + 1, vote, is_bound: vote.is_some(), ..fresh };
        }
    }
}

#[cfg(test)]
mod tests;
