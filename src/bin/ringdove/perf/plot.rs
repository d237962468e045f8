//! Bus bandwidth against size as an SVG, both axes logarithmic.

use super::arguments::type_name;
use super::error::PerfError;
use super::report::{Place, Row, VIRTUAL_NOTICE, redop_name};
use plotters::chart::{ChartBuilder, ChartContext, SeriesLabelPosition};
use plotters::coord::Shift;
use plotters::coord::combinators::LogCoord;
use plotters::prelude::*;
use std::fmt::Display;

const SIZE_PIXELS: (u32, u32) = (1000, 640);
/// Colours that people with colour-blindness tell apart (Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<LogCoord<f64>, LogCoord<f64>>>;

/// How far the axes reach beyond the values, as a factor.
const ROOM: f64 = 1.3;

/// One line of the plot.
struct Series {
    name: String,
    /// Bytes, GB/s.
    points: Vec<(f64, f64)>,
}

/// Draws all rows. Sizes or bandwidths of zero have no place on a logarithmic axis and are left
/// out.
pub fn draw(rows: &[Row], places: &[Place]) -> Result<String, PerfError> {
    let mut text = String::new();
    let lines = series(rows);
    let area = SVGBackend::with_string(&mut text, SIZE_PIXELS).into_drawing_area();
    draw_on(&area, &lines, &titles(rows, places)).map_err(plot_error)?;
    area.present().map_err(plot_error)?;
    drop(area);
    Ok(text)
}

fn plot_error(error: impl Display) -> PerfError {
    PerfError::Plot(error.to_string())
}

/// One series for each type, reduction and place.
fn series(rows: &[Row]) -> Vec<Series> {
    let mut lines: Vec<Series> = Vec::new();
    for row in rows {
        let kind =
            format!("{} {}", type_name(row.data_type), redop_name(row.collective, row.reduction));
        for (place, outcome) in ["out-of-place", "in-place"].iter().zip(row.outcomes()) {
            let name = format!("{kind}, {place}");
            let point = (row.bytes as f64, row.bus_bandwidth(outcome));
            if point.0 <= 0.0 || point.1 <= 0.0 || !point.1.is_finite() {
                continue;
            }
            match lines.iter_mut().find(|line| line.name == name) {
                Some(line) => line.points.push(point),
                None => lines.push(Series { name, points: vec![point] }),
            }
        }
    }
    lines
}

/// A title and the line below it.
fn titles(rows: &[Row], places: &[Place]) -> [String; 2] {
    let collective = rows.first().map_or("nothing measured", |row| row.collective.name());
    let device = places.first().map_or("", |place| place.device.name.as_str());
    let title = format!("ringdove {collective}, {} ranks on {device}", places.len());
    let honest = match places.iter().any(|place| place.device.is_virtual()) {
        true => VIRTUAL_NOTICE.to_owned(),
        false => "measured wall-clock times".to_owned(),
    };
    [title, honest]
}

fn draw_on(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    lines: &[Series],
    [title, note]: &[String; 2],
) -> Result<(), Box<dyn std::error::Error>> {
    area.fill(&WHITE)?;
    let area = area.margin(8, 8, 8, 24);
    let area = area.titled(title, ("sans-serif", 22))?;
    let area = area.titled(note, ("sans-serif", 15).into_font().color(&BLACK.mix(0.65)))?;
    let points = || lines.iter().flat_map(|line| &line.points);
    let sizes = bounds(points().map(|point| point.0));
    let bandwidths = bounds(points().map(|point| point.1));
    let mut chart = ChartBuilder::on(&area)
        .margin(8)
        .x_label_area_size(46)
        .y_label_area_size(84)
        .build_cartesian_2d(
        (sizes.0..sizes.1).log_scale().base(2.0),
        (bandwidths.0..bandwidths.1).log_scale().base(base_for(bandwidths)),
    )?;
    chart
        .configure_mesh()
        .x_desc("message size (bytes)")
        .y_desc("bus bandwidth (GB/s)")
        .x_labels(10)
        .y_labels(10)
        .y_max_light_lines(1)
        .x_label_formatter(&|bytes| size_label(*bytes))
        .y_label_formatter(&|bandwidth| super::report::general(*bandwidth))
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 16))
        .bold_line_style(BLACK.mix(0.18))
        .light_line_style(BLACK.mix(0.05))
        .draw()?;
    draw_series(&mut chart, lines)
}

fn draw_series<'a, 'b: 'a>(
    chart: &mut Chart<'a, 'b>,
    lines: &[Series],
) -> Result<(), Box<dyn std::error::Error>> {
    for (index, line) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let style = colour.stroke_width(2);
        // Markers differ too: the lines often lie on one another.
        let filled = index.is_multiple_of(2);
        let marker = move |point| match filled {
            true => Circle::new(point, 4, colour.filled()).into_dyn(),
            false => TriangleMarker::new(point, 6, colour.filled()).into_dyn(),
        };
        chart
            .draw_series(LineSeries::new(line.points.iter().copied(), style))?
            .label(&line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], style));
        chart.draw_series(line.points.iter().map(|&point| marker(point)))?;
    }
    if !lines.is_empty() {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .legend_area_size(30)
            .margin(14)
            .label_font(("sans-serif", 14))
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .draw()?;
    }
    Ok(())
}

/// Powers of ten label a wide range of values; a narrow one needs more lines than they give.
fn base_for((low, high): (f64, f64)) -> f64 {
    if high / low > 100.0 { 10.0 } else { 2.0 }
}

/// A range around all values, with a little room at both ends.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values
        .fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
    if high == 0.0 { (1.0, 2.0) } else { (low / ROOM, high * ROOM) }
}

/// `8 KiB` for 8192.
fn size_label(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = (bytes.max(1.0).log2() / 10.0).floor().clamp(0.0, 4.0);
    let value = (bytes / 1024f64.powf(power) * 100.0).round() / 100.0;
    format!("{value} {}", units[power as usize])
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

    fn places(name: &str) -> Vec<Place> {
        let device = Device {
            ordinal: 0,
            pci: String::new(),
            uuid: String::new(),
            name: name.into(),
            memory_bytes: 1 << 34,
        };
        (0..4).map(|rank| Place { rank, process: 1, device: device.clone() }).collect()
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

    #[test]
    fn sizes_are_labelled_in_binary_units() {
        for (bytes, label) in
            [(1.0, "1 B"), (512.0, "512 B"), (8192.0, "8 KiB"), (1073741824.0, "1 GiB")]
        {
            assert_eq!(size_label(bytes), label);
        }
    }
}
