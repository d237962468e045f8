//! Figures and tables of `src/topology/README.md`: made from virtual machines, and held to what is
//! made now. `RINGDOVE_TEST_WRITE_FIGURES=1 cargo test --release --test topo_figures` writes them.

mod hardware;

use hardware::{is_real, on_virtual, run_bounded, tool};
use ringdove::topology::machine::Machine;
use ringdove::topology::packing::{Roots, pack};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use xmlwriter::XmlWriter;

const WRITE: &str = "RINGDOVE_TEST_WRITE_FIGURES";
const MACHINES: [&str; 6] = ["pcie4", "quad-pc", "ark", "dgx1v", "dgx-a100", "dgx-h100"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/topology")
}

/// `ringdove topo` on a virtual machine.
fn topo_on(machine: &str, arguments: &[&str]) -> String {
    let mut command = on_virtual(machine, tool("ringdove"));
    command.arg("topo");
    let (status, output) = run_bounded({
        command.args(arguments);
        command
    });
    assert!(status.success(), "{machine}: {output}");
    output
}

/// A virtual machine, as its GPUs' ranks would find it, and the drawing of its links and trees.
fn found(machine: &str) -> (Machine, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (file, drawing) = (path("machine.xml"), path("machine.svg"));
    topo_on(machine, &["--export", &file, "--svg", &drawing]);
    let text = std::fs::read_to_string(file).unwrap();
    (Machine::from_nccl(&text).unwrap(), std::fs::read_to_string(drawing).unwrap())
}

/// GB/s of all data of an all-gather: the optimum of trees, of a ring in the order of numbers, and
/// of the best ring. Around a ring each GPU receives all data but its own over the narrowest link.
fn rates(machine: &Machine, gpus: &[u32]) -> [f64; 3] {
    let graph = machine.capacities(gpus, 1).unwrap();
    let packing = pack(&graph, &Roots::all(&graph), None).unwrap();
    let optimum = *packing.optimum.numer() as f64 / *packing.optimum.denom() as f64 / 1e3;
    let count = gpus.len() as f64;
    let around = |megabytes: u64| megabytes as f64 / 1e3 * count / (count - 1.0);
    let best = machine.best_ring(gpus).unwrap().expect("few GPUs");
    [optimum, around(machine.ring(gpus).unwrap().megabytes), around(best.megabytes)]
}

fn numbers(machine: &Machine) -> Vec<u32> {
    machine.gpus().iter().map(|(_, gpu)| gpu.number).collect()
}

/// Holds a file to `text`, or writes it.
fn hold(path: &Path, text: &str) {
    if std::env::var_os(WRITE).is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        return;
    }
    let known = std::fs::read_to_string(path).unwrap_or_default();
    assert!(known == text, "{}: not what is made now; see {WRITE}", path.display());
}

/// Every part of three to eight GPUs of the mesh that NVLink connects: its GPUs, and its rates.
fn parts(mesh: &Machine) -> Vec<(Vec<u32>, [f64; 3])> {
    let all = (1u32..256).map(|part| (0..8).filter(|gpu| part >> gpu & 1 == 1).collect::<Vec<_>>());
    let large = all.filter(|gpus| gpus.len() >= 3);
    // With PCI, a graph has more nodes than GPUs: NVLink alone does not connect these.
    let connected = large.filter(|gpus| {
        let graph = mesh.capacities(gpus, 1).unwrap();
        graph.len() == gpus.len()
    });
    connected.map(|gpus| (gpus.clone(), rates(mesh, &gpus))).collect()
}

const BAR: f64 = 6.0;
const HEIGHT: f64 = 260.0;
const EDGE: f64 = 50.0;

/// Two bars for each part: the best ring, and trees.
fn bars(parts: &[(Vec<u32>, [f64; 3])]) -> String {
    let most = parts.iter().map(|(_, rates)| rates[0]).fold(0.0, f64::max);
    let width = 2.0 * EDGE + BAR * parts.len() as f64;
    let mut writer = XmlWriter::new(xmlwriter::Options::default());
    writer.start_element("svg");
    writer.write_attribute("xmlns", "http://www.w3.org/2000/svg");
    let height = HEIGHT + 2.0 * EDGE;
    writer.write_attribute_fmt("viewBox", format_args!("0 0 {width} {height}"));
    writer.write_attribute("font-family", "sans-serif");
    writer.write_attribute("font-size", "13");
    let rectangle = |writer: &mut XmlWriter, x: f64, rate: f64, wide: f64, colour: &str| {
        let high = HEIGHT * rate / most;
        writer.start_element("rect");
        writer.write_attribute_fmt("x", format_args!("{x:.1}"));
        writer.write_attribute_fmt("y", format_args!("{:.1}", EDGE + HEIGHT - high));
        writer.write_attribute_fmt("width", format_args!("{wide:.1}"));
        writer.write_attribute_fmt("height", format_args!("{high:.1}"));
        writer.write_attribute("fill", colour);
        writer.end_element();
    };
    let text = |writer: &mut XmlWriter, x: f64, y: f64, anchor: &str, text: &str| {
        writer.start_element("text");
        writer.write_attribute_fmt("x", format_args!("{x:.1}"));
        writer.write_attribute_fmt("y", format_args!("{y:.1}"));
        writer.write_attribute("text-anchor", anchor);
        writer.write_text(text);
        writer.end_element();
    };
    let mut last = 0;
    for (nth, (gpus, [trees, _, ring])) in parts.iter().enumerate() {
        let x = EDGE + BAR * nth as f64;
        rectangle(&mut writer, x, *trees, BAR - 1.5, "#0072b2");
        rectangle(&mut writer, x, *ring, BAR - 1.5, "#d55e00");
        if gpus.len() != last {
            last = gpus.len();
            text(&mut writer, x, EDGE + HEIGHT + 18.0, "start", &format!("{last} GPUs"));
        }
    }
    let title = "All-gather on parts of a DGX-1V: trees (blue), best ring (orange), by link rates";
    text(&mut writer, EDGE, 24.0, "start", title);
    for gigabytes in [0, 50, 100, 150] {
        let y = EDGE + HEIGHT - HEIGHT * f64::from(gigabytes) / most;
        text(&mut writer, EDGE - 6.0, y + 4.0, "end", &gigabytes.to_string());
    }
    text(&mut writer, 6.0, EDGE - 12.0, "start", "GB/s");
    writer.end_document()
}

/// If this fails, the README shows another machine, or other rates, than `ringdove topo` finds.
#[test]
fn the_readme_of_topology_shows_what_is_found() {
    if is_real() {
        tally::skip("virtual-only", "this test knows virtual machines only");
        return;
    }
    let mut table = String::from(
        "| machine | GPUs | trees, the optimum | best ring | ring by number | best order |\n\
         |---|---|---|---|---|---|\n",
    );
    let mut figures = String::new();
    for name in MACHINES {
        let (machine, drawing) = found(name);
        let gpus = numbers(&machine);
        let [optimum, by_number, best] = rates(&machine, &gpus);
        let order = machine.best_ring(&gpus).unwrap().expect("few GPUs").gpus;
        let order: Vec<_> = order.iter().map(u32::to_string).collect();
        let _ = writeln!(
            table,
            "| `{name}` | {} | {optimum:.2} | {best:.2} | {by_number:.2} | {} |",
            gpus.len(),
            order.join(" ")
        );
        let _ = writeln!(figures, "\n![Links and trees of {name}](figures/{name}.svg)");
        hold(&folder().join(format!("figures/{name}.svg")), &drawing);
    }
    let (mesh, _) = found("dgx1v");
    let mut parts = parts(&mesh);
    assert_eq!(parts.len(), 181, "all eight, and 180 parts");
    let ratio = |rates: &[f64; 3]| rates[0] / rates[2];
    parts.sort_by(|a, b| {
        a.0.len().cmp(&b.0.len()).then(ratio(&a.1).total_cmp(&ratio(&b.1))).then(a.0.cmp(&b.0))
    });
    hold(&folder().join("figures/dgx1v-parts.svg"), &bars(&parts));
    let (most, of) = parts
        .iter()
        .map(|(gpus, it)| (ratio(it), gpus))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .unwrap();
    let without = parts.iter().filter(|(_, rates)| rates[2] < 25.0).count();
    let least = parts.iter().map(|(_, rates)| ratio(rates)).fold(f64::MAX, f64::min);
    let summary = format!(
        "\n![Trees and rings on parts of a DGX-1V](figures/dgx1v-parts.svg)\n\n\
         Of the {} parts of three to eight GPUs that NVLink connects, {without} have no ring of\n\
         NVLinks. Trees carry {least:.2} to {most:.2} times what the best ring does; the most on\n\
         GPUs {of:?}.\n",
        parts.len()
    );
    let path = folder().join("README.md");
    let readme = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = readme.split_once("<!-- figures: begin -->\n").expect("the mark");
    let (_, after) = rest.split_once("<!-- figures: end -->").expect("the mark");
    let made = format!("{table}{summary}{figures}");
    let whole = format!("{before}<!-- figures: begin -->\n{made}<!-- figures: end -->{after}");
    hold(&path, &whole);
}
