//! Curves over message sizes as SVG, both axes logarithmic.

use crate::size::with_unit;
use crate::table::general;
use plotters::chart::{ChartBuilder, ChartContext, SeriesLabelPosition};
use plotters::coord::Shift;
use plotters::coord::combinators::LogCoord;
use plotters::prelude::*;

pub(crate) const SIZE_PIXELS: (u32, u32) = (1000, 600);
/// Colours that people with colour-blindness can distinguish (Okabe and Ito).
pub(crate) const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];
/// How far the axes reach beyond the values, as a factor.
const ROOM: f64 = 1.4;

/// Why there is no plot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("could not draw the plot: {0}")]
pub struct PlotError(pub(crate) String);

/// How the points of a series are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A line.
    Line,
    /// A line with a mark at each point.
    LineAndMarks,
    /// Marks alone.
    Marks,
}

/// One curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Bytes and value. Points that are not positive and finite have no place on a logarithmic
    /// axis, and are left out.
    pub points: Vec<(f64, f64)>,
    /// Series with the same number have the same colour.
    pub colour: usize,
    /// How it is drawn.
    pub style: Style,
}

/// One chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Its title.
    pub title: String,
    /// A line below the title, or nothing: where the values come from.
    pub note: String,
    /// Quantity and unit of the vertical axis.
    pub axis: &'static str,
    /// Its curves.
    pub series: Vec<Series>,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Axes<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<LogCoord<f64>, LogCoord<f64>>>;

/// Draws charts side by side.
///
/// # Errors
/// [`PlotError`] with the reason of the drawing library.
pub fn draw(charts: &[Chart]) -> Result<String, PlotError> {
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, SIZE_PIXELS).into_drawing_area();
    let all = || -> Result<(), Box<dyn std::error::Error>> {
        area.fill(&WHITE)?;
        for (part, chart) in area.split_evenly((1, charts.len().max(1))).iter().zip(charts) {
            draw_chart(part, chart)?;
        }
        Ok(area.present()?)
    };
    all().map_err(|error| PlotError(error.to_string()))?;
    drop(area);
    Ok(text)
}

fn draw_chart(area: &Area<'_>, chart: &Chart) -> Result<(), Box<dyn std::error::Error>> {
    let area = area.margin(8, 8, 8, 20).titled(&chart.title, ("sans-serif", 18))?;
    let area = match chart.note.as_str() {
        "" => area,
        note => area.titled(note, ("sans-serif", 15).into_font().color(&BLACK.mix(0.65)))?,
    };
    let points = || chart.series.iter().flat_map(drawable);
    let (sizes, values) = (bounds(points().map(|it| it.0)), bounds(points().map(|it| it.1)));
    let mut axes = ChartBuilder::on(&area)
        .margin(8)
        .x_label_area_size(46)
        .y_label_area_size(76)
        .build_cartesian_2d(
            (sizes.0..sizes.1).log_scale().base(2.0),
            (values.0..values.1).log_scale().base(base_for(values)),
        )?;
    axes.configure_mesh()
        .x_desc("message size")
        .y_desc(chart.axis)
        .x_labels(8)
        .y_labels(10)
        .y_max_light_lines(1)
        .x_label_formatter(&|bytes| with_unit(*bytes))
        .y_label_formatter(&|value| general(*value))
        .label_style(("sans-serif", 13))
        .axis_desc_style(("sans-serif", 15))
        .bold_line_style(BLACK.mix(0.18))
        .light_line_style(BLACK.mix(0.05))
        .draw()?;
    for series in &chart.series {
        draw_series(&mut axes, series)?;
    }
    if !chart.series.is_empty() {
        axes.configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .legend_area_size(30)
            .margin(14)
            .label_font(("sans-serif", 13))
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .draw()?;
    }
    Ok(())
}

fn draw_series<'a, 'b: 'a>(
    axes: &mut Axes<'a, 'b>,
    series: &Series,
) -> Result<(), Box<dyn std::error::Error>> {
    let colour = COLOURS[series.colour % COLOURS.len()];
    let line = colour.stroke_width(2);
    if series.style != Style::Marks {
        axes.draw_series(LineSeries::new(drawable(series), line))?
            .label(&series.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], line));
    }
    // Curves often lie on one another, so every second one has triangles.
    let is_round = series.colour.is_multiple_of(2);
    match series.style {
        Style::Line => {}
        Style::LineAndMarks => {
            axes.draw_series(drawable(series).map(|point| match is_round {
                true => Circle::new(point, 4, colour.filled()).into_dyn(),
                false => TriangleMarker::new(point, 6, colour.filled()).into_dyn(),
            }))?;
        }
        Style::Marks => {
            axes.draw_series(drawable(series).map(|point| Circle::new(point, 4, line)))?
                .label(&series.name)
                .legend(move |(x, y)| Circle::new((x + 11, y), 4, line));
        }
    }
    Ok(())
}

fn drawable(series: &Series) -> impl Iterator<Item = (f64, f64)> + '_ {
    let is_drawable = |value: f64| value > 0.0 && value.is_finite();
    series.points.iter().copied().filter(move |point| is_drawable(point.0) && is_drawable(point.1))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>, style: Style) -> Chart {
        let series = vec![Series { name: "one curve".into(), points, colour: 1, style }];
        Chart { title: "a title".into(), note: "a note".into(), axis: "GB/s", series }
    }

    #[test]
    fn every_style_is_drawn_with_title_note_legend_and_units() {
        let points: Vec<_> = (13..31).map(|step| (2f64.powi(step), f64::from(step))).collect();
        for style in [Style::Line, Style::LineAndMarks, Style::Marks] {
            let text = draw(&[chart(points.clone(), style)]).unwrap();
            for words in ["a title", "a note", "one curve", "GB/s", "8 KiB", "message size"] {
                assert!(text.contains(words), "{style:?}: {words}");
            }
        }
    }

    /// If this fails, a rank alone (bus bandwidth 0) or one size alone ends the program.
    #[test]
    fn nothing_and_one_point_and_zeros_are_drawn() {
        assert!(draw(&[]).is_ok());
        for points in [vec![], vec![(8192.0, 1.0)], vec![(8192.0, 0.0), (0.0, f64::NAN)]] {
            assert!(draw(&[chart(points, Style::LineAndMarks)]).is_ok());
        }
    }
}
