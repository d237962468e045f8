//! Graphs, nodes and edges.

use super::{
    EdgeData, check_edges, edges, forget, forget_nodes, graph, node, node_handle, put_nodes,
};
use crate::driver::call::{In, Out, driver_calls, string};
use crate::driver::code::{ILLEGAL_STATE, INVALID_VALUE, OPERATING_SYSTEM, Outcome, refuse};
use crate::driver::handles::Handle;
use crate::driver::state;
use hwsim_machine::graph::{self as machine, Graph};
use std::ffi::{c_char, c_int, c_uint};
use std::sync::Arc;

fn require_no_flags(flags: c_uint) -> Outcome {
    if flags == 0 { Ok(()) } else { refuse(INVALID_VALUE, format!("graph flags {flags:#x}")) }
}

/// Refuses what a graph does not survive while a capture adds nodes to it.
fn require_no_capture(graph: &Graph) -> Outcome {
    if graph.is_capturing() {
        return refuse(ILLEGAL_STATE, "a stream capture adds nodes to the graph");
    }
    Ok(())
}

fn connect(graph: Handle, from: In<Handle>, to: In<Handle>, count: usize) -> Outcome {
    let graph = super::graph(graph)?;
    Ok(graph.connect(&edges(&graph, from, to, count)?)?)
}

fn disconnect(graph: Handle, from: In<Handle>, to: In<Handle>, count: usize) -> Outcome {
    let graph = super::graph(graph)?;
    Ok(graph.disconnect(&edges(&graph, from, to, count)?)?)
}

fn get_edges(
    graph: Handle,
    from: Out<Handle>,
    to: Out<Handle>,
    data: Out<EdgeData>,
    count: Out<usize>,
) -> Outcome {
    let (driver, graph) = (state::driver()?, super::graph(graph)?);
    count.require()?;
    let edges = graph.edges();
    if (from.address() == 0) != (to.address() == 0) {
        return refuse(INVALID_VALUE, "one end of the edges has no array");
    }
    if from.address() == 0 {
        return count.set(edges.len());
    }
    for index in 0..count.get()? {
        let handle = |number| node_handle(driver, &graph, number);
        let (first, second) = edges.get(index).map_or((0, 0), |e| (handle(e.0), handle(e.1)));
        from.at(index).set(first)?;
        to.at(index).set(second)?;
        data_at(data, index);
    }
    count.set(edges.len().min(count.get()?))
}

fn data_at(data: Out<EdgeData>, index: usize) {
    if data.address() != 0 {
        data.at(index).set_if(EdgeData::default());
    }
}

/// Gives nodes next to a node, with the data of their edges.
fn neighbours(
    handle: Handle,
    which: fn(&Graph, u64) -> hwsim_machine::error::Result<Vec<u64>>,
    to: Out<Handle>,
    data: Out<EdgeData>,
    count: Out<usize>,
) -> Outcome {
    let node = node(handle)?;
    put_nodes(&node.graph, &which(&node.graph, node.number)?, to, count)?;
    if to.address() != 0 {
        (0..count.get()?).for_each(|index| data_at(data, index));
    }
    Ok(())
}

driver_calls! {
    fn cuGraphCreate(to: Out<Handle>, flags: c_uint) {
        let driver = state::driver()?;
        to.require()?;
        require_no_flags(flags)?;
        to.set(driver.graphs.add(Graph::new()))
    }

    fn cuGraphDestroy(handle: Handle) {
        let (driver, graph) = (state::driver()?, graph(handle)?);
        require_no_capture(&graph)?;
        if graph.is_embedded() {
            return refuse(INVALID_VALUE, "the graph is part of a node, and goes with it");
        }
        forget(driver, &graph);
        Ok(())
    }

    fn cuGraphClone(to: Out<Handle>, original: Handle) {
        let (driver, original) = (state::driver()?, graph(original)?);
        to.require()?;
        if original.has_memory() {
            let words = "a graph that allocates or frees memory cannot be cloned";
            return refuse(INVALID_VALUE, words);
        }
        to.set(driver.graphs.add(original.duplicate()))
    }

    fn cuGraphNodeFindInClone(to: Out<Handle>, original: Handle, clone: Handle) {
        let (driver, original, clone) = (state::driver()?, node(original)?, graph(clone)?);
        to.require()?;
        match clone.copy_of(original.number) {
            Some(copy) => to.set(node_handle(driver, &clone, copy)),
            None => refuse(INVALID_VALUE, "the graph was not cloned from the node's"),
        }
    }

    fn cuGraphGetNodes(handle: Handle, nodes: Out<Handle>, count: Out<usize>) {
        let graph = graph(handle)?;
        put_nodes(&graph, &graph.nodes(), nodes, count)
    }

    fn cuGraphGetRootNodes(handle: Handle, nodes: Out<Handle>, count: Out<usize>) {
        let graph = graph(handle)?;
        put_nodes(&graph, &graph.roots(), nodes, count)
    }

    fn cuGraphGetEdges(
        handle: Handle, from: Out<Handle>, to: Out<Handle>, count: Out<usize>,
    ) {
        get_edges(handle, from, to, Out::from_address(0), count)
    }

    fn cuGraphGetEdges_v2(
        handle: Handle, from: Out<Handle>, to: Out<Handle>, data: Out<EdgeData>,
        count: Out<usize>,
    ) {
        get_edges(handle, from, to, data, count)
    }

    fn cuGraphNodeGetDependencies(handle: Handle, to: Out<Handle>, count: Out<usize>) {
        neighbours(handle, Graph::dependencies, to, Out::from_address(0), count)
    }

    fn cuGraphNodeGetDependencies_v2(
        handle: Handle, to: Out<Handle>, data: Out<EdgeData>, count: Out<usize>,
    ) {
        neighbours(handle, Graph::dependencies, to, data, count)
    }

    fn cuGraphNodeGetDependentNodes(handle: Handle, to: Out<Handle>, count: Out<usize>) {
        neighbours(handle, Graph::dependents, to, Out::from_address(0), count)
    }

    fn cuGraphNodeGetDependentNodes_v2(
        handle: Handle, to: Out<Handle>, data: Out<EdgeData>, count: Out<usize>,
    ) {
        neighbours(handle, Graph::dependents, to, data, count)
    }

    fn cuGraphAddDependencies(handle: Handle, from: In<Handle>, to: In<Handle>, count: usize) {
        connect(handle, from, to, count)
    }

    fn cuGraphAddDependencies_v2(
        handle: Handle, from: In<Handle>, to: In<Handle>, data: In<EdgeData>, count: usize,
    ) {
        check_edges(data, count)?;
        connect(handle, from, to, count)
    }

    fn cuGraphRemoveDependencies(
        handle: Handle, from: In<Handle>, to: In<Handle>, count: usize,
    ) {
        disconnect(handle, from, to, count)
    }

    fn cuGraphRemoveDependencies_v2(
        handle: Handle, from: In<Handle>, to: In<Handle>, data: In<EdgeData>, count: usize,
    ) {
        check_edges(data, count)?;
        disconnect(handle, from, to, count)
    }

    fn cuGraphDestroyNode(handle: Handle) {
        let (driver, node) = (state::driver()?, node(handle)?);
        require_no_capture(&node.graph)?;
        forget_graphs(&node)?;
        node.graph.remove(node.number)?;
        forget_nodes(driver, &[node.number]);
        Ok(())
    }

    fn cuGraphNodeGetType(handle: Handle, kind: Out<c_int>) {
        let node = node(handle)?;
        kind.set(node.graph.kind(node.number)? as c_int)
    }

    fn cuGraphDebugDotPrint(handle: Handle, path: In<c_char>, _flags: c_uint) {
        let (graph, path) = (graph(handle)?, string(path)?);
        let write = std::fs::write(path, machine::dot(&graph));
        write.or_else(|error| refuse(OPERATING_SYSTEM, format!("writing {path}: {error}")))
    }
}

/// The graphs of a node change or go with it, and with them their handles.
pub(super) fn forget_graphs(node: &state::GraphNode) -> Outcome {
    let driver = state::driver()?;
    node.graph.work(node.number)?.graphs().iter().for_each(|graph| forget(driver, graph));
    Ok(())
}

/// The node's graph within, as a program gets it.
pub(super) fn child(node: &state::GraphNode) -> Outcome<Arc<Graph>> {
    match node.graph.work(node.number)? {
        machine::Work::Child(child) => Ok(child),
        other => refuse(INVALID_VALUE, format!("a node of kind {:?} has no graph", other.kind())),
    }
}
