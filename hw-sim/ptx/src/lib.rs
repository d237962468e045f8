//! PTX parser, decoded form and warp interpreter.
//!
//! Text becomes an [`ast`], the decoder turns a module into kernels, and a block of a kernel runs
//! on any [`memory::Memory`].

pub mod ast;
mod decode;
mod exec;
pub mod memory;
