//! `hwsim run`: processes whose CUDA driver and NVML are virtual.
//!
//! A child starts as `hwsim` once more, which asks the kernel to be killed with its parent and then
//! becomes the command: no process outlives `hwsim run`, not even after SIGKILL.

pub mod child;
mod label;
mod many;
mod one;
mod spread;

use crate::RunArguments;
use crate::adapters::{DRIVERS_VARIABLE, interface_name};
use crate::error::Error;
use crate::fabric::Fabric;
use crate::library::{self, COMMANDS_VARIABLE, PRELOAD_VARIABLE, SEARCH_VARIABLE, Stage};
use crate::namespace::{self, Interface, Wanted};
use crate::ptxas;
use crate::sysfs::{self, Shown};
use crate::tidy::Tidier;
use child::Template;
use hwsim_machine::adapter::Endpoint;
use hwsim_machine::description::cluster::{FABRIC_VARIABLE, NODES_VARIABLE, node_from_environment};
use hwsim_machine::description::{ADAPTERS_MAX, Description, MACHINE_VARIABLE};
use hwsim_machine::fault::{FAULTS_VARIABLE, needs_libc};
use hwsim_machine::memory::ROUND_VARIABLE;
use hwsim_machine::profile::{KEYS_VARIABLE, PROFILE_VARIABLE, Profile};
use hwsim_machine::version::DRIVER_VARIABLE;
use many::Job;
use nix::sys::signal::{SigSet, Signal};
use ringdove::bootstrap::Secret;
use spread::{Rendezvous, Spread};
use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// What ringdove's ranks prove to one another that they know.
const SECRET_VARIABLE: &str = "RINGDOVE_BOOTSTRAP_SECRET";
/// Where the virtual driver writes its call trace.
const TRACE_VARIABLE: &str = "HWSIM_TRACE";
/// Where it appends what the processes did.
const REPORT_VARIABLE: &str = "HWSIM_REPORT";

/// The list of faults, if there are any: those of the environment come first.
fn faults(arguments: &RunArguments) -> Option<String> {
    let own = arguments.fault.join(",");
    let before = setting(FAULTS_VARIABLE);
    let all: Vec<_> = before.into_iter().chain((!own.is_empty()).then_some(own)).collect();
    (!all.is_empty()).then(|| all.join(","))
}

/// Runs the command on the machine and ends as it ends.
pub fn run(arguments: &RunArguments) -> Result<ExitCode, Error> {
    let profile = arguments.driver_profile.clone().or_else(|| setting(PROFILE_VARIABLE));
    // The command line's keys come last, and win.
    let keys: Vec<_> =
        setting(KEYS_VARIABLE).into_iter().chain(arguments.driver_key.iter().cloned()).collect();
    let keys = keys.join(",");
    let machine = machine(arguments)?.with_driver(profile.as_deref(), Some(&keys))?;
    let spread = Spread::new(arguments.procs, machine.nodes, machine.node)?;
    let several = arguments.procs.is_some() || machine.nodes > 1;
    let library = library::find()?;
    let mut template = Template::new(&arguments.command)?;

    // Blocked from here on and read from a descriptor later: between the folder's birth and its
    // removal no signal that can be caught ends this process; `Tidier` is there for the others.
    let signals = forwarded_signals();
    signals.thread_block().map_err(|errno| Error::system("blocking signals")(errno.into()))?;
    let stage = Stage::new(&library, &machine)?;
    if arguments.cudnn {
        stage.add_cudnn(&library)?;
    }
    let mut tidier = Tidier::start(stage.path())?;
    let mut fabric = Fabric::find(stage.path())?;
    template.add(environment(arguments, &machine, &stage, &fabric)?);
    template.add(secret()?);
    template.add(triton(&stage));
    template.add(arguments.round_allocations.then(|| (ROUND_VARIABLE, "1".into())));
    template.add(arguments.driver.map(|driver| (DRIVER_VARIABLE, driver.name.into())));
    let faults = faults(arguments);
    if faults.as_deref().is_some_and(needs_libc) {
        template.add([(PRELOAD_VARIABLE, stage.preload(&library)?)]);
    }
    template.add(faults.map(|faults| (FAULTS_VARIABLE, faults.into())));
    template.add(profile.map(|profile| (PROFILE_VARIABLE, profile.into())));
    template.add((!keys.is_empty()).then(|| (KEYS_VARIABLE, keys.into())));
    if !arguments.no_adapters {
        template.add(show_devices(arguments, &stage, &machine, &mut fabric)?);
    }
    template.add(hwloc(&fabric));
    if !arguments.quiet {
        eprintln!("{}", banner(&machine, several.then(|| spread.processes())));
    }
    let ended = if several {
        let rendezvous = Rendezvous::new()?;
        template.add(rendezvous.environment());
        let (label, grace) = (!arguments.no_label, arguments.grace);
        let job = Job { template: &template, spread, fabric: &fabric, label, grace };
        many::run(&job, &signals, &mut tidier)
    } else {
        template.add(fabric.place(machine.node));
        let sys = fabric.sys_of(machine.node);
        one::run(&template, sys.as_deref(), &arguments.command[0], &signals, &mut tidier)
    };
    stage.remove()?;
    ended
}

/// A variable that says something.
fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The machine that was asked for. A process that is on a node stays there, unless it asks for
/// other nodes: what `hwsim run` starts can use `hwsim run` itself.
fn machine(arguments: &RunArguments) -> Result<Description, Error> {
    let here = node_from_environment()?;
    let Some(name) = &arguments.machine else {
        let mut machine = Description::from_environment()?;
        if here.is_some() {
            machine.nodes = 1;
        }
        return Ok(machine);
    };
    let machine = Description::find(name)?;
    let node = if machine.nodes == 1 { here.unwrap_or(0) } else { 0 };
    Ok(machine.at_node(node))
}

/// The signals that ask processes to end, and the one that reports a child's end.
fn forwarded_signals() -> SigSet {
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGCHLD].into_iter().collect()
}

fn banner(machine: &Description, processes: Option<u32>) -> String {
    let mut kinds: Vec<(&str, usize)> = Vec::new();
    for gpu in &machine.gpus {
        match kinds.iter_mut().find(|(name, _)| *name == gpu.model.name) {
            Some((_, count)) => *count += 1,
            None => kinds.push((&gpu.model.name, 1)),
        }
    }
    let gpus: Vec<_> = kinds.iter().map(|(name, count)| format!("{count} x {name}")).collect();
    let gpus = gpus.join(" and ");
    let nodes = match machine.nodes {
        1 => gpus,
        nodes => format!("{nodes} nodes of {gpus}"),
    };
    let processes = match processes {
        None => String::new(),
        Some(1) => "; 1 process".into(),
        Some(count) => format!("; {count} processes"),
    };
    let driver = match machine.driver == Profile::lenient() {
        true => String::new(),
        false => format!("; driver {}", machine.driver),
    };
    format!(
        "hwsim: machine {}, {nodes}{processes}{driver}; virtual hardware: times are wall-clock \
         times of a simulation",
        machine.name,
    )
}

/// Environment of all children of a run.
fn environment(
    arguments: &RunArguments,
    machine: &Description,
    stage: &Stage,
    fabric: &Fabric,
) -> Result<Vec<(&'static str, OsString)>, Error> {
    let mut environment = vec![
        (SEARCH_VARIABLE, stage.search_path()),
        (COMMANDS_VARIABLE, stage.command_path()),
        (MACHINE_VARIABLE, stage.machine_file.clone().into()),
        (NODES_VARIABLE, machine.nodes.to_string().into()),
        (FABRIC_VARIABLE, fabric.directory.path().into()),
    ];
    let files = [(TRACE_VARIABLE, &arguments.trace), (REPORT_VARIABLE, &arguments.report)];
    for (variable, file) in files {
        let Some(file) = file else { continue };
        let failed = || Error::system(format!("creating the file {}", file.display()));
        File::create(file).map_err(failed())?;
        // Absolute, for the command may change its directory.
        environment.push((variable, file.canonicalize().map_err(failed())?.into()));
    }
    Ok(environment)
}

/// Where Triton finds an assembler and the driver, as far as the user has not said so. It brings an
/// assembler of its own, which makes machine code.
fn triton(stage: &Stage) -> Vec<(&'static str, OsString)> {
    let commands = ptxas::TRITON_COMMANDS.map(|name| (name, stage.assembler.clone().into()));
    let libraries = (ptxas::TRITON_LIBRARIES, stage.path().into());
    let all = commands.into_iter().chain([libraries]);
    all.filter(|(name, _)| setting(name).is_none()).collect()
}

/// Has hwloc show all of the machine, unless the user has said otherwise: the kernel permits a
/// process no other NUMA nodes than the host's.
fn hwloc(fabric: &Fabric) -> Option<(&'static str, OsString)> {
    const ALLOW: &str = "HWLOC_ALLOW";
    (fabric.shows_sys && setting(ALLOW).is_none()).then(|| (ALLOW, "all".into()))
}

/// A secret for the job that the children are, or that they start, unless there is one already.
/// Who does not hold it can neither join the job nor end it.
fn secret() -> Result<Option<(&'static str, OsString)>, Error> {
    if env::var_os(SECRET_VARIABLE).is_some_and(|secret| !secret.is_empty()) {
        return Ok(None);
    }
    let secret = Secret::random_text().map_err(io::Error::other);
    let secret = secret.map_err(Error::system("making a secret for the job"))?;
    Ok(Some((SECRET_VARIABLE, secret.into())))
}

/// The index of a port's network interface. Those of one network have different ones.
fn interface_index(endpoint: Endpoint) -> u32 {
    /// Behind the few that a network may have from its beginning.
    const FIRST: u32 = 16;
    FIRST + endpoint.node * ADAPTERS_MAX as u32 + endpoint.adapter
}

/// Makes device files for the machine's adapters and GPUs, and a network of its own if that is
/// asked for.
fn enter(machine: &Description, stage: &Stage, net: bool) -> Result<(), Error> {
    let wanted = Wanted { adapters: machine.adapters.len(), gpus: machine.gpus.len(), net };
    namespace::enter(wanted, &stage.scratch("dev")?)?;
    if !net {
        return Ok(());
    }
    let nodes = machine.node..machine.node + machine.nodes;
    let interfaces: Vec<_> = nodes
        .flat_map(|node| {
            machine.adapters.iter().enumerate().map(move |(index, adapter)| {
                let endpoint = Endpoint { node, adapter: index as u32 };
                Interface {
                    name: interface_name(adapter.link_layer, endpoint),
                    index: interface_index(endpoint),
                    mac: endpoint.mac(),
                    ip: endpoint.ip(),
                }
            })
        })
        .collect();
    namespace::make_interfaces(&interfaces)
}

/// Shows the machine's RDMA adapters and device engines to all children of a run, and all of it in
/// their `/sys`. Where the host allows no mounts, a line says what is lost, and the run goes on
/// without, unless it was asked for a network, which needs them.
fn show_devices(
    arguments: &RunArguments,
    stage: &Stage,
    machine: &Description,
    fabric: &mut Fabric,
) -> Result<Option<(&'static str, OsString)>, Error> {
    let (mut provider, mut sys) = (stage.provider.clone(), !arguments.no_sys);
    let entered = if provider.is_some() || arguments.net {
        enter(machine, stage, arguments.net)
    } else if sys {
        // Each child has mounts of its own; whether they are allowed is said once, and here.
        namespace::private_mounts()
    } else {
        Ok(())
    };
    if let Err(error) = entered {
        if arguments.net {
            return Err(error);
        }
        let lost = match (provider.is_some(), sys) {
            (true, true) => "no virtual RDMA adapters, and /sys shows the host",
            (true, false) => "no virtual RDMA adapters",
            (false, _) => "/sys shows the host",
        };
        eprintln!(
            "hwsim: {lost}: {error}. The machine needs user namespaces, or CAP_SYS_ADMIN; \
             --no-adapters runs without"
        );
        (provider, sys) = (None, false);
    }
    let mut machine = machine.clone();
    let root = if provider.is_some() {
        // In memory, seen by the children alone, and gone with them.
        Path::new(namespace::FOLDER).join(".hwsim")
    } else if machine.engines.is_empty() && !sys {
        return Ok(None);
    } else {
        machine.adapters.clear();
        stage.scratch("sysfs")?
    };
    for node in machine.node..machine.node + machine.nodes {
        let first = Endpoint { node, adapter: 0 };
        let shown = Shown {
            machine: &machine,
            node,
            fabric: &fabric.directory,
            whole: sys,
            interfaces: arguments.net.then(|| interface_index(first)),
        };
        sysfs::write(&root.join(node.to_string()), &shown)?;
    }
    (fabric.sysfs, fabric.shows_sys) = (Some(root), sys);
    Ok(provider.map(|provider| (DRIVERS_VARIABLE, provider.into())))
}
