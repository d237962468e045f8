//! PTX parser, decoded form and warp interpreter.
//!
//! Text becomes an [`ast`], the decoder turns a module into kernels, and a block of a kernel runs
//! on any [`memory::Memory`].

pub mod ast;
mod decode;
pub mod error;
mod exec;
pub mod kernel;
pub mod memory;
pub mod parser;

pub use error::PtxError;
pub use parser::parse;
