//! `hwsim`: run programs on virtual hardware.

mod adapters;
mod engines;
mod error;
mod explore;
mod fabric;
mod library;
mod litmus;
mod machines;
mod namespace;
mod output;
mod pci;
mod predict;
mod ptxas;
mod run;
mod sdk;
mod sysfs;
mod tidy;

use clap::{Args, Parser, Subcommand};
use hwsim_machine::version::DriverVersion;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

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
    /// Write a folder that build tools take for a CUDA installation: cuda.h and libcuda.so, so that
    /// programs that link with the CUDA driver build on machines without it
    Sdk(SdkArguments),
    /// Predict how long an operation takes on a machine: modelled times, no data moves
    Predict(predict::PredictArguments),
    /// Run the protocol's device code and engine on a weak memory, every choice drawn from a seed
    Explore(explore::ExploreArguments),
    /// Run litmus tests of PTX's memory model on the weak memory, in every way they can run
    Litmus(litmus::LitmusArguments),
    /// The second half of `run`, inside the child process
    #[command(name = run::child::VERB, hide = true)]
    Child(ChildArguments),
    /// Stands by until `run` has ended, to tidy up after it
    #[command(name = tidy::VERB, hide = true)]
    Tidy(TidyArguments),
}

/// What `hwsim run` is asked to do.
#[derive(Args)]
struct RunArguments {
    /// A built-in machine, or the path of a machine file [default: HWSIM_MACHINE, or pcie4];
    /// `NAME x NODES` is a cluster of such machines
    #[arg(long, short, value_name = "NAME|FILE")]
    machine: Option<String>,
    /// Start this many processes, equally many on each node, as `torchrun` does
    /// [default: one on each node]
    #[arg(long, short = 'n', value_name = "N")]
    procs: Option<u32>,
    /// Do not mark the output of several processes with their ranks
    #[arg(long)]
    no_label: bool,
    /// How long the other processes may take to end when one has failed, before they are killed
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    grace: Duration,
    /// The version of CUDA whose driver is shown: 12.4, 12.8 or 13.0. With this option, PTX that
    /// is too new for the driver or the GPU is refused, as a real driver does [default: 12.4, and
    /// PTX of every version is taken]
    #[arg(long, value_name = "VERSION")]
    driver: Option<DriverVersion>,
    /// Let device allocations reach as far as on real GPUs, to a multiple of 512 bytes and from
    /// 2 MiB on of 2 MiB: kernels that go a little too far are not stopped
    #[arg(long)]
    round_allocations: bool,
    /// Show a stand-in for cuDNN: its handles can be made, and nothing be computed. XLA (JAX) asks
    /// for one before it compiles anything
    #[arg(long)]
    cudnn: bool,
    /// How hostile the driver is: `strict` or `lenient`
    /// [default: HWSIM_DRIVER_PROFILE, or what the machine file says, or lenient]
    #[arg(long, value_name = "PROFILE")]
    driver_profile: Option<String>,
    /// Set one key of the driver's profile; may be repeated. hw-sim/README.md lists them
    #[arg(long, value_name = "KEY=VALUE")]
    driver_key: Vec<String>,
    /// A fault of a virtual device or a process, such as `hwsim0:loss-at=100`, `gpu1:stop-at=5`,
    /// `rank2:kill-at=300` or `seed=7`; may be repeated, and comes behind those of HWSIM_FAULTS.
    /// hw-sim/README.md lists them
    #[arg(long, value_name = "DEVICE:FAULT", value_parser = fault)]
    fault: Vec<String>,
    /// Write one line for each driver call to this file
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write to this file, for each process that used the driver, one line of JSON: functions,
    /// kernels, instructions, bytes, and what was refused
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Show no virtual RDMA adapters, no device engines and no device files of GPUs, and nothing of
    /// the machine in /sys; what the host has stays visible
    #[arg(long)]
    no_adapters: bool,
    /// Leave /sys as the host has it. Without this option it shows the machine: PCI devices and
    /// bridges, RDMA adapters, NUMA nodes
    #[arg(long)]
    no_sys: bool,
    /// What runs do in any case, unless they are told `--no-sys` or `--no-adapters`
    #[arg(long, hide = true, conflicts_with_all = ["no_sys", "no_adapters"])]
    sys: bool,
    /// Give the run a network of its own, in which each adapter has an interface with its address.
    /// The host's network cannot be reached from there
    #[arg(long, conflicts_with = "no_adapters")]
    net: bool,
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
    /// Print the machine's file, to start a new one from
    #[arg(long, requires = "name")]
    toml: bool,
}

#[derive(Args)]
struct SdkArguments {
    /// Where to write it; it may exist, and is brought up to date if `hwsim sdk` has written it
    folder: PathBuf,
}

#[derive(Args)]
struct TidyArguments {
    /// What to remove
    folder: PathBuf,
}

#[derive(Args)]
struct ChildArguments {
    /// Process id of the `hwsim run` that must outlive this process
    parent: i32,
    /// Tell the process that tidies up, through standard input, of the group that this one leads
    #[arg(long)]
    watched: bool,
    /// Show this folder as /sys
    #[arg(long)]
    sys: Option<PathBuf>,
    /// Do not say so if that is not possible: another process does
    #[arg(long)]
    silent: bool,
    /// The program to become, and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Reads a time in seconds, up to a day.
fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) if (0.0..=86400.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("expected seconds from 0 to 86400".into()),
    }
}

/// Reads a fault, or the seed of faults.
fn fault(text: &str) -> Result<String, String> {
    hwsim_machine::fault::check_list(text).map(|()| text.to_owned())
}

fn main() -> ExitCode {
    if let Some(status) = ptxas::answer() {
        return status;
    }
    let outcome = match Arguments::parse().verb {
        Verb::Run(arguments) => run::run(&arguments),
        Verb::Machines(arguments) => machines::show(arguments.name.as_deref(), arguments.toml),
        Verb::Sdk(arguments) => sdk::sdk(&arguments.folder),
        Verb::Predict(arguments) => predict::predict(&arguments),
        Verb::Explore(arguments) => explore::explore(&arguments),
        Verb::Litmus(arguments) => litmus::litmus(&arguments),
        Verb::Child(arguments) => Err(run::child::become_command(&arguments)),
        Verb::Tidy(arguments) => tidy::stand_by(&arguments.folder),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("hwsim: {error}");
        ExitCode::from(error.exit_status())
    })
}
