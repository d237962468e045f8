//! What must have come of a run of experts: what the reference says where nothing failed; where a
//! rank stopped, nothing wrong, true records, and marks on what is missing.

use ringdove::experts::reference::{self, Row};
use ringdove_kernels::experts::{EXPERTS_WORD_STRIDE, ExpertsFault, ExpertsRow, ExpertsState};
use ringdove_kernels::launch::{PlanFault, WaitKind, WaitRecord};
use std::mem::offset_of;

use super::experts::Run;
use super::verdict::{ABORTED, EXPIRED, NONE, check_is_stray};
use crate::fault::Fault;
use crate::host::Host;
use crate::rank::NEVER_NS;

/// What a place may hold.
#[derive(Clone, Copy)]
enum May {
    /// The expected bytes alone.
    BeRight,
    /// Zeros, too, byte by byte.
    BeMissing,
}

impl Run<'_> {
    /// Is everything as it should be?
    pub fn check(&self) -> Result<(), String> {
        for rank in 0..self.ranks.len() {
            if !self.ranks[rank].is_claimed_twice() {
                let check = |record: &WaitRecord| self.check_experts_record(rank, record);
                let record = self.ranks[rank].checked_record(rank, check)?;
                self.world.hosts[rank].must_have_seen(rank, &record)?;
            }
            self.check_rank(rank).map_err(|reason| format!("rank {rank}: {reason}"))?;
        }
        Ok(())
    }

    fn check_rank(&self, rank: usize) -> Result<(), String> {
        let has_faults = !self.options.is_undisturbed();
        // Kernels that ended without a record have waited for all that there is.
        let it = &self.ranks[rank];
        let is_silent = it.record().state == 0 && !self.world.is_stopped(rank);
        if is_silent && self.options.shape.ends_after > 0 {
            self.check_done(rank)?;
        }
        let may_be = |is_made| match is_silent && is_made {
            true => May::BeRight,
            false => May::BeMissing,
        };
        for number in 0..self.steps.len() {
            let in_step = |reason: String| format!("step {number}: {reason}");
            let combined = match (has_faults, self.options.shape.goes_on) {
                (true, true) => self.check_marked(number, rank),
                (false, _) => {
                    self.check_received(number, rank, May::BeRight).map_err(in_step)?;
                    self.check_combined(number, rank, May::BeRight)
                }
                (true, false) => {
                    let [received, combined] = ["experts_receive", "experts_combine"]
                        .map(|entry| may_be(self.has_made(number, rank, entry)));
                    self.check_received(number, rank, received).map_err(in_step)?;
                    self.check_combined(number, rank, combined)
                }
            };
            combined.map_err(in_step)?;
        }
        let mut batches = 0..if has_faults { 0 } else { self.batches() };
        batches.try_for_each(|batch| self.check_told(batch, rank))
    }

    /// Launches that left no record have done their part: the group counts it, those that relay
    /// have raised words, and each message to a rank that is not reached was rung.
    fn check_done(&self, rank: usize) -> Result<(), String> {
        let mut rung = 0;
        for (batch, groups) in self.groups.iter().enumerate() {
            let of = |entry: &str| {
                let made = self.made.iter();
                made.filter(|it| (it.0, it.1) == (batch, rank) && it.3 == entry).count() as u64
            };
            let state = groups[rank] + self.layout.state_offset();
            for (entry, field) in [
                ("experts_send", offset_of!(ExpertsState, sent)),
                ("experts_await", offset_of!(ExpertsState, received)),
                ("experts_return", offset_of!(ExpertsState, returns_sent)),
                ("experts_await_returns", offset_of!(ExpertsState, returns_received)),
            ] {
                let (counted, made) = (self.number_at(state + field as u64), of(entry));
                if counted != made {
                    return Err(format!("{counted} of {made} launches of {entry} are counted"));
                }
            }
            self.check_relayed(batch, rank, of("experts_relay"))?;
            let sends = ["experts_send", "experts_return", "experts_gather"].map(of);
            rung += self.far_messages(rank, sends);
        }
        let head = self.number_at(self.ranks[rank].communicator.ring_head);
        if head == rung { Ok(()) } else { Err(format!("{head} of {rung} messages were rung")) }
    }

    /// A relay has told all ranks of its node of what other nodes sent through it.
    fn check_relayed(&self, batch: usize, rank: usize, relayed: u64) -> Result<(), String> {
        let node_ranks = self.layout.node_ranks() as usize;
        if node_ranks == 0 {
            return Ok(());
        }
        let (node, place) = (rank / node_ranks, rank % node_ranks);
        for to in node * node_ranks..(node + 1) * node_ranks {
            for other in (0..self.ranks.len() / node_ranks).filter(|other| *other != node) {
                let from = (other * node_ranks + place) as u64;
                let word = self.number_at(self.arrivals[batch][to] + from * EXPERTS_WORD_STRIDE);
                if word < relayed {
                    return Err(format!("rank {to} was told of {word} of {relayed} messages"));
                }
            }
        }
        Ok(())
    }

    /// How many messages a rank has rung after so many sends, returns and gathers.
    fn far_messages(&self, rank: usize, [sends, returns, gathers]: [u64; 3]) -> u64 {
        let ranks = self.ranks.len();
        if let Some(nodes) = ranks.checked_div(self.layout.node_ranks() as usize) {
            // One for each other node.
            return (sends + gathers) * (nodes - 1) as u64;
        }
        let far = (0..ranks).filter(|to| !self.is_near(rank, *to)).count();
        (sends + returns) * far as u64
    }

    fn number_at(&self, address: u64) -> u64 {
        let mut bytes = [0; 8];
        self.memory.get(address, &mut bytes).expect("it was allocated");
        u64::from_le_bytes(bytes)
    }

    /// Every rank knows of a fault in a routing.
    fn check_told(&self, batch: usize, rank: usize) -> Result<(), String> {
        let place = self.groups[batch][rank] + self.layout.state_offset();
        let place = place + offset_of!(ExpertsState, fault) as u64;
        let mut bytes = [0; size_of::<ExpertsFault>()];
        self.memory.get(place, &mut bytes).expect("the state was allocated");
        let told: ExpertsFault = bytemuck::pod_read_unaligned(&bytes);
        let mut expected = ExpertsFault::default();
        for number in 0..self.steps.len() {
            let faulty = (0..self.ranks.len()).find(|rank| self.is_faulty(number, *rank));
            let Some(faulty) = faulty.filter(|_| self.place_of(number).0 == batch) else {
                continue;
            };
            let (indices, weights) = self.given(number, faulty);
            let first = self.first_fault(&indices, &weights);
            let ([token, choice], value, code) = first.expect("it was made so");
            expected = ExpertsFault {
                step: self.place_of(number).1 as u64,
                place: (token * 16 + choice) as u64,
                value,
                code: code as u32,
                rank: faulty as u32,
            };
        }
        match told == expected {
            true => Ok(()),
            false => Err(format!("it was told {told:?} in the place of {expected:?}")),
        }
    }

    fn words(&self, address: u64, count: usize) -> Vec<[u8; 4]> {
        let mut bytes = vec![0; 4 * count];
        self.memory.get(address, &mut bytes).expect("it was allocated");
        bytes.as_chunks().0.to_vec()
    }

    fn compare(
        &self,
        what: &str,
        address: u64,
        expected: &[[u8; 4]],
        may: May,
    ) -> Result<(), String> {
        let found = self.words(address, expected.len());
        for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
            let mut pairs = found.iter().zip(expected);
            let is_missing = pairs.all(|(found, byte)| *found == 0 || found == byte);
            if found != expected && !(matches!(may, May::BeMissing) && is_missing) {
                return Err(format!("{what} hold {found:x?} at {index}, not {expected:x?}"));
            }
        }
        Ok(())
    }

    fn check_received(&self, number: usize, rank: usize, may: May) -> Result<(), String> {
        let given = self.routing_of(number);
        let routing = self.reference(&given);
        let step = &self.steps[number][rank];
        let counts: Vec<_> = routing.counts(rank).into_iter().map(u32::to_le_bytes).collect();
        self.compare("counts", step.counts, &counts, may)?;
        let (hidden, top_k) = (self.config.hidden as usize, self.config.top_k as usize);
        for row in routing.rows(rank) {
            let Row { place, source, token, choice } = row;
            let expected: Vec<_> = (0..hidden)
                .map(|at| Self::token(number, source, token, at).to_le_bytes())
                .collect();
            let at = step.output + (4 * place * hidden) as u64;
            self.compare("received rows", at, &expected, may)?;
            let weight = given.1[source][token * top_k + choice];
            let from = ExpertsRow {
                token: token as u32,
                choice: choice as u32,
                weight: weight.to_bits(),
                reserved: 0,
            };
            let expected: &[[u8; 4]] = bytemuck::cast_slice(std::slice::from_ref(&from));
            self.compare("sources", step.sources + (16 * place) as u64, expected, may)?;
            if self.options.shape.is_throughput {
                let (experts, weights): (Vec<_>, Vec<_>) = routing
                    .local_choices(rank, &row)
                    .into_iter()
                    .map(|(expert, weight)| (expert.to_le_bytes(), weight.to_le_bytes()))
                    .unzip();
                let at = (4 * place * top_k) as u64;
                self.compare("local experts", step.choices + at, &experts, may)?;
                self.compare("local weights", step.choice_weights + at, &weights, may)?;
            }
        }
        Ok(())
    }

    /// The element of the row that came back for a choice of a token.
    fn returned(&self, number: usize, rank: usize, token: usize, choice: usize, at: usize) -> f32 {
        if self.passes_on() {
            return Self::token(number, rank, token, at);
        }
        let given = self.routing_of(number);
        let routing = self.reference(&given);
        let index = given.0[rank][token * self.config.top_k as usize + choice];
        let owner = routing.owner(index).expect("a term has an expert");
        let rows = routing.rows(owner);
        let row =
            rows.iter().find(|row| (row.source, row.token, row.choice) == (rank, token, choice));
        Self::result(number, owner, row.expect("a term has a row").place, at)
    }

    fn sum(
        &self,
        number: usize,
        rank: usize,
        token: usize,
        terms: &[Vec<(usize, f32)>],
    ) -> Vec<[u8; 4]> {
        let element = |at: usize| {
            let value = |choice| self.returned(number, rank, token, choice, at);
            reference::combined(terms, value, |sum| sum).to_le_bytes()
        };
        (0..self.config.hidden as usize).map(element).collect()
    }

    fn check_combined(&self, number: usize, rank: usize, may: May) -> Result<(), String> {
        let given = self.routing_of(number);
        let routing = self.reference(&given);
        let step = &self.steps[number][rank];
        let hidden = self.config.hidden as usize;
        for token in 0..routing.tokens(rank) {
            let expected = self.sum(number, rank, token, &routing.terms(rank, token));
            let at = step.combined + (4 * token * hidden) as u64;
            self.compare("combined tokens", at, &expected, may)?;
        }
        Ok(())
    }

    /// In a group that goes on: each token is the sum of what is not marked, unless its GPU
    /// stopped.
    fn check_marked(&self, number: usize, rank: usize) -> Result<(), String> {
        if self.world.is_stopped(rank) {
            return Ok(());
        }
        let step = &self.steps[number][rank];
        let (hidden, top_k) = (self.config.hidden as usize, self.config.top_k as usize);
        let given = (
            self.steps[number].iter().map(|step| step.indices.clone()).collect::<Vec<_>>(),
            self.steps[number].iter().map(|step| step.weights.clone()).collect::<Vec<_>>(),
        );
        let routing = self.reference(&given);
        let (given_indices, _) = self.given(number, rank);
        let marks = self.words(step.missing, routing.tokens(rank));
        for (token, mark) in marks.into_iter().enumerate() {
            let mark = u32::from_le_bytes(mark);
            // Of a bad routing, bad indices count as choices.
            let choices = &given_indices[token * top_k..][..top_k];
            let all = choices.iter().enumerate().filter(|(_, index)| **index >= 0);
            let all: u32 = all.map(|(choice, _)| 1 << choice).sum();
            if mark & !all != 0 || self.is_faulty(number, rank) && mark != all {
                return Err(format!("token {token} has the mark {mark:#b}"));
            }
            let terms: Vec<_> = routing
                .terms(rank, token)
                .into_iter()
                .filter(|term| mark & 1 << term[0].0 == 0)
                .collect();
            let expected = self.sum(number, rank, token, &terms);
            let at = step.combined + (4 * token * hidden) as u64;
            self.compare(&format!("tokens with mark {mark:#b}"), at, &expected, May::BeRight)?;
        }
        Ok(())
    }

    /// Does the record tell of a wait that was?
    fn check_experts_record(&self, rank: usize, record: &WaitRecord) -> Result<(), &'static str> {
        if record.state == ABORTED && !self.world.hosts.iter().any(Host::has_alarmed) {
            return Err("nobody aborted");
        }
        if record.sequence >= self.options.launches.into() {
            return Err("there is no such step");
        }
        let kind = WaitKind::from_code(record.kind);
        if kind == Some(WaitKind::StrayClaim) {
            return check_is_stray(self.options, rank, record);
        }
        if kind == Some(WaitKind::BadCall) {
            let is_struck = self.options.strikes(rank, |it| matches!(it, Fault::BadOp { .. }));
            let fault = PlanFault::from_code(record.position);
            let is_known = matches!(
                fault,
                Some(PlanFault::PortNumber | PlanFault::Route | PlanFault::NoSignal)
            );
            let is_told = record.state == EXPIRED && is_known;
            return if is_struck && is_told { Ok(()) } else { Err("its ports are good") };
        }
        let is_ring_space = kind == Some(WaitKind::RingSpace);
        let is_wait = matches!(kind, Some(WaitKind::Arrival | WaitKind::Completion));
        if !is_wait && !is_ring_space {
            return Err("no such kind belongs here");
        }
        let is_peer = (record.peer as usize) < self.ranks.len();
        if is_ring_space != (record.peer == NONE) || !is_ring_space && !is_peer {
            return Err("nobody is waited for there");
        }
        if is_peer && record.peer as usize == rank && record.state == EXPIRED {
            // Its own word is behind the same kernel's stores.
            return Err("it waited for itself");
        }
        let timeout_ns = self.options.timeout_ns;
        let is_late = timeout_ns != NEVER_NS && record.waited_ns >= timeout_ns;
        if record.state == EXPIRED && !is_late {
            return Err("its time was not over");
        }
        if record.seen == record.expected {
            return Err("what was expected has come");
        }
        Ok(())
    }
}
