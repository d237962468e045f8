//! Graphs. Handles and most structures are the driver's, so that calls pass through as far as the
//! driver has them.

use crate::call::{In, Out, Stream, runtime_calls, stream};
use crate::driver::{self, Handle};
use crate::error::Outcome;
use crate::registry::{function, host_of};
use crate::state;
use crate::{Interface, interface};
use std::ffi::{c_char, c_int, c_uint};

/// `cudaKernelNodeParams`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct KernelNode {
    host: u64,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    arguments: u64,
    extra: u64,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct DriverKernelNode {
    function: Handle,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    arguments: u64,
    extra: u64,
    kernel: Handle,
    context: Handle,
}

/// `CUDA_MEMSET_NODE_PARAMS`, which is also `cudaMemsetParams`.
type FillNode = u64;

const _: () = assert!(size_of::<KernelNode>() == 56 && size_of::<DriverKernelNode>() == 72);

impl KernelNode {
    pub fn to_driver(self) -> Outcome<DriverKernelNode> {
        let Self { host, grid, block, shared_bytes, arguments, extra } = self;
        let function = function(host)?;
        let (kernel, context) = (0, 0);
        Ok(DriverKernelNode {
            function,
            grid,
            block,
            shared_bytes,
            arguments,
            extra,
            kernel,
            context,
        })
    }
}

/// The context of the thread's device, which nodes of fills and copies want named.
pub(crate) fn context() -> Outcome<Handle> {
    state::primary(state::device()?)
}

/// Calls that are the driver's own, by another name.
macro_rules! pass_through {
    ($(fn $name:ident = $driver:ident($($argument:ident: $ty:ty),* $(,)?);)*) => {
        runtime_calls! {
            with device_call;
            $(fn $name($($argument: $ty),*) { driver::$driver($($argument),*) })*
        }
    };
}

pass_through! {
    fn cudaGraphCreate = cuGraphCreate(graph: Out<Handle>, flags: c_uint);
    fn cudaGraphDestroy = cuGraphDestroy(graph: Handle);
    fn cudaGraphClone = cuGraphClone(clone: Out<Handle>, graph: Handle);
    fn cudaGraphNodeFindInClone =
        cuGraphNodeFindInClone(node: Out<Handle>, original: Handle, clone: Handle);
    fn cudaGraphDebugDotPrint =
        cuGraphDebugDotPrint(graph: Handle, path: In<c_char>, flags: c_uint);
    fn cudaGraphGetNodes = cuGraphGetNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>);
    fn cudaGraphGetRootNodes =
        cuGraphGetRootNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>);
    fn cudaGraphDestroyNode = cuGraphDestroyNode(node: Handle);
    fn cudaGraphNodeGetType = cuGraphNodeGetType(node: Handle, kind: Out<c_int>);
    fn cudaGraphAddEmptyNode =
        cuGraphAddEmptyNode(node: Out<Handle>, graph: Handle, before: u64, count: usize);
    fn cudaGraphAddChildGraphNode = cuGraphAddChildGraphNode(
        node: Out<Handle>, graph: Handle, before: u64, count: usize, child: Handle,
    );
    fn cudaGraphChildGraphNodeGetGraph =
        cuGraphChildGraphNodeGetGraph(node: Handle, graph: Out<Handle>);
    fn cudaGraphAddHostNode = cuGraphAddHostNode(
        node: Out<Handle>, graph: Handle, before: u64, count: usize, parameters: u64,
    );
    fn cudaGraphHostNodeGetParams = cuGraphHostNodeGetParams(node: Handle, parameters: u64);
    fn cudaGraphHostNodeSetParams = cuGraphHostNodeSetParams(node: Handle, parameters: u64);
    fn cudaGraphAddEventRecordNode = cuGraphAddEventRecordNode(
        node: Out<Handle>, graph: Handle, before: u64, count: usize, event: Handle,
    );
    fn cudaGraphAddEventWaitNode = cuGraphAddEventWaitNode(
        node: Out<Handle>, graph: Handle, before: u64, count: usize, event: Handle,
    );
    fn cudaGraphEventRecordNodeGetEvent =
        cuGraphEventRecordNodeGetEvent(node: Handle, event: Out<Handle>);
    fn cudaGraphEventRecordNodeSetEvent =
        cuGraphEventRecordNodeSetEvent(node: Handle, event: Handle);
    fn cudaGraphEventWaitNodeGetEvent =
        cuGraphEventWaitNodeGetEvent(node: Handle, event: Out<Handle>);
    fn cudaGraphEventWaitNodeSetEvent =
        cuGraphEventWaitNodeSetEvent(node: Handle, event: Handle);
    fn cudaGraphMemsetNodeGetParams = cuGraphMemsetNodeGetParams(node: Handle, fill: u64);
    fn cudaGraphMemsetNodeSetParams = cuGraphMemsetNodeSetParams(node: Handle, fill: u64);
    fn cudaGraphKernelNodeCopyAttributes =
        cuGraphKernelNodeCopyAttributes(to: Handle, from: Handle);
    fn cudaGraphKernelNodeGetAttribute =
        cuGraphKernelNodeGetAttribute(node: Handle, attribute: c_int, value: u64);
    fn cudaGraphKernelNodeSetAttribute =
        cuGraphKernelNodeSetAttribute(node: Handle, attribute: c_int, value: u64);
    fn cudaGraphExecDestroy = cuGraphExecDestroy(executable: Handle);
    fn cudaGraphExecUpdate =
        cuGraphExecUpdate_v2(executable: Handle, graph: Handle, result: u64);
    fn cudaGraphExecGetFlags = cuGraphExecGetFlags(executable: Handle, flags: Out<u64>);
    fn cudaGraphExecHostNodeSetParams =
        cuGraphExecHostNodeSetParams(executable: Handle, node: Handle, parameters: u64);
    fn cudaGraphExecChildGraphNodeSetParams =
        cuGraphExecChildGraphNodeSetParams(executable: Handle, node: Handle, child: Handle);
    fn cudaGraphExecEventRecordNodeSetEvent =
        cuGraphExecEventRecordNodeSetEvent(executable: Handle, node: Handle, event: Handle);
    fn cudaGraphExecEventWaitNodeSetEvent =
        cuGraphExecEventWaitNodeSetEvent(executable: Handle, node: Handle, event: Handle);
    fn cudaGraphNodeGetEnabled =
        cuGraphNodeGetEnabled(executable: Handle, node: Handle, enabled: Out<c_uint>);
    fn cudaGraphNodeSetEnabled =
        cuGraphNodeSetEnabled(executable: Handle, node: Handle, enabled: c_uint);
    fn cudaDeviceGraphMemTrim = cuDeviceGraphMemTrim(device: c_int);
    fn cudaUserObjectCreate = cuUserObjectCreate(
        object: Out<Handle>, data: u64, destroy: u64, references: c_uint, flags: c_uint,
    );
    fn cudaUserObjectRetain = cuUserObjectRetain(object: Handle, references: c_uint);
    fn cudaUserObjectRelease = cuUserObjectRelease(object: Handle, references: c_uint);
    fn cudaGraphRetainUserObject =
        cuGraphRetainUserObject(graph: Handle, object: Handle, references: c_uint, flags: c_uint);
    fn cudaGraphReleaseUserObject =
        cuGraphReleaseUserObject(graph: Handle, object: Handle, references: c_uint);
}

runtime_calls! {
    with device_call;

    fn cudaGraphInstantiate(executable: Out<Handle>, graph: Handle, flags: u64) {
        driver::cuGraphInstantiateWithFlags(executable, graph, flags)
    }

    fn cudaGraphInstantiateWithFlags(executable: Out<Handle>, graph: Handle, flags: u64) {
        driver::cuGraphInstantiateWithFlags(executable, graph, flags)
    }

    #[twin(cudaGraphInstantiateWithParams_ptsz)]
    fn cudaGraphInstantiateWithParams(executable: Out<Handle>, graph: Handle, parameters: u64) {
        driver::cuGraphInstantiateWithParams(executable, graph, parameters)
    }

    #[twin(cudaGraphLaunch_ptsz)]
    fn cudaGraphLaunch(executable: Handle, on: Stream) {
        driver::cuGraphLaunch(executable, stream(on))
    }

    #[twin(cudaGraphUpload_ptsz)]
    fn cudaGraphUpload(executable: Handle, on: Stream) {
        driver::cuGraphUpload(executable, stream(on))
    }

    fn cudaGraphAddKernelNode(
        node: Out<Handle>, graph: Handle, before: u64, count: usize, parameters: In<KernelNode>,
    ) {
        let parameters = parameters.get()?.to_driver()?;
        driver::cuGraphAddKernelNode_v2(node, graph, before, count, In::of(&parameters))
    }

    fn cudaGraphKernelNodeGetParams(node: Handle, to: Out<KernelNode>) {
        let mut read = DriverKernelNode::default();
        to.require()?;
        driver::cuGraphKernelNodeGetParams_v2(node, Out::to(&mut read))?;
        let DriverKernelNode { function, grid, block, shared_bytes, arguments, extra, .. } = read;
        let host = host_of(function)?;
        to.set(KernelNode { host, grid, block, shared_bytes, arguments, extra })
    }

    fn cudaGraphKernelNodeSetParams(node: Handle, parameters: In<KernelNode>) {
        driver::cuGraphKernelNodeSetParams_v2(node, In::of(&parameters.get()?.to_driver()?))
    }

    fn cudaGraphExecKernelNodeSetParams(
        executable: Handle, node: Handle, parameters: In<KernelNode>,
    ) {
        let parameters = parameters.get()?.to_driver()?;
        driver::cuGraphExecKernelNodeSetParams_v2(executable, node, In::of(&parameters))
    }

    fn cudaGraphAddMemsetNode(
        node: Out<Handle>, graph: Handle, before: u64, count: usize, fill: FillNode,
    ) {
        driver::cuGraphAddMemsetNode(node, graph, before, count, fill, context()?)
    }

    fn cudaGraphExecMemsetNodeSetParams(executable: Handle, node: Handle, fill: FillNode) {
        driver::cuGraphExecMemsetNodeSetParams(executable, node, fill, context()?)
    }

    fn cudaGraphAddDependencies(
        graph: Handle, from: u64, to: u64, fourth: u64, count: usize,
    ) {
        match interface() {
            Interface::V12 => driver::cuGraphAddDependencies(graph, from, to, fourth as usize),
            Interface::V13 => driver::cuGraphAddDependencies_v2(graph, from, to, fourth, count),
        }
    }

    fn cudaGraphAddDependencies_v2(graph: Handle, from: u64, to: u64, edges: u64, count: usize) {
        driver::cuGraphAddDependencies_v2(graph, from, to, edges, count)
    }

    fn cudaGraphRemoveDependencies(
        graph: Handle, from: u64, to: u64, fourth: u64, count: usize,
    ) {
        match interface() {
            Interface::V12 => driver::cuGraphRemoveDependencies(graph, from, to, fourth as usize),
            Interface::V13 => driver::cuGraphRemoveDependencies_v2(graph, from, to, fourth, count),
        }
    }

    fn cudaGraphGetEdges(graph: Handle, from: u64, to: u64, fourth: u64, fifth: u64) {
        match interface() {
            Interface::V12 => driver::cuGraphGetEdges(graph, from, to, fourth),
            Interface::V13 => driver::cuGraphGetEdges_v2(graph, from, to, fourth, fifth),
        }
    }

    fn cudaGraphGetEdges_v2(graph: Handle, from: u64, to: u64, edges: u64, count: u64) {
        driver::cuGraphGetEdges_v2(graph, from, to, edges, count)
    }

    fn cudaGraphRemoveDependencies_v2(
        graph: Handle, from: u64, to: u64, edges: u64, count: usize,
    ) {
        driver::cuGraphRemoveDependencies_v2(graph, from, to, edges, count)
    }

    fn cudaGraphNodeGetDependencies(node: Handle, to: u64, third: u64, fourth: u64) {
        match interface() {
            Interface::V12 => driver::cuGraphNodeGetDependencies(node, to, third),
            Interface::V13 => driver::cuGraphNodeGetDependencies_v2(node, to, third, fourth),
        }
    }

    fn cudaGraphNodeGetDependencies_v2(node: Handle, to: u64, edges: u64, count: u64) {
        driver::cuGraphNodeGetDependencies_v2(node, to, edges, count)
    }

    fn cudaGraphNodeGetDependentNodes(node: Handle, to: u64, third: u64, fourth: u64) {
        match interface() {
            Interface::V12 => driver::cuGraphNodeGetDependentNodes(node, to, third),
            Interface::V13 => driver::cuGraphNodeGetDependentNodes_v2(node, to, third, fourth),
        }
    }

    fn cudaGraphNodeGetDependentNodes_v2(node: Handle, to: u64, edges: u64, count: u64) {
        driver::cuGraphNodeGetDependentNodes_v2(node, to, edges, count)
    }
}
