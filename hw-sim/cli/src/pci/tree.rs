//! The PCI tree of a machine: where each function hangs, and the bridges above it.
//!
//! Machine files give addresses to GPUs, adapters and engines, none to switches. What is between
//! a root complex and its functions is numbered here as firmware would: a switch is a bridge whose
//! buses hold all that is below it, and each function behind it has a port of its own. Where a file
//! leaves no bus free for a switch, the function with the lowest address is on the switch's bus
//! itself.

use hwsim_machine::description::{Description, Node, PciBusId, Pcie};
use std::collections::BTreeMap;

/// The port types of PCI Express.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// A function with something to do.
    Endpoint = 0,
    /// The port of a root complex.
    Root = 4,
    /// The port of a switch that leads up.
    Upstream = 5,
    /// One that leads down.
    Downstream = 6,
    /// No port, but the root complex itself, as a function of its first bus: the host bridge.
    Host = 9,
}

/// A function of the tree.
#[derive(Debug, Clone)]
pub struct Place {
    /// Its address.
    pub address: PciBusId,
    /// Its folder below sysfs.
    pub path: String,
    /// What it is to PCI Express.
    pub port: Port,
    /// Of a bridge: the bus behind it, and the last one that can be reached through it.
    pub buses: Option<[u8; 2]>,
    /// The NUMA node of its root complex.
    pub numa_node: u32,
    /// Its link upwards; of an NVSwitch, none is known.
    pub pcie: Option<Pcie>,
}

/// Something that hangs in the tree: functions of one bus, or a switch.
enum Unit {
    Bus { bus: u8, functions: Vec<(PciBusId, Option<Pcie>)> },
    Switch { pcie: Pcie, children: Vec<Unit> },
}

impl Unit {
    /// The lowest and the highest bus of its functions; None if it has none.
    fn range(&self) -> Option<[u8; 2]> {
        match self {
            Self::Bus { bus, .. } => Some([*bus, *bus]),
            Self::Switch { children, .. } => {
                let ranges = children.iter().filter_map(Self::range);
                ranges.reduce(|one, other| [one[0].min(other[0]), one[1].max(other[1])])
            }
        }
    }

    fn add(&mut self, address: PciBusId, pcie: Option<Pcie>) {
        if let Self::Switch { children, .. } = self {
            add(children, address, pcie);
        }
    }
}

/// Adds a function to those of its bus.
fn add(units: &mut Vec<Unit>, address: PciBusId, pcie: Option<Pcie>) {
    for unit in units.iter_mut() {
        if let Unit::Bus { bus, functions } = unit
            && *bus == address.bus
        {
            functions.push((address, pcie));
            return;
        }
    }
    units.push(Unit::Bus { bus: address.bus, functions: vec![(address, pcie)] });
}

/// All functions and bridges of a machine, those above before those below. No bridge gets a device
/// number of a root's bus that `is_taken`, by the bus and the device: the host's own devices may be
/// shown beside them.
pub fn places(machine: &Description, is_taken: &dyn Fn(u8, u8) -> bool) -> Vec<Place> {
    let mut roots: Vec<_> = (0..machine.root_complexes.len())
        .map(|index| {
            (machine.root_complexes[index].numa_node, units(machine, Node::RootComplex(index)))
        })
        .filter(|(_, units)| units.iter().any(|unit| unit.range().is_some()))
        .collect();
    for switch in &machine.nv_switches {
        hang(&mut roots, switch.bus_id);
    }
    let lowest = |units: &[Unit]| units.iter().filter_map(Unit::range).map(|range| range[0]).min();
    roots.sort_by_key(|(_, units)| lowest(units));
    let domain = machine.gpus.first().map_or(0, |gpu| gpu.bus_id.domain);
    let (mut placed, mut taken) = (Vec::new(), None);
    for (numa_node, units) in roots {
        let Some(lowest) = lowest(&units) else { continue };
        let bus = root_bus(lowest, taken);
        let above = format!("devices/pci{domain:04x}:{bus:02x}");
        let mut branch = Branch { domain, numa_node, placed: Vec::new(), is_taken };
        branch.grow(&above, bus, Port::Root, units);
        branch.host_bridge(&above, bus);
        taken = branch.placed.iter().map(|place| place.address.bus).max();
        placed.extend(branch.placed);
    }
    placed
}

/// A round number for the bus of a root complex, if there is room below the first function.
fn root_bus(lowest: u8, taken: Option<u8>) -> u8 {
    /// For a switch, its ports and the root itself.
    const ROOM: u8 = 3;
    let round = lowest.saturating_sub(ROOM) & 0xe0;
    let free = taken.map_or(0, |taken| taken.saturating_add(1));
    round.max(free).min(lowest)
}

/// What hangs under a root complex or a switch.
fn units(machine: &Description, under: Node) -> Vec<Unit> {
    let mut units = Vec::new();
    for (index, switch) in machine.switches.iter().enumerate() {
        // Each switch hangs under an earlier one, which bounds the descent.
        if switch.under == under {
            let children = self::units(machine, Node::Switch(index));
            units.push(Unit::Switch { pcie: switch.pcie, children });
        }
    }
    let gpus = machine.gpus.iter().map(|gpu| (gpu.under, gpu.bus_id, gpu.pcie));
    let adapters =
        machine.adapters.iter().map(|adapter| (adapter.under, adapter.bus_id, adapter.pcie));
    let engines = machine.engines.iter().map(|engine| (engine.under, engine.bus_id, engine.pcie));
    for (_, address, pcie) in gpus.chain(adapters).chain(engines).filter(|of| of.0 == under) {
        add(&mut units, address, Some(pcie));
    }
    units
}

/// Hangs a function of which the file says only the address where its bus fits: under a switch
/// whose buses surround it, else under the root complex whose functions begin below it.
fn hang(roots: &mut [(u32, Vec<Unit>)], address: PciBusId) {
    let surrounds = |unit: &Unit| {
        matches!(unit, Unit::Switch { .. })
            && unit.range().is_some_and(|[low, high]| (low..=high).contains(&address.bus))
    };
    let all = roots.iter_mut().flat_map(|(_, units)| units.iter_mut());
    if let Some(switch) = all.into_iter().find(|unit| surrounds(unit)) {
        return switch.add(address, None);
    }
    let begins =
        |(_, units): &(u32, Vec<Unit>)| units.iter().filter_map(Unit::range).map(|r| r[0]).min();
    let below = roots.iter_mut().filter(|root| begins(root).is_some_and(|low| low <= address.bus));
    let nearest = below.max_by_key(|root| begins(root));
    if let Some((_, units)) = nearest {
        return add(units, address, None);
    }
    if let Some((_, units)) = roots.first_mut() {
        add(units, address, None);
    }
}

/// What hangs under one root complex, as it is numbered.
struct Branch<'a> {
    domain: u16,
    numa_node: u32,
    placed: Vec<Place>,
    is_taken: &'a dyn Fn(u8, u8) -> bool,
}

/// Devices of a bus, and functions of a device.
const DEVICES: u8 = 32;
const FUNCTIONS: u8 = 8;

impl Branch<'_> {
    /// Numbers what hangs on a bus, whose folder is `above`. `port` is the kind of bridge that
    /// leads down from there.
    fn grow(&mut self, above: &str, bus: u8, port: Port, mut units: Vec<Unit>) {
        units.sort_by_key(Unit::range);
        let mut last = bus;
        // Device 0 of a root's bus is the host bridge. On a switch's bus it is the first port,
        // unless functions are there, which have the device numbers that they have.
        let has_functions =
            units.iter().any(|unit| matches!(unit, Unit::Bus { bus: own, .. } if *own == bus));
        let first = u8::from(port == Port::Root || has_functions);
        let mut next = BTreeMap::from([(bus, first)]);
        for unit in units {
            let Some([low, high]) = unit.range() else { continue };
            match unit {
                Unit::Bus { bus: own, functions } if own == bus => {
                    self.functions(above, functions);
                }
                Unit::Bus { bus: own, functions } => {
                    let pcie = functions[0].1;
                    let bridge = self.bridge(above, bus, &mut next, (port, [own, own], pcie));
                    self.functions(&bridge, functions);
                }
                Unit::Switch { pcie, children } => {
                    // Its own bus is free, or that of the first function.
                    let own = if low > last + 1 { low - 1 } else { low };
                    // A switch shows the port that leads up; that of the root is left out.
                    let kind = if port == Port::Root { port } else { Port::Upstream };
                    let bridge =
                        self.bridge(above, bus, &mut next, (kind, [own, high], Some(pcie)));
                    self.grow(&bridge, own, Port::Downstream, children);
                }
            }
            last = high;
        }
    }

    /// The root complex as a function of its own bus. Programs look there for its NUMA node, which
    /// they take to be that of what hangs on the bus.
    fn host_bridge(&mut self, above: &str, bus: u8) {
        let address = PciBusId { domain: self.domain, bus, device: 0, function: 0 };
        if self.placed.iter().any(|place| place.address == address) {
            return;
        }
        let (port, numa_node) = (Port::Host, self.numa_node);
        let path = String::new();
        self.place(above, Place { address, path, port, buses: None, numa_node, pcie: None });
    }

    /// A bridge on a bus; gives its folder.
    fn bridge(
        &mut self,
        above: &str,
        bus: u8,
        next: &mut BTreeMap<u8, u8>,
        (port, buses, pcie): (Port, [u8; 2], Option<Pcie>),
    ) -> String {
        let next = next.entry(bus).or_insert(1);
        // Device after device, then their other functions; more bridges there are not.
        let mut number = *next;
        while number < DEVICES * (FUNCTIONS - 1) && (self.is_taken)(bus, number % DEVICES) {
            number += 1;
        }
        *next = number.saturating_add(1);
        let (device, function) = (number % DEVICES, number / DEVICES);
        let address = PciBusId { domain: self.domain, bus, device, function };
        self.place(
            above,
            Place {
                address,
                path: String::new(),
                port,
                buses: Some(buses),
                numa_node: self.numa_node,
                pcie,
            },
        )
    }

    fn functions(&mut self, above: &str, functions: Vec<(PciBusId, Option<Pcie>)>) {
        for (address, pcie) in functions {
            self.place(
                above,
                Place {
                    address,
                    path: String::new(),
                    port: Port::Endpoint,
                    buses: None,
                    numa_node: self.numa_node,
                    pcie,
                },
            );
        }
    }

    fn place(&mut self, above: &str, place: Place) -> String {
        let path = format!("{above}/{}", place.address);
        self.placed.push(Place { path: path.clone(), ..place });
        path
    }
}
