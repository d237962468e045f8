//! Launches, what a kernel needs, and occupancy.

use crate::call::{In, Out, Stream, runtime_calls, stream};
use crate::driver::{self, Handle, LaunchConfig};
use crate::error::{
    INVALID_CONFIGURATION, INVALID_DEVICE_FUNCTION, INVALID_VALUE, MISSING_CONFIGURATION, Outcome,
    set_last,
};
use crate::registry::{function, kernel, note_handle};
use std::cell::RefCell;
use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicU32, Ordering};

/// `dim3`, by value.
#[derive(Clone, Copy)]
#[repr(C)]
struct Dim3 {
    x: c_uint,
    y: c_uint,
    z: c_uint,
}

/// The launch configuration of `<<<...>>>`.
#[derive(Clone, Copy)]
struct Configuration {
    grid: Dim3,
    block: Dim3,
    shared_bytes: usize,
    stream: Stream,
}

/// `cudaLaunchConfig_t`
#[derive(Clone, Copy)]
#[repr(C)]
struct ExtendedConfiguration {
    grid: Dim3,
    block: Dim3,
    shared_bytes: usize,
    stream: Stream,
    attributes: u64,
    attribute_count: c_uint,
}

/// `cudaFuncAttributes`
#[repr(C)]
struct FunctionAttributes {
    shared_bytes: usize,
    constant_bytes: usize,
    local_bytes: usize,
    block_threads_max: c_int,
    registers: c_int,
    ptx_version: c_int,
    binary_version: c_int,
    cache_mode: c_int,
    dynamic_shared_max: c_int,
    carveout: c_int,
    cluster: [c_int; 6],
    reserved: [c_int; 16],
}

const _: () = assert!(size_of::<ExtendedConfiguration>() == 56);
const _: () = assert!(size_of::<FunctionAttributes>() == 144);

thread_local! {
    /// Configurations between `<<<...>>>` and the stub that launches.
    static PUSHED: RefCell<Vec<Configuration>> = const { RefCell::new(Vec::new()) };
}

/// Why a stub got no kernel last.
static REFUSED: AtomicU32 = AtomicU32::new(INVALID_DEVICE_FUNCTION);

/// A launch's shape, in the driver's types. What no device can run is this error here, where the
/// driver knows invalid values only.
fn shape(configuration: Configuration) -> Outcome<([c_uint; 3], [c_uint; 3], c_uint)> {
    let Configuration { grid, block, shared_bytes, .. } = configuration;
    let (grid, block) = ([grid.x, grid.y, grid.z], [block.x, block.y, block.z]);
    let threads = block.iter().map(|&extent| u64::from(extent)).product::<u64>();
    let empty = grid.contains(&0) || threads == 0;
    match c_uint::try_from(shared_bytes) {
        Ok(shared_bytes) if !empty && threads <= BLOCK_THREADS_MAX => {
            Ok((grid, block, shared_bytes))
        }
        _ => Err(INVALID_CONFIGURATION),
    }
}

/// An extended configuration, in the driver's types.
fn of_driver(config: ExtendedConfiguration) -> Outcome<LaunchConfig> {
    let ExtendedConfiguration { grid, block, shared_bytes, stream: on, .. } = config;
    let (grid, block, shared_bytes) =
        shape(Configuration { grid, block, shared_bytes, stream: on })?;
    let (attributes, attribute_count) = (config.attributes, config.attribute_count);
    Ok(LaunchConfig { grid, block, shared_bytes, stream: stream(on), attributes, attribute_count })
}

/// On every device there is.
const BLOCK_THREADS_MAX: u64 = 1024;

fn launch(
    kernel: Handle,
    configuration: Configuration,
    arguments: u64,
    cooperative: bool,
) -> Outcome {
    let (grid, block, shared) = shape(configuration)?;
    let ([x, y, z], [tx, ty, tz], on) = (grid, block, stream(configuration.stream));
    let launched = if cooperative {
        driver::cuLaunchCooperativeKernel(kernel, x, y, z, tx, ty, tz, shared, on, arguments)
    } else {
        driver::cuLaunchKernel(kernel, x, y, z, tx, ty, tz, shared, on, arguments, 0)
    };
    launched.map_err(configuration_error)
}

/// Shared memory or a grid that the device does not have.
fn configuration_error(code: c_uint) -> c_uint {
    if code == INVALID_VALUE { INVALID_CONFIGURATION } else { code }
}

fn function_attribute(function: Handle, attribute: c_int) -> Outcome<c_int> {
    let mut value = 0;
    driver::cuFuncGetAttribute(Out::to(&mut value), attribute, function)?;
    Ok(value)
}

fn attributes(function: Handle) -> Outcome<FunctionAttributes> {
    let number = |attribute| function_attribute(function, attribute);
    let bytes = |attribute| number(attribute).map(|value| value as usize);
    // Clusters came later than everything else: a driver need not know them.
    let cluster = |attribute| number(attribute).unwrap_or(0);
    Ok(FunctionAttributes {
        shared_bytes: bytes(1)?,
        constant_bytes: bytes(2)?,
        local_bytes: bytes(3)?,
        block_threads_max: number(0)?,
        registers: number(4)?,
        ptx_version: number(5)?,
        binary_version: number(6)?,
        cache_mode: number(7)?,
        dynamic_shared_max: number(8)?,
        carveout: number(9)?,
        cluster: [10, 11, 12, 13, 15, 14].map(cluster),
        reserved: [0; 16],
    })
}

/// Before a stub is called. Zero is success, as in the calls.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is the vendor's")]
extern "C" fn __cudaPushCallConfiguration(
    grid: Dim3,
    block: Dim3,
    shared_bytes: usize,
    stream: Stream,
) -> c_uint {
    let configuration = Configuration { grid, block, shared_bytes, stream };
    PUSHED.with_borrow_mut(|pushed| pushed.push(configuration));
    0
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is the vendor's")]
extern "C" fn __cudaPopCallConfiguration(
    grid: Out<Dim3>,
    block: Out<Dim3>,
    shared_bytes: Out<usize>,
    stream: Out<Stream>,
) -> c_uint {
    let Some(configuration) = PUSHED.with_borrow_mut(Vec::pop) else {
        set_last(MISSING_CONFIGURATION);
        return MISSING_CONFIGURATION;
    };
    grid.set_if(configuration.grid);
    block.set_if(configuration.block);
    shared_bytes.set_if(configuration.shared_bytes);
    stream.set_if(configuration.stream);
    0
}

runtime_calls! {
    with device_call;

    #[twin(cudaLaunchKernel_ptsz)]
    fn cudaLaunchKernel(
        host: u64, grid: Dim3, block: Dim3, arguments: u64, shared_bytes: usize, stream: Stream,
    ) {
        let configuration = Configuration { grid, block, shared_bytes, stream };
        launch(kernel(host)?, configuration, arguments, false)
    }

    #[twin(cudaLaunchCooperativeKernel_ptsz)]
    fn cudaLaunchCooperativeKernel(
        host: u64, grid: Dim3, block: Dim3, arguments: u64, shared_bytes: usize, stream: Stream,
    ) {
        let configuration = Configuration { grid, block, shared_bytes, stream };
        launch(kernel(host)?, configuration, arguments, true)
    }

    #[twin(__cudaLaunchKernel_ptsz)]
    fn __cudaLaunchKernel(
        kernel: Handle, grid: Dim3, block: Dim3, arguments: u64, shared_bytes: usize,
        stream: Stream,
    ) {
        // The stub has asked for the kernel, once and for all, and does not look at the error.
        if kernel == 0 {
            return Err(REFUSED.load(Ordering::Relaxed));
        }
        let configuration = Configuration { grid, block, shared_bytes, stream };
        launch(kernel, configuration, arguments, false)
    }

    #[twin(cudaLaunchKernelExC_ptsz)]
    fn cudaLaunchKernelExC(config: In<ExtendedConfiguration>, host: u64, arguments: u64) {
        let config = of_driver(config.get()?)?;
        driver::cuLaunchKernelEx(In::of(&config), kernel(host)?, arguments, 0)
            .map_err(configuration_error)
    }

    fn __cudaGetKernel(handle: Out<Handle>, host: u64) {
        // Relaxed: a stub launches on the thread that asked; of several reasons any will do.
        let found = kernel(host).inspect_err(|&code| REFUSED.store(code, Ordering::Relaxed))?;
        note_handle(found);
        handle.set(found)
    }

    fn cudaGetKernel(handle: Out<Handle>, host: u64) {
        let found = kernel(host)?;
        note_handle(found);
        handle.set(found)
    }

    fn cudaGetFuncBySymbol(handle: Out<Handle>, host: u64) {
        handle.set(function(host)?)
    }

    fn cudaFuncGetName(name: Out<u64>, host: u64) {
        driver::cuFuncGetName(name, function(host)?)
    }

    fn cudaFuncGetParamInfo(host: u64, index: usize, offset: Out<usize>, bytes: Out<usize>) {
        driver::cuFuncGetParamInfo(function(host)?, index, offset, bytes)
    }

    fn cudaFuncGetAttributes(to: Out<FunctionAttributes>, host: u64) {
        to.set(attributes(function(host)?)?)
    }

    fn cudaFuncSetAttribute(host: u64, attribute: c_int, value: c_int) {
        driver::cuFuncSetAttribute(function(host)?, attribute, value)
    }

    fn cudaFuncSetCacheConfig(host: u64, config: c_int) {
        driver::cuFuncSetCacheConfig(function(host)?, config)
    }

    fn cudaFuncSetSharedMemConfig(host: u64, _config: c_int) {
        // Banks have one width on every device of today.
        function(host).map(drop)
    }

    fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Out<c_int>, host: u64, threads: c_int, shared: usize,
    ) {
        let function = function(host)?;
        driver::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
            blocks, function, threads, shared, 0,
        )
    }

    fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<c_int>, host: u64, threads: c_int, shared: usize, flags: c_uint,
    ) {
        let function = function(host)?;
        driver::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
            blocks, function, threads, shared, flags,
        )
    }

    fn cudaOccupancyMaxActiveClusters(
        clusters: Out<c_int>, host: u64, config: In<ExtendedConfiguration>,
    ) {
        let config = of_driver(config.get()?)?;
        driver::cuOccupancyMaxActiveClusters(clusters, function(host)?, In::of(&config))
    }

    fn cudaOccupancyMaxPotentialClusterSize(
        blocks: Out<c_int>, host: u64, config: In<ExtendedConfiguration>,
    ) {
        let config = of_driver(config.get()?)?;
        driver::cuOccupancyMaxPotentialClusterSize(blocks, function(host)?, In::of(&config))
    }

    fn cudaOccupancyAvailableDynamicSMemPerBlock(
        bytes: Out<usize>, host: u64, blocks: c_int, threads: c_int,
    ) {
        driver::cuOccupancyAvailableDynamicSMemPerBlock(bytes, function(host)?, blocks, threads)
    }
}
