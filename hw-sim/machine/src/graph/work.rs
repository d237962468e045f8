//! What a node of a graph does.

use super::condition::Conditional;
use super::definition::Graph;
use super::kernel::KernelLaunch;
use crate::command::{Command, HostCall};
use crate::copy::{Source, Transfer2d};
use crate::memory::Reservation;
use crate::record::Records;
use crate::wait_value::{WaitValue, WriteValue};
use std::sync::Arc;

/// Kind of a node, as `CUgraphNodeType` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum NodeKind {
    /// A kernel.
    Kernel = 0,
    /// A copy.
    Copy = 1,
    /// A fill.
    Fill = 2,
    /// A host function.
    Host = 3,
    /// A graph.
    Child = 4,
    /// Nothing.
    Empty = 5,
    /// A wait for an event.
    Wait = 6,
    /// A record of an event.
    Record = 7,
    /// An allocation.
    Allocate = 10,
    /// The end of one.
    Free = 11,
    /// Memory operations.
    Memory = 12,
    /// Graphs that run as often as a condition says.
    Conditional = 13,
}

/// Rows in planes, copied or filled.
#[derive(Clone, Copy, Debug)]
pub struct Transfer3d {
    /// The first plane.
    pub plane: Transfer2d,
    /// Bytes from one source plane to the next.
    pub source_plane: u64,
    /// Bytes from one destination plane to the next.
    pub destination_plane: u64,
    /// Number of planes.
    pub planes: u64,
}

/// A host function, with the numbers by which the program knows it.
#[derive(Clone)]
pub struct HostFunction {
    /// Calls it.
    pub call: HostCall,
    /// Its address and its argument.
    pub identity: [u64; 2],
}

/// A stream memory operation.
#[derive(Clone, Copy, Debug)]
pub enum MemoryOperation {
    /// Waits for a word.
    Wait(WaitValue),
    /// Writes a word.
    Write(WriteValue),
}

/// What a node does.
#[derive(Clone)]
pub enum Work {
    /// Nothing.
    Empty,
    /// A kernel.
    Kernel(KernelLaunch),
    /// A copy or a fill.
    Transfer(Transfer3d),
    /// A host function.
    Host(HostFunction),
    /// A record of an event.
    Record(Arc<Records>),
    /// A wait for an event.
    Wait(Arc<Records>),
    /// Memory operations, in order.
    Memory(Vec<MemoryOperation>),
    /// Gives addresses memory.
    Allocate(Arc<Reservation>),
    /// Takes it back.
    Free(Arc<Reservation>),
    /// All nodes of a graph.
    Child(Arc<Graph>),
    /// Graphs that run as often as a condition says.
    Conditional(Arc<Conditional>),
}

impl From<Transfer2d> for Transfer3d {
    fn from(plane: Transfer2d) -> Self {
        Self { plane, source_plane: 0, destination_plane: 0, planes: 1 }
    }
}

impl Transfer3d {
    /// Is it a fill?
    pub const fn is_fill(&self) -> bool {
        matches!(self.plane.row.source, Source::Pattern { .. })
    }

    /// One command for each plane.
    fn commands(&self) -> Vec<Command> {
        let plane = |index: u64| {
            let mut plane = self.plane;
            plane.row.destination += index * self.destination_plane;
            if let Source::Memory { address, .. } = &mut plane.row.source {
                *address += index * self.source_plane;
            }
            if plane.rows == 1 { Command::Bulk(plane.row) } else { Command::Copy2d(plane) }
        };
        if self.plane.rows == 0 || self.plane.row.bytes == 0 {
            return Vec::new();
        }
        (0..self.planes).map(plane).collect()
    }
}

impl Work {
    /// Its kind.
    pub const fn kind(&self) -> NodeKind {
        match self {
            Self::Empty => NodeKind::Empty,
            Self::Kernel(_) => NodeKind::Kernel,
            Self::Transfer(transfer) if transfer.is_fill() => NodeKind::Fill,
            Self::Transfer(_) => NodeKind::Copy,
            Self::Host(_) => NodeKind::Host,
            Self::Record(_) => NodeKind::Record,
            Self::Wait(_) => NodeKind::Wait,
            Self::Memory(_) => NodeKind::Memory,
            Self::Child(_) => NodeKind::Child,
            Self::Conditional(_) => NodeKind::Conditional,
            Self::Allocate(_) => NodeKind::Allocate,
            Self::Free(_) => NodeKind::Free,
        }
    }

    /// The memory that it allocates or frees.
    pub(super) fn reservation(&self) -> Option<&Arc<Reservation>> {
        match self {
            Self::Allocate(reservation) | Self::Free(reservation) => Some(reservation),
            _ => None,
        }
    }

    /// The node that a captured command becomes; none for what no graph has.
    pub(crate) fn of(command: Command) -> Option<Self> {
        Some(match command {
            Command::Bulk(row) => {
                let (source_pitch, destination_pitch) = (0, 0);
                Self::Transfer(Transfer2d { row, source_pitch, destination_pitch, rows: 1 }.into())
            }
            Command::Copy2d(plane) => Self::Transfer(plane.into()),
            Command::Record(records, _) => Self::Record(records),
            Command::WaitEvent(records, _) => Self::Wait(records),
            Command::WaitValue(wait) => Self::Memory(vec![MemoryOperation::Wait(wait)]),
            Command::WriteValue(write) => Self::Memory(vec![MemoryOperation::Write(write)]),
            _ => return None,
        })
    }

    /// The graphs within it.
    pub fn graphs(&self) -> &[Arc<Graph>] {
        match self {
            Self::Child(graph) => std::slice::from_ref(graph),
            Self::Conditional(conditional) => &conditional.bodies,
            _ => &[],
        }
    }

    /// The commands of a node other than a kernel or a graph. `number` is that of its event's
    /// record.
    pub(super) fn commands(&self, number: u64) -> Vec<Command> {
        match self {
            Self::Empty | Self::Kernel(_) | Self::Child(_) | Self::Conditional(_) => Vec::new(),
            Self::Allocate(own) => vec![Command::BeginReserved(Arc::clone(own))],
            Self::Free(own) => vec![Command::EndReserved(Arc::clone(own))],
            Self::Transfer(transfer) => transfer.commands(),
            Self::Host(host) => vec![Command::HostCall(Arc::clone(&host.call))],
            Self::Record(records) => vec![Command::Record(Arc::clone(records), number)],
            Self::Wait(records) => vec![match records.wait_in_memory() {
                Some(wait) => Command::WaitValue(WaitValue { value: number, ..wait }),
                None => Command::WaitEvent(Arc::clone(records), number),
            }],
            Self::Memory(operations) => operations
                .iter()
                .map(|operation| match *operation {
                    MemoryOperation::Wait(wait) => Command::WaitValue(wait),
                    MemoryOperation::Write(write) => Command::WriteValue(write),
                })
                .collect(),
        }
    }
}
