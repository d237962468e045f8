//! Stream capture: commands that are noted for a graph instead of being run, and the calls that a
//! capture forbids meanwhile, in the whole process.
//!
//! A capture begins in one stream, its origin. Another stream joins it by waiting for an event that
//! was recorded in it, and is joined back by an event the other way. The noted commands and what
//! each comes after are a [`Graph`] when the capture ends.

use crate::command::Command;
use crate::error::{CaptureError, Error, Result};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The calls that a capture, or a thread, forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    /// Unsafe calls of every thread.
    Global = 0,
    /// Unsafe calls of the thread that captures.
    ThreadLocal = 1,
    /// Nothing.
    Relaxed = 2,
}

impl Mode {
    /// The mode with this number.
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Global),
            1 => Some(Self::ThreadLocal),
            2 => Some(Self::Relaxed),
            _ => None,
        }
    }
}

/// A stream's state, as `CUstreamCaptureStatus` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CaptureStatus {
    /// It is not captured.
    None = 0,
    /// It is.
    Active = 1,
    /// It is, in a capture that can only be ended.
    Invalidated = 2,
}

/// A command of a graph.
pub struct GraphNode {
    /// Its effect.
    pub command: Command,
    /// The nodes that it comes after.
    pub after: Vec<usize>,
}

/// The commands of a capture.
pub struct Graph {
    /// The commands; each comes after earlier ones only. Locked, for a host function among them can
    /// be sent to another thread, but not be shared.
    nodes: Mutex<Vec<GraphNode>>,
}

impl Graph {
    /// How many commands it has.
    pub fn node_count(&self) -> usize {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// A capture under way.
pub struct Capture {
    /// Never used twice.
    pub id: u64,
    mode: Mode,
    thread: u64,
    origin: u64,
    state: Mutex<CaptureState>,
}

#[derive(Default)]
struct CaptureState {
    invalid: bool,
    ended: bool,
    nodes: Vec<GraphNode>,
    /// The streams that take part, the origin first.
    streams: Vec<Arc<Captured>>,
}

/// A stream's part in a capture.
struct CapturePart {
    capture: Arc<Capture>,
    /// The nodes before its next command.
    after: Vec<usize>,
}

/// A point in a capture, as an event keeps it.
#[derive(Clone)]
pub(crate) struct Point {
    capture: Arc<Capture>,
    after: Vec<usize>,
}

/// All captures of a process.
#[derive(Default)]
pub struct Captures {
    ongoing: Mutex<Vec<Arc<Capture>>>,
    count: AtomicUsize,
    next: AtomicU64,
}

static NEXT_THREAD: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static THREAD: u64 = NEXT_THREAD.fetch_add(1, Ordering::Relaxed);
    static MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
    /// Why a command of this thread was not noted.
    static REFUSED: Cell<Option<CaptureError>> = const { Cell::new(None) };
}

/// This thread's mode is `mode` from now on; gives the one before.
pub fn exchange_mode(mode: Mode) -> Mode {
    MODE.replace(mode)
}

/// Why a command of this thread's present call was not noted, once.
pub fn take_refusal() -> Option<CaptureError> {
    REFUSED.take()
}

fn refuse<T>(error: CaptureError) -> Result<T> {
    Err(Error::Capture(error))
}

impl Captures {
    fn ongoing(&self) -> MutexGuard<'_, Vec<Arc<Capture>>> {
        self.ongoing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses an unsafe call of this thread if a capture forbids it, and invalidates the captures
    /// that do.
    pub fn check_unsafe_call(&self) -> Result<()> {
        // Relaxed: a capture that begins at the same time may as well have begun later.
        if self.count.load(Ordering::Relaxed) == 0 || MODE.get() == Mode::Relaxed {
            return Ok(());
        }
        let (mode, thread) = (MODE.get(), THREAD.with(|thread| *thread));
        let forbids = |capture: &&Arc<Capture>| {
            let own = capture.thread == thread && capture.mode != Mode::Relaxed;
            own || (mode == Mode::Global && capture.mode == Mode::Global)
        };
        let mut forbidden = false;
        for capture in self.ongoing().iter().filter(forbids) {
            capture.lock().invalid = true;
            forbidden = true;
        }
        if forbidden { refuse(CaptureError::Unsupported) } else { Ok(()) }
    }

    /// Is any capture under way?
    pub(crate) fn any(&self) -> bool {
        // Relaxed: as in `check_unsafe_call`.
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Takes all streams out of a capture; gives whether it was invalid, and what it noted.
    fn finish(&self, capture: &Arc<Capture>) -> (bool, Vec<GraphNode>) {
        self.ongoing().retain(|other| other.id != capture.id);
        self.count.fetch_sub(1, Ordering::Relaxed);
        let (invalid, nodes, streams) = {
            let mut state = capture.lock();
            state.ended = true;
            let nodes = std::mem::take(&mut state.nodes);
            (state.invalid, nodes, std::mem::take(&mut state.streams))
        };
        for stream in streams {
            *stream.part() = None;
            stream.flag.store(false, Ordering::Relaxed);
        }
        (invalid, nodes)
    }
}

impl Capture {
    fn lock(&self) -> MutexGuard<'_, CaptureState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream, as captures know it.
pub(crate) struct Captured {
    /// The stream, by its number.
    stream: u64,
    /// It is the default stream, which no capture takes.
    legacy: bool,
    flag: AtomicBool,
    part: Mutex<Option<CapturePart>>,
}

impl Captured {
    /// A stream that no capture has.
    pub fn new(stream: u64, legacy: bool) -> Arc<Self> {
        let (flag, part) = (AtomicBool::new(false), Mutex::default());
        Arc::new(Self { stream, legacy, flag, part })
    }

    fn part(&self) -> MutexGuard<'_, Option<CapturePart>> {
        self.part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Is the stream captured?
    #[inline]
    pub fn is_captured(&self) -> bool {
        // Relaxed: the thread that began the capture, or was told of it, submits.
        self.flag.load(Ordering::Relaxed)
    }

    /// The stream's state, and its capture's number.
    pub fn status(&self) -> (CaptureStatus, u64) {
        match &*self.part() {
            None => (CaptureStatus::None, 0),
            Some(CapturePart { capture, .. }) if capture.lock().invalid => {
                (CaptureStatus::Invalidated, capture.id)
            }
            Some(CapturePart { capture, .. }) => (CaptureStatus::Active, capture.id),
        }
    }

    /// Begins a capture.
    pub fn begin(self: &Arc<Self>, captures: &Captures, mode: Mode) -> Result<()> {
        let mut part = self.part();
        if part.is_some() {
            return refuse(CaptureError::IllegalState);
        }
        if self.legacy {
            return refuse(CaptureError::Unsupported);
        }
        let state = CaptureState { streams: vec![Arc::clone(self)], ..CaptureState::default() };
        let capture = Arc::new(Capture {
            id: 1 + captures.next.fetch_add(1, Ordering::Relaxed),
            mode,
            thread: THREAD.with(|thread| *thread),
            origin: self.stream,
            state: Mutex::new(state),
        });
        captures.ongoing().push(Arc::clone(&capture));
        captures.count.fetch_add(1, Ordering::Relaxed);
        *part = Some(CapturePart { capture, after: Vec::new() });
        self.flag.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Ends the capture that began in this stream.
    pub fn end(&self, captures: &Captures) -> Result<Graph> {
        let (capture, last) = match &*self.part() {
            None => return refuse(CaptureError::IllegalState),
            Some(CapturePart { capture, after }) => (Arc::clone(capture), after.clone()),
        };
        if capture.origin != self.stream {
            return refuse(CaptureError::Unmatched);
        }
        if capture.mode != Mode::Relaxed && capture.thread != THREAD.with(|thread| *thread) {
            return refuse(CaptureError::WrongThread);
        }
        let (invalid, nodes) = captures.finish(&capture);
        if invalid {
            return refuse(CaptureError::Invalidated);
        }
        let mut is_last = vec![true; nodes.len()];
        for before in nodes.iter().flat_map(|node| &node.after) {
            is_last[*before] = false;
        }
        let joined = (0..nodes.len()).all(|index| !is_last[index] || last.contains(&index));
        if joined { Ok(Graph { nodes: Mutex::new(nodes) }) } else { refuse(CaptureError::Unjoined) }
    }

    /// The stream goes: a capture that began in it goes, too, and forbids nothing any more.
    pub fn abandon(&self, captures: &Captures) {
        let own = |part: &&CapturePart| part.capture.origin == self.stream;
        let capture = self.part().as_ref().filter(own).map(|part| Arc::clone(&part.capture));
        if let Some(capture) = capture {
            drop(captures.finish(&capture));
        }
    }

    /// Notes a command instead of running it. Whoever called learns of a refusal from
    /// [`take_refusal`].
    pub fn note(&self, command: Command) {
        let mut part = self.part();
        let Some(CapturePart { capture, after }) = &mut *part else { return };
        let mut state = capture.lock();
        let error = match &command {
            _ if state.invalid => Some(CaptureError::Invalidated),
            // Of graphs with memory of their own there are none.
            Command::Free(_) => Some(CaptureError::Unsupported),
            _ => None,
        };
        if error.is_some() {
            state.invalid = true;
            REFUSED.set(error);
            return;
        }
        let node = GraphNode { command, after: std::mem::take(after) };
        state.nodes.push(node);
        after.push(state.nodes.len() - 1);
    }

    /// Refuses, and invalidates the stream's capture if it has one: for calls that no capture
    /// survives, in whatever mode.
    pub fn refuse(&self) -> Result<()> {
        if !self.is_captured() {
            return Ok(());
        }
        if let Some(CapturePart { capture, .. }) = &*self.part() {
            capture.lock().invalid = true;
        }
        refuse(CaptureError::Unsupported)
    }

    /// The point in its capture at which the stream is, if it has one.
    pub fn point(&self) -> Option<Point> {
        if !self.is_captured() {
            return None;
        }
        let part = self.part();
        let CapturePart { capture, after } = part.as_ref()?;
        Some(Point { capture: Arc::clone(capture), after: after.clone() })
    }

    /// The stream's next command comes after a point in a capture, which it joins.
    pub fn join(self: &Arc<Self>, point: &Point) -> Result<()> {
        let mut part = self.part();
        let mut state = point.capture.lock();
        if state.ended {
            return refuse(CaptureError::CapturedEvent);
        }
        if let Some(part) = &*part
            && part.capture.id != point.capture.id
        {
            state.invalid = true;
            drop(state);
            part.capture.lock().invalid = true;
            return refuse(CaptureError::Merge);
        }
        if state.invalid {
            return refuse(CaptureError::Invalidated);
        }
        if self.legacy {
            state.invalid = true;
            return refuse(CaptureError::Unsupported);
        }
        let part = part.get_or_insert_with(|| {
            state.streams.push(Arc::clone(self));
            CapturePart { capture: Arc::clone(&point.capture), after: Vec::new() }
        });
        for node in &point.after {
            if !part.after.contains(node) {
                part.after.push(*node);
            }
        }
        self.flag.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// A captured stream cannot wait for what is outside of its capture.
    pub fn refuse_outside_wait(&self) -> Result<()> {
        if let Some(CapturePart { capture, .. }) = &*self.part() {
            capture.lock().invalid = true;
        }
        refuse(CaptureError::Isolation)
    }
}
