//! The transport: transfers become chains of RDMA writes, completions become signals.

use super::adapter::Adapter;
use super::arrivals::Inbound;
use super::control::{Command, Commands, NewPeer, VerbsControl, control};
use super::endpoint::Endpoint;
use super::events::{self, Event, Subject};
use super::fault;
use super::immediate;
use super::on_demand::Connect;
use super::queue::{Numbers, QueuePair, Resolved};
use super::receive::RECEIVE_BIT;
use super::region::{LocalRegion, RemoteRegion};
use super::signals::SignalWriter;
use super::table::RangeTable;
use crate::error::{Error, Result, TransportCause, TransportError};
use crate::id::{LaneId, Position, Rank};
use crate::settings::VerbsOrder;
use crate::transport::{Polled, SignalWrite, Transfer, Transport};
use ibverbs_sys as sys;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Completions taken with one call.
const COMPLETIONS_PER_CALL: usize = 32;
/// Calls for one peer in one poll, so that a busy peer does not keep the engine from others.
const CALLS_MAX: usize = 8;
/// Polls between two looks at the adapter's events, each a system call.
const POLLS_PER_EVENTS: u32 = 1024;
/// How long a completion may come after the event that its queue pair failed.
const EVENT_GRACE: Duration = Duration::from_secs(2);

/// Moves bytes to ranks that only an adapter reaches.
pub struct VerbsTransport {
    peers: Vec<Peer>,
    /// By lane: which peer and queue pair serve it.
    lanes: Vec<Option<Path>>,
    local: RangeTable<LocalRegion>,
    writer: Box<dyn SignalWriter>,
    commands: Commands,
    /// Queue pairs with a chain that is not posted. Never longer than there are queue pairs.
    staged: Vec<Path>,
    completions: Box<[sys::ibv_wc]>,
    /// Completion signals of one call. As many as completions, at most.
    signals: Vec<SignalWrite>,
    polls: u32,
    /// A fatal event that waits for its completion, and since when.
    event_seen: Option<(Event, Instant)>,
    /// Set where peers' signals come as immediate data.
    inbound: Option<Box<Inbound>>,
    in_flight: u64,
    /// Completion signals of transfers that had ended when they were submitted.
    ended: Vec<Option<SignalWrite>>,
    /// Asked for peers that are missing.
    connector: Option<Box<dyn Connect>>,
    adapter: Arc<Adapter>,
}

struct Peer {
    rank: Rank,
    endpoint: Endpoint,
    remote: RangeTable<RemoteRegion>,
    in_flight: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Path {
    peer: u32,
    queue: u32,
}

impl VerbsTransport {
    /// A transport without peers. `writer` raises completion signals.
    ///
    /// # Errors
    /// [`Error::System`] if the adapter's events cannot be read without blocking.
    pub fn new(
        adapter: &Arc<Adapter>,
        writer: Box<dyn SignalWriter>,
    ) -> Result<(Self, VerbsControl)> {
        events::make_non_blocking(adapter).map_err(|error| Error::System {
            what: format!("reading the events of {}", adapter.name()),
            cause: error.to_string(),
        })?;
        let (control, commands) = control();
        let transport = Self {
            peers: Vec::new(),
            lanes: Vec::new(),
            local: RangeTable::new(),
            writer,
            commands,
            staged: Vec::new(),
            completions: empty_completions(),
            signals: Vec::with_capacity(COMPLETIONS_PER_CALL),
            polls: 0,
            event_seen: None,
            inbound: None,
            in_flight: 0,
            ended: Vec::new(),
            connector: None,
            adapter: adapter.clone(),
        };
        Ok((transport, control))
    }

    /// Has `connector` asked for peers when a transfer first needs them. Until one is added, its
    /// transfers wait, and all that are submitted behind them.
    pub fn connect_by(&mut self, connector: Box<dyn Connect>) {
        self.connector = Some(connector);
    }

    fn apply_commands(&mut self) {
        while let Some(command) = self.commands.next() {
            match command {
                Command::Peer(peer) => self.add_peer(*peer),
                Command::Local(region) => self.local.insert(region),
                Command::RemoveLocal { key } => self.local.remove(key),
                Command::Remote { rank, region } => {
                    if let Some(peer) = self.peer_mut(rank) {
                        peer.remote.insert(region);
                    }
                }
                Command::RemoveRemote { rank, key } => {
                    if let Some(peer) = self.peer_mut(rank) {
                        peer.remote.remove(key);
                    }
                }
                Command::Arrivals(inbound) => self.inbound = Some(inbound),
                Command::BreakOff { rank } => {
                    if let Some(Err(error)) =
                        self.peer_mut(rank).map(|peer| peer.endpoint.break_off())
                    {
                        tracing::warn!(%error, "breaking off");
                    }
                }
            }
        }
    }

    fn queue_count(&self) -> usize {
        self.peers.iter().map(|peer| peer.endpoint.queues.len()).sum()
    }

    fn peer_mut(&mut self, rank: Rank) -> Option<&mut Peer> {
        self.peers.iter_mut().find(|peer| peer.rank == rank)
    }

    /// Deals its lanes out over its queue pairs. A lane stays on one: its order is the order of
    /// that queue pair (R11).
    fn add_peer(&mut self, peer: NewPeer) {
        let NewPeer { rank, endpoint, regions, lanes } = peer;
        let (index, queue_count) = (self.peers.len() as u32, endpoint.queues.len());
        self.staged.reserve(self.queue_count() + queue_count);
        for (number, lane) in lanes.iter().enumerate() {
            let at = lane.0 as usize;
            if at >= self.lanes.len() {
                self.lanes.resize(at + 1, None);
            }
            self.lanes[at] = Some(Path { peer: index, queue: (number % queue_count) as u32 });
        }
        let mut remote = RangeTable::new();
        for region in regions {
            remote.insert(region);
        }
        self.peers.push(Peer { rank, endpoint, remote, in_flight: 0 });
    }

    /// Stages one transfer. False if its queue pair has no room.
    fn stage(&mut self, transfer: &Transfer) -> Result<bool, TransportCause> {
        let path = self.lanes.get(transfer.lane.0 as usize).copied().flatten();
        let Some(path) = path else {
            let known = || self.lanes.iter().flatten().count();
            return match &mut self.connector {
                Some(connector) => connector.request(transfer.lane).map(|()| false),
                None => Err(TransportCause::UnknownLane { known: known() }),
            };
        };
        let peer = &mut self.peers[path.peer as usize];
        let queue = &mut peer.endpoint.queues[path.queue as usize];
        if !queue.has_room(transfer) {
            return if queue.exceeds(transfer) { Err(too_long(transfer)) } else { Ok(false) };
        }
        if queue.has_ended(transfer) {
            self.ended.push(transfer.completion);
            self.in_flight += 1;
            return Ok(true);
        }
        let keys = resolve(transfer, &self.local, &peer.remote, queue.receiver.is_some())?;
        let was_staged = queue.is_staged();
        queue.stage(transfer, &keys);
        if queue.is_staged() && !was_staged {
            self.staged.push(path);
        }
        peer.in_flight += 1;
        self.in_flight += 1;
        Ok(true)
    }

    /// Posts every chain: one doorbell for each queue pair.
    fn post(&mut self) -> Result<(), TransportError> {
        for path in self.staged.drain(..) {
            let peer = &mut self.peers[path.peer as usize];
            let queue = &mut peer.endpoint.queues[path.queue as usize];
            if let Err(code) = queue.post() {
                let (lane, position) = queue.oldest().unwrap_or((LaneId(0), Position(0)));
                let cause = fault::call(&self.adapter, queue.numbers(), "ibv_post_send", code);
                return Err(TransportError { lane, position, cause });
            }
        }
        Ok(())
    }

    /// Takes the completions of one peer.
    fn poll_peer(&mut self, index: usize) -> Result<u64, TransportError> {
        let mut completed = 0;
        for _ in 0..CALLS_MAX {
            let peer = &mut self.peers[index];
            let count = match peer.endpoint.poll(&mut self.completions) {
                Ok(count) => count,
                Err(code) => {
                    let cause = fault::call(&self.adapter, Numbers::default(), "ibv_poll_cq", code);
                    return Err(self.blame(index, cause));
                }
            };
            let taken = &self.completions[..count];
            if taken.iter().any(is_failure) {
                return Err(self.failed(index, count));
            }
            let (mut ended, signals) = (0, &mut self.signals);
            signals.clear();
            for completion in taken {
                if completion.wr_id() & RECEIVE_BIT != 0 {
                    let received = receive(peer, self.inbound.as_deref_mut(), completion);
                    if let Err(cause) = received {
                        return Err(self.blame(index, cause));
                    }
                    continue;
                }
                let (queue, count) = QueuePair::split(completion.wr_id());
                let Some(queue) = peer.endpoint.queues.get_mut(queue) else { continue };
                queue.retire(count, |signal| {
                    ended += 1;
                    push_signal(signals, signal);
                });
            }
            peer.in_flight -= ended;
            completed += ended;
            if !self.signals.is_empty()
                && let Err(cause) = self.writer.raise(&self.signals)
            {
                return Err(self.blame(index, cause));
            }
            if count < self.completions.len() {
                break;
            }
        }
        self.in_flight -= completed;
        if self.inbound.is_some() {
            self.serve_receivers(index)?;
        }
        Ok(completed)
    }

    /// Raises the completions of transfers that had ended when they were submitted.
    fn end_at_once(&mut self) -> Result<u64, TransportError> {
        if self.ended.is_empty() {
            return Ok(0);
        }
        self.signals.clear();
        for signal in self.ended.iter().copied() {
            push_signal(&mut self.signals, signal);
        }
        let ended = self.ended.len() as u64;
        self.ended.clear();
        self.in_flight -= ended;
        if !self.signals.is_empty()
            && let Err(cause) = self.writer.raise(&self.signals)
        {
            return Err(self.blame(0, cause));
        }
        Ok(ended)
    }

    /// Receive requests are posted anew, and their number is reported to the peer.
    fn serve_receivers(&mut self, index: usize) -> Result<(), TransportError> {
        for at in 0..self.peers[index].endpoint.queues.len() {
            let queue = &mut self.peers[index].endpoint.queues[at];
            if let Err(code) = queue.serve_receiver() {
                let cause = fault::call(&self.adapter, queue.numbers(), "ibv_post_recv", code);
                return Err(self.blame(index, cause));
            }
        }
        Ok(())
    }

    /// The error of the first of `count` completions that failed by itself; those that were
    /// flushed behind it are consequences.
    fn failed(&self, index: usize, count: usize) -> TransportError {
        let errors = || {
            self.completions[..count].iter().filter(|seen| is_failure(seen)).filter_map(
                |completion| {
                    let (status, vendor_code) = completion.error()?;
                    Some((QueuePair::split(completion.wr_id()), status, vendor_code))
                },
            )
        };
        let own = errors().find(|(_, status, _)| !fault::is_flush(*status));
        let ((queue, number), status, vendor_code) =
            own.or_else(|| errors().next()).expect("the caller has seen an error");
        // Read in any case: a note of a port that went down belongs to the completion's error.
        let event = self.fatal_event();
        if fault::is_flush(status)
            && let Some(event) = event
        {
            // The queue pair failed for a reason that no completion reports.
            return self.event(event);
        }
        let queues = &self.peers[index].endpoint.queues;
        let queue = &queues[queue.min(queues.len() - 1)];
        let (lane, position) = queue.transfer_of(number).unwrap_or((LaneId(0), Position(0)));
        let cause = fault::completion(&self.adapter, queue, status, vendor_code);
        TransportError { lane, position, cause }
    }

    fn fatal_event(&self) -> Option<Event> {
        let seen = self.event_seen.map(|(event, _)| event);
        seen.or_else(|| events::next_fatal(&self.adapter))
    }

    /// An event, blamed on the transfer that it hits first.
    fn event(&self, event: Event) -> TransportError {
        let queues = || {
            self.peers.iter().enumerate().flat_map(|(index, peer)| {
                peer.endpoint.queues.iter().map(move |queue| (index, queue))
            })
        };
        let hit = match event.subject {
            Subject::Queue(raw) => queues().find(|(_, queue)| queue.is(raw)),
            Subject::Adapter => None,
        };
        let numbers = hit.map_or_else(Numbers::default, |(_, queue)| queue.numbers());
        let cause = fault::event(&self.adapter, numbers, event.code);
        let busy = || queues().find(|(_, queue)| queue.oldest().is_some());
        let index = hit.or_else(busy).map_or(0, |(index, _)| index);
        self.blame(index, cause)
    }

    /// An error of one peer that no completion names a transfer for.
    fn blame(&self, index: usize, cause: TransportCause) -> TransportError {
        let index32 = index as u32;
        let oldest = self
            .peers
            .get(index)
            .and_then(|peer| peer.endpoint.queues.iter().find_map(QueuePair::oldest));
        let (lane, position) = oldest.unwrap_or_else(|| {
            let on_peer = |path: &Option<Path>| path.is_some_and(|path| path.peer == index32);
            let lane = self.lanes.iter().position(on_peer).unwrap_or(0);
            (LaneId(lane as u32), Position(0))
        });
        TransportError { lane, position, cause }
    }

    fn look_at_events(&mut self) -> Result<(), TransportError> {
        self.polls = (self.polls + 1) % POLLS_PER_EVENTS;
        if self.polls != 0 {
            return Ok(());
        }
        match self.event_seen {
            None => {
                let event = events::next_fatal(&self.adapter);
                self.event_seen = event.map(|event| (event, Instant::now()));
                Ok(())
            }
            // The completion of the failed transfer says more, the vendor's code among it, and an
            // adapter may write it after the event. No completion reports a failure of the whole
            // adapter.
            Some((event, since)) => {
                let waits = matches!(event.subject, Subject::Queue(_))
                    && self.in_flight > 0
                    && since.elapsed() < EVENT_GRACE;
                if waits { Ok(()) } else { Err(self.event(event)) }
            }
        }
    }
}

/// Keys for a transfer's memory.
fn resolve<'a>(
    transfer: &Transfer,
    local: &'a RangeTable<LocalRegion>,
    remote: &RangeTable<RemoteRegion>,
    by_immediate: bool,
) -> Result<Resolved<'a>, TransportCause> {
    let outside = |address: u64, length: u64| TransportCause::OutOfBounds { address, length };
    let mut keys = Resolved { local: None, data_key: 0, signal_key: 0, immediate: None };
    if transfer.length > 0 {
        let (here, there) = match transfer.pull {
            true => (transfer.destination, transfer.source),
            false => (transfer.source, transfer.destination),
        };
        let found = local.find(here, transfer.length);
        keys.local = Some(found.ok_or_else(|| outside(here, transfer.length))?);
        let found = remote.find(there, transfer.length);
        keys.data_key = found.ok_or_else(|| outside(there, transfer.length))?.rkey;
    }
    if let Some(signal) = transfer.arrival {
        let found = remote.find(signal.address, 8).ok_or_else(|| outside(signal.address, 8))?;
        keys.signal_key = found.rkey;
        if by_immediate {
            let immediate = immediate::encode(signal.address - found.base, signal.value);
            keys.immediate = Some(immediate.ok_or_else(|| outside(signal.address, 8))?);
        }
    }
    Ok(keys)
}

fn too_long(transfer: &Transfer) -> TransportCause {
    TransportCause::Other(format!(
        "{} bytes take more work requests than a queue pair has; raise RINGDOVE_QUEUE_DEPTH",
        transfer.length
    ))
}

/// Appends a signal; a later count of the same signal replaces the one before (R9 allows skips).
fn push_signal(signals: &mut Vec<SignalWrite>, signal: Option<SignalWrite>) {
    match (signals.last_mut(), signal) {
        (Some(last), Some(next)) if last.address == next.address => *last = next,
        (_, Some(next)) => signals.push(next),
        (_, None) => {}
    }
}

fn empty_completions() -> Box<[sys::ibv_wc]> {
    // SAFETY: a completion is plain numbers, for which zeros are values.
    (0..COMPLETIONS_PER_CALL).map(|_| unsafe { std::mem::zeroed() }).collect()
}

impl Transport for VerbsTransport {
    fn submit(&mut self, batch: &[Transfer]) -> Result<usize, TransportError> {
        self.apply_commands();
        let mut taken = 0;
        for transfer in batch {
            match self.stage(transfer) {
                Ok(true) => taken += 1,
                Ok(false) => break,
                Err(cause) => {
                    let (lane, position) = (transfer.lane, transfer.position);
                    return Err(TransportError { lane, position, cause });
                }
            }
        }
        self.post()?;
        Ok(taken)
    }

    fn poll(&mut self) -> Result<Polled, TransportError> {
        self.apply_commands();
        let mut completed = self.end_at_once()?;
        let listens = self.inbound.is_some();
        if self.in_flight > 0 || listens {
            for index in 0..self.peers.len() {
                if self.peers[index].in_flight > 0 || listens {
                    completed += self.poll_peer(index)?;
                }
            }
        }
        if let Some(inbound) = &mut self.inbound
            && let Err(cause) = inbound.raise()
        {
            return Err(self.blame(0, cause));
        }
        self.look_at_events()?;
        Ok(Polled { completed })
    }

    fn listens(&self) -> bool {
        self.adapter.settings().order != VerbsOrder::Write
    }
}

/// Not the flush of a receive request: that follows from something which says more, or from
/// nothing worse than the end of the connection.
fn is_failure(completion: &sys::ibv_wc) -> bool {
    let is_receive = completion.wr_id() & RECEIVE_BIT != 0;
    completion.error().is_some_and(|(status, _)| !(is_receive && fault::is_flush(status)))
}

/// Takes note of immediate data of a peer.
fn receive(
    peer: &mut Peer,
    inbound: Option<&mut Inbound>,
    completion: &sys::ibv_wc,
) -> Result<(), TransportCause> {
    if completion.error().is_some() {
        return Ok(());
    }
    let queue = (completion.wr_id() & !RECEIVE_BIT) as usize;
    let receiver = peer.endpoint.queues.get_mut(queue).and_then(|queue| queue.receiver.as_mut());
    let (Some(receiver), Some(inbound)) = (receiver, inbound) else { return Ok(()) };
    receiver.count_used()?;
    inbound.receive(u32::from_be(completion.imm_data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_of_one_word_are_written_once_with_the_highest_count() {
        let signal = |address, value| Some(SignalWrite { address, value });
        let mut signals = Vec::new();
        for next in [signal(8, 1), None, signal(8, 2), signal(16, 1), signal(8, 3)] {
            push_signal(&mut signals, next);
        }
        let seen: Vec<_> = signals.iter().map(|signal| (signal.address, signal.value)).collect();
        assert_eq!(seen, [(8, 2), (16, 1), (8, 3)]);
    }
}
