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
    /// The value that said how large it is, and says afterwards how much is used; null for none.
    used: u64,
    /// What it said last, or was told.
    said: u64,
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
                    (log.bytes, log.said) = (value as u32 as usize, value);
                    log.used = values.at(index).address();
                }
                0..=OPTION_MAX => {}
                _ => return refuse(INVALID_VALUE, format!("compiler option {option}")),
            }
        }
        Ok(logs)
    }

    /// Empties the logs, and leaves alone what says how large they are.
    pub fn clear(&self) -> Outcome {
        for log in [self.info, self.error] {
            if log.buffer != 0 && log.bytes > 0 {
                put_text(Out::<c_char>::from_address(log.buffer), log.bytes, "")?;
            }
        }
        Ok(())
    }

    /// Writes the logs, each cut to its buffer, and how many bytes of it are used. A linker does so
    /// when its options should still be there, and may not: cuda.core 1.0 has freed the values by
    /// then, and a number would land in memory of somebody else. So only a value that has not
    /// changed is overwritten.
    pub fn write(&mut self, info: &str, error: &str) -> Outcome {
        for (log, text) in [(&mut self.info, info), (&mut self.error, error)] {
            if log.buffer == 0 || log.bytes == 0 {
                continue;
            }
            put_text(Out::<c_char>::from_address(log.buffer), log.bytes, text)?;
            let used = Out::<u64>::from_address(log.used);
            if log.used != 0 && used.get()? == log.said {
                log.said = text.len().min(log.bytes - 1) as u64;
                used.set(log.said)?;
            }
        }
        Ok(())
    }
}

/// The type of option values in C; here they are taken as words.
const _: () = assert!(size_of::<*mut c_void>() == size_of::<u64>());
