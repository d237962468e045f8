//! `ringdove inspect`: where the ranks of running processes stand, and which one is the cause when
//! they do not go on. It reads their flight recorders; nothing of them runs for it, so a process
//! that is stopped or stuck is shown as well.

use clap::Args;
use ringdove::flight::{self, Cause, Gathered, Report};
use std::io::Write;
use std::process::ExitCode;

/// Exit status where a rank was found to be the cause of a hang.
const EXIT_CAUSE: u8 = 3;

/// Command line of `ringdove inspect`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Processes of this machine; without any, all that have ranks and belong to this user. What
    /// other processes say of the same communicators is shown too
    pids: Vec<u32>,
    /// Also show the last calls and launches of each rank
    #[arg(long)]
    calls: bool,
}

/// Shows the ranks of the processes.
pub fn run(arguments: &Arguments) -> ExitCode {
    let gathered = flight::gather();
    let missing = arguments.pids.iter().filter(|pid| flight::of_process(**pid).is_none());
    let missing: Vec<_> = missing.collect();
    for pid in &missing {
        eprintln!(
            "ringdove: process {pid} has no flight recorder that can be read: expected a running \
             process of this user with a communicator of ringdove {}",
            env!("CARGO_PKG_VERSION")
        );
    }
    let reports = reports(arguments, &gathered);
    let mut out = std::io::stdout().lock();
    for report in &reports {
        // Whoever reads it has gone.
        if write!(out, "{report}").and_then(|()| write_calls(arguments, report, &mut out)).is_err()
        {
            return ExitCode::FAILURE;
        }
    }
    if !missing.is_empty() {
        return ExitCode::FAILURE;
    }
    if reports.is_empty() {
        eprintln!("ringdove: no process of this user on this machine has a communicator");
        return ExitCode::FAILURE;
    }
    let is_fine = |report: &Report| matches!(report.verdict.cause, Cause::Nothing | Cause::Unknown);
    if reports.iter().all(is_fine) { ExitCode::SUCCESS } else { ExitCode::from(EXIT_CAUSE) }
}

/// Those on communicators that a wanted process has a rank of.
fn reports(arguments: &Arguments, gathered: &Gathered) -> Vec<Report> {
    let is_wanted = |report: &Report| {
        arguments.pids.is_empty()
            || report.ranks.iter().any(|rank| arguments.pids.contains(&rank.pid))
    };
    Report::of_all(gathered).into_iter().filter(is_wanted).collect()
}

fn write_calls(
    arguments: &Arguments,
    report: &Report,
    out: &mut impl Write,
) -> std::io::Result<()> {
    if !arguments.calls {
        return Ok(());
    }
    for rank in &report.ranks {
        writeln!(out, "  last calls and launches of {}:", rank.rank)?;
        for entry in &rank.entries {
            let seconds = entry.time_ns as f64 / 1e9;
            let kind = format!("{:?}", entry.kind).to_lowercase();
            writeln!(
                out,
                "    {seconds:.6} {kind} {}: {} of {}",
                entry.number, entry.name, entry.count
            )?;
        }
    }
    Ok(())
}
