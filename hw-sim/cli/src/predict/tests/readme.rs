//! The generated parts of hw-sim/timing/README.md.

use super::super::{Operation, Scene, collective::Job, table::bandwidths};
use super::a100;
use hwsim_timing::ark::{self, Comparison, Curve, FIGURE_8, WINDOW};
use hwsim_timing::p2p::{Point, Stream, measure};
use hwsim_timing::{Edge, Engine, Graph, LinkKind, Machine, Network, Profile, Setup};
use ringdove_figures::plot::{Chart, Series, Style, draw};
use std::fmt::Write;
use std::path::Path;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../timing");
const HOW: &str = "run `HWSIM_UPDATE=1 cargo test -p hwsim-cli predict`";

/// One test for all parts: with HWSIM_UPDATE they write to the same file.
///
/// If this fails, the README shows other results than the model gives.
#[test]
fn the_readme_shows_what_the_model_gives() {
    let profile = Profile::find("ark-v100").expect("built in");
    let points = ark::compare(&profile).expect("a complete profile");
    check("ARK", &ark_table(&points));
    check("further", &further(&profile));
    check("A100", &a100::table());
    check_file("figure-8.svg", &figure(&profile, &points));
}

fn wants_update() -> bool {
    std::env::var_os("HWSIM_UPDATE").is_some()
}

fn check(section: &str, expected: &str) {
    let path = Path::new(FOLDER).join("README.md");
    let text = std::fs::read_to_string(&path).expect("the README");
    let (begin, end) = (format!("<!-- {section}: begin -->\n"), format!("<!-- {section}: end -->"));
    let start = text.find(&begin).expect("its begin mark") + begin.len();
    let stop = text.find(&end).expect("its end mark");
    if wants_update() {
        let changed = format!("{}{expected}{}", &text[..start], &text[stop..]);
        std::fs::write(&path, changed).expect("the README is written");
    } else {
        assert!(text[start..stop] == *expected, "part {section} is out of date: {HOW}");
    }
}

fn check_file(name: &str, expected: &str) {
    let path = Path::new(FOLDER).join(name);
    if wants_update() {
        std::fs::write(&path, expected).expect("the figure is written");
    } else {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(text == expected, "{name} is out of date: {HOW}");
    }
}

fn ark_table(points: &[Comparison]) -> String {
    let mut text = String::from("| size |");
    for curve in Curve::ALL {
        write!(text, " {}: published | modelled | error |", curve.name()).expect("a string");
    }
    text += "\n|---|";
    text += &"---|".repeat(3 * Curve::ALL.len());
    text += "\n";
    for (row, (bytes, published)) in points.chunks(Curve::ALL.len()).zip(FIGURE_8) {
        write!(text, "| {} |", super::super::arguments::Size(bytes)).expect("a string");
        for (point, published) in row.iter().zip(published) {
            let digits = published.split_once('.').map_or(0, |(_, fraction)| fraction.len());
            let (rounded, error) = (point.rounded, 100.0 * point.error());
            write!(text, " {published} | {rounded:.digits$} | {error:+.1} % |").expect("a string");
        }
        text += "\n";
    }
    let (median, worst) = ark::errors(points);
    writeln!(
        text,
        "\nMedian of the {} absolute errors: {:.1} %; the largest: {:.1} %.\n\
         The bars are 2 % and 10 %.\n\n\
         | claim of the paper's text | published | modelled |\n|---|---|---|",
        points.len(),
        100.0 * median,
        100.0 * worst
    )
    .expect("a string");
    for (name, published, modelled) in ark::claims(points) {
        writeln!(text, "| {name} | {published:.2} | {modelled:.2} |").expect("a string");
    }
    text
}

fn figure(profile: &Profile, points: &[Comparison]) -> String {
    let machine = ark::machine(profile);
    let sizes: Vec<u64> = (12..=44).map(|half| (2f64.powf(f64::from(half) / 2.0)) as u64).collect();
    let chart = |is_throughput: bool| {
        let mut series = Vec::new();
        let curves = Curve::ALL.into_iter().enumerate();
        for (colour, curve) in curves.filter(|(_, it)| it.is_throughput() == is_throughput) {
            let colour = colour % 3;
            let name = curve.name().split(',').next().expect("a letter").to_owned();
            let setup = Setup::new(&machine, profile, curve.engine());
            let value = |point: Point| match is_throughput {
                true => point.gb_per_s,
                false => point.latency.us(),
            };
            let modelled = sizes.iter().map(|&bytes| {
                let point = measure(setup, stream(bytes, false)).expect("a complete profile");
                (bytes as f64, value(point))
            });
            let line = Series {
                name: format!("{name}, modelled"),
                points: modelled.collect(),
                colour,
                style: Style::Line,
            };
            let marks = points.iter().filter(|point| point.curve == curve);
            let marks = Series {
                name: format!("{name}, published"),
                points: marks.map(|point| (point.bytes as f64, point.published)).collect(),
                colour,
                style: Style::Marks,
            };
            series.extend([line, marks]);
        }
        let (what, axis) = if is_throughput { ("throughput", "GB/s") } else { ("latency", "us") };
        let title = format!("ARK Fig. 8, {what}");
        let note = format!("lines: modelled, profile {}; marks: published", profile.name);
        Chart { title, note, axis, series }
    };
    draw(&[chart(true), chart(false)]).expect("it draws")
}

fn stream(bytes: u64, contiguous: bool) -> Stream {
    Stream { from: 0, to: 1, bytes, count: 1, window: WINDOW, contiguous }
}

/// 64 B to 64 KiB.
const SMALL_SIZES: [u64; 6] = [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10];

/// A column of a table: its heading, and what gives its points.
type Column<'a> = (String, Box<dyn Fn(u64) -> Point + 'a>);

fn throughput_table(columns: &[Column<'_>]) -> String {
    let mut text = String::from("| size |");
    for (name, _) in columns {
        write!(text, " {name} | limited by |").expect("a string");
    }
    text += "\n|---|";
    text += &"---|".repeat(2 * columns.len());
    text += "\n";
    for bytes in SMALL_SIZES {
        write!(text, "| {} |", super::super::arguments::Size(bytes)).expect("a string");
        for (_, point) in columns {
            let Point { gb_per_s, limit, .. } = point(bytes);
            write!(text, " {gb_per_s:.2} | {} |", limit.name).expect("a string");
        }
        text += "\n";
    }
    text
}

fn further(ark: &Profile) -> String {
    let machine = ark::machine(ark);
    let run = |machine: &Machine, profile: &Profile, engine, contiguous, bytes| {
        let setup = Setup::new(machine, profile, engine);
        measure(setup, stream(bytes, contiguous)).expect("a complete profile")
    };
    let mut text = String::from(
        "What the proxy gains where messages follow one another in memory (it merges what it finds \
         in its ring),\nin GB/s between two GPUs on PCIe 3.0, profile `ark-v100`:\n\n",
    );
    let proxy: Vec<Column<'_>> = [("separate", false), ("contiguous", true)]
        .into_iter()
        .map(|(name, contiguous)| -> Column<'_> {
            let (machine, run) = (&machine, &run);
            let point = move |bytes| run(machine, ark, Engine::Proxy, contiguous, bytes);
            (name.into(), Box::new(point))
        })
        .collect();
    text += &throughput_table(&proxy);
    text += "\nWhat the device engine gains from more requests in flight, GB/s, same machine:\n\n";
    let profiles = [1, 4, 16, 64].map(|in_flight| {
        let mut profile = ark.clone();
        profile.device.in_flight = in_flight;
        profile
    });
    let device: Vec<Column<'_>> = profiles
        .iter()
        .map(|profile| -> Column<'_> {
            let point = |bytes| run(&machine, profile, Engine::Device, false, bytes);
            (format!("{} in flight", profile.device.in_flight), Box::new(point))
        })
        .collect();
    text += &throughput_table(&device);
    text += "\nBetween nodes with 400 Gb/s adapters on PCIe 5.0, GB/s, profile `what-if-400g`:\n\n";
    let fast = Profile::find("what-if-400g").expect("built in");
    let pair = inter_node_pair(&fast);
    let engines = [
        ("CPU-driven", Engine::CpuDriven, false),
        ("proxy", Engine::Proxy, false),
        ("proxy, contiguous", Engine::Proxy, true),
        ("device", Engine::Device, false),
    ];
    let far: Vec<Column<'_>> = engines
        .into_iter()
        .map(|(name, engine, contiguous)| -> Column<'_> {
            let (pair, fast) = (&pair, &fast);
            (name.into(), Box::new(move |bytes| run(pair, fast, engine, contiguous, bytes)))
        })
        .collect();
    text += &throughput_table(&far);
    text + &eight_gpus()
}

/// Two nodes of one GPU each.
fn inter_node_pair(profile: &Profile) -> Machine {
    let rate = 16.0 * 4.0 * 128.0 / 130.0;
    let graph = Graph {
        name: "one GPU on PCIe 5.0".into(),
        gpu_count: 1,
        points: vec!["gpu0".into(), "switch0".into()],
        edges: vec![Edge { ends: [0, 1], kind: LinkKind::Pcie, count: 1, gb_per_s: rate }],
    };
    Machine::new(&graph, 2, Network::default(), profile).expect("in range")
}

/// All-reduce on eight GPUs of one node, by engine.
fn eight_gpus() -> String {
    let mut text = String::from(
        "\nAll-reduce on the eight GPUs of `ark`, profile `ark-v100`, the fastest of all plans:\n\
         bus bandwidth in GB/s, and what limits it:\n\n\
         | size | CPU-driven | plan, limit | proxy | plan, limit | device | plan, limit |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for bytes in [8 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20u64] {
        write!(text, "| {} |", super::super::arguments::Size(bytes)).expect("a string");
        for engine in ["cpu-driven", "proxy", "device"] {
            let line = format!("all-reduce -b {bytes} -e {bytes} -m ark --engine {engine}");
            let Operation::AllReduce(arguments) = a100::parse(&line).operation else {
                panic!("an all-reduce")
            };
            let scene = Scene::new(&arguments.common).expect("built in");
            let job = Job { scene: &scene, arguments: &arguments, ranks: 8, bytes, forest: None };
            let half = job.best(false).expect("a plan");
            let (_, bus) = bandwidths(bytes, &half, 8);
            write!(text, " {bus:.3} | {}, {} |", half.plan, half.limit.name).expect("a string");
        }
        text += "\n";
    }
    text
}
