//! What nodes do, one structure for each kind.

use super::parameters::{
    Batch, Copy3d, Fill, HostCall, Kernel, KernelV1, NodeParameters, put_host, require_context,
    with_attributes,
};
use super::structure::{child, forget_graphs};
use super::{graph, graph_handle, node, node_handle, numbers};
use crate::driver::call::{In, Out, driver_calls};
use crate::driver::code::{INVALID_VALUE, NOT_SUPPORTED, Outcome, refuse};
use crate::driver::handles::Handle;
use crate::driver::launch::CLUSTER_DIMENSION;
use crate::driver::state::{self, GraphNode};
use hwsim_machine::graph::{KernelLaunch, Work};
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`
const COOPERATIVE: c_int = 2;
/// `CU_LAUNCH_ATTRIBUTE_PRIORITY`
const PRIORITY: c_int = 8;

/// Adds a node after those of a C array.
pub(super) fn add(
    to: Out<Handle>,
    handle: Handle,
    before: In<Handle>,
    count: usize,
    work: impl FnOnce() -> Outcome<Work>,
) -> Outcome {
    let (driver, graph) = (state::driver()?, graph(handle)?);
    to.require()?;
    let before = numbers(&graph, before, count)?;
    let number = graph.add(work()?, &before)?;
    to.set(node_handle(driver, &graph, number))
}

/// The work of a child graph.
pub(super) fn child_work(child: Handle) -> Outcome<Work> {
    let child = graph(child)?;
    if child.is_capturing() {
        return refuse(INVALID_VALUE, "a stream capture adds nodes to the child graph");
    }
    Ok(Work::Child(child))
}

/// The work of a record of an event.
pub(super) fn record_work(event: Handle) -> Outcome<Work> {
    Ok(Work::Record(state::driver()?.events.get(event)?.records()))
}

/// The work of a wait for an event.
pub(super) fn wait_work(event: Handle) -> Outcome<Work> {
    Ok(Work::Wait(state::driver()?.events.get(event)?.records()))
}

/// Changes what a node does.
pub(super) fn set(handle: Handle, work: Work) -> Outcome {
    let node = node(handle)?;
    if matches!(work, Work::Child(_)) {
        forget_graphs(&node)?;
    }
    Ok(node.graph.set_work(node.number, work)?)
}

fn set_to<P: NodeParameters>(handle: Handle, parameters: In<P>) -> Outcome {
    set(handle, with_attributes(parameters.get()?.work()?, &*node(handle)?)?)
}

fn work(handle: Handle) -> Outcome<(Arc<GraphNode>, Work)> {
    let node = node(handle)?;
    let work = node.graph.work(node.number)?;
    Ok((node, work))
}

fn wrong_kind<T>(work: &Work) -> Outcome<T> {
    refuse(INVALID_VALUE, format!("the node is of kind {:?}", work.kind()))
}

fn kernel(handle: Handle) -> Outcome<(Arc<GraphNode>, KernelLaunch)> {
    match work(handle)? {
        (node, Work::Kernel(launch)) => Ok((node, launch)),
        (_, other) => wrong_kind(&other),
    }
}

fn set_cooperative(handle: Handle, cooperative: bool) -> Outcome {
    let (node, mut launch) = kernel(handle)?;
    launch.shape.cooperative = cooperative;
    Ok(node.graph.set_work(node.number, Work::Kernel(launch))?)
}

fn set_cluster(handle: Handle, cluster: [c_uint; 3]) -> Outcome {
    let (node, mut launch) = kernel(handle)?;
    launch.set_cluster(cluster)?;
    Ok(node.graph.set_work(node.number, Work::Kernel(launch))?)
}

fn put_event(to: Out<Handle>, handle: Handle, which: fn(&Work) -> bool) -> Outcome {
    let (_, work) = work(handle)?;
    let (Work::Record(records) | Work::Wait(records)) = &work else { return wrong_kind(&work) };
    if !which(&work) {
        return wrong_kind(&work);
    }
    let events = &state::driver()?.events;
    match events.handle_where(|event| Arc::ptr_eq(&event.records(), records)) {
        Some(event) => to.set(event),
        None => refuse(INVALID_VALUE, "the node's event was destroyed"),
    }
}

driver_calls! {
    fn cuGraphAddKernelNode(
        to: Out<Handle>, graph: Handle, before: In<Handle>, count: usize,
        parameters: In<KernelV1>,
    ) {
        add(to, graph, before, count, || parameters.get()?.work())
    }

    fn cuGraphAddKernelNode_v2(
        to: Out<Handle>, graph: Handle, before: In<Handle>, count: usize, parameters: In<Kernel>,
    ) {
        add(to, graph, before, count, || parameters.get()?.work())
    }

    fn cuGraphAddMemcpyNode(
        to: Out<Handle>, graph: Handle, before: In<Handle>, count: usize, parameters: In<Copy3d>,
        context: Handle,
    ) {
        require_context(context)?;
        add(to, graph, before, count, || parameters.get()?.work())
    }

    fn cuGraphAddMemsetNode(
        to: Out<Handle>, graph: Handle, before: In<Handle>, count: usize, parameters: In<Fill>,
        context: Handle,
    ) {
        require_context(context)?;
        add(to, graph, before, count, || parameters.get()?.work())
    }

    fn cuGraphAddHostNode(
        to: Out<Handle>, graph: Handle, before: In<Handle>, count: usize,
        parameters: In<HostCall>,
    ) {
        add(to, graph, before, count, || parameters.get()?.work())
    }

    fn cuGraphAddBatchMemOpNode(
        to: Out<Handle>, graph: Handle, before: In<Handle>, count: usize, parameters: In<Batch>,
    ) {
        add(to, graph, before, count, || parameters.get()?.work())
    }

    fn cuGraphAddEmptyNode(
        to: Out<Handle>, graph: Handle, before: In<Handle>, count: usize,
    ) {
        add(to, graph, before, count, || Ok(Work::Empty))
    }

    fn cuGraphAddChildGraphNode(
        to: Out<Handle>, graph: Handle, before: In<Handle>, count: usize, child: Handle,
    ) {
        add(to, graph, before, count, || child_work(child))
    }

    fn cuGraphAddEventRecordNode(
        to: Out<Handle>, graph: Handle, before: In<Handle>, count: usize, event: Handle,
    ) {
        add(to, graph, before, count, || record_work(event))
    }

    fn cuGraphAddEventWaitNode(
        to: Out<Handle>, graph: Handle, before: In<Handle>, count: usize, event: Handle,
    ) {
        add(to, graph, before, count, || wait_work(event))
    }

    fn cuGraphKernelNodeGetParams(handle: Handle, to: Out<KernelV1>) {
        let (node, launch) = kernel(handle)?;
        to.require()?;
        to.set(KernelV1::of(node.number, &launch)?)
    }

    fn cuGraphKernelNodeGetParams_v2(handle: Handle, to: Out<Kernel>) {
        let (node, launch) = kernel(handle)?;
        to.require()?;
        to.set(Kernel::of(node.number, &launch)?)
    }

    fn cuGraphKernelNodeSetParams(handle: Handle, parameters: In<KernelV1>) {
        set_to(handle, parameters)
    }

    fn cuGraphKernelNodeSetParams_v2(handle: Handle, parameters: In<Kernel>) {
        set_to(handle, parameters)
    }

    fn cuGraphKernelNodeGetAttribute(handle: Handle, attribute: c_int, value: Out<c_uint>) {
        let (_, launch) = kernel(handle)?;
        match attribute {
            COOPERATIVE => value.set(launch.shape.cooperative.into()),
            PRIORITY => value.set(0),
            CLUSTER_DIMENSION => {
                let extents = launch.shape.cluster.unwrap_or([0; 3]);
                let put = |(axis, extent): (usize, &c_uint)| value.at(axis).set(*extent);
                extents.iter().enumerate().try_for_each(put)
            }
            _ => refuse(NOT_SUPPORTED, format!("attribute {attribute} of a kernel node")),
        }
    }

    fn cuGraphKernelNodeSetAttribute(handle: Handle, attribute: c_int, value: In<c_uint>) {
        kernel(handle)?;
        match attribute {
            COOPERATIVE => set_cooperative(handle, value.get()? != 0),
            // Nodes run with the priority of the stream in which their graph is launched.
            PRIORITY => value.get().map(drop),
            CLUSTER_DIMENSION => {
                let extent = |axis| value.at(axis).get();
                set_cluster(handle, [extent(0)?, extent(1)?, extent(2)?])
            }
            _ => refuse(NOT_SUPPORTED, format!("attribute {attribute} of a kernel node")),
        }
    }

    fn cuGraphKernelNodeCopyAttributes(to: Handle, from: Handle) {
        let (_, launch) = kernel(from)?;
        set_cooperative(to, launch.shape.cooperative)?;
        launch.shape.cluster.map_or(Ok(()), |cluster| set_cluster(to, cluster))
    }

    fn cuGraphMemcpyNodeGetParams(handle: Handle, to: Out<Copy3d>) {
        match work(handle)?.1 {
            Work::Transfer(copy) => to.set(Copy3d::of(&copy)?),
            other => wrong_kind(&other),
        }
    }

    fn cuGraphMemcpyNodeSetParams(handle: Handle, parameters: In<Copy3d>) {
        set_to(handle, parameters)
    }

    fn cuGraphMemsetNodeGetParams(handle: Handle, to: Out<Fill>) {
        match work(handle)?.1 {
            Work::Transfer(fill) => to.set(Fill::of(&fill)?),
            other => wrong_kind(&other),
        }
    }

    fn cuGraphMemsetNodeSetParams(handle: Handle, parameters: In<Fill>) {
        set_to(handle, parameters)
    }

    fn cuGraphHostNodeGetParams(handle: Handle, to: Out<[u64; 2]>) {
        put_host(to, &work(handle)?.1)
    }

    fn cuGraphHostNodeSetParams(handle: Handle, parameters: In<HostCall>) {
        set_to(handle, parameters)
    }

    fn cuGraphBatchMemOpNodeGetParams(handle: Handle, to: Out<Batch>) {
        match work(handle)? {
            (node, Work::Memory(operations)) => to.set(Batch::of(node.number, &operations)),
            (_, other) => wrong_kind(&other),
        }
    }

    fn cuGraphBatchMemOpNodeSetParams(handle: Handle, parameters: In<Batch>) {
        set_to(handle, parameters)
    }

    fn cuGraphChildGraphNodeGetGraph(handle: Handle, to: Out<Handle>) {
        let (driver, node) = (state::driver()?, node(handle)?);
        to.require()?;
        to.set(graph_handle(driver, &child(&node)?))
    }

    fn cuGraphEventRecordNodeGetEvent(handle: Handle, to: Out<Handle>) {
        put_event(to, handle, |work| matches!(work, Work::Record(_)))
    }

    fn cuGraphEventRecordNodeSetEvent(handle: Handle, event: Handle) {
        set(handle, record_work(event)?)
    }

    fn cuGraphEventWaitNodeGetEvent(handle: Handle, to: Out<Handle>) {
        put_event(to, handle, |work| matches!(work, Work::Wait(_)))
    }

    fn cuGraphEventWaitNodeSetEvent(handle: Handle, event: Handle) {
        set(handle, wait_work(event)?)
    }
}
