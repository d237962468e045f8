//! A run of one process, which has the terminal and the streams of `hwsim` itself.

use crate::error::Error;
use crate::run::child::Template;
use crate::tidy::Tidier;
use nix::errno::Errno;
use nix::libc::SI_KERNEL;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::SignalFd;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

/// Runs the command and ends as it ends.
pub fn run(
    template: &Template,
    sys: Option<&Path>,
    command: &OsStr,
    signals: &SigSet,
    tidier: &mut Tidier,
) -> Result<ExitCode, Error> {
    match start_and_wait(template, sys, signals, tidier)? {
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

/// Starts the child and passes signals on until it ends.
fn start_and_wait(
    template: &Template,
    sys: Option<&Path>,
    signals: &SigSet,
    tidier: &mut Tidier,
) -> Result<WaitStatus, Error> {
    let starting = Error::system(format!("starting {}", template.program().display()));
    let child = template.command(sys).spawn().map_err(starting)?;
    let pid = Pid::from_raw(child.id() as i32);
    tidier.watch_process(pid);
    let ended = forward_until_ended(pid, signals);
    if ended.is_err() {
        // Not known to have ended: end it, so that nothing is left behind.
        let _ = kill(pid, Signal::SIGKILL);
        let _ = waitpid(pid, None);
    }
    tidier.forget_process(pid);
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
                // Stopped or continued, or another child of ours.
                _ => continue,
            }
        }
        // A signal of the terminal (Ctrl-C) went to the whole foreground group, the child included.
        if signal.ssi_code != SI_KERNEL {
            kill(pid, number)?;
        }
    }
}
