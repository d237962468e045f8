//! Send and receive: a group of transfers between any ranks.
//!
//! Each pair of ranks and direction has a block of its own at both ends, so the order in which a
//! rank names its peers cannot matter; transfers of one pair go in the order in which they were
//! named. A block depends on the transfers of its own pair alone, so a rank can build (and verify)
//! everything that concerns it from its own list: see [`group`].
//!
//! A message goes through a slot: copy in, put; wait, copy out, credit. The sender runs ahead of
//! the receiver by as many messages as there are slots.
//!
//! From registered memory messages are put without a copy. A transfer of more messages than there
//! are slots begins with the receiver's *grant* (R15), which says where they go: into its
//! registered memory, or into slots. So each end knows of its own memory alone, and either may be
//! registered without the other.

use super::builder::{SlotReceiver, SlotSender, copy};
use super::selection::{goes_in_place, group_thread_count, is_granted, message_bytes};
use super::{
    BlockProgram, Lane, Limits, Modifiers, Op, Operand, Plan, PlanError, PortIndex, Promise, Range,
    RankProgram, Segment, Side,
};
use std::collections::BTreeMap;

/// Bytes of one local copy.
const COPY_BYTES_MAX: u64 = 1 << 20;
/// Where the made-up addresses of mirrored peers begin, and how they are spaced.
const MIRROR_ADDRESS: u64 = 1 << 32;
const MIRROR_ALIGNMENT: u64 = 256;
/// No device address comes near this; sums stay far from wrapping.
const ADDRESS_END: u64 = 1 << 62;

/// Which way a transfer goes, seen from the rank whose list it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// To the peer.
    Send,
    /// From the peer.
    Receive,
}

/// One send or receive of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PointToPoint {
    /// The rank at the other end; may be this rank itself.
    pub peer: u32,
    /// Which way.
    pub direction: Direction,
    /// Address of the local memory, as [`Operand::Address`] takes it.
    pub address: u64,
    /// How much; 0 is fine.
    pub bytes: u64,
    /// The memory is registered: engines reach it.
    pub registered: bool,
}

/// A group's plan, and what it has to achieve.
#[derive(Clone, Debug)]
pub struct Group {
    /// The plan.
    pub plan: Plan,
    /// What [`verify`](super::verify) should hold it to.
    pub promise: Promise,
}

/// The plan of `rank`'s part of a group, from its own list.
///
/// The other ranks' programs in the plan are mirror images: each peer gets the transfers that match
/// `rank`'s, at addresses of its own. Blocks of one pair depend on nothing else, so what holds for
/// this plan's lanes holds for the same lanes in the whole group's.
///
/// # Errors
/// A peer that does not exist, an impossible address, transfers of a rank to itself that do not
/// match, a receive into memory that another transfer uses.
pub fn group(
    rank: u32,
    rank_count: u32,
    transfers: &[PointToPoint],
    limits: &Limits,
) -> Result<Group, PlanError> {
    if rank >= rank_count {
        let expected = "less than the number of ranks";
        return Err(PlanError::Number { what: "rank", expected, seen: u64::from(rank) });
    }
    let mut world = vec![Vec::new(); rank_count as usize];
    let mut address = MIRROR_ADDRESS;
    for transfer in transfers {
        check(transfer, rank_count)?;
        if transfer.peer == rank {
            continue;
        }
        let direction = match transfer.direction {
            Direction::Send => Direction::Receive,
            Direction::Receive => Direction::Send,
        };
        let bytes = transfer.bytes;
        let mirror = PointToPoint { peer: rank, direction, address, bytes, registered: false };
        world[transfer.peer as usize].push(mirror);
        address += bytes.next_multiple_of(MIRROR_ALIGNMENT);
    }
    world[rank as usize] = transfers.to_vec();
    group_plan(&world, limits)
}

/// The plan of a whole group, from every rank's list.
///
/// # Errors
/// As [`group`].
pub fn group_plan(world: &[Vec<PointToPoint>], limits: &Limits) -> Result<Group, PlanError> {
    limits.check()?;
    let rank_count = world.len() as u32;
    let mut ranks = Vec::new();
    for (rank, transfers) in (0..).zip(world) {
        for transfer in transfers {
            check(transfer, rank_count)?;
        }
        let program = rank_program(rank, transfers, limits)?;
        check_overlap(rank, transfers)?;
        ranks.push(program);
    }
    let bytes_max = world.iter().flatten().map(|transfer| transfer.bytes).max().unwrap_or(0);
    let thread_count = group_thread_count(bytes_max);
    let plan = Plan { ranks, thread_count, slots: limits.slots() };
    Ok(Group { plan, promise: Promise::SendReceive { transfers: world.to_vec() } })
}

fn check(transfer: &PointToPoint, rank_count: u32) -> Result<(), PlanError> {
    let (what, expected, seen) = if transfer.peer >= rank_count {
        ("peer", "less than the number of ranks", u64::from(transfer.peer))
    } else if transfer.bytes >= 1 << 40 {
        ("bytes", "less than 1 TiB", transfer.bytes)
    } else if transfer.address > ADDRESS_END - transfer.bytes {
        ("address", "a range below 2^62", transfer.address)
    } else {
        return Ok(());
    };
    Err(PlanError::Number { what, expected, seen })
}

/// What is received into, nothing else may touch.
pub(crate) fn check_overlap(rank: u32, transfers: &[PointToPoint]) -> Result<(), PlanError> {
    let to_self =
        |direction| transfers.iter().filter(move |it| it.peer == rank && it.direction == direction);
    // A receive from itself that stays in place is not written.
    let pairs = to_self(Direction::Send).zip(to_self(Direction::Receive));
    let still: Vec<&PointToPoint> =
        pairs.filter(|(from, to)| from.address == to.address).map(|(_, to)| to).collect();
    let mut ranges: Vec<(u64, u64, bool)> = transfers
        .iter()
        .filter(|it| it.bytes > 0 && !still.iter().any(|still| std::ptr::eq(*still, *it)))
        .map(|it| (it.address, it.address + it.bytes, it.direction == Direction::Receive))
        .collect();
    ranges.sort_unstable();
    // The range seen so far that ends last, of all and of those received into.
    let (mut any, mut received) = ((0, 0), (0, 0));
    for (start, end, is_receive) in ranges {
        let first = if is_receive { any } else { received };
        if start < first.1 {
            return Err(PlanError::Overlap { rank, first, second: (start, end) });
        }
        let later = |range: (u64, u64)| if end > range.1 { (start, end) } else { range };
        any = later(any);
        if is_receive {
            received = later(received);
        }
    }
    Ok(())
}

/// One rank's blocks: in the order of (peer, direction), its copies to itself last.
fn rank_program(
    rank: u32,
    transfers: &[PointToPoint],
    limits: &Limits,
) -> Result<RankProgram, PlanError> {
    let mut pairs: BTreeMap<(u32, Direction), Vec<&PointToPoint>> = BTreeMap::new();
    for transfer in transfers {
        pairs.entry((transfer.peer, transfer.direction)).or_default().push(transfer);
    }
    let sends = pairs.remove(&(rank, Direction::Send)).unwrap_or_default();
    let receives = pairs.remove(&(rank, Direction::Receive)).unwrap_or_default();
    let mut blocks = Vec::new();
    for ((peer, direction), transfers) in pairs {
        let mut block = BlockProgram::default();
        for transfer in transfers.into_iter().filter(|transfer| transfer.bytes > 0) {
            match direction {
                Direction::Send => send(&mut block, rank, peer, transfer, limits),
                Direction::Receive => receive(&mut block, rank, peer, transfer, limits),
            }
        }
        if !block.segments.is_empty() {
            blocks.push(block);
        }
    }
    let mut alone = BlockProgram::default();
    for number in 0..sends.len().max(receives.len()) {
        let (from, to) = (sends.get(number), receives.get(number));
        let (sent, received) = (from.map(|send| send.bytes), to.map(|receive| receive.bytes));
        match (from, to) {
            (Some(from), Some(to)) if from.bytes == to.bytes => copy_local(&mut alone, from, to),
            _ => return Err(PlanError::UnmatchedSelf { rank, number, sent, received }),
        }
    }
    // A launch has at least one block, even if the group is empty.
    if blocks.is_empty() || !alone.segments.is_empty() {
        blocks.push(alone);
    }
    Ok(RankProgram { blocks })
}

fn send(block: &mut BlockProgram, rank: u32, peer: u32, transfer: &PointToPoint, limits: &Limits) {
    let port = block.port(Lane::slotted(rank, peer, 0), Side::Send);
    let length = message_bytes(transfer.bytes, limits);
    let in_place = transfer.registered && goes_in_place(transfer.bytes, limits);
    let send = Send { port, transfer, length, in_place };
    let slot_count = i64::from(limits.slot_count);
    if is_granted(transfer.bytes, limits) {
        // The grant is a credit; from then on one credit more than else is out.
        let first = send.message(1, true, 0);
        block.segments.push(Segment { rounds: 1, ops: first, ..send.segment(0) });
        let ops = send.message(2 - slot_count, true, length);
        block.segments.push(Segment { ops, ..send.segment(length) });
    } else if in_place {
        let ops = send.message(1 - slot_count, false, 0);
        block.segments.push(Segment { ops, ..send.segment(0) });
    } else {
        let mut sender = SlotSender::new(port, limits.slot_count);
        let mut ops = Vec::new();
        let slot = sender.claim(&mut ops);
        ops.push(copy(slot, Operand::Address(transfer.address), piece(length), Modifiers::NONE));
        sender.put(&mut ops, piece(length));
        sender.advance(&mut ops);
        block.segments.push(Segment { ops, ..send.segment(0) });
    }
    if in_place {
        block.once(vec![Op::WaitCompletion { port, value: 0 }]);
    }
}

/// A transfer of which each message is put by ops of its own.
struct Send<'a> {
    port: PortIndex,
    transfer: &'a PointToPoint,
    /// Bytes of one message.
    length: u64,
    /// From where it lies.
    in_place: bool,
}

impl Send<'_> {
    /// The ops of one message, `extent` bytes from the start, once `credits` have come.
    fn message(&self, credits: i64, granted: bool, extent: u64) -> Vec<Op> {
        let Self { port, transfer, length, in_place } = *self;
        let range = Range { extent, ..piece(length) };
        let memory = Operand::Address(transfer.address + extent);
        let slot = Operand::Slot { port, message: 0, offset: 0 };
        let mut ops = vec![Op::WaitSignal { port, value: credits }];
        if !in_place {
            ops.push(copy(slot, memory, range, Modifiers::NONE));
        }
        ops.push(Op::Put {
            port,
            destination: match granted {
                true => Operand::Granted { port, message: 0, offset: extent },
                false => slot,
            },
            source: if in_place { memory } else { slot },
            range,
            arrival: true,
            completion: in_place,
        });
        let completions = u32::from(in_place);
        ops.push(Op::Advance { port, signals: 1, completions });
        ops
    }

    fn segment(&self, from: u64) -> Segment {
        segment(self.length, self.transfer.bytes, from)
    }
}

fn receive(
    block: &mut BlockProgram,
    rank: u32,
    peer: u32,
    transfer: &PointToPoint,
    limits: &Limits,
) {
    let port = block.port(Lane::slotted(peer, rank, 0), Side::Receive);
    let length = message_bytes(transfer.bytes, limits);
    let granted = is_granted(transfer.bytes, limits);
    let place = (granted && transfer.registered).then_some(transfer.address);
    let message = |extent: u64, is_credited: bool| {
        let mut receiver = SlotReceiver::new(port);
        let mut ops = Vec::new();
        let slot = receiver.wait(&mut ops);
        if place.is_none() {
            let memory = Operand::Address(transfer.address + extent);
            let range = Range { extent, ..piece(length) };
            ops.push(copy(memory, slot, range, Modifiers::NONE));
        }
        if is_credited {
            receiver.release(&mut ops);
            receiver.advance(&mut ops);
        } else {
            ops.push(Op::Advance { port, signals: 1, completions: 0 });
        }
        ops
    };
    let segment = |from| segment(length, transfer.bytes, from);
    if !granted {
        block.segments.push(Segment { ops: message(0, true), ..segment(0) });
        return;
    }
    // The credit of the first message has come early, as the grant.
    let mut first = vec![Op::Grant { port, place }];
    first.extend(message(0, false));
    block.segments.push(Segment { rounds: 1, ops: first, ..segment(0) });
    block.segments.push(Segment { ops: message(length, true), ..segment(length) });
}

fn copy_local(block: &mut BlockProgram, from: &PointToPoint, to: &PointToPoint) {
    if from.address == to.address || from.bytes == 0 {
        return;
    }
    let range = piece(COPY_BYTES_MAX.min(from.bytes.max(1)));
    let (source, destination) = (Operand::Address(from.address), Operand::Address(to.address));
    let ops = vec![copy(destination, source, range, Modifiers::NONE)];
    block.segments.push(Segment { ops, ..segment(range.length.into(), from.bytes, 0) });
}

fn piece(length: u64) -> Range {
    Range { extent: 0, length: length as u32 }
}

/// The rounds of messages of `length` bytes of a transfer of `bytes`, but for the first `from`.
fn segment(length: u64, bytes: u64, from: u64) -> Segment {
    // More rounds than fit are refused by the verifier, which bounds the ops of all rounds.
    let rounds = u32::try_from((bytes - from).div_ceil(length)).unwrap_or(u32::MAX);
    Segment { rounds, round_stride: length, limit: bytes, ops: Vec::new() }
}
