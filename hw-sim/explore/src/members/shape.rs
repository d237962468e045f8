//! What a seed draws of a run of members.

use std::fmt;

use super::gpus::Shape as GpuShape;
use super::strike::Strike;

/// What is drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Processes, each with a rank of the world.
    pub ranks: u32,
    /// Children of a rank in the tree, at most.
    pub fan_out: u32,
    /// Parts into which the world is split; 0: it is not.
    pub parts: u32,
    /// Calls of each job before it is split or dropped.
    pub calls: u32,
    /// Some leave the world long after others.
    pub stays: bool,
    /// What goes wrong.
    pub strikes: Vec<Strike>,
    /// Calls are collectives on GPUs.
    pub gpus: Option<GpuShape>,
}

impl Default for Shape {
    fn default() -> Self {
        let strikes = Vec::new();
        Self { ranks: 2, fan_out: 2, parts: 0, calls: 1, stays: false, strikes, gpus: None }
    }
}

impl Shape {
    /// Draws one; `fails`: with something that goes wrong.
    pub fn draw(random: &mut fastrand::Rng, fails: bool) -> Self {
        let ranks = random.u32(1..=9);
        let parts = [0, 0, 2, 3][random.usize(..4)].min(ranks);
        let mut shape = Self {
            ranks,
            fan_out: random.u32(1..=4),
            parts,
            calls: random.u32(1..=3),
            stays: false,
            strikes: Vec::new(),
            gpus: None,
        };
        if fails {
            shape.strikes.push(Strike::draw(random, ranks));
        }
        shape
    }

    /// Draws one whose processes leave long after one another, or of which one makes no call.
    pub fn draw_with_absences(random: &mut fastrand::Rng) -> Self {
        let mut shape = Self::draw(random, false);
        shape.ranks = shape.ranks.max(2);
        match random.bool() {
            true => shape.stays = true,
            // Whoever is at the top of the tree cannot see that its own call expires.
            false => {
                let rank = if random.bool() { 0 } else { random.u32(..shape.ranks) };
                (shape.parts, shape.strikes) = (0, vec![Strike::Absent { rank }]);
            }
        }
        shape
    }

    /// Draws one of few processes, each with a GPU.
    pub fn draw_with_gpus(random: &mut fastrand::Rng, fails: bool) -> Self {
        let mut shape = Self::draw(random, fails);
        let ranks = random.u32(1..=4);
        (shape.ranks, shape.parts) = (ranks, shape.parts.min(ranks).min(2));
        shape.calls = random.u32(1..=2);
        shape.gpus = Some(GpuShape::draw(random));
        shape.strikes.iter_mut().for_each(|strike| strike.strike_one_of(ranks));
        shape
    }

    /// Has the run what this strikes?
    pub fn can_have(&self, strike: Strike) -> bool {
        let has_connections = self.gpus.as_ref().is_some_and(|gpus| gpus.connects);
        let has_others = self.ranks > 1;
        (has_others || !strike.needs_others()) && (has_connections || !strike.is_of_connections())
    }

    /// This goes wrong, too, at its own time.
    pub fn strike_with(&mut self, strike: Strike) {
        if let Some(gpus) = self.gpus.as_mut().filter(|_| self.strikes.is_empty()) {
            gpus.strikes_at = None;
        }
        self.strikes.push(strike);
    }

    /// The same, of ranks that reach each other by adapters.
    pub fn draw_with_connections(random: &mut fastrand::Rng, fails: bool) -> Self {
        let mut shape = Self::draw_with_gpus(random, fails);
        shape.ranks = shape.ranks.max(2);
        if let Some(gpus) = &mut shape.gpus {
            gpus.connect();
        }
        if fails && random.u32(..4) > 0 {
            shape.strikes = vec![Strike::draw_of_connections(random, shape.ranks)];
            // Connections are made early.
            let turn = shape.gpus.as_mut().and_then(|gpus| gpus.strikes_at.as_mut());
            if let (Some(turn), 0) = (turn, random.u32(..2)) {
                *turn = 0;
            }
        }
        shape
    }
}

impl Shape {
    /// The same, with an adapter that loses messages, for a while or for good, or delays them.
    pub fn draw_with_losses(random: &mut fastrand::Rng) -> Self {
        let mut shape = Self::draw_with_connections(random, false);
        shape.strikes.push(Strike::draw_of_messages(random, shape.ranks));
        shape
    }

    /// Draws one of any kind in which two or three things go wrong.
    pub fn draw_with_several(random: &mut fastrand::Rng) -> Self {
        let mut shape = match random.u32(..4) {
            0 => Self::draw(random, true),
            1 => Self::draw_with_gpus(random, true),
            _ => Self::draw_with_connections(random, true),
        };
        let ranks = shape.ranks;
        let connects = shape.gpus.as_ref().is_some_and(|gpus| gpus.connects);
        for _ in 0..random.u32(1..=2) {
            let strike = match random.u32(..4) {
                0 if connects => Strike::draw_of_messages(random, ranks),
                1 if connects => Strike::draw_of_connections(random, ranks),
                _ => Strike::draw(random, ranks),
            };
            shape.strikes.push(strike);
        }
        shape
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ranks, fan_out, parts, calls, stays, strikes, gpus } = self;
        write!(
            f,
            "{ranks} processes, trees of {fan_out} children, {parts} parts, {calls} calls of a job"
        )?;
        if *stays {
            write!(f, ", some stay long")?;
        }
        gpus.as_ref().map_or(Ok(()), |gpus| write!(f, "{gpus}"))?;
        strikes.iter().try_for_each(|strike| write!(f, "; {strike}"))
    }
}
