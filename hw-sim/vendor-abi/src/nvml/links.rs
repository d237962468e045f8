//! How GPUs reach one another: NVLink, the PCI tree, peer access.
#![allow(non_snake_case, reason = "the names are NVML's")]

use super::device::pci_info;
use super::{Answer, Out, answer, device, export, handle};
use hwsim_machine::description::{Description, Gpu, LinkKind, Node, PciBusId, PciPath};
use nvml_wrapper_sys::bindings as sys;
use std::ffi::{c_int, c_uint};
use sys::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED as CHIPSET_NOT_SUPPORTED;
use sys::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_NOT_SUPPORTED as P2P_NOT_SUPPORTED;
use sys::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_OK as P2P_OK;
use sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE;
use sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT;
use sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED;
use sys::nvmlReturn_enum_NVML_SUCCESS as SUCCESS;
use sys::{
    nvmlDevice_t, nvmlEnableState_t, nvmlFieldValue_t, nvmlGpuP2PCapsIndex_t, nvmlGpuP2PStatus_t,
    nvmlGpuTopologyLevel_t, nvmlIntNvLinkDeviceType_t, nvmlNvLinkCapability_t, nvmlPciInfo_t,
    nvmlReturn_t,
};

/// One NVLink of a GPU.
#[derive(Clone, Copy)]
struct NvLink {
    remote: Node,
    gb_per_s: f64,
}

/// A GPU's NVLinks, numbered as the machine's file lists them.
fn nv_links(machine: &Description, ordinal: usize) -> Vec<NvLink> {
    let own = Node::Gpu(ordinal);
    let mut links = Vec::new();
    for link in machine.links.iter().filter(|link| link.kind == LinkKind::NvLink) {
        let remote = match link.ends {
            [end, remote] | [remote, end] if end == own => remote,
            _ => continue,
        };
        let one = NvLink { remote, gb_per_s: link.gb_per_s };
        links.extend((0..link.count).map(|_| one));
    }
    links
}

/// Gives `read`'s view of one NVLink to the caller.
fn fill_link<T: Copy>(
    handle: nvmlDevice_t,
    link: c_uint,
    to: &Out<T>,
    read: impl FnOnce(&Gpu, &Description, NvLink) -> T,
) -> Answer {
    let (machine, ordinal) = device(handle)?;
    match nv_links(&machine, ordinal).get(link as usize) {
        Some(link) => to.write(read(&machine.gpus[ordinal], &machine, *link)),
        None if link < sys::NVML_NVLINK_MAX_LINKS => Err(NOT_SUPPORTED),
        None => Err(INVALID_ARGUMENT),
    }
}

fn remote_pci(handle: nvmlDevice_t, link: c_uint, to: &Out<nvmlPciInfo_t>) -> Answer {
    fill_link(handle, link, to, |_, machine, link| pci_info(bus_id(machine, link.remote)))
}

fn bus_id(machine: &Description, node: Node) -> PciBusId {
    match node {
        Node::Gpu(index) => machine.gpus[index].bus_id,
        Node::NvSwitch(index) => machine.nv_switches[index].bus_id,
        Node::RootComplex(_) | Node::Switch(_) => {
            unreachable!("a checked description has NVLinks between GPUs and NVSwitches only")
        }
    }
}

/// Ordinals of two GPUs, and their machine.
fn pair(
    a: nvmlDevice_t,
    b: nvmlDevice_t,
) -> Result<(std::sync::Arc<Description>, usize, usize), nvmlReturn_t> {
    let (machine, a) = device(a)?;
    Ok((machine, a, device(b)?.1))
}

fn level(path: PciPath) -> nvmlGpuTopologyLevel_t {
    match path {
        PciPath::Same => sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_INTERNAL,
        PciPath::OneSwitch => sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_SINGLE,
        PciPath::Switches => sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_MULTIPLE,
        PciPath::HostBridge => sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_HOSTBRIDGE,
        PciPath::Node => sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_NODE,
        PciPath::System => sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_SYSTEM,
    }
}

/// Fills in one field value: the number of NVLinks, the rate of one in MB/s, or whether it is up.
fn field(links: &[NvLink], mut value: nvmlFieldValue_t) -> nvmlFieldValue_t {
    use sys::field_id as id;
    let rate = |link: usize| links.get(link).map(|link| (link.gb_per_s * 1000.0).round() as c_uint);
    let answer = match value.fieldId {
        id::NVML_FI_DEV_NVLINK_LINK_COUNT => Some(links.len() as c_uint),
        id::NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON => rate(0),
        // NCCL asks GPUs of compute capability 9.0 and above this way.
        id::NVML_FI_DEV_NVLINK_GET_STATE => links
            .get(value.scopeId as usize)
            .map(|_| sys::nvmlEnableState_enum_NVML_FEATURE_ENABLED as c_uint),
        number @ id::NVML_FI_DEV_NVLINK_SPEED_MBPS_L0..=id::NVML_FI_DEV_NVLINK_SPEED_MBPS_L5 => {
            rate((number - id::NVML_FI_DEV_NVLINK_SPEED_MBPS_L0) as usize)
        }
        number @ id::NVML_FI_DEV_NVLINK_SPEED_MBPS_L6..=id::NVML_FI_DEV_NVLINK_SPEED_MBPS_L11 => {
            rate((number - id::NVML_FI_DEV_NVLINK_SPEED_MBPS_L6) as usize + 6)
        }
        _ => None,
    };
    value.valueType = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT;
    value.nvmlReturn = if answer.is_some() { SUCCESS } else { NOT_SUPPORTED };
    value.value.uiVal = answer.unwrap_or(0);
    value
}

export! {
    fn nvmlDeviceGetNvLinkState(handle: nvmlDevice_t, link: c_uint, to: Out<nvmlEnableState_t>) {
        fill_link(handle, link, &to, |_, _, _| sys::nvmlEnableState_enum_NVML_FEATURE_ENABLED)
    }

    fn nvmlDeviceGetNvLinkVersion(handle: nvmlDevice_t, link: c_uint, to: Out<c_uint>) {
        fill_link(handle, link, &to, |gpu, _, _| match gpu.model.compute_capability.0 {
            ..=6 => sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_1_0,
            7 => sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_2_0,
            8 => sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_3_0,
            9 => sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_4_0,
            _ => sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_5_0,
        })
    }

    fn nvmlDeviceGetNvLinkCapability(
        handle: nvmlDevice_t,
        link: c_uint,
        capability: nvmlNvLinkCapability_t,
        to: Out<c_uint>,
    ) {
        // Peers see each other's memory and have atomics over NVLink; the host is not on it.
        let has = match capability {
            sys::nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_P2P_SUPPORTED
            | sys::nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_P2P_ATOMICS
            | sys::nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_VALID => 1,
            _ if capability < sys::nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_COUNT => 0,
            _ => return Err(INVALID_ARGUMENT),
        };
        fill_link(handle, link, &to, |_, _, _| has)
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo(
        handle: nvmlDevice_t,
        link: c_uint,
        to: Out<nvmlPciInfo_t>,
    ) {
        remote_pci(handle, link, &to)
    }
    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
        handle: nvmlDevice_t,
        link: c_uint,
        to: Out<nvmlPciInfo_t>,
    ) {
        remote_pci(handle, link, &to)
    }

    fn nvmlDeviceGetNvLinkRemoteDeviceType(
        handle: nvmlDevice_t,
        link: c_uint,
        to: Out<nvmlIntNvLinkDeviceType_t>,
    ) {
        fill_link(handle, link, &to, |_, _, link| match link.remote {
            Node::NvSwitch(_) => sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH,
            _ => sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU,
        })
    }

    fn nvmlDeviceGetTopologyCommonAncestor(
        a: nvmlDevice_t,
        b: nvmlDevice_t,
        to: Out<nvmlGpuTopologyLevel_t>,
    ) {
        let (machine, a, b) = pair(a, b)?;
        to.write(level(machine.pci_path(a, b)))
    }

    fn nvmlDeviceGetTopologyNearestGpus(
        handle_of_one: nvmlDevice_t,
        wanted: nvmlGpuTopologyLevel_t,
        count: Out<c_uint>,
        to: Out<nvmlDevice_t>,
    ) {
        let (machine, one) = device(handle_of_one)?;
        let near: Vec<usize> = (0..machine.gpus.len())
            .filter(|other| *other != one && level(machine.pci_path(one, *other)) == wanted)
            .collect();
        let room = count.read()? as usize;
        count.write(near.len() as c_uint)?;
        // With no room the caller asks for the count alone.
        if room == 0 {
            return Ok(());
        }
        if room < near.len() {
            return Err(INSUFFICIENT_SIZE);
        }
        for (index, ordinal) in near.into_iter().enumerate() {
            to.at(index, room)?.write(handle(ordinal))?;
        }
        Ok(())
    }

    fn nvmlDeviceGetP2PStatus(
        a: nvmlDevice_t,
        b: nvmlDevice_t,
        capability: nvmlGpuP2PCapsIndex_t,
        to: Out<nvmlGpuP2PStatus_t>,
    ) {
        let (machine, a, b) = pair(a, b)?;
        if capability >= sys::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_UNKNOWN {
            return Err(INVALID_ARGUMENT);
        }
        let nv_link = machine.nv_link_count(a, b) > 0;
        let only_nv_link = matches!(
            capability,
            sys::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_NVLINK
                | sys::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_ATOMICS
        );
        to.write(match machine.peer_access(a, b) {
            false => CHIPSET_NOT_SUPPORTED,
            true if only_nv_link && !nv_link => P2P_NOT_SUPPORTED,
            true => P2P_OK,
        })
    }

    fn nvmlDeviceGetFieldValues(
        handle: nvmlDevice_t,
        count: c_int,
        values: Out<nvmlFieldValue_t>,
    ) {
        let (machine, ordinal) = device(handle)?;
        let links = nv_links(&machine, ordinal);
        let count = usize::try_from(count).map_err(|_| INVALID_ARGUMENT)?;
        for index in 0..count {
            let value = values.at(index, count)?;
            value.write(field(&links, value.read()?))?;
        }
        Ok(())
    }
}
