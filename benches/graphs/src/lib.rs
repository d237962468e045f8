//! Model graphs over nodes, a rank on each, whose tensors cross nodes in five ways:
//!
//! * [`Way::Grpc`]: a service on each rank is asked for them ([`rpc`]); values go through host
//!   memory, a message and TCP, as frameworks did it
//! * [`Way::Rpc`]: a call over RDMA: a copy into a registered message, a write, a copy out of it
//! * [`Way::Messages`]: send and receive of the communicator, whose kernels copy on both sides
//! * [`Way::Staged`]: a copy into registered memory, a one-sided write to where it is read
//! * [`Way::Analysed`]: what [`ringdove::graph`] makes of it, a one-sided write from where it is
//!   computed to where it is read

#![allow(missing_docs)] // Messages of prost.

pub mod executor;
mod launches;
pub mod models;
pub mod rpc;
pub mod ways;

pub use models::{MODELS, Model, average_bytes};
pub use ways::{Measured, Way};
