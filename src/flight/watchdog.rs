//! The thread that looks after the ranks of this process: it copies what engines and GPUs say of
//! them into the recorder, and reports when a communicator fails or does not go on. One serves the
//! process. It is on no data path: if it did not run, every byte would move as fast.

use super::layout::header;
use super::memory::{Memory, now, own};
use super::processes::gather_beside;
use super::recorder::RankRecorder;
use super::report::Report;
use super::view::{EngineView, FailureKind, Life, RankView};
use crate::error::{Error, Result};
use crate::lived::Lived;
use ringdove_kernels::launch::WaitRecord;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Its name, as the system shows it.
pub const THREAD_NAME: &str = "ringdove-flight";
/// Between two looks while launches run, and while none does.
const BUSY: Duration = Duration::from_millis(100);
const IDLE: Duration = Duration::from_millis(500);
/// Between two looks while the records of a failure come in.
const FAILING: Duration = Duration::from_millis(5);
/// How long they may take: kernels look at the abort word every few microseconds, but their GPU
/// may be busy with others.
const RECORDS: Duration = Duration::from_millis(250);
/// An engine's thread that has not come by for so long while a launch runs is stuck.
const STUCK: Duration = Duration::from_secs(1);

/// What the watchdog is told to do besides.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Report a communicator of which nothing has moved for so long while a launch runs.
    pub stall: Option<Duration>,
    /// Report all communicators when this signal comes: its number.
    pub signal: Option<i32>,
}

/// What is seen of a rank's GPU and engine. Its methods only read memory of the host.
pub trait Probe: Send + Sync {
    /// Launches that have ended; `None` where that is not known.
    fn launches_ended(&self) -> Option<u64>;
    /// The engine's counters.
    fn engine(&self) -> EngineView;
    /// The record of an expired wait.
    fn record(&self) -> WaitRecord;
}

struct Watched {
    recorder: Arc<RankRecorder>,
    key: u64,
    probe: Box<dyn Probe>,
    options: Options,
    /// Steps of the engine, and the time since they were seen to change.
    steps: Mutex<(u64, Lived)>,
    /// When something moved last, and the time since that was seen.
    moved: Mutex<(u64, Lived)>,
    /// When its failure was seen first.
    failed: OnceLock<Instant>,
    /// Its failure, or that it does not go on, was reported.
    is_reported: AtomicBool,
    is_stall_reported: AtomicBool,
}

/// A rank in the watchdog's care, until this is dropped.
pub struct WatchedRank {
    watched: Arc<Watched>,
    watchdog: Arc<Watchdog>,
}

/// Puts a rank into the care of the watchdog, which is started where there is none. `key` names its
/// communicator.
///
/// # Errors
/// [`Error::System`] where the thread does not start, or the signal is refused.
pub fn watch(
    recorder: Arc<RankRecorder>,
    key: u64,
    probe: Box<dyn Probe>,
    options: Options,
) -> Result<WatchedRank> {
    let watchdog = Watchdog::running()?;
    if let Some(signal) = options.signal {
        listen(signal)?;
    }
    let watched = Arc::new(Watched {
        recorder,
        key,
        probe,
        options,
        steps: Mutex::new((0, Lived::in_steps(STUCK / 2))),
        moved: Mutex::new((0, Lived::new())),
        failed: OnceLock::new(),
        is_reported: AtomicBool::new(false),
        is_stall_reported: AtomicBool::new(false),
    });
    watchdog.shared.lock().push(watched.clone());
    Ok(WatchedRank { watched, watchdog })
}

impl WatchedRank {
    /// Something has failed: the watchdog looks at once.
    pub fn wake(&self) {
        self.watchdog.thread.unpark();
    }
}

impl std::fmt::Debug for WatchedRank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WatchedRank({:016x})", self.watched.key)
    }
}

impl Drop for WatchedRank {
    fn drop(&mut self) {
        // Of a failure that was not reported yet, now is the last time to speak.
        let watched = &self.watched;
        if watched.recorder.failure().is_some() && !watched.is_reported.load(Ordering::Relaxed) {
            watched.look();
            self.watchdog.shared.report_failures(watched.key);
        }
        self.watchdog.shared.lock().retain(|other| !Arc::ptr_eq(other, watched));
    }
}

/// The signal that was asked for has come. The handler does nothing else.
static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Notes a signal from now on. What was done on it before is still done.
fn listen(signal: i32) -> Result<()> {
    static LISTENING: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());
    let mut listening = LISTENING.lock().unwrap_or_else(PoisonError::into_inner);
    if !listening.insert(signal) {
        return Ok(());
    }
    let asked = ASKED.get_or_init(Arc::default).clone();
    signal_hook::flag::register(signal, asked).map(drop).map_err(|cause| Error::System {
        what: format!("handling of signal {signal} (RINGDOVE_INSPECT_SIGNAL)"),
        cause: cause.to_string(),
    })
}

struct Watchdog {
    shared: Arc<Shared>,
    thread: Thread,
    join: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    watched: Mutex<Vec<Arc<Watched>>>,
    stop: AtomicBool,
}

impl Watchdog {
    fn running() -> Result<Arc<Self>> {
        static RUNNING: Mutex<Weak<Watchdog>> = Mutex::new(Weak::new());
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watchdog) = running.upgrade() {
            return Ok(watchdog);
        }
        let started = Arc::new(Self::start()?);
        *running = Arc::downgrade(&started);
        Ok(started)
    }

    fn start() -> Result<Self> {
        let shared = Arc::<Shared>::default();
        let body = shared.clone();
        let join = thread::Builder::new().name(THREAD_NAME.into()).spawn(move || body.run());
        let join = join.map_err(|cause| Error::System {
            what: format!("start of thread {THREAD_NAME}"),
            cause: cause.to_string(),
        })?;
        Ok(Self { shared, thread: join.thread().clone(), join: Some(join) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.thread.unpark();
        if let Some(join) = self.join.take() {
            // A look never waits for anybody, so this is soon. A panic was printed there.
            drop(join.join());
        }
        if let Some(memory) = own() {
            beat(memory, 0);
        }
    }
}

/// Relaxed: a time, from which nothing follows about other memory.
fn beat(memory: &Memory, time: u64) {
    memory.words.store(header::HEARTBEAT, time, Ordering::Relaxed);
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Watched>>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        // Relaxed: nothing is read on the strength of it, and unpark orders what matters.
        while !self.stop.load(Ordering::Relaxed) {
            if let Some(memory) = own() {
                beat(memory, now());
            }
            thread::park_timeout(self.look());
        }
    }

    /// Looks at all ranks; gives how long to rest.
    fn look(&self) -> Duration {
        let mut rest = IDLE;
        let (mut failed, mut stalled) = (BTreeSet::new(), BTreeSet::new());
        for watched in self.lock().iter() {
            watched.look();
            if !watched.is_idle() {
                rest = rest.min(BUSY);
            }
            match watched.failing() {
                Failing::Not => {}
                Failing::Records => rest = FAILING,
                Failing::Known => drop(failed.insert(watched.key)),
            }
            if watched.has_stalled() {
                stalled.insert(watched.key);
            }
        }
        failed.into_iter().for_each(|key| self.report_failures(key));
        if !stalled.is_empty() {
            report_stalls(&stalled);
        }
        // Swapped with a relaxed order: the flag stands for itself.
        if ASKED.get().is_some_and(|asked| asked.swap(false, Ordering::Relaxed)) {
            super::report().iter().for_each(|report| eprint!("ringdove: {report}"));
        }
        rest
    }

    /// Reports the failure of a communicator, once, if there is anything to say about it.
    fn report_failures(&self, key: u64) {
        let ranks: Vec<_> = self.lock().iter().filter(|one| one.key == key).cloned().collect();
        let is_new = |watched: &Arc<Watched>| {
            !watched.is_reported.swap(true, Ordering::Relaxed)
                && watched.recorder.failure().is_some()
        };
        if ranks.iter().filter(|watched| is_new(watched)).count() == 0 {
            return;
        }
        if let Some(report) = reported_here(key)
            && report.ranks.iter().any(is_hang)
        {
            tracing::error!("{report}");
        }
    }
}

/// Did its communicator end by what a verdict can explain?
fn is_hang(rank: &RankView) -> bool {
    use FailureKind::{Engine, Expired, Gone, Transport};
    rank.failure
        .as_ref()
        .is_some_and(|failure| matches!(failure.kind, Expired | Transport | Gone | Engine))
}

/// The report on a communicator, if it is this process that speaks for its node: the one of the
/// node's lowest rank whose process runs.
fn reported_here(key: u64) -> Option<Report> {
    let own = own()?.view();
    let node = own.ranks.iter().find(|rank| rank.key == key)?.node.clone();
    let gathered = gather_beside(vec![own]);
    let report = Report::of_all(&gathered).into_iter().find(|report| report.key == key)?;
    // Those of a virtual node are seen from others, too.
    let is_beside = |rank: &&RankView| node.is_empty() || node.contains(&rank.rank);
    let mut running = report.ranks.iter().filter(|rank| rank.life == Life::Running);
    let speaker = running.find(is_beside)?;
    (speaker.pid == std::process::id()).then_some(report)
}

fn report_stalls(keys: &BTreeSet<u64>) {
    for report in keys.iter().filter_map(|key| reported_here(*key)) {
        tracing::warn!("nothing has moved for a while (RINGDOVE_WATCHDOG_MS): {report}");
    }
}

/// How far a failure is known.
enum Failing {
    Not,
    /// Records of other ranks may still come.
    Records,
    /// All that will come is there, and was not reported.
    Known,
}

impl Watched {
    fn look(&self) {
        let mut engine = self.probe.engine();
        engine.is_stuck = self.is_stuck(&engine);
        self.recorder.seen(self.probe.launches_ended(), &engine, &self.probe.record());
    }

    fn is_stuck(&self, engine: &EngineView) -> bool {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let moves = engine.steps == 0 || engine.steps != steps.0;
        if moves || self.is_idle() {
            *steps = (engine.steps, Lived::in_steps(STUCK / 2));
        }
        steps.1.look() > STUCK
    }

    fn is_idle(&self) -> bool {
        self.recorder.launches().is_none_or(|(launches, ended, _)| launches <= ended)
    }

    fn failing(&self) -> Failing {
        if self.recorder.failure().is_none() || self.is_reported.load(Ordering::Relaxed) {
            return Failing::Not;
        }
        let since = self.failed.get_or_init(Instant::now).elapsed();
        let complete = self.is_idle() || self.recorder.has_record();
        // Ranks of other processes take their time as well.
        if since < RECORDS && !(complete && since > 4 * FAILING) {
            return Failing::Records;
        }
        Failing::Known
    }

    /// True once for each time that nothing moves for too long.
    fn has_stalled(&self) -> bool {
        let Some(limit) = self.options.stall else { return false };
        let Some((launches, ended, moved)) = self.recorder.launches() else { return false };
        let mut last = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0 != moved {
            // What was seen late has not moved for longer.
            *last = (moved, Lived::new());
        }
        let still = last.1.look();
        let stalls = launches > ended && still > limit && self.recorder.failure().is_none();
        let before = self.is_stall_reported.swap(stalls, Ordering::Relaxed);
        stalls && !before
    }
}
