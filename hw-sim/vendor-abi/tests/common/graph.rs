//! What the tests of graphs share.

#![allow(dead_code, reason = "each test program uses a part of this")]

use crate::common::{kernel, stream};
use crate::profile::address;
use crate::{ok, ptx};
use cudarc::driver::sys::CUstreamCaptureMode_enum as Mode;
use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUgraphNode, CUstream};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

pub fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Acquire)
}

pub fn new_graph() -> CUgraph {
    let mut graph = null_mut();
    ok!(cuGraphCreate(&mut graph, 0));
    graph
}

pub fn executable(graph: CUgraph) -> CUgraphExec {
    let mut executable = null_mut();
    ok!(cuGraphInstantiateWithFlags(&mut executable, graph, 0));
    executable
}

/// Launches a graph so often, and waits.
pub fn run(executable: CUgraphExec, times: usize) {
    let queue = stream();
    (0..times).for_each(|_| ok!(cuGraphLaunch(executable, queue)));
    ok!(cuStreamSynchronize(queue));
}

pub fn count_kernel() -> sys::CUfunction {
    kernel(ptx::COUNT, "count")
}

/// Parameters of a kernel node of one thread, with those of the kernel.
pub struct KernelNode {
    words: Vec<u64>,
    pointers: Vec<*mut c_void>,
    function: sys::CUfunction,
}

impl KernelNode {
    pub fn new(function: sys::CUfunction, words: &[u64]) -> Self {
        Self { words: words.to_vec(), pointers: Vec::new(), function }
    }

    pub fn parameters(&mut self) -> sys::CUDA_KERNEL_NODE_PARAMS_v2 {
        let pointer = |word: &u64| std::ptr::from_ref(word).cast_mut().cast();
        self.pointers = self.words.iter().map(pointer).collect();
        sys::CUDA_KERNEL_NODE_PARAMS_v2 {
            func: self.function,
            gridDimX: 1,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 1,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            kernelParams: self.pointers.as_mut_ptr(),
            extra: null_mut(),
            kern: null_mut(),
            ctx: null_mut(),
        }
    }

    pub fn add(mut self, graph: CUgraph, after: &[CUgraphNode]) -> CUgraphNode {
        let (mut node, parameters) = (null_mut(), self.parameters());
        ok!(cuGraphAddKernelNode_v2(&mut node, graph, after.as_ptr(), after.len(), &parameters));
        node
    }
}

pub fn add_count(
    graph: CUgraph,
    word: &AtomicU64,
    value: u64,
    after: &[CUgraphNode],
) -> CUgraphNode {
    KernelNode::new(count_kernel(), &[address(word), value]).add(graph, after)
}

/// A copy from pinned memory to a device, of nothing yet.
pub fn empty_copy(source: *mut u8, target: u64) -> sys::CUDA_MEMCPY3D {
    sys::CUDA_MEMCPY3D {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: source.cast(),
        srcDevice: 0,
        srcArray: null_mut(),
        reserved0: null_mut(),
        srcPitch: 0,
        srcHeight: 0,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: null_mut(),
        dstDevice: target,
        dstArray: null_mut(),
        reserved1: null_mut(),
        dstPitch: 0,
        dstHeight: 0,
        WidthInBytes: 0,
        Height: 0,
        Depth: 0,
    }
}

pub fn nodes(graph: CUgraph) -> Vec<CUgraphNode> {
    let mut count = 0;
    ok!(cuGraphGetNodes(graph, null_mut(), &mut count));
    let mut nodes = vec![null_mut(); count];
    ok!(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count));
    nodes
}

pub fn kind(node: CUgraphNode) -> u32 {
    let mut kind = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL;
    ok!(cuGraphNodeGetType(node, &mut kind));
    kind as u32
}

pub extern "C" fn count_host_call(word: *mut c_void) {
    // SAFETY: the tests pass pinned words of their own.
    unsafe { AtomicU64::from_ptr(word.cast()) }.fetch_add(1, Ordering::AcqRel);
}

pub fn captured(queue: CUstream, body: impl FnOnce()) -> CUgraph {
    let mut graph = null_mut();
    ok!(cuStreamBeginCapture_v2(queue, Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    body();
    ok!(cuStreamEndCapture(queue, &mut graph));
    graph
}
