//! Communicators: how they are made, what they say of themselves, and how they end.

use crate::bootstrap::UniqueId;
use crate::communicator::connect::{self, ConnectedRank};
use crate::engine::Snapshot;
use crate::error::{Error, Result};
use crate::settings::Settings;
use cudarc::driver::CudaContext;
use std::fmt;
use std::sync::Arc;

/// One rank of a group of GPUs that work together.
///
/// Calls enqueue work on a stream and return; nothing on the host takes part until the work is
/// done. A communicator may be used from several threads; its calls take effect in the order in
/// which they were made, also across streams. All ranks must make the same collective calls in
/// the same order.
///
/// Streams may be of any kind, of any thread, and of any priority; which context is current does
/// not matter. On a default stream, and where streams change, the order of calls costs an event for
/// each.
///
/// A buffer may be dropped right after a call: `cudarc` lets the stream on which the buffer was
/// allocated wait for an event that follows the call, and frees the memory in the order of that
/// stream. This is `cudarc`'s own bookkeeping, with its own limits. It does not work for buffers of
/// a context whose event tracking was disabled. It is kept for each `CudaContext`: take buffers and
/// streams from [`Communicator::context`], not from another object for the same device. And it
/// knows the last reader only: a buffer that two communicators read on two streams at a time must
/// not be dropped before both have ended.
///
/// # Allocate, register, then launch
///
/// Real drivers have calls that wait until a GPU is idle, and block all others on it meanwhile:
/// allocation and freeing of device and pinned memory, creation of streams, module loads, the first
/// launch of a kernel that is loaded lazily, registration. Made while a collective runs, such a
/// call waits for a kernel that waits for an engine that waits for the call, until the wait expires
/// ([`Settings::wait_timeout`]). Make them before the first collective, on all GPUs that the thread
/// drives, or when all collectives have ended. Stream-ordered allocation is safe at any time.
///
/// # CUDA graphs
///
/// A call on a stream that is being captured becomes part of the graph, in whatever capture mode.
/// All ranks capture the same calls, which are compared then; what a call needs of those before it
/// is in device memory, so that the graph can be launched any number of times, each time on all
/// ranks. Calls in parallel branches of one graph are put in the order in which they were captured.
/// The caller sees to three things:
///
/// * Launches of graphs are ordered with each other and with other calls on the communicator, by
///   their stream or by events: two of them must not run at the same time.
/// * Buffers stay allocated and registered, and the communicator lives, until the last launch of
///   the graph has ended; dropping the communicator does not wait for graphs.
/// * Where `cudarc` tracks buffers it makes the capture wait for what was before, which no driver
///   allows: such a call is [`Error::Capturing`]. Disable event tracking, or pass addresses.
///
/// Engines are not told of launches of graphs. From the first captured call on they rest for 200 µs
/// at most, which is also how late they may notice a launch.
///
/// Dropping a communicator waits a bounded time for its own launches
/// ([`Settings::drop_timeout`]), then aborts them.
pub struct Communicator {
    pub(super) connected: ConnectedRank,
}

/// Counters of one rank, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Launches of the executor kernel.
    pub launches: u64,
    /// Descriptors that the rank's kernels rang and the engine took.
    pub descriptors: u64,
    /// Transfers that the engine made of them, after coalescing.
    pub transfers: u64,
    /// Bytes that the engine moved.
    pub bytes: u64,
    /// Signals that the descriptors asked for.
    pub signals: u64,
    /// The most descriptors that stood in the ring at once.
    pub ring_occupancy_max: u64,
    /// Device memory of this rank's own, in bytes: control structures, signals, staging slots,
    /// plans. Registered buffers are their owner's.
    pub device_bytes: u64,
    /// Sends that were planned to be put straight from registered memory.
    pub sent_in_place: u64,
    /// Receives that were planned to be put straight into registered memory.
    pub received_in_place: u64,
}

impl Communicator {
    /// A communicator over the GPUs of `contexts`, all driven by this process: rank `i` runs on
    /// `contexts[i]`. A context may appear more than once; those ranks then share its GPU.
    ///
    /// ```no_run
    /// use ringdove::{Communicator, ReduceOp, Settings, open_device};
    ///
    /// let contexts = [open_device(0)?, open_device(1)?];
    /// let communicators = Communicator::init_all(&contexts, &Settings::from_env()?)?;
    /// # Ok::<(), ringdove::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] without any context, [`Error::Cuda`] where the driver refuses memory,
    /// streams or the device code.
    pub fn init_all(contexts: &[Arc<CudaContext>], settings: &Settings) -> Result<Vec<Self>> {
        let connected = connect::init_all(contexts, settings)?;
        Ok(connected.into_iter().map(|connected| Self { connected }).collect())
    }

    /// Rank `rank` of `rank_count`, on `context`. Every rank passes the same `id`; the call waits
    /// until all have joined. With an id of [`Root::open`](crate::bootstrap::Root::open) or
    /// [`Launch::rendezvous`](crate::bootstrap::Launch::rendezvous) the ranks may run anywhere;
    /// with one of [`UniqueId::new`] they are threads of one process.
    ///
    /// # Errors
    /// As [`Communicator::init_ranks`].
    pub fn init_rank(
        context: &Arc<CudaContext>,
        id: &UniqueId,
        rank: u32,
        rank_count: u32,
        settings: &Settings,
    ) -> Result<Self> {
        let mut ranks =
            Self::init_ranks(std::slice::from_ref(context), id, rank, rank_count, settings)?;
        Ok(ranks.swap_remove(0))
    }

    /// Several ranks of this process at once: context `i` becomes rank `first + i` of `rank_count`.
    /// Otherwise as [`Communicator::init_rank`].
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`] or [`Error::Bootstrap`] names the ranks that have not come within
    /// [`Settings::bootstrap_timeout`]; [`Error::Disagreement`] where ranks pass different counts
    /// or settings; [`Error::Argument`] for a rank that is out of range or taken;
    /// [`Error::NotFound`] where no transport leads from one rank to another; otherwise as
    /// [`Communicator::init_all`].
    pub fn init_ranks(
        contexts: &[Arc<CudaContext>],
        id: &UniqueId,
        first: u32,
        rank_count: u32,
        settings: &Settings,
    ) -> Result<Vec<Self>> {
        let connected = connect::init_ranks(contexts, id, first, rank_count, settings)?;
        Ok(connected.into_iter().map(|connected| Self { connected }).collect())
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.connected.rank().0
    }

    /// Number of ranks.
    pub fn rank_count(&self) -> u32 {
        self.connected.rank_count()
    }

    /// The context that this rank runs on.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.connected.state.context
    }

    /// The error that ended the communicator, if any: an expired wait, a failed transfer, an
    /// abort, ranks that disagree. Work that was enqueued before has then stopped or will soon; its
    /// results are undefined.
    ///
    /// # Errors
    /// The first error, on every rank alike.
    pub fn check(&self) -> Result<()> {
        self.connected.check()
    }

    /// Ends the communicator on all ranks: kernels that wait stop, and later calls fail.
    pub fn abort(&self, why: &str) {
        let by = Some(self.connected.rank());
        self.connected.fail(Error::Aborted { by, why: why.to_owned() });
    }

    /// Waits until everything that this rank has enqueued has ended, and neither side owes the
    /// other anything: this rank's engine has returned all credits, by which it says that messages
    /// were read, and ranks of other nodes have read all that this one has sent them.
    ///
    /// A process may end after that. A communicator that is dropped waits for the same, between
    /// nodes for at most two seconds. If its process then ends while another rank, busy with other
    /// work, has yet to read, the data is there; but that rank's credits find nobody, and its
    /// communicator fails.
    ///
    /// # Errors
    /// The error that ended the communicator, if any; [`Error::HostWaitExpired`] after
    /// [`Settings::wait_timeout`].
    pub fn finalize(&self) -> Result<()> {
        self.connected.finalize(self.connected.settings.wait_timeout)
    }

    /// Counters of this rank.
    pub fn statistics(&self) -> Statistics {
        let engine = self.connected.engine_statistics();
        let Snapshot { descriptors, transfers, bytes, signals, occupancy_max, .. } = engine;
        let (launcher, memory) = (self.connected.launcher(), &self.connected.state.memory);
        Statistics {
            launches: launcher.launches(),
            descriptors,
            transfers,
            bytes,
            signals,
            ring_occupancy_max: occupancy_max,
            device_bytes: (memory.device_bytes() + launcher.plans.device_bytes()) as u64,
            sent_in_place: self.connected.places.sent(),
            received_in_place: self.connected.places.received(),
        }
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.rank())
            .field("rank_count", &self.rank_count())
            .field("device", &self.context().ordinal())
            .finish_non_exhaustive()
    }
}
