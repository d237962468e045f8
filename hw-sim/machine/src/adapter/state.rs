//! The state machine of queue pairs: which attributes each step needs and allows.

use super::address::Route;
use super::error::{Result, VerbsError};
use super::transport::Transport;

/// States; the numbers of the verbs interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum QueuePairState {
    /// As made.
    Reset = 0,
    /// Receive requests can be posted.
    Initialised = 1,
    /// Messages are received.
    ReadyToReceive = 2,
    /// Messages are sent, too.
    ReadyToSend = 3,
    /// Sending has stopped for a change of attributes.
    SendDrained = 4,
    /// A send request has failed where its peer knows nothing of it (UC, UD): later ones are
    /// flushed, and messages are received as before.
    SendError = 5,
    /// All requests are flushed.
    Error = 6,
}

impl QueuePairState {
    /// The states in which messages are received.
    pub(super) const RECEIVING: [Self; 4] =
        [Self::ReadyToReceive, Self::ReadyToSend, Self::SendDrained, Self::SendError];

    /// Are messages received?
    pub(super) fn receives(self) -> bool {
        Self::RECEIVING.contains(&self)
    }

    /// Are send requests flushed?
    pub(super) fn flushes_sends(self) -> bool {
        matches!(self, Self::SendError | Self::Error)
    }

    /// The state with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        [
            Self::Reset,
            Self::Initialised,
            Self::ReadyToReceive,
            Self::ReadyToSend,
            Self::SendDrained,
            Self::SendError,
            Self::Error,
        ]
        .into_iter()
        .find(|state| *state as u32 == number)
    }
}

/// Which attributes a call names: the bits of the verbs interface.
pub mod mask {
    /// The next state.
    pub const STATE: u32 = 1;
    /// The state that the caller believes in.
    pub const CURRENT_STATE: u32 = 1 << 1;
    /// An event when the send queue has drained.
    pub const DRAINED_EVENT: u32 = 1 << 2;
    /// Rights of the peer.
    pub const ACCESS: u32 = 1 << 3;
    /// Partition.
    pub const PARTITION: u32 = 1 << 4;
    /// Port.
    pub const PORT: u32 = 1 << 5;
    /// The key that datagrams must carry.
    pub const QUEUE_KEY: u32 = 1 << 6;
    /// The peer's address.
    pub const ADDRESS: u32 = 1 << 7;
    /// Largest packet.
    pub const MTU: u32 = 1 << 8;
    /// How long to wait for an answer.
    pub const TIMEOUT: u32 = 1 << 9;
    /// How often to try again.
    pub const RETRIES: u32 = 1 << 10;
    /// How often to try again when the peer has no receive request.
    pub const RECEIVER_RETRIES: u32 = 1 << 11;
    /// First packet number of the peer.
    pub const RECEIVE_NUMBER: u32 = 1 << 12;
    /// Own reads and atomics under way at most.
    pub const READS: u32 = 1 << 13;
    /// Another path.
    pub const ALTERNATE: u32 = 1 << 14;
    /// How long the peer waits before it tries a receive again.
    pub const RECEIVER_TIMER: u32 = 1 << 15;
    /// First packet number of our own.
    pub const SEND_NUMBER: u32 = 1 << 16;
    /// Reads and atomics of the peer under way at most.
    pub const PEER_READS: u32 = 1 << 17;
    /// Migration between paths.
    pub const MIGRATION: u32 = 1 << 18;
    /// Queue sizes.
    pub const CAPACITY: u32 = 1 << 19;
    /// The peer's queue pair.
    pub const PEER: u32 = 1 << 20;
}

/// Attributes of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes {
    /// Rights of the peer over memory, through this queue pair.
    pub access: u32,
    /// Index of the partition key.
    pub partition: u16,
    /// The port: 1.
    pub port: u8,
    /// The peer's address.
    pub route: Route,
    /// Largest packet, as the interface counts: 1 for 256 bytes to 5 for 4096.
    pub mtu: u32,
    /// The peer's queue pair.
    pub peer: u32,
    /// First packet number of the peer.
    pub receive_number: u32,
    /// First packet number of our own.
    pub send_number: u32,
    /// Own reads and atomics under way at most.
    pub reads: u8,
    /// Reads and atomics of the peer under way at most.
    pub peer_reads: u8,
    /// How long the peer waits before it tries a receive again: the interface's code.
    pub receiver_timer: u8,
    /// How long to wait for an answer: 4.096 µs times two to this power; 0: for ever.
    pub timeout: u8,
    /// How often to try again.
    pub retries: u8,
    /// How often to try again when the peer has no receive request; 7: for ever.
    pub receiver_retries: u8,
    /// Tell when the send queue has drained.
    pub drained_event: bool,
    /// The key that datagrams to this queue pair must carry.
    pub queue_key: u32,
}

/// The attributes that a transition needs, and those that it allows besides; `None` for an invalid
/// transition.
fn step(transport: Transport, from: QueuePairState, to: QueuePairState) -> Option<(u32, u32)> {
    use QueuePairState::*;
    use mask::*;
    match transport {
        Transport::Reliable => {}
        Transport::Unreliable => return step_unreliable(from, to),
        Transport::Datagram => return step_datagram(from, to),
        Transport::XrcSend | Transport::XrcReceive => return step_xrc(transport, from, to),
    }
    Some(match (from, to) {
        (_, Reset) => (0, 0),
        (Initialised | ReadyToReceive | ReadyToSend | SendDrained | Error, Error) => (0, 0),
        (Reset, Initialised) => (PARTITION | PORT | ACCESS, 0),
        (Initialised, Initialised) => (0, PARTITION | PORT | ACCESS),
        (Initialised, ReadyToReceive) => (
            ADDRESS | MTU | PEER | RECEIVE_NUMBER | PEER_READS | RECEIVER_TIMER,
            ALTERNATE | ACCESS | PARTITION,
        ),
        (ReadyToReceive, ReadyToSend) => (
            TIMEOUT | RETRIES | RECEIVER_RETRIES | SEND_NUMBER | READS,
            CURRENT_STATE | ALTERNATE | ACCESS | RECEIVER_TIMER | MIGRATION,
        ),
        (ReadyToSend, ReadyToSend) => {
            (0, CURRENT_STATE | ACCESS | ALTERNATE | MIGRATION | RECEIVER_TIMER)
        }
        (ReadyToSend, SendDrained) => (0, DRAINED_EVENT),
        (SendDrained, ReadyToSend) => {
            (0, CURRENT_STATE | ALTERNATE | ACCESS | RECEIVER_TIMER | MIGRATION)
        }
        (SendDrained, SendDrained) => {
            let path = PORT | ADDRESS | TIMEOUT | RETRIES | RECEIVER_RETRIES | ALTERNATE;
            (0, path | READS | PEER_READS | ACCESS | PARTITION | RECEIVER_TIMER | MIGRATION)
        }
        _ => return None,
    })
}

/// The same of unreliable connections: there is nothing to try again.
fn step_unreliable(from: QueuePairState, to: QueuePairState) -> Option<(u32, u32)> {
    use QueuePairState::*;
    use mask::*;
    Some(match (from, to) {
        (SendError, Reset | Error) => (0, 0),
        (SendError, ReadyToSend) => (0, CURRENT_STATE | ACCESS),
        (Initialised, ReadyToReceive) => {
            (ADDRESS | MTU | PEER | RECEIVE_NUMBER, ALTERNATE | ACCESS | PARTITION)
        }
        (ReadyToReceive, ReadyToSend) => {
            (SEND_NUMBER, CURRENT_STATE | ALTERNATE | ACCESS | MIGRATION)
        }
        (SendDrained, SendDrained) => (0, ADDRESS | ALTERNATE | ACCESS | PARTITION | MIGRATION),
        _ => {
            let (needed, allowed) = step(Transport::Reliable, from, to)?;
            (needed, allowed & !RECEIVER_TIMER)
        }
    })
}

/// The same of extended reliable connections: each end has the attributes of its half.
fn step_xrc(transport: Transport, from: QueuePairState, to: QueuePairState) -> Option<(u32, u32)> {
    let (needed, allowed) = step(Transport::Reliable, from, to)?;
    let others = of_other_half(transport);
    Some((needed & !others, allowed & !others))
}

/// The attributes that an extended reliable connection has at its other end. Linux drops them from
/// what a program names, whatever their values are: programs set both halves as for a reliable one.
fn of_other_half(transport: Transport) -> u32 {
    use mask::*;
    match transport {
        Transport::XrcSend => PEER_READS | RECEIVER_TIMER,
        Transport::XrcReceive => RETRIES | RECEIVER_RETRIES | READS,
        Transport::Reliable | Transport::Unreliable | Transport::Datagram => 0,
    }
}

/// The same of datagrams, which know neither peer nor rights.
fn step_datagram(from: QueuePairState, to: QueuePairState) -> Option<(u32, u32)> {
    use QueuePairState::*;
    use mask::*;
    Some(match (from, to) {
        (_, Reset) => (0, 0),
        (Reset, Initialised) => (PARTITION | PORT | QUEUE_KEY, 0),
        (Initialised, Initialised) => (0, PARTITION | PORT | QUEUE_KEY),
        (Initialised, ReadyToReceive) => (0, PARTITION | QUEUE_KEY),
        (ReadyToReceive, ReadyToSend) => (SEND_NUMBER, CURRENT_STATE | QUEUE_KEY),
        (ReadyToSend | SendDrained | SendError, ReadyToSend) => (0, CURRENT_STATE | QUEUE_KEY),
        (ReadyToSend, SendDrained) => (0, DRAINED_EVENT),
        (SendDrained, SendDrained) => (0, PARTITION | QUEUE_KEY),
        (Reset, Error) => return None,
        (_, Error) => (0, 0),
        _ => return None,
    })
}

/// Checks a step, and gives the attributes as they are after it.
pub(super) fn change(
    transport: Transport,
    from: QueuePairState,
    to: QueuePairState,
    now: &Attributes,
    new: &Attributes,
    named: u32,
) -> Result<Attributes> {
    let named = named & !of_other_half(transport);
    let refuse = |text: String| Err(VerbsError::Invalid(format!("{from:?} to {to:?}: {text}")));
    let Some((needed, allowed)) = step(transport, from, to) else {
        return refuse("there is no such transition".into());
    };
    let missing = needed & !named;
    let surplus = named & !(needed | allowed | mask::STATE);
    if missing != 0 || surplus != 0 {
        return refuse(format!(
            "attributes {missing:#x} are missing, {surplus:#x} are not allowed"
        ));
    }
    if named & (mask::ALTERNATE | mask::MIGRATION) != 0 {
        return Err(VerbsError::NotSupported("a second path".into()));
    }
    let has = |bit| named & bit != 0;
    let ranges = [
        (mask::PORT, "port", u32::from(new.port), 1, 1),
        (mask::PARTITION, "partition key index", u32::from(new.partition), 0, 0),
        (mask::MTU, "path MTU", new.mtu, 1, 5),
        (mask::PEER, "queue pair number", new.peer, 0, 0xff_ffff),
        (mask::READS, "reads and atomics", u32::from(new.reads), 0, super::device::READS_MAX),
        (mask::PEER_READS, "peer's reads", u32::from(new.peer_reads), 0, super::device::READS_MAX),
        (mask::RECEIVER_TIMER, "receiver timer", u32::from(new.receiver_timer), 0, 31),
        (mask::TIMEOUT, "timeout", u32::from(new.timeout), 0, 31),
        (mask::RETRIES, "retry count", u32::from(new.retries), 0, 7),
        (mask::RECEIVER_RETRIES, "receiver retries", u32::from(new.receiver_retries), 0, 7),
    ];
    for (bit, what, seen, least, most) in ranges {
        if has(bit) && !(least..=most).contains(&seen) {
            return refuse(format!("expected {what} from {least} to {most}, found {seen}"));
        }
    }
    let mut next = *now;
    macro_rules! take {
        ($($bit:ident => $field:ident),* $(,)?) => {
            $(if has(mask::$bit) { next.$field = new.$field; })*
        };
    }
    take! {
        ACCESS => access, PARTITION => partition, PORT => port, ADDRESS => route, MTU => mtu,
        PEER => peer, RECEIVE_NUMBER => receive_number, SEND_NUMBER => send_number,
        READS => reads, PEER_READS => peer_reads, RECEIVER_TIMER => receiver_timer,
        TIMEOUT => timeout, RETRIES => retries, RECEIVER_RETRIES => receiver_retries,
        DRAINED_EVENT => drained_event, QUEUE_KEY => queue_key,
    }
    // Packet numbers have 24 bits.
    next.receive_number &= 0xff_ffff;
    next.send_number &= 0xff_ffff;
    Ok(if to == QueuePairState::Reset { Attributes::default() } else { next })
}

/// The time that a receiver timer's code stands for, microseconds (InfiniBand specification, table
/// of RNR NAK timer values).
pub(super) fn receiver_timer_us(code: u8) -> u64 {
    const HUNDREDTHS_OF_MS: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    HUNDREDTHS_OF_MS[usize::from(code & 31)] * 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_missing_and_every_surplus_attribute_is_refused() {
        use QueuePairState::*;
        let steps = [
            (Reset, Initialised),
            (Initialised, ReadyToReceive),
            (ReadyToReceive, ReadyToSend),
            (ReadyToSend, SendDrained),
            (SendDrained, ReadyToSend),
        ];
        let new = Attributes { port: 1, mtu: 5, ..Attributes::default() };
        let all = [2, 3, 4, 9, 10].map(|number| Transport::from_number(number).unwrap());
        for transport in all {
            for (from, to) in steps {
                let (needed, allowed) = step(transport, from, to).unwrap();
                let what = format!("{transport:?}, {from:?} to {to:?}");
                let try_with = |named| change(transport, from, to, &new, &new, named | mask::STATE);
                assert!(try_with(needed).is_ok(), "{what}");
                for bit in (0..26).map(|bit| 1 << bit).filter(|bit| *bit != mask::STATE) {
                    if needed & bit != 0 {
                        assert!(try_with(needed & !bit).is_err(), "{what} without {bit:#x}");
                    } else if of_other_half(transport) & bit != 0 {
                        assert!(try_with(needed | bit).is_ok(), "{what}, {bit:#x} is dropped");
                    } else if allowed & bit == 0 {
                        assert!(try_with(needed | bit).is_err(), "{what} with {bit:#x}");
                    }
                }
            }
            let try_step = |from, to| change(transport, from, to, &new, &new, mask::STATE);
            assert!(try_step(Reset, ReadyToSend).is_err());
            assert!(try_step(Reset, Error).is_err());
            assert!(try_step(Error, Initialised).is_err());
            assert_eq!(
                try_step(SendError, ReadyToSend).is_ok(),
                !transport.is_reliable(),
                "a reliable connection has no such state"
            );
        }
    }
}
