//! Virtual machines: GPUs, copy engines, streams and their memory.
//!
//! Nothing here knows of any vendor's ABI; `vendor-abi` translates. Nothing here knows of
//! collectives either.
//!
//! No module knows one that knows it. From the top down:
//!
//! | level | modules |
//! |---|---|
//! | objects of programs | [`context`], [`event`], [`module`], [`launch`], [`transfer`] |
//! | streams | [`stream`], what its commands do, the [`context_state`] that streams share |
//! | the machine | [`machine`], its workers, the [`scheduler`], kernels, [`copy`], [`driver`] |
//! | graphs | [`graph`]: work that is made once and launched many times |
//! | devices beside GPUs | [`adapter`] and the [`manager`] of its connections, [`engine`] |
//! | memory | [`memory`], and the [`fabric`] that joins processes |
//! | descriptions | [`description`], [`profile`], [`fault`] |
//!
//! The scheduler knows streams as its clients alone.

pub mod adapter;
mod bytes;
mod callback;
mod client;
pub mod clock;
pub mod clusters;
pub mod command;
pub mod context;
pub mod context_state;
pub mod copy;
pub mod description;
pub mod driver;
pub mod engine;
pub mod error;
pub mod event;
pub mod fabric;
pub mod fault;
pub mod footprint;
pub mod gpu;
pub mod graph;
mod kernel;
pub mod launch;
mod looking;
pub mod machine;
pub mod manager;
pub mod memory;
pub mod module;
mod perform;
pub mod profile;
mod record;
mod report;
pub mod scheduler;
mod sleeping;
pub mod stream;
mod stream_capture;
pub mod tally;
pub mod transfer;
pub mod version;
mod vigil;
pub mod wait_value;
mod worker;
mod workspace;

pub use context::Context;
pub use error::{Error, Result, Sticky};
pub use event::Event;
pub use launch::LaunchRequest;
pub use machine::Machine;
pub use module::{Function, Module};
pub use stream::Stream;
