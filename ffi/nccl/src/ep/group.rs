//! Groups: the ranks of a communicator, and for each shape of tokens a group of `ringdove`.

use super::abi::{GroupConfig, HIGH_THROUGHPUT, LOW_LATENCY};
use super::absent;
use crate::communicator::{Communicator, Ready, lock};
use crate::result::{Failure, Result};
use ringdove::experts::{Config, Group as Experts, Mode, OnLoss, Surplus};
use ringdove::gpu::StreamBridge;
use ringdove::{Communicator as Ranks, DataType};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex};

/// User lanes of a group's communicator: two for each shape of tokens.
const LANES: u32 = 16;
/// Handles are multiples of this, as addresses of allocations are.
const STEP: usize = 16;

/// Things by numbers, which are never given twice.
pub struct Registry<T>(Mutex<(usize, BTreeMap<usize, Arc<T>>)>);

impl<T> Registry<T> {
    pub const fn new() -> Self {
        Self(Mutex::new((STEP, BTreeMap::new())))
    }

    pub fn add(&self, thing: T) -> *mut c_void {
        let mut all = lock(&self.0);
        let number = all.0;
        all.0 += STEP;
        all.1.insert(number, Arc::new(thing));
        number as *mut c_void
    }

    pub fn find(&self, what: &str, handle: *mut c_void) -> Result<Arc<T>> {
        let found = lock(&self.0).1.get(&(handle as usize)).cloned();
        found.ok_or_else(|| unknown(what, handle))
    }

    pub fn remove(&self, what: &str, handle: *mut c_void) -> Result<Arc<T>> {
        let found = lock(&self.0).1.remove(&(handle as usize));
        found.ok_or_else(|| unknown(what, handle))
    }
}

fn unknown(what: &str, handle: *mut c_void) -> Failure {
    Failure::argument(what, "one that was created and not destroyed yet", format!("{handle:?}"))
}

pub static GROUPS: Registry<Group> = Registry::new();

/// What tokens of one kind are, and how they are chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub top_k: u32,
    pub hidden: u32,
    pub data_type: DataType,
}

/// A group of `ringdove` for one shape. It borrows the ranks, which it keeps.
pub struct Opened {
    group: ManuallyDrop<Experts<'static>>,
    ranks: Arc<Ranks>,
}

impl Opened {
    pub fn experts(&self) -> &Experts<'static> {
        &self.group
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: dropped here alone; the ranks that it borrows are dropped behind it.
        unsafe { ManuallyDrop::drop(&mut self.group) };
        let _ = &self.ranks;
    }
}

/// `ncclEpGroup_t`.
pub struct Group {
    /// A communicator of the same ranks with user lanes, and a stream.
    ranks: Arc<Ranks>,
    pub bridge: StreamBridge,
    pub mode: Mode,
    pub experts: u32,
    pub tokens_max: u32,
    token_bytes_max: u32,
    opened: Mutex<Vec<(Shape, Arc<Opened>)>>,
    /// Held while a call is enqueued.
    pub turn: Mutex<()>,
    /// The communicator of the program lives as long.
    _parent: Arc<Ready>,
}

impl Group {
    /// A group of all ranks of a communicator. All of them call, and wait for one another.
    pub fn create(comm: *mut c_void, config: &GroupConfig) -> Result<Self> {
        check(config)?;
        let communicator = Communicator::find(comm)?;
        let parent = communicator.ready()?;
        let mode = match config.algorithm {
            LOW_LATENCY => Mode::LowLatency,
            HIGH_THROUGHPUT => Mode::Throughput,
            other => return Err(Failure::argument("algorithm", "0 or 1", other)),
        };
        let ranks = parent.ranks.rank_count();
        if config.experts == 0 || !config.experts.is_multiple_of(ranks) {
            let expected = format!("a multiple of {ranks} ranks");
            return Err(Failure::argument("num_experts", &expected, config.experts));
        }
        let turn = lock(&parent.turn);
        let ranks = Arc::new(parent.ranks.with_user_lanes(LANES)?);
        drop(turn);
        let bridge = StreamBridge::new(ranks.context())?;
        Ok(Self {
            ranks,
            bridge,
            mode,
            experts: config.experts,
            tokens_max: config.tokens_max,
            token_bytes_max: config.token_bytes_max,
            opened: Mutex::default(),
            turn: Mutex::default(),
            _parent: parent,
        })
    }

    pub fn rank_count(&self) -> usize {
        self.ranks.rank_count() as usize
    }

    pub fn local_experts(&self) -> usize {
        self.experts as usize / self.rank_count()
    }

    pub fn ranks(&self) -> &Ranks {
        &self.ranks
    }

    /// What `ringdove` is told of a shape.
    pub fn config(&self, shape: Shape, lane: u32) -> Config {
        Config {
            experts: self.experts,
            top_k: shape.top_k,
            hidden: shape.hidden,
            tokens_max: self.tokens_max,
            surplus: Surplus::Refuse,
            data_type: shape.data_type,
            fp8: None,
            mode: self.mode,
            alignment: 1,
            lane,
            on_loss: OnLoss::End,
        }
    }

    /// The group for a shape. The first time all ranks call, and wait for one another.
    pub fn opened(&self, shape: Shape) -> Result<Arc<Opened>> {
        let mut opened = lock(&self.opened);
        if let Some((_, found)) = opened.iter().find(|(known, _)| *known == shape) {
            return Ok(found.clone());
        }
        let bytes = u64::from(shape.hidden) * shape.data_type.size_bytes() as u64;
        if bytes > u64::from(self.token_bytes_max) {
            let expected = format!("at most {} (max_token_bytes)", self.token_bytes_max);
            return Err(Failure::argument("bytes of a token", &expected, bytes));
        }
        let lane = 2 * opened.len() as u32;
        if lane >= LANES {
            let most = LANES / 2;
            let message =
                format!("a group takes tokens of at most {most} shapes (sizes and types)");
            return Err(Failure::usage(message));
        }
        let config = self.config(shape, lane);
        let group = Experts::register(&self.ranks, &config)?.open()?;
        // SAFETY: it is only a borrow of the ranks, which `Opened` keeps and drops behind it.
        let group = unsafe { std::mem::transmute::<Experts<'_>, Experts<'static>>(group) };
        let made = Opened { group: ManuallyDrop::new(group), ranks: self.ranks.clone() };
        let made = Arc::new(made);
        opened.push((shape, made.clone()));
        Ok(made)
    }
}

/// Refuses what is wrong, and what is not there. Numbers of queue pairs, channels and
/// multiprocessors are hints that have no use here.
fn check(config: &GroupConfig) -> Result<()> {
    for (what, number) in [
        ("max_dispatch_tokens_per_rank", config.tokens_max),
        ("max_token_bytes", config.token_bytes_max),
    ] {
        if number == 0 {
            return Err(Failure::argument(what, "more than 0", 0));
        }
    }
    if config.enable_mask != 0 {
        let instead = "a rank's death ends the communicator; `ringdove::experts` can go on";
        return Err(absent("enable_mask", instead));
    }
    if !config.allocate.is_null() || !config.free.is_null() {
        return Err(absent("an allocator of the program (alloc)", "leave it null"));
    }
    if config.rdma_buffer_bytes != 0 {
        return Err(absent("an explicit rdma_buffer_size", "pass NCCL_EP_AUTO"));
    }
    if config.timeout_ns != 0 {
        return Err(absent("timeout_ns", "set RINGDOVE_TIMEOUT_MS"));
    }
    Ok(())
}
