//! Launches of a run of experts, as `ringdove::experts` makes them.

use std::ops::RangeInclusive;

use ringdove_kernels::experts::{EXPERTS_WEIGHTS, EXPERTS_WIDE_INDICES, ExpertsCall};

use super::experts::Run;
use super::experts_shape::Shape;
use super::{Kernels, Scenario};
use crate::fault::Fault;
use crate::world::Shown;

/// Turns by which a rank receives late, and by which it combines late: powers of two. The second is
/// as long as a peer takes to receive the next step and to return its rows.
const LATE_LOG2: RangeInclusive<u32> = 8..=13;
const COMBINES_LATE_LOG2: RangeInclusive<u32> = 12..=14;

impl Run<'_> {
    /// Has a rank come late to a receive or a combine, perhaps: others are then ahead of it as far
    /// as the protocol lets them, and write again what it has not looked at.
    fn hold_back(&mut self, rank: usize, number: usize, log2: RangeInclusive<u32>) {
        let place = (number * self.ranks.len() + rank) as u64;
        let mut random = fastrand::Rng::with_seed(self.options.seed ^ ((place + 1) << 40));
        if random.bool() {
            let turns = 1 << random.u32(log2);
            self.world.wait(rank as u32, turns);
        }
    }

    /// Makes news of claim words rare.
    pub(super) fn hide_claims(&mut self) {
        let Shape { seldom, shown_in, .. } = self.options.shape;
        if seldom == 0 {
            return;
        }
        for rank in &self.ranks {
            self.memory.show_seldom(rank.communicator.record_claim, seldom as usize);
        }
        let is_struck = |fault: &&Fault| matches!(fault, Fault::StrayClaim { .. });
        let struck = self.options.faults.iter().find(is_struck).map(|fault| fault.rank());
        if let Some(rank) = struck.filter(|_| shown_in > 0) {
            let address = self.ranks[rank as usize].communicator.record_claim;
            let launch = u64::from(shown_in - 1);
            self.world.show_in(Shown { stream: rank, launch, address, one_in: seldom });
        }
    }

    /// Was this kernel of a step launched?
    pub(super) fn has_made(&self, number: usize, rank: usize, entry: &'static str) -> bool {
        let (batch, step) = self.place_of(number);
        self.made.contains(&(batch, rank, step, entry))
    }

    /// Queues all launches of a rank, as `ringdove::experts` does.
    pub(super) fn launch_all(&mut self, batch: usize, rank: usize, kernels: &Kernels) {
        let count = self.options.launches as usize;
        let step = |number: usize| batch * count + number;
        let handles: Vec<u64> = (0..2)
            .map(|_| self.ranks[rank].allocate("experts' handle", self.layout.handle_bytes()))
            .collect();
        let again = self.options.shape.routes_again;
        let handle = |number: usize| if again { handles[0] } else { handles[number % 2] };
        let overlaps = self.options.shape.overlaps && !again;
        self.launch_send(rank, step(0), handle(0), kernels);
        for number in 0..count {
            if self.options.scenario == Scenario::Rewrites {
                self.hold_back(rank, step(number), LATE_LOG2);
            }
            self.launch_receive(rank, step(number), handle(number), kernels);
            self.launch_return(rank, step(number), handle(number), kernels);
            if overlaps && number + 1 < count {
                self.launch_send(rank, step(number + 1), handle(number + 1), kernels);
            }
            if self.options.shape.combines_late {
                self.hold_back(rank, step(number), COMBINES_LATE_LOG2);
            }
            self.launch_combine(rank, step(number), handle(number), kernels);
            if !overlaps && number + 1 < count {
                self.launch_send(rank, step(number + 1), handle(number + 1), kernels);
            }
        }
    }

    fn launch(
        &mut self,
        (batch, rank, step): (usize, usize, usize),
        entry: &'static str,
        blocks: u32,
        call: &ExpertsCall,
        kernels: &Kernels,
    ) {
        let before = self.made.iter().filter(|it| (it.0, it.1) == (batch, rank)).count() as u32;
        let most = self.options.shape.ends_after;
        if most > 0 && before >= most {
            return;
        }
        self.made.push((batch, rank, step, entry));
        let call = ExpertsCall { group: self.groups[batch][rank], ..*call };
        let params = bytemuck::bytes_of(&call).to_vec();
        let shape = (blocks, self.options.threads);
        let stream = self.streams[batch][rank];
        self.world.launch(stream, kernels.of_experts(entry), shape, params);
    }

    /// Batch, rank and step of a launch.
    fn place_of_rank(&self, number: usize, rank: usize) -> (usize, usize, usize) {
        let (batch, step) = self.place_of(number);
        (batch, rank, step)
    }

    fn launch_send(&mut self, rank: usize, number: usize, handle: u64, kernels: &Kernels) {
        let at = self.place_of_rank(number, rank);
        let (indices, weights) = self.given(number, rank);
        let step = &self.steps[number][rank];
        let is_wide = self.options.seed.is_multiple_of(2);
        let it = &self.ranks[rank];
        let bytes: Vec<u8> = match is_wide {
            true => bytemuck::cast_slice(&indices).to_vec(),
            false => indices.iter().flat_map(|index| (*index as i32).to_le_bytes()).collect(),
        };
        let address = it.allocate(&format!("indices of step {number}"), bytes.len().max(8) as u64);
        it.set(address, &bytes);
        let bytes: &[u8] = bytemuck::cast_slice(&weights);
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
        if !(self.options.shape.routes_again && self.place_of(number).1 > 0) {
            self.launch(at, "experts_route", blocks, &call, kernels);
        }
        self.launch(at, "experts_send", blocks, &call, kernels);
    }

    fn launch_receive(&mut self, rank: usize, number: usize, handle: u64, kernels: &Kernels) {
        let at = self.place_of_rank(number, rank);
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
            self.launch(at, "experts_await_relayed", 1, &call, kernels);
            self.launch(at, "experts_relay", blocks, &call, kernels);
        }
        self.launch(at, "experts_await", 1, &call, kernels);
        self.launch(at, "experts_receive", blocks, &call, kernels);
    }

    fn launch_return(&mut self, rank: usize, number: usize, handle: u64, kernels: &Kernels) {
        let at = self.place_of_rank(number, rank);
        let step = &self.steps[number][rank];
        let call = ExpertsCall {
            routing: self.layout.routing(handle),
            input: if self.passes_on() { step.output } else { step.results },
            weights: if self.options.shape.is_throughput { step.choice_weights } else { 0 },
            ..ExpertsCall::default()
        };
        self.launch(at, "experts_return", self.options.blocks, &call, kernels);
    }

    fn launch_combine(&mut self, rank: usize, number: usize, handle: u64, kernels: &Kernels) {
        let at = self.place_of_rank(number, rank);
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
            self.launch(at, "experts_await_gathered", 1, &call, kernels);
            self.launch(at, "experts_gather", blocks, &call, kernels);
        }
        self.launch(at, "experts_await_returns", 1, &call, kernels);
        self.launch(at, "experts_combine", blocks, &call, kernels);
    }
}
