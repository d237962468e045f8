//! The order in which GPUs make the best ring: rings go by rank number, and ranks by the order of
//! GPUs.

use super::machine::{Joined, Machine};
use crate::error::{Error, Result};

/// Orders of more GPUs are not searched: there are too many.
const GPUS_MAX: usize = 16;

/// GPUs in the order of a ring, and the narrowest link between neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    /// The GPUs' numbers; the last one sends to the first one.
    pub gpus: Vec<u32>,
    /// MB/s of the narrowest link.
    pub megabytes: u64,
    /// How the two GPUs at this link are joined.
    pub joined: Joined,
    /// These two GPUs.
    pub narrowest: (u32, u32),
}

impl Machine {
    /// The ring of GPUs in this order.
    ///
    /// # Errors [`Error::Argument`] if there is no such GPU, one is named twice, or there are fewer
    /// than two.
    pub fn ring(&self, gpus: &[u32]) -> Result<Ring> {
        let places = self.chosen(gpus)?;
        let next = |nth: usize| (nth + 1) % places.len();
        let narrowest = (0..places.len())
            .filter(|nth| next(*nth) != *nth)
            .min_by_key(|nth| self.pair_megabytes(places[*nth], places[next(*nth)]));
        let Some(nth) = narrowest else {
            return Err(Error::argument("GPUs of a ring", "at least 2", gpus.len()));
        };
        let (from, to) = (places[nth], places[next(nth)]);
        Ok(Ring {
            gpus: gpus.to_vec(),
            megabytes: self.pair_megabytes(from, to),
            joined: self.joined(from, to),
            narrowest: (gpus[nth], gpus[next(nth)]),
        })
    }

    /// The ring of these GPUs whose narrowest link is the widest that can be: of several, the first
    /// one in the order of `gpus`. `None` for more than 16 GPUs, whose orders are too many.
    ///
    /// # Errors
    /// As [`ring`](Self::ring).
    pub fn best_ring(&self, gpus: &[u32]) -> Result<Option<Ring>> {
        let places = self.chosen(gpus)?;
        if places.len() > GPUS_MAX {
            return Ok(None);
        }
        let pair = |a: usize, b: usize| self.pair_megabytes(places[a], places[b]);
        let count = places.len();
        let mut widths: Vec<u64> =
            (0..count).flat_map(|a| (0..a).map(move |b| (a, b))).map(|(a, b)| pair(a, b)).collect();
        widths.sort_unstable();
        widths.dedup();
        // The narrowest links of all join everybody, so some width has a ring.
        let order = widths.iter().rev().find_map(|width| {
            let joined = |a: usize| {
                (0..count)
                    .filter(|b| *b != a && pair(a, *b) >= *width)
                    .fold(0u32, |s, b| s | 1 << b)
            };
            closed_way(&(0..count).map(joined).collect::<Vec<_>>())
        });
        let order = order.unwrap_or_else(|| (0..count).collect());
        self.ring(&order.into_iter().map(|place| gpus[place]).collect::<Vec<_>>()).map(Some)
    }

    /// MB/s in each direction between two GPUs that nobody else disturbs.
    fn pair_megabytes(&self, a: usize, b: usize) -> u64 {
        let pcie = self.link(a).megabytes().min(self.link(b).megabytes());
        match self.joined(a, b) {
            Joined::NvLink(count) => u64::from(count) * self.nvlink_megabytes(a),
            Joined::Sys => pcie.min(super::machine::SOCKETS_MBPS),
            Joined::Itself | Joined::Pix | Joined::Pxb | Joined::Phb => pcie,
        }
    }
}

/// A way through all nodes and back to the first one, the smallest numbers first; `neighbours` has
/// a bit for each neighbour of each node.
fn closed_way(neighbours: &[u32]) -> Option<Vec<usize>> {
    let count = neighbours.len();
    let all = u32::MAX >> (32 - count);
    // By the nodes that are left: from which of the others can they all be passed, ending beside
    // node 0?
    let mut begins = vec![0u32; 1 << count];
    begins[0] = neighbours[0];
    for left in 1..=all {
        for node in (0..count).filter(|node| left >> node & 1 == 0) {
            let next = (0..count).filter(|next| (left & neighbours[node]) >> next & 1 == 1);
            let goes_on = |next: usize| begins[(left & !(1 << next)) as usize] >> next & 1 == 1;
            if next.into_iter().any(goes_on) {
                begins[left as usize] |= 1 << node;
            }
        }
    }
    let (mut way, mut left) = (vec![0], all & !1);
    if begins[left as usize] & 1 == 0 {
        return None;
    }
    while left != 0 {
        let at = *way.last()?;
        let next = (0..count).find(|next| {
            (left & neighbours[at]) >> next & 1 == 1
                && begins[(left & !(1 << next)) as usize] >> next & 1 == 1
        })?;
        way.push(next);
        left &= !(1 << next);
    }
    Some(way)
}

#[cfg(test)]
mod tests {
    use super::closed_way;

    #[test]
    fn ways_through_all_are_found_where_there_are_any() {
        let square = [0b1010, 0b0101, 0b1010, 0b0101];
        assert_eq!(closed_way(&square), Some(vec![0, 1, 2, 3]));
        let star = [0b1110, 0b0001, 0b0001, 0b0001];
        assert_eq!(closed_way(&star), None);
        assert_eq!(closed_way(&[0b10, 0b01]), Some(vec![0, 1]));
    }

    /// All orders of up to seven nodes, by trying them.
    #[test]
    fn random_graphs_agree_with_all_orders() {
        let mut random = fastrand::Rng::with_seed(5);
        let mut found = 0;
        for _ in 0..200 {
            let count = random.usize(3..=7);
            let mut neighbours = vec![0u32; count];
            for a in 0..count {
                for b in (0..a).filter(|_| random.u8(0..10) < 6) {
                    neighbours[a] |= 1 << b;
                    neighbours[b] |= 1 << a;
                }
            }
            let joined = |a: usize, b: usize| neighbours[a] >> b & 1 == 1;
            fn all(
                way: &mut Vec<usize>,
                count: usize,
                joined: &dyn Fn(usize, usize) -> bool,
            ) -> bool {
                let at = way[way.len() - 1];
                if way.len() == count {
                    return joined(at, 0);
                }
                (0..count).any(|next| {
                    let goes = !way.contains(&next) && joined(at, next);
                    goes && {
                        way.push(next);
                        let reached = all(way, count, joined);
                        way.pop();
                        reached
                    }
                })
            }
            let way = closed_way(&neighbours);
            assert_eq!(way.is_some(), all(&mut vec![0], count, &joined), "{neighbours:?}");
            if let Some(way) = way {
                found += 1;
                let mut sorted = way.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..count).collect::<Vec<_>>());
                assert!((0..count).all(|nth| joined(way[nth], way[(nth + 1) % count])));
            }
        }
        assert!(found > 20);
    }
}
