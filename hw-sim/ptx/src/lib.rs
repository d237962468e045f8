//! PTX parser, decoded form and warp interpreter.
//!
//! Text becomes an [`ast`], the decoder turns a module into kernels, and a block of a kernel runs
//! on any [`memory::Memory`].
//!
//! ```text
//! Module::load(text) -> link(addresses) -> kernel(name) -> Launch -> Block::new -> Block::run
//! ```

pub mod ast;
mod decode;
pub mod error;
mod exec;
pub mod flat;
pub mod kernel;
mod link;
pub mod litmus;
pub mod memory;
pub mod parser;
pub mod tensor_map;
pub mod weak;

pub use decode::supported::{Opcode, supported};
pub use decode::{Global, LinkedModule, Module, Relocation};
pub use error::PtxError;
pub use exec::atomic;
pub use exec::block::{Block, Progress, Turn, Wait};
pub use exec::fault::{Fault, FaultKind};
pub use kernel::{Clock, ClusterRules, Kernel, Launch, Param};
pub use link::{Input, LinkError};
pub use parser::parse;

/// Windows of the generic address space: what the highest byte of an address means.
pub mod windows {
    pub use crate::exec::windows::{FUNCTION, LOCAL, OFFSET, PARAM, SHARED, SHIFT};
}
