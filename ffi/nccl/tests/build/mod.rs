//! The library, and C programs that are built against it.
#![allow(dead_code, reason = "each test uses some of it")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// A file of this crate.
pub fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Where cargo puts what it builds.
fn target() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_owned()
}

fn built(name: &str) -> PathBuf {
    let path = target().join(name);
    assert!(path.exists(), "no {}: run cargo build --release --workspace", path.display());
    path
}

/// The library.
pub fn library() -> PathBuf {
    built("libnccl.so")
}

/// A folder in which the library has the names under which programs look for it, and programs.
pub struct Installed(TempDir);

impl Installed {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::copy(library(), folder.path().join("libnccl.so.2")).unwrap();
        symlink("libnccl.so.2", folder.path().join("libnccl.so")).unwrap();
        Self(folder)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Builds `tests/NAME.c`.
    pub fn compile(&self, name: &str) -> PathBuf {
        self.compile_file(&format!("tests/{name}.c"))
    }

    /// Builds a file of this crate as a program does that is linked with NCCL and the driver.
    pub fn compile_file(&self, file: &str) -> PathBuf {
        let sdk = Command::new(built("hwsim")).arg("sdk").arg(self.path("sdk")).output().unwrap();
        assert!(sdk.status.success(), "{}", String::from_utf8_lossy(&sdk.stderr));
        let source = source(file);
        let program = self.0.path().join(source.file_stem().expect("a file in C"));
        let include = self::source("include");
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-pthread", "-Wall", "-Wextra", "-Werror", "-I"]).arg(include);
        compiler.arg("-I").arg(self.path("sdk/include"));
        compiler.arg(source).arg("-o").arg(&program);
        compiler.arg("-L").arg(self.0.path()).arg("-L").arg(self.path("sdk/lib64"));
        let output = compiler.args(["-lnccl", "-lcuda"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    }

    /// Runs `program` on virtual hardware, with drivers that behave as the worst that real ones are
    /// known to do, unless `options` or `HWSIM_DRIVER_PROFILE` name another profile.
    pub fn run(&self, options: &[&str], program: &Path, arguments: &[&str]) -> Output {
        const PROFILE: &str = "HWSIM_DRIVER_PROFILE";
        let mut run = Command::new(built("hwsim"));
        if std::env::var_os(PROFILE).is_none() {
            run.env(PROFILE, "strict");
        }
        run.args(["run", "-q"]).args(options).arg("--").arg(program).args(arguments);
        run.env("LD_LIBRARY_PATH", self.0.path()).output().unwrap()
    }
}

/// What a program printed, both streams.
pub fn text(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{}: {out}{err}", output.status)
}
