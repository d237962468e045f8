//! Result codes with messages. No panic leaves the library, and no error is without a message.

use crate::abi::Status;
use ringdove::Error;
use ringdove::gpu::CallersContext;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a function did not succeed.
#[derive(Clone, Debug)]
pub struct Failure {
    pub status: Status,
    pub message: String,
}

pub type Result<T> = std::result::Result<T, Failure>;

thread_local! {
    /// The message of this thread's last failure. Read through a pointer that a caller holds until
    /// its next failure.
    static LAST: RefCell<CString> = RefCell::default();
}

impl Failure {
    /// An argument that cannot be: what it is, what was expected, what was seen.
    pub fn argument(what: &str, expected: &str, seen: impl std::fmt::Display) -> Self {
        let message = format!("{what}: expected {expected}, seen {seen}");
        Self { status: Status::InvalidArgument, message }
    }

    /// A call that cannot be made now.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { status: Status::InvalidUsage, message: message.into() }
    }

    /// A call of the driver that failed.
    pub fn cuda(call: &str, cause: impl std::fmt::Debug) -> Self {
        Self { status: Status::UnhandledCudaError, message: format!("{call}: {cause:?}") }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::Argument { .. } => Status::InvalidArgument,
            Error::Disagreement { .. }
            | Error::PlanRefused { .. }
            | Error::RegistrationGone { .. }
            | Error::KernelCall { .. }
            | Error::StaleRegistration { .. }
            | Error::Capturing { .. }
            | Error::FeatureOff { .. }
            | Error::Setting { .. }
            | Error::Environment { .. } => Status::InvalidUsage,
            Error::Cuda { .. } => Status::UnhandledCudaError,
            Error::System { .. } | Error::NotFound { .. } | Error::Unreached { .. } => {
                Status::SystemError
            }
            Error::WaitExpired(_)
            | Error::HostWaitExpired { .. }
            | Error::Transport { .. }
            | Error::Aborted { .. }
            | Error::PeerValue { .. }
            | Error::Bootstrap(_) => Status::RemoteError,
            _ => Status::InternalError,
        };
        Self { status, message: error.to_string() }
    }
}

/// Runs the body of an exported function: its result as a code, its message kept for
/// `ncclGetLastError`, the caller's context current as before.
pub fn guard(function: &str, body: impl FnOnce() -> Result<Status>) -> c_int {
    let _current = CallersContext::keep();
    let done = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(Failure { status: Status::InternalError, message: format!("panic: {text}") })
    });
    match done {
        Ok(status) => status as c_int,
        Err(Failure { status, message }) => {
            tracing::warn!(function, ?status, "{message}");
            keep(&format!("{function}: {message}"));
            status as c_int
        }
    }
}

/// Keeps `message` as this thread's last.
pub fn keep(message: &str) {
    LAST.with_borrow_mut(|last| *last = text(message));
}

/// A message as C has it.
pub fn text(message: &str) -> CString {
    CString::new(message.replace('\0', "\\0")).expect("zeros are replaced")
}

/// This thread's last message; empty where nothing has failed.
pub fn last() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}
