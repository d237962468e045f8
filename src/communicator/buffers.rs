//! Checks on the memory that callers pass.

use crate::error::{Error, Result};
use crate::gpu::pointer_range;
use ringdove_kernels::element::DataType;

/// `count` elements as bytes.
pub(super) fn bytes(count: usize, data_type: DataType) -> Result<u64> {
    let bytes = (count as u64).checked_mul(data_type.size_bytes() as u64);
    bytes.filter(|&bytes| bytes < 1 << 40).ok_or_else(|| {
        let expected = format!("less than 1 TiB of {data_type:?} elements");
        Error::argument("count", expected, count)
    })
}

/// An element buffer: aligned, and inside one allocation that the driver knows.
pub(super) fn check(what: &str, address: u64, bytes: u64, data_type: DataType) -> Result<()> {
    let size = data_type.size_bytes() as u64;
    if !address.is_multiple_of(size) {
        let expected = format!("an address that is a multiple of {size}, for {data_type:?}");
        return Err(Error::argument(what, expected, format!("{address:#x}")));
    }
    check_range(what, address, bytes)
}

/// A range of device memory. Without this check a wrong address would end the whole context, or
/// silently hit memory of somebody else.
pub(super) fn check_range(what: &str, address: u64, bytes: u64) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let Some((start, size)) = pointer_range(address) else {
        let expected = "memory that the CUDA driver knows";
        return Err(Error::argument(what, expected, format!("{address:#x}")));
    };
    let left = (start + size).saturating_sub(address);
    if bytes > left {
        let expected = format!("at most {left} bytes, up to the end of its allocation");
        return Err(Error::argument(what, expected, format!("{bytes} bytes at {address:#x}")));
    }
    Ok(())
}

/// Input and output are the same memory or disjoint.
pub(super) fn check_overlap(send: u64, receive: u64, bytes: u64) -> Result<()> {
    let apart = send == receive || send.abs_diff(receive) >= bytes;
    if apart {
        return Ok(());
    }
    Err(Error::argument(
        "send and receive buffers",
        "the same memory, or no overlap",
        format!("{bytes} bytes at {send:#x} and at {receive:#x}"),
    ))
}
