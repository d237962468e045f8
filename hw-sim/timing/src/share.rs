//! Links and the flows on them: max-min fair sharing, kept up to date where something changed.
//!
//! A flow crosses a fixed path of links and never runs faster than its own limit. Rates are max-min
//! fair: no flow can get more without taking from one that has no more than it. Two facts keep the
//! work small:
//!
//! * A link is *contended* only if the limits of its flows add up to more than it carries. Others
//!   take part in nothing. The sums are whole numbers, so nothing drifts.
//! * Changes of one moment are collected ([`Shares::update_rates`]). A hundred flows that start
//!   together cost one pass over the links and flows that contended links join to them, and nothing
//!   beyond.

use crate::machine::{HOPS_MAX, Path};
use crate::time::{Rate, Time};
use smallvec::SmallVec;

/// A flow that ends at a time, if its generation is still this one.
pub struct Deadline {
    /// The flow.
    pub flow: u32,
    /// The generation in which this was computed.
    pub generation: u32,
    /// When it ends.
    pub at: Time,
}

/// A flow on a link, and which of its hops this link is, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Here(u32);

/// Bits of a word that number a hop.
const HOP_BITS: u32 = HOPS_MAX.next_power_of_two().trailing_zeros();

impl Here {
    fn new(flow: u32, hop: usize) -> Self {
        assert!(flow < 1 << (32 - HOP_BITS), "fewer than 2^28 flows at once");
        Self(flow << HOP_BITS | hop as u32)
    }

    fn flow(self) -> u32 {
        self.0 >> HOP_BITS
    }

    fn hop(self) -> usize {
        (self.0 & ((1 << HOP_BITS) - 1)) as usize
    }
}

/// In one cache line: large worlds wait for memory more than for anything else.
#[derive(Clone, Default)]
#[repr(align(64))]
struct Link {
    capacity: u64,
    /// Sum of the limits of all flows here.
    wanted: u64,
    flows: SmallVec<[Here; 4]>,
    /// Bytes of flows that have begun here.
    bytes: u64,
    /// Whether the link limited anybody when it was last looked at.
    was_contended: bool,
    is_dirty: bool,
    /// In the component that is being rated.
    mark: u32,
    /// During a pass: flows without a rate yet, and whether their rates can rise no more.
    open: u32,
    is_full: bool,
}

const _: () = assert!(size_of::<Link>() == 64);

impl Link {
    fn is_contended(&self) -> bool {
        self.wanted > self.capacity
    }
}

#[derive(Clone)]
struct Flow {
    limit: u64,
    /// Bytes per second.
    rate: f64,
    /// Bytes at `updated`.
    left: f64,
    updated: Time,
    owner: u64,
    generation: u32,
    mark: u32,
    is_rated: bool,
    hop_count: u8,
    hops: [Hop; HOPS_MAX],
}

/// A link of a flow's path.
#[derive(Clone, Copy, Default)]
struct Hop {
    link: u32,
    /// Where in the link's list the flow stands.
    place: u32,
}

impl Flow {
    fn links(&self) -> impl Iterator<Item = u32> {
        self.hops[..usize::from(self.hop_count)].iter().map(|hop| hop.link)
    }
}

/// All links and all flows under way.
#[derive(Default)]
pub struct Shares {
    links: Vec<Link>,
    /// During a pass: what is left of each link for flows without a rate, bytes/s.
    left: Vec<u64>,
    flows: Vec<Flow>,
    free: Vec<u32>,
    dirty: Vec<u32>,
    fresh: Vec<u32>,
    mark: u32,
    deadlines: Vec<Deadline>,
    component_links: Vec<u32>,
    component_flows: Vec<u32>,
    /// Times that a flow got a new rate.
    pub ratings: u64,
}

impl Shares {
    /// Links of these capacities, without flows.
    pub fn new(capacities: impl Iterator<Item = Rate>) -> Self {
        let link = |rate: Rate| Link { capacity: rate.0, ..Link::default() };
        let links: Vec<Link> = capacities.map(link).collect();
        Self { left: vec![0; links.len()], links, ..Self::default() }
    }

    /// Whether [`Self::update_rates`] has something to do.
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty() || !self.fresh.is_empty()
    }

    /// Starts a flow of `bytes`, at most as fast as `limit`. Its rate is known at the next update.
    pub fn start(&mut self, now: Time, path: Path, bytes: u64, limit: Rate, owner: u64) -> u32 {
        // Nothing runs faster than the narrowest link alone would let it; so a flow that is alone
        // on its links makes none of them contended.
        let narrowest = path.links().iter().map(|&link| self.links[link as usize].capacity).min();
        let limit = narrowest.map_or(limit.0, |narrowest| narrowest.min(limit.0)).max(1);
        let id = self.free.pop().unwrap_or(self.flows.len() as u32);
        let mut hops = [Hop::default(); HOPS_MAX];
        for (number, &link_id) in path.links().iter().enumerate() {
            let link = &mut self.links[link_id as usize];
            hops[number] = Hop { link: link_id, place: link.flows.len() as u32 };
            link.flows.push(Here::new(id, number));
            link.wanted += limit;
            link.bytes += bytes;
            if !link.is_dirty {
                link.is_dirty = true;
                self.dirty.push(link_id);
            }
        }
        let flow = Flow {
            limit,
            rate: 0.0,
            left: bytes as f64,
            updated: now,
            owner,
            generation: 0,
            mark: 0,
            is_rated: false,
            hop_count: path.links().len() as u8,
            hops,
        };
        match self.flows.get_mut(id as usize) {
            Some(old) => *old = Flow { generation: old.generation + 1, ..flow },
            None => self.flows.push(flow),
        }
        self.fresh.push(id);
        id
    }

    /// Ends a flow whose deadline has come. `None`: the deadline was overtaken by a new rate.
    pub fn end(&mut self, id: u32, generation: u32) -> Option<u64> {
        let flow = &self.flows[id as usize];
        if flow.generation & GENERATION_MASK != generation {
            return None;
        }
        let (hops, hop_count, limit) = (flow.hops, flow.hop_count, flow.limit);
        let owner = flow.owner;
        self.flows[id as usize].generation += 1;
        for hop in &hops[..usize::from(hop_count)] {
            let link = &mut self.links[hop.link as usize];
            link.flows.swap_remove(hop.place as usize);
            if let Some(moved) = link.flows.get(hop.place as usize) {
                self.flows[moved.flow() as usize].hops[moved.hop()].place = hop.place;
            }
            link.wanted -= limit;
            if !link.is_dirty && link.was_contended {
                link.is_dirty = true;
                self.dirty.push(hop.link);
            }
        }
        self.free.push(id);
        Some(owner)
    }

    /// Gives every flow that is affected by what started and ended its rate, and returns the new
    /// deadlines, in a fixed order. To be called when the events of `now` are done.
    pub fn update_rates(&mut self, now: Time) -> &[Deadline] {
        self.deadlines.clear();
        let mut dirty = std::mem::take(&mut self.dirty);
        let begun = self.mark;
        for &link_id in &dirty {
            let link = &mut self.links[link_id as usize];
            link.is_dirty = false;
            let (was, is) = (link.was_contended, link.is_contended());
            link.was_contended = is;
            // A greater mark: done already, as part of another link's component.
            if (was || is) && link.mark <= begun {
                self.rate_component(now, link_id);
            }
        }
        dirty.clear();
        self.dirty = dirty;
        // What no contended link touches runs at its own limit.
        let mut fresh = std::mem::take(&mut self.fresh);
        for &id in &fresh {
            if !self.flows[id as usize].is_rated {
                let limit = self.flows[id as usize].limit as f64;
                self.set_rate(now, id, limit);
            }
        }
        fresh.clear();
        self.fresh = fresh;
        &self.deadlines
    }

    /// Everything that contended links join to `start`.
    fn rate_component(&mut self, now: Time, start: u32) {
        self.mark += 1;
        let mark = self.mark;
        let mut links = std::mem::take(&mut self.component_links);
        let mut flows = std::mem::take(&mut self.component_flows);
        links.clear();
        flows.clear();
        links.push(start);
        self.links[start as usize].mark = mark;
        let mut next = 0;
        while next < links.len() {
            let number = links[next] as usize;
            next += 1;
            for place in 0..self.links[number].flows.len() {
                let id = self.links[number].flows[place].flow();
                let flow = &mut self.flows[id as usize];
                if flow.mark == mark {
                    continue;
                }
                flow.mark = mark;
                flow.is_rated = false;
                flows.push(id);
                for other in flow.links() {
                    let link = &mut self.links[other as usize];
                    if link.mark != mark && link.is_contended() {
                        link.mark = mark;
                        links.push(other);
                    }
                }
            }
        }
        self.fill(now, &links, &flows);
        self.component_links = links;
        self.component_flows = flows;
    }

    /// Progressive filling: all rates rise together until a link is full or a flow has enough. In
    /// whole bytes a second, so that the result does not depend on the order of links and flows.
    fn fill(&mut self, now: Time, links: &[u32], flows: &[u32]) {
        for &number in links {
            let link = &mut self.links[number as usize];
            link.open = link.flows.len() as u32;
            self.left[number as usize] = link.capacity;
        }
        let mut waiting = flows.len();
        // Each pass fixes at least one flow, which bounds the loop.
        while waiting > 0 {
            let level = self.level(links, flows);
            let before = waiting;
            for &id in flows {
                let flow = &self.flows[id as usize];
                let is_full = |number: u32| {
                    let link = &self.links[number as usize];
                    link.mark == self.mark && link.is_full
                };
                if flow.is_rated || (flow.limit > level && !flow.links().any(is_full)) {
                    continue;
                }
                for number in flow.links() {
                    let link = &mut self.links[number as usize];
                    if link.mark == self.mark {
                        link.open -= 1;
                        let left = &mut self.left[number as usize];
                        *left = left.saturating_sub(level);
                    }
                }
                self.set_rate(now, id, level as f64);
                waiting -= 1;
            }
            assert!(waiting < before, "progressive filling makes progress");
        }
    }

    /// How far the rates of all flows without one can rise, and which links are full then.
    fn level(&mut self, links: &[u32], flows: &[u32]) -> u64 {
        let unrated = flows.iter().map(|&id| &self.flows[id as usize]).filter(|it| !it.is_rated);
        let mut level = unrated.map(|flow| flow.limit).min().expect("a flow waits");
        let fair = |left: &[u64], number: u32, link: &Link| {
            let is_open = link.open > 0 && link.is_contended();
            is_open.then(|| (left[number as usize] / u64::from(link.open)).max(1))
        };
        for &number in links {
            let share = fair(&self.left, number, &self.links[number as usize]);
            level = level.min(share.unwrap_or(u64::MAX));
        }
        for &number in links {
            let link = &mut self.links[number as usize];
            link.is_full = fair(&self.left, number, link).is_some_and(|share| share <= level);
        }
        level
    }

    fn set_rate(&mut self, now: Time, id: u32, rate: f64) {
        let flow = &mut self.flows[id as usize];
        flow.is_rated = true;
        if flow.rate == rate {
            return;
        }
        let passed = (now - flow.updated).0 as f64 * 1e-12;
        flow.left = (flow.left - flow.rate * passed).max(0.0);
        flow.updated = now;
        flow.rate = rate;
        flow.generation += 1;
        self.ratings += 1;
        let left = Time((flow.left / rate * 1e12).ceil() as u64);
        let generation = flow.generation & GENERATION_MASK;
        self.deadlines.push(Deadline { flow: id, generation, at: now + left });
    }

    /// Bytes of the flows that have begun on a link.
    pub fn link_bytes(&self, link: u32) -> u64 {
        self.links[link as usize].bytes
    }

    /// Load of a link.
    pub fn capacity(&self, link: u32) -> Rate {
        Rate(self.links[link as usize].capacity)
    }

    /// The rate that a flow has now, in bytes per second.
    pub fn rate(&self, flow: u32) -> f64 {
        self.flows[flow as usize].rate
    }
}

/// Events carry this much of a generation.
pub const GENERATION_MASK: u32 = (1 << 24) - 1;

#[cfg(test)]
mod tests;
