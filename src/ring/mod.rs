//! The doorbell ring: how a GPU thread asks an engine for a transfer.
//!
//! `PROTOCOL.md` beside this file is the law; R1 to R12 are cited from Rust, CUDA and tests.
//!
//! * [`cursor`]: positions, slots and laps, as pure arithmetic
//! * [`consumer`]: the engine's end
//! * [`producer`]: a host's end, with the rules that device threads follow

pub mod consumer;
pub mod cursor;
pub mod producer;

pub use consumer::{Committed, Consumer};
pub use cursor::RingSize;
pub use producer::{Producer, PushError, RingMemory};
