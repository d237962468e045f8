//! `hwsim run`: a child process whose CUDA driver and NVML are virtual.
//!
//! The child starts as `hwsim` once more, which asks the kernel to be killed with its parent and
//! then becomes the command: no process outlives `hwsim run`, not even after SIGKILL.

use crate::RunArguments;
use crate::error::Error;
use crate::library::{self, SEARCH_VARIABLE, Stage};
use crate::{adapters, namespace};
use hwsim_machine::description::{Description, MACHINE_VARIABLE};
use nix::errno::Errno;
use nix::libc::SI_KERNEL;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::SignalFd;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid, getppid};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The hidden verb of the child.
pub const CHILD_VERB: &str = "become";
/// Where the virtual driver writes its call trace.
const TRACE_VARIABLE: &str = "HWSIM_TRACE";

/// Runs the command on the machine and ends as it ends.
pub fn run(arguments: &RunArguments) -> Result<ExitCode, Error> {
    let machine = match &arguments.machine {
        Some(name) => Description::find(name)?,
        None => Description::from_environment()?,
    };
    let command = &arguments.command[0];
    let program = find_program(command)?;
    let stage = Stage::new(&library::find()?, &machine)?;

    // Blocked from here on and read from a descriptor below: between the folder's birth and its
    // removal no signal ends this process.
    let signals = forwarded_signals();
    signals.thread_block().map_err(|errno| Error::system("blocking signals")(errno.into()))?;
    let mut child = child_command(arguments, &program, &stage)?;
    show_adapters(&mut child, &stage, &machine)?;
    if !arguments.quiet {
        eprintln!("{}", banner(&machine));
    }
    let ended = start_and_wait(child, &signals, &program);
    stage.remove()?;
    match ended? {
        WaitStatus::Signaled(_, signal, _) => {
            let command = command.to_string_lossy();
            eprintln!("hwsim: `{command}` was ended by {signal} (signal {})", signal as i32);
            Ok(ExitCode::from(128 + signal as u8))
        }
        // The kernel gives 8 bits.
        WaitStatus::Exited(_, status) => Ok(ExitCode::from(status as u8)),
        other => unreachable!("start_and_wait returns ended children only, not {other:?}"),
    }
}

/// What the child does first: tie its life to the parent's, then become the command.
/// Returns only if that fails.
pub fn become_command(parent: i32, command: &[OsString]) -> Error {
    if let Err(errno) = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL) {
        return Error::system("tying the child to its parent")(errno.into());
    }
    // A parent that ended before the line above sends no signal any more.
    if getppid() != Pid::from_raw(parent) {
        return Error::Orphaned { parent };
    }
    if let Err(errno) = forwarded_signals().thread_unblock() {
        return Error::system("unblocking signals")(errno.into());
    }
    let program = &command[0];
    let mut becoming = Command::new(program);
    // The first argument is the path that was found; programs that look at their own name see it
    // like this from many a shell, too.
    let error = becoming.args(&command[1..]).exec();
    Error::CommandNotExecutable { command: program.into(), reason: error.to_string() }
}

fn forwarded_signals() -> SigSet {
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGCHLD].into_iter().collect()
}

fn banner(machine: &Description) -> String {
    let mut kinds: Vec<(&str, usize)> = Vec::new();
    for gpu in &machine.gpus {
        match kinds.iter_mut().find(|(name, _)| *name == gpu.model.name) {
            Some((_, count)) => *count += 1,
            None => kinds.push((&gpu.model.name, 1)),
        }
    }
    let gpus: Vec<_> = kinds.iter().map(|(name, count)| format!("{count} x {name}")).collect();
    format!(
        "hwsim: machine {}, {}; virtual hardware: times are wall-clock times of a simulation",
        machine.name,
        gpus.join(" and ")
    )
}

fn child_command(
    arguments: &RunArguments,
    program: &Path,
    stage: &Stage,
) -> Result<Command, Error> {
    let this = env::current_exe().map_err(Error::system("finding this program's path"))?;
    let mut child = Command::new(this);
    child
        .args([CHILD_VERB, &getpid().to_string(), "--"])
        .arg(program)
        .args(&arguments.command[1..])
        .env(SEARCH_VARIABLE, stage.search_path())
        .env(MACHINE_VARIABLE, &stage.machine_file);
    if let Some(trace) = &arguments.trace {
        let failed = || Error::system(format!("creating the trace file {}", trace.display()));
        File::create(trace).map_err(failed())?;
        // Absolute, for the command may change its directory.
        child.env(TRACE_VARIABLE, trace.canonicalize().map_err(failed())?);
    }
    Ok(child)
}

/// Lets the child see the machine's adapters.
fn show_adapters(child: &mut Command, stage: &Stage, machine: &Description) -> Result<(), Error> {
    let Some(provider) = &stage.provider else { return Ok(()) };
    let node = env::var("HWSIM_NODE").ok().and_then(|node| node.parse().ok()).unwrap_or(0);
    let entered = namespace::enter(machine.adapters.len(), &stage.scratch("dev")?);
    if let Err(error) = entered {
        eprintln!("hwsim: no virtual adapters: {error}");
        return Ok(());
    }
    if env::var_os("HWSIM_FABRIC").is_none() {
        child.env("HWSIM_FABRIC", stage.scratch("fabric")?);
    }
    child
        .env(adapters::SYSFS_VARIABLE, stage.sysfs(machine, node)?)
        .env(adapters::DRIVERS_VARIABLE, provider);
    Ok(())
}

/// Starts the child and passes signals on until it ends.
fn start_and_wait(
    mut child: Command,
    signals: &SigSet,
    program: &Path,
) -> Result<WaitStatus, Error> {
    let child = child.spawn().map_err(Error::system(format!("starting {}", program.display())))?;
    let pid = Pid::from_raw(child.id() as i32);
    let ended = forward_until_ended(pid, signals);
    if ended.is_err() {
        // Not known to have ended: end it, so that nothing is left behind.
        let _ = kill(pid, Signal::SIGKILL);
        let _ = waitpid(pid, None);
    }
    ended.map_err(|errno| Error::system("waiting for the command")(errno.into()))
}

fn forward_until_ended(pid: Pid, signals: &SigSet) -> Result<WaitStatus, Errno> {
    let incoming = SignalFd::new(signals)?;
    loop {
        // Ends with the child, whose end is itself one of the signals.
        let Some(signal) = incoming.read_signal()? else { continue };
        let number = Signal::try_from(signal.ssi_signo as i32)?;
        if number == Signal::SIGCHLD {
            match waitpid(pid, Some(WaitPidFlag::WNOHANG))? {
                ended @ (WaitStatus::Exited(..) | WaitStatus::Signaled(..)) => return Ok(ended),
                // Stopped or continued.
                _ => continue,
            }
        }
        // A signal of the terminal (Ctrl-C) went to the whole foreground group, the child included.
        if signal.ssi_code != SI_KERNEL {
            kill(pid, number)?;
        }
    }
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
            Ok(file) if file.is_dir() => unusable = Some((candidate, "it is a folder")),
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
