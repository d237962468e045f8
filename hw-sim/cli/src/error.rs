//! Errors before the command runs.

use hwsim_machine::description::DescriptionError;
use hwsim_machine::fabric::FabricError;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

/// Why `hwsim` could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine is unknown, or its file is wrong.
    #[error(transparent)]
    Machine(#[from] DescriptionError),
    /// The fabric's folder cannot be used.
    #[error("{named}: {cause}")]
    Fabric {
        /// Who named the folder.
        named: String,
        /// The reason.
        cause: FabricError,
    },
    /// There is no prediction.
    #[error(transparent)]
    Predict(#[from] crate::predict::PredictError),
    /// A folder of litmus tests, or a list of what is expected of them, cannot be used.
    #[error("{0}")]
    Litmus(String),
    /// Runs of the explorer cannot be made as asked.
    #[error("{0}")]
    Explore(String),
    /// `libhwsim.so` is nowhere.
    #[error(
        "libhwsim.so not found; looked at {}. Build it with `cargo build --release -p \
         hwsim-vendor-abi`, or set HWSIM_LIB to its path",
        searched.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    NoLibrary {
        /// Every path that was tried.
        searched: Vec<PathBuf>,
    },
    /// A file or folder cannot be made, or a process not started.
    #[error("{action}: {source}")]
    System {
        /// The action that failed.
        action: String,
        /// The system's error.
        source: io::Error,
    },
    /// The command does not exist.
    #[error("command not found: `{}`{hint}", command.to_string_lossy())]
    CommandMissing {
        /// The command as it was given.
        command: OsString,
        /// Where it was looked for.
        hint: String,
    },
    /// The command exists, but is no program.
    #[error("cannot run `{}`: {reason}", command.display())]
    CommandNotExecutable {
        /// The file.
        command: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The processes cannot be spread over the nodes.
    #[error(
        "--procs {processes} on {nodes} node(s): expected a multiple of {nodes}, from {nodes} to \
         {most}"
    )]
    Spread {
        /// Processes asked for.
        processes: u32,
        /// Nodes of the cluster.
        nodes: u32,
        /// Processes at most.
        most: u32,
    },
    /// `hwsim sdk` would write over somebody else's file.
    #[error(
        "{} exists, and `hwsim sdk` has not written it: expected a new folder, or one that it \
         has written",
        path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The parent ended while its child was being set up.
    #[error("`hwsim run` (process {parent}) ended before its command began")]
    Orphaned {
        /// Its process id.
        parent: i32,
    },
}

impl Error {
    /// Wraps an error of the system with what was being done.
    pub fn system(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { action: action.into(), source }
    }

    /// The exit status, as `env` and `timeout` have it: 127 no such command, 126 not a program,
    /// 125 anything of our own.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::CommandMissing { .. } => 127,
            Self::CommandNotExecutable { .. } => 126,
            _ => 125,
        }
    }
}
