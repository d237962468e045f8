//! Registered buffers of this process: who owns them, and for how long.
//!
//! Engines of other ranks know where a registered buffer lies and may write there until their
//! communicators are gone. So the buffer is not freed before: when its [`Registered`] is dropped,
//! the rank's memory takes it over.

use super::{DeviceBuffer, DeviceBufferMut};
use crate::id::Registration;
use cudarc::driver::{
    CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop,
};
use std::fmt;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A buffer that every rank has registered; see
/// [`Communicator::register`](crate::Communicator::register).
///
/// It is used like the `CudaSlice` that it was made of, whole or in views. The memory is freed when
/// both this value and all ranks of the communicator are gone, not before: engines of other ranks
/// may write into it until then.
pub struct Registered<T: 'static> {
    /// `None` only while the value is being dropped.
    slice: Option<CudaSlice<T>>,
    registration: Registration,
    keeper: Arc<Keeper>,
}

impl<T: 'static> Registered<T> {
    pub(crate) fn new(
        slice: CudaSlice<T>,
        registration: Registration,
        keeper: Arc<Keeper>,
    ) -> Self {
        Self { slice: Some(slice), registration, keeper }
    }

    /// The registration that the buffer belongs to.
    pub fn registration(&self) -> Registration {
        self.registration
    }

    /// Is it one of the buffers that `keeper` keeps?
    pub(crate) fn is_kept_by(&self, keeper: &Arc<Keeper>) -> bool {
        Arc::ptr_eq(&self.keeper, keeper)
    }

    /// The buffer. No engine of another rank knows it any more.
    pub(crate) fn into_slice(mut self) -> CudaSlice<T> {
        self.slice.take().expect("present until drop")
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.whole().len()
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.whole().is_empty()
    }

    /// All of it, for reading.
    pub fn as_view(&self) -> CudaView<'_, T> {
        self.whole().as_view()
    }

    /// All of it, for writing.
    pub fn as_view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.whole_mut().as_view_mut()
    }

    /// A part of it, for reading. Panics if that is not inside.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> CudaView<'_, T> {
        self.whole().slice(range)
    }

    /// A part of it, for writing. Panics if that is not inside.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> CudaViewMut<'_, T> {
        self.whole_mut().slice_mut(range)
    }

    fn whole(&self) -> &CudaSlice<T> {
        self.slice.as_ref().expect("present until drop")
    }

    /// Not handed out: whoever has it could swap the memory for another.
    fn whole_mut(&mut self) -> &mut CudaSlice<T> {
        self.slice.as_mut().expect("present until drop")
    }
}

impl<T: 'static> DeviceSlice<T> for Registered<T> {
    fn len(&self) -> usize {
        self.whole().len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.whole().stream()
    }
}

impl<T: 'static> DevicePtr<T> for Registered<T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (u64, SyncOnDrop<'a>) {
        self.whole().device_ptr(stream)
    }
}

impl<T: 'static> DevicePtrMut<T> for Registered<T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (u64, SyncOnDrop<'a>) {
        self.whole_mut().device_ptr_mut(stream)
    }
}

// SAFETY: the slice is freed by the keeper at the earliest, as a slice is.
unsafe impl<T: 'static> DeviceBuffer<T> for Registered<T> {}
// SAFETY: as above; a mutable borrow is the only one.
unsafe impl<T: 'static> DeviceBufferMut<T> for Registered<T> {}

impl<T: 'static> fmt::Debug for Registered<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered")
            .field("registration", &self.registration)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl<T: 'static> Drop for Registered<T> {
    fn drop(&mut self) {
        if let Some(slice) = self.slice.take() {
            self.keeper.keep(slice);
        }
    }
}

/// Keeps registered buffers for as long as engines may write into them.
#[derive(Default)]
pub(crate) struct Keeper {
    state: Mutex<Kept>,
}

enum Kept {
    /// Engines may write: what is dropped is kept.
    Open(Vec<Box<dyn Send>>),
    /// No engine knows the buffers any more.
    Closed,
    /// An engine may write for ever; so nothing is freed any more.
    Leaked,
}

impl Default for Kept {
    fn default() -> Self {
        Self::Open(Vec::new())
    }
}

impl Keeper {
    /// What is kept stays consistent when a thread panics: each change is one assignment or push.
    fn state(&self) -> MutexGuard<'_, Kept> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an owner of registered memory, and drops it when no engine knows the memory.
    pub fn keep(&self, owner: impl Send + 'static) {
        match &mut *self.state() {
            Kept::Open(owners) => owners.push(Box::new(owner)),
            Kept::Closed => {}
            Kept::Leaked => std::mem::forget(owner),
        }
    }

    /// Engines have forgotten the buffers.
    pub fn close(&self) {
        let kept = std::mem::replace(&mut *self.state(), Kept::Closed);
        drop(kept);
    }

    /// An engine does not obey and may go on writing.
    pub fn leak(&self) {
        std::mem::forget(std::mem::replace(&mut *self.state(), Kept::Leaked));
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    struct Counted(Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// If this fails, registered memory is freed while engines may write into it, or never.
    #[test]
    fn owners_are_dropped_when_engines_have_forgotten_them() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let count = || dropped.load(Ordering::Relaxed);
        let owner = || Counted(dropped.clone());
        let keeper = Keeper::default();
        keeper.keep(owner());
        keeper.keep(owner());
        assert_eq!(count(), 0);
        keeper.close();
        assert_eq!(count(), 2);
        keeper.keep(owner());
        assert_eq!(count(), 3, "nobody needs it any more");
        let keeper = Keeper::default();
        keeper.keep(owner());
        keeper.leak();
        keeper.keep(owner());
        assert_eq!(count(), 3, "an engine may still write");
    }
}
