//! `hwsim explore`: seeded, adversarial runs of the protocol's code on the weak memory.

use crate::error::Error;
use clap::Args;
use hwsim_explore::{Options, Scenario, scenario};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// What `hwsim explore` is asked to do.
#[derive(Args)]
pub struct ExploreArguments {
    /// The first seed; each run takes the next one
    #[arg(long, value_name = "N", default_value = "0")]
    seed: u64,
    /// How many runs
    #[arg(long, value_name = "M", default_value = "100")]
    runs: u64,
    /// Stop after this time, whatever --runs says
    #[arg(long, value_name = "SECONDS", value_parser = crate::seconds)]
    budget: Option<Duration>,
    /// Run this PTX file in the executor's place
    #[arg(long, value_name = "FILE")]
    ptx: Option<std::path::PathBuf>,
    /// ring, stores, low-latency or random
    #[arg(value_name = "SCENARIO", value_parser = named)]
    scenario: Scenario,
}

fn named(name: &str) -> Result<Scenario, String> {
    let names = Scenario::ALL.map(|(name, _)| name).join(", ");
    Scenario::named(name).ok_or_else(|| format!("expected one of {names}"))
}

/// Runs it. A run that fails ends the command with status 1.
pub fn explore(arguments: &ExploreArguments) -> Result<ExitCode, Error> {
    let text = match &arguments.ptx {
        None => hwsim_explore::scenario::committed().to_owned(),
        Some(path) => std::fs::read_to_string(path).map_err(|source| Error::System {
            action: format!("cannot read {}", path.display()),
            source,
        })?,
    };
    let kernel = match scenario::load(&text) {
        Ok(kernel) => kernel,
        Err(reason) => {
            eprintln!("hwsim: {reason}");
            return Ok(ExitCode::FAILURE);
        }
    };
    let began = Instant::now();
    let (mut runs, mut instructions) = (0_u64, 0_u64);
    while runs < arguments.runs && arguments.budget.is_none_or(|budget| began.elapsed() < budget) {
        let options = Options::draw(arguments.scenario, arguments.seed.wrapping_add(runs));
        match scenario::run(&kernel, options) {
            Ok(stats) => instructions += stats.instructions,
            Err(failure) => {
                println!("{failure}");
                return Ok(ExitCode::FAILURE);
            }
        }
        runs += 1;
    }
    let seconds = began.elapsed().as_secs_f64().max(1e-9);
    println!(
        "{}: {runs} runs from seed {}, none failed; {instructions} warp instructions, {:.1} runs/s",
        arguments.scenario.name(),
        arguments.seed,
        runs as f64 / seconds,
    );
    Ok(ExitCode::SUCCESS)
}
