//! Virtual memory management: memory without addresses, addresses without memory, and what joins
//! them.
//!
//! Physical memory lives until it has been released as often as it was made, imported or retained,
//! and is mapped nowhere.

use super::call::{In, Out, driver_calls};
use super::code::{INVALID_VALUE, NOT_SUPPORTED, Outcome, refuse};
use super::handles::Handle;
use super::pool::{AccessDescription, NO_ACCESS, ON_DEVICE, READ_WRITE};
use super::state::{self, Driver};
use hwsim_machine::Error;
use hwsim_machine::memory::{GRANULARITY, Mapped, Physical};
use std::ffi::{c_int, c_uint};
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`
const DESCRIPTOR: c_int = 1;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`
const PINNED: c_int = 1;

/// Physical memory that a handle names.
pub(crate) struct PhysicalHandle {
    physical: Arc<Physical>,
    /// How often it has to be released. 0: the handle is gone.
    references: Mutex<u64>,
}

impl PhysicalHandle {
    fn references(&self) -> MutexGuard<'_, u64> {
        self.references.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A new handle of physical memory.
fn hand_out(driver: &Driver, physical: Arc<Physical>) -> Handle {
    driver.physicals.add(Arc::new(PhysicalHandle { physical, references: Mutex::new(1) }))
}

/// `CUmemAllocationProp`
#[derive(Clone, Copy)]
#[repr(C)]
struct AllocationProperties {
    allocation_type: c_int,
    handle_types: c_int,
    location_type: c_int,
    location: c_int,
    win32: u64,
    compression: u8,
    gpu_direct_rdma: u8,
    usage: u16,
    reserved: [u8; 4],
}

/// `CUmemLocation`
#[derive(Clone, Copy)]
#[repr(C)]
struct Location {
    kind: c_int,
    number: c_int,
}

/// Is there virtual memory management?
fn permit() -> Outcome<&'static Driver> {
    let driver = state::driver()?;
    match driver.machine.description.driver.virtual_memory {
        true => Ok(driver),
        false => refuse(NOT_SUPPORTED, "the driver profile has no virtual memory management"),
    }
}

/// Do adapters reach physical memory of a GPU? All of it, whatever it was asked for: by dma-bufs.
fn is_reached_by_adapters(gpu: usize) -> Outcome<bool> {
    let machine = &state::driver()?.machine;
    Ok(machine.description.driver.dma_buf && machine.model(gpu).dma_buf)
}

/// The GPU whose memory is asked for.
fn check(properties: &AllocationProperties) -> Outcome<usize> {
    if properties.allocation_type != PINNED || properties.location_type != ON_DEVICE {
        return refuse(NOT_SUPPORTED, "physical memory other than pinned memory of a device");
    }
    if properties.handle_types & !DESCRIPTOR != 0 {
        let text = format!(
            "handle types {:#x}: memory is shared by file descriptors only",
            properties.handle_types
        );
        return refuse(NOT_SUPPORTED, text);
    }
    // A driver that does not compress gives plain memory, and its properties say so.
    let gpu = state::device(properties.location)?.1;
    if properties.gpu_direct_rdma != 0 && !is_reached_by_adapters(gpu)? {
        let text = "physical memory for RDMA adapters: the GPU exports no dma-bufs";
        return refuse(NOT_SUPPORTED, text);
    }
    Ok(gpu)
}

fn set_access(
    address: u64,
    bytes: usize,
    accesses: In<AccessDescription>,
    count: usize,
) -> Outcome {
    let driver = permit()?;
    let memory = &driver.machine.memory;
    let Some(mapped) = memory.mapped(address) else {
        return refuse(INVALID_VALUE, format!("nothing is mapped at {address:#x}"));
    };
    for index in 0..count.min(64) {
        let access = accesses.at(index).get()?;
        let (_, gpu) = state::device(access.location)?;
        if access.location_type != ON_DEVICE || !matches!(access.flags, NO_ACCESS | READ_WRITE) {
            let text = format!(
                "location {}, flags {}: devices get access for reading and writing, or none",
                access.location_type, access.flags
            );
            return refuse(NOT_SUPPORTED, text);
        }
        let (from, to) = (gpu, mapped.physical.gpu);
        if access.flags == READ_WRITE && from != to && !driver.machine.can_access_peer(from, to) {
            return Err(Error::PeerUnsupported { from, to }.into());
        }
        memory.set_access(address, bytes as u64, gpu, access.flags == READ_WRITE)?;
    }
    Ok(())
}

/// What is mapped at an address, in place of the run of mappings that is one allocation elsewhere.
pub(super) fn mapped(address: u64) -> Outcome<Option<Mapped>> {
    Ok(state::driver()?.machine.memory.mapped(address))
}

driver_calls! {
    fn cuMemCreate(
        handle: Out<Handle>, bytes: usize, properties: In<AllocationProperties>, flags: u64,
    ) {
        let (driver, properties) = (permit()?, properties.get()?);
        handle.require()?;
        if flags != 0 {
            return refuse(INVALID_VALUE, format!("flags {flags:#x}"));
        }
        let gpu = check(&properties)?;
        let is_shareable = properties.handle_types & DESCRIPTOR != 0;
        let physical = driver.machine.memory.create_physical(gpu, bytes as u64, is_shareable)?;
        handle.set(hand_out(driver, physical))
    }

    fn cuMemRelease(handle: Handle) {
        let driver = permit()?;
        let own = driver.physicals.get(handle)?;
        let mut references = own.references();
        *references -= 1;
        if *references == 0 {
            driver.physicals.remove(handle)?;
        }
        Ok(())
    }

    fn cuMemRetainAllocationHandle(handle: Out<Handle>, address: u64) {
        let driver = permit()?;
        handle.require()?;
        let Some(mapped) = driver.machine.memory.mapped(address) else {
            return refuse(INVALID_VALUE, format!("nothing is mapped at {address:#x}"));
        };
        let physical = mapped.physical;
        // Again, where the last release of the handle that was found comes between.
        while let Some(known) =
            driver.physicals.handle_where(|own| Arc::ptr_eq(&own.physical, &physical))
        {
            let Some(own) = driver.physicals.find(known) else { continue };
            let mut references = own.references();
            if *references > 0 {
                *references += 1;
                return handle.set(known);
            }
        }
        handle.set(hand_out(driver, physical))
    }

    fn cuMemAddressReserve(
        address: Out<u64>, bytes: usize, alignment: usize, _hint: u64, flags: u64,
    ) {
        let driver = permit()?;
        address.require()?;
        if flags != 0 {
            return refuse(INVALID_VALUE, format!("flags {flags:#x}"));
        }
        let memory = &driver.machine.memory;
        address.set(memory.reserve_addresses(bytes as u64, alignment as u64)?)
    }

    fn cuMemAddressFree(address: u64, bytes: usize) {
        Ok(permit()?.machine.memory.free_addresses(address, bytes as u64)?)
    }

    fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: Handle, flags: u64) {
        let driver = permit()?;
        let own = driver.physicals.get(handle)?;
        // As the documentation has it, today memory is mapped from its beginning; and all of it.
        if offset != 0 || flags != 0 || bytes as u64 != own.physical.bytes {
            let whole = own.physical.bytes;
            let text = format!("{bytes} bytes from {offset} on, flags {flags:#x}, of {whole}");
            return refuse(INVALID_VALUE, text);
        }
        Ok(driver.machine.memory.map(address, &own.physical)?)
    }

    fn cuMemUnmap(address: u64, bytes: usize) {
        Ok(permit()?.machine.memory.unmap(address, bytes as u64)?)
    }

    fn cuMemSetAccess(
        address: u64, bytes: usize, accesses: In<AccessDescription>, count: usize,
    ) {
        set_access(address, bytes, accesses, count)
    }

    fn cuMemGetAccess(flags: Out<u64>, location: In<Location>, address: u64) {
        let driver = permit()?;
        let location = location.get()?;
        let (_, gpu) = state::device(location.number)?;
        if location.kind != ON_DEVICE {
            return refuse(INVALID_VALUE, format!("location {}", location.kind));
        }
        match driver.machine.memory.mapped(address) {
            Some(mapped) if mapped.is_granted(gpu) => flags.set(READ_WRITE as u64),
            Some(_) => flags.set(NO_ACCESS as u64),
            None => refuse(INVALID_VALUE, format!("nothing is mapped at {address:#x}")),
        }
    }

    fn cuMemGetAllocationGranularity(
        bytes: Out<usize>, properties: In<AllocationProperties>, option: c_uint,
    ) {
        permit()?;
        check(&properties.get()?)?;
        // The least, and the recommended one.
        if option > 1 {
            return refuse(INVALID_VALUE, format!("option {option}"));
        }
        bytes.set(GRANULARITY as usize)
    }

    fn cuMemGetAllocationPropertiesFromHandle(
        properties: Out<AllocationProperties>, handle: Handle,
    ) {
        let own = permit()?.physicals.get(handle)?;
        properties.set(AllocationProperties {
            allocation_type: PINNED,
            handle_types: if own.physical.is_shareable { DESCRIPTOR } else { 0 },
            location_type: ON_DEVICE,
            location: state::number_of(own.physical.gpu)?,
            win32: 0,
            compression: 0,
            gpu_direct_rdma: is_reached_by_adapters(own.physical.gpu)?.into(),
            usage: 0,
            reserved: [0; 4],
        })
    }

    fn cuMemExportToShareableHandle(
        shared: Out<c_int>, handle: Handle, kind: c_int, flags: u64,
    ) {
        let own = permit()?.physicals.get(handle)?;
        shared.require()?;
        if kind != DESCRIPTOR || flags != 0 {
            return refuse(NOT_SUPPORTED, format!("handle type {kind}, flags {flags:#x}"));
        }
        shared.set(own.physical.export()?.into_raw_fd())
    }

    fn cuMemImportFromShareableHandle(handle: Out<Handle>, shared: u64, kind: c_int) {
        let driver = permit()?;
        handle.require()?;
        let descriptor = c_int::try_from(shared).ok().filter(|&descriptor| descriptor >= 0);
        let (Some(descriptor), DESCRIPTOR) = (descriptor, kind) else {
            return refuse(INVALID_VALUE, format!("handle type {kind}, descriptor {shared:#x}"));
        };
        // SAFETY: a number that names no open file is an error of the copy; one that does stays
        // open meanwhile, by the caller's word, as the API has it.
        let copy = unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned();
        let Ok(copy) = copy else {
            return refuse(INVALID_VALUE, format!("descriptor {descriptor} is not open"));
        };
        handle.set(hand_out(driver, driver.machine.memory.import_physical(copy)?))
    }
}
