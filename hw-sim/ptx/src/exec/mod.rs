//! Execution of instructions.

// Lanes of several registers are walked side by side: the indexed loop is the plainest form of
// that, and the one that becomes vector code.
#![allow(clippy::needless_range_loop)]

pub mod access;
mod accumulate;
pub mod approximate;
pub mod atomic;
pub mod bits;
pub mod block;
pub mod builtin;
pub mod bulk;
mod by_thread;
pub mod calls;
mod carry;
pub mod cluster;
pub mod collective;
pub mod convert;
pub mod copy_async;
pub mod fault;
pub mod float;
mod format;
mod fragments;
pub mod half;
pub mod inside;
pub mod integer;
pub mod lanes;
pub mod matrix;
pub mod mbarrier;
pub mod minifloat;
pub mod pack;
pub mod place;
mod pool;
mod products;
pub mod program;
pub mod registers;
pub mod rounding;
mod scatter;
pub mod shared;
pub mod special;
mod strides;
mod sweep;
pub mod swept;
pub mod tensor_copy;
mod uniform;
pub mod video;
pub mod warp;
pub mod watch;
pub mod windows;
