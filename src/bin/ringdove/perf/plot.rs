//! Bus bandwidth against message size.

use super::arguments::type_name;
use super::error::PerfError;
use super::report::{RankDevice, Row, VIRTUAL_NOTICE, redop_name};
use ringdove_figures::plot::{self, Chart, Series, Style};

/// Draws all rows.
pub fn draw(rows: &[Row], ranks: &[RankDevice]) -> Result<String, PerfError> {
    let collective = rows.first().map_or("nothing measured", |row| row.collective.name());
    let device = ranks.first().map_or("", |rank| rank.device.name.as_str());
    let is_virtual = ranks.iter().any(|rank| rank.device.is_virtual());
    let note = if is_virtual { VIRTUAL_NOTICE } else { "measured wall-clock times" };
    let chart = Chart {
        title: format!("ringdove {collective}, {} ranks on {device}", ranks.len()),
        note: note.to_owned(),
        axis: "bus bandwidth (GB/s)",
        series: series(rows),
    };
    Ok(plot::draw(&[chart])?)
}

/// One series for each type, reduction and half.
fn series(rows: &[Row]) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for row in rows {
        let kind =
            format!("{} {}", type_name(row.data_type), redop_name(row.collective, row.reduction));
        let halves = [("out-of-place", &row.out_of_place), ("in-place", &row.in_place)];
        for (half, outcome) in halves {
            let Some(outcome) = outcome else { continue };
            let name = format!("{kind}, {half}");
            let point = (row.bytes as f64, row.bus_bandwidth(outcome));
            let colour = all.len();
            match all.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push(point),
                None => {
                    let (points, style) = (vec![point], Style::LineAndMarks);
                    all.push(Series { name, points, colour, style });
                }
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::backend::{Collective, DataType, Device, ReduceOp, Work};
    use super::super::measure::Outcome;
    use super::*;

    /// A sweep shaped like a real one: flat start-up, then a plateau.
    fn rows() -> Vec<Row> {
        (0..18)
            .map(|step| {
                let count = 2048usize << step;
                let outcome = |slow: f64| Outcome {
                    seconds: slow * (5e-3 + count as f64 * 4.0 / 0.9e9),
                    wrong: Some(0),
                    work: Work::default(),
                    operations: 1,
                };
                Row {
                    collective: Collective::AllReduce,
                    root: None,
                    rank_count: 4,
                    bytes: 4 * count,
                    count,
                    data_type: DataType::F32,
                    reduction: ReduceOp::Sum,
                    out_of_place: Some(outcome(1.0)),
                    in_place: Some(outcome(1.12)),
                }
            })
            .collect()
    }

    fn places(name: &str) -> Vec<RankDevice> {
        let device = Device {
            ordinal: 0,
            pci: String::new(),
            uuid: String::new(),
            name: name.into(),
            memory_bytes: 1 << 34,
        };
        (0..4).map(|rank| RankDevice { rank, process: 1, device: device.clone() }).collect()
    }

    /// A plot of a simulation that does not say so would be a false claim of speed.
    #[test]
    fn the_plot_shows_both_halves_and_says_when_it_is_a_simulation() {
        let text = draw(&rows(), &places("A100-like (virtual)")).expect("a plot");
        if let Some(path) = std::env::var_os("RINGDOVE_TEST_PLOT") {
            std::fs::write(path, &text).expect("the copy to look at is written");
        }
        for words in ["out-of-place", "in-place", "bus bandwidth (GB/s)", "8 KiB", "8 MiB"] {
            assert!(text.contains(words), "{words}");
        }
        assert!(text.contains(VIRTUAL_NOTICE));
        let real = draw(&rows(), &places("A100")).expect("a plot");
        assert!(!real.contains(VIRTUAL_NOTICE) && real.contains("measured"));
    }

    #[test]
    fn nothing_measured_still_draws() {
        assert!(draw(&[], &places("A100")).expect("a plot").contains("nothing measured"));
    }

    #[test]
    fn one_point_and_zero_bandwidth_have_room() {
        let mut one = rows()[..1].to_vec();
        assert!(draw(&one, &places("A100")).is_ok());
        one[0].rank_count = 1;
        assert!(draw(&one, &places("A100")).is_ok(), "busbw of one rank is 0");
    }
}
