//! A weak memory: an operational model of PTX's scoped memory consistency model.
//!
//! Each eight bytes have a *history* of writes (`cell`); each agent (a GPU thread, a host thread,
//! a copy engine, an adapter) has a *view* of what it knows (`view`). A read may return any write
//! that the agent's knowledge does not rule out; a write may come to stand anywhere in the history
//! behind what its agent knows. [`Choose`] decides, so a seed or a list of choices is a run.
//!
//! | of the model | here |
//! |---|---|
//! | morally strong | both strong, each scope holds the other agent, the same bytes; or one agent |
//! | coherence order | a list of writes; only morally strong and causal pairs count |
//! | release pattern | a release write; a fence, or release write there, then a strong write |
//! | observation order | a morally strong read of a write; atomics pass on what they have read |
//! | acquire pattern | an acquire read; a strong read, then a fence, or acquire read there |
//! | synchronisation | release and acquire, scopes that hold each other's agents; barriers |
//! | causality order | program order, synchronisation; what was observed on the way, alone |
//! | `fence.sc` | fences whose scopes hold each other's agents, in the order of execution |
//! | atomicity | nothing morally strong comes between an atomic's read and its write |
//! | races | reads of values that race may be torn, byte from byte ([`Options::tears`]) |
//! | progress | reads that race need never see a newer value ([`Options::stalls`]) |
//!
//! Load buffering: a load may take its value from a store that comes later, as PTX allows where no
//! dependency and no order forbids it (`late`). Threads of litmus tests do so, and copies of
//! engines; loads of kernels that the interpreter runs do not, because it needs a value at once. So
//! a load of a kernel is never passed by a later store of the same thread. Less than PTX allows: a
//! load does not pass a release, a fence or a barrier to see a store that it is morally strong
//! with, acquire loads and atomics pass nothing, and a branch settles the value that it looks at,
//! as all that follows depends on it. Everything that is generated is allowed by the model; proxies
//! other than the generic one do not exist.

mod agent;
mod block;
mod cell;
mod choice;
mod late;
mod state;
mod view;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;

pub use agent::Place;
pub use block::BlockView;
pub use choice::{Choose, Drawn, Every};
pub use view::AgentId;

use crate::exec::atomic::apply;
use crate::memory::{AtomicOp, AtomicType, MemoryFault, Order, Scope, Strength};
use agent::{Agent, distance};
use cell::{Cell, Message, Reader, bits};
use late::{LateReads, Receiver};
use state::word_at;
use view::{SCOPES, Snapshot, View, WriteId, join_snapshot};

/// Where the first allocation is. Allocations lie apart, so that no overrun goes unseen.
const FIRST_ADDRESS: u64 = 0x10_0000;
/// Between allocations.
const GAP_BYTES: u64 = 0x1000;
/// Events that are kept of each agent, at least.
const EVENTS_KEPT: usize = 12;

/// How the memory behaves beyond what the model fixes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Reads that race may mix bytes of several writes.
    pub tears: bool,
    /// Reads that race return the oldest value that they may, each time: PTX promises a loop that
    /// polls an end only if its reads are morally strong with the write that ends it.
    pub stalls: bool,
    /// How many events of each agent to keep; a dozen are kept in any case.
    pub events_kept: usize,
}

/// What an agent did last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Read these bytes, as a number.
    Read {
        /// Where.
        address: u64,
        /// The value.
        value: u64,
        /// How.
        strength: Strength,
        /// How many newer values there were.
        age: usize,
    },
    /// Wrote.
    Write {
        /// Where.
        address: u64,
        /// The value.
        value: u64,
        /// How.
        strength: Strength,
    },
    /// Read and wrote.
    Atomic {
        /// Where.
        address: u64,
        /// Before.
        old: u64,
        /// After.
        new: u64,
        /// How.
        strength: Strength,
    },
    /// A fence.
    Fence(Strength),
    /// Left a barrier of its block.
    Barrier(u8),
}

struct Region {
    name: String,
    start: u64,
    bytes: u64,
    cells: Vec<Cell>,
}

/// Where barriers' knowledge is kept until all have left.
#[derive(Default)]
struct Meeting {
    view: Rc<View>,
    inside: u32,
}

struct State {
    choices: Box<dyn Choose>,
    options: Options,
    regions: BTreeMap<u64, Region>,
    next_address: u64,
    agents: Vec<Agent>,
    places: Vec<Place>,
    events: Vec<VecDeque<(u64, Event)>>,
    meetings: HashMap<(Place, u8, u64), Meeting>,
    /// What `fence.sc` of each scope's holders have left.
    fences: HashMap<(usize, Option<Place>), Rc<View>>,
    /// Reads that may still see what comes later.
    late: LateReads,
    /// Cells whose news readers seldom see, and one in how many reads does.
    seldom: HashMap<u64, usize>,
    serial: u64,
}

/// A memory that all agents of a run share.
pub struct WeakMemory(RefCell<State>);

fn scope_index(scope: Scope) -> usize {
    match scope {
        Scope::Block => 0,
        Scope::Cluster => 1,
        Scope::Gpu => 2,
        Scope::System => 3,
    }
}

fn acquires(order: Order) -> bool {
    matches!(order, Order::Acquire | Order::AcquireRelease | Order::SequentiallyConsistent)
}

fn releases(order: Order) -> bool {
    matches!(order, Order::Release | Order::AcquireRelease | Order::SequentiallyConsistent)
}

fn number(bytes: &[u8]) -> u64 {
    let mut raw = [0; 8];
    let length = bytes.len().min(8);
    raw[..length].copy_from_slice(&bytes[..length]);
    u64::from_le_bytes(raw)
}

impl WeakMemory {
    /// An empty one.
    pub fn new(choices: Box<dyn Choose>, options: Options) -> Self {
        Self(RefCell::new(State {
            choices,
            options,
            regions: BTreeMap::new(),
            next_address: FIRST_ADDRESS,
            agents: Vec::new(),
            places: Vec::new(),
            events: Vec::new(),
            meetings: HashMap::new(),
            fences: HashMap::new(),
            late: LateReads::default(),
            seldom: HashMap::new(),
            serial: 0,
        }))
    }

    /// A new agent.
    pub fn agent(&self, place: Place) -> AgentId {
        let mut state = self.0.borrow_mut();
        let id = state.agents.len() as AgentId;
        state.agents.push(Agent::new(id, place));
        state.places.push(place);
        state.events.push(VecDeque::new());
        id
    }

    /// Zeros that all agents know; gives their address, a multiple of 4096.
    pub fn allocate(&self, name: &str, bytes: u64) -> u64 {
        let mut state = self.0.borrow_mut();
        let start = state.next_address;
        let cells = vec![Cell::default(); bytes.div_ceil(8) as usize];
        state.next_address = (start + bytes + GAP_BYTES).next_multiple_of(GAP_BYTES);
        state.regions.insert(start, Region { name: name.to_owned(), start, bytes, cells });
        start
    }

    /// One of `0..among`, from the run's source of choices.
    pub fn choose(&self, among: usize) -> usize {
        self.0.borrow_mut().choices.choose(among)
    }

    /// Of the eight bytes around an address, reads that have a choice return the oldest value, but
    /// for about one in so many: so that one thread of many may be the only one that sees a write.
    pub fn show_seldom(&self, address: u64, one_in: usize) {
        self.0.borrow_mut().seldom.insert(address / 8 * 8, one_in);
    }

    /// Sets bytes that all agents know from the beginning on.
    ///
    /// # Errors
    ///
    /// No allocation holds them.
    pub fn set(&self, address: u64, bytes: &[u8]) -> Result<(), MemoryFault> {
        self.0.borrow_mut().each_part(address, bytes.len(), |_, cell, _, _, range, first| {
            for (offset, at) in range.clone().enumerate() {
                let shift = 8 * (first + offset);
                cell.base = cell.base & !(0xff << shift) | u64::from(bytes[at]) << shift;
            }
        })
    }

    /// The last bytes of every history: what memory holds when all is over.
    ///
    /// # Errors
    ///
    /// No allocation holds them.
    pub fn get(&self, address: u64, bytes: &mut [u8]) -> Result<(), MemoryFault> {
        let length = bytes.len();
        self.0.borrow_mut().each_part(address, length, |_, cell, _, _, range, first| {
            let value = cell.value_at(cell.history.len()).to_le_bytes();
            let count = range.len();
            bytes[range].copy_from_slice(&value[first..first + count]);
        })
    }

    /// What the eight bytes around an address have held, oldest first, as far as that is kept: for
    /// whoever judges a run.
    pub fn values(&self, address: u64) -> Vec<u64> {
        let mut values = Vec::new();
        let _ = self.0.borrow_mut().each_part(address, 1, |_, cell, _, _, _, _| {
            values.extend((0..=cell.history.len()).map(|position| cell.value_at(position)));
        });
        values
    }

    /// Reads: each `word` bytes are one access.
    ///
    /// # Errors
    ///
    /// No allocation holds the bytes.
    pub fn read(
        &self,
        agent: AgentId,
        address: u64,
        word: usize,
        strength: Strength,
        bytes: &mut [u8],
    ) -> Result<(), MemoryFault> {
        let state = &mut *self.0.borrow_mut();
        let mut age = 0;
        for (number, chunk) in bytes.chunks_mut(word).enumerate() {
            let at = address + (number * word) as u64;
            age = age.max(state.read_word(agent, at, strength, chunk)?);
        }
        let value = number(bytes);
        state.log(agent, Event::Read { address, value, strength, age });
        Ok(())
    }

    /// Reads a word of up to eight bytes whose value may still change to that of a store which
    /// comes later, until [`settle`](Self::settle): gives a number by which
    /// [`take_news`](Self::take_news) tells of that.
    ///
    /// # Errors
    ///
    /// No allocation holds the bytes.
    pub fn read_late(
        &self,
        agent: AgentId,
        address: u64,
        strength: Strength,
        bytes: &mut [u8],
    ) -> Result<u64, MemoryFault> {
        self.read(agent, address, bytes.len(), strength, bytes)?;
        let state = &mut *self.0.borrow_mut();
        let number = state.late.number();
        let (word, count) = word_at(address, bytes.len());
        if count == bytes.len() {
            state.agents[agent as usize].count += 1;
            state.keep_late(agent, word, strength, Receiver::Asker(number));
        }
        Ok(number)
    }

    /// Something depends on what was read under this number: the value stays.
    pub fn settle(&self, number: u64) {
        self.0.borrow_mut().late.settle(number);
    }

    /// Values that have changed since they were read, by number.
    pub fn take_news(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.0.borrow_mut().late.news)
    }

    /// Copies words of eight bytes by weak reads, which may still see stores that come later, for
    /// as long as nobody looks at the copies.
    ///
    /// # Errors
    ///
    /// No allocation holds the bytes.
    pub fn copy_late(
        &self,
        agent: AgentId,
        from: u64,
        to: u64,
        bytes: u64,
        how: Strength,
    ) -> Result<(), MemoryFault> {
        let mut data = vec![0; bytes as usize];
        self.read(agent, from, 8, Strength::WEAK, &mut data)?;
        let state = &mut *self.0.borrow_mut();
        state.agents[agent as usize].count += 1;
        let read = state.agents[agent as usize].count;
        for (number, chunk) in data.chunks(8).enumerate() {
            let offset = 8 * number as u64;
            state.write_word(agent, to + offset, how, chunk)?;
            let (source, there) =
                (word_at(from + offset, chunk.len()), word_at(to + offset, chunk.len()));
            if source.1 == chunk.len() && there.1 == chunk.len() {
                let count = state.agents[agent as usize].count;
                let shift = there.0.shift as i32 - source.0.shift as i32;
                let receiver = Receiver::Write { cell: there.0.cell, count, shift };
                state.late.add((agent, read), (source.0, Strength::WEAK), receiver);
            }
        }
        state.log(agent, Event::Write { address: to, value: number(&data), strength: how });
        Ok(())
    }

    /// Writes: each `word` bytes are one access, in any order of visibility.
    ///
    /// # Errors
    ///
    /// No allocation holds the bytes.
    pub fn write(
        &self,
        agent: AgentId,
        address: u64,
        word: usize,
        strength: Strength,
        bytes: &[u8],
    ) -> Result<(), MemoryFault> {
        let state = &mut *self.0.borrow_mut();
        for (number, chunk) in bytes.chunks(word).enumerate() {
            state.write_word(agent, address + (number * word) as u64, strength, chunk)?;
        }
        state.log(agent, Event::Write { address, value: number(bytes), strength });
        Ok(())
    }

    /// One read-modify-write; gives the old value.
    ///
    /// # Errors
    ///
    /// No allocation holds the word, or it is not aligned to its size.
    #[allow(clippy::too_many_arguments)] // All are words of one instruction.
    pub fn atomic(
        &self,
        agent: AgentId,
        address: u64,
        op: AtomicOp,
        ty: AtomicType,
        strength: Strength,
        operand: u64,
        compare: u64,
    ) -> Result<u64, MemoryFault> {
        let state = &mut *self.0.borrow_mut();
        let change = |old| apply(op, ty, old, operand, compare);
        let is_cas = op == AtomicOp::Cas;
        let (old, new) = state.modify(
            agent,
            address,
            ty.size_bytes(),
            strength,
            is_cas.then_some(compare),
            &change,
        )?;
        state.log(agent, Event::Atomic { address, old, new, strength });
        Ok(old)
    }

    /// A fence.
    pub fn fence(&self, agent: AgentId, strength: Strength) {
        let state = &mut *self.0.borrow_mut();
        state.fence(agent, strength);
        state.log(agent, Event::Fence(strength));
    }

    /// Arrives at barrier `id` of its block for the `generation`-th time.
    pub fn arrive(&self, agent: AgentId, id: u8, generation: u64) {
        let state = &mut *self.0.borrow_mut();
        let serial = state.tick();
        state.late.cross(agent);
        let own = &state.agents[agent as usize];
        let meeting = state.meetings.entry((own.place, id, generation)).or_default();
        meeting.inside += 1;
        join_snapshot(&mut meeting.view, &own.snapshot(serial));
    }

    /// Leaves it, once all have come.
    pub fn leave(&self, agent: AgentId, id: u8, generation: u64) {
        let state = &mut *self.0.borrow_mut();
        let key = (state.agents[agent as usize].place, id, generation);
        if let Some(meeting) = state.meetings.get_mut(&key) {
            meeting.inside = meeting.inside.saturating_sub(1);
            let view = Rc::clone(&meeting.view);
            if meeting.inside == 0 {
                state.meetings.remove(&key);
            }
            state.know(agent, &view);
        }
        state.log(agent, Event::Barrier(id));
    }

    /// All that `from` did and knows comes before what `to` does from now on: a launch, the end
    /// of a kernel, work that is queued behind other work.
    pub fn hand_over(&self, from: AgentId, to: AgentId) {
        let state = &mut *self.0.borrow_mut();
        let serial = state.tick();
        state.late.cross(from);
        state.late.cross(to);
        let snapshot = state.agents[from as usize].snapshot(serial);
        join_snapshot(&mut state.agents[to as usize].view, &snapshot);
    }

    /// The agents join each other's knowledge: `bar.warp.sync`.
    pub fn meet(&self, agents: impl Iterator<Item = AgentId> + Clone) {
        let state = &mut *self.0.borrow_mut();
        let serial = state.tick();
        let mut all = Rc::new(View::default());
        for agent in agents.clone() {
            join_snapshot(&mut all, &state.agents[agent as usize].snapshot(serial));
        }
        for agent in agents {
            state.know(agent, &all);
        }
    }

    /// What an agent did last, oldest first, each with its place in the run.
    pub fn events(&self, agent: AgentId) -> Vec<(u64, Event)> {
        self.0.borrow().events[agent as usize].iter().copied().collect()
    }

    /// Name of the allocation that holds an address, and the offset in it.
    pub fn name_of(&self, address: u64) -> Option<(String, u64)> {
        let state = self.0.borrow();
        let (_, region) = state.regions.range(..=address).next_back()?;
        (address < region.start + region.bytes)
            .then(|| (region.name.clone(), address - region.start))
    }
}
