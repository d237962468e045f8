//! `libgdrapi.so.2`, the library of GDRCopy: device memory, mapped into the process, so that small
//! copies need neither a stream nor a copy engine.
//!
//! It stands on the public driver interface alone: what is pinned is exported as a dma-buf
//! (`cuMemGetHandleForAddressRange`), and the dma-buf is mapped. GPUs that export none refuse to be
//! pinned. As with every dma-buf, memory that was freed lives on until it is unpinned.
//!
//! **Order.** Mappings count as write-combining, as those of GPUs on PCIe are. What
//! `gdr_copy_to_mapping` writes is visible before anything that the thread stores afterwards;
//! within a copy there is no order, but up to 64 aligned bytes go word by word, first to last.

mod driver;
mod mapping;
mod table;

use mapping::Mapping;
use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use table::Library;

/// The version of the interface that is reported.
const VERSION: [c_int; 2] = [2, 6];
/// `GDR_MAPPING_TYPE_WC`
const WRITE_COMBINING: c_int = 1;
/// `GDR_MAP_FLAG_DEFAULT` and `GDR_MAP_FLAG_REQ_WC_MAPPING`: what a mapping can be asked to be.
const MAP_FLAGS: [c_int; 2] = [0, 1];

/// `gdr_mh_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Handle {
    number: c_ulong,
}

/// `gdr_info_v2_t`
#[repr(C)]
pub struct Info {
    address: u64,
    mapped_size: u64,
    page_size: u32,
    cycles: u64,
    cycles_per_ms: u32,
    /// Bit 0: it is mapped; bit 1: as write-combining memory.
    flags: u32,
    mapping_type: c_int,
}

const _: () = assert!(size_of::<Info>() == 48 && std::mem::offset_of!(Info, mapping_type) == 40);

/// What a call gives: nothing, or an `errno`.
type Outcome<T = ()> = Result<T, c_int>;

/// Runs the body of a call. Nothing unwinds into C.
fn call(body: impl FnOnce() -> Outcome) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(errno)) => errno,
        Err(_) => libc::EIO,
    }
}

/// Writes an answer where the program wants it.
fn answer<T>(place: *mut T, value: T) -> Outcome {
    if place.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the program passes room for a `T`, by the contract of the interface.
    unsafe { place.write(value) };
    Ok(())
}

/// `gdr_open`: null if there is no driver.
#[unsafe(no_mangle)]
pub extern "C" fn gdr_open() -> *mut Library {
    if !driver::is_there() {
        return std::ptr::null_mut();
    }
    catch_unwind(table::open).unwrap_or(std::ptr::null_mut())
}

/// `gdr_close`: with all that was pinned and mapped.
#[unsafe(no_mangle)]
pub extern "C" fn gdr_close(library: *mut Library) -> c_int {
    call(|| table::close(library))
}

/// `gdr_pin_buffer`: the tokens are those of drivers of long ago.
#[unsafe(no_mangle)]
pub extern "C" fn gdr_pin_buffer(
    library: *mut Library,
    address: c_ulong,
    size: usize,
    _token: u64,
    _space: u32,
    handle: *mut Handle,
) -> c_int {
    gdr_pin_buffer_v2(library, address, size, 0, handle)
}

/// `gdr_pin_buffer_v2`
#[unsafe(no_mangle)]
pub extern "C" fn gdr_pin_buffer_v2(
    library: *mut Library,
    address: c_ulong,
    size: usize,
    flags: u32,
    handle: *mut Handle,
) -> c_int {
    call(|| {
        table::check(library)?;
        if handle.is_null() || flags != 0 {
            return Err(libc::EINVAL);
        }
        let number = table::add(library, Mapping::pin(address, size)?);
        answer(handle, Handle { number })
    })
}

/// `gdr_unpin_buffer`: what is still mapped is unmapped first.
#[unsafe(no_mangle)]
pub extern "C" fn gdr_unpin_buffer(library: *mut Library, handle: Handle) -> c_int {
    call(|| table::remove(library, handle.number))
}

/// `gdr_get_callback_flag`: memory that is pinned stays, whoever frees it.
#[unsafe(no_mangle)]
pub extern "C" fn gdr_get_callback_flag(
    library: *mut Library,
    handle: Handle,
    flag: *mut c_int,
) -> c_int {
    call(|| {
        table::look(library, handle.number, |_| Ok(()))?;
        answer(flag, 0)
    })
}

/// `gdr_get_info_v2`
#[unsafe(no_mangle)]
pub extern "C" fn gdr_get_info_v2(library: *mut Library, handle: Handle, info: *mut Info) -> c_int {
    call(|| {
        let found = table::look(library, handle.number, |mapping| {
            let mapped = mapping.is_mapped();
            Ok(Info {
                address: mapping.address,
                mapped_size: mapping.size as u64,
                page_size: mapping::GPU_PAGE as u32,
                cycles: 0,
                cycles_per_ms: 0,
                flags: if mapped { 0b11 } else { 0 },
                mapping_type: if mapped { WRITE_COMBINING } else { 0 },
            })
        })?;
        answer(info, found)
    })
}

/// `gdr_get_info`, as programs of the first interface know it.
#[unsafe(no_mangle)]
pub extern "C" fn gdr_get_info(library: *mut Library, handle: Handle, info: *mut Info) -> c_int {
    /// The older structure ends before the mapping's type.
    const OLD_BYTES: usize = std::mem::offset_of!(Info, mapping_type);
    call(|| {
        let mut whole = std::mem::MaybeUninit::<Info>::zeroed();
        let code = gdr_get_info_v2(library, handle, whole.as_mut_ptr());
        if code != 0 || info.is_null() {
            return Err(if code != 0 { code } else { libc::EINVAL });
        }
        // SAFETY: the program passes room for the older structure; the newer one is whole.
        unsafe {
            std::ptr::copy_nonoverlapping(whole.as_ptr().cast::<u8>(), info.cast(), OLD_BYTES)
        };
        Ok(())
    })
}

/// `gdr_map`
#[unsafe(no_mangle)]
pub extern "C" fn gdr_map(
    library: *mut Library,
    handle: Handle,
    address: *mut *mut c_void,
    size: usize,
) -> c_int {
    gdr_map_v2(library, handle, address, size, 0)
}

/// `gdr_map_v2`
#[unsafe(no_mangle)]
pub extern "C" fn gdr_map_v2(
    library: *mut Library,
    handle: Handle,
    address: *mut *mut c_void,
    size: usize,
    flags: c_int,
) -> c_int {
    call(|| {
        if address.is_null() || !MAP_FLAGS.contains(&flags) {
            return Err(libc::EINVAL);
        }
        let mapped = table::change(library, handle.number, |mapping| mapping.map(size))?;
        answer(address, mapped as *mut c_void)
    })
}

/// `gdr_unmap`
#[unsafe(no_mangle)]
pub extern "C" fn gdr_unmap(
    library: *mut Library,
    handle: Handle,
    address: *mut c_void,
    _size: usize,
) -> c_int {
    // All of it: each handle has one mapping.
    call(|| table::change(library, handle.number, |mapping| mapping.unmap(address as usize)))
}

/// `gdr_copy_to_mapping`
#[unsafe(no_mangle)]
pub extern "C" fn gdr_copy_to_mapping(
    handle: Handle,
    mapped: *mut c_void,
    from: *const c_void,
    size: usize,
) -> c_int {
    call(|| table::use_mapping(handle.number, |mapping| mapping.write(mapped as usize, from, size)))
}

/// `gdr_copy_from_mapping`
#[unsafe(no_mangle)]
pub extern "C" fn gdr_copy_from_mapping(
    handle: Handle,
    to: *mut c_void,
    mapped: *const c_void,
    size: usize,
) -> c_int {
    call(|| table::use_mapping(handle.number, |mapping| mapping.read(mapped as usize, to, size)))
}

/// `gdr_runtime_get_version`
///
/// # Safety
/// Both lead to room for a number, or are null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdr_runtime_get_version(major: *mut c_int, minor: *mut c_int) {
    for (place, number) in [major, minor].into_iter().zip(VERSION) {
        // A function without a result has no way to refuse.
        let _ = answer(place, number);
    }
}

/// `gdr_driver_get_version`: there is none apart from this library.
#[unsafe(no_mangle)]
pub extern "C" fn gdr_driver_get_version(
    library: *mut Library,
    major: *mut c_int,
    minor: *mut c_int,
) -> c_int {
    call(|| {
        table::check(library)?;
        answer(major, VERSION[0])?;
        answer(minor, VERSION[1])
    })
}

/// `gdr_get_attribute`: mappings are persistent, cannot be forced over PCIe, and go by dma-bufs.
#[unsafe(no_mangle)]
pub extern "C" fn gdr_get_attribute(
    library: *mut Library,
    attribute: c_int,
    value: *mut c_int,
) -> c_int {
    call(|| {
        table::check(library)?;
        let known = match attribute {
            1 => 1,
            2 => 0,
            3 => 1,
            _ => return Err(libc::EINVAL),
        };
        answer(value, known)
    })
}

/// `gdr_get_mapping_type_string`
#[unsafe(no_mangle)]
pub extern "C" fn gdr_get_mapping_type_string(kind: c_int, text: *mut *const c_char) -> c_int {
    call(|| {
        let name: &'static CStr = match kind {
            0 => c"NONE",
            1 => c"WC",
            2 => c"CACHING",
            3 => c"DEVICE",
            _ => return Err(libc::EINVAL),
        };
        answer(text, name.as_ptr())
    })
}
