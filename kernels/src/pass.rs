//! How many copies and sums of one range the executor carries in one pass over memory
//! (`cuda/move.cuh`): for those that model what it takes.

/// The most sources of a pass, and the most destinations.
pub const FUSED_MAX: u32 = 4;

/// The sources and destinations of a pass, to which one op after the other is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedPass {
    sources: u32,
    destinations: u32,
}

impl SharedPass {
    /// That of a reduction, or a copy, alone.
    pub const fn of(is_reduce: bool) -> Self {
        Self { sources: 1 + is_reduce as u32, destinations: 1 }
    }

    /// Takes the next op, a reduction or a copy, if the pass may have it.
    pub const fn take(&mut self, is_reduce: bool) -> bool {
        let is_late = is_reduce && (self.sources == 1 || self.destinations != 1);
        let count = if is_reduce { &mut self.sources } else { &mut self.destinations };
        if is_late || *count == FUSED_MAX {
            return false;
        }
        *count += 1;
        true
    }

    /// What it reads.
    pub const fn sources(self) -> u32 {
        self.sources
    }

    /// How many of the destinations it writes, of those that it was given: the executor has no code
    /// for all numbers. The others have passes of their own.
    pub const fn written(self) -> u32 {
        match self {
            Self { sources: 1, destinations } => destinations,
            Self { sources, destinations } if destinations < sources => 1,
            Self { sources, .. } => sources,
        }
    }

    /// How many destinations wait for a pass of their own.
    pub const fn left_out(self) -> u32 {
        self.destinations - self.written()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, models count passes that the executor does not make.
    #[test]
    fn passes_are_those_of_the_executor() {
        let of = |ops: &[bool]| {
            let mut pass = SharedPass::of(ops[0]);
            let taken = 1 + ops[1..].iter().take_while(|is_reduce| pass.take(**is_reduce)).count();
            (taken - pass.left_out() as usize, pass.sources(), pass.written())
        };
        let (add, copy) = (true, false);
        assert_eq!(of(&[copy]), (1, 1, 1));
        assert_eq!(of(&[copy, copy, copy, copy, copy]), (4, 1, 4));
        assert_eq!(of(&[copy, add]), (1, 1, 1));
        assert_eq!(of(&[add, copy, copy]), (2, 2, 2));
        assert_eq!(of(&[add, add, copy]), (2, 3, 1));
        assert_eq!(of(&[add, add, copy, copy]), (4, 3, 3));
        assert_eq!(of(&[add, copy, add]), (2, 2, 2));
        assert_eq!(of(&[add, add, add, add]), (3, 4, 1));
    }
}
