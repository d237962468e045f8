//! Libraries: code that a program loads at run time. Handles are the driver's.

use crate::call::{In, Out, runtime_calls};
use crate::driver::{self, Handle};
use crate::registry::{note_handle, note_handles};
use std::ffi::{c_char, c_int, c_uint};

runtime_calls! {
    with device_call;

    fn cudaLibraryLoadData(
        library: Out<Handle>, code: u64, options: u64, values: u64, count: c_uint,
        library_options: In<c_int>, library_values: In<u64>, library_count: c_uint,
    ) {
        driver::cuLibraryLoadData(
            library, code, options, values, count, library_options, library_values, library_count,
        )
    }

    fn cudaLibraryLoadFromFile(
        library: Out<Handle>, path: In<c_char>, options: u64, values: u64, count: c_uint,
        library_options: In<c_int>, library_values: In<u64>, library_count: c_uint,
    ) {
        driver::cuLibraryLoadFromFile(
            library, path, options, values, count, library_options, library_values, library_count,
        )
    }

    fn cudaLibraryUnload(library: Handle) {
        driver::cuLibraryUnload(library)
    }

    fn cudaLibraryGetKernel(kernel: Out<Handle>, library: Handle, name: In<c_char>) {
        driver::cuLibraryGetKernel(kernel, library, name)?;
        note_handle(kernel.get()?);
        Ok(())
    }

    fn cudaLibraryGetGlobal(
        address: Out<u64>, bytes: Out<usize>, library: Handle, name: In<c_char>,
    ) {
        driver::cuLibraryGetGlobal(address, bytes, library, name)
    }

    fn cudaLibraryGetManaged(
        address: Out<u64>, bytes: Out<usize>, library: Handle, name: In<c_char>,
    ) {
        driver::cuLibraryGetManaged(address, bytes, library, name)
    }

    fn cudaLibraryGetUnifiedFunction(address: Out<u64>, library: Handle, name: In<c_char>) {
        driver::cuLibraryGetUnifiedFunction(address, library, name)
    }

    fn cudaLibraryGetKernelCount(count: Out<c_uint>, library: Handle) {
        driver::cuLibraryGetKernelCount(count, library)
    }

    fn cudaLibraryEnumerateKernels(kernels: Out<Handle>, count: c_uint, library: Handle) {
        driver::cuLibraryEnumerateKernels(kernels, count, library)?;
        note_handles(kernels, count)
    }

    fn cudaKernelSetAttributeForDevice(
        kernel: Handle, attribute: c_int, value: c_int, device: c_int,
    ) {
        driver::cuKernelSetAttribute(attribute, value, kernel, device)
    }
}
