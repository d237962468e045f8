//! One queue pair: work requests staged, posted as one chain, and retired by completions.
//!
//! Credits. A transfer takes as many work requests as it needs or is refused; at most `depth` are
//! posted and not yet retired, so the send queue cannot overflow. The completion queue has room
//! for a completion of each of them (a queue pair in error completes them all), so it cannot
//! either.
//!
//! Signalling. The adapter reports a work request only if asked, or on error. Asked are: the last
//! one of each chain (else the end would never be known), the last one of a transfer whose source
//! somebody waits for, and one in every quarter of the queue (so that credits come back in time).
//! Work requests of one queue pair complete in order, so each report retires all before it.

use super::adapter::{Adapter, refused};
use super::address::{CreditAddress, NUMBER_MAX, QueueAddress};
use super::receive::Receiver;
use super::region::LocalRegion;
use crate::error::{Error, Result};
use crate::id::{LaneId, Position};
use crate::transport::{SignalWrite, Transfer};
use ibverbs_sys as sys;
use std::collections::VecDeque;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// Bytes that a work request carries itself, without a fetch by the adapter. Signals must fit; 64
/// also takes the smallest messages, and more would make every work request larger.
const INLINE_WANTED: [u32; 2] = [64, 8];
/// Bytes of a signal.
const SIGNAL_BYTES: u64 = 8;
/// The low bits of a work request's id count work requests; the high bits name the queue.
const COUNT_BITS: u32 = 48;

/// A queue pair, destroyed on drop.
pub(super) struct QueuePair {
    pub(super) raw: NonNull<sys::ibv_qp>,
    /// Its place in the endpoint, for the ids of work requests.
    index: u64,
    pub(super) number: u32,
    pub(super) packet_number: u32,
    pub(super) peer_number: u32,
    inline_bytes_max: u64,
    message_bytes_max: u64,
    chain: Chain,
    depth: u64,
    /// Work requests ever staged, and ever retired.
    staged: u64,
    retired: u64,
    unsignalled: u64,
    /// Transfers that have not ended, oldest first. Never longer than `depth`.
    pending: VecDeque<Pending>,
    /// Set where signals come as immediate data.
    pub(super) receiver: Option<Receiver>,
    adapter: Arc<Adapter>,
}

/// Work requests that wait to be posted. The adapter's library copies them when they are.
struct Chain {
    requests: Box<[sys::ibv_send_wr]>,
    pieces: Box<[sys::ibv_sge]>,
    /// Values of signals, which inline requests are copied from.
    signals: Box<[u64]>,
    length: usize,
}

// SAFETY: the pointers lead to boxes of the same value, or to the queue pair that it owns; queue
// pairs may be used from any thread, one at a time.
unsafe impl Send for QueuePair {}

/// A transfer that has not ended.
struct Pending {
    /// It has ended when this many work requests have.
    end: u64,
    lane: LaneId,
    position: Position,
    completion: Option<SignalWrite>,
}

/// Keys and addresses of one transfer, looked up already.
pub(super) struct Resolved<'a> {
    /// This side's end of the data: its source, or where it is read to; `None` without data.
    pub(super) local: Option<&'a LocalRegion>,
    /// The key for the peer's end of the data.
    pub(super) data_key: u32,
    /// The key for the arrival signal.
    pub(super) signal_key: u32,
    /// The arrival signal as immediate data, where it goes so.
    pub(super) immediate: Option<u32>,
}

/// What a work request does at the other side.
#[derive(Clone, Copy)]
enum Action {
    Write,
    WriteWithImmediate(u32),
    Read,
}

/// Where it does that.
#[derive(Clone, Copy, Default)]
pub(super) struct Target {
    pub(super) address: u64,
    pub(super) key: u32,
}

/// A queue pair's number, here and at the peer (0 before both are connected).
#[derive(Clone, Copy, Default)]
pub(super) struct Numbers {
    pub(super) own: u32,
    pub(super) peer: u32,
}

/// How many work requests a queue pair holds.
#[derive(Clone, Copy)]
pub(super) struct Depths {
    pub(super) send: usize,
    /// 0 where nothing is received.
    pub(super) receive: usize,
}

/// A work request.
struct WorkRequest {
    id: u64,
    action: Action,
    /// The local bytes; none for an immediate without data.
    piece: Option<sys::ibv_sge>,
    target: Target,
    inline: bool,
}

impl QueuePair {
    /// A queue pair in its first state. `completions` outlives it.
    ///
    /// # Safety
    /// `completions` is a completion queue of the adapter, destroyed after the queue pair.
    pub(super) unsafe fn create(
        adapter: &Arc<Adapter>,
        completions: NonNull<sys::ibv_cq>,
        index: usize,
        depths: Depths,
        packet_number: u32,
    ) -> Result<Self> {
        let create = |inline: u32| {
            let mut attributes = sys::ibv_qp_init_attr {
                send_cq: completions.as_ptr(),
                recv_cq: completions.as_ptr(),
                qp_type: sys::ibv_qp_type::IBV_QPT_RC,
                cap: sys::ibv_qp_cap {
                    max_send_wr: depths.send as u32,
                    max_recv_wr: depths.receive.max(1) as u32,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: inline,
                },
                ..Default::default()
            };
            // SAFETY: protection domain and completion queue are alive; the attributes outlive
            // the call, which writes back what was granted.
            let raw = unsafe {
                (adapter.context().functions.create_qp)(
                    adapter.protection_domain(),
                    &mut attributes,
                )
            };
            NonNull::new(raw).map(|raw| (raw, attributes.cap.max_inline_data))
        };
        let created = INLINE_WANTED.into_iter().find_map(create);
        let (raw, inline) = created.ok_or_else(|| {
            refused(
                "ibv_create_qp",
                adapter.name(),
                &format!(" with {} work requests", depths.send),
            )
        })?;
        // SAFETY: the queue pair was created just now.
        let number = unsafe { raw.as_ref().qp_num };
        Ok(Self {
            raw,
            index: index as u64,
            number,
            packet_number: packet_number & NUMBER_MAX,
            peer_number: 0,
            inline_bytes_max: u64::from(inline),
            message_bytes_max: adapter.facts().message_bytes_max,
            chain: Chain::new(depths.send),
            depth: depths.send as u64,
            staged: 0,
            retired: 0,
            unsignalled: 0,
            pending: VecDeque::with_capacity(depths.send),
            receiver: None,
            adapter: adapter.clone(),
        })
    }

    /// Its number here and at the peer.
    pub(super) fn numbers(&self) -> Numbers {
        Numbers { own: self.number, peer: self.peer_number }
    }

    pub(super) fn address(&self) -> QueueAddress {
        QueueAddress { number: self.number, packet_number: self.packet_number }
    }

    /// Moves the queue pair on to another state.
    ///
    /// # Errors
    /// [`Error::System`] with the adapter's answer.
    pub(super) fn modify(
        &mut self,
        what: &str,
        attributes: &mut sys::ibv_qp_attr,
        mask: sys::ibv_qp_attr_mask,
    ) -> Result<()> {
        let functions = self.adapter.context().functions;
        // SAFETY: the queue pair is alive and the attributes outlive the call.
        let status =
            unsafe { (functions.modify_qp)(self.raw.as_ptr(), attributes, mask.0.cast_signed()) };
        if status == 0 {
            return Ok(());
        }
        let cause = std::io::Error::from_raw_os_error(status);
        Err(Error::System {
            what: format!(
                "moving queue pair {:#x} of {} to {what}",
                self.number,
                self.adapter.name()
            ),
            cause: cause.to_string(),
        })
    }

    /// Posts the receive requests of a queue pair that takes immediates; `peer` is what the peer
    /// tells of its own.
    ///
    /// # Errors
    /// [`Error::System`] with the adapter's answer.
    pub(super) fn prepare_receiver(&mut self, peer: CreditAddress) -> Result<()> {
        let Some(receiver) = self.receiver.as_mut() else { return Ok(()) };
        receiver.meet(peer);
        receiver.post(self.raw).map_err(|code| Error::System {
            what: format!("posting receive requests on {}", self.adapter.name()),
            cause: std::io::Error::from_raw_os_error(code).to_string(),
        })
    }

    /// Work requests that a transfer takes: its data in messages that the adapter can carry, and
    /// its signal. None if only a completion is asked for: it has ended with all before it.
    fn requests_of(&self, transfer: &Transfer) -> u64 {
        let data = transfer.length.div_ceil(self.message_bytes_max);
        // Immediate data goes with the last of the data, where any is written.
        let apart = self.receiver.is_none() || data == 0 || transfer.pull;
        data + u64::from(transfer.arrival.is_some() && apart)
    }

    /// Work requests for transfers: where credits are written, one is kept for them.
    fn depth_for_transfers(&self) -> u64 {
        self.depth - u64::from(self.receiver.is_some())
    }

    /// True if the transfer can never be taken, however long somebody waits.
    pub(super) fn exceeds(&self, transfer: &Transfer) -> bool {
        self.requests_of(transfer) > self.depth_for_transfers()
    }

    /// True if there is room for the transfer now, here and, for its signal, at the peer.
    pub(super) fn has_room(&self, transfer: &Transfer) -> bool {
        let requests = self.requests_of(transfer);
        let room = self.staged - self.retired + requests <= self.depth_for_transfers()
            && self.pending.len() < self.depth as usize;
        room && (transfer.arrival.is_none()
            || self.receiver.as_ref().is_none_or(Receiver::may_send))
    }

    /// True if a transfer that only asks for a completion has ended as soon as it is staged.
    pub(super) fn has_ended(&self, transfer: &Transfer) -> bool {
        self.requests_of(transfer) == 0 && self.pending.is_empty()
    }

    /// True if something is staged and not posted.
    pub(super) fn is_staged(&self) -> bool {
        self.chain.length > 0
    }

    /// Appends a transfer, for which there is room, to the chain.
    pub(super) fn stage(&mut self, transfer: &Transfer, keys: &Resolved<'_>) {
        let requests = self.requests_of(transfer);
        let mut done = 0;
        let (here, there) = match transfer.pull {
            true => (transfer.destination, transfer.source),
            false => (transfer.source, transfer.destination),
        };
        while let Some(local) = keys.local
            && done < transfer.length
        {
            let length = (transfer.length - done).min(self.message_bytes_max);
            // The processor can read host memory, and saves the adapter a fetch.
            let inline = !transfer.pull && local.host.is_some() && length <= self.inline_bytes_max;
            let piece = sys::ibv_sge { addr: here + done, length: length as u32, lkey: local.lkey };
            let target = Target { address: there + done, key: keys.data_key };
            done += length;
            let action = match keys.immediate {
                _ if transfer.pull => Action::Read,
                // R9: the receiver gets its completion when all of this and of what went before is
                // there.
                Some(immediate) if done == transfer.length => Action::WriteWithImmediate(immediate),
                _ => Action::Write,
            };
            self.push(action, Some(piece), target, inline);
        }
        match (transfer.arrival, keys.immediate) {
            (Some(_), Some(immediate)) => {
                if done == 0 || transfer.pull {
                    let action = Action::WriteWithImmediate(immediate);
                    self.push(action, None, Target::default(), false);
                    self.chain.fence_last(transfer.pull);
                }
                self.receiver.iter_mut().for_each(Receiver::count_sent);
            }
            (Some(signal), None) => {
                // R9: an ordered write behind the data, on the same queue pair.
                let piece = self.chain.signal(signal.value);
                let target = Target { address: signal.address, key: keys.signal_key };
                self.push(Action::Write, Some(piece), target, true);
                self.chain.fence_last(transfer.pull);
            }
            (None, _) => {}
        }
        self.unsignalled += requests;
        let wanted = transfer.completion.is_some() || self.unsignalled >= self.depth / 4;
        // What was posted before had its last one signalled.
        if wanted && self.is_staged() {
            self.signal_last();
        }
        self.pending.push_back(Pending {
            end: self.staged,
            lane: transfer.lane,
            position: transfer.position,
            completion: transfer.completion,
        });
    }

    /// Appends a read of `target`, which belongs to no transfer.
    pub(super) fn stage_read(&mut self, into: sys::ibv_sge, target: Target) {
        self.push(Action::Read, Some(into), target, false);
    }

    /// Posts receive requests anew, and reports to the peer how many have been used, if it is due.
    ///
    /// # Errors
    /// The `errno` of the adapter.
    pub(super) fn serve_receiver(&mut self) -> std::result::Result<(), i32> {
        let Some(receiver) = self.receiver.as_mut() else { return Ok(()) };
        receiver.post(self.raw)?;
        let Some((used, peer)) = receiver.due() else { return Ok(()) };
        // A chain that others have begun is posted by them; without room it is reported later.
        if self.chain.length > 0 || self.staged - self.retired >= self.depth {
            return Ok(());
        }
        receiver.count_told();
        let piece = self.chain.signal(used);
        let target = Target { address: peer.address, key: peer.key };
        self.push(Action::Write, Some(piece), target, true);
        self.post()
    }

    fn push(&mut self, action: Action, piece: Option<sys::ibv_sge>, target: Target, inline: bool) {
        self.staged += 1;
        let id = self.index << COUNT_BITS | self.staged & ((1 << COUNT_BITS) - 1);
        self.chain.push(WorkRequest { id, action, piece, target, inline });
    }

    fn signal_last(&mut self) {
        self.chain.signal_last();
        self.unsignalled = 0;
    }

    /// Posts the chain: one doorbell for all of it.
    ///
    /// # Errors
    /// The `errno` of the adapter.
    pub(super) fn post(&mut self) -> std::result::Result<(), i32> {
        self.signal_last();
        self.chain.length = 0;
        let mut bad = null_mut();
        // SAFETY: the queue pair is alive; the chain's requests are linked, end in null, and
        // point to pieces and signals that outlive the call, which copies them. The data's memory
        // is registered, or (inline) kept alive by its `LocalRegion`.
        let status = unsafe {
            let context = &*self.raw.as_ref().context;
            match context.ops.post_send {
                Some(post) => post(self.raw.as_ptr(), self.chain.requests.as_mut_ptr(), &mut bad),
                None => libc_enosys(),
            }
        };
        if status == 0 { Ok(()) } else { Err(status) }
    }

    /// Takes note of a completion: the work request `count`, and all before it, have ended. Calls
    /// `ended` with the completion signal of each transfer that has.
    pub(super) fn retire(&mut self, count: u64, mut ended: impl FnMut(Option<SignalWrite>)) {
        // The id has fewer bits than the counter.
        let low = (1 << COUNT_BITS) - 1;
        let retired = self.retired + (count.wrapping_sub(self.retired) & low);
        self.retired = retired.min(self.staged);
        while let Some(first) = self.pending.front()
            && first.end <= self.retired
        {
            ended(first.completion);
            self.pending.pop_front();
        }
    }

    /// Which transfer the work request `count` belongs to.
    pub(super) fn transfer_of(&self, count: u64) -> Option<(LaneId, Position)> {
        let low = (1 << COUNT_BITS) - 1;
        let found = self.pending.iter().find(|pending| pending.end & low >= count & low);
        found.or(self.pending.back()).map(|pending| (pending.lane, pending.position))
    }

    /// The oldest transfer that has not ended.
    pub(super) fn oldest(&self) -> Option<(LaneId, Position)> {
        self.pending.front().map(|pending| (pending.lane, pending.position))
    }

    pub(super) fn is(&self, raw: *mut sys::ibv_qp) -> bool {
        self.raw.as_ptr() == raw
    }

    /// Queue and count of a work request's id.
    pub(super) fn split(id: u64) -> (usize, u64) {
        ((id >> COUNT_BITS) as usize, id & ((1 << COUNT_BITS) - 1))
    }
}

impl Action {
    /// Its code, and the immediate data as it goes over the wire.
    fn code(self) -> (sys::ibv_wr_opcode::Type, u32) {
        match self {
            Self::Write => (sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE, 0),
            Self::WriteWithImmediate(immediate) => {
                (sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, immediate.to_be())
            }
            Self::Read => (sys::ibv_wr_opcode::IBV_WR_RDMA_READ, 0),
        }
    }
}

/// What a context without the operation would answer.
fn libc_enosys() -> i32 {
    nix::errno::Errno::ENOSYS as i32
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // Destroying flushes what is posted; the adapter touches no memory of it afterwards.
        // SAFETY: created by `create`, destroyed only here.
        let status = unsafe { (self.adapter.context().functions.destroy_qp)(self.raw.as_ptr()) };
        if status != 0 {
            let adapter = self.adapter.name();
            tracing::warn!(adapter, status, queue_pair = self.number, "queue pair stays");
        }
    }
}

impl Chain {
    fn new(depth: usize) -> Self {
        Self {
            requests: (0..depth).map(|_| sys::ibv_send_wr::default()).collect(),
            pieces: (0..depth).map(|_| sys::ibv_sge::default()).collect(),
            signals: (0..depth).map(|_| 0).collect(),
            length: 0,
        }
    }

    /// A piece that holds the value of a signal, for the request that is pushed next.
    fn signal(&mut self, value: u64) -> sys::ibv_sge {
        let signal = &mut self.signals[self.length];
        *signal = value;
        sys::ibv_sge { addr: (&raw const *signal) as u64, length: SIGNAL_BYTES as u32, lkey: 0 }
    }

    fn push(&mut self, work: WorkRequest) {
        let WorkRequest { id, action, piece, target, inline } = work;
        let at = self.length;
        self.length += 1;
        self.pieces[at] = piece.unwrap_or_default();
        let requests = self.requests.as_mut_ptr();
        let pieces = self.pieces.as_mut_ptr();
        let flags = if inline { sys::ibv_send_flags::IBV_SEND_INLINE.0 } else { 0 };
        // SAFETY: `at` is below the depth, since the queue pair grants no more requests than that
        // and the chain is a part of them; `at - 1` was written before.
        unsafe {
            let request = &mut *requests.add(at);
            request.wr_id = id;
            request.next = null_mut();
            request.sg_list = pieces.add(at);
            request.num_sge = i32::from(piece.is_some());
            (request.opcode, request.__bindgen_anon_1.imm_data) = action.code();
            request.send_flags = flags;
            request.wr.rdma.remote_addr = target.address;
            request.wr.rdma.rkey = target.key;
            if at > 0 {
                (*requests.add(at - 1)).next = requests.add(at);
            }
        }
    }

    /// Where `after_reads`, the request that was pushed last begins when the reads before it have
    /// ended: adapters keep the order of writes alone.
    fn fence_last(&mut self, after_reads: bool) {
        if let (true, Some(last)) = (after_reads, self.length.checked_sub(1)) {
            self.requests[last].send_flags |= sys::ibv_send_flags::IBV_SEND_FENCE.0;
        }
    }

    fn signal_last(&mut self) {
        if let Some(last) = self.length.checked_sub(1) {
            self.requests[last].send_flags |= sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
    }
}
