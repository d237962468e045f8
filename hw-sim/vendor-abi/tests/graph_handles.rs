//! Graphs whose handles are stale, of another graph, or used in an order that makes no sense: an
//! error code, and never a crash.

mod common;
#[path = "common/graph.rs"]
mod graph;
#[path = "common/profile.rs"]
mod profile;
#[path = "common/ptx.rs"]
mod ptx;

use common::{context, eventually, kernel, launch, on_machine, stream};
use cudarc::driver::sys::CUstreamCaptureMode_enum as Mode;
use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUgraphNode, CUstream};
use graph::{
    KernelNode, add_count, count_host_call, count_kernel, executable, load, new_graph, run,
};
use profile::{address, word};
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering;

/// If this fails, a graph of which nothing can start is launched and never ends.
#[test]
fn edges_that_make_no_graph_are_refused() {
    on_machine("edges_that_make_no_graph_are_refused", "one-gpu", || {
        context(0);
        let (graph, other, word) = (new_graph(), new_graph(), word());
        let a = add_count(graph, word, 1, &[]);
        let b = add_count(graph, word, 1, &[a]);
        let foreign = add_count(other, word, 1, &[]);
        refused!(CUDA_ERROR_INVALID_VALUE: cuGraphAddDependencies(graph, &a, &a, 1));
        refused!(CUDA_ERROR_INVALID_VALUE: cuGraphAddDependencies(graph, &a, &b, 1));
        refused!(CUDA_ERROR_INVALID_VALUE: cuGraphAddDependencies(graph, &a, &foreign, 1));
        refused!(CUDA_ERROR_INVALID_VALUE: cuGraphRemoveDependencies(graph, &b, &a, 1));
        refused!(CUDA_ERROR_INVALID_VALUE: cuGraphAddDependencies(graph, null(), &b, 1));
        let (mut node, twice) = (null_mut(), [a, a]);
        refused!(
            CUDA_ERROR_INVALID_VALUE: cuGraphAddEmptyNode(&mut node, graph, twice.as_ptr(), 2)
        );
        ok!(cuGraphAddDependencies(graph, &b, &a, 1));
        let mut executable = null_mut();
        refused!(
            CUDA_ERROR_INVALID_VALUE: cuGraphInstantiateWithFlags(&mut executable, graph, 0)
        );
        // SAFETY: numbers and handles, for which zero is a value.
        let mut parameters: sys::CUDA_GRAPH_INSTANTIATE_PARAMS = unsafe { std::mem::zeroed() };
        refused!(
            CUDA_ERROR_INVALID_VALUE:
            cuGraphInstantiateWithParams(&mut executable, graph, &mut parameters)
        );
        assert_eq!(parameters.result_out as u32, 2, "CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE");
        let (mut from, mut to, mut count) = ([null_mut(); 4], [null_mut(); 4], 4);
        ok!(cuGraphGetEdges(graph, from.as_mut_ptr(), to.as_mut_ptr(), &mut count));
        assert_eq!((count, from[..2] == [b, a], to[..2] == [a, b]), (2, true, true));
        assert!(from[2].is_null(), "what there is no edge for is null");
        ok!(cuGraphRemoveDependencies(graph, &b, &a, 1));
        ok!(cuGraphInstantiateWithParams(&mut executable, graph, &mut parameters));
        run(executable, 1);
        assert_eq!(load(word), 2);
        ok!(cuGraphDestroyNode(a));
        refused!(CUDA_ERROR_INVALID_HANDLE: cuGraphDestroyNode(a));
        let mut root = null_mut();
        count = 1;
        ok!(cuGraphGetRootNodes(graph, &mut root, &mut count));
        assert_eq!((count, root), (1, b));
        let flags = [16, 1 | 4];
        for flags in flags {
            refused!(
                CUDA_ERROR_INVALID_VALUE:
                cuGraphInstantiateWithFlags(&mut executable, graph, flags)
            );
        }
        refused!(CUDA_ERROR_NOT_SUPPORTED: cuGraphInstantiateWithFlags(&mut executable, graph, 4));
    });
}

/// If this fails, memory that a graph works on is given back too early, or never.
#[test]
fn user_objects_end_with_the_last_graph() {
    on_machine("user_objects_end_with_the_last_graph", "one-gpu", || {
        context(0);
        let (ended, gate, step) = (word(), word(), word());
        let (mut object, graph) = (null_mut(), new_graph());
        let destroy = Some(count_host_call as unsafe extern "C" fn(*mut c_void));
        let data = ended.as_ptr().cast();
        refused!(CUDA_ERROR_INVALID_VALUE: cuUserObjectCreate(&mut object, data, destroy, 0, 1));
        ok!(cuUserObjectCreate(&mut object, data, destroy, 1, 1));
        ok!(cuGraphRetainUserObject(graph, object, 1, 0));
        ok!(cuUserObjectRelease(object, 1));
        let meet = [address(step), address(gate), 1];
        KernelNode::new(kernel(ptx::MEET, "meet"), &meet).add(graph, &[]);
        let (made, queue) = (executable(graph), stream());
        refused!(CUDA_ERROR_INVALID_VALUE: cuGraphReleaseUserObject(graph, object, 2));
        ok!(cuGraphDestroy(graph));
        ok!(cuGraphLaunch(made, queue));
        ok!(cuGraphExecDestroy(made));
        eventually("the kernel", || load(step) == 1);
        assert_eq!(load(ended), 0, "a launch still needs the object");
        gate.store(1, Ordering::Release);
        ok!(cuStreamSynchronize(queue));
        eventually("the object's end", || load(ended) == 1);
    });
}

/// If this fails, a bad handle or a bad order of calls ends the process, or hangs it.
#[test]
fn no_order_of_calls_brings_the_driver_down() {
    on_machine("no_order_of_calls_brings_the_driver_down", "one-gpu", || {
        let here = context(0);
        let (sum, count) = (word(), count_kernel());
        let mut event = null_mut();
        ok!(cuEventCreate(&mut event, 2));
        for seed in 0..40u64 {
            println!("seed {seed}");
            let mut random = fastrand::Rng::with_seed(seed);
            // Handles of every kind, live and stale, in one bag.
            let mut bag: Vec<u64> = vec![0, 1, u64::MAX, 0xdead_beef, here as u64, event as u64];
            bag.extend((0..2).map(|_| stream() as u64));
            bag.extend((0..2).map(|_| new_graph() as u64));
            for _ in 0..400 {
                let made = chaos(&mut random, &bag, count, address(sum), here);
                // The newest are the likeliest to be of use.
                bag.extend(made.filter(|handle| *handle != 0));
                if bag.len() > 60 {
                    bag.remove(10 + random.usize(..bag.len() - 10));
                }
            }
            end_captures(&bag);
            ok!(cuCtxSynchronize());
        }
        let queue = stream();
        assert_eq!(launch(count, 1, 1, queue, &[address(sum), 1]) as u32, 0);
        ok!(cuStreamSynchronize(queue));
    });
}

fn end_captures(bag: &[u64]) {
    for &handle in bag {
        let mut graph = null_mut();
        // SAFETY: handles are numbers to this driver; it refuses those that are of no stream.
        let _ = unsafe { sys::cuStreamEndCapture(handle as CUstream, &mut graph) };
    }
}

/// One call with handles of the bag; gives a handle that it made.
fn chaos(
    random: &mut fastrand::Rng,
    bag: &[u64],
    count: sys::CUfunction,
    word: u64,
    here: sys::CUcontext,
) -> impl Iterator<Item = u64> + use<> {
    let mut pick = || bag[random.usize(..bag.len())];
    let [a, b, c] = [pick(), pick(), pick()];
    let (graph, node, other) = (a as CUgraph, b as CUgraphNode, c as CUgraphNode);
    let (queue, made) = (b as CUstream, c as CUgraphExec);
    let (mut new, mut size, mut number) = (null_mut::<c_void>(), 8usize, 0);
    let out = (&raw mut new).cast::<CUgraphNode>();
    let out_graph = out.cast::<CUgraph>();
    let mut several = [null_mut::<sys::CUgraphNode_st>(); 8];
    let mut kernel = KernelNode::new(count, &[word, 1]);
    let parameters = kernel.parameters();
    let mode = Mode::CU_STREAM_CAPTURE_MODE_RELAXED;
    let fill = sys::CUDA_MEMSET_NODE_PARAMS {
        dst: word,
        pitch: 0,
        value: 0,
        elementSize: 1,
        width: 8,
        height: 1,
    };
    let (dependencies, dependency_count) =
        if random.bool() { (&raw const node, 1) } else { (null(), 0) };
    let mut kind = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL;
    // SAFETY: the arrays are as long as the calls may fill; handles are numbers to this driver,
    // which refuses those that it does not know.
    unsafe {
        let (d, n) = (dependencies, dependency_count);
        let _ = match random.u32(..28) {
            0 | 1 => sys::cuGraphAddKernelNode_v2(out, graph, d, n, &parameters),
            2 => sys::cuGraphAddEmptyNode(out, graph, d, n),
            3 => sys::cuGraphAddMemsetNode(out, graph, d, n, &fill, here),
            4 => sys::cuGraphAddChildGraphNode(out, graph, d, n, c as CUgraph),
            5 => sys::cuGraphAddEventRecordNode(out, graph, d, n, c as sys::CUevent),
            6 => sys::cuGraphAddDependencies(graph, &node, &other, 1),
            7 => sys::cuGraphRemoveDependencies(graph, &node, &other, 1),
            8 => sys::cuGraphDestroyNode(node),
            9 => sys::cuGraphDestroy(graph),
            10 => sys::cuGraphClone(out_graph, graph),
            11 | 12 => sys::cuGraphInstantiateWithFlags(out.cast(), graph, 0),
            13 | 14 => sys::cuGraphLaunch(made, queue),
            15 => sys::cuGraphExecDestroy(made),
            16 => sys::cuGraphExecUpdate_v2(made, graph, &mut std::mem::zeroed()),
            17 => sys::cuGraphExecKernelNodeSetParams_v2(made, node, &parameters),
            18 => sys::cuGraphGetNodes(graph, several.as_mut_ptr(), &mut size),
            19 => sys::cuGraphGetEdges(graph, several.as_mut_ptr(), out, &mut number),
            20 => sys::cuGraphNodeGetDependentNodes(node, several.as_mut_ptr(), &mut size),
            21 => sys::cuStreamBeginCapture_v2(queue, mode),
            22 => sys::cuStreamEndCapture(queue, out_graph),
            23 => sys::cuStreamBeginCaptureToGraph(queue, graph, d, null(), n, mode),
            24 => sys::cuStreamUpdateCaptureDependencies(queue, &raw const other as _, 1, 0),
            25 => sys::cuGraphChildGraphNodeGetGraph(node, out_graph),
            26 => sys::cuGraphNodeGetType(node, &mut kind),
            _ => sys::cuEventRecordWithFlags(c as sys::CUevent, queue, 1),
        };
    }
    std::iter::once(new as u64).chain(several.into_iter().map(|node| node as u64))
}
