//! Timing: discrete events over encoded plans on a described machine. No data moves.
//!
//! Encoded plans ([`program`]) run on a [`machine`] whose costs a [`profile`] gives. GPU blocks
//! walk their ops and ring; engines take, merge and issue; copies, messages and stores are flows
//! that share links ([`share`]); signals arrive late and wake blocks ([`world`]). What comes out
//! ([`report`]) is a time, bytes on every link, and what was busy. Equivalent nodes
//! are played once for all of them (`fold`).
//!
//! Everything is deterministic: time is whole picoseconds, and events of one moment have an order
//! ([`queue`]). A time from here is *modelled*; who prints one says so, with the profile's name.

pub mod ark;
pub mod encode;
mod fold;
pub mod machine;
pub mod p2p;
pub mod profile;
pub mod program;
pub mod queue;
pub mod report;
pub mod share;
mod text;
pub mod time;
pub mod trace;
pub mod training;
pub mod world;

pub use machine::{Edge, Graph, Leaf, LinkKind, Machine, MachineError, Network};
pub use profile::{Profile, ProfileError};
pub use program::{Lane, Port, ProgramError, Programs, RankProgram};
pub use report::{Note, Outcome};
pub use time::{Rate, Time};
pub use world::{Engine, ModelError, OpsBudget, Setup, simulate};
