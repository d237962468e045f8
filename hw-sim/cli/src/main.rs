//! `hwsim`: run programs on virtual hardware.

mod error;
mod library;
mod machines;
mod predict;
mod run;

use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// Runs programs on virtual hardware: GPUs behind the CUDA driver's and NVML's own interfaces.
#[derive(Parser)]
#[command(name = "hwsim", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run a command on a virtual machine, and end with its status
    Run(RunArguments),
    /// List the built-in machines with their GPUs and links, or show one
    Machines(MachinesArguments),
    /// Predict how long an operation takes on a machine: modelled times, no data moves
    Predict(predict::PredictArguments),
    /// The second half of `run`, inside the child process
    #[command(name = run::CHILD_VERB, hide = true)]
    Child(ChildArguments),
}

/// What `hwsim run` is asked to do.
#[derive(Args)]
struct RunArguments {
    /// A built-in machine, or the path of a machine file [default: HWSIM_MACHINE, or pcie4]
    #[arg(long, short, value_name = "NAME|FILE")]
    machine: Option<String>,
    /// Write one line for each driver call to this file
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Do not name the machine at the start
    #[arg(long, short)]
    quiet: bool,
    /// The program to run, and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Args)]
struct MachinesArguments {
    /// A built-in machine, or the path of a machine file
    name: Option<String>,
    /// Print the machine's file, as a start for one of your own
    #[arg(long, requires = "name")]
    toml: bool,
}

#[derive(Args)]
struct ChildArguments {
    /// Process id of the `hwsim run` that must outlive this process
    parent: i32,
    /// The program to become, and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().verb {
        Verb::Run(arguments) => run::run(&arguments),
        Verb::Machines(arguments) => machines::show(arguments.name.as_deref(), arguments.toml),
        Verb::Predict(arguments) => predict::predict(&arguments),
        Verb::Child(arguments) => Err(run::become_command(arguments.parent, &arguments.command)),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("hwsim: {error}");
        ExitCode::from(error.exit_status())
    })
}
