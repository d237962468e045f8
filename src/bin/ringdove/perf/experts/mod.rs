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
use rank::{Crossed, Rank, Value};
use ringdove::experts::{Config, Group};
use ringdove::{Communicator, DataType, Settings};
use ringdove_figures::plot::{self, Chart, Series, Style};
use routing::Routings;
use serde::{Deserialize, Serialize};
use std::process::ExitCode;
use std::time::Instant;

/// What is timed.
const OPERATIONS: [&str; 3] = ["dispatch", "combine", "both"];
/// User lanes of a group.
const LANES: u32 = 2;

/// What one process has measured for one number of tokens.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Measured {
    /// Of each rank.
    tokens: u32,
    /// The mode that was taken.
    mode: String,
    /// Of each operation.
    seconds: [f64; 3],
    /// Wrong elements; none where nothing was checked.
    wrong: Option<u64>,
    /// Bytes of rows' data that ranks received from themselves, and from others, in one dispatch.
    row_bytes: [u64; 2],
    /// The same of one combine.
    return_bytes: [u64; 2],
    /// Bytes of the messages of one dispatch and one combine, by the routing.
    messages: Crossed,
    /// Bytes that engines moved for both, as they counted: all between nodes, and what GPUs did not
    /// store.
    engine_bytes: u64,
}

/// The results of all ranks, as the file has them.
#[derive(Debug, Serialize)]
struct Document {
    ringdove_version: &'static str,
    virtual_hardware: bool,
    args: Vec<String>,
    ranks: usize,
    results: Vec<Entry>,
}

/// Those for one number of tokens.
#[derive(Debug, Serialize)]
struct Entry {
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
    let plot = arguments.plot.as_deref().filter(|_| job.is_first());
    let plot = plot.map(OutputFile::begin).transpose()?;
    let stage = Stage::open(arguments.gpus, &job)?;
    let communicators = open_communicators(&stage.contexts, &job, &settings)?;
    let ranks = communicators[0].rank_count() as usize;
    let say = |text: String| {
        if job.is_first() {
            print(&text)
        }
    };
    let most = arguments.tokens.iter().copied().max().unwrap_or(0);
    let needed =
        Group::bytes_needed(&communicators[0], &arguments.config(most, &communicators[0])?)?;
    say(header(arguments, &stage.places, ranks, needed.group + needed.handle));
    let mut all = Vec::new();
    for &tokens in &arguments.tokens {
        let routings = Routings::new(arguments, tokens, ranks)?;
        let config = arguments.config(tokens, &communicators[0])?;
        let measured = match arguments.data_type {
            DataType::F32 => measure::<f32>(&communicators, arguments, &config, &routings),
            DataType::F16 => measure::<half::f16>(&communicators, arguments, &config, &routings),
            _ => measure::<half::bf16>(&communicators, arguments, &config, &routings),
        }?;
        let measured = job.gather(measured)?.into_iter().reduce(Measured::plus).unwrap_or_default();
        say(table(&measured, ranks));
        all.push(measured);
    }
    if job.processes() > 1 {
        communicators.iter().try_for_each(Communicator::finalize)?;
    }
    let wrong = all.iter().map(|measured| measured.wrong.unwrap_or(0)).sum::<u64>();
    say(verdict(&all, wrong));
    if let Some(plot) = plot {
        plot.finish(&chart(&stage.places, &all)?)?;
    }
    if let Some(file) = file {
        let text = document(&stage.places, all);
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
            tokens: self.tokens,
            mode: self.mode,
            row_bytes: [0, 1].map(|at| self.row_bytes[at] + other.row_bytes[at]),
            return_bytes: [0, 1].map(|at| self.return_bytes[at] + other.return_bytes[at]),
            messages: self.messages + other.messages,
            engine_bytes: self.engine_bytes + other.engine_bytes,
        }
    }
}

/// Makes the ranks of this process, times them, and compares what they got.
fn measure<T: Value>(
    communicators: &[Communicator],
    arguments: &Arguments,
    config: &Config,
    routings: &Routings,
) -> Result<Measured, PerfError> {
    let groups = Group::open_all(communicators, config)?;
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
    let mode = config.mode.name().to_owned();
    let mut measured = Measured { tokens: config.tokens_max, mode, ..Measured::default() };
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
    let data = rank::token_bytes(config);
    for (rank, communicator) in ranks.iter().zip(communicators) {
        let [own, others] = rank.received_rows(routings);
        for (sums, bytes) in
            [(&mut measured.row_bytes, data[0]), (&mut measured.return_bytes, data[1])]
        {
            (sums[0], sums[1]) = (sums[0] + own * bytes, sums[1] + others * bytes);
        }
        measured.messages = measured.messages + rank.crossed(routings, communicator)?;
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
         # {ranks} ranks, {} experts, top-{}, {} elements of {:?}{}, {:?}, seed {}\n\
         # warmup iters: {} iters: {} validation: {}\n\
         # memory of each rank: {bytes} bytes for messages and one handle\n#\n",
        env!("CARGO_PKG_VERSION"),
        arguments.experts,
        arguments.top_k,
        arguments.hidden,
        arguments.data_type,
        arguments.fp8.map_or(String::new(), |form| format!(", dispatched in e4m3 with {form:?}")),
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

/// The rows of one number of tokens.
fn table(measured: &Measured, ranks: usize) -> String {
    let mut text = format!(
        "#\n# {} tokens each, {} mode\n\
         # {:>9} {:>12} {:>14} {:>14} {:>10}\n\
         # {:>9} {:>12} {:>14} {:>14} {:>10}\n",
        measured.tokens,
        measured.mode,
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
    let (out, back) = (measured.row_bytes, measured.return_bytes);
    let bytes = [out, back, [out[0] + back[0], out[1] + back[1]]];
    for ((name, seconds), [own, others]) in OPERATIONS.iter().zip(measured.seconds).zip(bytes) {
        let rate = (own + others) as f64 / ranks as f64 / seconds / 1e9;
        text +=
            &format!("  {name:>9} {:>12.1} {own:>14} {others:>14} {rate:>10.3}\n", seconds * 1e6);
    }
    text + &links(measured)
}

/// What crossed which links, with heads, scales and weights.
fn links(measured: &Measured) -> String {
    let (Crossed { in_nodes, between_nodes }, engines) = (measured.messages, measured.engine_bytes);
    let Some(near) = engines.checked_sub(between_nodes).filter(|near| *near <= in_nodes) else {
        return format!(
            "# Bytes of both to other GPUs: {in_nodes} in nodes and {between_nodes} between them \
             by the routing, but engines counted {engines}\n"
        );
    };
    format!(
        "# Bytes of both to other GPUs: stores {}, engines in a node {near}, between nodes \
         {between_nodes}; engines counted {engines}\n",
        in_nodes - near
    )
}

/// The last lines.
fn verdict(all: &[Measured], wrong: u64) -> String {
    if all.iter().any(|measured| measured.wrong.is_none()) {
        return "# Nothing was checked (-c 0)\n".to_owned();
    }
    let verdict = if wrong == 0 { "OK" } else { "FAILED" };
    format!("# {:<20} : {wrong} {verdict}\n", "Out of bounds values")
}

/// Times by numbers of tokens.
fn chart(places: &[RankDevice], all: &[Measured]) -> Result<String, PerfError> {
    let device = places.first().map_or("", |place| place.device.name.as_str());
    let is_virtual = places.iter().any(|place| place.device.is_virtual());
    let note = if is_virtual { VIRTUAL_NOTICE } else { "measured wall-clock times" };
    let curve = |operation: usize| Series {
        name: OPERATIONS[operation].to_owned(),
        points: all
            .iter()
            .map(|measured| (f64::from(measured.tokens), measured.seconds[operation] * 1e6))
            .collect(),
        colour: operation,
        style: Style::Line,
    };
    let title = format!("ringdove experts by tokens, {} ranks on {device}", places.len());
    let series = (0..OPERATIONS.len()).map(curve).collect();
    Ok(plot::draw(&[Chart { title, note: note.to_owned(), axis: "us", series }])?)
}

/// The file's text.
fn document(places: &[RankDevice], all: Vec<Measured>) -> serde_json::Result<String> {
    let entry = |measured: Measured| {
        let [dispatch_us, combine_us, both_us] = measured.seconds.map(|seconds| seconds * 1e6);
        Entry { dispatch_us, combine_us, both_us, measured }
    };
    let document = Document {
        ringdove_version: env!("CARGO_PKG_VERSION"),
        virtual_hardware: places.iter().any(|place| place.device.is_virtual()),
        args: std::env::args_os().map(|text| text.to_string_lossy().into_owned()).collect(),
        ranks: places.len(),
        results: all.into_iter().map(entry).collect(),
    };
    serde_json::to_string_pretty(&document).map(|text| text + "\n")
}
