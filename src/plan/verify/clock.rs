//! Vector clocks: what an agent knows to have happened.

/// A moment in the life of one agent. Tick 0 is before everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Epoch {
    pub(super) agent: u32,
    pub(super) tick: u32,
}

impl Epoch {
    pub(super) const BEFORE_ALL: Self = Self { agent: 0, tick: 0 };
}

/// For each agent, the last tick that is known to have happened.
#[derive(Clone, Debug)]
pub(super) struct Clock(Vec<u32>);

impl Clock {
    pub(super) fn new(agents: usize) -> Self {
        Self(vec![0; agents])
    }

    /// Everything that `other` knows is known here too.
    pub(super) fn join(&mut self, other: &Clock) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// The agent takes a step; accesses of the step carry the returned epoch.
    pub(super) fn tick(&mut self, agent: u32) -> Epoch {
        self.0[agent as usize] += 1;
        Epoch { agent, tick: self.0[agent as usize] }
    }

    /// True if the moment has happened, as far as this clock knows.
    pub(super) fn knows(&self, epoch: Epoch) -> bool {
        self.0[epoch.agent as usize] >= epoch.tick
    }
}
