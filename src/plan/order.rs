//! The order in which rings and chains pass the ranks of a node.
//!
//! Who makes an order knows the links of the machine (`topology/ring_order`); a plan knows the
//! order alone. A program of such an algorithm is written for *places* on the ring: that of a rank
//! is the program of its place, with the ranks of its lanes in place of their places. What has a
//! part for each rank keeps it at the rank's own number, so results lie as without an order.

use super::{Collective, CollectiveRequest};

/// The most ranks of a node whose order is kept.
pub const ORDERED_RANKS_MAX: usize = 16;

/// An order of the ranks of a node, other than that of their numbers; the same on all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RingOrder {
    count: u8,
    /// By place.
    ranks: [u8; ORDERED_RANKS_MAX],
    /// By rank.
    places: [u8; ORDERED_RANKS_MAX],
}

impl RingOrder {
    /// The order in which a ring passes ranks 0, 1, ... of a node, each once. `None` for what is no
    /// such list of up to 16, and for the order of numbers, which needs none.
    pub fn new(ranks: &[u32]) -> Option<Self> {
        if ranks.len() > ORDERED_RANKS_MAX || (0..).zip(ranks).all(|(place, rank)| place == *rank) {
            return None;
        }
        let none = [u8::MAX; ORDERED_RANKS_MAX];
        let mut order = Self { count: ranks.len() as u8, ranks: none, places: none };
        for (place, &rank) in (0..).zip(ranks) {
            let known = order.places[..ranks.len()].get_mut(rank as usize)?;
            if *known != u8::MAX {
                return None;
            }
            *known = place;
            order.ranks[usize::from(place)] = rank as u8;
        }
        Some(order)
    }

    /// Ranks of a node.
    pub fn rank_count(&self) -> u32 {
        self.count.into()
    }

    /// Which rank of all has this place, counted over all nodes.
    pub fn rank_at(&self, place: u32) -> u32 {
        let first = place / self.rank_count() * self.rank_count();
        first + u32::from(self.ranks[(place - first) as usize])
    }

    /// The place of a rank, counted over all nodes.
    pub fn place_of(&self, rank: u32) -> u32 {
        let first = rank / self.rank_count() * self.rank_count();
        first + u32::from(self.places[(rank - first) as usize])
    }

    /// The ranks of a node in this order.
    pub fn ranks(&self) -> impl Iterator<Item = u32> {
        self.ranks[..usize::from(self.count)].iter().map(|rank| u32::from(*rank))
    }

    /// The request whose root is a place.
    pub(super) fn request(&self, request: &CollectiveRequest) -> CollectiveRequest {
        let collective = match request.collective {
            Collective::Broadcast { root } => Collective::Broadcast { root: self.place_of(root) },
            Collective::Reduce { root } => Collective::Reduce { root: self.place_of(root) },
            other => other,
        };
        CollectiveRequest { collective, ..*request }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, two ranks have one place, or a rank looks for its neighbour elsewhere than
    /// the neighbour is.
    #[test]
    fn ranks_and_places_of_all_nodes_belong_together() {
        let order = RingOrder::new(&[0, 3, 1, 2]).unwrap();
        assert_eq!((order.rank_at(1), order.place_of(3)), (3, 1));
        assert_eq!((order.rank_at(5), order.place_of(7)), (7, 5));
        assert!((0..12).all(|rank| order.rank_at(order.place_of(rank)) == rank));
        for none in [&[0, 1, 2][..], &[0, 2, 2], &[0, 1, 3], &[], &[1; 17], &[u32::MAX, 0]] {
            assert_eq!(RingOrder::new(none), None, "{none:?}");
        }
    }
}
