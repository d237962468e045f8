//! Events.

use crate::call::{Out, Stream, runtime_calls, stream};
use crate::driver::{self, Handle, IpcHandle};
use std::ffi::{c_float, c_uint};

runtime_calls! {
    with device_call;

    fn cudaEventCreate(event: Out<Handle>) {
        driver::cuEventCreate(event, 0)
    }

    fn cudaEventCreateWithFlags(event: Out<Handle>, flags: c_uint) {
        driver::cuEventCreate(event, flags)
    }

    fn cudaEventDestroy(event: Handle) {
        driver::cuEventDestroy_v2(event)
    }

    #[twin(cudaEventRecord_ptsz)]
    fn cudaEventRecord(event: Handle, on: Stream) {
        driver::cuEventRecord(event, stream(on))
    }

    #[twin(cudaEventRecordWithFlags_ptsz)]
    fn cudaEventRecordWithFlags(event: Handle, on: Stream, flags: c_uint) {
        driver::cuEventRecordWithFlags(event, stream(on), flags)
    }

    fn cudaEventQuery(event: Handle) {
        driver::cuEventQuery(event)
    }

    fn cudaEventSynchronize(event: Handle) {
        driver::cuEventSynchronize(event)
    }

    fn cudaEventElapsedTime(milliseconds: Out<c_float>, start: Handle, end: Handle) {
        driver::cuEventElapsedTime(milliseconds, start, end)
    }

    fn cudaEventElapsedTime_v2(milliseconds: Out<c_float>, start: Handle, end: Handle) {
        driver::cuEventElapsedTime(milliseconds, start, end)
    }

    fn cudaIpcGetEventHandle(handle: Out<IpcHandle>, event: Handle) {
        driver::cuIpcGetEventHandle(handle, event)
    }

    fn cudaIpcOpenEventHandle(event: Out<Handle>, handle: IpcHandle) {
        driver::cuIpcOpenEventHandle(event, handle)
    }
}
