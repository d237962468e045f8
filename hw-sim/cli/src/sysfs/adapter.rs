//! RDMA adapters, and the network interfaces of their ports.

use super::{Tree, Written};
use crate::adapters::{device_name, interface_name, mac_text};
use hwsim_machine::adapter::Endpoint;
use hwsim_machine::adapter::address::GidKind;
use hwsim_machine::description::{Adapter, LinkLayer};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Bytes in groups of two, as sysfs shows GUIDs and GIDs.
fn groups(bytes: &[u8]) -> String {
    let groups: Vec<_> =
        bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    groups.join(":")
}

impl Tree<'_> {
    pub(super) fn adapter(&self, index: usize, adapter: &Adapter, endpoint: Endpoint) -> Written {
        let name = &adapter.name;
        let pci = self.path(adapter.bus_id);
        let own = format!("{pci}/infiniband/{name}");
        let guid = groups(&endpoint.guid().to_be_bytes());
        self.files(
            &own,
            &[
                ("node_type", &"1: CA"),
                ("node_guid", &guid),
                ("sys_image_guid", &guid),
                ("node_desc", name),
                ("fw_ver", &concat!(env!("CARGO_PKG_VERSION"), " (virtual)")),
                ("hca_type", &"hwsim (virtual)"),
                ("hw_rev", &"0x0"),
                ("board_id", &"virtual"),
            ],
        )?;
        self.device(&own, adapter)?;
        self.class("infiniband", name, &own)?;
        let verbs = format!("{pci}/infiniband_verbs/{}", device_name(index));
        self.files(&verbs, &[("ibdev", name), ("abi_version", &1), ("dev", &"1:3")])?;
        self.device(&verbs, adapter)?;
        self.class("infiniband_verbs", &device_name(index), &verbs)?;
        self.port(&format!("{own}/ports/1"), adapter, endpoint)
    }

    /// The link of an interface's folder to its PCI function. It ends with the function's address,
    /// as Linux makes it: programs read the address from the link itself.
    fn device(&self, folder: &str, adapter: &Adapter) -> Written {
        let target = format!("../../../{}", adapter.bus_id);
        symlink(target, self.root.join(folder).join("device"))
    }

    /// Shows the page on which the processes of the run count what an adapter does.
    pub(super) fn counters(&self, adapter: &Adapter, page: &Path) -> Written {
        let port = format!("{}/infiniband/{}/ports/1", self.path(adapter.bus_id), adapter.name);
        symlink(page, self.root.join(port).join("virtual_counters"))
    }

    /// A class's link to a folder.
    fn class(&self, class: &str, name: &str, folder: &str) -> Written {
        let class = format!("class/{class}");
        fs::create_dir_all(self.root.join(&class))?;
        symlink(format!("../../{folder}"), self.root.join(&class).join(name))
    }

    fn port(&self, port: &str, adapter: &Adapter, endpoint: Endpoint) -> Written {
        let layer = adapter.link_layer;
        let infiniband = layer == LinkLayer::InfiniBand;
        let lid = if infiniband { endpoint.lid() } else { 0 };
        let down = adapter.faults.iter().any(|fault| fault == "port-down");
        self.files(
            port,
            &[
                ("state", &if down { "1: DOWN" } else { "4: ACTIVE" }),
                ("phys_state", &if down { "3: Disabled" } else { "5: LinkUp" }),
                ("link_layer", &if infiniband { "InfiniBand" } else { "Ethernet" }),
                ("rate", &format!("{} Gb/sec (4X)", adapter.gb_per_s * 8.0)),
                ("lid", &format!("{lid:#x}")),
                ("sm_lid", &if infiniband { "0x1" } else { "0x0" }),
                ("sm_sl", &0),
                ("lid_mask_count", &0),
                ("cap_mask", &"0x00010000"),
                ("pkeys/0", &"0xffff"),
            ],
        )?;
        for (index, gid) in endpoint.gids(layer).iter().enumerate() {
            self.file(&format!("{port}/gids/{index}"), groups(&gid.raw))?;
            let kind = match gid.kind {
                GidKind::InfiniBand | GidKind::RoceV1 => "IB/RoCE v1",
                GidKind::RoceV2 => "RoCE v2",
            };
            self.file(&format!("{port}/gid_attrs/types/{index}"), kind)?;
        }
        Ok(())
    }

    /// The interface of an adapter's port, which has an index in the kernel's table.
    pub(super) fn interface(&self, adapter: &Adapter, endpoint: Endpoint, index: u32) -> Written {
        let name = interface_name(adapter.link_layer, endpoint);
        let pci = self.path(adapter.bus_id);
        let own = format!("{pci}/net/{name}");
        let megabits = (adapter.gb_per_s * 8000.0) as u64;
        self.net(
            &own,
            &[
                ("address", &mac_text(endpoint)),
                ("ifindex", &index),
                ("speed", &megabits),
                ("duplex", &"full"),
                ("dev_id", &"0x0"),
                ("dev_port", &0),
                ("type", &1),
                ("flags", &"0x1003"),
                ("mtu", &1500),
            ],
        )?;
        self.device(&own, adapter)?;
        self.class("net", &name, &own)
    }

    /// The interface of the node itself.
    pub(super) fn loopback(&self) -> Written {
        let own = "devices/virtual/net/lo";
        self.net(
            own,
            &[
                ("address", &"00:00:00:00:00:00"),
                ("ifindex", &1),
                ("type", &772),
                ("flags", &"0x9"),
                ("mtu", &65536),
            ],
        )?;
        self.class("net", "lo", own)
    }

    fn net(&self, folder: &str, files: &[(&str, &dyn std::fmt::Display)]) -> Written {
        self.files(folder, files)?;
        self.files(folder, &[("operstate", &"up"), ("carrier", &1), ("addr_len", &6)])
    }
}
