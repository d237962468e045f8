//! A machine as a drawing: its links, as wide as what they carry, and the trees of its first GPU in
//! colours.

use ringdove::topology::graph::{CapacityGraph, NodeId};
use ringdove::topology::packing::Packing;
use std::f64::consts::TAU;
use xmlwriter::XmlWriter;

/// More nodes than these would cover each other.
pub const NODES_MAX: usize = 96;

const SIZE: f64 = 900.0;
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#f0e442"];

/// An SVG file.
pub fn draw(graph: &CapacityGraph, packing: &Packing) -> String {
    let mut writer = XmlWriter::new(xmlwriter::Options::default());
    writer.start_element("svg");
    writer.write_attribute("xmlns", "http://www.w3.org/2000/svg");
    writer.write_attribute_fmt("viewBox", format_args!("0 0 {SIZE} {SIZE}"));
    writer.write_attribute("font-family", "sans-serif");
    writer.write_attribute("font-size", "14");
    let places: Vec<_> = (0..graph.len() as u32).map(|node| place(graph, NodeId(node))).collect();
    let at = |node: NodeId| places[node.0 as usize];
    let widest = graph.arcs().map(|arc| arc.2).max().unwrap_or(1) as f64;
    for (from, to, capacity) in graph.arcs().filter(|arc| arc.0 < arc.1) {
        let width = 2.0 + 10.0 * capacity as f64 / widest;
        line(&mut writer, at(from), at(to), width, "#dddddd");
    }
    let first = graph.gpus().next();
    let trees = packing.trees.iter().filter(|tree| Some(tree.root) == first);
    for (nth, tree) in trees.enumerate() {
        let colour = COLOURS[nth % COLOURS.len()];
        // Side by side, where several use a link.
        let shift = (nth % 7) as f64 * 3.0 - 9.0;
        for link in &tree.links {
            for pair in link.ways.iter().flat_map(|(way, _)| way.windows(2)) {
                let (a, b) = (at(pair[0]), at(pair[1]));
                let length = (a.0 - b.0).hypot(a.1 - b.1).max(1.0);
                let (x, y) = ((b.1 - a.1) / length * shift, (a.0 - b.0) / length * shift);
                line(&mut writer, (a.0 + x, a.1 + y), (b.0 + x, b.1 + y), 1.5, colour);
            }
        }
    }
    for node in (0..graph.len() as u32).map(NodeId) {
        let (x, y) = at(node);
        writer.start_element("circle");
        writer.write_attribute("cx", &x);
        writer.write_attribute("cy", &y);
        writer.write_attribute("r", if graph.is_gpu(node) { "16" } else { "10" });
        writer.write_attribute("fill", if graph.is_gpu(node) { "#ffffff" } else { "#bbbbbb" });
        writer.write_attribute("stroke", "#333333");
        writer.end_element();
        text(&mut writer, (x, y + 32.0), "middle", graph.name(node));
    }
    let root = first.map(|gpu| graph.name(gpu)).unwrap_or_default();
    text(&mut writer, (20.0, 24.0), "start", &format!("Trees of {root}, and the links below them"));
    writer.end_document()
}

/// GPUs on a circle, switches on a smaller one.
fn place(graph: &CapacityGraph, node: NodeId) -> (f64, f64) {
    let like = |other: &NodeId| graph.is_gpu(*other) == graph.is_gpu(node);
    let alike: Vec<_> = (0..graph.len() as u32).map(NodeId).filter(like).collect();
    let nth = alike.iter().position(|other| *other == node).unwrap_or(0);
    let radius = match (graph.is_gpu(node), alike.len()) {
        (true, _) => SIZE * 0.4,
        (false, 1) => 0.0,
        (false, _) => SIZE * 0.2,
    };
    let angle = TAU * (nth as f64 + 0.5) / alike.len() as f64;
    (SIZE / 2.0 + radius * angle.sin(), SIZE / 2.0 - radius * angle.cos())
}

fn line(writer: &mut XmlWriter, a: (f64, f64), b: (f64, f64), width: f64, colour: &str) {
    writer.start_element("line");
    for (name, value) in [("x1", a.0), ("y1", a.1), ("x2", b.0), ("y2", b.1)] {
        writer.write_attribute_fmt(name, format_args!("{value:.1}"));
    }
    writer.write_attribute_fmt("stroke-width", format_args!("{width:.1}"));
    writer.write_attribute("stroke", colour);
    writer.end_element();
}

fn text(writer: &mut XmlWriter, (x, y): (f64, f64), anchor: &str, words: &str) {
    writer.start_element("text");
    writer.write_attribute_fmt("x", format_args!("{x:.1}"));
    writer.write_attribute_fmt("y", format_args!("{y:.1}"));
    writer.write_attribute("text-anchor", anchor);
    writer.write_text(words);
    writer.end_element();
}
