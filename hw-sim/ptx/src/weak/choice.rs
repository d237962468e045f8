//! Where a run's choices come from: all of them, so that the source decides the run.

/// A source of choices.
pub trait Choose {
    /// One of `0..among`, where `among` is at least 1. Zero is the plain choice: the newest value,
    /// the last place, the next in turn.
    fn choose(&mut self, among: usize) -> usize;
}

/// Choices drawn from a seed.
#[derive(Clone, Debug)]
pub struct Drawn {
    random: fastrand::Rng,
    plain_percent: u8,
}

impl Drawn {
    /// From `seed`. So many choices in a hundred are the plain one without a draw among all: few
    /// make a wild memory, many let loops that poll come to an end.
    pub fn new(seed: u64, plain_percent: u8) -> Self {
        Self { random: fastrand::Rng::with_seed(seed), plain_percent }
    }
}

impl Choose for Drawn {
    fn choose(&mut self, among: usize) -> usize {
        if among < 2 || self.random.u8(..100) < self.plain_percent {
            return 0;
        }
        self.random.usize(..among)
    }
}

/// All sequences of choices, one after the other, deepest first.
///
/// A run asks for choices until it ends; [`Every::advance`] then goes to the next sequence. Runs
/// must be equal as long as their choices are.
#[derive(Clone, Debug, Default)]
pub struct Every {
    /// Taken, and among how many.
    path: Vec<(usize, usize)>,
    depth: usize,
}

impl Every {
    /// Goes to the next sequence. False when there is none.
    pub fn advance(&mut self) -> bool {
        self.path.truncate(self.depth);
        self.depth = 0;
        while let Some((taken, among)) = self.path.pop() {
            if taken + 1 < among {
                self.path.push((taken + 1, among));
                return true;
            }
        }
        false
    }
}

impl Choose for Every {
    fn choose(&mut self, among: usize) -> usize {
        if among < 2 {
            return 0;
        }
        if self.depth == self.path.len() {
            self.path.push((0, among));
        }
        let (taken, expected) = self.path[self.depth];
        debug_assert_eq!(expected, among, "equal choices led to unequal runs");
        self.depth += 1;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, outcomes are missed, or runs are repeated.
    #[test]
    fn every_sequence_comes_once() {
        let mut every = Every::default();
        let mut seen = Vec::new();
        loop {
            let first = every.choose(2);
            let second = if first == 0 { every.choose(3) } else { 9 };
            seen.push((first, second));
            if !every.advance() {
                break;
            }
        }
        assert_eq!(seen, [(0, 0), (0, 1), (0, 2), (1, 9)]);
    }
}
