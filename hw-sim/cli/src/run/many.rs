//! A run of many processes: the ranks of one job, spread over the nodes of a cluster.
//!
//! Each rank leads its own process group. A signal for all is passed on exactly once, wherever
//! it came from (a terminal's Ctrl-C reaches `hwsim` alone), and what a rank started ends with it.
//! A rank that has ended is reaped at the very end: until then the kernel keeps its number, so that
//! a signal for its group never reaches another program's.

use crate::error::Error;
use crate::fabric::Fabric;
use crate::run::child::Template;
use crate::run::label::{Labels, Sink};
use crate::run::spread::Spread;
use crate::tidy::Tidier;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use std::os::fd::AsFd;
use std::process::{Child, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Command and options of a run.
pub struct Job<'a> {
    /// Common to all ranks.
    pub template: &'a Template,
    /// How they are spread.
    pub spread: Spread,
    /// The fabric of their nodes.
    pub fabric: &'a Fabric,
    /// Mark each line of output with its rank.
    pub label: bool,
    /// How long the others have to end after SIGTERM, when a rank has failed.
    pub grace: Duration,
}

/// One rank's process.
struct Rank {
    child: Child,
    pid: Pid,
    /// How it ended, once it has.
    ended: Option<WaitStatus>,
}

impl Rank {
    /// Exit status as a shell has it; 0 while it runs.
    fn status(&self) -> u8 {
        match self.ended {
            Some(WaitStatus::Signaled(_, signal, _)) => 128 + signal as u8,
            Some(WaitStatus::Exited(_, status)) => status as u8,
            _ => 0,
        }
    }
}

/// All ranks, and what is to happen next.
struct Supervisor<'a> {
    job: &'a Job<'a>,
    ranks: Vec<Rank>,
    labels: Labels,
    /// The rank that failed first.
    failed: Option<usize>,
    /// When somebody else told the ranks to end, last.
    told: Option<Instant>,
    /// When patience ends: with ranks that were told to end, or with streams after the last rank.
    deadline: Option<Instant>,
}

/// Runs the job, and ends with the status of the rank that failed first.
pub fn run(job: &Job, signals: &SigSet, tidier: &mut Tidier) -> Result<ExitCode, Error> {
    let (ranks, labels) = (Vec::new(), Labels::new()?);
    let mut all = Supervisor { job, ranks, labels, failed: None, told: None, deadline: None };
    let waiting = |errno: Errno| Error::system("waiting for the ranks")(errno.into());
    let outcome = all.start(tidier).and_then(|()| all.supervise(signals).map_err(waiting));
    all.finish(tidier);
    outcome?;
    Ok(ExitCode::from(all.failed.map_or(0, |rank| all.ranks[rank].status())))
}

impl Supervisor<'_> {
    fn start(&mut self, tidier: &Tidier) -> Result<(), Error> {
        for rank in 0..self.job.spread.processes() {
            let starting = || Error::system(format!("starting rank {rank}"));
            let Job { template, spread, fabric, .. } = self.job;
            let sys = fabric.sys_of(spread.node(rank));
            let command = template.group_leader(tidier, sys.as_deref(), rank == 0);
            let mut command = command.map_err(starting())?;
            command.envs(spread.environment(rank)).envs(fabric.place(spread.node(rank)));
            if self.job.label {
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
            }
            let mut child = command.spawn().map_err(starting())?;
            let pid = Pid::from_raw(child.id() as i32);
            let label = format!("[{rank}] ");
            let output = child.stdout.take().map(|pipe| (pipe.into(), Sink::Output));
            let errors = child.stderr.take().map(|pipe| (pipe.into(), Sink::Errors));
            self.ranks.push(Rank { child, pid, ended: None });
            for (pipe, sink) in output.into_iter().chain(errors) {
                self.labels.attach(label.clone(), pipe, sink)?;
            }
        }
        Ok(())
    }

    /// Passes signals on until every rank has ended and its output is through.
    fn supervise(&mut self, signals: &SigSet) -> Result<(), Errno> {
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let incoming = SignalFd::with_flags(signals, flags)?;
        loop {
            if self.running() == 0 && self.labels.open() == 0 {
                return Ok(());
            }
            if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                if self.running() == 0 {
                    // Something that a rank left behind holds its output open.
                    return Ok(());
                }
                self.lose_patience();
            }
            let watched = |descriptor| PollFd::new(descriptor, PollFlags::POLLIN);
            let mut both = [watched(incoming.as_fd()), watched(self.labels.ended().as_fd())];
            match poll(&mut both, self.timeout()) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
            self.labels.count_ended();
            while let Some(signal) = incoming.read_signal()? {
                match Signal::try_from(signal.ssi_signo as i32)? {
                    Signal::SIGCHLD => self.look_for_ends()?,
                    signal => {
                        self.told = Some(Instant::now());
                        self.signal_all(signal);
                    }
                }
            }
        }
    }

    fn running(&self) -> usize {
        self.ranks.iter().filter(|rank| rank.ended.is_none()).count()
    }

    fn timeout(&self) -> PollTimeout {
        let Some(deadline) = self.deadline else { return PollTimeout::NONE };
        // One more: a timeout that is rounded down would have the loop turn without rest.
        let left = deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        left.try_into().unwrap_or(PollTimeout::MAX)
    }

    /// Finds ranks that have ended. One SIGCHLD can stand for several.
    fn look_for_ends(&mut self) -> Result<(), Errno> {
        for index in 0..self.ranks.len() {
            let rank = &mut self.ranks[index];
            if rank.ended.is_some() {
                continue;
            }
            let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
            let state = waitid(Id::Pid(rank.pid), look)?;
            if matches!(state, WaitStatus::Exited(..) | WaitStatus::Signaled(..)) {
                rank.ended = Some(state);
                self.note_end(index);
            }
        }
        Ok(())
    }

    fn note_end(&mut self, index: usize) {
        let running = self.running();
        if self.failed.is_none() && self.ranks[index].status() != 0 {
            self.failed = Some(index);
            self.say_how_it_failed(index, running);
            // Ranks that were told just now are tidying up: a second signal would cut that short.
            if self.told.is_none_or(|told| told.elapsed() > self.job.grace) {
                self.signal_all(Signal::SIGTERM);
            }
            self.deadline = Some(Instant::now() + self.job.grace);
        }
        if running == 0 {
            self.deadline = Some(Instant::now() + self.job.grace);
        }
    }

    fn say_how_it_failed(&self, index: usize, running: usize) {
        let rank = &self.ranks[index];
        let how = match rank.ended {
            Some(WaitStatus::Signaled(_, signal, _)) => {
                format!("was ended by {signal} (signal {})", signal as i32)
            }
            _ => format!("ended with status {}", rank.status()),
        };
        let rest = match running {
            0 => String::new(),
            1 => "; ending the other rank".into(),
            others => format!("; ending the other {others} ranks"),
        };
        let (node, pid) = (self.job.spread.node(index as u32), rank.pid);
        self.labels.say(&format!("rank {index} (node {node}, process {pid}) {how}{rest}"));
    }

    /// Sends a signal to every rank's group; what is left in a group whose rank has ended included.
    fn signal_all(&self, signal: Signal) {
        for rank in &self.ranks {
            // The group exists: its leader runs, or has not been reaped.
            let _ = killpg(rank.pid, signal);
        }
    }

    /// The ranks that were told to end are still there.
    fn lose_patience(&mut self) {
        let running = self.ranks.iter().enumerate().filter(|(_, rank)| rank.ended.is_none());
        let names: Vec<_> = running.map(|(index, _)| index.to_string()).collect();
        let ranks = if names.len() == 1 { "rank" } else { "ranks" };
        let grace = self.job.grace.as_secs_f64();
        let names = names.join(", ");
        self.labels.say(&format!("{ranks} {names} had not ended {grace} s later: killed"));
        self.signal_all(Signal::SIGKILL);
        self.deadline = None;
    }

    /// Ends and reaps whatever there still is, and passes on its last words.
    fn finish(&mut self, tidier: &mut Tidier) {
        self.signal_all(Signal::SIGKILL);
        for rank in &mut self.ranks {
            // Cannot fail: it is our child, and nobody else waits for it.
            let _ = rank.child.wait();
            tidier.forget_group(rank.pid);
        }
        self.labels.finish();
    }
}
