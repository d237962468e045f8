//! The GPUs of this machine, and ranks on them whose kernels ring by themselves.

use crate::Result;
use cudarc::driver::{
    CudaContext, CudaFunction, CudaModule, CudaSlice, CudaStream, LaunchConfig, sys,
};
use cudarc::nvrtc::Ptx;
use ringdove::{Communicator, DeviceHandle, Registered, Settings, device_count, open_device};
use ringdove_kernels::ptx::EXAMPLE_REPORT;
use std::sync::Arc;
use std::time::Duration;

/// One thread in one block.
pub const ONE: LaunchConfig =
    LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };

/// Bytes of each rank's window.
const WINDOW_BYTES: usize = 1 << 20;

/// The GPUs, the driver and what is special about them, as a list.
pub fn describe() -> Result<String> {
    let count = device_count()?;
    if count == 0 {
        return Err("there is no GPU".into());
    }
    let context = open_device(0)?;
    let (major, minor) = context.compute_capability()?;
    let driver = nvml_wrapper::Nvml::init().and_then(|nvml| nvml.sys_driver_version());
    let driver = driver.unwrap_or_else(|error| format!("unknown ({error})"));
    let mut version = 0;
    // SAFETY: the call writes one integer.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result()?;
    let gib = context.total_mem()? as f64 / f64::from(1 << 30);
    Ok(format!(
        "* {count} x {}, {gib:.1} GiB, compute capability {major}.{minor}, {} multiprocessors\n\
         * driver {driver}, CUDA {}.{}\n* ranks are dealt out over the GPUs in turn",
        context.name()?,
        multiprocessors(&context)?,
        version / 1000,
        version % 1000 / 10
    ))
}

/// How many blocks run at a time at least.
pub fn multiprocessors(context: &CudaContext) -> Result<u32> {
    let count = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
    Ok(u32::try_from(context.attribute(count)?)?)
}

/// A context for each of `ranks`, whose buffers `cudarc` does not track.
pub fn contexts(ranks: usize) -> Result<Vec<Arc<CudaContext>>> {
    let devices = device_count()?;
    (0..ranks)
        .map(|rank| {
            let context = open_device(rank % devices)?;
            // SAFETY: each buffer of this program is used on one stream, or after a wait for it.
            unsafe { context.disable_event_tracking() };
            Ok(context)
        })
        .collect()
}

/// Settings for measurements: unless the environment says how long, a wait that does not end is an
/// error well before a part's limit.
pub fn settings() -> Result<Settings> {
    let settings = Settings::from_env()?;
    let is_set = std::env::var_os("RINGDOVE_TIMEOUT_MS").is_some();
    let wait_timeout = if is_set { settings.wait_timeout } else { Duration::from_secs(20) };
    Ok(Settings { user_lanes: 1, wait_timeout, ..settings })
}

/// A kernel of `kernels/cuda/example_report.cu`.
pub fn load(context: &Arc<CudaContext>) -> Result<Arc<CudaModule>> {
    Ok(context.load_module(Ptx::from_src(EXAMPLE_REPORT))?)
}

/// One of two ranks.
pub struct Rank<'c> {
    pub communicator: &'c Communicator,
    pub stream: Arc<CudaStream>,
    pub handle: DeviceHandle<'c>,
    pub times: CudaSlice<u64>,
    module: Arc<CudaModule>,
    _window: Registered<u64>,
}

impl Rank<'_> {
    pub fn kernel(&self, name: &str) -> Result<CudaFunction> {
        Ok(self.module.load_function(name)?)
    }

    /// Waits for the kernels; gives the times that they have left.
    pub fn times(&self) -> Result<Vec<u64>> {
        self.stream.synchronize()?;
        self.communicator.check()?;
        let times = self.stream.clone_dtoh(&self.times)?;
        self.stream.synchronize()?;
        Ok(times)
    }

    /// Clears them for the next kernel.
    pub fn clear(&mut self) -> Result<()> {
        self.stream.memset_zeros(&mut self.times)?;
        Ok(self.stream.synchronize()?)
    }
}

/// Two ranks, each with a window that the other one may write into.
pub fn with_two_ranks(
    settings: &Settings,
    body: impl FnOnce(&mut [Rank<'_>]) -> Result<()>,
) -> Result<()> {
    let contexts = contexts(2)?;
    let communicators = Communicator::init_all(&contexts, settings)?;
    let mut prepared = Vec::new();
    for communicator in &communicators {
        let context = communicator.context();
        let stream = context.new_stream()?;
        let window = stream.alloc_zeros::<u64>(WINDOW_BYTES / 8)?;
        // A place for each block, and two more.
        let times = stream.alloc_zeros::<u64>(2 * multiprocessors(context)? as usize + 2)?;
        stream.synchronize()?;
        prepared.push((stream, communicator.register(window)?, times, load(context)?));
    }
    let mut ranks = Vec::new();
    for (communicator, (stream, window, times, module)) in communicators.iter().zip(prepared) {
        let handle = communicator.device_handle(&[window.registration()])?;
        ranks.push(Rank { communicator, stream, handle, times, module, _window: window });
    }
    body(&mut ranks)
}

/// The value in the middle, of an odd number.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
