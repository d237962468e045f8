//! The public API: communicators, collectives, send and receive, registration.
//!
//! One direction, from the top:
//!
//! * `api`: the public calls, each of them thin
//! * `call`: the way of a call: check, agree, plan, connect, bind, launch
//! * `connect`: how ranks become a communicator, and what their engines get
//! * `state`: what a communicator knows and holds
//!
//! Apart from these, [`words`] tries what low-latency messages between nodes rest on, and [`stage`]
//! lays a communicator out for simulations, without a GPU.

mod api;
mod call;
mod connect;
mod state;
pub mod words;

pub use crate::bootstrap::UniqueId;
pub use crate::gpu::Registered;
pub use crate::id::Registration;
pub use crate::plan::Collective;
pub(crate) use api::ProgramCall;
pub use api::{CollectiveSpec, Communicator, DeviceHandle, Group, Membership, Statistics};
pub use call::{Element, Reduction, Scalar};
pub(crate) use call::{ResidentCalls, WindowEnd, WindowStep};
pub use connect::stage;
pub(crate) use state::{CapturedOrders, LaunchOrder};
pub use state::{free_discarded, pack_forest};
