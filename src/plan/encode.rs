//! Encoding: one rank's program as the bytes of [`ringdove_kernels::op`].

use super::fuse;
use super::packed::pack_of;
use super::{Buffer, LaneEnd, LaneKind, Modifiers, Op, Operand, Plan, Range, RankProgram};
use ringdove_kernels::op::{self as wire, ADDRESS_NUMBER_SHIFT, OpCode, PLAN_MAGIC, Space, flags};

/// The most bytes that one rank's encoded program may have: an exchange of 65,536 ranks has 71 MiB.
pub const ENCODED_BYTES_MAX: u64 = 80 << 20;

/// Finds the port of a lane end: its place in the communicator's port table.
pub trait PortResolver {
    /// The port at this end, which is at the rank whose program is encoded.
    fn port(&self, end: LaneEnd) -> Option<u32>;
}

impl<F: Fn(LaneEnd) -> Option<u32>> PortResolver for F {
    fn port(&self, end: LaneEnd) -> Option<u32> {
        self(end)
    }
}

/// Why a rank's program could not be encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The plan is for fewer ranks.
    #[error("rank {rank} asked for its program in a plan for {rank_count} ranks")]
    NoSuchRank {
        /// Whose program was wanted.
        rank: u32,
        /// Ranks of the plan.
        rank_count: usize,
    },
    /// The communicator has no port for a lane end.
    #[error("rank {rank} block {block}: the communicator has no {end}; connect the lane first")]
    NoSuchPort {
        /// Whose program was wanted.
        rank: u32,
        /// The block that uses the port.
        block: u32,
        /// The end of the lane.
        end: LaneEnd,
    },
}

const fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(16)
}

/// Bytes that a program takes once encoded.
pub(super) fn encoded_bytes(program: &RankProgram) -> u64 {
    let mut bytes = size_of::<wire::PlanHeader>();
    for block in &program.blocks {
        bytes += size_of::<wire::BlockProgram>() + padded(block.ports.len() * size_of::<u32>());
        bytes += block.segments.len() * size_of::<wire::Segment>();
        bytes +=
            block.segments.iter().map(|it| it.ops.len()).sum::<usize>() * size_of::<wire::Op>();
    }
    bytes as u64
}

/// Encodes one rank's program. The verifier has bounded everything that is narrowed here.
pub(super) fn encode(
    plan: &Plan,
    rank: u32,
    ports: &impl PortResolver,
) -> Result<Vec<u8>, EncodeError> {
    let rank_count = plan.ranks.len();
    let program = plan.ranks.get(rank as usize);
    let program = program.ok_or(EncodeError::NoSuchRank { rank, rank_count })?;

    // Where each part begins: headers, then port lists, then segments, then ops.
    let headers =
        size_of::<wire::PlanHeader>() + program.blocks.len() * size_of::<wire::BlockProgram>();
    let lists = program.blocks.iter().map(|block| padded(block.ports.len() * size_of::<u32>()));
    let segment_count: usize = program.blocks.iter().map(|block| block.segments.len()).sum();
    let mut port_list = headers;
    let mut segment_at = headers + lists.sum::<usize>();
    let mut op_at = segment_at + segment_count * size_of::<wire::Segment>();

    let mut blocks = Vec::new();
    let mut lists = Vec::new();
    let mut segments = Vec::new();
    let mut ops: Vec<wire::Op> = Vec::new();
    for (number, block) in (0..).zip(&program.blocks) {
        blocks.extend_from_slice(bytemuck::bytes_of(&wire::BlockProgram {
            segments: segment_at as u32,
            segment_count: block.segments.len() as u32,
            ports: port_list as u32,
            port_count: block.ports.len() as u32,
        }));
        for &end in &block.ports {
            let missing = EncodeError::NoSuchPort { rank, block: number, end };
            let port = ports.port(end).ok_or(missing)?;
            lists.extend_from_slice(&port.to_le_bytes());
        }
        lists.resize(padded(lists.len()), 0);
        port_list = headers + lists.len();
        segment_at += block.segments.len() * size_of::<wire::Segment>();
        for segment in &block.segments {
            segments.extend_from_slice(bytemuck::bytes_of(&wire::Segment {
                ops: op_at as u32,
                op_count: segment.ops.len() as u32,
                rounds: segment.rounds,
                reserved: 0,
                round_stride: segment.round_stride,
                limit: segment.limit,
            }));
            op_at += segment.ops.len() * size_of::<wire::Op>();
            ops.extend(encode_segment(&segment.ops, &Places { ports: &block.ports, rank_count }));
        }
    }
    let header = wire::PlanHeader {
        magic: PLAN_MAGIC,
        size_bytes: op_at as u32,
        block_count: program.blocks.len() as u32,
        thread_count: plan.thread_count,
        reserved: [0; 3],
    };
    let ops: &[u8] = bytemuck::cast_slice(&ops);
    let parts = [bytemuck::bytes_of(&header), &blocks, &lists, &segments, ops];
    let bytes = parts.concat();
    assert_eq!(bytes.len(), op_at, "parts stand where the headers say");
    Ok(bytes)
}

/// What operands name by numbers.
struct Places<'a> {
    /// The block's ports.
    ports: &'a [LaneEnd],
    rank_count: usize,
}

fn encode_segment(ops: &[Op], places: &Places<'_>) -> Vec<wire::Op> {
    let mut encoded: Vec<wire::Op> = ops.iter().map(|op| encode_op(op, places)).collect();
    for (place, op) in ops.iter().enumerate() {
        if let Op::Put { port, .. } = *op
            && is_low_latency(places.ports, port)
            && let Some(pack) = pack_of(ops, place)
        {
            encoded[pack].value |= 1 << port;
        }
        if matches!(op, Op::Copy { .. } | Op::Reduce { .. }) {
            encoded[place].value = fuse::behind(&ops[place..], places.ports) as i64;
        }
    }
    encoded
}

fn encode_op(op: &Op, places: &Places<'_>) -> wire::Op {
    let operand = |place| places.operand(place);
    let plain = wire::Op { port: op.port().unwrap_or(0), ..Default::default() };
    // Where there is no operand, its space is `Space::None`.
    let optional = |place: Option<Operand>| place.map(operand).unwrap_or_default();
    let sized = |code, range: Range, destination, a| wire::Op {
        code: code as u8,
        length: range.length,
        extent: range.extent,
        destination: optional(destination),
        a: optional(a),
        ..plain
    };
    let valued = |code, value| wire::Op { code: code as u8, value, ..plain };
    match *op {
        Op::Copy { destination, source, range, modifiers } => wire::Op {
            flags: modifier_flags(modifiers),
            ..sized(OpCode::Copy, range, Some(destination), Some(source))
        },
        Op::Reduce { destination, a, b, range, modifiers } => wire::Op {
            flags: modifier_flags(modifiers),
            b: operand(b),
            ..sized(OpCode::Reduce, range, Some(destination), Some(a))
        },
        Op::Pack { port, message, source, range } => {
            let to = Operand::Slot { port, message, offset: 0 };
            sized(OpCode::Pack, range, Some(to), source)
        }
        Op::Collect { destination, own, before, first, count, message, range, finish } => {
            wire::Op {
                flags: flag(finish, flags::FINISH),
                value: i64::from(count),
                before: u64::from(before),
                b: operand(Operand::Slot { port: first, message, offset: 0 }),
                ..sized(OpCode::Collect, range, destination, own)
            }
        }
        Op::Put { port, destination, source, range, arrival, completion } => wire::Op {
            flags: flag(arrival, flags::ARRIVAL)
                | flag(completion, flags::COMPLETION)
                | flag(is_low_latency(places.ports, port), flags::LOW_LATENCY),
            ..sized(OpCode::Put, range, Some(destination), Some(source))
        },
        Op::Credit { messages, .. } => valued(OpCode::Credit, i64::from(messages)),
        Op::Grant { place, .. } => {
            wire::Op { a: optional(place.map(Operand::Address)), ..valued(OpCode::Grant, 0) }
        }
        Op::WaitSignal { value, .. } => valued(OpCode::WaitSignal, value),
        Op::WaitCompletion { value, .. } => valued(OpCode::WaitCompletion, value),
        Op::Advance { signals, completions, .. } => wire::Op {
            destination: wire::Operand { offset: u64::from(completions), ..Default::default() },
            ..valued(OpCode::Advance, i64::from(signals))
        },
        Op::InSwitch(_) => unreachable!("the verifier refuses work of switches"),
    }
}

fn is_low_latency(ports: &[LaneEnd], port: u16) -> bool {
    ports.get(usize::from(port)).is_some_and(|end| end.lane.kind == LaneKind::LowLatency)
}

fn flag(on: bool, flag: u8) -> u8 {
    if on { flag } else { 0 }
}

fn modifier_flags(modifiers: Modifiers) -> u8 {
    flag(modifiers.scale, flags::SCALE) | flag(modifiers.finish, flags::FINISH)
}

impl Places<'_> {
    fn operand(&self, place: Operand) -> wire::Operand {
        let empty = wire::Operand::default();
        match place {
            Operand::Buffer { buffer, offset } => wire::Operand {
                offset,
                number: buffer.number(),
                space: Space::Buffer as u8,
                ..empty
            },
            Operand::Slot { port, message, offset } => {
                wire::Operand { offset, number: message, port, space: Space::Slot as u8, ..empty }
            }
            Operand::Granted { port, message, offset } => wire::Operand {
                offset,
                number: message,
                port,
                space: Space::Granted as u8,
                ..empty
            },
            Operand::Address(address) => wire::Operand {
                offset: address & ((1 << ADDRESS_NUMBER_SHIFT) - 1),
                number: (address >> ADDRESS_NUMBER_SHIFT) as u32,
                space: Space::Address as u8,
                ..empty
            },
            Operand::Peer { port, buffer, offset } => {
                let peer = self.ports[usize::from(port)].peer();
                let number = peer_entry(self.rank_count, buffer, peer) as u32 + 1;
                wire::Operand { offset, number, port, space: Space::Peer as u8, ..empty }
            }
        }
    }
}

/// The entry of `peer`'s buffer in the table of addresses of a plan of so many ranks: all inputs,
/// then all outputs.
fn peer_entry(rank_count: usize, buffer: Buffer, peer: u32) -> usize {
    buffer.number() as usize * rank_count + peer as usize
}
