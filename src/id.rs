//! Typed numbers. Each type exists because two of its kind were once easy to swap: a rank for a
//! lane, a ring position for a slot.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A participant of a communicator, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rank(pub u32);

/// A registered pair of source and destination that descriptors name (R8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteId(pub u16);

/// A directed path to one peer, the unit of ordering (R11). Many routes can share a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub u32);

/// A place in the endless sequence of descriptors of one ring (R2). Not a slot index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position(pub u64);

impl Rank {
    /// The rank as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl Position {
    /// The position `count` places further on.
    pub const fn advance(self, count: u64) -> Self {
        Self(self.0.wrapping_add(count))
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

impl fmt::Display for RouteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "route {}", self.0)
    }
}

impl fmt::Display for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lane {}", self.0)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "position {}", self.0)
    }
}
