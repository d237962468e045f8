//! The `ringdove` command.

mod doctor;
mod graph;
mod inspect;
#[cfg(feature = "verbs")]
mod mount;
mod perf;
mod plan;
mod program;
#[cfg(feature = "verbs")]
mod serve;
mod topo;
mod tune;

use clap::{Parser, Subcommand};
use perf::arguments::Arguments;
use perf::{Collective, PerfError, experts};
use std::io::Write;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// Exit status for a command line that makes no sense, the one that `clap` uses too.
const EXIT_USAGE: u8 = 2;

/// GPU-driven collective communication: measure it, check it
#[derive(Parser)]
#[command(name = "ringdove", version)]
struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Measure an operation and check its results, with the options and the table of nccl-tests
    #[command(subcommand)]
    Perf(Perf),
    /// Report hardware and software of this machine, what will be used, and what is missing
    Doctor(doctor::Arguments),
    /// Show what of a data-flow graph crosses ranks, and how it gets there
    Graph(graph::Arguments),
    /// Show where the ranks of running processes stand, and which one is the cause of a hang
    Inspect(inspect::Arguments),
    /// Show the parameters of a running `ringdove serve` as files
    #[cfg(feature = "verbs")]
    Mount(mount::Arguments),
    /// Show the plan that is chosen for a collective, or prove one from a file
    Plan(plan::Arguments),
    /// Show what the planner of resident programs makes of a step of training
    Program(program::Arguments),
    /// Keep the parameters of a model in the memory of servers, for workers to read and change
    #[cfg(feature = "verbs")]
    Serve(serve::Arguments),
    /// Show what this node, or a described machine, is made of, and how fast its links can be
    Topo(topo::Arguments),
    /// Measure this machine's GPUs and links, and write a profile of the cost model
    Tune(tune::Arguments),
}

#[derive(Subcommand)]
enum Perf {
    /// Every rank contributes a buffer and ends with the reduction of all
    AllReduce(Arguments),
    /// Every rank ends with all ranks' inputs
    AllGather(Arguments),
    /// Every rank ends with its part of the reduction
    ReduceScatter(Arguments),
    /// Every rank ends with the root's input
    Broadcast(Arguments),
    /// The root ends with the reduction of all ranks' inputs
    Reduce(Arguments),
    /// Every rank ends with its part of every rank's input
    AllToAll(Arguments),
    /// The root ends with all ranks' inputs
    Gather(Arguments),
    /// Every rank ends with its part of the root's input
    Scatter(Arguments),
    /// Every rank sends to the next and receives from the one before (out-of-place only)
    SendRecv(Arguments),
    /// Tokens go to experts on all ranks and come back, for mixtures of experts
    Experts(experts::Arguments),
}

impl Perf {
    fn run(self) -> Result<ExitCode, PerfError> {
        let (collective, arguments) = match self {
            Self::Experts(arguments) => return experts::run(&arguments),

            Self::AllReduce(arguments) => (Collective::AllReduce, arguments),
            Self::AllGather(arguments) => (Collective::AllGather, arguments),
            Self::ReduceScatter(arguments) => (Collective::ReduceScatter, arguments),
            Self::Broadcast(arguments) => (Collective::Broadcast, arguments),
            Self::Reduce(arguments) => (Collective::Reduce, arguments),
            Self::AllToAll(arguments) => (Collective::AllToAll, arguments),
            Self::Gather(arguments) => (Collective::Gather, arguments),
            Self::Scatter(arguments) => (Collective::Scatter, arguments),
            Self::SendRecv(arguments) => (Collective::SendRecv, arguments),
        };
        perf::run(collective, arguments)
    }
}

fn main() -> ExitCode {
    let verb = Command::parse().verb;
    start_log();
    let outcome = match verb {
        Verb::Perf(perf) => perf.run(),
        Verb::Doctor(arguments) => Ok(doctor::run(&arguments)),
        Verb::Graph(arguments) => Ok(graph::run(arguments)),
        Verb::Inspect(arguments) => Ok(inspect::run(&arguments)),
        #[cfg(feature = "verbs")]
        Verb::Mount(arguments) => Ok(mount::run(&arguments)),
        Verb::Plan(arguments) => Ok(plan::run(arguments)),
        Verb::Program(arguments) => Ok(program::run(arguments)),
        #[cfg(feature = "verbs")]
        Verb::Serve(arguments) => Ok(serve::run(&arguments)),
        Verb::Topo(arguments) => Ok(topo::run(&arguments)),
        Verb::Tune(arguments) => Ok(tune::run(&arguments)),
    };
    outcome.unwrap_or_else(|error| fail(&error))
}

/// Says what went wrong, with its causes.
fn fail(error: &PerfError) -> ExitCode {
    eprintln!("ringdove: {error}");
    let mut cause = std::error::Error::source(error);
    let mut said = error.to_string();
    while let Some(reason) = cause {
        let text = reason.to_string();
        // Messages that already quote their cause need not say it twice.
        if !said.contains(&text) {
            eprintln!("  because: {text}");
            said += &text;
        }
        cause = reason.source();
    }
    if error.is_usage() { ExitCode::from(EXIT_USAGE) } else { ExitCode::FAILURE }
}

/// The end of a command; says what went wrong.
fn ended(outcome: Result<(), String>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ringdove: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints. That whoever reads it has gone is no failure.
fn say(text: &str) -> Result<(), String> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write: {error}"))
        }
        _ => Ok(()),
    }
}

/// Warnings of the library go to standard error; `RINGDOVE_LOG=debug` asks for more.
fn start_log() {
    let filter = EnvFilter::try_from_env("RINGDOVE_LOG")
        .unwrap_or_else(|_| EnvFilter::new("warn,fuser=error"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}
