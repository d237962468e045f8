//! The write unit: what a packet must be to be written, and how it is written.

use super::channel::{Channel, ChannelAddress};
use super::dma::{Dma, DmaFault};
use super::fetch::Packet;
use ringdove_kernels::bar::{Peer, Refusal, Signal, Window};

/// Why a packet was not written, and the limit that goes with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub reason: Refusal,
    pub limit: u64,
}

fn refuse<T>(reason: Refusal, limit: u64) -> Result<T, Refused> {
    Err(Refused { reason, limit })
}

impl Channel {
    /// Checks a packet and writes it: the data, then the signal. `copy` moves the data to an
    /// address.
    pub fn accept(
        &mut self,
        packet: &Packet,
        dma: &Dma<'_>,
        copy: impl FnOnce(u64) -> Result<(), DmaFault>,
    ) -> Result<(), Refused> {
        let written = self.write(packet, dma, copy);
        match written {
            Ok(()) => self.status.bytes_received += packet.length,
            Err(_) => self.status.packets_refused += 1,
        }
        written
    }

    fn write(
        &mut self,
        packet: &Packet,
        dma: &Dma<'_>,
        copy: impl FnOnce(u64) -> Result<(), DmaFault>,
    ) -> Result<(), Refused> {
        let of_now = self.is_open() && packet.to_generation == self.control.generation;
        let Some(sender) = of_now.then(|| self.find_sender(packet)).flatten() else {
            return refuse(Refusal::UnknownSender, 0);
        };
        let target = self.target_of(packet)?;
        // Looked at before the data moves: a packet is written whole or not at all.
        let signal = match packet.signal {
            Some((index, count)) => Some((self.signal_of(index, sender, dma)?, count)),
            None => None,
        };
        if let Some(target) = target {
            copy(target).or_else(|DmaFault(address)| refuse(Refusal::WriteFault, address))?;
        }
        if let Some((address, count)) = signal {
            dma.write_count(address, count)
                .or_else(|DmaFault(address)| refuse(Refusal::WriteFault, address))?;
        }
        Ok(())
    }

    /// The entry of the peer table that names the sender.
    fn find_sender(&mut self, packet: &Packet) -> Option<u64> {
        let ChannelAddress { link_address, channel } = packet.from;
        let registers = &self.registers;
        let is_it = |index: &u64| {
            registers.entry::<Peer>(*index).is_some_and(|peer| {
                (peer.link_address, peer.channel, peer.generation)
                    == (link_address, channel, packet.from_generation)
            })
        };
        let found = self
            .senders
            .get(&packet.from)
            .copied()
            .filter(is_it)
            .or_else(|| (0..registers.identity().peer_count).find(is_it))?;
        self.senders.insert(packet.from, found);
        Some(found)
    }

    /// Where the data goes; None for a packet without.
    fn target_of(&self, packet: &Packet) -> Result<Option<u64>, Refused> {
        if packet.length == 0 {
            return Ok(None);
        }
        let Some(window) = self.registers.entry::<Window>(packet.window) else {
            return refuse(Refusal::UnknownWindow, self.registers.identity().window_count);
        };
        let fits = packet.offset <= window.length && packet.length <= window.length - packet.offset;
        if !fits {
            return refuse(Refusal::WindowRange, window.length);
        }
        // A base that the host made up may wrap: no memory is there.
        Ok(Some(window.base.wrapping_add(packet.offset)))
    }

    /// The address of a signal that this sender may raise.
    fn signal_of(&self, index: u64, sender: u64, dma: &Dma<'_>) -> Result<u64, Refused> {
        let Some(Signal { address, .. }) =
            self.registers.entry::<Signal>(index).filter(|signal| signal.peer == sender)
        else {
            return refuse(Refusal::UnknownSignal, self.registers.identity().signal_count);
        };
        match dma.check(address, 8) {
            Ok(()) if address.is_multiple_of(8) => Ok(address),
            _ => refuse(Refusal::WriteFault, address),
        }
    }
}
