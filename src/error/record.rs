//! From the record that a device leaves (R10) to a typed error.

use super::kernel::what_is_wrong;
use super::{Error, ExpiredWait};
use crate::id::Rank;
use ringdove_kernels::launch::{PlanFault, WaitKind, WaitRecord};

impl Error {
    /// Decodes the record that a device wait left; `None` while there is no complete record.
    /// `rank` is the rank whose device wrote it.
    pub fn from_record(rank: Rank, record: &WaitRecord) -> Option<Self> {
        let peer = (record.peer != u32::MAX).then_some(Rank(record.peer));
        let kind = WaitKind::from_code(record.kind);
        match record.state {
            0 => None,
            // The wait itself is a victim: whoever raised the abort word knows the cause.
            2 => Some(Self::Aborted {
                by: None,
                why: format!("{rank} saw the abort word in launch {}", record.sequence),
            }),
            _ if kind == Some(WaitKind::BadPlan)
                && PlanFault::from_code(record.position) == Some(PlanFault::Place) =>
            {
                Some(Self::RegistrationGone { rank, sequence: record.sequence })
            }
            _ if kind == Some(WaitKind::BadPlan) => Some(Self::PlanRefused {
                rank,
                sequence: record.sequence,
                block: record.block,
                segment: record.segment,
                op: record.op,
                expected: record.expected,
                seen: record.seen,
            }),
            _ if kind == Some(WaitKind::BadCall) => Some(Self::KernelCall {
                rank,
                sequence: record.sequence,
                block: record.block,
                what: what_is_wrong(PlanFault::from_code(record.position)),
                expected: record.expected,
                seen: record.seen,
            }),
            _ if kind == Some(WaitKind::StrayClaim) => Some(Self::MemoryOverwritten {
                rank,
                sequence: record.sequence,
                expected: record.expected,
                seen: record.seen,
            }),
            _ => Some(Self::WaitExpired(Box::new(ExpiredWait {
                rank,
                kind,
                peer,
                record: *record,
                behind: Vec::new(),
            }))),
        }
    }
}
