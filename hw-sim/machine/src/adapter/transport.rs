//! Transports of queue pairs: what each promises, and what may be asked of it.

use super::work::Verb;

/// How messages of a queue pair travel; the numbers of the verbs interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Transport {
    /// Between two queue pairs (RC): each message arrives once, in order, or its sender is told.
    Reliable = 2,
    /// Between two queue pairs (UC): in order; a message may be lost, and nobody is told.
    Unreliable = 3,
    /// From any queue pair to any (UD), each message in one packet, which may be lost.
    Datagram = 4,
    /// The sending end of an extended reliable connection (XRC): as `Reliable`, but each message
    /// names the shared receive queue that it is for.
    XrcSend = 9,
    /// Its receiving end.
    XrcReceive = 10,
}

impl Transport {
    /// The transport with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        [Self::Reliable, Self::Unreliable, Self::Datagram, Self::XrcSend, Self::XrcReceive]
            .into_iter()
            .find(|transport| *transport as u32 == number)
    }

    /// Is a sender told of what happened to its message?
    pub(super) fn is_reliable(self) -> bool {
        matches!(self, Self::Reliable) || self.is_xrc()
    }

    /// Is it an end of an extended reliable connection?
    pub fn is_xrc(self) -> bool {
        matches!(self, Self::XrcSend | Self::XrcReceive)
    }

    /// Can it carry this operation?
    pub fn carries(self, verb: Verb) -> bool {
        match self {
            Self::Reliable | Self::XrcSend => true,
            Self::XrcReceive => false,
            Self::Unreliable => !verb.is_read(),
            Self::Datagram => matches!(verb, Verb::Send),
        }
    }
}
