//! The symbolic verifier: proves that a plan does what its collective promises, before it runs.
//!
//! It unrolls all rounds with their real byte ranges and runs every rank's program at once, with
//! values that say which inputs they are made of. What it checks:
//!
//! * every byte of the result is what the collective promises: a rank's input, in its place, or the
//!   reduction: each rank's contribution exactly once, scaled once for a pre-multiplied sum,
//!   finished once for an average; the input is not written but where the output takes its place;
//! * no rank leaves a barrier before all have come to it;
//! * every read is ordered after the write whose value it takes, every write after the reads and
//!   writes before it, across blocks, ranks and engines; nothing goes on once the kernel has ended;
//! * a slot is used between its arrival and its credit, by engines too; messages go in order; LL
//!   messages are packed, put and collected once each, in step on all lanes; credits, arrivals and
//!   completions match the positions that the plan leaves behind, so that the next launch finds the
//!   lane as this one did;
//! * no deadlock; sizes, alignment, ports as the encoding and the executor want them.
//!
//! **Why one schedule stands for all of them.** A block is a straight line: no op's effect on
//! control depends on data. A signal is raised by one lane alone and in a fixed order, hence the
//! event that makes it `v` is the same in every run, and a wait for `v` happens after exactly that
//! event (whatever else the waiter sees by luck is not counted here). So the happens-before order
//! is a property of the plan, not of the run. A wait that has become possible stays possible (R9),
//! thus if one run that goes on as long as it can comes to its end, each of them does. And if any
//! two accesses that conflict are ordered by happens-before, then each read takes the same value in
//! each run. So it is enough to look at one run, with vector clocks that find the conflicts which
//! are not ordered. An engine reads a source and writes a destination at any time between doorbell
//! and arrival: it is an agent of its own (two: see `agents::LaneState`), which knows what the
//! ringing block knew, and which others know of only through the lane's signals. An engine waits
//! for nobody, so a full doorbell ring always empties and needs no place in this model.
//!
//! **What the model takes from the executor and the engine.** A block is one thread here: the
//! executor separates ops of a block by barriers wherever a thread may read what another one wrote.
//! A lane is in order across all of its routes: the `k`-th arrival stands for the `k`-th put. A
//! LL message is its own arrival: whoever collects it knows what its sender knew.
//!
//! **Launches before and after.** Both ends of a slotted lane leave the same position behind, so a
//! launch may count messages from zero: slot numbers only rotate. The first messages use slots that
//! an earlier launch used; therefore nothing is taken as credited until it was waited for.

mod agents;
mod clock;
mod error;
mod grants;
mod low_latency;
mod memory;
mod scope;
mod structure;
mod world;

#[cfg(test)]
mod tests;

pub use error::{Access, Reason, Site, Stuck, VerifyError};

use super::{
    Buffer, Collective, CollectiveRequest, Delivery, Direction, EncodeError, Lane, LaneEnd,
    LaneKind, Plan, PointToPoint, PortResolver, Side, encode,
};
use agents::{Block, Port, Step};
use clock::Clock;
use memory::{Fault, Sum, Term, Value, input_of};
use ringdove_kernels::element::ReduceOp;
use scope::Agents;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use world::{Binding, Rules, Spot, World};

/// What a plan has to achieve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Every rank's output holds what [`CollectiveRequest::deliveries`] says, and all else of its
    /// memory is as it was. After a barrier, each rank knows that all others have come to it.
    Collective(CollectiveRequest),
    /// What is received is what was sent: the `k`-th receive from a peer is its `k`-th send.
    SendReceive {
        /// Each rank's transfers.
        transfers: Vec<Vec<PointToPoint>>,
    },
}

/// A plan that has passed [`verify`], or one rank's part of a large one
/// ([`own_part`](super::own_part)). Only such a plan can be encoded.
#[derive(Clone, Debug)]
pub struct Verified {
    plan: Plan,
    lanes: Vec<Lane>,
}

impl Verified {
    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Every lane that the plan uses, in order, each once.
    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// The lane ends at `rank`, each with the number of the block that uses it.
    pub fn ports(&self, rank: u32) -> impl Iterator<Item = (u32, LaneEnd)> {
        let blocks = self.plan.ranks.get(rank as usize).map(|program| &program.blocks);
        let numbered = (0..).zip(blocks.into_iter().flatten());
        numbered.flat_map(|(number, block)| block.ports.iter().map(move |end| (number, *end)))
    }

    /// Blocks of the rank's launch.
    pub fn block_count(&self, rank: u32) -> u32 {
        self.plan.ranks.get(rank as usize).map_or(0, |program| program.blocks.len() as u32)
    }

    /// The rank's program as the executor kernel reads it.
    ///
    /// # Errors
    /// No such rank, or a lane end that `ports` does not know.
    pub fn encode(&self, rank: u32, ports: &impl PortResolver) -> Result<Vec<u8>, EncodeError> {
        encode::encode(&self.plan, rank, ports)
    }
}

/// Proves a plan, or says where it is wrong.
///
/// # Errors
/// The first thing found that breaks the promise.
pub fn verify(plan: Plan, promise: &Promise) -> Result<Verified, VerifyError> {
    let expected = match promise {
        Promise::Collective(request) => request.rank_count as usize,
        Promise::SendReceive { transfers } => transfers.len(),
    };
    if plan.ranks.len() != expected {
        let reason = Reason::RankCount { expected, seen: plan.ranks.len() };
        return Err(VerifyError::new(Site::Plan, reason));
    }
    let Verified { plan, lanes } = check_ops(plan)?;
    let registered =
        matches!(promise, Promise::Collective(CollectiveRequest { registered: true, .. }));
    if !registered && plan.reaches_peers() {
        let rule = "registered buffers alone are reached by peers";
        return Err(VerifyError::new(Site::Plan, Reason::Operands { rule }));
    }
    structure::check_length(&plan)?;
    let (mut world, mut blocks) = set_up(&plan, promise, &lanes);
    run(&mut world, &mut blocks)?;
    check_lanes(&world, &blocks)?;
    check_step(&world)?;
    check_memory(&world, &blocks, promise)?;
    drop(blocks);
    Ok(Verified { plan, lanes })
}

/// Checks each op by itself, and not what the programs do together.
///
/// # Errors
/// The first op that breaks a rule.
pub(super) fn check_ops(plan: Plan) -> Result<Verified, VerifyError> {
    structure::check(&plan)?;
    let blocks = plan.ranks.iter().flat_map(|program| &program.blocks);
    let lanes = blocks.flat_map(|block| &block.ports).map(|port| port.lane);
    let lanes = lanes.collect::<BTreeSet<_>>().into_iter().collect();
    Ok(Verified { plan, lanes })
}

fn rules(promise: &Promise) -> Rules {
    match *promise {
        Promise::Collective(request) => {
            let CollectiveRequest { collective, reduce_op, rank_count, .. } = request;
            Rules {
                // Where nothing is reduced, each scaling is one too many.
                scales: !collective.reduces() || reduce_op == ReduceOp::PreMulSum,
                // Dividing by one rank changes nothing, so it may be left out.
                finishes: !collective.reduces() || reduce_op == ReduceOp::Avg && rank_count > 1,
                element_bytes: u64::from(request.element_bytes.max(1)),
            }
        }
        Promise::SendReceive { .. } => Rules { scales: false, finishes: false, element_bytes: 1 },
    }
}

fn set_up<'p>(plan: &'p Plan, promise: &Promise, lanes: &[Lane]) -> (World, Vec<Block<'p>>) {
    let blocks_of = |(rank, program): (u32, &'p super::RankProgram)| {
        (0..).zip(&program.blocks).map(move |(number, block)| (rank, number, block))
    };
    let all: Vec<_> = (0..).zip(&plan.ranks).flat_map(blocks_of).collect();
    let names = all.iter().map(|&(rank, number, _)| (rank, number)).collect();
    let bindings = (0..plan.ranks.len() as u32).map(|rank| binding(promise, rank)).collect();
    let number_of: BTreeMap<Lane, usize> =
        lanes.iter().enumerate().map(|(number, &lane)| (lane, number)).collect();
    let uses: Vec<Vec<usize>> = all
        .iter()
        .map(|(.., block)| block.ports.iter().map(|end| number_of[&end.lane]).collect())
        .collect();
    let agents = Agents::new(plan.ranks.len() as u32, lanes.len(), &uses);
    let mut world = World::new(rules(promise), bindings, plan.slots, lanes, (names, agents));
    let port = |end: &LaneEnd| Port {
        lane: number_of[&end.lane],
        side: end.side,
        position: 0,
        completion_position: 0,
        observed: match (end.side, end.lane.kind) {
            (Side::Send, LaneKind::Slots | LaneKind::Stores | LaneKind::Rail) => {
                -i64::from(plan.slots.count)
            }
            _ => 0,
        },
    };
    let block = |(place, &(rank, number, program)): (usize, &(u32, u32, &'p _))| {
        let program: &'p super::BlockProgram = program;
        let (agent, scope) = &world.agents.blocks[place];
        let mut clock = Clock::new(scope);
        clock.tick(rank);
        Block {
            rank,
            number,
            program,
            agent: *agent,
            clock,
            ports: program.ports.iter().map(port).collect(),
            segment: 0,
            round: 0,
            op: 0,
        }
    };
    let blocks = all.iter().enumerate().map(block).collect();
    map_memory(&mut world, promise);
    for rank in 0..plan.ranks.len() as u32 {
        let Spot { memory, start } = world.buffer(rank, Buffer::Scratch);
        let end = start + plan.scratch_bytes(rank);
        world.memories[memory].map(start, end, None, World::before(rank));
    }
    (world, blocks)
}

/// What each rank's memory holds before the launch.
fn map_memory(world: &mut World, promise: &Promise) {
    match promise {
        Promise::Collective(request) => {
            for rank in 0..request.rank_count {
                let Spot { memory: output, start } = world.buffer(rank, Buffer::Output);
                let end = start + request.output_bytes(rank);
                world.memories[output].map(start, end, None, World::before(rank));
                let Spot { memory: input, start } = world.buffer(rank, Buffer::Input);
                let end = start + request.input_bytes(rank);
                let value = input_of(rank, start);
                world.memories[input].map(start, end, value, World::before(rank));
            }
        }
        Promise::SendReceive { transfers } => {
            for (rank, transfers) in (0..).zip(transfers) {
                let memory = world.addresses(rank);
                let of = |direction| transfers.iter().filter(move |it| it.direction == direction);
                for it in of(Direction::Receive) {
                    let end = it.address.saturating_add(it.bytes);
                    world.memories[memory].map(it.address, end, None, World::before(rank));
                }
                for it in of(Direction::Send) {
                    let (end, value) = (it.address.saturating_add(it.bytes), input_of(rank, 0));
                    world.memories[memory].map(it.address, end, value, World::before(rank));
                }
            }
        }
    }
}

/// Runs all blocks until they end, or until none can move.
fn run(world: &mut World, blocks: &mut [Block<'_>]) -> Result<(), VerifyError> {
    loop {
        let (mut moved, mut stuck) = (false, false);
        for block in blocks.iter_mut() {
            loop {
                match world.step(block) {
                    Ok(Step::Taken) => moved = true,
                    Ok(Step::Ended) => break,
                    Ok(Step::Waiting { .. }) => {
                        stuck = true;
                        break;
                    }
                    Err(reason) => return Err(VerifyError::new(block.site(), reason)),
                }
            }
        }
        if !stuck {
            return Ok(());
        }
        if !moved {
            return Err(deadlock(world, blocks));
        }
    }
}

fn deadlock(world: &mut World, blocks: &mut [Block<'_>]) -> VerifyError {
    let mut list = Vec::new();
    for block in blocks {
        if let Ok(Step::Waiting { expected, seen }) = world.step(block) {
            list.push(Stuck { site: block.site(), expected, seen });
        }
    }
    VerifyError::new(Site::Plan, Reason::Deadlock(list))
}

/// Signals, positions and credits agree at both ends of each lane.
fn check_lanes(world: &World, blocks: &[Block<'_>]) -> Result<(), VerifyError> {
    let unused =
        Port { lane: 0, side: Side::Send, position: 0, completion_position: 0, observed: 0 };
    let mut ends = vec![[unused; 2]; world.lanes.len()];
    for port in blocks.iter().flat_map(|block| &block.ports) {
        ends[port.lane][usize::from(port.side == Side::Receive)] = *port;
    }
    for (lane, [send, receive]) in world.lanes.iter().zip(ends) {
        let (arrivals, credits) = (lane.arrivals.raised, lane.credits.raised);
        let completions = lane.completions.raised;
        // On an LL lane there are no credits: its messages count.
        let freed = if lane.is_low_latency() { lane.puts } else { credits };
        let mut rules = vec![
            ("position of the receive port after all arrivals", arrivals, receive.position),
            ("position of the send port after all credits", freed, send.position),
            ("completion position of the send port", completions, send.completion_position),
            // Data that nobody waited for may land after the kernel has ended.
            ("arrivals waited for", arrivals, receive.observed.min(arrivals)),
        ];
        if lane.slotted() {
            rules.push(("credits for all messages", lane.puts, lane.freed(credits)));
            rules.push(("arrivals of all messages", lane.puts, arrivals));
        }
        if let Some(&(what, expected, seen)) = rules.iter().find(|rule| rule.1 != rule.2) {
            let reason = Reason::Unbalanced { what, expected, seen };
            return Err(VerifyError::new(Site::Lane(lane.id), reason));
        }
    }
    Ok(())
}

/// LL lanes carry messages in step, and all of them do: the next launch relies on it, for one
/// packed message has to have the right number for each lane.
fn check_step(world: &World) -> Result<(), VerifyError> {
    let low_latency: Vec<_> = world.lanes.iter().filter(|lane| lane.is_low_latency()).collect();
    let Some(first) = low_latency.first() else { return Ok(()) };
    let unbalanced = |lane: Lane, what, expected, seen| {
        let reason = Reason::Unbalanced { what, expected, seen };
        Err(VerifyError::new(Site::Lane(lane), reason))
    };
    for lane in &low_latency {
        if lane.puts != first.puts {
            return unbalanced(lane.id, "messages of each LL lane", first.puts, lane.puts);
        }
    }
    let ranks = world.rank_count as i64;
    let (expected, seen) = (ranks * (ranks - 1), low_latency.len() as i64);
    if seen != expected {
        return unbalanced(first.id, "LL lanes in use, all or none", expected, seen);
    }
    Ok(())
}

/// The caller's memory at the end of each rank's kernel: unused, and as promised.
fn check_memory(world: &World, blocks: &[Block<'_>], promise: &Promise) -> Result<(), VerifyError> {
    for rank in 0..world.rank_count as u32 {
        let mut end = Clock::new(&world.agents.everybody());
        for block in blocks.iter().filter(|block| block.rank == rank) {
            end.join(&block.clock);
        }
        // A rank without a launch of its own still has its memory.
        end.join(&before(world, rank));
        for memory in world.user_memories(rank) {
            check_unused(world, memory, &end)?;
        }
        match promise {
            Promise::Collective(request) => {
                check_delivered(world, rank, request)?;
                if request.collective == Collective::Barrier {
                    check_met(world, rank, &end)?;
                }
            }
            Promise::SendReceive { transfers } => check_received(world, rank, transfers)?,
        }
    }
    Ok(())
}

/// Where the promise puts a rank's input and output.
fn binding(promise: &Promise, rank: u32) -> Binding {
    match promise {
        Promise::Collective(request) if request.in_place_on(rank) => {
            let (input, output) = request.in_place_offsets(rank);
            Binding { shared: true, input, output }
        }
        _ => Binding::default(),
    }
}

/// The output is as promised. Of memory that it shares with the input, the rest is as it was.
fn check_delivered(
    world: &World,
    rank: u32,
    request: &CollectiveRequest,
) -> Result<(), VerifyError> {
    let Spot { memory, start } = world.buffer(rank, Buffer::Output);
    for Delivery { offset, source, from } in request.deliveries(rank) {
        let at = start + offset;
        let shift = source.wrapping_sub(at) as i64;
        let (scaled, finished) = match from {
            None => (world.rules.scales.into(), world.rules.finishes.into()),
            Some(_) => (0, 0),
        };
        let ranks = from.map_or(0..request.rank_count, |rank| rank..rank + 1);
        let terms = ranks.map(|rank| Term { rank, shift, scaled }).collect();
        check_range(world, memory, at..at + request.bytes, &Sum { terms, finished })?;
    }
    let output = start..start + request.output_bytes(rank);
    let Spot { memory, start } = world.buffer(rank, Buffer::Input);
    let end = start + request.input_bytes(rank);
    let shared = world.bindings[rank as usize].shared;
    let kept = match shared {
        true => [start..output.start.clamp(start, end), output.end.clamp(start, end)..end],
        false => [start..end, end..end],
    };
    let terms = vec![Term { rank, shift: start.wrapping_neg() as i64, scaled: 0 }];
    let expected = Sum { terms, finished: 0 };
    for range in kept.into_iter().filter(|range| !range.is_empty()) {
        check_range(world, memory, range, &expected)?;
    }
    Ok(())
}

/// The rank's end comes after every rank's beginning.
fn check_met(world: &World, rank: u32, end: &Clock) -> Result<(), VerifyError> {
    let missed = (0..world.rank_count as u32).find(|other| !end.knows(World::before(*other)));
    match missed {
        Some(other) => Err(VerifyError::new(Site::Rank { rank }, Reason::NotMet { other })),
        None => Ok(()),
    }
}

fn before(world: &World, rank: u32) -> Clock {
    let mut clock = Clock::new(&world.agents.everybody());
    clock.tick(rank);
    clock
}

fn check_unused(world: &World, memory: usize, end: &Clock) -> Result<(), VerifyError> {
    let Err(Fault::Race { start, end, other, other_wrote }) =
        world.memories[memory].unfinished(end)
    else {
        return Ok(());
    };
    let site = Site::Memory { memory: world.memory_name(memory), start, end };
    let access = if other_wrote { Access::Write } else { Access::Read };
    let other = world.agent_name(other.agent);
    Err(VerifyError::new(site, Reason::Unfinished { access, other }))
}

fn check_received(
    world: &World,
    rank: u32,
    world_list: &[Vec<PointToPoint>],
) -> Result<(), VerifyError> {
    let mut numbers = BTreeMap::new();
    let receives = |it: &&PointToPoint| it.direction == Direction::Receive;
    for receive in world_list[rank as usize].iter().filter(receives) {
        let number: &mut usize = numbers.entry(receive.peer).or_default();
        let sends = world_list.get(receive.peer as usize).into_iter().flatten();
        let sent = sends
            .filter(|it| it.direction == Direction::Send && it.peer == rank)
            .nth(*number)
            .filter(|it| it.bytes == receive.bytes);
        *number += 1;
        let Some(sent) = sent else {
            let expected = "a send of the same size for each receive of a group";
            let what = "bytes of a receive without its send";
            let reason = Reason::Shape { what, expected, seen: receive.bytes };
            return Err(VerifyError::new(Site::Rank { rank }, reason));
        };
        let shift = sent.address.wrapping_sub(receive.address) as i64;
        let terms = vec![Term { rank: receive.peer, shift, scaled: 0 }];
        let range = receive.address..receive.address.saturating_add(receive.bytes);
        check_range(world, world.addresses(rank), range, &Sum { terms, finished: 0 })?;
    }
    Ok(())
}

fn check_range(
    world: &World,
    memory: usize,
    range: Range<u64>,
    expected: &Sum,
) -> Result<(), VerifyError> {
    let describe = |value: &Value| match value {
        Some(sum) => sum.to_string(),
        None => "nothing".to_owned(),
    };
    for (start, end, value) in world.memories[memory].cells(range.start, range.end) {
        if value.as_deref() != Some(expected) {
            let site = Site::Memory { memory: world.memory_name(memory), start, end };
            let expected = describe(&Some(expected.clone().into()));
            let reason = Reason::WrongResult { expected, seen: describe(value) };
            return Err(VerifyError::new(site, reason));
        }
    }
    Ok(())
}
