//! Graphs: what is launched runs as often as it is launched, in the order of its edges and in no
//! other, with the parameters that it has then.

mod common;
#[path = "common/graph.rs"]
mod graph;
#[path = "common/profile.rs"]
mod profile;
#[path = "common/ptx.rs"]
mod ptx;

use common::{context, device_memory, eventually, kernel, launch, on_machine, pinned, stream};
use cudarc::driver::sys::CUstreamCaptureMode_enum as Mode;
use cudarc::driver::sys::{self, CUgraphExec};
use graph::{
    KernelNode, add_count, captured, count_host_call, count_kernel, empty_copy, executable, kind,
    load, new_graph, nodes, run,
};
use profile::{Call, address, with_keys, word};
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// If this fails, a replay leaves something out, runs it twice, or with the parameters of another
/// call.
#[test]
fn what_was_captured_runs_once_for_each_launch() {
    on_machine("what_was_captured_runs_once_for_each_launch", "one-gpu", || {
        context(0);
        let (sum, copy, calls, memop) = (word(), word(), word(), word());
        let (count, queue, device) = (count_kernel(), stream(), device_memory(64));
        let mut on_stack = [0u64; 1];
        let stack = on_stack.as_mut_ptr();
        let graph = captured(queue, || {
            for value in [1, 10, 100] {
                assert_eq!(launch(count, 1, 1, queue, &[address(sum), value]) as u32, 0);
            }
            ok!(cuMemcpyAsync(address(copy), address(sum), 8, queue));
            // From pinned memory to the device, and to memory that the driver does not know.
            ok!(cuMemcpyHtoDAsync_v2(device, sum.as_ptr().cast(), 8, queue));
            ok!(cuMemcpyDtoHAsync_v2(stack.cast(), device, 8, queue));
            ok!(cuMemsetD8Async(device, 7, 64, queue));
            ok!(cuLaunchHostFunc(queue, Some(count_host_call), calls.as_ptr().cast()));
            ok!(cuStreamWriteValue64_v2(queue, address(memop), 3, 0));
            ok!(cuStreamWaitValue64_v2(queue, address(memop), 3, 0));
        });
        let kinds: Vec<u32> = nodes(graph).into_iter().map(kind).collect();
        assert_eq!(kinds, [0, 0, 0, 1, 1, 1, 2, 3, 12, 12]);
        ok!(cuStreamSynchronize(queue));
        assert_eq!([sum, copy, calls, memop].map(load), [0; 4], "nothing runs before a launch");
        let executable = executable(graph);
        // Neither matters any more.
        ok!(cuGraphDestroy(graph));
        refused!(CUDA_ERROR_INVALID_HANDLE: cuGraphDestroy(graph));
        run(executable, 5);
        assert_eq!([sum, copy, calls, memop].map(load), [555, 555, 5, 3]);
        // SAFETY: the copy to it has ended.
        assert_eq!(unsafe { stack.read_volatile() }, 555);
        let mut fill = 0u64;
        ok!(cuMemcpyDtoH_v2((&raw mut fill).cast(), device, 8));
        assert_eq!(fill, 0x0707_0707_0707_0707);
        ok!(cuGraphExecDestroy(executable));
        refused!(CUDA_ERROR_INVALID_HANDLE: cuGraphLaunch(executable, queue));
    });
}

/// If this fails, kernels of two branches that wait for each other hang, or a join starts early.
#[test]
fn branches_run_beside_each_other_and_joins_wait_for_all() {
    const NAME: &str = "branches_run_beside_each_other_and_joins_wait_for_all";
    // Four queues, of which a graph takes one place; a backlog shorter than the graph.
    let cases: [profile::Case<'_>; 2] =
        [("capture=on", &[]), ("connections=1,launch-queue=4", &[])];
    with_keys(NAME, "one-gpu", &cases, || {
        context(0);
        let (queue, side) = (stream(), stream());
        let (meet, count) = (kernel(ptx::MEET, "meet"), count_kernel());
        let (one, other, sum, seen) = (word(), word(), word(), word());
        let (mut fork, mut join) = (null_mut(), null_mut());
        ok!(cuEventCreate(&mut fork, 2));
        ok!(cuEventCreate(&mut join, 2));
        let graph = captured(queue, || {
            ok!(cuMemsetD8Async(address(one), 0, 8, queue));
            ok!(cuMemsetD8Async(address(other), 0, 8, queue));
            ok!(cuEventRecord(fork, queue));
            ok!(cuStreamWaitEvent(side, fork, 0));
            let (a, b) = (address(one), address(other));
            assert_eq!(launch(meet, 1, 32, queue, &[a, b, 50]) as u32, 0);
            assert_eq!(launch(meet, 1, 32, side, &[b, a, 50]) as u32, 0);
            for queue in [queue, side] {
                assert_eq!(launch(count, 1, 1, queue, &[address(sum), 1]) as u32, 0);
            }
            ok!(cuEventRecord(join, side));
            ok!(cuStreamWaitEvent(queue, join, 0));
            ok!(cuMemcpyAsync(address(seen), address(sum), 8, queue));
        });
        let executable = executable(graph) as usize;
        Call::start(0, move || run(executable as CUgraphExec, 3)).must_return("the graph");
        assert_eq!([sum, seen].map(load), [6, 6]);
        assert_eq!(load(one), 50);
    });
}

/// If this fails, two launches of one executable graph write the same memory at the same time.
#[test]
fn launches_of_one_executable_follow_each_other() {
    on_machine("launches_of_one_executable_follow_each_other", "one-gpu", || {
        context(0);
        let (begun, step, gate) = (word(), word(), word());
        let graph = new_graph();
        let first = add_count(graph, begun, 1, &[]);
        let meet = [address(step), address(gate), 1];
        KernelNode::new(kernel(ptx::MEET, "meet"), &meet).add(graph, &[first]);
        let executable = executable(graph);
        let queues = [stream(), stream()];
        queues.iter().for_each(|&queue| ok!(cuGraphLaunch(executable, queue)));
        eventually("the first launch", || load(step) == 1);
        refused!(CUDA_ERROR_NOT_READY: cuStreamQuery(queues[1]));
        // Graph and executable go while they run.
        ok!(cuGraphExecDestroy(executable));
        ok!(cuGraphDestroy(graph));
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(load(begun), 1, "the second launch has begun");
        gate.store(1, Ordering::Release);
        queues.iter().for_each(|&queue| ok!(cuStreamSynchronize(queue)));
        assert_eq!(load(begun), 2);
    });
}

/// If this fails, a program that changes a parameter runs with the old one, or changes launches
/// that it has made already.
#[test]
fn parameters_can_be_read_and_changed() {
    on_machine("parameters_can_be_read_and_changed", "one-gpu", || {
        let here = context(0);
        let (graph, sum, extra) = (new_graph(), word(), word());
        let node = add_count(graph, sum, 5, &[]);
        let mut read = KernelNode::new(null_mut(), &[]).parameters();
        ok!(cuGraphKernelNodeGetParams_v2(node, &mut read));
        // SAFETY: the kernel has two parameters of eight bytes, which the node keeps.
        let words =
            [0, 1].map(|index| unsafe { read.kernelParams.add(index).read().cast::<u64>() });
        // SAFETY: as above.
        assert_eq!(words.map(|word| unsafe { word.read() }), [address(sum), 5]);
        let made = executable(graph);
        // The graph changes, what was instantiated does not; then the other way round.
        let mut changed = KernelNode::new(count_kernel(), &[address(sum), 70]);
        ok!(cuGraphKernelNodeSetParams_v2(node, &changed.parameters()));
        run(made, 1);
        assert_eq!(load(sum), 5);
        ok!(cuGraphExecKernelNodeSetParams_v2(made, node, &changed.parameters()));
        run(made, 1);
        assert_eq!(load(sum), 75);
        ok!(cuGraphNodeSetEnabled(made, node, 0));
        run(made, 1);
        assert_eq!(load(sum), 75, "a disabled node runs");
        let mut enabled = 1;
        ok!(cuGraphNodeGetEnabled(made, node, &mut enabled));
        assert_eq!(enabled, 0);
        ok!(cuGraphNodeSetEnabled(made, node, 1));
        // A graph of the same shape replaces what the nodes do; one of another is refused.
        let (same, different) = (new_graph(), new_graph());
        add_count(same, extra, 1000, &[]);
        let first = add_count(different, extra, 1, &[]);
        add_count(different, extra, 1, &[first]);
        // SAFETY: a number and handles, for which zero is a value.
        let mut result: sys::CUgraphExecUpdateResultInfo = unsafe { std::mem::zeroed() };
        ok!(cuGraphExecUpdate_v2(made, same, &mut result));
        run(made, 1);
        assert_eq!([sum, extra].map(load), [75, 1000]);
        refused!(
            CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE: cuGraphExecUpdate_v2(made, different, &mut result)
        );
        assert_eq!(result.result as u32, 2, "CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED");
        let (filled, memory) = (new_graph(), device_memory(64));
        let mut fill = sys::CUDA_MEMSET_NODE_PARAMS {
            dst: memory,
            pitch: 16,
            value: 0x0102,
            elementSize: 2,
            width: 4,
            height: 3,
        };
        let mut node = null_mut();
        ok!(cuGraphAddMemsetNode(&mut node, filled, null(), 0, &fill, here));
        refused!(
            CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE: cuGraphExecUpdate_v2(made, filled, &mut result)
        );
        assert_eq!(result.result as u32, 3, "CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED");
        assert_eq!(result.errorNode, node);
        refused!(
            CUDA_ERROR_INVALID_VALUE:
            cuGraphKernelNodeSetParams_v2(node, &changed.parameters())
        );
        fill.value = 0x0304;
        ok!(cuGraphMemsetNodeSetParams(node, &fill));
        fill.value = 0;
        ok!(cuGraphMemsetNodeGetParams(node, &mut fill));
        assert_eq!((fill.value, fill.width, fill.height, fill.pitch), (0x0304, 4, 3, 16));
        fill.dst = 0x10;
        refused!(CUDA_ERROR_INVALID_VALUE: cuGraphMemsetNodeSetParams(node, &fill));
        ok!(cuMemsetD8_v2(memory, 0xff, 64));
        run(executable(filled), 1);
        let mut bytes = [0u16; 32];
        ok!(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), memory, 64));
        let row = [0x0304, 0x0304, 0x0304, 0x0304, 0xffff, 0xffff, 0xffff, 0xffff];
        assert_eq!(bytes[..24], [row; 3].concat());
    });
}

/// If this fails, a copy of planes leaves bytes out or overwrites its neighbours.
#[test]
fn copies_of_planes_touch_their_bytes_alone() {
    on_machine("copies_of_planes_touch_their_bytes_alone", "one-gpu", || {
        let here = context(0);
        let (source, target) = (pinned(4096), device_memory(4096));
        for index in 0..4096usize {
            // SAFETY: the memory is as long.
            unsafe { source.add(index).write((index % 251) as u8) };
        }
        ok!(cuMemsetD8_v2(target, 0xee, 4096));
        let mut copy = empty_copy(source, target);
        (copy.srcPitch, copy.srcHeight) = (32, 8);
        (copy.srcXInBytes, copy.srcY, copy.srcZ) = (3, 1, 2);
        (copy.dstPitch, copy.dstHeight) = (20, 5);
        (copy.WidthInBytes, copy.Height, copy.Depth) = (10, 4, 3);
        let (graph, mut node) = (new_graph(), null_mut());
        ok!(cuGraphAddMemcpyNode(&mut node, graph, null(), 0, &copy, here));
        run(executable(graph), 1);
        let mut seen = vec![0u8; 4096];
        ok!(cuMemcpyDtoH_v2(seen.as_mut_ptr().cast(), target, 4096));
        for (index, byte) in seen.into_iter().enumerate() {
            let (plane, row, column) = (index / 100, index % 100 / 20, index % 20);
            let inside = plane < 3 && row < 4 && column < 10;
            let from = ((plane + 2) * 8 + row + 1) * 32 + column + 3;
            let expected = if inside { (from % 251) as u8 } else { 0xee };
            assert_eq!(byte, expected, "byte {index}");
        }
        let mut read = empty_copy(null_mut(), 0);
        ok!(cuGraphMemcpyNodeGetParams(node, &mut read));
        assert_eq!((read.WidthInBytes, read.Height, read.Depth), (10, 4, 3));
        assert_eq!((read.dstDevice, read.dstPitch, read.srcPitch), (target, 20, 32));
        ok!(cuGraphMemcpyNodeSetParams(node, &read));
        copy.Depth = 1 << 40;
        refused!(CUDA_ERROR_INVALID_VALUE: cuGraphMemcpyNodeSetParams(node, &copy));
        copy.dstMemoryType = sys::CUmemorytype::CU_MEMORYTYPE_ARRAY;
        refused!(CUDA_ERROR_NOT_SUPPORTED: cuGraphMemcpyNodeSetParams(node, &copy));
    });
}

/// If this fails, a graph within a graph starts early, is forgotten, or changes with its original.
#[test]
fn child_graphs_and_clones_are_copies() {
    on_machine("child_graphs_and_clones_are_copies", "one-gpu", || {
        context(0);
        let (inner, outer, sum, seen) = (new_graph(), new_graph(), word(), word());
        let leaf = add_count(inner, sum, 1, &[]);
        add_count(inner, sum, 10, &[]);
        let before = add_count(outer, sum, 100, &[]);
        let (mut child, mut empty) = (null_mut(), null_mut());
        ok!(cuGraphAddChildGraphNode(&mut child, outer, &before, 1, inner));
        let nothing = new_graph();
        ok!(cuGraphAddChildGraphNode(&mut empty, outer, &child, 1, nothing));
        let copy = [address(seen), address(sum), 8];
        let queue = stream();
        let copying = captured(queue, || ok!(cuMemcpyAsync(copy[0], copy[1], 8, queue)));
        let mut last = null_mut();
        ok!(cuGraphAddChildGraphNode(&mut last, outer, &empty, 1, copying));
        // The original is a graph of its own.
        let mut changed = KernelNode::new(count_kernel(), &[address(sum), 5000]);
        ok!(cuGraphKernelNodeSetParams_v2(leaf, &changed.parameters()));
        let made = executable(outer);
        run(made, 2);
        assert_eq!([sum, seen].map(load), [222, 222]);
        let mut embedded = null_mut();
        ok!(cuGraphChildGraphNodeGetGraph(child, &mut embedded));
        refused!(CUDA_ERROR_INVALID_VALUE: cuGraphDestroy(embedded));
        assert_ne!(nodes(embedded)[0], leaf);
        // A node within can be changed in the executable, and the child as a whole.
        ok!(cuGraphExecKernelNodeSetParams_v2(made, nodes(embedded)[0], &changed.parameters()));
        run(made, 1);
        assert_eq!(load(seen), 222 + 5110);
        refused!(
            CUDA_ERROR_INVALID_VALUE: cuGraphExecChildGraphNodeSetParams(made, child, copying)
        );
        let again = new_graph();
        add_count(again, sum, 2, &[]);
        add_count(again, sum, 3, &[]);
        ok!(cuGraphExecChildGraphNodeSetParams(made, child, again));
        run(made, 1);
        assert_eq!(load(seen), 222 + 5110 + 105);
        let (mut clone, mut found) = (null_mut(), null_mut());
        ok!(cuGraphClone(&mut clone, outer));
        ok!(cuGraphNodeFindInClone(&mut found, before, clone));
        assert!(nodes(clone).contains(&found));
        refused!(CUDA_ERROR_INVALID_VALUE: cuGraphNodeFindInClone(&mut found, leaf, clone));
        ok!(cuGraphDestroy(outer));
        refused!(CUDA_ERROR_INVALID_HANDLE: cuGraphGetNodes(embedded, null_mut(), &mut 0));
        sum.store(0, Ordering::Release);
        run(executable(clone), 1);
        assert_eq!(load(seen), 111);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("graph.dot");
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        ok!(cuGraphDebugDotPrint(clone, name.as_ptr(), 0));
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.starts_with("digraph") && text.matches("->").count() == 3, "{text}");
        let nowhere = c"/nonexistent/graph.dot";
        refused!(CUDA_ERROR_OPERATING_SYSTEM: cuGraphDebugDotPrint(clone, nowhere.as_ptr(), 0));
        // A graph that is launched on a captured stream becomes a node.
        let within = executable(clone);
        let outermost = captured(queue, || ok!(cuGraphLaunch(within, queue)));
        assert_eq!(nodes(outermost).len(), 1);
        run(executable(outermost), 1);
        assert_eq!(load(seen), 222);
    });
}

/// If this fails, events that are nodes tell other streams too early, or never.
#[test]
fn events_are_recorded_and_waited_for_by_nodes() {
    on_machine("events_are_recorded_and_waited_for_by_nodes", "one-gpu", || {
        context(0);
        let (queue, other, gate, sum) = (stream(), stream(), word(), word());
        let (mut recorded, mut awaited) = (null_mut(), null_mut());
        ok!(cuEventCreate(&mut recorded, 2));
        ok!(cuEventCreate(&mut awaited, 2));
        refused!(CUDA_ERROR_INVALID_VALUE: cuEventRecordWithFlags(recorded, queue, 1));
        refused!(CUDA_ERROR_INVALID_VALUE: cuStreamWaitEvent(queue, awaited, 1));
        let count = count_kernel();
        let graph = captured(queue, || {
            ok!(cuStreamWaitEvent(queue, awaited, 1));
            assert_eq!(launch(count, 1, 1, queue, &[address(sum), 1]) as u32, 0);
            ok!(cuEventRecordWithFlags(recorded, queue, 1));
        });
        let parts = nodes(graph);
        assert_eq!([0, 1, 2].map(|index: usize| kind(parts[index])), [6, 0, 7]);
        let mut event = null_mut();
        ok!(cuGraphEventRecordNodeGetEvent(parts[2], &mut event));
        assert_eq!(event, recorded);
        refused!(CUDA_ERROR_INVALID_VALUE: cuGraphEventWaitNodeGetEvent(parts[2], &mut event));
        let made = executable(graph);
        ok!(cuStreamWaitValue64_v2(other, address(gate), 1, 0));
        ok!(cuEventRecord(awaited, other));
        ok!(cuGraphLaunch(made, queue));
        refused!(CUDA_ERROR_NOT_READY: cuEventQuery(recorded));
        assert_eq!(load(sum), 0);
        gate.store(1, Ordering::Release);
        ok!(cuEventSynchronize(recorded));
        assert_eq!(load(sum), 1);
        // The node's event can be another one, which then is what is recorded.
        ok!(cuGraphExecEventRecordNodeSetEvent(made, parts[2], awaited));
        run(made, 1);
        ok!(cuEventQuery(awaited));
    });
}

/// If this fails, libraries that add nodes to their users' captures (as PyTorch's and NCCL's do)
/// lose work or order.
#[test]
fn a_capture_shows_its_graph_and_takes_nodes() {
    on_machine("a_capture_shows_its_graph_and_takes_nodes", "one-gpu", || {
        context(0);
        let (queue, sum, seen) = (stream(), word(), word());
        let kernel = count_kernel();
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let (mut id, mut graph, mut after, mut count) = (0, null_mut(), null(), 0);
        let mut node = null_mut();
        let ended = captured(queue, || {
            assert_eq!(launch(kernel, 1, 1, queue, &[address(sum), 1]) as u32, 0);
            ok!(cuStreamGetCaptureInfo_v2(
                queue,
                &mut status,
                &mut id,
                &mut graph,
                &mut after,
                &mut count
            ));
            assert_eq!((status as u32, count), (1, 1));
            assert!(id > 0);
            // SAFETY: one node, by the call's word, until the next call.
            let last = unsafe { after.read() };
            assert_eq!(nodes(graph), [last]);
            refused!(CUDA_ERROR_ILLEGAL_STATE: cuGraphDestroy(graph));
            refused!(CUDA_ERROR_ILLEGAL_STATE: cuGraphDestroyNode(last));
            node = KernelNode::new(kernel, &[address(sum), 10]).add(graph, &[last]);
            ok!(cuStreamUpdateCaptureDependencies(queue, &mut node, 1, 1));
            refused!(
                CUDA_ERROR_INVALID_VALUE:
                cuStreamUpdateCaptureDependencies(queue, &mut node, 1, 7)
            );
            ok!(cuMemcpyAsync(address(seen), address(sum), 8, queue));
        });
        assert_eq!(ended, graph);
        run(executable(graph), 1);
        assert_eq!(load(seen), 11);
        // Into a graph that is there, after one of its nodes.
        let mode = Mode::CU_STREAM_CAPTURE_MODE_RELAXED;
        ok!(cuStreamBeginCaptureToGraph(queue, graph, &node, null(), 1, mode));
        refused!(
            CUDA_ERROR_INVALID_VALUE:
            cuStreamBeginCaptureToGraph(stream(), graph, null(), null(), 0, mode)
        );
        assert_eq!(launch(kernel, 1, 1, queue, &[address(sum), 100]) as u32, 0);
        let mut same = null_mut();
        ok!(cuStreamEndCapture(queue, &mut same));
        assert_eq!((same, nodes(graph).len()), (graph, 4));
        let (mut before, mut one) = (null_mut(), 1);
        ok!(cuGraphNodeGetDependencies(nodes(graph)[3], &mut before, &mut one));
        assert_eq!((before, one), (node, 1));
        run(executable(graph), 1);
        assert_eq!(load(sum), 11 + 111);
        // A program that has given the graph need not take it at the end; one that has not must.
        ok!(cuStreamBeginCaptureToGraph(queue, graph, null(), null(), 0, mode));
        assert_eq!(launch(kernel, 1, 1, queue, &[address(sum), 1000]) as u32, 0);
        ok!(cuStreamEndCapture(queue, null_mut()));
        assert_eq!(nodes(graph).len(), 5);
        ok!(cuStreamBeginCapture_v2(queue, mode));
        refused!(CUDA_ERROR_INVALID_VALUE: cuStreamEndCapture(queue, null_mut()));
        ok!(cuStreamEndCapture(queue, &mut same));
        // What was invalidated leaves no graph behind.
        ok!(cuStreamBeginCapture_v2(queue, Mode::CU_STREAM_CAPTURE_MODE_RELAXED));
        ok!(cuStreamGetCaptureInfo_v2(
            queue,
            &mut status,
            &mut id,
            &mut graph,
            &mut after,
            &mut count
        ));
        refused!(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: cuStreamSynchronize(queue));
        refused!(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: cuStreamEndCapture(queue, &mut same));
        refused!(CUDA_ERROR_INVALID_HANDLE: cuGraphDestroy(graph));
    });
}
