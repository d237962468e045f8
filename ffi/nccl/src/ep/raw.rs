//! Memory of programs, as calls that take buffers want it.

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop};
use ringdove::gpu::{DeviceBuffer, DeviceBufferMut};
use std::marker::PhantomData;
use std::sync::Arc;

/// Elements at an address of the program's. The bridge orders the program's stream before and
/// behind the call.
pub struct Raw<T> {
    address: u64,
    count: usize,
    stream: Arc<CudaStream>,
    element: PhantomData<fn() -> T>,
}

impl<T> Raw<T> {
    pub fn new(address: u64, count: usize, stream: &Arc<CudaStream>) -> Self {
        Self { address, count, stream: stream.clone(), element: PhantomData }
    }
}

impl<T> DeviceSlice<T> for Raw<T> {
    fn len(&self) -> usize {
        self.count
    }

    fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

impl<T> DevicePtr<T> for Raw<T> {
    fn device_ptr<'a>(&'a self, _: &'a CudaStream) -> (u64, SyncOnDrop<'a>) {
        (self.address, SyncOnDrop::Record(None))
    }
}

impl<T> DevicePtrMut<T> for Raw<T> {
    fn device_ptr_mut<'a>(&'a mut self, _: &'a CudaStream) -> (u64, SyncOnDrop<'a>) {
        (self.address, SyncOnDrop::Record(None))
    }
}

// SAFETY: that memory is there until the stream has passed the call, and that nobody else uses it
// meanwhile, is the contract of NCCL.
unsafe impl<T> DeviceBuffer<T> for Raw<T> {}
// SAFETY: as above.
unsafe impl<T> DeviceBufferMut<T> for Raw<T> {}
