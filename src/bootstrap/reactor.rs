//! The I/O thread: one for each process, however many ranks and roots live in it.
//!
//! Why a thread of its own, and not blocking calls with deadlines: a dead peer and an abort must be
//! noticed while no caller is inside the library, ranks relay for one another when their own caller
//! is late, and five hundred ranks in one process (a test, a simulation) need no five hundred more
//! threads. Why one: control traffic is small, and tasks that share a thread need no locks.
//!
//! A panic in one task ends that task, with an error for its owner and the others of its job, and
//! nothing else.
//!
//! The thread starts with its first task. It ends when nobody holds it and its last tasks, each of
//! which is bounded in time, are done.

use super::net::{Event, Net, TaskId, Wire, panic_text};
use super::timers::Timers;
use crate::error::{BootstrapError, Error, Result};
use mio::{Events, Waker};
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Something that lives on the I/O thread: a root, or a rank. Nothing in it may wait.
pub(super) trait Task: Send {
    /// The task is in the hands of the thread.
    fn start(&mut self, net: &mut dyn Wire);
    /// Something happened on one of its connections.
    fn event(&mut self, net: &mut dyn Wire, event: Event);
    /// Its owner wants something.
    fn request(&mut self, net: &mut dyn Wire, request: Request);
    /// Events were handled, or the deadline has passed.
    fn tick(&mut self, net: &mut dyn Wire);
    /// When `tick` must come at the latest.
    fn deadline(&self) -> Option<Instant>;
    /// The task can be forgotten; its connections say farewell.
    fn is_finished(&self) -> bool;
    /// Something in it panicked. It passes the error to whom it concerns, and is removed.
    fn broken(&mut self, net: &mut dyn Wire, what: String);
}

/// Makes the bytes of a report to the parent, on the I/O thread.
pub(super) type Report = Box<dyn FnOnce() -> Vec<u8> + Send>;

/// What owners ask of their tasks.
pub(super) enum Request {
    /// A call of all ranks.
    Call { call: super::message::Call, bytes: Vec<u8>, limit: Duration },
    /// End the job.
    End(BootstrapError),
    /// Send the parent, after this long, what the function gives, unless that is nothing.
    Later(Duration, Report),
    /// Send another rank these bytes.
    Note { to: crate::id::Rank, bytes: Vec<u8> },
    /// The owner makes no more calls.
    Leave,
}

enum Inbound {
    Start(TaskId, Box<dyn Task>),
    Request(TaskId, Request),
}

/// A hold on the I/O thread.
pub(super) struct Reactor {
    inbox: Mutex<Option<Sender<Inbound>>>,
    waker: Arc<Waker>,
    next: AtomicU64,
    process: u32,
}

impl Reactor {
    /// The thread of this process, started if need be.
    pub fn get() -> Result<Arc<Self>> {
        static REACTOR: Mutex<Weak<Reactor>> = Mutex::new(Weak::new());
        let mut current = REACTOR.lock().unwrap_or_else(PoisonError::into_inner);
        // After a fork, the child has the parent's handle and not its thread.
        let ours = |reactor: &Arc<Self>| reactor.process == std::process::id();
        if let Some(reactor) = current.upgrade().filter(ours) {
            return Ok(reactor);
        }
        let system = |cause: std::io::Error| Error::System {
            what: "the bootstrap's I/O thread".into(),
            cause: cause.to_string(),
        };
        let (net, waker) = Net::new().map_err(system)?;
        let (sender, receiver) = channel();
        std::thread::Builder::new()
            .name("ringdove-boot".into())
            .spawn(move || Loop::new(net, receiver).run())
            .map_err(system)?;
        let inbox = Mutex::new(Some(sender));
        let reactor =
            Arc::new(Self { inbox, waker, next: AtomicU64::new(0), process: std::process::id() });
        *current = Arc::downgrade(&reactor);
        Ok(reactor)
    }

    /// A name for a task that is about to start.
    pub fn task_id(&self) -> TaskId {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub fn start(&self, id: TaskId, task: impl Task + 'static) {
        self.send(Inbound::Start(id, Box::new(task)));
    }

    pub fn request(&self, id: TaskId, request: Request) {
        self.send(Inbound::Request(id, request));
    }

    fn send(&self, inbound: Inbound) {
        let inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        // A thread that is gone has died of a bug; whoever waits for it has a deadline.
        let sent = inbox.as_ref().map(|inbox| inbox.send(inbound));
        if sent.is_none_or(|sent| sent.is_err()) {
            tracing::error!("the bootstrap's I/O thread has ended");
        }
        self.wake();
    }

    fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "cannot wake the bootstrap's I/O thread");
        }
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        // The thread sees that nobody can ask it for anything any more.
        *self.inbox.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.wake();
    }
}

struct Loop {
    net: Net,
    tasks: HashMap<TaskId, Box<dyn Task>>,
    timers: Timers<TaskId>,
    /// Tasks that something happened to.
    touched: HashSet<TaskId>,
    inbox: Receiver<Inbound>,
}

impl Loop {
    fn new(net: Net, inbox: Receiver<Inbound>) -> Self {
        Self { net, tasks: HashMap::new(), timers: Timers::new(), touched: HashSet::new(), inbox }
    }

    fn run(mut self) {
        let mut ready = Events::with_capacity(1024);
        loop {
            let abandoned = self.take_inbound();
            self.dispatch();
            if abandoned && self.tasks.is_empty() && self.net.is_idle() {
                return;
            }
            let until = self.timers.first().into_iter().chain(self.net.deadline()).min();
            if let Err(error) = self.net.turn(&mut ready, until) {
                // No socket can be watched any more: whoever waits gets an error at its own
                // deadline.
                tracing::error!(%error, "the bootstrap's I/O thread failed");
                return;
            }
        }
    }

    /// Takes what owners ask for; true once there can be no more of it.
    fn take_inbound(&mut self) -> bool {
        loop {
            match self.inbox.try_recv() {
                Ok(Inbound::Start(id, task)) => {
                    self.tasks.insert(id, task);
                    self.guarded(id, |task, net| task.start(net));
                }
                Ok(Inbound::Request(id, request)) => {
                    // A neighbour that has just come gets the news of a task that ends now.
                    self.tell();
                    self.guarded(id, |task, net| task.request(net, request));
                }
                Err(TryRecvError::Empty) => return false,
                Err(TryRecvError::Disconnected) => return true,
            }
        }
    }

    /// Tells tasks what has happened on their connections.
    fn tell(&mut self) {
        // Tasks answer events with new ones only through the network, so this ends.
        while let Some((id, event)) = self.net.event() {
            self.guarded(id, |task, net| task.event(net, event));
        }
    }

    fn dispatch(&mut self) {
        self.tell();
        self.touched.extend(self.timers.expired(self.net.now));
        for id in std::mem::take(&mut self.touched) {
            self.guarded(id, |task, net| task.tick(net));
            self.touched.remove(&id);
            let Some(task) = self.tasks.get(&id) else { continue };
            if task.is_finished() {
                // What it has sent is on its way before its owner learns of its end.
                self.net.flush();
                self.forget(id);
            } else {
                self.timers.set(id, task.deadline());
            }
        }
        self.net.flush();
    }

    /// Lets a task work. If it panics, or a function of its owner that it calls does, that is the
    /// end of this task alone: others share the thread, and do not share its fault.
    fn guarded(&mut self, id: TaskId, work: impl FnOnce(&mut dyn Task, &mut Net)) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let net = &mut self.net;
        self.touched.insert(id);
        // What a panic leaves half done belongs to this task, which gets the error and is then
        // removed.
        let worked = catch_unwind(AssertUnwindSafe(|| work(task.as_mut(), net)));
        let Err(panic) = worked else { return };
        let what = panic_text(&*panic).to_owned();
        tracing::error!(%what, "a task of the bootstrap's I/O thread panicked");
        if catch_unwind(AssertUnwindSafe(|| task.broken(net, what))).is_err() {
            tracing::error!("and again while it reported to the other ranks");
        }
        self.forget(id);
    }

    fn forget(&mut self, id: TaskId) {
        self.timers.set(id, None);
        self.net.end_all(id);
        let task = self.tasks.remove(&id);
        // It may hold things of its owner.
        if catch_unwind(AssertUnwindSafe(|| drop(task))).is_err() {
            tracing::error!(
                "a value of a task of the bootstrap's I/O thread panicked when dropped"
            );
        }
    }
}
