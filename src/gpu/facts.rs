//! What the driver says of its devices, for reports. No context is made: a report must not take
//! memory on the GPUs that it speaks of.

use super::device_count;
use super::driver::{check_anywhere, pci_address_of};

use crate::error::{Error, Result};
use cudarc::driver::{result, sys};
use sys::CUdevice_attribute as Attribute;

/// How many hardware queues a context asks for.
const CONNECTIONS: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

/// The driver and its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverFacts {
    /// The CUDA version that the driver implements: major, minor.
    pub cuda_version: (u32, u32),
    /// The devices that this process sees.
    pub devices: Vec<DeviceFacts>,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Its product name.
    pub name: String,
    /// `domain:bus:device.0`, in hexadecimal.
    pub pci: String,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Major, minor.
    pub compute_capability: (u32, u32),
    /// Whether its driver exports device memory as dma-bufs.
    pub exports_dma_buffers: bool,
    /// Whether adapters may reach its memory at all.
    pub direct_rdma: bool,
    /// Who may use it.
    pub compute_mode: ComputeMode,
    /// Whether its streams have memory operations on words of 64 bits.
    pub stream_memory_operations: bool,
    /// For each device, itself included, whether its memory can be reached from this one.
    pub reaches: Vec<bool>,
}

/// Who may use a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeMode {
    /// Everybody.
    Shared,
    /// One process at a time.
    ExclusiveProcess,
    /// Nobody.
    Prohibited,
}

/// The most hardware queues that a context can have.
pub(super) const QUEUES_MAX: u32 = 32;

/// How many hardware queues the streams of a context share, and whether the user has said so.
pub(crate) fn hardware_queues() -> (u32, bool) {
    /// What drivers give a context that asks for nothing.
    const DEFAULT: u32 = 8;
    let set = std::env::var(CONNECTIONS).ok().and_then(|text| text.parse::<u32>().ok());
    (set.map_or(DEFAULT, |count| count.clamp(1, QUEUES_MAX)), set.is_some())
}

impl DriverFacts {
    /// Asks the driver.
    ///
    /// # Errors
    /// As [`device_count`].
    pub fn read() -> Result<Self> {
        let count = device_count()?;
        let mut version = 0;
        // SAFETY: `version` outlives the call.
        check_anywhere("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) })?;
        let version = u32::try_from(version).unwrap_or(0);
        let handles = (0..i32::try_from(count).unwrap_or(i32::MAX))
            .map(|ordinal| result::device::get(ordinal).map_err(Error::from_driver("cuDeviceGet")))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
            cuda_version: (version / 1000, version % 1000 / 10),
            devices: handles.iter().map(|&one| device(one, &handles)).collect::<Result<_>>()?,
        })
    }
}

fn device(device: sys::CUdevice, all: &[sys::CUdevice]) -> Result<DeviceFacts> {
    // SAFETY: `device` came from `cuDeviceGet`.
    let attribute = |attribute| unsafe { result::device::get_attribute(device, attribute) };
    let ask = |which| {
        let value = attribute(which).map_err(Error::from_driver("cuDeviceGetAttribute"))?;
        Ok::<u32, Error>(u32::try_from(value).unwrap_or(0))
    };
    // Drivers that are older than the question have not got what it asks for.
    let has = |which| attribute(which).is_ok_and(|value| value == 1);
    // SAFETY: as above.
    let memory = unsafe { result::device::total_mem(device) };
    let reaches = all.iter().map(|&other| reaches(device, other)).collect::<Result<_>>()?;
    Ok(DeviceFacts {
        name: result::device::get_name(device).map_err(Error::from_driver("cuDeviceGetName"))?,
        pci: pci_address_of(device)?,
        memory_bytes: memory.map_err(Error::from_driver("cuDeviceTotalMem"))? as u64,
        compute_capability: (
            ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        exports_dma_buffers: has(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED),
        direct_rdma: has(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED),
        stream_memory_operations: has(Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS),
        compute_mode: match ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)? {
            2 => ComputeMode::Prohibited,
            3 => ComputeMode::ExclusiveProcess,
            _ => ComputeMode::Shared,
        },
        reaches,
    })
}

fn reaches(from: sys::CUdevice, to: sys::CUdevice) -> Result<bool> {
    if from == to {
        return Ok(true);
    }
    let mut possible = 0;
    // SAFETY: both devices came from `cuDeviceGet`, and `possible` outlives the call.
    let status = unsafe { sys::cuDeviceCanAccessPeer(&mut possible, from, to) };
    check_anywhere("cuDeviceCanAccessPeer", status).map(|()| possible != 0)
}
