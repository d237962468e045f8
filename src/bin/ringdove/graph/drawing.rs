//! A graph as a drawing: a row for each rank, operators from left to right, and what crosses ranks
//! in the colour of how it goes.

use ringdove::graph::{Graph, Method, TransferPlan};
use xmlwriter::XmlWriter;

/// More operators than these nobody can tell apart.
const OPERATORS_MAX: usize = 400;

const COLUMN: f64 = 150.0;
const ROW: f64 = 110.0;
const BOX: (f64, f64) = (110.0, 34.0);
const MARGIN: f64 = 90.0;
const LINE: f64 = 20.0;

fn colour(method: Method) -> &'static str {
    match method {
        Method::ZeroCopy => "#009e73",
        Method::Read => "#0072b2",
        Method::Staged => "#d55e00",
    }
}

/// An SVG file.
///
/// # Errors
/// For graphs of more operators than can be told apart.
pub fn draw(plan: &TransferPlan) -> Result<String, String> {
    let graph = &plan.graph;
    let (operators, ranks) = (graph.operators().len(), f64::from(graph.ranks()));
    if operators > OPERATORS_MAX {
        return Err(format!("{operators} operators; at most {OPERATORS_MAX} are drawn"));
    }
    let places = places(graph);
    let columns = places.iter().map(|place| place.0).fold(0.0, f64::max) + 1.0;
    let legend = MARGIN + ranks * ROW;
    let lines = plan.edges.len().max(1) as f64 + 2.0;
    let width = (MARGIN + columns * COLUMN).max(760.0);
    let mut writer = XmlWriter::new(xmlwriter::Options::default());
    writer.start_element("svg");
    writer.write_attribute("xmlns", "http://www.w3.org/2000/svg");
    let height = legend + lines * LINE;
    writer.write_attribute_fmt("viewBox", format_args!("0 0 {width:.0} {height:.0}"));
    writer.write_attribute("font-family", "sans-serif");
    writer.write_attribute("font-size", "12");
    for rank in 0..graph.ranks() {
        let y = MARGIN + f64::from(rank) * ROW;
        writer.start_element("rect");
        rectangle(&mut writer, (0.0, y - ROW / 2.0 + 4.0), (width, ROW - 8.0), "#f4f4f4");
        writer.end_element();
        text(&mut writer, (10.0, y + 4.0), "#333333", &format!("rank {rank}"));
    }
    let at = |number: usize| (MARGIN + places[number].0 * COLUMN, MARGIN + places[number].1 * ROW);
    for (number, operator) in graph.operators().iter().enumerate() {
        for &input in &operator.inputs {
            let tensor = &graph.tensors()[input];
            let is_edge =
                |edge: &&ringdove::graph::Edge| edge.tensor == input && edge.to == operator.rank;
            let method = plan.edges.iter().find(is_edge).map(|edge| edge.method);
            let stroke = method.map_or("#999999", colour);
            let to = at(number);
            let from = match tensor.producer {
                Some(producer) => at(producer),
                // Inputs and parameters of the rank itself would hide the rest.
                None if method.is_none() => continue,
                None => (MARGIN - 60.0, MARGIN + f64::from(tensor.rank) * ROW + 20.0),
            };
            let (from, to) = ((from.0 + BOX.0 / 2.0, from.1), (to.0 - BOX.0 / 2.0, to.1));
            line(&mut writer, from, to, stroke, method == Some(Method::Staged));
            if method.is_some() {
                let middle = ((from.0 + to.0) / 2.0 + 4.0, (from.1 + to.1) / 2.0 - 4.0);
                text(&mut writer, middle, stroke, &tensor.name);
            }
        }
    }
    for (number, operator) in graph.operators().iter().enumerate() {
        let (x, y) = at(number);
        writer.start_element("rect");
        rectangle(&mut writer, (x - BOX.0 / 2.0, y - BOX.1 / 2.0), BOX, "#ffffff");
        writer.write_attribute("stroke", "#333333");
        writer.end_element();
        let left = x - BOX.0 / 2.0 + 6.0;
        text(&mut writer, (left, y - 2.0), "#000000", &operator.name);
        text(&mut writer, (left, y + 12.0), "#666666", operator.kind.name());
    }
    for (number, edge) in plan.edges.iter().enumerate() {
        let name = &graph.tensors()[edge.tensor].name;
        let bytes = edge.bytes.map_or("unknown size".to_owned(), |bytes| format!("{bytes} bytes"));
        let (from, to, method, reason) = (edge.from, edge.to, edge.method, plan.reason(edge));
        let words = format!("{name}, rank {from} to {to}, {bytes}: {method}, {reason}");
        let y = legend + number as f64 * LINE;
        text(&mut writer, (10.0, y), colour(method), &words);
    }
    Ok(writer.end_document())
}

/// Column and row of each operator: behind all that it reads from, beside nobody.
fn places(graph: &Graph) -> Vec<(f64, f64)> {
    let mut places: Vec<(f64, f64)> = Vec::new();
    let mut ends = vec![0.0; graph.ranks() as usize];
    for operator in graph.operators() {
        let before = operator.inputs.iter().filter_map(|&input| graph.tensors()[input].producer);
        let behind = before.map(|producer| places[producer].0 + 1.0).fold(0.0, f64::max);
        let end: &mut f64 = &mut ends[operator.rank as usize];
        let column = behind.max(*end);
        *end = column + 1.0;
        places.push((column, f64::from(operator.rank)));
    }
    places.iter().map(|(column, row)| (column + 0.5, *row)).collect()
}

fn rectangle(writer: &mut XmlWriter, (x, y): (f64, f64), (w, h): (f64, f64), fill: &str) {
    for (name, value) in [("x", x), ("y", y), ("width", w), ("height", h)] {
        writer.write_attribute_fmt(name, format_args!("{value:.1}"));
    }
    writer.write_attribute("fill", fill);
}

fn line(writer: &mut XmlWriter, a: (f64, f64), b: (f64, f64), stroke: &str, dashed: bool) {
    writer.start_element("line");
    for (name, value) in [("x1", a.0), ("y1", a.1), ("x2", b.0), ("y2", b.1)] {
        writer.write_attribute_fmt(name, format_args!("{value:.1}"));
    }
    writer.write_attribute("stroke", stroke);
    writer.write_attribute("stroke-width", "1.6");
    if dashed {
        writer.write_attribute("stroke-dasharray", "6 4");
    }
    writer.end_element();
}

fn text(writer: &mut XmlWriter, (x, y): (f64, f64), fill: &str, words: &str) {
    writer.start_element("text");
    writer.write_attribute_fmt("x", format_args!("{x:.1}"));
    writer.write_attribute_fmt("y", format_args!("{y:.1}"));
    writer.write_attribute("fill", fill);
    writer.write_text(words);
    writer.end_element();
}
