//! A fault in a kernel makes its context fail, is named in the error, and affects no other context.

mod common;
#[path = "common/ptx.rs"]
mod ptx;

use common::{context, device_memory, kernel, launch, on_machine, pinned, stream};
use cudarc::driver::sys;
use std::ptr::null_mut;

#[test]
fn an_illegal_address_is_sticky_and_named() {
    let report = on_machine("an_illegal_address_is_sticky_and_named", "pcie4", || {
        context(0);
        let store = kernel(ptx::STORE, "store");
        let queue = stream();
        let memory = device_memory(64);
        assert_eq!(launch(store, 1, 1, queue, &[memory + 60, 1]) as u32, 0);
        ok!(cuStreamSynchronize(queue));
        assert_eq!(launch(store, 1, 1, queue, &[memory + 64, 1]) as u32, 0);
        refused!(CUDA_ERROR_ILLEGAL_ADDRESS: cuStreamSynchronize(queue));
        refused!(CUDA_ERROR_ILLEGAL_ADDRESS: cuCtxSynchronize());
        let mut address = 0;
        refused!(CUDA_ERROR_ILLEGAL_ADDRESS: cuMemAlloc_v2(&mut address, 16));
        assert_eq!(
            launch(store, 1, 1, queue, &[memory, 1]),
            sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
        );
        // Another GPU of the same process is not touched.
        context(1);
        ok!(cuCtxSynchronize());
        // A reset gives a working context again.
        ok!(cuDevicePrimaryCtxReset_v2(0));
        context(0);
        let (store, memory) = (kernel(ptx::STORE, "store"), device_memory(4));
        assert_eq!(launch(store, 1, 1, null_mut(), &[memory, 77]) as u32, 0);
        let mut seen = 0u32;
        ok!(cuMemcpyDtoH_v2((&raw mut seen).cast(), memory, 4));
        assert_eq!(seen, 77);
    });
    if !report.is_empty() {
        for word in ["kernel store", "block [0, 0, 0]", "thread [0, 0, 0]", "st.global.u32", "64"] {
            assert!(report.contains(word), "the report lacks {word:?}:\n{report}");
        }
        let line = 1 + ptx::STORE.lines().position(|l| l.contains("st.global.u32")).unwrap();
        assert!(report.contains(&format!("line {line}")), "line {line} is not named:\n{report}");
        assert!(report.contains("past the end of the nearest allocation"), "{report}");
    }
}

#[test]
fn each_fault_has_the_code_that_cuda_defines() {
    on_machine("each_fault_has_the_code_that_cuda_defines", "pcie4", || {
        for (device, expected) in [
            (0, sys::CUresult::CUDA_ERROR_MISALIGNED_ADDRESS),
            (1, sys::CUresult::CUDA_ERROR_LAUNCH_FAILED),
            (2, sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS),
        ] {
            context(device);
            let memory = device_memory(64);
            let launched = match device {
                0 => launch(kernel(ptx::STORE, "store"), 1, 1, null_mut(), &[memory + 2, 1]),
                1 => launch(kernel(ptx::STORE, "trip"), 1, 1, null_mut(), &[]),
                _ => launch(kernel(ptx::STORE, "store"), 1, 1, null_mut(), &[0, 1]),
            };
            assert_eq!(launched as u32, 0);
            // SAFETY: the call takes nothing.
            assert_eq!(unsafe { sys::cuCtxSynchronize() }, expected);
        }
    });
}

/// A kernel of device 0 traps, and has certainly ended: a stream of device 1 has waited for the
/// event behind it, so that no call has told of the error yet. Gives the kernel and its stream.
fn trapped() -> (sys::CUfunction, sys::CUstream) {
    let other = context(1);
    let waiting = stream();
    context(0);
    let (trip, queue, mut event) = (kernel(ptx::STORE, "trip"), stream(), null_mut());
    ok!(cuEventCreate(&mut event, 2));
    assert_eq!(launch(trip, 1, 1, queue, &[]) as u32, 0);
    ok!(cuEventRecord(event, queue));
    ok!(cuCtxPushCurrent_v2(other));
    ok!(cuStreamWaitEvent(waiting, event, 0));
    ok!(cuStreamSynchronize(waiting));
    ok!(cuCtxPopCurrent_v2(null_mut()));
    (trip, queue)
}

/// Otherwise it would be luck, and the load of the host, which call of a program fails: cudarc's
/// own test of assertions records an event behind its launch, and asks only later.
#[test]
fn only_a_call_that_waits_or_asks_is_the_first_to_tell_of_a_fault() {
    let name = "only_a_call_that_waits_or_asks_is_the_first_to_tell_of_a_fault";
    on_machine(name, "pcie4", || {
        for asks in 0..5 {
            let (trip, queue) = trapped();
            let (mut event, mut address, host) = (null_mut(), 0, pinned(64));
            let kept = device_memory(4);
            ok!(cuEventCreate(&mut event, 2));
            ok!(cuEventRecord(event, queue));
            ok!(cuStreamWaitEvent(queue, event, 0));
            ok!(cuMemAlloc_v2(&mut address, 64));
            ok!(cuMemcpyHtoDAsync_v2(address, host.cast(), 64, queue));
            ok!(cuMemsetD8Async(address, 0, 64, queue));
            ok!(cuStreamWriteValue32_v2(queue, address, 1, 0));
            ok!(cuMemFreeAsync(address, queue));
            assert_eq!(launch(trip, 1, 1, queue, &[]) as u32, 0);
            match asks {
                0 => refused!(CUDA_ERROR_LAUNCH_FAILED: cuStreamSynchronize(queue)),
                1 => refused!(CUDA_ERROR_LAUNCH_FAILED: cuCtxSynchronize()),
                2 => refused!(CUDA_ERROR_LAUNCH_FAILED: cuEventSynchronize(event)),
                3 => refused!(CUDA_ERROR_LAUNCH_FAILED: cuEventQuery(event)),
                _ => refused!(CUDA_ERROR_LAUNCH_FAILED: cuMemcpyDtoH_v2(host.cast(), kept, 4)),
            }
            let launched = launch(trip, 1, 1, queue, &[]);
            assert_eq!(launched, sys::CUresult::CUDA_ERROR_LAUNCH_FAILED);
            refused!(CUDA_ERROR_LAUNCH_FAILED: cuEventRecord(event, queue));
            refused!(CUDA_ERROR_LAUNCH_FAILED: cuMemAlloc_v2(&mut address, 64));
            ok!(cuDevicePrimaryCtxReset_v2(0));
        }
    });
}

/// A program that only launches would go on for ever with a GPU that does nothing any more.
#[test]
fn a_program_that_never_asks_is_told_of_a_fault_in_the_end() {
    on_machine("a_program_that_never_asks_is_told_of_a_fault_in_the_end", "pcie4", || {
        let (trip, queue) = trapped();
        let taken = (0..5000).take_while(|_| launch(trip, 1, 1, queue, &[]) as u32 == 0).count();
        assert_eq!(taken, 1024);
        refused!(CUDA_ERROR_LAUNCH_FAILED: cuStreamSynchronize(queue));
    });
}

/// A fault must end kernels of the context that would wait for ever.
#[test]
fn a_fault_ends_the_other_kernels_of_its_context() {
    on_machine("a_fault_ends_the_other_kernels_of_its_context", "pcie4", || {
        context(0);
        let (mine, never) = (pinned(8) as u64, pinned(8) as u64);
        let (waiting, failing) = (stream(), stream());
        let meet = kernel(ptx::MEET, "meet");
        assert_eq!(launch(meet, 1, 32, waiting, &[mine, never, 1]) as u32, 0);
        assert_eq!(launch(kernel(ptx::STORE, "trip"), 1, 1, failing, &[]) as u32, 0);
        refused!(CUDA_ERROR_LAUNCH_FAILED: cuStreamSynchronize(waiting));
        refused!(CUDA_ERROR_LAUNCH_FAILED: cuStreamSynchronize(failing));
    });
}

#[test]
fn wrong_launches_are_refused_and_not_sticky() {
    on_machine("wrong_launches_are_refused_and_not_sticky", "pcie4", || {
        context(0);
        let small = kernel(ptx::VARIABLES, "small");
        let add = kernel(ptx::ADD, "add");
        let queue = null_mut();
        use sys::CUresult::*;
        assert_eq!(launch(small, 1, 65, queue, &[]), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(launch(small, 0, 32, queue, &[]), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(launch(add, 1, 1025, queue, &[0; 4]), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(launch(null_mut(), 1, 1, queue, &[]), CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(launch(0x77 as sys::CUfunction, 1, 1, queue, &[]), CUDA_ERROR_INVALID_HANDLE);
        let pointers = null_mut();
        refused!(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE:
            cuLaunchCooperativeKernel(small, 100_000, 1, 1, 64, 1, 1, 0, queue, pointers));
        ok!(cuLaunchCooperativeKernel(small, 80, 1, 1, 64, 1, 1, 0, queue, pointers));
        refused!(CUDA_ERROR_INVALID_VALUE:
            cuLaunchKernel(small, 1, 1, 1, 64, 1, 1, 1 << 20, queue, pointers, null_mut()));
        ok!(cuCtxSynchronize());
    });
}

#[test]
fn without_initialisation_or_context_calls_are_refused() {
    on_machine("without_initialisation_or_context_calls_are_refused", "one-gpu", || {
        let (mut count, mut address, mut context) = (0, 0, null_mut());
        refused!(CUDA_ERROR_NOT_INITIALIZED: cuDeviceGetCount(&mut count));
        refused!(CUDA_ERROR_INVALID_VALUE: cuInit(1));
        ok!(cuInit(0));
        ok!(cuDeviceGetCount(&mut count));
        assert_eq!(count, 1);
        refused!(CUDA_ERROR_INVALID_CONTEXT: cuMemAlloc_v2(&mut address, 16));
        refused!(CUDA_ERROR_INVALID_DEVICE: cuDevicePrimaryCtxRetain(&mut context, 1));
        refused!(CUDA_ERROR_INVALID_DEVICE: cuDevicePrimaryCtxRetain(&mut context, -1));
        refused!(CUDA_ERROR_INVALID_CONTEXT: cuCtxSetCurrent(0x55 as sys::CUcontext));
        ok!(cuDevicePrimaryCtxRetain(&mut context, 0));
        ok!(cuCtxSetCurrent(context));
        ok!(cuDevicePrimaryCtxRelease_v2(0));
        refused!(CUDA_ERROR_CONTEXT_IS_DESTROYED: cuMemAlloc_v2(&mut address, 16));
        refused!(CUDA_ERROR_INVALID_CONTEXT: cuDevicePrimaryCtxRelease_v2(0));
    });
}
