//! Memory and copies, through `cudarc`.

mod common;

use common::{context, device_memory, on_machine, pinned, stream};
use cudarc::driver::sys;
use std::ptr::null_mut;

fn to_host(address: u64, bytes: usize) -> Vec<u8> {
    let mut host = vec![0u8; bytes];
    ok!(cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), address, bytes));
    host
}

#[test]
fn bytes_survive_every_direction_and_size() {
    on_machine("bytes_survive_every_direction_and_size", "pcie4", || {
        context(0);
        for bytes in [1usize, 7, 4096, 65536, 65537, 3 << 20, (5 << 20) + 13] {
            let data: Vec<u8> = (0..bytes).map(|i| (i * 31 % 251) as u8).collect();
            let (a, b) = (device_memory(bytes), device_memory(bytes));
            ok!(cuMemcpyHtoD_v2(a, data.as_ptr().cast(), bytes));
            ok!(cuMemcpyDtoD_v2(b, a, bytes));
            assert_eq!(to_host(b, bytes), data, "{bytes} bytes");
            let host = pinned(bytes);
            let queue = stream();
            ok!(cuMemcpyDtoHAsync_v2(host.cast(), b, bytes, queue));
            ok!(cuStreamSynchronize(queue));
            // SAFETY: pinned memory of that size, and the copy is done.
            assert_eq!(unsafe { std::slice::from_raw_parts(host, bytes) }, data);
            ok!(cuMemFree_v2(a));
            ok!(cuMemFree_v2(b));
            ok!(cuMemFreeHost(host.cast()));
            ok!(cuStreamDestroy_v2(queue));
        }
    });
}

#[test]
fn fills_of_every_width_and_pitch() {
    on_machine("fills_of_every_width_and_pitch", "pcie4", || {
        context(0);
        let a = device_memory(4096);
        ok!(cuMemsetD8_v2(a, 0xee, 4096));
        ok!(cuMemsetD32_v2(a, 0x01020304, 3));
        ok!(cuMemsetD16_v2(a + 12, 0x0506, 2));
        assert_eq!(to_host(a, 17), [4, 3, 2, 1, 4, 3, 2, 1, 4, 3, 2, 1, 6, 5, 6, 5, 0xee]);
        ok!(cuMemsetD2D8_v2(a, 64, 7, 3, 5));
        let seen = to_host(a, 512);
        for (index, byte) in seen.iter().enumerate().skip(64) {
            let inside = index / 64 < 5 && index % 64 < 3;
            assert_eq!(*byte == 7, inside, "at {index}");
        }
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemsetD32_v2(a + 2, 0, 1));
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemsetD8_v2(a, 0, 4097));
    });
}

#[test]
fn rows_are_copied_with_their_pitches() {
    on_machine("rows_are_copied_with_their_pitches", "pcie4", || {
        context(0);
        let a = device_memory(1024);
        ok!(cuMemsetD8_v2(a, 0, 1024));
        let host: Vec<u8> = (0..100).collect();
        let request = sys::CUDA_MEMCPY2D {
            srcXInBytes: 2,
            srcY: 1,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
            srcHost: host.as_ptr().cast(),
            srcDevice: 0,
            srcArray: null_mut(),
            srcPitch: 10,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: null_mut(),
            dstDevice: a,
            dstArray: null_mut(),
            dstPitch: 32,
            WidthInBytes: 4,
            Height: 3,
        };
        ok!(cuMemcpy2D_v2(&request));
        let seen = to_host(a, 128);
        assert_eq!(seen[..5], [12, 13, 14, 15, 0]);
        assert_eq!(seen[32..37], [22, 23, 24, 25, 0]);
        assert_eq!(seen[64..69], [32, 33, 34, 35, 0]);
        assert_eq!(seen[96], 0);
    });
}

#[test]
fn wrong_ranges_and_pointers_are_refused_and_harm_nothing() {
    on_machine("wrong_ranges_and_pointers_are_refused_and_harm_nothing", "pcie4", || {
        context(0);
        let a = device_memory(100);
        let mut byte = 0u8;
        let host: *mut u8 = &mut byte;
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemcpyDtoH_v2(host.cast(), a + 100, 1));
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemcpyDtoH_v2(host.cast(), 64, 1));
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemcpyDtoD_v2(a, a + 50, 51));
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemcpyHtoD_v2(a, std::ptr::null(), 1));
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemFree_v2(a + 1));
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemAlloc_v2(null_mut(), 16));
        let mut address = 0;
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemAlloc_v2(&mut address, 0));
        refused!(CUDA_ERROR_OUT_OF_MEMORY: cuMemAlloc_v2(&mut address, 1 << 40));
        refused!(CUDA_ERROR_OUT_OF_MEMORY: cuMemAlloc_v2(&mut address, usize::MAX));
        ok!(cuMemFree_v2(a));
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemFree_v2(a));
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemFreeHost(host.cast()));
        refused!(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED: cuMemHostUnregister(host.cast()));
        ok!(cuMemFree_v2(0));
    });
}

#[test]
fn memory_use_is_counted_and_large_memory_costs_nothing_untouched() {
    let name = "memory_use_is_counted_and_large_memory_costs_nothing_untouched";
    on_machine(name, "pcie4", || {
        context(1);
        let usage = || {
            let (mut free, mut total) = (0, 0);
            ok!(cuMemGetInfo_v2(&mut free, &mut total));
            (free, total)
        };
        let (free, total) = usage();
        assert_eq!((free, total), (16 << 30, 16 << 30));
        let a = device_memory(12 << 30);
        assert_eq!(usage().0, 4 << 30);
        let mut refused = 0;
        refused!(CUDA_ERROR_OUT_OF_MEMORY: cuMemAlloc_v2(&mut refused, 5 << 30));
        ok!(cuMemFree_v2(a));
        assert_eq!(usage().0, free);
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kib: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
        assert!(kib < 200 << 10, "{kib} KiB resident for memory that was never touched");
    });
}

#[test]
fn pointer_attributes_describe_the_memory() {
    on_machine("pointer_attributes_describe_the_memory", "pcie4", || {
        let own = context(2);
        let a = device_memory(1000);
        let host = pinned(64);
        let mut kind = 0u32;
        use sys::CUpointer_attribute_enum::*;
        let room = (&raw mut kind).cast();
        ok!(cuPointerGetAttribute(room, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, a + 5));
        assert_eq!(kind, 2);
        ok!(cuPointerGetAttribute(room, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, a));
        assert_eq!(kind, 2);
        ok!(cuPointerGetAttribute(room, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, host as u64));
        assert_eq!(kind, 1);
        let mut context = null_mut::<std::ffi::c_void>();
        let room = (&raw mut context).cast();
        ok!(cuPointerGetAttribute(room, CU_POINTER_ATTRIBUTE_CONTEXT, a));
        assert_eq!(context, own.cast());
        // What a pointer into the middle of memory is to the other side is no pointer to its start:
        // a module's managed variables may lie in one allocation.
        let middle = host as u64 + 12;
        let mut seen = 0u64;
        for attribute in [CU_POINTER_ATTRIBUTE_HOST_POINTER, CU_POINTER_ATTRIBUTE_DEVICE_POINTER] {
            ok!(cuPointerGetAttribute((&raw mut seen).cast(), attribute, middle));
            assert_eq!(seen, middle);
        }
        ok!(cuPointerGetAttribute(
            (&raw mut seen).cast(),
            CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
            a + 8
        ));
        assert_eq!(seen, a + 8);
        let on_stack = 0u8;
        let address = &raw const on_stack as u64;
        refused!(CUDA_ERROR_INVALID_VALUE:
            cuPointerGetAttribute(room, CU_POINTER_ATTRIBUTE_CONTEXT, address));
        let (mut base, mut size) = (0, 0);
        ok!(cuMemGetAddressRange_v2(&mut base, &mut size, a + 999));
        assert_eq!((base, size), (a, 1000));
        let mut flags = 0;
        ok!(cuMemHostGetFlags(&mut flags, host.cast()));
        assert_eq!(flags & 2, 2);
        let mut mapped = 0;
        ok!(cuMemHostGetDevicePointer_v2(&mut mapped, host.cast(), 0));
        assert_eq!(mapped, host as u64);
    });
}

#[test]
fn registered_memory_joins_and_leaves() {
    on_machine("registered_memory_joins_and_leaves", "pcie4", || {
        context(0);
        let mut host = vec![5u8; 10000];
        let pointer = host.as_mut_ptr();
        ok!(cuMemHostRegister_v2(pointer.cast(), 10000, 2));
        refused!(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
            cuMemHostRegister_v2(pointer.cast(), 10, 2));
        // SAFETY: within the vector.
        let inside = unsafe { pointer.add(1000) };
        let mut device = 0;
        ok!(cuMemHostGetDevicePointer_v2(&mut device, inside.cast(), 0));
        ok!(cuMemsetD8_v2(device, 9, 10));
        ok!(cuCtxSynchronize());
        ok!(cuMemHostUnregister(pointer.cast()));
        assert_eq!(host[999..1012], [5, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 5, 5]);
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemsetD8_v2(device, 9, 10));
    });
}

#[test]
fn pools_and_stream_ordered_allocation() {
    on_machine("pools_and_stream_ordered_allocation", "pcie4", || {
        context(0);
        let queue = stream();
        let (mut a, mut b) = (1, 0);
        // As cuda.core's tests of 1.0.1 do, which NVIDIA runs on GPUs.
        ok!(cuMemAllocAsync(&mut a, 0, queue));
        ok!(cuMemFreeAsync(a, queue));
        ok!(cuMemAllocAsync(&mut a, 1 << 20, queue));
        ok!(cuMemsetD8Async(a, 3, 1 << 20, queue));
        ok!(cuMemFreeAsync(a, queue));
        ok!(cuMemAllocAsync(&mut b, 1 << 20, queue));
        ok!(cuMemFreeAsync(b, queue));
        ok!(cuStreamSynchronize(queue));
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemFreeAsync(a, queue));
        let mut pool = null_mut();
        ok!(cuDeviceGetDefaultMemPool(&mut pool, 0));
        let mut keep = u64::MAX;
        use sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD as THRESHOLD;
        ok!(cuMemPoolSetAttribute(pool, THRESHOLD, (&raw mut keep).cast()));
        keep = 0;
        ok!(cuMemPoolGetAttribute(pool, THRESHOLD, (&raw mut keep).cast()));
        assert_eq!(keep, u64::MAX);
        // As much as there is, while as much is about to be freed.
        let (mut large, mut again) = (0, 0);
        ok!(cuMemAllocAsync(&mut large, 15 << 30, queue));
        ok!(cuMemFreeAsync(large, queue));
        ok!(cuMemAllocAsync(&mut again, 15 << 30, queue));
        ok!(cuMemFreeAsync(again, queue));
    });
}
