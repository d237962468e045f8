//! Expert parallelism (R16): ranks dispatch tokens and combine results in several steps, which no
//! barrier between ranks holds together. Some pairs of ranks reach each other by stores, others by
//! engines; on two nodes of two, rows may be relayed.

use hwsim_ptx::weak::WeakMemory;
use ringdove::experts::reference::Routing;
use ringdove::experts::{Config, Layout, Mode, OnLoss, Placement, Spread, Surplus};
use ringdove_kernels::element::DataType;
use ringdove_kernels::experts::{EXPERTS_WEIGHTS, EXPERTS_WIDE_INDICES, ExpertsCall};
use ringdove_kernels::user::{DeviceHandle, LanePorts, NO_PORT, WindowEntry};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use super::{Kernels, Options};
use crate::engine::{Manner, Route};
use crate::rank::{NEVER_NS, Rank};
use crate::world::World;

/// Lanes of a group: of dispatches, and of combines.
const LANES: u32 = 2;
/// An index that no expert has.
pub(super) const NO_EXPERT: i64 = 4097;

/// For how long ranks are awaited after an abort, where waits do not expire.
const GRACE_NS: u64 = 1 << 7;

/// What a seed draws for these runs beside the other options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Ranks.
    pub ranks: u32,
    /// Experts of each.
    pub local_experts: u32,
    /// Ranks of a node, which reach each other; 0: all do.
    pub node_ranks: u32,
    /// Throughput mode, not low latency.
    pub is_throughput: bool,
    /// The group goes on without a rank that does not answer.
    pub goes_on: bool,
    /// A step is sent before the combine of the last one has been received.
    pub overlaps: bool,
    /// A step takes the routing of the one before.
    pub routes_again: bool,
    /// The step in which a rank's routing has a fault, counted from 1; 0 for none.
    pub faulty_step: u32,
    /// That rank.
    pub faulty_rank: u32,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = if self.is_throughput { "throughput" } else { "low latency" };
        let nodes = match self.node_ranks {
            0 => "all reach each other".to_owned(),
            ranks => format!("nodes of {ranks}"),
        };
        let Self { ranks, local_experts, .. } = self;
        write!(f, ", {ranks} ranks of {local_experts} experts, {mode}, {nodes}")?;
        for (is, what) in [
            (self.goes_on, "goes on without ranks"),
            (self.overlaps, "steps overlap"),
            (self.routes_again, "routes again"),
        ] {
            if is {
                write!(f, ", {what}")?;
            }
        }
        if self.faulty_step > 0 {
            let step = self.faulty_step - 1;
            write!(f, ", the routing of rank {} in step {step} is bad", self.faulty_rank)?;
        }
        Ok(())
    }
}

impl Shape {
    /// Draws one.
    pub fn draw(random: &mut fastrand::Rng) -> Self {
        let ranks = random.u32(2..=4);
        let node_ranks = match random.u32(0..4) {
            0 | 1 => 0,
            2 => 1,
            _ if ranks == 4 => 2,
            _ => 1,
        };
        Self {
            ranks,
            local_experts: random.u32(1..=2),
            node_ranks,
            is_throughput: random.bool(),
            goes_on: random.u32(0..4) == 0,
            overlaps: random.bool(),
            routes_again: random.u32(0..4) == 0,
            faulty_step: if random.u32(0..5) == 0 { random.u32(1..=3) } else { 0 },
            faulty_rank: random.u32(0..ranks),
        }
    }

    /// Makes it one in which rows are relayed.
    pub fn relay(&mut self) {
        (self.ranks, self.node_ranks) = (4, 2);
        (self.is_throughput, self.goes_on) = (true, false);
    }

    /// The shape, without faults of routings that are used again: then the next step has them too.
    pub fn checked(mut self) -> Self {
        if self.routes_again {
            self.faulty_step = 0;
        }
        self
    }
}

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
    results: u64,
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
    /// The group's memory on each rank.
    pub groups: Vec<u64>,
    /// By step, then rank.
    pub steps: Vec<Vec<Step>>,
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
        let ranks = (0..ranks)
            .map(|rank| {
                Rank::new(memory, rank, ranks, options.ring_log2.max(1), options.timeout_ns)
            })
            .collect();
        let memory = Rc::clone(memory);
        let (groups, steps) = Default::default();
        Self { memory, options, world, ranks, config, layout, groups, steps }
    }

    /// Do stores of one rank reach the other?
    fn is_near(&self, a: usize, b: usize) -> bool {
        let node_ranks = self.options.shape.node_ranks as usize;
        node_ranks == 0 || a / node_ranks == b / node_ranks
    }

    /// Lays out the group on all ranks, draws what they bring, and queues the launches.
    pub fn start(&mut self, kernels: &Kernels) {
        for fault in &self.options.faults {
            self.world.add_fault(*fault);
        }
        self.world.reports_ends = false;
        let count = self.ranks.len();
        let bytes = self.layout.window_bytes();
        let windows: Vec<u64> =
            self.ranks.iter().map(|rank| rank.allocate("window", bytes)).collect();
        let manner = Manner { mutant: self.options.host, ..Manner::default() };
        let tables = self.add_ports();
        let routes: Vec<_> = (0..count).map(|rank| self.routes(rank, &windows)).collect();
        let abort_words: Vec<u64> = self.ranks.iter().map(|rank| rank.communicator.abort).collect();
        for (rank, (table, routes)) in tables.into_iter().zip(routes).enumerate() {
            self.ranks[rank].publish();
            let handle = self.make_handle(rank, &windows, &table);
            let group = self.ranks[rank].allocate("group", self.layout.group_bytes());
            let placement = Placement::even(count as u32);
            self.ranks[rank].set(group, &self.layout.group(&placement, handle, group));
            self.groups.push(group);
            self.world.add_rank(&self.ranks[rank], None, &routes, manner, &abort_words);
        }
        self.draw_steps();
        for rank in 0..count {
            self.launch_all(rank, kernels);
        }
    }

    /// Ports of lanes between ranks that do not reach each other: to send, then to receive. Gives
    /// each rank's table.
    fn add_ports(&mut self) -> Vec<Vec<LanePorts>> {
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
                    table.push(it.add_lane(peer, lane));
                }
            }
            tables.push(table);
        }
        tables
    }

    /// One route for each send port, in their order.
    fn routes(&self, rank: usize, windows: &[u64]) -> Vec<Route> {
        let sends = self.ranks[rank].ports.iter().step_by(2).enumerate();
        sends
            .map(|(number, port)| {
                let peer = port.peer as usize;
                // The peer's lanes to this rank, in the same order.
                let back = self.ranks[peer].ports.iter().skip(1).step_by(2);
                let mut back = back.filter(|port| port.peer as usize == rank);
                let receive = back.nth(number % LANES as usize).expect("a pair has as many");
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
        for number in 0..self.options.launches as usize {
            let drawn = (0..self.ranks.len())
                .map(|rank| {
                    let mut drawn = self.draw_routing(&mut random);
                    if self.options.shape.routes_again && number > 0 {
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
        let tokens = random.u32(0..=tokens_max);
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
        (((step * 8 + rank) * 32 + token) * 64 + at + 1) as f32
    }

    /// An element of what the experts of a rank make of a row.
    pub fn result(step: usize, rank: usize, place: usize, at: usize) -> f32 {
        (((step * 8 + rank) * 64 + place) * 16 + at % 16 + 1) as f32
    }

    /// Do experts give rows back as they are? Where ranks are given up, nobody knows before where
    /// rows will lie.
    pub fn passes_on(&self) -> bool {
        self.options.shape.goes_on
    }

    /// Is the routing of a rank in a step bad?
    pub fn is_faulty(&self, number: usize, rank: usize) -> bool {
        let Shape { faulty_step, faulty_rank, .. } = self.options.shape;
        number + 1 == faulty_step as usize
            && rank == faulty_rank as usize
            && !self.steps[number][rank].indices.is_empty()
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

    /// Queues all launches of a rank, as `ringdove::experts` does.
    fn launch_all(&mut self, rank: usize, kernels: &Kernels) {
        let count = self.steps.len();
        let handles: Vec<u64> = (0..2)
            .map(|_| self.ranks[rank].allocate("experts' handle", self.layout.handle_bytes()))
            .collect();
        let again = self.options.shape.routes_again;
        let handle = |number: usize| if again { handles[0] } else { handles[number % 2] };
        let overlaps = self.options.shape.overlaps && !again;
        self.launch_send(rank, 0, handle(0), kernels);
        for number in 0..count {
            self.launch_receive(rank, number, handle(number), kernels);
            self.launch_return(rank, number, handle(number), kernels);
            if overlaps && number + 1 < count {
                self.launch_send(rank, number + 1, handle(number + 1), kernels);
            }
            self.launch_combine(rank, number, handle(number), kernels);
            if !overlaps && number + 1 < count {
                self.launch_send(rank, number + 1, handle(number + 1), kernels);
            }
        }
    }

    fn launch(
        &mut self,
        rank: usize,
        entry: &str,
        blocks: u32,
        call: &ExpertsCall,
        kernels: &Kernels,
    ) {
        let call = ExpertsCall { group: self.groups[rank], ..*call };
        let params = bytemuck::bytes_of(&call).to_vec();
        let shape = (blocks, self.options.threads);
        self.world.launch(rank as u32, kernels.of_experts(entry), shape, params);
    }

    fn launch_send(&mut self, rank: usize, number: usize, handle: u64, kernels: &Kernels) {
        let is_bad = self.is_faulty(number, rank);
        let step = &self.steps[number][rank];
        let is_wide = self.options.seed.is_multiple_of(2);
        let mut indices = step.indices.clone();
        if is_bad {
            let count = indices.len();
            indices[self.options.seed as usize % count] = NO_EXPERT;
        }
        let it = &self.ranks[rank];
        let bytes: Vec<u8> = match is_wide {
            true => bytemuck::cast_slice(&indices).to_vec(),
            false => indices.iter().flat_map(|index| (*index as i32).to_le_bytes()).collect(),
        };
        let address = it.allocate(&format!("indices of step {number}"), bytes.len().max(8) as u64);
        it.set(address, &bytes);
        let bytes: &[u8] = bytemuck::cast_slice(&step.weights);
        let weights = it.allocate(&format!("weights of step {number}"), bytes.len().max(8) as u64);
        it.set(weights, bytes);
        let call = ExpertsCall {
            routing: self.layout.routing(handle),
            input: step.input,
            indices: address,
            weights,
            tokens: step.indices.len() as u32 / self.config.top_k,
            flags: if is_wide { EXPERTS_WIDE_INDICES } else { 0 } | EXPERTS_WEIGHTS,
            ..ExpertsCall::default()
        };
        let blocks = self.options.blocks;
        if !(self.options.shape.routes_again && number > 0) {
            self.launch(rank, "experts_route", blocks, &call, kernels);
        }
        self.launch(rank, "experts_send", blocks, &call, kernels);
    }

    fn launch_receive(&mut self, rank: usize, number: usize, handle: u64, kernels: &Kernels) {
        let step = &self.steps[number][rank];
        let is_throughput = self.options.shape.is_throughput;
        let call = ExpertsCall {
            routing: self.layout.routing(handle),
            output: step.output,
            output_counts: step.counts,
            output_sources: step.sources,
            output_indices: if is_throughput { step.choices } else { 0 },
            output_weights: if is_throughput { step.choice_weights } else { 0 },
            ..ExpertsCall::default()
        };
        let blocks = self.options.blocks;
        if self.layout.node_ranks() > 0 {
            self.launch(rank, "experts_await_relayed", 1, &call, kernels);
            self.launch(rank, "experts_relay", blocks, &call, kernels);
        }
        self.launch(rank, "experts_await", 1, &call, kernels);
        self.launch(rank, "experts_receive", blocks, &call, kernels);
    }

    fn launch_return(&mut self, rank: usize, number: usize, handle: u64, kernels: &Kernels) {
        let step = &self.steps[number][rank];
        let call = ExpertsCall {
            routing: self.layout.routing(handle),
            input: if self.passes_on() { step.output } else { step.results },
            weights: if self.options.shape.is_throughput { step.choice_weights } else { 0 },
            ..ExpertsCall::default()
        };
        self.launch(rank, "experts_return", self.options.blocks, &call, kernels);
    }

    fn launch_combine(&mut self, rank: usize, number: usize, handle: u64, kernels: &Kernels) {
        let step = &self.steps[number][rank];
        let Shape { is_throughput, goes_on, .. } = self.options.shape;
        let call = ExpertsCall {
            routing: self.layout.routing(handle),
            output: step.combined,
            output_weights: if is_throughput { step.sums } else { 0 },
            output_missing: if goes_on { step.missing } else { 0 },
            tokens: step.indices.len() as u32 / self.config.top_k,
            ..ExpertsCall::default()
        };
        let blocks = self.options.blocks;
        if self.layout.node_ranks() > 0 {
            self.launch(rank, "experts_await_gathered", 1, &call, kernels);
            self.launch(rank, "experts_gather", blocks, &call, kernels);
        }
        self.launch(rank, "experts_await_returns", 1, &call, kernels);
        self.launch(rank, "experts_combine", blocks, &call, kernels);
    }
}
