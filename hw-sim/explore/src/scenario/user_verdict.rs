//! What the record of a user's kernel must say.

use ringdove_kernels::launch::{PlanFault, WaitKind, WaitRecord};

use super::Setup;
use super::user::{NO_SUCH_LANE, NO_SUCH_PEER, NO_SUCH_WINDOW, TOO_FAR};
use super::verdict::{NONE, check_is_stray};

impl Setup<'_> {
    /// Does the record tell of something that was, in a call of a block of this rank?
    pub(super) fn check_user_record(
        &self,
        rank: usize,
        record: &WaitRecord,
    ) -> Result<(), &'static str> {
        let zeros = [record.segment, record.op, record.round];
        if record.sequence != 0 || record.call != 0 || zeros != [0; 3] {
            return Err("no call stands there");
        }
        if record.block >= self.options.blocks {
            return Err("there is no such block");
        }
        match WaitKind::from_code(record.kind) {
            Some(WaitKind::BadCall) => {
                self.check_is_broken(rank, record)?;
                let fault = PlanFault::from_code(record.position);
                let is_true = match fault {
                    Some(PlanFault::Peer) => record.seen == u64::from(NO_SUCH_PEER),
                    Some(PlanFault::Lane) => record.seen == u64::from(NO_SUCH_LANE),
                    Some(PlanFault::BufferNumber) => record.seen == u64::from(NO_SUCH_WINDOW),
                    Some(PlanFault::DescriptorOffset) => record.seen == TOO_FAR,
                    _ => false,
                };
                let is_put =
                    matches!(fault, Some(PlanFault::BufferNumber | PlanFault::DescriptorOffset));
                let port = if is_put { record.block } else { NONE };
                let is_true = is_true && record.port == port;
                if is_true { Ok(()) } else { Err("something else is bad") }
            }
            Some(WaitKind::StrayClaim) => {
                check_is_stray(self.options, rank, record)?;
                let is_at_start = record.port == NONE && record.peer == NONE;
                if is_at_start { Ok(()) } else { self.check_user_port(rank, record) }
            }
            Some(WaitKind::BadPlan) | None => Err("no such kind belongs here"),
            Some(_) => {
                self.check_has_waited(record)?;
                self.check_user_port(rank, record)
            }
        }
    }

    /// Do kind, block, port and peer belong together? A block has the lane of its own number.
    fn check_user_port(&self, rank: usize, record: &WaitRecord) -> Result<(), &'static str> {
        if self.sends_by_words() {
            let is_peer = record.peer == 1 - rank as u32;
            return if is_peer && record.port == NONE { Ok(()) } else { Err("no word of a peer") };
        }
        let (send, receive) = (record.block, self.options.blocks + record.block);
        let ports = match WaitKind::from_code(record.kind) {
            Some(WaitKind::Arrival) => [receive, receive],
            Some(WaitKind::Completion | WaitKind::RingSpace) => [send, send],
            _ => [send, receive],
        };
        if !ports.contains(&record.port) {
            return Err("the block uses another port");
        }
        let is_ring_space = record.kind == WaitKind::RingSpace as u32;
        let is_stray = record.kind == WaitKind::StrayClaim as u32;
        let peer = if is_ring_space { NONE } else { 1 - rank as u32 };
        if record.peer == peer || is_stray && record.peer == NONE {
            Ok(())
        } else {
            Err("its port leads to another peer")
        }
    }
}
