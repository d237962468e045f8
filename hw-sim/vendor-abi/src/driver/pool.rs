//! Memory pools. Their memory is the GPU's; what they hold of their own is attributes.

use super::call::{In, Out, driver_calls};
use super::code::{INVALID_VALUE, NOT_SUPPORTED, Outcome, refuse};
use super::handles::Handle;
use super::state::{self, Pool};
use hwsim_machine::Error;
use hwsim_machine::command::Command;
use hwsim_machine::graph::Work;
use hwsim_machine::memory::{Allocation, Reservation};
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Does the driver have pools?
fn permit() -> Outcome {
    match state::driver()?.machine.description.driver.memory_pools {
        true => Ok(()),
        false => refuse(NOT_SUPPORTED, "the driver profile has no memory pools"),
    }
}

/// Allocates in stream order. The memory is there at once, which is never too late; what the stream
/// has queued to free is waited for when it is needed.
pub(super) fn allocate(
    address: Out<u64>,
    bytes: usize,
    pool: Option<Handle>,
    stream: Handle,
) -> Outcome {
    let (driver, stream) = (state::driver()?, state::stream(stream)?);
    permit()?;
    address.require()?;
    let own = || driver.current_pools[stream.context.gpu].load(Ordering::Relaxed);
    let pool = driver.pools.get(pool.unwrap_or_else(own))?;
    // Unlike cuMemAlloc, it takes 0 bytes: cuda.core's tests, which pass on hardware, ask for them.
    if bytes == 0 {
        return address.set(0);
    }
    let (memory, context) = (&driver.machine.memory, stream.context.id);
    if stream.is_captured() {
        let (place, rights) = ((pool.device, context), Some(Arc::clone(&pool.rights)));
        let own = Reservation::new(memory, place, bytes as u64, rights)?;
        let base = own.base;
        stream.note(Work::Allocate(own));
        return address.set(base);
    }
    let rights = || Some(Arc::clone(&pool.rights));
    let take = || memory.allocate_with(pool.device, bytes as u64, context, rights());
    let taken = take().or_else(|_| {
        stream.wait_idle();
        take()
    });
    address.set(taken?)
}

/// Frees in stream order.
pub(super) fn free(address: u64, stream: Handle) -> Outcome {
    let (driver, stream) = (state::driver()?, state::stream(stream)?);
    if address == 0 {
        return Ok(());
    }
    if let Some(own) = driver.machine.memory.reservation(address) {
        if own.base != address {
            return refuse(INVALID_VALUE, format!("no allocation starts at {address:#x}"));
        }
        if stream.is_captured() {
            stream.note(Work::Free(own));
        } else {
            stream.submit(Command::EndReserved(own.let_go()?));
        }
        return Ok(());
    }
    let found = driver.machine.memory.find(address);
    if !found.is_some_and(|found| found.base == address && !found.kind.is_host()) {
        return refuse(INVALID_VALUE, format!("no device allocation starts at {address:#x}"));
    }
    stream.submit(Command::Free(address));
    Ok(())
}

/// `CUmemPoolProps`; the rest does not matter here.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct PoolProperties {
    allocation_type: c_int,
    handle_types: c_int,
    location_type: c_int,
    location: c_int,
    rest: [u64; 9],
}

impl PoolProperties {
    /// Pinned memory of a device.
    pub fn on(device: c_int) -> Self {
        let (allocation_type, location_type) = (1, 1);
        Self { allocation_type, handle_types: 0, location_type, location: device, rest: [0; 9] }
    }
}

/// The GPU whose memory is wanted; other kinds of pools are refused.
pub(super) fn check(properties: &PoolProperties) -> Outcome<usize> {
    permit()?;
    // Pinned allocations on a device, not exported.
    if properties.allocation_type != 1 || properties.location_type != 1 {
        return refuse(INVALID_VALUE, "a pool of pinned device memory is what there is");
    }
    if properties.handle_types != 0 {
        return refuse(NOT_SUPPORTED, "pools that other processes share");
    }
    Ok(state::device(properties.location)?.1)
}

/// Gives devices access to a pool's memory, or takes it.
pub(super) fn grant(pool: &Pool, accesses: In<AccessDescription>, count: usize) -> Outcome {
    let driver = state::driver()?;
    for index in 0..count.min(64) {
        let AccessDescription { location_type, location, flags } = accesses.at(index).get()?;
        let (_, gpu) = state::device(location)?;
        if location_type != ON_DEVICE || !matches!(flags, NO_ACCESS | READ_WRITE) {
            return refuse(INVALID_VALUE, format!("location {location_type}, flags {flags}"));
        }
        if flags == READ_WRITE && gpu != pool.device {
            let (from, to) = (gpu, pool.device);
            if !driver.machine.can_access_peer(from, to) {
                return Err(Error::PeerUnsupported { from, to }.into());
            }
        }
        pool.rights.set(gpu, flags == READ_WRITE);
    }
    Ok(())
}

/// `CUmemAccessDesc`
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct AccessDescription {
    pub location_type: c_int,
    pub location: c_int,
    pub flags: c_int,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`
pub(super) const ON_DEVICE: c_int = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_NONE`
pub(super) const NO_ACCESS: c_int = 0;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
pub(super) const READ_WRITE: c_int = 3;

/// The pool that an allocation is from, 0 if it is from none.
pub(super) fn of(found: &Allocation) -> Handle {
    let Some(rights) = &found.rights else { return 0 };
    let own = |pool: &Pool| Arc::ptr_eq(&pool.rights, rights);
    state::driver().ok().and_then(|driver| driver.pools.handle_where(own)).unwrap_or(0)
}

/// The reuse settings' index, for attributes 1 to 3.
fn reuse_index(attribute: c_int) -> Option<usize> {
    matches!(attribute, 1..=3).then(|| attribute as usize - 1)
}

driver_calls! {
    fn cuDeviceGetDefaultMemPool(pool: Out<Handle>, device: c_int) {
        let (driver, gpu) = state::device(device)?;
        permit()?;
        pool.set(driver.default_pools[gpu])
    }

    fn cuDeviceGetMemPool(pool: Out<Handle>, device: c_int) {
        let (driver, gpu) = state::device(device)?;
        permit()?;
        pool.set(driver.current_pools[gpu].load(Ordering::Relaxed))
    }

    fn cuDeviceSetMemPool(device: c_int, pool: Handle) {
        let (driver, gpu) = state::device(device)?;
        permit()?;
        if driver.pools.get(pool)?.device != gpu {
            return refuse(INVALID_VALUE, "the pool is of another device");
        }
        driver.current_pools[gpu].store(pool, Ordering::Relaxed);
        Ok(())
    }

    fn cuMemPoolCreate(pool: Out<Handle>, properties: In<PoolProperties>) {
        let properties = properties.get()?;
        pool.require()?;
        let (driver, gpu) = (state::driver()?, check(&properties)?);
        pool.set(driver.pools.add(Pool::new(&driver.machine, gpu)))
    }

    fn cuMemPoolDestroy(pool: Handle) {
        let driver = state::driver()?;
        if driver.default_pools.contains(&pool) {
            return refuse(INVALID_VALUE, "a default pool cannot be destroyed");
        }
        let gpu = driver.pools.remove(pool)?.device;
        // Relaxed suffices: a device that used this pool falls back to its default one.
        let (current, default) = (&driver.current_pools[gpu], driver.default_pools[gpu]);
        let _ = current.compare_exchange(pool, default, Ordering::Relaxed, Ordering::Relaxed);
        Ok(())
    }

    fn cuMemPoolTrimTo(pool: Handle, _keep: usize) {
        state::driver()?.pools.get(pool).map(drop)
    }

    fn cuMemPoolGetAttribute(pool: Handle, attribute: c_int, value: Out<u64>) {
        let driver = state::driver()?;
        let pool = driver.pools.get(pool)?;
        if let Some(index) = reuse_index(attribute) {
            let number = pool.reuse[index].load(Ordering::Relaxed);
            value.require()?;
            return Out::<u32>::from_address(value.address()).set(number);
        }
        let (free, total) = driver.machine.memory.usage(pool.device);
        match attribute {
            4 => value.set(pool.release_threshold.load(Ordering::Relaxed)),
            5..=8 => value.set(total - free),
            _ => refuse(INVALID_VALUE, format!("pool attribute {attribute}")),
        }
    }

    fn cuMemPoolSetAttribute(pool: Handle, attribute: c_int, value: In<u64>) {
        let pool = state::driver()?.pools.get(pool)?;
        if let Some(index) = reuse_index(attribute) {
            let number = In::<u32>::from_address(value.address()).get()?;
            pool.reuse[index].store(number, Ordering::Relaxed);
            return Ok(());
        }
        match attribute {
            4 => pool.release_threshold.store(value.get()?, Ordering::Relaxed),
            // High-water marks can be reset only.
            6 | 8 if value.get()? == 0 => {}
            _ => return refuse(INVALID_VALUE, format!("pool attribute {attribute}")),
        }
        Ok(())
    }

    fn cuMemPoolSetAccess(pool: Handle, accesses: In<AccessDescription>, count: usize) {
        let driver = state::driver()?;
        grant(&*driver.pools.get(pool)?, accesses, count)?;
        driver.machine.memory.rights_changed();
        Ok(())
    }

    fn cuMemPoolGetAccess(flags: Out<c_int>, pool: Handle, location: In<[c_int; 2]>) {
        let pool = state::driver()?.pools.get(pool)?;
        let [location_type, device] = location.get()?;
        let (_, gpu) = state::device(device)?;
        if location_type != ON_DEVICE {
            return refuse(INVALID_VALUE, format!("location {location_type}"));
        }
        let given = gpu == pool.device || pool.rights.hold(gpu);
        flags.set(if given { READ_WRITE } else { NO_ACCESS })
    }
}
