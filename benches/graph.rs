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
use ringdove::graph::{Compute, Graph, Method, Runner, TransferPlan};
use ringdove::window::Windows;
use ringdove::{Communicator, Settings};
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;

const INSIDE: &str = "RINGDOVE_BENCH_INSIDE";
const DRAWING: &str = "RINGDOVE_BENCH_SVG";
/// Processor time is counted in hundredths of a second: a series takes many.
const SERIES_SECONDS: f64 = 1.0;
const SERIES: usize = 3;

/// Eight layers of 16 values, so that computing takes little, and more and more samples.
const MODELS: [(&str, u32); 3] = [("small", 64), ("middle", 4096), ("large", 65_536)];
const NODES: [u32; 2] = [2, 4];

fn model(samples: u32, foreign: bool) -> Model {
    Model { widths: vec![16; 9], samples, foreign }
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
    println!("processor time of an iteration, all ranks, in ms (medians of {SERIES} series)");
    println!("nodes  model   tensor KiB  compute  messages    staged  analysed   m / a   s / a");
    for row in &rows {
        let [compute, messages, staged, analysed] = row.times;
        let beyond = |time: f64| (time - compute).max(0.0);
        let ratio = |time: f64| beyond(time) / beyond(analysed).max(1e-9);
        println!(
            "{:>5}  {:<7} {:>10}  {compute:>7.2}  {messages:>8.2}  {staged:>8.2}  {analysed:>8.2}  \
             {:>6.2}  {:>6.2}",
            row.nodes,
            row.model,
            row.samples * 16 * 4 / 1024,
            ratio(messages),
            ratio(staged)
        );
    }
    println!("m / a, s / a: communication, what is beyond computing, against the analysed one");
    if let Some(path) = std::env::var_os(DRAWING) {
        std::fs::write(path, drawing(&rows)).unwrap();
    }
}

struct Row {
    nodes: u32,
    model: &'static str,
    samples: u32,
    times: [f64; 4],
}

/// What all ranks have printed, added.
fn sums(nodes: u32, text: &str) -> Vec<Row> {
    let mut sums: BTreeMap<(&str, &str), (f64, u32)> = BTreeMap::new();
    for line in text.lines() {
        let Some((_, values)) = line.split_once("RESULT ") else { continue };
        let values: Vec<_> = values.split_whitespace().collect();
        let sum = sums.entry((values[0], values[1])).or_default();
        *sum = (sum.0 + values[2].parse::<f64>().unwrap(), sum.1 + 1);
    }
    let rows = MODELS.iter().map(|&(model, samples)| {
        let times = WAYS.map(|(_, way)| {
            let (sum, count) = sums[&(model, way)];
            assert_eq!(count, nodes, "{model}, {way}: not every rank has measured");
            sum
        });
        Row { nodes, model, samples, times }
    });
    rows.collect()
}

/// Processor time of all threads of this process so far, in seconds.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
    let ticks: f64 = fields.skip(11).take(2).map(|field| field.parse::<f64>().unwrap()).sum();
    ticks / 100.0
}

fn inside() {
    let ranks = try_join_with(1, Settings { user_lanes: 1, ..settings() }).unwrap();
    let rank = &ranks[0];
    let stream = rank.context().new_stream().unwrap();
    let windows = Windows::open(rank, 0).unwrap();
    for (name, samples) in MODELS {
        for (way, word) in WAYS {
            let mut measured = Measured::new(rank, &windows, &stream, way, samples);
            measured.iterate();
            measured.check();
            let mut count = 1u32;
            let mut times = Vec::new();
            while times.len() < SERIES {
                let began = processor_seconds();
                for _ in 0..count {
                    measured.iterate();
                }
                stream.synchronize().unwrap();
                let took = processor_seconds() - began;
                // All ranks make as many iterations: rank 0 says whether they were enough.
                match agree(rank, &stream, took >= SERIES_SECONDS / f64::from(rank.rank_count())) {
                    true => times.push(1e3 * took / f64::from(count)),
                    false => count *= 2,
                }
            }
            measured.check();
            times.sort_by(f64::total_cmp);
            println!("RESULT {name} {word} {}", times[SERIES / 2]);
        }
    }
    rank.barrier(&stream).unwrap();
    stream.synchronize().unwrap();
}

/// What rank 0 says.
fn agree(rank: &Communicator, stream: &Arc<CudaStream>, enough: bool) -> bool {
    let mut word = stream.clone_htod(&[u32::from(enough)]).unwrap();
    rank.broadcast_in_place(&mut word, 0, stream).unwrap();
    stream.clone_dtoh(&word).unwrap()[0] == 1
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
    svg += "<text x=\"10\" y=\"18\">Processor time of an iteration on virtual hardware, against \
            messages; grey: computing, coloured: communication (m, s, a: messages, staged, \
            analysed)</text>\n";
    for (at, row) in rows.iter().enumerate() {
        let x = 20.0 + 150.0 * at as f64;
        let most = row.times.iter().copied().fold(1e-9, f64::max);
        let bars = [("m", row.times[1], "#d55e00"), ("s", row.times[2], "#0072b2")];
        for (nth, (name, time, colour)) in
            bars.into_iter().chain([("a", row.times[3], "#009e73")]).enumerate()
        {
            let (left, scale) = (x + 36.0 * nth as f64, HEIGHT / most);
            let (whole, low) = (time * scale, row.times[0].min(time) * scale);
            let (top, middle) = (280.0 - whole, 280.0 - low);
            let (above, width) = (whole - low, 28);
            svg += &format!(
                "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width}\" height=\"{above:.1}\" \
                 fill=\"{colour}\"/><rect x=\"{left:.1}\" y=\"{middle:.1}\" width=\"{width}\" \
                 height=\"{low:.1}\" fill=\"#999999\"/>\
                 <text x=\"{left:.1}\" y=\"294\">{name} {time:.1}</text>\n"
            );
        }
        let (kib, nodes) = (row.samples * 16 * 4 / 1024, row.nodes);
        svg += &format!("<text x=\"{x:.1}\" y=\"312\">{nodes} nodes, {kib} KiB, ms</text>\n");
    }
    svg + "</svg>\n"
}
