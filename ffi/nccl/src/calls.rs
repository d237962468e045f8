//! What exported functions have in common: arguments that are checked, and calls that are made of
//! them.

use crate::abi::{Status, UniqueId, data_type};
use crate::caller;
use crate::comm_id;
use crate::communicator::{Communicator, Handle, Join, lock};
use crate::config::Config;
use crate::group::{self, Call, Job};
use crate::reduction::{self, Defined, Named, Source};
use crate::result::{Failure, Result};
use crate::variables;
use ringdove::bootstrap::Root;
use ringdove::gpu::StreamHandle as Stream;
use ringdove::{Collective, CollectiveSpec, DataType, Reduction};
use std::ffi::{c_int, c_void};

/// Writes a result where the caller wants it.
///
/// # Safety
/// `target` is null, or a place for a `T`.
pub unsafe fn put<T>(what: &str, target: *mut T, value: T) -> Result<()> {
    check_target(what, target)?;
    // SAFETY: it is not null, and the caller's place for the value.
    unsafe { target.write(value) };
    Ok(())
}

pub fn check_target<T>(what: &str, target: *const T) -> Result<()> {
    match !target.is_null() && target.is_aligned() {
        true => Ok(()),
        false => Err(Failure::argument(what, "an aligned pointer that is not null", "another")),
    }
}

/// A number that is not negative.
pub fn unsigned(what: &str, number: c_int) -> Result<u32> {
    u32::try_from(number).map_err(|_| Failure::argument(what, "at least 0", number))
}

pub fn element(number: c_int) -> Result<DataType> {
    let expected = "a data type from 0 (ncclInt8) to 11 (ncclFloat8e5m2)";
    data_type(number).ok_or_else(|| Failure::argument("datatype", expected, number))
}

/// The buffers of a collective, as the caller named them.
pub struct Buffers {
    pub send: *const c_void,
    pub receive: *mut c_void,
    pub count: usize,
    pub data_type: c_int,
}

impl Buffers {
    /// A collective that moves data.
    pub fn moved(self, by: Collective, comm: Handle, stream: Stream) -> Result<Status> {
        self.call(by, None, comm, stream)
    }

    /// A collective that reduces, with the reduction of number `op`.
    pub fn reduced(
        self,
        by: Collective,
        op: c_int,
        comm: Handle,
        stream: Stream,
    ) -> Result<Status> {
        self.call(by, Some(op), comm, stream)
    }

    fn call(
        self,
        collective: Collective,
        op: Option<c_int>,
        comm: Handle,
        stream: Stream,
    ) -> Result<Status> {
        group::add(|| {
            let communicator = Communicator::find(comm)?;
            let ready = communicator.ready()?;
            let data_type = element(self.data_type)?;
            let named = op.map(|op| lock(&communicator.reductions).find(op, data_type));
            let reduction = match named.transpose()? {
                None => None,
                Some(Named::Plain(op)) => Some(op.into()),
                Some(Named::Defined(Defined { source: Source::Value(scalar), .. })) => {
                    Some(Reduction::pre_mul_sum(scalar))
                }
                Some(Named::Defined(Defined { source: Source::Device(address), .. })) => {
                    let bytes = data_type.size_bytes();
                    // SAFETY: the caller names a stream; it defined the reduction with this
                    // address, and keeps the scalar.
                    let word = unsafe {
                        ready.bridge.check(stream)?;
                        ready.bridge.read(address, bytes, stream)?
                    };
                    Some(reduction::multiplied(data_type, word))
                }
            };
            let spec = CollectiveSpec { collective, data_type, reduction };
            let buffers = [self.send as u64, self.receive as u64];
            let call = Call::Collective { spec, buffers, count: self.count };
            Ok(Job::Call { ready, call, stream })
        })
    }
}

pub fn point_to_point(
    call: impl FnOnce(DataType, u32) -> Call,
    data_type: c_int,
    peer: c_int,
    comm: Handle,
    stream: Stream,
) -> Result<Status> {
    group::add(|| {
        let ready = Communicator::find(comm)?.ready()?;
        let call = call(element(data_type)?, unsigned("peer", peer)?);
        Ok(Job::Call { ready, call, stream })
    })
}

/// A rank of the current device joins. Its handle is valid at once, for use when it has joined.
///
/// # Safety
/// `comm` is null, or a place for a handle.
pub unsafe fn join(comm: *mut Handle, join: Join, config: Config) -> Result<Status> {
    check_target("comm", comm)?;
    let Join { id, rank, rank_count } = join;
    if rank >= rank_count {
        return Err(Failure::argument("rank", &format!("less than {rank_count}"), rank));
    }
    if rank == 0 {
        comm_id::serve(id, &variables::settings()?)?;
    }
    let context = caller::current()?;
    let (handle, communicator) = Communicator::joining(rank, rank_count, context);
    // SAFETY: a place for a handle.
    unsafe { comm.write(handle) };
    let is_blocking = config.is_blocking;
    group::add(|| Ok(Job::Join { communicator, join, is_blocking }))
}

pub fn new_id() -> Result<UniqueId> {
    variables::start_log();
    let settings = variables::settings()?;
    if let Some(id) = comm_id::id(&settings)? {
        return Ok(id.into());
    }
    let root = Root::open(&settings)?;
    let id = root.id();
    root.detach();
    Ok(id.into())
}

/// The most ranks of a communicator: no list of a caller is longer.
const RANKS_MAX: u32 = 1 << 16;

/// # Safety
/// `devices` is null, or `count` numbers.
unsafe fn devices(count: usize, devices: *const c_int) -> Result<Vec<usize>> {
    let there = ringdove::device_count()?;
    if devices.is_null() && count > there {
        return Err(Failure::argument("ndev", &format!("at most {there}, the devices"), count));
    }
    let wanted: Vec<c_int> = match devices.is_null() {
        true => (0..count as c_int).collect(),
        // SAFETY: the caller's list of so many numbers.
        false => unsafe { std::slice::from_raw_parts(devices, count) }.to_vec(),
    };
    let ordinal = |device: c_int| usize::try_from(device).ok().filter(|&device| device < there);
    wanted
        .into_iter()
        .map(|device| {
            ordinal(device).ok_or_else(|| {
                Failure::argument("devlist", &format!("devices less than {there}"), device)
            })
        })
        .collect()
}

/// # Safety
/// `comms` is a place for `count` handles; `list` is null, or `count` numbers.
pub unsafe fn init_all(comms: *mut Handle, count: c_int, list: *const c_int) -> Result<Status> {
    check_target("comms", comms)?;
    let rank_count = unsigned("ndev", count)?;
    if !(1..=RANKS_MAX).contains(&rank_count) {
        let expected = format!("1 to {RANKS_MAX}");
        return Err(Failure::argument("ndev", &expected, rank_count));
    }
    variables::start_log();
    // SAFETY: as the caller of this promises.
    let ordinals = unsafe { devices(rank_count as usize, list)? };
    let contexts = ordinals.into_iter().map(ringdove::open_device);
    let contexts = contexts.collect::<ringdove::Result<Vec<_>>>()?;
    let all = ringdove::Communicator::init_all(&contexts, &variables::settings()?)?;
    for (number, (ranks, context)) in all.into_iter().zip(contexts).enumerate() {
        let handle = Communicator::joined_by(ranks, &context)?;
        // SAFETY: a place for that many handles.
        unsafe { comms.add(number).write(handle) };
    }
    Ok(Status::Success)
}
