//! `./x install`: what it writes is enough to build and run programs of NCCL, and device code.

mod build;

use build::{source, text};
use std::path::Path;
use std::process::{Command, Output};

fn output(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    output
}

/// If this fails, a user's build finds no header, no library or no kernel header below the prefix,
/// or the installed `hwsim` does not find its libraries.
#[test]
fn programs_are_built_and_run_with_what_is_installed_alone() {
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| folder.path().join(path);
    // What this test was built with is installed, and not built again.
    let install = || {
        let mut command = Command::new(source("../../x"));
        command.arg("install").env("RINGDOVE_TEST_BUILT", "1");
        command
    };
    // A packager's staging folder stands before the prefix, and nothing installed names it.
    output(install().arg("/opt/ringdove").env("DESTDIR", folder.path()));
    let file = std::fs::read_to_string(at("opt/ringdove/lib/pkgconfig/nccl.pc")).unwrap();
    assert!(file.starts_with("prefix=/opt/ringdove\n"), "{file}");

    let prefix = at("prefix");
    output(install().arg(&prefix));
    let run = |program: &str| Command::new(prefix.join("bin").join(program));
    output(run("ringdove").arg("--version"));
    output(run("hwsim").arg("sdk").arg(at("sdk")));

    let mut flags = Command::new("pkg-config");
    flags.args(["--cflags", "--libs", "nccl"]).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    let flags = String::from_utf8(output(&mut flags).stdout).unwrap();
    let program = at("ranks");
    let mut compiler = Command::new("cc");
    compiler.arg(source("tests/ranks.c")).arg("-o").arg(&program).args(flags.split_whitespace());
    compiler.arg("-I").arg(at("sdk/include")).arg("-L").arg(at("sdk/lib64")).arg("-lcuda");
    output(&mut compiler);
    let mut ranks = run("hwsim");
    ranks.args(["run", "-q", "--machine", "pcie4", "--procs", "4", "--"]).arg(&program);
    ranks.arg(at("id")).env("LD_LIBRARY_PATH", prefix.join("lib"));
    let seen = text(&output(&mut ranks));
    assert_eq!(seen.matches(": right").count(), 4, "{seen}");

    let folder_of = |kind: &str| prefix.join(kind);
    let mut experts = Command::new("cc");
    experts.arg(source("../nccl_ep/tests/layout.c")).arg("-o").arg(at("layout"));
    experts.arg("-I").arg(folder_of("include")).arg("-I").arg(at("sdk/include"));
    output(experts.arg("-L").arg(folder_of("lib")).args(["-Wl,--no-as-needed", "-lnccl_ep"]));
    output(Command::new(at("layout")).env("LD_LIBRARY_PATH", prefix.join("lib")));

    let mut kernel = Command::new("clang++-19");
    kernel.args(["-x", "cuda", "--cuda-device-only", "-nocudainc", "-nocudalib", "-std=c++17"]);
    kernel.args(["--cuda-gpu-arch=sm_70", "-fsyntax-only", "-I"]);
    kernel.arg(prefix.join("include/ringdove")).arg(example(folder.path()));
    output(&mut kernel);
}

/// The example of a user's kernel, away from the headers of the repository.
fn example(folder: &Path) -> std::path::PathBuf {
    let copy = folder.join("example_exchange.cu");
    std::fs::copy(source("../../kernels/cuda/example_exchange.cu"), &copy).unwrap();
    copy
}

/// A prefix is wanted: without one nothing is written.
#[test]
fn a_missing_prefix_is_refused() {
    let refused = Command::new(source("../../x")).arg("install").output().unwrap();
    assert!(!refused.status.success());
    assert!(text(&refused).contains("./x install PREFIX"), "{}", text(&refused));
}
