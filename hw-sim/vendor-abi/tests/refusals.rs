//! What is refused is named on stderr. If this fails, a user sees an error code, or the program
//! silently goes another way, and nothing says what was asked and what to do.

mod common;

use common::{context, is_inside, run_again};
use cudarc::driver::sys;
use std::ffi::CString;
use std::ptr::null_mut;

fn load(image: &[u8]) -> u32 {
    let mut module = null_mut();
    // SAFETY: room for the module; the image ends with NUL.
    unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast()) as u32 }
}

fn text(version: &str, target: &str, body: &str) -> Vec<u8> {
    let text = format!(
        ".version {version}\n.target {target}\n.address_size 64\n\
         .visible .entry k()\n{{\n{body}\n}}"
    );
    CString::new(text).unwrap().into_bytes_with_nul()
}

/// What stands in stderr, each once: the function, what was asked, and what to do.
const LINES: [&[&str]; 6] = [
    &["cuModuleLoadData: PTX 8.8: ", "CUDA 12.4 compiles up to 8.4", "--driver"],
    &["cuModuleLoadData: PTX for sm_90 on a GPU of compute capability 7.0", "--machine"],
    &["cuModuleLoadData: PTX refused: ", "`multimem.red.global.add.u32"],
    &["cuModuleLoadData: machine code for sm_90 was refused", "load PTX text"],
    &["cuStreamBeginCapture_v2: stream capture", "capture = \"off\"", "README.md"],
    &["cuArrayCreate_v2 is not supported by virtual hardware", "README.md"],
];

#[test]
fn each_refusal_is_one_line_with_the_function_and_what_to_do() {
    let test = "each_refusal_is_one_line_with_the_function_and_what_to_do";
    if is_inside(test) {
        return ask();
    }
    let variables = [("HWSIM_DRIVER", "12.4"), ("HWSIM_DRIVER_KEYS", "capture=off")];
    let output = run_again(test, "dgx1v", &variables);
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}");
    let said: Vec<&str> = err.lines().filter_map(|line| line.strip_prefix("hwsim: ")).collect();
    for parts in LINES {
        let lines: Vec<_> = said.iter().filter(|line| line.starts_with(parts[0])).collect();
        let [line] = lines[..] else { panic!("{}: {} lines in\n{err}", parts[0], lines.len()) };
        for part in parts {
            assert!(line.contains(part), "no {part:?} in {line:?}");
        }
    }
    // A program's own mistakes are its own affair.
    assert!(!err.contains("cuMemFree"), "{err}");
}

/// Asks for what is refused, each thing twice.
fn ask() {
    context(0);
    let mut elf = vec![0u8; 65];
    elf[..4].copy_from_slice(b"\x7fELF");
    elf[8] = 7;
    elf[48] = 90;
    let mut stream = null_mut();
    ok!(cuStreamCreate(&mut stream, 0));
    for _ in 0..2 {
        assert_eq!(load(&text("8.8", "sm_70", "ret;")), 222);
        assert_eq!(load(&text("8.0", "sm_90", "ret;")), 209);
        let body = ".reg .b64 %rd; .reg .b32 %r;\nmultimem.red.global.add.u32 [%rd], %r;\nret;";
        assert_eq!(load(&text("8.0", "sm_70", body)), 218);
        assert_eq!(load(&elf), 209);
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        // SAFETY: the stream lives.
        let code = unsafe { sys::cuStreamBeginCapture_v2(stream, mode) };
        assert_eq!(code as u32, 801);
        let mut array = null_mut();
        let descriptor = sys::CUDA_ARRAY_DESCRIPTOR {
            Width: 16,
            Height: 16,
            Format: sys::CUarray_format::CU_AD_FORMAT_FLOAT,
            NumChannels: 1,
        };
        // SAFETY: room for the array.
        let code = unsafe { sys::cuArrayCreate_v2(&mut array, &descriptor) };
        assert_eq!(code as u32, 801);
        // SAFETY: the driver checks the address.
        assert_eq!(unsafe { sys::cuMemFree_v2(4096) } as u32, 1);
    }
}
