//! Checks on the memory that callers pass.

use crate::error::{Error, Result};
use crate::gpu::{Allocation, Current};
use cudarc::driver::{CudaContext, CudaStream};
use ringdove_kernels::element::DataType;

/// `count` elements as bytes.
pub(super) fn bytes(count: usize, data_type: DataType) -> Result<u64> {
    let bytes = (count as u64).checked_mul(data_type.size_bytes() as u64);
    bytes.filter(|&bytes| bytes < 1 << 40).ok_or_else(|| {
        let expected = format!("less than 1 TiB of {data_type:?} elements");
        Error::argument("count", expected, count)
    })
}

/// `bytes` bytes as elements.
pub(super) fn elements(what: &str, bytes: usize, data_type: DataType) -> Result<usize> {
    let size = data_type.size_bytes();
    if !bytes.is_multiple_of(size) {
        let expected = format!("a multiple of {size} bytes, for {data_type:?}");
        return Err(Error::argument(what, expected, format!("{bytes} bytes")));
    }
    Ok(bytes / size)
}

/// A buffer or a stream of the context on which the rank runs.
pub(super) fn check_home(what: &str, stream: &CudaStream, home: &CudaContext) -> Result<()> {
    let context = stream.context();
    if context.cu_ctx() == home.cu_ctx() {
        return Ok(());
    }
    let expected = format!("one of device {}", home.ordinal());
    let seen = format!("one of another context, of device {}", context.ordinal());
    Err(Error::argument(what, expected, seen))
}

/// An element buffer: aligned, and inside one allocation that the driver knows, which is returned.
/// `None` for a buffer of no bytes.
pub(super) fn check(
    current: &Current,
    what: &str,
    (address, bytes): (u64, u64),
    data_type: DataType,
) -> Result<Option<Allocation>> {
    let size = data_type.size_bytes() as u64;
    if !address.is_multiple_of(size) {
        let expected = format!("an address that is a multiple of {size}, for {data_type:?}");
        return Err(Error::argument(what, expected, format!("{address:#x}")));
    }
    if bytes == 0 {
        return Ok(None);
    }
    check_range(current, what, (address, bytes)).map(Some)
}

/// A range of memory that the driver knows. Without this check a wrong address would end the whole
/// context, or silently hit memory of somebody else.
pub(super) fn check_range(
    current: &Current,
    what: &str,
    (address, bytes): (u64, u64),
) -> Result<Allocation> {
    let Some(allocation) = current.allocation(address) else {
        let expected = "memory that the CUDA driver knows";
        return Err(Error::argument(what, expected, format!("{address:#x}")));
    };
    let left = allocation.bytes_from(address);
    if bytes > left {
        let expected = format!("at most {left} bytes, up to the end of its allocation");
        return Err(Error::argument(what, expected, format!("{bytes} bytes at {address:#x}")));
    }
    Ok(allocation)
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
