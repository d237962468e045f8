//! The receiving side of a queue pair on which signals come as immediate data.
//!
//! Each of them takes a receive request, which carries no memory. Credits keep a sender from
//! finding none, which would cost it retries, or the connection: the receiver posts as many as it
//! reports to the sender at the start, posts each again when it was used, and then writes how many
//! it has used into a word of the sender's memory. A sender that has sent a full queue more than
//! that word says waits.

use super::address::CreditAddress;
use super::region::MemoryRegion;
use crate::shared::AtomicWord64;
use crate::transport::TransportCause;
use ibverbs_sys as sys;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::Ordering;

/// The bit that distinguishes a receive request's id from those of sends.
pub(super) const RECEIVE_BIT: u64 = 1 << 63;

/// How many receive requests the adapter holds. Its completions are counted against what was
/// posted: the number that is posted next decides how far a list of requests is read.
#[derive(Debug)]
struct Requests {
    depth: u64,
    /// That are to be posted again; never more than the depth.
    idle: u64,
}

impl Requests {
    /// The adapter says that one has been used.
    fn complete(&mut self) -> Result<(), TransportCause> {
        if self.idle >= self.depth {
            let depth = self.depth;
            return Err(TransportCause::Contract(format!(
                "the adapter completed more receive requests than it holds, of {depth}; this is a \
                 fault of the adapter or its driver"
            )));
        }
        self.idle += 1;
        Ok(())
    }

    /// Those that are to be posted now.
    fn take_idle(&mut self) -> usize {
        std::mem::take(&mut self.idle) as usize
    }
}

/// See the module's documentation.
pub(super) struct Receiver {
    /// Receive requests of this side.
    posted: Requests,
    /// Immediates that have come in, and how many of them the peer knows of.
    used: u64,
    reported: u64,
    requests: Box<[sys::ibv_recv_wr]>,
    /// Immediates that have gone out.
    sent: u64,
    /// The word in which the peer counts those that it has used.
    credit: AtomicWord64,
    /// Where the peer's word is, and how many receive requests it has.
    peer: CreditAddress,
    /// Keeps the word registered.
    _memory: std::sync::Arc<MemoryRegion>,
}

// SAFETY: the pointers in `requests` lead from one to the next within the same box.
unsafe impl Send for Receiver {}

impl Receiver {
    pub(super) fn new(
        queue: usize,
        depth: usize,
        credit: AtomicWord64,
        memory: std::sync::Arc<MemoryRegion>,
    ) -> Self {
        let request = |_| sys::ibv_recv_wr {
            wr_id: RECEIVE_BIT | queue as u64,
            next: null_mut(),
            sg_list: null_mut(),
            num_sge: 0,
        };
        Self {
            posted: Requests { depth: depth as u64, idle: depth as u64 },
            used: 0,
            reported: 0,
            requests: (0..depth).map(request).collect(),
            sent: 0,
            credit,
            peer: CreditAddress::default(),
            _memory: memory,
        }
    }

    pub(super) fn meet(&mut self, peer: CreditAddress) {
        self.peer = peer;
    }

    /// May one more immediate go out?
    pub(super) fn may_send(&self) -> bool {
        // Acquire: what the peer wrote before its count. Pairs with the peer's adapter; nothing
        // else is read on its strength.
        self.sent - self.credit.load(Ordering::Acquire).min(self.sent) < u64::from(self.peer.depth)
    }

    pub(super) fn count_sent(&mut self) {
        self.sent += 1;
    }

    /// An immediate has come in.
    ///
    /// # Errors
    /// [`TransportCause::Contract`] if the adapter holds no receive request that it could have
    /// taken.
    pub(super) fn count_used(&mut self) -> Result<(), TransportCause> {
        self.posted.complete()?;
        self.used += 1;
        Ok(())
    }

    /// Posts every receive request that is idle.
    ///
    /// # Errors
    /// The `errno` of the adapter.
    pub(super) fn post(&mut self, queue_pair: NonNull<sys::ibv_qp>) -> Result<(), i32> {
        let count = self.posted.take_idle();
        if count == 0 {
            return Ok(());
        }
        let requests = self.requests.as_mut_ptr();
        for at in 0..count {
            // SAFETY: `Requests` keeps what is idle at or below the depth, which is the number of
            // requests in the box.
            unsafe {
                let next = if at + 1 < count { requests.add(at + 1) } else { null_mut() };
                (*requests.add(at)).next = next;
            }
        }
        let mut bad = null_mut();
        // SAFETY: the queue pair is alive; the requests are linked, end in null, carry no memory,
        // and outlive the call, which copies them.
        let status = unsafe {
            let context = &*queue_pair.as_ref().context;
            match context.ops.post_recv {
                Some(post) => post(queue_pair.as_ptr(), requests, &mut bad),
                None => nix::errno::Errno::ENOSYS as i32,
            }
        };
        if status == 0 { Ok(()) } else { Err(status) }
    }

    /// The count to report to the peer, if it is due: a quarter of the queue has been used.
    pub(super) fn due(&self) -> Option<(u64, CreditAddress)> {
        let due = self.used - self.reported >= (self.posted.depth / 4).max(1);
        due.then_some((self.used, self.peer))
    }

    /// All that have come in will be reported to the peer.
    pub(super) fn count_told(&mut self) {
        self.reported = self.used;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_that_completes_what_was_never_posted_is_named_and_not_believed() {
        // Otherwise the next post would walk past the end of the list of requests.
        let mut requests = Requests { depth: 3, idle: 3 };
        assert!(matches!(requests.complete(), Err(TransportCause::Contract(_))), "none is posted");
        assert_eq!(requests.take_idle(), 3);
        for _ in 0..3 {
            requests.complete().unwrap();
        }
        let error = requests.complete().unwrap_err().to_string();
        assert!(error.contains("more receive requests than it holds, of 3"), "{error}");
        assert_eq!((requests.take_idle(), requests.take_idle()), (3, 0));
    }
}
