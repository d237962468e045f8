//! NCCL's C interface on ringdove: `libnccl.so.2`.
//!
//! Each function is a thin translation into calls of [`ringdove`]. What is kept here is what
//! ringdove does not know: handles, groups of each thread, reductions that users define, result
//! codes and their messages.
//!
//! * `functions`: the exported functions, each under its `nccl` and its `pnccl` name; `refused`:
//!   those that only refuse
//! * `calls`: checked arguments, and the calls that are made of them
//! * `communicator`: handles, and what stands behind them; how ranks join
//! * `group`: calls between `ncclGroupStart` and `ncclGroupEnd`, and how they are enqueued
//! * `memory`: registered buffers, and windows
//! * `stream`: how work enters and leaves a caller's stream; the caller's device
//! * `reduction`: reductions by number, with the scalars that users define
//! * `config`, `variables`: configurations and `NCCL_*` variables, as settings of ringdove
//! * `result`: result codes, messages, panics
//!
//! Behaviour is that of NCCL 2.21.5, as far as `README.md` says.

mod abi;
mod calls;
mod communicator;
mod config;
mod functions;
mod group;
mod memory;
mod reduction;
mod refused;
mod result;
mod stream;
mod variables;

pub use functions::SUPPORTED;
pub use refused::REFUSED;
