//! Which rank is the cause: a pure function of what the ranks' recorders say.
//!
//! The rules, in their order; the first one that fits decides. What is surely wrong comes before
//! what is inferred, and a rank that only waits for others is never a cause.
//!
//! 1. Nothing has failed yet, and a process of this node has no recorder any more: its ranks are
//!    dead.
//! 2. The control plane has lost a rank, or a transfer has failed: the error names it.
//! 3. A process is stopped.
//! 4. Ranks have called different things under one number: those that differ from most.
//! 5. Ranks have called less than others, and nothing that they have called is left to do.
//! 6. An engine's thread does not come by, or a ring stays full: that rank's engine.
//! 7. A rank was given its launch, and its kernel has not begun when all others' waits have ended:
//!    its GPU, or what the program has put before on its stream.
//! 8. Who is waited for, directly or through others, and waits for nobody.
//! 9. Transfers are in flight and nothing moves: the link.

use super::view::{FailureKind, Life, RankView};
use crate::id::Rank;
use ringdove_kernels::launch::WaitKind;
use std::collections::BTreeMap;
use std::time::Duration;

/// Why a communicator does not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Nothing is wrong, as far as can be seen.
    Nothing,
    /// These ranks have not made a call that others wait for.
    NeverArrived(Vec<Rank>),
    /// These ranks have called something else.
    OtherCall(Vec<Rank>),
    /// The processes of these ranks have ended.
    Dead(Vec<Rank>),
    /// The processes of these ranks do not run.
    Stopped(Vec<Rank>),
    /// The GPUs of these ranks have not begun what they were given.
    SlowGpu(Vec<Rank>),
    /// The engine of this rank does not serve it.
    Engine(Rank),
    /// What the first one sends does not come to the second one.
    Link(Rank, Rank),
    /// The recorders do not say.
    Unknown,
}

impl Cause {
    /// The ranks that are to be looked at; of a link, both.
    pub fn ranks(&self) -> Vec<Rank> {
        match self {
            Self::Nothing | Self::Unknown => Vec::new(),
            Self::NeverArrived(ranks)
            | Self::OtherCall(ranks)
            | Self::Dead(ranks)
            | Self::Stopped(ranks)
            | Self::SlowGpu(ranks) => ranks.clone(),
            Self::Engine(rank) => vec![*rank],
            Self::Link(from, to) => vec![*from, *to],
        }
    }
}

/// A cause, with the reason for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The cause.
    pub cause: Cause,
    /// What shows it, in a sentence.
    pub why: String,
}

impl Verdict {
    /// Of the ranks of one communicator, each at most once. `ranks` need not hold all: those of
    /// other nodes are not seen.
    pub fn of(ranks: &[RankView]) -> Self {
        let rules: [Rule; 9] =
            [dead, named, stopped, other_call, never_arrived, engine, slow_gpu, waited_for, link];
        if let Some(verdict) = rules.into_iter().find_map(|rule| rule(ranks)) {
            return verdict;
        }
        let has_failed = ranks.iter().any(|rank| rank.failure.is_some());
        let why = match (has_failed, ranks.iter().all(RankView::is_idle)) {
            (false, true) => {
                return Self::new(Cause::Nothing, "no rank has anything left to do".into());
            }
            (false, false) => "launches run, and all ranks have called the same",
            (true, _) => "what the ranks have recorded fits more than one cause",
        };
        Self::new(Cause::Unknown, why.into())
    }

    fn new(cause: Cause, why: String) -> Self {
        Self { cause, why }
    }
}

/// Decides, or leaves it to the next one.
type Rule = fn(&[RankView]) -> Option<Verdict>;

fn dead(ranks: &[RankView]) -> Option<Verdict> {
    // After a failure processes end one after the other; who died before was noticed by the control
    // plane, and is named by the failure.
    if ranks.iter().any(|rank| rank.failure.is_some()) {
        return None;
    }
    let node = ranks.first()?.node.iter().copied();
    let seen = |rank: &Rank| ranks.iter().any(|view| view.rank == *rank);
    let gone: Vec<Rank> = node.filter(|rank| !seen(rank)).collect();
    let why = format!(
        "no process of this user on this machine has {} any more: it has ended, or has dropped its \
         communicator",
        list(&gone)
    );
    (!gone.is_empty()).then(|| Verdict::new(Cause::Dead(gone), why))
}

/// What an error has named already.
fn named(ranks: &[RankView]) -> Option<Verdict> {
    let mut failures = ranks.iter().filter_map(|rank| rank.failure.as_ref());
    failures.find_map(|failure| {
        let rank = failure.rank?;
        let cause = match (failure.kind, failure.peer) {
            (FailureKind::Gone, _) => Cause::Dead(vec![rank]),
            (FailureKind::Transport, Some(peer)) => Cause::Link(rank, peer),
            (FailureKind::Engine, _) => Cause::Engine(rank),
            _ => return None,
        };
        Some(Verdict::new(cause, format!("the first error says so: {}", failure.text)))
    })
}

fn stopped(ranks: &[RankView]) -> Option<Verdict> {
    let silent = ranks.iter().filter(|rank| rank.life != Life::Running);
    let gone: Vec<Rank> = silent.map(|rank| rank.rank).collect();
    let longest = ranks.iter().filter_map(|rank| match rank.life {
        Life::Silent(time) => Some(time),
        Life::Running => None,
    });
    let time = longest.max().unwrap_or_default();
    let why = format!(
        "no thread of the process has run for {:.1} s: it is stopped, or gets no processor",
        time.as_secs_f64()
    );
    (!gone.is_empty()).then(|| Verdict::new(Cause::Stopped(gone), why))
}

fn other_call(ranks: &[RankView]) -> Option<Verdict> {
    let last = ranks.iter().map(|rank| rank.collectives).max()?;
    // The last ones alone are at issue; of the others some ranks may have no record any more.
    let numbers = last.saturating_sub(CALLS_COMPARED)..last;
    numbers.into_iter().find_map(|number| {
        let calls = ranks.iter().filter_map(|rank| Some((rank.rank, rank.call(number)?)));
        let calls: Vec<_> = calls.collect();
        let mut votes: BTreeMap<u64, usize> = BTreeMap::new();
        calls.iter().for_each(|(_, call)| *votes.entry(call.digest).or_default() += 1);
        // Where as many say this as that, the lowest rank is taken to be right.
        let first = calls.first()?.1.digest;
        let most = *votes.iter().max_by_key(|(digest, count)| (**count, **digest == first))?.0;
        let right = calls.iter().find(|(_, call)| call.digest == most)?;
        let others: Vec<_> = calls.iter().filter(|(_, call)| call.digest != most).collect();
        let (rank, wrong) = others.first()?;
        let why = format!(
            "collective {number} is {} of {} elements on {rank} and {} of {} on {}, of which {} of \
             {} ranks have called the same",
            wrong.name,
            wrong.count,
            right.1.name,
            right.1.count,
            right.0,
            votes[&most],
            calls.len(),
        );
        let ranks = others.iter().map(|(rank, _)| *rank).collect();
        Some(Verdict::new(Cause::OtherCall(ranks), why))
    })
}

/// How many of the last collectives are compared.
const CALLS_COMPARED: u64 = 32;

fn never_arrived(ranks: &[RankView]) -> Option<Verdict> {
    let most = ranks.iter().map(|rank| rank.collectives).max()?;
    let is_behind = |rank: &&RankView| rank.collectives < most && rank.is_idle();
    let behind: Vec<_> = ranks.iter().filter(is_behind).collect();
    // Ranks that are seldom looked at have called since.
    if behind.is_empty() || ranks.iter().all(RankView::is_idle) {
        return None;
    }
    let missing: Vec<Rank> = behind.iter().map(|rank| rank.rank).collect();
    let fewest = behind.iter().map(|rank| rank.collectives).min()?;
    let why = format!(
        "{} made {fewest} collectives, others {most}, and nothing that was called there is left to \
         do",
        list(&missing)
    );
    Some(Verdict::new(Cause::NeverArrived(missing), why))
}

fn engine(ranks: &[RankView]) -> Option<Verdict> {
    let is_full = |rank: &RankView| waits(rank) == Some(WaitKind::RingSpace);
    let rank = ranks.iter().find(|rank| rank.engine.is_stuck || is_full(rank))?;
    let why = match rank.engine.is_stuck {
        true => "its thread has not come by although a launch runs: it is blocked, or starved",
        false => "its kernels found no free slot in the doorbell ring until their deadline",
    };
    Some(Verdict::new(Cause::Engine(rank.rank), why.into()))
}

fn slow_gpu(ranks: &[RankView]) -> Option<Verdict> {
    // Before somebody's wait has ended nobody has a record.
    let recorded = ranks.iter().filter(|rank| rank.record.is_some()).count();
    if recorded == 0 {
        return None;
    }
    let first = ranks.iter().filter_map(|rank| Some(rank.record.as_ref()?.sequence)).min()?;
    let has_not_begun =
        |rank: &&RankView| rank.record.is_none() && !rank.is_idle() && rank.ended <= first;
    let slow: Vec<_> = ranks.iter().filter(has_not_begun).collect();
    let rank = slow.first()?;
    let why = format!(
        "launch {} of {} was enqueued, and no wait of its kernel has ended while those of \
         {recorded} other ranks have: its GPU has not begun it. Look at what the program runs \
         before it on the stream",
        rank.ended, rank.rank,
    );
    let slow = slow.iter().map(|rank| rank.rank).collect();
    Some(Verdict::new(Cause::SlowGpu(slow), why))
}

/// What its kernels were waiting for when they stopped.
fn waits(rank: &RankView) -> Option<WaitKind> {
    WaitKind::from_code(rank.record.as_ref()?.kind)
}

fn waited_for(ranks: &[RankView]) -> Option<Verdict> {
    let peer = |rank: Rank| {
        let view = ranks.iter().find(|view| view.rank == rank)?;
        let record = view.record.as_ref()?;
        let waits = matches!(waits(view)?, WaitKind::Arrival | WaitKind::Credit);
        (waits && record.peer != u32::MAX).then_some(Rank(record.peer))
    };
    // Who waited first in the order of launches has the oldest reason.
    let mut waiting: Vec<_> = ranks.iter().filter(|rank| rank.record.is_some()).collect();
    waiting.sort_by_key(|rank| rank.record.as_ref().map(|record| record.sequence));
    for start in waiting {
        let mut path = vec![start.rank];
        while let Some(next) = peer(path[path.len() - 1]) {
            if path.contains(&next) {
                break;
            }
            path.push(next);
            let Some(view) = ranks.iter().find(|view| view.rank == next) else {
                let why = format!(
                    "{} for it, and it runs on another node; `ringdove inspect` there says more",
                    chain(&path)
                );
                return Some(Verdict::new(Cause::NeverArrived(vec![next]), why));
            };
            if view.record.is_none() && view.is_idle() {
                let why = format!("{} for it, and it has called nothing more", chain(&path));
                return Some(Verdict::new(Cause::NeverArrived(vec![next]), why));
            }
        }
    }
    None
}

/// "rank 0 waits for rank 1, rank 1": the last one is the subject of what follows.
fn chain(path: &[Rank]) -> String {
    let waiting = &path[..path.len() - 1];
    let names: Vec<String> = waiting.iter().map(ToString::to_string).collect();
    let verb = if names.len() == 1 { "waits" } else { "each wait for the next, the last one" };
    format!("{} {verb}", names.join(", "))
}

fn link(ranks: &[RankView]) -> Option<Verdict> {
    let is_waiting = ranks.iter().any(|rank| !rank.is_idle());
    let completion = ranks.iter().find(|rank| waits(rank) == Some(WaitKind::Completion));
    if let Some(rank) = completion
        && let Some(record) = rank.record.as_ref().filter(|record| record.peer != u32::MAX)
    {
        let why = format!("{} waited for the completion of a transfer", rank.rank);
        return Some(Verdict::new(Cause::Link(rank.rank, Rank(record.peer)), why));
    }
    let rank = ranks
        .iter()
        .find(|rank| is_waiting && rank.engine.in_flight > 0 && rank.since_progress > STILL)?;
    let peer = rank.engine.peer?;
    let why = format!(
        "{} of its transfers have been on the way for {:.1} s",
        rank.engine.in_flight,
        rank.since_progress.as_secs_f64()
    );
    Some(Verdict::new(Cause::Link(rank.rank, peer), why))
}

/// A transfer that takes so long does not move.
const STILL: Duration = Duration::from_millis(200);

/// "rank 1", or "ranks 1, 4, 5".
pub(super) fn list(ranks: &[Rank]) -> String {
    match ranks {
        [one] => one.to_string(),
        many => {
            let numbers: Vec<String> = many.iter().map(|rank| rank.0.to_string()).collect();
            format!("ranks {}", numbers.join(", "))
        }
    }
}
