//! Memory of graphs: nodes that allocate and free, and stream-ordered allocation in a capture.

mod common;
#[path = "common/graph.rs"]
mod graph;
#[path = "common/profile.rs"]
mod profile;
#[path = "common/ptx.rs"]
mod ptx;

use common::{context, device_memory, on_machine, pinned, stream};
use cudarc::driver::sys::CUDA_MEM_ALLOC_NODE_PARAMS_v1 as V1;
use cudarc::driver::sys::CUDA_MEM_ALLOC_NODE_PARAMS_v2 as V2;
use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUgraphNode};
use graph::{captured, executable, kind, new_graph, nodes};
use std::ptr::{null, null_mut};

const BYTES: usize = 1 << 20;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`
const AUTO_FREE: u64 = 1;

fn parameters(bytes: usize) -> sys::CUDA_MEM_ALLOC_NODE_PARAMS {
    // SAFETY: a C structure of numbers and addresses.
    let mut wanted: sys::CUDA_MEM_ALLOC_NODE_PARAMS = unsafe { std::mem::zeroed() };
    wanted.poolProps.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.poolProps.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.bytesize = bytes;
    wanted
}

/// A node that allocates, and its address.
fn add_allocation(graph: CUgraph, after: &[CUgraphNode]) -> (CUgraphNode, u64) {
    let (mut node, mut wanted) = (null_mut(), parameters(BYTES));
    let before = after.as_ptr();
    ok!(cuGraphAddMemAllocNode(&mut node, graph, before, after.len(), &mut wanted));
    assert_ne!(wanted.dptr, 0);
    (node, wanted.dptr)
}

fn add_fill(graph: CUgraph, after: &[CUgraphNode], address: u64, value: u32) -> CUgraphNode {
    let (mut node, mut context) = (null_mut(), null_mut());
    ok!(cuCtxGetCurrent(&mut context));
    let fill = sys::CUDA_MEMSET_NODE_PARAMS {
        dst: address,
        pitch: 0,
        value,
        elementSize: 4,
        width: BYTES / 4,
        height: 1,
    };
    let before = after.as_ptr();
    ok!(cuGraphAddMemsetNode(&mut node, graph, before, after.len(), &fill, context));
    node
}

fn add_free(graph: CUgraph, after: &[CUgraphNode], address: u64) -> CUgraphNode {
    let mut node = null_mut();
    ok!(cuGraphAddMemFreeNode(&mut node, graph, after.as_ptr(), after.len(), address));
    node
}

fn free_memory() -> usize {
    let (mut free, mut total) = (0, 0);
    ok!(cuMemGetInfo_v2(&mut free, &mut total));
    free
}

/// Bytes behind the graphs of device 0: now, and at most.
fn used() -> [u64; 2] {
    use sys::CUgraphMem_attribute::*;
    [CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH].map(|attribute| {
        let mut value = 0u64;
        ok!(cuDeviceGetGraphMemAttribute(0, attribute, (&raw mut value).cast()));
        value
    })
}

fn word_at(address: u64) -> u32 {
    let mut seen = 0u32;
    ok!(cuMemcpyDtoH_v2((&raw mut seen).cast(), address, 4));
    seen
}

fn launch(executable: CUgraphExec, queue: sys::CUstream) -> u32 {
    // SAFETY: both handles are valid.
    unsafe { sys::cuGraphLaunch(executable, queue) as u32 }
}

#[test]
fn a_captured_allocation_lives_from_its_node_to_the_node_that_frees_it() {
    let test = "a_captured_allocation_lives_from_its_node_to_the_node_that_frees_it";
    on_machine(test, "one-gpu", || {
        context(0);
        let (queue, seen, before) = (stream(), pinned(64), free_memory());
        let mut address = 0;
        let graph = captured(queue, || {
            ok!(cuMemAllocAsync(&mut address, BYTES, queue));
            ok!(cuMemsetD32Async(address, 42, BYTES / 4, queue));
            ok!(cuMemcpyDtoHAsync_v2(seen.cast(), address + BYTES as u64 - 64, 64, queue));
            ok!(cuMemFreeAsync(address, queue));
        });
        let kinds: Vec<u32> = nodes(graph).into_iter().map(kind).collect();
        assert_eq!(kinds, [10, 2, 1, 11]);
        assert_eq!(free_memory(), before, "addresses alone take no memory");
        let executable = executable(graph);
        for round in 0..3 {
            // SAFETY: pinned memory of 64 bytes that nothing uses now.
            unsafe { seen.write_bytes(0, 64) };
            assert_eq!(launch(executable, queue), 0);
            ok!(cuStreamSynchronize(queue));
            // SAFETY: as above.
            assert_eq!(unsafe { *seen.cast::<u32>() }, 42, "round {round}");
            assert_eq!((free_memory(), used()), (before, [0, BYTES as u64]));
        }
        // It is the graph's alone.
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemFreeAsync(address, queue));
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemFree_v2(address));
        ok!(cuGraphExecDestroy(executable));
        ok!(cuGraphDestroy(graph));
        // Now the addresses are free for others.
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemFreeAsync(address, queue));
        ok!(cuMemFree_v2(device_memory(BYTES)));
    });
}

#[test]
fn what_a_graph_does_not_free_is_the_programs_until_it_does() {
    on_machine("what_a_graph_does_not_free_is_the_programs_until_it_does", "one-gpu", || {
        context(0);
        let (graph, queue, before) = (new_graph(), stream(), free_memory());
        let (allocation, address) = add_allocation(graph, &[]);
        add_fill(graph, &[allocation], address, 7);
        let first = executable(graph);
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemFreeAsync(address, queue));
        assert_eq!(launch(first, queue), 0);
        ok!(cuStreamSynchronize(queue));
        assert_eq!((word_at(address), used()[0]), (7, BYTES as u64));
        assert_eq!(free_memory(), before - BYTES);
        let again = launch(first, queue);
        assert_eq!(again, sys::CUresult::CUDA_ERROR_INVALID_VALUE as u32, "it is there still");
        ok!(cuMemFreeAsync(address, queue));
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemFreeAsync(address, queue));
        // In order, with no wait between: each launch finds it freed.
        for _ in 0..3 {
            assert_eq!(launch(first, queue), 0);
            ok!(cuMemsetD32Async(address, 9, 1, queue));
            ok!(cuMemFreeAsync(address, queue));
        }
        assert_eq!(launch(first, queue), 0);
        ok!(cuMemFree_v2(address));
        assert_eq!((free_memory(), used()[0]), (before, 0));
        // The graph may go before its memory.
        assert_eq!(launch(first, queue), 0);
        ok!(cuStreamSynchronize(queue));
        ok!(cuGraphExecDestroy(first));
        let (mut second, free) = (null_mut(), AUTO_FREE);
        ok!(cuGraphInstantiateWithFlags(&mut second, graph, free));
        for _ in 0..3 {
            assert_eq!(launch(second, queue), 0, "each launch frees what is there");
        }
        ok!(cuGraphExecDestroy(second));
        ok!(cuGraphDestroy(graph));
        ok!(cuStreamSynchronize(queue));
        assert_eq!((word_at(address), free_memory()), (7, before - BYTES));
        ok!(cuMemFreeAsync(address, queue));
        ok!(cuStreamSynchronize(queue));
        assert_eq!(free_memory(), before);
        ok!(cuCtxSynchronize());
    });
}

#[test]
fn another_graph_can_free_it() {
    on_machine("another_graph_can_free_it", "one-gpu", || {
        context(0);
        let (maker, user, queue, before) = (new_graph(), new_graph(), stream(), free_memory());
        let (_, address) = add_allocation(maker, &[]);
        let fill = add_fill(user, &[], address, 5);
        add_free(user, &[fill], address);
        let mut node = null_mut();
        refused!(CUDA_ERROR_INVALID_VALUE:
            cuGraphAddMemFreeNode(&mut node, user, null(), 0, address));
        refused!(CUDA_ERROR_INVALID_VALUE:
            cuGraphAddMemFreeNode(&mut node, maker, null(), 0, address));
        let (make, use_it) = (executable(maker), executable(user));
        let invalid = sys::CUresult::CUDA_ERROR_INVALID_VALUE as u32;
        assert_eq!(launch(use_it, queue), invalid, "there is nothing to free");
        for _ in 0..3 {
            assert_eq!(launch(make, queue), 0);
            assert_eq!(launch(use_it, queue), 0);
        }
        assert_eq!(launch(use_it, queue), invalid);
        ok!(cuStreamSynchronize(queue));
        assert_eq!(free_memory(), before);
    });
}

#[test]
fn what_graphs_with_memory_cannot_do_is_refused() {
    on_machine("what_graphs_with_memory_cannot_do_is_refused", "one-gpu", || {
        context(0);
        let (graph, parent) = (new_graph(), new_graph());
        let (allocation, address) = add_allocation(graph, &[]);
        let fill = add_fill(graph, &[allocation], address, 1);
        let free = add_free(graph, &[fill], address);
        let (mut other, mut node) = (null_mut(), null_mut());
        refused!(CUDA_ERROR_INVALID_VALUE: cuGraphClone(&mut other, graph));
        refused!(CUDA_ERROR_INVALID_VALUE:
            cuGraphAddChildGraphNode(&mut node, parent, null(), 0, graph));
        refused!(CUDA_ERROR_INVALID_VALUE: cuGraphDestroyNode(fill));
        refused!(CUDA_ERROR_INVALID_VALUE: cuGraphRemoveDependencies(graph, &fill, &free, 1));
        refused!(CUDA_ERROR_INVALID_VALUE:
            cuGraphAddMemFreeNode(&mut node, graph, null(), 0, address));
        let elsewhere = device_memory(64);
        refused!(CUDA_ERROR_INVALID_VALUE:
            cuGraphAddMemFreeNode(&mut node, graph, null(), 0, elsewhere));
        let mut nothing = parameters(0);
        refused!(CUDA_ERROR_INVALID_VALUE:
            cuGraphAddMemAllocNode(&mut node, graph, null(), 0, &mut nothing));
        let mut much = parameters(1 << 50);
        refused!(CUDA_ERROR_OUT_OF_MEMORY:
            cuGraphAddMemAllocNode(&mut node, graph, null(), 0, &mut much));
        let first = executable(graph);
        let mut second = null_mut();
        refused!(CUDA_ERROR_INVALID_VALUE: cuGraphInstantiateWithFlags(&mut second, graph, 0));
        ok!(cuGraphExecDestroy(first));
        let again = executable(graph);
        // Parameters can be read.
        let (mut seen, mut freed) = (parameters(1), 0);
        ok!(cuGraphMemAllocNodeGetParams(allocation, &mut seen));
        ok!(cuGraphMemFreeNodeGetParams(free, &mut freed));
        assert_eq!((seen.bytesize, seen.dptr, freed), (BYTES, address, address));
        refused!(CUDA_ERROR_INVALID_VALUE: cuGraphMemFreeNodeGetParams(allocation, &mut freed));
        // An update with the same graph changes nothing; other memory is refused.
        let mut result = sys::CUgraphExecUpdateResultInfo {
            result: sys::CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_SUCCESS,
            errorNode: null_mut(),
            errorFromNode: null_mut(),
        };
        ok!(cuGraphExecUpdate_v2(again, graph, &mut result));
        let like = new_graph();
        let (allocation, address) = add_allocation(like, &[]);
        let fill = add_fill(like, &[allocation], address, 1);
        add_free(like, &[fill], address);
        refused!(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE:
            cuGraphExecUpdate_v2(again, like, &mut result));
        assert_eq!(result.result as u32, 5, "parameters changed");
    });
}

/// The call for nodes of any kind writes the address, too.
#[test]
fn the_general_call_adds_nodes_of_memory() {
    on_machine("the_general_call_adds_nodes_of_memory", "one-gpu", || {
        context(0);
        let (graph, queue, before) = (new_graph(), stream(), free_memory());
        // SAFETY: a C structure of numbers and addresses.
        let mut any: sys::CUgraphNodeParams = unsafe { std::mem::zeroed() };
        any.type_ = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC;
        let wanted = parameters(BYTES);
        // SAFETY: both versions of the structure are laid out alike.
        any.__bindgen_anon_1.alloc = unsafe { std::mem::transmute::<V1, V2>(wanted) };
        let (mut allocation, mut free) = (null_mut(), null_mut());
        ok!(cuGraphAddNode(&mut allocation, graph, null(), 0, &mut any));
        // SAFETY: the field that was set above.
        let address = unsafe { any.__bindgen_anon_1.alloc.dptr };
        assert_ne!(address, 0);
        any.type_ = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE;
        any.__bindgen_anon_1.free.dptr = address;
        ok!(cuGraphAddNode(&mut free, graph, &allocation, 1, &mut any));
        assert_eq!([allocation, free].map(kind), [10, 11]);
        let executable = executable(graph);
        for _ in 0..2 {
            assert_eq!(launch(executable, queue), 0);
        }
        ok!(cuStreamSynchronize(queue));
        assert_eq!(free_memory(), before);
    });
}
