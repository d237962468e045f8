//! Streams.

use crate::call::{Out, Stream, runtime_calls, stream};
use crate::driver::{self, Handle, HostFunction, StreamCallback};
use crate::{Interface, interface};
use std::ffi::{c_int, c_uint};

runtime_calls! {
    with device_call;

    fn cudaStreamCreate(to: Out<Stream>) {
        driver::cuStreamCreate(to, 0)
    }

    fn cudaStreamCreateWithFlags(to: Out<Stream>, flags: c_uint) {
        driver::cuStreamCreate(to, flags)
    }

    fn cudaStreamCreateWithPriority(to: Out<Stream>, flags: c_uint, priority: c_int) {
        driver::cuStreamCreateWithPriority(to, flags, priority)
    }

    fn cudaStreamDestroy(on: Stream) {
        driver::cuStreamDestroy_v2(on)
    }

    #[twin(cudaStreamSynchronize_ptsz)]
    fn cudaStreamSynchronize(on: Stream) {
        driver::cuStreamSynchronize(stream(on))
    }

    #[twin(cudaStreamQuery_ptsz)]
    fn cudaStreamQuery(on: Stream) {
        driver::cuStreamQuery(stream(on))
    }

    #[twin(cudaStreamWaitEvent_ptsz)]
    fn cudaStreamWaitEvent(on: Stream, event: Handle, flags: c_uint) {
        driver::cuStreamWaitEvent(stream(on), event, flags)
    }

    #[twin(cudaStreamGetFlags_ptsz)]
    fn cudaStreamGetFlags(on: Stream, flags: Out<c_uint>) {
        driver::cuStreamGetFlags(stream(on), flags)
    }

    #[twin(cudaStreamGetPriority_ptsz)]
    fn cudaStreamGetPriority(on: Stream, priority: Out<c_int>) {
        driver::cuStreamGetPriority(stream(on), priority)
    }

    #[twin(cudaStreamGetId_ptsz)]
    fn cudaStreamGetId(on: Stream, id: Out<u64>) {
        driver::cuStreamGetId(stream(on), id)
    }

    #[twin(cudaStreamGetDevice_ptsz)]
    fn cudaStreamGetDevice(on: Stream, device: Out<c_int>) {
        device.require()?;
        let (mut context, mut before) = (0, 0);
        driver::cuStreamGetCtx(stream(on), Out::to(&mut context))?;
        driver::cuCtxGetCurrent(Out::to(&mut before))?;
        driver::cuCtxSetCurrent(context)?;
        let found = driver::cuCtxGetDevice(device);
        driver::cuCtxSetCurrent(before)?;
        found
    }

    #[twin(cudaStreamAddCallback_ptsz)]
    fn cudaStreamAddCallback(
        on: Stream, callback: Option<StreamCallback>, data: u64, flags: c_uint,
    ) {
        driver::cuStreamAddCallback(stream(on), callback, data, flags)
    }

    #[twin(cudaLaunchHostFunc_ptsz)]
    fn cudaLaunchHostFunc(on: Stream, function: Option<HostFunction>, data: u64) {
        driver::cuLaunchHostFunc(stream(on), function, data)
    }

    #[twin(cudaStreamAttachMemAsync_ptsz)]
    fn cudaStreamAttachMemAsync(on: Stream, address: u64, bytes: usize, flags: c_uint) {
        driver::cuStreamAttachMemAsync(stream(on), address, bytes, flags)
    }

    #[twin(cudaStreamCopyAttributes_ptsz)]
    fn cudaStreamCopyAttributes(to: Stream, from: Stream) {
        driver::cuStreamCopyAttributes(stream(to), stream(from))
    }

    #[twin(cudaStreamGetAttribute_ptsz)]
    fn cudaStreamGetAttribute(on: Stream, attribute: c_int, value: u64) {
        driver::cuStreamGetAttribute(stream(on), attribute, value)
    }

    #[twin(cudaStreamSetAttribute_ptsz)]
    fn cudaStreamSetAttribute(on: Stream, attribute: c_int, value: u64) {
        driver::cuStreamSetAttribute(stream(on), attribute, value)
    }

    #[twin(cudaStreamBeginCapture_ptsz)]
    fn cudaStreamBeginCapture(on: Stream, mode: c_int) {
        driver::cuStreamBeginCapture_v2(stream(on), mode)
    }

    #[twin(cudaStreamBeginCaptureToGraph_ptsz)]
    fn cudaStreamBeginCaptureToGraph(
        on: Stream, graph: Handle, dependencies: u64, data: u64, count: usize, mode: c_int,
    ) {
        let on = stream(on);
        driver::cuStreamBeginCaptureToGraph(on, graph, dependencies, data, count, mode)
    }

    #[twin(cudaStreamEndCapture_ptsz)]
    fn cudaStreamEndCapture(on: Stream, graph: Out<Handle>) {
        driver::cuStreamEndCapture(stream(on), graph)
    }

    #[twin(cudaStreamIsCapturing_ptsz)]
    fn cudaStreamIsCapturing(on: Stream, status: Out<c_int>) {
        driver::cuStreamIsCapturing(stream(on), status)
    }

    #[twin(cudaStreamGetCaptureInfo_ptsz)]
    fn cudaStreamGetCaptureInfo(
        on: Stream, status: Out<c_int>, id: Out<u64>, graph: Out<Handle>, dependencies: u64,
        sixth: u64, seventh: u64,
    ) {
        match interface() {
            // Three parameters: the rest is not there.
            Interface::V12 => driver::cuStreamGetCaptureInfo_v2(
                stream(on), status, id, Out::null(), 0, Out::null(),
            ),
            Interface::V13 => capture_info(
                stream(on), status, id, graph, dependencies, (sixth, Out::from_address(seventh)),
            ),
        }
    }

    #[twin(cudaStreamGetCaptureInfo_v2_ptsz)]
    fn cudaStreamGetCaptureInfo_v2(
        on: Stream, status: Out<c_int>, id: Out<u64>, graph: Out<Handle>, dependencies: u64,
        count: Out<usize>,
    ) {
        driver::cuStreamGetCaptureInfo_v2(stream(on), status, id, graph, dependencies, count)
    }

    #[twin(cudaStreamGetCaptureInfo_v3_ptsz)]
    fn cudaStreamGetCaptureInfo_v3(
        on: Stream, status: Out<c_int>, id: Out<u64>, graph: Out<Handle>, dependencies: u64,
        edges: u64, count: Out<usize>,
    ) {
        capture_info(stream(on), status, id, graph, dependencies, (edges, count))
    }

    #[twin(cudaStreamUpdateCaptureDependencies_ptsz)]
    fn cudaStreamUpdateCaptureDependencies(
        on: Stream, dependencies: u64, third: u64, fourth: u64, flags: c_uint,
    ) {
        match interface() {
            Interface::V12 => driver::cuStreamUpdateCaptureDependencies(
                stream(on), dependencies, third as usize, fourth as c_uint,
            ),
            Interface::V13 => driver::cuStreamUpdateCaptureDependencies_v2(
                stream(on), dependencies, third, fourth as usize, flags,
            ),
        }
    }

    #[twin(cudaStreamUpdateCaptureDependencies_v2_ptsz)]
    fn cudaStreamUpdateCaptureDependencies_v2(
        on: Stream, dependencies: u64, edges: u64, count: usize, flags: c_uint,
    ) {
        driver::cuStreamUpdateCaptureDependencies_v2(
            stream(on), dependencies, edges, count, flags,
        )
    }

    fn cudaThreadExchangeStreamCaptureMode(mode: Out<c_int>) {
        driver::cuThreadExchangeStreamCaptureMode(mode)
    }

    fn cudaDeviceGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        driver::cuCtxGetStreamPriorityRange(least, greatest)
    }
}

/// With edges' data only where the program asks for it: older drivers do not know edges.
fn capture_info(
    on: Stream,
    status: Out<c_int>,
    id: Out<u64>,
    graph: Out<Handle>,
    dependencies: u64,
    edges: (u64, Out<usize>),
) -> crate::error::Outcome {
    match edges {
        (0, count) => driver::cuStreamGetCaptureInfo_v2(on, status, id, graph, dependencies, count),
        (data, count) => {
            driver::cuStreamGetCaptureInfo_v3(on, status, id, graph, dependencies, data, count)
        }
    }
}
