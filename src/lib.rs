//! Ringdove: GPU-driven collective communication.
//!
//! * [`error`]: typed errors
//! * [`id`]: typed numbers: ranks, routes, lanes, ring positions
//! * [`shared`]: the only views of memory that a device also writes
//! * [`ring`]: the doorbell ring: protocol, consumer, host producer
//! * [`engine`]: the proxy that drains rings, and its threads
//! * [`transport`]: the trait that moves bytes, and its middleware

pub mod engine;
pub mod error;
pub mod id;
pub mod ring;
pub mod shared;
pub mod transport;

pub use error::{Error, Result};
