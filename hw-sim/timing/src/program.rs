//! Encoded plans, decoded once into a compact form for all ranks.

use bytemuck::Pod;
use ringdove_kernels::descriptor::LENGTH_BYTES_MAX;
use ringdove_kernels::op::{
    self as wire, BLOCK_PORTS_MAX, MESSAGES_MAX, OpCode, PLAN_MAGIC, PlanHeader, Space, flags,
};
use rustc_hash::{FxBuildHasher, FxHashMap};
use std::hash::BuildHasher;

/// A lane: the unit of order, from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lane {
    /// The rank that puts.
    pub from: u32,
    /// The rank that receives.
    pub to: u32,
    /// Tells lanes between the same two ranks apart.
    pub index: u32,
    /// The sender's blocks write into the receiver's slots, if the engine is the proxy and both
    /// ranks are on one node.
    pub stores: bool,
}

/// One entry of a rank's port table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Port {
    /// The lane.
    pub lane: Lane,
    /// At its source; else at its destination.
    pub sends: bool,
}

/// Program of one rank: an encoded plan, and the port table that its port lists refer to.
#[derive(Clone, Debug, Default)]
pub struct RankProgram {
    /// As [`ringdove_kernels::op`] lays it out.
    pub encoded: Vec<u8>,
    /// The table.
    pub ports: Vec<Port>,
}

/// Programs of all ranks, made when they are asked for: a large world is never all in memory in
/// its encoded form.
pub trait Programs {
    /// Number of ranks; rank `i` runs on GPU `i`.
    fn rank_count(&self) -> u32;
    /// The program of one rank.
    fn program(&self, rank: u32) -> RankProgram;
}

impl Programs for Vec<RankProgram> {
    fn rank_count(&self) -> u32 {
        self.len() as u32
    }

    fn program(&self, rank: u32) -> RankProgram {
        self[rank as usize].clone()
    }
}

/// Why an encoded plan cannot be played.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("plan of rank {rank}: {what}: expected {expected}, got {seen}")]
pub struct ProgramError {
    /// Whose program.
    pub rank: u32,
    /// The wrong item.
    pub what: String,
    /// The accepted values.
    pub expected: String,
    /// The object.
    pub seen: String,
}

/// An op, as far as time depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Op {
    pub code: OpCode,
    pub flags: u8,
    /// Place in the block's list of ports; of a copy into a send slot: that slot's; of a copy from
    /// or into a peer's memory: that peer's.
    pub port: u16,
    pub length: u32,
    pub extent: u64,
    /// `Wait*`, `Advance`: signals. `Put`: where the source starts. `Collect`: ports. `Pack`: the
    /// set of ports that send the message. `Copy`, `Reduce`: how many ops behind it may share its
    /// pass.
    pub value: i64,
    /// `Advance`: completions. `Put`: where the destination starts. `Collect`: the message.
    pub other: u64,
}

impl Op {
    /// `Pack`: the places of the ports that send the message.
    pub(crate) fn places(self) -> impl Iterator<Item = u32> {
        (0..u64::BITS).filter(move |place| self.value >> place & 1 != 0)
    }
}

/// Set in [`Op::flags`] of a put between slots.
pub(crate) const FROM_SLOT: u8 = 0x40;
/// Set in [`Op::flags`] of a put out of another port's slot: no pass has moved its data yet.
pub(crate) const FORWARDS: u8 = 0x20;
/// Set in [`Op::flags`] of a copy or reduction into a slot.
pub(crate) const INTO_SLOT: u8 = 0x80;
/// Set in [`Op::flags`] of a reduction into a slot that adds to what is there.
pub(crate) const READS_BACK: u8 = 0x04;
/// Set in [`Op::flags`] of a copy or reduction into memory of a send port's peer, or from that of a
/// receive port's.
pub(crate) const AT_PEER: u8 = 0x08;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ScriptSegment {
    /// The first, counted from the first of its block's script.
    pub ops: u32,
    pub op_count: u32,
    pub rounds: u32,
    pub stride: u64,
    pub limit: u64,
}

/// A port of a block: positions are those of a lane that was never used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockPort {
    pub lane: u32,
    pub sends: bool,
    pub position: i64,
    pub completion_position: i64,
}

/// What a block does, apart from which lanes its ports are on. Blocks that do the same share it: in
/// a world of equal ranks there are a few scripts, which stay in the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Script {
    pub segments: u32,
    pub segment_count: u32,
    pub ops: u32,
    pub op_count: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockCode {
    pub rank: u32,
    /// Which of the scripts.
    pub script: u32,
    pub ports: u32,
    pub port_count: u32,
}

/// The port at which a lane begins, and the one at which it ends, in [`Code::ports`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct LanePorts {
    pub send: u32,
    pub receive: u32,
}

/// Not known yet.
const NO_PORT: u32 = u32::MAX;

/// All ranks' programs.
#[derive(Default)]
pub(crate) struct Code {
    pub blocks: Vec<BlockCode>,
    pub scripts: Vec<Script>,
    pub segments: Vec<ScriptSegment>,
    pub ops: Vec<Op>,
    pub ports: Vec<BlockPort>,
    pub lanes: Vec<Lane>,
    /// Where each lane begins and ends.
    pub ends: Vec<LanePorts>,
    /// Blocks of each rank.
    pub blocks_of: Vec<u32>,
    /// The node that is played in place of each node; empty: itself.
    pub stand_ins: Vec<u32>,
}

/// State of the reader.
#[derive(Default)]
struct Loading {
    lanes: FxHashMap<Lane, u32>,
    /// Scripts by the hash of what is in them.
    scripts: FxHashMap<u64, Vec<u32>>,
}

impl Code {
    /// Decodes every rank's program.
    pub fn load(programs: &impl Programs) -> Result<Self, ProgramError> {
        let mut code = Self::default();
        let mut loading = Loading::default();
        for rank in 0..programs.rank_count() {
            let program = programs.program(rank);
            let reader = Reader { rank, bytes: &program.encoded };
            let first_port = code.ports.len();
            code.read_rank(&reader, &program.ports, &mut loading)?;
            code.join_lanes(rank, first_port)?;
        }
        let lonely = |ends: &LanePorts| ends.send == NO_PORT || ends.receive == NO_PORT;
        if let Some(lane) = code.ends.iter().position(lonely).map(|number| code.lanes[number]) {
            return Err(ProgramError {
                rank: lane.from,
                what: format!("lane {} to {}", lane.from, lane.to),
                expected: "a block at both ends".into(),
                seen: "one at one end only".into(),
            });
        }
        Ok(code)
    }

    /// The node that is played in place of `node`.
    pub fn arrival(&self, node: usize) -> usize {
        self.stand_ins.get(node).map_or(node, |&it| it as usize)
    }

    /// Notes the ends of lanes at a rank's ports: each end of a lane is there once.
    fn join_lanes(&mut self, rank: u32, first_port: usize) -> Result<(), ProgramError> {
        let nowhere = LanePorts { send: NO_PORT, receive: NO_PORT };
        self.ends.resize(self.lanes.len(), nowhere);
        for (number, port) in (first_port as u32..).zip(&self.ports[first_port..]) {
            let lane = self.lanes[port.lane as usize];
            let here = if port.sends { lane.from } else { lane.to };
            let ends = &mut self.ends[port.lane as usize];
            let end = if port.sends { &mut ends.send } else { &mut ends.receive };
            if here != rank || *end != NO_PORT {
                let expected = "each end of a lane at one block of its own rank".to_owned();
                let what = format!("lane {} to {}", lane.from, lane.to);
                let seen = if here == rank { "a second block" } else { "another rank" }.into();
                return Err(ProgramError { rank, what, expected, seen });
            }
            *end = number;
        }
        Ok(())
    }

    fn read_rank(
        &mut self,
        reader: &Reader<'_>,
        table: &[Port],
        loading: &mut Loading,
    ) -> Result<(), ProgramError> {
        let header: PlanHeader = reader.record(0, "header")?;
        if header.magic != PLAN_MAGIC {
            let (expected, seen) = (format!("{PLAN_MAGIC:#x}"), format!("{:#x}", header.magic));
            return reader.wrong("magic number", expected, seen);
        }
        self.blocks_of.push(header.block_count);
        for number in 0..u64::from(header.block_count) {
            let at = size_of::<PlanHeader>() as u64;
            let at = at + number * size_of::<wire::BlockProgram>() as u64;
            let block: wire::BlockProgram = reader.record(at, "block")?;
            if block.port_count as usize > BLOCK_PORTS_MAX {
                let expected = format!("at most {BLOCK_PORTS_MAX}");
                return reader.wrong("ports of a block", expected, block.port_count);
            }
            let ports = self.ports.len() as u32;
            for place in 0..u64::from(block.port_count) {
                let number: u32 = reader.record(u64::from(block.ports) + 4 * place, "port")?;
                let Some(port) = table.get(number as usize) else {
                    return reader.wrong("port", format!("less than {}", table.len()), number);
                };
                let lanes = &mut self.lanes;
                let lane = *loading.lanes.entry(port.lane).or_insert_with(|| {
                    lanes.push(port.lane);
                    lanes.len() as u32 - 1
                });
                let sends = port.sends;
                self.ports.push(BlockPort { lane, sends, position: 0, completion_position: 0 });
            }
            let script = self.read_script(reader, &block, ports, loading)?;
            let port_count = block.port_count;
            self.blocks.push(BlockCode { rank: reader.rank, script, ports, port_count });
        }
        Ok(())
    }

    /// Reads what a block does, and finds or makes the script that says so.
    fn read_script(
        &mut self,
        reader: &Reader<'_>,
        block: &wire::BlockProgram,
        ports: u32,
        loading: &mut Loading,
    ) -> Result<u32, ProgramError> {
        let (segments, ops) = (self.segments.len(), self.ops.len());
        for place in 0..u64::from(block.segment_count) {
            let at = u64::from(block.segments) + place * size_of::<wire::Segment>() as u64;
            self.read_segment(reader, at, block, ports, ops)?;
        }
        let hash = FxBuildHasher.hash_one((&self.segments[segments..], &self.ops[ops..]));
        let same = loading.scripts.entry(hash).or_default();
        let is_this = |&&number: &&u32| {
            let script = self.scripts[number as usize];
            self.segments_of(script) == &self.segments[segments..]
                && self.ops_of(script) == &self.ops[ops..]
        };
        if let Some(&known) = same.iter().find(is_this) {
            self.segments.truncate(segments);
            self.ops.truncate(ops);
            return Ok(known);
        }
        let number = self.scripts.len() as u32;
        same.push(number);
        self.scripts.push(Script {
            segments: segments as u32,
            segment_count: block.segment_count,
            ops: ops as u32,
            op_count: (self.ops.len() - ops) as u32,
        });
        Ok(number)
    }

    /// Ops that all blocks run, over all rounds.
    pub fn ops_to_play(&self) -> u64 {
        let of_script = |script: &Script| -> u64 {
            let segments = self.segments_of(*script).iter();
            segments.map(|it| u64::from(it.op_count) * u64::from(it.rounds)).sum()
        };
        let of_scripts: Vec<u64> = self.scripts.iter().map(of_script).collect();
        self.blocks.iter().map(|block| of_scripts[block.script as usize]).sum()
    }

    fn segments_of(&self, script: Script) -> &[ScriptSegment] {
        let first = script.segments as usize;
        &self.segments[first..first + script.segment_count as usize]
    }

    fn ops_of(&self, script: Script) -> &[Op] {
        &self.ops[script.ops as usize..(script.ops + script.op_count) as usize]
    }

    fn read_segment(
        &mut self,
        reader: &Reader<'_>,
        at: u64,
        block: &wire::BlockProgram,
        first_port: u32,
        first_op: usize,
    ) -> Result<(), ProgramError> {
        let segment: wire::Segment = reader.record(at, "segment")?;
        let read = ScriptSegment {
            ops: (self.ops.len() - first_op) as u32,
            op_count: segment.op_count,
            rounds: segment.rounds,
            stride: segment.round_stride,
            limit: segment.limit,
        };
        self.segments.push(read);
        for place in 0..u64::from(segment.op_count) {
            let at = u64::from(segment.ops) + place * size_of::<wire::Op>() as u64;
            let mut op = decode(reader, &reader.record(at, "op")?)?;
            let names_port = !matches!(op.code, OpCode::Copy | OpCode::Reduce)
                || op.flags & (INTO_SLOT | AT_PEER) != 0;
            if names_port && u32::from(op.port) >= block.port_count {
                let expected = format!("less than {}", block.port_count);
                return reader.wrong("port of an op", expected, op.port);
            }
            let sends = names_port && self.ports[first_port as usize + usize::from(op.port)].sends;
            let needs = match op.code {
                OpCode::Put | OpCode::Pack | OpCode::WaitCompletion => Some(true),
                OpCode::Credit | OpCode::Grant | OpCode::Collect => Some(false),
                _ => None,
            };
            if op.code == OpCode::Collect {
                let first = first_port as usize + usize::from(op.port);
                let end = first_port as usize + block.port_count as usize;
                let ports = self.ports[first..end].iter().take_while(|port| !port.sends);
                let most = ports.count().min(MESSAGES_MAX) as i64;
                if !(1..=most).contains(&op.value) {
                    let expected = format!("1 to {most}, the receive ports from there on");
                    return reader.wrong("ports of Collect", expected, op.value);
                }
            }
            if op.code == OpCode::Pack {
                let ports = &self.ports[first_port as usize..][..block.port_count as usize];
                let sends = |place: u32| ports.get(place as usize).is_some_and(|port| port.sends);
                if let Some(place) = op.places().find(|&place| !sends(place)) {
                    return reader.wrong(
                        "port that sends a packed message",
                        "a send port".into(),
                        place,
                    );
                }
            }
            if needs.is_some_and(|needs| needs != sends) {
                let name = |sends| if sends { "a send port" } else { "a receive port" };
                let what = format!("port of {:?}", op.code);
                return reader.wrong(&what, name(!sends).to_owned(), name(sends));
            }
            op.extent = read.canonical_extent(&op);
            self.ops.push(op);
        }
        Ok(())
    }
}

impl ScriptSegment {
    /// Where an op stands matters only if it is clipped in some round. One that never is, stands as
    /// well at the start.
    fn canonical_extent(&self, op: &Op) -> u64 {
        let last = u64::from(self.rounds.saturating_sub(1)).saturating_mul(self.stride);
        let end = op.extent.saturating_add(op.length.into()).saturating_add(last);
        if end <= self.limit { 0 } else { op.extent }
    }
}

fn decode(reader: &Reader<'_>, op: &wire::Op) -> Result<Op, ProgramError> {
    let Some(code) = OpCode::from_code(op.code) else {
        return reader.wrong("op", "a code of ringdove_kernels::op".into(), op.code);
    };
    let mut flags = op.flags & (flags::ARRIVAL | flags::COMPLETION | flags::LOW_LATENCY);
    let mut decoded =
        Op { code, flags, port: op.port, length: op.length, extent: op.extent, value: 0, other: 0 };
    match code {
        OpCode::Put => {
            if u64::from(op.length) > LENGTH_BYTES_MAX {
                let expected = format!("at most {LENGTH_BYTES_MAX} bytes");
                return reader.wrong("put", expected, op.length);
            }
            let is_slot = op.a.space == Space::Slot as u8;
            if is_slot {
                flags |= FROM_SLOT;
            }
            if is_slot && op.a.port != op.port {
                flags |= FORWARDS;
            }
            let place = |operand: &wire::Operand| match is_slot {
                true => u64::from(operand.number),
                false => operand.offset,
            };
            decoded.value = place(&op.a) as i64;
            decoded.other = place(&op.destination);
        }
        OpCode::WaitSignal | OpCode::WaitCompletion | OpCode::Pack | OpCode::Credit => {
            decoded.value = op.value;
        }
        OpCode::Collect => (decoded.value, decoded.other) = (op.value, op.b.number.into()),
        OpCode::Advance => (decoded.value, decoded.other) = (op.value, op.destination.offset),
        OpCode::Copy | OpCode::Reduce => {
            decoded.value = op.value;
            if let Some(port) = at_peer(op) {
                flags |= AT_PEER;
                decoded.port = port;
            } else if op.destination.space == Space::Slot as u8 {
                flags |= INTO_SLOT;
                decoded.port = op.destination.port;
                if code == OpCode::Reduce && op.b == op.destination {
                    flags |= READS_BACK;
                }
            }
        }
        OpCode::Grant => decoded.value = 1,
    }
    decoded.flags = flags;
    Ok(decoded)
}

/// The port whose peer's memory a copy or reduction reads or writes.
fn at_peer(op: &wire::Op) -> Option<u16> {
    let places = [&op.destination, &op.a, &op.b];
    places.into_iter().find(|place| place.space == Space::Peer as u8).map(|place| place.port)
}

struct Reader<'a> {
    rank: u32,
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn record<T: Pod>(&self, at: u64, what: &str) -> Result<T, ProgramError> {
        let (start, length) = (at as usize, size_of::<T>());
        match self.bytes.get(start..start + length) {
            Some(bytes) => Ok(bytemuck::pod_read_unaligned(bytes)),
            None => {
                let expected = format!("bytes {start} to {} inside of the plan", start + length);
                self.wrong(what, expected, format!("{} bytes", self.bytes.len()))
            }
        }
    }

    fn wrong<T>(
        &self,
        what: &str,
        expected: String,
        seen: impl ToString,
    ) -> Result<T, ProgramError> {
        let (what, seen) = (what.to_owned(), seen.to_string());
        Err(ProgramError { rank: self.rank, what, expected, seen })
    }
}
