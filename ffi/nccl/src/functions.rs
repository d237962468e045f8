//! The exported functions that do what NCCL's do.

use crate::abi::{Status, Team, UniqueId, VERSION};
use crate::caller;
use crate::calls::{
    Buffers, check_target, element, init_all, join, new_id, point_to_point, put, unsigned,
};
use crate::communicator::{self, Communicator, Handle, Join, lock};
use crate::config::Config;
use crate::exported::exported;
use crate::group::{self, Call, Derived, Job};
use crate::memory::{self, Asked, COLLECTIVE_SYMMETRIC, STRICT_ORDERING};
use crate::reduction::{self, Defined, Source};
use crate::result::{self, Failure, guard};
use cudarc::driver::result as driver;
use ringdove::Collective;
use ringdove::gpu::StreamHandle as Stream;
use std::ffi::{c_char, c_int, c_void};

/// `NCCL_SHRINK_DEFAULT` and `NCCL_SHRINK_ABORT`.
const SHRINK_DEFAULT: c_int = 0;
const SHRINK_ABORT: c_int = 1;

/// `ncclCommMemStat_t`.
const STAT_SUSPENDABLE: c_int = 0;
const STAT_IS_SUSPENDED: c_int = 1;
const STAT_PERSISTENT: c_int = 2;
const STAT_TOTAL: c_int = 3;

exported! {
    /// Names of the functions that do what NCCL's do.
    pub const SUPPORTED
        = "ncclGetErrorString" = "ncclGetLastError" = "ncclTeamLsa" = "ncclTeamWorld";

    /// The version whose behaviour is implemented.
    ncclGetVersion pncclGetVersion(version: *mut c_int) {
        // SAFETY: the caller's place for a number, or null.
        unsafe { put("version", version, VERSION)? };
        Ok(Status::Success)
    }

    /// A name for a communicator. A root listens at it until all ranks have joined.
    ncclGetUniqueId pncclGetUniqueId(id: *mut UniqueId) {
        check_target("uniqueId", id)?;
        // SAFETY: the caller's place for an id.
        unsafe { put("uniqueId", id, new_id()?)? };
        Ok(Status::Success)
    }

    /// The current device joins as rank `rank` of `count`.
    ncclCommInitRank pncclCommInitRank(
        comm: *mut Handle, count: c_int, id: UniqueId, rank: c_int,
    ) {
        let (rank, rank_count) = (unsigned("rank", rank)?, unsigned("nranks", count)?);
        let asked = Join { id: id.into(), rank, rank_count };
        // SAFETY: the caller's place for a handle, or null.
        unsafe { join(comm, asked, Config::DEFAULT) }
    }

    /// The same, with a configuration.
    ncclCommInitRankConfig pncclCommInitRankConfig(
        comm: *mut Handle, count: c_int, id: UniqueId, rank: c_int, config: *const c_void,
    ) {
        let (rank, rank_count) = (unsigned("rank", rank)?, unsigned("nranks", count)?);
        let asked = Join { id: id.into(), rank, rank_count };
        // SAFETY: null, or what the caller initialised.
        let config = unsafe { Config::read(config)? };
        // SAFETY: the caller's place for a handle, or null.
        unsafe { join(comm, asked, config) }
    }

    /// The same, with several ids. One root serves any number of ranks: the first id is used.
    ncclCommInitRankScalable pncclCommInitRankScalable(
        comm: *mut Handle, count: c_int, rank: c_int, ids: c_int, list: *const UniqueId,
        config: *const c_void,
    ) {
        let (rank, rank_count) = (unsigned("myrank", rank)?, unsigned("nranks", count)?);
        if unsigned("nId", ids)? == 0 {
            return Err(Failure::argument("nId", "at least 1", 0));
        }
        check_target("commIds", list)?;
        // SAFETY: a list of at least one id.
        let asked = Join { id: unsafe { list.read() }.into(), rank, rank_count };
        // SAFETY: null, or what the caller initialised.
        let config = unsafe { Config::read(config)? };
        // SAFETY: the caller's place for a handle, or null.
        unsafe { join(comm, asked, config) }
    }

    /// A communicator of devices of this process.
    ncclCommInitAll pncclCommInitAll(comms: *mut Handle, count: c_int, list: *const c_int) {
        // SAFETY: a place for so many handles, a list of so many devices, or null.
        unsafe { init_all(comms, count, list) }
    }

    /// Ranks with the same color form a communicator, in the order of their keys; one with color
    /// -1 gets a null handle.
    ncclCommSplit pncclCommSplit(
        comm: Handle, color: c_int, key: c_int, target: *mut Handle, config: *const c_void,
    ) {
        check_target("newcomm", target)?;
        // SAFETY: null, or what the caller initialised.
        unsafe { Config::read(config)? };
        let color = match color {
            -1 => None,
            color => Some(unsigned("color", color)?),
        };
        group::add(|| {
            let ready = Communicator::find(comm)?.ready()?;
            Ok(Job::Derive { ready, as_what: Derived::Split { color, key }, target })
        })
    }

    /// The ranks that are not excluded form a communicator, in the same order. Only they call. With
    /// flag 1 what is under way on `comm` is aborted first.
    ncclCommShrink pncclCommShrink(
        comm: Handle, excluded: *const c_int, count: c_int, target: *mut Handle,
        config: *const c_void, flags: c_int,
    ) {
        check_target("newcomm", target)?;
        // SAFETY: null, or what the caller initialised.
        unsafe { Config::read(config)? };
        let count = unsigned("excludeRanksCount", count)?;
        let ranks = Communicator::find(comm)?.rank_count;
        if count > ranks {
            let expected = format!("at most {ranks}, the ranks");
            return Err(Failure::argument("excludeRanksCount", &expected, count));
        }
        if count > 0 {
            check_target("excludeRanksList", excluded)?;
        }
        let list: &[c_int] = match count {
            0 => &[],
            // SAFETY: the caller's list of so many numbers.
            _ => unsafe { std::slice::from_raw_parts(excluded, count as usize) },
        };
        let ranks = list.iter().map(|&rank| unsigned("excludeRanksList", rank));
        let ranks = ranks.collect::<result::Result<Vec<_>>>()?;
        if !matches!(flags, SHRINK_DEFAULT | SHRINK_ABORT) {
            return Err(Failure::argument("shrinkFlags", "0 or 1 (NCCL_SHRINK_ABORT)", flags));
        }
        group::add(|| {
            let communicator = Communicator::find(comm)?;
            let ready = communicator.ready()?;
            if flags == SHRINK_ABORT {
                communicator.abort("ncclCommShrink with NCCL_SHRINK_ABORT");
            }
            Ok(Job::Derive { ready, as_what: Derived::Shrunk(ranks), target })
        })
    }

    /// The name under which new ranks join `ncclCommGrow`: one rank of `comm` makes it.
    ncclCommGetUniqueId pncclCommGetUniqueId(comm: Handle, id: *mut UniqueId) {
        check_target("uniqueId", id)?;
        let grows = Communicator::find(comm)?.ready()?.ranks.growth_id()?;
        // SAFETY: the caller's place for an id.
        unsafe { put("uniqueId", id, grows.into())? };
        Ok(Status::Success)
    }

    /// A communicator of `count` ranks: those of `comm`, which pass it and rank -1, and new ones,
    /// which pass none, the id of `ncclCommGetUniqueId`, and their rank in the new one.
    ncclCommGrow pncclCommGrow(
        comm: Handle, count: c_int, id: *const UniqueId, rank: c_int, target: *mut Handle,
        config: *const c_void,
    ) {
        check_target("newcomm", target)?;
        // SAFETY: null, or what the caller initialised.
        let config = unsafe { Config::read(config)? };
        let rank_count = unsigned("nRanks", count)?;
        if comm.is_null() {
            check_target("uniqueId", id)?;
            let rank = unsigned("rank", rank)?;
            // SAFETY: the caller's id, which is there.
            let asked = Join { id: unsafe { id.read() }.into(), rank, rank_count };
            // SAFETY: the caller's place for a handle, which is there.
            return unsafe { join(target, asked, config) };
        }
        if rank != -1 {
            return Err(Failure::argument("rank", "-1 with a communicator", rank));
        }
        // The rank that made the id has kept it, and tells the others.
        group::add(|| {
            let ready = Communicator::find(comm)?.ready()?;
            Ok(Job::Derive { ready, as_what: Derived::Grown(rank_count), target })
        })
    }

    /// Waits until everything that was enqueued has ended. The handle stays.
    ncclCommFinalize pncclCommFinalize(comm: Handle) {
        Communicator::find(comm)?.finalize()?;
        Ok(Status::Success)
    }

    /// Waits until everything that was enqueued has ended, and frees the handle.
    ncclCommDestroy pncclCommDestroy(comm: Handle) {
        // As in NCCL, nothing happens to no communicator.
        if !comm.is_null() {
            communicator::destroy(comm)?;
        }
        Ok(Status::Success)
    }

    /// Frees the handle. Work of this rank that has not ended is ended, on all ranks: kernels that
    /// wait stop.
    ncclCommAbort pncclCommAbort(comm: Handle) {
        if !comm.is_null() {
            communicator::abort(comm)?;
        }
        Ok(Status::Success)
    }

    /// Ends the communicator on all ranks. The handle stays, to be destroyed.
    ncclCommRevoke pncclCommRevoke(comm: Handle, _flags: c_int) {
        Communicator::find(comm)?.abort("ncclCommRevoke");
        Ok(Status::Success)
    }

    /// The error that ended the communicator; in progress while its ranks join.
    ncclCommGetAsyncError pncclCommGetAsyncError(comm: Handle, status: *mut c_int) {
        let state = Communicator::find(comm)?.state();
        // SAFETY: the caller's place for a number, or null.
        unsafe { put("asyncError", status, state as c_int)? };
        Ok(Status::Success)
    }

    /// Number of ranks.
    ncclCommCount pncclCommCount(comm: Handle, count: *mut c_int) {
        let seen = Communicator::find(comm)?.rank_count;
        // SAFETY: the caller's place for a number, or null.
        unsafe { put("count", count, seen as c_int)? };
        Ok(Status::Success)
    }

    /// Number of the rank's device.
    ncclCommCuDevice pncclCommCuDevice(comm: Handle, device: *mut c_int) {
        let seen = Communicator::find(comm)?.device();
        // SAFETY: the caller's place for a number, or null.
        unsafe { put("device", device, seen as c_int)? };
        Ok(Status::Success)
    }

    /// This rank.
    ncclCommUserRank pncclCommUserRank(comm: Handle, rank: *mut c_int) {
        let seen = Communicator::find(comm)?.rank;
        // SAFETY: the caller's place for a number, or null.
        unsafe { put("rank", rank, seen as c_int)? };
        Ok(Status::Success)
    }

    /// Begins a group.
    ncclGroupStart pncclGroupStart() {
        group::start();
        Ok(Status::Success)
    }

    /// Ends a group; the outermost end lets everything in it happen.
    ncclGroupEnd pncclGroupEnd() {
        group::end()
    }

    /// A reduction that multiplies each input by a scalar and adds the products.
    ncclRedOpCreatePreMulSum pncclRedOpCreatePreMulSum(
        op: *mut c_int, scalar: *const c_void, data_type: c_int, residence: c_int, comm: Handle,
    ) {
        check_target("op", op)?;
        let communicator = Communicator::find(comm)?;
        let data_type = element(data_type)?;
        if scalar.is_null() {
            return Err(Failure::argument("scalar", "a pointer that is not null", "null"));
        }
        let source = match residence {
            0 => Source::Device(scalar as u64),
            1 => {
                let mut word = [0; 8];
                let bytes = data_type.size_bytes();
                // SAFETY: the caller's scalar is an element of this type, in host memory.
                let seen = unsafe { std::slice::from_raw_parts(scalar.cast::<u8>(), bytes) };
                word[..bytes].copy_from_slice(seen);
                Source::Value(reduction::scalar(data_type, u64::from_le_bytes(word)))
            }
            other => {
                let expected = "0 (ncclScalarDevice) or 1 (ncclScalarHostImmediate)";
                return Err(Failure::argument("residence", expected, other));
            }
        };
        let number = lock(&communicator.reductions).define(Defined { data_type, source })?;
        // SAFETY: the caller's place for a number.
        unsafe { put("op", op, number)? };
        Ok(Status::Success)
    }

    /// Frees such a reduction. Calls that were made with it are not disturbed.
    ncclRedOpDestroy pncclRedOpDestroy(op: c_int, comm: Handle) {
        lock(&Communicator::find(comm)?.reductions).remove(op)?;
        Ok(Status::Success)
    }

    /// Reduces over all ranks, to all of them.
    ncclAllReduce pncclAllReduce(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, op: c_int,
        comm: Handle, stream: Stream,
    ) {
        let buffers = Buffers { send, receive, count, data_type };
        buffers.reduced(Collective::AllReduce, op, comm, stream)
    }

    /// Reduces over all ranks, to `root`.
    ncclReduce pncclReduce(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, op: c_int,
        root: c_int, comm: Handle, stream: Stream,
    ) {
        let root = unsigned("root", root)?;
        let buffers = Buffers { send, receive, count, data_type };
        buffers.reduced(Collective::Reduce { root }, op, comm, stream)
    }

    /// Reduces over all ranks; each gets a part of `count` elements.
    ncclReduceScatter pncclReduceScatter(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, op: c_int,
        comm: Handle, stream: Stream,
    ) {
        let buffers = Buffers { send, receive, count, data_type };
        buffers.reduced(Collective::ReduceScatter, op, comm, stream)
    }

    /// `count` elements of `root`, to all.
    ncclBroadcast pncclBroadcast(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, root: c_int,
        comm: Handle, stream: Stream,
    ) {
        let root = unsigned("root", root)?;
        let buffers = Buffers { send, receive, count, data_type };
        buffers.moved(Collective::Broadcast { root }, comm, stream)
    }

    /// The same, in place.
    ncclBcast pncclBcast(
        buffer: *mut c_void, count: usize, data_type: c_int, root: c_int, comm: Handle,
        stream: Stream,
    ) {
        let root = unsigned("root", root)?;
        let (send, receive) = (buffer.cast_const(), buffer);
        let buffers = Buffers { send, receive, count, data_type };
        buffers.moved(Collective::Broadcast { root }, comm, stream)
    }

    /// `count` elements of each rank, to all.
    ncclAllGather pncclAllGather(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, comm: Handle,
        stream: Stream,
    ) {
        let buffers = Buffers { send, receive, count, data_type };
        buffers.moved(Collective::AllGather, comm, stream)
    }

    /// `count` elements of each rank, to each.
    ncclAlltoAll pncclAlltoAll(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, comm: Handle,
        stream: Stream,
    ) {
        let buffers = Buffers { send, receive, count, data_type };
        buffers.moved(Collective::AllToAll, comm, stream)
    }

    /// `count` elements of each rank, to `root`.
    ncclGather pncclGather(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, root: c_int,
        comm: Handle, stream: Stream,
    ) {
        let root = unsigned("root", root)?;
        let buffers = Buffers { send, receive, count, data_type };
        buffers.moved(Collective::Gather { root }, comm, stream)
    }

    /// `count` elements for each rank, from `root`.
    ncclScatter pncclScatter(
        send: *const c_void, receive: *mut c_void, count: usize, data_type: c_int, root: c_int,
        comm: Handle, stream: Stream,
    ) {
        let root = unsigned("root", root)?;
        let buffers = Buffers { send, receive, count, data_type };
        buffers.moved(Collective::Scatter { root }, comm, stream)
    }

    /// Sends `count` elements to `peer`.
    ncclSend pncclSend(
        send: *const c_void, count: usize, data_type: c_int, peer: c_int, comm: Handle,
        stream: Stream,
    ) {
        let address = send as u64;
        let call = |data_type, peer| Call::Send { address, count, data_type, peer };
        point_to_point(call, data_type, peer, comm, stream)
    }

    /// Receives `count` elements from `peer`.
    ncclRecv pncclRecv(
        receive: *mut c_void, count: usize, data_type: c_int, peer: c_int, comm: Handle,
        stream: Stream,
    ) {
        let address = receive as u64;
        let call = |data_type, peer| Call::Receive { address, count, data_type, peer };
        point_to_point(call, data_type, peer, comm, stream)
    }

    /// Device memory of the current device.
    ncclMemAlloc pncclMemAlloc(target: *mut *mut c_void, bytes: usize) {
        check_target("ptr", target)?;
        caller::use_current()?;
        // SAFETY: a context is current.
        let address = unsafe { driver::malloc_sync(bytes) };
        let address = address.map_err(|error| Failure::cuda("cuMemAlloc", error.0))?;
        // SAFETY: the caller's place for a pointer.
        unsafe { put("ptr", target, address as *mut c_void)? };
        Ok(Status::Success)
    }

    /// Frees such memory.
    ncclMemFree pncclMemFree(pointer: *mut c_void) {
        if !pointer.is_null() {
            caller::use_current()?;
            // SAFETY: the driver refuses what it has not allocated.
            let freed = unsafe { driver::free_sync(pointer as u64) };
            freed.map_err(|error| Failure::cuda("cuMemFree", error.0))?;
        }
        Ok(Status::Success)
    }

    /// Registers a buffer for this rank: sends and receives on it need no copy. Nobody waits.
    ncclCommRegister pncclCommRegister(
        comm: Handle, buffer: *mut c_void, bytes: usize, handle: *mut *mut c_void,
    ) {
        check_target("handle", handle)?;
        if buffer.is_null() || bytes == 0 {
            return Err(Failure::argument("buff", "some bytes of device memory", bytes));
        }
        let communicator = Communicator::find(comm)?;
        let registration = memory::register_local(&communicator, buffer as u64, bytes)?;
        let number = lock(&communicator.named).add_buffer(registration);
        // SAFETY: the caller's place for a pointer.
        unsafe { put("handle", handle, number)? };
        Ok(Status::Success)
    }

    /// Forgets a buffer: waits until the rank's calls have ended, and others do not know it.
    ncclCommDeregister pncclCommDeregister(comm: Handle, handle: *mut c_void) {
        let communicator = Communicator::find(comm)?;
        let registration = lock(&communicator.named).remove_buffer(handle)?;
        memory::deregister_local(&communicator, registration)?;
        Ok(Status::Success)
    }

    /// All ranks make a window, of the same size. Where collectives use it at the same offsets on
    /// all ranks, as `NCCL_WIN_COLL_SYMMETRIC` promises, its data is not staged.
    ncclCommWindowRegister pncclCommWindowRegister(
        comm: Handle, buffer: *mut c_void, bytes: usize, window: *mut *mut c_void, flags: c_int,
    ) {
        check_target("win", window)?;
        if buffer.is_null() || bytes == 0 {
            return Err(Failure::argument("buff", "some bytes of device memory", bytes));
        }
        if flags & !(COLLECTIVE_SYMMETRIC | STRICT_ORDERING) != 0 {
            let expected = "NCCL_WIN_COLL_SYMMETRIC, NCCL_WIN_STRICT_ORDERING, both or 0";
            return Err(Failure::argument("winFlags", expected, flags));
        }
        let is_symmetric = flags & COLLECTIVE_SYMMETRIC != 0;
        let asked = Asked { address: buffer as u64, bytes, is_symmetric, target: window };
        group::add(|| {
            let communicator = Communicator::find(comm)?;
            let ready = communicator.ready()?;
            Ok(Job::Window { communicator, ready, asked })
        })
    }

    /// All ranks take a window back, in the same order among their other calls. Waits until their
    /// collectives on it have ended. Null is no window.
    ncclCommWindowDeregister pncclCommWindowDeregister(comm: Handle, window: *mut c_void) {
        if window.is_null() {
            return Ok(Status::Success);
        }
        group::add(|| {
            let communicator = Communicator::find(comm)?;
            let ready = communicator.ready()?;
            let window = lock(&communicator.named).remove_window(window)?;
            Ok(Job::EndOfWindow { ready, window })
        })
    }

    /// The address of a window.
    ncclWinGetUserPtr pncclWinGetUserPtr(
        comm: Handle, window: *mut c_void, pointer: *mut *mut c_void,
    ) {
        check_target("outUserPtr", pointer)?;
        let window = lock(&Communicator::find(comm)?.named).window(window)?;
        // SAFETY: the caller's place for a pointer.
        unsafe { put("outUserPtr", pointer, window.address as *mut c_void)? };
        Ok(Status::Success)
    }

    /// How much device memory a rank takes. None of it can be suspended.
    ncclCommMemStats pncclCommMemStats(comm: Handle, stat: c_int, value: *mut u64) {
        check_target("value", value)?;
        let ready = Communicator::find(comm)?.ready()?;
        let bytes = match stat {
            STAT_SUSPENDABLE | STAT_IS_SUSPENDED => 0,
            STAT_PERSISTENT | STAT_TOTAL => ready.ranks.statistics().device_bytes,
            _ => return Err(Failure::argument("stat", "a ncclCommMemStat_t, 0 to 3", stat)),
        };
        // SAFETY: the caller's place for a number.
        unsafe { put("value", value, bytes)? };
        Ok(Status::Success)
    }
}

/// What a result code says.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(status: c_int) -> *const c_char {
    Status::text(status).as_ptr()
}

/// The same, for profilers that take its name.
#[unsafe(no_mangle)]
pub extern "C" fn pncclGetErrorString(status: c_int) -> *const c_char {
    ncclGetErrorString(status)
}

/// What ended the communicator, else what this thread's last failure was: what was being done, what
/// was expected, what was seen. Valid until the thread's next failure.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(comm: Handle) -> *const c_char {
    let of_communicator = Communicator::find(comm).ok().and_then(|found| found.message());
    of_communicator.unwrap_or_else(result::last)
}

/// The same, for profilers that take its name.
#[unsafe(no_mangle)]
pub extern "C" fn pncclGetLastError(comm: Handle) -> *const c_char {
    ncclGetLastError(comm)
}

/// All ranks; none for a handle that is no communicator's, which `ncclGetLastError` names.
#[unsafe(no_mangle)]
pub extern "C" fn ncclTeamWorld(comm: Handle) -> Team {
    team(comm, "ncclTeamWorld", |found| Team::of(found.rank_count, found.rank))
}

/// The same, for profilers that take its name.
#[unsafe(no_mangle)]
pub extern "C" fn pncclTeamWorld(comm: Handle) -> Team {
    ncclTeamWorld(comm)
}

/// The ranks whose windows a kernel may load from and store to: windows are not there, so this rank
/// alone.
#[unsafe(no_mangle)]
pub extern "C" fn ncclTeamLsa(comm: Handle) -> Team {
    team(comm, "ncclTeamLsa", |_| Team::of(1, 0))
}

/// The same, for profilers that take its name.
#[unsafe(no_mangle)]
pub extern "C" fn pncclTeamLsa(comm: Handle) -> Team {
    ncclTeamLsa(comm)
}

fn team(comm: Handle, function: &str, of: impl Fn(&Communicator) -> Team) -> Team {
    let mut team = Team::of(0, 0);
    guard(function, || {
        team = of(&*Communicator::find(comm)?);
        Ok(Status::Success)
    });
    team
}
