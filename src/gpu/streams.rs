//! The library's streams of a context. All ranks on the context share them, of all communicators: a
//! context has few hardware queues, and each stream more brings a user's streams nearer to standing
//! behind one another.

use super::SignalStream;
use super::signal::way_on_own_device;
use crate::error::Result;
use crate::id::SignalWay;
use cudarc::driver::CudaContext;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Streams for copies to peers: with the one for words, four. More than there are copy engines gain
/// nothing, and fewer make lanes wait for one another.
pub(crate) const COPY_STREAMS: usize = 3;

/// The streams of one context.
#[derive(Debug)]
pub(crate) struct ContextStreams {
    context: Arc<CudaContext>,
    copies: [Mutex<SignalStream>; COPY_STREAMS],
    words: Mutex<SignalStream>,
    /// Transports that enqueue copies.
    transports: AtomicUsize,
}

/// Those that somebody holds.
static OPEN: Mutex<Vec<Weak<ContextStreams>>> = Mutex::new(Vec::new());

impl ContextStreams {
    /// The streams of `context`, made now if nobody holds them. Making streams may wait for the
    /// device, so it belongs to initialisation only.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda) where streams cannot be made.
    pub fn of(context: &Arc<CudaContext>) -> Result<Arc<Self>> {
        // Held while they are made: another thread would make more.
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|streams| streams.strong_count() > 0);
        let of_context = |streams: &Arc<Self>| streams.context.cu_ctx() == context.cu_ctx();
        if let Some(streams) = open.iter().filter_map(Weak::upgrade).find(of_context) {
            return Ok(streams);
        }
        let stream = |way| SignalStream::new(context, way).map(Mutex::new);
        let copies = [stream(SignalWay::Copy)?, stream(SignalWay::Copy)?, stream(SignalWay::Copy)?];
        let words = stream(way_on_own_device(context))?;
        let transports = AtomicUsize::new(0);
        let streams = Arc::new(Self { context: context.clone(), copies, words, transports });
        open.push(Arc::downgrade(&streams));
        Ok(streams)
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
