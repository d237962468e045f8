//! `ringdove plan`: the plan of the table of selection for a collective, or on a machine the one
//! that a communicator chooses, proved, as text or as a file; what each candidate would cost on a
//! machine; whether a plan in a file holds what it promises; and what plans of MSCCL and MSCCL++
//! come to.

mod explain;
mod import;

use clap::{Args, Subcommand};
use ringdove::plan::{
    Choice, Collective, CollectiveRequest, Limits, PlanFile, Verified, build, is_proved, select,
};
use ringdove::{ReduceOp, Settings};
use ringdove_figures::size::{parse_size, with_unit};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Command line of `ringdove plan`.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Prove the plan in a file, and print it
    Check {
        /// The file, as --json writes it
        file: PathBuf,
    },
    /// Read a plan of MSCCL (XML) or MSCCL++ (JSON), prove it for one size, and print it
    Import(import::Arguments),
    /// The plan of an all-reduce
    AllReduce(Wanted),
    /// The plan of an all-gather
    AllGather(Wanted),
    /// The plan of a reduce-scatter
    ReduceScatter(Wanted),
    /// The plan of a broadcast
    Broadcast(Wanted),
    /// The plan of a reduce
    Reduce(Wanted),
    /// The plan of an all-to-all
    AllToAll(Wanted),
    /// The plan of a gather
    Gather(Wanted),
    /// The plan of a scatter
    Scatter(Wanted),
}

/// What the collective is asked for, and where.
#[derive(Args, Debug)]
struct Wanted {
    /// Bytes of each rank's data; of its part, where there are parts
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size)]
    bytes: usize,
    /// Ranks: the plan is that of the table of selection, since the cost model, which chooses by
    /// default, needs a machine; of a machine, as many as it has GPUs
    #[arg(short = 'n', long, value_name = "COUNT",
        value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks: Option<u32>,
    #[command(flatten)]
    on: explain::Where,
    /// Ranks of each node, where there are several
    #[arg(long, value_name = "COUNT")]
    ranks_per_node: Option<u32>,
    /// NVLink joins all GPUs of a node
    #[arg(long)]
    nvlink: bool,
    /// Bytes of an element: 1, 2, 4 or 8
    #[arg(long, value_name = "BYTES", default_value_t = 4)]
    element: u32,
    /// The root, where the collective has one
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    root: u32,
    /// Input and output are the same memory
    #[arg(long)]
    in_place: bool,
    /// The buffers are registered
    #[arg(long)]
    registered: bool,
    /// Writes the plan into a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Prints a plan.
pub fn run(arguments: Arguments) -> ExitCode {
    let shown = match arguments.verb {
        Verb::Check { file } => check(&file),
        Verb::Import(arguments) => import::run(&arguments),
        Verb::AllReduce(wanted) => show(Collective::AllReduce, &wanted),
        Verb::AllGather(wanted) => show(Collective::AllGather, &wanted),
        Verb::ReduceScatter(wanted) => show(Collective::ReduceScatter, &wanted),
        Verb::Broadcast(wanted) => show(Collective::Broadcast { root: wanted.root }, &wanted),
        Verb::Reduce(wanted) => show(Collective::Reduce { root: wanted.root }, &wanted),
        Verb::AllToAll(wanted) => show(Collective::AllToAll, &wanted),
        Verb::Gather(wanted) => show(Collective::Gather { root: wanted.root }, &wanted),
        Verb::Scatter(wanted) => show(Collective::Scatter { root: wanted.root }, &wanted),
    };
    super::ended(shown)
}

fn show(collective: Collective, wanted: &Wanted) -> Result<(), String> {
    let request = CollectiveRequest {
        collective,
        rank_count: explain::ranks_of(wanted)?,
        bytes: wanted.bytes as u64,
        element_bytes: wanted.element,
        reduce_op: ReduceOp::Sum,
        in_place: wanted.in_place,
        registered: wanted.registered,
    };
    let settings = Settings::from_env().map_err(|error| error.to_string())?;
    let choice = match wanted.on.is_given() {
        true => {
            let (choice, said) = wanted.on.explain(&request, settings)?;
            super::say(&format!("{said}\n"))?;
            choice
        }
        false => {
            let limits = limits(wanted, request.rank_count, &settings);
            select(&request, &limits).map_err(|error| error.to_string())?
        }
    };
    super::say(&format!("{}\n", described(&choice)))?;
    if !is_proved(&choice) {
        return Err("plans of so many ranks are not proved as a whole".to_owned());
    }
    let file = PlanFile::new(request, build(&choice));
    if let Some(path) = &wanted.json {
        save(&file, path)?;
    }
    print_proved(&file.prove().map_err(|error| error.to_string())?)
}

/// Writes a plan file.
fn save(file: &PlanFile, path: &Path) -> Result<(), String> {
    let text = serde_json::to_string_pretty(file).map_err(|error| error.to_string())?;
    std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// What a communicator has whose GPUs reach each other's memory.
fn limits(wanted: &Wanted, all: u32, settings: &Settings) -> Limits {
    let per_node = wanted.ranks_per_node.filter(|ranks| *ranks < all);
    let is_even = per_node.is_none_or(|ranks| ranks > 0 && all.is_multiple_of(ranks));
    Limits {
        // LL messages go between nodes where words stay together, which is not known here.
        low_latency_bytes: if per_node.is_none() { settings.low_latency_bytes } else { 0 },
        stores: true,
        store_blocks: if wanted.nvlink && is_even { settings.store_blocks } else { 0 },
        nvlink: wanted.nvlink,
        symmetric: wanted.nvlink && per_node.is_none(),
        ranks_per_node: per_node.filter(|_| is_even).unwrap_or(0),
        reproducible: settings.reproducible,
        ..Limits::new(settings.blocks_max, settings.slot_bytes, settings.slot_count)
    }
}

fn described(choice: &Choice) -> String {
    let request = &choice.request;
    format!(
        "{} of {} among {} ranks: {}, {} blocks of {} threads, messages of {}, {} rounds",
        request.collective.name(),
        with_unit(request.bytes as f64),
        request.rank_count,
        choice.algorithm.name(),
        choice.blocks,
        choice.thread_count,
        with_unit(f64::from(choice.slice_bytes)),
        choice.rounds
    )
}

fn check(path: &Path) -> Result<(), String> {
    let name = path.display();
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("cannot read {name}: {error}"))?;
    let file: PlanFile =
        serde_json::from_str(&text).map_err(|error| format!("{name} is no plan: {error}"))?;
    let proved = file.prove().map_err(|error| format!("{name} is refused: {error}"))?;
    print_proved(&proved)
}

fn print_proved(proved: &Verified) -> Result<(), String> {
    let says = "proved: every output is what the collective promises, and nobody waits for ever";
    super::say(&format!("{says}\n{}", proved.plan()))
}
