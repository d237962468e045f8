//! Links that blocks share as they store: rates are max-min fair, so no store can get more without
//! taking from one that has no more than it.

use super::super::ways::LinkId;

/// Shorter times are none: those of rounding. µs.
pub(super) const TIME_MIN: f64 = 1e-6;

/// A store under way.
#[derive(Clone, Debug)]
struct Flow<'a> {
    owner: usize,
    links: &'a [LinkId],
    /// What its block stores at most. Bytes a µs.
    rate_max: f64,
    rate: f64,
    left: f64,
    is_open: bool,
}

/// All stores under way.
#[derive(Debug)]
pub(super) struct Shares<'a> {
    flows: Vec<Flow<'a>>,
    now: f64,
    is_changed: bool,
    /// By link: bytes a µs that are not taken, and flows without a rate.
    links: Vec<(f64, u32)>,
}

impl<'a> Shares<'a> {
    pub fn new(link_count: usize) -> Self {
        Self { flows: Vec::new(), now: 0.0, is_changed: false, links: vec![(0.0, 0); link_count] }
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
        let left = bytes as f64;
        self.flows.push(Flow { owner, links, rate_max, rate: 0.0, left, is_open: false });
        self.is_changed = true;
    }

    /// When the next store ends, if none begins before.
    pub fn next_end(&mut self, rate_of: impl Fn(LinkId) -> f64) -> Option<f64> {
        if std::mem::take(&mut self.is_changed) {
            self.share(rate_of);
        }
        let ends = self.flows.iter().map(|flow| flow.left / flow.rate);
        ends.min_by(f64::total_cmp).map(|first| self.now + first)
    }

    /// Goes on to `now`, at which a store ends, and takes out all that do: their owners.
    pub fn end(&mut self, now: f64) -> Vec<usize> {
        self.advance(now);
        let mut ended = Vec::new();
        self.flows.retain(|flow| {
            let goes_on = flow.left > flow.rate * TIME_MIN;
            if !goes_on {
                ended.push(flow.owner);
            }
            goes_on
        });
        self.is_changed = true;
        ended
    }

    fn advance(&mut self, now: f64) {
        let time = now - self.now;
        if time > 0.0 {
            for flow in &mut self.flows {
                flow.left -= flow.rate * time;
            }
            self.now = now;
        }
    }

    /// Fills links step by step: those flows get their rates first that get the least.
    fn share(&mut self, rate_of: impl Fn(LinkId) -> f64) {
        for flow in &mut self.flows {
            flow.is_open = true;
            for link in flow.links {
                self.links[link.0 as usize] = (rate_of(*link), 0);
            }
        }
        for flow in &self.flows {
            for link in flow.links {
                self.links[link.0 as usize].1 += 1;
            }
        }
        let mut open = self.flows.len();
        while open > 0 {
            let share = |link: &LinkId| {
                let (left, count) = self.links[link.0 as usize];
                left.max(0.0) / f64::from(count)
            };
            let of_flow = |flow: &Flow<'_>| {
                let narrowest = flow.links.iter().map(share).fold(f64::MAX, f64::min);
                narrowest.min(flow.rate_max)
            };
            let opened = self.flows.iter().filter(|flow| flow.is_open);
            let least = opened.map(of_flow).fold(f64::MAX, f64::min);
            // Of equals, all; and rounding makes equals differ.
            let bound = least * (1.0 + 1e-9);
            let fixed: Vec<usize> = (0..self.flows.len())
                .filter(|nth| self.flows[*nth].is_open && of_flow(&self.flows[*nth]) <= bound)
                .collect();
            for nth in fixed {
                let flow = &mut self.flows[nth];
                (flow.is_open, flow.rate) = (false, least.max(1e-3));
                open -= 1;
                for link in flow.links {
                    let (left, count) = &mut self.links[link.0 as usize];
                    (*left, *count) = (*left - least, *count - 1);
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
        shares.flows.iter().map(|flow| flow.rate).collect()
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
