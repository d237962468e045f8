//! What this node is made of: GPUs and the links between them, RDMA adapters, the PCI tree that
//! both hang on; and which adapter suits which GPU.
//!
//! * [`pci`]: addresses, and how near two devices are
//! * [`adapter`], `gid`: RDMA adapters, their ports and addresses, from sysfs
//! * [`engine`]: device engines, and which are near to a GPU
//! * [`choice`]: which adapter, port and GID to use; a pure function of what was found
//! * [`machine`]: all of it as a tree, from `discovery` on this node or from a topology file of
//!   NCCL's (`xml`)
//! * [`graph`], [`packing`]: capacities between GPUs and switches, and the trees that fill them
//! * [`in_switch`]: multicast and reduction within NVSwitches, *planned*
//! * [`network`]: rails, leaf switches and oversubscription between nodes
//! * [`ranks`]: what ranks tell each other of their GPUs, and the graph of all of them
//! * [`ring_order`]: the order of GPUs whose ring has the widest links
//! * [`nvml`]: driver version and NVLinks, from NVIDIA's management library
//!
//! What comes from sysfs is read below a folder that the caller names, so that a made-up tree
//! will do.

pub mod adapter;
pub mod choice;
mod discovery;
pub mod engine;
#[cfg(test)]
mod file_tests;
mod gid;
pub mod graph;
pub mod in_switch;
pub mod machine;
pub mod network;
pub mod nvml;
pub mod packing;
pub mod pci;
pub mod ranks;
pub mod ring_order;
mod xml;
#[cfg(test)]
mod xml_tests;

pub use adapter::{Adapter, LinkLayer, Port, PortState};
pub use choice::{Near, PassedOver, PciLocation, PortChoice, Wanted};
pub use engine::EngineFunction;
pub use gid::{Gid, GidType};
pub use pci::PciAddress;
