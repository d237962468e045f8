//! The executor kernel: loaded once for each context, launched once for each plan.

use super::code::{self, Code};
use super::driver::{blocks_at_once, check_anywhere};
use super::{Current, DeviceMemory, PinnedMemory, discard};
use crate::error::{Error, Result};
use cudarc::driver::{CudaContext, CudaStream, result, sys};
use ringdove_kernels::launch::LaunchArguments;
use ringdove_kernels::ptx;
use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Instant;

/// Drivers from this one on, CUDA 12.4, have `cuFuncLoad`.
const FUNCTION_LOAD_SINCE: i32 = 12_040;

/// The executor kernel, loaded into one context: all ranks on it share the code.
#[derive(Debug)]
pub(crate) struct Executor {
    context: Arc<CudaContext>,
    cubins: Option<PathBuf>,
    module: OnceLock<Arc<Module>>,
}

/// The code of each context that has executors.
static LOADED: Mutex<Vec<Weak<Module>>> = Mutex::new(Vec::new());

impl Executor {
    /// The device code, loaded now if no rank on the context has it. Loading may synchronise the
    /// device, so it belongs to initialisation: a load beside a kernel that waits for a peer could
    /// not end. `eagerly`: all of it now, whatever CUDA_MODULE_LOADING says, and nothing at the
    /// first launch; else all of it then. `cubins`: a folder with machine code, if any.
    pub fn load(context: &Arc<CudaContext>, cubins: Option<&Path>, eagerly: bool) -> Result<Self> {
        let (context, cubins) = (context.clone(), cubins.map(Path::to_path_buf));
        let executor = Self { context, cubins, module: OnceLock::new() };
        if eagerly {
            executor.module(true)?;
        }
        Ok(executor)
    }

    /// The code, loaded now if it is not there.
    fn module(&self, eagerly: bool) -> Result<&Arc<Module>> {
        if let Some(module) = self.module.get() {
            return Ok(module);
        }
        let module = Module::of(&self.context, self.cubins.as_deref(), eagerly)?;
        Ok(self.module.get_or_init(|| module))
    }

    /// How many blocks of `threads` threads the device runs at a time.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda) with the driver's answer.
    pub fn blocks_at_once(&self, threads: u32) -> Result<u32> {
        let function = self.module(true)?.function;
        // SAFETY: the function is loaded into this context.
        let (each, multiprocessors) = unsafe { blocks_at_once(&self.context, function, threads)? };
        Ok(each * multiprocessors)
    }

    /// Enqueues one launch on `stream`: the only driver call of a collective in steady state.
    pub fn launch(
        &self,
        stream: &CudaStream,
        blocks: u32,
        threads: u32,
        arguments: &LaunchArguments,
    ) -> Result<()> {
        let module = self.module(false)?;
        let current = Current::bind(&self.context)?;
        let mut parameters = [std::ptr::from_ref(arguments).cast_mut().cast::<c_void>()];
        // SAFETY: the function takes one `LaunchArguments` by value, which the driver copies
        // before it returns. What the addresses in it mean is the communicator's contract: they
        // name allocations that outlive the launch, and the executor refuses malformed plans.
        current.check("cuLaunchKernel", unsafe {
            sys::cuLaunchKernel(
                module.function,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                stream.cu_stream(),
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        })
    }
}

/// Device code in a context.
#[derive(Debug)]
struct Module {
    context: Arc<CudaContext>,
    module: sys::CUmodule,
    function: sys::CUfunction,
}

// SAFETY: module and function are driver handles; the driver allows their use from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// The code in `context`, loaded now if no rank on the context has it.
    fn of(context: &Arc<CudaContext>, cubins: Option<&Path>, eagerly: bool) -> Result<Arc<Self>> {
        // Held while it is loaded: ranks of other threads wait for the code, and have it then.
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.retain(|module| module.strong_count() > 0);
        let of_context = |module: &Arc<Self>| module.context.cu_ctx() == context.cu_ctx();
        if let Some(module) = loaded.iter().filter_map(Weak::upgrade).find(of_context) {
            return Ok(module);
        }
        let span = tracing::debug_span!("load device code", gpu = context.ordinal()).entered();
        let began = Instant::now();
        let (module, code) = Self::best(context, cubins, eagerly)?;
        let module = Arc::new(module);
        drop(span);
        let (gpu, took) = (context.ordinal(), began.elapsed());
        tracing::debug!(gpu, ?took, bytes = code.bytes().len(), from = %code, "device code loaded");
        loaded.push(Arc::downgrade(&module));
        Ok(module)
    }

    /// The machine code for this GPU, if `cubins` has some that the driver takes; else the text,
    /// which the driver compiles.
    fn best(
        context: &Arc<CudaContext>,
        cubins: Option<&Path>,
        eagerly: bool,
    ) -> Result<(Self, Code)> {
        let gpu = context.ordinal();
        if let Some(folder) = cubins {
            let capability = compute_capability(context)?;
            let reason = match code::machine_code(folder, ptx::EXECUTOR, capability) {
                Ok(code) => match Self::load(context, &code, eagerly) {
                    Err(error) if code::is_of_another_gpu(&error) => format!("{code}: {error}"),
                    loaded => return Ok((loaded?, code)),
                },
                Err(reason) => reason,
            };
            tracing::warn!(gpu, %reason, "the driver compiles PTX instead of loading machine code");
        }
        let code = Code::text(ptx::EXECUTOR);
        Ok((Self::load(context, &code, eagerly)?, code))
    }

    fn load(context: &Arc<CudaContext>, code: &Code, eagerly: bool) -> Result<Self> {
        let current = Current::bind(context)?;
        let mut module = std::ptr::null_mut();
        // SAFETY: the code is text that ends with NUL, or machine code, whose header says how long
        // it is; it outlives the call, and the context is current.
        current.check("cuModuleLoadData", unsafe {
            sys::cuModuleLoadData(&mut module, code.bytes().as_ptr().cast())
        })?;
        let mut loaded = Self { context: context.clone(), module, function: std::ptr::null_mut() };
        loaded.function = load_function(&current, module, ptx::EXECUTOR_ENTRY, eagerly)?;
        Ok(loaded)
    }
}

/// A function of a module that is loaded. `eagerly`: its code too, and not at the first launch.
pub(super) fn load_function(
    current: &Current,
    module: sys::CUmodule,
    entry: &str,
    eagerly: bool,
) -> Result<sys::CUfunction> {
    let entry = CString::new(entry).expect("the entry's name holds no NUL");
    let mut function = std::ptr::null_mut();
    // SAFETY: the module is loaded and `entry` is NUL-terminated.
    current.check("cuModuleGetFunction", unsafe {
        sys::cuModuleGetFunction(&mut function, module, entry.as_ptr())
    })?;
    // Older drivers load a function when its handle is asked for.
    if eagerly && driver_version()? >= FUNCTION_LOAD_SINCE {
        // SAFETY: the module has this function.
        current.check("cuFuncLoad", unsafe { sys::cuFuncLoad(function) })?;
    }
    Ok(function)
}

impl Drop for Module {
    fn drop(&mut self) {
        discard(Unloaded { context: self.context.clone(), module: self.module });
    }
}

/// A module that nobody uses any more.
pub(super) struct Unloaded {
    pub context: Arc<CudaContext>,
    pub module: sys::CUmodule,
}

// SAFETY: as of `Module`.
unsafe impl Send for Unloaded {}

impl Drop for Unloaded {
    fn drop(&mut self) {
        if Current::bind(&self.context).is_ok() {
            // SAFETY: its owner has loaded it, and drops it after its last launch has ended.
            unsafe { sys::cuModuleUnload(self.module) };
        }
    }
}

/// Major and minor version of what a context's GPU can do.
pub(super) fn compute_capability(context: &CudaContext) -> Result<(i32, i32)> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
    };
    // SAFETY: the device is that of a live context.
    let attribute = |which| unsafe { result::device::get_attribute(context.cu_device(), which) };
    let both = attribute(MAJOR).and_then(|major| Ok((major, attribute(MINOR)?)));
    both.map_err(Error::from_driver("cuDeviceGetAttribute"))
}

fn driver_version() -> Result<i32> {
    let mut version = 0;
    // SAFETY: `version` outlives the call.
    check_anywhere("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) })?;
    Ok(version)
}

/// Moves encoded plans to the device in stream order.
///
/// The bytes wait in pinned memory at the same offset as on the device. A blocking copy would not
/// do: it waits for the legacy default stream, and so for kernels that wait for this very launch.
#[derive(Debug)]
pub(crate) struct Upload {
    context: Arc<CudaContext>,
    staging: PinnedMemory,
    device: DeviceMemory,
}

impl Upload {
    /// Room for `bytes` of encoded plans.
    pub fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Self> {
        Ok(Self {
            context: context.clone(),
            staging: PinnedMemory::unwritten(context, bytes)?,
            device: DeviceMemory::with_zeros(context, bytes, [])?,
        })
    }

    /// Bytes of room.
    pub fn bytes(&self) -> usize {
        self.device.bytes()
    }

    /// Device address of `offset`.
    pub fn address(&self, offset: usize) -> u64 {
        self.device.address() + offset as u64
    }

    /// Enqueues the copy of `bytes` to `offset`. The caller hands out each range once until all
    /// launches that read it have ended.
    pub fn enqueue(&self, offset: usize, bytes: &[u8], stream: &CudaStream) -> Result<()> {
        self.put(offset, bytes);
        self.copy(offset, bytes.len(), stream)
    }

    /// Puts `bytes` where a copy takes them from. No copy of the range is under way.
    pub fn put(&self, offset: usize, bytes: &[u8]) {
        assert!(offset.checked_add(bytes.len()).is_some_and(|end| end <= self.staging.bytes()));
        // SAFETY: the range lies inside the staging area, and by this function's contract no copy
        // that reads it is under way.
        unsafe {
            let target = self.staging.host().add(offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
        }
    }

    /// Enqueues the copy of what was put at `offset`.
    pub fn copy(&self, offset: usize, bytes: usize, stream: &CudaStream) -> Result<()> {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.staging.bytes()));
        // The stream may be the NULL stream: that of the context which is current.
        let current = Current::bind(&self.context)?;
        // SAFETY: both ranges lie inside their allocations, which outlive the stream's work.
        current.check("cuMemcpyHtoDAsync", unsafe {
            sys::cuMemcpyHtoDAsync_v2(
                self.address(offset),
                self.staging.host().add(offset).cast_const().cast(),
                bytes,
                stream.cu_stream(),
            )
        })
    }
}
