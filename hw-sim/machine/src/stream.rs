//! Streams: commands in order.
//!
//! A stream is *active* while somebody drives it: the thread that submitted to it while it was
//! idle, a worker, or an asynchronous step (a kernel, a large copy, a wait) that has yet to end.
//! Short commands on an idle stream therefore run in the submitting thread, without a hand-off.

use crate::client::{Client, HEADS, Head, Origin};
use crate::command::{Command, Progress, Timeline};
use crate::context_state::ContextState;
use crate::driver::backlog::Backlog;
use crate::driver::capture::Captured;
use crate::driver::connection::{Connections, HardwareQueue};
use crate::error::Sticky;
use crate::graph::Work;
use crate::looking::look_for;
use crate::perform::perform;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};

/// Order of a stream against others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// The default stream.
    Legacy,
    /// Ordered against the default stream.
    Blocking,
    /// Not ordered against it.
    NonBlocking,
}

/// The streams of a context, and what they share.
pub(crate) struct Streams {
    context: Arc<ContextState>,
    /// The bound on pending commands, if there is one.
    backlog: Option<Backlog>,
    /// The hardware queues, if they are not as many as streams.
    connections: Option<Connections>,
    /// The context has it: a stream has its siblings, and would keep itself.
    legacy: Weak<Stream>,
    others: Mutex<Vec<Weak<Stream>>>,
}

/// A stream.
pub struct Stream {
    /// Its context.
    pub context: Arc<ContextState>,
    siblings: Arc<Streams>,
    /// Its kind.
    pub kind: StreamKind,
    /// Its priority: where blocks start in order, those of greater priority (a lesser number) start
    /// first.
    pub priority: i32,
    /// Never used twice.
    pub id: u64,
    submitted: AtomicU64,
    completed: AtomicU64,
    state: Mutex<StreamState>,
    idle: Condvar,
    /// What the head does, a [`Head`]: for people.
    head: AtomicU8,
    pub(crate) captured: Arc<Captured>,
}

#[derive(Default)]
struct StreamState {
    queue: VecDeque<Command>,
    active: bool,
    /// The hardware queue that it has while it has work, where queues are few.
    hardware: Option<Arc<HardwareQueue>>,
    /// The head keeps its place in that queue until it has ended.
    is_held: bool,
    /// The head counts for the bound on pending commands.
    is_counted: bool,
    /// Streams whose head waits for `completed` to reach a number.
    followers: Vec<(u64, Arc<dyn Client>)>,
    sleepers: usize,
}

/// Commands that one turn of a worker spends on a stream before others get theirs.
const TURN_COMMANDS_MAX: usize = 64;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Streams {
    /// Those of a new context: the default stream, for the context to keep.
    pub fn of_context(context: &Arc<ContextState>) -> Arc<Stream> {
        let profile = &context.machine.description.driver;
        Arc::new_cyclic(|legacy| {
            let streams = Arc::new(Self {
                context: Arc::clone(context),
                backlog: profile.launch_queue.map(Backlog::new),
                connections: profile.connections.map(Connections::new),
                legacy: Weak::clone(legacy),
                others: Mutex::default(),
            });
            Stream::new(&streams, StreamKind::Legacy, 0)
        })
    }

    /// A new stream.
    pub fn create(self: &Arc<Self>, kind: StreamKind, priority: i32) -> Arc<Stream> {
        let stream = Arc::new(Stream::new(self, kind, priority));
        let mut streams = self.others.lock().unwrap();
        streams.retain(|stream| stream.strong_count() > 0);
        streams.push(Arc::downgrade(&stream));
        stream
    }

    /// Every stream that lives, the default one first.
    pub fn all(&self) -> Vec<Arc<Stream>> {
        let streams = self.others.lock().unwrap();
        std::iter::once(&self.legacy).chain(streams.iter()).filter_map(Weak::upgrade).collect()
    }
}

impl Stream {
    fn new(streams: &Arc<Streams>, kind: StreamKind, priority: i32) -> Self {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Self {
            context: Arc::clone(&streams.context),
            siblings: Arc::clone(streams),
            kind,
            priority,
            id,
            submitted: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            state: Mutex::default(),
            idle: Condvar::new(),
            head: AtomicU8::new(Head::Short as u8),
            captured: Captured::new(id, kind == StreamKind::Legacy),
        }
    }

    fn lock(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// A new stream of its context.
    pub(crate) fn create_sibling(&self, kind: StreamKind, priority: i32) -> Arc<Self> {
        self.siblings.create(kind, priority)
    }

    /// All streams of its context, the default one first.
    pub(crate) fn siblings(&self) -> Vec<Arc<Self>> {
        self.siblings.all()
    }

    /// Appends a command; runs it here and now if the stream is idle and the command is short. A
    /// captured stream's command is noted.
    pub fn submit(self: &Arc<Self>, command: Command) {
        if self.captured.is_captured() {
            return self.captured.note(Work::of(command));
        }
        self.order_against_default_stream();
        self.push(command);
    }

    /// Waits that the default stream's rules ask for. The other stream's count is read before this
    /// stream counts its own command, so two streams can never wait for each other's later work.
    fn order_against_default_stream(self: &Arc<Self>) {
        match self.kind {
            StreamKind::NonBlocking => {}
            StreamKind::Blocking => {
                if let Some(legacy) = self.siblings.legacy.upgrade() {
                    self.follow(&legacy);
                }
            }
            StreamKind::Legacy => {
                for other in self.siblings() {
                    if other.kind == StreamKind::Blocking {
                        self.follow(&other);
                    }
                }
            }
        }
    }

    /// Waits, before later commands, for all that was submitted to the other stream.
    pub(crate) fn follow(self: &Arc<Self>, other: &Arc<Self>) {
        let submitted = other.submitted.load(Ordering::Acquire);
        if other.completed.load(Ordering::Acquire) < submitted {
            self.push(Command::WaitStream(other.clone(), submitted));
        }
    }

    fn push(self: &Arc<Self>, command: Command) {
        if let Some(backlog) = self.siblings.backlog.as_ref().filter(|_| command.is_counted()) {
            backlog.enter(self.context.machine.watchdog, || self.describe_backlog());
        }
        let mut state = self.lock();
        self.submitted.fetch_add(1, Ordering::Release);
        let command = match &self.siblings.connections {
            None => command,
            Some(queues) => {
                let queue = state.hardware.get_or_insert_with(|| queues.take());
                Command::Placed(queue.issue(self.id), Box::new(command))
            }
        };
        if state.active {
            state.queue.push_back(command);
            return;
        }
        state.active = true;
        drop(state);
        self.drive(command, 1);
    }

    /// Runs commands, `first` and then the queue's, until one takes longer or `turn` are done.
    fn drive(self: &Arc<Self>, first: Command, mut turn: usize) {
        let mut command = first;
        while let Progress::Done = self.execute(command) {
            turn = turn.saturating_sub(1);
            match self.retire(turn > 0) {
                Retired::Next(next) => command = next,
                Retired::Idle => return,
                Retired::More => {
                    self.context.machine.scheduler.drive_stream(self.clone());
                    return;
                }
            }
        }
    }

    /// The head is done: counts it, wakes its followers, and takes the next command.
    fn retire(self: &Arc<Self>, take_next: bool) -> Retired {
        let (next, released, held, is_counted) = {
            let mut state = self.lock();
            let completed = self.completed.fetch_add(1, Ordering::Release) + 1;
            if state.sleepers > 0 {
                self.idle.notify_all();
            }
            let released: Vec<_> = if state.followers.is_empty() {
                Vec::new()
            } else {
                state.followers.extract_if(.., |(wanted, _)| *wanted <= completed).collect()
            };
            let next = if state.queue.is_empty() {
                state.active = false;
                Retired::Idle
            } else if take_next {
                state.queue.pop_front().map_or(Retired::Idle, Retired::Next)
            } else {
                Retired::More
            };
            let is_held = std::mem::take(&mut state.is_held);
            let held = state.hardware.clone().filter(|_| is_held);
            let has_ended = matches!(next, Retired::Idle);
            if let Some(queues) = self.siblings.connections.as_ref().filter(|_| has_ended)
                && let Some(queue) = state.hardware.take()
            {
                queues.give_back(&queue);
            }
            (next, released, held, state.is_counted)
        };
        if let Some(backlog) = self.siblings.backlog.as_ref().filter(|_| is_counted) {
            backlog.leave();
        }
        if let Some(queue) = held {
            self.leave(&queue);
        }
        for (_, follower) in released {
            follower.head_done();
        }
        next
    }

    /// Takes a command's turn in the hardware queue; gives it back, or leaves it at the front of
    /// the stream's queue until its turn has come.
    fn take_turn(
        self: &Arc<Self>,
        queue: &HardwareQueue,
        ticket: u64,
        command: Box<Command>,
    ) -> Option<Command> {
        // First back to the front, or who gives us the turn would not find it.
        self.head.store(Head::WaitsForQueue as u8, Ordering::Relaxed);
        self.lock().queue.push_front(Command::Placed(ticket, command));
        if !queue.enter(ticket, self.clone()) {
            return None;
        }
        match self.lock().queue.pop_front() {
            Some(Command::Placed(_, command)) => Some(*command),
            other => other,
        }
    }

    /// The command whose turn it is leaves the hardware queue, and the next one has its turn.
    fn leave(&self, queue: &HardwareQueue) {
        if let Some(next) = queue.leave() {
            self.context.machine.scheduler.drive_stream(next);
        }
    }

    fn execute(self: &Arc<Self>, command: Command) -> Progress {
        if self.siblings.backlog.is_some() {
            self.lock().is_counted = command.is_counted();
        }
        let (ticket, command) = match command {
            Command::Placed(ticket, command) => (ticket, command),
            command => return self.perform(command),
        };
        let hardware = self.lock().hardware.clone();
        let Some(queue) = hardware else { return self.perform(*command) };
        let Some(command) = self.take_turn(&queue, ticket, command) else {
            return Progress::Later;
        };
        if command.is_wait() {
            self.lock().is_held = true;
            return self.perform(command);
        }
        // What has started is not in the queue any more. It may have ended by now.
        let progress = self.perform(command);
        self.leave(&queue);
        progress
    }

    fn perform(self: &Arc<Self>, command: Command) -> Progress {
        let client: Arc<dyn Client> = self.clone();
        perform(&self.context, &client, command)
    }

    /// Is all that was submitted done?
    pub fn is_idle(&self) -> bool {
        // Acquire pairs with the release in `retire`: who sees the count sees the work.
        let submitted = self.submitted.load(Ordering::Acquire);
        self.completed.load(Ordering::Acquire) >= submitted
    }

    /// Blocks until all that was submitted before this call is done.
    pub fn wait_idle(&self) {
        let target = self.submitted.load(Ordering::Acquire);
        if look_for(|| self.completed.load(Ordering::Acquire) >= target) {
            return;
        }
        self.lock().sleepers += 1;
        let unfinished = |_: &mut StreamState| self.completed.load(Ordering::Acquire) < target;
        let watchdog = self.context.machine.watchdog;
        let describe = || format!("the end of {}", self.describe());
        watchdog.wait_while(&self.state, &self.idle, unfinished, describe).sleepers -= 1;
    }

    /// How far it is and what its head does, for people.
    pub(crate) fn describe(&self) -> String {
        let submitted = self.submitted.load(Ordering::Relaxed);
        let completed = self.completed.load(Ordering::Relaxed);
        let head = self.head.load(Ordering::Relaxed);
        let mut text = format!(
            "stream {} of {}, {completed} of {submitted} commands done, whose head {}",
            self.id,
            self.context,
            HEADS.get(usize::from(head)).unwrap_or(&""),
        );
        let hardware = self.lock().hardware.clone();
        if let Some(queue) = hardware.filter(|_| head == Head::WaitsForQueue as u8) {
            text += &format!(" ({})", queue.describe());
        }
        text + &self.context.machine.scheduler.describe(self.id)
    }

    fn describe_backlog(&self) -> String {
        let limit = self.siblings.backlog.as_ref().map_or(0, |backlog| backlog.limit());
        let busy = self.siblings().into_iter().filter(|stream| !stream.is_idle());
        let streams: Vec<_> = busy.map(|stream| stream.describe()).collect();
        format!(
            "room in the launch queue of {}, which holds {limit} commands: {}",
            self.context,
            streams.join("; ")
        )
    }
}

impl Client for Stream {
    fn origin(&self) -> Origin {
        let Self { context, id, priority, .. } = self;
        Origin { context: context.id, gpu: context.gpu, stream: *id, priority: *priority }
    }

    fn has_failed(&self) -> bool {
        self.context.has_failed()
    }

    fn fail(&self, reason: Sticky) {
        self.context.fail(reason);
    }

    fn note_head(&self, head: Head) {
        // Relaxed: for people only.
        self.head.store(head as u8, Ordering::Relaxed);
    }

    fn head_done(self: Arc<Self>) {
        let machine = Arc::clone(&self.context.machine);
        machine.scheduler.resume_stream(self);
    }

    fn resume(self: Arc<Self>) {
        match self.retire(true) {
            Retired::Next(command) => self.drive(command, TURN_COMMANDS_MAX),
            Retired::Idle | Retired::More => {}
        }
    }

    fn go_on(self: Arc<Self>) {
        let command = self.lock().queue.pop_front();
        if let Some(command) = command {
            self.drive(command, TURN_COMMANDS_MAX);
        }
    }
}

impl Timeline for Stream {
    fn completed_or_notify(&self, count: u64, follower: Arc<dyn Client>) -> bool {
        let mut state = self.lock();
        let done = self.completed.load(Ordering::Acquire) >= count;
        if !done {
            state.followers.push((count, follower));
        }
        done
    }
}

enum Retired {
    Next(Command),
    Idle,
    /// The queue holds more, and this thread's turn is over.
    More,
}

impl Drop for Stream {
    fn drop(&mut self) {
        debug_assert!(self.lock().queue.is_empty(), "a stream lives while it has work");
    }
}
