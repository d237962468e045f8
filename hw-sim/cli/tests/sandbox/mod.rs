//! Helpers for tests of `hwsim run`.

#![allow(dead_code, reason = "each test program uses a part of this")]

use nix::sys::stat::Mode;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use tempfile::TempDir;

/// A folder for one test: the stand-in library, and a TMPDIR of its own to look for leftovers in.
pub struct Sandbox {
    /// All of it.
    pub folder: TempDir,
}

impl Sandbox {
    #[allow(clippy::new_without_default, reason = "a sandbox is made, not assumed")]
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("libhwsim.so"), "").unwrap();
        fs::create_dir(folder.path().join("tmp")).unwrap();
        Self { folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn hwsim(&self, arguments: &[&str]) -> Command {
        // Whoever runs the tests may ignore signals (`nohup` does, some CI too), and what it starts
        // would go on ignoring them.
        let mut command = Command::new("env");
        command.arg("--default-signal").arg(env!("CARGO_BIN_EXE_hwsim"));
        command
            .args(arguments)
            .env("HWSIM_LIB", self.path("libhwsim.so"))
            .env("TMPDIR", self.path("tmp"))
            .env_remove("HWSIM_MACHINE")
            .env_remove("HWSIM_NODE")
            .env_remove("HWSIM_FABRIC")
            .env_remove("MASTER_ADDR")
            .env_remove("MASTER_PORT")
            .env_remove("RINGDOVE_BOOTSTRAP_SECRET")
            .env("LD_LIBRARY_PATH", "/already/there");
        command
    }

    pub fn output(&self, arguments: &[&str]) -> Output {
        self.hwsim(arguments).output().unwrap()
    }

    /// Starts a command that says `ready` once it runs.
    pub fn start(&self, script: &str) -> (Child, BufReader<ChildStdout>) {
        self.start_ranks(&[], 1, script)
    }

    /// Starts `count` processes that say `ready` once they run, in a process group of their own.
    pub fn start_ranks(
        &self,
        options: &[&str],
        count: usize,
        script: &str,
    ) -> (Child, BufReader<ChildStdout>) {
        let mut child = self
            .hwsim(&[&["run", "-q"], options, &["--", "sh", "-c", script]].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        for _ in 0..count {
            let mut line = String::new();
            lines.read_line(&mut line).unwrap();
            assert!(line.ends_with("ready\n"), "{line}");
        }
        (child, lines)
    }

    /// A pipe with a name. Who opens it with `<>` and reads waits without end.
    pub fn fifo(&self, name: &str) -> String {
        let path = self.path(name);
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        path.display().to_string()
    }

    pub fn assert_nothing_left(&self) {
        let left: Vec<_> = fs::read_dir(self.path("tmp")).unwrap().flatten().collect();
        assert!(left.is_empty(), "left behind: {left:?}");
    }
}

/// The library that cargo built for these tests; others lie beside it.
pub fn library() -> PathBuf {
    beside("libhwsim.so")
}

/// What cargo built beside these tests.
pub fn beside(name: &str) -> PathBuf {
    let built = std::env::current_exe().unwrap().parent().unwrap().join(name);
    assert!(built.exists(), "{} has not been built", built.display());
    built
}

/// Compiles a C program of `tests/` to `program`.
pub fn compile(source: &str, program: &Path, flags: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-Werror", "-o"]).arg(program).arg(source).args(flags);
    let compiled = compiler.output().unwrap();
    let message = text(&compiled.stderr);
    assert!(compiled.status.success(), "`./x test` installs what it needs:\n{message}");
}

/// Bytes as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
