//! Virtual RDMA adapters: queue pairs, protection, and the fabric that joins processes.
//!
//! Each process that opens an adapter has a [`Network`]: its share of the fabric, with one service
//! thread that plays the adapters' engine. A queue pair owns a file in the fabric's folder, mapped
//! by itself and by the one peer that it is connected to. In it lie two rings that the peer fills:
//! requests, and responses to requests of the queue pair's own.
//!
//! ```text
//!  post ─▶ send queue ─gather─▶ request ring of the peer ─▶ peer's responder ─▶ its memory
//!                 ▲                                              │
//!                 └── completion ◀── acknowledged count, response ring ◀──┘
//! ```
//!
//! The responder alone touches the memory of its process, after it has checked key, range and
//! rights, and it holds the table of regions while it copies: memory that was deregistered is never
//! written. Neither process needs rights over the other; a process that is killed leaves nothing
//! that the other could trip over.
//!
//! **Order.** One ring carries the requests of one queue pair, and one thread at a time plays its
//! responder (it holds the receive side's lock), so requests take effect in the order in which they
//! were posted. A store that lands data is a plain copy whose last word follows the rest with
//! release, then a fence, before anything later is stored: the next write, a completion, the
//! acknowledgement. So a reader that sees a later effect sees the earlier ones, also on a virtual
//! GPU.

mod access;
pub mod address;
mod binding;
pub mod completion;
mod connection;
pub mod counters;
mod datagram;
mod deputy;
pub mod device;
pub mod error;
pub mod fault;
mod holding;
mod host;
mod landing;
mod link;
pub mod network;
mod payload;
mod placement;
pub mod qp;
mod receive;
pub(crate) mod record;
mod region;
mod requester;
mod responder;
mod service;
mod sharing;
mod silence;
pub mod state;
mod transport;
mod turns;
mod users;
mod window;
pub mod work;
mod xrc;

pub use access::Access;
pub use address::{Endpoint, Route};
pub use completion::{Completion, CompletionQueue, CompletionStatus, Sender};
pub use device::{AsyncEvent, Device, Element, Events, PortState};
pub use error::{Result, VerbsError};
pub use host::GpuMemory;
pub use network::Network;
pub use qp::{Capacity, QueuePair, QueuePairRequest};
pub use receive::{ReceiveQueue, XrcDomain};
pub use region::{RegionChange, RegionRequest};
pub use state::{Attributes, QueuePairState};
pub use transport::Transport;
pub use window::{BindRequest, WindowKind};
pub use work::Destination;
pub use xrc::DomainRequest;
