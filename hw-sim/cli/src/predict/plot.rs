//! The results as charts.

use super::arguments::Common;
use super::table::bandwidths;
use super::{PredictError, Row, Scene};
use hwsim_timing::p2p::Point;
use ringdove_figures::plot::{Chart, Series, Style, draw};

pub(super) fn all_reduce(
    scene: &Scene,
    common: &Common,
    rows: &[Row],
    ranks: u32,
) -> Result<String, PredictError> {
    let bus = |row: &Row| bandwidths(row.bytes, &row.out_of_place, ranks).1;
    let points = rows.iter().map(|row| (row.bytes as f64, bus(row))).collect();
    let name = common.engine.0.name().to_owned();
    let series = vec![Series { name, points, colour: 0, style: Style::Line }];
    let title = format!("all-reduce, {ranks} ranks, {}", scene.machine.name());
    Ok(draw(&[Chart { title, note: scene.notice(), axis: "bus bandwidth (GB/s)", series }])?)
}

pub(super) fn p2p(
    scene: &Scene,
    common: &Common,
    points: &[Point],
) -> Result<String, PredictError> {
    let curve = |value: fn(&Point) -> f64| {
        let points = points.iter().map(|point| (point.bytes as f64, value(point))).collect();
        let name = common.engine.0.name().to_owned();
        vec![Series { name, points, colour: 0, style: Style::Line }]
    };
    let chart = |what, axis, series| Chart {
        title: format!("{what}, {}", scene.machine.name()),
        note: scene.notice(),
        axis,
        series,
    };
    Ok(draw(&[
        chart("throughput", "GB/s", curve(|point| point.gb_per_s)),
        chart("latency", "us", curve(|point| point.latency.us())),
    ])?)
}
