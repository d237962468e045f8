//! The results as JSON, in nccl-tests' schema (version 3).
//!
//! Keys and kinds are nccl-tests', down to its booleans and roots written as strings, so that
//! its tools read the file. Ours are added under names that it does not use.

use super::arguments::{Arguments, type_name};
use super::measure::Outcome;
use super::report::{RankDevice, Row, Totals, redop_name};
use serde::Serialize;

/// The schema's version.
const VERSION: u32 = 3;
/// Only these variables are written down: others may hold secrets.
const ENVIRONMENT_PREFIXES: [&str; 4] = ["RINGDOVE_", "HWSIM_", "CUDA_", "NCCL_"];

/// A whole file.
#[derive(Debug, Serialize)]
pub struct Document {
    version: u32,
    start_time: String,
    args: Vec<String>,
    env: Vec<String>,
    /// 0: no NCCL takes part.
    nccl_version: u32,
    ringdove_version: &'static str,
    /// Not in nccl-tests: what drained the rings, `proxy` or `device`.
    engine: &'static str,
    /// Not in nccl-tests: whether the times are those of a simulation.
    virtual_hardware: bool,
    /// Not in nccl-tests: whether the sweep ended early.
    interrupted: bool,
    config: Config,
    results: Vec<Result>,
    out_of_bounds: OutOfBounds,
    average_bus_bandwidth: AverageBandwidth,
    end_time: String,
}

#[derive(Debug, Serialize)]
struct Config {
    nthreads: usize,
    ngpus: usize,
    minimum_bytes: usize,
    maximum_bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    step_factor: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step_bytes: Option<usize>,
    warmup_iters: usize,
    iterations: usize,
    aggregated_iterations: usize,
    validation: usize,
    graph: u32,
    blocking_collectives: &'static str,
    per_iter_timing: &'static str,
    per_iter_skip: u32,
    parallel_init: &'static str,
    devices: Vec<DeviceEntry>,
}

#[derive(Debug, Serialize)]
struct DeviceEntry {
    rank: usize,
    group: u32,
    pid: u32,
    hostname: String,
    device: usize,
    device_hex: String,
    device_info: String,
}

#[derive(Debug, Serialize)]
struct Result {
    size: usize,
    count: usize,
    #[serde(rename = "type")]
    data_type: &'static str,
    redop: &'static str,
    root: String,
    out_of_place: Option<Half>,
    in_place: Option<Half>,
    actual_iterations: usize,
    experiment_name: &'static str,
}

/// Times in microseconds, bandwidths in GB/s (10^9).
#[derive(Debug, Serialize)]
struct Half {
    time: f64,
    alg_bw: f64,
    bus_bw: f64,
    nwrong: Option<f64>,
}

#[derive(Debug, Serialize)]
struct OutOfBounds {
    count: u64,
    okay: &'static str,
}

#[derive(Debug, Serialize)]
struct AverageBandwidth {
    bandwidth: f64,
    okay: &'static str,
}

/// Input of a document.
pub struct Run<'a> {
    /// The options.
    pub arguments: &'a Arguments,
    /// The ranks.
    pub places: &'a [RankDevice],
    /// This machine's name.
    pub host: &'a str,
    /// The results.
    pub rows: &'a [Row],
    /// Whether the sweep ended early.
    pub interrupted: bool,
    /// When it began and ended, as `YYYY-MM-DD hh:mm:ss`, UTC.
    pub times: [String; 2],
}

impl Document {
    /// Everything but the machine's state comes from `run`.
    pub fn new(run: &Run<'_>) -> Self {
        let totals = Totals::of(run.rows);
        let [start_time, end_time] = run.times.clone();
        Self {
            version: VERSION,
            start_time,
            args: std::env::args_os().map(|text| text.to_string_lossy().into_owned()).collect(),
            env: environment(),
            nccl_version: 0,
            ringdove_version: env!("CARGO_PKG_VERSION"),
            engine: run.arguments.engine().name(),
            virtual_hardware: run.places.iter().any(|place| place.device.is_virtual()),
            interrupted: run.interrupted,
            config: Config::new(run),
            results: run.rows.iter().map(|row| Result::new(row, run.arguments)).collect(),
            out_of_bounds: OutOfBounds { count: totals.wrong, okay: boolean(totals.wrong == 0) },
            average_bus_bandwidth: AverageBandwidth {
                bandwidth: totals.average_bus_bandwidth,
                okay: "unchecked",
            },
            end_time,
        }
    }

    /// The file's text.
    pub fn text(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self).map(|text| text + "\n")
    }
}

fn boolean(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

fn environment() -> Vec<String> {
    let ours = |name: &str| ENVIRONMENT_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    std::env::vars_os()
        .filter(|(name, _)| ours(&name.to_string_lossy()))
        .map(|(name, value)| format!("{}={}", name.to_string_lossy(), value.to_string_lossy()))
        .collect()
}

impl Config {
    fn new(run: &Run<'_>) -> Self {
        let arguments = run.arguments;
        let multiplies = arguments.step_factor > 1;
        Self {
            nthreads: arguments.threads,
            ngpus: arguments.gpus,
            minimum_bytes: arguments.minimum_bytes,
            maximum_bytes: arguments.maximum_bytes,
            step_factor: multiplies.then_some(arguments.step_factor),
            step_bytes: (!multiplies).then_some(arguments.step_bytes),
            warmup_iters: arguments.warmup,
            iterations: arguments.iterations,
            aggregated_iterations: arguments.aggregated,
            validation: arguments.check,
            graph: 0,
            blocking_collectives: boolean(false),
            per_iter_timing: boolean(false),
            per_iter_skip: 0,
            parallel_init: boolean(false),
            devices: run.places.iter().map(|place| DeviceEntry::new(place, run.host)).collect(),
        }
    }
}

impl DeviceEntry {
    fn new(place: &RankDevice, host: &str) -> Self {
        Self {
            rank: place.rank,
            group: 0,
            pid: place.process,
            hostname: host.to_owned(),
            device: place.device.ordinal,
            device_hex: place.device.pci.clone(),
            device_info: place.device.name.clone(),
        }
    }
}

impl Result {
    fn new(row: &Row, arguments: &Arguments) -> Self {
        let half = |outcome: &Outcome| Half {
            time: outcome.seconds * 1e6,
            alg_bw: row.algorithm_bandwidth(outcome),
            bus_bw: row.bus_bandwidth(outcome),
            nwrong: outcome.wrong.map(|count| count as f64),
        };
        Self {
            size: row.bytes,
            count: row.count,
            data_type: type_name(row.data_type),
            redop: redop_name(row.collective, row.reduction),
            root: row.printed_root().to_string(),
            out_of_place: row.out_of_place.as_ref().map(half),
            in_place: row.in_place.as_ref().map(half),
            actual_iterations: arguments.iterations,
            experiment_name: "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::backend::{Collective, DataType, Device, ReduceOp, Work};
    use super::*;
    use clap::Parser;
    use serde_json::{Value, json};

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn document() -> Value {
        let line = ["perf", "-b", "8K", "-e", "16K", "-f", "2", "-c", "0"];
        let arguments = Command::try_parse_from(line).expect("arguments").arguments;
        let half = Outcome { seconds: 1e-4, wrong: Some(3), work: Work::default(), operations: 1 };
        let row = Row {
            collective: Collective::AllReduce,
            root: None,
            rank_count: 2,
            bytes: 8192,
            count: 2048,
            data_type: DataType::F32,
            reduction: ReduceOp::Sum,
            out_of_place: Some(half),
            in_place: Some(Outcome { wrong: None, ..half }),
        };
        let device = Device {
            ordinal: 1,
            pci: "0000:07:00".into(),
            uuid: "07".into(),
            name: "Example (virtual)".into(),
            memory_bytes: 1,
        };
        let run = Run {
            arguments: &arguments,
            places: &[RankDevice { rank: 0, process: 1, device }],
            host: "host",
            rows: &[row],
            interrupted: false,
            times: ["2026-01-02 03:04:05".into(), "2026-01-02 03:04:06".into()],
        };
        let text = Document::new(&run).text().expect("serialises");
        serde_json::from_str(&text).expect("is JSON")
    }

    fn keys(value: &Value) -> Vec<&str> {
        value.as_object().expect("an object").keys().map(String::as_str).collect()
    }

    /// Tools that read nccl-tests' files find every key that they know.
    #[test]
    fn every_key_of_the_schema_is_there() {
        let document = document();
        let has = |value: &Value, names: &[&str]| {
            for name in names {
                assert!(keys(value).contains(name), "{name} is missing in {value}");
            }
        };
        has(&document, &["version", "start_time", "args", "env", "nccl_version", "config"]);
        has(&document, &["results", "out_of_bounds", "average_bus_bandwidth", "end_time"]);
        let config = &document["config"];
        has(config, &["nthreads", "ngpus", "minimum_bytes", "maximum_bytes", "step_factor"]);
        has(config, &["warmup_iters", "iterations", "aggregated_iterations", "validation"]);
        has(config, &["graph", "blocking_collectives", "parallel_init", "devices"]);
        assert!(!keys(config).contains(&"step_bytes"), "only one kind of step");
        let device = &config["devices"][0];
        has(device, &["rank", "group", "pid", "hostname", "device", "device_hex", "device_info"]);
        let result = &document["results"][0];
        has(result, &["size", "count", "type", "redop", "root", "out_of_place", "in_place"]);
        has(&result["in_place"], &["time", "alg_bw", "bus_bw", "nwrong"]);
    }

    #[test]
    fn values_have_the_kinds_of_the_schema() {
        let document = document();
        assert_eq!(document["version"], 3);
        let result = &document["results"][0];
        assert_eq!((&result["size"], &result["type"]), (&json!(8192), &json!("float")));
        assert_eq!(result["root"], "-1");
        assert_eq!(result["out_of_place"]["nwrong"], 3.0);
        assert_eq!(result["in_place"]["nwrong"], Value::Null);
        assert!((result["out_of_place"]["time"].as_f64().expect("a number") - 100.0).abs() < 1e-9);
        assert_eq!(document["out_of_bounds"], json!({"count": 3, "okay": "false"}));
        assert_eq!(document["average_bus_bandwidth"]["okay"], "unchecked");
        assert_eq!(document["virtual_hardware"], true);
        assert_eq!(document["engine"], "proxy");
    }
}
