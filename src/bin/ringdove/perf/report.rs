//! The table, as nccl-tests prints it: programs that read its output read this one too.

use super::arguments::{Arguments, Sweep, reduction_name, type_name};
use super::backend::{Collective, DataType, Device, ReduceOp, Work};
use super::measure::Outcome;
use ringdove::id::EngineKind;
use ringdove_figures::table::{self, Half, all_reduce_bus_factor, general};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// Said wherever a time of virtual hardware is shown.
pub const VIRTUAL_NOTICE: &str =
    "virtual hardware: times are wall-clock times of a simulation, not those of a GPU";

/// One size, measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// The operation.
    pub collective: Collective,
    /// Its root, if it has one.
    pub root: Option<u32>,
    /// Number of ranks.
    pub rank_count: usize,
    /// Bytes of the larger buffer.
    pub bytes: usize,
    /// Elements of a message, or of one rank's part.
    pub count: usize,
    /// Type of the elements.
    pub data_type: DataType,
    /// How they combine.
    pub reduction: ReduceOp,
    /// Input and output are different buffers; `None` where only in place was asked for.
    pub out_of_place: Option<Outcome>,
    /// They are the same; `None` where the operation has no such form.
    pub in_place: Option<Outcome>,
}

impl Row {
    /// The root as nccl-tests prints it: -1 where there is none.
    pub fn printed_root(&self) -> i64 {
        self.root.map_or(ringdove_figures::table::ROOT, i64::from)
    }

    /// Bytes over time, in GB/s (10^9).
    pub fn algorithm_bandwidth(&self, outcome: &Outcome) -> f64 {
        self.bytes as f64 / 1e9 / outcome.seconds
    }

    /// What crosses each rank's link, in GB/s (10^9).
    pub fn bus_bandwidth(&self, outcome: &Outcome) -> f64 {
        self.algorithm_bandwidth(outcome) * bus_factor(self.collective, self.rank_count)
    }

    /// The halves that were measured.
    pub fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.out_of_place.iter().chain(&self.in_place)
    }
}

/// Bytes that a link must carry for each byte of the message, at best.
pub fn bus_factor(collective: Collective, rank_count: usize) -> f64 {
    match collective {
        Collective::AllReduce => all_reduce_bus_factor(rank_count),
        Collective::AllGather
        | Collective::ReduceScatter
        | Collective::AllToAll
        | Collective::Gather
        | Collective::Scatter => all_reduce_bus_factor(rank_count) / 2.0,
        Collective::Broadcast | Collective::Reduce | Collective::SendRecv => 1.0,
    }
}

/// Totals of all rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Wrong elements.
    pub wrong: u64,
    /// Mean bus bandwidth over all halves of all rows, in GB/s.
    pub average_bus_bandwidth: f64,
}

impl Totals {
    /// Of these rows.
    pub fn of(rows: &[Row]) -> Self {
        let halves = || rows.iter().flat_map(|row| row.outcomes().map(move |half| (row, half)));
        // Not `sum`: that of nothing is -0.
        let sum = halves().fold(0.0, |sum, (row, half)| sum + row.bus_bandwidth(half));
        Self {
            wrong: halves().filter_map(|(_, half)| half.wrong).sum(),
            average_bus_bandwidth: sum / halves().count().max(1) as f64,
        }
    }
}

/// A rank's line in the header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankDevice {
    /// The rank.
    pub rank: usize,
    /// The process that drives it.
    pub process: u32,
    /// Its GPU.
    pub device: Device,
}

/// The lines before the table.
pub fn header(arguments: &Arguments, sweep: &Sweep, places: &[RankDevice], host: &str) -> String {
    let (step, kind) = match arguments.step_factor {
        0 | 1 => (arguments.step_bytes, "bytes"),
        factor => (factor, "factor"),
    };
    let mut text = format!(
        "# ringdove {} perf, in nccl-tests' format\n\
         # Collective test starting: {}\n\
         # nThread {} nGpus {} minBytes {} maxBytes {} step: {step}({kind}) warmup iters: {} \
         iters: {} agg iters: {} validation: {} graph: 0\n#\n# Using devices\n",
        env!("CARGO_PKG_VERSION"),
        sweep.collective.name(),
        arguments.threads,
        arguments.gpus,
        arguments.minimum_bytes,
        arguments.maximum_bytes,
        sweep.warmup,
        sweep.iterations,
        sweep.aggregated,
        sweep.check,
    );
    for RankDevice { rank, process, device } in places {
        text += &format!(
            "#  Rank {rank:2} Group  0 Pid {process:6} on {host:>10} device {:2} [{}] {}\n",
            device.ordinal, device.pci, device.name
        );
    }
    text + &notes(arguments, places) + &table::columns("")
}

/// Notes before the table.
fn notes(arguments: &Arguments, places: &[RankDevice]) -> String {
    let mut text = String::from("#\n");
    let devices: HashSet<&str> = places.iter().map(|place| place.device.uuid.as_str()).collect();
    let devices = devices.len();
    if places.len() > devices {
        let ranks = places.len();
        text += &format!("# {ranks} ranks share {devices} GPU(s), round-robin\n");
    }
    let buffers = match arguments.register {
        0 => "not registered: data passes through staging slots",
        _ => "registered: transfers read and write them directly",
    };
    text += &format!("# Buffers are {buffers}\n");
    let engine = match arguments.engine() {
        EngineKind::Proxy => "proxy: a thread of each process drains the rings",
        EngineKind::Device => "device: PCI functions drain the rings, no thread is on the way",
    };
    text += &format!("# Engine {engine}\n");
    if places.iter().any(|place| place.device.is_virtual()) {
        text += &format!("# {VIRTUAL_NOTICE}\n");
        text += "# so the engines' times here say nothing of which one is faster\n";
    }
    text
}

/// One line of the table, without its end.
pub fn row(row: &Row) -> String {
    let redop = redop_name(row.collective, row.reduction);
    let half = |outcome: &Outcome| Half {
        time_us: outcome.seconds * 1e6,
        algorithm_bandwidth: row.algorithm_bandwidth(outcome),
        bus_bandwidth: row.bus_bandwidth(outcome),
        wrong: outcome.wrong,
    };
    let halves = [&row.out_of_place, &row.in_place].map(|outcome| outcome.as_ref().map(half));
    table::row_start(row.bytes, row.count, type_name(row.data_type), (redop, row.printed_root()))
        + &halves.map(|each| table::half(each.as_ref())).concat()
}

/// As nccl-tests does for all-gather, "none" where nothing is combined.
pub fn redop_name(collective: Collective, reduction: ReduceOp) -> &'static str {
    if collective.reduces() { reduction_name(reduction) } else { "none" }
}

/// The line that `-v` adds to a row. Engines may take a launch's last credits a moment after its
/// stream is done, so counts of the same work differ by a few between rows.
pub fn work_line(row: &Row) -> String {
    let work = row.outcomes().map(|outcome| outcome.work).fold(Work::default(), Work::plus);
    let operations: usize = row.outcomes().map(|outcome| outcome.operations).sum();
    format!(
        "#   {operations} operations, all ranks: {} launches, {} descriptors rung, {} transfers \
         after coalescing, {} bytes moved by the engines, {} signals; longest ring occupancy so \
         far {}",
        work.launches,
        work.descriptors,
        work.transfers,
        work.bytes,
        work.signals,
        work.ring_occupancy_max
    )
}

/// The lines after the table.
pub fn footer(totals: &Totals, collective: Collective) -> String {
    format!(
        "# {:<20} : {} {}\n# {:<20} : {} \n#\n# Collective test concluded: {}\n",
        "Out of bounds values",
        totals.wrong,
        if totals.wrong == 0 { "OK" } else { "FAILED" },
        "Avg bus bandwidth",
        general(totals.average_bus_bandwidth),
        collective.name()
    )
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
