//! The recorder, read: by the process itself, or by another one.

use super::layout::{self, BLOCKS, block, entry, header};
use crate::error::{BootstrapError, Error};
use crate::id::Rank;
use bytemuck::Zeroable;
use ringdove_kernels::launch::WaitRecord;
use std::time::Duration;

/// Whether a process is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Its watchdog looks after its ranks.
    Running,
    /// Its watchdog has not run for so long: the process is stopped, or gets no processor.
    Silent(Duration),
}

/// A process.
#[derive(Clone, Debug, Default)]
pub struct ProcessView {
    /// Its number.
    pub pid: u32,
    /// Ranks that found no place in the recorder.
    pub unrecorded: u64,
    /// Its ranks, of all communicators.
    pub ranks: Vec<RankView>,
}

/// One rank of one communicator.
#[derive(Clone, Debug)]
pub struct RankView {
    /// Names the communicator.
    pub key: u64,
    /// The rank.
    pub rank: Rank,
    /// Number of ranks.
    pub rank_count: u32,
    /// Ranks of its node, as far as the recorder has room for them.
    pub node: Vec<Rank>,
    /// Its process.
    pub pid: u32,
    /// Does that process run?
    pub life: Life,
    /// Deadline of waits.
    pub timeout: Duration,
    /// Collectives that it has called.
    pub collectives: u64,
    /// Sends and receives that it has called.
    pub messages: u64,
    /// Launches that it has enqueued.
    pub launches: u64,
    /// Launches that have ended, when it was looked at last.
    pub ended: u64,
    /// Launches were captured into graphs: how many there are is not known.
    pub is_captured: bool,
    /// Since its last call; `None` if there was none.
    pub since_call: Option<Duration>,
    /// Since something of it was seen to move.
    pub since_progress: Duration,
    /// Its engine.
    pub engine: EngineView,
    /// How a wait of its kernels ended (R10).
    pub record: Option<WaitRecord>,
    /// What ended the communicator.
    pub failure: Option<FailureView>,
    /// What it did last, in order.
    pub entries: Vec<EntryView>,
}

/// Counters of an engine, for one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineView {
    /// How often its thread came by; 0 for engines without one.
    pub steps: u64,
    /// Descriptors taken from the ring.
    pub descriptors: u64,
    /// Transfers handed to the transport.
    pub transfers: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// Transfers that wait for the transport.
    pub pending: u64,
    /// Transfers that the transport works on.
    pub in_flight: u64,
    /// Whom the last one goes to, where it has one.
    pub peer: Option<Rank>,
    /// Its thread has not come by since the look before, although a launch runs.
    pub is_stuck: bool,
}

impl EngineView {
    pub(super) fn words(&self) -> [u64; block::ENGINE_WORDS] {
        let peer = self.peer.map_or(u64::MAX, |peer| peer.0.into());
        let Self { steps, descriptors, transfers, bytes, pending, in_flight, .. } = *self;
        let stuck = u64::from(self.is_stuck);
        [steps, descriptors, transfers, bytes, pending, in_flight, peer, stuck]
    }

    fn read(words: &[u64]) -> Self {
        let peer = u32::try_from(words[6]).ok().map(Rank);
        Self {
            steps: words[0],
            descriptors: words[1],
            transfers: words[2],
            bytes: words[3],
            pending: words[4],
            in_flight: words[5],
            peer,
            is_stuck: words[7] != 0,
        }
    }
}

/// Kinds of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum EntryKind {
    /// A collective was called.
    Collective = 1,
    /// Sends and receives were called.
    Messages = 2,
    /// A launch was enqueued.
    Launch = 3,
    /// The communicator has failed.
    Failure = 4,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryView {
    /// Rises from entry to entry.
    pub position: u64,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// Kind.
    pub kind: EntryKind,
    /// Number of the collective or the launch.
    pub number: u64,
    /// Elements, transfers, or calls of a launch.
    pub count: u64,
    /// Of what must be equal on all ranks; of messages, the peer of the first one.
    pub digest: u64,
    /// Name of the call, or of a launch's plan.
    pub name: String,
}

/// A collective that a rank has called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallView {
    /// Its number.
    pub number: u64,
    /// Its name.
    pub name: String,
    /// Its elements.
    pub count: u64,
    /// Of all that must be equal.
    pub digest: u64,
}

/// Kinds of failures, as far as a verdict asks for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum FailureKind {
    /// A wait of a kernel, or of a host, has expired.
    Expired = 1,
    /// A transfer failed.
    Transport = 2,
    /// A rank is gone.
    Gone = 3,
    /// Ranks called different things.
    Disagreement = 4,
    /// The program has aborted it.
    Aborted = 5,
    /// An engine has stopped.
    Engine = 6,
    /// Anything else.
    Other = 7,
}

impl FailureKind {
    pub(super) fn from_code(code: u64) -> Option<Self> {
        let all = [
            Self::Expired,
            Self::Transport,
            Self::Gone,
            Self::Disagreement,
            Self::Aborted,
            Self::Engine,
            Self::Other,
        ];
        all.into_iter().find(|kind| *kind as u64 == code)
    }

    /// Kind of an abort by another rank: that of the error which it gives as its reason, as far as
    /// that explains why a wait did not end.
    fn of_reason(by: Rank, why: &str) -> Self {
        match why.strip_prefix(&by.to_string()) {
            Some(rest) if rest.starts_with(" timed out after ") => Self::Expired,
            _ => Self::Aborted,
        }
    }

    /// Kind of an error, the rank that it speaks of, and that one's peer.
    pub(super) fn of(error: &Error) -> (Self, Option<Rank>, Option<Rank>) {
        match error {
            Error::WaitExpired(wait) => (Self::Expired, Some(wait.rank), wait.peer),
            Error::HostWaitExpired { .. } => (Self::Expired, None, None),
            Error::Transport { rank, peer, .. } => (Self::Transport, Some(*rank), Some(*peer)),
            Error::Disagreement { rank, peer, .. } => {
                (Self::Disagreement, Some(*rank), Some(*peer))
            }
            Error::Bootstrap(fault) => match &**fault {
                BootstrapError::Lost { rank, .. } | BootstrapError::Left { rank, .. } => {
                    (Self::Gone, Some(*rank), None)
                }
                BootstrapError::Disagreement { rank, peer, .. } => {
                    (Self::Disagreement, Some(*rank), Some(*peer))
                }
                _ => (Self::Other, None, None),
            },
            // Errors of other processes come as the reason of an abort, in their words.
            Error::Aborted { by: Some(by), why } => (Self::of_reason(*by, why), Some(*by), None),
            Error::Aborted { by: None, .. } => (Self::Aborted, None, None),
            Error::Engine(fault) => (Self::Engine, Some(fault.rank), None),
            Error::EngineStopped { .. } => (Self::Engine, None, None),
            _ => (Self::Other, None, None),
        }
    }
}

/// What ended a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureView {
    /// Kind.
    pub kind: FailureKind,
    /// The rank that the error speaks of.
    pub rank: Option<Rank>,
    /// That one's peer.
    pub peer: Option<Rank>,
    /// Its message, the first 480 bytes.
    pub text: String,
}

impl ProcessView {
    /// Reads memory while others write to it. `load` loads its words, in their order; `None` if
    /// they are no recorder of this version.
    pub(super) fn load(load: impl Fn() -> Option<Vec<u64>>) -> Option<Self> {
        let mut words = load()?;
        forget_rewritten(&mut words, &load()?);
        Self::read(&words)
    }

    /// Reads the memory's words; `None` if they are no recorder of this version.
    pub fn read(words: &[u64]) -> Option<Self> {
        let is_known = words.len() >= header::WORDS
            && words[header::MAGIC] == layout::MAGIC
            && words[header::VERSION] == layout::VERSION;
        if !is_known {
            return None;
        }
        let now = super::memory::now();
        let pid = words[header::PID] as u32;
        let since = |time: u64| Duration::from_nanos(now.saturating_sub(time));
        // A process whose first rank has just been made has no heartbeat yet.
        let heartbeat = words[header::HEARTBEAT];
        let silent = if heartbeat == 0 { Duration::ZERO } else { since(heartbeat) };
        let life = if silent > SILENT { Life::Silent(silent) } else { Life::Running };
        let blocks = words[header::WORDS..].chunks_exact(block::WORDS).take(BLOCKS);
        let ranks = blocks.filter_map(|words| RankView::read(words, pid, life, &since));
        let unrecorded = words[header::UNRECORDED];
        Some(Self { pid, unrecorded, ranks: ranks.collect() })
    }
}

/// Forgets entries that were written while `words` were loaded: in `later`, which was loaded behind
/// them, their stamp is another one. A writer clears it before it touches the rest.
fn forget_rewritten(words: &mut [u64], later: &[u64]) {
    let blocks = words.get_mut(header::WORDS..).unwrap_or_default().chunks_exact_mut(block::WORDS);
    let later = later.get(header::WORDS..).unwrap_or_default().chunks_exact(block::WORDS);
    for (block, later) in blocks.zip(later) {
        let entries = block[block::ENTRIES..].chunks_exact_mut(entry::WORDS);
        for (entry, later) in entries.zip(later[block::ENTRIES..].chunks_exact(entry::WORDS)) {
            if entry[entry::STAMP] != later[entry::STAMP] {
                entry[entry::STAMP] = 0;
            }
        }
    }
}

/// A watchdog that has not run for so long does not run: it does so several times a second.
const SILENT: Duration = Duration::from_secs(3);

impl RankView {
    fn read(words: &[u64], pid: u32, life: Life, since: &impl Fn(u64) -> Duration) -> Option<Self> {
        if words[block::STATE] == 0 {
            return None;
        }
        let mut record = WaitRecord::zeroed();
        let raw = &words[block::RECORD..block::RECORD + block::RECORD_WORDS];
        bytemuck::bytes_of_mut(&mut record).copy_from_slice(bytemuck::cast_slice(raw));
        let mut entries: Vec<_> = words[block::ENTRIES..]
            .chunks_exact(entry::WORDS)
            .take(block::ENTRY_COUNT)
            .filter_map(EntryView::read)
            .collect();
        entries.sort_by_key(|entry| entry.position);
        let called_at = words[block::CALLED_AT];
        let engine = &words[block::ENGINE..block::ENGINE + block::ENGINE_WORDS];
        Some(Self {
            key: words[block::KEY],
            rank: Rank(words[block::RANK] as u32),
            rank_count: (words[block::RANK] >> 32) as u32,
            node: node(&words[block::NODE..block::NODE + block::NODE_WORDS]),
            pid,
            life,
            timeout: Duration::from_nanos(words[block::TIMEOUT]),
            collectives: words[block::COLLECTIVES],
            messages: words[block::MESSAGES],
            launches: words[block::LAUNCHES],
            ended: words[block::ENDED],
            is_captured: words[block::CAPTURED] != 0,
            since_call: (called_at != 0).then(|| since(called_at)),
            since_progress: since(words[block::PROGRESS_AT]),
            engine: EngineView::read(engine),
            record: (record.state != 0).then_some(record),
            failure: FailureView::read(words),
            entries,
        })
    }

    /// All that it has enqueued has ended well, as far as that is known. (A launch that a failure
    /// has stopped counts as ended on the GPU, and has left a record.)
    pub fn is_idle(&self) -> bool {
        !self.is_captured && self.launches <= self.ended && self.record.is_none()
    }

    /// A collective that it has called, if the recorder still has it.
    pub fn call(&self, number: u64) -> Option<CallView> {
        let is_it =
            |entry: &&EntryView| entry.kind == EntryKind::Collective && entry.number == number;
        let entry = self.entries.iter().rev().find(is_it)?;
        let EntryView { number, count, digest, ref name, .. } = *entry;
        Some(CallView { number, name: name.clone(), count, digest })
    }

    /// The call that a launch began with: the last one before it.
    pub fn call_of_launch(&self, sequence: u64) -> Option<&EntryView> {
        let is_it = |entry: &EntryView| entry.kind == EntryKind::Launch && entry.number == sequence;
        let at = self.entries.iter().rposition(is_it)?;
        let calls = self.entries[..at].iter().rev();
        let is_call =
            |entry: &&EntryView| matches!(entry.kind, EntryKind::Collective | EntryKind::Messages);
        let calls = calls.take_while(|entry| entry.kind != EntryKind::Launch);
        calls.filter(is_call).last()
    }

    /// The plan of a launch's first call.
    pub fn plan_of_launch(&self, sequence: u64) -> Option<&str> {
        let is_it =
            |entry: &&EntryView| entry.kind == EntryKind::Launch && entry.number == sequence;
        self.entries.iter().rev().find(is_it).map(|entry| entry.name.as_str())
    }
}

fn node(words: &[u64]) -> Vec<Rank> {
    let bits = words.iter().zip(0u32..).flat_map(|(word, index)| {
        (0..64).filter(move |bit| word >> bit & 1 != 0).map(move |bit| Rank(64 * index + bit))
    });
    bits.collect()
}

impl EntryView {
    /// Reads an entry; `None` if there is none, or one that is being written.
    fn read(words: &[u64]) -> Option<Self> {
        let position = words[entry::STAMP].checked_sub(1)?;
        let kinds =
            [EntryKind::Collective, EntryKind::Messages, EntryKind::Launch, EntryKind::Failure];
        let kind = kinds.into_iter().find(|kind| *kind as u64 == words[entry::KIND])?;
        Some(Self {
            position,
            time_ns: words[entry::TIME],
            kind,
            number: words[entry::NUMBER],
            count: words[entry::COUNT],
            digest: words[entry::DIGEST],
            name: text(&words[entry::NAME..entry::NAME + 2]),
        })
    }
}

impl FailureView {
    fn read(words: &[u64]) -> Option<Self> {
        let kind = FailureKind::from_code(words[block::FAILURE])?;
        let ranks = words[block::FAILURE + 1];
        let rank = |number: u32| (number != u32::MAX).then_some(Rank(number));
        let text_words =
            &words[block::FAILURE_TEXT..block::FAILURE_TEXT + block::FAILURE_TEXT_WORDS];
        Some(Self {
            kind,
            rank: rank(ranks as u32),
            peer: rank((ranks >> 32) as u32),
            text: text(text_words),
        })
    }
}

fn text(words: &[u64]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    // A message of another process, printed to a terminal.
    let text = String::from_utf8_lossy(&bytes[..end]);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
