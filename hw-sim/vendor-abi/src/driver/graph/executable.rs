//! Graphs that can be launched.

use super::nodes::{child_work, record_work, wait_work};
use super::parameters::{
    Batch, Copy3d, Fill, HostCall, Kernel, KernelV1, NodeParameters, require_context,
    with_attributes,
};
use super::{graph, node, node_handle};
use crate::driver::call::{In, Out, driver_calls};
use crate::driver::code::{
    GRAPH_EXEC_UPDATE_FAILURE, INVALID_VALUE, NOT_SUPPORTED, Outcome, refuse,
};
use crate::driver::handles::Handle;
use crate::driver::state::{self, GraphNode};
use hwsim_machine::graph::{Executable, Graph, NodeId, UpdateError, Work};
use std::ffi::{c_char, c_uint};
use std::sync::Arc;

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`
const AUTO_FREE: u64 = 1;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`
const UPLOAD: u64 = 2;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH`
const DEVICE_LAUNCH: u64 = 4;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY`
const NODE_PRIORITY: u64 = 8;
/// `CUDA_GRAPH_INSTANTIATE_ERROR` and `..._INVALID_STRUCTURE`
const RESULTS: [c_uint; 2] = [1, 2];

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`
#[derive(Clone, Copy)]
#[repr(C)]
struct Instantiation {
    flags: u64,
    upload: Handle,
    error_node: Handle,
    result: c_uint,
}

/// `CUgraphExecUpdateResultInfo`
#[derive(Clone, Copy)]
#[repr(C)]
struct UpdateResult {
    result: c_uint,
    error_node: Handle,
    error_from: Handle,
}

const _: () = assert!(size_of::<Instantiation>() == 32 && size_of::<UpdateResult>() == 24);

fn executable(handle: Handle) -> Outcome<Arc<Executable>> {
    state::driver()?.executables.get(handle)
}

fn check_flags(flags: u64, allowed: u64) -> Outcome {
    let both = AUTO_FREE | DEVICE_LAUNCH;
    if flags & !allowed != 0 || flags & both == both {
        return refuse(INVALID_VALUE, format!("instantiation flags {flags:#x}"));
    }
    if flags & DEVICE_LAUNCH != 0 {
        return refuse(NOT_SUPPORTED, "graphs that kernels launch");
    }
    Ok(())
}

fn instantiate(to: Out<Handle>, handle: Handle, flags: u64) -> Outcome {
    let (driver, graph) = (state::driver()?, graph(handle)?);
    to.require()?;
    check_flags(flags, AUTO_FREE | DEVICE_LAUNCH | NODE_PRIORITY)?;
    to.set(driver.executables.add(Executable::new(&graph, flags)?))
}

/// Changes what a node does in later launches.
pub(super) fn set(handle: Handle, node: &GraphNode, work: Work) -> Outcome {
    Ok(executable(handle)?.set_work(node.number, work)?)
}

fn set_to<P: NodeParameters>(executable: Handle, handle: Handle, parameters: In<P>) -> Outcome {
    let node = node(handle)?;
    set(executable, &node, with_attributes(parameters.get()?.work()?, &node)?)
}

/// The handle of a node that is somewhere in a graph, 0 for none.
fn handle_in(graph: &Arc<Graph>, number: Option<NodeId>) -> Outcome<Handle> {
    let (driver, Some(number)) = (state::driver()?, number) else { return Ok(0) };
    let within = graph.embedded();
    let owner = std::iter::once(graph).chain(&within).find(|graph| graph.kind(number).is_ok());
    Ok(owner.map_or(0, |graph| node_handle(driver, graph, number)))
}

/// Gives the result, its node, and whether all is well.
fn update(handle: Handle, other: Handle) -> Outcome<(c_uint, Handle, bool)> {
    let (executable, other) = (executable(handle)?, graph(other)?);
    let (result, node) = match executable.update(&other) {
        Ok(()) => return Ok((0, 0, true)),
        Err(UpdateError::Invalid) => (1, None),
        Err(UpdateError::NoMemory(node)) => (1, Some(node)),
        Err(UpdateError::Topology(node)) => (2, node),
        Err(UpdateError::Kind(node)) => (3, Some(node)),
        Err(UpdateError::Memory(node)) => (5, Some(node)),
        Err(UpdateError::Context(node)) => (7, Some(node)),
    };
    Ok((result, handle_in(&other, node)?, false))
}

fn update_failed() -> Outcome {
    refuse(GRAPH_EXEC_UPDATE_FAILURE, "the graphs differ in more than what nodes do")
}

driver_calls! {
    fn cuGraphInstantiate(
        to: Out<Handle>, graph: Handle, _error: Out<Handle>, _log: Out<c_char>, _bytes: usize,
    ) {
        instantiate(to, graph, 0)
    }

    fn cuGraphInstantiate_v2(
        to: Out<Handle>, graph: Handle, _error: Out<Handle>, _log: Out<c_char>, _bytes: usize,
    ) {
        instantiate(to, graph, 0)
    }

    fn cuGraphInstantiateWithFlags(to: Out<Handle>, graph: Handle, flags: u64) {
        instantiate(to, graph, flags)
    }

    #[per_thread(cuGraphInstantiateWithParams_ptsz)]
    fn cuGraphInstantiateWithParams(
        to: Out<Handle>, handle: Handle, parameters: Out<Instantiation>,
    ) {
        let (driver, graph) = (state::driver()?, graph(handle)?);
        to.require()?;
        let wanted = parameters.get()?;
        let done = |result| parameters.set(Instantiation { error_node: 0, result, ..wanted });
        done(RESULTS[0])?;
        check_flags(wanted.flags, AUTO_FREE | UPLOAD | DEVICE_LAUNCH | NODE_PRIORITY)?;
        if wanted.flags & UPLOAD != 0 {
            state::stream(wanted.upload)?.refuse_if_captured()?;
        }
        let made = Executable::new(&graph, wanted.flags);
        if matches!(made, Err(hwsim_machine::Error::InvalidValue(_))) {
            done(RESULTS[1])?;
        }
        to.set(driver.executables.add(made?))?;
        done(0)
    }

    fn cuGraphExecDestroy(handle: Handle) {
        // Launches that are under way keep what they need.
        state::driver()?.executables.remove(handle).map(drop)
    }

    fn cuGraphExecGetFlags(handle: Handle, flags: Out<u64>) {
        flags.set(executable(handle)?.flags)
    }

    #[per_thread(cuGraphLaunch_ptsz)]
    fn cuGraphLaunch(handle: Handle, stream: Handle) {
        let executable = executable(handle)?;
        Ok(state::stream(stream)?.launch_graph(&executable)?)
    }

    #[per_thread(cuGraphUpload_ptsz)]
    fn cuGraphUpload(handle: Handle, stream: Handle) {
        executable(handle)?;
        Ok(state::stream(stream)?.refuse_if_captured()?)
    }

    fn cuGraphExecUpdate(
        handle: Handle, graph: Handle, error_node: Out<Handle>, to: Out<c_uint>,
    ) {
        to.require()?;
        let (result, node, done) = update(handle, graph)?;
        error_node.set_if(node);
        to.set(result)?;
        if done { Ok(()) } else { update_failed() }
    }

    fn cuGraphExecUpdate_v2(handle: Handle, graph: Handle, to: Out<UpdateResult>) {
        to.require()?;
        let (result, error_node, done) = update(handle, graph)?;
        to.set(UpdateResult { result, error_node, error_from: 0 })?;
        if done { Ok(()) } else { update_failed() }
    }

    fn cuGraphExecKernelNodeSetParams(
        executable: Handle, node: Handle, parameters: In<KernelV1>,
    ) {
        set_to(executable, node, parameters)
    }

    fn cuGraphExecKernelNodeSetParams_v2(
        executable: Handle, node: Handle, parameters: In<Kernel>,
    ) {
        set_to(executable, node, parameters)
    }

    fn cuGraphExecMemcpyNodeSetParams(
        executable: Handle, node: Handle, parameters: In<Copy3d>, context: Handle,
    ) {
        require_context(context)?;
        set_to(executable, node, parameters)
    }

    fn cuGraphExecMemsetNodeSetParams(
        executable: Handle, node: Handle, parameters: In<Fill>, context: Handle,
    ) {
        require_context(context)?;
        set_to(executable, node, parameters)
    }

    fn cuGraphExecHostNodeSetParams(
        executable: Handle, node: Handle, parameters: In<HostCall>,
    ) {
        set_to(executable, node, parameters)
    }

    fn cuGraphExecBatchMemOpNodeSetParams(
        executable: Handle, node: Handle, parameters: In<Batch>,
    ) {
        set_to(executable, node, parameters)
    }

    fn cuGraphExecChildGraphNodeSetParams(executable: Handle, handle: Handle, child: Handle) {
        set(executable, &*node(handle)?, child_work(child)?)
    }

    fn cuGraphExecEventRecordNodeSetEvent(executable: Handle, handle: Handle, event: Handle) {
        set(executable, &*node(handle)?, record_work(event)?)
    }

    fn cuGraphExecEventWaitNodeSetEvent(executable: Handle, handle: Handle, event: Handle) {
        set(executable, &*node(handle)?, wait_work(event)?)
    }

    fn cuGraphNodeGetEnabled(handle: Handle, of: Handle, enabled: Out<c_uint>) {
        enabled.set(executable(handle)?.is_enabled(node(of)?.number)?.into())
    }

    fn cuGraphNodeSetEnabled(handle: Handle, of: Handle, enabled: c_uint) {
        Ok(executable(handle)?.enable(node(of)?.number, enabled != 0)?)
    }
}
