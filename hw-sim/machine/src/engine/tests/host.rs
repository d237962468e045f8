//! The other side of the BAR: what hosts and GPUs do, and a bench of engines to do it to.

use super::super::channel::ChannelAddress;
use super::super::node::{EngineNode, Progress};
use super::super::registers::Entry;
use crate::description::Description;
use crate::fabric::{Fabric, Segment};
use crate::memory::{GlobalMemory, Site, memory_file_for_tests};
use ringdove_kernels::bar::{
    CONTROL_OFFSET, Command, Control, ERROR_OFFSET, ErrorCode, ErrorRecord, Identity, Lane, NONE,
    Peer, RING_OFFSET, Route, STATUS_OFFSET, Signal, State, Status, Window,
};
use ringdove_kernels::descriptor::Descriptor;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

pub const RING_LOG2: u64 = 6;
/// Bytes of each host's window, and of its source.
pub const REGION: u64 = 1 << 20;

/// A machine with so many engines; each entry gets these lines, too.
pub fn machine(engines: usize, lines: &str) -> Description {
    let mut text = Description::builtin("one-gpu").unwrap().source().to_owned();
    for index in 0..engines {
        text += &format!(
            "\n[[engines]]\nname = \"engine{index}\"\nunder = \"cpu0\"\n\
             bus_id = \"0000:4{index}:00.0\"\npcie = {{ generation = 3, lanes = 16 }}\n\
             gb_per_s = 12.5\n{lines}\n"
        );
    }
    Description::parse(&text, "test").unwrap()
}

/// How a test makes its bench: engines, lines for the entry of each, faults.
pub type Make = fn(usize, &str, &str) -> Bench;

/// Engines, and the memory that they touch.
pub struct Bench {
    pub node: EngineNode,
    pub memory: Arc<GlobalMemory>,
    bars: Vec<File>,
    folder: Option<tempfile::TempDir>,
}

impl Bench {
    /// Engines that one process plays.
    pub fn near(engines: usize, lines: &str, faults: &str) -> Self {
        Self::joined(machine(engines, lines), faults, None)
    }

    /// Engines that reach each other, and themselves, as if every channel were another process's.
    pub fn remote(engines: usize, lines: &str, faults: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fabric = Fabric::join(folder.path()).unwrap();
        let mut bench = Self::joined(machine(engines, lines), faults, Some(fabric));
        bench.node.remote.always = true;
        bench.folder = Some(folder);
        bench
    }

    fn joined(description: Description, faults: &str, fabric: Option<Arc<Fabric>>) -> Self {
        let node = EngineNode::new(&description, faults, fabric).unwrap();
        let bars = node.devices.iter();
        let bars = bars.map(|d| memory_file_for_tests(super::super::bar_bytes(&d.identity)));
        let bars = bars.collect();
        let site = Site { node: 0, fabric: None };
        let memory = Arc::new(GlobalMemory::new(&[256 << 20], site).unwrap());
        Self { bars, node, memory, folder: None }
    }

    /// Engines of one node, as one process plays them.
    pub fn on_node(node: u32, engines: usize, fabric: Arc<Fabric>) -> Self {
        Self::joined(machine(engines, "").at_node(node), "", Some(fabric))
    }

    /// A host with a channel of an engine, ready.
    pub fn host(&mut self, engine: usize, channel: u64) -> Host {
        let bar = || self.bars[engine].try_clone().unwrap();
        let place = self.node.serve(engine, channel, bar()).unwrap();
        let identity = self.node.devices[engine].identity;
        let start = identity.channels_offset + channel * identity.channel_bytes;
        let registers = Segment::map_at(&bar(), start, identity.channel_bytes as usize).unwrap();
        let allocate = |bytes| self.memory.allocate(0, bytes, false, 1).unwrap();
        let words = allocate(4096);
        Host {
            place,
            identity,
            registers,
            generation: 100 + place.link_address * 10 + channel,
            source: allocate(REGION),
            window: allocate(REGION),
            words,
            signals: allocate(4096),
            head: 0,
        }
    }

    /// Steps until nothing moves.
    pub fn run_until_idle(&mut self) -> Progress {
        let mut progress = Progress::default();
        for _ in 0..100_000 {
            progress = self.node.step(&self.memory, Instant::now());
            if !progress.worked {
                return progress;
            }
        }
        panic!("the engines never come to rest: {progress:?}");
    }
}

/// State of one channel in a host and its GPU.
pub struct Host {
    pub place: ChannelAddress,
    pub identity: Identity,
    pub registers: Segment,
    pub generation: u64,
    pub source: u64,
    pub window: u64,
    /// A page: tail, abort word, then signals.
    pub words: u64,
    /// A page for many signals.
    pub signals: u64,
    pub head: u64,
}

impl Host {
    fn store(&self, offset: u64, words: &[u64]) {
        for (index, word) in words.iter().enumerate() {
            self.registers.word64(offset as usize + 8 * index).store(*word, Ordering::Release);
        }
    }

    fn load<T: bytemuck::Pod>(&self, offset: u64) -> T {
        let mut value = T::zeroed();
        let words: &mut [u64] = bytemuck::cast_slice_mut(bytemuck::bytes_of_mut(&mut value));
        for (index, word) in words.iter_mut().enumerate() {
            *word = self.registers.word64(offset as usize + 8 * index).load(Ordering::Acquire);
        }
        value
    }

    pub fn enter<T: Entry>(&self, index: u64, entry: T) {
        let (table, _) = T::table(&self.identity);
        let words = bytemuck::bytes_of(&entry);
        self.store(table + index * size_of::<T>() as u64, bytemuck::cast_slice(words));
    }

    pub fn command(&self, command: u64) {
        self.store(CONTROL_OFFSET, &[command]);
    }

    pub fn control(&self) -> Control {
        Control {
            command: Command::Run as u64,
            ring_log2: RING_LOG2,
            tail_address: self.words,
            abort_address: self.words + 8,
            generation: self.generation,
            rank: 0,
        }
    }

    /// Writes all control registers, the command last.
    pub fn run_with(&self, control: &Control) {
        let words: &[u64] = bytemuck::cast_slice(bytemuck::bytes_of(control));
        self.store(CONTROL_OFFSET + 8, &words[1..]);
        self.command(control.command);
    }

    pub fn peer_entry(&self) -> Peer {
        let ChannelAddress { link_address, channel } = self.place;
        Peer { link_address, channel, generation: self.generation, valid: 1 }
    }

    /// Makes `peer` this host's peer of a number: window 0, signals, and for each of `lanes` a lane
    /// and a route of the same number. Lane `l` raises the peer's signal `l`.
    pub fn connect(&self, peer: &Host, number: u64, lanes: std::ops::Range<u64>) {
        self.connect_to(peer.peer_entry(), number, lanes);
    }

    /// The same, of a peer that may be another process's.
    pub fn connect_to(&self, peer: Peer, number: u64, lanes: std::ops::Range<u64>) {
        self.enter(number, peer);
        self.enter(0, Window { base: self.window, length: REGION, reserved: 0, valid: 1 });
        for lane in lanes {
            self.enter(
                lane,
                Lane {
                    peer: number,
                    arrival_signal: lane,
                    completion_address: self.completion_address(lane),
                    valid: 1,
                },
            );
            self.enter(
                lane,
                Route {
                    lane,
                    source_base: self.source,
                    source_length: REGION,
                    window: 0,
                    window_offset: 0,
                    destination_length: REGION,
                    reserved: 0,
                    valid: 1,
                },
            );
        }
    }

    /// Lets a peer of a number raise signals.
    pub fn listen(&self, number: u64, signals: std::ops::Range<u64>) {
        for signal in signals {
            let address = self.arrival_address(signal);
            self.enter(signal, Signal { address, peer: number, reserved: 0, valid: 1 });
        }
    }

    pub fn arrival_address(&self, signal: u64) -> u64 {
        self.words + 64 + 8 * signal
    }

    pub fn completion_address(&self, lane: u64) -> u64 {
        self.words + 2048 + 8 * lane
    }

    /// Has the ring room for one more?
    pub fn has_room(&self) -> bool {
        self.head - word(self.words) < 1 << RING_LOG2
    }

    /// Rings; the caller has looked for room.
    pub fn ring(&mut self, descriptor: &Descriptor) {
        let lap_bit = (self.head >> RING_LOG2).is_multiple_of(2);
        self.ring_words(descriptor.encode(lap_bit));
    }

    pub fn ring_words(&mut self, words: [u64; 2]) {
        let slot = self.head & ((1 << RING_LOG2) - 1);
        self.store(RING_OFFSET + 16 * slot, &words);
        self.head += 1;
    }

    pub fn status(&self) -> Status {
        self.load(STATUS_OFFSET)
    }

    pub fn state(&self) -> State {
        State::from_code(self.status().state).unwrap()
    }

    pub fn error(&self) -> ErrorRecord {
        self.load(ERROR_OFFSET)
    }

    /// The error that ended the channel: code and record. It has stopped, and the abort word is up.
    pub fn ended_by(&self) -> (ErrorCode, ErrorRecord) {
        let record = self.error();
        assert_eq!(record.state, 1, "no error: {:?}", self.status());
        assert_eq!((self.state(), self.status().in_flight), (State::Stopped, 0));
        assert_eq!(half_word(self.words + 8), 1, "nobody wakes the kernels");
        (ErrorCode::from_code(record.code).unwrap(), record)
    }

    pub fn arrivals(&self, signal: u64) -> u64 {
        word(self.arrival_address(signal))
    }

    pub fn completions(&self, lane: u64) -> u64 {
        word(self.completion_address(lane))
    }

    pub fn tail(&self) -> u64 {
        word(self.words)
    }
}

/// A descriptor of a route whose data goes to the offset that it comes from.
pub fn put(route: u32, offset: u64, length: u32) -> Descriptor {
    let (source_offset, destination_offset) = (offset, offset);
    let (arrival, completion) = (true, true);
    Descriptor { route, source_offset, destination_offset, length, arrival, completion }
}

/// A word of the bench's memory.
pub fn word(address: u64) -> u64 {
    // SAFETY: tests pass aligned addresses of allocations that live as long as their bench.
    unsafe { AtomicU64::from_ptr(address as *mut u64) }.load(Ordering::Acquire)
}

fn half_word(address: u64) -> u32 {
    // SAFETY: as in `word`.
    unsafe { AtomicU32::from_ptr(address as *mut u32) }.load(Ordering::Acquire)
}

pub fn set_word(address: u64, value: u64) {
    // SAFETY: as in `word`.
    unsafe { AtomicU64::from_ptr(address as *mut u64) }.store(value, Ordering::Release);
}

/// Fills a region with words that tell where they are and whose they were.
pub fn fill(address: u64, bytes: u64, seed: u64) {
    for offset in (0..bytes).step_by(8) {
        set_word(address + offset, seed << 40 | offset);
    }
}

/// Two hosts on two engines that run and know each other: lanes 0 to 3 each way.
pub fn pair(bench: &mut Bench) -> [Host; 2] {
    let engines = bench.node.devices.len();
    let hosts = [bench.host(0, 0), bench.host(engines - 1, 1)];
    for (own, other) in [(0, 1), (1, 0)] {
        hosts[own].connect(&hosts[other], 5, 0..4);
        hosts[own].listen(5, 0..4);
        hosts[own].run_with(&hosts[own].control());
    }
    bench.run_until_idle();
    for host in &hosts {
        assert_eq!(host.state(), State::Running);
        assert_eq!(host.error().state, 0);
    }
    hosts
}

/// An arrival signal that is no signal.
pub const NO_SIGNAL: u64 = NONE;
