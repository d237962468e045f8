//! A kernel of a user's on the weak memory: PTX that puts, signals and waits by the functions of
//! the device handle, on ranks whose engines are the real proxy.
//!
//! A seed decides what it decides in other runs: whose turn it is, what loads return, how engines
//! take and land messages, and how small the ring is. What must come of it, the user says.

mod file;

use hwsim_ptx::weak::{Drawn, Options as MemoryOptions, WeakMemory};
use hwsim_ptx::{Input, Kernel, Launch, Module};
use ringdove_kernels::user::{DeviceHandle, LanePorts, NO_PORT, WindowEntry};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::engine::{Manner, Route};
use crate::rank::{NEVER_NS, Rank};
use crate::world::{Stats, World};
pub use file::Description;
use file::{Array, Parameter};

/// Turns of a run; each has up to 128 instructions of a warp.
const TURNS_MAX: u64 = 4_000_000;

/// A user's kernel with its ranks.
pub struct UserKernel {
    description: Description,
    kernel: Arc<Kernel>,
}

impl UserKernel {
    /// Loads what a description names.
    ///
    /// # Errors
    ///
    /// The PTX cannot be loaded, has no such entry, or takes other parameters.
    pub fn new(description: Description) -> Result<Self, String> {
        let names: Vec<_> = (0..description.ptx.len()).map(|at| format!("text {at}")).collect();
        let texts = names.iter().zip(&description.ptx).map(|(name, text)| Input { name, text });
        let module = Module::load_joined(&texts.collect::<Vec<_>>());
        let module = module.map_err(|error| error.to_string())?;
        let linked = module.link(&HashMap::new()).map_err(|error| error.to_string())?;
        let entry = &description.entry;
        let kernel = linked.kernel(entry).ok_or_else(|| format!("the PTX has no entry {entry}"))?;
        let rules = kernel.clusters;
        let is_alone = rules.required.is_none_or(|shape| shape.iter().product::<u32>() <= 1);
        if rules.explicit || rules.counted || !is_alone {
            return Err(format!("{entry} is for clusters, which the weak memory does not model"));
        }
        for parameters in description.ranks.iter().flat_map(|rank| &rank.launches) {
            let sizes: Vec<_> = parameters.iter().map(Parameter::size).collect();
            let wanted: Vec<_> = kernel.params.iter().map(|param| param.size_bytes).collect();
            if sizes != wanted {
                return Err(format!(
                    "{entry}: expected parameters of {wanted:?} bytes, found {sizes:?}"
                ));
            }
        }
        Ok(Self { description, kernel })
    }

    /// One run.
    ///
    /// # Errors
    ///
    /// What went wrong, and what all agents did last.
    pub fn run(&self, seed: u64) -> Result<Stats, String> {
        let mut random = fastrand::Rng::with_seed(seed ^ 0x6b65_726e);
        let drawn = Drawn::new(seed, [20, 50, 80][random.usize(..3)]);
        let (tears, stalls) = (random.bool(), random.bool());
        let options = MemoryOptions { tears, stalls, events_kept: 0 };
        let memory = Rc::new(WeakMemory::new(Box::new(drawn), options));
        let ring_log2 = random.u32(0..=3);
        let count = self.description.ranks.len() as u32;
        let ranks: Vec<_> = (0..count)
            .map(|number| Rank::new(&memory, number, count, ring_log2, NEVER_NS))
            .collect();
        let mut world = World::new(&memory, seed.rotate_left(32) ^ 0x7573_6572);
        world.reports_ends = false;
        let mut run = Run { of: self, ranks, arrays: Vec::new() };
        run.start(&mut world, &mut random);
        let outcome = world.run(TURNS_MAX).and_then(|stats| run.check(&memory).map(|()| stats));
        outcome.map_err(|reason| {
            let turns = world.stats().turns;
            format!("{reason}\n{turns} turns; last events of each agent:\n{}", world.last_events())
        })
    }
}

impl Parameter {
    fn size(&self) -> usize {
        match self {
            Self::Handle | Self::Array(_) => 8,
            Self::Bytes(bytes) => bytes.len(),
        }
    }
}

struct Run<'a> {
    of: &'a UserKernel,
    ranks: Vec<Rank>,
    /// Addresses of each rank's arrays.
    arrays: Vec<Vec<u64>>,
}

impl Run<'_> {
    /// Lays out all ranks and queues their launches.
    fn start(&mut self, world: &mut World, random: &mut fastrand::Rng) {
        let Description { ranks: described, lanes, .. } = &self.of.description;
        for (rank, described) in self.ranks.iter().zip(described) {
            let place = |array: &Array| {
                let address = rank.allocate(&array.name, array.bytes.len() as u64);
                rank.set(address, &array.bytes);
                address
            };
            self.arrays.push(described.arrays.iter().map(place).collect());
        }
        let tables: Vec<_> =
            (0..self.ranks.len()).map(|rank| add_ports(&mut self.ranks, rank, *lanes)).collect();
        let routes: Vec<_> = (0..self.ranks.len()).map(|rank| self.routes(rank)).collect();
        let aborts: Vec<u64> = self.ranks.iter().map(|rank| rank.communicator.abort).collect();
        for (number, (table, routes)) in tables.into_iter().zip(routes).enumerate() {
            self.ranks[number].publish();
            let handle = self.make_handle(number, &table);
            let manner = Manner::draw(random, false);
            world.add_rank(&self.ranks[number], None, &routes, manner, &aborts);
            for (launch, parameters) in described[number].launches.iter().enumerate() {
                world.queue(number as u32, self.launch(number, handle, parameters), launch as u64);
            }
        }
    }

    /// The windows of a rank; where there are none, one that nothing can be put into, as signals go
    /// by the routes of a pair.
    fn windows(&self, rank: usize) -> Vec<WindowEntry> {
        let arrays = &self.of.description.ranks[rank].arrays;
        let all = arrays.iter().zip(&self.arrays[rank]).filter(|(array, _)| array.is_window);
        let entry = |(array, address): (&Array, &u64)| WindowEntry {
            address: *address,
            bytes: array.bytes.len() as u64,
        };
        let mut windows: Vec<_> = all.map(entry).collect();
        if windows.is_empty() {
            let address = self.ranks[rank].communicator.abort;
            windows.push(WindowEntry { address, bytes: 0 });
        }
        windows
    }

    /// By source window, destination window, and port that sends.
    fn routes(&self, rank: usize) -> Vec<Route> {
        let lanes = self.of.description.lanes as usize;
        let sends: Vec<_> = self.ranks[rank].ports.iter().step_by(2).collect();
        let mut routes = Vec::new();
        for source in self.windows(rank) {
            for to in 0..self.windows(rank).len() {
                for (number, port) in sends.iter().enumerate() {
                    let peer = port.peer as usize;
                    let back = self.ranks[peer].ports.iter().skip(1).step_by(2);
                    let mut back = back.filter(|port| port.peer as usize == rank);
                    let receive = back.nth(number % lanes).expect("a pair has as many");
                    let destination = self.windows(peer)[to];
                    routes.push(Route {
                        lane: number,
                        peer,
                        source: source.address,
                        destination: destination.address,
                        bytes: 0,
                        arrival: receive.signal,
                        completion: port.completion,
                    });
                }
            }
        }
        routes
    }

    fn make_handle(&self, rank: usize, table: &[LanePorts]) -> u64 {
        let it = &self.ranks[rank];
        let put = |name: &str, bytes: &[u8]| {
            let address = it.allocate(name, (bytes.len() as u64).max(8));
            it.set(address, bytes);
            address
        };
        let windows = self.windows(rank);
        let count = self.of.description.ranks[rank].windows().count();
        let of_pair = it.ports.len() as u32 / 2;
        let bases: Vec<u32> =
            (0..(windows.len() * windows.len()) as u32).map(|pair| pair * of_pair).collect();
        let peers = 0..self.ranks.len();
        let of_all: Vec<_> = peers.map(|peer| self.windows(peer)).collect();
        let reached: Vec<u64> = (0..count)
            .flat_map(|window| of_all.iter().map(move |windows| windows[window].address))
            .collect();
        let handle = DeviceHandle {
            communicator: it.address,
            ports: put("lanes", bytemuck::cast_slice(table)),
            windows: put("windows", bytemuck::cast_slice(&windows)),
            routes: put("routes", bytemuck::cast_slice(&bases)),
            lane_count: self.of.description.lanes,
            window_count: count as u32,
            reached: put("reached", bytemuck::cast_slice(&reached)),
        };
        put("handle", bytemuck::bytes_of(&handle))
    }

    fn launch(&self, rank: usize, handle: u64, parameters: &[Parameter]) -> Launch {
        let Description { blocks, threads, shared_bytes, .. } = self.of.description;
        let kernel = &self.of.kernel;
        let mut params = vec![0; kernel.param_bytes];
        for (place, parameter) in kernel.params.iter().zip(parameters) {
            let bytes = match parameter {
                Parameter::Handle => handle.to_le_bytes().to_vec(),
                Parameter::Array(number) => self.arrays[rank][*number].to_le_bytes().to_vec(),
                Parameter::Bytes(bytes) => bytes.clone(),
            };
            params[place.offset..place.offset + bytes.len()].copy_from_slice(&bytes);
        }
        Launch {
            kernel: Arc::clone(kernel),
            grid: [blocks, 1, 1],
            cluster: None,
            block: [threads, 1, 1],
            dynamic_shared_bytes: shared_bytes,
            params,
            grid_id: rank as u64 + 1,
            grid_workspace: 0,
            sm_count: blocks,
        }
    }

    /// No rank has failed, and arrays hold what is expected.
    fn check(&self, memory: &WeakMemory) -> Result<(), String> {
        for (number, rank) in self.ranks.iter().enumerate() {
            rank.checked_record(number, |_| Err("no call was to fail"))?;
        }
        for (rank, described) in self.of.description.ranks.iter().enumerate() {
            for (array, address) in described.arrays.iter().zip(&self.arrays[rank]) {
                let Some(expected) = &array.expected else { continue };
                let mut seen = vec![0; expected.len()];
                memory.get(*address, &mut seen).expect("it was allocated with this length");
                is_as_expected(&seen, expected)
                    .map_err(|why| format!("rank {rank}: {} {why}", array.name))?;
            }
        }
        Ok(())
    }
}

/// How many bytes differ, and the first word that does.
fn is_as_expected(seen: &[u8], expected: &[u8]) -> Result<(), String> {
    let differ = || seen.iter().zip(expected).enumerate().filter(|(_, (a, b))| a != b);
    let Some((first, _)) = differ().next() else { return Ok(()) };
    let word = first & !3..(first | 3).min(seen.len() - 1) + 1;
    Err(format!(
        "is not as expected in {} of its {} bytes: the first word is at byte {}, expected {:02x?}, \
         found {:02x?}",
        differ().count(),
        seen.len(),
        word.start,
        &expected[word.clone()],
        &seen[word.clone()],
    ))
}

/// Ports of a rank's lanes to all others: to send, then to receive. Gives the table of its handle.
fn add_ports(ranks: &mut [Rank], rank: usize, lanes: u32) -> Vec<LanePorts> {
    let mut table = Vec::new();
    for peer in 0..ranks.len() {
        let it = &mut ranks[rank];
        for lane in 0..lanes {
            if peer == rank {
                table.push(LanePorts { send: NO_PORT, receive: NO_PORT });
                continue;
            }
            table.push(it.add_lane(peer, lane));
        }
    }
    table
}
