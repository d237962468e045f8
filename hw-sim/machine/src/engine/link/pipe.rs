//! What two processes share of a link: the door of each channel, and a pipe for each pair of
//! channels that have something to say.
//!
//! The sender makes a pipe, writes the receiver's channel number into its name, and knocks at the
//! receiver's door. Packets go through a ring in it; the receiver counts those that it has written.
//! A packet that it refuses is the last one that it takes from this pipe, or what stands behind the
//! refused one would raise signals for it. A pipe ends with its sender's reset.

use super::super::channel::ChannelAddress;
use super::super::fetch::Packet;
use super::super::write::Refused;
use super::record::Record;
use crate::fabric::{Fabric, FabricError, Layout, Process, Reader, Segment, Writer};
use ringdove_kernels::bar::Refusal;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const DOOR_MARK: u64 = u64::from_le_bytes(*b"hwsimCH1");
const PIPE_MARK: u64 = u64::from_le_bytes(*b"hwsimPI1");
const DOOR_BYTES: usize = 4096;
const HEADER_BYTES: usize = 4096;
/// Room for a dozen usual sub-requests: both ends copy at the same time, and a ring stays in the
/// processor's cache.
const RING_BYTES: usize = 256 << 10;
const PIPE_BYTES: usize = HEADER_BYTES + RING_BYTES;
const RING: Layout = Layout { control: 1024, data: HEADER_BYTES, bytes: RING_BYTES };

/// Words of a door: the owner has left in order; its link is down; how many have knocked.
const LEFT: usize = 16;
const DOWN: usize = 20;
const KNOCKS: usize = 64;
/// Words of a pipe: its sender has closed it; its receiver has left; who sends; packets written;
/// the refusal: whether there is one, then position, reason and limit.
const CLOSED: usize = 16;
const RECEIVER_LEFT: usize = 20;
const SENDER: usize = 32;
const WRITTEN: usize = 128;
const REFUSED: usize = 192;
const REFUSAL: usize = 200;

fn door_name(place: ChannelAddress) -> String {
    format!("channel-{}-{}", place.link_address, place.channel)
}

fn pipe_prefix(to: ChannelAddress) -> String {
    format!("pipe-{}-{}-", to.link_address, to.channel)
}

/// A channel's own door.
pub(in super::super) struct Door {
    fabric: Arc<Fabric>,
    place: ChannelAddress,
    segment: Segment,
    /// Knocks that were answered.
    answered: u64,
}

impl Door {
    /// Makes a channel's door; None if another process, or this one, has it.
    pub fn make(fabric: &Arc<Fabric>, place: ChannelAddress) -> Result<Option<Self>, FabricError> {
        let name = door_name(place);
        let (placed, segment) = fabric.make(DOOR_BYTES, DOOR_MARK, |draft, _| {
            if fabric.name(draft, &name)? {
                return Ok(true);
            }
            if open_door(fabric, place).is_some_and(|(_, process)| process.is_alive()) {
                return Ok(false);
            }
            // A process that was killed has left it.
            fabric.replace(draft, &name)?;
            Ok(true)
        })?;
        let fabric = Arc::clone(fabric);
        Ok(placed.then_some(Self { fabric, place, segment, answered: 0 }))
    }

    /// Tells peers that the engine's link is down.
    pub fn show_down(&self) {
        // Release pairs with `Outbound::peer`, as all that a peer is told.
        self.segment.word32(DOWN).store(1, Ordering::Release);
    }

    /// Has anybody knocked since the last answer?
    pub fn has_knock(&self) -> bool {
        // Acquire pairs with `Outbound::open`: who has knocked has named the pipe.
        self.segment.word64(KNOCKS).load(Ordering::Acquire) != self.answered
    }

    /// Opens the pipes that were made since the last answer. `known` tells by name which are not.
    pub fn answer(&mut self, known: impl Fn(&str) -> bool) -> Vec<Inbound> {
        // Acquire: as in `has_knock`. Before the names are read, or a knock could be missed.
        self.answered = self.segment.word64(KNOCKS).load(Ordering::Acquire);
        let names = self.fabric.names(&pipe_prefix(self.place));
        let new = names.into_iter().filter(|name| !known(name));
        new.filter_map(|name| Inbound::open(&self.fabric, self.place, name)).collect()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // Release pairs with `open_door` and `Outbound::peer`.
        self.segment.word32(LEFT).store(1, Ordering::Release);
        self.fabric.remove(&door_name(self.place));
    }
}

/// Another channel's door, if it is open.
fn open_door(fabric: &Fabric, place: ChannelAddress) -> Option<(Segment, Arc<Process>)> {
    let (door, owner) = fabric.open(&door_name(place), DOOR_BYTES, DOOR_MARK)?;
    // Acquire pairs with the drop of `Door`.
    let open = door.word32(LEFT).load(Ordering::Acquire) == 0;
    let process = fabric.process(owner)?;
    open.then_some((door, process))
}

/// A pipe that this process writes.
pub(in super::super) struct Outbound {
    fabric: Arc<Fabric>,
    name: String,
    segment: Arc<Segment>,
    writer: Writer<Record>,
    door: Segment,
    process: Arc<Process>,
    /// Packets sent.
    sent: u64,
    /// The last packets of requests that are not acknowledged: number, lane, position.
    pending: VecDeque<(u64, u64, u64)>,
}

/// State of a pipe's other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum PeerState {
    There,
    /// It has gone in order: whatever was not written will not be.
    Left,
    /// Its process has died, or its link is down.
    Lost,
}

impl Outbound {
    /// Makes a pipe to a channel of another process; None if that is not there.
    pub fn open(
        fabric: &Arc<Fabric>,
        from: ChannelAddress,
        to: ChannelAddress,
    ) -> Result<Option<Self>, FabricError> {
        let Some((door, process)) = open_door(fabric, to) else { return Ok(None) };
        let (pid, nonce) = fabric.own_id;
        let name = format!("{}{pid}-{nonce}-{}", pipe_prefix(to), fabric.serial());
        let ((), segment) = fabric.make(PIPE_BYTES, PIPE_MARK, |draft, segment| {
            segment.word64(SENDER).store(from.link_address, Ordering::Relaxed);
            segment.word64(SENDER + 8).store(from.channel, Ordering::Relaxed);
            // Only this process has such names. A receiver may find it before it hears the knock.
            fabric.name(draft, &name).map(drop)
        })?;
        let segment = Arc::new(segment);
        let writer = Writer::new(Arc::clone(&segment), RING);
        // Release pairs with `Door::answer`.
        door.word64(KNOCKS).fetch_add(1, Ordering::Release);
        process.engines().wake();
        let fabric = Arc::clone(fabric);
        let pending = VecDeque::new();
        Ok(Some(Self { fabric, name, segment, writer, door, process, sent: 0, pending }))
    }

    /// Sends a packet whose data `fetch` puts into the pipe; false if there is no room.
    pub fn send<E>(
        &mut self,
        packet: &Packet,
        fetch: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<bool, E> {
        let Some(room) = self.writer.reserve(packet.length as usize) else { return Ok(false) };
        fetch(room)?;
        self.writer.commit(&Record::new(packet));
        self.sent += 1;
        if packet.last {
            self.pending.push_back((self.sent, packet.lane, packet.position));
        }
        self.process.engines().wake();
        Ok(true)
    }

    fn written(&self) -> u64 {
        // Acquire pairs with `Inbound::take`: what was written is visible.
        self.segment.word64(WRITTEN).load(Ordering::Acquire)
    }

    /// The next request that the receiver has acknowledged: lane and position.
    pub fn next_acknowledged(&mut self) -> Option<(u64, u64)> {
        let &(packet, lane, position) = self.pending.front()?;
        if packet > self.written() {
            return None;
        }
        self.pending.pop_front();
        Some((lane, position))
    }

    /// Has the receiver acknowledged something that was not seen yet, or refused a packet?
    pub fn has_answers(&self) -> bool {
        self.pending.front().is_some_and(|(packet, ..)| *packet <= self.written())
            || self.refusal().is_some()
    }

    /// The packet that the receiver has refused: its request, reason, limit.
    pub fn refusal(&self) -> Option<(u64, Refusal, u64)> {
        // Acquire pairs with `Inbound::refuse`.
        if self.segment.word32(REFUSED).load(Ordering::Acquire) == 0 {
            return None;
        }
        let [position, reason, limit] =
            [0, 8, 16].map(|at| self.segment.word64(REFUSAL + at).load(Ordering::Relaxed));
        Some((position, Refusal::from_code(reason).unwrap_or(Refusal::UnknownSender), limit))
    }

    /// What the other end is up to, as far as its memory says.
    pub fn peer(&self) -> PeerState {
        // Acquire pairs with `Door::show_down`, and with the drops of `Inbound` and `Door`.
        if self.door.word32(DOWN).load(Ordering::Acquire) != 0 {
            PeerState::Lost
        } else if self.segment.word32(RECEIVER_LEFT).load(Ordering::Acquire) != 0
            || self.door.word32(LEFT).load(Ordering::Acquire) != 0
        {
            PeerState::Left
        } else {
            PeerState::There
        }
    }

    /// Does the other end's process live? Asks the system.
    pub fn is_alive(&self) -> bool {
        self.process.is_alive()
    }
}

impl Drop for Outbound {
    fn drop(&mut self) {
        // Release pairs with `Inbound::is_closed`: the receiver reads what stands in the ring, and
        // then no more.
        self.segment.word32(CLOSED).store(1, Ordering::Release);
        self.fabric.remove(&self.name);
        self.process.engines().wake();
    }
}

/// A pipe that this process reads.
pub(in super::super) struct Inbound {
    pub name: String,
    pub from: ChannelAddress,
    pub to: ChannelAddress,
    segment: Arc<Segment>,
    reader: Reader<Record>,
    process: Arc<Process>,
    written: u64,
    /// A packet was refused: nothing more is taken.
    refused: bool,
}

impl Inbound {
    fn open(fabric: &Fabric, to: ChannelAddress, name: String) -> Option<Self> {
        let (segment, sender) = fabric.open(&name, PIPE_BYTES, PIPE_MARK)?;
        let Some(process) = fabric.process(sender).filter(|process| process.is_alive()) else {
            // Left by a process that was killed.
            fabric.remove(&name);
            return None;
        };
        let word = |at| segment.word64(at).load(Ordering::Relaxed);
        let from = ChannelAddress { link_address: word(SENDER), channel: word(SENDER + 8) };
        let segment = Arc::new(segment);
        let reader = Reader::new(Arc::clone(&segment), RING);
        Some(Self { name, from, to, segment, reader, process, written: 0, refused: false })
    }

    /// Is there a packet?
    pub fn has_packet(&self) -> bool {
        !self.refused && !RING.is_empty(&self.segment)
    }

    /// The next packet, and the address of its data until [`Inbound::take`].
    pub fn peek(&mut self) -> Option<(Record, Packet, u64)> {
        if self.refused {
            return None;
        }
        let (record, payload) = self.reader.peek()?;
        Some((record, record.packet(self.from, self.to), payload))
    }

    /// The packet was written, or not.
    pub fn take(&mut self, record: &Record, packet: &Packet, outcome: Result<(), Refused>) {
        let waiting = self.reader.consume(record);
        match outcome {
            Ok(()) => {
                self.written += 1;
                // Release pairs with `Outbound::written`.
                self.segment.word64(WRITTEN).store(self.written, Ordering::Release);
            }
            Err(refused) => self.refuse(packet, refused),
        }
        if waiting || packet.last || self.refused {
            self.process.engines().wake();
        }
    }

    fn refuse(&mut self, packet: &Packet, Refused { reason, limit }: Refused) {
        self.refused = true;
        for (at, word) in [(0, packet.position), (8, reason as u64), (16, limit)] {
            self.segment.word64(REFUSAL + at).store(word, Ordering::Relaxed);
        }
        // Release pairs with `Outbound::refusal`.
        self.segment.word32(REFUSED).store(1, Ordering::Release);
    }

    /// Has the sender closed the pipe in order? What stands in the ring counts still.
    pub fn is_closed(&self) -> bool {
        // Acquire pairs with the drop of `Outbound`: all that was sent is in the ring.
        self.segment.word32(CLOSED).load(Ordering::Acquire) != 0
    }

    /// Does the sender's process live? Asks the system.
    pub fn is_alive(&self) -> bool {
        self.process.is_alive()
    }
}

impl Drop for Inbound {
    fn drop(&mut self) {
        // Release pairs with `Outbound::peer`.
        self.segment.word32(RECEIVER_LEFT).store(1, Ordering::Release);
        self.process.engines().wake();
    }
}
