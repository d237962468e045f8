//! How ranks find out that their calls differ, also ranks of different processes.
//!
//! A call is never held up for it. Each process records what its ranks call and sends the records,
//! a few milliseconds later and in one message, to its parent in the tree of processes. There they
//! are compared like calls of that process's own ranks. Every process but the first has a parent,
//! so calls that are equal along every edge of the tree are equal everywhere, and no process
//! receives more records than it makes calls, times the number of its children.
//!
//! The two sides of a point-to-point message are compared in the lowest process of the tree that
//! has both ranks among its own or its descendants'. Until there they are passed on.
//!
//! * `signature`: named values, and their comparison
//! * `matcher`: matches the calls of the ranks that a process knows of
//! * `record`: the message from one process to its parent
//! * `position`: the place of a process in the tree
//! * `exchange`: the matcher of a process, connected with its control planes

mod exchange;
mod matcher;
mod position;
mod record;
mod signature;

pub(crate) use exchange::CallExchange;
pub(crate) use matcher::{CallMatcher, Pair};
pub(crate) use position::ProcessTreePosition;
pub(crate) use signature::{NamedValue, Signature, Value, compare, signature};
