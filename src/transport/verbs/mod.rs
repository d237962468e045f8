//! The verbs transport: ranks of other nodes, reached by RDMA adapters.
//!
//! A transfer is an RDMA write on a reliable queue pair, and its arrival signal is a second write
//! of eight bytes behind it on the same one, which the adapter carries out in order (R9, R11; see
//! PROTOCOL.md for what that rests on). Transfers of one batch are linked and posted with one
//! doorbell. Nothing of it needs the peer's processor, unless
//! [`VerbsOrder`](crate::settings::VerbsOrder) says that adapters keep no order: then the signal
//! is immediate data, and the peer's engine raises it.
//!
//! The way from nothing to transfers:
//!
//! 1. [`Adapter::choose`] finds the adapter, and reports why it is that one;
//! 2. [`Adapter::register_host`] and [`Adapter::register_device`] let it read and write memory;
//! 3. [`Endpoint::create`] gives bytes for the peer, [`Endpoint::connect`] takes the peer's bytes;
//! 4. [`VerbsTransport::new`] gives a transport for an engine, and a [`VerbsControl`] that adds
//!    peers and memory; peers may be added when a transfer needs them ([`Connect`]).
//!
//! Rooms: `library` (libibverbs, opened when first needed), `device` (what is there), `adapter`
//! (what [`topology`](crate::topology) chooses), `region`, `table` (memory), `address`,
//! `endpoint`, `queue`, `on_demand` (connections), `control`, `transport`, `signals`, `events`,
//! `fault`; `loopback` (an adapter that writes to itself); `link` (a peer's memory, from the
//! host); `immediate`, `receive`, `arrivals`, `flush` (signals that the receiver's engine raises).

mod adapter;
mod address;
mod arrivals;
mod control;
mod device;
mod endpoint;
mod events;
mod fault;
mod flush;
mod immediate;
mod library;
mod link;
mod loopback;
mod on_demand;
mod queue;
mod receive;
mod region;
mod settings;
mod signals;
mod table;
mod transport;

pub use crate::topology::{
    Gid, GidType, LinkLayer, Near, PassedOver, PciAddress, Port, PortChoice, PortState,
};
pub use adapter::{Adapter, Adapters};
pub use control::VerbsControl;
pub use device::list_ports;
pub use endpoint::Endpoint;
pub use link::{Link, Piece, RemotePiece};
pub use loopback::Loopback;
pub use on_demand::Connect;
pub use region::{MemoryRegion, RegisteredAs, RemoteAccess, RemoteRegion};
pub use settings::VerbsSettings;
pub use signals::{HostSignals, SignalWriter};
pub use transport::VerbsTransport;
