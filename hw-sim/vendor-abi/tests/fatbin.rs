//! Fat binaries through the driver: whichever call takes them, and on whichever GPU.

mod common;

use common::{context, device_memory, is_inside, launch, on_machine, run_again};
use cudarc::driver::sys;
use std::ffi::{CString, c_void};
use std::ptr::null_mut;

const PLAIN: &[u8] = include_bytes!("fixtures/fatbin/several-none.fatbin");
const LZ4: &[u8] = include_bytes!("fixtures/fatbin/several-speed.fatbin");
const ZSTD: &[u8] = include_bytes!("fixtures/fatbin/several-size.fatbin");
const MACHINE_CODE: &[u8] = include_bytes!("fixtures/fatbin/machine-code.fatbin");
const CUBIN: &[u8] = include_bytes!("fixtures/fatbin/machine-code.cubin");
const NEWER: &[u8] = include_bytes!("fixtures/fatbin/newer.fatbin");

/// The structure that nvcc puts into a program's data.
#[repr(C)]
struct Wrapper {
    magic: u32,
    version: u32,
    container: *const u8,
    unused: u64,
}

fn wrap(container: &[u8]) -> Wrapper {
    Wrapper { magic: 0x4662_43b1, version: 1, container: container.as_ptr(), unused: 0 }
}

/// A word of a variable of the module.
fn variable(module: sys::CUmodule, name: &str) -> u32 {
    let (name, mut address, mut bytes, mut value) = (CString::new(name).unwrap(), 0, 0, 0u32);
    ok!(cuModuleGetGlobal_v2(&mut address, &mut bytes, module, name.as_ptr()));
    ok!(cuMemcpyDtoH_v2((&raw mut value).cast(), address, 4));
    value
}

/// Runs the module's kernel and checks what it computes.
fn check_kernel(function: sys::CUfunction) {
    let (memory, mut seen) = (device_memory(4 * 100), [1.5f32; 100]);
    ok!(cuMemcpyHtoD_v2(memory, seen.as_ptr().cast(), 400));
    assert_eq!(launch(function, 4, 32, null_mut(), &[memory, 100]) as u32, 0);
    ok!(cuMemcpyDtoH_v2(seen.as_mut_ptr().cast(), memory, 400));
    assert_eq!(seen, [3.0; 100]);
}

fn check_module(module: sys::CUmodule, architecture: u32) {
    assert_eq!(variable(module, "architecture"), architecture, "another text was taken");
    let mut function = null_mut();
    ok!(cuModuleGetFunction(&mut function, module, c"scale".as_ptr()));
    check_kernel(function);
    ok!(cuModuleUnload(module));
}

fn every_call_takes_every_form(architecture: u32) {
    context(0);
    let folder = tempfile::tempdir().unwrap();
    for bytes in [PLAIN, LZ4, ZSTD] {
        let (mut module, wrapper) = (null_mut(), wrap(bytes));
        let wrapped: *const c_void = (&raw const wrapper).cast();
        for image in [bytes.as_ptr().cast(), wrapped] {
            ok!(cuModuleLoadData(&mut module, image));
            check_module(module, architecture);
            ok!(cuModuleLoadFatBinary(&mut module, image));
            check_module(module, architecture);
            ok!(cuModuleLoadDataEx(&mut module, image, 0, null_mut(), null_mut()));
            check_module(module, architecture);
        }
        let path = folder.path().join("scale.fatbin");
        std::fs::write(&path, bytes).unwrap();
        let path = CString::new(path.to_str().unwrap()).unwrap();
        ok!(cuModuleLoad(&mut module, path.as_ptr()));
        check_module(module, architecture);
        let (mut library, mut kernel, mut function) = (null_mut(), null_mut(), null_mut());
        ok!(cuLibraryLoadFromFile(
            &mut library,
            path.as_ptr(),
            null_mut(),
            null_mut(),
            0,
            null_mut(),
            null_mut(),
            0
        ));
        ok!(cuLibraryGetKernel(&mut kernel, library, c"scale".as_ptr()));
        ok!(cuKernelGetFunction(&mut function, kernel));
        check_kernel(function);
        ok!(cuLibraryUnload(library));
    }
}

#[test]
fn an_a100_takes_the_text_for_8_0() {
    on_machine("an_a100_takes_the_text_for_8_0", "dgx-a100", || every_call_takes_every_form(80));
}

#[test]
fn a_v100_takes_the_text_for_7_0() {
    on_machine("a_v100_takes_the_text_for_7_0", "dgx1v", || every_call_takes_every_form(70));
}

/// Without the names of what is there, a user does not learn what to build.
#[test]
fn what_cannot_run_is_refused_and_named() {
    let test = "what_cannot_run_is_refused_and_named";
    if is_inside(test) {
        context(0);
        let mut module = null_mut();
        for image in [MACHINE_CODE, CUBIN, NEWER] {
            refused!(CUDA_ERROR_NO_BINARY_FOR_GPU:
                cuModuleLoadData(&mut module, image.as_ptr().cast()));
        }
        ok!(cuCtxSynchronize());
        return;
    }
    let output = run_again(test, "dgx1v", &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    for words in [
        "PTX: none; machine code: sm_80",
        "machine code for sm_80",
        "PTX: compute_90a; machine code: sm_80",
    ] {
        assert_eq!(said.matches(words).count(), 1, "{words} in: {said}");
    }
}

/// Programs carry code for devices that they never use: only what is used may be wrong.
#[test]
fn a_library_is_decoded_when_a_kernel_is_asked_for() {
    on_machine("a_library_is_decoded_when_a_kernel_is_asked_for", "dgx1v", || {
        context(0);
        let mut broken = PLAIN.to_vec();
        let text = b".visible .entry scale";
        for at in 0..broken.len() - text.len() {
            if broken[at..].starts_with(text) {
                broken[at..at + 8].copy_from_slice(b".nothing");
            }
        }
        let (mut library, mut kernel) = (null_mut(), null_mut());
        ok!(cuLibraryLoadData(
            &mut library,
            broken.as_ptr().cast(),
            null_mut(),
            null_mut(),
            0,
            null_mut(),
            null_mut(),
            0
        ));
        refused!(CUDA_ERROR_INVALID_PTX:
            cuLibraryGetKernel(&mut kernel, library, c"scale".as_ptr()));
        ok!(cuLibraryUnload(library));
    });
}

/// A managed variable is one for all devices, and the host reads it where it lies.
#[test]
fn a_managed_variable_of_a_library_is_one_for_all_devices() {
    on_machine("a_managed_variable_of_a_library_is_one_for_all_devices", "pcie4", || {
        let (mut library, mut kernel) = (null_mut(), null_mut());
        let mut places = Vec::new();
        for device in [0, 1] {
            context(device);
            if device == 0 {
                ok!(cuLibraryLoadData(
                    &mut library,
                    PLAIN.as_ptr().cast(),
                    null_mut(),
                    null_mut(),
                    0,
                    null_mut(),
                    null_mut(),
                    0
                ));
                ok!(cuLibraryGetKernel(&mut kernel, library, c"scale".as_ptr()));
            }
            let mut function = null_mut();
            ok!(cuKernelGetFunction(&mut function, kernel));
            check_kernel(function);
            ok!(cuCtxSynchronize());
            let (mut address, mut bytes) = (0, 0);
            ok!(cuLibraryGetManaged(&mut address, &mut bytes, library, c"calls".as_ptr()));
            assert_eq!(bytes, 4);
            places.push(address);
            refused!(CUDA_ERROR_NOT_FOUND:
                cuLibraryGetManaged(&mut address, &mut bytes, library, c"factor".as_ptr()));
        }
        assert_eq!(places[0], places[1]);
        // SAFETY: managed memory is the host's too, and no kernel runs.
        let calls = unsafe { (places[0] as *const u32).read() };
        assert_eq!(calls, 40 + 2 * 100, "both devices counted the same variable");
    });
}

/// Sizes in headers that lead out of the program's memory.
#[test]
fn a_container_that_is_longer_than_memory_is_an_error() {
    on_machine("a_container_that_is_longer_than_memory_is_an_error", "one-gpu", || {
        context(0);
        let mut module = null_mut();
        for size in [u64::MAX, 1 << 60, 1 << 46] {
            let mut broken = PLAIN.to_vec();
            broken[8..16].copy_from_slice(&size.to_le_bytes());
            refused!(CUDA_ERROR_INVALID_IMAGE:
                cuModuleLoadData(&mut module, broken.as_ptr().cast()));
        }
        let mut wrapper = wrap(PLAIN);
        wrapper.container = 0x10 as *const u8;
        refused!(CUDA_ERROR_INVALID_IMAGE:
            cuModuleLoadData(&mut module, (&raw const wrapper).cast()));
        ok!(cuCtxSynchronize());
    });
}
