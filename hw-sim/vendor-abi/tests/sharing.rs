//! Memory shared between GPUs and between processes.

mod common;
#[path = "common/ptx.rs"]
mod ptx;

use common::{
    context, device_memory, driver_folder, is_inside, kernel, launch, on_machine, pinned, stream,
};
use cudarc::driver::sys;
use std::env;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

#[test]
fn kernels_reach_a_peer_only_when_it_is_enabled() {
    on_machine("kernels_reach_a_peer_only_when_it_is_enabled", "pcie4", || {
        let first = context(0);
        let far = device_memory(64);
        context(1);
        let store = kernel(ptx::STORE, "store");
        let mut can = 0;
        ok!(cuDeviceCanAccessPeer(&mut can, 1, 0));
        assert_eq!(can, 1);
        ok!(cuDeviceCanAccessPeer(&mut can, 1, 1));
        assert_eq!(can, 0);
        ok!(cuCtxEnablePeerAccess(first, 0));
        refused!(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED: cuCtxEnablePeerAccess(first, 0));
        assert_eq!(launch(store, 1, 1, null_mut(), &[far, 5]) as u32, 0);
        ok!(cuCtxSynchronize());
        let mut seen = 0u32;
        ok!(cuMemcpyDtoH_v2((&raw mut seen).cast(), far, 4));
        assert_eq!(seen, 5);
        ok!(cuCtxDisablePeerAccess(first));
        refused!(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED: cuCtxDisablePeerAccess(first));
        // The copy engine goes where kernels may not.
        let near = device_memory(64);
        ok!(cuMemcpyPeer(near, context(1), far, first, 4));
        ok!(cuMemcpyDtoH_v2((&raw mut seen).cast(), near, 4));
        assert_eq!(seen, 5);
        assert_eq!(launch(store, 1, 1, null_mut(), &[far, 6]) as u32, 0);
        refused!(CUDA_ERROR_ILLEGAL_ADDRESS: cuCtxSynchronize());
    });
}

/// If this fails, a copy between two GPUs overtakes a kernel of the other GPU that writes its
/// source, or is overtaken by one: programs like CUDA's simpleP2P, and CuPy's copies between
/// devices, then read old data at times.
#[test]
fn a_peer_copy_is_ordered_with_work_of_both_contexts() {
    on_machine("a_peer_copy_is_ordered_with_work_of_both_contexts", "pcie4", || {
        let first = context(0);
        // SAFETY: pinned memory of four bytes, aligned, which nothing else uses yet.
        let gate = unsafe { AtomicU32::from_ptr(pinned(4).cast()) };
        let target = device_memory(4);
        for call in ["Peer", "DtoD", "PeerAsync", "Async"] {
            gate.store(0, Ordering::Relaxed);
            let second = context(1);
            let source = device_memory(4);
            // Not ordered with the default stream by any other rule.
            let queues = [stream(), stream()];
            ok!(cuMemsetD32_v2(source, 1, 1));
            ok!(cuCtxSynchronize());
            ok!(cuStreamWaitValue32_v2(queues[0], gate.as_ptr() as u64, 1, 0));
            ok!(cuMemsetD32Async(source, 2, 1, queues[0]));
            context(0);
            // The asynchronous ones on the default stream.
            let none = null_mut();
            match call {
                "Peer" => ok!(cuMemcpyPeer(target, first, source, second, 4)),
                "DtoD" => ok!(cuMemcpyDtoD_v2(target, source, 4)),
                "PeerAsync" => ok!(cuMemcpyPeerAsync(target, first, source, second, 4, none)),
                _ => ok!(cuMemcpyAsync(target, source, 4, none)),
            }
            context(1);
            ok!(cuMemsetD32Async(source, 3, 1, queues[1]));
            // All of that has been submitted before the first of it can run.
            gate.store(1, Ordering::Release);
            ok!(cuCtxSynchronize());
            context(0);
            let mut seen = [0u32; 2];
            for (word, address) in seen.iter_mut().zip([target, source]) {
                ok!(cuMemcpyDtoH_v2(std::ptr::from_mut(word).cast(), address, 4));
            }
            assert_eq!(seen, [2, 3], "cuMemcpy{call}");
        }
    });
}

#[test]
fn gpus_without_a_path_are_no_peers() {
    on_machine("gpus_without_a_path_are_no_peers", "dgx1v", || {
        // GPU 0 has NVLinks to 1, 2, 3 and 4, and none to 5; 5 is below the other processor.
        let first = context(0);
        context(5);
        let mut can = 1;
        ok!(cuDeviceCanAccessPeer(&mut can, 5, 0));
        assert_eq!(can, 0);
        refused!(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED: cuCtxEnablePeerAccess(first, 0));
        ok!(cuDeviceCanAccessPeer(&mut can, 4, 0));
        assert_eq!(can, 1);
    });
}

const BYTES: usize = 3 << 20;

/// The other process: opens the handle that it reads, checks, writes, and says so.
#[test]
#[ignore = "the second process of device_memory_is_shared_between_processes"]
fn second_process() {
    assert!(is_inside("second_process"), "started by device_memory_is_shared_between_processes");
    context(1);
    let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
    let mut bytes = [0u8; 64];
    std::io::stdin().read_exact(&mut bytes).unwrap();
    handle.reserved.copy_from_slice(&bytes.map(|byte| byte as std::ffi::c_char));
    let mut address = 0;
    ok!(cuIpcOpenMemHandle_v2(&mut address, handle, 1));
    let mut again = 0;
    ok!(cuIpcOpenMemHandle_v2(&mut again, handle, 1));
    assert_eq!(again, address);
    let mut host = vec![0u8; BYTES];
    ok!(cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), address, BYTES));
    assert!(host.iter().all(|byte| *byte == 0x5a));
    // A kernel of GPU 1 writes to the memory of GPU 0 in the other process.
    let last = address + BYTES as u64 - 4;
    let store = kernel(ptx::STORE, "store");
    assert_eq!(launch(store, 1, 1, null_mut(), &[last, 0xfeed]) as u32, 0);
    ok!(cuCtxSynchronize());
    ok!(cuIpcCloseMemHandle(address));
    ok!(cuIpcCloseMemHandle(address));
    refused!(CUDA_ERROR_INVALID_VALUE: cuIpcCloseMemHandle(address));
    refused!(CUDA_ERROR_INVALID_VALUE: cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), address, 1));
}

#[test]
fn device_memory_is_shared_between_processes() {
    on_machine("device_memory_is_shared_between_processes", "pcie4", || {
        context(0);
        let memory = device_memory(BYTES);
        ok!(cuMemsetD8_v2(memory, 0x5a, BYTES));
        ok!(cuCtxSynchronize());
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        ok!(cuIpcGetMemHandle(&mut handle, memory));
        let mut own = 0;
        refused!(CUDA_ERROR_INVALID_CONTEXT: cuIpcOpenMemHandle_v2(&mut own, handle, 1));
        let folder = driver_folder();
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "second_process", "--nocapture", "--include-ignored"])
            .env("LD_LIBRARY_PATH", folder.path())
            .env("HWSIM_TEST_INSIDE", "second_process")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let bytes = handle.reserved.map(|byte| byte as u8);
        child.stdin.take().unwrap().write_all(&bytes).unwrap();
        assert!(child.wait().unwrap().success());
        let mut last = 0u32;
        ok!(cuMemcpyDtoH_v2((&raw mut last).cast(), memory + BYTES as u64 - 4, 4));
        assert_eq!(last, 0xfeed);
        ok!(cuMemFree_v2(memory));
        let left = std::fs::read_dir("/dev/shm").map(|entries| {
            entries.flatten().filter(|e| e.file_name().to_string_lossy().contains("hwsim")).count()
        });
        assert_eq!(left.unwrap_or(0), 0, "shared memory was left in /dev/shm");
    });
}

#[test]
fn handles_that_are_none_are_refused() {
    on_machine("handles_that_are_none_are_refused", "pcie4", || {
        context(0);
        let mut address = 0;
        let handle = sys::CUipcMemHandle { reserved: [3; 64] };
        refused!(CUDA_ERROR_INVALID_VALUE: cuIpcOpenMemHandle_v2(&mut address, handle, 1));
        let mut handle = handle;
        refused!(CUDA_ERROR_INVALID_VALUE: cuIpcGetMemHandle(&mut handle, 4096));
    });
}
