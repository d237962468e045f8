//! The link: from one channel's fetch unit to another's write unit.
//!
//! Between engines that one process plays, the data is copied once, from source to destination.
//! Between processes it goes through memory that both share, and is acknowledged.

mod pipe;
mod record;
mod remote;

pub(super) use pipe::{Door, Outbound};
pub(super) use remote::RemoteLinks;

use super::dma::{Dma, DmaFault};
use super::fetch::Packet;
use super::node::{EngineDevice, EngineNode};
use super::queue::Request;
use super::write::Refused;
use ringdove_kernels::bar::ErrorCode;

/// State of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// It was written.
    Acknowledged,
    /// It is on its way.
    Pending,
    /// The link takes nothing at the moment.
    NoRoom,
    /// The channel has to end: code, limit and detail of its error record.
    Failed { code: ErrorCode, limit: u64, detail: u64 },
}

impl EngineNode {
    /// Sends one packet of a channel.
    pub fn transmit(
        &mut self,
        index: usize,
        packet: &Packet,
        request: &Request,
        dma: &Dma<'_>,
    ) -> Sent {
        let unreadable =
            |address| Sent::Failed { code: ErrorCode::FetchFault, limit: address, detail: 0 };
        if request.spoilt {
            return unreadable(packet.source);
        }
        if let Err(DmaFault(address)) = dma.check(packet.source, packet.length) {
            return unreadable(address);
        }
        let lost =
            Sent::Failed { code: ErrorCode::LinkLost, limit: 0, detail: packet.to.link_address };
        if self.devices[self.channels[index].engine].link_is_down() {
            return lost;
        }
        let Some(receiver) = self.find_near(packet) else {
            return self.transmit_remote(index, packet, dma);
        };
        let device: &EngineDevice = &self.devices[self.channels[receiver].engine];
        if device.link_is_down() {
            return lost;
        }
        if device.is_stalled() {
            return Sent::NoRoom;
        }
        let copy = |target| dma.copy(target, packet.source, packet.length);
        match self.channels[receiver].accept(packet, dma, copy) {
            Ok(()) => Sent::Acknowledged,
            Err(Refused { reason, limit }) => {
                Sent::Failed { code: ErrorCode::PeerRefused, limit, detail: reason as u64 }
            }
        }
    }

    /// The receiver, if this process plays it.
    fn find_near(&self, packet: &Packet) -> Option<usize> {
        #[cfg(test)]
        if self.remote.always {
            return None;
        }
        self.find(packet.to)
    }
}
