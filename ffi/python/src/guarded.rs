//! Objects whose end makes GPU contexts current.

use ringdove::gpu::CallersContext;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

/// A value that uses a GPU when it is dropped. Collectors of garbage drop at any time; the
/// program's current GPU then stays what it was.
pub struct Guarded<T>(ManuallyDrop<T>);

impl<T> Guarded<T> {
    pub fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }
}

impl<T> Deref for Guarded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Guarded<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        let _current = CallersContext::keep();
        // SAFETY: it is not used again.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}
