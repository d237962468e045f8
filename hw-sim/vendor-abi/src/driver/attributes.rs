//! Numbers that programs ask for: device attributes, limits.

use hwsim_machine::description::{Gpu, GpuModel};
use hwsim_machine::footprint::WARP_THREADS;
use hwsim_machine::gpu::{BLOCK_EXTENT_MAX, BLOCK_THREADS_MAX, GRID_EXTENT_MAX};

/// Values of `CUlimit`: stack, printf buffer, heap, launch depth, pending launches, L2 fetch
/// granularity, persisting L2. Those of a fresh context.
pub(crate) const LIMITS: [usize; 7] = [1024, 1 << 20, 8 << 20, 2, 2048, 64, 0];
/// `CU_LIMIT_MALLOC_HEAP_SIZE`, the only one that has an effect.
pub(crate) const HEAP_LIMIT: i32 = 2;

/// The name that the driver reports: it always says that the GPU is virtual.
pub(crate) fn device_name(model: &GpuModel) -> String {
    if model.name.contains("(virtual)") {
        model.name.clone()
    } else {
        format!("{} (virtual)", model.name)
    }
}

/// An attribute of a device; None for a number that is no attribute.
pub(crate) fn of_device(gpu: &Gpu, attribute: i32) -> Option<i32> {
    let model = &gpu.model;
    let shared = model.shared_memory_per_multiprocessor as i32;
    Some(match attribute {
        1 => BLOCK_THREADS_MAX as i32,
        2..=4 => BLOCK_EXTENT_MAX[attribute as usize - 2] as i32,
        5..=7 => GRID_EXTENT_MAX[attribute as usize - 5] as i32,
        8 => GpuModel::SHARED_MEMORY_PER_BLOCK as i32,
        9 => 64 << 10,
        10 => WARP_THREADS as i32,
        11 => i32::MAX,
        12 | 82 => model.registers_per_multiprocessor as i32,
        13 => model.clock_khz as i32,
        14 | 51 => 512,
        16 => model.multiprocessors as i32,
        33 => i32::from(gpu.bus_id.bus),
        34 => i32::from(gpu.bus_id.device),
        36 => model.memory_clock_khz as i32,
        37 => model.memory_bus_bits as i32,
        38 => model.l2_cache_bytes as i32,
        39 => model.threads_per_multiprocessor as i32,
        40 => 3,
        50 => i32::from(gpu.bus_id.domain),
        75 => model.compute_capability.0 as i32,
        76 => model.compute_capability.1 as i32,
        81 => shared,
        87 => 2,
        97 => model.shared_memory_per_block_optin() as i32,
        106 => model.blocks_per_multiprocessor as i32,
        // Clusters, tensor maps.
        120 | 127 => i32::from(hwsim_machine::clusters::exist(model)),
        111 => model.shared_memory_reserved_per_block() as i32,
        // GPUDirect RDMA of memory of cuMemCreate goes by dma-bufs; those themselves.
        110 | 124 => i32::from(model.dma_buf),
        134 => gpu.numa_node as i32,
        _ => return capability(attribute).or_else(|| texture_limit(attribute)),
    })
}

/// Capabilities of the virtual GPU: 1 if supported, else 0.
fn capability(attribute: i32) -> Option<i32> {
    Some(match attribute {
        // Overlap, mapped host memory, concurrent kernels, unified addressing, priorities, L1
        // caches, managed memory, which the host may use beside kernels (as on Linux from Pascal
        // on).
        15 | 19 | 31 | 41 | 78 | 79 | 80 | 83 | 89 => 1,
        // Preemption, registered pointers as they are, stream memory operations, cooperative
        // launch, host registration, memory pools.
        90 | 91 | 92 | 93 | 94 | 95 | 99 | 115 | 122 | 123 => 1,
        // Virtual memory management; its memory is exported as descriptors.
        102 | 103 => 1,
        // GPUDirect RDMA; the host can flush its writes.
        116 | 117 => 1,
        // Writes of other devices are seen in order by every device.
        118 => 200,
        // Kernel timeout, integrated, compute mode (default), ECC, TCC, multi-GPU board, native
        // host atomics, pageable access, multi-device launch, remote write flushes, page tables of
        // the host.
        17 | 18 | 20 | 32 | 35 | 84..=86 | 88 | 96 | 98 | 100 | 101 => 0,
        // Shareable handles of other systems, compression, persisting L2, access policy, sparse
        // arrays, read-only registration, timeline semaphores, NUMA
        // configuration, multicast, MPS.
        104 | 105 | 107..=109 | 112..=114 | 119 | 121 | 125 | 126 | 128..=133 | 135..=160 => 0,
        _ => return None,
    })
}

/// Limits of textures and surfaces, which virtual hardware does not have: all zero.
fn texture_limit(attribute: i32) -> Option<i32> {
    matches!(attribute, 21..=30 | 42..=49 | 52..=74 | 77).then_some(0)
}
