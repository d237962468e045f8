//! Groups: how they are made, what they launch, and how they end.

use super::config::{BytesNeeded, Config, OnLoss, Scales};
use super::handle::{self, Handle};
use super::layout::{STATE, Tables, group_image};
use super::placement::Placement;
use super::sizes::{Sizes, Spread};
use crate::communicator::{CapturedOrders, Communicator, DeviceHandle, LaunchOrder};
use crate::error::{Error, GoneRanks, Result, RoutingFault, RoutingFaultKind};
use crate::gpu::{Capture, Current, DeviceMemory, GpuRange, Kernels, OwnStream};
use crate::id::{Rank, Registration};
use cudarc::driver::CudaStream;
use ringdove_kernels::experts::{ExpertsCall, ExpertsFault, ExpertsState};
use ringdove_kernels::ptx;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Threads of a block, and warps.
const THREADS: u32 = 256;
const WARPS: u64 = 8;
/// The most blocks of a launch: enough to fill the links of one GPU.
const BLOCKS_MAX: u64 = 128;
/// Lanes of a group: of dispatches, and of combines.
const LANES: u32 = 2;

/// A kernel, by its place in [`ptx::EXPERTS_ENTRIES`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Entry {
    Route,
    Send,
    Await,
    Receive,
    Return,
    AwaitReturns,
    Combine,
    AwaitRelayed,
    Relay,
    AwaitGathered,
    Gather,
}

/// Numbers of groups and handles of this process.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

fn next_number() -> u64 {
    // Relaxed: a number that nobody else has, no more.
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

/// A group that is registered on this rank. [`open`](Self::open) waits for the other ranks.
#[derive(Debug)]
pub struct Workspace<'c> {
    communicator: &'c Communicator,
    sizes: Sizes,
    placement: Placement,
    window: Registration,
}

/// One rank's part of a group of experts; see the [module](super).
///
/// Dropping it waits a bounded time for its launches
/// ([`Settings::drop_timeout`](crate::Settings::drop_timeout)); launches of graphs are the caller's
/// to wait for. The memory of its messages stays with the communicator.
pub struct Group<'c> {
    pub(super) communicator: &'c Communicator,
    pub(super) sizes: Sizes,
    pub(super) number: u64,
    placement: Placement,
    kernels: Option<Kernels<ExpertsCall>>,
    /// [`ExpertsGroup`], [`ExpertsState`], and the tables of [`group_image`].
    memory: Option<DeviceMemory>,
    /// For the state, which the host reads.
    words: OwnStream,
    launching: Mutex<Launching>,
    _handle: DeviceHandle<'c>,
}

/// What calls change.
#[derive(Debug, Default)]
pub(super) struct Launching {
    order: LaunchOrder,
    captured: CapturedOrders,
    /// The handle of a dispatch that was sent and not received.
    pub sent: Option<u64>,
    /// The same of a combine.
    pub returned: Option<u64>,
    /// Memory of all handles: kernels may use that of a handle which was dropped.
    handles: Vec<Arc<DeviceMemory>>,
    /// Tokens that were left out.
    pub dropped: u64,
    /// Step and rank of the fault that was told last.
    told: Option<(u64, u32)>,
}

impl<'c> Group<'c> {
    /// What a group and its handles take on each rank of `communicator`. Of a group most is the
    /// window, which lies in pinned host memory where some GPUs of a node do not reach each
    /// other's, or an adapter not that of its GPU.
    ///
    /// # Errors
    /// [`Error::Argument`] names what is out of range.
    pub fn bytes_needed(communicator: &Communicator, config: &Config) -> Result<BytesNeeded> {
        let sizes = sizes(communicator, config, &Placement::even(communicator.rank_count()))?;
        let group = sizes.window_bytes + Tables::of(&sizes).end as u64;
        Ok(BytesNeeded { group, handle: handle::handle_bytes(&sizes) })
    }

    /// Allocates and registers the memory of a group. All ranks make the call, in the same order
    /// among their collectives; it does not wait for them. Like all registration it comes before
    /// work that waits for other ranks.
    ///
    /// # Errors
    /// [`Error::Argument`] names what is out of range, lanes among it; [`Error::Disagreement`]
    /// where ranks want different groups, which ends the communicator.
    pub fn register(communicator: &'c Communicator, config: &Config) -> Result<Workspace<'c>> {
        let placement = Placement::even(communicator.rank_count());
        Self::register_placed(communicator, config, placement)
    }

    /// As [`Self::register`], where ranks have the experts that `placement` says: after a rank has
    /// died, or a replacement has joined. The number of experts is that of all blocks.
    ///
    /// # Errors
    /// As [`Self::register`].
    pub fn register_placed(
        communicator: &'c Communicator,
        config: &Config,
        placement: Placement,
    ) -> Result<Workspace<'c>> {
        let sizes = sizes(communicator, config, &placement)?;
        let lanes = communicator.user_lanes();
        if config.lane.checked_add(LANES).is_none_or(|end| end > lanes) {
            let expected = format!(
                "two of the {lanes} user lanes (RINGDOVE_USER_LANES, Settings::user_lanes)"
            );
            let seen = format!("lanes {} and the next", config.lane);
            return Err(Error::argument("experts: lane", expected, seen));
        }
        communicator.agree_on_experts(agreed(config, &placement))?;
        if communicator.windows_in_host_memory() {
            // Its pages are zeros, as words of arrival begin. The communicator keeps the memory.
            let (window, _) = communicator.register_host(sizes.window_bytes)?;
            return Ok(Workspace { communicator, sizes, placement, window });
        }
        let (bytes, context) = (sizes.window_bytes as usize, communicator.context());
        // Words of arrival begin at zero; all else is written before it is read.
        let zeros = sizes.arrivals as usize..(sizes.arrivals + sizes.arrival_bytes) as usize;
        let memory = Arc::new(DeviceMemory::with_zeros(context, bytes, [zeros])?);
        let window = communicator.register_range(GpuRange::of_memory(context, &memory)?.into())?;
        Ok(Workspace { communicator, sizes, placement, window })
    }

    /// Groups of all ranks that one thread drives.
    ///
    /// # Errors
    /// As [`Group::register`] and [`Workspace::open`].
    pub fn open_all(communicators: &'c [Communicator], config: &Config) -> Result<Vec<Self>> {
        let register = |communicator| Self::register(communicator, config);
        let registered: Vec<_> = communicators.iter().map(register).collect::<Result<_>>()?;
        registered.into_iter().map(Workspace::open).collect()
    }

    /// A handle, for a dispatch and its combine. Allocates.
    ///
    /// # Errors
    /// [`Error::Cuda`] where there is no memory.
    pub fn handle(&self) -> Result<Handle> {
        let (memory, routing) = handle::allocate(self.communicator.context(), &self.sizes)?;
        self.launching().handles.push(memory.clone());
        let (number, group) = (next_number(), self.number);
        Ok(Handle { number, group, memory, routing, tokens: None, has_rows: false, dropped: 0 })
    }

    /// How many tokens this rank's dispatches have left out, with
    /// [`Surplus::Drop`](super::Surplus::Drop). Launches of
    /// graphs are not counted: the capture was, once.
    pub fn dropped(&self) -> u64 {
        self.launching().dropped
    }

    /// What the group was made for.
    pub fn config(&self) -> &Config {
        &self.sizes.config
    }

    /// Which rank has which experts.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Ranks of a node, where rows to other nodes are relayed within it: throughput mode on several
    /// nodes with as many ranks each, all of which reach each other within a node, in a group that
    /// ends with a rank. Else 0.
    pub fn node_ranks(&self) -> u32 {
        self.sizes.node_ranks
    }

    /// What is wrong with dispatches that have been received, on any rank: the last that had a
    /// fault and was not told yet; or what ended the communicator. The caller has waited for the
    /// stream.
    ///
    /// # Errors
    /// [`Error::ExpertsRouting`], after which the group goes on; [`Error::ExpertsGone`] where it
    /// goes on without ranks, until the end of the step; all others end the communicator.
    pub fn check(&self) -> Result<()> {
        let gone = self.gone()?;
        if !gone.is_empty() {
            return Err(Error::ExpertsGone(Box::new(GoneRanks { ranks: gone })));
        }
        self.communicator.check()?;
        let mut fault = ExpertsFault::default();
        let offset = STATE + std::mem::offset_of!(ExpertsState, fault);
        self.memory().read(offset, bytemuck::bytes_of_mut(&mut fault), &self.words)?;
        let mut launching = self.launching();
        if fault.code == 0 || launching.told.is_some_and(|told| told == (fault.step, fault.rank)) {
            return Ok(());
        }
        launching.told = Some((fault.step, fault.rank));
        let Config { experts, tokens_max, .. } = self.sizes.config;
        Err(Error::ExpertsRouting(Box::new(RoutingFault {
            rank: Rank(fault.rank),
            step: fault.step,
            token: fault.place >> 4,
            choice: fault.place & 15,
            kind: RoutingFaultKind::of(fault.code, fault.value, experts, tokens_max),
        })))
    }

    /// The ranks that a group which [goes on](OnLoss::GoOn) has given up, in order. The caller has
    /// waited for the stream.
    ///
    /// # Errors
    /// [`Error::Cuda`] with the driver's answer.
    pub fn gone(&self) -> Result<Vec<Rank>> {
        if self.sizes.config.on_loss == OnLoss::End {
            return Ok(Vec::new());
        }
        let mut gone = vec![0u32; self.sizes.ranks as usize];
        let at = Tables::of(&self.sizes).gone;
        self.memory().read(at, bytemuck::cast_slice_mut(&mut gone), &self.words)?;
        let ranks = (0..).map(Rank).zip(gone).filter(|(_, gone)| *gone != 0);
        Ok(ranks.map(|(rank, _)| rank).collect())
    }

    /// Of a group that [goes on](OnLoss::GoOn): for each token of the last combine with `handle`, a
    /// bit for each choice whose result is missing in its sum, 0 where it is whole. The caller has
    /// waited for the stream. [`Combined::missing`](super::Combined::missing) is the same on the
    /// device.
    ///
    /// # Errors
    /// [`Error::Argument`] for a handle of another group, and in a group that ends with a rank.
    pub fn missing(&self, handle: &Handle) -> Result<Vec<u32>> {
        self.owns(handle)?;
        if self.sizes.config.on_loss == OnLoss::End {
            let expected = "a group that goes on (Config::on_loss)";
            return Err(Error::argument("experts: marks of tokens", expected, "one that ends"));
        }
        let mut missing = vec![0u32; handle.tokens.unwrap_or(0) as usize];
        let at = (handle.routing.missing - handle.memory.address()) as usize;
        handle.memory.read(at, bytemuck::cast_slice_mut(&mut missing), &self.words)?;
        Ok(missing)
    }

    fn memory(&self) -> &DeviceMemory {
        self.memory.as_ref().expect("present until drop")
    }

    pub(super) fn launching(&self) -> MutexGuard<'_, Launching> {
        self.launching.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails where the handle is another group's.
    pub(super) fn owns(&self, handle: &Handle) -> Result<()> {
        if handle.group == self.number {
            return Ok(());
        }
        Err(Error::argument("experts: handle", "one of this group", "one of another group"))
    }

    /// Enqueues launches, in their order, behind all earlier ones of the group.
    pub(super) fn launch(
        &self,
        launching: &mut Launching,
        launches: &[(Entry, u32)],
        call: ExpertsCall,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        // A step that has begun goes to its end, in a group that goes on.
        let begins = launches.iter().any(|(entry, _)| matches!(entry, Entry::Send));
        if begins || self.sizes.config.on_loss == OnLoss::End {
            self.communicator.check()?;
        }
        let rank = Rank(self.communicator.rank());
        let capture = match Current::bind(self.communicator.context())?.capture(stream)? {
            Capture::None => None,
            Capture::Active(capture) => Some(capture),
            Capture::Impossible => return Err(Error::Capturing { rank, call: "experts" }),
        };
        let order = match capture {
            None => &mut launching.order,
            Some(capture) => launching.captured.of(capture),
        };
        let call = ExpertsCall { group: self.memory().address(), ..call };
        order.enter(stream)?;
        let kernels = self.kernels.as_ref().expect("present until drop");
        for &(entry, blocks) in launches {
            kernels.launch(entry as usize, stream, (blocks, THREADS), &call)?;
        }
        order.leave(stream)
    }
}

/// What must be equal on all ranks.
fn agreed(config: &Config, placement: &Placement) -> [(&'static str, u64); 13] {
    [
        ("experts", config.experts.into()),
        ("top-k", config.top_k.into()),
        ("elements of a token", config.hidden.into()),
        ("tokens of a rank", config.tokens_max.into()),
        ("data type of experts", config.data_type as u64),
        ("mode of experts", config.mode.code().into()),
        ("alignment of counts", config.alignment.into()),
        ("lane of experts", config.lane.into()),
        ("scales of experts", Scales::code(config.fp8).into()),
        ("surplus tokens of experts", config.surplus as u64),
        ("grace of experts in ns", config.on_loss.grace_ns().unwrap_or(u64::MAX)),
        ("placement of experts", placement.signature()),
        ("group of experts", 1),
    ]
}

/// The sizes of a group of this communicator.
fn sizes(communicator: &Communicator, config: &Config, placement: &Placement) -> Result<Sizes> {
    let spread = Spread {
        ranks: communicator.rank_count(),
        blocks: placement.owners().len() as u32,
        node_ranks: communicator.relayed_node_ranks(),
        by_stores: communicator.stores_reach_all(),
    };
    placement.check(spread.ranks)?;
    Sizes::new(config, spread)
}

/// Blocks for so many warps' work.
pub(super) fn blocks(items: u64) -> u32 {
    items.div_ceil(WARPS).clamp(1, BLOCKS_MAX) as u32
}

impl<'c> Workspace<'c> {
    /// Waits until all ranks have registered the group, and makes it usable. A thread that drives
    /// several ranks registers all of them first. As [`Communicator::device_handle`], it comes
    /// before work that waits for other ranks.
    ///
    /// # Errors
    /// As [`Communicator::device_handle`], but for GPUs that do not reach each other's memory, and
    /// adapters that do not: windows lie in pinned host memory there.
    pub fn open(self) -> Result<Group<'c>> {
        let Self { communicator, sizes, placement, window } = self;
        let context = communicator.context();
        let handle = communicator.device_handle_by_stores(&[window])?;
        let memory = DeviceMemory::zeroed(context, Tables::of(&sizes).end)?;
        memory.write(0, &group_image(&sizes, &placement, handle.address(), memory.address()))?;
        Ok(Group {
            communicator,
            sizes,
            number: next_number(),
            placement,
            kernels: Some(Kernels::load_for(context, &ptx::EXPERTS, &ptx::EXPERTS_ENTRIES)?),
            memory: Some(memory),
            words: OwnStream::new(context)?,
            launching: Mutex::default(),
            _handle: handle,
        })
    }
}

impl std::fmt::Debug for Group<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group")
            .field("communicator", self.communicator)
            .field("config", &self.sizes.config)
            .finish_non_exhaustive()
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        let limit = self.communicator.drop_timeout();
        let ended = self.launching().order.wait(limit);
        if !ended {
            // A kernel may still use all of this.
            tracing::error!("kernels of experts do not end, so their memory is leaked");
            std::mem::forget((self.memory.take(), self.kernels.take()));
            std::mem::forget(std::mem::take(&mut self.launching().handles));
        }
    }
}
