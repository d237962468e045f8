//! Errors of the fabric's files.

use std::path::PathBuf;

/// Why the fabric's folder, or a file in it, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    /// A file is not what it should be.
    #[error("{0}")]
    Invalid(String),
    /// No number or name is free.
    #[error("{0}")]
    Full(String),
    /// The folder is somebody else's, or others may write to it.
    #[error(
        "{} cannot be the fabric's folder: processes of user {user} map its files as memory, so \
         it must belong to that user and be writable by nobody else; seen: owner {owner}, mode \
         {mode:04o}. `mkdir -m 700` makes one that will do; `chmod go-w` mends one of your own",
        path.display()
    )]
    Untrusted {
        /// Where it is.
        path: PathBuf,
        /// Who this process runs as.
        user: u32,
        /// Whose the folder is.
        owner: u32,
        /// Its rights.
        mode: u32,
    },
    /// The operating system refused.
    #[error("{what}: {cause}")]
    System {
        /// The action that failed.
        what: String,
        /// Its answer.
        cause: std::io::Error,
    },
}

impl FabricError {
    /// Wraps an error of the system with what was tried.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        move |cause| Self::System { what: what.into(), cause }
    }
}

/// The result of a call that touches the fabric.
pub(crate) type Result<T> = std::result::Result<T, FabricError>;
