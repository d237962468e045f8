//! Who is connected with whom: a tree over the ranks with a bounded number of children, rank 0 at
//! the top. A thousand ranks at the default of 32 are two hops from the top, and nobody holds more
//! than 33 connections.

use crate::id::Rank;
use std::ops::Range;

/// The shape of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    pub rank_count: u32,
    pub fan_out: u32,
}

impl Tree {
    /// The parent; `None` for the top.
    pub fn parent(self, rank: Rank) -> Option<Rank> {
        (rank.0 > 0).then(|| Rank((rank.0 - 1) / self.fan_out))
    }

    /// Whether `rank` is `above` itself, or below it at any depth.
    pub fn is_within(self, rank: Rank, above: Rank) -> bool {
        // Bounded: every parent is a smaller number.
        let mut at = rank;
        while at > above {
            match self.parent(at) {
                Some(parent) => at = parent,
                None => return false,
            }
        }
        at == above
    }

    /// The child ranks.
    pub fn children(self, rank: Rank) -> Range<u32> {
        let bound = u64::from(self.rank_count);
        let first = (u64::from(rank.0) * u64::from(self.fan_out) + 1).min(bound);
        let end = (first + u64::from(self.fan_out)).min(bound);
        first as u32..end as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_rank_but_the_top_is_a_child_of_its_parent(
            rank_count in 1u32..3000, fan_out in 1u32..64,
        ) {
            let tree = Tree { rank_count, fan_out };
            let mut children = 0;
            for rank in 0..rank_count {
                for child in tree.children(Rank(rank)) {
                    prop_assert_eq!(tree.parent(Rank(child)), Some(Rank(rank)));
                    children += 1;
                }
                prop_assert!(tree.children(Rank(rank)).len() <= fan_out as usize);
            }
            prop_assert_eq!(children, rank_count - 1);
        }
    }

    #[test]
    fn a_subtree_holds_its_own_and_no_other_rank() {
        let tree = Tree { rank_count: 40, fan_out: 3 };
        let within = |above| {
            let ranks = (0..tree.rank_count).filter(|&rank| tree.is_within(Rank(rank), above));
            ranks.collect::<Vec<_>>()
        };
        assert_eq!(within(Rank(4)), [4, 13, 14, 15]);
        assert_eq!(within(Rank(0)).len(), 40);
        let chain = Tree { rank_count: 40, fan_out: 1 };
        assert!(chain.is_within(Rank(39), Rank(38)) && !chain.is_within(Rank(38), Rank(39)));
    }

    #[test]
    fn the_largest_ranks_do_not_overflow() {
        let tree = Tree { rank_count: u32::MAX, fan_out: 32 };
        assert!(tree.children(Rank(u32::MAX - 1)).is_empty());
        assert_eq!(tree.parent(Rank(u32::MAX - 1)), Some(Rank((u32::MAX - 2) / 32)));
    }
}
