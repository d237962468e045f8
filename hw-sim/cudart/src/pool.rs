//! Memory in stream order, and its pools. Structures are the driver's.

use crate::call::{Out, Stream, runtime_calls, stream};
use crate::driver::{self, Handle};
use crate::state;
use std::ffi::{c_int, c_uint};

runtime_calls! {
    with device_call;

    #[twin(cudaMallocAsync_ptsz)]
    fn cudaMallocAsync(address: Out<u64>, bytes: usize, on: Stream) {
        if bytes == 0 {
            return address.set(0);
        }
        driver::cuMemAllocAsync(address, bytes, stream(on))
    }

    #[twin(cudaMallocFromPoolAsync_ptsz)]
    fn cudaMallocFromPoolAsync(address: Out<u64>, bytes: usize, pool: Handle, on: Stream) {
        if bytes == 0 {
            return address.set(0);
        }
        driver::cuMemAllocFromPoolAsync(address, bytes, pool, stream(on))
    }

    #[twin(cudaFreeAsync_ptsz)]
    fn cudaFreeAsync(address: u64, on: Stream) {
        if address == 0 { Ok(()) } else { driver::cuMemFreeAsync(address, stream(on)) }
    }

    fn cudaDeviceGetDefaultMemPool(pool: Out<Handle>, device: c_int) {
        state::check_device(device)?;
        driver::cuDeviceGetDefaultMemPool(pool, device)
    }

    fn cudaDeviceGetMemPool(pool: Out<Handle>, device: c_int) {
        state::check_device(device)?;
        driver::cuDeviceGetMemPool(pool, device)
    }

    fn cudaDeviceSetMemPool(device: c_int, pool: Handle) {
        state::check_device(device)?;
        driver::cuDeviceSetMemPool(device, pool)
    }

    fn cudaMemPoolCreate(pool: Out<Handle>, properties: u64) {
        driver::cuMemPoolCreate(pool, properties)
    }

    fn cudaMemPoolDestroy(pool: Handle) {
        driver::cuMemPoolDestroy(pool)
    }

    fn cudaMemPoolTrimTo(pool: Handle, keep: usize) {
        driver::cuMemPoolTrimTo(pool, keep)
    }

    fn cudaMemPoolGetAttribute(pool: Handle, attribute: c_int, value: u64) {
        driver::cuMemPoolGetAttribute(pool, attribute, value)
    }

    fn cudaMemPoolSetAttribute(pool: Handle, attribute: c_int, value: u64) {
        driver::cuMemPoolSetAttribute(pool, attribute, value)
    }

    fn cudaMemPoolSetAccess(pool: Handle, accesses: u64, count: usize) {
        driver::cuMemPoolSetAccess(pool, accesses, count)
    }

    fn cudaMemPoolGetAccess(flags: Out<c_int>, pool: Handle, location: u64) {
        driver::cuMemPoolGetAccess(flags, pool, location)
    }

    fn cudaMemPoolExportToShareableHandle(handle: u64, pool: Handle, kind: c_int, flags: c_uint) {
        driver::cuMemPoolExportToShareableHandle(handle, pool, kind, u64::from(flags))
    }

    fn cudaMemPoolImportFromShareableHandle(
        pool: Out<Handle>, handle: u64, kind: c_int, flags: c_uint,
    ) {
        driver::cuMemPoolImportFromShareableHandle(pool, handle, kind, u64::from(flags))
    }

    fn cudaMemPoolExportPointer(data: u64, address: u64) {
        driver::cuMemPoolExportPointer(data, address)
    }

    fn cudaMemPoolImportPointer(address: Out<u64>, pool: Handle, data: u64) {
        driver::cuMemPoolImportPointer(address, pool, data)
    }
}
