//! The results as JSON, with nccl-tests' keys where it has them.

use super::arguments::Common;
use super::table::bandwidths;
use super::{Half, Row, Scene};
use hwsim_timing::p2p::Point;
use serde_json::{Value, json};

pub(super) fn document(
    scene: &Scene,
    common: &Common,
    operation: &str,
    results: Vec<Value>,
) -> String {
    let document = json!({
        "version": 3,
        "operation": operation,
        "modelled": true,
        "profile": scene.profile.name,
        "notice": scene.notice(),
        "machine": scene.machine.name(),
        "gpus": scene.machine.gpu_count(),
        "engine": common.engine.0.name(),
        "results": results,
    });
    format!("{document:#}\n")
}

/// Times in microseconds, bandwidths in GB/s.
pub(super) fn all_reduce(scene: &Scene, common: &Common, rows: &[Row], ranks: u32) -> String {
    let result = |row: &Row| {
        let half = |half: &Half| {
            let (algorithm, bus) = bandwidths(row.bytes, half, ranks);
            json!({
                "time": half.outcome.end.us(), "alg_bw": algorithm, "bus_bw": bus, "nwrong": null,
                "plan": half.plan, "limited_by": half.limit.name, "limit_share": half.limit.share,
                "events": half.outcome.events, "ranks_played": half.outcome.ranks_played,
            })
        };
        json!({
            "size": row.bytes, "count": row.bytes / 4, "type": "float", "redop": "sum",
            "root": "-1", "out_of_place": half(&row.out_of_place),
            "in_place": half(row.in_place()),
        })
    };
    document(scene, common, "all-reduce", rows.iter().map(result).collect())
}

/// Latency in microseconds, throughput in GB/s.
pub(super) fn p2p(scene: &Scene, common: &Common, points: &[Point]) -> String {
    let result = |point: &Point| {
        json!({
            "size": point.bytes, "latency": point.latency.us(), "throughput": point.gb_per_s,
            "limited_by": point.limit.name, "limit_share": point.limit.share,
        })
    };
    document(scene, common, "p2p", points.iter().map(result).collect())
}
