//! One communicator's ranks and the verdict on them, as text.

use super::processes::Gathered;
use super::verdict::{Cause, Verdict, list};
use super::view::{EntryKind, Life, RankView};
use crate::id::Rank;
use ringdove_kernels::launch::WaitKind;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// What is known of one communicator.
#[derive(Clone, Debug)]
pub struct Report {
    /// Names the communicator.
    pub key: u64,
    /// Its ranks that are seen, in order.
    pub ranks: Vec<RankView>,
    /// The verdict on them.
    pub verdict: Verdict,
}

impl Report {
    /// Of every communicator that the processes have a rank of.
    pub fn of_all(gathered: &Gathered) -> Vec<Self> {
        let mut communicators: BTreeMap<u64, BTreeMap<Rank, RankView>> = BTreeMap::new();
        for rank in gathered.processes.iter().flat_map(|process| &process.ranks) {
            communicators.entry(rank.key).or_default().insert(rank.rank, rank.clone());
        }
        let report = |(key, ranks): (u64, BTreeMap<Rank, RankView>)| {
            let ranks: Vec<_> = ranks.into_values().collect();
            Self { key, verdict: Verdict::of(&ranks), ranks }
        };
        communicators.into_iter().map(report).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.ranks.first().map_or(0, |rank| rank.rank_count);
        write!(f, "communicator {:016x}, {} of {count} ranks: ", self.key, self.ranks.len())?;
        writeln!(f, "{}", self.verdict)?;
        self.ranks.iter().try_for_each(|rank| write_rank(f, rank))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cause, why } = self;
        match cause {
            Cause::Nothing => write!(f, "{why}"),
            Cause::Unknown => write!(f, "no cause found: {why}"),
            Cause::NeverArrived(ranks) => {
                write!(f, "{} did not make the call that others wait for: {why}", list(ranks))
            }
            Cause::OtherCall(ranks) => write!(f, "{} called something else: {why}", list(ranks)),
            Cause::Dead(ranks) => write!(f, "{} is gone: {why}", list(ranks)),
            Cause::Stopped(ranks) => write!(f, "{} does not run: {why}", list(ranks)),
            Cause::SlowGpu(ranks) => write!(f, "the GPU of {} is late: {why}", list(ranks)),
            Cause::Engine(rank) => write!(f, "the engine of {rank} does not serve it: {why}"),
            Cause::Link(from, to) => write!(f, "the way from {from} to {to} is cut: {why}"),
        }
    }
}

fn write_rank(f: &mut fmt::Formatter<'_>, rank: &RankView) -> fmt::Result {
    let state = match rank.life {
        Life::Running => String::new(),
        Life::Silent(time) => format!(", does not run ({})", seconds(time)),
    };
    let launches = match rank.is_captured {
        true => "launches of graphs".into(),
        false => format!("{} launches, {} ended", rank.launches, rank.ended),
    };
    write!(f, "  {} (process {}{state}): {} collectives", rank.rank, rank.pid, rank.collectives)?;
    if rank.messages > 0 {
        write!(f, ", {} sends and receives", rank.messages)?;
    }
    writeln!(f, ", {launches}")?;
    write_call(f, rank)?;
    if let Some(record) = &rank.record {
        let ended = if record.state == 2 { "stopped by the abort" } else { "expired" };
        writeln!(
            f,
            "    launch {}, call {} of it, block {}, segment {}, op {}, round {}: wait for {} \
             (port {}, position {}), expected {}, seen {}; {ended} after {}",
            record.sequence,
            record.call,
            record.block,
            record.segment,
            record.op,
            record.round,
            awaited(record.kind, record.peer),
            record.port,
            record.position,
            record.expected,
            record.seen,
            seconds(Duration::from_nanos(record.waited_ns)),
        )?;
    }
    let engine = &rank.engine;
    if engine.in_flight + engine.pending > 0 || engine.is_stuck {
        let peer = engine.peer.map_or_else(String::new, |peer| format!(", the last one to {peer}"));
        let stuck = if engine.is_stuck { "; its thread does not come by" } else { "" };
        writeln!(
            f,
            "    engine: {} transfers on the way, {} waiting{peer}{stuck}",
            engine.in_flight, engine.pending
        )?;
    }
    match &rank.failure {
        Some(failure) => writeln!(f, "    ended by: {}", failure.text),
        None => Ok(()),
    }
}

/// The call that the rank stands in, or the last one that it made.
fn write_call(f: &mut fmt::Formatter<'_>, rank: &RankView) -> fmt::Result {
    let running = match (&rank.record, rank.is_idle()) {
        (Some(record), _) => Some(record.sequence),
        (None, false) => Some(rank.ended),
        (None, true) => None,
    };
    let is_call = |kind| matches!(kind, EntryKind::Collective | EntryKind::Messages);
    let last = || rank.entries.iter().rev().find(|entry| is_call(entry.kind));
    let call = running.and_then(|sequence| rank.call_of_launch(sequence)).or_else(last);
    let Some(call) = call else { return writeln!(f, "    no call yet") };
    let since = rank.since_call.map_or_else(String::new, |time| format!(", {} ago", seconds(time)));
    match running {
        Some(sequence) => {
            write!(f, "    in launch {sequence}: {} {} of {}", call.name, call.number, call.count)?;
            match rank.plan_of_launch(sequence) {
                Some(plan) => writeln!(f, ", plan {plan}{since}"),
                None => writeln!(f, "{since}"),
            }
        }
        None => writeln!(
            f,
            "    nothing left to do; last call: {} {} of {}{since}",
            call.name, call.number, call.count
        ),
    }
}

fn awaited(kind: u32, peer: u32) -> String {
    let peer = if peer == u32::MAX { "nobody".into() } else { Rank(peer).to_string() };
    match WaitKind::from_code(kind) {
        Some(WaitKind::Arrival) => format!("data from {peer}"),
        Some(WaitKind::Credit) => format!("a credit from {peer}"),
        Some(WaitKind::Completion) => format!("the completion of a transfer to {peer}"),
        Some(WaitKind::RingSpace) => "a free slot of the doorbell ring".into(),
        Some(WaitKind::Counter) => "a counter of a resident program".into(),
        _ => format!("nothing (kind {kind})"),
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}
