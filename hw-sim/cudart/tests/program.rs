//! A C program as nvcc makes them runs with either runtime, and finds what the vendor's has.

use std::env;
use std::ffi::CString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A library as cargo built it for this test.
fn built(name: &str) -> PathBuf {
    let program = env::current_exe().unwrap();
    let library = program.parent().unwrap().join(name);
    assert!(library.exists(), "{} has not been built", library.display());
    library
}

/// A folder in which our libraries have the vendor's names.
fn vendor_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, file) in [
        ("libcuda.so.1", "libhwsim.so"),
        ("libcudart.so.12", "libcudart12.so"),
        ("libcudart.so.13", "libcudart13.so"),
    ] {
        symlink(built(file), folder.path().join(name)).unwrap();
    }
    folder
}

fn compile_and_run(folder: &Path, version: u32) -> Output {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let fatbin = here.join("../vendor-abi/tests/fixtures/fatbin/several-size.fatbin");
    let program = folder.join(format!("program{version}"));
    let compiled = Command::new("cc")
        .args(["-O1", "-Wall", "-Werror", "-Wno-builtin-declaration-mismatch", "-o"])
        .arg(&program)
        .arg(format!("-DVERSION={version}"))
        .arg(format!("-DFATBIN=\"{}\"", fatbin.canonicalize().unwrap().display()))
        .arg(here.join("tests/program.c"))
        .arg(folder.join(format!("libcudart.so.{version}")))
        .arg("-lpthread")
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let mut command = Command::new(&program);
    command.env("LD_LIBRARY_PATH", folder).env("HWSIM_MACHINE", "dgx1v");
    command.output().unwrap()
}

fn check_program(version: u32) {
    let folder = vendor_folder();
    let output = compile_and_run(folder.path(), version);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "all right\n", "{errors}");
    assert!(output.status.success(), "{errors}");
    // At its exit a program gives its code back, when the thread's own variables are gone.
    assert!(!errors.contains("panicked"), "{errors}");
    let line = "cudart: cudaMallocArray is not supported by this runtime\n";
    assert_eq!(errors.matches(line).count(), 1, "named once, or a loop floods: {errors}");
}

#[test]
fn a_program_with_the_runtime_of_version_12() {
    check_program(12);
}

#[test]
fn a_program_with_the_runtime_of_version_13() {
    check_program(13);
}

/// Programs ask for each symbol with the version that the vendor's library gives it: a symbol
/// without it, or none, and they do not start.
#[test]
fn every_symbol_of_the_vendors_libraries_is_there_with_its_version() {
    for (version, names) in
        [(12, include_str!("../12/names.txt")), (13, include_str!("../13/names.txt"))]
    {
        let path =
            CString::new(built(&format!("libcudart{version}.so")).to_str().unwrap()).unwrap();
        let node = CString::new(format!("libcudart.so.{version}")).unwrap();
        // SAFETY: our own library, whose start sets a number.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "{path:?} does not load");
        let missing: Vec<_> = names
            .lines()
            .filter(|name| {
                let name = CString::new(*name).unwrap();
                // SAFETY: the symbol is looked up, not used.
                unsafe { libc::dlvsym(library, name.as_ptr(), node.as_ptr()) }.is_null()
            })
            .collect();
        assert!(names.lines().count() > 400, "the list of names is cut");
        assert!(missing.is_empty(), "libcudart.so.{version} lacks {missing:?}");
    }
}

/// Without a driver the runtime says so, and does not crash: programs ask for devices to find out.
#[test]
fn without_a_driver_there_is_an_error() {
    let folder = vendor_folder();
    std::fs::remove_file(folder.path().join("libcuda.so.1")).unwrap();
    let source = folder.path().join("count.c");
    let text = "#include \"runtime.h\"\n\
                int main(void) { int count = 7, driver = 7;\n\
                EXPECT(35, cudaGetDeviceCount(&count)); CHECK(count == 0);\n\
                OK(cudaDriverGetVersion(&driver)); CHECK(driver == 0);\n\
                puts(\"none\"); return 0; }\n";
    std::fs::write(&source, text).unwrap();
    let program = folder.path().join("count");
    let compiled = Command::new("cc")
        .args(["-Wno-builtin-declaration-mismatch", "-I"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"))
        .arg("-o")
        .args([&program, &source, &folder.path().join("libcudart.so.12")])
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let mut command = Command::new(&program);
    let output = command.env("LD_LIBRARY_PATH", folder.path()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "none\n", "{errors}");
}
