//! Drawings of a run: values over steps, and what ran when.

use crate::plot::{COLOURS, PlotError, SIZE_PIXELS};
use plotters::chart::{ChartBuilder, SeriesLabelPosition};
use plotters::prelude::*;

/// A curve over steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// The value of each step, from step 0; positive, for the axis is logarithmic.
    pub values: Vec<f64>,
}

/// Something that ran.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Its row, which is named in [`timeline`].
    pub row: usize,
    /// What stands in it.
    pub name: String,
    /// Beginning and end, in milliseconds.
    pub start: f64,
    /// See `start`.
    pub end: f64,
}

/// Draws curves over steps as SVG; `axis` is quantity and unit of the vertical axis.
///
/// # Errors
/// [`PlotError`] where nothing is positive and finite, or with the reason of the drawing library.
pub fn curves(title: &str, axis: &str, curves: &[Curve]) -> Result<String, PlotError> {
    curves_over("step", title, axis, curves)
}

/// As [`curves`], over something else that is counted from 0.
///
/// # Errors
/// As [`curves`].
pub fn curves_over(
    counted: &str,
    title: &str,
    axis: &str,
    curves: &[Curve],
) -> Result<String, PlotError> {
    let values = || curves.iter().flat_map(|curve| curve.values.iter().copied());
    let drawable = || values().filter(|value| value.is_finite() && *value > 0.0);
    let (low, high) = (drawable().fold(f64::MAX, f64::min), drawable().fold(0.0, f64::max));
    if high == 0.0 {
        return Err(PlotError("no value is positive".into()));
    }
    let steps = curves.iter().map(|curve| curve.values.len()).max().unwrap_or(0);
    draw(|area| {
        let mut axes = ChartBuilder::on(area)
            .caption(title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(46)
            .y_label_area_size(76)
            .build_cartesian_2d(0..steps, (low / 1.4..high * 1.4).log_scale())?;
        axes.configure_mesh().x_desc(counted).y_desc(axis).draw()?;
        for (number, curve) in curves.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let points = curve.values.iter().copied().enumerate().filter(|it| it.1 > 0.0);
            axes.draw_series(LineSeries::new(points, colour.stroke_width(2)))?
                .label(&curve.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour));
        }
        axes.configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .draw()?;
        Ok(())
    })
}

/// Draws what ran when as SVG: a row for each of `rows`, from the top.
///
/// # Errors
/// [`PlotError`] with the reason of the drawing library.
pub fn timeline(title: &str, rows: &[&str], spans: &[Span]) -> Result<String, PlotError> {
    timeline_in_colours(title, rows, spans, |span| span.row)
}

/// As [`timeline`]; spans of one number have one colour.
///
/// # Errors
/// As [`timeline`].
pub fn timeline_in_colours(
    title: &str,
    rows: &[&str],
    spans: &[Span],
    colour: impl Fn(&Span) -> usize,
) -> Result<String, PlotError> {
    let end = spans.iter().map(|span| span.end).fold(0.0, f64::max);
    let height = rows.len() as f64;
    draw(|area| {
        let mut axes = ChartBuilder::on(area)
            .caption(title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(46)
            .y_label_area_size(110)
            .build_cartesian_2d(0.0..end * 1.02 + 1e-3, 0.0..height)?;
        axes.configure_mesh().disable_y_mesh().x_desc("ms").y_labels(0).draw()?;
        for (number, row) in rows.iter().enumerate() {
            let at = (0.0, height - number as f64 - 0.08);
            axes.draw_series([Text::new(row.to_string(), at, ("sans-serif", 15))])?;
        }
        for (number, span) in spans.iter().enumerate() {
            let top = height - span.row as f64 - 0.25;
            let colour = COLOURS[colour(span) % COLOURS.len()];
            let area = [(span.start, top), (span.end, top - 0.5)];
            axes.draw_series([Rectangle::new(area, colour.mix(0.75).filled())])?;
            axes.draw_series([Rectangle::new(area, BLACK.mix(0.6))])?;
            axes.draw_series([Text::new(
                span.name.clone(),
                // Names of short spans would cover one another on one line.
                (span.start, top - 0.52 - 0.05 * (number % 4) as f64),
                ("sans-serif", 11),
            )])?;
        }
        Ok(())
    })
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw(
    body: impl Fn(&Area<'_>) -> Result<(), Box<dyn std::error::Error>>,
) -> Result<String, PlotError> {
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, SIZE_PIXELS).into_drawing_area();
    let all = || -> Result<(), Box<dyn std::error::Error>> {
        area.fill(&WHITE)?;
        body(&area)?;
        Ok(area.present()?)
    };
    all().map_err(|error| PlotError(error.to_string()))?;
    drop(area);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, a drawing lacks what it is about.
    #[test]
    fn curves_and_spans_are_drawn_with_their_names() {
        let of = |name: &str| Curve { name: name.into(), values: vec![1.0, 0.1, 0.01] };
        let drawing = curves("a title", "loss", &[of("one"), of("two")]).unwrap();
        for word in ["a title", "loss", "step", "one", "two", "polyline"] {
            assert!(drawing.contains(word), "no {word}: {drawing}");
        }
        let spans = [Span { row: 1, name: "sum".into(), start: 1.0, end: 2.5 }];
        let drawing = timeline("when", &["compute", "reduce"], &spans).unwrap();
        for word in ["when", "compute", "reduce", "sum", "ms", "rect"] {
            assert!(drawing.contains(word), "no {word}: {drawing}");
        }
        assert!(curves("t", "loss", &[Curve { name: "x".into(), values: vec![] }]).is_err());
    }
}
