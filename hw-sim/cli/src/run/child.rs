//! One child of `hwsim run`: how it is found, started, and tied to the life of its parent.

use crate::ChildArguments;
use crate::error::Error;
use crate::namespace;
use crate::run::forwarded_signals;
use crate::tidy::{self, Tidier};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getpid, getppid};
use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The hidden verb of the child.
pub const VERB: &str = "become";

/// Common to all children of one run.
pub struct Template {
    this: PathBuf,
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(&'static str, OsString)>,
}

impl Template {
    /// A child that becomes `command`.
    pub fn new(command: &[OsString]) -> Result<Self, Error> {
        Ok(Self {
            program: find_program(&command[0])?,
            this: env::current_exe().map_err(Error::system("finding this program's path"))?,
            arguments: command[1..].to_vec(),
            environment: Vec::new(),
        })
    }

    /// Adds variables to its environment.
    pub fn add(&mut self, variables: impl IntoIterator<Item = (&'static str, OsString)>) {
        self.environment.extend(variables);
    }

    /// The file that the command named.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// One such child, ready to be started, which sees this folder as `/sys`.
    pub fn command(&self, sys: Option<&Path>) -> Command {
        self.becoming(sys, &[])
    }

    /// One that leads its own process group, and reports it to `tidier` before it becomes the
    /// command: were it told by us, we could be killed in between. It finds an empty standard
    /// input, for it is not in the terminal's foreground and would be stopped if it read there.
    /// The first of them speaks for all.
    pub fn group_leader(
        &self,
        tidier: &Tidier,
        sys: Option<&Path>,
        first: bool,
    ) -> io::Result<Command> {
        let mut child = self.becoming(sys, &["--watched", "--silent"][..2 - first as usize]);
        child.stdin(tidier.pipe()?).process_group(0);
        Ok(child)
    }

    fn becoming(&self, sys: Option<&Path>, options: &[&str]) -> Command {
        let mut child = Command::new(&self.this);
        child.args([VERB, &getpid().to_string()]).args(options);
        if let Some(sys) = sys {
            child.arg("--sys").arg(sys);
        }
        child
            .arg("--")
            .arg(&self.program)
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        child
    }
}

/// What the child does first: tie its life to the parent's, then become the command.
/// Returns only if that fails. With `watched`, its standard input is the pipe of a [`Tidier`].
pub fn become_command(arguments: &ChildArguments) -> Error {
    let ChildArguments { parent, watched, sys, silent, command } = arguments;
    // First, for a process that enters a user namespace is no longer tied to its parent.
    if let Some(sys) = sys
        && let Err(error) = namespace::show_sys(sys)
        && !silent
    {
        eprintln!("hwsim: /sys shows the host: {error}. --no-sys does not try to show the machine");
    }
    if let Err(errno) = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL) {
        return Error::system("tying the child to its parent")(errno.into());
    }
    // A parent that ended before the line above sends no signal any more.
    if getppid() != Pid::from_raw(*parent) {
        return Error::Orphaned { parent: *parent };
    }
    if let Err(errno) = forwarded_signals().thread_unblock() {
        return Error::system("unblocking signals")(errno.into());
    }
    let program = &command[0];
    let mut becoming = Command::new(program);
    if *watched {
        if let Err(error) = tidy::watch_this_group(io::stdin()) {
            return Error::system("speaking to the process that tidies up")(error);
        }
        becoming.stdin(Stdio::null());
    }
    // The first argument is the path that was found; programs that look at their own name see it
    // like this from many a shell, too.
    let error = becoming.args(&command[1..]).exec();
    Error::CommandNotExecutable { command: program.into(), reason: error.to_string() }
}

/// The file that the command names: itself if it has a slash, else the first in `PATH`.
fn find_program(command: &OsStr) -> Result<PathBuf, Error> {
    let named = Path::new(command);
    let candidates: Vec<PathBuf> = if command.as_encoded_bytes().contains(&b'/') {
        vec![named.to_owned()]
    } else {
        let path = env::var_os("PATH").unwrap_or_default();
        env::split_paths(&path).map(|folder| folder.join(named)).collect()
    };
    let mut unusable = None;
    for candidate in candidates {
        match candidate.metadata() {
            Ok(file) if file.is_dir() => unusable = Some((candidate, "it is a directory")),
            Ok(file) if file.permissions().mode() & 0o111 == 0 => {
                unusable = Some((candidate, "it is not executable (see `chmod +x`)"));
            }
            Ok(_) => return Ok(candidate),
            Err(_) => {}
        }
    }
    if let Some((command, reason)) = unusable {
        return Err(Error::CommandNotExecutable { command, reason: reason.into() });
    }
    let in_path = !command.as_encoded_bytes().contains(&b'/');
    let hint = if in_path { " in the folders of PATH" } else { "" };
    Err(Error::CommandMissing { command: command.into(), hint: hint.into() })
}
