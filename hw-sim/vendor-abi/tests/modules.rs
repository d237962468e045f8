//! Modules, functions, symbols.

mod common;
#[path = "common/ptx.rs"]
mod ptx;

use common::{context, device_memory, launch, on_machine};
use cudarc::driver::sys;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::null_mut;

fn load(text: &str) -> sys::CUmodule {
    let (text, mut module) = (CString::new(text).unwrap(), null_mut());
    ok!(cuModuleLoadData(&mut module, text.as_ptr().cast()));
    module
}

#[test]
fn variables_are_placed_and_initialised() {
    on_machine("variables_are_placed_and_initialised", "pcie4", || {
        context(0);
        let module = load(ptx::VARIABLES);
        let (mut address, mut bytes) = (0, 0);
        ok!(cuModuleGetGlobal_v2(&mut address, &mut bytes, module, c"table".as_ptr()));
        assert_eq!(bytes, 16);
        let mut table = [0u32; 4];
        ok!(cuMemcpyDtoH_v2(table.as_mut_ptr().cast(), address, 16));
        assert_eq!(table, [1, 2, 3, 4]);
        let mut read = null_mut();
        ok!(cuModuleGetFunction(&mut read, module, c"read".as_ptr()));
        let out = device_memory(4);
        assert_eq!(launch(read, 1, 1, null_mut(), &[out]) as u32, 0);
        let mut seen = 0u32;
        ok!(cuMemcpyDtoH_v2((&raw mut seen).cast(), out, 4));
        assert_eq!(seen, 3, "through a pointer that the loader relocated");
        let constant = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES;
        let mut constant_bytes = -1;
        ok!(cuFuncGetAttribute(&mut constant_bytes, constant, read));
        assert_eq!(constant_bytes, 8, "the one constant variable");
        refused!(CUDA_ERROR_NOT_FOUND: cuModuleGetFunction(&mut read, module, c"none".as_ptr()));
        let mut again = null_mut();
        ok!(cuModuleGetFunction(&mut again, module, c"read".as_ptr()));
        ok!(cuModuleUnload(module));
        refused!(CUDA_ERROR_INVALID_HANDLE: cuModuleUnload(module));
        assert_eq!(
            launch(again, 1, 1, null_mut(), &[out]),
            sys::CUresult::CUDA_ERROR_INVALID_HANDLE
        );
    });
}

#[test]
fn bad_ptx_is_refused_with_a_log_that_names_the_line() {
    on_machine("bad_ptx_is_refused_with_a_log_that_names_the_line", "pcie4", || {
        context(0);
        let text = ptx::ADD.replace("add.f32", "frobnicate.f32");
        let line = 1 + text.lines().position(|line| line.contains("frobnicate")).unwrap();
        let text = CString::new(text).unwrap();
        let mut log = [0x55u8; 512];
        let mut options = [
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
        let mut module = null_mut();
        refused!(CUDA_ERROR_INVALID_PTX: cuModuleLoadDataEx(
            &mut module, text.as_ptr().cast(), 2, options.as_mut_ptr(), values.as_mut_ptr()));
        let log = CStr::from_bytes_until_nul(&log).unwrap().to_str().unwrap();
        assert!(log.contains("frobnicate") && log.contains(&line.to_string()), "{log:?}");
        refused!(CUDA_ERROR_NO_BINARY_FOR_GPU:
            cuModuleLoadData(&mut module, c"\x7fELF".as_ptr().cast()));
        ok!(cuCtxSynchronize());
    });
}

#[test]
fn libraries_load_in_each_context_that_uses_them() {
    on_machine("libraries_load_in_each_context_that_uses_them", "pcie4", || {
        context(0);
        let text = CString::new(ptx::VARIABLES).unwrap();
        let (mut library, mut kernel) = (null_mut(), null_mut());
        ok!(cuLibraryLoadData(
            &mut library,
            text.as_ptr().cast(),
            null_mut(),
            null_mut(),
            0,
            null_mut(),
            null_mut(),
            0
        ));
        ok!(cuLibraryGetKernel(&mut kernel, library, c"read".as_ptr()));
        for device in [0, 1] {
            context(device);
            let out = device_memory(4);
            // A kernel may be launched as if it were a function.
            let function = if device == 0 {
                kernel.cast()
            } else {
                let mut function = null_mut();
                ok!(cuKernelGetFunction(&mut function, kernel));
                function
            };
            assert_eq!(launch(function, 1, 1, null_mut(), &[out]) as u32, 0);
            let mut seen = 0u32;
            ok!(cuMemcpyDtoH_v2((&raw mut seen).cast(), out, 4));
            assert_eq!(seen, 3);
        }
        ok!(cuLibraryUnload(library));
    });
}

#[test]
fn attributes_and_occupancy_follow_the_description() {
    on_machine("attributes_and_occupancy_follow_the_description", "pcie4", || {
        context(0);
        let module = load(ptx::VARIABLES);
        let mut small = null_mut();
        ok!(cuModuleGetFunction(&mut small, module, c"small".as_ptr()));
        let mut value = 0;
        use sys::CUfunction_attribute::*;
        ok!(cuFuncGetAttribute(&mut value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, small));
        assert_eq!(value, 64);
        ok!(cuFuncGetAttribute(&mut value, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, small));
        assert_eq!(value, 1024);
        ok!(cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut value, small, 64, 0));
        assert_eq!(value, 32, "2048 threads, 32 blocks, 96 KiB of shared memory");
        ok!(cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut value, small, 64, 31 << 10));
        assert_eq!(value, 3);
        let raised = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        refused!(CUDA_ERROR_INVALID_VALUE: cuFuncSetAttribute(small, raised, 96 << 10));
        ok!(cuFuncSetAttribute(small, raised, 95 << 10));
        ok!(cuLaunchKernel(small, 1, 1, 1, 64, 1, 1, 95 << 10, null_mut(), null_mut(), null_mut()));
        ok!(cuCtxSynchronize());
        use sys::CUdevice_attribute::*;
        for (attribute, expected) in [
            (CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 80),
            (CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 7),
            (CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32),
            (CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1),
            (CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1),
            (CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1),
            (CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 4),
        ] {
            ok!(cuDeviceGetAttribute(&mut value, attribute, 0));
            assert_eq!(value, expected, "{attribute:?}");
        }
    });
}

#[test]
fn symbols_are_found_by_name_and_version() {
    on_machine("symbols_are_found_by_name_and_version", "pcie4", || {
        ok!(cuInit(0));
        let find = |name: &CStr, version| {
            let mut pointer = null_mut();
            let mut status = sys::CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS;
            // SAFETY: all four point to what the call reads and writes.
            let code = unsafe {
                sys::cuGetProcAddress_v2(name.as_ptr(), &mut pointer, version, 0, &mut status)
            };
            (code as u32, pointer)
        };
        let (code, pointer) = find(c"cuGetErrorName", 12040);
        assert_eq!(code, 0);
        // SAFETY: the symbol's type, from the vendor's header.
        let error_name: extern "C" fn(u32, *mut *const c_char) -> u32 =
            unsafe { std::mem::transmute(pointer) };
        let mut text = std::ptr::null();
        assert_eq!(error_name(700, &mut text), 0);
        // SAFETY: the driver's constant, NUL-terminated.
        assert_eq!(unsafe { CStr::from_ptr(text) }, c"CUDA_ERROR_ILLEGAL_ADDRESS");
        assert_eq!(error_name(12345, &mut text), 1);
        assert_eq!(find(c"cuMemAlloc", 12040).1, find(c"cuMemAlloc_v2", 12040).1);
        assert_ne!(find(c"cuCtxCreate", 3020).1, find(c"cuCtxCreate", 12040).1);
        assert_eq!(find(c"cuNoSuchThing", 12040).0, 500);
        assert!(!find(c"cuGraphLaunch", 12040).1.is_null(), "what is not supported has a symbol");
    });
}

/// NVIDIA's own runtime ends without its tables; its user must learn what to do, and once.
#[test]
fn a_private_table_is_refused_and_named_once() {
    let test = "a_private_table_is_refused_and_named_once";
    if common::is_inside(test) {
        context(0);
        let id = sys::CUuuid { bytes: std::array::from_fn(|index| index as c_char) };
        for _ in 0..3 {
            let mut table: *const c_void = std::ptr::dangling();
            refused!(CUDA_ERROR_NOT_FOUND: cuGetExportTable(&mut table, &id));
            assert!(table.is_null());
        }
        return;
    }
    let output = common::run_again(test, "one-gpu", &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    for words in ["00010203-0405-0607-0809-0a0b0c0d0e0f", "relink it with `-cudart shared`"] {
        assert_eq!(said.matches(words).count(), 1, "{words} in: {said}");
    }
}
