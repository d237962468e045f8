//! `include/cuda.h`, with which C programs build against virtual hardware. Were it not what the
//! driver's own functions take, a program would pass them rubbish.

mod bindings;
#[path = "../common/mod.rs"]
mod common;
mod layouts;
mod print;

use bindings::Bindings;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

/// Every function that a CUDA 12.4 header or a program built with it can refer to.
const DRIVER_NAMES: &str = include_str!("../../driver-12.4.txt");

fn path() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/include/cuda.h"))
}

#[test]
fn the_header_is_what_the_bindings_say() {
    let exported: BTreeSet<&str> = DRIVER_NAMES.lines().collect();
    let expected = print::header(&Bindings::read(), &exported);
    if std::env::var_os("HWSIM_UPDATE").is_some_and(|value| value == "1") {
        std::fs::write(path(), expected).unwrap();
        return;
    }
    let is = std::fs::read_to_string(path()).unwrap();
    let line = is.lines().zip(expected.lines()).position(|(is, expected)| is != expected);
    assert!(
        is == expected,
        "include/cuda.h differs from line {:?} on; `HWSIM_UPDATE=1 cargo test -p hwsim-vendor-abi \
         --test header` rewrites it",
        line.map(|line| line + 1)
    );
}

/// Runs the C or C++ compiler on `source`, in its own folder.
fn compile(language: &str, arguments: &[&str], source: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(format!("program.{language}"));
    std::fs::write(&file, source).unwrap();
    // The linker finds the driver under the name that programs ask for.
    std::os::unix::fs::symlink(common::library(), folder.path().join("libcuda.so")).unwrap();
    let compiler = if language == "c" { "cc" } else { "c++" };
    let output = Command::new(compiler)
        .args(["-Wall", "-Wextra", "-Werror", "-I"])
        .arg(path().parent().unwrap())
        .args(["-o".as_ref(), folder.path().join("program").as_os_str()])
        .arg(&file)
        .args(["-L".as_ref(), folder.path().as_os_str()])
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{compiler}, which this test needs: {error}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Each structure has the size and the alignment that it has in Rust, whose bindings were made from
/// the vendor's declarations.
#[test]
fn structures_have_the_layout_of_the_bindings() {
    let bindings = Bindings::read();
    let compared: BTreeSet<&str> = layouts::LAYOUTS.iter().map(|(name, ..)| *name).collect();
    let all: BTreeSet<&str> = print::composites(&bindings).into_iter().collect();
    assert_eq!(compared, all, "tests/header/layouts.rs lists every structure");
    let mut source = "#include <cuda.h>\n".to_owned();
    for (name, size, alignment) in layouts::LAYOUTS {
        let tagged = print::tagged(&bindings, name);
        source += &format!("_Static_assert(sizeof({tagged}) == {size}, \"size of {name}\");\n");
        let text = format!("\"alignment of {name}\"");
        source += &format!("_Static_assert(_Alignof({tagged}) == {alignment}, {text});\n");
    }
    compile("c", &["-std=c11"], &(source + "int main(void) { return 0; }\n"));
}

/// What the header declares the library has: also under the names that macros give, and with one
/// default stream for each thread. C++ reads it as well.
#[test]
fn every_declared_function_can_be_linked() {
    let bindings = Bindings::read();
    let mut plain: BTreeSet<String> = bindings.functions.keys().cloned().collect();
    plain.extend(["cuMemAlloc", "cuCtxCreate", "cuStreamWaitValue64"].map(str::to_owned));
    let uses: String = plain.iter().map(|name| format!("    (function){name},\n")).collect();
    let source = format!(
        "#include <cuda.h>\ntypedef void (*function)(void);\nfunction all[] = {{\n{uses}}};\n\
         int main(void) {{ return all[0] == 0; }}\n"
    );
    let link = ["-Wno-cast-function-type", "-Wl,--no-as-needed", "-lcuda"];
    for per_thread in [&[][..], &["-DCUDA_API_PER_THREAD_DEFAULT_STREAM"]] {
        compile("c", &[per_thread, &link].concat(), &source);
        compile("cpp", &[per_thread, &link].concat(), &source);
    }
}
