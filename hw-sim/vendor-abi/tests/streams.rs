//! Streams, events, waits: order where it is promised, progress where kernels wait.

mod common;
#[path = "common/ptx.rs"]
mod ptx;

use common::{context, device_memory, eventually, kernel, launch, on_machine, pinned, stream};
use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg, sys};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A pinned word that kernels and the test share.
fn word() -> &'static AtomicU64 {
    // SAFETY: pinned memory of eight bytes, aligned to a page, zero, and never freed in this test.
    unsafe { AtomicU64::from_ptr(pinned(8).cast()) }
}

fn address(word: &AtomicU64) -> u64 {
    word.as_ptr() as u64
}

#[test]
fn vector_add_through_the_safe_api() {
    on_machine("vector_add_through_the_safe_api", "pcie4", || {
        let context = CudaContext::new(0).unwrap();
        assert!(context.name().unwrap().contains("(virtual)"));
        let queue = context.new_stream().unwrap();
        let module = context.load_module(cudarc::nvrtc::Ptx::from_src(ptx::ADD)).unwrap();
        let add = module.load_function("add").unwrap();
        for count in [1usize, 1000, 1 << 18] {
            let a: Vec<f32> = (0..count).map(|i| i as f32 * 0.5).collect();
            let b: Vec<f32> = (0..count).map(|i| (i % 1000) as f32 - 7.25).collect();
            let (da, db) = (queue.clone_htod(&a).unwrap(), queue.clone_htod(&b).unwrap());
            let mut dc = queue.alloc_zeros::<f32>(count).unwrap();
            let n = count as u64;
            let mut builder = queue.launch_builder(&add);
            builder.arg(&da).arg(&db).arg(&mut dc).arg(&n);
            // SAFETY: the arguments are those of the kernel, and the buffers hold `n` elements.
            unsafe { builder.launch(LaunchConfig::for_num_elems(count as u32)) }.unwrap();
            let c = queue.clone_dtoh(&dc).unwrap();
            for i in 0..count {
                assert_eq!(c[i].to_bits(), (a[i] + b[i]).to_bits(), "element {i} of {count}");
            }
        }
    });
}

#[test]
fn kernels_on_two_streams_that_wait_for_each_other_progress() {
    let name = "kernels_on_two_streams_that_wait_for_each_other_progress";
    on_machine(name, "pcie4", || {
        context(0);
        for name in ["meet", "spin"] {
            let meet = kernel(ptx::MEET, name);
            let (a, b) = (address(word()), address(word()));
            let (first, second) = (stream(), stream());
            assert_eq!(launch(meet, 1, 32, first, &[a, b, 200]) as u32, 0);
            assert_eq!(launch(meet, 1, 32, second, &[b, a, 200]) as u32, 0);
            ok!(cuStreamSynchronize(first));
            ok!(cuStreamSynchronize(second));
        }
    });
}

#[test]
fn kernels_of_two_gpus_that_wait_for_each_other_progress() {
    on_machine("kernels_of_two_gpus_that_wait_for_each_other_progress", "pcie4", || {
        let host = {
            context(0);
            (address(word()), address(word()))
        };
        let start = |device, mine, theirs| {
            context(device);
            let queue = stream();
            let meet = kernel(ptx::MEET, "meet");
            assert_eq!(launch(meet, 1, 64, queue, &[mine, theirs, 100]) as u32, 0);
            queue
        };
        let first = start(0, host.0, host.1);
        let second = start(3, host.1, host.0);
        ok!(cuStreamSynchronize(first));
        ok!(cuStreamSynchronize(second));
    });
}

/// A grid barrier needs every block resident, though there are far more blocks than workers.
#[test]
fn all_blocks_of_a_grid_barrier_run() {
    on_machine("all_blocks_of_a_grid_barrier_run", "pcie4", || {
        context(0);
        let arrive = kernel(ptx::ARRIVE, "arrive");
        let counter = word();
        let queue = stream();
        assert_eq!(launch(arrive, 160, 64, queue, &[address(counter), 160]) as u32, 0);
        ok!(cuStreamSynchronize(queue));
        assert_eq!(counter.load(Ordering::Acquire), 160);
    });
}

#[test]
fn a_kernel_and_the_host_see_each_other_through_pinned_memory() {
    let name = "a_kernel_and_the_host_see_each_other_through_pinned_memory";
    on_machine(name, "pcie4", || {
        context(0);
        let meet = kernel(ptx::MEET, "meet");
        let (mine, theirs) = (word(), word());
        let queue = stream();
        let arguments = [address(mine), address(theirs), 500];
        assert_eq!(launch(meet, 1, 32, queue, &arguments) as u32, 0);
        for round in 1..=500u64 {
            // Pairs with the kernel's release store and acquire load.
            eventually("the kernel's step", || mine.load(Ordering::Acquire) >= round);
            theirs.store(round, Ordering::Release);
        }
        ok!(cuStreamSynchronize(queue));
    });
}

#[test]
fn stream_order_holds_over_copies_kernels_and_writes() {
    on_machine("stream_order_holds_over_copies_kernels_and_writes", "pcie4", || {
        context(0);
        let queue = stream();
        let flag = word();
        // Small copies run in place, large ones on workers: order must hold over both.
        for (round, bytes) in [(1u64, 4096usize), (2, 4 << 20), (3, 256), (4, 9 << 20)] {
            let (a, b) = (device_memory(bytes), device_memory(bytes));
            for value in 0..8u8 {
                ok!(cuMemsetD8Async(a, value, bytes, queue));
                ok!(cuMemcpyDtoDAsync_v2(b, a, bytes, queue));
                ok!(cuMemsetD8Async(a, 0xff, bytes, queue));
                let signal = round * 8 + u64::from(value);
                ok!(cuStreamWriteValue64_v2(queue, address(flag), signal, 0));
                eventually("the write", || flag.load(Ordering::Acquire) == signal);
                let mut host = vec![0u8; bytes];
                ok!(cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), b, bytes));
                assert!(host.iter().all(|byte| *byte == value), "{bytes} bytes of {value}");
            }
        }
    });
}

#[test]
fn wait_values_hold_a_stream_until_their_condition() {
    on_machine("wait_values_hold_a_stream_until_their_condition", "pcie4", || {
        context(0);
        let (queue, gate, flag) = (stream(), word(), word());
        ok!(cuStreamWaitValue64_v2(queue, address(gate), 5, 0));
        ok!(cuStreamWriteValue64_v2(queue, address(flag), 1, 0));
        ok!(cuStreamWaitValue32_v2(queue, address(gate) + 4, 7, 1));
        ok!(cuStreamWriteValue32_v2(queue, address(flag), 2, 0));
        refused!(CUDA_ERROR_NOT_READY: cuStreamQuery(queue));
        gate.store(4, Ordering::Release);
        refused!(CUDA_ERROR_NOT_READY: cuStreamQuery(queue));
        gate.store(6, Ordering::Release);
        eventually("the first write", || flag.load(Ordering::Acquire) == 1);
        refused!(CUDA_ERROR_NOT_READY: cuStreamQuery(queue));
        gate.store(7 << 32, Ordering::Release);
        ok!(cuStreamSynchronize(queue));
        assert_eq!(flag.load(Ordering::Acquire), 2);
        refused!(CUDA_ERROR_INVALID_VALUE: cuStreamWaitValue64_v2(queue, address(gate) + 1, 5, 0));
        refused!(CUDA_ERROR_INVALID_VALUE: cuStreamWriteValue64_v2(queue, 4096, 5, 0));
    });
}

#[test]
fn events_order_streams_and_keep_time() {
    on_machine("events_order_streams_and_keep_time", "pcie4", || {
        context(0);
        let (first, second, gate, flag) = (stream(), stream(), word(), word());
        let (mut start, mut end) = (null_mut(), null_mut());
        ok!(cuEventCreate(&mut start, 0));
        ok!(cuEventCreate(&mut end, 0));
        ok!(cuEventQuery(end));
        ok!(cuEventRecord(start, first));
        ok!(cuStreamWaitValue64_v2(first, address(gate), 1, 0));
        ok!(cuEventRecord(end, first));
        ok!(cuStreamWaitEvent(second, end, 0));
        ok!(cuStreamWriteValue64_v2(second, address(flag), 1, 0));
        refused!(CUDA_ERROR_NOT_READY: cuEventQuery(end));
        let mut milliseconds = -1.0;
        refused!(CUDA_ERROR_NOT_READY: cuEventElapsedTime(&mut milliseconds, start, end));
        ok!(cuEventSynchronize(start));
        assert_eq!(flag.load(Ordering::Acquire), 0);
        gate.store(1, Ordering::Release);
        ok!(cuEventSynchronize(end));
        ok!(cuStreamSynchronize(second));
        assert_eq!(flag.load(Ordering::Acquire), 1);
        ok!(cuEventElapsedTime(&mut milliseconds, start, end));
        assert!((0.0..20_000.0).contains(&milliseconds), "{milliseconds} ms");
        ok!(cuEventDestroy_v2(start));
        refused!(CUDA_ERROR_INVALID_HANDLE: cuEventQuery(start));
    });
}

#[test]
fn the_default_stream_waits_for_blocking_streams_and_they_for_it() {
    let name = "the_default_stream_waits_for_blocking_streams_and_they_for_it";
    on_machine(name, "pcie4", || {
        context(0);
        let (mut blocking, gate) = (null_mut(), word());
        ok!(cuStreamCreate(&mut blocking, 0));
        let (free, flags) = (stream(), [word(), word(), word()]);
        ok!(cuStreamWaitValue64_v2(blocking, address(gate), 1, 0));
        ok!(cuStreamWriteValue64_v2(null_mut(), address(flags[0]), 1, 0));
        ok!(cuStreamWriteValue64_v2(blocking, address(flags[1]), 1, 0));
        ok!(cuStreamWriteValue64_v2(free, address(flags[2]), 1, 0));
        ok!(cuStreamSynchronize(free));
        assert_eq!(flags[2].load(Ordering::Acquire), 1, "a non-blocking stream waits for nobody");
        refused!(CUDA_ERROR_NOT_READY: cuStreamQuery(null_mut()));
        assert_eq!(flags[0].load(Ordering::Acquire), 0);
        gate.store(1, Ordering::Release);
        ok!(cuCtxSynchronize());
        assert_eq!(flags[0].load(Ordering::Acquire) + flags[1].load(Ordering::Acquire), 2);
    });
}

static CALLS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_call(argument: *mut c_void) {
    CALLS.fetch_add(argument as u32, Ordering::SeqCst);
}

#[test]
fn host_functions_are_called_in_order() {
    on_machine("host_functions_are_called_in_order", "pcie4", || {
        context(0);
        let (queue, gate, flag) = (stream(), word(), word());
        ok!(cuStreamWaitValue64_v2(queue, address(gate), 1, 0));
        ok!(cuLaunchHostFunc(queue, Some(count_call), 5 as *mut c_void));
        ok!(cuStreamWriteValue64_v2(queue, address(flag), 1, 0));
        assert_eq!(CALLS.load(Ordering::SeqCst), 0);
        gate.store(1, Ordering::Release);
        eventually("the write after the call", || flag.load(Ordering::Acquire) == 1);
        assert_eq!(CALLS.load(Ordering::SeqCst), 5);
    });
}

/// If this fails, a program whose host functions call the driver works here, and gets an error
/// (`CUDA_ERROR_NOT_PERMITTED`, as from an H100) on a real one.
#[test]
fn host_functions_may_not_call_the_driver() {
    static CODES: [AtomicU64; 3] = [const { AtomicU64::new(u64::MAX) }; 3];
    extern "C" fn ask(_: *mut c_void) {
        let (mut version, mut memory) = (0, 0);
        // SAFETY: the targets outlive the calls, which may be refused.
        let codes = unsafe {
            [
                sys::cuMemAlloc_v2(&mut memory, 8),
                sys::cuStreamQuery(null_mut()),
                sys::cuDriverGetVersion(&mut version),
            ]
        };
        for (code, word) in codes.into_iter().zip(&CODES) {
            word.store(code as u64, Ordering::SeqCst);
        }
    }
    on_machine("host_functions_may_not_call_the_driver", "pcie4", || {
        context(0);
        let queue = stream();
        ok!(cuLaunchHostFunc(queue, Some(ask), null_mut()));
        ok!(cuStreamSynchronize(queue));
        let codes = [0, 1, 2].map(|index: usize| CODES[index].load(Ordering::SeqCst));
        assert_eq!(codes, [800, 800, 0]);
        // The thread that called it is nobody's; this one's calls are as before.
        device_memory(8);
    });
}

#[test]
fn a_stream_destroyed_with_work_finishes_it() {
    on_machine("a_stream_destroyed_with_work_finishes_it", "pcie4", || {
        context(0);
        let (queue, gate, flag) = (stream(), word(), word());
        ok!(cuStreamWaitValue64_v2(queue, address(gate), 1, 0));
        ok!(cuStreamWriteValue64_v2(queue, address(flag), 1, 0));
        ok!(cuStreamDestroy_v2(queue));
        refused!(CUDA_ERROR_INVALID_HANDLE: cuStreamQuery(queue));
        gate.store(1, Ordering::Release);
        eventually("the write", || flag.load(Ordering::Acquire) == 1);
        refused!(CUDA_ERROR_INVALID_HANDLE: cuStreamQuery(0x1234 as sys::CUstream));
    });
}
