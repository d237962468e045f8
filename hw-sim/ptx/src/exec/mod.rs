//! What instructions do.

pub mod access;
pub mod approximate;
pub mod atomic;
pub mod bits;
pub mod block;
pub mod builtin;
pub mod collective;
pub mod convert;
pub mod fault;
pub mod float;
pub mod half;
pub mod integer;
pub mod program;
pub mod registers;
pub mod rounding;
pub mod shared;
pub mod warp;
pub mod windows;
