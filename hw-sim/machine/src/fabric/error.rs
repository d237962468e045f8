//! What can go wrong with the fabric's files.

/// Why the fabric's folder, or a file in it, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    /// A file is not what it should be.
    #[error("{0}")]
    Invalid(String),
    /// No number or name is free.
    #[error("{0}")]
    Full(String),
    /// The operating system refused.
    #[error("{what}: {cause}")]
    System {
        /// What was tried.
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
