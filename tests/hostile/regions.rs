//! Where the memory of a communicator's ranks lies that its kernels and engines share: found by
//! what it looks like, as an attacker inside the process would find it, and written through
//! `/proc/self/mem`.

use bytemuck::{Pod, Zeroable, bytes_of_mut};
use ringdove_kernels::bar::{Identity, MAGIC, RING_OFFSET};
use ringdove_kernels::descriptor::DESCRIPTOR_BYTES;
use ringdove_kernels::launch::{DeviceCommunicator, WaitRecord};
use ringdove_kernels::op::{PLAN_MAGIC, PlanHeader};
use ringdove_kernels::port::Port;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Allocations of a GPU start at its first free page, so that all of a small world's lie near any
/// one of them.
const AROUND: u64 = 48 << 20;
const CHUNK: u64 = 2 << 20;
const PAGE: u64 = 4096;

/// The memory of this process, by address.
pub struct Memory(File);

impl Memory {
    pub fn open() -> Self {
        let file = File::options().read(true).write(true).open("/proc/self/mem");
        Self(file.expect("a process may write its own memory"))
    }

    /// What lies at an address, if anything does.
    pub fn read<T: Pod>(&self, address: u64) -> Option<T> {
        let mut value = T::zeroed();
        self.0.read_exact_at(bytes_of_mut(&mut value), address).ok()?;
        Some(value)
    }

    /// Writes a word. An address where nothing is mapped is left alone.
    pub fn write(&self, address: u64, word: u64) {
        let _ = self.0.write_all_at(&word.to_ne_bytes(), address);
    }

    /// Every page near an address at which `wanted` finds what it looks for.
    fn search(&self, near: u64, mut wanted: impl FnMut(u64, &[u8]) -> bool) -> Vec<u64> {
        let first = near.saturating_sub(AROUND) / CHUNK * CHUNK;
        let mut found = Vec::new();
        let mut bytes = vec![0; CHUNK as usize];
        for chunk in (first..near + AROUND).step_by(CHUNK as usize) {
            if self.0.read_exact_at(&mut bytes, chunk).is_err() {
                continue;
            }
            let pages = bytes.chunks_exact(PAGE as usize).enumerate();
            let pages = pages.map(|(number, page)| (chunk + number as u64 * PAGE, page));
            found.extend(pages.filter(|(at, page)| wanted(*at, page)).map(|(at, _)| at));
        }
        found
    }
}

/// The mapping that holds an address.
fn mapping_of(address: u64) -> Range<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("a process may read its map");
    let range = |line: &str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(number(start)?..number(end)?)
    };
    let mut mappings = maps.lines().filter_map(range);
    mappings.find(|mapping| mapping.contains(&address)).expect("the address is mapped")
}

/// The start of a page as a value.
fn start<T: Pod + Zeroable>(page: &[u8]) -> T {
    bytemuck::pod_read_unaligned(&page[..size_of::<T>()])
}

/// What of a rank's memory is attacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    Ring,
    Head,
    Tail,
    TailCache,
    Claim,
    Abort,
    Record,
    Communicator,
    Ports,
    Signals,
    Slots,
    Plans,
    Registers,
}

impl Part {
    pub const ALL: [Self; 13] = [
        Self::Ring,
        Self::Head,
        Self::Tail,
        Self::TailCache,
        Self::Claim,
        Self::Abort,
        Self::Record,
        Self::Communicator,
        Self::Ports,
        Self::Signals,
        Self::Slots,
        Self::Plans,
        Self::Registers,
    ];
}

/// One rank's memory.
pub struct RankMemory {
    at: u64,
    pub communicator: DeviceCommunicator,
    pub ports: Vec<Port>,
    pub is_device: bool,
    near: u64,
}

impl RankMemory {
    /// Finds the memory of `rank`, one of whose buffers is at `near`.
    pub fn find(memory: &Memory, near: u64, rank: u32, is_device: bool) -> Self {
        let found = memory.search(near, |at, page| {
            let seen: DeviceCommunicator = start(page);
            seen.rank == rank && seen.ring_head == at + 256 && seen.record_claim == at + 512
        });
        let &[at] = &found[..] else { panic!("rank {rank} has its record at {found:x?}") };
        let communicator: DeviceCommunicator = memory.read(at).unwrap();
        let port = |number: u32| {
            let address = communicator.ports + u64::from(number) * size_of::<Port>() as u64;
            memory.read(address).expect("the table of ports is in memory")
        };
        let ports = (0..communicator.port_count).map(port).collect();
        Self { at, communicator, ports, is_device, near }
    }

    /// Makes what is left of a rank that has gone unlike a rank.
    pub fn forget(&self, memory: &Memory) {
        memory.write(self.at + 8, 0);
    }

    /// Where the ring's next slot is.
    pub fn next_slot(&self, memory: &Memory) -> (u64, u64) {
        let head: u64 = memory.read(self.communicator.ring_head).unwrap_or(0);
        let slots = 1 << self.communicator.ring_log2;
        (self.communicator.ring_slots + head % slots * DESCRIPTOR_BYTES as u64, head / slots)
    }

    /// The address ranges of a part; none where this rank has no such part.
    pub fn ranges(&self, part: Part, memory: &Memory) -> Vec<Range<u64>> {
        let of = |start: u64, bytes: usize| start..start + bytes as u64;
        let it = &self.communicator;
        match part {
            Part::Ring => vec![of(it.ring_slots, DESCRIPTOR_BYTES << it.ring_log2)],
            Part::Head => vec![of(it.ring_head, 8)],
            Part::Tail => vec![of(it.ring_tail, 8)],
            Part::TailCache => vec![of(it.ring_tail_cache, 8)],
            Part::Claim => vec![of(it.record_claim, 8)],
            Part::Abort => vec![of(it.abort, 8)],
            Part::Record => vec![of(it.record, size_of::<WaitRecord>())],
            Part::Communicator => vec![of(self.at, size_of::<DeviceCommunicator>())],
            Part::Ports => vec![of(it.ports, size_of::<Port>() * self.ports.len())],
            Part::Signals => {
                let words = self.ports.iter().flat_map(|port| [port.signal, port.completion]);
                words.filter(|word| *word != 0).map(|word| of(word, 8)).collect()
            }
            Part::Slots => {
                let slots = self.ports.iter().filter(|port| port.slots != 0);
                slots.map(|port| of(port.slots, port.slot_bytes as usize)).collect()
            }
            Part::Plans => self.plans(memory),
            Part::Registers if self.is_device => self.registers(memory),
            Part::Registers => Vec::new(),
        }
    }

    /// Of a device engine: the channel's registers, and the entries of its tables that are in use.
    /// Not its identity: hardware does not take stores to that, and the virtual one keeps them for
    /// whoever comes next.
    fn registers(&self, memory: &Memory) -> Vec<Range<u64>> {
        const TABLE_BYTES: u64 = 1024;
        let bar = mapping_of(self.communicator.ring_slots).start;
        let channel = self.communicator.ring_slots - RING_OFFSET;
        let identity: Identity = memory.read(bar).expect("the BAR is mapped");
        assert_eq!(identity.magic, MAGIC, "a BAR begins with its engine's identity");
        let tables = [
            identity.peers_offset,
            identity.lanes_offset,
            identity.signals_offset,
            identity.windows_offset,
            identity.routes_offset,
        ];
        let tables = tables.map(|offset| channel + offset..channel + offset + TABLE_BYTES);
        // Control, status, error record.
        let own = [0, 0x100, 0x200].map(|offset| channel + offset..channel + offset + 64);
        own.into_iter().chain(tables).collect()
    }

    fn plans(&self, memory: &Memory) -> Vec<Range<u64>> {
        let starts = memory.search(self.near, |_, page| start::<u64>(page) == PLAN_MAGIC);
        let plan = |at: u64| {
            let header: PlanHeader = memory.read(at)?;
            Some(at..at + u64::from(header.size_bytes.clamp(32, 1 << 20)))
        };
        starts.into_iter().filter_map(plan).collect()
    }
}
