//! Blocks that store into their peers' memory.

use super::super::ways::Ways;
use super::{Signal, Span, World};
use crate::plan::{Lane, PortIndex};

/// What a block stores into peers' memory, or loads from it.
#[derive(Clone, Copy)]
pub(super) struct Storing {
    /// The set of the block's ports whose peers it reaches.
    ports: u32,
    bytes: u64,
    /// Of each peer.
    rate_max: f64,
    then: Then,
    /// Peers that do not have all of it yet.
    left: u32,
}

impl Storing {
    fn ports(self) -> impl Iterator<Item = PortIndex> {
        (0..u32::BITS as PortIndex).filter(move |port| self.ports >> port & 1 != 0)
    }
}

/// What follows a store.
#[derive(Clone, Copy)]
pub(super) enum Then {
    Nothing,
    /// The words are their own arrival.
    Arrives(usize),
    /// A signal behind it.
    Rings(PortIndex, [u32; 3]),
}

impl<'a> World<'a> {
    /// The block's threads are to reach the memory of the peers of these ports next, each at `rate`
    /// at most. All together get what a block stores: each unit of data goes to one after the
    /// other.
    pub(super) fn will_store(
        &mut self,
        block: usize,
        ports: u32,
        (bytes, rate): (u64, f64),
        then: Then,
    ) {
        let left = ports.count_ones();
        let rate_max = rate.min(self.profile.store_block / f64::from(left));
        self.blocks[block].storing = Some(Storing { ports, bytes, rate_max, then, left });
    }

    /// They begin.
    pub(super) fn store(&mut self, block: usize) {
        let Some(storing) = self.blocks[block].storing else { return };
        let at = self.blocks[block].at.max(self.shares.now());
        let ways: &'a Ways = self.ways;
        for port in storing.ports() {
            let Lane { from, to, .. } = self.lane_at(block, port).1;
            let links = &ways.between(from, to, self.moved.by_device).links;
            for link in links {
                self.run.links[link.0 as usize] += storing.bytes as f64 / ways.rate(*link);
            }
            self.shares.start(at, block, links, (storing.bytes, storing.rate_max));
        }
    }

    /// One of the peers has all of it; the block goes on once all have.
    pub(super) fn stored(&mut self, block: usize, now: f64) {
        let Some(storing) = &mut self.blocks[block].storing else { return };
        storing.left -= 1;
        if storing.left > 0 {
            return;
        }
        let storing = *storing;
        self.blocks[block].storing = None;
        let since = self.blocks[block].at;
        self.spend(block, (now - since).max(0.0));
        let Storing { bytes, then, .. } = storing;
        if self.wants_spans {
            for port in storing.ports() {
                let Lane { from, to, .. } = self.lane_at(block, port).1;
                let (number, time) = (self.blocks[block].number, (since, now));
                self.run.spans.push(Span { from, to, block: number, time, bytes });
            }
        }
        match then {
            Then::Nothing => {}
            Then::Arrives(number) => {
                let lane = self.lanes[number].lane;
                let at = now + self.latency(lane) + self.profile.store_latency;
                self.raise(number, Signal::Arrival, at);
            }
            Then::Rings(port, raises) => self.ring(block, port, bytes, raises),
        }
        self.walk(block);
    }
}
