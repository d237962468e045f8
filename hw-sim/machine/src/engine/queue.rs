//! Requests between decoder and acknowledgement: a queue for each lane, and whose turn it is.

use super::channel::ChannelAddress;
use ringdove_kernels::bar::{ErrorCode, ErrorRecord, NONE, Peer};
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

/// A descriptor that has passed R8: all that the engine needs to carry it out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// Its place in the ring, and its words, for the error record.
    pub position: u64,
    pub words: [u64; 2],
    pub route: u64,
    pub lane: u64,
    /// The entry of the peer table, and what was in it.
    pub peer: u64,
    pub to: Peer,
    /// First byte of the source.
    pub source: u64,
    /// Bytes; 0: signals alone.
    pub length: u64,
    /// The peer's window, and the offset of the destination in it.
    pub window: u64,
    pub offset: u64,
    /// The peer's signal.
    pub arrival: Option<u64>,
    /// The address of our own.
    pub completion: Option<u64>,
    /// Bytes whose packets were sent.
    pub fetched: u64,
    /// Its first packet was sent.
    pub begun: bool,
    /// A fault holds it back until then.
    pub held_until: Option<Instant>,
    /// A fault makes its source unreadable.
    pub spoilt: bool,
}

impl Request {
    /// What the error record says when this request fails.
    pub fn error(&self, code: ErrorCode, limit: u64, detail: u64) -> ErrorRecord {
        ErrorRecord {
            state: 1,
            code: code as u64,
            position: self.position,
            words: self.words,
            route: self.route,
            lane: self.lane,
            peer: self.peer,
            limit,
            detail,
        }
    }
}

/// What the error record says when no request is to blame.
pub(super) fn error_without_request(
    code: ErrorCode,
    position: u64,
    limit: u64,
    detail: u64,
) -> ErrorRecord {
    ErrorRecord {
        state: 1,
        code: code as u64,
        position,
        words: [0; 2],
        route: NONE,
        lane: NONE,
        peer: NONE,
        limit,
        detail,
    }
}

/// The requests of one lane, and how often its signals were raised since the reset.
#[derive(Debug, Default)]
pub(super) struct LaneQueue {
    /// Not sent to their ends.
    pub waiting: VecDeque<Request>,
    /// Sent, and not acknowledged.
    pub sent: VecDeque<Request>,
    pub arrivals: u64,
    pub completions: u64,
}

impl LaneQueue {
    /// Requests that the lane holds.
    pub fn len(&self) -> usize {
        self.waiting.len() + self.sent.len()
    }
}

/// The lanes of a channel.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    pub queues: BTreeMap<u64, LaneQueue>,
    /// Lanes with something to send; the first one's turn has come.
    pub turns: VecDeque<u64>,
    /// Requests whose first packet was sent and which have not ended.
    pub under_way: u64,
}

impl Lanes {
    /// Puts a request behind those of its lane.
    pub fn push(&mut self, request: Request) {
        let queue = self.queues.entry(request.lane).or_default();
        if queue.waiting.is_empty() {
            self.turns.push_back(request.lane);
        }
        queue.waiting.push_back(request);
    }

    /// Requests that a lane holds.
    pub fn len_of(&self, lane: u64) -> usize {
        self.queues.get(&lane).map_or(0, LaneQueue::len)
    }

    /// It is the next lane's turn.
    pub fn rotate(&mut self) {
        if let Some(lane) = self.turns.pop_front() {
            self.turns.push_back(lane);
        }
    }

    /// The lane whose turn it is.
    pub fn first(&mut self) -> Option<&mut LaneQueue> {
        let lane = self.turns.front()?;
        self.queues.get_mut(lane)
    }

    /// The request at this position, if it is here.
    pub fn find(&self, position: u64) -> Option<&Request> {
        let all = self.queues.values().flat_map(|queue| queue.sent.iter().chain(&queue.waiting));
        all.into_iter().find(|request| request.position == position)
    }

    /// The oldest request under way to a channel.
    pub fn oldest_to(&self, to: ChannelAddress) -> Option<&Request> {
        let all = self.queues.values().flat_map(|queue| queue.sent.iter().chain(&queue.waiting));
        let to = (to.link_address, to.channel);
        let meant = |request: &&Request| {
            request.begun && (request.to.link_address, request.to.channel) == to
        };
        all.filter(meant).min_by_key(|request| request.position)
    }

    /// Drops what was not begun. Gives the number.
    pub fn drop_waiting(&mut self) -> u64 {
        let mut dropped = 0;
        for queue in self.queues.values_mut() {
            let before = queue.waiting.len();
            queue.waiting.retain(|request| request.begun);
            dropped += (before - queue.waiting.len()) as u64;
        }
        let queues = &self.queues;
        self.turns.retain(|lane| queues.get(lane).is_some_and(|q| !q.waiting.is_empty()));
        dropped
    }
}
