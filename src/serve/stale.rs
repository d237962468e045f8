//! What of a buffer is older than the newest version: what has to be copied before it can become
//! one. No memory.

use std::ops::Range;

/// Ranges that are kept apart; more than these become one.
const RANGES_MAX: usize = 16;

/// Parts of a buffer, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stale {
    /// Everything, with what the optimiser keeps.
    all: bool,
    ranges: Vec<Range<u64>>,
}

impl Stale {
    pub(super) fn add_all(&mut self) {
        self.all = true;
        self.ranges.clear();
    }

    /// Adds a part of the parameters, and what is in the same words.
    pub(super) fn add(&mut self, range: Range<u64>) {
        if self.all {
            return;
        }
        let mut range = range.start & !7..range.end.next_multiple_of(8);
        let apart = |other: &Range<u64>| other.end < range.start || range.end < other.start;
        // Many small writes that follow one another are one.
        let (rest, met): (Vec<_>, Vec<_>) = self.ranges.drain(..).partition(apart);
        self.ranges = rest;
        let take_in = |range: &mut Range<u64>, other: &Range<u64>| {
            *range = range.start.min(other.start)..range.end.max(other.end);
        };
        met.iter().for_each(|other| take_in(&mut range, other));
        if self.ranges.len() == RANGES_MAX {
            self.ranges.drain(..).for_each(|other| take_in(&mut range, &other));
        }
        self.ranges.push(range);
    }

    pub(super) fn join(&mut self, other: &Self) {
        if other.all {
            self.add_all();
        }
        other.ranges.iter().cloned().for_each(|range| self.add(range));
    }

    /// What to copy, of a buffer of so many bytes. The parts begin and end at words.
    pub(super) fn pieces(&self, buffer_bytes: u64) -> Vec<Range<u64>> {
        match self.all {
            true => std::iter::once(0..buffer_bytes).collect(),
            false => self.ranges.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// If this fails, a version lacks what was written, or a small write copies all.
        #[test]
        fn what_was_added_is_copied_and_little_else(
            added in prop::collection::vec((0..900_u64, 1..20_u64), 0..40),
        ) {
            let mut stale = Stale::default();
            for (start, length) in &added {
                stale.add(*start..start + length);
            }
            let pieces = stale.pieces(1024);
            prop_assert!(pieces.len() <= RANGES_MAX);
            for (index, piece) in pieces.iter().enumerate() {
                prop_assert!(piece.start % 8 == 0 && piece.end % 8 == 0 && piece.end <= 1024);
                let is_apart = |it: &Range<u64>| it.end <= piece.start || piece.end <= it.start;
                prop_assert!(pieces[index + 1..].iter().all(is_apart));
            }
            for (start, length) in &added {
                let end = start + length;
                let holds = |piece: &Range<u64>| piece.start <= *start && end <= piece.end;
                prop_assert!(pieces.iter().any(holds));
            }
            if added.len() <= RANGES_MAX {
                let copied: u64 = pieces.iter().map(|piece| piece.end - piece.start).sum();
                let most: u64 = added.iter().map(|(_, length)| length + 14).sum();
                prop_assert!(copied <= most);
            }
            let mut all = stale.clone();
            all.add_all();
            all.add(3..5);
            prop_assert_eq!(all.pieces(1024), vec![0..1024]);
            let mut joined = Stale::default();
            joined.join(&stale);
            prop_assert_eq!(joined, stale);
        }
    }
}
