//! The threads around [`Proxy::step`]: how they start, idle, and end.
//!
//! A launch wakes a thread that rests ([`Waker`]); a doorbell cannot. So launches are announced
//! (`AttachmentHandle::announce`) before they are enqueued; where they are not, the longest park
//! bounds how late a doorbell is seen.

use super::attachment::Attachment;
use super::idle::IdlePolicy;
use super::proxy::{AttachmentKey, Detached, Expects, Progress, Proxy};
use super::sleep::Sleep;
use super::{AttachmentHandle, AttachmentParts, EngineSettings};
use crate::error::{Error, Result};
use crate::lived::{Lived, receive};
use crate::settings::CPUS_MAX;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

/// Steps between two looks at the clock while there is work.
const STEPS_PER_CLOCK_READ: u32 = 32;
/// How much longer than its own deadline a detach waits for the thread's answer.
const ANSWER_GRACE: Duration = Duration::from_secs(2);

/// Wakes a parked proxy thread.
#[derive(Clone)]
pub struct Waker {
    thread: Thread,
    sleep: Arc<Sleep>,
}

/// Parks the calling thread, which has seen so many nudges; not if there are more by now. A thread
/// that awaits doorbells looks for them by itself, soon: a launch does not end its park.
fn park(sleep: &Sleep, limit: Duration, awaits_doorbells: bool, nudges_seen: u64) {
    if awaits_doorbells {
        return thread::park_timeout(limit);
    }
    if sleep.may_rest(nudges_seen) {
        thread::park_timeout(limit);
    }
    sleep.end_rest();
}

impl Waker {
    /// Ends a park, and makes the thread spin and yield anew before it parks again. Cheap when
    /// the thread is awake; never blocks.
    pub fn wake(&self) {
        self.sleep.count();
        self.unpark();
    }

    fn unpark(&self) {
        self.thread.unpark();
    }

    /// As [`wake`](Self::wake), for a launch: a thread that is awake, or awaits the doorbells of
    /// another launch, costs the caller no call of the kernel.
    pub(super) fn announce(&self) {
        if self.sleep.nudge() {
            self.unpark();
        }
    }
}

enum Request {
    Attach(Box<Attachment>, Sender<AttachmentKey>),
    Detach(AttachmentKey, Duration, Sender<Detached>),
    Stop,
}

/// The process's proxy threads. Dropping them ends them; attachments should be gone by then.
pub struct ProxyThreads {
    workers: Vec<Worker>,
    settings: EngineSettings,
}

struct Worker {
    name: String,
    link: Link,
    ended: Receiver<()>,
    join: Option<JoinHandle<()>>,
}

/// What it takes to talk to a proxy thread.
#[derive(Clone)]
struct Link {
    requests: Sender<Request>,
    waker: Waker,
    /// Attachments, to give the next one to the thread that has the fewest.
    load: Arc<AtomicUsize>,
}

impl Link {
    fn ask(&self, request: Request) -> Result<()> {
        self.requests.send(request).map_err(|_| thread_gone(&self.waker))?;
        self.waker.wake();
        Ok(())
    }
}

impl ProxyThreads {
    /// Starts the threads.
    ///
    /// # Errors
    /// [`Error::Argument`] if a setting is out of range, [`Error::System`] if a thread does not
    /// start or cannot be pinned.
    pub fn start(settings: &EngineSettings) -> Result<Self> {
        settings.validate()?;
        let workers = (0..settings.threads)
            .map(|index| Worker::start(index, settings))
            .collect::<Result<_>>()?;
        Ok(Self { workers, settings: settings.clone() })
    }

    /// Gives one rank to the thread with the fewest attachments.
    ///
    /// # Errors
    /// [`Error::EngineStopped`] if the thread is gone, [`Error::HostWaitExpired`] if it does not
    /// answer.
    pub fn attach(&self, parts: AttachmentParts) -> Result<Attached> {
        let (attachment, handle) = Attachment::new(parts, &self.settings);
        // `start` made at least one.
        let worker =
            self.workers.iter().min_by_key(|worker| worker.link.load.load(Ordering::Relaxed));
        let link =
            worker.ok_or_else(|| Error::argument("proxy threads", "at least 1", 0))?.link.clone();
        attachment.set_waker(link.waker.clone());
        let (reply, answer) = bounded(1);
        link.ask(Request::Attach(Box::new(attachment), reply))?;
        let key = wait(&answer, ANSWER_GRACE, &link.waker, "an engine to attach to")?;
        link.load.fetch_add(1, Ordering::Relaxed);
        let drain_timeout = self.settings.drain_timeout;
        Ok(Attached { handle, link, key: Some(key), drain_timeout })
    }
}

impl Drop for ProxyThreads {
    fn drop(&mut self) {
        for worker in &self.workers {
            // A thread that is gone already needs no request.
            let _ = worker.link.ask(Request::Stop);
        }
        for worker in &mut self.workers {
            // A step never blocks, but a driver call inside of it can. Drop must not.
            let ended = receive(&worker.ended, self.settings.drain_timeout);
            match (ended, worker.join.take()) {
                (Err(RecvTimeoutError::Timeout), _) => {
                    tracing::error!(
                        thread = worker.name,
                        "a proxy thread does not end and is abandoned"
                    );
                }
                (_, Some(join)) => drop(join.join()),
                (_, None) => {}
            }
        }
    }
}

/// One rank in the care of a proxy thread. Dropping it detaches.
pub struct Attached {
    handle: AttachmentHandle,
    link: Link,
    key: Option<AttachmentKey>,
    drain_timeout: Duration,
}

impl Attached {
    /// The control plane's end: lanes, routes, statistics, failure.
    pub fn handle(&self) -> &AttachmentHandle {
        &self.handle
    }

    /// Wakes the thread that serves this rank.
    pub fn waker(&self) -> &Waker {
        &self.link.waker
    }

    /// Lets the ring drain and the transfers end, for at most `timeout`, and takes the rank out of
    /// its engine. The transport is dropped on the calling thread. Once the communicator's alarm
    /// is raised the ring is not drained any more, so this is quick.
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`] if work was left (the rank is detached all the same), or if the
    /// thread does not answer; [`Error::EngineStopped`] if the thread is gone.
    pub fn detach(mut self, timeout: Duration) -> Result<()> {
        self.leave(timeout)
    }

    fn leave(&mut self, timeout: Duration) -> Result<()> {
        let Some(key) = self.key.take() else { return Ok(()) };
        let (reply, answer) = bounded(1);
        self.link.ask(Request::Detach(key, timeout, reply))?;
        let limit = timeout.saturating_add(ANSWER_GRACE);
        let detached = wait(&answer, limit, &self.link.waker, "an engine to detach from")?;
        self.link.load.fetch_sub(1, Ordering::Relaxed);
        match detached.unfinished {
            None => Ok(()),
            Some(seen) => Err(Error::HostWaitExpired {
                what: "the engine to finish before detaching".to_owned(),
                expected: "ring empty, nothing waiting or in flight".to_owned(),
                seen,
                waited: timeout,
            }),
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Err(error) = self.leave(self.drain_timeout) {
            tracing::warn!(%error, "detached with work left");
        }
    }
}

fn wait<T>(answer: &Receiver<T>, limit: Duration, waker: &Waker, what: &str) -> Result<T> {
    receive(answer, limit).map_err(|cause| match cause {
        RecvTimeoutError::Timeout => Error::HostWaitExpired {
            what: what.to_owned(),
            expected: "an answer".to_owned(),
            seen: "none".to_owned(),
            waited: limit,
        },
        RecvTimeoutError::Disconnected => thread_gone(waker),
    })
}

fn thread_gone(waker: &Waker) -> Error {
    Error::EngineStopped {
        engine: waker.thread.name().unwrap_or("proxy").to_owned(),
        why: "its thread has ended".to_owned(),
    }
}

impl Worker {
    fn start(index: usize, settings: &EngineSettings) -> Result<Self> {
        let name = format!("ringdove-proxy-{index}");
        let (sender, requests) = unbounded();
        let (started, pinned) = bounded(1);
        let (ending, ended) = bounded(1);
        let sleep = Arc::new(Sleep::default());
        let core =
            (!settings.cores.is_empty()).then(|| settings.cores[index % settings.cores.len()]);
        let body = Body {
            proxy: Proxy::new(settings),
            requests,
            departures: Vec::new(),
            sleep: sleep.clone(),
            idle: IdlePolicy::new(settings),
            lived: Lived::new(),
        };
        let join = thread::Builder::new()
            .name(name.clone())
            .spawn(move || {
                let _ = started.send(pin(core));
                body.run();
                let _ = ending.send(());
            })
            .map_err(|error| Error::System {
                what: format!("start of thread {name}"),
                cause: error.to_string(),
            })?;
        let waker = Waker { thread: join.thread().clone(), sleep };
        let link = Link { requests: sender, waker, load: Arc::new(AtomicUsize::new(0)) };
        let worker = Self { name: name.clone(), link, ended, join: Some(join) };
        match wait(&pinned, ANSWER_GRACE, &worker.link.waker, "a proxy thread to start")? {
            true => Ok(worker),
            false => {
                let _ = worker.link.ask(Request::Stop);
                Err(Error::System {
                    what: format!("pinning of thread {name} to core {}", core.unwrap_or_default()),
                    cause: "refused; check that the core exists and that this process may use it"
                        .to_owned(),
                })
            }
        }
    }
}

fn pin(core: Option<usize>) -> bool {
    // Checked here too: settings can also be made without being read.
    core.is_none_or(|id| {
        id < CPUS_MAX && core_affinity::set_for_current(core_affinity::CoreId { id })
    })
}

/// Asks the kernel to end this thread's short parks in time: by default it adds 50 µs to each.
fn wake_precisely() {
    if let Err(error) = nix::sys::prctl::set_timerslack(1) {
        tracing::debug!(%error, "parks of the proxy thread will be longer than requested");
    }
}

/// What runs on the thread.
struct Body {
    proxy: Proxy,
    requests: Receiver<Request>,
    /// Who waits for which attachment to leave.
    departures: Vec<(AttachmentKey, Sender<Detached>)>,
    sleep: Arc<Sleep>,
    idle: IdlePolicy,
    /// Deadlines are of this time.
    lived: Lived,
}

impl Body {
    fn run(mut self) {
        wake_precisely();
        let mut now = self.lived.look();
        let mut steps = 0u32;
        let mut nudges_seen = 0;
        while self.serve_requests(&mut now) {
            steps = steps.wrapping_add(1);
            if steps.is_multiple_of(STEPS_PER_CLOCK_READ) {
                now = self.lived.look();
            }
            let nudges = self.sleep.seen();
            let progress = self.step(now);
            self.deliver_departures(now);
            if nudges != nudges_seen {
                nudges_seen = nudges;
                self.idle.reset();
            }
            let awaits_doorbells = progress.expects == Expects::Launch;
            let park = |limit| park(&self.sleep, limit, awaits_doorbells, nudges_seen);
            if self.idle.pause(&progress, !self.departures.is_empty(), now, park) {
                now = self.lived.look();
            }
        }
        if self.proxy.attachment_count() > 0 {
            self.proxy.fail_all(&Error::EngineStopped {
                engine: thread_name(),
                why: "the process's engines were shut down while a rank was attached".to_owned(),
            });
        }
    }

    /// A panic is a bug of ours or of a transport. It must not leave ranks waiting for a thread
    /// that is gone, so it becomes their error, and the thread lives on to let them detach.
    fn step(&mut self, now: Duration) -> Progress {
        match catch_unwind(AssertUnwindSafe(|| self.proxy.step(now))) {
            Ok(progress) => progress,
            Err(panic) => {
                let why = format!("a step panicked: {}", panic_text(panic.as_ref()));
                tracing::error!(why, "a proxy thread fails all of its attachments");
                let error = Error::EngineStopped { engine: thread_name(), why };
                self.proxy.fail_all(&error);
                Progress::default()
            }
        }
    }

    /// False when the thread is to end.
    fn serve_requests(&mut self, now: &mut Duration) -> bool {
        while let Ok(request) = self.requests.try_recv() {
            self.idle.reset();
            *now = self.lived.look();
            match request {
                Request::Attach(attachment, reply) => {
                    let key = self.proxy.attach(attachment);
                    // A caller that gave up leaves an attachment that nobody can name.
                    if reply.try_send(key).is_err() {
                        self.proxy.begin_detach(key, *now);
                    }
                }
                Request::Detach(key, timeout, reply) => {
                    // An unknown key drops `reply`, which the caller sees.
                    if self.proxy.begin_detach(key, now.saturating_add(timeout)) {
                        self.departures.push((key, reply));
                    }
                }
                Request::Stop => return false,
            }
        }
        true
    }

    fn deliver_departures(&mut self, now: Duration) {
        while let Some(detached) = self.proxy.take_detached(now) {
            let place = self.departures.iter().position(|(key, _)| *key == detached.key);
            if let Some(place) = place {
                let (_, reply) = self.departures.swap_remove(place);
                // Dropped here if the caller gave up.
                drop(reply.try_send(detached));
            }
        }
    }
}

fn thread_name() -> String {
    thread::current().name().unwrap_or("proxy").to_owned()
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}
