//! Expert parallelism (R16): ranks dispatch tokens and combine results in several steps, which no
//! barrier between ranks holds together. Some pairs of ranks reach each other by stores, others by
//! engines; on two nodes of two, rows may be relayed. A communicator may have two groups, for two
//! batches: each runs on a stream of its own, and they share ring, claim word and record.

use hwsim_ptx::weak::WeakMemory;
use ringdove::experts::reference::Routing;
use ringdove::experts::{Config, Layout, Mode, OnLoss, Placement, Spread, Surplus};
use ringdove_kernels::descriptor::ROUTE_MAX;
use ringdove_kernels::element::DataType;
use ringdove_kernels::experts::{ExpertsFaultCode, ExpertsGroup};
use ringdove_kernels::user::{DeviceHandle, LanePorts, NO_PORT, WindowEntry};
use std::rc::Rc;
use std::time::Duration;

use super::experts_shape::Shape;
use super::{Kernels, NO_SUCH_PORT, Options, Scenario};
use crate::engine::{ANY_BYTES, Manner, Route};
use crate::fault::Fault;
use crate::rank::{NEVER_NS, Rank};
use crate::world::World;

/// Lanes of a group: of dispatches, and of combines.
const LANES: u32 = 2;
/// An index that no expert has.
const NO_EXPERT: i64 = 4097;

/// For how long ranks are awaited after an abort, where waits do not expire.
const GRACE_NS: u64 = 1 << 7;

/// What a rank brings to one step, and where its results go.
pub(super) struct Step {
    /// By token, then choice.
    pub indices: Vec<i64>,
    pub weights: Vec<f32>,
    pub input: u64,
    /// Received rows, their counts and where they are from; local experts and their weights.
    pub output: u64,
    pub counts: u64,
    pub sources: u64,
    pub choices: u64,
    pub choice_weights: u64,
    /// What the experts make of them.
    pub results: u64,
    /// Combined tokens, sums of weights, and marks.
    pub combined: u64,
    pub sums: u64,
    pub missing: u64,
}

/// A run.
pub(super) struct Run<'a> {
    pub memory: Rc<WeakMemory>,
    pub options: &'a Options,
    pub world: World,
    pub ranks: Vec<Rank>,
    pub config: Config,
    pub layout: Layout,
    /// The memory of groups, by batch, then rank.
    pub groups: Vec<Vec<u64>>,
    /// Their words of arrival, in the same way.
    pub arrivals: Vec<Vec<u64>>,
    /// By step, then rank. The steps of the second batch stand behind those of the first.
    pub steps: Vec<Vec<Step>>,
    /// Streams by batch, then rank.
    pub streams: Vec<Vec<u32>>,
    /// Launches that were made: batch, rank, step, kernel.
    pub made: Vec<(usize, usize, usize, &'static str)>,
}

impl<'a> Run<'a> {
    pub fn new(memory: &Rc<WeakMemory>, options: &'a Options) -> Self {
        let Shape { ranks, local_experts, node_ranks, is_throughput, goes_on, .. } = options.shape;
        // Without a deadline, an abort ends waits all the same.
        let grace_ns =
            if options.timeout_ns == NEVER_NS { GRACE_NS } else { options.timeout_ns / 4 };
        let grace = Duration::from_nanos(grace_ns);
        let config = Config {
            experts: ranks * local_experts,
            top_k: options.terms.min(ranks * local_experts),
            hidden: (options.bytes / 16).clamp(1, 16) * 4,
            tokens_max: options.messages,
            surplus: Surplus::Refuse,
            data_type: DataType::F32,
            fp8: None,
            mode: if is_throughput { Mode::Throughput } else { Mode::LowLatency },
            alignment: 1,
            lane: 0,
            on_loss: if goes_on { OnLoss::GoOn { grace } } else { OnLoss::End },
        };
        let spread = Spread { ranks, blocks: ranks, node_ranks, by_stores: node_ranks == 0 };
        let layout = Layout::new(&config, spread).expect("a small group");
        let world = World::new(memory, options.seed.rotate_left(32) ^ 0x6578_7065);
        // Two batches get by with a ring of one slot, which laps often.
        let least = if options.shape.batches > 1 { 0 } else { 1 };
        let ring_log2 = options.ring_log2.max(least);
        let ranks = (0..ranks)
            .map(|rank| Rank::new(memory, rank, ranks, ring_log2, options.timeout_ns))
            .collect();
        let memory = Rc::clone(memory);
        let (groups, arrivals, steps, streams, made) = Default::default();
        Self {
            memory,
            options,
            world,
            ranks,
            config,
            layout,
            groups,
            arrivals,
            steps,
            streams,
            made,
        }
    }

    /// Do stores of one rank reach the other?
    pub fn is_near(&self, a: usize, b: usize) -> bool {
        let node_ranks = self.options.shape.node_ranks as usize;
        node_ranks == 0 || a / node_ranks == b / node_ranks
    }

    /// Lays out the group on all ranks, draws what they bring, and queues the launches.
    pub fn start(&mut self, kernels: &Kernels) {
        for fault in &self.options.faults {
            self.world.add_fault(*fault);
        }
        self.world.reports_ends = false;
        self.hide_claims();
        let (count, batches) = (self.ranks.len(), self.batches());
        let bytes = self.layout.window_bytes();
        let windows: Vec<Vec<u64>> = (0..batches)
            .map(|_| self.ranks.iter().map(|rank| rank.allocate("window", bytes)).collect())
            .collect();
        let reads_late = match self.options.scenario {
            Scenario::Rewrites => Some(ANY_BYTES),
            // Rows that go back are stored in words of four bytes.
            _ => self.options.shape.combines_late.then_some(4),
        };
        let manner = Manner { mutant: self.options.host, reads_late, ..Manner::default() };
        let mut tables: Vec<_> = (0..batches).map(|batch| self.add_ports(batch)).collect();
        let routes: Vec<_> = (0..count).map(|rank| self.routes(rank, &windows)).collect();
        self.break_ports(&mut tables);
        let abort_words: Vec<u64> = self.ranks.iter().map(|rank| rank.communicator.abort).collect();
        for (rank, routes) in routes.iter().enumerate() {
            self.ranks[rank].publish();
            self.world.add_rank(&self.ranks[rank], None, routes, manner, &abort_words);
        }
        for (windows, tables) in windows.iter().zip(&tables) {
            let groups = tables.iter().enumerate().map(|(rank, table)| {
                let handle = self.make_handle(rank, windows, table);
                let group = self.ranks[rank].allocate("group", self.layout.group_bytes());
                let placement = Placement::even(count as u32);
                let image = self.layout.group(&placement, handle, group);
                self.ranks[rank].set(group, &image);
                let shape: ExpertsGroup =
                    bytemuck::pod_read_unaligned(&image[..size_of::<ExpertsGroup>()]);
                (group, windows[rank] + shape.arrivals)
            });
            let (groups, arrivals) = groups.unzip();
            self.groups.push(groups);
            self.arrivals.push(arrivals);
        }
        self.streams.push((0..count as u32).collect());
        for _ in 1..batches {
            let streams = (0..count).map(|rank| self.world.add_stream(rank)).collect();
            self.streams.push(streams);
        }
        self.draw_steps();
        for batch in 0..batches {
            (0..count).for_each(|rank| self.launch_all(batch, rank, kernels));
        }
    }

    /// Groups of the communicator.
    pub fn batches(&self) -> usize {
        self.options.shape.batches.max(1) as usize
    }

    /// The batch that a step is of, and which of its steps.
    pub fn place_of(&self, number: usize) -> (usize, usize) {
        let steps = self.options.launches as usize;
        (number / steps, number % steps)
    }

    /// Ports of lanes between ranks that do not reach each other: to send, then to receive. Gives
    /// each rank's table.
    fn add_ports(&mut self, batch: usize) -> Vec<Vec<LanePorts>> {
        let count = self.ranks.len();
        let mut tables = Vec::new();
        for rank in 0..count {
            let mut table = Vec::new();
            for peer in 0..count {
                let is_near = self.is_near(rank, peer);
                let it = &mut self.ranks[rank];
                for lane in 0..LANES {
                    if is_near {
                        table.push(LanePorts { send: NO_PORT, receive: NO_PORT });
                        continue;
                    }
                    table.push(it.add_lane(peer, batch as u32 * LANES + lane));
                }
            }
            tables.push(table);
        }
        tables
    }

    /// What a bad op is here: a lane to another node leads to a port that there is none, or the
    /// port has a route that there is none, or a signal is missing. Kernels have to refuse it.
    fn break_ports(&mut self, tables: &mut [Vec<Vec<LanePorts>>]) {
        for fault in &self.options.faults {
            let Fault::BadOp { rank, block, op } = *fault else { continue };
            let batch = block as usize % tables.len();
            let table = tables[batch][rank as usize].iter_mut();
            let mut far: Vec<_> = table.filter(|ports| ports.send != NO_PORT).collect();
            if far.is_empty() {
                continue;
            }
            let at = (op / 5) as usize % far.len();
            let (send, receive) = (far[at].send as usize, far[at].receive as usize);
            let ports = &mut self.ranks[rank as usize].ports;
            match op % 5 {
                0 => far[at].send = NO_SUCH_PORT,
                1 => far[at].receive = NO_SUCH_PORT,
                2 => ports[send].route_index = ROUTE_MAX + 1,
                3 => ports[receive].signal = 0,
                _ => ports[send].completion = 0,
            }
        }
    }

    /// One route for each send port, in their order.
    fn routes(&self, rank: usize, windows: &[Vec<u64>]) -> Vec<Route> {
        let sends = self.ranks[rank].ports.iter().step_by(2);
        sends
            .clone()
            .enumerate()
            .map(|(number, port)| {
                let peer = port.peer as usize;
                // The peer's lanes to this rank, in the same order.
                let back = self.ranks[peer].ports.iter().skip(1).step_by(2);
                let mut back = back.filter(|port| port.peer as usize == rank);
                let earlier = sends.clone().take(number).filter(|it| it.peer == port.peer).count();
                let receive = back.nth(earlier).expect("a pair has as many");
                let windows = &windows[earlier / LANES as usize];
                Route {
                    lane: number,
                    peer,
                    source: windows[rank],
                    destination: windows[peer],
                    arrival: receive.signal,
                    completion: port.completion,
                    bytes: 0,
                }
            })
            .collect()
    }

    fn make_handle(&self, rank: usize, windows: &[u64], table: &[LanePorts]) -> u64 {
        let it = &self.ranks[rank];
        let put = |name: &str, bytes: &[u8]| {
            let address = it.allocate(name, bytes.len() as u64);
            it.set(address, bytes);
            address
        };
        let window = WindowEntry { address: windows[rank], bytes: self.layout.window_bytes() };
        let reached: Vec<u64> = (0..windows.len())
            .map(|peer| if self.is_near(rank, peer) { windows[peer] } else { 0 })
            .collect();
        let handle = DeviceHandle {
            communicator: it.address,
            ports: put("lanes", bytemuck::cast_slice(table)),
            windows: put("windows", bytemuck::bytes_of(&window)),
            routes: put("routes", &0_u32.to_le_bytes()),
            lane_count: LANES,
            window_count: 1,
            reached: put("reached", bytemuck::cast_slice(&reached)),
        };
        put("handle", bytemuck::bytes_of(&handle))
    }

    fn draw_steps(&mut self) {
        let mut random = fastrand::Rng::with_seed(self.options.seed ^ 0x746f_6b65);
        for number in 0..self.batches() * self.options.launches as usize {
            let again = self.options.shape.routes_again && self.place_of(number).1 > 0;
            let drawn = (0..self.ranks.len())
                .map(|rank| {
                    let mut drawn = self.draw_routing(&mut random);
                    if again {
                        let earlier: &Step = &self.steps[number - 1][rank];
                        drawn = (earlier.indices.clone(), earlier.weights.clone());
                    }
                    self.allocate_step(number, rank, drawn)
                })
                .collect();
            self.steps.push(drawn);
        }
        for number in 0..self.steps.len() {
            self.write_results(number);
        }
    }

    /// Indices and weights of a rank's tokens.
    fn draw_routing(&self, random: &mut fastrand::Rng) -> (Vec<i64>, Vec<f32>) {
        let Config { experts, top_k, tokens_max, .. } = self.config;
        // More than a warp's lanes, where that is what the run is about.
        let least = if tokens_max > 32 { 33 } else { 0 };
        let tokens = random.u32(least..=tokens_max);
        let mut indices = Vec::new();
        for _ in 0..tokens {
            let mut all: Vec<i64> = (0..i64::from(experts)).collect();
            random.shuffle(&mut all);
            let chosen = all.into_iter().take(top_k as usize);
            indices.extend(chosen.map(|index| if random.u32(0..6) == 0 { -1 } else { index }));
        }
        let weights = indices.iter().map(|_| f32::from(random.u8(1..=64)) / 16.0).collect();
        (indices, weights)
    }

    fn allocate_step(
        &self,
        number: usize,
        rank: usize,
        (indices, weights): (Vec<i64>, Vec<f32>),
    ) -> Step {
        let Config { top_k, hidden, .. } = self.config;
        let rows = self.layout.output_rows();
        let tokens = indices.len() as u64 / u64::from(top_k);
        let it = &self.ranks[rank];
        let words = |what: &str, count: u64| {
            it.allocate(&format!("{what} of step {number}"), (4 * count).max(16))
        };
        let (row, choices) = (u64::from(hidden), u64::from(top_k));
        let input = words("tokens", tokens * row);
        let values: Vec<f32> = (0..tokens as usize)
            .flat_map(|token| {
                (0..hidden as usize).map(move |at| Self::token(number, rank, token, at))
            })
            .collect();
        it.set(input, bytemuck::cast_slice(&values));
        Step {
            input,
            output: words("received rows", rows * row),
            counts: words("counts", self.layout.output_counts()),
            sources: words("sources", 4 * rows),
            choices: words("local experts", rows * choices),
            choice_weights: words("local weights", rows * choices),
            results: words("results", rows * row),
            combined: words("combined tokens", tokens * row),
            sums: words("sums of weights", tokens * choices),
            missing: words("marks", tokens),
            indices,
            weights,
        }
    }

    /// What each rank's experts make of the rows that it will receive: known before, as places of
    /// rows are.
    fn write_results(&self, number: usize) {
        for (rank, step) in self.steps[number].iter().enumerate() {
            let row = self.config.hidden as usize;
            let values: Vec<f32> = (0..self.layout.output_rows() as usize * row)
                .map(|at| Self::result(number, rank, at / row, at % row))
                .collect();
            self.ranks[rank].set(step.results, bytemuck::cast_slice(&values));
        }
    }

    /// An element of a token: no two are alike, and none is zero.
    pub fn token(step: usize, rank: usize, token: usize, at: usize) -> f32 {
        (((step * 8 + rank) * 64 + token) * 64 + at + 1) as f32
    }

    /// An element of what the experts of a rank make of a row.
    pub fn result(step: usize, rank: usize, place: usize, at: usize) -> f32 {
        (((step * 8 + rank) * 512 + place) * 16 + at % 16 + 1) as f32
    }

    /// Do experts give rows back as they are? Where ranks are given up, nobody knows before where
    /// rows will lie.
    pub fn passes_on(&self) -> bool {
        self.options.shape.goes_on
    }

    /// Is the routing of a rank in a step bad?
    pub fn is_faulty(&self, number: usize, rank: usize) -> bool {
        let Shape { faulty_step, faulty_rank, .. } = self.options.shape;
        self.place_of(number).1 + 1 == faulty_step as usize
            && rank == faulty_rank as usize
            && !self.steps[number][rank].indices.is_empty()
    }

    /// Indices and weights of a rank in a step, as its kernels get them.
    pub fn given(&self, number: usize, rank: usize) -> (Vec<i64>, Vec<f32>) {
        let step = &self.steps[number][rank];
        let (mut indices, mut weights) = (step.indices.clone(), step.weights.clone());
        if !self.is_faulty(number, rank) {
            return (indices, weights);
        }
        if !self.options.shape.has_many_faults {
            let count = indices.len();
            indices[self.options.seed as usize % count] = NO_EXPERT;
            return (indices, weights);
        }
        // Tokens of all blocks may have some, and the first one counts.
        let mut random = fastrand::Rng::with_seed(self.options.seed ^ 0x6661_756c);
        let top_k = self.config.top_k as usize;
        for _ in 0..random.u32(1..=6) {
            let first = if random.bool() { 0 } else { indices.len().saturating_sub(12) };
            let at = random.usize(first..indices.len());
            match random.u32(0..3) {
                0 if !at.is_multiple_of(top_k) => indices[at] = indices[at - 1],
                1 => weights[at] = f32::NAN,
                _ => indices[at] = NO_EXPERT,
            }
        }
        if self.first_fault(&indices, &weights).is_none() {
            indices[0] = NO_EXPERT;
        }
        (indices, weights)
    }

    /// The first fault of a routing: where it is by token and choice, the value, and what is wrong.
    pub fn first_fault(
        &self,
        indices: &[i64],
        weights: &[f32],
    ) -> Option<([usize; 2], i64, ExpertsFaultCode)> {
        let top_k = self.config.top_k as usize;
        for (token, choices) in indices.chunks(top_k).enumerate() {
            for (choice, index) in choices.iter().enumerate() {
                let weight = weights[token * top_k + choice];
                let at = [token, choice];
                if *index < -1 || *index >= i64::from(self.config.experts) {
                    return Some((at, *index, ExpertsFaultCode::Index));
                }
                if *index >= 0 && choices[..choice].contains(index) {
                    return Some((at, *index, ExpertsFaultCode::Repeated));
                }
                if weight.is_nan() {
                    return Some((at, weight.to_bits().into(), ExpertsFaultCode::Weight));
                }
            }
        }
        None
    }

    /// Indices and weights of all ranks in a step, as they count.
    pub fn routing_of(&self, number: usize) -> (Vec<Vec<i64>>, Vec<Vec<f32>>) {
        let steps = self.steps[number].iter().enumerate();
        let (mut all, mut weights) = (Vec::new(), Vec::new());
        for (rank, step) in steps {
            let is_bad = self.is_faulty(number, rank);
            all.push(if is_bad { Vec::new() } else { step.indices.clone() });
            weights.push(if is_bad { Vec::new() } else { step.weights.clone() });
        }
        (all, weights)
    }

    /// The reference for these.
    pub fn reference<'r>(
        &'r self,
        (indices, weights): &'r (Vec<Vec<i64>>, Vec<Vec<f32>>),
    ) -> Routing<'r> {
        let routing = Routing::new(&self.config, indices, weights);
        Routing { node_ranks: self.layout.node_ranks() as usize, ..routing }
    }
}
