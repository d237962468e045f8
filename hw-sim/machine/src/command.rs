//! Commands: the steps of a stream.

use crate::client::Client;
use crate::copy::{Bulk, Transfer2d};
use crate::error::{Result, Sticky};
use crate::kernel::KernelRun;
use crate::memory::Reservation;
use crate::record::Records;
use crate::wait_value::{WaitValue, WriteValue};
use std::sync::Arc;

/// A host function; it learns whether its context has failed before its turn came. A graph calls it
/// once for each launch.
pub type HostCall = Arc<dyn Fn(Result<()>) + Send + Sync>;

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It is done.
    Done,
    /// Somebody calls `Client::head_done` when it is.
    Later,
}

/// Work of several commands that is one step of a stream: a graph.
pub trait Task: Send + Sync {
    /// Starts it, for a client that waits for its end.
    fn start(self: Arc<Self>, client: &Arc<dyn Client>) -> Progress;
}

/// Where commands run: a context, as work that is no stream's knows it.
pub trait Place: Send + Sync {
    /// The context, by its number, and its GPU.
    fn context(&self) -> (u64, usize);

    /// Starts a command for a client.
    fn perform(self: Arc<Self>, client: &Arc<dyn Client>, command: Command) -> Progress;

    /// A worker goes on with the client.
    fn resume(&self, client: Arc<dyn Client>);

    /// Has the context failed?
    fn has_failed(&self) -> bool;

    /// Makes the context fail.
    fn fail(&self, reason: Sticky);

    /// A number for a launch of a kernel, never used twice.
    fn next_grid_id(&self) -> u64;
}

/// Commands in order, which others wait for: a stream, to another one.
pub trait Timeline: Send + Sync {
    /// True if `count` commands are done; otherwise `follower` is notified when they are.
    fn completed_or_notify(&self, count: u64, follower: Arc<dyn Client>) -> bool;
}

/// One step of a stream.
pub enum Command {
    /// A copy or a fill.
    Bulk(Bulk),
    /// A copy of rows.
    Copy2d(Transfer2d),
    /// Bytes taken from pageable memory when the call was made.
    Staged {
        /// Where they go.
        destination: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A kernel.
    Kernel(Arc<KernelRun>),
    /// Completes a record of an event.
    Record(Arc<Records>, u64),
    /// Waits for a record of an event.
    WaitEvent(Arc<Records>, u64),
    /// Waits until another stream has finished that many commands.
    WaitStream(Arc<dyn Timeline>, u64),
    /// Waits for a word in memory.
    WaitValue(WaitValue),
    /// Writes a word.
    WriteValue(WriteValue),
    /// Calls a host function.
    HostCall(HostCall),
    /// Frees device memory.
    Free(u64),
    /// Gives a graph's addresses memory.
    BeginReserved(Arc<Reservation>),
    /// Takes it back.
    EndReserved(Arc<Reservation>),
    /// A launch of a graph.
    Graph(Arc<dyn Task>),
    /// Holds the stream until the machine's clock shows this, ns.
    Until(u64),
    /// A command with its ticket of the stream's hardware queue.
    Placed(u64, Box<Command>),
}

impl Command {
    /// Is it a wait for something else than its turn? Such a command keeps its place in a hardware
    /// queue until it is over.
    pub(crate) fn is_wait(&self) -> bool {
        matches!(
            self,
            Self::WaitEvent(..) | Self::WaitStream(..) | Self::WaitValue(_) | Self::Until(_)
        )
    }

    /// Does it count for the bound on a context's pending commands? Records of events and host
    /// functions do not, as an H100 (driver 580.159) showed.
    pub(crate) fn is_counted(&self) -> bool {
        match self {
            Self::Record(..) | Self::HostCall(_) => false,
            Self::Placed(_, command) => command.is_counted(),
            _ => true,
        }
    }
}
