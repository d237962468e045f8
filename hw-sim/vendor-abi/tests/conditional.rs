//! Conditional nodes of graphs: their graphs run as often as kernels say.

mod common;
#[path = "common/graph.rs"]
mod graph;
#[path = "common/profile.rs"]
mod profile;
#[path = "common/ptx.rs"]
mod ptx;

use common::{context, device_memory, kernel, on_machine};
use cudarc::driver::sys::{self, CUgraph, CUgraphNode};
use graph::{KernelNode, add_count, executable, kind, load, new_graph, nodes, run};
use profile::word;
use std::ptr::{null, null_mut};

/// `set(handle, value)`; `count_down(handle, address)`: takes 1 from a word, and the condition is
/// what is left. The function is declared as CUDA's headers do.
const SET: &str = "
.version 8.4
.target sm_70
.address_size 64
.extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);
.visible .entry set(.param .u64 handle, .param .u64 value)
{
    .reg .b64 %rd<3>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [handle];
    ld.param.u32 %r1, [value];
    { .param .b64 a; .param .b32 b;
      st.param.b64 [a], %rd1;
      st.param.b32 [b], %r1;
      call.uni cudaGraphSetConditional, (a, b); }
    ret;
}
.visible .entry count_down(.param .u64 handle, .param .u64 address)
{
    .reg .b64 %rd<3>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [handle];
    ld.param.u64 %rd2, [address];
    ld.global.u32 %r1, [%rd2];
    sub.u32 %r1, %r1, 1;
    st.global.u32 [%rd2], %r1;
    { .param .b64 a; .param .b32 b;
      st.param.b64 [a], %rd1;
      st.param.b32 [b], %r1;
      call.uni cudaGraphSetConditional, (a, b); }
    ret;
}
";

const IF: u64 = 0;
const WHILE: u64 = 1;
const SWITCH: u64 = 2;

/// `CUgraphNodeParams` of a conditional node.
fn parameters(handle: u64, kind: u64, size: u64) -> [u64; 32] {
    let mut words = [0; 32];
    (words[0], words[2], words[3]) = (13, handle, kind | size << 32);
    words
}

fn condition(graph: CUgraph, default: Option<u32>) -> u64 {
    let mut handle = 0;
    let (value, flags) = (default.unwrap_or(0), default.is_some().into());
    ok!(cuGraphConditionalHandleCreate(&mut handle, graph, null_mut(), value, flags));
    handle
}

/// Adds a conditional node: it, and its graphs.
fn add(
    graph: CUgraph,
    handle: u64,
    (kind, size): (u64, u64),
    after: &[CUgraphNode],
) -> (CUgraphNode, Vec<CUgraph>) {
    let (mut node, mut words) = (null_mut(), parameters(handle, kind, size));
    ok!(cuGraphAddNode(&mut node, graph, after.as_ptr(), after.len(), words.as_mut_ptr().cast()));
    let graphs = words[4] as *const CUgraph;
    // SAFETY: the driver's array is as long as the node has graphs.
    let graphs = (0..size as usize).map(|index| unsafe { graphs.add(index).read() });
    (node, graphs.collect())
}

fn set(graph: CUgraph, handle: u64, value: u64) -> CUgraphNode {
    KernelNode::new(kernel(SET, "set"), &[handle, value]).add(graph, &[])
}

/// If this fails, a branch of a graph runs that should not, or another one.
#[test]
fn kernels_choose_what_runs() {
    on_machine("kernels_choose_what_runs", "one-gpu", || {
        context(0);
        for ((kind, size), value, expected) in [
            ((IF, 1), 0, [0, 0]),
            ((IF, 1), 7, [1, 0]),
            ((IF, 2), 0, [0, 1]),
            ((IF, 2), 1, [1, 0]),
            ((SWITCH, 2), 0, [1, 0]),
            ((SWITCH, 2), 1, [0, 1]),
            ((SWITCH, 2), 2, [0, 0]),
        ] {
            let (graph, seen, behind) = (new_graph(), [word(), word()], word());
            let handle = condition(graph, None);
            let first = set(graph, handle, value);
            let (node, bodies) = add(graph, handle, (kind, size), &[first]);
            assert_eq!(graph::kind(node), 13);
            for (body, seen) in bodies.iter().zip(&seen) {
                add_count(*body, seen, 1, &[]);
            }
            add_count(graph, behind, 1, &[node]);
            run(executable(graph), 3);
            let seen = seen.map(load).map(|count| count / 3);
            assert_eq!(seen, expected, "kind {kind} of {size}, value {value}");
            assert_eq!(load(behind), 3);
        }
    });
}

/// If this fails, loops end early, late or never, or a launch has the defaults of an earlier one.
#[test]
fn loops_go_on_until_a_kernel_ends_them() {
    on_machine("loops_go_on_until_a_kernel_ends_them", "one-gpu", || {
        context(0);
        let (graph, left, turns) = (new_graph(), device_memory(4), word());
        let handle = condition(graph, Some(1));
        let (_, bodies) = add(graph, handle, (WHILE, 1), &[]);
        let down = KernelNode::new(kernel(SET, "count_down"), &[handle, left]).add(bodies[0], &[]);
        // In the loop, a branch, taken each time: each start of its graph sets its default.
        let inner = condition(bodies[0], Some(1));
        let (node, inner) = add(bodies[0], inner, (IF, 1), &[down]);
        add_count(inner[0], turns, 1, &[]);
        let executable = executable(graph);
        // The graph may go before what was made of it.
        assert_eq!(nodes(bodies[0]).len(), 2);
        assert_eq!(kind(node), 13);
        ok!(cuGraphDestroy(graph));
        refused!(CUDA_ERROR_INVALID_HANDLE: cuGraphDestroy(bodies[0]));
        for (start, expected) in [(5, 5), (100, 105), (1, 106)] {
            ok!(cuMemsetD32_v2(left, start, 1));
            run(executable, 1);
            assert_eq!(load(turns), expected);
        }
    });
}

#[test]
fn wrong_conditions_are_refused() {
    on_machine("wrong_conditions_are_refused", "one-gpu", || {
        context(0);
        let (graph, other, mut node, mut handle) = (new_graph(), new_graph(), null_mut(), 0);
        refused!(CUDA_ERROR_INVALID_VALUE:
            cuGraphConditionalHandleCreate(&mut handle, graph, null_mut(), 0, 2));
        refused!(CUDA_ERROR_INVALID_VALUE:
            cuGraphConditionalHandleCreate(null_mut(), graph, null_mut(), 0, 0));
        let handle = condition(graph, None);
        for (graph, handle, kind, size) in [
            (graph, handle, IF, 0),
            (graph, handle, IF, 3),
            (graph, handle, WHILE, 2),
            (graph, handle, SWITCH, u64::from(u32::MAX)),
            (graph, handle, 3, 1),
            (graph, 0, IF, 1),
            (graph, handle + 4, IF, 1),
            (other, handle, IF, 1),
        ] {
            let mut words = parameters(handle, kind, size);
            refused!(CUDA_ERROR_INVALID_VALUE:
                cuGraphAddNode(&mut node, graph, null(), 0, words.as_mut_ptr().cast()));
        }
        // A GPU calls no function of the host by itself.
        let (_, bodies) = add(graph, handle, (IF, 1), &[]);
        let mut words = [0u64; 32];
        words[0] = 3;
        words[2] = graph::count_host_call as *const () as u64;
        let address = word().as_ptr() as u64;
        words[3] = address;
        ok!(cuGraphAddNode(&mut node, bodies[0], null(), 0, words.as_mut_ptr().cast()));
        let mut executable = null_mut();
        refused!(CUDA_ERROR_NOT_SUPPORTED:
            cuGraphInstantiateWithFlags(&mut executable, graph, 0));
    });
}

/// A loop that nobody ends is the program's fault, and must not keep its context from going.
#[test]
fn an_endless_loop_ends_with_its_context() {
    on_machine("an_endless_loop_ends_with_its_context", "one-gpu", || {
        for empty in [true, false] {
            context(0);
            let (graph, begun, mut queue) = (new_graph(), word(), null_mut());
            let handle = condition(graph, Some(1));
            let (_, bodies) = add(graph, handle, (WHILE, 1), &[]);
            if !empty {
                add_count(bodies[0], begun, 1, &[]);
            }
            ok!(cuStreamCreate(&mut queue, 1));
            ok!(cuGraphLaunch(executable(graph), queue));
            let busy = sys::CUresult::CUDA_ERROR_NOT_READY;
            // SAFETY: the stream was made above.
            assert_eq!(unsafe { sys::cuStreamQuery(queue) }, busy);
            if !empty {
                common::eventually("a turn", || load(begun) > 3);
            }
            ok!(cuDevicePrimaryCtxReset_v2(0));
        }
    });
}
