//! The flight recorder: what each rank of this process has called, launched and moved, and how its
//! waits ended, so that a hang has a culprit.
//!
//! It is always on, has a fixed size and takes no lock. It lies in memory with a name
//! (`/memfd:ringdove-flight`) that other processes of the same user may read: `ringdove inspect`
//! needs no help of the process, which may be stopped, and nothing stays behind when it is killed.
//! No data and no secret is in it: names of calls, counts, times, signal values, error messages.
//!
//! * `layout`: where what lies in that memory
//! * `memory`: the memory of this process
//! * `recorder`: one rank's part of it; what communicators write
//! * `view`: the same, read
//! * `processes`: the recorders of other processes of this machine
//! * `verdict`: which rank is the cause; a pure function of views
//! * `report`: views and verdict as text
//! * `watchdog`: the thread that looks after ranks, and reports when one does not go on

#[cfg(test)]
mod fuzz_tests;
mod layout;
mod memory;
mod processes;
mod recorder;
mod report;
#[cfg(test)]
mod tests;
mod verdict;
mod view;
mod watchdog;

pub use memory::Memory;
pub use processes::{Gathered, gather, of_process};
pub use recorder::{Digest, Flight, RankRecorder};
pub use report::Report;
pub use verdict::{Cause, Verdict};
pub use view::{
    CallView, EngineView, EntryKind, EntryView, FailureKind, FailureView, Life, ProcessView,
    RankView,
};
pub use watchdog::{Options, Probe, WatchedRank, watch};

/// The report on all communicators that have a rank in this process, with what other processes of
/// this machine and this user say of the same communicators.
pub fn report() -> Vec<Report> {
    let own = memory::own().map(|memory| memory.view()).into_iter().collect();
    let gathered = processes::gather_beside(own);
    let here = |view: &RankView| view.pid == std::process::id();
    let reports = Report::of_all(&gathered).into_iter();
    reports.filter(|report| report.ranks.iter().any(here)).collect()
}
