//! Virtual memory management: what kernels and copies reach through addresses of a program's own.

mod common;
#[path = "common/profile.rs"]
mod profile;
#[path = "common/ptx.rs"]
mod ptx;

use common::{context, kernel, launch};
use cudarc::driver::sys;
use profile::{has_key, with_keys};
use std::ptr::null_mut;
use sys::CUmemAccess_flags::{
    CU_MEM_ACCESS_FLAGS_PROT_NONE as NONE, CU_MEM_ACCESS_FLAGS_PROT_READ as READ,
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE as READ_WRITE,
};
use sys::CUmemAllocationHandleType as HandleType;
use sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD as DMA_BUF;

const PIECE: usize = 2 << 20;
const PRIVATE: HandleType = HandleType::CU_MEM_HANDLE_TYPE_NONE;
const DESCRIPTOR: HandleType = HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const FABRIC: HandleType = HandleType::CU_MEM_HANDLE_TYPE_FABRIC;

fn on(device: i32) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

fn properties(device: i32, kind: HandleType) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: kind,
        location: on(device),
        win32HandleMetaData: null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn create(device: i32) -> u64 {
    let mut handle = 0;
    ok!(cuMemCreate(&mut handle, PIECE, &properties(device, DESCRIPTOR), 0));
    handle
}

fn reserve(bytes: usize) -> u64 {
    let mut address = 0;
    ok!(cuMemAddressReserve(&mut address, bytes, 0, 0, 0));
    address
}

fn grant(address: u64, bytes: usize, device: i32, flags: sys::CUmemAccess_flags) {
    let access = sys::CUmemAccessDesc { location: on(device), flags };
    ok!(cuMemSetAccess(address, bytes, &access, 1));
}

fn free() -> usize {
    let (mut free, mut total) = (0, 0);
    ok!(cuMemGetInfo_v2(&mut free, &mut total));
    free
}

fn read(address: u64) -> u32 {
    let mut seen = 0u32;
    ok!(cuMemcpyDtoH_v2((&raw mut seen).cast(), address, 4));
    seen
}

/// What a kernel of the current context's GPU stores, and how that ends.
fn store(address: u64, value: u64) -> u32 {
    let store = kernel(ptx::STORE, "store");
    assert_eq!(launch(store, 1, 1, null_mut(), &[address, value]) as u32, 0);
    // SAFETY: it takes nothing.
    unsafe { sys::cuCtxSynchronize() as u32 }
}

#[test]
fn memory_is_reached_through_its_addresses() {
    const NAME: &str = "memory_is_reached_through_its_addresses";
    let body = || {
        context(0);
        let before = free();
        let (pieces, base) = ([create(0), create(0)], reserve(4 * PIECE));
        assert_eq!(before - free(), 2 * PIECE);
        for (place, piece) in pieces.into_iter().enumerate() {
            ok!(cuMemMap(base + (place * PIECE) as u64, PIECE, 0, piece, 0));
            // What is mapped stays.
            ok!(cuMemRelease(piece));
            refused!(CUDA_ERROR_INVALID_HANDLE: cuMemRelease(piece));
        }
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemsetD8_v2(base, 1, 1));
        grant(base, 2 * PIECE, 0, READ_WRITE);
        // Across the border of the two, and not beyond them.
        let border = base + PIECE as u64;
        ok!(cuMemsetD32_v2(border - 64, 5, 32));
        assert_eq!([border - 64, border + 60].map(read), [5; 2]);
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemsetD8_v2(border, 1, PIECE + 1));
        assert_eq!((store(border + 4, 6), read(border + 4)), (0, 6));
        // A range is what was mapped by one call.
        let (mut start, mut size) = (0, 0);
        ok!(cuMemGetAddressRange_v2(&mut start, &mut size, border + 100));
        assert_eq!((start, size), (border, PIECE));
        // The same memory at a second address.
        let mut again = 0;
        ok!(cuMemRetainAllocationHandle(&mut again, border as *mut _));
        ok!(cuMemMap(base + 3 * PIECE as u64, PIECE, 0, again, 0));
        grant(base + 3 * PIECE as u64, PIECE, 0, READ_WRITE);
        assert_eq!(read(base + 3 * PIECE as u64 + 4), 6);
        ok!(cuMemRelease(again));
        let mut flags = 9;
        ok!(cuMemGetAccess(&mut flags, &on(0), border));
        assert_eq!(flags, READ_WRITE as u64);
        ok!(cuMemGetAccess(&mut flags, &on(1), border));
        assert_eq!(flags, NONE as u64);
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemFree_v2(base));
        let mut ipc = sys::CUipcMemHandle { reserved: [0; 64] };
        refused!(CUDA_ERROR_INVALID_VALUE: cuIpcGetMemHandle(&mut ipc, base));
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemAddressFree(base, 4 * PIECE));
        ok!(cuMemUnmap(base, 2 * PIECE));
        assert_eq!(before - free(), PIECE, "one piece is still mapped");
        ok!(cuMemUnmap(base + 3 * PIECE as u64, PIECE));
        assert_eq!(free(), before);
        // The last word of the context.
        assert_eq!(store(border, 7), 700);
        ok!(cuMemAddressFree(base, 4 * PIECE));
    };
    with_keys(NAME, "pcie4", &[("", &[])], body);
}

/// Rights belong to the mapping: peer access of contexts neither gives nor takes them.
#[test]
fn each_gpu_needs_access_of_its_own() {
    const NAME: &str = "each_gpu_needs_access_of_its_own";
    let body = || {
        let first = context(0);
        let (piece, base) = (create(0), reserve(PIECE));
        ok!(cuMemMap(base, PIECE, 0, piece, 0));
        grant(base, PIECE, 0, READ_WRITE);
        grant(base, PIECE, 1, READ_WRITE);
        context(1);
        assert_eq!(store(base, 3), 0);
        grant(base, PIECE, 1, NONE);
        ok!(cuCtxEnablePeerAccess(first, 0));
        assert_eq!(store(base, 4), 700);
        context(0);
        assert_eq!(read(base), 3);
    };
    with_keys(NAME, "pcie4", &[("", &[])], body);
}

#[test]
fn memory_is_shared_as_a_descriptor() {
    const NAME: &str = "memory_is_shared_as_a_descriptor";
    let body = || {
        context(1);
        let (piece, base) = (create(1), reserve(2 * PIECE));
        let (mut descriptor, mut other) = (-1i32, 0);
        ok!(cuMemExportToShareableHandle((&raw mut descriptor).cast(), piece, DESCRIPTOR, 0));
        let shared = descriptor as usize as *mut std::ffi::c_void;
        ok!(cuMemImportFromShareableHandle(&mut other, shared, DESCRIPTOR));
        let mut seen = properties(0, PRIVATE);
        ok!(cuMemGetAllocationPropertiesFromHandle(&mut seen, other));
        assert_eq!((seen.location.id, seen.requestedHandleTypes), (1, DESCRIPTOR));
        ok!(cuMemMap(base, PIECE, 0, piece, 0));
        ok!(cuMemMap(base + PIECE as u64, PIECE, 0, other, 0));
        grant(base, 2 * PIECE, 1, READ_WRITE);
        assert_eq!(store(base, 8), 0);
        assert_eq!(read(base + PIECE as u64), 8);
        let closed = 1 << 20;
        refused!(CUDA_ERROR_INVALID_VALUE:
            cuMemImportFromShareableHandle(&mut other, closed as *mut _, DESCRIPTOR));
        assert_eq!(seen.allocFlags.gpuDirectRDMACapable, 1);
        let mut alone = 0;
        let mut for_adapters = properties(1, PRIVATE);
        for_adapters.allocFlags.gpuDirectRDMACapable = 1;
        ok!(cuMemCreate(&mut alone, PIECE, &for_adapters, 0));
        let buffer = (&raw mut descriptor).cast();
        ok!(cuMemGetHandleForAddressRange(buffer, base + 4096, 8192, DMA_BUF, 0));
        refused!(CUDA_ERROR_INVALID_VALUE:
            cuMemGetHandleForAddressRange(buffer, base, 2 * PIECE, DMA_BUF, 0));
        refused!(CUDA_ERROR_INVALID_VALUE:
            cuMemExportToShareableHandle((&raw mut descriptor).cast(), alone, DESCRIPTOR, 0));
    };
    with_keys(NAME, "pcie4", &[("", &[])], body);
}

#[test]
fn what_there_is_not_is_refused() {
    const NAME: &str = "what_there_is_not_is_refused";
    use sys::CUdevice_attribute::*;
    let body = || {
        context(0);
        let has = |attribute| {
            let mut value = -1;
            ok!(cuDeviceGetAttribute(&mut value, attribute, 0));
            value == 1
        };
        let is_there = !has_key("virtual-memory=off");
        assert_eq!(has(CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED), is_there);
        assert_eq!(has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED), is_there);
        let (mut bytes, mut handle, mut address) = (0, 0, 0);
        let plain = properties(0, PRIVATE);
        let option = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        if !is_there {
            refused!(CUDA_ERROR_NOT_SUPPORTED:
                cuMemGetAllocationGranularity(&mut bytes, &plain, option));
            refused!(CUDA_ERROR_NOT_SUPPORTED: cuMemCreate(&mut handle, PIECE, &plain, 0));
            refused!(CUDA_ERROR_NOT_SUPPORTED:
                cuMemAddressReserve(&mut address, PIECE, 0, 0, 0));
            return;
        }
        ok!(cuMemGetAllocationGranularity(&mut bytes, &plain, option));
        assert_eq!(bytes, PIECE);
        let wrong = [PIECE + 1, 0];
        for bytes in wrong {
            refused!(CUDA_ERROR_INVALID_VALUE: cuMemCreate(&mut handle, bytes, &plain, 0));
            refused!(CUDA_ERROR_INVALID_VALUE:
                cuMemAddressReserve(&mut address, bytes, 0, 0, 0));
        }
        refused!(CUDA_ERROR_OUT_OF_MEMORY: cuMemCreate(&mut handle, 1 << 46, &plain, 0));
        refused!(CUDA_ERROR_NOT_SUPPORTED:
            cuMemCreate(&mut handle, PIECE, &properties(0, FABRIC), 0));
        refused!(CUDA_ERROR_INVALID_DEVICE:
            cuMemCreate(&mut handle, PIECE, &properties(99, PRIVATE), 0));
        let (piece, base) = (create(0), reserve(2 * PIECE));
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemMap(base, PIECE, PIECE, piece, 0));
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemMap(base, 2 * PIECE, 0, piece, 0));
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemMap(base + 4096, PIECE, 0, piece, 0));
        refused!(CUDA_ERROR_INVALID_HANDLE: cuMemMap(base, PIECE, 0, piece + 1, 0));
        ok!(cuMemMap(base, PIECE, 0, piece, 0));
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemMap(base, PIECE, 0, piece, 0));
        let access = sys::CUmemAccessDesc { location: on(0), flags: READ };
        refused!(CUDA_ERROR_NOT_SUPPORTED: cuMemSetAccess(base, PIECE, &access, 1));
        let access = sys::CUmemAccessDesc { location: on(0), flags: READ_WRITE };
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemSetAccess(base, 2 * PIECE, &access, 1));
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemUnmap(base, PIECE / 2));
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemAddressFree(base, PIECE));
    };
    with_keys(NAME, "pcie4", &[("virtual-memory=off", &[]), ("", &[])], body);
}
