//! Each kind of task of resident programs, for each type of elements, beside the host's arithmetic
//! in f64; and the same bits by launches.

mod hardware;

use half::{bf16, f16};
use hardware::{World, on_machine, settings};
use ringdove::ReduceOp;
use ringdove::program::{
    Driven, Element, Expression, Graph, Options, Origin, Resident, TileSize, View, verify_same,
};

const ROWS: u32 = 19;
const COLUMNS: u32 = 45;
const SCALE: f32 = 0.25;
const EPSILON: f32 = 1e-5;

/// What a program of all kinds starts with and gives.
struct Case {
    element: Element,
    graph: Graph,
    /// Of the host: name, rows, columns.
    inputs: Vec<(String, u32, u32)>,
    outputs: Vec<String>,
}

impl Case {
    fn input(&mut self, name: &str, rows: u32, columns: u32) -> View {
        self.inputs.push((name.into(), rows, columns));
        self.graph.tensor_of(self.element, name, (rows, columns), Origin::Host).unwrap()
    }

    fn output(&mut self, name: &str, rows: u32, columns: u32) -> View {
        self.outputs.push(name.into());
        self.graph.tensor_of(self.element, name, (rows, columns), Origin::Tasks).unwrap()
    }
}

fn case(element: Element) -> Case {
    let graph = Graph::new(TileSize { rows: 8, columns: 16 });
    let mut case = Case { element, graph, inputs: Vec::new(), outputs: Vec::new() };
    let x = case.input("x", ROWS, COLUMNS);
    let d = case.input("d", ROWS, COLUMNS);
    let factors = case.input("factors", 1, COLUMNS).repeat_rows(ROWS);
    let summands = case.input("summands", 1, COLUMNS).repeat_rows(ROWS);
    let classes = case.graph.numbers("classes", ROWS).unwrap();
    let softmax = case.output("softmax", ROWS, COLUMNS);
    case.graph.softmax("softmax", softmax, x).unwrap();
    let back = case.output("softmax backward", ROWS, COLUMNS);
    case.graph.softmax_backward("softmax backward", back, [softmax, d]).unwrap();
    let (losses, slopes) = (case.output("losses", ROWS, 1), case.output("slopes", ROWS, COLUMNS));
    case.graph.cross_entropy("cross-entropy", [losses, slopes], x, classes, SCALE).unwrap();
    for (name, is_rms) in [("layer", false), ("rms", true)] {
        let out = case.output(&format!("{name} norm"), ROWS, COLUMNS);
        let kept = case.output(&format!("{name} kept"), ROWS, 2);
        let with = [Some(factors), (!is_rms).then_some(summands)];
        case.graph.norm(name, [out, kept], x, with, (is_rms, EPSILON)).unwrap();
        let out = case.output(&format!("{name} backward"), ROWS, COLUMNS);
        let name = format!("{name} backward");
        case.graph.norm_backward(&name, out, [x, d, kept], Some(factors), is_rms).unwrap();
    }
    let table = case.input("table", 50, COLUMNS);
    let rows = case.output("gathered", ROWS, COLUMNS);
    case.graph.gather("gather", rows, table, classes).unwrap();
    let sums = case.input("sums", 50, COLUMNS);
    case.outputs.push("sums".into());
    case.graph.scatter_add("scatter", sums, d, classes).unwrap();
    for (name, op) in [("sum", ReduceOp::Sum), ("mean", ReduceOp::Avg), ("most", ReduceOp::Max)] {
        let out = case.output(name, ROWS, 1);
        case.graph.reduce(name, out, x, op).unwrap();
    }
    let keys = case.input("keys", 70, COLUMNS);
    let values = case.input("values", 70, COLUMNS);
    let out = case.output("attention", ROWS, COLUMNS);
    case.graph.attention("attention", out, [x, keys, values], SCALE, Some(1)).unwrap();
    let momentum = [case.input("p", ROWS, COLUMNS), d, case.input("m", ROWS, COLUMNS)];
    case.graph.elementwise("momentum", &momentum, Expression::momentum(0, 0.9)).unwrap();
    let adam = ["p adam", "m adam", "v adam"].map(|name| case.input(name, ROWS, COLUMNS));
    let adam = [adam[0], d, adam[1], adam[2]];
    case.graph.elementwise("adam", &adam, Expression::adam(2, [0.9, 0.99], 1e-8)).unwrap();
    for name in ["p", "m", "p adam", "m adam", "v adam"] {
        case.outputs.push(name.into());
    }
    case
}

fn values(name: &str, count: u32) -> Vec<f32> {
    let seed = name.bytes().fold(7, |seed, byte| seed * 31 + u64::from(byte));
    let mut random = fastrand::Rng::with_seed(seed);
    // The second moment is not negative.
    let least = if name == "v adam" { 0.0 } else { -1.0 };
    (0..count).map(|_| least + random.f32() * (1.0 - least)).collect()
}

fn classes() -> Vec<u32> {
    // Two rows have one number.
    (0..ROWS).map(|row| (row * 7) % 11).collect()
}

fn run(world: &World, element: Element, driven: Driven) -> Vec<(String, Vec<f32>)> {
    let case = case(element);
    let program = verify_same(case.graph.plan(3, 96).unwrap()).unwrap();
    let options = Options { driven, ..Options::default() };
    let (communicator, stream) = world.ranks().next().unwrap();
    let mut resident = Resident::prepare(communicator, &program, options, stream).unwrap();
    for (name, rows, columns) in &case.inputs {
        resident.write(name, &values(name, rows * columns)).unwrap();
    }
    resident.write_numbers("classes", &classes()).unwrap();
    for (number, value) in [(0, 0.1), (1, 43.0), (2, 0.01), (3, 10.0), (4, 100.0)] {
        resident.set_parameter(number, value).unwrap();
    }
    resident.start().unwrap();
    resident.run(1).unwrap();
    resident.stop().unwrap();
    case.outputs.iter().map(|name| (name.clone(), resident.read(name).unwrap())).collect()
}

/// A value as elements of this type have it.
fn rounded(element: Element, value: f32) -> f32 {
    match element {
        Element::F16 => f16::from_f32(value).to_f32(),
        Element::BF16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}

/// The host's values, in f64, from inputs of elements of this type.
fn expected(name: &str, element: Element) -> Vec<f64> {
    let wide = |name: &str, count: u32| -> Vec<f64> {
        let values = values(name, count).into_iter();
        values.map(|value| f64::from(rounded(element, value))).collect()
    };
    let all = ROWS * COLUMNS;
    let (x, d) = (wide("x", all), wide("d", all));
    let columns = COLUMNS as usize;
    let rows = || x.chunks(columns).zip(d.chunks(columns));
    let softmax = |row: &[f64]| -> Vec<f64> {
        let all: f64 = row.iter().map(|value| value.exp()).sum();
        row.iter().map(|value| value.exp() / all).collect()
    };
    let mean = |row: &[f64]| row.iter().sum::<f64>() / columns as f64;
    let kept = |row: &[f64], is_rms: bool| {
        let mean = if is_rms { 0.0 } else { mean(row) };
        let square = row.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / columns as f64;
        (mean, 1.0 / (square + f64::from(EPSILON)).sqrt())
    };
    let scale = f64::from(SCALE);
    let is_rms = name.starts_with("rms");
    let each = |op: &dyn Fn(usize) -> f64| (0..all as usize).map(op).collect::<Vec<f64>>();
    match name {
        "softmax" => rows().flat_map(|(x, _)| softmax(x)).collect(),
        "softmax backward" => rows()
            .flat_map(|(x, d)| {
                let y = softmax(x);
                let sum: f64 = y.iter().zip(d).map(|(y, d)| y * d).sum();
                y.iter().zip(d).map(|(y, d)| y * (d - sum)).collect::<Vec<_>>()
            })
            .collect(),
        "losses" => rows()
            .zip(classes())
            .map(|((x, _), class)| -scale * softmax(x)[class as usize].ln())
            .collect(),
        "slopes" => rows()
            .zip(classes())
            .flat_map(|((x, _), class)| {
                let mut share = softmax(x);
                share[class as usize] -= 1.0;
                share.into_iter().map(|it| scale * it).collect::<Vec<_>>()
            })
            .collect(),
        "layer norm" | "rms norm" => rows()
            .flat_map(|(x, _)| {
                let (mean, factor) = kept(x, is_rms);
                let (factors, summands) = (wide("factors", COLUMNS), wide("summands", COLUMNS));
                let more = |place: usize| if is_rms { 0.0 } else { summands[place] };
                let value =
                    |place: usize| (x[place] - mean) * factor * factors[place] + more(place);
                (0..columns).map(value).collect::<Vec<_>>()
            })
            .collect(),
        "layer kept" | "rms kept" => rows()
            .flat_map(|(x, _)| {
                let (mean, factor) = kept(x, is_rms);
                [mean, factor]
            })
            .collect(),
        "layer backward" | "rms backward" => rows()
            .flat_map(|(x, d)| {
                let (mean, factor) = kept(x, is_rms);
                let factors = wide("factors", COLUMNS);
                let weighed: Vec<f64> = d.iter().zip(&factors).map(|(d, f)| d * f).collect();
                let normal: Vec<f64> = x.iter().map(|x| (x - mean) * factor).collect();
                let along: f64 = weighed.iter().zip(&normal).map(|(w, n)| w * n).sum();
                let sum = if is_rms { 0.0 } else { weighed.iter().sum::<f64>() };
                let count = columns as f64;
                let value = |place: usize| {
                    (weighed[place] - sum / count - normal[place] * along / count) * factor
                };
                (0..columns).map(value).collect::<Vec<_>>()
            })
            .collect(),
        "gathered" => {
            let table = wide("table", 50 * COLUMNS);
            let row = |class: u32| table[class as usize * columns..][..columns].to_vec();
            classes().into_iter().flat_map(row).collect()
        }
        "sums" => {
            let mut sums = wide("sums", 50 * COLUMNS);
            for ((_, d), class) in rows().zip(classes()) {
                let row = &mut sums[class as usize * columns..][..columns];
                row.iter_mut().zip(d).for_each(|(sum, d)| *sum += d);
            }
            sums
        }
        "sum" => rows().map(|(x, _)| x.iter().sum()).collect(),
        "mean" => rows().map(|(x, _)| mean(x)).collect(),
        "most" => rows().map(|(x, _)| x.iter().copied().fold(f64::MIN, f64::max)).collect(),
        "attention" => {
            let (keys, values) = (wide("keys", 70 * COLUMNS), wide("values", 70 * COLUMNS));
            let one = |(x, _): (&[f64], &[f64])| {
                let dot = |key: &[f64]| x.iter().zip(key).map(|(a, b)| a * b).sum::<f64>();
                let scores: Vec<f64> =
                    keys.chunks(columns).take(43).map(|key| (scale * dot(key)).exp()).collect();
                let all: f64 = scores.iter().sum();
                let value = |place: usize| {
                    let rows = scores.iter().zip(values.chunks(columns));
                    rows.map(|(score, row)| score * row[place]).sum::<f64>() / all
                };
                (0..columns).map(value).collect::<Vec<_>>()
            };
            rows().flat_map(one).collect()
        }
        "m" => {
            let m = wide("m", all);
            each(&|at| 0.9 * m[at] + d[at])
        }
        "p" => {
            let (p, m) = (wide("p", all), expected("m", element));
            each(&|at| p[at] - 0.1 * m[at])
        }
        "m adam" => {
            let m = wide("m adam", all);
            each(&|at| 0.9 * m[at] + 0.1 * d[at])
        }
        "v adam" => {
            let v = wide("v adam", all);
            each(&|at| 0.99 * v[at] + 0.01 * d[at] * d[at])
        }
        "p adam" => {
            let p = wide("p adam", all);
            let (m, v) = (expected("m adam", element), expected("v adam", element));
            each(&|at| p[at] - 0.01 * m[at] * 10.0 / ((v[at] * 100.0).sqrt() + 1e-8))
        }
        other => panic!("no values for {other}"),
    }
}

/// How far a value may be from the host's, as a share of it or of 1. The hardware's powers and
/// logarithms have 22 good bits, its sums some 45 terms. Of 16-bit elements a result is rounded
/// once, and what it was made of once or twice before.
fn tolerance(element: Element) -> f64 {
    match element {
        Element::F16 => 6.0 / 2048.0,
        Element::BF16 => 6.0 / 256.0,
        _ => 2e-5,
    }
}

fn computes_what_the_host_does(element: Element) {
    on_machine("one-gpu", || {
        let world = World::with(1, &settings());
        let resident = run(&world, element, Driven::Resident);
        let launched = run(&world, element, Driven::Launches);
        assert_eq!(resident.len(), 21);
        for ((name, seen), (_, other)) in resident.iter().zip(&launched) {
            let bits = |values: &[f32]| values.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
            assert!(bits(seen) == bits(other), "{name}: launches give other bits");
            let expected = expected(name, element);
            assert_eq!(seen.len(), expected.len(), "{name}");
            for (place, (seen, expected)) in seen.iter().zip(&expected).enumerate() {
                let apart = (f64::from(*seen) - expected).abs();
                let most = tolerance(element) * expected.abs().max(1.0);
                assert!(apart <= most, "{name}[{place}]: {seen} and {expected}");
                assert_eq!(*seen, rounded(element, *seen), "{name}[{place}] has another type");
            }
        }
    });
}

/// If this fails, a kind of task computes something else than it says, or its tiles leave something
/// out; or a launch and a resident block do not run the same code.
#[test]
fn every_kind_computes_what_the_host_does() {
    computes_what_the_host_does(Element::F32);
}

/// If this fails, a kind of task reads or writes f16 as something else.
#[test]
fn every_kind_computes_what_the_host_does_in_f16() {
    computes_what_the_host_does(Element::F16);
}

/// If this fails, a kind of task reads or writes bf16 as something else.
#[test]
fn every_kind_computes_what_the_host_does_in_bf16() {
    computes_what_the_host_does(Element::BF16);
}
