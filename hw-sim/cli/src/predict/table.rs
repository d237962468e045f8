//! The table, in nccl-tests' columns, with what limits each row behind them.

use super::arguments::Common;
use super::{Half, Row, Scene};
use hwsim_timing::p2p::Point;

/// Bytes that a link must carry for each byte of an all-reduce, at best.
pub(super) fn bus_factor(ranks: u32) -> f64 {
    2.0 * (f64::from(ranks) - 1.0) / f64::from(ranks)
}

/// Everything above the rows.
pub(super) fn header(scene: &Scene, common: &Common, what: &str, is_collective: bool) -> String {
    let mut text = format!(
        "# hwsim predict {what}\n# {}: {}\n# machine {}, {} GPUs, engine {}\n\
         # {}: no time here was measured, no data moved\n#\n",
        scene.notice(),
        scene.profile.summary,
        scene.machine.name(),
        scene.machine.gpu_count(),
        common.engine.0.name(),
        scene.notice(),
    );
    text += &if is_collective {
        let half = |a, b, c, d| format!("  {a:>7}  {b:>6}  {c:>6}  {d:>6}");
        let names = half("time", "algbw", "busbw", "#wrong");
        let units = half("(us)", "(GB/s)", "(GB/s)", "");
        let line = |a, b, c, d, e, half: &str, rest| {
            format!("# {a:>10}  {b:>12}  {c:>8}  {d:>6}  {e:>6}{half}{half}  {rest}\n")
        };
        format!("# {:50}           out-of-place                       in-place\n", "")
            + &line("size", "count", "type", "redop", "root", &names, "plan, limited by")
            + &line("(B)", "(elements)", "", "", "", &units, "")
    } else {
        format!(
            "# {:>10}  {:>10}  {:>10}  {:>12}  limited by\n# {:>10}  {:>10}  {:>10}  {:>12}\n",
            "size", "latency", "throughput", "messages", "(B)", "(us)", "(GB/s)", "(1/us)"
        )
    };
    text
}

/// One size of an all-reduce.
pub(super) fn all_reduce_row(row: &Row, ranks: u32) -> String {
    let columns = |half: &Half| {
        let (algorithm, bus) = bandwidths(row.bytes, half, ranks);
        let time = fitted(half.outcome.end.us(), 7);
        format!("  {time:>7}  {:>6}  {:>6}  {:>6}", fitted(algorithm, 6), fitted(bus, 6), "N/A")
    };
    let about = |half: &Half| {
        format!("{}, {} {:.0} %", half.plan, half.limit.name, 100.0 * half.limit.share)
    };
    let (count, kind) = match row.bytes.is_multiple_of(4) {
        true => (row.bytes / 4, "float"),
        false => (row.bytes, "int8"),
    };
    let (out, inside) = (&row.out_of_place, row.in_place());
    let mut line = format!(
        "{:>12}  {count:>12}  {kind:>8}  {:>6}  {:>6}{}{}  {}",
        row.bytes,
        "sum",
        -1,
        columns(out),
        columns(inside),
        about(out)
    );
    if about(out) != about(inside) {
        line += &format!("; in place: {}", about(inside));
    }
    line + "\n"
}

/// Algorithm and bus bandwidth in GB/s.
pub(super) fn bandwidths(bytes: u64, half: &Half, ranks: u32) -> (f64, f64) {
    let algorithm = bytes as f64 / half.outcome.end.seconds() / 1e9;
    (algorithm, algorithm * bus_factor(ranks))
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
        text += "# In place             : computed where its programs differ; else they are equal \
                 to those out of place, byte for byte\n";
    }
    let is_draft = |half: &Half| !half.plan.starts_with("selected");
    if halves().any(is_draft) {
        text += "# Drafts               : two-shot and halving are verified plans that the library \
                 does not run yet (--algorithm selected: what it runs)\n";
    }
    let played = || halves().map(|half| half.outcome.ranks_played);
    let (least, most) = (played().min().unwrap_or(0), played().max().unwrap_or(0));
    if least < ranks as usize {
        let range = if least == most { least.to_string() } else { format!("{least} to {most}") };
        text += &format!(
            "# Ranks played         : {range} of {ranks}; each other does what one of these does, \
             when it does (--every-rank plays all)\n"
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

/// A number with as many decimals, three at most, as the width leaves room for.
fn fitted(value: f64, width: usize) -> String {
    let most = if width > 7 { 3 } else { 2 };
    let texts = (0..=most).rev().map(|decimals| format!("{value:.decimals$}"));
    let mut last = String::new();
    for text in texts {
        last = text;
        if last.len() <= width {
            break;
        }
    }
    last
}
