//! What programs of NCCL EP see of `libnccl_ep.so`: its names, its header, and what it does on
//! virtual hardware.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A file that cargo has built.
fn built(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.parent().unwrap().parent().unwrap().join(name);
    assert!(path.exists(), "no {}: run cargo build --release --workspace", path.display());
    path
}

fn text(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{}: {out}{err}", output.status)
}

fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    text(&output)
}

/// A folder in which the libraries have the names under which programs look for them.
fn installed() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (file, name) in [("libnccl.so", "libnccl.so.2"), ("libnccl_ep.so", "libnccl_ep.so.0")] {
        fs::copy(built(file), folder.path().join(name)).unwrap();
        symlink(name, folder.path().join(file)).unwrap();
    }
    succeeds(Command::new(built("hwsim")).arg("sdk").arg(folder.path().join("sdk")));
    folder
}

/// Builds a file in C as a program that is linked with NCCL EP, NCCL and the driver.
fn compiled(folder: &Path, file: &str, compiler: &str) -> PathBuf {
    let program = folder.join("program");
    let mut command = Command::new(compiler);
    command.args(["-O1", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"]);
    for include in [source("include"), source("../nccl/include"), folder.join("sdk/include")] {
        command.arg("-I").arg(include);
    }
    command.arg(source(file)).arg("-o").arg(&program);
    command.arg("-L").arg(folder).arg("-L").arg(folder.join("sdk/lib64"));
    succeeds(command.args(["-lnccl_ep", "-lnccl", "-lcuda"]));
    program
}

/// If this fails, a program does not load, or calls a function that leads nowhere.
#[test]
fn the_library_exports_its_functions_and_nothing_else() {
    let library = built("libnccl_ep.so");
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(&library).output();
    let output = String::from_utf8(output.expect("nm, of binutils").stdout).unwrap();
    let seen: BTreeSet<_> =
        output.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    let expected: BTreeSet<_> = nccl_ep::FUNCTIONS.iter().copied().collect();
    assert_eq!(expected.len(), 18);
    assert_eq!(seen, expected);
    assert_eq!(expected, nccl::EP_FUNCTIONS.iter().copied().collect());
    let named = Command::new("readelf").arg("-d").arg(&library).output().unwrap();
    assert!(text(&named).contains("[libnccl_ep.so.0]"), "{}", text(&named));
    let header = fs::read_to_string(source("include/nccl_ep.h")).unwrap();
    let page = fs::read_to_string(source("README.md")).unwrap();
    for name in expected {
        assert!(header.contains(&format!(" {name}(")), "nccl_ep.h does not declare {name}");
        assert!(page.contains(&format!("`{name}`")), "README.md does not name {name}");
    }
}

/// If this fails, a program that was compiled with NCCL EP's header passes other bytes than are
/// read.
#[test]
fn the_header_has_the_layouts_that_programs_were_compiled_with() {
    let folder = installed();
    compiled(folder.path(), "tests/layout.c", "cc");
}

/// If this fails, a layer of experts gets wrong rows or sums, halves of calls mix, counts come too
/// late, or what is not implemented is taken for done. On one node, and on two, where rows are
/// passed on within a node.
#[test]
fn a_layer_of_experts_is_right_in_all_modes() {
    let folder = installed();
    let program = compiled(folder.path(), "tests/layer.c", "cc");
    for (number, (machine, processes)) in
        [("pcie4", 4), ("dgx-a100 x 2", 4)].into_iter().enumerate()
    {
        const PROFILE: &str = "HWSIM_DRIVER_PROFILE";
        let mut run = Command::new(built("hwsim"));
        if std::env::var_os(PROFILE).is_none() {
            run.env(PROFILE, "strict");
        }
        run.args(["run", "-q", "--machine", machine, "--procs", &processes.to_string(), "--"]);
        run.arg(&program).arg(folder.path().join(format!("id{number}")));
        let seen = succeeds(run.env("LD_LIBRARY_PATH", folder.path()));
        assert_eq!(seen.matches(": right").count(), processes, "{machine}: {seen}");
    }
}

/// If this fails, a structure that makes no sense crashes the program, is read beyond its end, is
/// taken for a good one, or leaves a handle that does not work.
#[test]
fn structures_at_random_are_refused() {
    let folder = installed();
    let program = compiled(folder.path(), "tests/fuzz.c", "cc");
    let seed = std::env::var("RINGDOVE_FUZZ_SEED").unwrap_or_else(|_| "1".into());
    let calls = std::env::var("RINGDOVE_FUZZ_CASES").unwrap_or_else(|_| "3000".into());
    let mut run = Command::new(built("hwsim"));
    run.args(["run", "-q", "--machine", "pcie4", "--"]).arg(&program).args([&seed, &calls]);
    let seen = succeeds(run.env("LD_LIBRARY_PATH", folder.path()));
    assert!(seen.contains(" calls, 0 wrong"), "seed {seed}: {seen}");
}

/// If this fails, a program with another NCCL crashes instead of being told so.
#[test]
fn another_nccl_is_answered() {
    let folder = installed();
    fs::write(
        folder.path().join("alone.c"),
        "int ncclEpGetVersion(int *);\nint main(void) \
        { int v; return ncclEpGetVersion(&v) == 5 ? 0 : 1; }\n",
    )
    .unwrap();
    fs::remove_file(folder.path().join("libnccl.so.2")).unwrap();
    let program = folder.path().join("alone");
    let mut compiler = Command::new("cc");
    compiler.arg(folder.path().join("alone.c")).arg("-o").arg(&program);
    succeeds(compiler.arg("-L").arg(folder.path()).arg("-lnccl_ep"));
    let seen = succeeds(Command::new(&program).env("LD_LIBRARY_PATH", folder.path()));
    assert!(seen.contains("expected ringdove's libnccl.so.2"), "{seen}");
}
