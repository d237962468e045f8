//! Links between channels of different processes, and so between nodes.

use super::super::channel::{Channel, ChannelAddress};
use super::super::dma::{Dma, DmaFault};
use super::super::fetch::Packet;
use super::super::node::EngineNode;
use super::super::queue::error_without_request;
use super::Sent;
use super::pipe::{Inbound, Outbound, PeerState};
use crate::fabric::Fabric;
use ringdove_kernels::bar::{ErrorCode, ErrorRecord, NONE, Peer, Refusal};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Packets of one pipe in one step: others get their turn.
const PACKETS_PER_STEP: u32 = 8;
/// How often the engines ask whether the processes of their peers live.
const PEERS_EVERY: Duration = Duration::from_millis(50);

/// What a node has of links to other processes.
pub(in super::super) struct RemoteLinks {
    pub fabric: Option<Arc<Fabric>>,
    pub inbound: Vec<Inbound>,
    asked: Option<Instant>,
    /// Channels of one process reach each other as if they were of two.
    #[cfg(test)]
    pub always: bool,
}

impl RemoteLinks {
    pub fn new(fabric: Option<Arc<Fabric>>) -> Self {
        Self {
            fabric,
            inbound: Vec::new(),
            asked: None,
            #[cfg(test)]
            always: false,
        }
    }

    fn is_time_to_ask(&mut self, now: Instant) -> bool {
        let due = self.asked.is_none_or(|asked| now.duration_since(asked) >= PEERS_EVERY);
        if due {
            self.asked = Some(now);
        }
        due
    }
}

impl EngineNode {
    /// Sends a packet through the pipe to another process's channel.
    pub(super) fn transmit_remote(&mut self, index: usize, packet: &Packet, dma: &Dma<'_>) -> Sent {
        let lost =
            Sent::Failed { code: ErrorCode::LinkLost, limit: 0, detail: packet.to.link_address };
        let Some(fabric) = &self.remote.fabric else { return lost };
        let channel = &mut self.channels[index];
        // A peer that went and came back is a new one, unless the old one owes answers.
        let owes = channel.lanes.oldest_to(packet.to).is_some();
        let usable = |pipe: &Outbound| owes || pipe.peer() != PeerState::Left;
        if !channel.outbound.get(&packet.to).is_some_and(usable) {
            match Outbound::open(fabric, channel.place, packet.to) {
                Ok(Some(pipe)) => drop(channel.outbound.insert(packet.to, pipe)),
                Ok(None) => return lost,
                Err(error) => {
                    eprintln!("hwsim: the link from {:?} is lost: {error}", channel.place);
                    return lost;
                }
            }
        }
        let Some(pipe) = channel.outbound.get_mut(&packet.to) else { return lost };
        if pipe.peer() != PeerState::There {
            return lost;
        }
        let sent = pipe.send(packet, |room| {
            // SAFETY: the pipe gave room for the packet's length, and shows it to nobody yet.
            unsafe { dma.fetch(room, packet.source, packet.length) }
        });
        match sent {
            Ok(true) => Sent::Pending,
            Ok(false) => Sent::NoRoom,
            Err(DmaFault(address)) => {
                Sent::Failed { code: ErrorCode::FetchFault, limit: address, detail: 0 }
            }
        }
    }

    /// Does the remote part of every link for a step. True if anything moved.
    pub fn serve_links(&mut self, dma: &Dma<'_>, now: Instant) -> bool {
        self.answer_knocks();
        let mut worked = false;
        for pipe in 0..self.remote.inbound.len() {
            worked |= self.receive(pipe, dma);
        }
        let ask = self.remote.is_time_to_ask(now);
        for index in 0..self.channels.len() {
            worked |= self.receive_answers(index, ask, dma);
        }
        self.drop_ended(ask, dma);
        worked
    }

    /// Is there anything that a step would find? For a thread that is about to sleep.
    pub fn has_remote_work(&self) -> bool {
        self.remote.inbound.iter().any(Inbound::has_packet)
            || self.channels.iter().any(|channel| {
                channel.door.as_ref().is_some_and(|door| door.has_knock())
                    || channel.outbound.values().any(Outbound::has_answers)
            })
    }

    fn answer_knocks(&mut self) {
        for channel in &mut self.channels {
            let Some(door) = channel.door.as_mut() else { continue };
            if self.devices[channel.engine].link_is_down() {
                door.show_down();
            }
            if door.has_knock() {
                let known = |name: &str| self.remote.inbound.iter().any(|pipe| pipe.name == name);
                let new = door.answer(known);
                self.remote.inbound.extend(new);
            }
        }
    }

    /// Writes some of what has come through a pipe.
    fn receive(&mut self, pipe: usize, dma: &Dma<'_>) -> bool {
        let Some(index) = self.find(self.remote.inbound[pipe].to) else { return false };
        let device = &self.devices[self.channels[index].engine];
        if device.is_stalled() || device.link_is_down() {
            return false;
        }
        let (channel, pipe) = (&mut self.channels[index], &mut self.remote.inbound[pipe]);
        let mut worked = false;
        for _ in 0..PACKETS_PER_STEP {
            let Some((record, packet, payload)) = pipe.peek() else { break };
            let outcome = channel.accept(&packet, dma, |target| {
                // SAFETY: the payload lies in the pipe until `take`.
                unsafe { dma.deliver(target, payload, packet.length) }
            });
            pipe.take(&record, &packet, outcome);
            worked = true;
        }
        worked
    }

    /// Ends the requests of a channel that its peers have answered, and the channel if one of them
    /// refuses, or is gone.
    fn receive_answers(&mut self, index: usize, ask: bool, dma: &Dma<'_>) -> bool {
        let channel = &mut self.channels[index];
        if self.devices[channel.engine].is_stalled() {
            return false;
        }
        let mut acknowledged = Vec::new();
        let mut trouble = None;
        for pipe in channel.outbound.values_mut() {
            while let Some(ended) = pipe.next_acknowledged() {
                acknowledged.push(ended);
            }
        }
        for (lane, position) in &acknowledged {
            channel.acknowledged(*lane, *position);
        }
        for (to, pipe) in &channel.outbound {
            let owes = || channel.lanes.oldest_to(*to).is_some();
            trouble = trouble.or_else(|| Some((*to, Trouble::of(pipe, ask, owes)?)));
        }
        if let Some((to, trouble)) = &trouble {
            let record = trouble.record(channel, *to);
            channel.fail(dma, &record);
        }
        !acknowledged.is_empty() || trouble.is_some()
    }

    /// Forgets pipes that have come to their ends. A sender whose process was killed without having
    /// closed its pipe is a lost link.
    fn drop_ended(&mut self, ask: bool, dma: &Dma<'_>) {
        let mut killed = Vec::new();
        let channels = &self.channels;
        self.remote.inbound.retain(|pipe| {
            // Before the ring is looked at: what was sent before the end is there then.
            let closed = pipe.is_closed();
            let died = !closed && ask && !pipe.is_alive();
            if pipe.has_packet() && channels.iter().any(|channel| channel.place == pipe.to) {
                return true;
            }
            if died {
                killed.push((pipe.from, pipe.to));
            }
            !closed && !died
        });
        for (from, to) in killed {
            if let Some(index) = self.find(to) {
                let channel = &mut self.channels[index];
                let record = lost(channel, from);
                if record.peer != NONE {
                    channel.fail(dma, &record);
                }
            }
        }
    }
}

/// What ends a channel, of one of its pipes.
enum Trouble {
    /// The peer has refused the request at this position.
    Refused { position: u64, reason: Refusal, limit: u64 },
    /// The peer cannot be reached.
    Lost,
}

impl Trouble {
    /// `ask`: ask the system, too. `owes`: is any request to this peer under way?
    fn of(pipe: &Outbound, ask: bool, owes: impl FnOnce() -> bool) -> Option<Self> {
        if let Some((position, reason, limit)) = pipe.refusal() {
            return Some(Self::Refused { position, reason, limit });
        }
        let lost = match pipe.peer() {
            PeerState::There => ask && !pipe.is_alive(),
            PeerState::Left => owes(),
            PeerState::Lost => true,
        };
        lost.then_some(Self::Lost)
    }

    fn record(&self, channel: &Channel, to: ChannelAddress) -> ErrorRecord {
        let Self::Refused { position, reason, limit } = *self else { return lost(channel, to) };
        let (code, reason) = (ErrorCode::PeerRefused, reason as u64);
        match channel.lanes.find(position) {
            Some(request) => {
                ErrorRecord { route: request.window, ..request.error(code, limit, reason) }
            }
            None => error_without_request(code, position, limit, reason),
        }
    }
}

/// The record of a lost link: of the oldest request that was under way on it, or of none.
fn lost(channel: &Channel, peer: ChannelAddress) -> ErrorRecord {
    let (code, detail) = (ErrorCode::LinkLost, peer.link_address);
    if let Some(request) = channel.lanes.oldest_to(peer) {
        return request.error(code, 0, detail);
    }
    let registers = &channel.registers;
    let is_it = |index: &u64| {
        registers.entry::<Peer>(*index).is_some_and(|entry| {
            (entry.link_address, entry.channel) == (peer.link_address, peer.channel)
        })
    };
    let entry = (0..registers.identity().peer_count).find(is_it);
    let record = error_without_request(code, channel.status.position, 0, detail);
    ErrorRecord { peer: entry.unwrap_or(NONE), ..record }
}
