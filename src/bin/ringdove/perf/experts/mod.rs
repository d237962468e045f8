//! `ringdove perf experts`: dispatch and combine, timed and checked.
//!
//! * [`arguments`]: the options
//! * [`routing`]: which experts tokens choose
//! * [`rank`]: a rank's buffers, its calls, and the comparison with the reference

mod arguments;
mod rank;
mod routing;

pub use arguments::Arguments;

use super::error::PerfError;
use super::job::Job;
use super::output::OutputFile;
use super::report::{RankDevice, VIRTUAL_NOTICE};
use super::{Stage, open_communicators, print};
use arguments::mode_name;
use rank::{Rank, Value};
use ringdove::experts::Group;
use ringdove::{Communicator, DataType, Settings};
use routing::Routings;
use serde::{Deserialize, Serialize};
use std::process::ExitCode;
use std::time::Instant;

/// What is timed.
const OPERATIONS: [&str; 3] = ["dispatch", "combine", "both"];
/// User lanes of a group.
const LANES: u32 = 2;

/// What one process has measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Measured {
    /// Of each operation.
    seconds: [f64; 3],
    /// Wrong elements; none where nothing was checked.
    wrong: Option<u64>,
    /// Bytes of rows that ranks received from themselves, and from others, in one dispatch.
    row_bytes: [u64; 2],
    /// Bytes that engines moved for one dispatch and one combine; all others were stored.
    engine_bytes: u64,
}

/// The results of all ranks, as the file has them.
#[derive(Debug, Serialize)]
struct Document<'a> {
    ringdove_version: &'static str,
    virtual_hardware: bool,
    args: Vec<String>,
    ranks: usize,
    mode: &'a str,
    /// µs.
    dispatch_us: f64,
    /// µs.
    combine_us: f64,
    /// µs.
    both_us: f64,
    #[serde(flatten)]
    measured: Measured,
}

/// Runs one measurement from options to exit status.
pub fn run(arguments: &Arguments) -> Result<ExitCode, PerfError> {
    arguments.check_counts()?;
    let mut settings = Settings::from_env()?;
    settings.engine = arguments.engine.unwrap_or(settings.engine);
    settings.user_lanes = settings.user_lanes.max(LANES);
    let job = Job::join(&settings)?;
    let file = arguments.json.as_deref().filter(|_| job.is_first());
    let file = file.map(OutputFile::begin).transpose()?;
    let stage = Stage::open(arguments.gpus, &job)?;
    let communicators = open_communicators(&stage.contexts, &job, &settings)?;
    let ranks = communicators[0].rank_count() as usize;
    let routings = Routings::new(arguments, ranks)?;
    let say = |text: String| {
        if job.is_first() {
            print(&text)
        }
    };
    let needed = Group::bytes_needed(&communicators[0], &arguments.config())?;
    say(header(arguments, &stage.places, ranks, needed.group + needed.handle));
    let measured = match arguments.data_type {
        DataType::F32 => measure::<f32>(&communicators, arguments, &routings),
        DataType::F16 => measure::<half::f16>(&communicators, arguments, &routings),
        _ => measure::<half::bf16>(&communicators, arguments, &routings),
    }?;
    if job.processes() > 1 {
        communicators.iter().try_for_each(Communicator::finalize)?;
    }
    let measured = job.gather(measured)?.into_iter().reduce(Measured::plus).unwrap_or_default();
    say(table(&measured, ranks));
    let wrong = measured.wrong.unwrap_or(0);
    if let Some(file) = file {
        let text = document(arguments, &stage.places, measured);
        file.finish(&text.map_err(PerfError::Json)?)?;
    }
    job.barrier()?;
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Measured {
    /// Of two processes: the longer times, all else together.
    fn plus(self, other: Self) -> Self {
        let longer = |at: usize| self.seconds[at].max(other.seconds[at]);
        Self {
            seconds: [longer(0), longer(1), longer(2)],
            wrong: self.wrong.zip(other.wrong).map(|(one, two)| one + two),
            row_bytes: [0, 1].map(|at| self.row_bytes[at] + other.row_bytes[at]),
            engine_bytes: self.engine_bytes + other.engine_bytes,
        }
    }
}

/// Makes the ranks of this process, times them, and compares what they got.
fn measure<T: Value>(
    communicators: &[Communicator],
    arguments: &Arguments,
    routings: &Routings,
) -> Result<Measured, PerfError> {
    let groups = Group::open_all(communicators, &arguments.config())?;
    let row_bytes = rank::token_bytes(&groups[0]);
    let mut ranks = Vec::new();
    for (communicator, group) in communicators.iter().zip(groups) {
        let stream = communicator.context().new_stream();
        let stream = stream.map_err(super::backend::gpu("make a stream"))?;
        ranks.push(Rank::<T>::new(group, stream, communicator.rank() as usize, routings)?);
    }
    wait(&ranks)?;
    let moved = || communicators.iter().map(|one| one.statistics().bytes).sum::<u64>();
    for _ in 0..arguments.warmup {
        dispatch(&mut ranks)?;
        combine(&mut ranks)?;
        wait(&ranks)?;
    }
    let mut measured = Measured::default();
    let before = moved();
    for _ in 0..arguments.iterations {
        let began = Instant::now();
        dispatch(&mut ranks)?;
        wait(&ranks)?;
        let dispatched = began.elapsed();
        combine(&mut ranks)?;
        wait(&ranks)?;
        let [one, all] = [dispatched, began.elapsed()].map(|time| time.as_secs_f64());
        for (sum, time) in measured.seconds.iter_mut().zip([one, all - one, all]) {
            *sum += time / f64::from(arguments.iterations);
        }
    }
    measured.engine_bytes = (moved() - before) / u64::from(arguments.iterations);
    for rank in &ranks {
        let rows = rank.received_rows(routings);
        for (sum, rows) in measured.row_bytes.iter_mut().zip(rows) {
            *sum += rows * row_bytes;
        }
    }
    if arguments.check > 0 {
        ranks.iter_mut().try_for_each(Rank::clear)?;
        dispatch(&mut ranks)?;
        combine(&mut ranks)?;
        wait(&ranks)?;
        let mut wrong = 0;
        for rank in &ranks {
            wrong += rank.wrong(routings)?;
        }
        measured.wrong = Some(wrong);
    }
    Ok(measured)
}

fn dispatch<T: Value>(ranks: &mut [Rank<'_, T>]) -> Result<(), PerfError> {
    ranks.iter_mut().try_for_each(Rank::dispatch_send)?;
    ranks.iter_mut().try_for_each(Rank::dispatch_receive)
}

fn combine<T: Value>(ranks: &mut [Rank<'_, T>]) -> Result<(), PerfError> {
    ranks.iter_mut().try_for_each(Rank::combine_send)?;
    ranks.iter_mut().try_for_each(Rank::combine_receive)
}

fn wait<T: Value>(ranks: &[Rank<'_, T>]) -> Result<(), PerfError> {
    ranks.iter().try_for_each(Rank::wait)
}

/// The lines before the table.
fn header(arguments: &Arguments, places: &[RankDevice], ranks: usize, bytes: u64) -> String {
    let mut text = format!(
        "# ringdove {} perf experts\n\
         # {ranks} ranks, {} tokens each, {} experts, top-{}, {} elements of {:?}, {} mode, \
         {:?}, seed {}\n\
         # warmup iters: {} iters: {} validation: {}\n\
         # memory of each rank: {bytes} bytes for messages and one handle\n#\n",
        env!("CARGO_PKG_VERSION"),
        arguments.tokens,
        arguments.experts,
        arguments.top_k,
        arguments.hidden,
        arguments.data_type,
        mode_name(arguments.mode),
        arguments.distribution,
        arguments.seed,
        arguments.warmup,
        arguments.iterations,
        arguments.check,
    );
    for RankDevice { rank, process, device } in places {
        text += &format!(
            "#  Rank {rank:2} Pid {process:6} device {:2} [{}] {}\n",
            device.ordinal, device.pci, device.name
        );
    }
    if places.iter().any(|place| place.device.is_virtual()) {
        text += &format!("#\n# {VIRTUAL_NOTICE}\n");
    }
    text
}

/// The table, and the lines behind it.
fn table(measured: &Measured, ranks: usize) -> String {
    let [own, crossed] = measured.row_bytes;
    let mut text = format!(
        "#\n# {:>9} {:>12} {:>14} {:>14} {:>10}\n# {:>9} {:>12} {:>14} {:>14} {:>10}\n",
        "operation",
        "time",
        "rows, own GPU",
        "rows, others",
        "per rank",
        "",
        "(us)",
        "(B)",
        "(B)",
        "(GB/s)"
    );
    for (name, seconds) in OPERATIONS.iter().zip(measured.seconds) {
        let times = if *name == "both" { 2 } else { 1 };
        let rate = (times * (own + crossed)) as f64 / ranks as f64 / seconds / 1e9;
        let (own, crossed) = (times * own, times * crossed);
        text +=
            &format!("  {name:>9} {:>12.1} {own:>14} {crossed:>14} {rate:>10.3}\n", seconds * 1e6);
    }
    text += &format!(
        "# Of one dispatch and one combine, engines moved {} bytes; GPUs stored the rest\n",
        measured.engine_bytes
    );
    match measured.wrong {
        None => text += "# Nothing was checked (-c 0)\n",
        Some(wrong) => {
            let verdict = if wrong == 0 { "OK" } else { "FAILED" };
            text += &format!("# {:<20} : {wrong} {verdict}\n", "Out of bounds values");
        }
    }
    text
}

/// The file's text.
fn document(
    arguments: &Arguments,
    places: &[RankDevice],
    measured: Measured,
) -> serde_json::Result<String> {
    let [dispatch_us, combine_us, both_us] = measured.seconds.map(|seconds| seconds * 1e6);
    let document = Document {
        ringdove_version: env!("CARGO_PKG_VERSION"),
        virtual_hardware: places.iter().any(|place| place.device.is_virtual()),
        args: std::env::args_os().map(|text| text.to_string_lossy().into_owned()).collect(),
        ranks: places.len(),
        mode: mode_name(arguments.mode),
        dispatch_us,
        combine_us,
        both_us,
        measured,
    };
    serde_json::to_string_pretty(&document).map(|text| text + "\n")
}
