//! Initialisation, devices and contexts.

use super::call::{In, Out, driver_calls, put_text, string};
use super::code::{
    INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, Outcome, PRIMARY_CONTEXT_ACTIVE,
    UNSUPPORTED_LIMIT, refuse,
};
use super::handles::Handle;
use super::{attributes, state};
use crate::version;
use hwsim_machine::Context;
use hwsim_machine::profile::MemoryOperations;
use std::ffi::{c_char, c_int, c_uint};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Context flags that mean something: scheduling, mapping of host memory, and the rest of 12.4.
const CONTEXT_FLAGS: c_uint = 0xff;

/// A device's identity.
type Uuid = [u8; 16];

/// A fresh context, current to the calling thread.
pub(super) fn create(context: Out<Handle>, flags: c_uint, device: c_int) -> Outcome {
    let (driver, gpu) = state::device(device)?;
    if flags & !CONTEXT_FLAGS != 0 {
        return refuse(INVALID_VALUE, format!("context flags {flags:#x}"));
    }
    context.require()?;
    let handle = driver.contexts.add(Context::new(Arc::clone(&driver.machine), gpu, flags));
    state::push_current(handle);
    context.set(handle)
}

/// Waits for all of a context's work.
pub(super) fn synchronize(context: &Context) -> Outcome {
    for stream in context.streams() {
        stream.refuse_if_captured()?;
    }
    Ok(context.synchronize()?)
}

/// Ends a device's primary context, if it is active.
fn reset_primary(device: c_int) -> Outcome {
    let (driver, gpu) = state::device(device)?;
    let handle = {
        let mut primary = driver.primaries[gpu].lock().unwrap();
        primary.users = 0;
        primary.handle.take()
    };
    handle.map_or(Ok(()), |handle| state::destroy_context(driver, handle))
}

fn release_primary(device: c_int) -> Outcome {
    let (driver, gpu) = state::device(device)?;
    let handle = {
        let mut primary = driver.primaries[gpu].lock().unwrap();
        if primary.users == 0 {
            return refuse(INVALID_CONTEXT, "the primary context is not retained");
        }
        primary.users -= 1;
        if primary.users > 0 { None } else { primary.handle.take() }
    };
    handle.map_or(Ok(()), |handle| state::destroy_context(driver, handle))
}

fn set_primary_flags(device: c_int, flags: c_uint) -> Outcome {
    let (driver, gpu) = state::device(device)?;
    if flags & !CONTEXT_FLAGS != 0 {
        return refuse(INVALID_VALUE, format!("context flags {flags:#x}"));
    }
    let mut primary = driver.primaries[gpu].lock().unwrap();
    primary.flags = flags;
    if let Some(context) = primary.handle.and_then(|handle| driver.contexts.find(handle)) {
        context.flags.store(flags, Ordering::Relaxed);
    }
    Ok(())
}

fn pop(context: Out<Handle>) -> Outcome {
    state::driver()?;
    match state::pop_current() {
        Some(handle) => {
            context.set_if(handle);
            Ok(())
        }
        None => refuse(INVALID_CONTEXT, "no context is current to this thread"),
    }
}

fn push(context: Handle) -> Outcome {
    let driver = state::driver()?;
    if driver.contexts.find(context).is_none() {
        return refuse(INVALID_CONTEXT, format!("context handle {context:#x}"));
    }
    state::push_current(context);
    Ok(())
}

fn destroy(context: Handle) -> Outcome {
    let driver = state::driver()?;
    if driver.contexts.find(context).is_none() {
        return refuse(INVALID_CONTEXT, format!("context handle {context:#x}"));
    }
    if state::current_handle() == context {
        state::pop_current();
    }
    state::destroy_context(driver, context)
}

fn uuid(uuid: Out<Uuid>, device: c_int) -> Outcome {
    let (driver, gpu) = state::device(device)?;
    uuid.set(driver.machine.description.gpus[gpu].uuid)
}

driver_calls! {
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return refuse(INVALID_VALUE, format!("cuInit flags {flags:#x}: expected 0"));
        }
        state::initialise()
    }

    fn cuDriverGetVersion(version: Out<c_int>) {
        version.set(version::shown().cuda)
    }

    fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) {
        state::device(ordinal)?;
        device.set(ordinal)
    }

    fn cuDeviceGetCount(count: Out<c_int>) {
        count.set(state::driver()?.visible.len() as c_int)
    }

    fn cuDeviceGetName(name: Out<c_char>, length: c_int, device: c_int) {
        let (driver, gpu) = state::device(device)?;
        let length = usize::try_from(length).unwrap_or(0);
        put_text(name, length, &attributes::device_name(driver.machine.model(gpu)))
    }

    fn cuDeviceGetUuid(id: Out<Uuid>, device: c_int) {
        uuid(id, device)
    }

    fn cuDeviceGetUuid_v2(id: Out<Uuid>, device: c_int) {
        uuid(id, device)
    }

    fn cuDeviceTotalMem(bytes: Out<usize>, device: c_int) {
        let (driver, gpu) = state::device(device)?;
        bytes.set(driver.machine.memory.usage(gpu).1 as usize)
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) {
        let (driver, gpu) = state::device(device)?;
        bytes.set(driver.machine.memory.usage(gpu).1 as usize)
    }

    fn cuDeviceComputeCapability(major: Out<c_int>, minor: Out<c_int>, device: c_int) {
        let (driver, gpu) = state::device(device)?;
        let capability = driver.machine.model(gpu).compute_capability;
        major.set(capability.0 as c_int)?;
        minor.set(capability.1 as c_int)
    }

    fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: c_int) {
        let (driver, gpu) = state::device(device)?;
        let machine = &driver.machine.description;
        if matches!(attribute, 92..=94 | 122 | 123)
            && machine.driver.memops == MemoryOperations::None
        {
            return value.set(0);
        }
        let withheld = match attribute {
            102 | 103 => !machine.driver.virtual_memory,
            115 => !machine.driver.memory_pools,
            124 => !machine.driver.dma_buf,
            _ => false,
        };
        if withheld {
            return value.set(0);
        }
        match attributes::of_device(&machine.gpus[gpu], attribute) {
            Some(number) => value.set(number),
            None => refuse(INVALID_VALUE, format!("device attribute {attribute}")),
        }
    }

    fn cuDeviceGetByPCIBusId(device: Out<c_int>, bus_id: In<c_char>) {
        let driver = state::driver()?;
        let text = string(bus_id)?;
        // The domain and the function may be left out.
        let full = match text.matches(':').count() {
            1 => format!("0000:{text}"),
            _ => text.to_owned(),
        };
        let full = if full.contains('.') { full } else { format!("{full}.0") };
        let wanted: Option<hwsim_machine::description::PciBusId> = full.parse().ok();
        let Some(wanted) = wanted else {
            return refuse(INVALID_VALUE, format!("PCI bus id {text:?}"));
        };
        let gpus = &driver.machine.description.gpus;
        match gpus.iter().position(|gpu| gpu.bus_id == wanted) {
            Some(gpu) => device.set(state::number_of(gpu)?),
            None => refuse(INVALID_DEVICE, format!("no GPU at {text}")),
        }
    }

    fn cuDeviceGetPCIBusId(text: Out<c_char>, length: c_int, device: c_int) {
        let (driver, gpu) = state::device(device)?;
        let length = usize::try_from(length).unwrap_or(0);
        put_text(text, length, &driver.machine.description.gpus[gpu].bus_id.to_string())
    }

    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: c_int) {
        let (driver, gpu) = state::device(device)?;
        context.require()?;
        let mut primary = driver.primaries[gpu].lock().unwrap();
        let flags = primary.flags;
        let make = || driver.contexts.add(Context::new(Arc::clone(&driver.machine), gpu, flags));
        let handle = *primary.handle.get_or_insert_with(make);
        primary.users += 1;
        context.set(handle)
    }

    fn cuDevicePrimaryCtxRelease(device: c_int) { release_primary(device) }
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) { release_primary(device) }
    fn cuDevicePrimaryCtxReset(device: c_int) { reset_primary(device) }
    fn cuDevicePrimaryCtxReset_v2(device: c_int) { reset_primary(device) }
    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: c_uint) {
        set_primary_flags(device, flags)
    }

    fn cuDevicePrimaryCtxSetFlags(device: c_int, flags: c_uint) {
        let (driver, gpu) = state::device(device)?;
        if driver.primaries[gpu].lock().unwrap().handle.is_some() {
            return Err(PRIMARY_CONTEXT_ACTIVE.into());
        }
        set_primary_flags(device, flags)
    }

    fn cuDevicePrimaryCtxGetState(device: c_int, flags: Out<c_uint>, active: Out<c_int>) {
        let (driver, gpu) = state::device(device)?;
        let primary = driver.primaries[gpu].lock().unwrap();
        flags.set(primary.flags)?;
        active.set(c_int::from(primary.handle.is_some()))
    }

    fn cuCtxCreate(context: Out<Handle>, flags: c_uint, device: c_int) {
        create(context, flags, device)
    }

    fn cuCtxCreate_v2(context: Out<Handle>, flags: c_uint, device: c_int) {
        create(context, flags, device)
    }

    fn cuCtxCreate_v3(
        context: Out<Handle>,
        _affinity: In<u64>,
        affinities: c_int,
        flags: c_uint,
        device: c_int,
    ) {
        if affinities != 0 {
            return refuse(NOT_SUPPORTED, "execution affinity");
        }
        create(context, flags, device)
    }

    fn cuCtxDestroy(context: Handle) { destroy(context) }
    fn cuCtxDestroy_v2(context: Handle) { destroy(context) }
    fn cuCtxPushCurrent(context: Handle) { push(context) }
    fn cuCtxPushCurrent_v2(context: Handle) { push(context) }
    fn cuCtxPopCurrent(context: Out<Handle>) { pop(context) }
    fn cuCtxPopCurrent_v2(context: Out<Handle>) { pop(context) }

    fn cuCtxSetCurrent(context: Handle) {
        let driver = state::driver()?;
        if context != 0 && driver.contexts.find(context).is_none() {
            return refuse(INVALID_CONTEXT, format!("context handle {context:#x}"));
        }
        state::set_current(context);
        Ok(())
    }

    fn cuCtxGetCurrent(context: Out<Handle>) {
        state::driver()?;
        context.set(state::current_handle())
    }

    fn cuCtxGetDevice(device: Out<c_int>) {
        device.set(state::number_of(state::current_any()?.1.gpu)?)
    }

    fn cuCtxGetId(context: Handle, id: Out<u64>) {
        let context = match context {
            0 => state::current_any()?.1,
            handle => state::driver()?.contexts.get_context(handle)?,
        };
        id.set(context.id)
    }

    fn cuCtxGetFlags(flags: Out<c_uint>) {
        flags.set(state::current_any()?.1.flags.load(Ordering::Relaxed))
    }

    fn cuCtxSetFlags(flags: c_uint) {
        if flags & !CONTEXT_FLAGS != 0 {
            return refuse(INVALID_VALUE, format!("context flags {flags:#x}"));
        }
        state::current_any()?.1.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    fn cuCtxSynchronize() {
        synchronize(&state::current_any()?.1)
    }

    fn cuCtxGetApiVersion(context: Handle, version: Out<c_uint>) {
        if context == 0 {
            state::current_any()?;
        } else {
            state::driver()?.contexts.get_context(context)?;
        }
        // What cuCtxCreate_v2 and later report.
        version.set(3020)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        state::current_any()?;
        least.set_if(0);
        greatest.set_if(-5);
        Ok(())
    }

    fn cuCtxGetLimit(value: Out<usize>, limit: c_int) {
        let (_, context) = state::current_any()?;
        match attributes::LIMITS.get(usize::try_from(limit).unwrap_or(usize::MAX)) {
            Some(_) if limit == attributes::HEAP_LIMIT => value.set(context.heap_limit() as usize),
            Some(&number) => value.set(number),
            None => Err(UNSUPPORTED_LIMIT.into()),
        }
    }

    fn cuCtxSetLimit(limit: c_int, value: usize) {
        let (_, context) = state::current()?;
        if limit == attributes::HEAP_LIMIT && !context.set_heap_limit(value as u64) {
            let words = "the heap's size, after a kernel has used malloc";
            return refuse(INVALID_VALUE, words);
        }
        // Stacks grow as kernels need them and printf has no buffer: the others limit nothing.
        match attributes::LIMITS.get(usize::try_from(limit).unwrap_or(usize::MAX)) {
            Some(_) => Ok(()),
            None => Err(UNSUPPORTED_LIMIT.into()),
        }
    }

    fn cuCtxGetCacheConfig(config: Out<c_int>) {
        state::current_any()?;
        config.set(0)
    }

    fn cuCtxSetCacheConfig(_config: c_int) {
        state::current().map(drop)
    }

    fn cuCtxGetSharedMemConfig(config: Out<c_int>) {
        state::current_any()?;
        config.set(1)
    }

    fn cuCtxSetSharedMemConfig(_config: c_int) {
        state::current().map(drop)
    }

    fn cuCtxResetPersistingL2Cache() {
        state::current().map(drop)
    }
}
