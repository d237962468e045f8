//! `hwsim litmus`: runs litmus tests on the weak memory, all of their executions.

use crate::error::Error;
use clap::Args;
use hwsim_ptx::litmus::{Report, Test, parse};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What `hwsim litmus` is asked to do.
#[derive(Args)]
pub struct LitmusArguments {
    /// Files in the `.litmus` format of PTX
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Stop a test after this many runs, and say so
    #[arg(long, value_name = "N", default_value = "2000000")]
    runs: u64,
    /// Print one line for each file, without its outcomes
    #[arg(long, short)]
    quiet: bool,
}

/// Runs them. The status says whether every file could be read and every claim was decided.
pub fn litmus(arguments: &LitmusArguments) -> Result<ExitCode, Error> {
    let (mut held, mut not_held, mut undecided) = (0_u32, 0_u32, 0_u32);
    for path in &arguments.files {
        match one(path, arguments) {
            Some(true) => held += 1,
            Some(false) => not_held += 1,
            None => undecided += 1,
        }
    }
    if arguments.files.len() > 1 {
        println!("{held} hold, {not_held} do not, {undecided} undecided or unreadable");
    }
    Ok(if undecided == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn one(path: &Path, arguments: &LitmusArguments) -> Option<bool> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            println!("{}: {error}", path.display());
            return None;
        }
    };
    let test = match parse(&text) {
        Ok(test) => test,
        Err(error) => {
            println!("{}: {error}", path.display());
            return None;
        }
    };
    let report = test.enumerate(arguments.runs);
    show(path, &test, &report, arguments.quiet)
}

/// Prints outcomes and verdict. A condition that no run met is decided only if all runs were made.
fn show(path: &Path, test: &Test, report: &Report, quiet: bool) -> Option<bool> {
    let (quantifier, formula) = test.claim.as_ref()?;
    let met = report.outcomes.keys().any(|outcome| formula.holds(outcome));
    let missed = report.outcomes.keys().any(|outcome| !formula.holds(outcome));
    let seen = match quantifier {
        hwsim_ptx::litmus::Quantifier::Forall => missed,
        _ => met,
    };
    let decided = report.is_complete || seen;
    let verdict = report.verdict(test).filter(|_| decided);
    let words = match verdict {
        Some(true) => "holds",
        Some(false) => "does not hold",
        None => "undecided: more runs than --runs allows",
    };
    println!("{}: {}: {quantifier} {words}", path.display(), test.name);
    if !quiet {
        for (outcome, runs) in &report.outcomes {
            let mark = if formula.holds(outcome) { '*' } else { ' ' };
            let values = outcome.iter().map(|(name, value)| format!("{name}={value}"));
            println!("  {mark} {} ({runs} runs)", values.collect::<Vec<_>>().join(" "));
        }
        let all = if report.is_complete { "all" } else { "the first" };
        println!("  {all} {} runs; {} were cut off or hang", report.runs, report.cut);
    }
    verdict
}
