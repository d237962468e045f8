//! One-sided access: memory of other ranks as a device.
//!
//! A [`Window`] names a registered buffer: on each rank a part of the same size, in the memory of
//! its GPU ([`Windows::device`], or [`Communicator::register`](crate::Communicator::register) for
//! memory that is there) or pinned on its host ([`Windows::host`]). Each rank chooses for itself.
//! Parts are registered once, and their addresses travel to all ranks with the first use. From then
//! on a rank moves data between any two parts, and nobody else takes part:
//!
//! * [`Windows::write`]: from its own part to another rank's
//! * [`Windows::read`]: from another rank's part to its own
//! * [`Windows::copy`]: between any two parts, also both of others
//!
//! Each is enqueued on a stream, or started from the host ([`Windows::start`]), and may raise a
//! signal at the other rank, which waits for it on a stream of its own ([`Windows::wait`]). Kernels
//! of users write with the device handle: `Communicator::device_handle(&[window.registration()])`.
//!
//! ```no_run
//! use ringdove::window::{Signal, Windows};
//! # use ringdove::{Communicator, Settings};
//! # fn main() -> ringdove::Result<()> {
//! # let contexts = [ringdove::open_device(0)?, ringdove::open_device(1)?];
//! let settings = Settings { user_lanes: 1, ..Settings::from_env()? };
//! let ranks = Communicator::init_all(&contexts, &settings)?;
//! let windows = ranks.iter().map(|rank| Windows::open(rank, 0)).collect::<Result<Vec<_>, _>>()?;
//! let memory = windows.iter().map(|rank| rank.host(1 << 20)).collect::<Result<Vec<_>, _>>()?;
//! let window = memory[0].window();
//! memory[0].store(0, b"hello")?;
//! let write = windows[0].start(&window.part(0, 0, 5), &window.part(1, 64, 5), Signal::Raise)?;
//! windows[1].start_wait(0, 1)?.finish()?;
//! assert_eq!(memory[1].load(64, 5)?, b"hello");
//! write.finish()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Order
//!
//! Transfers and waits of a rank take effect in the order of its calls, also across streams, and in
//! the order of its collectives. What follows a transfer in its stream may overwrite the source and
//! use what was read. A write is at the other rank when its signal is there; without a signal, when
//! work of the writer that follows it has told the reader. Ranks do not wait for one another:
//! writers to the same bytes race, as threads do.
//!
//! Signals are counted for each pair of ranks. A rank waits for as many as it is sent before the
//! communicator ends. Waits have the communicator's deadline
//! ([`Settings::wait_timeout`](crate::Settings::wait_timeout)); one that expires, and a peer that
//! dies, end the communicator with an error that names the peer.
//!
//! # Ways
//!
//! | ends | way |
//! |---|---|
//! | both reached by loads and stores of this rank's GPU, up to 1 MiB | its threads copy |
//! | on the node otherwise | the engine: copy engine (proxy), or a device engine for writes |
//! | a peer on another node | the engine: adapter's write or read; a device engine writes |
//! | both of others, on different nodes | read into memory of this rank, then written from there |
//!
//! Device engines do not read: a read from another node, and one on the node where stores do not
//! reach, is [`Error::Argument`](crate::Error::Argument) with them.
//!
//! # Memory
//!
//! A buffer that is dropped under traffic stays allocated until all ranks of the communicator are
//! gone. To take a window back, all ranks end their transfers, meet in a barrier, and call
//! [`Communicator::deregister`](crate::Communicator::deregister); transfers that name it afterwards
//! are refused. Memory of [`Windows::host`] and [`Windows::device`] stays until the communicators
//! end.
//!
//! # Limits
//!
//! * Between nodes a signal lies in the memory of the GPU that waits for it, or in its host's slots
//!   ([`InterNodeSlots`](crate::InterNodeSlots)). Writes of an adapter to one of the two keep their
//!   order, those to both need not: for data in pinned host memory and signals in GPU memory set
//!   `RINGDOVE_VERBS_ORDER=immediate`, where the receiver's engine raises signals. Virtual adapters
//!   keep the order.
//! * On GPUs that do not order an adapter's writes nothing flushes what a read has brought. No
//!   adapter of hardware has been tried.
//! * A host part that other processes of the node open has a name in `/dev/shm` until its rank's
//!   communicator is dropped, and can be opened until then; a process that is killed leaves it
//!   behind.
//! * Planned: capture into graphs, parts of different sizes, reads between nodes by users' kernels
//!   (on a node they load from where `Device::reached` says), parts that one rank alone takes back.

mod memory;
mod pending;
mod windows;

pub use memory::{DeviceWindow, HostWindow};
pub use pending::Pending;
pub use windows::{Part, Signal, Window, Windows};
