//! Graphs of dense layers over two and four nodes of virtual hardware, a rank each, whose tensors
//! cross nodes in three ways:
//!
//! * messages: send and receive, both sides take part, and both copy
//! * staged: a copy into registered memory, a one-sided write to where it is read
//! * analysed: a one-sided write from where it is computed to where it is read
//!
//! In processor time of all ranks, which interpret the kernels, too; what remains beyond the
//! kernels of the layers and a barrier is communication. **It is the time of a simulation, not of
//! GPUs and adapters.** Results are compared with the host's. With `RINGDOVE_BENCH_SVG=FILE` it
//! draws a bar chart.

#[path = "../tests/hardware/mod.rs"]
mod hardware;
#[path = "../tests/support/layers.rs"]
mod layers;

use cudarc::driver::CudaStream;
use hardware::{settings, tool, try_join_with};
use layers::{Layers, Model};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use ringdove::graph::{Compute, Graph, Method, Runner, TransferPlan};
use ringdove::window::Windows;
use ringdove::{Communicator, Settings};
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;

const INSIDE: &str = "RINGDOVE_BENCH_INSIDE";
const DRAWING: &str = "RINGDOVE_BENCH_SVG";
/// Rounds in which all ways take turns: what disturbs one disturbs the others.
const ROUNDS: usize = 7;

/// Eight layers of one value, so that computing takes little; samples, and iterations of a round.
const MODELS: [(&str, u32, u32); 3] =
    [("small", 1024, 40), ("middle", 65_536, 8), ("large", 1 << 20, 1)];
const NODES: [u32; 2] = [2, 4];

fn model(samples: u32, foreign: bool) -> Model {
    Model { widths: vec![1; 9], samples, foreign }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Compute,
    Messages,
    Staged,
    Analysed,
}

const WAYS: [(Way, &str); 4] = [
    (Way::Compute, "compute"),
    (Way::Messages, "messages"),
    (Way::Staged, "staged"),
    (Way::Analysed, "analysed"),
];

fn main() {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    let mut rows = Vec::new();
    for nodes in NODES {
        let mut command = Command::new(tool("hwsim"));
        command.args(["run", "--quiet", "--machine", &format!("pcie4 x {nodes}")]);
        command.args(["--procs", &nodes.to_string(), "--"]);
        let output = command.arg(std::env::current_exe().unwrap()).env(INSIDE, "1").output();
        let output = output.unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        rows.extend(sums(nodes, &text));
    }
    println!("processor time of an iteration, all ranks, in ms: medians of {ROUNDS} rounds; of");
    println!("communication, medians of the differences to computing in the same round");
    println!("nodes  model   tensor KiB  compute  messages    staged  analysed   m / a   s / a");
    for row in &rows {
        let [compute, messages, staged, analysed] = row.times;
        println!(
            "{:>5}  {:<7} {:>10}  {compute:>7.2}  {messages:>8.2}  {staged:>8.2}  {analysed:>8.2}  \
             {:>6.2}  {:>6.2}",
            row.nodes,
            row.model,
            row.samples * 4 / 1024,
            messages / analysed,
            staged / analysed
        );
    }
    if let Some(path) = std::env::var_os(DRAWING) {
        std::fs::write(path, drawing(&rows)).unwrap();
    }
}

struct Row {
    nodes: u32,
    model: &'static str,
    samples: u32,
    /// Computing, and communication of the three ways.
    times: [f64; 4],
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// What all ranks have printed, added for each round.
fn sums(nodes: u32, text: &str) -> Vec<Row> {
    let mut sums: BTreeMap<(&str, &str, usize), (f64, u32)> = BTreeMap::new();
    for line in text.lines() {
        let Some((_, values)) = line.split_once("RESULT ") else { continue };
        let values: Vec<_> = values.split_whitespace().collect();
        let round = values[2].parse().unwrap();
        let sum = sums.entry((values[0], values[1], round)).or_default();
        *sum = (sum.0 + values[3].parse::<f64>().unwrap(), sum.1 + 1);
    }
    let of = |model: &'static str, way: &'static str, round| {
        let (sum, count) = sums[&(model, way, round)];
        assert_eq!(count, nodes, "{model}, {way}: not every rank has measured");
        sum
    };
    let rows = MODELS.iter().map(|&(model, samples, _)| {
        let times = WAYS.map(|(way, word)| {
            let beside = |round| match way {
                Way::Compute => 0.0,
                _ => of(model, "compute", round),
            };
            median((0..ROUNDS).map(|round| of(model, word, round) - beside(round)).collect())
        });
        Row { nodes, model, samples, times }
    });
    rows.collect()
}

/// Processor time of all threads of this process so far, in seconds.
fn processor_seconds() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}

fn inside() {
    let ranks = try_join_with(1, Settings { user_lanes: 1, ..settings() }).unwrap();
    let rank = &ranks[0];
    let stream = rank.context().new_stream().unwrap();
    let windows = Windows::open(rank, 0).unwrap();
    for (name, samples, count) in MODELS {
        let mut all =
            WAYS.map(|(way, word)| (Measured::new(rank, &windows, &stream, way, samples), word));
        for (measured, _) in &mut all {
            measured.iterate();
            measured.check();
        }
        for round in 0..ROUNDS {
            for (measured, word) in &mut all {
                // Nobody's time counts for the way before.
                rank.barrier(&stream).unwrap();
                stream.synchronize().unwrap();
                let began = processor_seconds();
                (0..count).for_each(|_| measured.iterate());
                rank.barrier(&stream).unwrap();
                stream.synchronize().unwrap();
                let took = 1e3 * (processor_seconds() - began) / f64::from(count);
                println!("RESULT {name} {word} {round} {took}");
            }
        }
        all.iter().for_each(|(measured, _)| measured.check());
    }
    rank.barrier(&stream).unwrap();
    stream.synchronize().unwrap();
}

/// One way, ready to run.
struct Measured<'w, 'c> {
    rank: &'c Communicator,
    stream: Arc<CudaStream>,
    way: Way,
    model: Model,
    graph: Graph,
    layers: Layers,
    runner: Option<Runner<'w, 'c>>,
}

impl<'w, 'c> Measured<'w, 'c> {
    fn new(
        rank: &'c Communicator,
        windows: &'w Windows<'c>,
        stream: &Arc<CudaStream>,
        way: Way,
        samples: u32,
    ) -> Self {
        let model = model(samples, way == Way::Staged);
        let graph = model.graph(rank.rank_count());
        let layers = Layers::new(&model, &graph, rank.context(), stream);
        let plan = TransferPlan::of(graph.clone());
        let expected = if way == Way::Staged { Method::Staged } else { Method::ZeroCopy };
        assert!(plan.edges.iter().all(|edge| edge.method == expected));
        let runner = matches!(way, Way::Staged | Way::Analysed).then(|| {
            let runner = Runner::new(rank, windows, plan).unwrap();
            runner.prepare().unwrap();
            runner
        });
        Self { rank, stream: stream.clone(), way, model, graph, layers, runner }
    }

    fn iterate(&mut self) {
        match &mut self.runner {
            Some(runner) => runner.iterate(&mut self.layers, &self.stream).unwrap(),
            None => self.by_messages(self.way == Way::Messages),
        }
    }

    /// The layers of this rank; between them messages, or nothing.
    fn by_messages(&mut self, sends: bool) {
        self.rank.barrier(&self.stream).unwrap();
        let (own, stream) = (self.rank.rank(), &self.stream);
        for operator in self.graph.operators() {
            let input = operator.inputs[0];
            let from = self.graph.tensors()[input].rank;
            if sends && from == own && operator.rank != own {
                self.rank.send(self.layers.own(input), operator.rank, stream).unwrap();
            }
            if operator.rank == own {
                if sends && from != own {
                    self.rank.receive(self.layers.own_mut(input), from, stream).unwrap();
                }
                let inputs = [0, 1].map(|at| self.layers.memory(operator.inputs[at]).unwrap());
                let output = self.layers.memory(operator.output).unwrap();
                self.layers.run(operator, &inputs, output, stream).unwrap();
            }
        }
    }

    /// Compares the last layer with the host's.
    fn check(&self) {
        self.stream.synchronize().unwrap();
        self.rank.check().unwrap();
        let last = self.graph.tensor(&self.model.last()).unwrap();
        if self.way != Way::Compute && self.graph.tensors()[last].rank == self.rank.rank() {
            let seen: Vec<f32> = self.stream.clone_dtoh(self.layers.own(last)).unwrap();
            assert!(seen == self.model.reference(), "wrong results");
        }
    }
}

/// A bar for each way: computing below, communication above.
fn drawing(rows: &[Row]) -> String {
    const HEIGHT: f64 = 240.0;
    let mut svg = String::from("<svg xmlns=\"http://www.w3.org/2000/svg\" ");
    svg += "viewBox=\"0 0 940 330\" font-family=\"sans-serif\" font-size=\"11\">\n";
    svg += "<text x=\"10\" y=\"18\">Processor time of an iteration on virtual hardware, ms; grey: \
            computing, coloured: communication (m: messages, s: staged, a: analysed)</text>\n";
    for (at, row) in rows.iter().enumerate() {
        let (x, compute) = (20.0 + 150.0 * at as f64, row.times[0]);
        let most = row.times[1..].iter().copied().fold(1e-9, f64::max) + compute;
        let bars = [("m", "#d55e00"), ("s", "#0072b2"), ("a", "#009e73")];
        for (nth, (name, colour)) in bars.into_iter().enumerate() {
            let time = row.times[1 + nth].max(0.0);
            let left = x + 36.0 * nth as f64;
            let (above, low) = (time * HEIGHT / most, compute * HEIGHT / most);
            let (top, middle) = (280.0 - low - above, 280.0 - low);
            svg += &format!(
                "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"28\" height=\"{above:.1}\" \
                 fill=\"{colour}\"/><rect x=\"{left:.1}\" y=\"{middle:.1}\" width=\"28\" \
                 height=\"{low:.1}\" fill=\"#999999\"/>\
                 <text x=\"{left:.1}\" y=\"294\">{name} {time:.1}</text>\n"
            );
        }
        let (kib, nodes) = (row.samples * 4 / 1024, row.nodes);
        svg += &format!("<text x=\"{x:.1}\" y=\"312\">{nodes} nodes, {kib} KiB</text>\n");
    }
    svg + "</svg>\n"
}
