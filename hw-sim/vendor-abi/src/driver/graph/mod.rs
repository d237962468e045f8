//! Graphs: their handles, and what the files here share.
//!
//! | file | calls |
//! |---|---|
//! | `structure` | graphs, nodes and edges |
//! | `nodes` | what nodes do, by kind |
//! | `conditional` | conditional nodes |
//! | `general` | the same for structures that hold any kind |
//! | `parameters` | the structures |
//! | `executable` | instantiation, launch, changes of what was instantiated |
//! | `objects` | user objects, memory of graphs |

pub(super) mod conditional;
pub(super) mod executable;
pub(super) mod general;
pub(super) mod memory_nodes;
pub(super) mod nodes;
pub(super) mod objects;
mod parameters;
pub(super) mod structure;

use super::call::{In, Out};
use super::code::{INVALID_VALUE, NOT_SUPPORTED, Outcome, refuse};
use super::handles::Handle;
use super::state::{self, Driver, GraphNode};
use hwsim_machine::graph::{Edge, Graph, NodeId};
use std::sync::Arc;

/// The graph of a handle.
pub(super) fn graph(handle: Handle) -> Outcome<Arc<Graph>> {
    state::driver()?.graphs.get(handle)
}

/// The handle of a graph: that which it has, or a new one.
pub(super) fn graph_handle(driver: &Driver, graph: &Arc<Graph>) -> Handle {
    let known = driver.graphs.handle_where(|other| other.id == graph.id);
    known.unwrap_or_else(|| driver.graphs.add(Arc::clone(graph)))
}

/// The node of a handle.
pub(super) fn node(handle: Handle) -> Outcome<Arc<GraphNode>> {
    state::driver()?.nodes.get(handle)
}

/// The handle of a node: that which it has, or a new one.
pub(super) fn node_handle(driver: &Driver, graph: &Arc<Graph>, number: NodeId) -> Handle {
    let mut known = driver.node_handles.lock().unwrap_or_else(|poison| poison.into_inner());
    let add = || driver.nodes.add(Arc::new(GraphNode { graph: Arc::clone(graph), number }));
    *known.entry(number).or_insert_with(add)
}

/// The numbers of nodes that a C array names; all must be of the graph.
pub(super) fn numbers(graph: &Graph, nodes: In<Handle>, count: usize) -> Outcome<Vec<NodeId>> {
    if count > 0 && nodes.is_null() {
        return refuse(INVALID_VALUE, format!("{count} nodes at address 0"));
    }
    let number = |index| {
        let node = node(nodes.at(index).get()?)?;
        if node.graph.id != graph.id {
            return refuse(INVALID_VALUE, "a node of another graph");
        }
        Ok(node.number)
    };
    (0..count).map(number).collect()
}

/// `CUgraphEdgeData`: all zero for a dependency as every driver has it.
pub(super) type EdgeData = [u8; 8];

/// Refuses dependencies of other kinds than full ones.
pub(super) fn check_edges(data: In<EdgeData>, count: usize) -> Outcome {
    if data.is_null() {
        return Ok(());
    }
    for index in 0..count {
        if data.at(index).get()? != EdgeData::default() {
            return refuse(NOT_SUPPORTED, "edges with ports or of programmatic type");
        }
    }
    Ok(())
}

/// Writes handles of nodes into a C array: as many as there is room for and zeros after them. With
/// no array it gives their number alone.
pub(super) fn put_nodes(
    graph: &Arc<Graph>,
    nodes: &[NodeId],
    to: Out<Handle>,
    count: Out<usize>,
) -> Outcome {
    let driver = state::driver()?;
    count.require()?;
    if to.address() == 0 {
        return count.set(nodes.len());
    }
    for index in 0..count.get()? {
        let handle = nodes.get(index).map_or(0, |number| node_handle(driver, graph, *number));
        to.at(index).set(handle)?;
    }
    count.set(nodes.len().min(count.get()?))
}

/// The edges that two C arrays name.
fn edges(graph: &Graph, from: In<Handle>, to: In<Handle>, count: usize) -> Outcome<Vec<Edge>> {
    let (from, to) = (numbers(graph, from, count)?, numbers(graph, to, count)?);
    Ok(from.into_iter().zip(to).collect())
}

/// Takes back the handles of some nodes, and of the graphs within them.
fn forget_nodes(driver: &Driver, nodes: &[NodeId]) {
    let handles: Vec<Handle> = {
        let mut known = driver.node_handles.lock().unwrap_or_else(|poison| poison.into_inner());
        nodes.iter().filter_map(|number| known.remove(number)).collect()
    };
    parameters::forget_kept(nodes);
    for handle in handles {
        // It is in the table as long as it is in the map.
        let _ = driver.nodes.remove(handle);
    }
}

/// Takes back the handles of a graph, of its nodes and of the graphs within it.
pub(super) fn forget(driver: &Driver, graph: &Graph) {
    let within = graph.embedded();
    for graph in within.iter().map(|graph| &**graph).chain([graph]) {
        forget_nodes(driver, &graph.nodes());
        if let Some(handle) = driver.graphs.handle_where(|other| other.id == graph.id) {
            let _ = driver.graphs.remove(handle);
        }
    }
}
