//! `hwsim explore`: seeded, adversarial runs of the protocol's code on the weak memory.

use crate::error::Error;
use crate::output::print;
use clap::Args;
use hwsim_explore::{
    Change, Description, Failure, Fault, Kernels, Options, Scenario, UserKernel, scenario,
};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// What `hwsim explore` is asked to do.
#[derive(Args)]
pub struct ExploreArguments {
    /// The first seed; each run takes the next one
    #[arg(long, value_name = "N", default_value = "0")]
    seed: u64,
    /// How many runs
    #[arg(long, value_name = "M", default_value = "100",
        value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,
    /// Stop after this time, whatever --runs says, but not before the first run has ended
    #[arg(long, value_name = "SECONDS", value_parser = crate::seconds)]
    budget: Option<Duration>,
    /// Run this PTX file in the place of the executor, of the kernel of users' calls or of experts'
    /// kernels
    #[arg(long, value_name = "FILE")]
    ptx: Option<PathBuf>,
    /// Look for a shorter run that fails as the first failing one does
    #[arg(long)]
    shrink: bool,
    /// Write the failing run, or else the last one, for Perfetto
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// A fault beside those that are drawn, by the names of `hwsim run --fault`; may be repeated
    #[arg(long = "fault", value_name = "FAULT")]
    faults: Vec<Fault>,
    /// Run a user's kernel, which this file describes with its ranks, in the place of a scenario:
    /// `ringdove.testing.explore` writes such files
    #[arg(long, value_name = "FILE", conflicts_with_all =
        ["ptx", "shrink", "trace", "faults", "changes", "scenario"])]
    kernel: Option<PathBuf>,
    /// Make a number that was drawn smaller, as --shrink prints it; one that is no smaller changes
    /// nothing
    #[arg(long = "with", value_name = "NAME=NUMBER")]
    changes: Vec<Change>,
    /// ring, stores, low-latency, grants, many, refusal, abort, expiry, stray, garbage, user,
    /// user-faults, reuse, experts, relays, experts-faults, batches, batches-faults, claims, waits,
    /// rewrites, corners, collectives, collectives-faults, packed, packed-faults, clock, groups,
    /// groups-faults, graphs, device, device-faults, members, members-faults, absences,
    /// communicators, communicators-faults, connections, connections-faults, lossy,
    /// several-faults, words or random
    #[arg(value_name = "SCENARIO", value_parser = named, required_unless_present = "kernel")]
    scenario: Option<Scenario>,
}

impl ExploreArguments {
    fn scenario(&self) -> Scenario {
        self.scenario.unwrap_or(Scenario::Random)
    }
}

fn named(name: &str) -> Result<Scenario, String> {
    let names = Scenario::ALL.map(|(name, _)| name).join(", ");
    Scenario::named(name).ok_or_else(|| format!("expected one of {names}"))
}

/// Runs it. A run that fails ends the command with status 1; what cannot be run, with another.
pub fn explore(arguments: &ExploreArguments) -> Result<ExitCode, Error> {
    if let Some(path) = &arguments.kernel {
        return explore_kernel(arguments, path);
    }
    let kernels = match &arguments.ptx {
        None => Kernels::committed(),
        Some(path) => Kernels::load(&text_of(path)?).map_err(Error::Explore)?,
    };
    if let Some(path) = &arguments.trace {
        // Runs may take hours: better said before them.
        let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
        opened.map_err(Error::system(format!("cannot write {}", path.display())))?;
    }
    let began = Instant::now();
    let deadline = arguments.budget.map(|budget| began + budget);
    let is_late = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
    let (mut runs, mut instructions, mut last) = (0_u64, 0_u64, None);
    while runs < arguments.runs && (runs == 0 || !is_late()) {
        let options = drawn(arguments, runs).map_err(Error::Explore)?;
        match scenario::run(&kernels, &options) {
            Ok(stats) => {
                instructions += stats.instructions;
                last = Some(options);
            }
            Err(failure) => return report(arguments, &kernels, *failure, deadline),
        }
        runs += 1;
    }
    if let (Some(path), Some(last)) = (&arguments.trace, last) {
        write_trace(path, &kernels, &last)?;
    }
    let seconds = began.elapsed().as_secs_f64().max(1e-9);
    print(&format!(
        "{}: {runs} runs from seed {}, none failed; {instructions} warp instructions, {:.1} \
         runs/s\n",
        arguments.scenario().name(),
        arguments.seed,
        runs as f64 / seconds,
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs a user's kernel, in as many ways.
fn explore_kernel(arguments: &ExploreArguments, path: &Path) -> Result<ExitCode, Error> {
    let kernel = Description::read(&text_of(path)?).and_then(UserKernel::new);
    let kernel =
        kernel.map_err(|reason| Error::Explore(format!("{}: {reason}", path.display())))?;
    let began = Instant::now();
    let is_late = || arguments.budget.is_some_and(|most| began.elapsed() >= most);
    let (mut runs, mut instructions) = (0, 0);
    while runs < arguments.runs && (runs == 0 || !is_late()) {
        let seed = arguments.seed.wrapping_add(runs);
        match kernel.run(seed) {
            Ok(stats) => instructions += stats.instructions,
            Err(reason) => {
                let path = quoted(path);
                print(&format!(
                    "seed {seed} fails: {reason}\n\
                     replay: hwsim explore --kernel {path} --seed {seed} --runs 1\n"
                ))?;
                return Ok(ExitCode::FAILURE);
            }
        }
        runs += 1;
    }
    let first = arguments.seed;
    print(&format!(
        "{runs} runs from seed {first}, none failed; {instructions} warp instructions\n"
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn text_of(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(Error::system(format!("cannot read {}", path.display())))
}

fn drawn(arguments: &ExploreArguments, run: u64) -> Result<Options, String> {
    let mut options = Options::draw(arguments.scenario(), arguments.seed.wrapping_add(run));
    for fault in &arguments.faults {
        options.add_fault(*fault)?;
    }
    for change in &arguments.changes {
        options.change(change.clone());
    }
    Ok(options)
}

/// Prints a failure and the command that replays it.
fn report(
    arguments: &ExploreArguments,
    kernels: &Kernels,
    failure: Failure,
    deadline: Option<Instant>,
) -> Result<ExitCode, Error> {
    let turns = failure.stats.turns;
    let failure = match arguments.shrink {
        true => scenario::shrink(kernels, failure, deadline),
        false => failure,
    };
    print(&format!("{failure}\n"))?;
    if arguments.shrink {
        print(&format!("shrunk from {turns} to {} turns\n", failure.stats.turns))?;
    }
    if let Some(path) = &arguments.trace {
        write_trace(path, kernels, &failure.options)?;
    }
    let ptx = match &arguments.ptx {
        Some(path) => format!("--ptx {} ", quoted(path)),
        None => String::new(),
    };
    print(&format!("replay: hwsim explore {ptx}{}\n", failure.replay()))?;
    Ok(ExitCode::FAILURE)
}

/// A path as a shell takes it for one word.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

fn write_trace(path: &Path, kernels: &Kernels, options: &Options) -> Result<(), Error> {
    let (_, trace) = scenario::run_traced(kernels, options);
    std::fs::write(path, trace.to_string())
        .map_err(Error::system(format!("cannot write {}", path.display())))?;
    print(&format!("trace: {}\n", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, a fault that was printed is not taken back, or has a name of its own in
    /// `hwsim explore` where `hwsim run` has that fault under another one.
    #[test]
    fn faults_have_the_names_of_hwsim_run() {
        let shared = [
            "gpu1:stop-at=17",
            "gpu0:clock-leaps-at=3:-250",
            "engine1:stall-after=20",
            "rank2:kill-at=2000",
            "rank1:partition-at=700",
            "rank0:connections-reset-at=80",
            "hwsim1:reset-at=400",
        ];
        let own = [
            "rank0:abort-at=9",
            "rank1:no-alarm",
            "rank0:stray-claim-at=4",
            "rank1:ring-garbage-at=7",
            "hwsim0:no-queue-pairs-at=1",
            "rank1:no-answer-at=12",
        ];
        let of_plans = ["rank1:bad-op=2:7", "rank0:bad-port=1"];
        for text in shared.iter().chain(&own).chain(&of_plans) {
            let fault: Fault = text.parse().unwrap();
            assert_eq!(fault.to_string(), *text);
        }
        hwsim_machine::fault::check_list(&shared.join(",")).unwrap();
        for wrong in
            ["gpu0", "gpu0:stop-at", "gpu:stop-at=1", "rank0:no-alarm=1", "rank1:bad-op=2", "x"]
        {
            let error = wrong.parse::<Fault>().unwrap_err();
            assert!(error.contains(wrong) && error.contains("kill-at=TURN"), "{error}");
        }
        let leap = "gpu0:clock-leaps-at=3:86400000001".parse::<Fault>();
        assert!(leap.unwrap_err().contains("up to a day"));
    }
}
