//! Links that blocks share as they store: rates are max-min fair, so no store can get more without
//! taking from one that has no more than it.

use super::super::ways::LinkId;
use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};

/// Shorter times are none: those of rounding. µs.
pub(super) const TIME_MIN: f64 = 1e-6;

/// Stores over the same links at the same most rate: they get the same.
#[derive(Debug)]
struct Class<'a> {
    links: &'a [LinkId],
    /// What a block stores at most. Bytes a µs.
    rate_max: f64,
    rate: f64,
    /// Bytes that a store of the class has had which was there from the beginning.
    served: f64,
    /// Stores under way: what `served` is at their ends; the first to end is on top.
    ends: BinaryHeap<Reverse<End>>,
    /// What the links' shares leave to it, while rates are looked for; none once it has its rate.
    open: Option<f64>,
}

/// The end of a store: bytes of its class, the number of the store, and its owner.
#[derive(Clone, Copy, Debug, PartialEq)]
struct End {
    served: f64,
    number: u64,
    owner: usize,
}

impl Eq for End {}

impl Ord for End {
    fn cmp(&self, other: &Self) -> Ordering {
        self.served.total_cmp(&other.served).then(self.number.cmp(&other.number))
    }
}

impl PartialOrd for End {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Class<'_> {
    /// Bytes that are left of the store that ends first.
    fn left(&self) -> f64 {
        self.ends.peek().map_or(f64::MAX, |Reverse(end)| end.served - self.served)
    }
}

/// All stores under way.
#[derive(Debug)]
pub(super) struct Shares<'a> {
    /// All classes that there were, and by their links and most rates.
    classes: Vec<Class<'a>>,
    known: HashMap<(&'a [LinkId], u64), usize>,
    /// Those with stores under way.
    active: Vec<usize>,
    now: f64,
    started: u64,
    is_changed: bool,
    /// By link: bytes a µs that are not taken, and stores without a rate.
    links: Vec<(f64, u32)>,
}

impl<'a> Shares<'a> {
    pub fn new(link_count: usize) -> Self {
        Self {
            classes: Vec::new(),
            known: HashMap::new(),
            active: Vec::new(),
            now: 0.0,
            started: 0,
            is_changed: false,
            links: vec![(0.0, 0); link_count],
        }
    }

    /// Up to this time all is accounted for.
    pub fn now(&self) -> f64 {
        self.now
    }

    /// `owner` begins to store so many bytes.
    pub fn start(
        &mut self,
        now: f64,
        owner: usize,
        links: &'a [LinkId],
        (bytes, rate_max): (u64, f64),
    ) {
        self.advance(now);
        let classes = &mut self.classes;
        let nth = *self.known.entry((links, rate_max.to_bits())).or_insert_with(|| {
            let ends = BinaryHeap::new();
            classes.push(Class { links, rate_max, rate: 0.0, served: 0.0, ends, open: None });
            classes.len() - 1
        });
        let class = &mut self.classes[nth];
        if class.ends.is_empty() {
            class.served = 0.0;
            self.active.push(nth);
        }
        self.started += 1;
        let served = class.served + bytes as f64;
        class.ends.push(Reverse(End { served, number: self.started, owner }));
        self.is_changed = true;
    }

    /// When the next store ends, if none begins before.
    pub fn next_end(&mut self, rate_of: impl Fn(LinkId) -> f64) -> Option<f64> {
        if std::mem::take(&mut self.is_changed) {
            self.share(rate_of);
        }
        let active = self.active.iter().map(|nth| &self.classes[*nth]);
        let ends = active.map(|class| class.left() / class.rate);
        ends.min_by(f64::total_cmp).map(|first| self.now + first)
    }

    /// Goes on to `now`, at which a store ends, and takes out all that do: their owners, in the
    /// order in which they began.
    pub fn end(&mut self, now: f64) -> Vec<usize> {
        self.advance(now);
        let mut ended = Vec::new();
        let classes = &mut self.classes;
        self.active.retain(|nth| {
            let class = &mut classes[*nth];
            while class.left() <= class.rate * TIME_MIN {
                ended.extend(class.ends.pop().map(|Reverse(end)| (end.number, end.owner)));
            }
            !class.ends.is_empty()
        });
        self.is_changed = true;
        ended.sort_unstable();
        ended.into_iter().map(|(_, owner)| owner).collect()
    }

    fn advance(&mut self, now: f64) {
        let time = now - self.now;
        if time > 0.0 {
            for nth in &self.active {
                let class = &mut self.classes[*nth];
                class.served += class.rate * time;
            }
            self.now = now;
        }
    }

    /// Fills links step by step: those stores get their rates first that get the least.
    fn share(&mut self, rate_of: impl Fn(LinkId) -> f64) {
        for nth in &self.active {
            let class = &mut self.classes[*nth];
            class.open = Some(0.0);
            for link in class.links {
                self.links[link.0 as usize] = (rate_of(*link), 0);
            }
        }
        for class in self.active.iter().map(|nth| &self.classes[*nth]) {
            for link in class.links {
                self.links[link.0 as usize].1 += class.ends.len() as u32;
            }
        }
        let mut left = self.active.len();
        while left > 0 {
            let share = |link: &LinkId| {
                let (left, count) = self.links[link.0 as usize];
                left.max(0.0) / f64::from(count)
            };
            let mut least = f64::MAX;
            for nth in &self.active {
                let Class { links, rate_max, open: Some(open), .. } = &mut self.classes[*nth]
                else {
                    continue;
                };
                *open = links.iter().map(share).fold(*rate_max, f64::min);
                least = least.min(*open);
            }
            // Of equals, all; and rounding makes equals differ.
            let bound = least * (1.0 + 1e-9);
            for nth in &self.active {
                let class = &mut self.classes[*nth];
                if class.open.is_none_or(|open| open > bound) {
                    continue;
                }
                (class.open, class.rate) = (None, least.max(1e-3));
                left -= 1;
                let count = class.ends.len() as u32;
                for link in class.links {
                    let (free, open) = &mut self.links[link.0 as usize];
                    (*free, *open) = (*free - least * f64::from(count), *open - count);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(flows: &[(&[LinkId], f64)], capacities: &[f64]) -> Vec<f64> {
        let mut shares = Shares::new(capacities.len());
        for (owner, (links, rate_max)) in flows.iter().enumerate() {
            shares.start(0.0, owner, links, (1000, *rate_max));
        }
        shares.next_end(|link| capacities[link.0 as usize]);
        let of = |(links, rate_max): &(&[LinkId], f64)| {
            let nth = shares.known[&(*links, rate_max.to_bits())];
            shares.classes[nth].rate
        };
        flows.iter().map(of).collect()
    }

    /// If this fails, the model gives stores more than their links carry, or less than they could.
    #[test]
    fn rates_are_max_min_fair() {
        let [a, b] = [LinkId(0), LinkId(1)];
        let seen = rates(&[(&[a], 12.0), (&[a], 12.0), (&[a, b], 12.0)], &[20.0, 4.0]);
        assert_eq!(seen, [8.0, 8.0, 4.0]);
        let seen = rates(&[(&[a], 2.0), (&[a], 12.0), (&[], 12.0)], &[20.0, 4.0]);
        assert_eq!(seen, [2.0, 12.0, 12.0]);
        let seen = rates(&[(&[a], 3.0), (&[a], 50.0), (&[a], 50.0)], &[20.0, 4.0]);
        assert_eq!(seen, [3.0, 8.5, 8.5]);
    }

    /// If this fails, stores end before their bytes are over, or never.
    #[test]
    fn what_begins_later_slows_what_is_under_way() {
        let links = [LinkId(0)];
        let mut shares = Shares::new(1);
        shares.start(0.0, 7, &links, (1000, 100.0));
        assert_eq!(shares.next_end(|_| 100.0), Some(10.0));
        shares.start(5.0, 8, &links, (1000, 100.0));
        assert_eq!(shares.next_end(|_| 100.0), Some(15.0));
        assert_eq!(shares.end(15.0), [7]);
        assert_eq!(shares.next_end(|_| 100.0), Some(20.0));
        assert_eq!(shares.end(20.0), [8]);
        assert_eq!(shares.next_end(|_| 100.0), None);
    }
}
