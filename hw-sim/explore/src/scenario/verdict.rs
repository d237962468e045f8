//! What must have come of a run: right data where nothing failed, and a true record where it did.

use ringdove_kernels::launch::{PlanFault, WaitKind, WaitRecord};
use ringdove_kernels::op::{Op, OpCode};
use ringdove_kernels::port::Port;
use std::mem::offset_of;

use super::{NO_OP, NO_SUCH_PORT, Options, Setup, Traffic, buffer_bytes};
use crate::fault::{Fault, STRAY};
use crate::rank::{LAUNCH, NEVER_NS};

/// `WaitRecord::state` of a wait that expired, or of what was refused.
pub(super) const EXPIRED: u32 = 1;
/// Of a wait that the abort word ended.
pub(super) const ABORTED: u32 = 2;
/// A port or rank that there is none.
pub(super) const NONE: u32 = u32::MAX;

/// Does the record of a rank that found a stray claim tell of one that was?
pub(super) fn check_is_stray(
    options: &Options,
    rank: usize,
    record: &WaitRecord,
) -> Result<(), &'static str> {
    if !options.strikes(rank, |fault| matches!(fault, Fault::StrayClaim { .. })) {
        return Err("nobody wrote the claim word");
    }
    if record.state != EXPIRED || record.seen != u64::from(STRAY) {
        return Err("that is not what was written");
    }
    Ok(())
}

impl Setup<'_> {
    /// Every number is where it belongs, and what failed says why.
    pub(super) fn check(&self) -> Result<(), String> {
        for rank in 0..2 {
            if self.ranks[rank].is_claimed_twice() {
                continue;
            }
            let check = |record: &WaitRecord| self.check_record(rank, record);
            let record = self.ranks[rank].checked_record(rank, check)?;
            self.world.hosts[rank].must_have_seen(rank, &record)?;
            // Words may be waited for without a record.
            let of_user = self.options.traffic == Traffic::User;
            let tells = self.options.is_undisturbed() || !(of_user && self.sends_by_words());
            let is_whole = record.state == 0 && !self.world.is_stopped(rank) && tells;
            if is_whole && self.options.traffic != Traffic::User {
                self.check_ends(rank)?;
                self.check_positions(rank)?;
            }
            self.check_data(rank, is_whole)?;
        }
        self.check_refusal()
    }

    fn check_ends(&self, rank: usize) -> Result<(), String> {
        let mut ended = [0; 8];
        let place = self.ranks[rank].communicator.launches_ended;
        self.memory.get(place, &mut ended).expect("it was allocated");
        if u64::from_le_bytes(ended) == LAUNCH + u64::from(self.options.launches) {
            return Ok(());
        }
        Err(format!("rank {rank} does not say that its launches ended"))
    }

    /// A launch that ended well has passed its messages at each port.
    fn check_positions(&self, rank: usize) -> Result<(), String> {
        let Options { messages, transfers, .. } = *self.options;
        let passed = u64::from(messages * transfers * self.options.rounds());
        let it = &self.ranks[rank];
        let used = it.ports.iter().zip(0_u64..).filter(|(port, _)| port.slot_bytes != 0);
        for (_, number) in used {
            let mut position = [0; 8];
            let place = it.communicator.ports + number * size_of::<Port>() as u64;
            let place = place + offset_of!(Port, position) as u64;
            self.memory.get(place, &mut position).expect("it was allocated");
            if u64::from_le_bytes(position) != passed {
                return Err(format!("rank {rank} ended without a record, and not at its end"));
            }
        }
        Ok(())
    }

    /// A plan that is bad is refused, unless an abort or an expired wait came first.
    fn check_refusal(&self) -> Result<(), String> {
        let [Fault::BadOp { rank, .. } | Fault::BadPort { rank, .. }] = self.options.faults[..]
        else {
            return Ok(());
        };
        let record = self.ranks[rank as usize].record();
        let refused = match self.options.traffic {
            Traffic::User => WaitKind::BadCall,
            _ => WaitKind::BadPlan,
        };
        // Where waits may expire, one of this rank, or of its peer, whose host tells of it, may end
        // the launch before it comes to what is bad.
        let may_come_late = self.options.timeout_ns != NEVER_NS && record.state != 0;
        match record.kind == refused as u32 || may_come_late {
            true => Ok(()),
            false => Err(format!("rank {rank} does not refuse its plan: {record:?}")),
        }
    }

    /// All words of a rank's output; those of a rank that failed may be missing, but not wrong.
    fn check_data(&self, rank: usize, is_whole: bool) -> Result<(), String> {
        let has_output = match self.options.traffic {
            Traffic::LowLatency => true,
            Traffic::User => rank == 0,
            _ => rank == 1,
        };
        if !has_output {
            return Ok(());
        }
        // Calls of users' kernels go on after a launch that failed, and read what they should not:
        // unlike the executor, they ask `has_failed` only where their authors make them.
        let rounds = match self.options.traffic {
            Traffic::User if !is_whole => 1,
            _ => self.options.rounds(),
        };
        let words = u64::from(rounds) * buffer_bytes(self.options) / 4;
        let mut found = vec![0; 4 * words as usize];
        self.memory.get(self.outputs[rank], &mut found).expect("it was allocated");
        for (index, bytes) in (0..words).zip(found.chunks_exact(4)) {
            let found = u32::from_le_bytes(bytes.try_into().expect("four bytes"));
            let sent = Self::word(1 - rank, index);
            let expected = match self.options.traffic {
                Traffic::LowLatency => self.options.terms * sent + Self::word(rank, index),
                // It comes back.
                Traffic::User => Self::word(rank, index),
                _ => sent,
            };
            // A GPU may stop between two bytes of a word.
            let pairs = found.to_le_bytes().into_iter().zip(expected.to_le_bytes());
            let is_part =
                !is_whole && pairs.into_iter().all(|(found, byte)| found == 0 || found == byte);
            if found != expected && !is_part {
                return Err(format!(
                    "rank {rank} has {found:#x} at word {index} of its output, where \
                     {expected:#x} belongs"
                ));
            }
        }
        Ok(())
    }

    /// Does the record tell of something that was, in a block of this rank?
    fn check_record(&self, rank: usize, record: &WaitRecord) -> Result<(), &'static str> {
        if record.state == ABORTED && !self.world.hosts.iter().any(crate::host::Host::has_alarmed) {
            return Err("nobody aborted");
        }
        if self.options.traffic == Traffic::User {
            return self.check_user_record(rank, record);
        }
        let launches = LAUNCH..LAUNCH + u64::from(self.options.launches);
        if !launches.contains(&record.sequence) {
            return Err("no launch has this number");
        }
        let is_call = record.call < u64::from(self.options.calls);
        if record.block >= self.options.blocks || !is_call || record.segment != 0 {
            return Err("no block stands there");
        }
        match WaitKind::from_code(record.kind) {
            Some(WaitKind::BadPlan) => {
                self.check_is_broken(rank, record)?;
                self.check_refused(rank, record)
            }
            Some(WaitKind::StrayClaim) => self.check_stray(rank, record),
            Some(WaitKind::BadCall) | None => Err("no such kind belongs here"),
            Some(kind) => self.check_wait(rank, record, kind),
        }
    }

    fn check_refused(&self, rank: usize, record: &WaitRecord) -> Result<(), &'static str> {
        let op = self.op_at(rank, record).map(|op| op.code);
        let ports = &self.programs[rank][record.block as usize].ports;
        let is_true = match PlanFault::from_code(record.position) {
            Some(PlanFault::OpCode) => op == Some(NO_OP) && record.seen == u64::from(NO_OP),
            Some(PlanFault::PortNumber) => {
                ports.last() == Some(&NO_SUCH_PORT) && record.seen == u64::from(NO_SUCH_PORT)
            }
            _ => false,
        };
        let is_placed = record.port == NONE && record.peer == NONE;
        if is_true && is_placed { Ok(()) } else { Err("something else is bad") }
    }

    pub(super) fn check_is_broken(
        &self,
        rank: usize,
        record: &WaitRecord,
    ) -> Result<(), &'static str> {
        let is = |fault: &Fault| matches!(fault, Fault::BadOp { .. } | Fault::BadPort { .. });
        let is_broken = self.options.strikes(rank, is) && record.state == EXPIRED;
        if is_broken { Ok(()) } else { Err("its plan is good") }
    }

    fn check_stray(&self, rank: usize, record: &WaitRecord) -> Result<(), &'static str> {
        check_is_stray(self.options, rank, record)?;
        let is_at_start = record.port == NONE && record.op == 0 && record.peer == NONE;
        if is_at_start { Ok(()) } else { self.check_place(rank, record) }
    }

    /// A wait expires when its time is over, and only if what was expected has not come.
    pub(super) fn check_has_waited(&self, record: &WaitRecord) -> Result<(), &'static str> {
        let timeout_ns = self.options.timeout_ns;
        if record.state == EXPIRED && (timeout_ns == NEVER_NS || record.waited_ns < timeout_ns) {
            return Err("its time was not over");
        }
        // Flags of low-latency messages show only that they differ.
        if record.seen == record.expected {
            return Err("what was expected has come");
        }
        Ok(())
    }

    fn check_wait(
        &self,
        rank: usize,
        record: &WaitRecord,
        kind: WaitKind,
    ) -> Result<(), &'static str> {
        self.check_has_waited(record)?;
        let op = self.op_at(rank, record).ok_or("there is no such op")?;
        let fits = match OpCode::from_code(op.code) {
            Some(OpCode::WaitSignal) => {
                let is_sender = self.is_send_port(rank, record.port);
                kind == if is_sender { WaitKind::Credit } else { WaitKind::Arrival }
            }
            Some(OpCode::Collect) => kind == WaitKind::Arrival,
            Some(OpCode::WaitCompletion) => kind == WaitKind::Completion,
            Some(OpCode::Put | OpCode::Credit | OpCode::Grant) => kind == WaitKind::RingSpace,
            _ => false,
        };
        if !fits {
            return Err("its op does not wait so");
        }
        self.check_place(rank, record)
    }

    /// Do block, op, port and peer belong together?
    fn check_place(&self, rank: usize, record: &WaitRecord) -> Result<(), &'static str> {
        let program = &self.programs[rank][record.block as usize];
        let op = self.op_at(rank, record).ok_or("there is no such op")?;
        let first = usize::from(op.port);
        let count = if op.code == OpCode::Collect as u8 { op.value as usize } else { 1 };
        if !program.ports[first..first + count].contains(&record.port) {
            return Err("the op has another port");
        }
        let is_ring_space = record.kind == WaitKind::RingSpace as u32;
        let peer = if is_ring_space { NONE } else { 1 - rank as u32 };
        let is_stray = record.kind == WaitKind::StrayClaim as u32;
        if record.peer == peer || is_stray && record.peer == NONE {
            Ok(())
        } else {
            Err("its port leads to another peer")
        }
    }

    fn op_at(&self, rank: usize, record: &WaitRecord) -> Option<&Op> {
        self.programs[rank][record.block as usize].ops.get(record.op as usize)
    }

    fn is_send_port(&self, rank: usize, port: u32) -> bool {
        let port = self.ranks[rank].ports.get(port as usize);
        port.is_some_and(|port| port.completion != 0)
    }
}
