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
    /// Bytes that a store of the class has had which was there from the beginning, at this time.
    served: (f64, f64),
    /// Stores under way: what was served at their ends; the first to end is on top.
    ends: BinaryHeap<Reverse<End>>,
    /// When the first of them ends at this rate.
    until: f64,
    /// It has no rate yet, while rates are looked for.
    is_open: bool,
    is_changed: bool,
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
        self.ends.peek().map_or(f64::MAX, |Reverse(end)| end.served - self.served.0)
    }

    fn advance(&mut self, now: f64) {
        let (served, since) = self.served;
        self.served = (served + self.rate * (now - since), now);
    }

    /// From now on its stores have this rate.
    fn settle(&mut self, now: f64, rate: f64) {
        self.rate = rate.max(1e-3);
        self.until = now + self.left().max(0.0) / self.rate;
    }
}

/// A link, while rates are looked for.
#[derive(Clone, Debug, Default)]
struct Link {
    /// Classes with stores over it.
    classes: Vec<usize>,
    /// Bytes a µs that are not taken.
    free: f64,
    /// Stores without a rate.
    open: u32,
    /// It is one of those whose stores get new rates.
    is_open: bool,
}

/// All stores under way. Where one begins or ends, rates change on its links, and on those that
/// stores join to them; all others keep theirs.
#[derive(Debug)]
pub(super) struct Shares<'a> {
    /// All classes that there were, and by their links and most rates.
    classes: Vec<Class<'a>>,
    known: HashMap<(&'a [LinkId], u64), usize>,
    /// Those with stores under way.
    active: Vec<usize>,
    now: f64,
    started: u64,
    /// Classes with stores that began or ended since rates were looked for.
    changed: Vec<usize>,
    links: Vec<Link>,
    /// While rates are looked for: classes and links without, and classes that get theirs next.
    open: Vec<usize>,
    open_links: Vec<usize>,
    full: Vec<usize>,
}

impl<'a> Shares<'a> {
    pub fn new(link_count: usize) -> Self {
        Self {
            classes: Vec::new(),
            known: HashMap::new(),
            active: Vec::new(),
            now: 0.0,
            started: 0,
            changed: Vec::new(),
            links: vec![Link::default(); link_count],
            open: Vec::new(),
            open_links: Vec::new(),
            full: Vec::new(),
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
        self.now = self.now.max(now);
        let classes = &mut self.classes;
        let nth = *self.known.entry((links, rate_max.to_bits())).or_insert_with(|| {
            let (served, until) = ((0.0, 0.0), f64::MAX);
            let (ends, is_open, is_changed) = (BinaryHeap::new(), false, false);
            let class =
                Class { links, rate_max, rate: 0.0, served, ends, until, is_open, is_changed };
            classes.push(class);
            classes.len() - 1
        });
        let class = &mut self.classes[nth];
        if class.ends.is_empty() {
            class.served = (0.0, self.now);
            self.active.push(nth);
            for link in links {
                self.links[link.0 as usize].classes.push(nth);
            }
        }
        class.advance(self.now);
        self.started += 1;
        let served = class.served.0 + bytes as f64;
        class.ends.push(Reverse(End { served, number: self.started, owner }));
        if !std::mem::replace(&mut class.is_changed, true) {
            self.changed.push(nth);
        }
    }

    /// When the next store ends, if none begins before.
    pub fn next_end(&mut self, rate_of: impl Fn(LinkId) -> f64) -> Option<f64> {
        if !self.changed.is_empty() {
            self.share(rate_of);
        }
        self.active.iter().map(|nth| self.classes[*nth].until).min_by(f64::total_cmp)
    }

    /// Goes on to `now`, at which a store ends, and takes out all that do: their owners, in the
    /// order in which they began.
    pub fn end(&mut self, now: f64) -> Vec<usize> {
        self.now = self.now.max(now);
        let now = self.now;
        let mut ended = Vec::new();
        let Self { classes, active, changed, links, .. } = self;
        active.retain(|nth| {
            let class = &mut classes[*nth];
            if class.until > now + TIME_MIN {
                return true;
            }
            class.advance(now);
            // One at least, however times were rounded.
            while let Some(Reverse(end)) = class.ends.pop() {
                ended.push((end.number, end.owner));
                if class.left() > class.rate * TIME_MIN {
                    break;
                }
            }
            if !std::mem::replace(&mut class.is_changed, true) {
                changed.push(*nth);
            }
            if class.ends.is_empty() {
                for link in class.links {
                    links[link.0 as usize].classes.retain(|other| other != nth);
                }
            }
            !class.ends.is_empty()
        });
        ended.sort_unstable();
        ended.into_iter().map(|(_, owner)| owner).collect()
    }

    /// Opens the classes that changed, and those that share links with them or with one another.
    fn open(&mut self, rate_of: impl Fn(LinkId) -> f64) {
        let Self { classes, links, changed, open, open_links, .. } = self;
        open.clear();
        open_links.clear();
        while let Some(nth) = changed.pop() {
            let class = &mut classes[nth];
            let is_new = !class.is_open && !class.ends.is_empty();
            if !std::mem::take(&mut class.is_changed) && !is_new {
                continue;
            }
            if is_new {
                class.is_open = true;
                class.advance(self.now);
                open.push(nth);
            }
            for id in class.links {
                let link = &mut links[id.0 as usize];
                if !std::mem::replace(&mut link.is_open, true) {
                    (link.free, link.open) = (rate_of(*id), 0);
                    open_links.push(id.0 as usize);
                    changed.extend(link.classes.iter().filter(|other| !classes[**other].is_open));
                }
            }
        }
        for class in open.iter().map(|nth| &classes[*nth]) {
            for link in class.links {
                links[link.0 as usize].open += class.ends.len() as u32;
            }
        }
    }

    /// Fills links step by step: those stores get their rates first that get the least.
    fn share(&mut self, rate_of: impl Fn(LinkId) -> f64) {
        self.open(rate_of);
        let Self { now, classes, links, open, open_links, full, .. } = self;
        let share = |link: &Link| link.free.max(0.0) / f64::from(link.open);
        let mut left = open.len();
        while left > 0 {
            open_links.retain(|link| {
                let link = &mut links[*link];
                link.is_open = link.open > 0;
                link.is_open
            });
            open.retain(|nth| classes[*nth].is_open);
            let rates = open.iter().map(|nth| classes[*nth].rate_max);
            let shares = open_links.iter().map(|link| share(&links[*link]));
            let least = rates.chain(shares).fold(f64::MAX, f64::min);
            // Of equals, all; and rounding makes equals differ.
            let bound = least * (1.0 + 1e-9);
            full.clear();
            full.extend(open.iter().filter(|nth| classes[**nth].rate_max <= bound));
            for link in open_links.iter().map(|link| &links[*link]) {
                if share(link) <= bound {
                    full.extend(&link.classes);
                }
            }
            for nth in full.iter() {
                let class = &mut classes[*nth];
                if std::mem::take(&mut class.is_open) {
                    class.settle(*now, least);
                    left -= 1;
                    let count = class.ends.len() as u32;
                    for link in class.links {
                        let link = &mut links[link.0 as usize];
                        link.free -= least * f64::from(count);
                        link.open -= count;
                    }
                }
            }
        }
        open_links.iter().for_each(|link| links[*link].is_open = false);
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
