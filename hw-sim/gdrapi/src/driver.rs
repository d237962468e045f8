//! The functions of the CUDA driver that this library needs, found by name.

use crate::Outcome;
use libloading::Library;
use std::ffi::{c_int, c_uint};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::OnceLock;

/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`
const DMA_BUF: c_uint = 1;
/// `CU_POINTER_ATTRIBUTE_CONTEXT` and `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`
const CONTEXT: c_uint = 1;
const DEVICE: c_uint = 9;

struct Driver {
    pointer_attribute: extern "C" fn(*mut u64, c_uint, u64) -> c_int,
    device: extern "C" fn(*mut c_int, c_int) -> c_int,
    retain: extern "C" fn(*mut u64, c_int) -> c_int,
    release: extern "C" fn(c_int) -> c_int,
    push: extern "C" fn(u64) -> c_int,
    pop: extern "C" fn(*mut u64) -> c_int,
    range: extern "C" fn(*mut u64, *mut usize, u64) -> c_int,
    export: extern "C" fn(*mut c_int, u64, usize, c_uint, u64) -> c_int,
    /// Keeps the functions loaded.
    _library: Library,
}

/// The driver, if there is one that has all the functions.
fn driver() -> Option<&'static Driver> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    DRIVER.get_or_init(load).as_ref()
}

fn load() -> Option<Driver> {
    // SAFETY: the driver's library is made to be opened by any program; the types are those that
    // its documentation gives these functions.
    let found = unsafe {
        Library::new("libcuda.so.1").and_then(|library| {
            Ok(Driver {
                pointer_attribute: *library.get(b"cuPointerGetAttribute")?,
                device: *library.get(b"cuDeviceGet")?,
                retain: *library.get(b"cuDevicePrimaryCtxRetain")?,
                release: *library.get(b"cuDevicePrimaryCtxRelease_v2")?,
                push: *library.get(b"cuCtxPushCurrent_v2")?,
                pop: *library.get(b"cuCtxPopCurrent_v2")?,
                range: *library.get(b"cuMemGetAddressRange_v2")?,
                export: *library.get(b"cuMemGetHandleForAddressRange")?,
                _library: library,
            })
        })
    };
    found.inspect_err(|cause| eprintln!("gdrapi: no CUDA driver: {cause}")).ok()
}

/// Is there a driver?
pub fn is_there() -> bool {
    driver().is_some()
}

/// An error of the driver, as this library's callers know it.
fn checked(code: c_int) -> Outcome {
    /// `CUDA_ERROR_OUT_OF_MEMORY`
    const OUT_OF_MEMORY: c_int = 2;
    match code {
        0 => Ok(()),
        OUT_OF_MEMORY => Err(libc::ENOMEM),
        _ => Err(libc::EINVAL),
    }
}

/// The allocation that holds an address: its base and its size.
pub fn allocation(address: u64) -> Outcome<(u64, usize)> {
    let driver = driver().ok_or(libc::ENODEV)?;
    in_context_of(driver, address, || {
        let (mut base, mut size) = (0, 0);
        checked((driver.range)(&raw mut base, &raw mut size, address))?;
        Ok((base, size))
    })
}

/// A dma-buf of whole pages of device memory.
pub fn export(address: u64, size: usize) -> Outcome<OwnedFd> {
    let driver = driver().ok_or(libc::ENODEV)?;
    in_context_of(driver, address, || {
        let mut descriptor = -1;
        checked((driver.export)(&raw mut descriptor, address, size, DMA_BUF, 0))?;
        // SAFETY: the driver has made it for us just now.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    })
}

/// Runs in the context that memory belongs to: callers need none that is current.
fn in_context_of<T>(
    driver: &Driver,
    address: u64,
    body: impl FnOnce() -> Outcome<T>,
) -> Outcome<T> {
    let mut context = 0;
    checked((driver.pointer_attribute)(&raw mut context, CONTEXT, address))?;
    if context == 0 {
        return in_primary_context_of(driver, address, body);
    }
    pushed(driver, context, body)
}

/// The same, for memory of `cuMemCreate`: it is of a GPU, and of no context.
fn in_primary_context_of<T>(
    driver: &Driver,
    address: u64,
    body: impl FnOnce() -> Outcome<T>,
) -> Outcome<T> {
    let (mut number, mut device, mut context) = (0, 0, 0);
    checked((driver.pointer_attribute)(&raw mut number, DEVICE, address))?;
    // The attribute has 32 bits, of a word that was zero.
    checked((driver.device)(&raw mut device, number as c_int))?;
    checked((driver.retain)(&raw mut context, device))?;
    let outcome = pushed(driver, context, body);
    (driver.release)(device);
    outcome
}

fn pushed<T>(driver: &Driver, context: u64, body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    checked((driver.push)(context))?;
    let outcome = body();
    let mut popped = 0;
    (driver.pop)(&raw mut popped);
    outcome
}
