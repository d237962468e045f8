//! Launches and occupancy.

use super::call::{In, Out, driver_calls};
use super::code::{INVALID_VALUE, NOT_SUPPORTED, Outcome, refuse};
use super::handles::Handle;
use super::{gate, library, state};
use hwsim_machine::clusters;
use hwsim_machine::error::Error;
use hwsim_machine::footprint::{Footprint, WARP_THREADS};
use hwsim_machine::gpu::BLOCK_THREADS_MAX;
use hwsim_machine::graph::{KernelLaunch, Shape};
use hwsim_machine::{Function, LaunchRequest};
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

/// Where a launch's parameters are.
#[derive(Clone, Copy)]
pub(super) struct Parameters {
    /// One pointer for each parameter.
    pub pointers: In<In<u8>>,
    /// Or pairs of option and value, ending with 0: 1 the buffer, 2 a pointer to its size.
    pub extra: In<u64>,
}

impl Parameters {
    /// The parameters' bytes, as the kernel lays them out.
    fn gather(self, function: &Function) -> Outcome<Vec<u8>> {
        let kernel = &function.kernel;
        let mut bytes = vec![0u8; kernel.param_bytes];
        if !self.extra.is_null() && self.pointers.is_null() {
            self.gather_buffer(&mut bytes)?;
            return Ok(bytes);
        }
        for (index, param) in kernel.params.iter().enumerate() {
            let source = self.pointers.at(index).get()?;
            for offset in 0..param.size_bytes {
                bytes[param.offset + offset] = source.at(offset).get()?;
            }
        }
        Ok(bytes)
    }

    fn gather_buffer(self, bytes: &mut [u8]) -> Outcome {
        let (mut buffer, mut size) = (None, 0);
        // Two options there are, and the end.
        for pair in 0..3 {
            let value = || self.extra.at(2 * pair + 1).get();
            match self.extra.at(2 * pair).get()? {
                0 => break,
                1 => buffer = Some(In::<u8>::from_address(value()?)),
                2 => size = In::<u64>::from_address(value()?).get()? as usize,
                option => return refuse(INVALID_VALUE, format!("launch option {option}")),
            }
        }
        let Some(buffer) = buffer.filter(|_| size >= bytes.len()) else {
            let text = format!("{size} bytes of parameters: the kernel expects {}", bytes.len());
            return refuse(INVALID_VALUE, text);
        };
        for (offset, byte) in bytes.iter_mut().enumerate() {
            *byte = buffer.at(offset).get()?;
        }
        Ok(())
    }
}

fn launch(function: Handle, shape: Shape, stream: Handle, parameters: Parameters) -> Outcome {
    let stream = state::stream(stream)?;
    let function = library::function(function)?;
    gate::load(&function);
    let params = parameters.gather(&function)?;
    Ok(LaunchRequest { function: &function, shape, params }.enqueue(&stream)?)
}

/// A launch that can be repeated, its parameters taken now.
pub(super) fn prepare(
    function: &Arc<Function>,
    shape: Shape,
    parameters: Parameters,
) -> Outcome<KernelLaunch> {
    gate::load(function);
    let params = parameters.gather(function)?;
    Ok(LaunchRequest { function, shape, params }.prepare()?)
}

/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`
pub(super) const CLUSTER_DIMENSION: c_int = 4;

/// `CUlaunchConfig`
#[derive(Clone, Copy)]
#[repr(C)]
struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: Handle,
    attributes: In<LaunchAttribute>,
    attribute_count: c_uint,
}

/// `CUlaunchAttribute`
#[derive(Clone, Copy)]
#[repr(C)]
struct LaunchAttribute {
    id: c_int,
    _pad: c_int,
    value: [c_uint; 16],
}

const _: () = assert!(size_of::<LaunchConfig>() == 56 && size_of::<LaunchAttribute>() == 72);

/// Reads the attributes of an extended launch: cooperative and the shape of clusters have an
/// effect; the rest are hints, also what shape would be better.
fn shape_of(config: &LaunchConfig) -> Outcome<Shape> {
    let (mut cooperative, mut cluster) = (false, None);
    for index in 0..config.attribute_count.min(64) as usize {
        let attribute = config.attributes.at(index).get()?;
        match attribute.id {
            2 => cooperative = attribute.value[0] != 0,
            CLUSTER_DIMENSION => {
                let [x, y, z, ..] = attribute.value;
                cluster = Some([x, y, z]);
            }
            _ => {}
        }
    }
    let LaunchConfig { grid, block, shared_bytes, .. } = *config;
    Ok(Shape { grid, block, dynamic_shared_bytes: shared_bytes, cooperative, cluster })
}

/// A launch that says nothing of what came later.
pub(super) fn plain_shape(grid: [u32; 3], block: [u32; 3], dynamic_shared_bytes: u32) -> Shape {
    Shape { grid, block, dynamic_shared_bytes, cooperative: false, cluster: None }
}

/// Blocks of `threads` that one multiprocessor holds.
fn active_blocks(function: &Arc<Function>, threads: c_int, shared: usize) -> Outcome<c_int> {
    let context = &function.module.context;
    let model = context.machine.model(context.gpu);
    let threads = u32::try_from(threads).unwrap_or(0);
    if threads == 0 {
        return refuse(INVALID_VALUE, "a block of 0 threads");
    }
    let Ok(shared) = u32::try_from(shared) else { return Ok(0) };
    if threads > BLOCK_THREADS_MAX || shared > function.dynamic_shared_max() {
        return Ok(0);
    }
    let footprint = Footprint::of(model, &function.kernel, threads, shared);
    Ok(footprint.blocks_per_multiprocessor(model) as c_int)
}

const NO_CLUSTERS: &str = "clusters on a GPU of compute capability below 9.0";

/// What a block of a launch takes; None if no multiprocessor holds it.
fn footprint(function: &Arc<Function>, shape: &Shape) -> Outcome<Option<Footprint>> {
    let threads: u32 = shape.block.iter().product();
    let count = c_int::try_from(threads).unwrap_or(c_int::MAX);
    let bytes = shape.dynamic_shared_bytes;
    let fits = active_blocks(function, count, bytes as usize)? > 0;
    let context = &function.module.context;
    let model = context.machine.model(context.gpu);
    Ok(fits.then(|| Footprint::of(model, &function.kernel, threads, bytes)))
}

/// Clusters of a launch's shape that are resident at once.
fn active_clusters(function: &Arc<Function>, shape: &Shape) -> Outcome<c_int> {
    let context = &function.module.context;
    let model = context.machine.model(context.gpu);
    if !clusters::exist(model) {
        return refuse(NOT_SUPPORTED, NO_CLUSTERS);
    }
    let settings = function.cluster_settings();
    let cluster = settings.shape(&function.kernel, shape.cluster)?.unwrap_or([1; 3]);
    let Some(block) = footprint(function, shape)? else { return Ok(0) };
    let most = settings.blocks_max(&function.kernel);
    match clusters::check(model, (&function.kernel, &block), (cluster, cluster), most) {
        // That none fits is no error here.
        Err(Error::InvalidClusterSize(_)) if cluster.iter().all(|&extent| extent > 0) => Ok(0),
        Err(error) => Err(error.into()),
        Ok(()) => {
            let found = clusters::resident(model, &block, cluster.iter().product());
            Ok(c_int::try_from(found).unwrap_or(c_int::MAX))
        }
    }
}

/// The most blocks of a cluster that a launch's blocks can have.
fn largest_cluster(function: &Arc<Function>, shape: &Shape) -> Outcome<c_int> {
    let context = &function.module.context;
    let model = context.machine.model(context.gpu);
    if !clusters::exist(model) {
        return refuse(NOT_SUPPORTED, NO_CLUSTERS);
    }
    let Some(block) = footprint(function, shape)? else { return Ok(0) };
    let most = function.cluster_settings().blocks_max(&function.kernel);
    let fits = |blocks: &u32| clusters::resident(model, &block, *blocks) > 0;
    Ok((1..=most).rev().find(fits).unwrap_or(0) as c_int)
}

/// Dynamic shared memory that a block of so many threads needs.
type SharedOfBlock = extern "C" fn(c_int) -> usize;

/// The block size that fills a multiprocessor best; the largest of equals.
fn best_block(
    blocks: Out<c_int>,
    block: Out<c_int>,
    function: Handle,
    shared_of: Option<SharedOfBlock>,
    shared: usize,
    limit: c_int,
) -> Outcome {
    let function = library::function(function)?;
    let most = super::module::function_attribute(&function, 0)?;
    let most = if limit > 0 { most.min(limit) } else { most };
    let (mut best, mut found) = (0, (0, 0));
    let mut threads = most / WARP_THREADS as c_int * WARP_THREADS as c_int;
    while threads > 0 {
        let need = shared_of.map_or(shared, |shared_of| shared_of(threads));
        let active = active_blocks(&function, threads, need)?;
        if active * threads > best {
            best = active * threads;
            found = (active, threads);
        }
        threads -= WARP_THREADS as c_int;
    }
    let context = &function.module.context;
    blocks.set(found.0 * context.machine.model(context.gpu).multiprocessors as c_int)?;
    block.set(found.1)
}

driver_calls! {
    #[per_thread(cuLaunchKernel_ptsz)]
    fn cuLaunchKernel(
        function: Handle,
        grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint,
        stream: Handle,
        pointers: In<In<u8>>,
        extra: In<u64>,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let shape = plain_shape(grid, block, shared_bytes);
        launch(function, shape, stream, Parameters { pointers, extra })
    }

    #[per_thread(cuLaunchCooperativeKernel_ptsz)]
    fn cuLaunchCooperativeKernel(
        function: Handle,
        grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint,
        stream: Handle,
        pointers: In<In<u8>>,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let shape = Shape { cooperative: true, ..plain_shape(grid, block, shared_bytes) };
        let extra = In::from_address(0);
        launch(function, shape, stream, Parameters { pointers, extra })
    }

    #[per_thread(cuLaunchKernelEx_ptsz)]
    fn cuLaunchKernelEx(
        config: In<LaunchConfig>, function: Handle, pointers: In<In<u8>>, extra: In<u64>,
    ) {
        let config = config.get()?;
        launch(function, shape_of(&config)?, config.stream, Parameters { pointers, extra })
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Out<c_int>, function: Handle, threads: c_int, shared: usize,
    ) {
        blocks.set(active_blocks(&library::function(function)?, threads, shared)?)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<c_int>, function: Handle, threads: c_int, shared: usize, _flags: c_uint,
    ) {
        blocks.set(active_blocks(&library::function(function)?, threads, shared)?)
    }

    fn cuOccupancyMaxPotentialBlockSize(
        blocks: Out<c_int>, block: Out<c_int>, function: Handle,
        shared_of: Option<SharedOfBlock>, shared: usize, limit: c_int,
    ) {
        best_block(blocks, block, function, shared_of, shared, limit)
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        blocks: Out<c_int>, block: Out<c_int>, function: Handle,
        shared_of: Option<SharedOfBlock>, shared: usize, limit: c_int, _flags: c_uint,
    ) {
        best_block(blocks, block, function, shared_of, shared, limit)
    }

    fn cuOccupancyMaxActiveClusters(
        clusters: Out<c_int>, function: Handle, config: In<LaunchConfig>,
    ) {
        let (function, config) = (library::function(function)?, config.get()?);
        clusters.set(active_clusters(&function, &shape_of(&config)?)?)
    }

    fn cuOccupancyMaxPotentialClusterSize(
        blocks: Out<c_int>, function: Handle, config: In<LaunchConfig>,
    ) {
        let (function, config) = (library::function(function)?, config.get()?);
        blocks.set(largest_cluster(&function, &shape_of(&config)?)?)
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(
        bytes: Out<usize>, function: Handle, blocks: c_int, _threads: c_int,
    ) {
        let function = library::function(function)?;
        let context = &function.module.context;
        let model = context.machine.model(context.gpu);
        let Some(blocks) = u64::try_from(blocks).ok().filter(|&blocks| blocks > 0) else {
            return refuse(INVALID_VALUE, format!("{blocks} blocks"));
        };
        let each = model.shared_memory_per_multiprocessor / blocks / 128 * 128;
        let taken = u64::from(function.kernel.static_shared_bytes)
            + model.shared_memory_reserved_per_block();
        let most = u64::from(function.dynamic_shared_max());
        bytes.set(each.saturating_sub(taken).min(most) as usize)
    }
}
