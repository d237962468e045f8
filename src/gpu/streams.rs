//! The library's streams of a context. All ranks on the context share them, of all communicators: a
//! context has few hardware queues, and each stream more brings a user's streams nearer to standing
//! behind one another.
//!
//! **Why they are in a context of the library's by default.** A context has 8 hardware queues, or
//! as many as `CUDA_DEVICE_MAX_CONNECTIONS` says: 1 under Megatron-LM, 32 at most. All streams
//! share them, whatever their priority, and a queue stands still while its first command waits for
//! the one before it in its stream. Two collectives that a program enqueues in a row are such a
//! case: the second waits for the first, the first waits for a copy, and with one queue, or with
//! as many such streams as there are queues, the copy stands behind the second and is never made
//! (seen on an H100, driver 580.159). No choice of streams, priorities or order of creation helps:
//! a stream gets a queue when work comes to it. Queues are a context's, though, and what is
//! enqueued on the library's streams waits for nothing but what was enqueued there before.
//!
//! What it costs: memory of the GPU, and the time that a context takes to be made. Copy engines
//! work for several contexts beside each other; kernels of two contexts of a process run in time
//! slices, so that copies *within* a GPU, which some drivers run as kernels, wait for a slice.
//! That matters where ranks share a GPU, and there `RINGDOVE_COPY_CONTEXT=shared` is quicker, as
//! long as queues are left for it.

use super::driver::{self, Access};
use super::facts::{QUEUES_MAX, hardware_queues};
use super::signal::way_on_own_device;
use super::{Home, SignalStream};
use crate::error::Result;
use crate::id::{CopyContext, SignalWay};
use cudarc::driver::CudaContext;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Streams for copies to peers: with the one for words, four. More than there are copy engines gain
/// nothing, and fewer make lanes wait for one another.
pub(crate) const COPY_STREAMS: usize = 3;

/// All streams of the library in a context: those, and the one for words.
pub(crate) const LIBRARY_STREAMS: u32 = COPY_STREAMS as u32 + 1;

/// The streams of one context.
#[derive(Debug)]
pub(crate) struct ContextStreams {
    home: Home,
    copies: [Mutex<SignalStream>; COPY_STREAMS],
    words: Mutex<SignalStream>,
    /// Transports that enqueue copies.
    transports: AtomicUsize,
}

/// Those that somebody holds.
static OPEN: Mutex<Vec<Weak<ContextStreams>>> = Mutex::new(Vec::new());

impl ContextStreams {
    /// The streams for ranks on `context`, made now if nobody holds them, in the context that is
    /// `wanted`. Making streams may wait for the device, so it belongs to initialisation only.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda) where streams cannot be made.
    pub fn of(context: &Arc<CudaContext>, wanted: CopyContext) -> Result<Arc<Self>> {
        // Held while they are made: another thread would make more.
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|streams| streams.strong_count() > 0);
        if let Some(streams) = find(&open, context) {
            return Ok(streams);
        }
        let home = match wanted {
            CopyContext::Shared => Home::from(context),
            CopyContext::Own => Home::own(context)?,
            CopyContext::Auto if hardware_queues() == (QUEUES_MAX, true) => Home::from(context),
            CopyContext::Auto => Home::own(context).unwrap_or_else(|error| {
                tracing::warn!(
                    gpu = context.ordinal(),
                    %error,
                    "no context for copies can be made: they are in the program's \
                     (RINGDOVE_COPY_CONTEXT=shared), where they stand behind the program's \
                     streams if hardware queues are few (CUDA_DEVICE_MAX_CONNECTIONS)"
                );
                Home::from(context)
            }),
        };
        let stream = |way| SignalStream::new(&home, way).map(Mutex::new);
        let copies = [stream(SignalWay::Copy)?, stream(SignalWay::Copy)?, stream(SignalWay::Copy)?];
        let words = stream(way_on_own_device(context))?;
        let transports = AtomicUsize::new(0);
        let streams = Arc::new(Self { home, copies, words, transports });
        open.push(Arc::downgrade(&streams));
        Ok(streams)
    }

    /// The context that they are in.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// A stream for copies to peers. Whoever raises signals on it sets the way first.
    pub fn copies(&self, index: usize) -> MutexGuard<'_, SignalStream> {
        self.copies[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stream for what is small and goes to the own device: signals of other nodes, zeros.
    pub fn words(&self) -> MutexGuard<'_, SignalStream> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A transport begins to use the streams.
    pub fn enter(&self) {
        // Relaxed: only whether there are several is asked, and a late view costs a query.
        self.transports.fetch_add(1, Ordering::Relaxed);
    }

    /// A transport uses the streams no more.
    pub fn leave(&self) {
        self.transports.fetch_sub(1, Ordering::Relaxed);
    }

    /// Do several transports use the streams? They may then never be idle.
    pub fn are_shared(&self) -> bool {
        self.transports.load(Ordering::Relaxed) > 1
    }
}

fn find(open: &[Weak<ContextStreams>], context: &CudaContext) -> Option<Arc<ContextStreams>> {
    let of_context =
        |streams: &Arc<ContextStreams>| streams.home.context().cu_ctx() == context.cu_ctx();
    open.iter().filter_map(Weak::upgrade).find(of_context)
}

/// Enables access from `from`'s device, and from the streams there, to memory of `to`'s.
///
/// # Errors
/// [`Error::Cuda`](crate::Error::Cuda) with the driver's answer.
pub(crate) fn enable_peer_access(from: &CudaContext, to: &CudaContext) -> Result<Access> {
    let access = driver::enable_peer_access(from, to)?;
    let streams = find(&OPEN.lock().unwrap_or_else(PoisonError::into_inner), from);
    if let (Access::Direct, Some(streams)) = (access, streams) {
        streams.home.open_peer(to)?;
    }
    Ok(access)
}
