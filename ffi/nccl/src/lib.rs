//! NCCL's C interface on ringdove: `libnccl.so.2`.
//!
//! Each function is a thin translation into calls of [`ringdove`]. What is kept here is what
//! ringdove does not know: handles, groups of each thread, reductions that users define, result
//! codes and their messages.
//!
//! * `functions`: the exported functions; `absent`: those of features that are absent; `refused`:
//!   those that only refuse; `exported`: the two names of each
//! * `calls`: checked arguments, and the calls that are made of them
//! * `communicator`: handles, and what stands behind them; how ranks join
//! * `group`: calls between `ncclGroupStart` and `ncclGroupEnd`, and how they are enqueued
//! * `memory`: registered buffers, and windows
//! * `caller`: the caller's device
//! * `reduction`: reductions by number, with the scalars that users define
//! * `config`, `variables`: configurations and `NCCL_*` variables, as settings of ringdove;
//!   `comm_id`: the variable that names where ranks meet
//! * `result`: result codes, messages, panics
//! * `ep`: NCCL EP's functions, to which `libnccl_ep.so` leads
//!
//! Behaviour is that of NCCL 2.21.5, as far as `README.md` says.

mod abi;
mod absent;
mod caller;
mod calls;
mod comm_id;
mod communicator;
mod config;
mod ep;
mod exported;
mod functions;
mod group;
mod memory;
mod reduction;
mod refused;
mod result;
mod variables;

pub use absent::ABSENT;
pub use ep::{FUNCTIONS as EP_FUNCTIONS, pncclRingdoveEp};
pub use functions::SUPPORTED;
pub use refused::REFUSED;
