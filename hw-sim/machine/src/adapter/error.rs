//! Errors of verbs.

use crate::fabric::FabricError;
use std::io::ErrorKind;

/// Why a verb was refused. Each maps to the `errno` that the verbs interface documents.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// An argument is wrong: `EINVAL`.
    #[error("{0}")]
    Invalid(String),
    /// A queue is full, or a limit reached: `ENOMEM`.
    #[error("{0}")]
    Full(String),
    /// Memory that is not there, or not writable: `EFAULT`.
    #[error("{0}")]
    Fault(String),
    /// Something still uses the object: `EBUSY`.
    #[error("{0}")]
    Busy(String),
    /// No adapter of the fabric has this address: `ENETUNREACH`.
    #[error("{0}")]
    Unreachable(String),
    /// The fabric's folder is not to be trusted: `EACCES`.
    #[error("{0}")]
    Denied(String),
    /// Not done by virtual adapters: `EOPNOTSUPP`.
    #[error("{0} is not supported by virtual adapters")]
    NotSupported(String),
    /// The operating system refused: its own `errno`.
    #[error("{what}: {cause}")]
    System {
        /// The action that failed.
        what: String,
        /// Its answer.
        cause: std::io::Error,
    },
}

impl VerbsError {
    /// The number for `errno`.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Invalid(_) => libc::EINVAL,
            Self::Full(_) => libc::ENOMEM,
            Self::Fault(_) => libc::EFAULT,
            Self::Busy(_) => libc::EBUSY,
            Self::Unreachable(_) => libc::ENETUNREACH,
            Self::Denied(_) => libc::EACCES,
            Self::NotSupported(_) => libc::EOPNOTSUPP,
            Self::System { cause, .. } if cause.kind() == ErrorKind::StorageFull => libc::ENOSPC,
            Self::System { cause, .. } => cause.raw_os_error().unwrap_or(libc::EIO),
        }
    }

    /// Wraps an error of the system with what was tried.
    pub(super) fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        move |cause| Self::System { what: what.into(), cause }
    }
}

impl From<FabricError> for VerbsError {
    fn from(error: FabricError) -> Self {
        match error {
            FabricError::Invalid(text) => Self::Invalid(text),
            FabricError::Full(text) => Self::Full(text),
            untrusted @ FabricError::Untrusted { .. } => Self::Denied(untrusted.to_string()),
            FabricError::System { what, cause } => Self::System { what, cause },
        }
    }
}

impl From<crate::Error> for VerbsError {
    fn from(error: crate::Error) -> Self {
        Self::Invalid(error.to_string())
    }
}

/// The result of a verb.
pub type Result<T> = std::result::Result<T, VerbsError>;
