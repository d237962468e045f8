//! The results as an SVG, both axes logarithmic.

use super::arguments::Common;
use super::table::bandwidths;
use super::{PredictError, Row, Scene};
use hwsim_timing::p2p::Point;
use plotters::chart::{ChartBuilder, SeriesLabelPosition};
use plotters::coord::Shift;
use plotters::prelude::*;

/// Colours that people with colour-blindness tell apart (Okabe and Ito).
const COLOURS: [RGBColor; 5] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
];
const SIZE_PIXELS: (u32, u32) = (1000, 560);

/// One curve.
pub(super) struct Series {
    pub name: String,
    /// Bytes, value.
    pub points: Vec<(f64, f64)>,
    pub colour: usize,
    /// Marks alone, for what others measured; else a line.
    pub is_marks: bool,
}

/// One chart: its title, what its vertical axis shows, its curves.
pub(super) struct Chart {
    pub title: String,
    pub axis: &'static str,
    pub series: Vec<Series>,
}

pub(super) fn all_reduce(
    scene: &Scene,
    common: &Common,
    rows: &[Row],
    ranks: u32,
) -> Result<String, PredictError> {
    let bus = |row: &Row| bandwidths(row.bytes, &row.out_of_place, ranks).1;
    let points = rows.iter().map(|row| (row.bytes as f64, bus(row))).collect();
    let name = common.engine.0.name().to_owned();
    let series = vec![Series { name, points, colour: 0, is_marks: false }];
    let title = format!("all-reduce, {ranks} ranks, {} ({})", scene.machine.name(), scene.notice());
    draw(&[Chart { title, axis: "bus bandwidth, GB/s", series }])
}

pub(super) fn p2p(
    scene: &Scene,
    common: &Common,
    points: &[Point],
) -> Result<String, PredictError> {
    let curve = |value: fn(&Point) -> f64| {
        let points = points.iter().map(|point| (point.bytes as f64, value(point))).collect();
        let name = common.engine.0.name().to_owned();
        vec![Series { name, points, colour: 0, is_marks: false }]
    };
    let title = |what| format!("{what}, {} ({})", scene.machine.name(), scene.notice());
    draw(&[
        Chart { title: title("throughput"), axis: "GB/s", series: curve(|point| point.gb_per_s) },
        Chart { title: title("latency"), axis: "us", series: curve(|it| it.latency.us()) },
    ])
}

/// Charts side by side.
pub(super) fn draw(charts: &[Chart]) -> Result<String, PredictError> {
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, SIZE_PIXELS).into_drawing_area();
    let all = || -> Result<(), Box<dyn std::error::Error>> {
        area.fill(&WHITE)?;
        for (part, chart) in area.split_evenly((1, charts.len())).iter().zip(charts) {
            draw_chart(part, chart)?;
        }
        Ok(area.present()?)
    };
    all().map_err(|error| PredictError::Plot(error.to_string()))?;
    drop(area);
    Ok(text)
}

fn draw_chart(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    chart: &Chart,
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || chart.series.iter().flat_map(|series| &series.points);
    let (sizes, values) = (bounds(points().map(|it| it.0)), bounds(points().map(|it| it.1)));
    let mut context = ChartBuilder::on(area)
        .margin(12)
        .caption(&chart.title, ("sans-serif", 16))
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(
            (sizes.0..sizes.1).log_scale().base(2.0),
            (values.0..values.1).log_scale(),
        )?;
    context
        .configure_mesh()
        .x_desc("bytes")
        .y_desc(chart.axis)
        .x_label_formatter(&|bytes| format!("{}", super::arguments::Size(bytes.round() as u64)))
        .x_labels(8)
        .y_max_light_lines(1)
        .label_style(("sans-serif", 13))
        .bold_line_style(BLACK.mix(0.18))
        .light_line_style(BLACK.mix(0.05))
        .draw()?;
    for series in &chart.series {
        let colour = COLOURS[series.colour % COLOURS.len()];
        let style = colour.stroke_width(2);
        if series.is_marks {
            let mark = |&point: &(f64, f64)| Circle::new(point, 4, style);
            context
                .draw_series(series.points.iter().map(mark))?
                .label(&series.name)
                .legend(move |(x, y)| Circle::new((x + 11, y), 4, style));
        } else {
            context
                .draw_series(LineSeries::new(series.points.iter().copied(), style))?
                .label(&series.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], style));
        }
    }
    context
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .label_font(("sans-serif", 13))
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}

/// A range around all values, with a little room.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values
        .filter(|value| *value > 0.0)
        .fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
    if high == 0.0 { (1.0, 2.0) } else { (low / 1.4, high * 1.4) }
}
