//! Stream capture: what is noted instead of run, and which calls of whom a capture forbids.

mod common;
#[path = "common/profile.rs"]
mod profile;
#[path = "common/ptx.rs"]
mod ptx;

use common::{context, device_memory, kernel, launch, pinned, stream};
use cudarc::driver::sys;
use cudarc::driver::sys::CUstreamCaptureMode_enum as Mode;
use cudarc::driver::sys::CUstreamCaptureStatus_enum as Status;
use profile::{address, with_keys, word};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

const KEYS: &str = "capture=on";

fn status(stream: sys::CUstream) -> Status {
    let mut status = Status::CU_STREAM_CAPTURE_STATUS_NONE;
    ok!(cuStreamIsCapturing(stream, &mut status));
    status
}

fn begin(mode: Mode) -> sys::CUstream {
    let queue = stream();
    ok!(cuStreamBeginCapture_v2(queue, mode));
    assert_eq!(status(queue), Status::CU_STREAM_CAPTURE_STATUS_ACTIVE);
    queue
}

/// Ends a capture that must be well.
fn end(queue: sys::CUstream) {
    let mut graph = null_mut();
    ok!(cuStreamEndCapture(queue, &mut graph));
    assert!(!graph.is_null());
    assert_eq!(status(queue), Status::CU_STREAM_CAPTURE_STATUS_NONE);
    ok!(cuGraphDestroy(graph));
}

/// Ends a capture that must have been invalidated.
fn end_invalidated(queue: sys::CUstream) {
    assert_eq!(status(queue), Status::CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    let mut graph = null_mut();
    refused!(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: cuStreamEndCapture(queue, &mut graph));
    assert!(graph.is_null());
    assert_eq!(status(queue), Status::CU_STREAM_CAPTURE_STATUS_NONE);
}

/// Runs in another thread on the same GPU, in this capture mode of the thread.
fn elsewhere(mode: Mode, body: impl FnOnce() + Send + 'static) {
    let run = move || {
        context(0);
        let mut mode = mode;
        ok!(cuThreadExchangeStreamCaptureMode(&mut mode));
        assert_eq!(mode, Mode::CU_STREAM_CAPTURE_MODE_GLOBAL, "a thread begins so");
        body();
    };
    std::thread::spawn(run).join().unwrap();
}

/// What ran in spite of the capture would run twice once graphs are launched.
#[test]
fn captured_commands_are_noted_and_not_run() {
    with_keys("captured_commands_are_noted_and_not_run", "one-gpu", &[(KEYS, &[])], || {
        context(0);
        let (store, flag) = (kernel(ptx::STORE, "store"), word());
        let queue = begin(Mode::CU_STREAM_CAPTURE_MODE_RELAXED);
        assert_eq!(launch(store, 1, 1, queue, &[address(flag), 7]) as u32, 0);
        ok!(cuStreamWriteValue64_v2(queue, address(flag), 8, 0));
        ok!(cuMemcpyAsync(address(flag), pinned(8) as u64, 8, queue));
        end(queue);
        ok!(cuCtxSynchronize());
        assert_eq!(flag.load(Ordering::Acquire), 0);
        ok!(cuStreamWriteValue64_v2(queue, address(flag), 9, 0));
        ok!(cuStreamSynchronize(queue));
        assert_eq!(flag.load(Ordering::Acquire), 9, "the stream runs again");
    });
}

/// A proxy's thread that is not in relaxed mode ends the captures of its users.
#[test]
fn an_unsafe_call_of_any_thread_invalidates_a_global_capture() {
    const NAME: &str = "an_unsafe_call_of_any_thread_invalidates_a_global_capture";
    with_keys(NAME, "one-gpu", &[(KEYS, &[])], || {
        context(0);
        let (mut event, memory) = (null_mut(), device_memory(64));
        ok!(cuEventCreate(&mut event, 2));
        let event = event as usize;
        let query = move || {
            let event = event as sys::CUevent;
            refused!(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: cuEventQuery(event));
        };
        let asked = move || ok!(cuEventQuery(event as sys::CUevent));
        let (global, local, relaxed) = (
            Mode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            Mode::CU_STREAM_CAPTURE_MODE_RELAXED,
        );
        let queue = begin(global);
        elsewhere(relaxed, asked);
        elsewhere(local, asked);
        // Asynchronous work of other streams is nobody's harm.
        elsewhere(global, move || ok!(cuMemsetD8Async(memory, 1, 8, stream())));
        elsewhere(global, query);
        end_invalidated(queue);

        let queue = begin(local);
        elsewhere(global, asked);
        let mut address = 0;
        refused!(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: cuMemAlloc_v2(&mut address, 8));
        end_invalidated(queue);

        let queue = begin(relaxed);
        elsewhere(global, asked);
        ok!(cuMemAlloc_v2(&mut address, 8));
        end(queue);
    });
}

/// A program that captures several streams in one thread, and makes a graph of the first while the
/// others are captured, fails on a real driver (an H100, driver 580.159).
#[test]
fn a_graph_is_not_instantiated_beside_a_capture_that_forbids_it() {
    const NAME: &str = "a_graph_is_not_instantiated_beside_a_capture_that_forbids_it";
    with_keys(NAME, "one-gpu", &[(KEYS, &[])], || {
        context(0);
        let (mut graph, mut made) = (null_mut(), null_mut());
        ok!(cuGraphCreate(&mut graph, 0));
        let handle = graph as usize;
        let instantiate = move || {
            let mut made = null_mut();
            ok!(cuGraphInstantiateWithFlags(&mut made, handle as sys::CUgraph, 0));
        };
        let is_refused = move || {
            let mut made = null_mut();
            let graph = handle as sys::CUgraph;
            refused!(
                CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
                cuGraphInstantiateWithFlags(&mut made, graph, 0)
            );
        };
        let (global, local, relaxed) = (
            Mode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            Mode::CU_STREAM_CAPTURE_MODE_RELAXED,
        );
        let queue = begin(global);
        elsewhere(relaxed, instantiate);
        elsewhere(global, is_refused);
        end_invalidated(queue);
        for mode in [global, local] {
            let queue = begin(mode);
            if mode == local {
                elsewhere(global, instantiate);
            }
            is_refused();
            end_invalidated(queue);
        }
        // The thread may do so in relaxed mode, and in a relaxed capture.
        let queue = begin(global);
        let mut mode = relaxed;
        ok!(cuThreadExchangeStreamCaptureMode(&mut mode));
        instantiate();
        ok!(cuThreadExchangeStreamCaptureMode(&mut mode));
        end(queue);
        let queue = begin(relaxed);
        ok!(cuGraphInstantiateWithFlags(&mut made, graph, 0));
        end(queue);
    });
}

/// A collective that forks to streams of its own must join them, or the user's capture fails.
#[test]
fn streams_join_by_events_and_must_be_joined_back() {
    const NAME: &str = "streams_join_by_events_and_must_be_joined_back";
    with_keys(NAME, "one-gpu", &[(KEYS, &[])], || {
        context(0);
        let (side, flag) = (stream(), word());
        let (mut fork, mut join, mut outside) = (null_mut(), null_mut(), null_mut());
        for event in [&mut fork, &mut join, &mut outside] {
            ok!(cuEventCreate(event, 2));
        }
        ok!(cuEventRecord(outside, side));
        let relaxed = Mode::CU_STREAM_CAPTURE_MODE_RELAXED;
        for joins in [true, false] {
            let queue = begin(relaxed);
            ok!(cuStreamWriteValue64_v2(queue, address(flag), 1, 0));
            ok!(cuEventRecord(fork, queue));
            ok!(cuStreamWaitEvent(side, fork, 0));
            assert_eq!(status(side), Status::CU_STREAM_CAPTURE_STATUS_ACTIVE);
            ok!(cuStreamWriteValue64_v2(side, address(flag), 2, 0));
            ok!(cuEventRecord(join, side));
            refused!(CUDA_ERROR_CAPTURED_EVENT: cuEventQuery(join));
            let mut graph = null_mut();
            refused!(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED: cuStreamEndCapture(side, &mut graph));
            if joins {
                ok!(cuStreamWaitEvent(queue, join, 0));
                end(queue);
            } else {
                refused!(
                    CUDA_ERROR_STREAM_CAPTURE_UNJOINED: cuStreamEndCapture(queue, &mut graph)
                );
            }
            assert_eq!(status(side), Status::CU_STREAM_CAPTURE_STATUS_NONE);
        }
        let queue = begin(relaxed);
        refused!(CUDA_ERROR_STREAM_CAPTURE_ISOLATION: cuStreamWaitEvent(queue, outside, 0));
        end_invalidated(queue);
        assert_eq!(flag.load(Ordering::Acquire), 0);
    });
}

#[test]
fn what_has_no_meaning_in_a_capture_is_refused() {
    const NAME: &str = "what_has_no_meaning_in_a_capture_is_refused";
    with_keys(NAME, "one-gpu", &[(KEYS, &[])], || {
        context(0);
        let (relaxed, mut graph) = (Mode::CU_STREAM_CAPTURE_MODE_RELAXED, null_mut());
        let idle = stream();
        refused!(CUDA_ERROR_ILLEGAL_STATE: cuStreamEndCapture(idle, &mut graph));
        refused!(
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: cuStreamBeginCapture_v2(null_mut(), relaxed)
        );
        let queue = begin(relaxed);
        refused!(CUDA_ERROR_ILLEGAL_STATE: cuStreamBeginCapture_v2(queue, relaxed));
        refused!(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: cuStreamSynchronize(queue));
        let flag = address(word());
        refused!(
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: cuStreamWriteValue64_v2(queue, flag, 1, 0)
        );
        end_invalidated(queue);
        // The default stream would wait for a captured one that it is ordered against.
        let (mut blocking, memory) = (null_mut(), device_memory(64));
        ok!(cuStreamCreate(&mut blocking, 0));
        ok!(cuStreamBeginCapture_v2(blocking, relaxed));
        refused!(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: cuMemsetD8Async(memory, 1, 8, null_mut()));
        end_invalidated(blocking);
        // One whose stream goes must not forbid calls for ever.
        let gone = begin(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL);
        ok!(cuStreamDestroy_v2(gone));
        device_memory(64);
        let queue = begin(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
        let handle = queue as usize;
        elsewhere(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL, move || {
            let (queue, mut graph) = (handle as sys::CUstream, null_mut());
            refused!(
                CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD: cuStreamEndCapture(queue, &mut graph)
            );
        });
        end(queue);
    });
}

/// Without the key nothing is captured, and nothing pretends to be.
#[test]
fn a_driver_without_capture_refuses_it() {
    with_keys("a_driver_without_capture_refuses_it", "one-gpu", &[("capture=off", &[])], || {
        context(0);
        let (queue, mode) = (stream(), Mode::CU_STREAM_CAPTURE_MODE_GLOBAL);
        refused!(CUDA_ERROR_NOT_SUPPORTED: cuStreamBeginCapture_v2(queue, mode));
    });
}
