//! The public calls. Each is thin: it takes addresses from buffers and makes a call.

mod all_reduce;
mod collective;
mod collectives;
mod core;
mod device_handle;
mod experts;
mod group;
mod membership;
mod programs;
mod raw;
mod registration;
mod split;
mod windows;

pub use collective::CollectiveSpec;
pub use core::{Communicator, Statistics};
pub use device_handle::DeviceHandle;
pub use group::Group;
pub use membership::Membership;
pub(crate) use programs::ProgramCall;
