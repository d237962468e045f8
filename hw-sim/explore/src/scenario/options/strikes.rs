//! What goes wrong in a run, as a seed draws it.

use super::Options;
use crate::fault::Fault;
use crate::rank::NEVER_NS;

/// Turns within which most runs end: faults strike at powers of two below.
const STRIKE_LOG2_MAX: u32 = 13;

impl Options {
    /// One of several ranks stops, is slow, or aborts.
    pub(super) fn lose_rank(&mut self, ranks: u32, random: &mut fastrand::Rng) {
        let rank = random.u32(0..ranks);
        let expires = random.u32(0..4) != 0;
        match random.u32(0..3) {
            0 if expires => {}
            1 => self.faults.push(Fault::EngineStops { rank, turn: strike(random) }),
            _ => self.faults.push(Fault::GpuStops { rank, turn: strike(random) }),
        }
        if expires {
            self.timeout_ns = 1 << random.u32(5..=11);
        } else {
            // Without a deadline somebody has to say so.
            let other = (rank + 1) % ranks;
            self.faults.push(Fault::Abort { rank: other, turn: strike(random) });
        }
    }

    /// Of two batches: a rank stops as above, a port of a lane is bad, the claim word is
    /// overwritten, or a ring stays full.
    pub(super) fn lose_batch(&mut self, random: &mut fastrand::Rng) {
        let rank = random.u32(0..self.shape.ranks);
        let kind = random.u32(0..8);
        if kind < 2 {
            return self.lose_rank(self.shape.ranks, random);
        }
        // Relays go on in no group.
        self.shape.goes_on = self.shape.node_ranks == 1 && random.bool();
        if kind < 4 {
            if self.shape.node_ranks == 0 {
                self.shape.node_ranks = 1;
            }
            self.break_lane(rank, random);
            if random.bool() {
                // Not every run comes to the lane.
                self.timeout_ns = 1 << random.u32(5..=11);
                self.silence(rank, 1 << STRIKE_LOG2_MAX, random);
            }
            self.limit_if_it_goes_on(random);
            return;
        }
        if kind == 4 {
            self.faults.push(Fault::EngineStops { rank, turn: 0 });
            self.ring_log2 = 0;
            self.timeout_ns = 1 << random.u32(5..=9);
            return;
        }
        // Mostly when kernels wait.
        let turn = if random.u32(0..4) == 0 { strike(random) } else { random.u64(500..8000) };
        self.faults.push(Fault::StrayClaim { rank, turn });
        let others = if random.u32(0..4) > 0 { turn / 2 } else { 1 << STRIKE_LOG2_MAX };
        self.silence(rank, others, random);
        // It may fail for another reason too, at about the same time.
        match random.u32(0..6) {
            0 => {
                if self.shape.node_ranks == 0 {
                    self.shape.node_ranks = 1;
                }
                self.break_lane(rank, random);
            }
            1 => self.faults.push(Fault::Abort { rank, turn: turn + random.u64(0..2000) }),
            2 => self.timeout_ns = 1 << random.u32(2..=8),
            _ => {}
        }
        self.limit_if_it_goes_on(random);
    }

    /// A claim ends no wait of a group that goes on, and who is given up hears nothing.
    fn limit_if_it_goes_on(&mut self, random: &mut fastrand::Rng) {
        if self.shape.goes_on && self.timeout_ns == NEVER_NS {
            self.timeout_ns = 1 << random.u32(5..=9);
        }
    }

    fn break_lane(&mut self, rank: u32, random: &mut fastrand::Rng) {
        let (block, op) = (random.u32(0..2), random.u32(0..64));
        self.faults.push(Fault::BadOp { rank, block, op });
    }

    /// A rank's host tells nobody what it finds, and all other GPUs stop up to a turn.
    fn silence(&mut self, rank: u32, last: u64, random: &mut fastrand::Rng) {
        self.faults.push(Fault::NoAlarm { rank });
        for other in (0..self.shape.ranks).filter(|other| *other != rank) {
            let turn = strike(random).min(last);
            self.faults.push(Fault::GpuStops { rank: other, turn });
        }
    }

    /// The claim word of a rank of experts is overwritten, early, and hardly any thread sees it;
    /// the caller makes no more launches behind one of the first.
    pub(super) fn bring_claim(&mut self, random: &mut fastrand::Rng) {
        self.shape.goes_on = false;
        (self.shape.faulty_step, self.shape.batches) = (0, 1);
        let launches = match random.u32(0..3) {
            0 => {
                self.shape.relay();
                11
            }
            _ => {
                // Few threads wait.
                (self.shape.ranks, self.shape.node_ranks) = (2, random.u32(0..2));
                7
            }
        };
        self.shape.seldom = 1 << random.u32(3..=6);
        (self.launches, self.threads) = (random.u32(1..=2), 32);
        self.shape.ends_after = random.u32(0..self.launches * launches);
        if random.u32(0..4) != 0 {
            self.shape.shown_in = random.u32(1..=self.launches * launches);
            // Others come as far as what follows from it.
            self.shape.ends_after = self.shape.shown_in + random.u32(0..=4);
        }
        self.stalls = false;
        let rank = random.u32(0..self.shape.ranks);
        self.faults.push(Fault::StrayClaim { rank, turn: random.u64(0..1000) });
        self.faults.push(Fault::NoAlarm { rank });
        self.timeout_ns = 1 << random.u32(5..=7);
    }

    /// Of experts: all ranks but one stop, and a wait of that one has to end by what it looks at
    /// beside its word: the abort word, or the claim. Loads that race never see anything newer.
    pub(super) fn bring_waits(&mut self, random: &mut fastrand::Rng) {
        (self.shape.faulty_step, self.shape.batches) = (0, 1);
        self.shape.goes_on = random.u32(0..3) == 0;
        match random.u32(0..3) {
            0 => self.shape.relay(),
            _ => (self.shape.ranks, self.shape.node_ranks) = (2, random.u32(0..2)),
        }
        (self.launches, self.threads) = (random.u32(1..=2), 32);
        (self.tears, self.stalls) = (false, true);
        let rank = random.u32(0..self.shape.ranks);
        let last = random.u64(1..6000);
        for other in (0..self.shape.ranks).filter(|other| *other != rank) {
            let turn = if random.bool() { last } else { random.u64(0..=last) };
            self.faults.push(Fault::GpuStops { rank: other, turn });
        }
        let turn = last + random.u64(0..3000);
        if random.u32(0..3) == 0 {
            self.faults.push(Fault::StrayClaim { rank, turn });
            self.faults.push(Fault::NoAlarm { rank });
        } else {
            self.faults.push(Fault::Abort { rank, turn });
        }
        if random.u32(0..3) == 0 {
            // The ring stays full, or completions do not come.
            let turn = if random.bool() { 0 } else { random.u64(0..=last) };
            self.faults.push(Fault::EngineStops { rank, turn });
            self.ring_log2 = 0;
        }
        self.limit_if_it_goes_on(random);
        if self.shape.node_ranks < 2 && random.u32(0..3) == 0 {
            // One kernel rings for several peers, and waits for room by itself.
            let first = self.shape.ranks;
            (self.shape.ranks, self.shape.node_ranks) = (random.u32(3..=4), 1);
            for other in first..self.shape.ranks {
                self.faults.push(Fault::GpuStops { rank: other, turn: last });
            }
            self.faults.push(Fault::EngineStops { rank, turn: random.u64(0..=last) });
            self.ring_log2 = random.u32(0..=1);
        }
    }

    /// A device engine fails, or as above.
    pub(super) fn lose_engine(&mut self, random: &mut fastrand::Rng) {
        let ranks = self.ranks();
        let rank = random.u32(0..ranks);
        let most_log2 = random.u32(0..=5);
        let request = random.u64(0..1 << most_log2);
        match random.u32(0..3) {
            0 => self.faults.push(Fault::LinkDown { rank, request }),
            1 => self.faults.push(Fault::FetchFault { rank, request }),
            _ => {
                self.lose_rank(ranks, random);
                if random.bool() {
                    self.kill_what_stops();
                }
                // Each of many lanes may have to wait so long, one after the other.
                if self.timeout_ns != NEVER_NS {
                    self.timeout_ns = 1 << random.u32(4..=7);
                }
            }
        }
    }

    /// A rank whose GPU stops is killed, host and engine too.
    pub(super) fn kill_what_stops(&mut self) {
        for fault in &mut self.faults {
            if let Fault::GpuStops { rank, turn } = *fault {
                *fault = Fault::Killed { rank, turn };
            }
        }
    }

    /// One block refuses its plan. Then the others stop too, even if the host does nothing.
    pub(super) fn refuse(&mut self, random: &mut fastrand::Rng) {
        let (rank, block) = (random.u32(0..2), random.u32(0..self.blocks));
        match random.u32(0..4) {
            0 => return self.faults.push(Fault::BadPort { rank, block }),
            1 => return self.faults.push(Fault::BadOp { rank, block, op: random.u32(0..64) }),
            _ => {}
        }
        self.blocks = self.blocks.max(2);
        self.faults.push(Fault::BadOp { rank, block, op: 0 });
        self.faults.push(Fault::NoAlarm { rank });
        self.leave_alone(rank, random);
    }

    /// The peer of a rank stops, and perhaps its own engine too.
    fn leave_alone(&mut self, rank: u32, random: &mut fastrand::Rng) {
        self.faults.push(Fault::GpuStops { rank: 1 - rank, turn: strike(random) });
        match random.u32(0..4) {
            0 => self.faults.push(Fault::EngineStops { rank, turn: strike(random) }),
            1 => {
                // All blocks but one find the ring full.
                self.faults.push(Fault::EngineStops { rank, turn: 0 });
                self.ring_log2 = 0;
                self.blocks = self.blocks.max(2);
            }
            _ => {}
        }
    }

    pub(super) fn abort(&mut self, random: &mut fastrand::Rng) {
        let rank = random.u32(0..2);
        self.faults.push(Fault::Abort { rank, turn: strike(random) });
        if random.bool() {
            self.leave_alone(random.u32(0..2), random);
        }
    }

    pub(super) fn expire(&mut self, random: &mut fastrand::Rng) {
        self.timeout_ns = 1 << random.u32(4..=7);
        self.leave_alone(random.u32(0..2), random);
    }

    /// Clocks leap. In half of the runs a rank is killed, and waits have to end.
    pub(super) fn leap(&mut self, random: &mut fastrand::Rng) {
        let ranks = self.ranks();
        for _ in 0..random.u32(1..=4) {
            let way = if random.u32(0..4) == 0 { 1 } else { -1 };
            let by_us = way * (1 << random.u32(0..=20));
            let rank = random.u32(0..ranks);
            self.faults.push(Fault::ClockLeaps { rank, turn: strike(random), by_us });
        }
        if random.bool() {
            let rank = random.u32(0..ranks);
            self.timeout_ns = 1 << random.u32(4..=7);
            self.faults.push(Fault::Killed { rank, turn: strike(random) });
        }
    }

    /// Slots of a ring are overwritten, with what no engine takes for a descriptor. What was rung
    /// there may be lost, so waits have to end.
    pub(super) fn garble(&mut self, random: &mut fastrand::Rng) {
        self.timeout_ns = 1 << random.u32(4..=7);
        for _ in 0..random.u32(1..=3) {
            let rank = random.u32(0..2);
            self.faults.push(Fault::RingGarbage { rank, turn: strike(random) });
        }
    }

    pub(super) fn stray(&mut self, random: &mut fastrand::Rng) {
        let rank = random.u32(0..2);
        let turn = if random.u32(0..4) == 0 { 0 } else { strike(random) };
        self.faults.push(Fault::StrayClaim { rank, turn });
        self.faults.push(Fault::NoAlarm { rank });
        self.leave_alone(rank, random);
        // The rank fails for another reason too, at about the same time.
        match random.u32(0..4) {
            0 => {
                let block = random.u32(0..self.blocks);
                self.faults.push(Fault::BadOp { rank, block, op: 0 });
            }
            1 => self.faults.push(Fault::Abort { rank, turn: turn + random.u64(0..400) }),
            2 => self.timeout_ns = 1 << random.u32(2..=6),
            _ => {}
        }
    }
}

/// A turn: early ones are as likely as late ones.
fn strike(random: &mut fastrand::Rng) -> u64 {
    let turn = 1_u64 << random.u32(0..=STRIKE_LOG2_MAX);
    turn + random.u64(0..turn)
}
