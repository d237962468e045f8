//! Groups of sends and receives, as the library plans, proves and encodes them from each rank's own
//! list: two to five ranks, any pairs, themselves too, of no bytes and of many messages, from and
//! into registered memory (R15) or not, each rank for itself. Ranks come late. Groups may be
//! replayed as graphs are: the same launches once more, on the same buffers, with new data.

use hwsim_ptx::weak::WeakMemory;
use ringdove::plan::{Direction, Limits, PointToPoint, Verified, group, verify};
use ringdove::plan::{LaneEnd, Side};
use ringdove_kernels::element::DataType;
use ringdove_kernels::launch::{CallArguments, WaitRecord, place};
use ringdove_kernels::op::ADDRESS_NUMBER_SHIFT;
use ringdove_kernels::port::{GRANT_BYTES, Port};
use std::fmt;
use std::rc::Rc;

use super::collectives::check_plan_record;
use super::{Kernels, Options, devices};
use crate::engine::{Manner, Route};
use crate::rank::Rank;
use crate::world::World;

/// The number of every rank's input, among its sources.
const SOURCE: u32 = 1;
/// The generation of all grants.
const GENERATION: u32 = 5;
/// Turns by which a rank is late at most, as a power of two.
const LATE_LOG2_MAX: u32 = 11;

/// What runs of groups draw beside the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Ranks.
    pub ranks: u32,
    /// Slots of a lane.
    pub slots: u32,
    /// Bytes of a slot.
    pub slot_bytes: u32,
    /// Transfers of so many bytes and of more messages than slots begin with a grant; 0: none do.
    pub granted_bytes: u64,
    /// How often all groups are launched.
    pub replays: u32,
    /// One of so many launches is late; 0: none.
    pub late_one_in: u32,
    /// How engines work.
    pub manner: Manner,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            ranks: 2,
            slots: 2,
            slot_bytes: 16,
            granted_bytes: 0,
            replays: 1,
            late_one_in: 0,
            manner: Manner::default(),
        }
    }
}

impl Shape {
    /// Draws one.
    pub fn draw(random: &mut fastrand::Rng) -> Self {
        Self {
            ranks: random.u32(2..=5),
            slots: 1 << random.u32(1..=2),
            slot_bytes: 16 * random.u32(1..=3),
            granted_bytes: [0, 1, 64][random.usize(..3)],
            replays: 1,
            late_one_in: random.u32(0..=3),
            manner: Manner::draw(random, false),
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            granted_bytes: (self.granted_bytes != 0).then_some(self.granted_bytes),
            ..Limits::new(1, self.slot_bytes, self.slots)
        }
    }

    /// Does the plan use memory of a transfer that is registered as such?
    fn uses_registered(&self, direction: Direction, bytes: u64) -> bool {
        let messages = bytes.div_ceil(self.slot_bytes.into());
        match direction {
            Direction::Send => bytes >= u64::from(self.slot_bytes),
            Direction::Receive => {
                self.granted_bytes != 0
                    && bytes >= self.granted_bytes
                    && messages > u64::from(self.slots)
            }
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ranks, slots, slot_bytes, granted_bytes, replays, late_one_in, manner } = self;
        let Manner { batch, coalesce_bytes, room, splits, .. } = manner;
        write!(
            f,
            ", {ranks} ranks, {slots} slots of {slot_bytes} bytes, grants from {granted_bytes} \
             bytes on, run {replays} times, one in {late_one_in} late, batches of {batch}, merged \
             to {coalesce_bytes} bytes, room for {room} transfers"
        )?;
        if *splits { write!(f, ", piece by piece") } else { Ok(()) }
    }
}

/// One transfer of a group.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    from: usize,
    to: usize,
    bytes: u64,
    /// Offsets in the sender's input and in the receiver's output.
    source: u64,
    destination: u64,
    sends_registered: bool,
    receives_registered: bool,
}

/// A run.
pub(super) struct Run<'a> {
    memory: Rc<WeakMemory>,
    options: &'a Options,
    pub world: World,
    ranks: Vec<Rank>,
    groups: Vec<Vec<Transfer>>,
    inputs: Vec<u64>,
    outputs: Vec<u64>,
    /// What each rank's output held behind each launch, one behind the other.
    kept: Vec<u64>,
    /// Bytes of an input and of an output.
    area: u64,
}

impl<'a> Run<'a> {
    pub fn new(memory: &Rc<WeakMemory>, options: &'a Options) -> Self {
        let mut random = fastrand::Rng::with_seed(options.seed ^ 0x6d65_7373);
        let shape = &options.groups;
        let world = World::new(memory, options.seed.rotate_left(32) ^ 0x6d65_7373);
        let rank =
            |number| Rank::new(memory, number, shape.ranks, options.ring_log2, options.timeout_ns);
        let ranks: Vec<_> = (0..shape.ranks).map(rank).collect();
        let mut area = 16;
        let groups = (0..options.launches)
            .map(|_| {
                let transfers = draw_group(options, &mut random);
                let ends = transfers
                    .iter()
                    .map(|it| (it.source + it.bytes).max(it.destination + it.bytes));
                area = ends.fold(area, u64::max);
                transfers
            })
            .collect();
        let area = area.next_multiple_of(16);
        let allocate = |part: &str, times: u64| -> Vec<u64> {
            ranks.iter().map(|rank| rank.allocate(part, area * times)).collect()
        };
        let launches = u64::from(options.launches * shape.replays);
        let (inputs, outputs) = (allocate("input", 1), allocate("output", 1));
        let kept = allocate("what came", launches);
        let memory = Rc::clone(memory);
        Self { memory, options, world, ranks, groups, inputs, outputs, kept, area }
    }

    /// The byte at a place of a rank's input, in the replay with this number.
    fn byte(rank: usize, replay: u32, at: u64) -> u8 {
        // Never zero.
        1 + ((at * 7 + rank as u64 * 31 + u64::from(replay) * 101) % 255) as u8
    }

    /// Lays out lanes and buffers, and queues the launches.
    pub fn start(&mut self, kernels: &Kernels) -> Result<(), String> {
        for fault in &self.options.faults {
            self.world.add_fault(*fault);
        }
        for rank in 0..self.ranks.len() {
            self.add_ports(rank);
        }
        let abort_words: Vec<_> = self.ranks.iter().map(|it| it.communicator.abort).collect();
        let manner = Manner { mutant: self.options.host, ..self.options.groups.manner };
        let routes: Vec<_> = (0..self.ranks.len()).map(|rank| self.routes(rank)).collect();
        let mut engines = devices(&self.memory, self.options, &self.ranks, &routes, manner)?;
        for (rank, routes) in routes.into_iter().enumerate() {
            self.ranks[rank].publish();
            let device = engines.pop_front();
            self.world.add_rank(&self.ranks[rank], device, &routes, manner, &abort_words);
        }
        (0..self.ranks.len()).try_for_each(|rank| self.launch(rank, kernels))
    }

    /// The number of a port: of those to a peer and from it, in the order of ranks.
    fn port(rank: usize, peer: usize, side: Side) -> u32 {
        let index = if peer < rank { peer } else { peer - 1 };
        2 * index as u32 + u32::from(side == Side::Receive)
    }

    fn peers(&self, rank: usize) -> impl Iterator<Item = usize> + use<> {
        (0..self.ranks.len()).filter(move |peer| *peer != rank)
    }

    fn add_ports(&mut self, rank: usize) {
        let Shape { slots, slot_bytes, .. } = self.options.groups;
        let bytes = u64::from(slots * slot_bytes) + GRANT_BYTES;
        for peer in self.peers(rank) {
            for side in [Side::Send, Side::Receive] {
                let sends = side == Side::Send;
                let way = if sends { "to" } else { "from" };
                let it = &mut self.ranks[rank];
                let name = |what: &str| format!("{what} {way} {peer}");
                let completion = if sends { it.allocate(&name("completion"), 8) } else { 0 };
                let number = it.add_port(Port {
                    signal: it.allocate(&name("signal"), 8),
                    completion,
                    slots: it.allocate(&name("slots"), bytes),
                    slot_bytes,
                    slot_mask: slots - 1,
                    route: Self::port(rank, peer, side),
                    peer: peer as u32,
                    ..Port::default()
                });
                assert_eq!(number, Self::port(rank, peer, side), "ports are numbered by peers");
            }
        }
    }

    /// One for each port; the same from the input; and for each port that sends, from slots and
    /// from the input into the peer's output.
    fn routes(&mut self, rank: usize) -> Vec<Route> {
        let Shape { slots, slot_bytes, .. } = self.options.groups;
        let (mut plain, mut granted) = (Vec::new(), Vec::new());
        for peer in self.peers(rank) {
            for (side, other) in [(Side::Send, Side::Receive), (Side::Receive, Side::Send)] {
                let number = Self::port(rank, peer, side);
                let own = self.ranks[rank].ports[number as usize];
                let there = self.ranks[peer].ports[Self::port(peer, rank, other) as usize];
                let grant_word = there.slots + u64::from(slots * slot_bytes);
                let route = Route {
                    lane: number as usize,
                    peer,
                    source: 0,
                    destination: if side == Side::Send { there.slots } else { grant_word },
                    arrival: there.signal,
                    completion: own.completion,
                    bytes: 0,
                };
                plain.push(route);
                if side == Side::Send {
                    let to = Route { destination: self.outputs[peer], ..route };
                    granted.push((number, [to, Route { source: self.inputs[rank], ..to }]));
                }
            }
        }
        let count = plain.len() as u32;
        let from_input: Vec<_> =
            plain.iter().map(|route| Route { source: self.inputs[rank], ..*route }).collect();
        self.ranks[rank].add_source(SOURCE, 0, place::entry(count, 0));
        let mut routes = [plain, from_input].concat();
        for (port, both) in granted {
            for (source, route) in (0..).zip(both) {
                let entry = place::entry(routes.len() as u32, GENERATION);
                self.ranks[rank].add_source(source, 1 + port, entry);
                routes.push(route);
            }
        }
        routes
    }

    /// A rank's list of a group, with the table of its addresses.
    fn list(&self, rank: usize, transfers: &[Transfer]) -> (Vec<PointToPoint>, Vec<u64>) {
        let (mut list, mut table) = (Vec::new(), Vec::new());
        let mut add = |peer: usize, direction, bytes, registered: bool, word| {
            table.push(word);
            list.push(PointToPoint {
                peer: peer as u32,
                direction,
                address: (table.len() as u64) << ADDRESS_NUMBER_SHIFT,
                bytes,
                registered,
            });
        };
        for it in transfers {
            if it.from == rank {
                let word = match it.sends_registered {
                    true => place::of_source(SOURCE, it.source),
                    false => self.inputs[rank] + it.source,
                };
                add(it.to, Direction::Send, it.bytes, it.sends_registered, word);
            }
            if it.to == rank {
                let grant = || 1 + Self::port(it.from, rank, Side::Send);
                let word = match it.receives_registered {
                    true => place::of_grant(grant(), GENERATION, it.destination),
                    false => self.outputs[rank] + it.destination,
                };
                add(it.from, Direction::Receive, it.bytes, it.receives_registered, word);
            }
        }
        (list, table)
    }

    /// This rank's part of a group, proved as a communicator proves it: from its own list.
    fn plan(&self, rank: usize, list: &[PointToPoint]) -> Result<Verified, String> {
        let limits = self.options.groups.limits();
        let ranks = self.options.groups.ranks;
        let mut group = group(rank as u32, ranks, list, &limits).map_err(|it| it.to_string())?;
        group.plan.thread_count = self.options.threads;
        verify(group.plan, &group.promise).map_err(|error| format!("a group is refused: {error}"))
    }

    fn launch(&mut self, rank: usize, kernels: &Kernels) -> Result<(), String> {
        let Shape { replays, late_one_in, .. } = self.options.groups;
        let mut random = fastrand::Rng::with_seed(self.options.seed ^ 0x6c61_7465 ^ rank as u64);
        let resolve = |end: LaneEnd| Some(Self::port(rank, end.peer() as usize, end.side));
        let mut launches = Vec::new();
        for (number, transfers) in (0..).zip(&self.groups) {
            let (list, table) = self.list(rank, transfers);
            let verified = self.plan(rank, &list)?;
            let plan = verified.encode(rank as u32, &resolve).map_err(|error| error.to_string())?;
            let arguments = CallArguments {
                data_type: DataType::U8 as u32,
                addresses: self.ranks[rank].table(&table),
                address_count: table.len() as u32,
                ..CallArguments::default()
            };
            let params = self.ranks[rank].launch_as(number, &plan, &[arguments]);
            launches.push((verified.block_count(rank as u32), params));
        }
        let count = launches.len() as u64;
        for replay in 0..replays {
            let fresh: Vec<u8> = (0..self.area).map(|at| Self::byte(rank, replay, at)).collect();
            let version = self.ranks[rank].allocate("new data", self.area);
            self.ranks[rank].set(version, &fresh);
            let gpu = rank as u32;
            self.world.copy(gpu, version, self.inputs[rank], self.area);
            for (number, (blocks, params)) in (0..).zip(&launches) {
                if late_one_in != 0 && random.u32(..late_one_in) == 0 {
                    self.world.wait(gpu, 1 << random.u32(..=LATE_LOG2_MAX));
                }
                let shape = (*blocks, self.options.threads);
                self.world.replay(gpu, kernels.executor(), shape, params.clone(), number);
                let kept = self.kept[rank] + (u64::from(replay) * count + number) * self.area;
                self.world.copy(gpu, self.outputs[rank], kept, self.area);
            }
        }
        Ok(())
    }

    /// Every byte is where it belongs, and what failed says why.
    pub fn check(&self) -> Result<(), String> {
        for rank in 0..self.ranks.len() {
            let check = |record: &WaitRecord| self.check_record(rank, record);
            let record = self.ranks[rank].checked_record(rank, check)?;
            let is_whole = record.state == 0 && !self.world.is_stopped(rank);
            for replay in 0..self.options.groups.replays {
                for (number, transfers) in self.groups.iter().enumerate() {
                    let coming = transfers.iter().filter(|it| it.to == rank);
                    for it in coming {
                        self.check_transfer(it, replay, number, is_whole).map_err(|reason| {
                            format!(
                                "run {replay}, group {number}, rank {} to {rank}: {reason}",
                                it.from
                            )
                        })?;
                    }
                }
            }
        }
        Ok(())
    }

    fn check_record(&self, rank: usize, record: &WaitRecord) -> Result<(), &'static str> {
        check_plan_record(self.options, &self.world, &self.ranks[rank], record)
    }

    fn check_transfer(
        &self,
        it: &Transfer,
        replay: u32,
        number: usize,
        is_whole: bool,
    ) -> Result<(), String> {
        let launch = u64::from(replay) * self.groups.len() as u64 + number as u64;
        let mut found = vec![0; it.bytes as usize];
        let place = self.kept[it.to] + launch * self.area + it.destination;
        self.memory.get(place, &mut found).expect("it was allocated");
        for (at, found) in (0..).zip(found) {
            let expected = |replay| Self::byte(it.from, replay, it.source + at);
            // Of a launch that failed nothing may have come, or what came before.
            let may_be = !is_whole && (found == 0 || self.is_older(it, at, found, replay, number));
            if found != expected(replay) && !may_be {
                let right = expected(replay);
                return Err(format!("{found:#x} at byte {at} of {}, not {right:#x}", it.bytes));
            }
        }
        Ok(())
    }

    /// Did another launch put this byte there before, or the same one of another replay?
    fn is_older(&self, it: &Transfer, at: u64, found: u8, replay: u32, number: usize) -> bool {
        let here = it.destination + at;
        let launches = (0..=replay)
            .flat_map(|replay| self.groups.iter().enumerate().map(move |group| (replay, group)));
        launches.into_iter().any(|(of, (group, transfers))| {
            (of < replay || group < number)
                && transfers.iter().any(|other| {
                    let is_here = other.to == it.to
                        && (other.destination..other.destination + other.bytes).contains(&here);
                    // Wraps where the byte is not here.
                    let place = other.source.wrapping_add(here.wrapping_sub(other.destination));
                    is_here && found == Self::byte(other.from, of, place)
                })
        })
    }
}

/// Who sends what to whom. Outputs of one group lie apart; those of several share their memory.
fn draw_group(options: &Options, random: &mut fastrand::Rng) -> Vec<Transfer> {
    let Options { groups: shape, messages, bytes, .. } = options;
    let ranks = shape.ranks as usize;
    let (mut sent, mut received) = (vec![0_u64; ranks], vec![0_u64; ranks]);
    let mut transfers = Vec::new();
    for (from, sent) in sent.iter_mut().enumerate() {
        for (to, received) in received.iter_mut().enumerate() {
            let count = [0, 1, 1, 2][random.usize(..4)];
            for _ in 0..count.min(*messages) {
                let most = u64::from(*bytes);
                let bytes = match random.u32(..6) {
                    0 => 0,
                    1 => random.u64(1..=16),
                    2 => 4 * random.u64(1..=most.div_ceil(8)),
                    _ => random.u64(1..=most),
                };
                let registered = |direction, random: &mut fastrand::Rng| {
                    from != to && shape.uses_registered(direction, bytes) && random.bool()
                };
                transfers.push(Transfer {
                    from,
                    to,
                    bytes,
                    source: *sent,
                    destination: *received,
                    sends_registered: registered(Direction::Send, random),
                    receives_registered: registered(Direction::Receive, random),
                });
                // Now and then at places that are no multiple of anything.
                let step = if random.bool() { bytes.next_multiple_of(16) } else { bytes };
                *sent += step;
                *received += step;
            }
        }
    }
    transfers
}
