//! Traps of machines and containers, each made up, and what the report says of it.

use super::facts::{Facts, Gpu};
use super::host::{HostFacts, Memlock};
use super::report::{Level, Report};
use super::{Chosen, examine};
use ringdove::gpu::{ComputeMode, DeviceFacts, DriverFacts};
use ringdove::topology::nvml::{ManagedGpu, Management};
use ringdove::topology::{Adapter, Gid, GidType, LinkLayer, PciLocation, Port, PortState};
use ringdove::{Error, InterNodeSlots, Settings};
use std::net::Ipv6Addr;

/// Two GPUs and an adapter, all as it should be.
pub fn healthy() -> Facts {
    let devices: Vec<_> = (0..2).map(device).collect();
    let managed = |device: &DeviceFacts| ManagedGpu {
        pci: device.pci.parse().unwrap(),
        name: device.name.clone(),
        links: Vec::new(),
        links_down: 0,
        link_version: None,
        compute: (0, 0),
        pcie: None,
    };
    let ports = vec![port()];
    Facts {
        management: Ok(Management {
            driver_version: "550.54".into(),
            gpus: devices.iter().map(managed).collect(),
            silent: Vec::new(),
        }),
        gpus: devices.iter().map(gpu).collect(),
        driver: Ok(DriverFacts { cuda_version: (12, 4), devices }),
        visible_devices: None,
        driver_variables: [("CUDA_MODULE_LOADING", "EAGER".to_owned())].into(),
        sysfs: "/sys".into(),
        adapters: vec![Adapter {
            name: "mlx5_0".into(),
            model: "MT4123".into(),
            pci: None,
            device_file: Some("/dev/null".into()),
            ports: ports.clone(),
        }],
        verbs: Ok((ports, Vec::new())),
        engines: Vec::new(),
        host: HostFacts {
            memlock: Some(Memlock::Unlimited),
            shared_memory_bytes: Some(1 << 30),
            cpus: (0..8).collect(),
            ..HostFacts::default()
        },
        settings: Ok(Settings::default()),
        sources: Vec::new(),
        unknown_settings: Vec::new(),
        interface: ringdove::bootstrap::choose_interface("lo"),
        launch: Ok(None),
    }
}

fn device(bus: u8) -> DeviceFacts {
    DeviceFacts {
        name: "a GPU".into(),
        pci: format!("0000:{bus:02x}:00.0"),
        memory_bytes: 16 << 30,
        compute_capability: (8, 0),
        exports_dma_buffers: true,
        direct_rdma: true,
        compute_mode: ComputeMode::Shared,
        stream_memory_operations: true,
        reaches: vec![true; 2],
    }
}

fn gpu(device: &DeviceFacts) -> Gpu {
    let pci = device.pci.parse().ok();
    Gpu { device: device.clone(), pci, place: PciLocation::default(), lanes: None, iommu: None }
}

fn port() -> Port {
    let raw = "::ffff:10.0.0.1".parse::<Ipv6Addr>().unwrap().octets();
    Port {
        adapter: "mlx5_0".into(),
        number: 1,
        state: PortState::Active,
        link_layer: LinkLayer::Ethernet,
        rate_mbps: 100_000,
        mtu_bytes: 0,
        gids: vec![Gid { index: 3, raw, kind: GidType::RoceV2 }],
        pci_path: Vec::new(),
        numa: None,
    }
}

fn several_nodes(facts: &mut Facts) {
    let job = [
        ("RANK", "0"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "0"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "10.0.0.1"),
        ("MASTER_PORT", "29500"),
        ("RINGDOVE_BOOTSTRAP_SECRET", "0123456789abcdef"),
    ];
    let value = |asked: &str| job.iter().find(|(name, _)| *name == asked).map(|row| row.1.into());
    facts.launch = ringdove::bootstrap::Launch::from_lookup(value);
    assert!(facts.several_nodes(), "{:?}", facts.launch);
    facts.interface.as_mut().unwrap().addresses = vec!["10.0.0.1:0".parse().unwrap()];
}

/// Of two ranks, this many of which are on this node.
fn launch_without_secret(local: &str) -> ringdove::Result<Option<ringdove::bootstrap::Launch>> {
    ringdove::bootstrap::Launch::from_lookup(|asked| match asked {
        "RANK" | "LOCAL_RANK" => Some("0".into()),
        // Two ranks, or as many as there are on this node.
        "WORLD_SIZE" => Some(local.max("2").into()),
        "LOCAL_WORLD_SIZE" => Some(local.into()),
        "MASTER_ADDR" => Some("10.0.0.1".into()),
        "MASTER_PORT" => Some("29500".into()),
        _ => None,
    })
}

#[test]
fn a_job_on_several_nodes_without_a_secret_is_open_to_the_network() {
    let mut facts = healthy();
    several_nodes(&mut facts);
    facts.launch = launch_without_secret("1");
    let found = complaints(&facts);
    let secret = found.iter().find(|(_, subject, _)| subject == "secret").expect("a warning");
    assert_eq!(secret.0, Level::Warning);
    for part in ["anybody who can reach its port", "RINGDOVE_BOOTSTRAP_SECRET", "openssl rand"] {
        assert!(secret.2.contains(part), "{secret:?}");
    }
}

/// If this fails, nobody knows by which way signals go, or why ranks are slow that share a GPU.
#[test]
fn the_way_of_signals_and_shared_gpus_are_named() {
    let signals = |facts: &Facts| {
        let report = report(facts);
        let found = report.findings().find(|finding| finding.subject == "signals between GPUs");
        found.expect("always there").seen.clone()
    };
    let mut facts = healthy();
    assert!(signals(&facts).starts_with("stream memory operations"), "{}", signals(&facts));
    facts.driver.as_mut().unwrap().cuda_version = (13, 1);
    assert!(signals(&facts).contains("CUDA 13.1 do not reach"), "{}", signals(&facts));
    facts.driver.as_mut().unwrap().devices[1].stream_memory_operations = false;
    assert!(signals(&facts).contains("not all GPUs"), "{}", signals(&facts));

    let mut facts = healthy();
    facts.launch = launch_without_secret("4");
    let shares = |facts: &Facts| {
        complaints(facts).into_iter().any(|(_, subject, _)| subject == "processes that share a GPU")
    };
    assert!(shares(&facts));
    facts.driver_variables.insert("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mps".into());
    assert!(!shares(&facts));
}

fn report(facts: &Facts) -> Report {
    examine(facts, &Chosen::of(facts))
}

/// What stands above `ok`: level, subject, and the rest of the line.
fn complaints(facts: &Facts) -> Vec<(Level, String, String)> {
    let report = report(facts);
    let bad = report.findings().filter(|finding| finding.level != Level::Ok);
    bad.map(|finding| {
        let advice = finding.advice.as_deref().unwrap_or_default();
        (finding.level, finding.subject.clone(), format!("{}; {advice}", finding.seen))
    })
    .collect()
}

type Break = fn(&mut Facts);

/// Each trap alone gives one complaint, which names it and the way out.
#[test]
fn every_trap_is_named_with_the_way_out() {
    let traps: &[(Level, &str, &str, Break)] = &[
        (Level::Missing, "CUDA driver", "CUDA 10.2, from", |facts| {
            facts.driver.as_mut().unwrap().cuda_version = (10, 2);
        }),
        (Level::Warning, "NVML", "NVIDIA_DRIVER_CAPABILITIES", |facts| {
            facts.management = Err("not there".into());
        }),
        (Level::Warning, "lost GPU", "GPU 2 does not answer: gone", |facts| {
            facts.management.as_mut().unwrap().silent.push((2, "gone".into()));
        }),
        (Level::Missing, "GPU 1", "kernels need 7.0", |facts| {
            facts.gpus[1].device.compute_capability = (6, 1);
        }),
        (Level::Missing, "GPU 0", "prohibited", |facts| {
            facts.gpus[0].device.compute_mode = ComputeMode::Prohibited;
        }),
        (Level::Warning, "GPU 0", "exclusive", |facts| {
            facts.gpus[0].device.compute_mode = ComputeMode::ExclusiveProcess;
        }),
        (Level::Warning, "CUDA_LAUNCH_BLOCKING", "one thread that drives several", |facts| {
            facts.driver_variables.insert("CUDA_LAUNCH_BLOCKING", "1".into());
        }),
        (Level::Warning, "CUDA_DEVICE_MAX_CONNECTIONS", "set 8 or 32", |facts| {
            facts.driver_variables.insert("CUDA_DEVICE_MAX_CONNECTIONS", "1".into());
        }),
        (Level::Warning, "loading of kernels", "set CUDA_MODULE_LOADING=EAGER", |facts| {
            facts.driver_variables.clear();
        }),
        (Level::Warning, "loading of kernels", "launch each kernel once", |facts| {
            facts.driver.as_mut().unwrap().cuda_version = (12, 1);
            facts.driver_variables.insert("CUDA_MODULE_LOADING", "LAZY".into());
        }),
        (Level::Warning, "GPU 0", "8 of 16 lanes", |facts| facts.gpus[0].lanes = Some((8, 16))),
        (Level::Warning, "GPU 0", "iommu=pt", |facts| facts.gpus[0].iommu = Some("DMA-FQ".into())),
        (Level::Warning, "NVLinks of 0000:00:00.0", "1 up, 3 down", |facts| {
            let gpu = &mut facts.management.as_mut().unwrap().gpus[0];
            (gpu.links, gpu.links_down) = (vec!["0000:01:00.0".parse().unwrap()], 3);
        }),
        (Level::Warning, "between GPUs", "refuses peer access over PCI: 0-1", |facts| {
            facts.gpus[1].device.reaches[0] = false;
        }),
        (Level::Warning, "mlx5_0", "--device=/dev/infiniband", |facts| {
            facts.adapters[0].device_file = Some("/nowhere/uverbs0".into());
        }),
        (Level::Warning, "libibverbs", "apt-get install libibverbs1", |facts| {
            facts.verbs = Err(Error::argument("library", "one", "none"));
        }),
        (Level::Warning, "libibverbs", "raise that limit", |facts| {
            let (what, cause) = ("reading mlx5_0".into(), "Too many open files".into());
            facts.verbs = Err(Error::System { what, cause });
        }),
        (Level::Warning, "secret", "any process of this user", |facts| {
            facts.launch = launch_without_secret("2");
        }),
        (Level::Warning, "libibverbs", "no permission", |facts| {
            facts.verbs.as_mut().unwrap().1.push("mlx5_1: no permission".into());
        }),
        (Level::Warning, "memlock", "only 64 KiB", |facts| {
            facts.host.memlock = Some(Memlock::Bytes(65536));
        }),
        (Level::Warning, "GPU memory", "pass through pinned host memory", |facts| {
            facts.gpus[0].device.exports_dma_buffers = false;
        }),
        (Level::Warning, "/dev/shm", "--shm-size", |facts| {
            facts.host.shared_memory_bytes = Some(64 << 20);
        }),
        (Level::Warning, "ptrace", "ptrace_scope is 3", |facts| facts.host.ptrace_scope = Some(3)),
        (Level::Warning, "processors", "quota of 1.5", |facts| facts.host.cpu_quota = Some(1.5)),
        (Level::Warning, "RINGDOVE_PROXY_CPUS", "[9]", |facts| {
            facts.settings.as_mut().unwrap().proxy_cpus = vec![1, 9];
        }),
        (Level::Warning, "RINGDOVE_SLTS", "check its spelling", |facts| {
            facts.unknown_settings.push("RINGDOVE_SLTS".into());
        }),
    ];
    assert_eq!(complaints(&healthy()), []);
    for (level, subject, text, spoil) in traps {
        let mut facts = healthy();
        spoil(&mut facts);
        let seen = complaints(&facts);
        let [(seen_level, seen_subject, line)] = &seen[..] else { panic!("{subject}: {seen:?}") };
        assert_eq!((seen_level, seen_subject.as_str()), (level, *subject), "{seen:?}");
        assert!(line.contains(text), "{text}: {line}");
    }
}

#[test]
fn what_only_other_nodes_need_is_missing_once_the_job_has_other_nodes() {
    let traps: &[(&str, Break)] = &[
        ("adapters", |facts| facts.adapters.clear()),
        ("libibverbs", |facts| facts.verbs = Err(Error::argument("library", "one", "none"))),
        ("feature verbs", |facts| {
            let wanted = "reaching ranks on other nodes".into();
            facts.verbs = Err(Error::FeatureOff { wanted, feature: "verbs" });
        }),
        ("GPU memory", |facts| {
            facts.gpus[1].device.exports_dma_buffers = false;
            facts.settings.as_mut().unwrap().inter_node_slots = InterNodeSlots::Device;
        }),
        ("GPU 1 to nodes", |facts| {
            facts.adapters[0].ports[0].state = PortState::Down;
            facts.verbs = Ok((facts.adapters[0].ports.clone(), Vec::new()));
        }),
    ];
    for (subject, spoil) in traps {
        let mut facts = healthy();
        spoil(&mut facts);
        assert!(complaints(&facts).iter().all(|c| c.0 == Level::Warning), "{subject}");
        several_nodes(&mut facts);
        let missing = complaints(&facts);
        let hit = missing.iter().any(|c| c.0 == Level::Missing && c.1 == *subject);
        assert!(hit, "{subject}: {missing:?}");
    }
}

#[test]
fn a_driver_that_is_not_found_is_explained_by_what_is_found() {
    let cases: &[(&str, Break)] = &[
        ("hwsim run", |_| {}),
        ("NVIDIA Container Toolkit, with `compute,utility`", |facts| {
            facts.host.nvidia_device_file = true;
        }),
        ("the PCI bus has 0000:3b:00.0; install", |facts| {
            facts.host.pci_gpus.push("0000:3b:00.0".into());
        }),
        ("the PCI bus has 0000:3b:00.0; start the container", |facts| {
            facts.host.pci_gpus.push("0000:3b:00.0".into());
            facts.host.container = Some("it says so".into());
        }),
        ("fabric manager", |facts| {
            facts.driver = Err(Error::Cuda {
                call: "cuInit".into(),
                code: 802,
                name: "CUDA_ERROR_SYSTEM_NOT_READY".into(),
            });
        }),
    ];
    for (text, change) in cases {
        let mut facts = healthy();
        facts.gpus.clear();
        facts.driver = Err(Error::NotFound {
            wanted: "CUDA driver".into(),
            looked_for: "libcuda.so.1".into(),
            advice: "try hwsim run".into(),
        });
        change(&mut facts);
        let seen = complaints(&facts);
        let [(Level::Missing, subject, line)] = &seen[..] else { panic!("{seen:?}") };
        assert!(subject == "CUDA driver" && line.contains(text), "{text}: {line}");
    }
}

#[test]
fn hidden_gpus_are_traced_to_the_variable() {
    let mut facts = healthy();
    facts.gpus.clear();
    facts.driver.as_mut().unwrap().devices.clear();
    facts.visible_devices = Some("7".into());
    let seen = complaints(&facts);
    assert!(
        seen[0].0 == Level::Missing && seen[0].2.contains("CUDA_VISIBLE_DEVICES=7"),
        "{seen:?}"
    );
}
