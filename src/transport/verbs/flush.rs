//! A read of device memory through the adapter that has written it. Where a device does not order
//! an adapter's writes by itself, the host may see the completion of a message before the message
//! is there; a read behind the writes comes back after them.

use super::arrivals::Flushes;
use super::endpoint::Endpoint;
use super::fault;
use super::queue::{QueuePair, Target};
use super::region::{LocalRegion, MemoryRegion, RemoteAccess};
use crate::error::{Result, TransportCause};
use crate::shared::Region;
use ibverbs_sys as sys;

/// Bytes that are read: a word.
const READ_BYTES: u64 = 8;

/// One read at a time, on an endpoint that is connected to itself.
pub(super) struct Flush {
    endpoint: Endpoint,
    /// What is read.
    target: Target,
    scratch: LocalRegion,
    in_flight: bool,
    _scratch: MemoryRegion,
}

impl Flush {
    /// Reads of `region`, which the adapter's peers write.
    ///
    /// # Errors
    /// As [`Endpoint::create`] and [`Endpoint::connect`].
    pub(super) fn new(region: &MemoryRegion) -> Result<Self> {
        let adapter = region.adapter();
        let (mut endpoint, own) = Endpoint::create(adapter)?;
        endpoint.connect(&own)?;
        let scratch =
            adapter.register_host(&Region::host(READ_BYTES as usize), RemoteAccess::None)?;
        let remote = region.remote();
        let target = Target { address: remote.base, key: remote.rkey };
        let local = scratch.local();
        Ok(Self { endpoint, target, scratch: local, in_flight: false, _scratch: scratch })
    }

    fn begin_read(&mut self) -> std::result::Result<(), i32> {
        let piece = sys::ibv_sge {
            addr: self.scratch.base,
            length: READ_BYTES as u32,
            lkey: self.scratch.lkey,
        };
        self.endpoint.queues[0].stage_read(piece, self.target);
        self.endpoint.queues[0].post()?;
        self.in_flight = true;
        Ok(())
    }

    /// True if the read that was in flight has ended.
    fn poll_read(&mut self) -> std::result::Result<bool, Failure> {
        // SAFETY: a completion is plain numbers, for which zeros are values.
        let mut completion: [sys::ibv_wc; 1] = unsafe { std::mem::zeroed() };
        if self.endpoint.poll(&mut completion).map_err(Failure::Call)? == 0 {
            return Ok(false);
        }
        if let Some((status, vendor_code)) = completion[0].error() {
            return Err(Failure::Completion(status, vendor_code));
        }
        let queue = &mut self.endpoint.queues[0];
        let (_, count) = QueuePair::split(completion[0].wr_id());
        queue.retire(count, |_| {});
        self.in_flight = false;
        Ok(true)
    }

    /// A call that failed, of the queue pair that reads.
    fn failed(&self, code: i32) -> TransportCause {
        let numbers = self.endpoint.queues[0].numbers();
        fault::call(self.endpoint.adapter(), numbers, "the flushing read", code)
    }
}

impl Flushes for Flush {
    fn is_in_flight(&self) -> bool {
        self.in_flight
    }

    fn begin(&mut self) -> std::result::Result<(), TransportCause> {
        self.begin_read().map_err(|code| self.failed(code))
    }

    fn poll(&mut self) -> std::result::Result<bool, TransportCause> {
        self.poll_read().map_err(|failure| match failure {
            Failure::Call(code) => self.failed(code),
            Failure::Completion(status, vendor_code) => {
                let queue = &self.endpoint.queues[0];
                fault::completion(self.endpoint.adapter(), queue, status, vendor_code)
            }
        })
    }
}

/// Why a read failed.
enum Failure {
    /// Status and vendor code.
    Completion(sys::ibv_wc_status::Type, u32),
    /// `errno` of a call.
    Call(i32),
}
