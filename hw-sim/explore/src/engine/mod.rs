//! The engine of one rank: the proxy, or a channel of a device engine.

mod device;
mod proxy;
mod transport;

use hwsim_ptx::memory::{Order, Scope, Strength};
use hwsim_ptx::weak::{AgentId, WeakMemory};
use ringdove::engine::AttachmentHandle;
use ringdove::error::Error;
use std::rc::Rc;
use std::sync::atomic::Ordering;

pub use device::{DeviceEngine, Shape as DeviceShape, device_engines};
use proxy::ProxyEngine;
pub use proxy::RETRIES;
pub use transport::{Carried, Links, UNANSWERED};

use crate::rank::Rank;

/// Bytes that a route may touch, where its setup does not say: as far as offsets reach.
pub(crate) const ANY_BYTES: u64 = 1 << 40;

/// One ordering of the host's code, weakened to relaxed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostMutant {
    /// `ring::Consumer::load`: the acquire load of a slot's first word.
    FirstWord,
    /// The same of its second word.
    SecondWord,
    /// Both.
    BothWords,
    /// `ring::Consumer::poll`: the release store of the tail.
    Tail,
    /// A transport raises signals with no regard to the data before (R9).
    Signal,
    /// `engine::Watch::record`: the acquire load of a record's state (R10).
    Record,
}

impl HostMutant {
    /// Does it weaken the load of this word of a slot?
    pub(super) fn weakens(self, word: usize) -> bool {
        match self {
            Self::FirstWord => word.is_multiple_of(2),
            Self::SecondWord => !word.is_multiple_of(2),
            Self::BothWords => true,
            Self::Tail | Self::Signal | Self::Record => false,
        }
    }
}

/// What an ordering of Rust is on memory that a GPU shares.
fn strength(ordering: Ordering) -> Strength {
    let order = match ordering {
        Ordering::Relaxed => Order::Relaxed,
        Ordering::Acquire => Order::Acquire,
        Ordering::Release => Order::Release,
        Ordering::AcqRel => Order::AcquireRelease,
        _ => Order::SequentiallyConsistent,
    };
    Strength { order, scope: Scope::System }
}

/// Where a route leads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Route {
    /// The lane that carries it.
    pub lane: usize,
    /// The rank to which it leads.
    pub peer: usize,
    /// What source offsets count from.
    pub source: u64,
    /// What destination offsets count from.
    pub destination: u64,
    /// How far both reach; 0: as far as offsets do.
    pub bytes: u64,
    /// The word that an arrival raises.
    pub arrival: u64,
    /// The word that a completion raises; 0 where there is none.
    pub completion: u64,
}

/// How an engine works, beyond what its rank says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    /// Descriptors that a step takes at most, and transfers that wait for the transport.
    pub batch: usize,
    /// Contiguous transfers are merged up to so many bytes.
    pub coalesce_bytes: u64,
    /// Transfers that the transport takes before it says no.
    pub room: usize,
    /// Lanes move data piece by piece, in any order.
    pub splits: bool,
    /// It stops once the abort word is raised.
    pub watches_abort: bool,
    /// Lanes write words of eight bytes whole, as low-latency messages need.
    pub whole_words: bool,
    /// What lanes read may turn out to be what is stored later, while nobody has looked at it. They
    /// read so many bytes at a time, and words of eight bytes of those: a store of less is not
    /// taken for what such a word holds.
    pub reads_late: Option<u64>,
    /// What is weakened.
    pub mutant: Option<HostMutant>,
}

impl Manner {
    /// Draws one of an engine that looks at the abort word.
    pub fn draw(random: &mut fastrand::Rng, whole_words: bool) -> Self {
        Self {
            batch: random.usize(1..=4),
            coalesce_bytes: [0, 64, 4096][random.usize(..3)],
            room: [1, 2, 8][random.usize(..3)],
            splits: random.bool(),
            watches_abort: true,
            whole_words,
            reads_late: None,
            mutant: None,
        }
    }
}

impl Default for Manner {
    fn default() -> Self {
        Self {
            batch: 4,
            coalesce_bytes: 0,
            room: usize::MAX,
            splits: false,
            watches_abort: false,
            whole_words: false,
            reads_late: None,
            mutant: None,
        }
    }
}

/// An engine.
pub enum Engine {
    /// The proxy.
    Proxy(Box<ProxyEngine>),
    /// A channel of a device engine.
    Device(Box<DeviceEngine>),
}

impl Engine {
    /// The proxy of `rank`, with these routes.
    pub fn proxy(memory: &Rc<WeakMemory>, rank: &Rank, routes: &[Route], manner: Manner) -> Self {
        Self::Proxy(Box::new(ProxyEngine::new(memory, rank, routes, manner)))
    }

    /// The proxy of `rank`, with so many lanes, of which `tell` tells it.
    ///
    /// # Errors
    ///
    /// Those of `tell`.
    pub fn told(
        memory: &Rc<WeakMemory>,
        rank: &Rank,
        (lanes, manner): (usize, Manner),
        tell: impl FnOnce(&AttachmentHandle) -> Result<(), Error>,
    ) -> Result<Self, String> {
        let engine = ProxyEngine::with_lanes(memory, rank, lanes, manner);
        tell(engine.handle()).map_err(|error| error.to_string())?;
        Ok(Self::Proxy(Box::new(engine)))
    }

    /// Has the lanes of a proxy go by an adapter.
    pub fn go_by(&mut self, links: Box<dyn Links>) {
        if let Self::Proxy(it) = self {
            it.go_by(links);
        }
    }

    /// The rank leaves its engine, once what was rung has ended.
    pub fn leave(&mut self) {
        match self {
            Self::Proxy(it) => it.leave(),
            Self::Device(_) => {}
        }
    }

    /// What it left undone, if it has left.
    pub fn left(&self) -> Option<&Option<String>> {
        match self {
            Self::Proxy(it) => it.left(),
            Self::Device(_) => None,
        }
    }

    /// Has the rank left it?
    pub fn has_left(&self) -> bool {
        self.left().is_some()
    }

    /// The agent that reads its ring.
    pub fn agent(&self) -> AgentId {
        match self {
            Self::Proxy(it) => it.agent,
            Self::Device(it) => it.agent(),
        }
    }

    /// How many parts it has that move data and take turns of their own.
    pub fn lanes(&self) -> usize {
        match self {
            Self::Proxy(it) => it.lanes(),
            Self::Device(_) => 1,
        }
    }

    /// The agent of such a part.
    pub fn lane_agent(&self, lane: usize) -> AgentId {
        match self {
            Self::Proxy(it) => it.lane_agent(lane),
            Self::Device(it) => it.agent(),
        }
    }

    /// Has this part work?
    pub fn is_busy(&self, lane: usize) -> bool {
        match self {
            Self::Proxy(it) => it.is_busy(lane),
            Self::Device(it) => it.is_busy(),
        }
    }

    /// Looks at the ring. Gives how many descriptors it took.
    pub fn poll(&mut self) -> Result<usize, String> {
        match self {
            Self::Proxy(it) => it.poll(),
            Self::Device(it) => Ok(it.look()),
        }
    }

    /// Does the next step of a part that moves data.
    pub fn work(&mut self, lane: usize) -> Result<(), String> {
        match self {
            Self::Proxy(it) => it.work(lane),
            Self::Device(it) => {
                it.fetch();
                Ok(())
            }
        }
    }

    /// Its ring holds what no kernel has rung: it may refuse that.
    pub fn may_fail(&mut self) {
        if let Self::Proxy(it) = self {
            it.may_fail = true;
        }
    }

    /// What has ended it, as its host reads it.
    pub fn failure(&self) -> Option<String> {
        match self {
            // Other failures of a proxy end the run.
            Self::Proxy(it) => it.handle().failure().map(|error| error.to_string()),
            Self::Device(it) => it.failure(),
        }
    }
}
