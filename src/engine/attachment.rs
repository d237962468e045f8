//! One rank of one communicator, as the proxy serves it.

use super::control::{AttachmentHandle, Command, Shared};
use super::proxy::Expects;
use super::route::RouteTable;
use super::statistics::Snapshot;
use super::thread::Waker;
use super::watch::Watch;
use super::{Alarm, EngineSettings, Progress};
use crate::error::{BadDescriptor, DescriptorFault, Error, Result};
use crate::id::{LaneId, Position, Rank, RouteId};
use crate::ring::{Committed, Consumer};
use crate::shared::{AtomicWord64, Row64, Word64, WordArray};
use crate::transport::{Transfer, Transport, TransportCause, TransportError};
use crossbeam_channel::{Receiver, Sender};
use ringdove_kernels::descriptor::Descriptor;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What a communicator gives for one of its ranks. The ring is memory that devices reach, unless a
/// simulation gives it words of another kind.
pub struct AttachmentParts<S = WordArray, T = AtomicWord64> {
    /// The rank.
    pub rank: Rank,
    /// The engine's end of its ring.
    pub consumer: Consumer<S, T>,
    /// What moves its bytes.
    pub transport: Box<dyn Transport>,
    /// Where failures go.
    pub alarm: Arc<dyn Alarm>,
    /// The record of expired waits; `None` where no device waits (host-side tests).
    pub watch: Option<Watch>,
    /// How many launches of the rank have ended, as its kernels say; those that have begun are
    /// [announced](AttachmentHandle::announce). `None` where doorbells come unannounced.
    pub launches_ended: Option<T>,
}

/// One rank's ring, routes and transport, in the hands of a proxy.
pub struct Attachment<S = WordArray, T = AtomicWord64> {
    parts: AttachmentParts<S, T>,
    table: RouteTable,
    commands: Receiver<Command>,
    commands_applied: u64,
    shared: Arc<Shared>,
    coalesce_bytes_max: u64,
    watch_interval: Duration,
    watch_due: Duration,
    /// Checked transfers that the transport has not taken yet. Never longer than `pending_max`, so
    /// it never grows after construction.
    pending: VecDeque<Transfer>,
    pending_max: usize,
    /// Sequence number of `pending[0]`, counted from 1.
    pending_first: u64,
    in_flight: u64,
    /// The transport wants to be polled at any time.
    listens: bool,
    /// Lane and position of the last transfer that the transport took, to name in an error.
    submitted_last: (LaneId, Position),
    counters: Snapshot,
    condition: Condition,
    /// Who waits for the attachment to have nothing left to do.
    idle_waiters: Vec<Sender<()>>,
}

/// How much an attachment still does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    /// Everything.
    Serving,
    /// Nothing new is started; what is in flight may end.
    Failed,
    /// The transport failed (or a step panicked): it is not called again.
    Dead,
}

impl<S: Row64, T: Word64> Attachment<S, T> {
    /// An attachment, and the handle by which the control plane reaches it.
    pub fn new(
        parts: AttachmentParts<S, T>,
        settings: &EngineSettings,
    ) -> (Self, AttachmentHandle) {
        let (handle, commands) = AttachmentHandle::new();
        let shared = handle.shared();
        let attachment = Self {
            listens: parts.transport.listens(),
            parts,
            table: RouteTable::default(),
            commands,
            commands_applied: 0,
            shared,
            coalesce_bytes_max: settings.coalesce_bytes_max,
            watch_interval: settings.watch_interval,
            watch_due: Duration::ZERO,
            pending: VecDeque::with_capacity(settings.batch_max),
            pending_max: settings.batch_max,
            pending_first: 1,
            in_flight: 0,
            submitted_last: (LaneId(0), Position(0)),
            counters: Snapshot::default(),
            condition: Condition::Serving,
            idle_waiters: Vec::new(),
        };
        (attachment, handle)
    }

    /// One step: look at the control plane, drain the ring, submit, poll.
    pub(super) fn serve(&mut self, now: Duration, inbox: &mut [Committed]) -> Progress {
        // Acquire: the commands that were counted can be received. Pairs with
        // AttachmentHandle::send. Cheaper than asking the channel at each step.
        if self.shared.commands_sent.load(Ordering::Acquire) != self.commands_applied {
            self.apply_commands();
        }
        if self.condition == Condition::Serving && self.parts.alarm.is_raised() {
            // Somebody else failed or aborted. The buffers of queued transfers may go away now.
            self.condition = Condition::Failed;
            self.pending.clear();
        }
        let mut progress = Progress::default();
        if self.condition == Condition::Serving {
            progress.descriptors = self.drain(inbox);
            progress.submitted = self.submit();
        }
        if self.condition != Condition::Dead {
            progress.completed = self.poll_transport();
        }
        if now >= self.watch_due {
            self.watch_due = now + self.watch_interval;
            self.look_at_record();
        }
        if !self.idle_waiters.is_empty() && self.unfinished().is_none() {
            for reply in self.idle_waiters.drain(..) {
                // The other end may have given up waiting, which is its business.
                let _ = reply.try_send(());
            }
        }
        progress.in_flight = self.in_flight;
        progress.pending = self.pending.len() as u64;
        progress.listens = self.listens && self.condition == Condition::Serving;
        progress.expects = self.expects();
        self.count(&progress);
        progress
    }

    /// What may come by doorbells. Once the communicator has failed nothing is served.
    fn expects(&self) -> Expects {
        if self.condition != Condition::Serving {
            return Expects::Nothing;
        }
        let Some(ended) = &self.parts.launches_ended else { return Expects::Anything };
        // Relaxed, both: they decide how the thread pauses, and nothing is read on their strength.
        // A launch that is announced after this wakes the thread. Executor: row 17.
        let announced = self.shared.launches_announced.load(Ordering::Relaxed);
        if ended.load(Ordering::Relaxed) < announced { Expects::Launch } else { Expects::Nothing }
    }

    /// Ring to pending transfers: decode, check, coalesce. Returns the descriptors taken.
    fn drain(&mut self, inbox: &mut [Committed]) -> u64 {
        let room = inbox.len().min(self.pending_max - self.pending.len());
        let count = self.parts.consumer.poll(&mut inbox[..room]);
        for committed in &inbox[..count] {
            match self.check(committed) {
                Ok(transfer) => self.enqueue(transfer),
                Err(error) => {
                    self.fail(Error::BadDescriptor(Box::new(error)), Condition::Failed);
                    break;
                }
            }
        }
        count as u64
    }

    fn check(&mut self, committed: &Committed) -> Result<Transfer, BadDescriptor> {
        let rank = self.parts.rank;
        let bad = |fields, reason| BadDescriptor {
            rank,
            position: committed.position,
            words: committed.words,
            fields,
            reason,
        };
        let descriptor = Descriptor::decode(committed.words)
            .map_err(|reason| bad(None, DescriptorFault::Malformed(reason)))?;
        if self.table.route(RouteId(descriptor.route)).is_none() {
            // It may have been added since this step began, and whoever rang knows that it was.
            self.apply_commands();
        }
        let transfer = self
            .table
            .check(&descriptor, committed.position)
            .map_err(|reason| bad(Some(descriptor), reason))?;
        self.counters.bytes += transfer.length;
        self.counters.signals += u64::from(descriptor.arrival) + u64::from(descriptor.completion);
        Ok(transfer)
    }

    /// Appends a transfer, or merges it into the last pending one of its lane. Merging with one
    /// that is not the very last overtakes other lanes only, which R11 leaves unordered.
    fn enqueue(&mut self, transfer: Transfer) {
        let Some(lane) = self.table.lane_state(transfer.lane) else { return };
        let last = lane.last_pending.checked_sub(self.pending_first);
        let last = last.and_then(|index| self.pending.get_mut(usize::try_from(index).ok()?));
        if let Some(last) = last
            && merge(last, &transfer, self.coalesce_bytes_max)
        {
            return;
        }
        lane.last_pending = self.pending_first + self.pending.len() as u64;
        self.pending.push_back(transfer);
    }

    /// Offers what is pending until the transport takes no more. Returns the transfers taken.
    fn submit(&mut self) -> u64 {
        let mut taken = 0;
        // Twice at most: a ring buffer is two slices.
        while !self.pending.is_empty() {
            let offered = self.pending.as_slices().0;
            let (first, count) = (offered[0], offered.len());
            match self.parts.transport.submit(offered) {
                Ok(accepted) if accepted <= count => {
                    if let Some(last) = offered[..accepted].last() {
                        self.submitted_last = (last.lane, last.position);
                    }
                    self.pending.drain(..accepted);
                    self.pending_first += accepted as u64;
                    self.in_flight += accepted as u64;
                    taken += accepted as u64;
                    if accepted < count {
                        break;
                    }
                }
                Ok(accepted) => {
                    let what = format!("it accepted {accepted} of {count} transfers");
                    self.fail_transport(contract(&first, what));
                    break;
                }
                Err(error) => {
                    self.fail_transport(error);
                    break;
                }
            }
        }
        self.counters.transfers += taken;
        taken
    }

    fn poll_transport(&mut self) -> u64 {
        if self.in_flight == 0 && !self.listens {
            return 0;
        }
        match self.parts.transport.poll() {
            Ok(polled) if polled.completed <= self.in_flight => {
                self.in_flight -= polled.completed;
                polled.completed
            }
            Ok(polled) => {
                let what =
                    format!("it completed {} of {} transfers", polled.completed, self.in_flight);
                // Something is in flight, so something was submitted.
                let (lane, position) = self.submitted_last;
                let cause = TransportCause::Contract(what);
                self.fail_transport(TransportError { lane, position, cause });
                0
            }
            Err(error) => {
                self.fail_transport(error);
                0
            }
        }
    }

    fn look_at_record(&mut self) {
        if self.condition == Condition::Serving
            && let Some(error) = self.parts.watch.as_ref().and_then(Watch::poll)
        {
            self.fail(error, Condition::Failed);
        }
    }

    fn fail_transport(&mut self, error: TransportError) {
        // The lane is registered: transfers come from the table alone. A transport that names
        // another one gets its words passed on with this rank as the peer.
        let peer = self.table.lane(error.lane).map_or(self.parts.rank, |lane| lane.peer);
        self.fail(Error::Transport { rank: self.parts.rank, peer, error }, Condition::Dead);
    }

    /// The first failure sticks; every failure goes to the alarm, which keeps its own first.
    pub(super) fn poison(&mut self, error: Error) {
        self.fail(error, Condition::Dead);
    }

    fn fail(&mut self, error: Error, condition: Condition) {
        self.condition = condition;
        self.pending.clear();
        if condition == Condition::Dead {
            self.in_flight = 0;
        }
        // A second failure of the same attachment is a consequence of the first.
        if self.shared.failure.set(error.clone()).is_ok() {
            self.parts.alarm.raise(error);
        }
    }

    fn apply_commands(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            self.commands_applied += 1;
            match command {
                Command::Lane(id, lane) => self.table.add_lane(id, lane),
                Command::Route(id, route) => self.table.set_route(id, route),
                // The other end may have given up waiting, which is its business.
                Command::Fence(reply) => drop(reply.try_send(())),
                Command::WaitIdle(reply) => self.idle_waiters.push(reply),
            }
        }
    }

    fn count(&mut self, progress: &Progress) {
        self.counters.descriptors += progress.descriptors;
        self.counters.occupancy_max = self.parts.consumer.occupancy_max();
        if progress.is_idle() {
            self.counters.steps_idle += 1;
            self.shared.statistics.publish_idle(self.counters.steps_idle);
        } else {
            self.counters.steps_busy += 1;
            self.counters.pending = progress.pending;
            self.counters.in_flight = progress.in_flight;
            self.counters.lane = self.submitted_last.0.0.into();
            self.shared.statistics.publish(&self.counters);
        }
    }

    /// Tells the handle whom to wake. The first one stays.
    pub(super) fn set_waker(&self, waker: Waker) {
        let _ = self.shared.waker.set(waker);
    }

    /// Why this attachment has more to do before it may go, or `None`.
    pub(super) fn unfinished(&self) -> Option<String> {
        let ring = self.condition == Condition::Serving && !self.parts.consumer.is_empty();
        if ring || !self.pending.is_empty() || self.in_flight > 0 {
            return Some(format!(
                "{} at ring {}: ring {}, {} transfers waiting, {} in flight",
                self.parts.rank,
                self.parts.consumer.next_position(),
                if ring { "not empty" } else { "empty" },
                self.pending.len(),
                self.in_flight
            ));
        }
        None
    }
}

/// Merges `next` into `last` if both are on one lane, and one transfer can stand for both: the
/// data is contiguous at both ends (then the routes must be the same, for R8), or `next` has no
/// data. The higher counts of `next` replace those of `last`, which are raised after both.
fn merge(last: &mut Transfer, next: &Transfer, bytes_max: u64) -> bool {
    if next.length > 0 {
        let contiguous = last.length > 0
            && last.route == next.route
            && last.source + last.length == next.source
            && last.destination + last.length == next.destination
            && last.length + next.length <= bytes_max;
        if !contiguous {
            return false;
        }
    } else if bytes_max == 0 {
        return false;
    }
    last.length += next.length;
    last.arrival = next.arrival.or(last.arrival);
    last.completion = next.completion.or(last.completion);
    true
}

fn contract(transfer: &Transfer, what: String) -> TransportError {
    TransportError {
        lane: transfer.lane,
        position: transfer.position,
        cause: TransportCause::Contract(what),
    }
}
