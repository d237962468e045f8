//! Devices that CPU threads drive: copy engines within a node, adapters between nodes.
//!
//! A copy engine takes one transfer of a lane after the other: setup, then the flow. A GPU has a
//! few; lanes wait for one in turn. An adapter spends a little on each message, fetches what is not
//! inline, holds a bounded number of messages, and sends those of one lane in order.

use super::state::Request;
use super::{Event, Owner, World};
use crate::profile::{Adapter, Profile};
use crate::report::Busy;
use crate::time::Time;
use crate::trace::Track;
use std::collections::VecDeque;

/// Copy engines and adapter of one GPU.
pub(super) struct CopyState {
    free_engines: u64,
    /// Lanes that have a transfer and no copy engine.
    waiting: VecDeque<u32>,
    /// When the adapter has done its part for all messages so far.
    adapter_free: Time,
    /// Messages between post and delivery.
    in_flight: u64,
    /// Messages that wait for room in the queue.
    held: VecDeque<u32>,
}

impl CopyState {
    pub(super) fn new(profile: &Profile) -> Self {
        Self {
            free_engines: profile.proxy.copy_engines,
            waiting: VecDeque::new(),
            adapter_free: Time::ZERO,
            in_flight: 0,
            held: VecDeque::new(),
        }
    }
}

impl World<'_> {
    pub(super) fn adapter(&self) -> Adapter {
        self.setup.profile.adapter.expect("checked before the run")
    }

    /// The engine has issued a transfer.
    pub(super) fn submitted(&mut self, id: u32) {
        let request = self.requests[id as usize];
        let lane = &mut self.lanes[request.lane as usize];
        if !lane.is_near {
            self.post(id);
        } else if request.bytes == 0 && (request.is_credit() || !lane.is_active) {
            // A lone signal: nothing of its lane is ahead of it. Credits have no data at all.
            self.copy_done(id, request);
        } else if lane.is_active {
            self.enqueue(id);
        } else {
            lane.is_active = true;
            self.enqueue(id);
            self.start_copy(request.lane);
        }
    }

    /// Gives a lane with something to do a copy engine, or a place in the queue for one.
    fn start_copy(&mut self, lane: u32) {
        let now = self.now();
        let rank = self.lanes[lane as usize].from as usize;
        if self.copies[rank].free_engines == 0 {
            self.copies[rank].waiting.push_back(lane);
            return;
        }
        self.copies[rank].free_engines -= 1;
        let request = self.dequeue(lane).expect("a transfer waits");
        let bytes = self.requests[request as usize].bytes;
        let setup = if bytes > 0 { self.setup.profile.proxy.copy_setup } else { Time::ZERO };
        self.requests[request as usize].since = now;
        self.push(now + setup, Event::Copy, request, 0);
    }

    pub(super) fn copy_ready(&mut self, id: u32) {
        let request = self.requests[id as usize];
        if request.bytes == 0 {
            self.copy_ended(id);
            return;
        }
        let path = self.path(request.lane);
        self.start_flow(path, request.bytes, crate::time::Rate(u64::MAX >> 16), Owner::Copy, id);
    }

    pub(super) fn copy_ended(&mut self, id: u32) {
        let now = self.now();
        let request = self.requests[id as usize];
        let lane = &mut self.lanes[request.lane as usize];
        let rank = lane.from;
        lane.is_active = lane.has_next();
        lane.busy += now - request.since;
        let goes_on = lane.is_active;
        self.copies[rank as usize].free_engines += 1;
        if goes_on {
            self.copies[rank as usize].waiting.push_back(request.lane);
        }
        if let Some(next) = self.copies[rank as usize].waiting.pop_front() {
            self.start_copy(next);
        }
        Busy::add(&mut self.busy.copy, rank, now - request.since);
        self.span(Track::Copy(request.lane), "copy", request.bytes, request.since, now);
        let setup = self.setup.profile.proxy.copy_setup;
        self.span_links(request.lane, request.bytes, request.since + setup);
        self.copy_done(id, request);
    }

    fn copy_done(&mut self, id: u32, request: Request) {
        let latency = self.latency(request.lane);
        let local = self.now() + self.intra_node_signal_latency();
        // A receiver that polls the words of an LL message sees them arrive; others wait for a
        // signal. Under CPU control the receiver is launched, whatever it then reads.
        let words = self.lanes[request.lane as usize].is_ll
            && self.setup.engine != super::Engine::CpuDriven;
        let seen = if words { self.now() } else { local };
        self.raise_all(&request, seen + latency, local);
        self.free_requests.push(id);
    }

    /// The adapter gets a message, if its queue has room.
    fn post(&mut self, id: u32) {
        let request = self.requests[id as usize];
        let adapter = self.adapter();
        let now = self.now();
        let state = &mut self.copies[request.rank as usize];
        if state.in_flight >= adapter.depth {
            state.held.push_back(id);
            return;
        }
        state.in_flight += 1;
        let done = state.adapter_free.max(now) + adapter.message;
        state.adapter_free = done;
        Busy::add(&mut self.busy.adapter, request.rank, adapter.message);
        let fetch = if request.bytes > adapter.inline { adapter.fetch } else { Time::ZERO };
        self.push(done + fetch, Event::Message, id, 0);
    }

    /// The adapter has a message's data: it goes out when those before it have.
    pub(super) fn message_ready(&mut self, id: u32) {
        let request = self.requests[id as usize];
        if request.is_credit() {
            // A credit travels against its lane, and passes no data.
            self.message_done(id);
            return;
        }
        self.enqueue(id);
        let lane = &mut self.lanes[request.lane as usize];
        if !lane.is_active {
            lane.is_active = true;
            self.send_next(request.lane);
        }
    }

    fn send_next(&mut self, lane: u32) {
        // Each pass takes one message, and one with data ends the loop.
        while let Some(id) = self.dequeue(lane) {
            let bytes = self.requests[id as usize].bytes;
            if bytes > 0 {
                let path = self.path(lane);
                self.requests[id as usize].since = self.now();
                let limit = crate::time::Rate(u64::MAX >> 16);
                self.start_flow(path, bytes, limit, Owner::Message, id);
                return;
            }
            self.message_done(id);
        }
        self.lanes[lane as usize].is_active = false;
    }

    pub(super) fn message_ended(&mut self, id: u32) {
        let request = self.requests[id as usize];
        let now = self.now();
        self.span(Track::Adapter(request.rank), "message", request.bytes, request.since, now);
        self.span_links(request.lane, request.bytes, request.since);
        self.message_done(id);
        self.send_next(request.lane);
    }

    fn message_done(&mut self, id: u32) {
        let request = self.requests[id as usize];
        let latency = self.latency(request.lane);
        let seen = self.now() + latency + self.inter_node_signal_latency();
        // The acknowledgement travels back before the source may be reused.
        self.raise_all(&request, seen, seen + latency);
        self.free_requests.push(id);
        let state = &mut self.copies[request.rank as usize];
        state.in_flight -= 1;
        if let Some(next) = state.held.pop_front() {
            self.post(next);
        }
    }
}
