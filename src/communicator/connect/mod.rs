//! How ranks become a communicator: in one process, over several, and over several nodes.
//!
//! * `init`: the steps from contexts and a unique id to connected ranks
//! * `registry`: the state that ranks of one process share, found by the unique id
//! * `nodes`: which rank runs on which node
//! * `peer_info`: what each rank sends the others: its process, and how its memory is reached
//! * `peer`, `inter_node`: the memory of ranks on this node, and of ranks on other nodes;
//!   `on_demand`: connections to those, made when a transfer first needs them, by `handshake`
//! * `reach`: which way the messages of each pair go on a node; `host_memory`: files in memory that
//!   ranks share which do not reach each other's GPU memory
//! * `description`: lanes and routes in numbers and offsets
//! * `attach`: a rank's ring, lanes and routes, as its engine gets them
//! * `flight`: the flight recorder of a rank, and what its watchdog looks at
//! * `places`: registered memory that ranks grant one another for their messages;
//!   `single_routes`: the routes there
//! * `windows`: routes of one-sided transfers
//! * `stage`: what a rank lays out, exchanges and plans, for simulations that bring the memory
//! * `rank`: a rank that is connected; `registration`: its registered buffers

mod attach;
mod description;
mod flight;
mod handshake;
mod host_memory;
mod init;
mod inter_node;
mod nodes;
mod on_demand;
mod order;
mod peer;
mod peer_info;
mod places;
mod rank;
mod reach;
mod registration;
mod registry;
mod sharing;
mod single_routes;
pub mod stage;
mod windows;

pub(super) use init::{init_all, init_ranks};
pub(super) use rank::ConnectedRank;
pub(super) use windows::PartOf;
