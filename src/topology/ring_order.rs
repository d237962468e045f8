//! The order in which a ring passes GPUs over the widest links. Communicators take it for the ranks
//! of each node; `ringdove topo` shows it.

use super::machine::{Joined, Machine, SOCKETS_MBPS};
use crate::error::{Error, Result};

/// Orders of more GPUs are not searched: there are too many.
pub const GPUS_MAX: usize = 16;

/// Bits for the number of links of one width: no ring has more than 16.
const BITS_OF_WIDTH: u32 = 5;
/// Widths that are told apart; wider ones count as the widest.
const WIDTHS_MAX: usize = 12;

/// How wide the way between two GPUs is, that nobody else disturbs: MB/s in each direction, then
/// how near they are in the PCI tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Width {
    /// MB/s.
    pub megabytes: u64,
    /// Of equally wide ways, those that cross fewer links are better: 0 across sockets, up to 3
    /// below one PCI switch or over NVLink.
    pub nearness: u8,
}

impl Width {
    /// Of a way over NVLinks, or in the PCI tree: GPUs whose links have so many MB/s.
    pub(super) fn new(joined: Joined, nvlink_megabytes: u64, pcie_megabytes: u64) -> Self {
        let (megabytes, nearness) = match joined {
            Joined::NvLink(count) => (u64::from(count).saturating_mul(nvlink_megabytes), 3),
            Joined::Sys => (pcie_megabytes.min(SOCKETS_MBPS), 0),
            Joined::Itself | Joined::Pix => (pcie_megabytes, 3),
            Joined::Pxb => (pcie_megabytes, 2),
            Joined::Phb => (pcie_megabytes, 1),
        };
        Self { megabytes, nearness }
    }
}

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
            .min_by_key(|nth| self.width(places[*nth], places[next(*nth)]));
        let Some(nth) = narrowest else {
            return Err(Error::argument("GPUs of a ring", "at least 2", gpus.len()));
        };
        let (from, to) = (places[nth], places[next(nth)]);
        Ok(Ring {
            gpus: gpus.to_vec(),
            megabytes: self.width(from, to).megabytes,
            joined: self.joined(from, to),
            narrowest: (gpus[nth], gpus[next(nth)]),
        })
    }

    /// The ring of these GPUs in the [best order](best_order). `None` for more than 16 GPUs.
    ///
    /// # Errors
    /// As [`ring`](Self::ring).
    pub fn best_ring(&self, gpus: &[u32]) -> Result<Option<Ring>> {
        let places = self.chosen(gpus)?;
        let order = best_order(places.len(), |a, b| self.width(places[a], places[b]));
        let in_order = |order: Vec<u32>| order.into_iter().map(|nth| gpus[nth as usize]).collect();
        order.map(|order| self.ring(&Vec::from_iter::<Vec<u32>>(in_order(order)))).transpose()
    }

    /// How wide the way between two devices is.
    fn width(&self, a: usize, b: usize) -> Width {
        let pcie = self.link(a).megabytes().min(self.link(b).megabytes());
        Width::new(self.joined(a, b), self.nvlink_megabytes(a), pcie)
    }
}

/// The order of `count` GPUs whose ring has the fewest of the narrowest links that some ring can do
/// without, then the fewest of the next wider ones, and so on: so its narrowest link is the widest
/// that a ring can have. Of equals, the first in the order of numbers. `None` for more than 16.
pub fn best_order(count: usize, width: impl Fn(usize, usize) -> Width) -> Option<Vec<u32>> {
    if count > GPUS_MAX {
        return None;
    }
    let pairs = || (0..count).flat_map(|a| (0..a).map(move |b| (a, b)));
    // Both directions of a way: the narrower one counts.
    let of = |(a, b): (usize, usize)| width(a, b).min(width(b, a));
    let mut widths: Vec<_> = pairs().map(of).collect();
    widths.sort_unstable();
    widths.dedup();
    if count < 4 || widths.len() < 2 {
        return Some((0..count as u32).collect());
    }
    widths.truncate(WIDTHS_MAX);
    // A link costs more than all links of a ring that are wider.
    let mut costs = vec![0u64; count * count];
    for (a, b) in pairs() {
        let wider =
            widths.len() - 1 - widths.binary_search(&of((a, b))).unwrap_or(widths.len() - 1);
        let cost = 1 << (BITS_OF_WIDTH * wider as u32);
        (costs[a * count + b], costs[b * count + a]) = (cost, cost);
    }
    Some(cheapest_way(count, &costs))
}

/// The way through all nodes and back to node 0 that costs least; of equals, the first in the order
/// of numbers. `costs` has a row for each node.
fn cheapest_way(count: usize, costs: &[u64]) -> Vec<u32> {
    let cost = |a: usize, b: usize| costs[a * count + b];
    let others = count - 1;
    // By the nodes that are left (without node 0) and the node from which they are passed: what
    // that costs, with the way back.
    let mut least = vec![u64::MAX; (1 << others) * count];
    let after = |least: &[u64], left: usize, from: usize| match left {
        0 => cost(from, 0),
        _ => least[left * count + from],
    };
    let next_of = |left: usize| (1..count).filter(move |next| left >> (next - 1) & 1 == 1);
    let through = |least: &[u64], left: usize, from: usize, next: usize| {
        cost(from, next) + after(least, left & !(1 << (next - 1)), next)
    };
    for left in 1..1 << others {
        for from in (0..count).filter(|from| *from == 0 || left >> (from - 1) & 1 == 0) {
            let best = next_of(left).map(|next| through(&least, left, from, next)).min();
            least[left * count + from] = best.unwrap_or(u64::MAX);
        }
    }
    let (mut way, mut left, mut at) = (vec![0], (1 << others) - 1, 0);
    while left != 0 {
        let wanted = after(&least, left, at);
        let next = next_of(left).find(|next| through(&least, left, at, *next) == wanted);
        at = next.unwrap_or(left.trailing_zeros() as usize + 1);
        left &= !(1 << (at - 1));
        way.push(at as u32);
    }
    way
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the links of a ring are, the narrowest first.
    fn links(order: &[u32], width: impl Fn(usize, usize) -> Width) -> Vec<Width> {
        let next = |nth: usize| order[(nth + 1) % order.len()] as usize;
        let mut links: Vec<_> =
            (0..order.len()).map(|nth| width(order[nth] as usize, next(nth))).collect();
        links.sort_unstable();
        links
    }

    /// All orders that begin with 0, in the order of numbers.
    fn all_orders(count: u32) -> Vec<Vec<u32>> {
        let mut orders = vec![vec![0]];
        for _ in 1..count {
            let longer = |order: &Vec<u32>| {
                let order = order.clone();
                let is_new = {
                    let order = order.clone();
                    move |next: &u32| !order.contains(next)
                };
                (0..count).filter(is_new).map(move |next| [&order[..], &[next]].concat())
            };
            orders = orders.iter().flat_map(longer).collect();
        }
        orders
    }

    /// Widths of up to seven GPUs, against all orders. If this fails, a ring crosses a link that it
    /// could do without.
    #[test]
    fn random_machines_agree_with_all_orders() {
        let mut random = fastrand::Rng::with_seed(5);
        let (mut moved, mut kept) = (0, 0);
        for _ in 0..100 {
            let count = random.usize(3..=7);
            let kinds = random.u64(1..=3);
            let mut widths = vec![Width { megabytes: 0, nearness: 0 }; count * count];
            for a in 0..count {
                for b in 0..a {
                    let width = Width { megabytes: random.u64(0..=kinds), nearness: 0 };
                    (widths[a * count + b], widths[b * count + a]) = (width, width);
                }
            }
            let width = |a: usize, b: usize| widths[a * count + b];
            let orders = all_orders(count as u32);
            // The first of the greatest: `max_by` would take the last one.
            let best = orders.iter().rev().max_by_key(|order| links(order, width)).unwrap();
            let found = best_order(count, width).unwrap();
            assert_eq!(links(&found, width), links(best, width), "{widths:?}");
            if count > 3 {
                assert_eq!(&found, best, "the first of equals: {widths:?}");
            }
            if found == orders[0] { kept += 1 } else { moved += 1 }
        }
        println!("seed 5: {moved} orders other than that of numbers, {kept} equal");
        assert!(moved > 20 && kept > 20);
    }

    /// If this fails, communicators of large nodes wait for the search.
    #[test]
    fn sixteen_gpus_in_two_boxes_are_ordered_at_once() {
        let width = |a: usize, b: usize| Width {
            megabytes: if a % 2 == b % 2 { 50 } else { 10 },
            nearness: 0,
        };
        let order = best_order(16, width).unwrap();
        assert_eq!(links(&order, width)[..3].iter().filter(|it| it.megabytes == 10).count(), 2);
        assert_eq!(best_order(17, width), None);
    }
}
