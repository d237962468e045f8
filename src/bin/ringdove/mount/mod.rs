//! `ringdove mount`: the parameters of a running job as files, until the mount ends.

mod fuse;
mod tree;

use crate::serve;
use clap::Args;
use fuse::Mounted;
use fuser::{Config, MountOption, Session};
use ringdove::Settings;
use ringdove::serve::{Client, Role};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use tree::Tree;

/// Exit status where this machine has no FUSE, or does not let this user mount.
const EXIT_NO_FUSE: u8 = 3;
const DEVICE: &str = "/dev/fuse";

/// Command line of `ringdove mount`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// An empty folder
    folder: PathBuf,
    #[command(flatten)]
    job: serve::JobArguments,
}

/// Mounts, and serves until somebody unmounts it (`umount`, `fusermount3 -u`).
pub fn run(arguments: &Arguments) -> ExitCode {
    if let Err(why) = has_fuse() {
        eprintln!("ringdove: {why}");
        return ExitCode::from(EXIT_NO_FUSE);
    }
    super::ended(mount(arguments))
}

/// Is there FUSE, and may this process use it?
fn has_fuse() -> Result<(), String> {
    let opened = std::fs::OpenOptions::new().read(true).write(true).open(DEVICE);
    opened.map(drop).map_err(|error| {
        format!(
            "{DEVICE}: {error}; a mount needs it: load the kernel's module `fuse`, give a \
             container the device, or read the parameters by ringdove::serve::Client"
        )
    })
}

fn mount(arguments: &Arguments) -> Result<(), String> {
    let text = |error: ringdove::Error| error.to_string();
    let settings = Settings::from_env().map_err(text)?;
    let launch = serve::launched()?;
    let job = serve::job(&arguments.job, launch.rank_count as usize)?;
    let model = job.model.clone();
    let client = Client::join(job, Role::Observer, &launch, &settings).map_err(text)?;
    let place = arguments.folder.join(model.name());
    let greeting = format!(
        "{}: a file for each tensor, until `umount {}`",
        place.display(),
        arguments.folder.display()
    );
    let mounted = Mounted::new(Tree::new(model, client)?, greeting);
    let mut options = Config::default();
    options.mount_options = vec![
        MountOption::FSName("ringdove".into()),
        MountOption::Subtype("ringdove".into()),
        MountOption::DefaultPermissions,
        MountOption::NoSuid,
        MountOption::NoDev,
        MountOption::NoExec,
    ];
    let folder = arguments.folder.display();
    let session = Session::new(mounted, &arguments.folder, &options).map_err(|error| {
        format!("mounting on {folder}: {error}; an empty folder of yours, and root or fusermount3")
    })?;
    // When it is dropped, the client leaves the job.
    how_it_ended(session.run()).map_err(|error| format!("serving {folder}: {error}"))
}

/// How a mount ended: without an error also where the kernel took the connection away in the
/// moment in which the next request was read, which reads as `ECONNABORTED` (`ENODEV`, the
/// usual end, is none for `fuser`). What had been answered before is with the servers.
fn how_it_ended(outcome: io::Result<()>) -> io::Result<()> {
    outcome.or_else(|error| match error.kind() {
        io::ErrorKind::ConnectionAborted => Ok(()),
        _ => Err(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_the_kernel_took_away_is_an_end_without_an_error() {
        let end = |kind: io::ErrorKind| how_it_ended(Err(kind.into()));
        assert!(how_it_ended(Ok(())).is_ok());
        assert!(end(io::ErrorKind::ConnectionAborted).is_ok());
        let other = end(io::ErrorKind::BrokenPipe).unwrap_err();
        assert_eq!(other.kind(), io::ErrorKind::BrokenPipe);
    }
}
