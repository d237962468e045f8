//! What can go wrong, as data. Every message says what was expected, what was seen, and what the
//! reader can do. Errors are `Clone`, because the first one sticks to its communicator and is
//! handed to every later caller.

mod adapter;
mod bootstrap;
mod engine;
mod experts;
mod json;
mod kernel;
mod program;
mod record;
mod serve;

pub use adapter::{AdapterFault, AdapterFaultKind};
pub use bootstrap::{BootstrapError, Ranks};
pub use engine::{EngineFault, EngineFaultKind, UnfitEngine};
pub use experts::{GoneRanks, RoutingFault, RoutingFaultKind};
pub(crate) use json::{json_reason, line_of};
pub use program::{StuckTask, TaskName};
pub use serve::ServeError;

use crate::id::{LaneId, Position, Rank, RouteId};
use ringdove_kernels::descriptor::{Descriptor, MalformedDescriptor};
use ringdove_kernels::launch::{WaitKind, WaitRecord};
use std::fmt;
use std::time::Duration;

/// The result of a fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Any failure of the library.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A caller passed an invalid argument. The communicator stays usable.
    #[error("invalid argument {what}: expected {expected}, seen {seen}")]
    Argument {
        /// The parameter.
        what: String,
        /// The accepted values.
        expected: String,
        /// The value that was passed.
        seen: String,
    },
    /// Too few ranks are left of a communicator for them to go on: others might go on, too.
    #[error(
        "of {rank_count} ranks only {} met: expected more than half, or half with rank 0. Where it \
         is known that no others go on, Communicator::shrink makes a communicator of any ranks",
        bootstrap::Ranks(left)
    )]
    Minority {
        /// Those that met.
        left: Vec<Rank>,
        /// Ranks of the communicator.
        rank_count: u32,
    },
    /// Two ranks called with values that must be equal and are not.
    #[error("ranks disagree on {what}: {rank} says {value}, {peer} says {peer_value}")]
    Disagreement {
        /// The quantity, for example `count` or `library version`.
        what: String,
        /// The rank that reports.
        rank: Rank,
        /// Its value.
        value: String,
        /// The rank that differs.
        peer: Rank,
        /// That rank's value.
        peer_value: String,
    },
    /// A rank sent a value about itself that cannot be true, such as memory outside of the
    /// allocation that the driver has opened. It is not used.
    #[error(
        "{rank} sent an invalid value for {field}: expected {expected}, seen {seen}. Check that \
         all ranks run the same version of ringdove, and that every process of the job is yours"
    )]
    PeerValue {
        /// The rank that sent it.
        rank: Rank,
        /// What it is about, for example `its signal memory`.
        field: String,
        /// The accepted values.
        expected: String,
        /// What it sent.
        seen: String,
    },
    /// A wait on the device reached its deadline (R10).
    #[error("{0}")]
    WaitExpired(Box<ExpiredWait>),
    /// A task of a resident program waited in vain.
    #[error("{0}")]
    StuckTask(Box<StuckTask>),
    /// A graph was launched that sends from, or receives into, registered memory that has been
    /// deregistered since it was captured (R15).
    #[error(
        "{rank}: launch {sequence} uses registered memory that was deregistered after the launch \
         was captured. Nothing was moved; capture the calls anew"
    )]
    RegistrationGone {
        /// The rank whose launch it is.
        rank: Rank,
        /// Launch counter of the communicator.
        sequence: u64,
    },
    /// The executor refused its plan. A fault of the library, never of the caller.
    #[error(
        "{rank}: the executor refused the plan of launch {sequence} (block {block}, segment \
         {segment}, op {op}; expected {expected:#x}, seen {seen:#x}). Host and device code \
         disagree about the plan's layout; rebuild both from one version"
    )]
    PlanRefused {
        /// The rank whose executor refused.
        rank: Rank,
        /// Launch counter of the communicator.
        sequence: u64,
        /// Block of the launch.
        block: u32,
        /// Segment of the block's program.
        segment: u32,
        /// Op of the segment.
        op: u32,
        /// The expected value.
        expected: u64,
        /// The seen value.
        seen: u64,
    },
    /// A user's kernel, which has a device handle, made a call that makes no sense.
    #[error(
        "{rank}: a user's kernel (block {block}, launch {sequence} by its own count) made a call \
         that was refused: {what}. The limit is {expected}, the call says {seen}"
    )]
    KernelCall {
        /// The rank whose kernel it was.
        rank: Rank,
        /// What the kernel told its launches apart by.
        sequence: u64,
        /// Block of the launch.
        block: u32,
        /// What is wrong.
        what: &'static str,
        /// The limit.
        expected: u64,
        /// The value that the kernel passed.
        seen: u64,
    },
    /// The routing of one rank in a dispatch of experts was refused. The group stays usable.
    #[error("{0}")]
    ExpertsRouting(Box<RoutingFault>),
    /// Ranks of a group of experts that goes on did not answer. The step has ended without them.
    #[error("{0}")]
    ExpertsGone(Box<GoneRanks>),
    /// A word of the library's own in GPU memory holds a value that the library never writes.
    /// Launches stop there: what else was overwritten is not known.
    #[error(
        "{rank}: GPU memory of the communicator was overwritten: the claim of the failure record \
         holds {seen:#x} in launch {sequence}, where 0 or {expected:#x} can be. A kernel of this \
         process has written out of bounds; compute-sanitizer finds it"
    )]
    MemoryOverwritten {
        /// The rank whose memory it is.
        rank: Rank,
        /// Launch counter of the communicator.
        sequence: u64,
        /// What the library writes there.
        expected: u64,
        /// What the executor found.
        seen: u64,
    },
    /// A descriptor that cannot become a transfer (R8).
    #[error("{0}")]
    BadDescriptor(Box<BadDescriptor>),
    /// A transport could not do its work (R12).
    #[error("{rank}: transfer to {peer} failed: {error}")]
    Transport {
        /// The rank whose engine asked for the transfer.
        rank: Rank,
        /// The rank at the far end of the lane.
        peer: Rank,
        /// The transport's error.
        error: TransportError,
    },
    /// A device engine stopped serving a rank, and no descriptor is to blame (R12).
    #[error("{0}")]
    Engine(Box<EngineFault>),
    /// A PCI function that cannot be used as a device engine, or is too small for what is wanted.
    #[error("{0}")]
    UnfitEngine(Box<UnfitEngine>),
    /// A call of the CUDA driver failed.
    #[error("{call} failed with CUDA error {code} ({name})")]
    Cuda {
        /// The driver's function, for example `cuMemAlloc_v2`.
        call: String,
        /// The numeric `CUresult`.
        code: u32,
        /// Its name, with the driver's explanation where there is one.
        name: String,
    },
    /// A registered buffer was freed while it was registered, and its address is that of other
    /// memory now.
    #[error(
        "{rank}: registration {registration} refers to allocation {registered}, but {address:#x} \
         now lies in allocation {seen}: the registered memory was freed. Keep it allocated until \
         all ranks have dropped the communicator"
    )]
    StaleRegistration {
        /// The rank whose buffer it is.
        rank: Rank,
        /// Number of the registration.
        registration: usize,
        /// The address that a call named.
        address: u64,
        /// The driver's id of the allocation that was registered.
        registered: u64,
        /// The id of the allocation that holds the address now.
        seen: u64,
    },
    /// The driver gives one GPU access to another's memory, and what it writes there is lost.
    #[error(
        "{rank}: what its GPU writes into the memory of {peer} does not arrive there: expected \
         {expected:#x}, seen {seen:#x}. The driver grants the access; PCI access control (ACS) or \
         an IOMMU between the two GPUs loses the writes. Boot with iommu=pt or the IOMMU off, turn \
         ACS off on the bridges between them, or choose other GPUs (CUDA_VISIBLE_DEVICES)"
    )]
    Unreached {
        /// The rank that tried.
        rank: Rank,
        /// Whose memory it does not reach.
        peer: Rank,
        /// What was written.
        expected: u64,
        /// What was read back.
        seen: u64,
    },
    /// A call on a stream whose capture into a graph takes no more work. Nothing was enqueued, no
    /// call record was sent, and the communicator stays usable.
    #[error(
        "{rank}: {call} on a stream whose capture takes no more work: it has become invalid, or \
         the stream is a default one beside which another stream is captured. Waiting for an event \
         from before the capture makes it invalid, and cudarc does so for buffers that it tracks \
         (`CudaContext::disable_event_tracking`)"
    )]
    Capturing {
        /// The rank whose call it is.
        rank: Rank,
        /// The call.
        call: &'static str,
    },
    /// The communicator was aborted.
    #[error("aborted{}: {why}", by.map(|rank| format!(" by {rank}")).unwrap_or_default())]
    Aborted {
        /// The rank that started it, where known.
        by: Option<Rank>,
        /// Its reason.
        why: String,
    },
    /// A device, driver or library that is needed is not there.
    #[error("no {wanted}: looked for {looked_for}; {advice}")]
    NotFound {
        /// The missing item, for example `CUDA driver`.
        wanted: String,
        /// Where the search went, and what it found.
        looked_for: String,
        /// The advice.
        advice: String,
    },
    /// What is asked for belongs to a cargo feature that is off in this build.
    #[error(
        "{wanted} needs feature `{feature}` of crate ringdove, which is off in this build; build \
         with the default features, or add `features = [\"{feature}\"]` to the dependency"
    )]
    FeatureOff {
        /// The requested item.
        wanted: String,
        /// The feature that has it.
        feature: &'static str,
    },
    /// A setting has a value that cannot be used.
    #[error("setting {name}={value}: expected {expected}")]
    Setting {
        /// The environment variable.
        name: String,
        /// Its value.
        value: String,
        /// The accepted values.
        expected: String,
    },
    /// An engine can no longer serve its communicators.
    #[error("engine {engine} stopped: {why}")]
    EngineStopped {
        /// The engine's name.
        engine: String,
        /// The reason.
        why: String,
    },
    /// A host wait reached its deadline (R10). Time in which the process was stopped does not
    /// count.
    #[error("timed out after {} on {what}: expected {expected}, seen {seen}", seconds(*waited))]
    HostWaitExpired {
        /// The awaited item.
        what: String,
        /// The state that would have ended the wait.
        expected: String,
        /// The state at the end.
        seen: String,
        /// How long the wait lasted.
        waited: Duration,
    },
    /// Ranks could not find one another, or lost one another.
    #[error("{0}")]
    Bootstrap(Box<BootstrapError>),
    /// What the launcher put into the environment is incomplete, or there is nothing.
    #[error("{launcher}: {variable} is {seen}; expected {expected}")]
    Environment {
        /// The launcher that set the variables, for example `torchrun`.
        launcher: String,
        /// The variable that cannot be used.
        variable: String,
        /// Its value, or that it is not set.
        seen: String,
        /// The accepted values, and the advice.
        expected: String,
    },
    /// A member of a job of servers and workers cannot go on.
    #[error("{0}")]
    Serve(ServeError),
    /// The operating system refused something.
    #[error("{what}: {cause}")]
    System {
        /// The action that failed, with its object (a path, a thread, a socket).
        what: String,
        /// The system's answer.
        cause: String,
    },
}

impl Error {
    /// An [`Error::Argument`].
    pub fn argument(what: &str, expected: impl fmt::Display, seen: impl fmt::Display) -> Self {
        Self::Argument {
            what: what.to_owned(),
            expected: expected.to_string(),
            seen: seen.to_string(),
        }
    }

    /// An [`Error::PeerValue`].
    pub fn peer_value(
        rank: Rank,
        field: &str,
        expected: impl fmt::Display,
        seen: impl fmt::Display,
    ) -> Self {
        Self::PeerValue {
            rank,
            field: field.to_owned(),
            expected: expected.to_string(),
            seen: seen.to_string(),
        }
    }

    /// The same error for a value that `rank` sent, instead of the caller.
    pub(crate) fn told_by(self, rank: Rank) -> Self {
        match self {
            Self::Argument { what, expected, seen } => {
                Self::PeerValue { rank, field: what, expected, seen }
            }
            other => other,
        }
    }
}

/// A device wait that reached its deadline, decoded from the record of R10.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiredWait {
    /// The rank that waited.
    pub rank: Rank,
    /// Kind of the wait; `None` if the record holds an unknown code.
    pub kind: Option<WaitKind>,
    /// The rank at the other end, where there is one.
    pub peer: Option<Rank>,
    /// The record itself: block, segment, op, round, expected, seen, position, time.
    pub record: WaitRecord,
    /// Ranks that have made fewer calls than others, where that is known: the likely culprits.
    pub behind: Vec<Rank>,
}

impl fmt::Display for ExpiredWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, record, .. } = self;
        let peer = self.peer.map_or_else(|| "its peer".to_owned(), |peer| peer.to_string());
        let (awaited, advice) = match self.kind {
            Some(WaitKind::Arrival) => (
                format!("data from {peer}"),
                format!(
                    "{peer} has not launched the matching call, runs late, or has failed; look \
                     for an earlier error there"
                ),
            ),
            Some(WaitKind::Credit) => (
                format!("a credit from {peer}"),
                format!(
                    "{peer} has not consumed earlier messages: it has not launched the matching \
                     call, runs late, or has failed; look for an earlier error there"
                ),
            ),
            Some(WaitKind::Completion) => (
                format!("the completion of a transfer to {peer}"),
                format!("the engine of {rank} or the link to {peer} is stalled"),
            ),
            Some(WaitKind::RingSpace) => (
                "a free slot of the doorbell ring".to_owned(),
                format!("the engine of {rank} does not drain its ring; its thread may be starved"),
            ),
            Some(WaitKind::Counter) => (
                format!(
                    "task {} of a resident program, for counter {} in iteration {}",
                    record.segment, record.op, record.position
                ),
                "the tasks that raise the counter have not ended: one of them runs late, waits for \
                 another rank, or never returns"
                    .to_owned(),
            ),
            Some(WaitKind::BadPlan | WaitKind::StrayClaim | WaitKind::BadCall) | None => (
                format!("something unknown (wait kind {})", record.kind),
                "host and device code disagree about the record's layout".to_owned(),
            ),
        };
        write!(
            f,
            "{rank} timed out after {} waiting for {awaited}: expected {}, seen {} (launch {}, \
             call {} of it, block {}, segment {}, op {}, round {}, port {}, position {}). {}Likely \
             cause: {advice}. If the job is only slow, raise RINGDOVE_TIMEOUT_MS",
            seconds(Duration::from_nanos(record.waited_ns)),
            record.expected,
            record.seen,
            record.sequence,
            record.call,
            record.block,
            record.segment,
            record.op,
            record.round,
            record.port,
            record.position,
            calls_missing(&self.behind),
        )
    }
}

fn calls_missing(behind: &[Rank]) -> String {
    match behind {
        [] => String::new(),
        [one] => format!("{one} has made fewer calls than the others. "),
        many => {
            let ranks: Vec<_> = many.iter().map(|rank| rank.0.to_string()).collect();
            format!("Ranks {} have made fewer calls than the others. ", ranks.join(", "))
        }
    }
}

/// A descriptor that the engine refused (R8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadDescriptor {
    /// The rank whose ring it stood in.
    pub rank: Rank,
    /// Where in the ring.
    pub position: Position,
    /// The two words as they were copied out, lap bits included.
    pub words: [u64; 2],
    /// The fields, unless the words do not decode.
    pub fields: Option<Descriptor>,
    /// Why it was refused.
    pub reason: DescriptorFault,
}

/// Why a descriptor was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorFault {
    /// The words are not a descriptor.
    Malformed(MalformedDescriptor),
    /// The route is not registered.
    UnknownRoute,
    /// The source range leaves the route's source region of this many bytes.
    SourceRange(u64),
    /// The destination range leaves the route's destination region of this many bytes.
    DestinationRange(u64),
    /// An arrival signal is asked for, and the lane has none.
    NoArrivalSignal(LaneId),
    /// A completion signal is asked for, and the lane has none.
    NoCompletionSignal(LaneId),
}

impl fmt::Display for BadDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: bad descriptor at ring {}: ", self.rank, self.position)?;
        match self.reason {
            DescriptorFault::Malformed(MalformedDescriptor::ReservedBit) => {
                write!(f, "a reserved bit is set")?;
            }
            DescriptorFault::Malformed(MalformedDescriptor::DatalessWithRange) => {
                write!(f, "it moves no data but has offsets or a length")?;
            }
            DescriptorFault::Malformed(MalformedDescriptor::Empty) => {
                write!(f, "it neither moves data nor raises a signal")?;
            }
            DescriptorFault::UnknownRoute => write!(f, "its route is not registered")?,
            DescriptorFault::SourceRange(bytes) => {
                write!(f, "its source exceeds the registered {bytes} bytes")?;
            }
            DescriptorFault::DestinationRange(bytes) => {
                write!(f, "its destination exceeds the registered {bytes} bytes")?;
            }
            DescriptorFault::NoArrivalSignal(lane) => write!(f, "{lane} has no arrival signal")?,
            DescriptorFault::NoCompletionSignal(lane) => {
                write!(f, "{lane} has no completion signal")?;
            }
        }
        if let Some(fields) = self.fields {
            write!(
                f,
                " ({}, source offset {}, destination offset {}, {} bytes, arrival {}, completion \
                 {})",
                RouteId(fields.route),
                fields.source_offset,
                fields.destination_offset,
                fields.length,
                fields.arrival,
                fields.completion,
            )?;
        }
        write!(
            f,
            "; words {:#018x} {:#018x}. No data was moved. A kernel of the program's own put \
             outside its windows; or host and device code are of different versions, or the ring \
             was overwritten",
            self.words[0], self.words[1]
        )
    }
}

/// Error of a transport.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{lane}, ring {position}: {cause}")]
pub struct TransportError {
    /// The lane of the transfer that failed.
    pub lane: LaneId,
    /// Ring position of the (first) descriptor that asked for it.
    pub position: Position,
    /// The cause.
    pub cause: TransportCause,
}

/// Causes of a transport failure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransportCause {
    /// The lane was not added to the transport.
    #[error("unknown lane; the transport has {known} lanes")]
    UnknownLane {
        /// How many lanes it knows.
        known: usize,
    },
    /// A call of the CUDA driver failed.
    #[error("{call} failed with CUDA error {code} ({name})")]
    Cuda {
        /// The driver's function.
        call: String,
        /// The numeric `CUresult`.
        code: u32,
        /// Its name.
        name: String,
    },
    /// An RDMA adapter could not go on.
    #[error("{0}")]
    Adapter(Box<AdapterFault>),
    /// A transfer would leave the memory that the transport may touch.
    #[error("{length} bytes at {address:#x} are outside the transport's memory")]
    OutOfBounds {
        /// First address.
        address: u64,
        /// Bytes.
        length: u64,
    },
    /// A fault that a test asked for.
    #[error("injected fault: {0}")]
    Injected(String),
    /// The transport accepted more than it was offered, or completed more than it accepted.
    #[error("the transport violated its contract: {0}")]
    Contract(String),
    /// Anything else, in the transport's words.
    #[error("{0}")]
    Other(String),
}

/// Seconds with a precision that suits both a test's 2 ms and a user's 10 minutes.
fn seconds(duration: Duration) -> String {
    format!("{:.3} s", duration.as_secs_f64())
}
