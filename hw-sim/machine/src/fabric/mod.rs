//! What joins the processes of a cluster: a folder in which each has a file, and memory that two of
//! them share. Adapters and device engines move their data through it.

pub(crate) mod copy;
mod directory;
mod error;
mod folder;
pub(crate) mod holders;
mod ring;
mod segment;
mod thread;
mod wake;

pub use directory::Directory;
pub(crate) use directory::take_room;
pub use error::FabricError;
pub(crate) use folder::{Fabric, Process};
pub(crate) use holders::ProcessId;
pub(crate) use ring::{Layout, Reader, RecordFormat, Writer};
pub(crate) use segment::Segment;
pub(crate) use thread::{ask_for_short_slices, block_signals};
pub(crate) use wake::WakeWord;
