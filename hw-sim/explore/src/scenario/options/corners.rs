//! What a seed of `corners` draws: situations that other scenarios hardly come to. In each of them
//! a mutant of the device code shows itself that runs of other scenarios come to and hide.

use super::Options;
use crate::fault::Fault;
use crate::scenario::Traffic;

/// Launches of the second of two steps, counted from 1, in which lanes of a warp, or threads of a
/// block, go on from what others of them have done. A step has eleven, of which `experts_gather` is
/// the ninth and `experts_combine` the last.
const SECOND_GATHER: u32 = 20;
const SECOND_COMBINE: u32 = 22;
/// The bad op of experts by which the route of the first lane is missing.
const NO_ROUTE: u32 = 2;

impl Options {
    /// Brings one of them about.
    pub(super) fn turn_a_corner(&mut self, random: &mut fastrand::Rng) {
        if self.traffic != Traffic::Experts {
            return match random.u32(0..3) {
                0 => self.wait_alone(random),
                1 => self.wait_for_room(random),
                _ => self.refuse_twice(random),
            };
        }
        (self.shape.faulty_step, self.shape.routes_again) = (0, false);
        (self.launches, self.threads) = (random.u32(1..=2), 32);
        match random.u32(0..5) {
            0 => self.break_both_batches(random),
            1 => self.end_both_batches(random),
            2 => self.stop_behind_a_message(random),
            3 => self.combine_late(random),
            _ => self.split_a_block(random),
        }
    }

    /// The only block of a rank waits for what does not come, and no other thread can end its
    /// wait: an abort has to, or the claim word. Loads that race never see anything newer.
    fn wait_alone(&mut self, random: &mut fastrand::Rng) {
        self.blocks = 1;
        (self.tears, self.stalls) = (false, true);
        let rank = random.u32(0..2);
        let last = random.u64(1..3000);
        self.perhaps_stop_engine(rank, last, random);
        self.end_wait(rank, last, random);
    }

    /// In half of the runs a rank's engine stops, at `last` at the latest: its ring stays full, or
    /// nothing that it waits for is completed.
    fn perhaps_stop_engine(&mut self, rank: u32, last: u64, random: &mut fastrand::Rng) {
        if random.bool() {
            let turn = if random.bool() { 0 } else { random.u64(0..=last) };
            self.faults.push(Fault::EngineStops { rank, turn });
            self.ring_log2 = random.u32(0..=1);
        }
    }

    /// A stray write into the claim word of a rank, of which its host tells nobody.
    fn claim_astray(&mut self, rank: u32, turn: u64) {
        self.faults.extend([Fault::StrayClaim { rank, turn }, Fault::NoAlarm { rank }]);
    }

    /// The same for want of room in the ring, or of a completion, where nobody but the block itself
    /// needs its engine any more: rank 1 grants its last transfer, or flushes.
    fn wait_for_room(&mut self, random: &mut fastrand::Rng) {
        (self.blocks, self.launches, self.calls) = (1, 1, 1);
        (self.tears, self.stalls) = (false, true);
        let mut turn = 0;
        if self.traffic == Traffic::Grants {
            (self.transfers, self.ring_log2) = (random.u32(2..=3), 0);
            turn = random.u64(0..3000);
        } else {
            // Four descriptors come before the flush.
            (self.messages, self.ring_log2) = (3, random.u32(2..=3));
        }
        self.faults.push(Fault::EngineStops { rank: 1, turn });
        self.end_wait(1, random.u64(3000..6000), random);
    }

    /// The peer's GPU stops, and some time later an abort or a stray claim ends what a rank waits
    /// for.
    fn end_wait(&mut self, rank: u32, last: u64, random: &mut fastrand::Rng) {
        self.faults.push(Fault::GpuStops { rank: 1 - rank, turn: last });
        let turn = last + random.u64(0..3000);
        if random.bool() {
            self.faults.push(Fault::Abort { rank, turn });
        } else {
            self.claim_astray(rank, turn);
        }
    }

    /// All blocks of a rank refuse the same op at about the same time: one of them may leave its
    /// record.
    fn refuse_twice(&mut self, random: &mut fastrand::Rng) {
        (self.blocks, self.plain_percent) = (random.u32(2..=3), 20);
        let (rank, op) = (random.u32(0..2), random.u32(0..64));
        // In a quarter of them there is another reason.
        if op >= 48 {
            return self.find_stray_together(rank, random);
        }
        for block in 0..self.blocks {
            self.faults.push(Fault::BadOp { rank, block, op });
        }
    }

    /// All blocks of a rank wait for what does not come, and find the same stray claim at about
    /// the same time: again, one of them may leave its record.
    fn find_stray_together(&mut self, rank: u32, random: &mut fastrand::Rng) {
        (self.tears, self.stalls) = (false, true);
        let last = random.u64(1..3000);
        self.perhaps_stop_engine(rank, last, random);
        self.faults.push(Fault::GpuStops { rank: 1 - rank, turn: last });
        self.claim_astray(rank, last + random.u64(0..3000));
    }

    /// Two batches, each on a stream of its own, and threads of them seldom see that the other one
    /// has failed before they claim the record themselves.
    fn double_unseen(&mut self, random: &mut fastrand::Rng) {
        self.shape.batches = 2;
        self.messages = random.u32(1..=3);
        self.shape.seldom = 1 << random.u32(2..=6);
        self.plain_percent = 20;
    }

    /// The same lane of both batches of a rank leads to a port or a route that there is none. In a
    /// group that goes on, the route of the second batch is missing: the two records would differ.
    fn break_both_batches(&mut self, random: &mut fastrand::Rng) {
        self.double_unseen(random);
        (self.shape.ranks, self.shape.node_ranks) = (random.u32(2..=3), 1);
        self.shape.goes_on = random.u32(0..3) == 0;
        let (rank, op) = (random.u32(0..self.shape.ranks), random.u32(0..64));
        let second = if self.shape.goes_on { NO_ROUTE } else { op };
        for (block, op) in [(0, op), (1, second)] {
            self.faults.push(Fault::BadOp { rank, block, op });
        }
        if self.shape.goes_on {
            self.timeout_ns = 1 << random.u32(6..=9);
        }
    }

    /// Waits of both batches of a rank end at about the same time, by an abort, as all other GPUs
    /// have stopped, and perhaps the rank's engine.
    fn end_both_batches(&mut self, random: &mut fastrand::Rng) {
        self.double_unseen(random);
        match random.u32(0..3) {
            0 => self.shape.relay(),
            place => (self.shape.ranks, self.shape.node_ranks) = (random.u32(2..=3), place - 1),
        }
        self.shape.goes_on = false;
        let rank = random.u32(0..self.shape.ranks);
        let last = random.u64(1..8000);
        for other in (0..self.shape.ranks).filter(|other| *other != rank) {
            self.faults.push(Fault::GpuStops { rank: other, turn: last });
        }
        if random.bool() {
            self.faults.push(Fault::EngineStops { rank, turn: random.u64(0..=last) });
        }
        self.faults.push(Fault::Abort { rank, turn: last + random.u64(0..4000) });
    }

    /// A group that goes on: the engine of a rank stops, and messages to the rank come all the
    /// same. It waits for the completion of its own, and an abort ends that.
    fn stop_behind_a_message(&mut self, random: &mut fastrand::Rng) {
        (self.shape.ranks, self.shape.node_ranks) = (2, 1);
        self.shape.goes_on = true;
        (self.tears, self.stalls) = (false, true);
        let rank = random.u32(0..2);
        let turn = random.u64(1..6000);
        self.faults.push(Fault::EngineStops { rank, turn });
        let turn = turn + random.u64(0..4000);
        self.faults.push(Fault::Abort { rank: random.u32(0..2), turn });
    }

    /// A rank combines late, and its peer returns rows of the next step meanwhile: it writes again
    /// what an engine has read for it, and knows of that by the engine's completion alone.
    fn combine_late(&mut self, random: &mut fastrand::Rng) {
        self.shape.rewrite(random);
        self.shape.combines_late = true;
        self.launches = random.u32(2..=3);
    }

    /// In the second step some threads of a block see a stray claim, and others do not: a part of
    /// them must not end while the others send what they have not written, or ask them for rows.
    fn split_a_block(&mut self, random: &mut fastrand::Rng) {
        self.shape.relay();
        self.launches = 2;
        (self.tears, self.stalls) = (false, false);
        self.shape.seldom = 1 << random.u32(1..=4);
        let (rank, turn) = (random.u32(0..self.shape.ranks), random.u64(0..1000));
        self.shape.shown_in = if turn % 3 == 2 { SECOND_COMBINE } else { SECOND_GATHER };
        self.claim_astray(rank, turn);
        self.timeout_ns = 1 << random.u32(9..=11);
    }
}
