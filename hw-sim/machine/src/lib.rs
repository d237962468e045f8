//! Virtual machines: GPUs, copy engines, streams and their memory.

pub mod description;
