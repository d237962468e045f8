//! The linker: several inputs become one image, and what cannot be joined is refused by name.

mod common;

use common::{context, device_memory, launch, on_machine};
use cudarc::driver::sys;
use cudarc::driver::sys::CUjitInputType::{self, *};
use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;

const HEAD: &str = ".version 7.0\n.target sm_70\n.address_size 64\n";

/// A kernel that stores what `scale(5)` of another input gives, and that input's `shared_word`.
const MAIN: &str = "
.extern .func (.param .b32 r) scale (.param .b32 x);
.extern .global .align 4 .b32 shared_word;
.global .align 4 .b32 secret = 100;
.visible .entry main(.param .u64 out) {
    .param .b32 a; .param .b32 b;
    .reg .b32 %r<4>; .reg .b64 %rd<3>;
    ld.param.u64 %rd0, [out];
    cvta.to.global.u64 %rd1, %rd0;
    mov.b32 %r0, 5;
    st.param.b32 [a], %r0;
    call.uni (b), scale, (a);
    ld.param.b32 %r1, [b];
    ld.global.b32 %r2, [shared_word];
    ld.global.b32 %r3, [secret];
    st.global.b32 [%rd1], %r1;
    st.global.b32 [%rd1+4], %r2;
    st.global.b32 [%rd1+8], %r3;
    ret;
}";

/// Its `secret` is another one than that of `MAIN`.
const SCALE: &str = "
.visible .global .align 4 .b32 shared_word = 77;
.global .align 4 .b32 secret = 3;
.global .align 8 .u64 pointer = generic(secret);
.func (.param .b32 r) times (.param .b32 x) {
    .reg .b32 %r<3>; .reg .b64 %rd<2>;
    ld.param.b32 %r0, [x];
    ld.global.u64 %rd0, [pointer];
    ld.b32 %r1, [%rd0];
    mul.lo.s32 %r2, %r0, %r1;
    st.param.b32 [r], %r2;
    ret;
}
.visible .func (.param .b32 r) scale (.param .b32 x) {
    .param .b32 a; .param .b32 b;
    .reg .b32 %r<2>;
    ld.param.b32 %r0, [x];
    st.param.b32 [a], %r0;
    call.uni (b), times, (a);
    ld.param.b32 %r1, [b];
    st.param.b32 [r], %r1;
    ret;
}";

/// A link with both logs.
struct Link {
    state: sys::CUlinkState,
    error: Box<[u8; 1024]>,
    info: Box<[u8; 1024]>,
    /// The driver writes into the values for as long as the link lives.
    values: Box<[*mut c_void; 4]>,
}

impl Link {
    fn new() -> Self {
        use sys::CUjit_option::*;
        let (mut error, mut info) = (Box::new([0x55; 1024]), Box::new([0x55; 1024]));
        let mut options = [
            CU_JIT_INFO_LOG_BUFFER,
            CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
            CU_JIT_ERROR_LOG_BUFFER,
            CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let size = 1024 as *mut c_void;
        let mut values =
            Box::new([info.as_mut_ptr().cast(), size, error.as_mut_ptr().cast(), size]);
        let mut state = null_mut();
        ok!(cuLinkCreate_v2(4, options.as_mut_ptr(), values.as_mut_ptr(), &mut state));
        Self { state, error, info, values }
    }

    fn add_bytes(&self, kind: CUjitInputType, name: &str, bytes: &[u8]) -> sys::CUresult {
        let (name, data) = (CString::new(name).unwrap(), bytes.as_ptr().cast_mut().cast());
        let (state, none) = (self.state, null_mut());
        // SAFETY: the data are as long as said, and there are no options.
        unsafe {
            let options = null_mut();
            sys::cuLinkAddData_v2(state, kind, data, bytes.len(), name.as_ptr(), 0, options, none)
        }
    }

    fn add(&self, name: &str, text: &str) {
        let text = format!("{HEAD}{text}\0");
        let added = self.add_bytes(CU_JIT_INPUT_PTX, name, text.as_bytes());
        assert_eq!(added as u32, 0, "{name}: {}", self.errors());
    }

    fn complete(&self) -> Result<&'static [u8], sys::CUresult> {
        let (mut image, mut bytes) = (null_mut(), 0);
        // SAFETY: room for both results.
        match unsafe { sys::cuLinkComplete(self.state, &mut image, &mut bytes) } {
            sys::CUresult::CUDA_SUCCESS => {
                // SAFETY: the driver says so, until the link is destroyed.
                Ok(unsafe { std::slice::from_raw_parts(image.cast(), bytes) })
            }
            code => Err(code),
        }
    }

    fn errors(&self) -> &str {
        CStr::from_bytes_until_nul(&*self.error).unwrap().to_str().unwrap()
    }

    fn infos(&self) -> &str {
        CStr::from_bytes_until_nul(&*self.info).unwrap().to_str().unwrap()
    }
}

/// What the kernel `main` of an image stores.
fn run(image: &[u8]) -> [u32; 3] {
    let (mut module, mut function) = (null_mut(), null_mut());
    ok!(cuModuleLoadData(&mut module, image.as_ptr().cast()));
    ok!(cuModuleGetFunction(&mut function, module, c"main".as_ptr()));
    let out = device_memory(12);
    assert_eq!(launch(function, 1, 1, null_mut(), &[out]) as u32, 0);
    let mut seen = [0u32; 3];
    ok!(cuMemcpyDtoH_v2(seen.as_mut_ptr().cast(), out, 12));
    seen
}

#[test]
fn inputs_see_each_others_functions_and_variables_and_keep_their_own() {
    on_machine(
        "inputs_see_each_others_functions_and_variables_and_keep_their_own",
        "pcie4",
        || {
            context(0);
            for swapped in [false, true] {
                let link = Link::new();
                let mut inputs = [("main.ptx", MAIN), ("scale.ptx", SCALE)];
                if swapped {
                    inputs.reverse();
                }
                inputs.into_iter().for_each(|(name, text)| link.add(name, text));
                let image = link.complete().unwrap();
                assert_eq!(run(image), [15, 77, 100], "swapped: {swapped}");
                assert!(link.infos().contains("main"), "{:?}", link.infos());
                assert_eq!(link.values[1] as usize, link.infos().len());
                assert_eq!((link.errors(), link.values[3] as usize), ("", 0));
                assert_eq!(link.complete().unwrap().as_ptr(), image.as_ptr(), "twice is the same");
                // Programs copy the image, keep it in files, and forget the linker.
                let copy = image.to_vec();
                let late = link.add_bytes(CU_JIT_INPUT_PTX, "late", HEAD.as_bytes());
                assert_eq!(late, sys::CUresult::CUDA_ERROR_INVALID_VALUE);
                ok!(cuLinkDestroy(link.state));
                refused!(CUDA_ERROR_INVALID_HANDLE: cuLinkDestroy(link.state));
                assert_eq!(run(&copy), [15, 77, 100]);
                let file = tempfile::NamedTempFile::new().unwrap();
                std::fs::write(file.path(), &copy).unwrap();
                let path = CString::new(file.path().to_str().unwrap()).unwrap();
                let mut module = null_mut();
                ok!(cuModuleLoad(&mut module, path.as_ptr()));
                // It is an input of another link, too, as machine code is.
                let again = Link::new();
                let added = again.add_bytes(CU_JIT_INPUT_CUBIN, "linked", &copy);
                assert_eq!(added as u32, 0);
                assert_eq!(run(again.complete().unwrap()), [15, 77, 100]);
            }
        },
    );
}

#[test]
fn what_cannot_be_joined_is_named() {
    let err = on_machine("what_cannot_be_joined_is_named", "pcie4", || {
        context(0);
        let invalid = sys::CUresult::CUDA_ERROR_INVALID_IMAGE;
        let twice = Link::new();
        twice.add("main.ptx", MAIN);
        twice.add("first.ptx", SCALE);
        twice.add("second.ptx", SCALE);
        assert_eq!(twice.complete().unwrap_err(), invalid);
        for part in ["`scale`", "first.ptx", "second.ptx"] {
            assert!(twice.errors().contains(part), "{:?}", twice.errors());
        }
        assert_eq!(twice.values[3] as usize, twice.errors().len());
        let missing = Link::new();
        missing.add("main.ptx", MAIN);
        assert_eq!(missing.complete().unwrap_err(), invalid);
        assert!(missing.errors().contains("'scale' in 'main.ptx'"), "{:?}", missing.errors());
        let variable = Link::new();
        variable.add("main.ptx", MAIN);
        variable.add("scale.ptx", &SCALE.replace("shared_word", "other_word"));
        assert_eq!(variable.complete().unwrap_err(), invalid);
        assert!(variable.errors().contains("shared_word"), "{:?}", variable.errors());
        // The line is that of the input, though it is found when all are joined.
        let other = Link::new();
        other.add("scale.ptx", &SCALE.replace("mul.lo.s32", "mul.lo.f32"));
        other.add("main.ptx", MAIN);
        assert_eq!(other.complete().unwrap_err(), sys::CUresult::CUDA_ERROR_INVALID_PTX);
        let line = 4 + SCALE.lines().position(|line| line.contains("mul.lo")).unwrap();
        let expected = format!("scale.ptx: PTX line {line},");
        assert!(other.errors().contains(&expected), "{expected}: {}", other.errors());
        assert_eq!(Link::new().complete().unwrap_err(), invalid, "nothing at all");
    });
    let inside = common::is_inside("what_cannot_be_joined_is_named");
    assert!(inside || err.contains("multiple definition"), "{err}");
}

/// cuda.core frees its options when the link is made. A number that the driver writes there later
/// is in memory of somebody else: the program crashed in an allocation.
#[test]
fn a_link_whose_options_are_gone_writes_to_nobody_elses_memory() {
    const NAME: &str = "a_link_whose_options_are_gone_writes_to_nobody_elses_memory";
    on_machine(NAME, "one-gpu", || {
        context(0);
        let mut link = Link::new();
        link.values[1] = 0x1234_5678_9abc as *mut c_void;
        link.values[3] = null_mut();
        link.add("main.ptx", MAIN);
        assert!(link.complete().is_err());
        assert!(link.errors().contains("Undefined reference to"), "{}", link.errors());
        assert_eq!((link.values[1] as u64, link.values[3]), (0x1234_5678_9abc, null_mut()));
    });
}

#[test]
fn bad_inputs_get_their_codes() {
    on_machine("bad_inputs_get_their_codes", "pcie4", || {
        use sys::CUresult::*;
        context(0);
        let link = Link::new();
        let bad = format!("{HEAD}.visible .entry k() {{ frobnicate.b32 %r1; }}");
        let code = link.add_bytes(CU_JIT_INPUT_PTX, "bad.ptx", bad.as_bytes());
        assert_eq!(code, CUDA_ERROR_INVALID_PTX);
        assert!(link.errors().contains("frobnicate"), "{:?}", link.errors());
        let add = |kind, bytes: &[u8]| link.add_bytes(kind, "input", bytes);
        assert_eq!(add(CU_JIT_INPUT_CUBIN, b"\x7fELF and more"), CUDA_ERROR_NO_BINARY_FOR_GPU);
        assert_eq!(add(CU_JIT_INPUT_FATBINARY, b"no fat binary at all"), CUDA_ERROR_INVALID_IMAGE);
        assert_eq!(add(CU_JIT_INPUT_OBJECT, b"\x7fELF and more"), CUDA_ERROR_NO_BINARY_FOR_GPU);
        assert_eq!(add(CU_JIT_INPUT_LIBRARY, b"no archive"), CUDA_ERROR_INVALID_IMAGE);
        assert_eq!(add(CU_JIT_INPUT_NVVM, b"BC"), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(add(CU_JIT_INPUT_PTX, b""), CUDA_ERROR_INVALID_VALUE);
        let (data, none) = (8 as *mut c_void, null_mut());
        let (options, kind) = (null_mut(), CU_JIT_INPUT_PTX);
        refused!(CUDA_ERROR_INVALID_IMAGE: cuLinkAddData_v2(
            link.state, kind, data, 64, c"unmapped".as_ptr(), 0, options, none));
        refused!(CUDA_ERROR_FILE_NOT_FOUND: cuLinkAddFile_v2(
            link.state, kind, c"/nonexistent.ptx".as_ptr(), 0, options, none));
        refused!(CUDA_ERROR_INVALID_HANDLE: cuLinkComplete(null_mut(), null_mut(), null_mut()));
        // What was refused is not part of the link.
        link.add("main.ptx", MAIN);
        link.add("scale.ptx", SCALE);
        assert_eq!(run(link.complete().unwrap()), [15, 77, 100]);
        let image = link.complete().unwrap();
        let mut cut = image.to_vec();
        cut.truncate(image.len() - 1);
        let short = cut.len() as u64;
        cut[8..16].copy_from_slice(&short.to_le_bytes());
        let mut module = null_mut();
        refused!(CUDA_ERROR_INVALID_IMAGE: cuModuleLoadData(&mut module, cut.as_ptr().cast()));
    });
}

/// An entry of a fat binary, and the container around it.
fn fat(text: &str) -> Vec<u8> {
    let mut payload = text.as_bytes().to_vec();
    payload.resize(payload.len().next_multiple_of(8) + 8, 0);
    let mut entry = [0u8; 64];
    entry[0..2].copy_from_slice(&1u16.to_le_bytes());
    entry[4..8].copy_from_slice(&64u32.to_le_bytes());
    entry[8..16].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    entry[28..32].copy_from_slice(&70u32.to_le_bytes());
    let mut all = 0xba55_ed50u32.to_le_bytes().to_vec();
    all.extend_from_slice(&[1, 0, 16, 0]);
    all.extend_from_slice(&((64 + payload.len()) as u64).to_le_bytes());
    all.extend_from_slice(&entry);
    all.extend_from_slice(&payload);
    all
}

#[test]
fn fat_binaries_and_the_files_that_hold_them_are_inputs() {
    on_machine("fat_binaries_and_the_files_that_hold_them_are_inputs", "pcie4", || {
        context(0);
        let scale = fat(&format!("{HEAD}{SCALE}"));
        let link = Link::new();
        link.add("main.ptx", MAIN);
        assert_eq!(link.add_bytes(CU_JIT_INPUT_FATBINARY, "scale.fatbin", &scale) as u32, 0);
        assert_eq!(run(link.complete().unwrap()), [15, 77, 100]);
        // An object file: something, the fat binary, something.
        let object = [b"\x7fELF...".as_slice(), &scale, b"tail"].concat();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &object).unwrap();
        let path = CString::new(file.path().to_str().unwrap()).unwrap();
        let link = Link::new();
        link.add("main.ptx", MAIN);
        let (options, values) = (null_mut(), null_mut());
        ok!(cuLinkAddFile_v2(link.state, CU_JIT_INPUT_OBJECT, path.as_ptr(), 0, options, values));
        assert_eq!(run(link.complete().unwrap()), [15, 77, 100]);
    });
}

/// A kernel in which each of 8 blocks says that it has come, waits for the others, and stores how
/// many it then sees. `found` is where it stores the status of the barrier.
const MEETS: &str = "
.extern .func (.param .b64 r) cudaCGGetIntrinsicHandle (.param .b32 scope);
.extern .func (.param .b32 r) cudaCGSynchronize (.param .b64 handle, .param .b32 flags);
.visible .entry meets(.param .u64 count, .param .u64 seen, .param .u64 found) {
    .param .b32 scope; .param .b64 got; .param .b64 handle; .param .b32 flags; .param .b32 status;
    .reg .pred %p; .reg .b32 %r<6>; .reg .b64 %rd<8>;
    ld.param.u64 %rd0, [count]; ld.param.u64 %rd1, [seen]; ld.param.u64 %rd2, [found];
    mov.b32 %r0, 1; st.param.b32 [scope], %r0;
    call.uni (got), cudaCGGetIntrinsicHandle, (scope);
    ld.param.b64 %rd3, [got];
    mov.u32 %r1, %tid.x; setp.ne.u32 %p, %r1, 0; @%p bra COME;
    red.global.add.u32 [%rd0], 1;
COME:
    st.param.b64 [handle], %rd3; mov.b32 %r0, 0; st.param.b32 [flags], %r0;
    call.uni (status), cudaCGSynchronize, (handle, flags);
    ld.param.b32 %r2, [status];
    ld.volatile.global.u32 %r3, [%rd0];
    mov.u32 %r4, %ctaid.x; mad.lo.u32 %r4, %r4, 64, %r1; mul.wide.u32 %rd4, %r4, 4;
    add.u64 %rd5, %rd1, %rd4; st.global.u32 [%rd5], %r3;
    add.u64 %rd6, %rd2, %rd4; st.global.u32 [%rd6], %r2;
    ret;
}";

/// If this fails, kernels of Numba that synchronise their grid are not built, or pass their barrier
/// too early. The library of the device runtime is an archive of machine code.
#[test]
fn the_device_runtime_synchronises_grids() {
    on_machine("the_device_runtime_synchronises_grids", "dgx1v", || {
        context(0);
        let link = Link::new();
        link.add("meets.ptx", MEETS);
        let archive = b"!<arch>\n and machine code";
        assert_eq!(link.add_bytes(CU_JIT_INPUT_LIBRARY, "cudadevrt.a", archive) as u32, 0);
        let (mut module, mut function) = (null_mut(), null_mut());
        ok!(cuModuleLoadData(&mut module, link.complete().unwrap().as_ptr().cast()));
        ok!(cuModuleGetFunction(&mut function, module, c"meets".as_ptr()));
        const THREADS: usize = 8 * 64;
        let [count, seen, found] = [4, 4 * THREADS, 4 * THREADS].map(device_memory);
        let words = |address| {
            let mut words = [0u32; THREADS];
            ok!(cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), address, 4 * THREADS));
            words
        };
        for launches in 1..4 {
            let arguments = [&raw const count, &raw const seen, &raw const found];
            let mut arguments = arguments.map(|it| it.cast_mut().cast());
            let (list, none) = (arguments.as_mut_ptr(), null_mut());
            ok!(cuLaunchCooperativeKernel(function, 8, 1, 1, 64, 1, 1, 0, none, list));
            assert_eq!((words(seen), words(found)), ([8 * launches; THREADS], [0; THREADS]));
        }
        // Nobody can wait where blocks need not run at the same time.
        assert_eq!(launch(function, 8, 64, null_mut(), &[count, seen, found]) as u32, 0);
        assert_eq!(words(found), [sys::CUresult::CUDA_ERROR_INVALID_VALUE as u32; THREADS]);
    });
}

/// If this fails, a name that an archive would have is missing, and nobody says where it was
/// sought.
#[test]
fn an_archive_of_machine_code_is_named_where_it_is_missed() {
    on_machine("an_archive_of_machine_code_is_named_where_it_is_missed", "pcie4", || {
        context(0);
        let link = Link::new();
        link.add("main.ptx", MAIN);
        assert_eq!(link.add_bytes(CU_JIT_INPUT_LIBRARY, "scale.a", b"!<arch>\n...") as u32, 0);
        assert_eq!(link.complete().unwrap_err(), sys::CUresult::CUDA_ERROR_INVALID_IMAGE);
        assert!(link.errors().contains("scale.a: machine code alone"), "{}", link.errors());
    });
}

/// Linkers see no prototypes: a result that nobody gives stays what it was.
#[test]
fn a_result_that_is_declared_and_not_defined_is_no_error() {
    on_machine("a_result_that_is_declared_and_not_defined_is_no_error", "pcie4", || {
        context(0);
        let main = "
            .extern .func (.param .b32 r) fill (.param .b64 at);
            .visible .entry main(.param .u64 out) {
                .param .b64 at; .param .b32 got; .reg .b64 %rd0; .reg .b32 %r0;
                ld.param.u64 %rd0, [out]; st.param.b64 [at], %rd0;
                call.uni (got), fill, (at); ld.param.b32 %r0, [got]; ret;
            }";
        let fill = "
            .visible .func fill (.param .b64 at) {
                .reg .b64 %rd0; ld.param.u64 %rd0, [at];
                st.global.u32 [%rd0], 7; st.global.u32 [%rd0+4], 8; st.global.u32 [%rd0+8], 9; ret;
            }";
        let link = Link::new();
        link.add("main.ptx", main);
        link.add("fill.ptx", fill);
        assert_eq!(run(link.complete().unwrap()), [7, 8, 9]);
    });
}
