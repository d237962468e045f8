//! Properties of one GPU.
#![allow(non_snake_case, reason = "the names are NVML's")]

use super::{Answer, Out, answer, device, export, fill};
use hwsim_machine::description::{GpuModel, PciBusId};
use nvml_wrapper_sys::bindings as sys;
use std::ffi::{c_char, c_int, c_uint, c_ulong};
use sys::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH as ARGUMENT_VERSION_MISMATCH;
use sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE;
use sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT;
use sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED;
use sys::{
    nvmlBAR1Memory_t, nvmlBrandType_t, nvmlClockType_t, nvmlComputeMode_t, nvmlDevice_t,
    nvmlEnableState_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlPciInfo_t, nvmlReturn_t,
};

/// NVIDIA's vendor number, in the low half of NVML's device id; the high half, which names a
/// product, stays 0: a virtual GPU is none.
const PCI_DEVICE_ID: c_uint = 0x10de;

/// NVML's form of a PCI address.
pub(super) fn pci_info(id: PciBusId) -> nvmlPciInfo_t {
    fn text<const N: usize>(text: &str) -> [c_char; N] {
        let mut bytes = [0; N];
        for (to, byte) in bytes.iter_mut().zip(text.bytes()) {
            *to = byte as c_char;
        }
        bytes
    }
    let PciBusId { domain, bus, device, function } = id;
    nvmlPciInfo_t {
        busIdLegacy: text(&format!("{domain:04X}:{bus:02X}:{device:02X}.{function}")),
        domain: domain.into(),
        bus: bus.into(),
        device: device.into(),
        pciDeviceId: PCI_DEVICE_ID,
        pciSubSystemId: 0,
        busId: text(&format!("{domain:08X}:{bus:02X}:{device:02X}.{function}")),
    }
}

fn architecture(model: &GpuModel) -> c_uint {
    match model.compute_capability {
        (5, _) => sys::NVML_DEVICE_ARCH_MAXWELL,
        (6, _) => sys::NVML_DEVICE_ARCH_PASCAL,
        (7, 5) => sys::NVML_DEVICE_ARCH_TURING,
        (7, _) => sys::NVML_DEVICE_ARCH_VOLTA,
        (8, 9) => sys::NVML_DEVICE_ARCH_ADA,
        (8, _) => sys::NVML_DEVICE_ARCH_AMPERE,
        (9, _) => sys::NVML_DEVICE_ARCH_HOPPER,
        (10.., _) => sys::NVML_DEVICE_ARCH_BLACKWELL,
        _ => sys::NVML_DEVICE_ARCH_UNKNOWN,
    }
}

/// FP32 lanes of a multiprocessor, by compute capability (CUDA programming guide).
fn lanes_per_multiprocessor(model: &GpuModel) -> c_uint {
    match model.compute_capability {
        (6, 0) | (7, _) | (8, 0) => 64,
        _ => 128,
    }
}

fn clock(device: nvmlDevice_t, kind: nvmlClockType_t, to: &Out<c_uint>) -> Answer {
    match kind {
        sys::nvmlClockType_enum_NVML_CLOCK_GRAPHICS | sys::nvmlClockType_enum_NVML_CLOCK_SM => {
            fill(device, to, |gpu| gpu.model.clock_khz / 1000)
        }
        sys::nvmlClockType_enum_NVML_CLOCK_MEM => {
            fill(device, to, |gpu| gpu.model.memory_clock_khz / 1000)
        }
        sys::nvmlClockType_enum_NVML_CLOCK_VIDEO => Err(NOT_SUPPORTED),
        _ => Err(INVALID_ARGUMENT),
    }
}

/// The host's processors: a virtual GPU is near all of them. The machine's own NUMA nodes need not
/// exist here, and a program that pins its threads must find processors that do.
fn host_processors() -> Vec<usize> {
    let listed = std::fs::read_to_string("/sys/devices/system/cpu/online").ok();
    let ranges = listed.as_deref().and_then(parse_ranges);
    ranges.unwrap_or_else(|| {
        (0..std::thread::available_parallelism().map_or(1, usize::from)).collect()
    })
}

/// Reads the kernel's form, like `0-3,8`. `None` if the text is anything else.
fn parse_ranges(text: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        // More than any kernel is built for would be a misreading.
        all.extend((last < 8192).then_some(first..=last)?);
    }
    Some(all)
}

/// Writes a set of small numbers as an array of words, as `cpu_set_t` has it.
fn write_set(members: &[usize], words: c_uint, to: &Out<c_ulong>) -> Answer {
    let (words, bits) = (words as usize, c_ulong::BITS as usize);
    if members.iter().any(|member| member / bits >= words) {
        return Err(INSUFFICIENT_SIZE);
    }
    for word in 0..words {
        let here = members.iter().filter(|member| **member / bits == word);
        to.at(word, words)?.write(here.fold(0, |set, member| set | 1 << (member % bits)))?;
    }
    Ok(())
}

fn cpu_affinity(handle: nvmlDevice_t, words: c_uint, to: &Out<c_ulong>) -> Answer {
    device(handle)?;
    write_set(&host_processors(), words, to)
}

fn fill_pci(device: nvmlDevice_t, to: &Out<nvmlPciInfo_t>) -> Answer {
    fill(device, to, |gpu| pci_info(gpu.bus_id))
}

fn fill_generation(device: nvmlDevice_t, to: &Out<c_uint>) -> Answer {
    fill(device, to, |gpu| gpu.pcie.generation)
}

fn fill_width(device: nvmlDevice_t, to: &Out<c_uint>) -> Answer {
    fill(device, to, |gpu| gpu.pcie.lanes)
}

fn fill_speed(device: nvmlDevice_t, to: &Out<c_uint>) -> Answer {
    // Megatransfers a second of one lane.
    fill(device, to, |gpu| match gpu.pcie.generation {
        1 => 2500,
        2 => 5000,
        generation => 8000 << (generation - 3),
    })
}

export! {
    fn nvmlDeviceGetName(handle: nvmlDevice_t, name: Out<c_char>, length: c_uint) {
        let (machine, ordinal) = device(handle)?;
        name.write_text(length, &machine.gpus[ordinal].model.name)
    }

    fn nvmlDeviceGetUUID(handle: nvmlDevice_t, uuid: Out<c_char>, length: c_uint) {
        let (machine, ordinal) = device(handle)?;
        uuid.write_text(length, &machine.gpus[ordinal].uuid_text())
    }

    fn nvmlDeviceGetIndex(handle: nvmlDevice_t, to: Out<c_uint>) {
        to.write(device(handle)?.1 as c_uint)
    }

    fn nvmlDeviceGetMinorNumber(handle: nvmlDevice_t, to: Out<c_uint>) {
        to.write(device(handle)?.1 as c_uint)
    }

    fn nvmlDeviceGetPciInfo(device: nvmlDevice_t, to: Out<nvmlPciInfo_t>) { fill_pci(device, &to) }
    fn nvmlDeviceGetPciInfo_v2(device: nvmlDevice_t, to: Out<nvmlPciInfo_t>) {
        fill_pci(device, &to)
    }
    fn nvmlDeviceGetPciInfo_v3(device: nvmlDevice_t, to: Out<nvmlPciInfo_t>) {
        fill_pci(device, &to)
    }

    fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, to: Out<nvmlMemory_t>) {
        fill(device, &to, |gpu| {
            let total = gpu.model.memory_bytes;
            nvmlMemory_t { total, free: total, used: 0 }
        })
    }

    fn nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, to: Out<nvmlMemory_v2_t>) {
        let version = to.read()?.version;
        if version as usize != size_of::<nvmlMemory_v2_t>() | 2 << 24 {
            return Err(ARGUMENT_VERSION_MISMATCH);
        }
        fill(device, &to, |gpu| {
            let total = gpu.model.memory_bytes;
            nvmlMemory_v2_t { version, total, reserved: 0, free: total, used: 0 }
        })
    }

    // All of the memory can be mapped, as on GPUs for servers.
    fn nvmlDeviceGetBAR1MemoryInfo(device: nvmlDevice_t, to: Out<nvmlBAR1Memory_t>) {
        fill(device, &to, |gpu| {
            let bar1Total = gpu.model.memory_bytes.next_power_of_two();
            nvmlBAR1Memory_t { bar1Total, bar1Free: bar1Total, bar1Used: 0 }
        })
    }

    fn nvmlDeviceGetCudaComputeCapability(
        device: nvmlDevice_t,
        major: Out<c_int>,
        minor: Out<c_int>,
    ) {
        major.check()?;
        minor.check()?;
        fill(device, &major, |gpu| gpu.model.compute_capability.0 as c_int)?;
        fill(device, &minor, |gpu| gpu.model.compute_capability.1 as c_int)
    }

    fn nvmlDeviceGetBrand(device: nvmlDevice_t, to: Out<nvmlBrandType_t>) {
        fill(device, &to, |_| sys::nvmlBrandType_enum_NVML_BRAND_NVIDIA)
    }

    fn nvmlDeviceGetArchitecture(device: nvmlDevice_t, to: Out<c_uint>) {
        fill(device, &to, |gpu| architecture(&gpu.model))
    }

    fn nvmlDeviceGetNumGpuCores(device: nvmlDevice_t, to: Out<c_uint>) {
        fill(device, &to, |gpu| gpu.model.multiprocessors * lanes_per_multiprocessor(&gpu.model))
    }

    fn nvmlDeviceGetMemoryBusWidth(device: nvmlDevice_t, to: Out<c_uint>) {
        fill(device, &to, |gpu| gpu.model.memory_bus_bits)
    }

    fn nvmlDeviceGetClockInfo(device: nvmlDevice_t, kind: nvmlClockType_t, to: Out<c_uint>) {
        clock(device, kind, &to)
    }
    fn nvmlDeviceGetMaxClockInfo(device: nvmlDevice_t, kind: nvmlClockType_t, to: Out<c_uint>) {
        clock(device, kind, &to)
    }

    fn nvmlDeviceGetCurrPcieLinkGeneration(device: nvmlDevice_t, to: Out<c_uint>) {
        fill_generation(device, &to)
    }
    fn nvmlDeviceGetMaxPcieLinkGeneration(device: nvmlDevice_t, to: Out<c_uint>) {
        fill_generation(device, &to)
    }
    fn nvmlDeviceGetGpuMaxPcieLinkGeneration(device: nvmlDevice_t, to: Out<c_uint>) {
        fill_generation(device, &to)
    }
    fn nvmlDeviceGetCurrPcieLinkWidth(device: nvmlDevice_t, to: Out<c_uint>) {
        fill_width(device, &to)
    }
    fn nvmlDeviceGetMaxPcieLinkWidth(device: nvmlDevice_t, to: Out<c_uint>) {
        fill_width(device, &to)
    }
    fn nvmlDeviceGetPcieSpeed(device: nvmlDevice_t, to: Out<c_uint>) { fill_speed(device, &to) }

    fn nvmlDeviceGetComputeMode(device: nvmlDevice_t, to: Out<nvmlComputeMode_t>) {
        fill(device, &to, |_| sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_DEFAULT)
    }

    fn nvmlDeviceGetPersistenceMode(device: nvmlDevice_t, to: Out<nvmlEnableState_t>) {
        fill(device, &to, |_| sys::nvmlEnableState_enum_NVML_FEATURE_ENABLED)
    }

    fn nvmlDeviceGetCpuAffinity(device: nvmlDevice_t, words: c_uint, to: Out<c_ulong>) {
        cpu_affinity(device, words, &to)
    }
    fn nvmlDeviceGetCpuAffinityWithinScope(
        device: nvmlDevice_t,
        words: c_uint,
        to: Out<c_ulong>,
        _scope: c_uint,
    ) {
        cpu_affinity(device, words, &to)
    }

    fn nvmlDeviceGetMemoryAffinity(
        handle: nvmlDevice_t,
        words: c_uint,
        to: Out<c_ulong>,
        _scope: c_uint,
    ) {
        let (machine, ordinal) = device(handle)?;
        write_set(&[machine.gpus[ordinal].numa_node as usize], words, &to)
    }

    fn nvmlDeviceGetNumaNodeId(device: nvmlDevice_t, to: Out<c_uint>) {
        fill(device, &to, |gpu| gpu.numa_node)
    }
}

#[cfg(test)]
mod tests {
    use super::parse_ranges;

    #[test]
    fn processor_lists_of_the_kernel_are_read() {
        assert_eq!(parse_ranges("0-1\n"), Some(vec![0, 1]));
        assert_eq!(parse_ranges("0,2-4,9"), Some(vec![0, 2, 3, 4, 9]));
        for wrong in ["", "0-", "a", "0-99999"] {
            assert_eq!(parse_ranges(wrong), None, "{wrong}");
        }
    }
}
