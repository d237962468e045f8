//! Three models over two and four nodes of virtual hardware, a rank on each, in five ways:
//! communication of a step with the kernels left out, and the kernels without communication. The
//! processor time of all ranks, with what the kernel of this machine does for them, and the time
//! that passes on the slowest rank; a barrier is in both. **It is the time of a simulation, not of
//! GPUs and adapters.** Results are compared with those of one rank before and after.
//!
//! | variable | meaning |
//! |---|---|
//! | `RINGDOVE_BENCH_SVG` | a file: draws a bar chart |
//! | `RINGDOVE_BENCH_MODELS` | names between commas, instead of all |
//! | `RINGDOVE_BENCH_NODES` | 2 or 4, instead of both |
//! | `RINGDOVE_BENCH_ROUNDS` | rounds, instead of 7 |
//! | `RINGDOVE_BENCH_STEPS` | steps of a round without kernels, instead of 40, 5 and 3 by model |
//! | `RINGDOVE_BENCH_HWSIM` | more arguments of `hwsim run`, such as `--no-adapters` |
//! | `RINGDOVE_BENCH_WITH` | a command that starts each measurement: one that stops other work |

#[path = "../../../tests/hardware/mod.rs"]
mod hardware;

use hardware::{settings, tool, try_join_with};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use ringdove::Settings;
use ringdove::graph::TransferPlan;
use ringdove::window::Windows;
use ringdove_graphs::ways::alone;
use ringdove_graphs::{MODELS, Measured, Model, Way, average_bytes};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Instant;

const INSIDE: &str = "RINGDOVE_BENCH_INSIDE";
const DRAWING: &str = "RINGDOVE_BENCH_SVG";
const WITH: &str = "RINGDOVE_BENCH_WITH";
const ONLY_MODELS: &str = "RINGDOVE_BENCH_MODELS";
const ONLY_NODES: &str = "RINGDOVE_BENCH_NODES";
const OPTIONS: &str = "RINGDOVE_BENCH_HWSIM";
const WISHED_ROUNDS: &str = "RINGDOVE_BENCH_ROUNDS";
const WISHED_STEPS: &str = "RINGDOVE_BENCH_STEPS";
/// Rounds in which all ways take turns: what disturbs one disturbs the others.
const ROUNDS: usize = 7;
const NODES: [u32; 2] = [2, 4];
/// Steps of a round, for each model: less than a second, and more than a clock's tick.
const STEPS: [u32; 3] = [40, 5, 3];
const COMPUTE: &str = "compute";

fn main() {
    if let Ok(name) = std::env::var(INSIDE) {
        let at = MODELS.iter().position(|model| model.name == name).unwrap();
        return inside(&MODELS[at], number(WISHED_STEPS).unwrap_or(STEPS[at] as usize));
    }
    let mut rows = Vec::new();
    println!(
        "ms of a step, medians of {} rounds; processor time of all ranks / time passed",
        rounds()
    );
    print!("nodes  model  transfers   bytes each  {:>15}", COMPUTE);
    Way::ALL.iter().for_each(|way| print!("  {:>15}", way.name()));
    println!("   gRPC / analysed    RPC / analysed");
    let is_wanted = |variable: &str, name: &str| {
        std::env::var(variable).map_or(true, |names| names.split(',').any(|one| one == name))
    };
    let all = MODELS.iter().flat_map(|model| NODES.map(|nodes| (model, nodes)));
    for (model, nodes) in all {
        if !is_wanted(ONLY_MODELS, model.name) || !is_wanted(ONLY_NODES, &nodes.to_string()) {
            continue;
        }
        let row = measure(model, nodes);
        let bytes = row.bytes;
        print!("{nodes:>5}  {:<6} {:>9}  {bytes:>10}", model.name, row.transfers);
        for (processor, passed) in &row.times {
            print!("  {:>15}", format!("{processor:.2} / {passed:.2}"));
        }
        let [_, grpc, rpc, _, _, analysed] = row.times;
        let ratio = |one: (f64, f64)| (one.0 / analysed.0, one.1 / analysed.1);
        let ((a, b), (c, d)) = (ratio(grpc), ratio(rpc));
        println!("   {:>15}   {:>15}", format!("{a:.2} / {b:.2}"), format!("{c:.2} / {d:.2}"));
        rows.push(row);
    }
    if let Some(path) = std::env::var_os(DRAWING) {
        std::fs::write(path, drawing(&rows)).unwrap();
    }
}

/// The number that a variable holds.
fn number(variable: &str) -> Option<usize> {
    let text = std::env::var(variable).ok()?;
    let number = text.parse().ok().filter(|number| *number > 0);
    Some(number.unwrap_or_else(|| panic!("{variable}={text}: expected a number above 0")))
}

fn rounds() -> usize {
    number(WISHED_ROUNDS).unwrap_or(ROUNDS)
}

/// A model on some nodes: the kernels, and communication in each way.
struct Row {
    nodes: u32,
    model: &'static str,
    transfers: usize,
    bytes: u64,
    /// Processor time and time that passed, in ms.
    times: [(f64, f64); 6],
}

fn measure(model: &Model, nodes: u32) -> Row {
    let with = std::env::var(WITH).unwrap_or_default();
    let mut words = with.split_whitespace();
    let mut command = match words.next() {
        Some(first) => Command::new(first),
        None => Command::new(tool("hwsim")),
    };
    command.args(words);
    if !with.is_empty() {
        command.arg(tool("hwsim"));
    }
    command.args(["run", "--quiet", "--machine", &format!("pcie4 x {nodes}")]);
    command.args(["--procs", &nodes.to_string()]);
    command.args(std::env::var(OPTIONS).unwrap_or_default().split_whitespace()).arg("--");
    let output = command.arg(std::env::current_exe().unwrap()).env(INSIDE, model.name).output();
    let output = output.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    // Of each way and round: processor time of all ranks, the longest time, and how many said so.
    let mut rounds: BTreeMap<(&str, &str), (f64, f64, u32)> = BTreeMap::new();
    for line in text.lines() {
        let Some((_, values)) = line.split_once("RESULT ") else { continue };
        let values: Vec<_> = values.split_whitespace().collect();
        let number = |at: usize| values[at].parse::<f64>().unwrap();
        let sum = rounds.entry((values[0], values[1])).or_default();
        *sum = (sum.0 + number(2), sum.1.max(number(3)), sum.2 + 1);
    }
    let words = [COMPUTE, "gRPC", "RPC", "messages", "staged", "analysed"];
    let times = words.map(|word| {
        let of_word: Vec<_> = rounds.iter().filter(|((way, _), _)| *way == word).collect();
        assert_eq!(of_word.len(), self::rounds(), "{word}");
        let all = of_word.iter().all(|(_, (_, _, count))| *count == nodes);
        assert!(all, "{word}: not every rank has measured");
        let of = |which: fn(&(f64, f64, u32)) -> f64| {
            median(of_word.iter().map(|(_, values)| which(values)).collect())
        };
        (of(|values| values.0), of(|values| values.1))
    });
    let plan = TransferPlan::of(model.graph(nodes));
    let (model, transfers, bytes) = (model.name, plan.edges.len(), average_bytes(&plan));
    Row { nodes, model, transfers, bytes, times }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Processor time of all threads of this process so far, in seconds.
fn processor_seconds() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}

fn inside(model: &Model, steps: usize) {
    let ranks = try_join_with(1, Settings { user_lanes: 1, ..settings() }).unwrap();
    let rank = &ranks[0];
    let stream = rank.context().new_stream().unwrap();
    let expected = alone(model, rank, &stream);
    let windows = Windows::open(rank, 0).unwrap();
    let mut all = Way::ALL.map(|way| Measured::new(rank, &windows, &stream, model, way));
    let check = |measured: &mut Measured<'_, '_>| {
        measured.set_idle(false);
        measured.forget();
        measured.iterate();
        let seen = measured.result();
        assert!(seen.is_none_or(|seen| seen == expected), "{}", measured.way.name());
    };
    all.iter_mut().for_each(check);
    for round in 0..rounds() {
        let time = |measured: &mut Measured<'_, '_>, word: &str, steps: usize| {
            // Nobody's time counts for the way before.
            measured.meet();
            let (began, processor) = (Instant::now(), processor_seconds());
            for _ in 0..steps {
                match word {
                    COMPUTE => measured.compute(),
                    _ => measured.iterate(),
                }
            }
            measured.meet();
            let passed = 1e3 * began.elapsed().as_secs_f64() / steps as f64;
            let took = 1e3 * (processor_seconds() - processor) / steps as f64;
            println!("RESULT {word} {round} {took} {passed}");
        };
        all[0].set_idle(false);
        time(&mut all[0], COMPUTE, 1);
        for measured in &mut all {
            measured.set_idle(true);
            time(measured, measured.way.name(), steps);
        }
    }
    all.iter_mut().for_each(check);
    all.into_iter().for_each(Measured::finish);
}

/// A bar for each way but send and receive: computing below, communication above, as parts of the
/// group's highest.
fn drawing(rows: &[Row]) -> String {
    const HEIGHT: f64 = 240.0;
    let mut svg = String::from("<svg xmlns=\"http://www.w3.org/2000/svg\" ");
    svg += "viewBox=\"0 0 1170 350\" font-family=\"sans-serif\" font-size=\"11\">\n";
    svg += "<text x=\"10\" y=\"18\">Processor time of a step on virtual hardware, ms; grey: \
            computing, coloured: communication (g: gRPC, r: RPC over RDMA, s: staged, \
            a: analysed)</text>\n";
    for (at, row) in rows.iter().enumerate() {
        let (x, compute) = (20.0 + 190.0 * at as f64, row.times[0].0);
        let bars =
            [(1, "g", "#cc79a7"), (2, "r", "#e69f00"), (4, "s", "#0072b2"), (5, "a", "#009e73")];
        let of_bars = bars.iter().map(|(way, ..)| row.times[*way].0);
        let highest = of_bars.fold(1e-9, f64::max) + compute;
        for (nth, (way, name, colour)) in bars.into_iter().enumerate() {
            let time = row.times[way].0;
            let left = x + 42.0 * nth as f64;
            let digits = if time < 100.0 { 1 } else { 0 };
            let (above, low) = (time * HEIGHT / highest, compute * HEIGHT / highest);
            let (top, middle) = (280.0 - low - above, 280.0 - low);
            svg += &format!(
                "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"30\" height=\"{above:.1}\" \
                 fill=\"{colour}\"/><rect x=\"{left:.1}\" y=\"{middle:.1}\" width=\"30\" \
                 height=\"{low:.1}\" fill=\"#999999\"/>\
                 <text x=\"{left:.1}\" y=\"294\">{name} {time:.digits$}</text>\n"
            );
        }
        let Row { nodes, model, bytes, .. } = row;
        let size = match bytes {
            0..1024 => format!("{bytes} bytes"),
            1024..1_048_576 => format!("{:.1} KiB", *bytes as f64 / 1024.0),
            _ => format!("{:.1} MiB", *bytes as f64 / 1_048_576.0),
        };
        svg += &format!("<text x=\"{x:.1}\" y=\"312\">{model}, {nodes} nodes</text>\n");
        for (y, words) in
            [(328, format!("tensors of {size}")), (344, format!("computing {compute:.0}"))]
        {
            svg += &format!("<text x=\"{x:.1}\" y=\"{y}\">{words}</text>\n");
        }
    }
    svg + "</svg>\n"
}
