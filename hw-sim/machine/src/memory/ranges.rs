//! A set of byte ranges: what is free in an arena, and which of it holds touched pages.

use std::collections::BTreeMap;

/// Disjoint, non-adjacent ranges, start to length.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges {
    map: BTreeMap<u64, u64>,
}

impl Ranges {
    /// Adds a range, joining neighbours.
    pub fn insert(&mut self, start: u64, length: u64) {
        let (mut start, mut end) = (start, start + length);
        while let Some((&s, &l)) = self.map.range(..=end).next_back() {
            if s + l < start {
                break;
            }
            self.map.remove(&s);
            start = start.min(s);
            end = end.max(s + l);
        }
        if end > start {
            self.map.insert(start, end - start);
        }
    }

    /// Takes a range out; what of it is not in the set is ignored.
    pub fn remove(&mut self, start: u64, length: u64) {
        let end = start + length;
        while let Some((&s, &l)) = self.map.range(..end).next_back() {
            if s + l <= start {
                break;
            }
            self.map.remove(&s);
            if s + l > end {
                self.map.insert(end, s + l - end);
            }
            if s < start {
                self.map.insert(s, start - s);
            }
        }
    }

    /// The first place, lowest address first, where `length` bytes fit at `align`.
    pub fn find(&self, length: u64, align: u64) -> Option<u64> {
        self.map.iter().find_map(|(&start, &size)| {
            let aligned = start.next_multiple_of(align);
            (aligned + length <= start + size).then_some(aligned)
        })
    }

    /// Bytes in the set.
    pub fn total(&self) -> u64 {
        self.map.values().sum()
    }

    /// The ranges, by address.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.map.iter().map(|(&start, &length)| (start, length))
    }

    /// Empties the set.
    pub fn clear(&mut self) {
        self.map.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A set of single bytes says what the ranges must say.
    #[test]
    fn agrees_with_a_set_of_bytes() {
        let seed = 7;
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut next = |bound: u64| random.u64(..bound);
        for _ in 0..200 {
            let mut ranges = Ranges::default();
            let mut model = [false; 96];
            for _ in 0..40 {
                let (start, length, add) = (next(80), 1 + next(16), next(2) == 0);
                if add {
                    ranges.insert(start, length);
                } else {
                    ranges.remove(start, length);
                }
                model[start as usize..(start + length) as usize].fill(add);
                let mut seen = [false; 96];
                let mut last_end = None;
                for (s, l) in ranges.iter() {
                    assert!(l > 0 && last_end.is_none_or(|end| s > end), "not normal: {ranges:?}");
                    last_end = Some(s + l);
                    seen[s as usize..(s + l) as usize].fill(true);
                }
                assert_eq!(seen, model, "{ranges:?}");
                assert_eq!(ranges.total(), model.iter().filter(|set| **set).count() as u64);
            }
        }
    }

    #[test]
    fn find_honours_alignment() {
        let mut ranges = Ranges::default();
        ranges.insert(1, 7);
        ranges.insert(24, 40);
        assert_eq!(ranges.find(7, 1), Some(1));
        assert_eq!(ranges.find(8, 16), Some(32));
        assert_eq!(ranges.find(33, 16), None);
    }
}
