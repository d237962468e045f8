//! `ringdove doctor`: findings about the machine, the hardware that will be used and the reason,
//! and missing parts with the way to get them.
//!
//! * `host`, `facts`: what is found, read once; nothing is changed
//! * `gpus`, `drivers`, `adapters`, `engines`, `job`: judgements, pure functions of the facts
//! * `statistics`: what adapters have counted, on request
//! * `words`: a trial, on request: low-latency messages over adapters
//! * `report`: findings, and how they are shown

mod adapters;
mod drivers;
mod engines;
mod facts;
mod gpus;
mod host;
mod job;
mod report;
mod statistics;
#[cfg(test)]
mod tests;
mod words;

use adapters::GpuAdapter;
use clap::Args;
use engines::GpuEngine;
use facts::{Facts, Source};
use gpus::Pair;
use report::{Level, Report, Section};
use serde::Serialize;
use std::io::Write;
use std::process::ExitCode;

/// Of the JSON that `--json` prints: raised when a name changes its meaning or goes away.
const JSON_VERSION: u32 = 1;

/// Command line of `ringdove doctor`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
    /// Also show what each port of each RDMA adapter has counted: bytes, packets, retries, errors;
    /// of virtual ones queue pairs, posts and faults, too
    #[arg(long)]
    adapters: bool,
    /// Also let each GPU's RDMA adapter write to itself for so many seconds, and look whether words
    /// of 8 bytes come in one piece, as RINGDOVE_LOW_LATENCY_ADAPTERS=true needs it
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "5")]
    adapter_words: Option<f64>,
}

/// The report for programs.
#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    ringdove_version: &'static str,
    host: &'a str,
    kernel: &'a str,
    /// Nothing that stops a run is missing.
    fine: bool,
    missing: usize,
    warnings: usize,
    sections: &'a [Section],
    gpus: Vec<GpuEntry<'a>>,
    pairs: &'a [Pair],
    adapters: &'a [GpuAdapter],
    engines: &'a [GpuEngine],
    settings: &'a [Source],
}

#[derive(Serialize)]
struct GpuEntry<'a> {
    name: &'a str,
    pci: &'a str,
    memory_bytes: u64,
    compute_capability: String,
    numa: Option<u32>,
    dma_buf: bool,
    direct_rdma: bool,
    /// For each GPU, whether this one reaches its memory.
    reaches: &'a [bool],
}

/// Examines this machine and this environment. Fails if something that stops a run is missing.
pub fn run(arguments: &Arguments) -> ExitCode {
    let facts = Facts::gather();
    let chosen = Chosen::of(&facts);
    let mut report = examine(&facts, &chosen);
    if let Some(seconds) = arguments.adapter_words {
        match std::time::Duration::try_from_secs_f64(seconds) {
            Ok(duration) => words::words(&facts, duration, &mut report),
            Err(error) => {
                let advice = "give seconds, such as 5 or 0.5";
                report.complain(Level::Missing, "--adapter-words", error, advice);
            }
        }
    }
    if arguments.adapters {
        // Last, so that it counts what a trial has sent.
        statistics::statistics(&facts, &mut report);
    }
    let text = if arguments.json {
        let document = document(&facts, &report, &chosen);
        serde_json::to_string_pretty(&document).expect("plain structures become JSON")
    } else {
        let host = &facts.host;
        let version = env!("CARGO_PKG_VERSION");
        format!("ringdove {version} on {}, Linux {}\n\n{report}", host.name, host.kernel)
    };
    // A reader that has gone away has seen what it wanted; the status still tells.
    let _ = writeln!(std::io::stdout(), "{text}");
    if report.count(Level::Missing) > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// What will be used, as the library will choose it.
struct Chosen {
    pairs: Vec<Pair>,
    adapters: Vec<GpuAdapter>,
    engines: Vec<GpuEngine>,
}

impl Chosen {
    fn of(facts: &Facts) -> Self {
        Self {
            pairs: gpus::pairs(facts),
            adapters: adapters::choices(facts),
            engines: engines::choices(facts),
        }
    }
}

fn examine(facts: &Facts, chosen: &Chosen) -> Report {
    let mut report = Report::default();
    gpus::driver(facts, &mut report);
    gpus::gpus(facts, &mut report);
    adapters::adapters(facts, &mut report);
    engines::engines(facts, &mut report);
    job::host(facts, &mut report);
    job::job(facts, &mut report);
    let Chosen { pairs, adapters, engines } = chosen;
    if !pairs.is_empty() || !adapters.is_empty() || !engines.is_empty() {
        report.section("what will be used");
        gpus::pair_findings(pairs, &mut report);
        adapters::choice_findings(facts, adapters, &mut report);
        engines::choice_findings(facts, engines, &mut report);
    }
    drivers::behaviour(facts, &mut report);
    job::settings(facts, &mut report);
    report
}

fn document<'a>(facts: &'a Facts, report: &'a Report, chosen: &'a Chosen) -> Document<'a> {
    let gpus = facts.gpus.iter().map(|gpu| {
        let (major, minor) = gpu.device.compute_capability;
        GpuEntry {
            name: &gpu.device.name,
            pci: &gpu.device.pci,
            memory_bytes: gpu.device.memory_bytes,
            compute_capability: format!("{major}.{minor}"),
            numa: gpu.place.numa,
            dma_buf: gpu.device.exports_dma_buffers,
            direct_rdma: gpu.device.direct_rdma,
            reaches: &gpu.device.reaches,
        }
    });
    Document {
        version: JSON_VERSION,
        ringdove_version: env!("CARGO_PKG_VERSION"),
        host: &facts.host.name,
        kernel: &facts.host.kernel,
        fine: report.count(Level::Missing) == 0,
        missing: report.count(Level::Missing),
        warnings: report.count(Level::Warning),
        sections: &report.sections,
        gpus: gpus.collect(),
        pairs: &chosen.pairs,
        adapters: &chosen.adapters,
        engines: &chosen.engines,
        settings: &facts.sources,
    }
}
