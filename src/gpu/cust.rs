//! Contexts, streams and device buffers of the crate `cust`, as communicators take them.
//!
//! Communicators take `cudarc`'s types. Both crates stand on the same driver and on the same
//! primary contexts, so that nothing is copied here: [`context`] and [`Stream`] give what cust made
//! cudarc's form, and [`Stream::read`] and [`Stream::write`] lend its buffers to a call.
//!
//! * A call of a communicator makes the communicator's context current, as cudarc's calls do. A
//!   program with several devices sets cust's context (`CurrentContext::set_current`) before it
//!   allocates or launches through cust again.
//! * Streams of cust wait for the default stream of their context and make it wait. A copy of cust
//!   that is not asynchronous (`DeviceBuffer::from_slice`, `copy_to`) therefore waits for the
//!   collectives on all of these streams: enqueue a collective on every rank of the process first.
//! * Lending is unsafe, as cust's asynchronous copies are: cust does not wait for a stream before
//!   it frees or copies memory.

use super::driver::check_anywhere as check;
use super::primary::primary;
use super::{DeviceBuffer, DeviceBufferMut};
use crate::error::{Error, Result};
use ::cust::context::ContextHandle;
use ::cust::memory::{DeviceCopy, DeviceSlice as CustSlice};
use ::cust::stream::Stream as CustStream;
use cudarc::driver::{
    CudaContext, CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop, result, sys,
};
use std::ops::Deref;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

/// The context of cust, as communicators take it. It stays usable through cust.
///
/// # Errors
/// [`Error::Argument`] where it is not the primary context of its device, such as those that
/// `cust::context::legacy` makes; [`Error::Cuda`].
pub fn context(context: &impl ContextHandle) -> Result<Arc<CudaContext>> {
    primary(context.get_inner().cast())
}

/// A stream of cust that communicators take, too.
///
/// It is cust's stream still: kernels are launched on it, and events recorded, by `&*stream`. For
/// a communicator it is [`Stream::cudarc`].
#[derive(Debug)]
pub struct Stream {
    /// `None` only while it is being dropped.
    streams: Option<Pair>,
}

/// One stream in two forms. Cust's owns it and is dropped before the context that cudarc's keeps.
#[derive(Debug)]
struct Pair {
    cust: CustStream,
    cudarc: Arc<CudaStream>,
}

/// Streams that have been dropped while a communicator may still wait for their last launch. At
/// most one for each communicator, for each remembers one stream.
static DROPPED: Mutex<Vec<Pair>> = Mutex::new(Vec::new());

impl Stream {
    /// Takes a stream that cust made in this context, which [`context`] gave.
    ///
    /// # Errors
    /// [`Error::Argument`] where the stream belongs to another context; [`Error::Cuda`].
    pub fn new(stream: CustStream, context: &Arc<CudaContext>) -> Result<Self> {
        let handle: sys::CUstream = stream.as_inner().cast();
        let mut own = ptr::null_mut();
        // SAFETY: the stream is alive, and the target outlives the call.
        check("cuStreamGetCtx", unsafe { sys::cuStreamGetCtx(handle, &mut own) })?;
        if own != context.cu_ctx() {
            let expected = format!("a stream of device {}'s primary context", context.ordinal());
            return Err(Error::argument("stream", expected, "a stream of another context"));
        }
        // SAFETY: the stream belongs to the context, as was just asked. Its owner stands beside it
        // and is dropped when nobody else has cudarc's form any more (see `sweep`).
        let cudarc = unsafe { context.wrap_borrowed_stream(handle) };
        sweep(None);
        Ok(Self { streams: Some(Pair { cust: stream, cudarc }) })
    }

    /// The stream as communicators take it.
    pub fn cudarc(&self) -> &Arc<CudaStream> {
        &self.streams().cudarc
    }

    /// Lends memory of cust to calls on this stream that read it.
    ///
    /// # Safety
    /// Until the stream has passed the calls, the memory stays allocated and nobody writes it.
    pub unsafe fn read<'a, T: DeviceCopy>(&'a self, memory: &'a CustSlice<T>) -> Input<'a, T> {
        Input { memory, stream: self.cudarc() }
    }

    /// Lends memory of cust to calls on this stream that write it.
    ///
    /// # Safety
    /// Until the stream has passed the calls, the memory stays allocated and nobody else reads or
    /// writes it.
    pub unsafe fn write<'a, T: DeviceCopy>(
        &'a self,
        memory: &'a mut CustSlice<T>,
    ) -> Output<'a, T> {
        Output { memory, stream: self.cudarc() }
    }

    fn streams(&self) -> &Pair {
        self.streams.as_ref().expect("present until drop")
    }
}

impl Deref for Stream {
    type Target = CustStream;

    fn deref(&self) -> &CustStream {
        &self.streams().cust
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        sweep(self.streams.take());
    }
}

/// Destroys dropped streams that nobody but their owner holds; `dropped` joins them first.
fn sweep(dropped: Option<Pair>) {
    let mut kept = DROPPED.lock().unwrap_or_else(PoisonError::into_inner);
    kept.extend(dropped);
    kept.retain(|pair| Arc::strong_count(&pair.cudarc) > 1);
}

/// Device memory of cust that a call reads; see [`Stream::read`].
#[derive(Debug)]
pub struct Input<'a, T: DeviceCopy> {
    memory: &'a CustSlice<T>,
    stream: &'a Arc<CudaStream>,
}

/// Device memory of cust that a call writes; see [`Stream::write`].
#[derive(Debug)]
pub struct Output<'a, T: DeviceCopy> {
    memory: &'a mut CustSlice<T>,
    stream: &'a Arc<CudaStream>,
}

/// Makes `stream` wait for what `own` holds, where they differ: cust keeps no record of who used
/// its memory last.
fn order(stream: &CudaStream, own: &CudaStream) {
    if stream.cu_stream() != own.cu_stream()
        && let Err(error) = stream.join(own)
    {
        tracing::error!(%error, "streams cannot be ordered; results on the second are undefined");
    }
}

impl<T: DeviceCopy> DeviceSlice<T> for Input<'_, T> {
    fn len(&self) -> usize {
        self.memory.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.stream
    }
}

impl<T: DeviceCopy> DevicePtr<T> for Input<'_, T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        order(stream, self.stream);
        (self.memory.as_device_ptr().as_raw(), SyncOnDrop::Record(None))
    }
}

impl<T: DeviceCopy> DeviceSlice<T> for Output<'_, T> {
    fn len(&self) -> usize {
        self.memory.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.stream
    }
}

impl<T: DeviceCopy> DevicePtrMut<T> for Output<'_, T> {
    fn device_ptr_mut<'a>(
        &'a mut self,
        stream: &'a CudaStream,
    ) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        order(stream, self.stream);
        (self.memory.as_device_ptr().as_raw(), SyncOnDrop::Record(None))
    }
}

// SAFETY: who made it by `Stream::read` has promised this.
unsafe impl<T: DeviceCopy> DeviceBuffer<T> for Input<'_, T> {}
// SAFETY: who made it by `Stream::write` has promised this.
unsafe impl<T: DeviceCopy> DeviceBufferMut<T> for Output<'_, T> {}
