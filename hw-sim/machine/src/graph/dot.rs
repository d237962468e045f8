//! Graphs for people, in the language of Graphviz.

use super::definition::{Graph, NodeId};
use super::work::Work;
use crate::copy::Source;
use std::fmt::Write;

/// What a node does, in a few words.
fn describe(work: &Work) -> String {
    match work {
        Work::Kernel(launch) => {
            let ([x, y, z], [u, v, w]) = (launch.shape.grid, launch.shape.block);
            format!("{}\\n{x} {y} {z} blocks of {u} {v} {w}", launch.kernel.name)
        }
        Work::Transfer(transfer) => {
            let row = &transfer.plane.row;
            let rows = transfer.plane.rows * transfer.planes;
            let from = match row.source {
                Source::Memory { address, .. } => format!("from {address:#x}"),
                Source::Pattern { value, .. } => format!("value {value:#x}"),
            };
            format!("{rows} x {} bytes\\n{from}\\nto {:#x}", row.bytes, row.destination)
        }
        Work::Memory(operations) => format!("{} operations", operations.len()),
        Work::Allocate(own) | Work::Free(own) => {
            format!("{} bytes\\nat {:#x}", own.bytes, own.base)
        }
        Work::Child(graph) => format!("{} nodes", graph.nodes().len()),
        Work::Conditional(conditional) => {
            format!("{:?}\\nhandle {:#x}", conditional.kind, conditional.condition.handle())
        }
        Work::Empty | Work::Host(_) | Work::Record(_) | Work::Wait(_) => String::new(),
    }
}

fn name(node: NodeId) -> String {
    format!("node_{node}")
}

fn write_graph(text: &mut String, graph: &Graph) {
    // Writing to a string cannot fail.
    for node in graph.nodes() {
        let Ok(work) = graph.work(node) else { continue };
        let label = format!("{:?}\\n{}", work.kind(), describe(&work));
        let _ = writeln!(text, "    {} [label=\"{}\"];", name(node), label.replace('"', "'"));
        for (index, graph) in work.graphs().iter().enumerate() {
            let _ = writeln!(text, "    subgraph cluster_{node}_{index} {{");
            write_graph(text, graph);
            let _ = writeln!(text, "    }}");
        }
    }
    for (from, to) in graph.edges() {
        let _ = writeln!(text, "    {} -> {};", name(from), name(to));
    }
}

/// The graph as a text for `dot`.
pub fn dot(graph: &Graph) -> String {
    let mut text = format!("digraph graph_{} {{\n    node [shape=box];\n", graph.id);
    write_graph(&mut text, graph);
    text += "}\n";
    text
}
