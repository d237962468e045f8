//! Errors of device engines, and of PCI functions that cannot serve as one.

use crate::id::{LaneId, Position, Rank};
use ringdove_kernels::bar::Refusal;
use std::fmt;

/// A channel of a device engine stopped with an error that no descriptor is to blame for (R12).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineFault {
    /// The rank whose channel it is.
    pub rank: Rank,
    /// The rank at the other end, where the engine names one.
    pub peer: Option<Rank>,
    /// Bus id of the engine, and the channel's number.
    pub engine: String,
    /// The channel's number.
    pub channel: u64,
    /// The lane of the transfer that failed, where there was one.
    pub lane: Option<LaneId>,
    /// Ring position of the descriptor that asked for it, where there was one.
    pub position: Option<Position>,
    /// The limit that was not kept, or an address, as the engine recorded it.
    pub limit: u64,
    /// The cause.
    pub kind: EngineFaultKind,
}

/// Why a channel stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineFaultKind {
    /// A source could not be read.
    Fetch,
    /// A signal, the tail or the abort word could not be written.
    Write,
    /// The peer's engine refused a packet.
    Refused {
        /// Its reason; `None` for a code that this version does not know.
        reason: Option<Refusal>,
        /// The peer's window.
        window: u64,
    },
    /// The peer cannot be reached any more.
    LinkLost,
    /// A register made no sense to the engine.
    Register {
        /// Its offset in the channel.
        offset: u64,
    },
    /// A code that this version does not know.
    Unknown {
        /// The code.
        code: u64,
        /// Details of the code.
        detail: u64,
    },
}

impl EngineFault {
    /// True if the peer's end caused it: the peer's own error then names the cause.
    pub fn is_consequence(&self) -> bool {
        let unknown = Some(Refusal::UnknownSender);
        match self.kind {
            EngineFaultKind::LinkLost => true,
            EngineFaultKind::Refused { reason, .. } => reason == unknown,
            _ => false,
        }
    }
}

impl fmt::Display for EngineFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, engine, channel, limit, .. } = self;
        let peer = self.peer.map_or_else(|| "its peer".to_owned(), |peer| peer.to_string());
        write!(f, "{rank}: channel {channel} of device engine {engine} stopped: ")?;
        match self.kind {
            EngineFaultKind::Fetch => write!(f, "it could not read {limit:#x}")?,
            EngineFaultKind::Write => write!(f, "it could not write {limit:#x}")?,
            EngineFaultKind::Refused { reason, window } => {
                write!(f, "{peer} refused a packet: {}", refusal(reason, window, *limit))?;
            }
            EngineFaultKind::LinkLost => write!(f, "the link to {peer} is lost")?,
            EngineFaultKind::Register { offset } => {
                write!(f, "the register at {offset:#x} has an invalid value")?;
            }
            EngineFaultKind::Unknown { code, detail } => {
                write!(f, "unknown error code {code} (detail {detail:#x})")?;
            }
        }
        if let (Some(lane), Some(position)) = (self.lane, self.position) {
            write!(f, " ({lane} to {peer}, ring {position})")?;
        }
        let advice = match self.kind {
            EngineFaultKind::LinkLost => "its process or node has ended, or the link has failed",
            _ if self.is_consequence() => {
                "its channel has stopped; look for an earlier error there"
            }
            EngineFaultKind::Register { .. } | EngineFaultKind::Unknown { .. } => {
                "library and engine are of different versions"
            }
            _ => "memory was freed that the communicator still uses",
        };
        write!(f, ". Likely cause: {advice}")
    }
}

fn refusal(reason: Option<Refusal>, window: u64, limit: u64) -> String {
    match reason {
        Some(Refusal::UnknownSender) => "the sender is unknown, or was reset".into(),
        Some(Refusal::UnknownWindow) => format!("it has no window {window}"),
        Some(Refusal::WindowRange) => format!("the data exceeds window {window} of {limit} bytes"),
        Some(Refusal::UnknownSignal) => "it has no such signal for this sender".into(),
        Some(Refusal::WriteFault) => format!("it could not write {limit:#x}"),
        None => "the reason is unknown to this version".into(),
    }
}

/// A PCI function that cannot serve as a device engine, or not for this communicator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("device engine {file}: {what}: needed {needed}, the engine has {found}. {advice}")]
pub struct UnfitEngine {
    /// Its `resource0`.
    pub file: String,
    /// The compared quantity.
    pub what: String,
    /// The needed value.
    pub needed: String,
    /// The function's value.
    pub found: String,
    /// The operation.
    pub advice: String,
}
