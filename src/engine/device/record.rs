//! Error records as typed errors: those that blame a descriptor as the proxy words them, others as
//! faults of the engine.

use crate::error::{BadDescriptor, DescriptorFault, EngineFault, EngineFaultKind, Error};
use crate::id::{LaneId, Position, Rank};
use ringdove_kernels::bar::{ErrorCode, ErrorRecord, NONE, Refusal};
use ringdove_kernels::descriptor::{Descriptor, MalformedDescriptor};

/// The record that stopped channel `channel` of `engine`, which serves `rank`.
pub(super) fn error(rank: Rank, engine: &str, channel: u64, record: &ErrorRecord) -> Error {
    let code = ErrorCode::from_code(record.code);
    if let Some(reason) = code.and_then(|code| descriptor_fault(code, record)) {
        return Error::BadDescriptor(Box::new(BadDescriptor {
            rank,
            position: Position(record.position),
            words: record.words,
            fields: Descriptor::decode(record.words).ok(),
            reason,
        }));
    }
    let kind = match code {
        Some(ErrorCode::FetchFault) => EngineFaultKind::Fetch,
        Some(ErrorCode::WriteFault) => EngineFaultKind::Write,
        Some(ErrorCode::PeerRefused) => EngineFaultKind::Refused {
            reason: Refusal::from_code(record.detail),
            window: record.route,
        },
        Some(ErrorCode::LinkLost) => EngineFaultKind::LinkLost,
        Some(ErrorCode::BadRegister) => EngineFaultKind::Register { offset: record.detail },
        _ => EngineFaultKind::Unknown { code: record.code, detail: record.detail },
    };
    // Before the first descriptor there is neither lane nor position, and fields are zero.
    let transfer = !matches!(kind, EngineFaultKind::Register { .. });
    let number = |value: u64| u32::try_from(value).ok().filter(|_| transfer && value != NONE);
    Error::Engine(Box::new(EngineFault {
        rank,
        peer: number(record.peer).map(Rank),
        engine: engine.to_owned(),
        channel,
        lane: number(record.lane).map(LaneId),
        position: (transfer && record.position != NONE).then_some(Position(record.position)),
        limit: record.limit,
        kind,
    }))
}

/// The fault of a descriptor, in the words that the proxy uses too.
fn descriptor_fault(code: ErrorCode, record: &ErrorRecord) -> Option<DescriptorFault> {
    let lane = LaneId(u32::try_from(record.lane).unwrap_or(u32::MAX));
    Some(match code {
        ErrorCode::Malformed => DescriptorFault::Malformed(match record.detail {
            1 => MalformedDescriptor::ReservedBit,
            2 => MalformedDescriptor::DatalessWithRange,
            3 => MalformedDescriptor::Empty,
            _ => return None,
        }),
        ErrorCode::UnknownRoute => DescriptorFault::UnknownRoute,
        ErrorCode::SourceRange => DescriptorFault::SourceRange(record.limit),
        ErrorCode::DestinationRange => DescriptorFault::DestinationRange(record.limit),
        ErrorCode::NoArrivalSignal => DescriptorFault::NoArrivalSignal(lane),
        ErrorCode::NoCompletionSignal => DescriptorFault::NoCompletionSignal(lane),
        _ => return None,
    })
}
