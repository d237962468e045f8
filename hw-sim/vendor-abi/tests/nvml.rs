//! NVML through `nvml-wrapper`, as users' programs call it.
//!
//! Which machine there is comes from the environment, so each test runs once more as a process of
//! its own, with the environment that it needs.

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::InitFlags;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor, TopologyLevel};
use nvml_wrapper::enum_wrappers::nv_link::Capability;
use nvml_wrapper::enums::device::DeviceArchitecture;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::{
    NVML_FI_DEV_NVLINK_LINK_COUNT, NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON,
};
use std::env;
use std::path::PathBuf;
use std::process::Command;

const MACHINE_VARIABLE: &str = "HWSIM_MACHINE";

/// `libhwsim.so` as cargo built it for this test.
fn library() -> PathBuf {
    let program = env::current_exe().unwrap();
    let library = program.parent().unwrap().join("libhwsim.so");
    assert!(library.exists(), "{} has not been built", library.display());
    library
}

fn nvml() -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(library().as_os_str()).init()
}

/// The wrapper's errors cannot be compared; their names can.
fn refused<T>(result: Result<T, NvmlError>, expected: &str) {
    let seen = result.err().map(|error| format!("{error:?}"));
    assert_eq!(seen.as_deref(), Some(expected));
}

/// Runs `body` in a process whose machine is `machine`: this test again, and it alone.
fn on_machine(test: &str, machine: &str, body: fn(Nvml)) {
    if env::var_os(MACHINE_VARIABLE).is_some_and(|name| name == machine) {
        return body(nvml().unwrap());
    }
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(MACHINE_VARIABLE, machine)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "on {machine}:\n{out}\n{err}");
}

#[test]
fn devices_of_a_dgx1v_are_those_of_its_description() {
    on_machine("devices_of_a_dgx1v_are_those_of_its_description", "dgx1v", |nvml| {
        assert_eq!(nvml.device_count().unwrap(), 8);
        assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 12040);
        assert!(nvml.sys_driver_version().unwrap().starts_with("550."));
        assert!(nvml.sys_nvml_version().unwrap().contains("550."));
        let device = nvml.device_by_index(7).unwrap();
        assert_eq!(device.index().unwrap(), 7);
        assert_eq!(device.minor_number().unwrap(), 7);
        assert_eq!(device.name().unwrap(), "V100-SXM2-16GB (virtual)");
        assert_eq!(device.memory_info().unwrap().total, 16 << 30);
        assert_eq!(device.cuda_compute_capability().unwrap().major, 7);
        assert_eq!(device.architecture().unwrap(), DeviceArchitecture::Volta);
        assert_eq!(device.num_cores().unwrap(), 5120);
        assert_eq!(device.max_clock_info(Clock::SM).unwrap(), 1530);
        assert_eq!(device.current_pcie_link_gen().unwrap(), 3);
        assert_eq!(device.current_pcie_link_width().unwrap(), 16);
        assert_eq!(device.numa_node_id().ok(), Some(1));
        let pci = device.pci_info().unwrap();
        assert_eq!((pci.domain, pci.bus, pci.device), (0, 0x8a, 0));
        assert_eq!(pci.bus_id, "00000000:8A:00.0");
        assert_eq!(device.bar1_memory_info().unwrap().total, 16 << 30);
    });
}

#[test]
fn a_device_is_found_by_each_of_its_names() {
    on_machine("a_device_is_found_by_each_of_its_names", "pcie4", |nvml| {
        for index in 0..4 {
            let device = nvml.device_by_index(index).unwrap();
            let (uuid, pci) = (device.uuid().unwrap(), device.pci_info().unwrap());
            assert_eq!((uuid.len(), &uuid[..4]), (40, "GPU-"));
            assert_eq!(nvml.device_by_uuid(uuid).unwrap().index().unwrap(), index);
            assert_eq!(nvml.device_by_pci_bus_id(pci.bus_id).unwrap().index().unwrap(), index);
        }
        refused(nvml.device_by_index(4), "InvalidArg");
        refused(nvml.device_by_uuid("GPU-0"), "NotFound");
        refused(nvml.device_by_pci_bus_id("00000000:FF:00.0"), "NotFound");
    });
}

#[test]
fn nvlinks_of_a_dgx1v_lead_where_the_cube_mesh_leads() {
    on_machine("nvlinks_of_a_dgx1v_lead_where_the_cube_mesh_leads", "dgx1v", |nvml| {
        let device = nvml.device_by_index(0).unwrap();
        let mut remotes = Vec::new();
        for index in 0..6 {
            let link = device.link_wrapper_for(index);
            assert!(link.is_active().unwrap());
            assert_eq!(link.version().unwrap(), 2, "NVML's code for NVLink 2.0");
            assert!(link.has_capability(Capability::P2p).unwrap());
            let remote = link.remote_pci_info().unwrap();
            remotes.push(nvml.device_by_pci_bus_id(remote.bus_id).unwrap().index().unwrap());
        }
        remotes.sort_unstable();
        assert_eq!(remotes, [1, 2, 3, 3, 4, 4]);
        let seventh = device.link_wrapper_for(6).is_active();
        refused(seventh, "NotSupported");
        refused(device.link_wrapper_for(18).is_active(), "InvalidArg");
        let ids = [NVML_FI_DEV_NVLINK_LINK_COUNT, NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON];
        let values = device.field_values_for(&ids.map(FieldId)).unwrap();
        let values: Vec<_> =
            values.into_iter().map(|v| format!("{:?}", v.unwrap().value)).collect();
        assert!(values[0].contains("U32(6)") && values[1].contains("U32(25000)"), "{values:?}");
    });
}

#[test]
fn nvlinks_of_a_dgx_a100_end_at_switches() {
    on_machine("nvlinks_of_a_dgx_a100_end_at_switches", "dgx-a100", |nvml| {
        let device = nvml.device_by_index(3).unwrap();
        for index in 0..12 {
            let remote = device.link_wrapper_for(index).remote_pci_info().unwrap();
            assert!((0xc4..=0xc9).contains(&remote.bus), "{}", remote.bus_id);
            refused(nvml.device_by_pci_bus_id(remote.bus_id), "NotFound");
        }
        assert!(device.link_wrapper_for(12).is_active().is_err());
    });
}

#[test]
fn the_pci_tree_shows_as_topology_levels() {
    on_machine("the_pci_tree_shows_as_topology_levels", "dgx1v", |nvml| {
        let device = |index| nvml.device_by_index(index).unwrap();
        let level = |a, b| device(a).topology_common_ancestor(device(b)).unwrap();
        assert_eq!(level(0, 1), TopologyLevel::Single);
        assert_eq!(level(0, 3), TopologyLevel::HostBridge);
        assert_eq!(level(0, 7), TopologyLevel::System);
        let near = device(0).topology_nearest_gpus(TopologyLevel::HostBridge).unwrap();
        let near: Vec<_> = near.iter().map(|gpu| gpu.index().unwrap()).collect();
        assert_eq!(near, [2, 3]);
    });
}

#[test]
fn what_is_not_modelled_is_refused_not_invented() {
    on_machine("what_is_not_modelled_is_refused_not_invented", "one-gpu", |nvml| {
        let device = nvml.device_by_index(0).unwrap();
        refused(device.power_usage(), "NotSupported");
        let temperature = device.temperature(TemperatureSensor::Gpu);
        refused(temperature, "NotSupported");
        refused(device.fan_speed(0), "NotSupported");
    });
}

#[test]
fn processors_near_a_gpu_are_processors_of_the_host() {
    on_machine("processors_near_a_gpu_are_processors_of_the_host", "dgx-a100", |nvml| {
        let set = nvml.device_by_index(0).unwrap().cpu_affinity(128).unwrap();
        let processors: u32 = set.iter().map(|word| word.count_ones()).sum();
        assert!(processors > 0, "a launcher that pins to this set would find no processor");
    });
}

#[test]
fn initialisation_counts() {
    on_machine("initialisation_counts", "one-gpu", |first| {
        let second = Nvml::builder()
            .lib_path(library().as_os_str())
            .flags(InitFlags::NO_GPUS)
            .init()
            .unwrap();
        first.shutdown().unwrap();
        assert_eq!(second.device_count().unwrap(), 1, "one user is left");
    });
}

/// Without a reason, "driver not loaded" would send a user to look for a driver.
#[test]
fn a_wrong_machine_is_named_on_stderr() {
    let test = "a_wrong_machine_is_named_on_stderr";
    if env::var_os(MACHINE_VARIABLE).is_some_and(|name| name == "nonesuch") {
        refused(nvml(), "DriverNotLoaded");
        return;
    }
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(MACHINE_VARIABLE, "nonesuch")
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    let ran = String::from_utf8_lossy(&output.stdout).contains("1 passed");
    assert!(output.status.success() && ran, "{message}");
    assert!(message.contains("hwsim: unknown machine `nonesuch`"), "{message}");
}
