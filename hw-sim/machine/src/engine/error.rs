//! Why an engine cannot serve a channel.

use crate::fabric::FabricError;
use std::path::PathBuf;

/// Why a channel is not served.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The memory is no mapping of an engine's BAR.
    #[error(
        "the memory at {address:#x} is mapped from {found}: expected the resource0 file of one of \
         this node's {engines} device engines"
    )]
    NotABar {
        /// Where the range begins.
        address: u64,
        /// The file that is mapped there.
        found: String,
        /// How many engines there are.
        engines: usize,
    },
    /// The range holds no ring.
    #[error(
        "{bytes} bytes from {offset:#x} of the BAR of {engine} contain no start of a channel's \
         ring: channel 0's ring starts at {first:#x}, the others follow every {distance:#x} bytes"
    )]
    NoRing {
        /// The engine.
        engine: String,
        /// Where in the BAR the range begins.
        offset: u64,
        /// Its length.
        bytes: u64,
        /// Where the first ring begins.
        first: u64,
        /// The distance between rings.
        distance: u64,
    },
    /// The channel has a user.
    #[error("channel {channel} is already in use by another mapping or another process")]
    Served {
        /// Its number.
        channel: u64,
    },
    /// The fault list is wrong.
    #[error("faults of {engine} (HWSIM_FAULTS): {why}")]
    Faults {
        /// The engine.
        engine: String,
        /// The reason.
        why: String,
    },
    /// A file cannot be used.
    #[error("{}: {cause}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
    /// The fabric's folder cannot be used.
    #[error(transparent)]
    Fabric(#[from] FabricError),
}
