//! The device engine, with the parts of `kernels/BAR.md`: decoder, then three units that store and
//! forward sub-requests.
//!
//! The decoder takes requests one by one, as long as their lanes have room. The fetch unit takes
//! one sub-request of one lane after another, lanes in turn, so that a long request does not hold
//! up other lanes; requests of one lane stay in order (R11), and a bounded number of requests is
//! under way at once. The link unit and, at the destination, the write unit serve sub-requests as
//! they come. A completion is written when the source was read; a request ends when the peer has
//! acknowledged it.

use super::state::Request;
use super::{Event, Owner, Signal, World};
use crate::machine::Path;
use crate::report::Busy;
use crate::time::Time;
use crate::trace::Track;
use std::collections::VecDeque;

/// One GPU's device engine.
#[derive(Default)]
pub(super) struct DeviceState {
    is_decoding: bool,
    /// Requests between their first sub-request and their acknowledgement.
    under_way: u64,
    /// Since when the fetch unit has had work and no leave to begin it.
    stalled: Option<Time>,
    /// Lanes with requests to fetch, in turn.
    turns: VecDeque<u32>,
    fetching: bool,
    link: Unit,
    write: Unit,
}

/// A unit that serves sub-requests in order.
#[derive(Default)]
struct Unit {
    is_busy: bool,
    queue: VecDeque<u32>,
}

/// A piece of a request.
#[derive(Clone, Copy)]
pub(super) struct Sub {
    request: u32,
    bytes: u64,
    is_last: bool,
    since: Time,
}

const FETCH: usize = 0;
const LINK: usize = 1;
const WRITE: usize = 2;

impl World<'_> {
    /// Lets the decoder take the next request, if it can.
    pub(super) fn decode_next(&mut self, rank: u32) {
        let now = self.now();
        let costs = self.setup.profile.device;
        let Some(&next) = self.proxies[rank as usize].queue.front() else { return };
        let request = self.requests[next as usize];
        let is_full = self.lanes[request.lane as usize].depth >= costs.lane_depth;
        if self.devices[rank as usize].is_decoding || (is_full && !request.is_credit()) {
            return;
        }
        self.devices[rank as usize].is_decoding = true;
        Busy::add(&mut self.busy.issue, rank, costs.decode);
        self.span(Track::Engine(rank), "decode", 1, now, now + costs.decode);
        self.push(now + costs.decode, Event::Decoded, rank, 0);
    }

    pub(super) fn decoded(&mut self, rank: u32) {
        let now = self.now();
        let id = self.proxies[rank as usize].queue.pop_front().expect("a request was decoded");
        self.devices[rank as usize].is_decoding = false;
        self.free_slots(rank, 1, now);
        let request = self.requests[id as usize];
        if request.is_credit() {
            // Over the link without data: it takes no time of any unit.
            let latency = self.latency(request.lane);
            let costs = self.setup.profile.device;
            let seen = now + costs.link_latency + latency + costs.signal_latency;
            self.raise_all(&request, seen, seen);
            self.free_requests.push(id);
        } else {
            self.enqueue(id);
            let lane = &mut self.lanes[request.lane as usize];
            lane.depth += 1;
            if !lane.is_active {
                lane.is_active = true;
                self.devices[rank as usize].turns.push_back(request.lane);
            }
            self.fetch_next(rank);
        }
        self.decode_next(rank);
    }

    /// The next lane in turn that may go on: with a request that has begun, or one that may begin.
    fn next_turn(&mut self, rank: u32) -> Option<u32> {
        let may_begin = self.devices[rank as usize].under_way < self.setup.profile.device.in_flight;
        for _ in 0..self.devices[rank as usize].turns.len() {
            let lane = self.devices[rank as usize].turns.pop_front()?;
            let request = self.front(lane).expect("a lane has its turn");
            if may_begin || self.requests[request as usize].has_begun() {
                return Some(lane);
            }
            self.devices[rank as usize].turns.push_back(lane);
        }
        None
    }

    fn fetch_next(&mut self, rank: u32) {
        let now = self.now();
        if self.devices[rank as usize].fetching {
            return;
        }
        let Some(lane) = self.next_turn(rank) else {
            let device = &mut self.devices[rank as usize];
            if !device.turns.is_empty() {
                device.stalled.get_or_insert(now);
            }
            return;
        };
        let request = self.front(lane).expect("a lane has its turn");
        let state = &mut self.requests[request as usize];
        let device = &mut self.devices[rank as usize];
        device.fetching = true;
        device.under_way += u64::from(!state.has_begun());
        if let Some(since) = device.stalled.take() {
            Busy::add(&mut self.busy.stalled, rank, now - since);
        }
        let bytes = self.setup.profile.device.sub_request.min(state.left.into());
        state.left -= bytes as u32;
        let is_last = state.left == 0;
        let sub = Sub { request, bytes, is_last, since: now };
        let id = match self.free_subs.pop() {
            Some(id) => {
                self.subs[id as usize] = sub;
                id
            }
            None => {
                self.subs.push(sub);
                self.subs.len() as u32 - 1
            }
        };
        self.serve(id, FETCH);
    }

    /// Starts a sub-request on a unit. One without data is through at once.
    fn serve(&mut self, id: u32, stage: usize) {
        self.subs[id as usize].since = self.now();
        let bytes = self.subs[id as usize].bytes;
        let owner = [Owner::Fetch, Owner::Link, Owner::Write][stage];
        if bytes == 0 {
            self.flow_ended(owner, id);
            return;
        }
        let path = self.stage_path(id, stage);
        self.start_flow(path, bytes, self.setup.profile.device.unit, owner, id);
    }

    /// The links that a stage uses: out of the source, on the way, into the destination.
    fn stage_path(&self, id: u32, stage: usize) -> Path {
        let request = self.requests[self.subs[id as usize].request as usize];
        let path = self.path(request.lane);
        let hops = path.links().len();
        let (first, last) = (hops.min(1), hops.saturating_sub(1).max(hops.min(1)));
        let (start, end) = [(0, first), (first, last), (last, hops)][stage];
        path.part(self.setup.machine, start, end)
    }

    /// Ends a sub-request's time on a unit; returns who it belongs to, and the hops' latency.
    fn unit_done(&mut self, id: u32, stage: usize, rank: u32) -> (u32, Request, Time) {
        let sub = self.subs[id as usize];
        let now = self.now();
        let path = self.stage_path(id, stage);
        Busy::add(&mut self.busy.units[stage], rank, now - sub.since);
        self.span(Track::Unit(rank, stage as u8), "sub-request", sub.bytes, sub.since, now);
        self.span_path(path, sub.bytes, sub.since);
        (sub.request, self.requests[sub.request as usize], path.latency)
    }

    pub(super) fn fetch_ended(&mut self, id: u32) {
        let rank = self.requests[self.subs[id as usize].request as usize].rank;
        let (_, request, latency) = self.unit_done(id, FETCH, rank);
        let now = self.now();
        if self.subs[id as usize].is_last {
            self.dequeue(request.lane);
            // The source was read to its end, and so were those before it on the lane.
            let seen = now + self.setup.profile.device.signal_latency;
            self.raise_at(seen, request.lane, Signal::Completion, request.raises[2]);
        }
        let lane = &mut self.lanes[request.lane as usize];
        lane.is_active = lane.has_next();
        let device = &mut self.devices[rank as usize];
        device.fetching = false;
        if lane.is_active {
            device.turns.push_back(request.lane);
        }
        let at = now + latency + self.setup.profile.device.fetch_latency;
        self.push(at, Event::AtLink, id, 0);
        self.fetch_next(rank);
    }

    pub(super) fn at_link(&mut self, id: u32) {
        let rank = self.requests[self.subs[id as usize].request as usize].rank;
        let unit = &mut self.devices[rank as usize].link;
        if unit.is_busy {
            unit.queue.push_back(id);
        } else {
            unit.is_busy = true;
            self.serve(id, LINK);
        }
    }

    pub(super) fn link_ended(&mut self, id: u32) {
        let rank = self.requests[self.subs[id as usize].request as usize].rank;
        let (_, _, latency) = self.unit_done(id, LINK, rank);
        let at = self.now() + latency + self.setup.profile.device.link_latency;
        self.push(at, Event::AtWrite, id, 0);
        let unit = &mut self.devices[rank as usize].link;
        match unit.queue.pop_front() {
            Some(next) => self.serve(next, LINK),
            None => unit.is_busy = false,
        }
    }

    pub(super) fn at_write(&mut self, id: u32) {
        let request = self.requests[self.subs[id as usize].request as usize];
        let to = self.receiving_rank(request.lane);
        let unit = &mut self.devices[to as usize].write;
        if unit.is_busy {
            unit.queue.push_back(id);
        } else {
            unit.is_busy = true;
            self.serve(id, WRITE);
        }
    }

    pub(super) fn write_ended(&mut self, id: u32) {
        let lane = self.requests[self.subs[id as usize].request as usize].lane;
        let to = self.receiving_rank(lane);
        let (request_id, request, latency) = self.unit_done(id, WRITE, to);
        if self.subs[id as usize].is_last {
            let words = self.lanes[lane as usize].is_ll;
            let signal = self.setup.profile.device.signal_latency;
            let now = self.now();
            let seen = now + latency + if words { Time::ZERO } else { signal };
            self.raise_at(seen, request.lane, Signal::Arrival, request.raises[0]);
            let back = self.stage_path(id, LINK).latency + self.setup.profile.device.link_latency;
            self.push(now + back, Event::Acknowledged, request_id, 0);
        }
        self.free_subs.push(id);
        let unit = &mut self.devices[to as usize].write;
        match unit.queue.pop_front() {
            Some(next) => self.serve(next, WRITE),
            None => unit.is_busy = false,
        }
    }

    /// The rank whose write unit takes what comes over a lane.
    fn receiving_rank(&self, lane: u32) -> u32 {
        self.blocks[self.lanes[lane as usize].receiver as usize].rank
    }

    /// A request has ended: there is room for another, on its lane and under way.
    pub(super) fn acknowledged(&mut self, id: u32) {
        let Request { lane, rank, .. } = self.requests[id as usize];
        self.free_requests.push(id);
        self.lanes[lane as usize].depth -= 1;
        self.devices[rank as usize].under_way -= 1;
        self.decode_next(rank);
        self.fetch_next(rank);
    }
}
