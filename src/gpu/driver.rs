//! Driver calls that have no safe form in `cudarc`, with typed errors.

use super::Current;
use crate::error::{Error, Result};
use cudarc::driver::{CudaContext, DriverError, result, sys};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use std::sync::Arc;

const ADVICE: &str = "install the driver of an NVIDIA GPU, or run the same command on virtual \
                      hardware: hwsim run -- COMMAND";

/// Turns the status of a driver call that acts on no context into an error that names the call. All
/// others are checked by [`Current::check`].
pub(super) fn check_anywhere(call: &'static str, status: sys::CUresult) -> Result<()> {
    if status == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { Err(cuda_error(call, status)) }
}

fn cuda_error(call: &'static str, status: sys::CUresult) -> Error {
    let name = format!("{status:?}{}", limit_of(status).unwrap_or_default());
    Error::Cuda { call: call.to_owned(), code: status as u32, name }
}

/// The limit that may be behind a status which names no cause: drivers reserve address space for
/// the memory of all GPUs and more, and do not say that they were refused it.
fn limit_of(status: sys::CUresult) -> Option<String> {
    use sys::CUresult as Status;
    let vague = [Status::CUDA_ERROR_OPERATING_SYSTEM, Status::CUDA_ERROR_OUT_OF_MEMORY];
    if !vague.contains(&status) {
        return None;
    }
    let (limit, _) =
        getrlimit(Resource::RLIMIT_AS).ok().filter(|&(soft, _)| soft != RLIM_INFINITY)?;
    Some(format!(
        "; the address space of this process is limited to {} MiB, and CUDA drivers reserve \
         several times the memory of all GPUs: try `ulimit -v unlimited`",
        limit >> 20
    ))
}

impl Error {
    /// An error of `cudarc`'s safe layer, with the name of what was being done.
    pub(crate) fn from_driver(call: &'static str) -> impl Fn(DriverError) -> Error {
        move |error| cuda_error(call, error.0)
    }
}

/// How many CUDA devices there are.
///
/// # Errors
/// [`Error::NotFound`] where no CUDA driver library can be loaded, [`Error::Cuda`] where there is
/// one that does not start.
pub fn device_count() -> Result<usize> {
    // SAFETY: only tries to load the driver library; its initialisers are the vendor's.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::NotFound {
            wanted: "CUDA driver".into(),
            looked_for: "libcuda.so.1 on the library path".into(),
            advice: ADVICE.into(),
        });
    }
    // `CUDA_ERROR_NO_DEVICE` says that the driver is there and finds nothing.
    // SAFETY: no preconditions.
    match unsafe { sys::cuInit(0) } {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => return Ok(0),
        status => check_anywhere("cuInit", status)?,
    }
    let count = CudaContext::device_count().map_err(Error::from_driver("cuDeviceGetCount"))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// The primary context of device `ordinal`.
///
/// # Errors
/// [`Error::NotFound`] (driver, or device with how many there are), or [`Error::Cuda`].
pub fn open_device(ordinal: usize) -> Result<Arc<CudaContext>> {
    let present = device_count()?;
    if ordinal >= present {
        return Err(Error::NotFound {
            wanted: format!("CUDA device {ordinal}"),
            looked_for: format!("devices of the CUDA driver, found {present}"),
            advice: ADVICE.into(),
        });
    }
    CudaContext::new(ordinal).map_err(Error::from_driver("cuDevicePrimaryCtxRetain"))
}

/// Whether one device's kernels and copy engines reach another's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Same device, or peer access was enabled.
    Direct,
    /// The devices have no path for peer access; copies go through the host.
    ThroughHost,
}

/// Enables access from `from`'s device to memory of `to`'s.
pub(crate) fn enable_peer_access(from: &CudaContext, to: &CudaContext) -> Result<Access> {
    if from.cu_ctx() == to.cu_ctx() {
        return Ok(Access::Direct);
    }
    let mut possible = 0;
    // SAFETY: both devices are those of live contexts, and `possible` outlives the call.
    check_anywhere("cuDeviceCanAccessPeer", unsafe {
        sys::cuDeviceCanAccessPeer(&mut possible, from.cu_device(), to.cu_device())
    })?;
    if possible == 0 && from.cu_device() != to.cu_device() {
        return Ok(Access::ThroughHost);
    }
    open_to_current(&Current::bind(from)?, to)?;
    Ok(Access::Direct)
}

/// Opens the memory of `peer`'s device to the current context, if it is not open.
pub(super) fn open_to_current(current: &Current, peer: &CudaContext) -> Result<()> {
    // SAFETY: `peer` is a live context, and a context is current.
    match unsafe { sys::cuCtxEnablePeerAccess(peer.cu_ctx(), 0) } {
        sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
        status => current.check("cuCtxEnablePeerAccess", status),
    }
}

/// Where a device hangs in the PCI tree: `domain:bus:device.0`, in hexadecimal.
pub(crate) fn pci_address(context: &CudaContext) -> Result<String> {
    pci_address_of(context.cu_device())
}

/// The same, for a device that the driver has given.
pub(super) fn pci_address_of(device: sys::CUdevice) -> Result<String> {
    use sys::CUdevice_attribute as Attribute;
    let ask = |attribute| {
        // SAFETY: the driver refuses a number that is no device.
        let value = unsafe { result::device::get_attribute(device, attribute) };
        value.map_err(Error::from_driver("cuDeviceGetAttribute"))
    };
    let domain = ask(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
    let bus = ask(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?;
    let device = ask(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?;
    Ok(format!("{domain:04x}:{bus:02x}:{device:02x}.0"))
}

/// How many blocks of `threads` threads each multiprocessor of the context's device runs at a time,
/// and how many multiprocessors there are.
///
/// # Safety
/// `function` is loaded into this context.
pub(super) unsafe fn blocks_at_once(
    context: &Arc<CudaContext>,
    function: sys::CUfunction,
    threads: u32,
) -> Result<(u32, u32)> {
    use sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as COUNT;
    let current = Current::bind(context)?;
    let mut each = 0;
    // SAFETY: the function is loaded, by the caller's word, and `each` outlives the call.
    current.check("cuOccupancyMaxActiveBlocksPerMultiprocessor", unsafe {
        let threads = threads as i32;
        sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut each, function, threads, 0)
    })?;
    // SAFETY: the device is that of a live context.
    let count = unsafe { result::device::get_attribute(context.cu_device(), COUNT) };
    let count = count.map_err(Error::from_driver("cuDeviceGetAttribute"))?;
    Ok((u32::try_from(each).unwrap_or(0), u32::try_from(count).unwrap_or(0)))
}

/// Does the device see an adapter's writes into its memory no later than the host sees the
/// adapter's reports of them? If not, whoever sees a report must flush before the device gets its
/// signal.
pub(crate) fn orders_adapter_writes(context: &CudaContext) -> Result<bool> {
    use sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING as ORDERING;
    let ordering = context.attribute(ORDERING).map_err(Error::from_driver("cuDeviceGetAttribute"));
    // The driver's scale: 0 nobody does, 100 the device that owns the memory, 200 all devices.
    ordering.map(|ordering| ordering >= 100)
}
