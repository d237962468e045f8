//! `ringdove perf`: measures and checks operations, as nccl-tests does.
//!
//! * [`arguments`], [`size`]: what was asked for
//! * [`backend`]: a rank on a GPU
//! * [`pattern`], [`check`]: inputs, expected results, and their comparison
//! * [`measure`], [`threads`], [`interrupt`]: the timed loop
//! * [`report`], [`json`], [`plot`], [`output`]: what comes out

pub mod arguments;
mod backend;
mod check;
mod error;
mod interrupt;
mod json;
mod measure;
#[cfg(test)]
mod mock;
mod output;
mod pattern;
mod plot;
mod report;
mod size;
mod sweep;
mod threads;

pub use backend::Collective;
pub use error::PerfError;

use arguments::{Arguments, Sweep};
use backend::{Device, GpuRank};
use check::GUARD_BYTES;
use cudarc::driver::CudaContext;
use interrupt::{EXIT_INTERRUPTED, Interrupt};
use output::OutputFile;
use report::{Place, Row, Totals};
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::SystemTime;

/// The part of a GPU's memory, one in this many, that is left to the communicators and to others.
const RESERVED_FRACTION: usize = 16;

/// Runs one measurement from options to exit status.
pub fn run(collective: Collective, mut arguments: Arguments) -> Result<ExitCode, PerfError> {
    let mut sweep = arguments.sweep(collective)?;
    let json_file = arguments.json.as_deref().map(OutputFile::begin).transpose()?;
    let plot_file = arguments.plot.as_deref().map(OutputFile::begin).transpose()?;
    let interrupt = Interrupt::install()?;
    let start_time = now();
    let stage = Stage::open(&arguments)?;
    if let Some(bytes) = stage.bytes_max(arguments.maximum_bytes) {
        print(&format!("#\n# Reducing maxBytes to {bytes} due to memory limitation\n"));
        arguments.maximum_bytes = bytes;
        arguments.minimum_bytes = arguments.minimum_bytes.min(bytes);
        sweep = arguments.sweep(collective)?;
    }
    print(&report::header(&arguments, &sweep, &stage.places, &stage.host));
    let (rows, stopped) = measure_all(&stage, &arguments, &sweep, &interrupt)?;
    let totals = Totals::of(&rows);
    if stopped {
        print("# Interrupted: the sizes above are complete, later ones were not measured\n");
    }
    print(&report::footer(&totals, collective));
    if let Some(file) = json_file {
        let document = json::Document::new(&json::Run {
            arguments: &arguments,
            places: &stage.places,
            host: &stage.host,
            rows: &rows,
            interrupted: stopped,
            times: [start_time, now()],
        });
        file.finish(&document.text().map_err(PerfError::Json)?)?;
    }
    if let Some(file) = plot_file {
        file.finish(&plot::draw(&rows, &stage.places)?)?;
    }
    Ok(exit_code(&totals, stopped))
}

/// Writes to standard output. A reader that has gone away is no reason to stop measuring: files
/// may have been asked for too.
fn print(text: &str) {
    let mut output = std::io::stdout().lock();
    let _ = output.write_all(text.as_bytes()).and_then(|()| output.flush());
}

/// Wrong values outweigh an interruption.
fn exit_code(totals: &Totals, stopped: bool) -> ExitCode {
    match (totals.wrong, stopped) {
        (0, false) => ExitCode::SUCCESS,
        (0, true) => ExitCode::from(EXIT_INTERRUPTED),
        _ => ExitCode::FAILURE,
    }
}

/// The rows, and whether the sweep ended early. The ranks are gone when this returns.
fn measure_all(
    stage: &Stage,
    arguments: &Arguments,
    sweep: &Sweep,
    interrupt: &Interrupt,
) -> Result<(Vec<Row>, bool), PerfError> {
    let buffer_bytes = arguments.maximum_bytes + GUARD_BYTES;
    let mut ranks: Vec<GpuRank> =
        backend::open_ranks(&stage.contexts, buffer_bytes, arguments.register == 1)?;
    sweep::run(&mut ranks, sweep, interrupt, arguments.verbose)
}

/// Where the ranks will run.
struct Stage {
    /// One for each rank; ranks may share one.
    contexts: Vec<Arc<CudaContext>>,
    places: Vec<Place>,
    host: String,
}

impl Stage {
    /// Rank r stands on GPU r, or round-robin where there are fewer.
    fn open(arguments: &Arguments) -> Result<Self, PerfError> {
        let rank_count = arguments.rank_count();
        let devices = backend::open_devices(rank_count)?;
        let mut stage = Self { contexts: Vec::new(), places: Vec::new(), host: host_name() };
        for rank in 0..rank_count {
            let (context, device) = &devices[rank % devices.len()];
            stage.contexts.push(Arc::clone(context));
            stage.places.push(Place { rank, device: device.clone() });
        }
        Ok(stage)
    }

    /// The largest message whose two buffers fit on every GPU, if that is less than `wanted`.
    fn bytes_max(&self, wanted: usize) -> Option<usize> {
        let sharers = |device: &Device| {
            self.places.iter().filter(|place| place.device.ordinal == device.ordinal).count()
        };
        let limit = self
            .places
            .iter()
            .map(|Place { device, .. }| {
                let usable = device.memory_bytes - device.memory_bytes / RESERVED_FRACTION;
                (usable / (2 * sharers(device))).saturating_sub(GUARD_BYTES)
            })
            .min()
            .unwrap_or(0);
        (limit < wanted).then_some(limit)
    }
}

/// As `uname -n` says it.
fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "localhost".to_owned(), |name| name.trim().to_owned())
}

/// `YYYY-MM-DD hh:mm:ss`, UTC.
fn now() -> String {
    let text = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    text.replace('T', " ").trim_end_matches('Z').to_owned()
}
