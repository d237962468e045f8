//! Signals in device memory, raised in the order of a stream.
//!
//! A signal is a word of 8 bytes that is written after all that was enqueued on the stream before.
//! Drivers have an operation for that, a stream memory operation, but not all have it, and since
//! CUDA 13.1 it may not reach other GPUs' memory. A copy of 8 bytes does the same everywhere:
//! copies of one stream run one after the other, and each is visible on every device before the
//! next begins. Its source must stay as it is until the copy has ended; so words take turns, and
//! one is used again only after an event behind its copy has come.

use super::{Current, Home, OwnStream, PinnedMemory};
use crate::error::Result;
use crate::id::SignalWay;
use crate::shared::WordArray;
use cudarc::driver::{CudaContext, result, sys};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Words of a stream: how many signals may be on their way.
const WORDS: usize = 512;
/// So many of them share an event.
const SEGMENT_WORDS: usize = 64;
const SEGMENTS: usize = WORDS / SEGMENT_WORDS;

/// How signals can be raised in memory of `context`'s own device.
pub(crate) fn way_on_own_device(context: &CudaContext) -> SignalWay {
    use sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS as HAS;
    // SAFETY: the device is that of a live context.
    match unsafe { result::device::get_attribute(context.cu_device(), HAS) } {
        Ok(1..) => SignalWay::StreamWrite,
        // Drivers that are older than the question have not got what it asks for.
        _ => SignalWay::Copy,
    }
}

/// A stream that raises signals after what was enqueued on it.
#[derive(Debug)]
pub(crate) struct SignalStream {
    stream: OwnStream,
    way: SignalWay,
    words: Words,
}

impl SignalStream {
    /// A new stream, which raises signals in this `way`.
    ///
    /// # Errors
    /// [`Error::Cuda`] where stream, events or pinned memory cannot be made.
    pub fn new(home: &Home, way: SignalWay) -> Result<Self> {
        let stream = OwnStream::at(home)?;
        Ok(Self { stream, way, words: Words::new(home)? })
    }

    /// The stream.
    pub fn stream(&self) -> &OwnStream {
        &self.stream
    }

    /// From now on, signals are raised in this way.
    pub fn set_way(&mut self, way: SignalWay) {
        self.way = way;
    }

    /// May `count` more signals be enqueued? If not, some of those before have to end first.
    ///
    /// # Errors
    /// [`Error::Cuda`] with the error of what was enqueued.
    pub fn has_room(&mut self, current: &Current, count: u64) -> Result<bool> {
        match self.way {
            SignalWay::StreamWrite => Ok(true),
            SignalWay::Copy => self.words.has_room(current, count),
        }
    }

    /// Enqueues a signal: `value` at `address`, after all that was enqueued before. There is
    /// [room](Self::has_room) for it.
    ///
    /// # Safety
    /// `address` is that of an aligned word of device memory which stays allocated until this
    /// stream has ended.
    ///
    /// # Errors
    /// [`Error::Cuda`] with the driver's answer.
    pub unsafe fn raise(&mut self, current: &Current, address: u64, value: u64) -> Result<()> {
        match self.way {
            // Pairs with wait.cuh: the acquire load of a signal, R9. The default flags fence
            // before the write.
            SignalWay::StreamWrite => {
                // SAFETY: by this function's contract.
                let status = unsafe {
                    sys::cuStreamWriteValue64_v2(self.stream.handle(), address, value, 0)
                };
                current.check("cuStreamWriteValue64", status)
            }
            SignalWay::Copy => {
                // SAFETY: by this function's contract.
                unsafe { self.words.raise(current, &self.stream, address, value) }
            }
        }
    }
}

/// Words that copies read.
struct Words {
    memory: Arc<PinnedMemory>,
    words: WordArray,
    /// Words that were ever used: the next one is this, modulo their number.
    used: u64,
    /// For each segment of words, what comes behind the copy of its last one.
    behind: Vec<Event>,
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Words").field("used", &self.used).finish_non_exhaustive()
    }
}

impl Words {
    fn new(home: &Home) -> Result<Self> {
        let memory = Arc::new(PinnedMemory::zeroed(home.context(), WORDS * size_of::<u64>())?);
        let words = memory.region().words64(0, WORDS)?;
        let behind = (0..SEGMENTS).map(|_| Event::new(home)).collect::<Result<_>>()?;
        Ok(Self { memory, words, used: 0, behind })
    }

    fn has_room(&mut self, current: &Current, count: u64) -> Result<bool> {
        for number in self.used..self.used + count {
            // Words of a segment become free together, so its first one is looked at.
            if number.is_multiple_of(SEGMENT_WORDS as u64) && number >= WORDS as u64 {
                let segment = number as usize % WORDS / SEGMENT_WORDS;
                if !self.behind[segment].has_come(current)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// # Safety
    /// As [`SignalStream::raise`].
    unsafe fn raise(
        &mut self,
        current: &Current,
        stream: &OwnStream,
        address: u64,
        value: u64,
    ) -> Result<()> {
        let index = self.used as usize % WORDS;
        // Relaxed: the copy is enqueued after this, and the driver orders the two.
        self.words.store(index, value, Ordering::Relaxed);
        let source = self.memory.address() + (index * size_of::<u64>()) as u64;
        // Pairs with wait.cuh: the acquire load of a signal, R9. Copies of one stream end in their
        // order, and 8 aligned bytes are written in one piece.
        // SAFETY: the source is a pinned word that nobody writes before the copy has ended, and
        // the destination is allocated by this function's contract.
        current.check("cuMemcpyAsync", unsafe {
            sys::cuMemcpyAsync(address, source, size_of::<u64>(), stream.handle())
        })?;
        self.used += 1;
        if self.used.is_multiple_of(SEGMENT_WORDS as u64) {
            self.behind[index / SEGMENT_WORDS].record(current, stream)?;
        }
        Ok(())
    }
}

/// An event without a time.
#[derive(Debug)]
pub(crate) struct Event {
    home: Home,
    handle: sys::CUevent,
}

// SAFETY: event handles may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    /// A new event, which was never recorded.
    pub fn new(home: &Home) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        let flags = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32;
        home.within(|current| {
            // SAFETY: the context is current and `handle` outlives the call.
            current.check("cuEventCreate", unsafe { sys::cuEventCreate(&mut handle, flags) })
        })?;
        Ok(Self { home: home.clone(), handle })
    }

    /// It comes when all that was enqueued on `stream` has ended.
    pub fn record(&self, current: &Current, stream: &OwnStream) -> Result<()> {
        // SAFETY: both live until they are dropped.
        current.check("cuEventRecord", unsafe { sys::cuEventRecord(self.handle, stream.handle()) })
    }

    /// Has it come? It has, too, if it was never recorded.
    pub fn has_come(&self, current: &Current) -> Result<bool> {
        // SAFETY: the event lives until drop.
        match unsafe { sys::cuEventQuery(self.handle) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            status => current.check("cuEventQuery", status).map(|()| true),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // A context that is gone has taken the event with it.
        let _ended = self.home.within(|_| {
            // SAFETY: made by `new`, destroyed only here.
            unsafe { sys::cuEventDestroy_v2(self.handle) };
            Ok(())
        });
    }
}
