//! Vector clocks: what an agent knows to have happened.

use super::scope::Scope;

/// A moment in the life of one agent. Tick 0 is before everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Epoch {
    pub(super) agent: u32,
    pub(super) tick: u32,
}

impl Epoch {
    pub(super) const BEFORE_ALL: Self = Self { agent: 0, tick: 0 };
}

/// For each agent of a scope, the last tick that is known to have happened. Of others, none is.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    /// Agents before the launch, which have the first numbers.
    ranks: usize,
    /// The number of the agent whose ticks follow theirs.
    first: usize,
    ticks: Vec<u32>,
}

impl Clock {
    pub(super) fn new(scope: &Scope) -> Self {
        let ranks = scope.ranks as usize;
        let ticks = vec![0; ranks + scope.others.len()];
        Self { ranks, first: scope.others.start as usize, ticks }
    }

    /// Everything that `other` knows is known here too. This clock counts all that `other` does.
    pub(super) fn join(&mut self, other: &Clock) {
        let (before, others) = self.ticks.split_at_mut(self.ranks);
        let (their_before, their_others) = other.ticks.split_at(other.ranks);
        let others = &mut others[other.first - self.first..][..their_others.len()];
        for (mine, theirs) in before.iter_mut().zip(their_before) {
            *mine = (*mine).max(*theirs);
        }
        for (mine, theirs) in others.iter_mut().zip(their_others) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// The agent, which is counted here, takes a step; accesses of the step carry the returned
    /// epoch.
    pub(super) fn tick(&mut self, agent: u32) -> Epoch {
        let place = self.place(agent).expect("an agent counts its own steps");
        self.ticks[place] += 1;
        Epoch { agent, tick: self.ticks[place] }
    }

    /// True if the moment has happened, as far as this clock knows.
    pub(super) fn knows(&self, epoch: Epoch) -> bool {
        let known = self.place(epoch.agent).and_then(|place| self.ticks.get(place));
        known.copied().unwrap_or(0) >= epoch.tick
    }

    fn place(&self, agent: u32) -> Option<usize> {
        let agent = agent as usize;
        match agent < self.ranks {
            true => Some(agent),
            false => Some(self.ranks + agent.checked_sub(self.first)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, a race between blocks that no lane joins is not seen.
    #[test]
    fn of_agents_out_of_scope_a_clock_knows_nothing() {
        let scope = |others| Scope { ranks: 2, others };
        let mut all = Clock::new(&scope(2..8));
        let (mut low, mut high) = (Clock::new(&scope(2..4)), Clock::new(&scope(4..8)));
        low.tick(0);
        high.tick(1);
        let (early, late) = (low.tick(3), high.tick(7));
        assert!(low.knows(early) && high.knows(late));
        assert!(!low.knows(late) && !high.knows(early));
        assert!(low.knows(Epoch { agent: 7, tick: 0 }), "which is before everything");
        for (clock, known) in [(&low, [true, false]), (&high, [true, true])] {
            all.join(clock);
            assert_eq!([early, late].map(|epoch| all.knows(epoch)), known);
        }
        for agent in [0, 1] {
            assert!(all.knows(Epoch { agent, tick: 1 }));
            assert!(!all.knows(Epoch { agent, tick: 2 }));
        }
    }
}
