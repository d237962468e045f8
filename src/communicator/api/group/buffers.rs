//! Borrowed buffers of any element type, whose addresses are taken when their group is launched.

use crate::gpu::{DeviceBuffer, DeviceBufferMut};
use cudarc::driver::{CudaStream, SyncOnDrop};
use std::marker::PhantomData;

/// A borrowed buffer of any element type.
pub trait Buffer {
    /// Its address, for a use on `stream` that is enqueued before the second part is dropped.
    fn address<'s>(&'s mut self, stream: &'s CudaStream) -> (u64, SyncOnDrop<'s>);
}

/// A buffer of `T` that is read.
pub fn source<'a, T: 'a>(buffer: &'a impl DeviceBuffer<T>) -> Box<dyn Buffer + 'a> {
    Box::new(Source(buffer, PhantomData))
}

/// A buffer of `T` that is written.
pub fn destination<'a, T: 'a>(buffer: &'a mut impl DeviceBufferMut<T>) -> Box<dyn Buffer + 'a> {
    Box::new(Destination(buffer, PhantomData))
}

struct Source<'a, T, B>(&'a B, PhantomData<T>);

impl<T, B: DeviceBuffer<T>> Buffer for Source<'_, T, B> {
    fn address<'s>(&'s mut self, stream: &'s CudaStream) -> (u64, SyncOnDrop<'s>) {
        self.0.device_ptr(stream)
    }
}

struct Destination<'a, T, B>(&'a mut B, PhantomData<T>);

impl<T, B: DeviceBufferMut<T>> Buffer for Destination<'_, T, B> {
    fn address<'s>(&'s mut self, stream: &'s CudaStream) -> (u64, SyncOnDrop<'s>) {
        self.0.device_ptr_mut(stream)
    }
}
