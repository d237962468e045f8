//! Memory of Python's arrays, as calls that take buffers want it.

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop, sys};
use ringdove::gpu::{DeviceBuffer, DeviceBufferMut};
use std::marker::PhantomData;
use std::sync::Arc;

/// Elements at an address. The bridge has made the stream wait for what the program has enqueued,
/// and the objects that own the memory are kept until the call has ended.
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

// SAFETY: an array of a program's library, kept until the stream has passed the call. That nobody
// else uses it meanwhile is the rule for programs, as with NCCL.
unsafe impl<T> DeviceBuffer<T> for Raw<T> {}
// SAFETY: as above.
unsafe impl<T> DeviceBufferMut<T> for Raw<T> {}

/// Does the driver know memory at both ends of `bytes` bytes from `address` on? A range may consist
/// of several allocations, so its middle is not looked at.
pub fn is_memory(address: u64, bytes: u64) -> bool {
    let is_known = |address: u64| {
        let mut kind = 0u32;
        let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        // SAFETY: a place of the attribute's type.
        let asked =
            unsafe { sys::cuPointerGetAttribute((&raw mut kind).cast(), attribute, address) };
        asked == sys::CUresult::CUDA_SUCCESS && kind != 0
    };
    bytes == 0 || is_known(address) && address.checked_add(bytes - 1).is_some_and(is_known)
}
