//! Stream capture: commands that are noted for a graph instead of being run, and the calls that a
//! capture forbids meanwhile, in the whole process.
//!
//! A capture begins in one stream, its origin. Another stream joins it by waiting for an event that
//! was recorded in it, and is joined back by an event the other way. The noted commands are nodes of
//! a [`Graph`].

use crate::error::{CaptureError, Error, Result};
use crate::graph::{Graph, NodeId, Work};
use std::cell::Cell;
use std::collections::BTreeSet;
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

/// A capture under way.
pub struct Capture {
    /// Never used twice.
    pub id: u64,
    mode: Mode,
    thread: u64,
    origin: u64,
    graph: Arc<Graph>,
    /// The program made the graph, and keeps it however the capture ends.
    is_programs: bool,
    state: Mutex<CaptureState>,
}

#[derive(Default)]
struct CaptureState {
    invalid: bool,
    ended: bool,
    /// The nodes that must come before the capture's end.
    nodes: BTreeSet<NodeId>,
    /// The streams that take part, the origin first.
    streams: Vec<Arc<Captured>>,
}

/// A stream's part in a capture.
struct CapturePart {
    capture: Arc<Capture>,
    /// The nodes before its next command.
    after: Vec<NodeId>,
}

/// A point in a capture, as an event keeps it.
#[derive(Clone)]
pub(crate) struct Point {
    capture: Arc<Capture>,
    after: Vec<NodeId>,
}

/// A capture as a program asks about it.
pub struct CaptureInfo {
    /// Its number.
    pub id: u64,
    /// Is it invalid?
    pub invalid: bool,
    /// The graph to which it adds nodes.
    pub graph: Arc<Graph>,
    /// The program made the graph.
    pub is_programs: bool,
    /// The nodes before the stream's next command.
    pub after: Vec<NodeId>,
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

/// Adds the nodes that are not there yet.
fn add_new(to: &mut Vec<NodeId>, nodes: &[NodeId]) {
    for node in nodes {
        if !to.contains(node) {
            to.push(*node);
        }
    }
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

    /// Takes all streams out of a capture; gives whether it was invalid, and the nodes that it must
    /// have joined.
    fn finish(&self, capture: &Arc<Capture>) -> (bool, BTreeSet<NodeId>) {
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
        capture.graph.set_capturing(false);
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

    /// What programs ask about the stream's capture, if it has one.
    pub fn info(&self) -> Option<CaptureInfo> {
        let part = self.part();
        let CapturePart { capture, after } = part.as_ref()?;
        Some(CaptureInfo {
            id: capture.id,
            invalid: capture.lock().invalid,
            graph: Arc::clone(&capture.graph),
            is_programs: capture.is_programs,
            after: after.clone(),
        })
    }

    /// The stream's next command comes after these nodes, too, or after these alone.
    pub fn come_after(&self, nodes: &[NodeId], alone: bool) -> Result<()> {
        let mut part = self.part();
        let Some(CapturePart { capture, after }) = &mut *part else {
            return refuse(CaptureError::IllegalState);
        };
        let mut state = capture.lock();
        if state.invalid {
            return refuse(CaptureError::Invalidated);
        }
        let known: BTreeSet<NodeId> = capture.graph.nodes().into_iter().collect();
        if nodes.iter().any(|node| !known.contains(node)) {
            let text = "a node is not of the graph that the capture makes";
            return Err(Error::InvalidValue(text.into()));
        }
        if alone {
            // The program has taken them out of the order itself.
            state.nodes.retain(|node| !after.contains(node));
            after.clear();
        }
        add_new(after, nodes);
        Ok(())
    }

    /// Begins a capture: into a new graph, or into one of the program's, after some of its nodes.
    pub fn begin(
        self: &Arc<Self>,
        captures: &Captures,
        mode: Mode,
        into: Option<(Arc<Graph>, Vec<NodeId>)>,
    ) -> Result<()> {
        let mut part = self.part();
        if part.is_some() {
            return refuse(CaptureError::IllegalState);
        }
        if self.legacy {
            return refuse(CaptureError::Unsupported);
        }
        let is_programs = into.is_some();
        let (graph, after) = into.unwrap_or_else(|| (Graph::new(), Vec::new()));
        graph.set_capturing(true);
        let state = CaptureState { streams: vec![Arc::clone(self)], ..CaptureState::default() };
        let capture = Arc::new(Capture {
            id: 1 + captures.next.fetch_add(1, Ordering::Relaxed),
            mode,
            thread: THREAD.with(|thread| *thread),
            origin: self.stream,
            graph,
            is_programs,
            state: Mutex::new(state),
        });
        captures.ongoing().push(Arc::clone(&capture));
        captures.count.fetch_add(1, Ordering::Relaxed);
        *part = Some(CapturePart { capture, after });
        self.flag.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Ends the capture that began in this stream.
    pub fn end(&self, captures: &Captures) -> Result<Arc<Graph>> {
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
        let loose = capture.graph.last_of(&nodes);
        if loose.iter().all(|node| last.contains(node)) {
            Ok(Arc::clone(&capture.graph))
        } else {
            refuse(CaptureError::Unjoined)
        }
    }

    /// The stream goes: a capture that began in it goes, too, and forbids nothing any more.
    pub fn abandon(&self, captures: &Captures) {
        let own = |part: &&CapturePart| part.capture.origin == self.stream;
        let capture = self.part().as_ref().filter(own).map(|part| Arc::clone(&part.capture));
        if let Some(capture) = capture {
            drop(captures.finish(&capture));
        }
    }

    /// Notes work instead of running it; none stands for what no graph has. Whoever called learns
    /// of a refusal from [`take_refusal`].
    pub fn note(&self, work: Option<Work>) {
        let mut part = self.part();
        let Some(CapturePart { capture, after }) = &mut *part else { return };
        let mut state = capture.lock();
        let noted = match work {
            _ if state.invalid => Err(CaptureError::Invalidated),
            None => Err(CaptureError::Unsupported),
            // An error means that the program took out a node that the work comes after.
            Some(work) => capture.graph.add(work, after).map_err(|_| CaptureError::Invalidated),
        };
        match noted {
            Ok(node) => {
                state.nodes.insert(node);
                *after = vec![node];
            }
            Err(error) => {
                state.invalid = true;
                REFUSED.set(Some(error));
            }
        }
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
        add_new(&mut part.after, &point.after);
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
