//! `ncclConfig_t` of any version.

use crate::result::{Failure, Result};
use std::ffi::{c_int, c_void};

/// Bytes of the shortest configuration, that of 2.14.
const BYTES_MIN: usize = 24;
const MAGIC: u32 = 0xcafe_beef;
/// `NCCL_CONFIG_UNDEF_INT`.
const UNDEFINED: c_int = c_int::MIN;

/// The first fields, which all versions have. Those behind them are hints to NCCL's kernels and
/// network, and mean nothing here.
#[repr(C)]
struct Head {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

/// What a communicator is asked to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Calls return when their work is done, as far as the host has any.
    pub is_blocking: bool,
}

impl Config {
    /// Without a configuration.
    pub const DEFAULT: Self = Self { is_blocking: true };

    /// Reads what the caller has initialised.
    ///
    /// # Safety
    /// `config` is null, or points to what a header of NCCL 2.14 or later initialised.
    pub unsafe fn read(config: *const c_void) -> Result<Self> {
        if config.is_null() {
            return Ok(Self::DEFAULT);
        }
        if !(config as usize).is_multiple_of(align_of::<Head>()) {
            return Err(Failure::argument("config", "an aligned pointer", format!("{config:?}")));
        }
        // SAFETY: every version begins with these fields, and the pointer is aligned.
        let head = unsafe { config.cast::<Head>().read() };
        if head.magic != MAGIC || head.size < BYTES_MIN {
            let expected = "a configuration that NCCL_CONFIG_INITIALIZER has initialised";
            let seen = format!("magic {:#x}, {} bytes", head.magic, head.size);
            return Err(Failure::argument("config", expected, seen));
        }
        match head.blocking {
            0 => Ok(Self { is_blocking: false }),
            1 | UNDEFINED => Ok(Self { is_blocking: true }),
            other => Err(Failure::argument("config.blocking", "0 or 1", other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(size: usize, magic: u32, blocking: c_int) -> Result<Config> {
        let head = Head { size, magic, version: 21400, blocking };
        // SAFETY: the fields that every version has.
        unsafe { Config::read((&raw const head).cast()) }
    }

    /// If this fails, memory that nobody initialised decides how a communicator behaves.
    #[test]
    fn configurations_are_checked() {
        for size in [24, 40, 48, 72, 80, 88, 96, 4096] {
            assert_eq!(read(size, MAGIC, UNDEFINED).unwrap(), Config::DEFAULT);
            assert!(!read(size, MAGIC, 0).unwrap().is_blocking);
        }
        for (size, magic, blocking) in [(0, MAGIC, 1), (23, MAGIC, 1), (24, 0, 1), (24, MAGIC, 2)] {
            let refused = read(size, magic, blocking).unwrap_err();
            assert!(refused.message.contains("config"), "{}", refused.message);
        }
        // SAFETY: null is allowed.
        assert_eq!(unsafe { Config::read(std::ptr::null()) }.unwrap(), Config::DEFAULT);
    }
}
