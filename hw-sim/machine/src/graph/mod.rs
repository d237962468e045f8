//! Graphs: work with dependencies, made once and launched many times.
//!
//! | file | subject |
//! |---|---|
//! | `work` | what a node does |
//! | `kernel` | a launch of a kernel that can be repeated |
//! | `condition` | nodes whose graphs run as often as a word says, which kernels set |
//! | `definition` | a graph as programs make and change it |
//! | `executable` | a graph that can be launched: flat, in an order that respects its edges |
//! | `run` | one launch on its way |
//! | `user_object` | what programs tie to the life of a graph |
//! | `dot` | graphs for people |
//!
//! Nothing here knows of streams: a run is a [`Task`](crate::command::Task) of one. Branches of a
//! graph run beside each other; a launch ends when all its nodes have.

mod condition;
mod definition;
mod dot;
mod executable;
mod kernel;
mod run;
mod user_object;
mod work;

pub use condition::{Condition, Conditional, ConditionalKind};
pub use definition::{Edge, Graph, NodeId};
pub use dot::dot;
pub use executable::{Executable, UpdateError};
pub use kernel::{KernelLaunch, Shape};
pub(crate) use kernel::{KernelOrigin, OwnMemory};
pub use user_object::UserObject;
pub use work::{HostFunction, MemoryOperation, NodeKind, Transfer3d, Work};
