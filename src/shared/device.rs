//! Memory that only devices reach, as far as somebody who registers it must know it.

use std::os::fd::OwnedFd;

/// A range of device memory that keeps its allocation alive.
///
/// # Safety
/// For as long as the value lives, `length_bytes` bytes from `address` are one allocation of a
/// device, or a part of one; no Rust reference points into them; a device may write them at any
/// time.
pub unsafe trait DeviceRange: Send + Sync {
    /// Device address of the first byte.
    fn address(&self) -> u64;

    /// Bytes.
    fn length_bytes(&self) -> u64;

    /// The range as a dma-buf, if the driver exports it; else the reason in words.
    ///
    /// # Errors
    /// Why the driver does not export it, for a report.
    fn dma_buffer(&self) -> Result<DmaBuffer, String>;
}

/// Device memory as a file that another driver can import.
#[derive(Debug)]
pub struct DmaBuffer {
    /// The dma-buf.
    pub file: OwnedFd,
    /// Where in it the range begins: exports start at page boundaries.
    pub offset: u64,
}
