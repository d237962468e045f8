//! RDMA adapters, how they reach GPU memory, and which GPU uses which.

use super::facts::{Facts, lanes};
use super::gpus::counted;
use super::host::Memlock;
use super::report::{Level, Report};
use ringdove::topology::choice::choose;
use ringdove::topology::{Adapter, LinkLayer, Port, PortChoice, PortState};
use ringdove::transport::verbs::VerbsSettings;
use ringdove::{Error, InterNodeSlots};
use serde::Serialize;

/// Less than this does not hold staging memory, plans and a few user buffers.
const MEMLOCK_MIN: u64 = 1 << 30;

/// Which adapter the rank on a GPU will use.
#[derive(Clone, Debug, Serialize)]
pub struct GpuAdapter {
    pub gpu: usize,
    /// `None`: there is none that it could use.
    pub adapter: Option<String>,
    pub port: Option<u8>,
    #[serde(skip)]
    link_layer: Option<LinkLayer>,
    pub because: String,
}

/// How bad it is if ranks of other nodes cannot be reached: it depends on the job, if there is one.
fn without_others(facts: &Facts) -> Level {
    if facts.several_nodes() { Level::Missing } else { Level::Warning }
}

/// What adapters there are and what keeps them from being used.
pub fn adapters(facts: &Facts, report: &mut Report) {
    report.section("RDMA adapters");
    match feature_off(facts) {
        Some(why) if facts.several_nodes() => {
            let advice = "build ringdove with its feature `verbs`, which is on by default";
            report.complain(Level::Missing, "feature verbs", why, advice);
        }
        Some(_) => report.ok("feature verbs", "off in this build: jobs run on one node"),
        None => {}
    }
    if facts.adapters.is_empty() {
        return none(facts, report);
    }
    for adapter in &facts.adapters {
        one(facts, adapter, report);
    }
    library(facts, report);
    memlock(facts, report);
    memory_path(facts, report);
}

/// This build uses no adapters, whatever there are.
fn feature_off(facts: &Facts) -> Option<String> {
    let error = facts.verbs.as_ref().err()?;
    matches!(error, Error::FeatureOff { .. }).then(|| error.to_string())
}

fn none(facts: &Facts, report: &mut Report) {
    let folder = facts.sysfs.join("class/infiniband");
    let seen = format!("none in {}", folder.display());
    let on_bus = &facts.host.pci_adapters;
    if !on_bus.is_empty() {
        let seen = format!("{seen}, but the PCI bus has {}", on_bus.join(", "));
        let advice = "load the adapter's driver (mlx5_ib and the like), for jobs on several nodes";
        report.complain(without_others(facts), "adapters", seen, advice);
    } else if facts.several_nodes() {
        let advice = "the launcher says that the job runs on several nodes: load the adapter's \
                      driver, or `rdma link add rxe0 type rxe netdev eth0` for RDMA in software";
        report.complain(Level::Missing, "adapters", seen, advice);
    } else {
        let seen = format!("{seen}; only jobs on several nodes need one");
        report.ok("adapters", seen);
    }
}

fn one(facts: &Facts, adapter: &Adapter, report: &mut Report) {
    let Adapter { name, model, pci, device_file, .. } = adapter;
    let ports = ports_of(facts, adapter);
    let place = pci.map_or_else(|| "no PCI device".to_owned(), |pci| pci.to_string());
    let numa = ports.iter().find_map(|port| port.numa);
    let numa = numa.map(|numa| format!(", NUMA node {numa}")).unwrap_or_default();
    let model = if model.is_empty() { "model unknown" } else { model };
    report.ok(name, format!("{model}, {place}{numa}, {}", counted(ports.len(), "port")));
    match device_file {
        Some(path) if !path.exists() => report.complain(
            without_others(facts),
            name,
            format!("{} does not exist, so programs cannot use it", path.display()),
            "in a container: `--device=/dev/infiniband`; else load ib_uverbs",
        ),
        Some(_) => {}
        None => report.complain(
            without_others(facts),
            name,
            format!("{} has no entry for it", facts.sysfs.join("class/infiniband_verbs").display()),
            "load ib_uverbs",
        ),
    }
    let folder = pci.map(|pci| ringdove::topology::pci::folder_of(&facts.sysfs, pci));
    let narrow = folder.and_then(|folder| lanes(&folder)).filter(|(now, most)| now < most);
    if let Some((now, most)) = narrow {
        let seen = format!("its PCI link runs with {now} of {most} lanes");
        report.complain(Level::Warning, name, seen, "move it to a slot with all lanes");
    }
    let any_active = facts.ports().iter().any(|port| port.state == PortState::Active);
    for each in &ports {
        port(each, if any_active { Level::Warning } else { without_others(facts) }, report);
    }
}

/// The ports of an adapter as the verbs library shows them, or else as sysfs does.
fn ports_of(facts: &Facts, adapter: &Adapter) -> Vec<Port> {
    let (name, shown) = (&adapter.name, facts.verbs.as_ref());
    let ports = shown.map(|(ports, _)| ports.as_slice()).unwrap_or_default();
    let own: Vec<_> = ports.iter().filter(|port| port.adapter == *name).cloned().collect();
    if own.is_empty() { adapter.ports.clone() } else { own }
}

fn port(port: &Port, if_bad: Level, report: &mut Report) {
    let Port { adapter, number, state, link_layer, rate_mbps, gids, .. } = port;
    let subject = format!("{adapter} port {number}");
    let rate = *rate_mbps as f64 / 1000.0;
    let seen = format!("{state}, {link_layer}, {rate} Gbit/s, {}", counted(gids.len(), "GID"));
    match (state, link_layer) {
        (PortState::Down, LinkLayer::Ethernet) => {
            let advice = "it will not be used; connect its cable, or run `ip link set DEVICE up`";
            report.complain(if_bad, subject, seen, advice);
        }
        (PortState::Down, _) => {
            let advice = "it will not be used; connect its cable, or check the switch";
            report.complain(if_bad, subject, seen, advice);
        }
        (PortState::Initializing | PortState::Armed, _) => {
            let advice = "it will not be used; start a subnet manager (opensm) in the fabric";
            report.complain(if_bad, subject, seen, advice);
        }
        (PortState::Active, _) if gids.is_empty() => {
            let advice = "it will not be used; give its network interface an IP address";
            report.complain(if_bad, subject, seen, advice);
        }
        (PortState::Active, _) => {
            let list: Vec<_> = gids.iter().map(ToString::to_string).collect();
            report.ok(subject, format!("{seen}: {}", list.join(", ")));
        }
    }
}

fn library(facts: &Facts, report: &mut Report) {
    match &facts.verbs {
        Ok((ports, failures)) => {
            report.ok("libibverbs", format!("it opens {}", counted(ports.len(), "port")));
            for why in failures {
                let advice = "install the adapter's provider (ibverbs-providers); in a container, \
                              pass /dev/infiniband in";
                report.complain(without_others(facts), "libibverbs", why, advice);
            }
        }
        Err(Error::FeatureOff { .. }) => {}
        Err(error) => {
            let advice = match error {
                Error::System { .. } => "raise that limit; the adapters themselves may be fine",
                _ => "install it: apt-get install libibverbs1 ibverbs-providers",
            };
            report.complain(without_others(facts), "libibverbs", reason(error), advice);
        }
    }
}

/// What stands in an error without its advice, which the report words for itself.
fn reason(error: &Error) -> String {
    match error {
        Error::NotFound { wanted, looked_for, .. } => format!("no {wanted}: {looked_for}"),
        other => other.to_string(),
    }
}

/// Registration locks memory, so the limit is one of adapters.
fn memlock(facts: &Facts, report: &mut Report) {
    match facts.host.memlock {
        Some(Memlock::Unlimited) => report.ok("memlock", "unlimited"),
        Some(Memlock::Bytes(bytes)) if bytes >= MEMLOCK_MIN => {
            report.ok("memlock", format!("{} MiB may be locked", bytes >> 20));
        }
        Some(Memlock::Bytes(bytes)) => report.complain(
            Level::Warning,
            "memlock",
            format!("only {} KiB may be locked, and CAP_IPC_LOCK is not held", bytes >> 10),
            "registration locks memory: run `ulimit -l unlimited` (limits.conf, LimitMEMLOCK=); in \
             a container, `--ulimit memlock=-1` or `--cap-add IPC_LOCK`",
        ),
        None => {}
    }
}

/// dma-buf first, peer memory second, as `transport::verbs` tries them; else host memory.
fn memory_path(facts: &Facts, report: &mut Report) {
    if facts.gpus.is_empty() {
        return;
    }
    let direct = facts.gpus.iter().all(|gpu| gpu.device.direct_rdma);
    let exporting = facts.gpus.iter().filter(|gpu| gpu.device.exports_dma_buffers).count();
    let subject = "GPU memory";
    let inter_node_slots =
        facts.settings.as_ref().map(|settings| settings.inter_node_slots).unwrap_or_default();
    if inter_node_slots == InterNodeSlots::Host {
        let seen = "RINGDOVE_INTER_NODE_SLOTS asks for pinned host memory between it and adapters";
        report.ok(subject, seen);
    } else if exporting == facts.gpus.len() {
        let seen = "the driver exports it as dma-buf, which adapters take";
        report.ok(subject, seen);
    } else if let Some(module) = facts.host.peer_memory_module.as_ref().filter(|_| direct) {
        report.ok(subject, format!("no dma-buf, but {module} lets adapters reach it by address"));
    } else {
        let lacking = if direct { "nvidia-peermem is absent" } else { "no GPUDirect RDMA" };
        let (level, then) = match inter_node_slots {
            InterNodeSlots::Device => {
                (without_others(facts), "RINGDOVE_INTER_NODE_SLOTS forbids host memory")
            }
            _ => (Level::Warning, "data of other nodes will pass through pinned host memory"),
        };
        report.complain(
            level,
            subject,
            format!("{exporting} of {} export dma-buf; {lacking}; {then}", facts.gpus.len()),
            "use NVIDIA's open kernel modules (515 or later) on Linux 5.12 or later, for dma-buf, \
             or `modprobe nvidia-peermem`",
        );
    }
}

/// The adapter of each GPU, chosen as the transport will.
pub fn choices(facts: &Facts) -> Vec<GpuAdapter> {
    let Ok(settings) = &facts.settings else { return Vec::new() };
    if facts.adapters.is_empty() || feature_off(facts).is_some() {
        return Vec::new();
    }
    let (ports, wanted) = (facts.ports(), VerbsSettings::from(settings).wanted());
    let choice =
        |(gpu, one): (usize, &super::facts::Gpu)| match choose(&ports, &one.place, gpu, &wanted) {
            Ok(PortChoice { adapter, port, link_layer, gid, because, .. }) => GpuAdapter {
                gpu,
                adapter: Some(adapter),
                port: Some(port),
                link_layer: Some(link_layer),
                because: format!("{gid}: it {because}"),
            },
            Err(error) => GpuAdapter {
                gpu,
                adapter: None,
                port: None,
                link_layer: None,
                because: reason(&error),
            },
        };
    facts.gpus.iter().enumerate().map(choice).collect()
}

/// A line for each GPU.
pub fn choice_findings(facts: &Facts, choices: &[GpuAdapter], report: &mut Report) {
    for GpuAdapter { gpu, adapter, port, because, .. } in choices {
        let subject = format!("GPU {gpu} to nodes");
        match (adapter, port) {
            (Some(adapter), Some(port)) => {
                report.ok(subject, format!("{adapter} port {port}, {because}"));
            }
            _ => {
                let advice = "bring a port up, or name another adapter in RINGDOVE_ADAPTER";
                report.complain(without_others(facts), subject, because, advice);
            }
        }
    }
    mixed(choices, report);
}

/// InfiniBand and Ethernet are not connected, so a job uses one of them.
fn mixed(choices: &[GpuAdapter], report: &mut Report) {
    let on = |layer: LinkLayer| {
        let gpus = choices.iter().filter(|choice| choice.link_layer == Some(layer));
        gpus.map(|choice| choice.gpu.to_string()).collect::<Vec<_>>().join(", ")
    };
    let (infiniband, ethernet) = (on(LinkLayer::InfiniBand), on(LinkLayer::Ethernet));
    if !infiniband.is_empty() && !ethernet.is_empty() {
        report.complain(
            Level::Warning,
            "link layers",
            format!("GPUs {infiniband} use InfiniBand, GPUs {ethernet} Ethernet"),
            "all ranks of a job on several nodes use one of the two, so some use adapters that are \
             further from their GPU; RINGDOVE_ADAPTER chooses",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_on_separate_networks_are_distinguished() {
        let choice = |gpu, link_layer| GpuAdapter {
            gpu,
            adapter: Some("mlx5_0".into()),
            port: Some(1),
            link_layer: Some(link_layer),
            because: String::new(),
        };
        let mut choices = vec![choice(0, LinkLayer::Ethernet), choice(1, LinkLayer::Ethernet)];
        let mut report = Report::default();
        mixed(&choices, &mut report);
        assert_eq!(report.findings().count(), 0);
        choices.push(choice(2, LinkLayer::InfiniBand));
        mixed(&choices, &mut report);
        let warning = report.findings().next().expect("they differ");
        assert_eq!(warning.level, Level::Warning);
        assert_eq!(warning.seen, "GPUs 2 use InfiniBand, GPUs 0, 1 Ethernet");
    }

    #[test]
    fn errors_are_quoted_without_the_advice_that_the_report_gives_itself() {
        let error = Error::NotFound {
            wanted: "libibverbs".into(),
            looked_for: "libibverbs.so.1".into(),
            advice: "hop".into(),
        };
        assert_eq!(reason(&error), "no libibverbs: libibverbs.so.1");
    }
}
