//! Tidying up after an `hwsim run`, however that ends.
//!
//! A signal that cannot be caught ends `hwsim run` before it has removed its folder and ended what
//! its ranks started. A second process therefore waits, in its own process group so that a signal
//! for the first group spares it. It reads from a pipe whose other end only `hwsim run` holds: when
//! the pipe ends, it kills what is still watched, removes the folder, and ends.

use crate::error::Error;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};

/// The hidden verb of the process that stands by.
pub const VERB: &str = "tidy";

/// The hold of `hwsim run` on the process that stands by.
pub struct Tidier {
    process: Child,
    pipe: Option<ChildStdin>,
}

impl Tidier {
    /// Has `folder`, an absolute path, removed when this process ends.
    pub fn start(folder: &Path) -> Result<Self, Error> {
        let starting = || Error::system("starting the process that tidies up");
        let this = std::env::current_exe().map_err(Error::system("finding this program's path"))?;
        let mut process = Command::new(this)
            .arg(VERB)
            .arg(folder)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(starting())?;
        let pipe = process.stdin.take();
        Ok(Self { process, pipe })
    }

    /// An end of the pipe for a child's standard input; see [`watch_this_group`].
    pub fn pipe(&self) -> io::Result<Stdio> {
        match &self.pipe {
            Some(pipe) => Ok(pipe.as_fd().try_clone_to_owned()?.into()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Has a process killed, together with this one. The kernel does so as well, unless the process
    /// changes its credentials, as by entering a user namespace.
    pub fn watch_process(&mut self, process: Pid) {
        self.tell('+', process.as_raw());
    }

    /// Has a process spared: it is reaped, and its number may come to mean another.
    pub fn forget_process(&mut self, process: Pid) {
        self.tell('-', process.as_raw());
    }

    /// Has a process group spared, whose leader is reaped.
    pub fn forget_group(&mut self, group: Pid) {
        self.tell('-', -group.as_raw());
    }

    fn tell(&mut self, sign: char, target: i32) {
        if let Some(pipe) = &mut self.pipe {
            // One write: a line is in the pipe as a whole or not at all. If nobody listens any
            // more, nobody will kill anything either.
            let _ = pipe.write_all(format!("{sign}{target}\n").as_bytes());
        }
    }
}

/// Has the group that this process leads killed when `hwsim run` ends, in what way ever. `pipe` is
/// that of [`Tidier::pipe`]; it must be closed by what comes next.
pub fn watch_this_group(pipe: impl AsFd) -> io::Result<()> {
    let pipe = File::from(pipe.as_fd().try_clone_to_owned()?);
    (&pipe).write_all(format!("+{}\n", -getpid().as_raw()).as_bytes())
}

impl Drop for Tidier {
    fn drop(&mut self) {
        // Closed first, or the wait would be for each other.
        self.pipe = None;
        let _ = self.process.wait();
    }
}

/// The work of the cleanup process.
pub fn stand_by(folder: &Path) -> Result<ExitCode, Error> {
    // As the system call has it: a process by its number, a group by its number below zero.
    let mut targets = BTreeSet::new();
    for line in BufReader::new(io::stdin()).lines().map_while(Result::ok) {
        let Some((sign, Ok(target))) = line.split_at_checked(1).map(|(s, n)| (s, n.parse::<i32>()))
        else {
            continue;
        };
        match sign {
            "+" => targets.insert(target),
            _ => targets.remove(&target),
        };
    }
    // Zero and one stand for ourselves, for everybody, and for the first process.
    for target in targets.into_iter().filter(|target| target.unsigned_abs() > 1) {
        match kill(Pid::from_raw(target), Signal::SIGKILL) {
            // Ended by itself: the kernel kills a child together with `hwsim run`.
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(errno) => eprintln!("hwsim: killing {target}: {errno}"),
        }
    }
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::system(format!("removing {}", folder.display()))(error))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}
