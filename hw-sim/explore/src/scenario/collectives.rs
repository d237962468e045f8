//! Collectives: the library's own plans, built, proved and encoded as communicators do it, for two
//! to four ranks; by stores, by the proxy, and with low-latency messages.

use hwsim_ptx::weak::WeakMemory;
use ringdove::plan::{Algorithm, CollectiveRequest, LaneEnd, LaneKind, Side, Verified};
use ringdove_kernels::launch::{CallArguments, WaitKind, WaitRecord};
use ringdove_kernels::op::BUFFERS_MAX;
use ringdove_kernels::port::Port;
use std::collections::HashMap;
use std::rc::Rc;

use super::verdict::{ABORTED, check_is_stray};
use super::{Kernels, Options, devices};
use crate::engine::{Manner, Route};
use crate::host::Host;
use crate::rank::{LAUNCH, NEVER_NS, Rank};
use crate::world::World;

/// A run.
pub(super) struct Run<'a> {
    pub memory: Rc<WeakMemory>,
    pub options: &'a Options,
    pub world: World,
    pub ranks: Vec<Rank>,
    pub request: CollectiveRequest,
    pub inputs: Vec<u64>,
    pub outputs: Vec<u64>,
    ports: Vec<HashMap<LaneEnd, u32>>,
    /// Where each rank's routes between registered buffers begin.
    bases: Vec<[u32; BUFFERS_MAX * BUFFERS_MAX]>,
}

impl<'a> Run<'a> {
    pub fn new(memory: &Rc<WeakMemory>, options: &'a Options) -> Self {
        let shape = &options.collective;
        let world = World::new(memory, options.seed.rotate_left(32) ^ 0x636f_6c6c);
        let rank =
            |number| Rank::new(memory, number, shape.ranks, options.ring_log2, options.timeout_ns);
        let ranks: Vec<_> = (0..shape.ranks).map(rank).collect();
        let request = shape.request(options.bytes);
        let (inputs, outputs, ports, bases) = Default::default();
        let memory = Rc::clone(memory);
        Self { memory, options, world, ranks, request, inputs, outputs, ports, bases }
    }

    /// Bytes of a buffer of one call, on any rank.
    fn stride(&self) -> u64 {
        let most = |bytes: u64| bytes.next_multiple_of(16).max(16);
        let ranks = 0..self.ranks.len() as u32;
        let of = |rank| self.request.input_bytes(rank).max(self.request.output_bytes(rank));
        most(ranks.map(of).max().unwrap_or(0))
    }

    /// Lays out lanes and buffers, and queues the launches.
    pub fn start(&mut self, kernels: &Kernels) -> Result<(), String> {
        let Options { blocks, threads, bytes, .. } = *self.options;
        let verified = self.options.collective.plan(bytes, blocks, threads)?;
        for fault in &self.options.faults {
            self.world.add_fault(*fault);
        }
        let all = u64::from(self.options.rounds()) * self.stride();
        for (number, rank) in (0..).zip(&self.ranks) {
            let input = rank.allocate("input", all);
            let in_place = self.request.in_place_on(number);
            self.outputs.push(if in_place { input } else { rank.allocate("output", all) });
            self.inputs.push(input);
        }
        self.add_ports(&verified);
        let routes: Vec<_> = (0..self.ranks.len()).map(|rank| self.routes(rank, all)).collect();
        let abort_words: Vec<_> = self.ranks.iter().map(|it| it.communicator.abort).collect();
        let manner = self.options.collective.manner;
        let manner = Manner { mutant: self.options.host, ..manner };
        let mut engines = devices(&self.memory, self.options, &self.ranks, &routes, manner)?;
        for (rank, routes) in routes.into_iter().enumerate() {
            self.fill(rank);
            self.ranks[rank].publish();
            let device = engines.pop_front();
            self.world.add_rank(&self.ranks[rank], device, &routes, manner, &abort_words);
            self.launch(rank, &verified, kernels)?;
        }
        Ok(())
    }

    /// A port for each end of a lane, in the order of blocks; numbers of direct ones among them.
    fn add_ports(&mut self, verified: &Verified) {
        let shape = verified.plan().slots;
        for rank in &mut self.ranks {
            let mut ports = HashMap::new();
            let mut direct = 0;
            for (_, end) in verified.ports(rank.number) {
                if ports.contains_key(&end) {
                    continue;
                }
                let number = rank.ports.len() as u32;
                let sends = end.side == Side::Send;
                let is_direct = end.lane.kind == LaneKind::Direct;
                let has_slots = !(is_direct || sends && end.lane.kind == LaneKind::Stores);
                let bytes = u64::from(shape.bytes * shape.count);
                let name = |what: &str| format!("{what} of {end}");
                rank.add_port(Port {
                    signal: rank.allocate(&name("signal"), 8),
                    completion: if sends { rank.allocate(&name("completion"), 8) } else { 0 },
                    slots: if has_slots { rank.allocate(&name("slots"), bytes) } else { 0 },
                    slot_bytes: if is_direct { 0 } else { shape.bytes },
                    slot_mask: shape.count - 1,
                    route: number,
                    route_index: if is_direct && sends { direct } else { 0 },
                    peer: end.peer(),
                    ..Port::default()
                });
                direct += u32::from(is_direct && sends);
                ports.insert(end, number);
            }
            self.ports.push(ports);
        }
        self.join_ports();
    }

    fn other_end(&self, end: LaneEnd) -> Port {
        let side = if end.side == Side::Send { Side::Receive } else { Side::Send };
        let there = LaneEnd { side, ..end };
        let rank = there.rank() as usize;
        self.ranks[rank].ports[self.ports[rank][&there] as usize]
    }

    /// Tells the ends of lanes of stores of each other.
    fn join_ports(&mut self) {
        for rank in 0..self.ranks.len() {
            for (end, number) in self.ports[rank].clone() {
                let there = self.other_end(end);
                let port = &mut self.ranks[rank].ports[number as usize];
                match (end.lane.kind, end.side) {
                    (LaneKind::LowLatency, Side::Send) if self.options.collective.by_stores => {
                        port.peer_slots = there.slots;
                    }
                    (LaneKind::Stores, Side::Send) => {
                        (port.slots, port.peer_signal) = (there.slots, there.signal);
                    }
                    (LaneKind::Stores, Side::Receive) => port.peer_signal = there.signal,
                    _ => {}
                }
            }
        }
    }

    /// A route for each port, and behind them those between registered buffers.
    fn routes(&mut self, rank: usize, bytes: u64) -> Vec<Route> {
        let mut ends: Vec<_> = self.ports[rank].iter().map(|(end, port)| (*port, *end)).collect();
        ends.sort_unstable();
        let mut routes = Vec::new();
        for (number, end) in &ends {
            let (own, there) = (self.ranks[rank].ports[*number as usize], self.other_end(*end));
            routes.push(Route {
                lane: *number as usize,
                peer: own.peer as usize,
                // Slots are named by their addresses.
                source: 0,
                destination: there.slots,
                bytes: 0,
                arrival: there.signal,
                completion: own.completion,
            });
        }
        let is_direct = |end: &LaneEnd| end.lane.kind == LaneKind::Direct && end.side == Side::Send;
        let direct: Vec<_> = ends.into_iter().filter(|(_, end)| is_direct(end)).collect();
        let mut bases = [0; BUFFERS_MAX * BUFFERS_MAX];
        for source in 0..2 {
            for destination in 0..2 {
                let base = routes.len() as u32;
                bases[source * BUFFERS_MAX + destination] = base;
                for (number, end) in &direct {
                    let to = end.lane.to as usize;
                    let there = [self.inputs[to], self.outputs[to]][destination];
                    let from = [self.inputs[rank], self.outputs[rank]][source];
                    let route = routes[*number as usize];
                    routes.push(Route { source: from, destination: there, bytes, ..route });
                }
            }
        }
        self.bases.push(bases);
        routes
    }

    /// The number at a place of a rank's input of one call.
    fn word(rank: usize, call: u32, index: u64) -> u32 {
        // Never zero, and no two alike within a rank.
        ((call * 4096 + index as u32) + 1) * 8 + rank as u32
    }

    fn fill(&self, rank: usize) {
        for call in 0..self.options.rounds() {
            let count = self.request.input_bytes(rank as u32) / 4;
            let data: Vec<u32> = (0..count).map(|index| Self::word(rank, call, index)).collect();
            let [input, _] = self.buffers(rank, call);
            self.ranks[rank].set(input, bytemuck::cast_slice(&data));
        }
    }

    /// Where input and output of a call lie.
    fn buffers(&self, rank: usize, call: u32) -> [u64; 2] {
        let at = u64::from(call) * self.stride();
        let number = rank as u32;
        let (from, to) = match self.request.in_place_on(number) {
            true => self.request.in_place_offsets(number),
            false => (0, 0),
        };
        [self.inputs[rank] + at + from, self.outputs[rank] + at + to]
    }

    /// All ranks' inputs of one call, and then their outputs.
    fn addresses(&self, call: u32) -> Vec<u64> {
        let of =
            |buffer: usize| (0..self.ranks.len()).map(move |it| self.buffers(it, call)[buffer]);
        [0, 1].into_iter().flat_map(of).collect()
    }

    fn launch(
        &mut self,
        rank: usize,
        verified: &Verified,
        kernels: &Kernels,
    ) -> Result<(), String> {
        let Options { launches, calls, threads, .. } = *self.options;
        let number = rank as u32;
        let resolve = |end: LaneEnd| self.ports[rank].get(&end).copied();
        let plan = verified.encode(number, &resolve).map_err(|error| error.to_string())?;
        let blocks = verified.block_count(number);
        for launch in 0..launches {
            let arguments: Vec<_> = (launch * calls..)
                .take(calls as usize)
                .map(|call| {
                    let [input, output] = self.buffers(rank, call);
                    let offsets = [input - self.inputs[rank], output - self.outputs[rank], 0, 0];
                    let mut arguments = CallArguments {
                        buffers: [input, output, 0, 0],
                        region_offsets: offsets,
                        route_bases: self.bases[rank],
                        ..CallArguments::default()
                    };
                    if verified.plan().reaches_peers() {
                        let table = self.addresses(call);
                        arguments.address_count = table.len() as u32;
                        arguments.addresses = self.ranks[rank].table(&table);
                    }
                    arguments
                })
                .collect();
            let params = self.ranks[rank].launch(launch.into(), &plan, &arguments);
            self.world.launch(number, kernels.executor(), (blocks, threads), params);
        }
        Ok(())
    }

    /// Every number is where it belongs, and what failed says why.
    pub fn check(&self) -> Result<(), String> {
        for rank in 0..self.ranks.len() {
            let check = |record: &WaitRecord| self.check_record(rank, record);
            let record = self.ranks[rank].checked_record(rank, check)?;
            let is_whole = record.state == 0 && !self.world.is_stopped(rank);
            // Where terms are missing, an output may hold part of a sum; and Bruck's algorithm has
            // there what it passes on.
            let passes_on = self.options.collective.algorithm == Algorithm::Bruck;
            let sums = self.request.collective.reduces();
            if !is_whole && (sums || passes_on || self.request.in_place) {
                continue;
            }
            for call in 0..self.options.rounds() {
                self.check_call(rank, call, is_whole)
                    .map_err(|reason| format!("call {call} of rank {rank}: {reason}"))?;
            }
        }
        Ok(())
    }

    fn check_record(&self, rank: usize, record: &WaitRecord) -> Result<(), &'static str> {
        if record.call >= self.options.calls.into() {
            return Err("there is no such call");
        }
        check_plan_record(self.options, &self.world, &self.ranks[rank], record)
    }

    fn check_call(&self, rank: usize, call: u32, is_whole: bool) -> Result<(), String> {
        let [_, output] = self.buffers(rank, call);
        let count = self.request.bytes / 4;
        for delivery in self.request.deliveries(rank as u32) {
            let mut found = vec![0; 4 * count as usize];
            self.memory.get(output + delivery.offset, &mut found).expect("it was allocated");
            for (index, found) in (0..count).zip(found.as_chunks::<4>().0) {
                let place = delivery.source / 4 + index;
                let expected: u32 = match delivery.from {
                    Some(peer) => Self::word(peer as usize, call, place),
                    None => (0..self.ranks.len()).map(|it| Self::word(it, call, place)).sum(),
                };
                let mut pairs = found.iter().zip(expected.to_le_bytes());
                let is_part = pairs.all(|(found, byte)| *found == 0 || *found == byte);
                let found = u32::from_le_bytes(*found);
                if found != expected && (is_whole || !is_part) {
                    let place = delivery.offset / 4 + index;
                    return Err(format!("{found:#x} at word {place}, not {expected:#x}"));
                }
            }
        }
        Ok(())
    }
}

/// Does the record of a rank that runs the library's plans tell of something that was?
pub(super) fn check_plan_record(
    options: &Options,
    world: &World,
    rank: &Rank,
    record: &WaitRecord,
) -> Result<(), &'static str> {
    let launches = LAUNCH..LAUNCH + u64::from(options.launches);
    if !launches.contains(&record.sequence) {
        return Err("there is no such launch");
    }
    if record.kind == WaitKind::StrayClaim as u32 {
        return check_is_stray(options, rank.number as usize, record);
    }
    let is_aborted = record.state == ABORTED;
    if is_aborted && !world.hosts.iter().any(Host::has_alarmed) {
        return Err("nobody aborted");
    }
    if !is_aborted && (options.timeout_ns == NEVER_NS || record.waited_ns < options.timeout_ns) {
        return Err("its time was not over");
    }
    let is_ring_space = record.kind == WaitKind::RingSpace as u32;
    let port = rank.ports.get(record.port as usize);
    match port.is_some_and(|port| is_ring_space || record.peer == port.peer) {
        true => Ok(()),
        false => Err("its port leads to another peer"),
    }
}
