//! Memory: allocation, host memory, what a pointer is.

use super::call::{In, Out, driver_calls};
use super::code::{INVALID_VALUE, NOT_PERMITTED, NOT_SUPPORTED, Outcome, refuse};
use super::handles::Handle;
use super::state::Driver;
use super::{engine, pool, state, virtual_memory};
use hwsim_machine::context::Context;
use hwsim_machine::memory::{Allocation, AllocationKind};
use std::ffi::{c_int, c_uint};
use std::os::fd::IntoRawFd;
use std::sync::Arc;

/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`
const DMA_BUF: c_uint = 1;
/// `CU_MEMHOSTALLOC_PORTABLE | DEVICEMAP | WRITECOMBINED`
const HOST_ALLOC_FLAGS: c_uint = 7;
/// `CU_MEMHOSTREGISTER_PORTABLE | DEVICEMAP | IOMEMORY | READ_ONLY`
const HOST_REGISTER_FLAGS: c_uint = 15;
/// `CU_MEMHOSTREGISTER_IOMEMORY`
const IO_MEMORY: c_uint = 4;

/// Allocates on the current context's GPU.
pub(super) fn allocate(address: Out<u64>, bytes: usize, managed: bool) -> Outcome {
    let (driver, context) = state::current()?;
    address.require()?;
    if bytes == 0 {
        return refuse(INVALID_VALUE, "an allocation of 0 bytes");
    }
    let memory = &driver.machine.memory;
    address.set(memory.allocate(context.gpu, bytes as u64, managed, context.id)?)
}

/// Frees what was allocated. As on the real thing, nothing that was submitted before uses the
/// memory any more when the call returns.
fn free(address: u64) -> Outcome {
    let driver = state::driver()?;
    let context = match state::current_handle() {
        // Its address says whose memory it is: a thread without a context can free it, too.
        0 => owner_of(driver, address),
        _ => None,
    };
    let context = match context {
        Some(owner) => owner,
        None => state::current_any()?.1,
    };
    if address == 0 {
        return Ok(());
    }
    let finished = context.synchronize();
    let memory = &driver.machine.memory;
    match memory.reservation(address).filter(|own| own.base == address) {
        Some(own) => own.let_go()?.end(),
        None => memory.free(address)?,
    }
    Ok(finished?)
}

/// The context that memory was made in.
fn owner_of(driver: &Driver, address: u64) -> Option<Arc<Context>> {
    let found = driver.machine.memory.find(address)?;
    let handle = driver.contexts.handle_where(|context| context.id == found.context)?;
    driver.contexts.find(handle)
}

fn allocate_host(pointer: Out<u64>, bytes: usize, flags: c_uint) -> Outcome {
    let (driver, context) = state::current()?;
    pointer.require()?;
    if bytes == 0 || flags & !HOST_ALLOC_FLAGS != 0 {
        return refuse(INVALID_VALUE, format!("{bytes} bytes of host memory, flags {flags:#x}"));
    }
    pointer.set(driver.machine.memory.allocate_host(bytes as u64, flags, context.id)?)
}

fn register_host(pointer: u64, bytes: usize, flags: c_uint) -> Outcome {
    let (driver, context) = state::current()?;
    if flags & !HOST_REGISTER_FLAGS != 0 {
        return refuse(INVALID_VALUE, format!("registration flags {flags:#x}"));
    }
    let memory = &driver.machine.memory;
    if flags & IO_MEMORY != 0 && !engine::may_register(driver) {
        let text = "I/O memory: the driver profile does not permit this user to register it";
        return refuse(NOT_PERMITTED, text);
    }
    if flags & IO_MEMORY == 0 {
        engine::refuse_bar(driver, pointer)?;
        return Ok(memory.register_host(pointer, bytes as u64, flags, context.id)?);
    }
    // First the memory: a range that cannot be registered leaves its channels alone.
    memory.register_host(pointer, bytes as u64, flags, context.id)?;
    engine::register(driver, pointer, bytes as u64, context.id)
        .inspect_err(|_| drop(memory.unregister_host(pointer)))
}

fn unregister_host(pointer: u64) -> Outcome {
    let (driver, _) = state::current_any()?;
    engine::unregister(driver, pointer);
    Ok(driver.machine.memory.unregister_host(pointer)?)
}

fn pitched(
    address: Out<u64>,
    pitch: Out<usize>,
    width: usize,
    height: usize,
    element: c_uint,
) -> Outcome {
    if !matches!(element, 4 | 8 | 16) || width == 0 || height == 0 {
        return refuse(INVALID_VALUE, format!("{width} x {height}, elements of {element} bytes"));
    }
    pitch.require()?;
    let row = width.checked_next_multiple_of(512);
    let Some((row, bytes)) = row.and_then(|row| Some((row, row.checked_mul(height)?))) else {
        return refuse(INVALID_VALUE, "the size does not fit 64 bits");
    };
    allocate(address, bytes, false)?;
    pitch.set(row)
}

fn info(free: Out<usize>, total: Out<usize>) -> Outcome {
    let (driver, context) = state::current()?;
    let usage = driver.machine.memory.usage(context.gpu);
    free.set_if(usage.0 as usize);
    total.set_if(usage.1 as usize);
    Ok(())
}

fn range(base: Out<u64>, size: Out<usize>, address: u64) -> Outcome {
    state::current()?;
    let Some(found) = find(address)? else {
        return refuse(super::code::NOT_FOUND, format!("no allocation holds {address:#x}"));
    };
    let own = virtual_memory::mapped(address)?;
    base.set_if(own.as_ref().map_or(found.base, |own| own.base));
    size.set_if(own.map_or(found.bytes, |own| own.physical.bytes) as usize);
    Ok(())
}

fn device_pointer(address: Out<u64>, pointer: u64, flags: c_uint) -> Outcome {
    let (driver, _) = state::current()?;
    let found = driver.machine.memory.find(pointer).filter(|found| found.kind.is_host());
    if flags != 0 || found.is_none() {
        return refuse(INVALID_VALUE, format!("{pointer:#x} is not pinned host memory"));
    }
    address.set(pointer)
}

fn prefetch(address: u64, bytes: usize, stream: Handle) -> Outcome {
    // Managed memory is where it is: near everyone.
    state::stream(stream)?;
    Ok(state::driver()?.machine.memory.check(address, bytes as u64)?)
}

/// `CU_POINTER_ATTRIBUTE_*`, by number, of a pointer into memory that the machine knows. Values go
/// to `data`, which has the attribute's own size.
fn pointer_attribute(
    data: Out<u64>,
    attribute: c_int,
    (pointer, found): (u64, &Arc<Allocation>),
) -> Outcome {
    // The same room, seen as a value of the attribute's size.
    let word = |value: u32| Out::<u32>::from_address(data.address()).set(value);
    let byte = |value: bool| Out::<u8>::from_address(data.address()).set(u8::from(value));
    let contexts = &state::driver()?.contexts;
    let owner_handle = contexts.handle_where(|context| context.id == found.context);
    let owner = || contexts.find(owner_handle?);
    match attribute {
        // Context.
        1 => data.set(owner_handle.unwrap_or(0)),
        // Memory type: host 1, device 2, unified 4 is never reported.
        2 => word(if found.kind.is_host() { 1 } else { 2 }),
        // Device and host pointers: the two are one.
        3 => data.set(pointer),
        4 if is_reached_by_host(found) => data.set(pointer),
        // Tokens for drivers of other devices, which none has asked for since CUDA 6: a word of 64
        // bits, and one of 32.
        5 if matches!(found.kind, AllocationKind::Device { .. }) => {
            data.set(0)?;
            Out::<u32>::from_address(data.address() + 8).set(0)
        }
        // Memory operations synchronise; managed; device; mapped.
        6 => word(0),
        7 => data.set(found.id),
        8 => byte(matches!(found.kind, AllocationKind::Managed { .. })),
        9 => {
            // What another process exported may lie on a GPU that is hidden here.
            let of = |gpu: Option<usize>| gpu.and_then(|gpu| state::number_of(gpu).ok());
            let number = of(found.kind.gpu()).or_else(|| of(owner().map(|owner| owner.gpu)));
            word(number.unwrap_or(0) as u32)
        }
        10 => byte(matches!(found.kind, AllocationKind::Device { .. }) && !found.has_own_rights()),
        11 => data.set(found.base),
        12 => data.set(found.bytes),
        13 => byte(true),
        // Handle types that the allocation can be exported as; access flags: read and write.
        14 => word(0),
        16 => word(3),
        17 => data.set(pool::of(found)),
        _ => refuse(INVALID_VALUE, format!("pointer attribute {attribute} of {:#x}", found.base)),
    }
}

/// The allocation that holds an address, if the host may know of it.
fn find(address: u64) -> Outcome<Option<Arc<Allocation>>> {
    let found = state::driver()?.machine.memory.find(address);
    Ok(found.filter(|found| !found.kind.is_heap()))
}

/// Can the host use the address as it is?
fn is_reached_by_host(found: &Allocation) -> bool {
    found.kind.is_host() || matches!(found.kind, AllocationKind::Managed { .. })
}

driver_calls! {
    fn cuMemAlloc(address: Out<u64>, bytes: usize) { allocate(address, bytes, false) }
    fn cuMemAlloc_v2(address: Out<u64>, bytes: usize) { allocate(address, bytes, false) }

    fn cuMemAllocPitch(
        address: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: c_uint,
    ) {
        pitched(address, pitch, width, height, element)
    }

    fn cuMemAllocPitch_v2(
        address: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: c_uint,
    ) {
        pitched(address, pitch, width, height, element)
    }

    fn cuMemAllocManaged(address: Out<u64>, bytes: usize, flags: c_uint) {
        if !matches!(flags, 1 | 2) {
            return refuse(INVALID_VALUE, format!("managed memory flags {flags:#x}"));
        }
        allocate(address, bytes, true)
    }

    fn cuMemFree(address: u64) { free(address) }
    fn cuMemFree_v2(address: u64) { free(address) }
    fn cuMemGetInfo(free: Out<usize>, total: Out<usize>) { info(free, total) }
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) { info(free, total) }

    fn cuMemGetAddressRange(base: Out<u64>, size: Out<usize>, address: u64) {
        range(base, size, address)
    }

    fn cuMemGetAddressRange_v2(base: Out<u64>, size: Out<usize>, address: u64) {
        range(base, size, address)
    }

    fn cuMemGetHandleForAddressRange(
        handle: Out<c_int>, address: u64, bytes: usize, kind: c_uint, flags: u64,
    ) {
        handle.require()?;
        let (driver, context) = state::current()?;
        if kind != DMA_BUF || flags != 0 {
            return refuse(NOT_SUPPORTED, format!("handle type {kind}, flags {flags:#x}"));
        }
        let permits = driver.machine.description.driver.dma_buf;
        if !permits || !driver.machine.model(context.gpu).dma_buf {
            return refuse(NOT_SUPPORTED, "the machine's GPUs export no dma-bufs");
        }
        let descriptor = driver.machine.memory.export_dma_buf(address, bytes as u64)?;
        handle.set(descriptor.into_raw_fd())
    }

    #[per_thread(cuMemAllocAsync_ptsz)]
    fn cuMemAllocAsync(address: Out<u64>, bytes: usize, stream: Handle) {
        pool::allocate(address, bytes, None, stream)
    }

    #[per_thread(cuMemAllocFromPoolAsync_ptsz)]
    fn cuMemAllocFromPoolAsync(
        address: Out<u64>, bytes: usize, pool: Handle, stream: Handle,
    ) {
        pool::allocate(address, bytes, Some(pool), stream)
    }

    #[per_thread(cuMemFreeAsync_ptsz)]
    fn cuMemFreeAsync(address: u64, stream: Handle) {
        pool::free(address, stream)
    }

    fn cuMemHostAlloc(pointer: Out<u64>, bytes: usize, flags: c_uint) {
        allocate_host(pointer, bytes, flags)
    }

    fn cuMemAllocHost(pointer: Out<u64>, bytes: usize) { allocate_host(pointer, bytes, 0) }
    fn cuMemAllocHost_v2(pointer: Out<u64>, bytes: usize) { allocate_host(pointer, bytes, 0) }

    fn cuMemFreeHost(pointer: u64) {
        let (driver, context) = state::current_any()?;
        let finished = context.synchronize();
        driver.machine.memory.free_host(pointer)?;
        Ok(finished?)
    }

    fn cuMemHostGetDevicePointer(address: Out<u64>, pointer: u64, flags: c_uint) {
        device_pointer(address, pointer, flags)
    }

    fn cuMemHostGetDevicePointer_v2(address: Out<u64>, pointer: u64, flags: c_uint) {
        device_pointer(address, pointer, flags)
    }

    fn cuMemHostGetFlags(flags: Out<c_uint>, pointer: u64) {
        let (driver, _) = state::current()?;
        let found = driver.machine.memory.find(pointer);
        match found.filter(|found| found.kind == AllocationKind::Pinned) {
            // With unified addressing every allocation is mapped and portable.
            Some(found) => flags.set(found.flags | 3),
            None => refuse(INVALID_VALUE, format!("{pointer:#x} is not pinned host memory")),
        }
    }

    fn cuMemHostRegister(pointer: u64, bytes: usize, flags: c_uint) {
        register_host(pointer, bytes, flags)
    }

    fn cuMemHostRegister_v2(pointer: u64, bytes: usize, flags: c_uint) {
        register_host(pointer, bytes, flags)
    }

    fn cuMemHostUnregister(pointer: u64) {
        unregister_host(pointer)
    }

    fn cuMemAdvise(address: u64, bytes: usize, _advice: c_int, _device: c_int) {
        Ok(state::driver()?.machine.memory.check(address, bytes as u64)?)
    }

    fn cuMemAdvise_v2(address: u64, bytes: usize, _advice: c_int, _location: u64) {
        Ok(state::driver()?.machine.memory.check(address, bytes as u64)?)
    }

    #[per_thread(cuMemPrefetchAsync_ptsz)]
    fn cuMemPrefetchAsync(
        address: u64, bytes: usize, _device: c_int, stream: Handle,
    ) {
        prefetch(address, bytes, stream)
    }

    #[per_thread(cuMemPrefetchAsync_v2_ptsz)]
    fn cuMemPrefetchAsync_v2(
        address: u64, bytes: usize, _location: u64, _flags: c_uint, stream: Handle,
    ) {
        prefetch(address, bytes, stream)
    }

    fn cuPointerGetAttribute(data: Out<u64>, attribute: c_int, pointer: u64) {
        data.require()?;
        match find(pointer)? {
            Some(found) => pointer_attribute(data, attribute, (pointer, &found)),
            None => refuse(INVALID_VALUE, format!("no allocation holds {pointer:#x}")),
        }
    }

    fn cuPointerGetAttributes(
        count: c_uint, attributes: In<c_int>, data: In<Out<u64>>, pointer: u64,
    ) {
        let found = find(pointer)?;
        for index in 0..count as usize {
            let (attribute, room) = (attributes.at(index).get()?, data.at(index).get()?);
            match &found {
                // Memory that the host cannot reach has no host pointer, without an error.
                Some(found) if attribute == 4 && !is_reached_by_host(found) => {
                    room.set(0)?;
                }
                Some(found) => pointer_attribute(room, attribute, (pointer, found))?,
                // Of memory that the driver does not know it says nothing, without an error.
                None if matches!(attribute, 2 | 6 | 8 | 9 | 10 | 13) => {
                    Out::<u8>::from_address(room.address()).set(0)?;
                }
                None => room.set(0)?,
            }
        }
        Ok(())
    }

    fn cuPointerSetAttribute(_value: In<u32>, attribute: c_int, pointer: u64) {
        if attribute != 6 {
            return refuse(NOT_SUPPORTED, format!("setting pointer attribute {attribute}"));
        }
        Ok(state::driver()?.machine.memory.check(pointer, 1)?)
    }
}
