//! Virtual machines: GPUs, copy engines, streams and their memory.
//!
//! Nothing here knows of any vendor's ABI; `vendor-abi` translates. Nothing here knows of
//! collectives either.

pub mod adapter;
mod bytes;
pub mod clock;
pub mod context;
pub mod copy;
pub mod description;
pub mod driver;
pub mod engine;
pub mod error;
pub mod event;
pub mod fabric;
pub mod fault;
pub mod gpu;
mod kernel;
pub mod machine;
pub mod memory;
pub mod module;
pub mod profile;
mod report;
pub mod scheduler;
pub mod stream;
pub mod transfer;
pub mod wait_value;
mod worker;
mod workspace;

pub use context::Context;
pub use error::{Error, Result, Sticky};
pub use event::Event;
pub use machine::{LaunchRequest, Machine};
pub use module::{Function, Module};
pub use stream::Stream;
