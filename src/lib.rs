//! Ringdove: GPU-driven collective communication.
//!
//! Kernels decide when and what moves, an engine beside the GPU moves it. See the README for the
//! flow, and `src/ring/PROTOCOL.md` for the rules that code and tests cite by number.
//!
//! The way of a call through the modules:
//!
//! * [`communicator`]: the public API; checks a call, agrees with the other ranks, launches
//! * [`plan`]: what every rank does, as data; built, verified, encoded
//! * [`ring`]: the doorbell ring: protocol, consumer, host producer
//! * [`engine`]: what drains rings: the proxy and its threads, or a device
//! * [`transport`]: moves bytes and raises signals: `peer` on a node, `verbs` between nodes, and
//!   middleware
//!
//! Beside it:
//!
//! * [`bootstrap`]: how ranks of several processes find one another, and their control plane
//! * [`experts`]: expert parallelism, the second client of the device handle
//! * [`flight`]: the flight recorder, the watchdog, and the report on a hang
//! * [`gpu`]: the CUDA driver, as far as it is needed
//! * [`graph`]: data-flow graphs over ranks: what crosses them, and how it gets there
//! * [`program`]: resident programs: computation and collectives in one kernel that stays
//! * `serve` (feature `verbs`): parameters of a model in the memory of servers
//! * [`topology`]: what this node is made of, and which adapter suits which GPU
//! * [`window`]: one-sided reads and writes of other ranks' memory
//! * [`shared`]: the only views of memory that a device also writes
//! * [`settings`]: one struct, read once
//! * [`error`], [`id`]: typed errors, typed numbers
//!
//! ```no_run
//! use ringdove::{Communicator, ReduceOp, Settings, device_count, open_device};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let contexts = (0..device_count()?).map(open_device).collect::<Result<Vec<_>, _>>()?;
//! let ranks = Communicator::init_all(&contexts, &Settings::from_env()?)?;
//! // First everything is allocated, on all GPUs; then collectives are enqueued.
//! let mut sums = Vec::new();
//! for rank in &ranks {
//!     let stream = rank.context().new_stream()?;
//!     let data = stream.clone_htod(&[rank.rank() as f32; 1024])?;
//!     sums.push((stream, data));
//! }
//! for (rank, (stream, data)) in ranks.iter().zip(&mut sums) {
//!     rank.all_reduce_in_place(data, ReduceOp::Sum, stream)?;
//! }
//! for (rank, (stream, data)) in ranks.iter().zip(&sums) {
//!     let sum: Vec<f32> = stream.clone_dtoh(data)?;
//!     rank.check()?; // the copy has waited for the stream: errors are known now
//!     println!("rank {}: {}", rank.rank(), sum[0]);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `cli` | yes | the `ringdove` command |
//! | `verbs` | yes | ranks on several nodes, by RDMA adapters; its build needs libclang and cmake |
//! | `cust` | no | contexts, streams, buffers of the crate `cust`; its build needs `libcuda.so` |
//! | `draft-plans` | no | `plan::Draft`: programs of single ranks of many thousands, for models |

pub mod bootstrap;
pub mod communicator;
pub mod cost;
pub mod engine;
pub mod error;
pub mod experts;
pub mod flight;
pub mod gpu;
pub mod graph;
pub mod id;
mod lived;
pub mod plan;
pub mod program;
pub mod ring;
#[cfg(feature = "verbs")]
pub mod serve;
pub mod settings;
pub mod shared;
pub mod topology;
pub mod transport;
pub mod window;

pub use communicator::{
    CollectiveSpec, Communicator, DeviceHandle, Element, Group, Membership, Reduction, Registered,
    Registration, Scalar, Statistics, UniqueId, free_discarded,
};
pub use error::{Error, Result};
pub use gpu::{DeviceBuffer, DeviceBufferMut, device_count, open_current_device, open_device};
pub use plan::Collective;
pub use ringdove_kernels::element::{DataType, ReduceOp};
pub use settings::{
    Algorithms, InterNodeSlots, RingOrders, Setting, Settings, Stores, ThroughHost, VerbsOrder,
};

/// The version of the library, and a digest of the source of which it was built: `0.1.0+` and 16
/// hexadecimal digits. All ranks of a job must have the same, or get [`Error::Disagreement`].
pub const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), "+", env!("SOURCES_DIGEST"));
