//! `ringdove perf`: measures and checks operations, as nccl-tests does.
//!
//! * [`arguments`]: the options
//! * [`backend`]: a rank on a GPU
//! * [`pattern`], [`check`]: inputs, expected results, and their comparison
//! * [`experts`]: dispatch and combine of expert parallelism, with options of their own
//! * [`job`]: the processes that take part
//! * [`measure`], [`threads`], [`interrupt`]: the timed loop
//! * [`report`], [`json`], [`plot`], [`output`]: the results

pub mod arguments;
mod backend;
mod check;
mod error;
pub mod experts;
mod interrupt;
mod job;
mod json;
mod measure;
#[cfg(test)]
mod mock;
mod operation;
mod output;
mod pattern;
mod plot;
mod report;
mod sweep;
mod threads;

pub use backend::Collective;
pub use error::PerfError;

use arguments::{Arguments, Sweep};
use backend::{Buffers, Device, GpuRank};
use check::GUARD_BYTES;
use cudarc::driver::CudaContext;
use interrupt::{EXIT_INTERRUPTED, Interrupt};
use job::Job;
use measure::Run;
use output::OutputFile;
use report::{RankDevice, Row, Totals};
use ringdove::{Communicator, Settings};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::SystemTime;

/// The part of a GPU's memory, one in this many, that is left to the communicators and to others.
const RESERVED_FRACTION: usize = 16;

/// Runs one measurement from options to exit status.
pub fn run(collective: Collective, mut arguments: Arguments) -> Result<ExitCode, PerfError> {
    let mut sweep = arguments.sweep(collective)?;
    let mut settings = Settings::from_env()?;
    settings.engine = arguments.engine.unwrap_or(settings.engine);
    arguments.engine = Some(settings.engine);
    let job = Job::join(&settings)?;
    let file = |path: &Option<PathBuf>| {
        path.as_deref().filter(|_| job.is_first()).map(OutputFile::begin).transpose()
    };
    let (json_file, plot_file) = (file(&arguments.json)?, file(&arguments.plot)?);
    let print = |text: &str| {
        if job.is_first() {
            print(text)
        }
    };
    let interrupt = Interrupt::install()?;
    let start_time = now();
    let stage = Stage::open(arguments.rank_count(), &job)?;
    if let Some(bytes) = job.least(stage.bytes_max(&arguments))? {
        print(&format!("#\n# Reducing maxBytes to {bytes} due to memory limitation\n"));
        arguments.maximum_bytes = bytes;
        arguments.minimum_bytes = arguments.minimum_bytes.min(bytes);
        sweep = arguments.sweep(collective)?;
    }
    print(&report::header(&arguments, &sweep, &stage.places, &stage.host));
    let (rows, stopped) = measure_all(&stage, &arguments, &sweep, &interrupt, &job, &settings)?;
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
    job: &Job,
    settings: &Settings,
) -> Result<(Vec<Row>, bool), PerfError> {
    let receive_bytes = arguments.maximum_bytes + GUARD_BYTES;
    let buffers = Buffers {
        send_bytes: if arguments.in_place { GUARD_BYTES } else { receive_bytes },
        receive_bytes,
        register: arguments.register == 1,
    };
    let communicators = open_communicators(&stage.contexts, job, settings)?;
    let mut ranks = backend::open_ranks(communicators, &stage.contexts, buffers)?;
    let measured = sweep::run(&mut ranks, sweep, &Run { interrupt, job }, arguments.verbose)?;
    // A process that left earlier would take its memory away from those who still return credits.
    if job.processes() > 1 {
        ranks.iter().try_for_each(GpuRank::finalize)?;
    }
    job.barrier()?;
    Ok(measured)
}

/// The communicators of this process's ranks.
fn open_communicators(
    contexts: &[Arc<CudaContext>],
    job: &Job,
    settings: &Settings,
) -> Result<Vec<Communicator>, PerfError> {
    let count = contexts.len();
    Ok(match job.communicator(settings)? {
        None => Communicator::init_all(contexts, settings)?,
        Some(id) => {
            let (first, all) = (count * job.process(), count * job.processes());
            Communicator::init_ranks(contexts, &id, first as u32, all as u32, settings)?
        }
    })
}

/// Where the ranks will run.
struct Stage {
    /// One for each rank; ranks may share one.
    contexts: Vec<Arc<CudaContext>>,
    places: Vec<RankDevice>,
    host: String,
}

impl Stage {
    /// The ranks of a node stand on its GPUs in turn, round-robin where there are fewer.
    fn open(count: usize, job: &Job) -> Result<Self, PerfError> {
        let first = count * job.local_process();
        let mut stage = Self { contexts: Vec::new(), places: Vec::new(), host: host_name() };
        for (number, (context, device)) in
            backend::open_devices(first, count)?.into_iter().enumerate()
        {
            stage.contexts.push(context);
            let rank = count * job.process() + number;
            let process = std::process::id();
            stage.places.push(RankDevice { rank, process, device });
        }
        stage.places = job.all_places(stage.places)?;
        Ok(stage)
    }

    /// The largest message whose buffers fit on every GPU, if that is less than what was asked
    /// for.
    fn bytes_max(&self, arguments: &Arguments) -> Option<usize> {
        let buffers = if arguments.in_place { 1 } else { 2 };
        let sharers = |device: &Device| {
            self.places.iter().filter(|place| place.device.uuid == device.uuid).count()
        };
        let limit = self
            .places
            .iter()
            .map(|RankDevice { device, .. }| {
                let usable = device.memory_bytes - device.memory_bytes / RESERVED_FRACTION;
                (usable / (buffers * sharers(device))).saturating_sub(GUARD_BYTES)
            })
            .min()
            .unwrap_or(0);
        (limit < arguments.maximum_bytes).then_some(limit)
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
