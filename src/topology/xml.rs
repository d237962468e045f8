//! NCCL's topology files: what `NCCL_TOPO_DUMP_FILE` writes and people post, read and written; also
//! those of RCCL, where `xgmi` stands for `nvlink`.
//!
//! The tree of elements is that of the devices: `system`, `cpu` (a NUMA node), `pci`, and in a
//! `pci` either a `gpu` with its `nvlink`s or a `nic` with its `net`s. What is unknown is passed
//! over: later versions add elements and attributes.

use super::machine::{
    CLASS_BRIDGE, CLASS_GPU, CLASS_INFINIBAND, CLASS_NVSWITCH, Device, DeviceKind, Gpu, Machine,
    NetworkPort, NvLinks, Parent, PcieLink, Socket,
};
use super::pci::PciAddress;
use crate::error::{Error, Result};
use roxmltree::{Document, Node};
use std::collections::HashSet;
use xmlwriter::XmlWriter;

/// No machine has more devices, and no PCI tree is deeper.
const DEVICES_MAX: usize = 4096;
const DEPTH_MAX: usize = 32;

impl Machine {
    /// Reads a topology file of NCCL's.
    ///
    /// # Errors [`Error::Argument`] with the line for text that is no XML, another root element,
    /// and attributes that are missing or make no sense; for an address that occurs twice, and more
    /// than 4,096 devices.
    pub fn from_nccl(text: &str) -> Result<Self> {
        let document = Document::parse(text)
            .map_err(|error| Error::argument(&at_line(error.pos().row), "XML", error))?;
        let system = document.root_element();
        let reader = Reader { document: &document };
        if !system.has_tag_name("system") {
            return Err(reader.wrong(
                system,
                "<system>",
                format!("<{}>", system.tag_name().name()),
            ));
        }
        let mut machine = Self::default();
        let mut addresses = HashSet::new();
        for cpu in elements(system, "cpu") {
            let socket = machine.sockets.len();
            machine.sockets.push(reader.socket(cpu)?);
            reader.children(cpu, Parent::Socket(socket), 0, &mut machine, &mut addresses)?;
        }
        Ok(machine)
    }

    /// Writes this machine as a topology file of NCCL's.
    pub fn to_nccl(&self) -> String {
        let mut writer = XmlWriter::new(xmlwriter::Options {
            use_single_quote: false,
            indent: xmlwriter::Indent::Spaces(2),
            ..xmlwriter::Options::default()
        });
        writer.start_element("system");
        writer.write_attribute("version", "1");
        let mut ports = 0;
        for (number, socket) in self.sockets.iter().enumerate() {
            writer.start_element("cpu");
            let numa = socket.numa_node.map_or("-1".to_owned(), |node| node.to_string());
            writer.write_attribute("numaid", &numa);
            let texts = [
                ("affinity", &socket.affinity),
                ("arch", &socket.arch),
                ("vendor", &socket.vendor),
            ];
            for (name, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
                writer.write_attribute(name, text);
            }
            for (name, value) in [("familyid", socket.family), ("modelid", socket.model)] {
                if let Some(value) = value {
                    writer.write_attribute(name, &value);
                }
            }
            self.write_below(&mut writer, Parent::Socket(number), &mut ports);
            writer.end_element();
        }
        writer.end_document()
    }

    fn write_below(&self, writer: &mut XmlWriter, parent: Parent, ports: &mut u32) {
        let below = self.devices.iter().enumerate().filter(|(_, device)| device.parent == parent);
        for (place, device) in below {
            writer.start_element("pci");
            writer.write_attribute("busid", &device.address);
            writer.write_attribute_fmt("class", format_args!("0x{:06x}", device.class));
            if let Some(link) = device.link {
                let (whole, tenths) = (link.decitransfers / 10, link.decitransfers % 10);
                let speed = format_args!("{whole}.{tenths} GT/s PCIe");
                writer.write_attribute_fmt("link_speed", speed);
                writer.write_attribute("link_width", &link.lanes);
            }
            match &device.kind {
                DeviceKind::Bridge => self.write_below(writer, Parent::Device(place), ports),
                DeviceKind::Gpu(gpu) => write_gpu(writer, gpu),
                DeviceKind::Adapter(of_adapter) => {
                    writer.start_element("nic");
                    for port in of_adapter {
                        write_port(writer, port, *ports);
                        *ports += 1;
                    }
                    writer.end_element();
                }
            }
            writer.end_element();
        }
    }
}

/// All NVSwitches of a machine that hides them.
const NVSWITCH_UNSEEN: PciAddress =
    PciAddress { domain: 0xfff_ffff, bus: 0xff, device: 31, function: 7 };

fn write_gpu(writer: &mut XmlWriter, gpu: &Gpu) {
    writer.start_element("gpu");
    writer.write_attribute("dev", &gpu.number);
    writer.write_attribute("sm", &gpu.compute);
    if let Some(gcn) = &gpu.gcn {
        writer.write_attribute("gcn", gcn);
    }
    for links in &gpu.nvlinks {
        writer.start_element(link_name(gpu.gcn.is_some()));
        writer.write_attribute("target", &links.to);
        writer.write_attribute("count", &links.count);
        writer.write_attribute_fmt("tclass", format_args!("0x{:06x}", links.class));
        writer.end_element();
    }
    writer.end_element();
}

/// NCCL's name of a link, and that of RCCL, whose files are otherwise the same.
fn link_name(is_amd: bool) -> &'static str {
    if is_amd { "xgmi" } else { "nvlink" }
}

fn write_port(writer: &mut XmlWriter, port: &NetworkPort, number: u32) {
    writer.start_element("net");
    writer.write_attribute("name", &port.name);
    writer.write_attribute("dev", &number);
    writer.write_attribute("speed", &port.mbps);
    writer.write_attribute("port", &port.port);
    writer.write_attribute_fmt("guid", format_args!("0x{:x}", port.guid));
    writer.write_attribute("gdr", &u32::from(port.gpu_direct));
    writer.end_element();
}

fn at_line(line: u32) -> String {
    format!("topology file, line {line}")
}

fn elements<'a, 'i>(node: Node<'a, 'i>, name: &'static str) -> impl Iterator<Item = Node<'a, 'i>> {
    node.children().filter(move |child| child.has_tag_name(name))
}

struct Reader<'a> {
    document: &'a Document<'a>,
}

impl Reader<'_> {
    fn wrong(&self, node: Node, expected: &str, seen: impl std::fmt::Display) -> Error {
        let line = self.document.text_pos_at(node.range().start).row;
        Error::argument(&at_line(line), expected, seen)
    }

    fn number(&self, node: Node, name: &str) -> Result<Option<u64>> {
        let Some(text) = node.attribute(name) else { return Ok(None) };
        let value = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        let expected = format!("a number for {name}");
        value.map(Some).map_err(|_| self.wrong(node, &expected, format!("{text:?}")))
    }

    /// A number that is there, and below a limit.
    fn small(&self, node: Node, name: &str, most: u32) -> Result<u32> {
        let value = self.number(node, name)?;
        let small = value.and_then(|value| u32::try_from(value).ok()).filter(|v| *v <= most);
        small.ok_or_else(|| {
            let seen = node.attribute(name).unwrap_or("no such attribute");
            self.wrong(node, &format!("{name} from 0 to {most}"), seen)
        })
    }

    fn address(&self, node: Node, name: &str) -> Result<PciAddress> {
        let text = node.attribute(name).unwrap_or("no such attribute");
        text.parse().map_err(|()| {
            self.wrong(node, &format!("{name} with a PCI address such as 0000:3b:00.0"), text)
        })
    }

    fn socket(&self, cpu: Node) -> Result<Socket> {
        let text = |name| cpu.attribute(name).unwrap_or_default().to_owned();
        let small = |name| -> Result<Option<u32>> {
            Ok(self.number(cpu, name)?.and_then(|value| value.try_into().ok()))
        };
        Ok(Socket {
            // -1 where there is none.
            numa_node: cpu.attribute("numaid").and_then(|text| text.parse().ok()),
            arch: text("arch"),
            vendor: text("vendor"),
            family: small("familyid")?,
            model: small("modelid")?,
            affinity: text("affinity"),
        })
    }

    fn children(
        &self,
        node: Node,
        parent: Parent,
        depth: usize,
        machine: &mut Machine,
        addresses: &mut HashSet<PciAddress>,
    ) -> Result<()> {
        for pci in elements(node, "pci") {
            let address = self.address(pci, "busid")?;
            if !addresses.insert(address) {
                return Err(self.wrong(pci, "each address once", format!("{address} again")));
            }
            if machine.devices.len() == DEVICES_MAX || depth == DEPTH_MAX {
                let expected = format!("up to {DEVICES_MAX} devices, {DEPTH_MAX} levels deep");
                return Err(self.wrong(pci, &expected, "more"));
            }
            let kind = self.kind(pci)?;
            if let DeviceKind::Gpu(gpu) = &kind
                && gpu.nvlinks.iter().any(|links| links.to == address)
            {
                return Err(self.wrong(
                    pci,
                    "links to other devices",
                    format!("{address} to itself"),
                ));
            }
            let class = self.number(pci, "class")?.and_then(|class| class.try_into().ok());
            let class = class.unwrap_or(match kind {
                DeviceKind::Bridge => CLASS_BRIDGE,
                DeviceKind::Gpu(_) => CLASS_GPU,
                DeviceKind::Adapter(_) => CLASS_INFINIBAND,
            });
            let is_bridge = kind == DeviceKind::Bridge;
            let place = machine.devices.len();
            machine.devices.push(Device { address, parent, class, link: self.link(pci), kind });
            if is_bridge {
                self.children(pci, Parent::Device(place), depth + 1, machine, addresses)?;
            }
        }
        Ok(())
    }

    fn kind(&self, pci: Node) -> Result<DeviceKind> {
        if let Some(gpu) = elements(pci, "gpu").next() {
            return self.gpu(gpu).map(DeviceKind::Gpu);
        }
        let mut nics = elements(pci, "nic").peekable();
        if nics.peek().is_none() {
            return Ok(DeviceKind::Bridge);
        }
        let ports = nics.flat_map(|nic| elements(nic, "net")).map(|net| self.port(net));
        ports.collect::<Result<_>>().map(DeviceKind::Adapter)
    }

    fn gpu(&self, gpu: Node) -> Result<Gpu> {
        let gcn = gpu.attribute("gcn").map(str::to_owned);
        let nvlinks = elements(gpu, link_name(gcn.is_some())).map(|link| {
            let class = self.small(link, "tclass", 0xff_ff_ff)?;
            let to = match self.address(link, "target") {
                // `fffffff:ffff:ff`: guests do not see the switches. One name for all of them will
                // do.
                Err(_) if class == CLASS_NVSWITCH => NVSWITCH_UNSEEN,
                address => address?,
            };
            match self.small(link, "count", 1024)? {
                0 => Err(self.wrong(link, "count from 1 to 1024", 0)),
                count => Ok(NvLinks { to, count, class }),
            }
        });
        Ok(Gpu {
            number: self.small(gpu, "dev", DEVICES_MAX as u32)?,
            compute: self.number(gpu, "sm")?.and_then(|sm| sm.try_into().ok()).unwrap_or(0),
            nvlinks: nvlinks.collect::<Result<_>>()?,
            gcn,
        })
    }

    fn port(&self, net: Node) -> Result<NetworkPort> {
        Ok(NetworkPort {
            name: net.attribute("name").unwrap_or_default().to_owned(),
            port: self.number(net, "port")?.and_then(|port| port.try_into().ok()).unwrap_or(1),
            mbps: u64::from(self.small(net, "speed", 100_000_000)?),
            guid: self.number(net, "guid")?.unwrap_or(0),
            gpu_direct: self.number(net, "gdr")? == Some(1),
        })
    }

    /// Files have empty texts where a virtual machine hides them.
    fn link(&self, pci: Node) -> Option<PcieLink> {
        PcieLink::from_texts(pci.attribute("link_speed")?, pci.attribute("link_width")?)
    }
}
