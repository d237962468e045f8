//! The table: nccl-tests' columns, then the plan of each row and the part that limits it.

use super::arguments::Common;
use super::{Half, Row, Scene};
use hwsim_timing::Engine;
use hwsim_timing::p2p::Point;
use ringdove_figures::table::{self, all_reduce_bus_factor, columns, fitted};

/// Everything above the rows; with the columns of a collective or of messages between two GPUs.
pub(super) fn header(
    scene: &Scene,
    common: &Common,
    what: &str,
    is_collective: Option<bool>,
) -> String {
    let mut text = format!(
        "# hwsim predict {what}\n# {}: {}\n# machine {}, {} GPUs, engine {}\n\
         # {}: no time was measured, no data was moved\n#\n",
        scene.notice(),
        scene.profile.summary,
        scene.machine.name(),
        scene.machine.gpu_count(),
        common.engine.0.name(),
        scene.notice(),
    );
    if common.engine.0 == Engine::Device {
        let device = scene.profile.device;
        text += &format!(
            "# device engines: {} GB/s, sub-requests of {} B, {} requests in flight, \
             {} of a lane\n",
            device.unit.gb_per_s(),
            device.sub_request,
            device.in_flight,
            device.lane_depth
        );
    }
    text += &match is_collective {
        Some(true) => columns(" plan, limited by"),
        Some(false) => format!(
            "# {:>10}  {:>10}  {:>10}  {:>12}  limited by\n# {:>10}  {:>10}  {:>10}  {:>12}\n",
            "size", "latency", "throughput", "messages", "(B)", "(us)", "(GB/s)", "(1/us)"
        ),
        None => String::new(),
    };
    text
}

/// One size of an all-reduce.
pub(super) fn all_reduce_row(row: &Row, ranks: u32) -> String {
    let columns = |half: &Half| {
        let (algorithm_bandwidth, bus_bandwidth) = bandwidths(row.bytes, half, ranks);
        let time_us = half.outcome.end.us();
        table::half(Some(&table::Half { time_us, algorithm_bandwidth, bus_bandwidth, wrong: None }))
    };
    let about = |half: &Half| {
        format!("{}, {} {:.0} %", half.plan, half.limit.name, 100.0 * half.limit.share)
    };
    let (count, kind) = match row.bytes.is_multiple_of(4) {
        true => (row.bytes / 4, "float"),
        false => (row.bytes, "int8"),
    };
    let (out, inside) = (&row.out_of_place, row.in_place());
    let start = table::row_start(row.bytes, count, kind, ("sum", table::ROOT));
    let mut line = format!("{start}{}{}  {}", columns(out), columns(inside), about(out));
    if about(out) != about(inside) {
        line += &format!("; in place: {}", about(inside));
    }
    line + "\n"
}

/// Algorithm and bus bandwidth in GB/s.
pub(super) fn bandwidths(bytes: u64, half: &Half, ranks: u32) -> (f64, f64) {
    let algorithm = bytes as f64 / half.outcome.end.seconds() / 1e9;
    (algorithm, algorithm * all_reduce_bus_factor(ranks as usize))
}

/// The lines below the rows.
pub(super) fn footer(rows: &[Row], ranks: u32) -> String {
    let halves = || rows.iter().flat_map(|row| [&row.out_of_place, row.in_place()]);
    let bus = |row: &Row| {
        [&row.out_of_place, row.in_place()].map(|half| bandwidths(row.bytes, half, ranks).1)
    };
    let sum: f64 = rows.iter().flat_map(bus).sum();
    let mut text = format!(
        "# Out of bounds values : not checked (modelled)\n# Avg bus bandwidth    : {:.6}\n",
        sum / (2 * rows.len()).max(1) as f64
    );
    if rows.iter().any(|row| row.in_place.is_none()) {
        text += "# In place             : computed where its programs differ from those out of \
                 place; otherwise the same run\n";
    }
    let is_draft = |half: &Half| !half.plan.starts_with("selected");
    if halves().any(is_draft) {
        text += "# Drafts               : two-shot and halving are verified plans that the library \
                 does not run yet (--algorithm selected: the plans that it runs)\n";
    }
    let played = || halves().map(|half| half.outcome.ranks_played);
    let (least, most) = (played().min().unwrap_or(0), played().max().unwrap_or(0));
    if least < ranks as usize {
        let range = if least == most { least.to_string() } else { format!("{least} to {most}") };
        text += &format!(
            "# Ranks played         : {range} of {ranks}; each other rank is equivalent to \
             one of these (--every-rank simulates all)\n"
        );
    }
    text
}

/// One size between two GPUs.
pub(super) fn p2p_row(point: &Point) -> String {
    format!(
        "{:>12}  {:>10}  {:>10}  {:>12}  {} {:.0} %\n",
        point.bytes,
        fitted(point.latency.us(), 9),
        fitted(point.gb_per_s, 9),
        fitted(point.gb_per_s * 1e3 / point.bytes as f64, 9),
        point.limit.name,
        100.0 * point.limit.share
    )
}
