//! What a communicator knows and holds: everything that calls read and change.
//!
//! * `process`: what the ranks of one process share; `rank`: one rank, as the others see it
//! * `terms`: what must be equal on all ranks
//! * `geometry`, `layout`, `memory`: lanes and ports, and where they lie in each rank's memory
//! * `reach`: which ranks of a node do not reach each other's memory; `host_lanes`: the host memory
//!   through which their messages go
//! * `forests`: the trees that are packed into the links of all ranks' GPUs
//! * `chosen`: how all-reduces go, by the cost model
//! * `doorbell`: the channel of a device engine
//! * `registrations`: registered buffers of all ranks
//! * `exported`: device memory as other processes open it; `shared_file`: the same of host memory
//! * `plan_files`: plans that settings name, of this library and of others
//! * `plans`: verified plans, and plans in device memory, both with a bound
//! * `halves`: device memory that is filled from the host
//! * `kept`: the same for launches that are captured into graphs, which stays
//! * `routes`: this rank's registered buffers, and the routes between them
//! * `launcher`, `order`, `backlog`: launches of the executor, their order across streams, and how
//!   many may be ahead of their end; `streams`: on which streams ranks that share a GPU are, and
//!   `busy`, on how many each may be at a time
//! * `unread`: what ranks of other nodes have yet to read
//! * `tidy`, `launching`: when memory is freed
//! * `sync`: locks; `posted`: a value of each rank, for all

mod backlog;
mod barrier;
mod busy;
mod chosen;
mod doorbell;
mod exported;
mod forests;
mod geometry;
mod halves;
mod host_lanes;
mod kept;
mod launcher;
mod launching;
mod layout;
mod memory;
mod order;
mod plan_files;
mod plans;
mod posted;
mod process;
mod rank;
mod reach;
mod registrations;
mod routes;
mod shared_file;
mod streams;
mod sync;
mod terms;
mod tidy;
mod unread;

pub(super) use doorbell::{Doorbell, STEP_TIMEOUT};
pub(super) use exported::ExportedMemory;
pub use forests::pack_forest;
pub(super) use geometry::{Geometry, Nodes, Reach};
pub(super) use halves::Turn;
pub(super) use host_lanes::{HostLanes, HostLayout};
pub(super) use launcher::{LaunchShape, Launcher};
pub(super) use layout::{Layout, Offsets, PortPlace};
pub(super) use memory::{
    Endpoint, ForAdapter, InterNodeSlotMemory, PortAddresses, PortMemory, RankMemory, device_port,
    with_peer,
};
pub(crate) use order::{CapturedOrders, LaunchOrder};
pub(super) use plan_files::PlanFiles;
pub(super) use plans::{Encoded, PlanKey, PlanShape, PortUse, Prepared, Resident};
pub(super) use posted::Posted;
pub(super) use process::{Offer, PlaceTaker, ProcessState};
pub(super) use rank::RankState;
pub(super) use reach::{HostPairs, Obstacle, Obstacles, ReachRow};
pub(super) use registrations::{Imported, RankBuffer, RegisteredBuffer, file_bytes};
pub(super) use routes::{CachedRange, LOCAL_FIRST, RegisteredPlace, RegisteredRange, RouteNumbers};
pub(super) use shared_file::{SharedFile, SharedName, no_memory};
pub(super) use sync::lock;
pub(super) use terms::agreed_settings;
pub(super) use tidy::Tidy;
pub use tidy::free_discarded;
pub(super) use unread::Unread;
