//! Engines that a CPU thread drives: one for each GPU, a server that takes descriptors in turn.
//!
//! The proxy drains what is ready, up to a batch, merges what is contiguous on one lane, and
//! issues transfer by transfer. The CPU-driven path takes one request at a time, after event and
//! synchronisation, and its receiver learns of the data by a launch.

use super::{Engine, Event, World};
use crate::report::Busy;
use crate::time::Time;
use crate::trace::Track;
use std::collections::VecDeque;

/// One engine's queue.
#[derive(Default)]
pub(super) struct ProxyState {
    /// Descriptors that are visible and not yet taken.
    pub(super) queue: VecDeque<u32>,
    is_busy: bool,
    /// Descriptors rung, and ring slots freed.
    pub(super) rung: u64,
    pub(super) freed: u64,
    /// Blocks that wait for room in the ring.
    pub(super) waiters: Vec<u32>,
}

impl World<'_> {
    pub(super) fn is_ring_full(&self, rank: u32) -> bool {
        let proxy = &self.proxies[rank as usize];
        proxy.rung - proxy.freed >= self.setup.profile.proxy.ring_slots
    }

    /// From the GPU's store until the engine sees it.
    pub(super) fn doorbell_latency(&self) -> Time {
        let profile = self.setup.profile;
        match self.setup.engine {
            Engine::CpuDriven => profile.cpu.event + profile.cpu.synchronise + profile.cpu.rest,
            Engine::Proxy | Engine::Stores => profile.proxy.doorbell_latency,
            Engine::Device => profile.device.doorbell_latency,
        }
    }

    /// From the end of a transfer within a node until its signals are seen.
    pub(super) fn intra_node_signal_latency(&self) -> Time {
        let profile = self.setup.profile;
        match self.setup.engine {
            Engine::CpuDriven => profile.cpu.launch,
            _ => profile.proxy.completion + profile.proxy.signal_latency,
        }
    }

    /// As [`Self::intra_node_signal_latency`], between nodes.
    pub(super) fn inter_node_signal_latency(&self) -> Time {
        match self.setup.engine {
            Engine::CpuDriven => self.setup.profile.cpu.launch,
            _ => self.adapter().signal_latency,
        }
    }

    /// A descriptor has become visible.
    pub(super) fn rung(&mut self, request: u32) {
        let rank = self.requests[request as usize].rank;
        self.proxies[rank as usize].queue.push_back(request);
        if self.setup.engine == Engine::Device {
            self.decode_next(rank);
        } else if !self.proxies[rank as usize].is_busy {
            self.start_batch(rank);
        }
    }

    pub(super) fn proxy_free(&mut self, rank: u32) {
        self.proxies[rank as usize].is_busy = false;
        if !self.proxies[rank as usize].queue.is_empty() {
            self.start_batch(rank);
        }
    }

    /// Slots of the ring are free again, for those who wait.
    pub(super) fn free_slots(&mut self, rank: u32, count: u64, at: Time) {
        self.proxies[rank as usize].freed += count;
        for block in std::mem::take(&mut self.proxies[rank as usize].waiters) {
            self.push(at, Event::Run, block, 0);
        }
    }

    /// When proxies poll: from the start, or once they are awake.
    fn polls_from(&self) -> Time {
        match self.setup.engine {
            Engine::Proxy | Engine::Stores if self.setup.rested => self.setup.profile.proxy.wake,
            _ => Time::ZERO,
        }
    }

    fn start_batch(&mut self, rank: u32) {
        let now = self.now().max(self.polls_from());
        let costs = self.setup.profile.proxy;
        let batch = if self.setup.engine == Engine::CpuDriven { 1 } else { costs.batch };
        let mut transfers = std::mem::take(&mut self.transfers);
        let mut taken = 0;
        while taken < batch {
            let Some(request) = self.proxies[rank as usize].queue.pop_front() else { break };
            taken += 1;
            if !self.merge(&transfers, request) {
                transfers.push(request);
            }
        }
        let mut at = now + costs.descriptor.times(taken);
        self.free_slots(rank, taken, at);
        for &request in &transfers {
            let is_near = self.lanes[self.requests[request as usize].lane as usize].is_near;
            at += if is_near { costs.submit } else { self.adapter().post };
            self.push(at, Event::Submitted, request, 0);
        }
        transfers.clear();
        self.transfers = transfers;
        self.span(Track::Engine(rank), "issue", taken, now, at);
        Busy::add(&mut self.busy.issue, rank, at - now);
        self.proxies[rank as usize].is_busy = true;
        self.push(at, Event::Free, rank, 0);
    }

    /// Joins a request to the last transfer of its lane in this batch, if R7 allows that.
    fn merge(&mut self, transfers: &[u32], request: u32) -> bool {
        let new = self.requests[request as usize];
        let last = transfers.iter().rev().find(|&&id| {
            let other = &self.requests[id as usize];
            other.lane == new.lane && other.is_credit() == new.is_credit()
        });
        let Some(&last) = last else { return false };
        let limit = self.setup.profile.proxy.coalesce;
        let old = &mut self.requests[last as usize];
        let contiguous = !new.is_slot
            && !old.is_slot
            && old.source + old.bytes == new.source
            && old.destination + old.bytes == new.destination
            && old.bytes + new.bytes <= limit;
        if new.bytes > 0 && !contiguous {
            return false;
        }
        old.bytes += new.bytes;
        for (sum, more) in old.raises.iter_mut().zip(new.raises) {
            *sum += more;
        }
        self.free_requests.push(request);
        true
    }
}
