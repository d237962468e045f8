//! MSCCL++'s rows for A100.

use super::super::arguments::PredictArguments;
use super::super::{Operation, Scene, collective::Job};
use clap::Parser;
use std::fmt::Write;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    arguments: PredictArguments,
}

/// Parses a command line of `hwsim predict`.
pub(super) fn parse(line: &str) -> PredictArguments {
    try_parse(line).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// Parses a command line that may be refused.
pub(super) fn try_parse(line: &str) -> Result<PredictArguments, clap::Error> {
    let words = std::iter::once("predict").chain(line.split_whitespace());
    Command::try_parse_from(words).map(|command| command.arguments)
}

/// One published row.
struct Row {
    nodes: u32,
    bytes: u64,
    /// Pattern, blocks and slot bytes of the modelled plan.
    plan: &'static str,
    /// Microseconds, or GB/s of algorithm bandwidth where `is_bandwidth`.
    published: f64,
    is_bandwidth: bool,
    /// A constant of the profile was chosen on this row. Plans were chosen on every row.
    sets_constant: bool,
}

const SMALL: &str = "--algorithm two-shot --blocks 3 --slot-bytes 16K";
const LARGE: &str = "--algorithm two-shot --blocks 32 --slot-bytes 24K";
const FAR_SMALL: &str = "--algorithm halving --blocks 1 --slot-bytes 256K";
const FAR_LARGE: &str = "--algorithm halving --blocks 24 --slot-bytes 256K";

const fn row(nodes: u32, bytes: u64, plan: &'static str, published: f64) -> Row {
    Row { nodes, bytes, plan, published, is_bandwidth: false, sets_constant: false }
}

const fn calibrated(row: Row) -> Row {
    Row { sets_constant: true, ..row }
}

const fn bandwidth(row: Row) -> Row {
    Row { is_bandwidth: true, ..row }
}

const ROWS: [Row; 8] = [
    calibrated(row(1, 8 << 10, SMALL, 6.51)),
    row(1, 24 << 10, SMALL, 7.24),
    calibrated(row(1, 48 << 10, SMALL, 7.91)),
    row(1, 16 << 20, LARGE, 156.8),
    calibrated(bandwidth(row(1, 1 << 30, LARGE, 139.4))),
    calibrated(row(2, 8 << 10, FAR_SMALL, 18.42)),
    row(2, 24 << 20, FAR_LARGE, 311.0),
    bandwidth(row(2, 3 << 30, FAR_LARGE, 126.0)),
];

impl Row {
    /// The modelled value of this row's plan, in the unit of the published one.
    fn modelled(&self) -> f64 {
        self.modelled_with(&format!("--engine stores {}", self.plan))
    }

    /// The same for the plan and the engine that the library itself uses.
    fn of_the_library(&self) -> f64 {
        self.modelled_with("--engine proxy --algorithm selected")
    }

    fn modelled_with(&self, options: &str) -> f64 {
        let line = format!(
            "all-reduce -b {0} -e {0} --nodes {1} --machine dgx-a100 --profile a100 {options}",
            self.bytes, self.nodes
        );
        let Operation::AllReduce(arguments) = parse(&line).operation else {
            panic!("an all-reduce")
        };
        let scene = Scene::new(&arguments.common).expect("built in");
        let ranks = arguments.ranks(&scene.machine).expect("all GPUs");
        let job =
            Job { scene: &scene, arguments: &arguments, ranks, bytes: self.bytes, forest: None };
        let end = job.best(false).expect("a plan").outcome.end;
        match self.is_bandwidth {
            true => self.bytes as f64 / end.seconds() / 1e9,
            false => end.us(),
        }
    }
}

/// If this fails, the profile no longer meets what A100s were seen to do.
#[test]
fn every_row_is_met_within_ten_percent() {
    for row in &ROWS {
        let (published, modelled) = (row.published, row.modelled());
        let error = modelled / published - 1.0;
        assert!(error.abs() <= 0.10, "{} B on {} nodes: {modelled}", row.bytes, row.nodes);
    }
}

/// If this fails, the library's own plans no longer reach the rows, as its documents say that they
/// do.
#[test]
fn the_librarys_own_plans_reach_the_rows() {
    for row in &ROWS {
        let ratio = row.of_the_library() / row.published;
        let speed = if row.is_bandwidth { ratio } else { 1.0 / ratio };
        assert!(speed >= 0.9, "{} B, {} nodes: {speed} of the published", row.bytes, row.nodes);
    }
}

/// The README's table.
pub(super) fn table() -> String {
    let mut text = String::from(
        "| GPUs | size | published | modelled | error | row | plan | the library today |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for row in &ROWS {
        let modelled = row.modelled();
        let unit = if row.is_bandwidth { "GB/s" } else { "µs" };
        let gpus = if row.nodes == 1 { "8".to_owned() } else { format!("{} x 8", row.nodes) };
        let kind = if row.sets_constant { "constant and plan" } else { "plan" };
        let plan = row.plan.replace("--algorithm ", "").replace(" --blocks", ", blocks");
        let plan = plan.replace(" --slot-bytes", ", slots of");
        let size = super::super::arguments::Size(row.bytes);
        let error = 100.0 * (modelled / row.published - 1.0);
        let today = row.of_the_library();
        writeln!(
            text,
            "| {gpus} | {size} | {} {unit} | {modelled:.2} {unit} | {error:+.1} % | calibrated: \
             {kind} | draft: {plan} | {today:.1} {unit} |",
            row.published
        )
        .expect("a string takes all");
    }
    text
}

/// If this fails, worlds of the size that the model is for are out of its reach, or are given
/// another time than playing each of their ranks gives.
#[test]
fn sixteen_thousand_gpus_are_a_matter_of_seconds() {
    let began = std::time::Instant::now();
    let run = |bytes: u64, options: &str| {
        let line = format!(
            "all-reduce --nodes 2048 -m dgx-a100 --blocks 1 -b {bytes} -e {bytes} {options}"
        );
        let Operation::AllReduce(arguments) = parse(&line).operation else {
            panic!("an all-reduce")
        };
        let scene = Scene::new(&arguments.common).expect("built in");
        let ranks = arguments.ranks(&scene.machine).expect("all GPUs");
        assert_eq!(ranks, 16_384);
        let job = Job { scene: &scene, arguments: &arguments, ranks, bytes, forest: None };
        job.best(false).expect("a plan").outcome
    };
    let (whole, folded) = (run(1 << 20, "--every-rank"), run(1 << 20, ""));
    assert_eq!((whole.ranks_played, folded.ranks_played), (16_384, 8));
    assert_eq!((whole.end, &whole.link_bytes), (folded.end, &folded.link_bytes));
    // Fourteen steps there and back, each at least a doorbell and a signal.
    assert!(whole.end.us() > 28.0 * 1.4, "{}", whole.end);
    // Each rank puts 28 messages; each is rung, issued, moved, announced and waited for.
    assert!(whole.events > 28 * 16_384 * 5, "{}", whole.events);
    // Adapters carry 25 GB/s, and all but an eighth of the data stays on its node.
    let largest = run(1 << 30, "").end.seconds();
    assert!(largest > (1 << 30) as f64 / 8.0 / 25e9, "{largest} s");
    let took = began.elapsed();
    assert!(took.as_secs() < 60, "{took:?}");
}
