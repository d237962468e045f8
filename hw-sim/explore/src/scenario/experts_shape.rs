//! What a seed draws for runs of experts beside what it draws for all.

use std::fmt;

/// What a seed draws for these runs beside the other options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Ranks.
    pub ranks: u32,
    /// Experts of each.
    pub local_experts: u32,
    /// Ranks of a node, which reach each other; 0: all do.
    pub node_ranks: u32,
    /// Throughput mode, not low latency.
    pub is_throughput: bool,
    /// The group goes on without a rank that does not answer.
    pub goes_on: bool,
    /// A step is sent before the combine of the last one has been received.
    pub overlaps: bool,
    /// Ranks combine late at times, and engines' reads may see what is stored later.
    pub combines_late: bool,
    /// A step takes the routing of the one before.
    pub routes_again: bool,
    /// The step in which a rank's routing has a fault, counted from 1; 0 for none.
    pub faulty_step: u32,
    /// That rank.
    pub faulty_rank: u32,
    /// The routing has several faults of several kinds, not one bad index.
    pub has_many_faults: bool,
    /// Groups of the communicator, each for a batch of its own; 0 counts as 1.
    pub batches: u32,
    /// Launches of each stream that are made, where those behind them are not; 0: all.
    pub ends_after: u32,
    /// One in how many reads of a claim word sees what is new there; 0: as of any other word.
    pub seldom: u32,
    /// The launch of each stream in which they do, counted from 1; 0: all.
    pub shown_in: u32,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = if self.is_throughput { "throughput" } else { "low latency" };
        let nodes = match self.node_ranks {
            0 => "all reach each other".to_owned(),
            ranks => format!("nodes of {ranks}"),
        };
        let Self { ranks, local_experts, .. } = self;
        write!(f, ", {ranks} ranks of {local_experts} experts, {mode}, {nodes}")?;
        for (is, what) in [
            (self.goes_on, "goes on without ranks"),
            (self.overlaps, "steps overlap"),
            (self.combines_late, "combines come late"),
            (self.routes_again, "routes again"),
            (self.batches > 1, "two batches"),
            (self.faulty_step > 0 && self.has_many_faults, "faults of all kinds"),
        ] {
            if is {
                write!(f, ", {what}")?;
            }
        }
        if self.ends_after > 0 {
            write!(f, ", ends after {} launches", self.ends_after)?;
        }
        if self.seldom > 0 {
            write!(f, ", one in {} reads sees a new claim", self.seldom)?;
        }
        if self.shown_in > 0 {
            write!(f, " in launch {}", self.shown_in - 1)?;
        }
        if self.faulty_step > 0 {
            let step = self.faulty_step - 1;
            write!(f, ", the routing of rank {} in step {step} is bad", self.faulty_rank)?;
        }
        Ok(())
    }
}

impl Shape {
    /// Draws one.
    pub fn draw(random: &mut fastrand::Rng) -> Self {
        let ranks = random.u32(2..=4);
        let node_ranks = match random.u32(0..4) {
            0 | 1 => 0,
            2 => 1,
            _ if ranks == 4 => 2,
            _ => 1,
        };
        Self {
            ranks,
            local_experts: random.u32(1..=2),
            node_ranks,
            is_throughput: random.bool(),
            goes_on: random.u32(0..4) == 0,
            overlaps: random.bool(),
            combines_late: false,
            routes_again: random.u32(0..4) == 0,
            faulty_step: if random.u32(0..5) == 0 { random.u32(1..=3) } else { 0 },
            faulty_rank: random.u32(0..ranks),
            has_many_faults: false,
            batches: 1,
            ends_after: 0,
            seldom: 0,
            shown_in: 0,
        }
    }

    /// Makes it one of two batches, perhaps relayed.
    pub fn double(&mut self, random: &mut fastrand::Rng) {
        self.batches = 2;
        self.has_many_faults = random.bool();
        match random.u32(0..3) {
            0 => self.relay(),
            // Engines share a ring.
            1 => self.node_ranks = 1,
            _ => {}
        }
    }

    /// Makes it one in which rows are relayed.
    pub fn relay(&mut self) {
        (self.ranks, self.node_ranks) = (4, 2);
        (self.is_throughput, self.goes_on) = (true, false);
    }

    /// Makes it one whose engines' sources are written again before their peers answer.
    pub fn rewrite(&mut self, random: &mut fastrand::Rng) {
        if random.u32(0..3) == 0 {
            self.relay();
        } else {
            self.node_ranks = 1;
        }
        (self.overlaps, self.routes_again, self.goes_on) = (true, false, false);
    }

    /// The shape, without faults of routings that are used again: then the next step has them too.
    pub fn checked(mut self) -> Self {
        if self.routes_again {
            self.faulty_step = 0;
        }
        self
    }
}
