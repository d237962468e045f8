//! Blocks that store into their peers' memory.

use super::super::ways::Ways;
use super::{Signal, Span, World};
use crate::plan::{Lane, PortIndex};

/// What a block stores into a peer's memory.
#[derive(Clone, Copy)]
pub(super) struct Storing {
    lane: Lane,
    bytes: u64,
    rate_max: f64,
    then: Then,
}

/// What follows a store.
#[derive(Clone, Copy)]
pub(super) enum Then {
    Nothing,
    /// The words are their own arrival.
    Arrives(usize),
    /// A signal behind it.
    Rings(PortIndex, [bool; 3]),
}

impl<'a> World<'a> {
    /// The block's threads are to write into the peer's memory next.
    pub(super) fn will_store(
        &mut self,
        block: usize,
        port: PortIndex,
        (bytes, rate): (u64, f64),
        then: Then,
    ) {
        let lane = self.lane_at(block, port).1;
        let rate_max = rate.min(self.profile.store_block);
        self.blocks[block].storing = Some(Storing { lane, bytes, rate_max, then });
    }

    /// They begin.
    pub(super) fn store(&mut self, block: usize) {
        let Some(storing) = self.blocks[block].storing else { return };
        let Storing { lane, bytes, rate_max, .. } = storing;
        let ways: &'a Ways = self.ways;
        let links = &ways.between(lane.from, lane.to, self.moved.by_device).links;
        for link in links {
            self.run.links[link.0 as usize] += bytes as f64 / ways.rate(*link);
        }
        let at = self.blocks[block].at.max(self.shares.now());
        self.shares.start(at, block, links, (bytes, rate_max));
    }

    /// They have done so.
    pub(super) fn stored(&mut self, block: usize, now: f64) {
        let Some(storing) = self.blocks[block].storing.take() else { return };
        let since = self.blocks[block].at;
        self.spend(block, (now - since).max(0.0));
        let Storing { lane, bytes, then, .. } = storing;
        if self.wants_spans {
            let (from, to, number) = (lane.from, lane.to, self.blocks[block].number);
            self.run.spans.push(Span { from, to, block: number, time: (since, now), bytes });
        }
        match then {
            Then::Nothing => {}
            Then::Arrives(number) => {
                let at = now + self.latency(lane) + self.profile.store_latency;
                self.raise(number, Signal::Arrival, at);
            }
            Then::Rings(port, raises) => self.ring(block, port, bytes, raises),
        }
        self.walk(block);
    }
}
