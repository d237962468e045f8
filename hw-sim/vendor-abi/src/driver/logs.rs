//! Options of the just-in-time compiler that have an effect here: the logs.

use super::call::{In, Out, put_text};
use super::code::{INVALID_VALUE, Outcome, refuse};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// `CUjit_option`: the information log and its size, the error log and its size.
const INFO: c_int = 3;
const INFO_BYTES: c_int = 4;
const ERROR: c_int = 5;
const ERROR_BYTES: c_int = 6;
/// Options above are not known; those below have no effect.
const OPTION_MAX: c_int = 40;

/// A log of the program's.
#[derive(Clone, Copy, Default)]
struct Log {
    buffer: u64,
    bytes: usize,
    /// The value that said how large it is, and says afterwards how much is used; 0 for none.
    used: u64,
}

/// The logs that a program wants.
#[derive(Clone, Copy, Default)]
pub(super) struct LogBuffers {
    info: Log,
    error: Log,
}

impl LogBuffers {
    /// Reads the options of a call.
    pub fn read(count: c_uint, options: In<c_int>, values: In<u64>) -> Outcome<Self> {
        let mut logs = Self::default();
        for index in 0..count as usize {
            let (option, value) = (options.at(index).get()?, values.at(index).get()?);
            let log = if option <= INFO_BYTES { &mut logs.info } else { &mut logs.error };
            match option {
                INFO | ERROR => log.buffer = value,
                INFO_BYTES | ERROR_BYTES => {
                    (log.bytes, log.used) = (value as u32 as usize, values.at(index).address());
                }
                0..=OPTION_MAX => {}
                _ => return refuse(INVALID_VALUE, format!("compiler option {option}")),
            }
        }
        Ok(logs)
    }

    /// Writes the logs, each cut to its buffer, and how many bytes of it are used.
    pub fn write(&self, info: &str, error: &str) -> Outcome {
        for (Log { buffer, bytes, used }, text) in [(self.info, info), (self.error, error)] {
            if buffer != 0 && bytes > 0 {
                put_text(Out::<c_char>::from_address(buffer), bytes, text)?;
                Out::<u64>::from_address(used).set_if(text.len().min(bytes - 1) as u64);
            }
        }
        Ok(())
    }
}

/// The type of option values in C; here they are taken as words.
const _: () = assert!(size_of::<*mut c_void>() == size_of::<u64>());
