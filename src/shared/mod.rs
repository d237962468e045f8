//! The only views of memory that a device also writes.
//!
//! A GPU, a copy engine or an adapter can change such memory at any moment, so there is never a
//! Rust reference or slice to it. There are three ways in: one atomic word ([`AtomicWord32`],
//! [`AtomicWord64`]), a row of atomic words ([`WordArray`]), and copies in and out of a [`Region`]
//! of memory that is not written at that moment. Every load and store names its ordering where it
//! is made, or has a name: [`publish`], [`observe`], [`warn_before`].
//!
//! A file that is such memory, the BAR of a PCI function, becomes a region with [`map_file`].
//!
//! What another process says of such memory, offsets and addresses, becomes an address of this one
//! through [`PeerRange`] alone.
//!
//! Constructing a [`Region`] over foreign memory is `unsafe` and carries the whole contract; all
//! use is safe, because every view checks its range once and keeps the owner of the memory alive.
//!
//! Accesses by a device are outside of Rust's memory model; they behave as accesses by a thread
//! that only uses atomics of the same size. Both sides keep to one access size for each word.

mod device;
mod mapping;
mod order;
mod peer_range;
mod region;
mod word;

pub use device::{DeviceRange, DmaBuffer};
pub use mapping::{map_file, map_zeros};
pub use order::{observe, publish, warn_before};
pub use peer_range::{Extent, PeerRange};
pub use region::{Owner, Region};
pub use word::{AtomicWord32, AtomicWord64, HostRow64, HostWord64, Row64, Word64, WordArray};
