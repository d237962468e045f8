//! Encoded plans, decoded once into a compact form for all ranks.

use bytemuck::Pod;
use ringdove_kernels::descriptor::LENGTH_BYTES_MAX;
use ringdove_kernels::op::{
    self as wire, BLOCK_PORTS_MAX, OpCode, PLAN_MAGIC, PlanHeader, Space, flags,
};
use std::collections::HashMap;

/// A lane: the unit of order, from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lane {
    /// The rank that puts.
    pub from: u32,
    /// The rank that receives.
    pub to: u32,
    /// Tells lanes between the same two ranks apart.
    pub index: u32,
}

/// One entry of a rank's port table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Port {
    /// The lane.
    pub lane: Lane,
    /// At its source; else at its destination.
    pub sends: bool,
}

/// What one rank runs: an encoded plan, and the port table that its port lists point into.
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
    /// What is wrong, and where.
    pub what: String,
    /// What would do.
    pub expected: String,
    /// What is there.
    pub seen: String,
}

/// An op, as far as time depends on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub code: OpCode,
    pub flags: u8,
    /// Place in the block's list of ports; of a copy into a send slot: that slot's.
    pub port: u16,
    pub length: u32,
    pub extent: u64,
    /// `Wait*`, `Advance`: signals. `Put`: where the source starts.
    pub value: i64,
    /// `Advance`: completions. `Put`: where the destination starts.
    pub other: u64,
}

/// Set in [`Op::flags`] of a put between slots.
pub(crate) const FROM_SLOT: u8 = 0x40;
/// Set in [`Op::flags`] of a put out of another port's slot: no pass has moved its data yet.
pub(crate) const FORWARDS: u8 = 0x20;
/// Set in [`Op::flags`] of a copy or reduction into a slot.
pub(crate) const INTO_SLOT: u8 = 0x80;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
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

#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockCode {
    pub rank: u32,
    pub segments: u32,
    pub segment_count: u32,
    pub ports: u32,
}

/// All ranks' programs.
#[derive(Default)]
pub(crate) struct Code {
    pub blocks: Vec<BlockCode>,
    pub segments: Vec<Segment>,
    pub ops: Vec<Op>,
    pub ports: Vec<BlockPort>,
    pub lanes: Vec<Lane>,
    /// Blocks of each rank.
    pub blocks_of: Vec<u32>,
}

impl Code {
    /// Decodes every rank's program.
    pub fn load(programs: &impl Programs) -> Result<Self, ProgramError> {
        let mut code = Self::default();
        let mut numbers: HashMap<Lane, u32> = HashMap::new();
        // Both ends of each lane, once each.
        let mut ends: Vec<[bool; 2]> = Vec::new();
        for rank in 0..programs.rank_count() {
            let program = programs.program(rank);
            let reader = Reader { rank, bytes: &program.encoded };
            let first_port = code.ports.len();
            code.read_rank(&reader, &program.ports, &mut numbers)?;
            ends.resize(code.lanes.len(), [false; 2]);
            for port in &code.ports[first_port..] {
                let lane = code.lanes[port.lane as usize];
                let here = if port.sends { lane.from } else { lane.to };
                let end = &mut ends[port.lane as usize][usize::from(port.sends)];
                if here != rank || *end {
                    let expected = "each end of a lane at one block of its own rank".to_owned();
                    let what = format!("lane {} to {}", lane.from, lane.to);
                    let seen = if *end { "a second block" } else { "another rank" }.into();
                    return Err(ProgramError { rank, what, expected, seen });
                }
                *end = true;
            }
        }
        let lonely = ends.iter().position(|ends| !ends[0] || !ends[1]);
        if let Some(lane) = lonely.map(|number| code.lanes[number]) {
            return Err(ProgramError {
                rank: lane.from,
                what: format!("lane {} to {}", lane.from, lane.to),
                expected: "a block at both ends".into(),
                seen: "one at one end only".into(),
            });
        }
        Ok(code)
    }

    fn read_rank(
        &mut self,
        reader: &Reader<'_>,
        table: &[Port],
        numbers: &mut HashMap<Lane, u32>,
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
            self.blocks.push(BlockCode {
                rank: reader.rank,
                segments: self.segments.len() as u32,
                segment_count: block.segment_count,
                ports: self.ports.len() as u32,
            });
            for place in 0..u64::from(block.port_count) {
                let number: u32 = reader.record(u64::from(block.ports) + 4 * place, "port")?;
                let Some(port) = table.get(number as usize) else {
                    return reader.wrong("port", format!("less than {}", table.len()), number);
                };
                let lanes = &mut self.lanes;
                let lane = *numbers.entry(port.lane).or_insert_with(|| {
                    lanes.push(port.lane);
                    lanes.len() as u32 - 1
                });
                let sends = port.sends;
                self.ports.push(BlockPort { lane, sends, position: 0, completion_position: 0 });
            }
            for place in 0..u64::from(block.segment_count) {
                let at = u64::from(block.segments) + place * size_of::<wire::Segment>() as u64;
                self.read_segment(reader, at, &block)?;
            }
        }
        Ok(())
    }

    fn read_segment(
        &mut self,
        reader: &Reader<'_>,
        at: u64,
        block: &wire::BlockProgram,
    ) -> Result<(), ProgramError> {
        let segment: wire::Segment = reader.record(at, "segment")?;
        self.segments.push(Segment {
            ops: self.ops.len() as u32,
            op_count: segment.op_count,
            rounds: segment.rounds,
            stride: segment.round_stride,
            limit: segment.limit,
        });
        let first_port = self.blocks.last().expect("its block was pushed").ports;
        for place in 0..u64::from(segment.op_count) {
            let at = u64::from(segment.ops) + place * size_of::<wire::Op>() as u64;
            let op = decode(reader, &reader.record(at, "op")?)?;
            let names_port =
                !matches!(op.code, OpCode::Copy | OpCode::Reduce) || op.flags & INTO_SLOT != 0;
            if names_port && u32::from(op.port) >= block.port_count {
                let expected = format!("less than {}", block.port_count);
                return reader.wrong("port of an op", expected, op.port);
            }
            let sends = names_port && self.ports[first_port as usize + usize::from(op.port)].sends;
            let needs = match op.code {
                OpCode::Put | OpCode::WaitCompletion => Some(true),
                OpCode::Credit => Some(false),
                _ => None,
            };
            if needs.is_some_and(|needs| needs != sends) {
                let name = |sends| if sends { "a send port" } else { "a receive port" };
                let what = format!("port of {:?}", op.code);
                return reader.wrong(&what, name(!sends).to_owned(), name(sends));
            }
            self.ops.push(op);
        }
        Ok(())
    }
}

fn decode(reader: &Reader<'_>, op: &wire::Op) -> Result<Op, ProgramError> {
    let Some(code) = OpCode::from_code(op.code) else {
        return reader.wrong("op", "a code of ringdove_kernels::op".into(), op.code);
    };
    if matches!(code, OpCode::Pack | OpCode::Collect) {
        let expected = "an op that the model knows: flagged messages are not among them".into();
        return reader.wrong("op", expected, format!("{code:?}"));
    }
    let mut flags = op.flags & (flags::ARRIVAL | flags::COMPLETION);
    let mut decoded = Op {
        code,
        flags,
        port: op.port,
        length: op.length,
        extent: op.extent,
        value: op.value,
        other: op.destination.offset,
    };
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
        OpCode::Copy | OpCode::Reduce if op.destination.space == Space::Slot as u8 => {
            flags |= INTO_SLOT;
            decoded.port = op.destination.port;
        }
        _ => {}
    }
    decoded.flags = flags;
    Ok(decoded)
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
