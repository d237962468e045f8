//! Contexts: a program's hold on one GPU, and the unit that fails as a whole.

use crate::driver::backlog::Backlog;
use crate::driver::connection::Connections;
use crate::driver::lock::ContextLock;
use crate::error::{Error, Result, Sticky};
use crate::machine::Machine;
use crate::memory::{Reach, View};
use crate::stream::{Stream, StreamKind};
use crate::workspace::Workspaces;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// A context.
pub struct Context {
    /// Never used twice.
    pub id: u64,
    /// Its GPU.
    pub gpu: usize,
    /// Its machine.
    pub machine: Arc<Machine>,
    /// Flags that it was made with.
    pub flags: AtomicU32,
    reach: Arc<Reach>,
    /// 0, or the code of a [`Sticky`].
    failed: AtomicU32,
    legacy: OnceLock<Arc<Stream>>,
    streams: Mutex<Vec<Weak<Stream>>>,
    pub(crate) lock: ContextLock,
    /// The bound on pending commands, if there is one.
    pub(crate) backlog: Option<Backlog>,
    /// The queues that streams share, if they do.
    pub(crate) connections: Option<Connections>,
    /// Workspaces of cooperative launches: the barriers of their blocks.
    workspaces: Workspaces,
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "context {} (GPU {})", self.id, self.gpu)
    }
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Context {
    /// A context on a GPU.
    pub fn new(machine: Arc<Machine>, gpu: usize, flags: u32) -> Arc<Self> {
        let profile = &machine.description.driver;
        let (queue, connections) = (profile.launch_queue, profile.connections);
        let reach = Reach::of(gpu, profile);
        let context = Arc::new(Self {
            lock: ContextLock::default(),
            backlog: queue.map(Backlog::new),
            connections: connections.map(Connections::new),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            gpu,
            machine,
            flags: AtomicU32::new(flags),
            reach: Arc::new(reach),
            failed: AtomicU32::new(0),
            legacy: OnceLock::new(),
            streams: Mutex::default(),
            workspaces: Workspaces::default(),
        });
        let legacy = Stream::new(&context, StreamKind::Legacy, 0);
        assert!(context.legacy.set(legacy).is_ok(), "set once");
        context.machine.note_context(&context);
        context
    }

    /// The default stream, which waits for all blocking streams and makes them wait.
    pub fn legacy_stream(&self) -> &Arc<Stream> {
        self.legacy.get().expect("made with the context")
    }

    /// The workspace of a stream's cooperative launches.
    pub(crate) fn grid_workspace(&self, stream: &Arc<Stream>) -> Result<u64> {
        self.workspaces.of(self, stream)
    }

    /// A new stream.
    pub fn create_stream(self: &Arc<Self>, blocking: bool, priority: i32) -> Arc<Stream> {
        let kind = if blocking { StreamKind::Blocking } else { StreamKind::NonBlocking };
        let stream = Stream::new(self, kind, priority);
        let mut streams = self.streams.lock().unwrap();
        streams.retain(|stream| stream.strong_count() > 0);
        streams.push(Arc::downgrade(&stream));
        stream
    }

    /// Every stream that lives, the default one first.
    pub fn streams(&self) -> Vec<Arc<Stream>> {
        let streams = self.streams.lock().unwrap();
        let own = std::iter::once(Arc::clone(self.legacy_stream()));
        own.chain(streams.iter().filter_map(Weak::upgrade)).collect()
    }

    /// Waits until all that was submitted so far is done.
    pub fn synchronize(&self) -> Result<()> {
        self.drain();
        self.check()
    }

    /// As [`Context::synchronize`], whatever state the context is in.
    pub fn drain(&self) {
        self.streams().iter().for_each(|stream| stream.wait_idle());
    }

    /// The error that made the context fail, if any.
    pub fn check(&self) -> Result<()> {
        match Sticky::from_code(self.failed.load(Ordering::Acquire)) {
            None => Ok(()),
            Some(sticky) => Err(Error::Sticky(sticky)),
        }
    }

    /// Has the context failed?
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed) != 0
    }

    /// Makes the context fail; the first reason is kept. Its kernels end, and its queued work is
    /// dropped.
    pub fn fail(&self, reason: Sticky) {
        let code = reason as u32;
        // Release pairs with `check`: who sees the error sees what led to it.
        let first = self.failed.compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire);
        if first.is_ok() {
            self.machine.scheduler.end_context(self.id);
        }
    }

    /// A queued copy met memory that is gone.
    pub(crate) fn fail_copy(&self, error: &Error) {
        eprintln!(
            "hwsim: GPU {}: an asynchronous copy or memory operation failed: {error}",
            self.gpu
        );
        self.fail(Sticky::IllegalAddress);
    }

    /// Ends the context: work is dropped, memory freed.
    pub fn destroy(&self) {
        self.streams().iter().for_each(|stream| stream.abandon_capture());
        self.fail(Sticky::Destroyed);
        for stream in self.streams() {
            stream.wait_idle();
        }
        self.machine.memory.release_context(self.id);
    }

    /// Memory as this context's kernels see it.
    pub(crate) fn view(&self) -> View {
        View::new(Arc::clone(&self.machine.memory), Arc::clone(&self.reach))
    }

    /// Lets this context's kernels touch the memory of `peer`'s GPU.
    pub fn enable_peer(&self, peer: &Self) -> Result<()> {
        if !self.machine.can_access_peer(self.gpu, peer.gpu) {
            return Err(Error::PeerUnsupported { from: self.gpu, to: peer.gpu });
        }
        if self.reach.grant(peer.gpu) { Ok(()) } else { Err(Error::PeerAlreadyEnabled) }
    }

    /// Withdraws it.
    pub fn disable_peer(&self, peer: &Self) -> Result<()> {
        if peer.gpu == self.gpu || !self.reach.withdraw(peer.gpu) {
            return Err(Error::PeerNotEnabled);
        }
        self.machine.memory.rights_changed();
        Ok(())
    }

    /// May this context's kernels touch the memory of a GPU?
    pub(crate) fn reaches(&self, gpu: usize) -> bool {
        self.reach.holds(gpu)
    }

    /// Opens imported memory of `gpu` to this context's kernels (lazy peer access).
    pub fn reach_gpu(&self, gpu: usize) -> Result<()> {
        if gpu != self.gpu && !self.machine.can_access_peer(self.gpu, gpu) {
            return Err(Error::PeerUnsupported { from: self.gpu, to: gpu });
        }
        self.reach.grant(gpu);
        Ok(())
    }
}
