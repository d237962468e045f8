//! What instructions do.

pub mod approximate;
pub mod bits;
pub mod convert;
pub mod float;
pub mod half;
pub mod integer;
pub mod registers;
pub mod rounding;
pub mod access;
pub mod atomic;
pub mod block;
pub mod builtin;
pub mod collective;
pub mod fault;
pub mod program;
pub mod shared;
pub mod warp;
pub mod windows;
