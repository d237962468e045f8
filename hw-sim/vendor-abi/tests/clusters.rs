//! Launches in clusters: shapes that are allowed, those that a kernel asks for, and how many fit.

mod common;

use common::{context, device_memory, is_inside, kernel, launch, on_machine, stream};
use cudarc::driver::sys;
use cudarc::driver::sys::CUfunction_attribute as Attribute;
use std::ptr::null_mut;

/// Each block leaves its place in the grid in its shared memory; thread 0 of each then adds what it
/// finds in the blocks of its cluster, and stores the sum with the number of blocks.
const SUM: &str = "
.version 8.4
.target sm_90
.address_size 64
.visible .entry sum(.param .u64 out) RULES {
    .shared .align 8 .b8 own[8];
    .reg .b64 %out, %o;
    .reg .b32 %own, %there, %n, %i, %sum, %v, %b;
    .reg .pred %p;
    ld.param.u64 %out, [out];
    mov.u32 %own, own;
    mov.u32 %n, %cluster_nctarank;
    mov.u32 %b, %ctaid.x;
    st.shared.u32 [%own], %b;
    barrier.cluster.arrive.release;
    barrier.cluster.wait.acquire;
    mov.u32 %i, 0;
    mov.u32 %sum, 0;
NEXT:
    mapa.shared::cluster.u32 %there, %own, %i;
    ld.shared::cluster.u32 %v, [%there];
    add.u32 %sum, %sum, %v;
    add.u32 %i, %i, 1;
    setp.lt.u32 %p, %i, %n;
    @%p bra NEXT;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    mul.wide.u32 %o, %b, 8;
    add.s64 %out, %out, %o;
    st.global.v2.u32 [%out], {%sum, %n};
    ret;
}";

fn rules(rules: &str) -> String {
    SUM.replace("RULES", rules)
}

/// A configuration of so many blocks with one attribute, which asks for clusters.
struct Configuration {
    attribute: sys::CUlaunchAttribute,
    grid: u32,
    threads: u32,
    shared_bytes: u32,
}

impl Configuration {
    fn new(grid: u32, cluster: [u32; 3]) -> Self {
        // SAFETY: a structure of numbers, for which zeros are good.
        let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
        attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        let [x, y, z] = cluster;
        attribute.value.clusterDim.x = x;
        attribute.value.clusterDim.y = y;
        attribute.value.clusterDim.z = z;
        Self { attribute, grid, threads: 32, shared_bytes: 0 }
    }

    fn raw(&mut self, asks: bool) -> sys::CUlaunchConfig {
        sys::CUlaunchConfig {
            gridDimX: self.grid,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: self.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared_bytes,
            hStream: null_mut(),
            attrs: &raw mut self.attribute,
            numAttrs: u32::from(asks),
        }
    }

    fn launch(&mut self, function: sys::CUfunction, out: u64) -> u32 {
        let config = self.raw(true);
        let mut arguments = [(&raw const out).cast_mut().cast()];
        // SAFETY: the configuration, its attribute and the argument live until the call is over.
        let code =
            unsafe { sys::cuLaunchKernelEx(&config, function, arguments.as_mut_ptr(), null_mut()) };
        code as u32
    }
}

/// What the kernel stored: sums and numbers of blocks.
fn results(out: u64, blocks: usize) -> Vec<[u32; 2]> {
    let mut words = vec![[0; 2]; blocks];
    ok!(cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), out, 8 * blocks));
    words
}

/// What it should: by the blocks of a cluster.
fn sums(blocks: u32, cluster: u32) -> Vec<[u32; 2]> {
    let sum = |block: u32| (block / cluster * cluster..).take(cluster as usize).sum();
    (0..blocks).map(|block| [sum(block), cluster]).collect()
}

const INVALID_VALUE: u32 = 1;
const NOT_PERMITTED: u32 = 800;
const NOT_SUPPORTED: u32 = 801;
const INVALID_CLUSTER_SIZE: u32 = 912;

fn attribute(function: sys::CUfunction, which: Attribute) -> i32 {
    let mut value = -1;
    ok!(cuFuncGetAttribute(&mut value, which, function));
    value
}

/// If this fails, programs for Hopper do not start, or their blocks do not find each other.
#[test]
fn blocks_run_in_clusters() {
    on_machine("blocks_run_in_clusters", "dgx-h100", || {
        context(0);
        let sum = kernel(&rules(""), "sum");
        let out = device_memory(8 * 4096);
        for (grid, cluster) in [(8, 2), (12, 4), (4096, 8), (9, 3), (7, 1)] {
            assert_eq!(Configuration::new(grid, [cluster, 1, 1]).launch(sum, out), 0);
            ok!(cuCtxSynchronize());
            assert_eq!(results(out, grid as usize), sums(grid, cluster), "{grid} by {cluster}");
        }
        // Not every GPU holds more than 8 blocks: a kernel must say that it is fine with that.
        let mut large = Configuration::new(32, [16, 1, 1]);
        assert_eq!(large.launch(sum, out), INVALID_CLUSTER_SIZE);
        let beyond = Attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
        assert_eq!(attribute(sum, beyond), 0);
        ok!(cuFuncSetAttribute(sum, beyond, 1));
        assert_eq!((attribute(sum, beyond), large.launch(sum, out)), (1, 0));
        ok!(cuCtxSynchronize());
        assert_eq!(results(out, 32), sums(32, 16));
        for (grid, cluster, code) in [
            (34, [17, 1, 1], INVALID_CLUSTER_SIZE),
            (32, [0, 1, 1], INVALID_CLUSTER_SIZE),
            (9, [2, 1, 1], INVALID_VALUE),
            (8, [2, 2, 1], INVALID_VALUE),
        ] {
            assert_eq!(Configuration::new(grid, cluster).launch(sum, out), code, "{cluster:?}");
        }
        // 16 blocks, of which a multiprocessor holds one each, fit a part of the GPCs only.
        let mut value = 0;
        let cluster_launch = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH;
        ok!(cuDeviceGetAttribute(&mut value, cluster_launch, 0));
        assert_eq!(value, 1);
    });
}

/// If this fails, kernels whose PTX says the shape of their clusters run without clusters.
#[test]
fn kernels_say_their_clusters() {
    on_machine("kernels_say_their_clusters", "dgx-h100", || {
        context(0);
        let out = device_memory(8 * 64);
        let width = Attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH;
        let height = Attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT;
        let depth = Attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH;
        let must = Attribute::CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET;

        let fixed = kernel(&rules(".reqnctapercluster 4, 1, 1"), "sum");
        assert_eq!([width, height, depth].map(|which| attribute(fixed, which)), [4, 1, 1]);
        assert_eq!(launch(fixed, 16, 32, null_mut(), &[out]) as u32, 0);
        ok!(cuCtxSynchronize());
        assert_eq!(results(out, 16), sums(16, 4));
        assert_eq!(Configuration::new(16, [4, 1, 1]).launch(fixed, out), 0);
        assert_eq!(Configuration::new(16, [2, 1, 1]).launch(fixed, out), INVALID_CLUSTER_SIZE);
        assert_eq!(launch(fixed, 6, 32, null_mut(), &[out]) as u32, INVALID_VALUE);
        // SAFETY: the function is loaded.
        let code = unsafe { sys::cuFuncSetAttribute(fixed, width, 2) } as u32;
        assert_eq!(code, NOT_PERMITTED);

        // A program may say it for a kernel that does not.
        let free = kernel(&rules(""), "sum");
        assert_eq!(attribute(free, width), 0);
        for (which, extent) in [(width, 2), (height, 1), (depth, 1)] {
            ok!(cuFuncSetAttribute(free, which, extent));
        }
        assert_eq!(launch(free, 8, 32, null_mut(), &[out]) as u32, 0);
        ok!(cuCtxSynchronize());
        assert_eq!(results(out, 8), sums(8, 2));

        let explicit = kernel(&rules(".explicitcluster"), "sum");
        assert_eq!(attribute(explicit, must), 1);
        assert_eq!(launch(explicit, 8, 32, null_mut(), &[out]) as u32, INVALID_CLUSTER_SIZE);
        assert_eq!(Configuration::new(8, [2, 1, 1]).launch(explicit, out), 0);

        let small = kernel(&rules(".maxclusterrank 2"), "sum");
        assert_eq!(Configuration::new(8, [2, 1, 1]).launch(small, out), 0);
        assert_eq!(Configuration::new(8, [4, 1, 1]).launch(small, out), INVALID_CLUSTER_SIZE);
        ok!(cuCtxSynchronize());
    });
}

/// If this fails, kernels whose grids count clusters run on a part of their blocks.
#[test]
fn grids_may_count_clusters() {
    on_machine("grids_may_count_clusters", "dgx-h100", || {
        context(0);
        let out = device_memory(8 * 64);
        let counted = ".reqntid 32, 1, 1 .reqnctapercluster 4, 1, 1 .blocksareclusters";
        let sum = kernel(&rules(counted), "sum");
        assert_eq!(launch(sum, 5, 32, null_mut(), &[out]) as u32, 0);
        ok!(cuCtxSynchronize());
        assert_eq!(results(out, 20), sums(20, 4));
        assert_eq!(results(out, 24)[20..], [[0; 2]; 4]);
        // Also where the launch says the same shape, and not where it says another one.
        assert_eq!(Configuration::new(7, [4, 1, 1]).launch(sum, out), 0);
        ok!(cuCtxSynchronize());
        assert_eq!(results(out, 28), sums(28, 4));
        assert_eq!(Configuration::new(8, [2, 1, 1]).launch(sum, out), INVALID_CLUSTER_SIZE);
        // More blocks than a grid has; and blocks of another size than the kernel's.
        assert_eq!(launch(sum, 1 << 29, 32, null_mut(), &[out]) as u32, INVALID_VALUE);
        assert_eq!(launch(sum, 1, 64, null_mut(), &[out]) as u32, INVALID_VALUE);
    });
}

/// If this fails, a graph's node launches more or fewer clusters than it was made with.
#[test]
fn nodes_of_graphs_count_clusters_too() {
    on_machine("nodes_of_graphs_count_clusters_too", "dgx-h100", || {
        context(0);
        let out = device_memory(8 * 64);
        let counted = ".reqntid 32, 1, 1 .reqnctapercluster 2, 1, 1 .blocksareclusters";
        let sum = kernel(&rules(counted), "sum");
        let (mut graph, mut node) = (null_mut(), null_mut());
        ok!(cuGraphCreate(&mut graph, 0));
        let mut arguments = [(&raw const out).cast_mut().cast()];
        // SAFETY: a structure of numbers and pointers, for which zeros are good.
        let mut params: sys::CUDA_KERNEL_NODE_PARAMS = unsafe { std::mem::zeroed() };
        params.func = sum;
        (params.gridDimX, params.gridDimY, params.gridDimZ) = (6, 1, 1);
        (params.blockDimX, params.blockDimY, params.blockDimZ) = (32, 1, 1);
        params.kernelParams = arguments.as_mut_ptr();
        ok!(cuGraphAddKernelNode_v2(&mut node, graph, std::ptr::null(), 0, &params));
        // What a program reads, and sets again, is the same grid.
        ok!(cuGraphKernelNodeGetParams_v2(node, &mut params));
        assert_eq!(params.gridDimX, 6);
        ok!(cuGraphKernelNodeSetParams_v2(node, &params));
        let mut executable = null_mut();
        ok!(cuGraphInstantiateWithFlags(&mut executable, graph, 0));
        ok!(cuGraphLaunch(executable, null_mut()));
        ok!(cuCtxSynchronize());
        assert_eq!(results(out, 12), sums(12, 2));
        assert_eq!(results(out, 14)[12..], [[0; 2]; 2]);
    });
}

/// If this fails, programs that size their grids by what fits make ones that do not, or small ones.
#[test]
fn programs_ask_how_many_clusters_fit() {
    on_machine("programs_ask_how_many_clusters_fit", "dgx-h100", || {
        context(0);
        let sum = kernel(&rules(""), "sum");
        let most = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        ok!(cuFuncSetAttribute(sum, most, 200 << 10));
        let beyond = Attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
        for (blocks, wanted) in [(1, 132), (2, 66), (4, 32), (8, 16), (16, 0)] {
            let mut config = Configuration::new(blocks, [blocks, 1, 1]);
            config.shared_bytes = 200 << 10;
            let raw = config.raw(true);
            let mut found = -1;
            ok!(cuOccupancyMaxActiveClusters(&mut found, sum, &raw));
            assert_eq!(found, wanted, "{blocks} blocks");
        }
        let mut config = Configuration::new(16, [1, 1, 1]);
        config.shared_bytes = 200 << 10;
        let raw = config.raw(false);
        let mut found = -1;
        ok!(cuOccupancyMaxPotentialClusterSize(&mut found, sum, &raw));
        assert_eq!(found, 8);
        ok!(cuFuncSetAttribute(sum, beyond, 1));
        ok!(cuOccupancyMaxPotentialClusterSize(&mut found, sum, &raw));
        assert_eq!(found, 16);
        // As many blocks as one GPU holds at once, in clusters of 16 with all of the shared memory.
        let out = device_memory(8 * 1024);
        let mut full = Configuration::new(1024, [16, 1, 1]);
        full.shared_bytes = 200 << 10;
        assert_eq!(full.launch(sum, out), 0);
        ok!(cuCtxSynchronize());
        assert_eq!(results(out, 1024), sums(1024, 16));
    });
}

/// If this fails, graphs run kernels without the clusters that they were captured with.
#[test]
fn graphs_keep_clusters() {
    on_machine("graphs_keep_clusters", "dgx-h100", || {
        context(0);
        let sum = kernel(&rules(""), "sum");
        let out = device_memory(8 * 16);
        let queue = stream();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        ok!(cuStreamBeginCapture_v2(queue, mode));
        let mut config = Configuration::new(16, [4, 1, 1]);
        let raw = sys::CUlaunchConfig { hStream: queue, ..config.raw(true) };
        let mut arguments = [(&raw const out).cast_mut().cast()];
        ok!(cuLaunchKernelEx(&raw, sum, arguments.as_mut_ptr(), null_mut()));
        let mut graph = null_mut();
        ok!(cuStreamEndCapture(queue, &mut graph));
        let (mut node, mut count) = (null_mut(), 1);
        ok!(cuGraphGetNodes(graph, &mut node, &mut count));
        let run = |wanted: u32| {
            let mut executable = null_mut();
            ok!(cuMemsetD8_v2(out, 0, 8 * 16));
            ok!(cuGraphInstantiateWithFlags(&mut executable, graph, 0));
            ok!(cuGraphLaunch(executable, queue));
            ok!(cuStreamSynchronize(queue));
            assert_eq!(results(out, 16), sums(16, wanted));
            ok!(cuGraphExecDestroy(executable));
        };
        run(4);
        // Other parameters leave the attribute as it is; it can be read and set.
        // SAFETY: a structure of numbers and pointers, for which zeros are good.
        let mut parameters: sys::CUDA_KERNEL_NODE_PARAMS = unsafe { std::mem::zeroed() };
        ok!(cuGraphKernelNodeGetParams_v2(node, &mut parameters));
        ok!(cuGraphKernelNodeSetParams_v2(node, &parameters));
        run(4);
        // SAFETY: as above.
        let mut value: sys::CUkernelNodeAttrValue = unsafe { std::mem::zeroed() };
        let which = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        ok!(cuGraphKernelNodeGetAttribute(node, which, &mut value));
        // SAFETY: the attribute is of this kind.
        let shape = unsafe { value.clusterDim };
        assert_eq!((shape.x, shape.y, shape.z), (4, 1, 1));
        value.clusterDim.x = 8;
        ok!(cuGraphKernelNodeSetAttribute(node, which, &value));
        run(8);
        value.clusterDim.x = 3;
        // SAFETY: the node is of this graph, the value of the attribute's kind.
        let code = unsafe { sys::cuGraphKernelNodeSetAttribute(node, which, &value) } as u32;
        assert_eq!(code, INVALID_VALUE);
    });
}

/// If this fails, a wild access to another block's memory ends with no word about it.
#[test]
fn wild_accesses_are_reported() {
    let seen = on_machine("wild_accesses_are_reported", "dgx-h100", || {
        context(0);
        let wild = rules("").replace("setp.lt.u32 %p, %i, %n;", "setp.le.u32 %p, %i, %n;");
        let sum = kernel(&wild, "sum");
        let out = device_memory(8 * 16);
        assert_eq!(Configuration::new(4, [2, 1, 1]).launch(sum, out), 0);
        refused!(CUDA_ERROR_LAUNCH_FAILED: cuCtxSynchronize());
    });
    if is_inside("wild_accesses_are_reported") {
        return;
    }
    assert!(seen.contains("block 2 of a cluster of 2 blocks"), "{seen}");
    assert!(seen.contains("ld.shared::cluster.u32"), "{seen}");
}

/// If this fails, a program that asks an older GPU for clusters is told something else than there.
#[test]
fn older_gpus_have_no_clusters() {
    on_machine("older_gpus_have_no_clusters", "dgx-a100", || {
        context(0);
        let text = ".version 7.0\n.target sm_80\n.address_size 64\n\
            .visible .entry none(.param .u64 out) { ret; }";
        let none = kernel(text, "none");
        assert_eq!(Configuration::new(4, [2, 1, 1]).launch(none, 0), NOT_SUPPORTED);
        assert_eq!(Configuration::new(4, [1, 1, 1]).launch(none, 0), 0);
        let raw = Configuration::new(4, [2, 1, 1]).raw(false);
        refused!(CUDA_ERROR_NOT_SUPPORTED: cuOccupancyMaxActiveClusters(&mut 0, none, &raw));
        let mut value = -1;
        let cluster_launch = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH;
        ok!(cuDeviceGetAttribute(&mut value, cluster_launch, 0));
        assert_eq!(value, 0);
        ok!(cuCtxSynchronize());
    });
}
