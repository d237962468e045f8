//! Functions of features that are absent here. They check what NCCL's check, and answer what NCCL's
//! answer where a communicator lacks the feature: programs ask, and go another way.

use crate::abi::{Properties, SimulationInfo, Status};
use crate::calls::check_target;
use crate::communicator::{Communicator, Handle};
use crate::exported::exported;
use crate::group;
use crate::result::{Failure, Result, guard};
use ringdove::gpu::StreamHandle as Stream;
use std::ffi::{c_int, c_uint, c_void};
use std::mem::offset_of;

/// `NCCL_API_MAGIC`, which initialises properties.
const PROPERTIES_MAGIC: c_uint = 0xcafe_beef;
/// What initialises a `ncclSimInfo_t`.
const SIMULATION_MAGIC: c_uint = 0x7468_5283;
/// `NCCL_SUSPEND_MEM`.
const SUSPEND_MEMORY: c_int = 1;
/// `NCCL_UNDEF_FLOAT`.
const UNDEFINED: f32 = -1.0;

exported! {
    /// Names of the functions that answer as NCCL's do where their feature is absent.
    pub const ABSENT;

    /// What a communicator has. No kernel can use windows, so each rank is an LSA team of its own,
    /// and there is neither multicast nor one-sided communication.
    ncclCommQueryProperties pncclCommQueryProperties(comm: Handle, properties: *mut Properties) {
        let communicator = Communicator::find(comm)?;
        check_target("props", properties)?;
        communicator.ready()?;
        // SAFETY: every version has these fields, and the caller has initialised them.
        let (size, magic) = unsafe { ((*properties).size, (*properties).magic) };
        if magic != PROPERTIES_MAGIC || size < Properties::BYTES_MIN {
            return Err(Failure::usage(format!(
                "props: expected what NCCL_COMM_PROPERTIES_INITIALIZER has initialised, seen magic \
                 {magic:#x}, {size} bytes"
            )));
        }
        let seen = Properties::of(&communicator)?;
        let (from, bytes) = (offset_of!(Properties, rank), size.min(size_of::<Properties>()));
        let (source, target) = ((&raw const seen).cast::<u8>(), properties.cast::<u8>());
        // SAFETY: both have so many bytes, and the caller's are not ours.
        unsafe { target.add(from).copy_from_nonoverlapping(source.add(from), bytes - from) };
        Ok(Status::Success)
    }

    /// Frees memory until the communicator is resumed: none of it can be freed, as
    /// `ncclCommMemStats` says. Without a flag nothing is asked for.
    ncclCommSuspend pncclCommSuspend(comm: Handle, flags: c_int) {
        Communicator::find(comm)?.ready()?;
        match flags & SUSPEND_MEMORY {
            0 => Ok(Status::Success),
            _ => Err(not_suspendable()),
        }
    }

    /// Takes memory back that was suspended: none was.
    ncclCommResume pncclCommResume(comm: Handle) {
        Communicator::find(comm)?.ready()?;
        Err(not_suspendable())
    }

    /// Writes to a peer's window, and signals.
    ncclPutSignal pncclPutSignal(
        _source: *const c_void, _count: usize, _data_type: c_int, _peer: c_int,
        _window: *mut c_void, _offset: usize, _signal: c_int, _context: c_int, _flags: c_uint,
        comm: Handle, _stream: Stream,
    ) {
        not_one_sided(comm)
    }

    /// Signals a peer.
    ncclSignal pncclSignal(
        _peer: c_int, _signal: c_int, _context: c_int, _flags: c_uint, comm: Handle,
        _stream: Stream,
    ) {
        not_one_sided(comm)
    }

    /// Waits for signals.
    ncclWaitSignal pncclWaitSignal(
        _count: c_int, _descriptors: *const c_void, comm: Handle, _stream: Stream,
    ) {
        not_one_sided(comm)
    }

    /// Ends a group whose calls do not happen; communicators that are made in it are made. Nothing
    /// estimates the time that the calls would take: it stays undefined, as with NCCL where the
    /// group has no collective. Without a place for it, NCCL ends the group like any other.
    ncclGroupSimulateEnd pncclGroupSimulateEnd(info: *mut SimulationInfo) {
        if info.is_null() {
            return group::end();
        }
        let mut has_estimate = false;
        let status = group::end_without_calls(|| {
            check_target("simInfo", info)?;
            // SAFETY: every version has these fields, and the caller has initialised them.
            let (size, magic) = unsafe { ((*info).size, (*info).magic) };
            if magic != SIMULATION_MAGIC || size < offset_of!(SimulationInfo, estimated_time) {
                let expected = "what NCCL_SIM_INFO_INITIALIZER has initialised";
                let seen = format!("magic {magic:#x}, {size} bytes");
                return Err(Failure::argument("simInfo", expected, seen));
            }
            has_estimate = size >= offset_of!(SimulationInfo, estimated_time) + size_of::<f32>();
            Ok(())
        })?;
        if has_estimate {
            // SAFETY: the caller's structure has this field, as its size says.
            unsafe { (&raw mut (*info).estimated_time).write(UNDEFINED) };
        }
        Ok(status)
    }
}

fn not_suspendable() -> Failure {
    Failure::usage("memory of a communicator cannot be suspended: destroy the communicator instead")
}

/// What one-sided calls answer: `hostRmaSupport` of the communicator's properties is false. In a
/// group the group fails.
fn not_one_sided(comm: Handle) -> Result<Status> {
    group::add(|| {
        Communicator::find(comm)?.ready()?;
        let expected = "one that supports one-sided calls (hostRmaSupport)";
        Err(Failure::argument("comm", expected, "one that does not: use ncclSend and ncclRecv"))
    })
}
