//! The public API: communicators, collectives, send and receive, registration.
//!
//! * `init`: how communicators are made
//! * `world`: what the ranks of one process share
//! * `meeting`, `peer`, `far`: how ranks of several processes and nodes reach one another's memory
//! * `layout`, `memory`: lanes and ports, and where they lie in each rank's memory
//! * `attach`, `doorbell`: what the engine is told, and a device engine's channel
//! * `agreement`, `gossip`: ranks must make the same calls; the board notices where they do not,
//!   also between processes
//! * `windows`: registered buffers
//! * `launcher`, `order`, `backlog`: plans on the device, the order of launches, how many are ahead
//! * `tidy`: when memory is freed; `sharing`: ranks on one GPU
//! * `all_reduce`, `group`: the calls; `raw`: the same on addresses

mod agreement;
mod all_reduce;
mod attach;
mod backlog;
mod buffers;
mod doorbell;
mod element;
mod far;
mod gossip;
mod group;
mod init;
mod launcher;
mod layout;
mod meeting;
mod memory;
mod order;
mod peer;
mod raw;
mod sharing;
mod tidy;
mod unique_id;
mod windows;
mod world;

pub use crate::gpu::Registered;
pub use crate::id::Registration;
pub use element::{Element, Reduction, Scalar};
pub use group::Group;
pub use unique_id::UniqueId;

use crate::engine::{Alarm, Snapshot};
use crate::error::{Error, Result};
use crate::gpu::{Current, Export, GpuRange, Import};
use crate::id::{EngineKind, Rank};
use crate::settings::Settings;
use crate::shared::{DeviceRange, PeerRange};
use attach::RankEngine;
use cudarc::driver::{CudaContext, CudaSlice, DevicePtr};
use far::FarMemory;
use launcher::{Launcher, RegisteredRange};
use meeting::Shared;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidy::Tidy;
use windows::{Part, Window};
use world::{Seat, World, lock};

/// How long a rank whose kernels have ended waits for transfers to other nodes. Those that somebody
/// waits for are acknowledged within milliseconds; credits for a rank that has left already never
/// are, and the adapter would repeat them for as long as it is told.
const LAST_WORDS: Duration = Duration::from_secs(2);

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
/// Dropping a communicator waits a bounded time for its own launches
/// ([`Settings::drop_timeout`]), then aborts them.
pub struct Communicator {
    rank: Rank,
    settings: Settings,
    world: Arc<World>,
    seat: Arc<Seat>,
    launcher: Arc<Mutex<Launcher>>,
    /// `None` only while the communicator is being dropped.
    engine: Option<RankEngine>,
    far: Option<FarMemory>,
    /// Dropped last: frees what the others gave up.
    _tidy: Tidy,
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
}

impl Communicator {
    /// This rank.
    pub fn rank(&self) -> u32 {
        self.rank.0
    }

    /// Number of ranks.
    pub fn rank_count(&self) -> u32 {
        self.world.geometry.rank_count
    }

    /// The context that this rank runs on.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.seat.context
    }

    /// The error that ended the communicator, if any: an expired wait, a failed transfer, an
    /// abort, ranks that disagree. Work that was enqueued before has then stopped or will soon; its
    /// results are undefined.
    ///
    /// # Errors
    /// The first error, on every rank alike.
    pub fn check(&self) -> Result<()> {
        if let Some(engine) = &self.engine {
            engine.look();
        }
        self.seat.check()
    }

    /// Ends the communicator on all ranks: kernels that wait stop, and later calls fail.
    pub fn abort(&self, why: &str) {
        self.world.raise(Error::Aborted { by: Some(self.rank), why: why.to_owned() });
    }

    /// Waits until everything that this rank has enqueued has ended, and its engine owes the other
    /// ranks nothing: also not the credits by which it says that their messages were read, which
    /// may be on their way when the rank's own stream is done.
    ///
    /// A process that is about to end calls this for its ranks, then meets the other processes at
    /// a barrier of the program's own, and only then drops its communicators. Without it nothing is
    /// lost; but between nodes, the ranks that stay may wait up to two seconds as they drop theirs,
    /// since nobody acknowledges their last credits.
    ///
    /// # Errors
    /// The error that ended the communicator, if any; [`Error::HostWaitExpired`] after
    /// [`Settings::wait_timeout`].
    pub fn finalize(&self) -> Result<()> {
        let limit = self.settings.wait_timeout;
        if !self.drained(limit) {
            return Err(Error::HostWaitExpired {
                what: format!("the launches of {}", self.rank),
                expected: "all ended".into(),
                seen: "some that have not".into(),
                waited: limit,
            });
        }
        self.check()?;
        let quiet = self.engine().quiet(self.seat.memory.head()?, limit);
        // What ended the communicator says more than work that is left.
        self.check().and(quiet)
    }

    /// Counters of this rank.
    pub fn statistics(&self) -> Statistics {
        let engine = self.engine.as_ref().map(RankEngine::statistics).unwrap_or_default();
        let Snapshot { descriptors, transfers, bytes, signals, occupancy_max, .. } = engine;
        Statistics {
            launches: lock(&self.launcher).launches(),
            descriptors,
            transfers,
            bytes,
            signals,
            ring_occupancy_max: occupancy_max,
        }
    }

    /// Registers a buffer, so that engines may read and write it: collectives on it, or on parts of
    /// it, then move data straight between the ranks' buffers, without staging.
    ///
    /// Registration is collective: every rank registers a buffer of the same size, in the same
    /// order, and calls on registered buffers use the same offsets on every rank. The buffer goes
    /// on to be used through what is returned, and stays allocated until all ranks of the
    /// communicator are gone, also when that is dropped before.
    ///
    /// The call does not wait for the other ranks; the first collective that uses the buffer does.
    ///
    /// # Errors
    /// [`Error::Argument`] where the buffer is empty, of another context, or of memory that the
    /// driver does not share with other processes; [`Error::Disagreement`] where another rank
    /// registered another size. The buffer is then freed.
    pub fn register<T: Element>(&self, buffer: CudaSlice<T>) -> Result<Registered<T>> {
        self.check_buffer("registered buffer", &buffer)?;
        let (address, sync) = buffer.device_ptr(buffer.stream());
        drop(sync);
        let registration = self.register_at(address, buffer.num_bytes() as u64)?;
        Ok(Registered::new(buffer, registration, self.seat.memory.registered().clone()))
    }

    /// As [`Communicator::register`], for memory that `cudarc` does not own. The range is kept
    /// until all ranks of the communicator are gone.
    ///
    /// # Errors
    /// As [`Communicator::register`].
    pub fn register_range(&self, range: Arc<GpuRange>) -> Result<Registration> {
        let registration = self.register_at(range.address(), range.length_bytes())?;
        self.seat.memory.registered().keep(range);
        Ok(registration)
    }

    /// Registers memory that somebody keeps.
    fn register_at(&self, address: u64, bytes: u64) -> Result<Registration> {
        self.check()?;
        let what = "registered buffer";
        let current = Current::bind(&self.seat.context)?;
        let allocation = buffers::check_range(&current, what, (address, bytes))?;
        if bytes == 0 || !allocation.on_device {
            let seen = format!("{bytes} bytes at {address:#x}");
            return Err(Error::argument(what, "some bytes of device memory", seen));
        }
        current.open_pool(address, &self.world.other_devices(&self.seat.context))?;
        let mut launcher = lock(&self.launcher);
        let number = launcher.registered().len();
        self.engine().add_window(number, address, bytes)?;
        // Engines that reach one another need nobody's memory in another process.
        let alone = self.world.links().is_empty();
        let export = match alone || self.world.geometry.engine == EngineKind::Device {
            true => None,
            false => Some(self.export(address)?),
        };
        let part = Part { address, bytes, export: export.map(Shared::from) };
        let posted = self.world.windows.post(self.rank, self.rank_count(), number, part);
        posted.inspect_err(|_| self.engine().remove_windows(number))?;
        launcher.add_registered(RegisteredRange { address, bytes, allocation: allocation.id });
        Ok(Registration(number))
    }

    fn export(&self, address: u64) -> Result<Export> {
        Export::of(&self.seat.context, address).map_err(|error| match error {
            Error::Cuda { name, .. } => Error::argument(
                "registered buffer",
                "memory that processes can share (cuMemAlloc, not a stream-ordered pool)",
                format!("{address:#x}, which the driver does not share: {name}"),
            ),
            other => other,
        })
    }

    /// Registration `number` as this rank's engine reaches it on every rank.
    fn window(&self, number: usize) -> Result<(Window, Vec<Arc<Import>>)> {
        let limit = self.settings.bootstrap_timeout;
        let parts = self.world.windows.complete(number, limit, &self.world.links())?;
        let mut imports = Vec::new();
        let mut addresses = Vec::new();
        for (rank, part) in (0..).zip(&parts) {
            let rank = Rank(rank);
            // Device engines find a peer's part by its number, and take no address for it.
            if self.world.is_local(rank) || self.world.geometry.engine == EngineKind::Device {
                addresses.push(part.address);
                continue;
            }
            let what = format!("its part of registration {number}");
            let range = PeerRange { rank, what: &what, length_bytes: part.bytes, align: 1 };
            let shared = part.export.as_ref().ok_or_else(|| {
                let expected = "a handle, as of every rank of another process";
                Error::peer_value(rank, &what, expected, "none")
            })?;
            let export = shared.export(rank, &what)?;
            let (import, address) = Import::locate(&self.seat.context, &export, &range)?;
            imports.push(import);
            addresses.push(address);
        }
        Ok((Window { bytes: parts[0].bytes, addresses }, imports))
    }

    fn engine(&self) -> &RankEngine {
        self.engine.as_ref().expect("present until drop")
    }

    /// Waits until the launches of this rank have ended, at most `limit`.
    fn drained(&self, limit: Duration) -> bool {
        lock(&self.launcher).wait(limit)
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.rank.0)
            .field("rank_count", &self.rank_count())
            .field("device", &self.seat.context.ordinal())
            .finish_non_exhaustive()
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        let mut ended = self.drained(self.settings.drop_timeout);
        if !ended {
            self.abort("the communicator was dropped while its work had not ended");
            ended = self.drained(self.settings.drop_timeout);
            if !ended {
                // A kernel that ignores its abort word still uses all of this memory.
                tracing::error!(rank = self.rank.0, "a kernel does not end; its memory is leaked");
                std::mem::forget((self.launcher.clone(), self.world.clone()));
            }
        }
        if let Some(far) = self.far.as_ref().filter(|_| self.world.is_raised()) {
            far.break_off();
        }
        let limit = match &self.far {
            Some(_) if ended => self.settings.drop_timeout.min(LAST_WORDS),
            _ => self.settings.drop_timeout,
        };
        if let Some(engine) = self.engine.take()
            && let Err(error) =
                engine.detach(|| self.seat.memory.head().ok().filter(|_| ended), limit)
        {
            tracing::warn!(%error, rank = self.rank.0, "the engine had work left");
        }
    }
}
