//! Virtual device engines: `kernels/BAR.md`, carried out.
//!
//! An engine's BAR is a file, `resource0` in the tree that `hwsim run` shows. A process maps it,
//! and lets its GPUs reach the ring of one channel; from then on this process plays that channel:
//! one thread for all channels of a process, which reads and writes the process's own memory.
//! Channels of one process reach each other directly, those of others through the fabric's folder.
//!
//! ```text
//! ring ─▶ decoder ─▶ queue of the lane ─▶ fetch ─▶ link ─▶ write unit of the peer's channel
//! ```
//!
//! Each part has a file, named as in BAR.md.

mod bar;
mod channel;
mod decoder;
mod dma;
mod error;
pub mod fault;
mod fetch;
mod link;
mod model;
mod node;
mod queue;
mod registers;
mod service;
#[cfg(test)]
mod tests;
mod write;

pub use bar::Bars;
pub use error::EngineError;
pub use model::{EngineMemory, EngineModel};
pub use registers::{bar_bytes, identity, identity_bytes, link_address, make_bar};
pub use ringdove_kernels::bar::{Identity, PCI_CLASS, PCI_DEVICE_VIRTUAL, PCI_VENDOR_VIRTUAL};
pub(crate) use service::KernelWatch;
pub use service::{Engines, EnginesRequest};
