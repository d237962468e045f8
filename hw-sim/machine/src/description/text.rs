//! A description as text for people.

use super::{Description, LinkKind, Node, PciPath};
use std::fmt::Write;

impl Description {
    /// What the machine is: its GPUs, its PCI tree, and who is linked with whom.
    pub fn describe(&self) -> String {
        let mut text = format!("{}: {}\n\n", self.name, self.summary);
        // Writing to a String cannot fail; the results are dropped here and below.
        if self.nodes > 1 {
            let _ = writeln!(text, "{} nodes, each as follows\n", self.nodes);
        }
        text.push_str("GPUs\n");
        for (ordinal, gpu) in self.gpus.iter().enumerate() {
            let (major, minor) = gpu.model.compute_capability;
            let _ = writeln!(
                text,
                "  {ordinal}  {}  {}  sm_{major}{minor}, {} SMs, {} MiB, PCIe {}.0 x{}, NUMA {}",
                gpu.bus_id,
                gpu.model.name,
                gpu.model.multiprocessors,
                gpu.model.memory_bytes >> 20,
                gpu.pcie.generation,
                gpu.pcie.lanes,
                gpu.numa_node
            );
        }
        text.push_str("\nPCI tree\n");
        for (index, root) in self.root_complexes.iter().enumerate() {
            let _ = writeln!(text, "  {} (NUMA {})", root.name, root.numa_node);
            self.write_below(&mut text, Node::RootComplex(index), 2);
        }
        text.push_str("\nLinks between GPUs\n");
        text.push_str(&self.matrix());
        text.push_str(&self.rates());
        text
    }

    /// The matrix of `nvidia-smi topo -m`: how each GPU reaches each other.
    pub fn matrix(&self) -> String {
        let count = self.gpus.len();
        let row = |head: String, cells: Vec<String>| {
            let cells: String = cells.iter().map(|cell| format!("{cell:<6}")).collect();
            format!("  {head:<7}{}", cells.trim_end()) + "\n"
        };
        let mut text = row(String::new(), (0..count).map(|b| format!("GPU{b}")).collect());
        for a in 0..count {
            let cells = (0..count).map(|b| self.reach(a, b)).collect();
            text += &row(format!("GPU{a}"), cells);
        }
        text
    }

    /// One cell of the matrix: NVLink if there is any, else the PCI path.
    fn reach(&self, a: usize, b: usize) -> String {
        match (self.nv_link_count(a, b), self.pci_path(a, b)) {
            (_, PciPath::Same) => "X".into(),
            (0, PciPath::OneSwitch) => "PIX".into(),
            (0, PciPath::Switches) => "PXB".into(),
            (0, PciPath::HostBridge) => "PHB".into(),
            (0, PciPath::Node) => "NODE".into(),
            (0, PciPath::System) => "SYS".into(),
            (links, _) => format!("NV{links}"),
        }
    }

    /// The lines of the tree below one node, indented. Depth is bounded by the number of switches.
    fn write_below(&self, text: &mut String, node: Node, depth: usize) {
        for (index, switch) in self.switches.iter().enumerate() {
            if switch.under == node {
                let rate = switch.pcie.gb_per_s();
                let (indent, name) = (2 * depth, &switch.name);
                let _ = writeln!(text, "{:indent$}{name} ({rate:.1} GB/s up)", "");
                self.write_below(text, Node::Switch(index), depth + 1);
            }
        }
        for (ordinal, gpu) in self.gpus.iter().enumerate() {
            if gpu.under == node {
                let rate = gpu.pcie.gb_per_s();
                let (indent, name) = (2 * depth, &gpu.name);
                let _ = writeln!(text, "{:indent$}{name} (GPU{ordinal}, {rate:.1} GB/s)", "");
            }
        }
        for adapter in self.adapters.iter().filter(|adapter| adapter.under == node) {
            let (name, layer, rate) = (&adapter.name, adapter.link_layer, adapter.gb_per_s);
            let indent = 2 * depth;
            let _ = writeln!(text, "{:indent$}{name} (adapter, {layer:?}, {rate} GB/s)", "");
        }
        for engine in self.engines.iter().filter(|engine| engine.under == node) {
            let (name, rate, indent) = (&engine.name, engine.gb_per_s, 2 * depth);
            let _ = writeln!(text, "{:indent$}{name} (device engine, {rate} GB/s)", "");
        }
    }

    /// Legend and rates, below the matrix.
    fn rates(&self) -> String {
        let mut text = String::from(
            "\n  NVn n NVLinks; PIX one PCI switch; PXB several; PHB the host bridge; NODE two\n  \
             host bridges of one NUMA node; SYS across NUMA nodes. Rates: nominal, one way.\n",
        );
        let mut rates: Vec<String> = Vec::new();
        for link in &self.links {
            let kind = match link.kind {
                LinkKind::NvLink => "NVLink",
                LinkKind::Cpu => "CPU link",
                LinkKind::Pcie => "PCIe",
            };
            let rate = format!("  One {kind}: {} GB/s.\n", link.gb_per_s);
            if !rates.contains(&rate) {
                rates.push(rate);
            }
        }
        text.extend(rates);
        text
    }
}
