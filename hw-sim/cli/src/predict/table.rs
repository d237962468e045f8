//! The table, in nccl-tests' columns, with what limits each row behind them.

use super::arguments::Common;
use super::{Row, Scene};
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

/// One size of an all-reduce. Staged plans take the same time in place, so both halves are equal.
pub(super) fn all_reduce_row(row: &Row, ranks: u32) -> String {
    let (algorithm, bus) = bandwidths(row, ranks);
    let time = fitted(row.outcome.end.us(), 7);
    let half =
        format!("  {time:>7}  {:>6}  {:>6}  {:>6}", fitted(algorithm, 6), fitted(bus, 6), "N/A");
    let (count, kind) = match row.bytes.is_multiple_of(4) {
        true => (row.bytes / 4, "float"),
        false => (row.bytes, "int8"),
    };
    format!(
        "{:>12}  {count:>12}  {kind:>8}  {:>6}  {:>6}{half}{half}  {}, {} {:.0} %\n",
        row.bytes,
        "sum",
        -1,
        row.plan,
        row.limit.name,
        100.0 * row.limit.share
    )
}

/// Algorithm and bus bandwidth in GB/s.
pub(super) fn bandwidths(row: &Row, ranks: u32) -> (f64, f64) {
    let algorithm = row.bytes as f64 / row.outcome.end.seconds() / 1e9;
    (algorithm, algorithm * bus_factor(ranks))
}

/// The lines below the rows.
pub(super) fn footer(rows: &[Row], ranks: u32) -> String {
    let sum: f64 = rows.iter().map(|row| bandwidths(row, ranks).1).sum();
    let mut text = format!(
        "# Out of bounds values : not checked (modelled)\n# Avg bus bandwidth    : {:.6}\n",
        sum / rows.len().max(1) as f64
    );
    let played = rows.iter().map(|row| row.outcome.ranks_played).max().unwrap_or(0);
    if played < ranks as usize {
        text += &format!(
            "# Ranks played         : {played} of {ranks}; each other does what one of these does, \
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
