//! A read of device memory through the adapter that has written it. Where a device does not order
//! an adapter's writes by itself, the host may see the completion of a message before the message
//! is there; a read behind the writes comes back after them.

use super::endpoint::Endpoint;
use super::queue::Target;
use super::region::{LocalRegion, MemoryRegion, RemoteAccess};
use crate::error::Result;
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

    pub(super) fn is_in_flight(&self) -> bool {
        self.in_flight
    }

    /// Begins a read behind all writes that have come in.
    ///
    /// # Errors
    /// The `errno` of the adapter.
    pub(super) fn begin(&mut self) -> std::result::Result<(), i32> {
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
    ///
    /// # Errors
    /// The completion of a read that failed, or the `errno` of the adapter.
    pub(super) fn poll(&mut self) -> std::result::Result<bool, Failure> {
        // SAFETY: a completion is plain numbers, for which zeros are values.
        let mut completion: [sys::ibv_wc; 1] = unsafe { std::mem::zeroed() };
        if self.endpoint.poll(&mut completion).map_err(Failure::Call)? == 0 {
            return Ok(false);
        }
        if let Some((status, vendor_code)) = completion[0].error() {
            return Err(Failure::Completion(status, vendor_code));
        }
        let queue = &mut self.endpoint.queues[0];
        let (_, count) = super::queue::QueuePair::split(completion[0].wr_id());
        queue.retire(count, |_| {});
        self.in_flight = false;
        Ok(true)
    }

    /// The queue pair that reads.
    pub(super) fn queue(&self) -> &super::queue::QueuePair {
        &self.endpoint.queues[0]
    }
}

/// Why a read failed.
pub(super) enum Failure {
    /// Status and vendor code.
    Completion(sys::ibv_wc_status::Type, u32),
    /// `errno` of a call.
    Call(i32),
}
