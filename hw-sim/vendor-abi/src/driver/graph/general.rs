//! Calls whose structure holds the parameters of any kind of node.

use super::nodes::{add, child_work, record_work, set, wait_work};
use super::parameters::{Batch, Copy3d, Fill, HostCall, Kernel, NodeParameters, require_context};
use super::{EdgeData, check_edges, conditional, executable, memory_nodes, node};
use crate::driver::call::{In, Out, driver_calls};
use crate::driver::code::{INVALID_VALUE, NOT_SUPPORTED, Outcome, refuse};
use crate::driver::handles::Handle;
use hwsim_machine::graph::Work;
use std::ffi::c_int;

/// Where the parameters of a kind begin in `CUgraphNodeParams`.
const UNION: u64 = 16;
/// Where a copy begins in `CUDA_MEMCPY_NODE_PARAMS`: after flags and context.
const COPY: u64 = 16;
/// Where the context is in `CUDA_MEMSET_NODE_PARAMS_v2`: after a fill as before.
const FILL_CONTEXT: u64 = 40;

/// `CU_GRAPH_NODE_TYPE_MEM_ALLOC`
const ALLOCATE: c_int = 10;
/// `CU_GRAPH_NODE_TYPE_CONDITIONAL`
const CONDITIONAL: c_int = 13;

/// What a `CUgraphNodeParams` says. It begins with the kind.
fn work(parameters: In<c_int>) -> Outcome<Work> {
    let (kind, base) = (parameters.get()?, parameters.address() + UNION);
    let handle = |offset| In::<Handle>::from_address(base + offset).get();
    match kind {
        0 => In::<Kernel>::from_address(base).get()?.work(),
        1 => {
            require_context(handle(8)?)?;
            In::<Copy3d>::from_address(base + COPY).get()?.work()
        }
        2 => {
            require_context(handle(FILL_CONTEXT)?)?;
            In::<Fill>::from_address(base).get()?.work()
        }
        3 => In::<HostCall>::from_address(base).get()?.work(),
        4 => child_work(handle(0)?),
        5 => Ok(Work::Empty),
        6 => wait_work(handle(0)?),
        7 => record_work(handle(0)?),
        8 | 9 => refuse(NOT_SUPPORTED, "nodes for external semaphores"),
        CONDITIONAL => refuse(NOT_SUPPORTED, "changing conditional nodes"),
        ALLOCATE => memory_nodes::refuse_change(),
        11 => memory_nodes::free_work(handle(0)?),
        12 => In::<Batch>::from_address(base).get()?.work(),
        _ => refuse(INVALID_VALUE, format!("a node of kind {kind}")),
    }
}

/// Adds a node of any kind. One that allocates, and a conditional one, write to its parameters.
fn add_any(
    to: Out<Handle>,
    graph: Handle,
    before: In<Handle>,
    count: usize,
    parameters: In<c_int>,
) -> Outcome {
    let written = parameters.address() + UNION;
    match parameters.get()? {
        ALLOCATE => {
            let parameters = Out::from_address(written);
            return memory_nodes::add_allocation(to, graph, before, count, parameters);
        }
        CONDITIONAL => {
            let parameters = Out::from_address(written);
            return conditional::add(to, graph, before, count, parameters);
        }
        _ => {}
    }
    add(to, graph, before, count, || work(parameters))
}

driver_calls! {
    fn cuGraphAddNode(
        to: Out<Handle>, graph: Handle, before: In<Handle>, count: usize, parameters: In<c_int>,
    ) {
        add_any(to, graph, before, count, parameters)
    }

    fn cuGraphAddNode_v2(
        to: Out<Handle>, graph: Handle, before: In<Handle>, data: In<EdgeData>, count: usize,
        parameters: In<c_int>,
    ) {
        check_edges(data, count)?;
        add_any(to, graph, before, count, parameters)
    }

    fn cuGraphNodeSetParams(handle: Handle, parameters: In<c_int>) {
        set(handle, work(parameters)?)
    }

    fn cuGraphExecNodeSetParams(executable: Handle, handle: Handle, parameters: In<c_int>) {
        executable::set(executable, &*node(handle)?, work(parameters)?)
    }
}
