//! The results as JSON, with nccl-tests' keys where it has them.

use super::arguments::Common;
use super::table::bandwidths;
use super::{Row, Scene};
use hwsim_timing::p2p::Point;
use serde_json::{Value, json};

fn document(scene: &Scene, common: &Common, operation: &str, results: Vec<Value>) -> String {
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
        let (algorithm, bus) = bandwidths(row, ranks);
        let time = row.outcome.end.us();
        let half = json!({"time": time, "alg_bw": algorithm, "bus_bw": bus, "nwrong": null});
        json!({
            "size": row.bytes, "count": row.bytes / 4, "type": "float", "redop": "sum",
            "root": "-1", "out_of_place": half, "in_place": half,
            "plan": row.plan, "limited_by": row.limit.name, "limit_share": row.limit.share,
            "events": row.outcome.events, "ranks_played": row.outcome.ranks_played,
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
