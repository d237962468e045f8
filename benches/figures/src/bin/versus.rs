//! Makes a table and a plot of what `benches/versus/run` has measured.
//!
//! `versus TIMES TABLE.md PLOT.svg`. Ends with 1 where a bar is not met, and names it.

use ringdove_figures::plot::{Chart, Series, Style, draw};
use ringdove_figures::size::with_unit;
use ringdove_figures::versus::{Comparison, Row};
use std::process::ExitCode;

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(missed) if missed.is_empty() => ExitCode::SUCCESS,
        Ok(missed) => {
            missed.iter().for_each(|line| eprintln!("versus: {line}"));
            ExitCode::FAILURE
        }
        Err(why) => {
            eprintln!("versus: {why}");
            ExitCode::from(2)
        }
    }
}

/// The bars that are not met.
fn run(arguments: &[String]) -> Result<Vec<String>, String> {
    let [times, table, plot] = arguments else {
        return Err("expected TIMES TABLE.md PLOT.svg".into());
    };
    let text = std::fs::read_to_string(times).map_err(|error| format!("{times}: {error}"))?;
    let comparison: Comparison = text.parse()?;
    let write = |path: &str, text: String| {
        std::fs::write(path, text).map_err(|error| format!("{path}: {error}"))
    };
    let words = comparison.table();
    print!("{words}");
    write(table, words)?;
    write(plot, draw(&charts(&comparison)).map_err(|error| error.to_string())?)?;
    Ok(comparison.rows().iter().filter_map(missed).collect())
}

fn missed(row: &Row) -> Option<String> {
    (!row.is_met()).then(|| {
        format!(
            "bar not met: {} ranks, {}: {:.2} times as fast as the better of the others, bar {}",
            row.ranks,
            with_unit(row.bytes as f64),
            row.ratio(),
            row.bar()
        )
    })
}

fn charts(comparison: &Comparison) -> Vec<Chart> {
    let rows = comparison.rows();
    [2, 4]
        .map(|ranks| {
            let series = comparison.systems().into_iter().enumerate().map(|(colour, system)| {
                let of_ranks = rows.iter().filter(|row| row.ranks == ranks);
                let points = of_ranks.filter_map(|row| {
                    let time_us = row.time_us(system)?;
                    Some((row.bytes as f64, row.bus_bandwidth(time_us)))
                });
                let (points, name) = (points.collect(), system.name().to_owned());
                Series { name, points, colour, style: Style::LineAndMarks }
            });
            Chart {
                title: format!("all-reduce of floats, {ranks} ranks"),
                note: "on the processors of one machine, virtual GPUs: wall-clock times".into(),
                axis: "bus bandwidth, GB/s",
                series: series.collect(),
            }
        })
        .into()
}
