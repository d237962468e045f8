//! Contexts: a program's hold on one GPU, and the unit that fails as a whole.

use crate::context_state::{ContextState, Locked};
use crate::error::{Error, Result, Sticky};
use crate::machine::Machine;
use crate::memory::{Heap, Reach, View};
use crate::stream::{Stream, StreamKind, Streams};
use crate::workspace::Workspaces;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

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
    state: Arc<ContextState>,
    /// The default stream, by which the others are reached.
    legacy: Arc<Stream>,
    reach: Arc<Reach>,
    heap: Arc<Heap>,
    /// Workspaces of cooperative launches: the barriers of their blocks.
    workspaces: Workspaces,
}

impl Context {
    /// A context on a GPU.
    pub fn new(machine: Arc<Machine>, gpu: usize, flags: u32) -> Arc<Self> {
        let state = ContextState::new(Arc::clone(&machine), gpu);
        Arc::new(Self {
            id: state.id,
            gpu,
            flags: AtomicU32::new(flags),
            legacy: Streams::of_context(&state),
            reach: Arc::new(Reach::of(gpu, &machine.description.driver)),
            heap: Arc::new(Heap::new(gpu, state.id)),
            workspaces: Workspaces::default(),
            state,
            machine,
        })
    }

    /// What its streams share.
    pub fn state(&self) -> &Arc<ContextState> {
        &self.state
    }

    /// The error that made the context fail, if any.
    pub fn check(&self) -> Result<()> {
        self.state.check()
    }

    /// That error, if a call has told of it: [`ContextState::check_told`].
    pub fn check_told(&self) -> Result<()> {
        self.state.check_told()
    }

    /// Takes the context's lock: [`ContextState::lock`].
    pub fn lock(&self) -> Locked {
        self.state.lock()
    }

    /// The default stream, which waits for all blocking streams and makes them wait.
    pub fn legacy_stream(&self) -> &Arc<Stream> {
        &self.legacy
    }

    /// The workspace of a stream's cooperative launches.
    pub(crate) fn grid_workspace(&self, stream: &Arc<Stream>) -> Result<u64> {
        self.workspaces.of(&self.machine.memory, (self.gpu, self.id), stream)
    }

    /// A new stream.
    pub fn create_stream(&self, blocking: bool, priority: i32) -> Arc<Stream> {
        let kind = if blocking { StreamKind::Blocking } else { StreamKind::NonBlocking };
        self.legacy.create_sibling(kind, priority)
    }

    /// Every stream that lives, the default one first.
    pub fn streams(&self) -> Vec<Arc<Stream>> {
        self.legacy.siblings()
    }

    /// Waits until all that was submitted so far is done.
    pub fn synchronize(&self) -> Result<()> {
        self.drain();
        self.check()
    }

    /// As [`Context::synchronize`], whatever state the context is in. If it has failed, later calls
    /// tell.
    pub fn drain(&self) {
        self.streams().iter().for_each(|stream| stream.wait_idle());
        let _ = self.check();
    }

    /// Ends the context: work is dropped, memory freed.
    pub fn destroy(&self) {
        self.streams().iter().for_each(|stream| stream.abandon_capture());
        self.state.fail(Sticky::Destroyed);
        self.drain();
        self.machine.memory.release_context(self.id);
        self.heap.end(&self.machine.memory);
    }

    /// Bytes of the heap that kernels allocate from.
    pub fn heap_limit(&self) -> u64 {
        self.heap.limit()
    }

    /// Sizes that heap; false if kernels have used it already.
    pub fn set_heap_limit(&self, bytes: u64) -> bool {
        self.heap.set_limit(bytes)
    }

    /// Memory as this context's kernels see it.
    pub(crate) fn view(&self) -> View {
        let (reach, heap) = (Arc::clone(&self.reach), Arc::clone(&self.heap));
        View::new(Arc::clone(&self.machine.memory), reach, heap)
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
    fn reaches(&self, gpu: usize) -> bool {
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

    /// Those of `all` contexts that peer access joins with this one, in whatever direction and over
    /// whatever others, with this one: in the order of their numbers, in which their locks are
    /// taken.
    pub fn joined(self: &Arc<Self>, all: &[Arc<Self>]) -> Vec<Arc<Self>> {
        let mut joined = vec![Arc::clone(self)];
        let mut looked_at = 0;
        while let Some(here) = joined.get(looked_at).cloned() {
            looked_at += 1;
            for other in all {
                let known = joined.iter().any(|context| context.id == other.id);
                let linked = here.reaches(other.gpu) || other.reaches(here.gpu);
                if !known && linked && other.gpu != here.gpu {
                    joined.push(Arc::clone(other));
                }
            }
        }
        joined.sort_by_key(|context| context.id);
        joined
    }
}
