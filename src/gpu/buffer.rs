//! Buffers that safe calls may take.
//!
//! `cudarc`'s [`DevicePtr`] is a safe trait: an implementation may name any address. These say that
//! the address is the buffer's.

use cudarc::driver::{CudaSlice, CudaView, CudaViewMut, DevicePtr, DevicePtrMut};

/// Device memory that a call may read: `cudarc`'s slices and views, and
/// [`Registered`](crate::Registered).
///
/// # Safety
/// [`DevicePtr::device_ptr`] gives the address of as many elements of `T` as the buffer is long.
/// They stay allocated for as long as the buffer is borrowed, and after that until the work has
/// ended which was enqueued on the stream before the [`SyncOnDrop`](cudarc::driver::SyncOnDrop) was
/// dropped.
pub unsafe trait DeviceBuffer<T>: DevicePtr<T> {}

/// Device memory that a call may write: `cudarc`'s slices and mutable views, and
/// [`Registered`](crate::Registered).
///
/// # Safety
/// As [`DeviceBuffer`], of [`DevicePtrMut::device_ptr_mut`]; and nobody else reads or writes the
/// elements while the buffer is borrowed.
pub unsafe trait DeviceBufferMut<T>: DevicePtrMut<T> {}

// SAFETY: a slice owns its memory. It is freed in the order of the slice's own stream, after that
// has waited for the event which `SyncOnDrop` records.
unsafe impl<T> DeviceBuffer<T> for CudaSlice<T> {}
// SAFETY: as above; a mutable borrow is the only one.
unsafe impl<T> DeviceBufferMut<T> for CudaSlice<T> {}
// SAFETY: a view borrows a part of a slice, and records the slice's events.
unsafe impl<T> DeviceBuffer<T> for CudaView<'_, T> {}
// SAFETY: as above.
unsafe impl<T> DeviceBuffer<T> for CudaViewMut<'_, T> {}
// SAFETY: as above, of a mutable borrow.
unsafe impl<T> DeviceBufferMut<T> for CudaViewMut<'_, T> {}
