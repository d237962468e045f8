//! NCCL EP's functions, on `ringdove::experts`. `libnccl_ep.so` (`ffi/nccl_ep`) has their names,
//! and finds them here, where the communicators behind `ncclComm_t` are.
//!
//! * `functions`: the functions, and the table in which the other library finds them
//! * `abi`: structures and numbers; `tensor`: descriptors of memory
//! * `group`: groups, and the shapes of tokens that they have been used with
//! * `handle`: handles, dispatch and combine, and `state`, their calls to `ringdove`; `counting`:
//!   counts before a dispatch
//! * `raw`: memory of programs, as `ringdove` takes it

pub mod abi;
mod counting;
mod functions;
mod group;
mod handle;
mod raw;
mod state;
mod tensor;

pub use functions::{FUNCTIONS, pncclRingdoveEp};

use crate::result::Failure;

/// What NCCL EP has, and this library does not.
fn absent(what: &str, instead: &str) -> Failure {
    Failure::usage(format!("{what} is not implemented in ringdove's libnccl_ep.so; {instead}"))
}
