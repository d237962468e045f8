//! The clients of the scheduler: who hands it a kernel, a copy or a wait, and goes on when that has
//! ended. Streams are; the scheduler and the workers know no more of them than this.

use crate::error::{Error, Sticky};
use std::sync::Arc;

/// Where a client's work comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The context, by its number.
    pub context: u64,
    /// The GPU.
    pub gpu: usize,
    /// The stream, by its number.
    pub stream: u64,
    /// The stream's priority: a lesser number comes first.
    pub priority: i32,
}

/// What a client's work does, when it takes long.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub enum Head {
    /// It is a short step.
    Short,
    /// It is a copy.
    Copies,
    /// It is a kernel.
    Runs,
    /// It waits for an event.
    WaitsForEvent,
    /// It waits for another stream.
    WaitsForStream,
    /// It waits for a word.
    WaitsForWord,
    /// It calls a host function.
    CallsHost,
    /// It waits for its turn in a hardware queue.
    WaitsForQueue,
    /// It is a graph.
    RunsGraph,
}

/// The words for each [`Head`].
pub(crate) const HEADS: [&str; 9] = [
    "is about to continue",
    "is a copy",
    "is a kernel",
    "waits for an event",
    "waits for another stream",
    "waits for a word in memory",
    "calls a host function",
    "waits for its turn in its hardware queue",
    "is a graph",
];

/// A client of the scheduler.
pub trait Client: Send + Sync {
    /// Where its work comes from.
    fn origin(&self) -> Origin;

    /// Has its context failed? Its work is dropped then.
    fn has_failed(&self) -> bool;

    /// Makes its context fail.
    fn fail(&self, reason: Sticky);

    /// Remembers what takes its work so long, for people.
    fn note_head(&self, _head: Head) {}

    /// Its work has ended: a worker goes on with the next.
    fn head_done(self: Arc<Self>);

    /// As [`Client::head_done`], going on in this thread, which must be a worker.
    fn resume(self: Arc<Self>);

    /// Goes on, in this thread, where nothing of its work is under way.
    fn go_on(self: Arc<Self>);

    /// A copy of its own met memory that is gone.
    fn fail_copy(&self, error: &Error) {
        let gpu = self.origin().gpu;
        eprintln!("hwsim: GPU {gpu}: an asynchronous copy or memory operation failed: {error}");
        self.fail(Sticky::IllegalAddress);
    }
}
