//! What can be checked op by op, without running anything.

use super::super::display::Named;
use super::super::encode::{ENCODED_BYTES_MAX, encoded_bytes};
use super::super::packed::pack_of;
use super::super::{
    BlockProgram, Buffer, GRANULE_BYTES, LaneEnd, LaneKind, Op, Operand, Plan, Range, Segment,
    Side, SlotShape,
};
use super::error::{Reason, Site, VerifyError};
use super::world::{Move, Raises};
use ringdove_kernels::descriptor::LENGTH_BYTES_MAX;
use ringdove_kernels::op::{BLOCK_PORTS_MAX, MESSAGES_MAX, THREADS_MAX, ll_bytes};
use std::collections::HashMap;

/// Bounds the work of unrolling a plan.
const UNROLLED_OPS_MAX: u64 = 1 << 26;
/// No offset reaches this, so that sums of offsets cannot wrap.
const OFFSET_END: u64 = 1 << 62;

/// Checks the plan's shape and every op's operands.
pub(super) fn check(plan: &Plan) -> Result<(), VerifyError> {
    let shape =
        |what, expected, seen| VerifyError::new(Site::Plan, Reason::Shape { what, expected, seen });
    let threads = plan.thread_count;
    if !(32..=THREADS_MAX).contains(&threads) || !threads.is_multiple_of(32) {
        return Err(shape("threads", "a multiple of 32 up to 640", u64::from(threads)));
    }
    let SlotShape { bytes, count } = plan.slots;
    if bytes == 0 || !u64::from(bytes).is_multiple_of(GRANULE_BYTES) {
        return Err(shape("slot bytes", "a multiple of 16", u64::from(bytes)));
    }
    if !count.is_power_of_two() {
        return Err(shape("slots", "a power of two", u64::from(count)));
    }
    one_kind_of_slots(plan)?;
    for (rank, program) in (0..).zip(&plan.ranks) {
        let blocks = program.blocks.len() as u64;
        if blocks == 0 || blocks > 1 << 16 {
            return Err(shape("blocks", "1 to 65536 for each rank", blocks));
        }
        let encoded = encoded_bytes(program);
        if encoded > ENCODED_BYTES_MAX {
            return Err(shape("encoded bytes of a rank", "at most 80 MiB", encoded));
        }
        let mut users = HashMap::new();
        for (number, block) in (0..).zip(&program.blocks) {
            ports(plan, rank, number, block, &mut users)?;
            Operands { plan, rank, number, block }.check()?;
        }
    }
    Ok(())
}

/// Refuses a plan that is too long to be unrolled.
pub(super) fn check_length(plan: &Plan) -> Result<(), VerifyError> {
    let blocks = plan.ranks.iter().flat_map(|program| &program.blocks);
    let steps = |op: &Op| match *op {
        Op::Credit { messages, .. } => u64::from(messages),
        _ => 1,
    };
    let ops =
        |segment: &Segment| segment.ops.iter().map(steps).sum::<u64>() * u64::from(segment.rounds);
    let unrolled: u64 = blocks.flat_map(|block| &block.segments).map(ops).sum();
    if unrolled > UNROLLED_OPS_MAX {
        let (what, expected) = ("ops in all rounds", "at most 2^26");
        let reason = Reason::Shape { what, expected, seen: unrolled };
        return Err(VerifyError::new(Site::Plan, reason));
    }
    Ok(())
}

/// `Plan::slots` speaks of one kind of lane.
fn one_kind_of_slots(plan: &Plan) -> Result<(), VerifyError> {
    let blocks = || plan.ranks.iter().flat_map(|rank| &rank.blocks);
    let uses = |kind| blocks().flat_map(|block| &block.ports).any(|end| end.lane.kind == kind);
    let reason = |what, expected, seen| {
        Err(VerifyError::new(Site::Plan, Reason::Shape { what, expected, seen }))
    };
    if uses(LaneKind::LowLatency) && plan.slots.count < 2 {
        return reason("slots of LL lanes", "at least 2", u64::from(plan.slots.count));
    }
    // Lanes of rails have the shape of lanes of stores.
    let stores = uses(LaneKind::Stores) || uses(LaneKind::Rail);
    let kinds = [uses(LaneKind::LowLatency), uses(LaneKind::Slots), stores];
    let kinds = kinds.into_iter().filter(|uses| *uses).count() as u64;
    if kinds > 1 {
        return reason("kinds of lanes with slots", "one", kinds);
    }
    Ok(())
}

fn ports(
    plan: &Plan,
    rank: u32,
    number: u32,
    block: &BlockProgram,
    users: &mut HashMap<LaneEnd, u32>,
) -> Result<(), VerifyError> {
    let fail = |reason| Err(VerifyError::new(Site::Block { rank, block: number }, reason));
    if block.ports.len() > BLOCK_PORTS_MAX {
        let seen = block.ports.len() as u64;
        return fail(Reason::Shape { what: "ports", expected: "at most 32 for each block", seen });
    }
    for &port in &block.ports {
        let lane = port.lane;
        let exists = lane.from.max(lane.to) < plan.ranks.len() as u32 && lane.from != lane.to;
        if port.rank() != rank || !exists {
            return fail(Reason::ForeignPort { port });
        }
        if lane.kind == LaneKind::User {
            return fail(Reason::WrongPort { port, rule: "a user lane is in no plan" });
        }
        if let Some(other) = users.insert(port, number) {
            return fail(Reason::SharedPort { port, other });
        }
    }
    Ok(())
}

/// One block's ops.
struct Operands<'a> {
    plan: &'a Plan,
    rank: u32,
    number: u32,
    block: &'a BlockProgram,
}

impl Operands<'_> {
    fn check(&self) -> Result<(), VerifyError> {
        for (segment_number, segment) in (0..).zip(&self.block.segments) {
            let span = u128::from(segment.rounds) * u128::from(segment.round_stride);
            if span >= u128::from(OFFSET_END) {
                let reason = Reason::Operands { rule: "rounds times stride fit 62 bits" };
                let site = Site::Block { rank: self.rank, block: self.number };
                return Err(VerifyError::new(site, reason));
            }
            for (place, op) in (0..).zip(&segment.ops) {
                let checked =
                    self.op(op).and_then(|()| self.is_packed(&segment.ops, place as usize));
                checked.map_err(|reason| {
                    let site = Site::Op {
                        rank: self.rank,
                        block: self.number,
                        segment: segment_number,
                        round: 0,
                        op: place,
                        text: Named { op, ports: &self.block.ports }.to_string(),
                    };
                    VerifyError::new(site, reason)
                })?;
            }
        }
        Ok(())
    }

    fn op(&self, op: &Op) -> Result<(), Reason> {
        let port = op.port().map(|port| self.port(port)).transpose()?;
        self.low_latency_lane(op, port)?;
        let need = |side, rule| match port {
            Some(port) if port.side != side => Err(Reason::WrongPort { port, rule }),
            _ => Ok(()),
        };
        if op.range().is_some_and(|range| range.extent >= OFFSET_END) {
            return Err(Reason::Operands { rule: "an extent fits 62 bits" });
        }
        if let Op::WaitSignal { value, .. } | Op::WaitCompletion { value, .. } = *op
            && value.unsigned_abs() >= OFFSET_END
        {
            return Err(Reason::Operands { rule: "the value of a wait fits 62 bits" });
        }
        match *op {
            Op::Copy { destination, source, range, .. } => {
                self.not_low_latency(&[destination, source])?;
                self.not_stored(&[source])?;
                self.written(destination)?;
                self.at_peers(destination, &[source])?;
                self.place(source, range)?;
                self.place(destination, range)
            }
            Op::Reduce { destination, a, b, range, .. } => {
                self.not_low_latency(&[destination, a, b])?;
                // A sum may grow in a slot that is not announced yet: `World::slot_access`.
                self.not_stored(&[a, b][..if b == destination { 1 } else { 2 }])?;
                self.written(destination)?;
                self.at_peers(destination, &[a, b])?;
                self.place(a, range)?;
                self.place(b, range)?;
                self.place(destination, range)
            }
            Op::Pack { port, source, range, .. } => {
                self.messages(port, 1, Side::Send, range)?;
                source.map_or(Ok(()), |source| self.local(source, range))
            }
            Op::Collect { destination, own, before, first, count, range, finish, .. } => {
                self.messages(first, count, Side::Receive, range)?;
                collected(destination.is_some(), own.is_some(), [before, count], finish)?;
                [own, destination].into_iter().flatten().try_for_each(|it| self.local(it, range))
            }
            Op::Put { destination, source, range, arrival, completion, .. } => {
                need(Side::Send, "only a send port puts")?;
                if u64::from(range.length) > LENGTH_BYTES_MAX {
                    return Err(Reason::Operands { rule: "a put moves at most 4 MiB" });
                }
                let moves = range.length > 0;
                if !arrival && !completion && !moves {
                    return Err(Reason::Operands { rule: "a put moves bytes or raises a signal" });
                }
                self.place(source, range)?;
                self.place(destination, range)?;
                aligned(source)?;
                aligned(destination)?;
                let raises = Raises { arrival, completion };
                self.put(op.port(), Move { destination, source, range }, raises)
            }
            Op::InSwitch(work) => Err(Reason::Planned { what: work.name() }),
            Op::Credit { messages, .. } => {
                need(Side::Receive, "only a receive port returns credits")?;
                match port {
                    _ if messages == 0 => {
                        Err(Reason::Operands { rule: "a credit is for a message at least" })
                    }
                    Some(port) if messages > 1 && port.lane.kind != LaneKind::Stores => {
                        let rule = "lanes of stores alone return several credits at once";
                        Err(Reason::WrongPort { port, rule })
                    }
                    _ => Ok(()),
                }
            }
            Op::Grant { place, .. } => {
                need(Side::Receive, "only a receive port grants")?;
                match port {
                    Some(port) if port.lane.kind != LaneKind::Slots => {
                        Err(Reason::WrongPort { port, rule: "lanes with slots alone are granted" })
                    }
                    _ => place.map_or(Ok(()), |place| {
                        self.place(Operand::Address(place), Range { extent: 0, length: 0 })
                    }),
                }
            }
            Op::WaitCompletion { .. } => need(Side::Send, "only a send port has completions"),
            Op::WaitSignal { .. } => Ok(()),
            Op::Advance { completions, .. } => {
                if completions == 0 {
                    return Ok(());
                }
                need(Side::Send, "only a send port has completions")
            }
        }
    }

    /// A put goes from slot to slot, or between buffers, or from either, on a lane with slots, to
    /// what the peer has granted.
    fn put(
        &self,
        port: Option<u16>,
        Move { destination, source, .. }: Move,
        Raises { arrival, completion }: Raises,
    ) -> Result<(), Reason> {
        let Some(port) = port else { return Ok(()) };
        let kind = self.port(port)?.lane.kind;
        let rule = match (kind, source, destination) {
            (
                kind @ (LaneKind::Slots | LaneKind::LowLatency | LaneKind::Stores | LaneKind::Rail),
                Operand::Slot { port: from, message: sent, offset: read },
                Operand::Slot { port: to, message: put, offset: written },
            ) => {
                // From the port's own slot, or straight from where a message arrived, or from where
                // an LL message was packed.
                let low_latency = kind == LaneKind::LowLatency;
                let arrived = self.port(from)?.side == Side::Receive;
                let packed = self.is_low_latency(from)? && !arrived;
                if to != port {
                    "a put through slots goes to a message of its own port"
                } else if low_latency && !(packed && (read, written) == (0, 0)) {
                    "an LL message goes from where it was packed, as a whole"
                } else if low_latency && sent != put {
                    "an LL message has one number on all lanes"
                } else if low_latency && (arrival || completion) {
                    "an LL message raises no signal"
                } else if !(low_latency || arrived || (from, sent) == (port, put)) {
                    "a put through slots comes from the same message or from one that arrived"
                } else if kind == LaneKind::Stores && (arrived || completion) {
                    "a put on a lane of stores announces what the block has stored"
                } else if !low_latency && !arrival {
                    "a message in a slot announces itself"
                } else {
                    return Ok(());
                }
            }
            (
                LaneKind::Slots,
                source,
                Operand::Slot { port: to, message: put, .. }
                | Operand::Granted { port: to, message: put, .. },
            ) => match source {
                _ if to != port => "a put through slots goes to a message of its own port",
                _ if !arrival => "a message in a slot announces itself",
                Operand::Slot { port: from, message: sent, .. } if (from, sent) != (port, put) => {
                    "a put into what is granted comes from the slot of the same message"
                }
                Operand::Buffer { buffer: Buffer::Output | Buffer::Scratch, .. } => {
                    "a put into a slot comes from a slot, the input or an address"
                }
                Operand::Granted { .. } => "nothing is read from what a peer has granted",
                Operand::Peer { .. } => "an engine reads memory of its own rank",
                _ => return Ok(()),
            },
            (
                LaneKind::Direct,
                Operand::Buffer { buffer: Buffer::Input | Buffer::Output, .. },
                Operand::Buffer { buffer: Buffer::Input | Buffer::Output, .. },
            ) => return Ok(()),
            (LaneKind::Slots | LaneKind::LowLatency | LaneKind::Stores | LaneKind::Rail, ..) => {
                "a slotted lane moves slots"
            }
            (LaneKind::Direct, ..) => "a direct lane moves registered buffers",
            (LaneKind::User, ..) => "a user lane is in no plan",
        };
        Err(Reason::Operands { rule })
    }

    fn is_low_latency(&self, port: u16) -> Result<bool, Reason> {
        Ok(self.port(port)?.lane.kind == LaneKind::LowLatency)
    }

    /// An LL message is put in the segment that packs it, because an encoded pack names the ports
    /// that send its message: see [`pack_of`].
    fn is_packed(&self, ops: &[Op], place: usize) -> Result<(), Reason> {
        match ops[place] {
            Op::Put { port, destination: Operand::Slot { message, .. }, .. }
                if self.is_low_latency(port)? && pack_of(ops, place).is_none() =>
            {
                Err(Reason::NotPacked { message: message.into() })
            }
            _ => Ok(()),
        }
    }

    /// On an LL lane there are no signals, and so no credits and no waits for them.
    fn low_latency_lane(&self, op: &Op, port: Option<LaneEnd>) -> Result<(), Reason> {
        let signals =
            matches!(op, Op::Credit { .. } | Op::WaitSignal { .. } | Op::WaitCompletion { .. });
        match port {
            Some(port) if signals && port.lane.kind == LaneKind::LowLatency => {
                Err(Reason::WrongPort { port, rule: "an LL lane has no signals" })
            }
            _ => Ok(()),
        }
    }

    /// The ports of a pack or collect, and whether their slots hold so much.
    fn messages(&self, first: u16, count: u16, side: Side, range: Range) -> Result<(), Reason> {
        if !(1..=MESSAGES_MAX).contains(&usize::from(count)) {
            return Err(Reason::Operands { rule: "an op packs or collects 1 to 15 messages" });
        }
        for place in first..=first.saturating_add(count - 1) {
            let port = self.port(place)?;
            if port.lane.kind != LaneKind::LowLatency || port.side != side {
                let rule = "LL lanes alone pack at send ports and collect at receive ports";
                return Err(Reason::WrongPort { port, rule });
            }
        }
        self.fits(0, u64::from(range.length), true)
    }

    /// Memory of the rank itself, and no slot.
    fn local(&self, place: Operand, range: Range) -> Result<(), Reason> {
        match place {
            Operand::Slot { .. } | Operand::Granted { .. } | Operand::Peer { .. } => {
                Err(Reason::Operands { rule: "messages go between slots and memory" })
            }
            _ => self.place(place, range),
        }
    }

    fn fits(&self, offset: u64, length: u64, low_latency: bool) -> Result<(), Reason> {
        let slot_bytes = self.plan.slots.bytes;
        let taken = if low_latency { ll_bytes(length) } else { length };
        if offset > u64::from(slot_bytes) || offset + taken > u64::from(slot_bytes) {
            return Err(Reason::OutsideSlot { offset, length: taken, slot_bytes });
        }
        Ok(())
    }

    fn port(&self, port: u16) -> Result<LaneEnd, Reason> {
        let ports = self.block.ports.len();
        self.block.ports.get(usize::from(port)).copied().ok_or(Reason::UnknownPort { port, ports })
    }

    /// Engines alone write the slots at a receive port, but for those of stores: what has arrived
    /// there is the receiver's, who may reduce into it, until it returns the slot.
    fn written(&self, place: Operand) -> Result<(), Reason> {
        match place {
            Operand::Granted { .. } => {
                Err(Reason::Operands { rule: "only the engine writes what a peer has granted" })
            }
            Operand::Slot { port, .. } if self.is_engines(self.port(port)?) => {
                Err(Reason::Operands { rule: "only the engine writes the slots at a receive port" })
            }
            _ => Ok(()),
        }
    }

    /// Threads reach a peer's buffers along lanes of stores, data goes as messages of the lane do,
    /// and an op crosses one link at most.
    fn at_peers(&self, destination: Operand, sources: &[Operand]) -> Result<(), Reason> {
        let sides = sources.iter().map(|source| (*source, Side::Receive));
        let mut crossings = 0;
        for (place, side) in sides.chain([(destination, Side::Send)]) {
            let Operand::Peer { port, buffer, .. } = place else { continue };
            let end = self.port(port)?;
            if end.lane.kind != LaneKind::Stores || end.side != side {
                let rule = "a peer's buffer is read at a receive port and written at a send port \
                            of a lane of stores";
                return Err(Reason::WrongPort { port: end, rule });
            }
            if buffer == Buffer::Scratch {
                return Err(Reason::Operands { rule: "scratch memory is the rank's own" });
            }
            crossings += 1;
        }
        match crossings {
            0 | 1 => Ok(()),
            _ => Err(Reason::Operands { rule: "an op reaches one peer at most" }),
        }
    }

    /// Does an engine write the slots at this end?
    fn is_engines(&self, end: LaneEnd) -> bool {
        end.side == Side::Receive && end.lane.kind != LaneKind::Stores
    }

    /// An LL slot holds nothing but LL messages, for what else stood there could be taken
    /// for one.
    fn not_low_latency(&self, places: &[Operand]) -> Result<(), Reason> {
        for place in places {
            if let Operand::Slot { port, .. } = *place
                && self.is_low_latency(port)?
            {
                let rule = "only pack, put and collect touch the slots of an LL lane";
                return Err(Reason::Operands { rule });
            }
        }
        Ok(())
    }

    /// What was stored is the receiver's to read, and the sender's alone to add to.
    fn not_stored(&self, places: &[Operand]) -> Result<(), Reason> {
        for place in places {
            if let Operand::Slot { port, .. } = *place
                && let LaneEnd { lane, side: Side::Send } = self.port(port)?
                && lane.kind == LaneKind::Stores
            {
                let rule = "only a sum that grows there reads a slot at a send port of a lane of \
                            stores";
                return Err(Reason::Operands { rule });
            }
        }
        Ok(())
    }

    fn place(&self, place: Operand, range: Range) -> Result<(), Reason> {
        match place {
            // The port is looked at by `at_peers`, which is asked before.
            Operand::Buffer { offset, .. } | Operand::Peer { offset, .. } => {
                if offset >= OFFSET_END {
                    return Err(Reason::Operands { rule: "an offset fits 62 bits" });
                }
                // Parts of odd sizes start anywhere: executor and engines cope with that.
                Ok(())
            }
            // Bounds of addresses are checked where they are used; this keeps sums from wrapping.
            Operand::Address(address) if address >= OFFSET_END * 2 => {
                Err(Reason::Operands { rule: "an address fits 63 bits" })
            }
            Operand::Address(_) => Ok(()),
            Operand::Granted { port, offset, .. } => {
                self.port(port)?;
                match offset < OFFSET_END {
                    true => self.fits(0, u64::from(range.length), false),
                    false => Err(Reason::Operands { rule: "an offset fits 62 bits" }),
                }
            }
            Operand::Slot { port, offset, .. } => {
                let end = self.port(port)?;
                let low_latency = end.lane.kind == LaneKind::LowLatency;
                if end.lane.kind == LaneKind::Direct {
                    return Err(Reason::WrongPort {
                        port: end,
                        rule: "a direct lane has no slots",
                    });
                }
                // Parts of odd sizes stand anywhere in a message that holds several.
                self.fits(offset, u64::from(range.length), low_latency)
            }
        }
    }
}

/// A collect reduces messages and the rank's own term, or copies one message, or only waits.
fn collected(
    has_destination: bool,
    has_own: bool,
    [before, count]: [u16; 2],
    finish: bool,
) -> Result<(), Reason> {
    let rule = match (has_destination, has_own) {
        (true, true) if before > count => "the rank's own term is one of count + 1",
        (false, true) => "what is written nowhere needs no term of the rank's own",
        (_, false) if before > 0 => "nothing comes before a term that there is not",
        (true, false) if count > 1 => "one message alone is copied",
        (_, false) if finish => "what is not reduced is not finished",
        _ => return Ok(()),
    };
    Err(Reason::Operands { rule })
}

/// What an engine moves from or to a slot starts as slots do.
fn aligned(place: Operand) -> Result<(), Reason> {
    let alignment = GRANULE_BYTES;
    match place {
        Operand::Slot { offset: value, .. } if !value.is_multiple_of(alignment) => {
            Err(Reason::Misaligned { value, alignment })
        }
        _ => Ok(()),
    }
}
