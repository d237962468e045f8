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
        /// What is mapped there.
        found: String,
        /// How many engines there are.
        engines: usize,
    },
    /// The range holds no ring.
    #[error(
        "{bytes} bytes from {offset:#x} of the BAR of {engine} hold the beginning of no channel's \
         ring: that of channel 0 is at {first:#x}, the others follow at a distance of {distance:#x}"
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
    #[error("channel {channel} is served for another mapping or another process already")]
    Served {
        /// Its number.
        channel: u64,
    },
    /// The fault list is wrong.
    #[error("faults of {engine} (HWSIM_FAULTS): {why}")]
    Faults {
        /// The engine.
        engine: String,
        /// What is wrong.
        why: String,
    },
    /// A file cannot be used.
    #[error("{}: {cause}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },
    /// The fabric's folder cannot be used.
    #[error(transparent)]
    Fabric(#[from] FabricError),
}
