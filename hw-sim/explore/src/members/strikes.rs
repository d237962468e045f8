//! What goes wrong in a run of members, and what those that are left do then.

use ringdove::error::Error;
use ringdove::id::Rank;
use std::time::Duration;

use super::connections::Outgoing;
use super::strike::Strike;
use super::wires::Port;
use super::{Gpus, Job, Node, Run};

/// Why a rank aborts whose wait has expired.
pub(super) const EXPIRED: &str = "a wait has expired";

impl Run<'_> {
    /// Does this go wrong in the run?
    pub(super) fn has(&self, strike: Strike) -> bool {
        self.shape.strikes.contains(&strike)
    }

    /// Do what goes wrong now.
    pub(super) fn strike(&mut self) {
        let (due, pending) = self.pending.iter().partition(|strike| self.is_due(**strike));
        self.pending = pending;
        let due: Vec<Strike> = due;
        due.into_iter().for_each(|strike| self.strike_with(strike));
    }

    /// The turn of GPUs at which this goes wrong, if it is one: the first of the run may have one.
    fn turn_of(&self, strike: Strike) -> Option<u64> {
        let is_first = self.shape.strikes.first() == Some(&strike);
        self.shape.gpus.as_ref().filter(|_| is_first)?.strikes_at
    }

    fn is_due(&self, strike: Strike) -> bool {
        let now = self.gpus.as_ref().map(|gpus| gpus.world.stats().turns);
        match (strike.at(), self.turn_of(strike)) {
            (None, _) => true,
            (Some(_), Some(turn)) => now.is_some_and(|now| turn <= now),
            (Some(at), None) => at <= self.wires.elapsed,
        }
    }

    /// The turn of GPUs at which something goes wrong.
    pub(super) fn pending_turn(&self) -> Option<u64> {
        self.pending.iter().find_map(|strike| self.turn_of(*strike))
    }

    /// When something goes wrong next that has a time.
    pub(super) fn next_strike_at(&self) -> Option<Duration> {
        let timed = self.pending.iter().filter(|strike| self.turn_of(**strike).is_none());
        timed.filter_map(|strike| strike.at()).min()
    }

    fn strike_with(&mut self, strike: Strike) {
        self.note(format!("{strike}"));
        match strike {
            Strike::Dies { rank, .. } => {
                let process = rank as usize;
                for number in self.nodes_of(process) {
                    self.wires.kill(number);
                    self.nodes.remove(&number);
                }
                let it = &mut self.processes[process];
                it.acts.clear();
                (it.is_dead, it.is_waiting, it.stays_until) = (true, false, None);
                self.gpus.iter_mut().for_each(|gpus| gpus.kill(process));
            }
            Strike::CutOff { rank, .. } => {
                for number in self.nodes_of(rank as usize) {
                    self.wires.cut_off(number);
                }
            }
            Strike::Reset { rank, .. } => {
                for number in self.nodes_of(rank as usize) {
                    let connections = self.wires.connections_of(number);
                    if !connections.is_empty() {
                        let chosen = connections[self.random.usize(..connections.len())];
                        return self.wires.reset(chosen);
                    }
                }
            }
            Strike::Aborts { rank, .. } => {
                let Some(number) = self.rank_node(rank as usize, Job::World) else { return };
                let node = self.nodes.get_mut(&number).expect("it was found");
                node.is_touched = true;
                let mut port = Port { wires: &mut self.wires, node: number };
                if !node.staged.is_finished() {
                    node.staged.abort(&mut port, Rank(rank), "explored");
                }
            }
            Strike::Breaks { rank, .. } => {
                self.gpus.iter().for_each(|gpus| gpus.reset_adapter(rank as usize));
            }
            Strike::Refuses { rank, .. } => {
                self.gpus.iter().for_each(|gpus| gpus.refuse_pairs(rank as usize));
            }
            Strike::Silent { rank, .. } => {
                self.gpus.iter_mut().for_each(|gpus| gpus.silence(rank as usize));
            }
            Strike::Loses { .. } | Strike::Flaps { .. } | Strike::Delays { .. } => {
                self.gpus.iter().for_each(|gpus| gpus.disturb_adapter(strike));
            }
            Strike::Late { .. } | Strike::Disagrees { .. } | Strike::Absent { .. } => {}
        }
    }

    /// The host of a rank finds that a wait of its kernel has expired: it ends the job for all.
    pub(super) fn expire(&mut self, process: usize, job: Job, number: usize) {
        self.end_job(process, job, number, EXPIRED);
    }

    /// Hosts find that their engines have failed, and end the job for all.
    pub(super) fn see_engines(&mut self) {
        let failed = self.gpus.as_ref().map(Gpus::failed_engines).unwrap_or_default();
        for (process, job, why) in failed {
            match self.rank_node(process, job) {
                Some(number) => self.end_job(process, job, number, &why),
                None => self.gpus.iter_mut().for_each(|gpus| gpus.abort(process, job)),
            }
        }
    }

    fn end_job(&mut self, process: usize, job: Job, number: usize, why: &str) {
        let rank = self.members[&job].iter().position(|it| *it == process);
        let rank = Rank(rank.expect("it is a member") as u32);
        let node = self.nodes.get_mut(&number).expect("it was found");
        node.is_touched = true;
        if !node.staged.is_finished() {
            node.staged.abort(&mut Port { wires: &mut self.wires, node: number }, rank, why);
        }
        let error = Error::Aborted { by: Some(rank), why: why.to_owned() };
        self.fail(process, job, error);
    }

    /// Notes of connections go on their way, and those that have come are taken.
    pub(super) fn pass_notes(&mut self) {
        let Some(gpus) = &self.gpus else { return };
        gpus.set_now(self.wires.now());
        gpus.take_notes();
        for Outgoing { process, job, to, bytes } in gpus.notes() {
            // Its control plane has ended otherwise.
            let Some(number) = self.rank_node(process, job) else { continue };
            let node = self.nodes.get_mut(&number).expect("it was found");
            node.is_touched = true;
            if !node.staged.is_finished() {
                let mut port = Port { wires: &mut self.wires, node: number };
                node.staged.note(&mut port, to, bytes);
            }
        }
    }

    /// Have all processes done, or given up, what they had to do, and all nodes ended?
    pub(super) fn is_over(&self) -> bool {
        // A root to which nobody has come serves until its process ends.
        let is_over = |it: &Node| it.is_root && it.staged.deadline().is_none();
        self.processes.iter().all(|it| it.acts.is_empty()) && self.nodes.values().all(is_over)
    }

    /// Has those that are left form another job, where the fault ended all that they had. False if
    /// there is nothing of the kind to do.
    pub(super) fn recover(&mut self) -> bool {
        let left: Vec<_> = (0..self.processes.len()).filter(|it| self.is_left(*it)).collect();
        let have_failed = left.iter().all(|it| !self.processes[*it].failures.is_empty());
        if std::mem::replace(&mut self.has_recovered, true) || !have_failed || left.is_empty() {
            return false;
        }
        self.note(format!("{left:?} form another job"));
        // Faults have an end: what those that are left do then must succeed.
        self.pending.clear();
        self.gpus.iter_mut().for_each(Gpus::heal);
        for process in &left {
            let pause = Duration::from_millis(self.random.u64(..1000));
            let mut acts = self.acts(Job::Rest, 0..1);
            acts.extend(self.end_of(Job::Rest));
            let it = &mut self.processes[*process];
            it.acts = acts.into();
            it.idle_until = self.wires.elapsed + pause;
        }
        self.members.insert(Job::Rest, left);
        true
    }

    /// Is this process neither dead nor cut off?
    pub(super) fn is_left(&self, process: usize) -> bool {
        let mut strikes = self.shape.strikes.iter();
        let is_cut_off = strikes.any(|it| it.is_cut_off() && it.rank() as usize == process);
        !self.processes[process].is_dead && !is_cut_off
    }
}
