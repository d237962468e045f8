//! A machine in words: its tree, how GPUs and adapters are joined, and the rates of collectives.

use ringdove::topology::graph::CapacityGraph;
use ringdove::topology::machine::{Device, DeviceKind, Machine, Parent, PcieLink};
use ringdove::topology::packing::{Packing, Rate, Tree};
use ringdove::topology::ring_order::Ring;
use std::fmt::Write;

/// Sockets, bridges, GPUs and adapters, each below what it hangs on.
pub fn tree(machine: &Machine) -> String {
    let mut out = String::new();
    for (place, socket) in machine.sockets.iter().enumerate() {
        let numa =
            socket.numa_node.map_or("unknown NUMA node".to_owned(), |n| format!("NUMA node {n}"));
        let words = [&numa, &socket.arch, &socket.vendor];
        let words: Vec<_> = words.into_iter().filter(|w| !w.is_empty()).map(|w| &**w).collect();
        push(&mut out, 0, &words.join(", "));
        below(machine, Parent::Socket(place), 1, &mut out);
    }
    out
}

fn below(machine: &Machine, parent: Parent, depth: usize, out: &mut String) {
    let devices = machine.devices.iter().enumerate();
    for (place, device) in devices.filter(|(_, device)| device.parent == parent) {
        push(out, depth, &format!("{} {}", device.address, words(device)));
        below(machine, Parent::Device(place), depth + 1, out);
    }
}

fn push(out: &mut String, depth: usize, line: &str) {
    out.push_str(&"  ".repeat(depth));
    out.push_str(line);
    out.push('\n');
}

fn words(device: &Device) -> String {
    let link = device.link.map(pcie).unwrap_or_default();
    match &device.kind {
        DeviceKind::Bridge => format!("bridge{link}"),
        DeviceKind::Gpu(gpu) => {
            let count: u32 = gpu.nvlinks.iter().map(|links| links.count).sum();
            let nvlinks = match count {
                0 => String::new(),
                _ => format!(", {count} NVLinks of {} GB/s", gpu.nvlink_megabytes() / 1000),
            };
            format!("GPU {}{link}{nvlinks}", gpu.number)
        }
        DeviceKind::Adapter(ports) => {
            let ports: Vec<_> = ports
                .iter()
                .map(|port| {
                    format!("{} port {}, {} Gbit/s", port.name, port.port, port.mbps / 1000)
                })
                .collect();
            format!("adapter {}{link}", ports.join(", "))
        }
    }
}

fn pcie(link: PcieLink) -> String {
    let (whole, tenths) = (link.decitransfers / 10, link.decitransfers % 10);
    let tenths = if tenths == 0 { String::new() } else { format!(".{tenths}") };
    format!(", PCIe {whole}{tenths} GT/s x {}", link.lanes)
}

/// How each GPU is joined to each other device, as `nvidia-smi topo -m` shows it.
pub fn matrix(machine: &Machine) -> String {
    let gpus = machine.gpus();
    let mut rows: Vec<_> =
        gpus.iter().map(|(place, gpu)| (*place, format!("GPU{}", gpu.number))).collect();
    for (place, port) in machine.ports() {
        if rows.iter().all(|(other, _)| *other != place) {
            rows.push((place, port.name.clone()));
        }
    }
    let width = rows.iter().map(|(_, name)| name.len()).max().unwrap_or(0).max(4) + 1;
    let mut out = " ".repeat(width);
    for (_, name) in &rows {
        let _ = write!(out, "{name:<width$}");
    }
    out = format!("{}\n", out.trim_end());
    for (a, name) in &rows {
        let mut line = format!("{name:<width$}");
        for (b, _) in &rows {
            let _ = write!(line, "{:<width$}", machine.joined(*a, *b));
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out + "X itself, NV# NVLinks, PIX one PCI switch, PXB several, PHB a socket, SYS two sockets\n"
}

/// What the links admit, and what the packed trees reach.
pub fn rates(graph: &CapacityGraph, packing: &Packing) -> String {
    let gigabytes = |rate: Rate| *rate.numer() as f64 / *rate.denom() as f64 / 1000.0;
    let gpus = graph.gpus().count();
    let depth = packing.trees.iter().map(Tree::depth).max().unwrap_or(0);
    let mut out = String::new();
    let optimum = gigabytes(packing.optimum);
    let _ = writeln!(out, "{gpus} GPUs. What the links admit, from their data sheets' rates:");
    let _ = writeln!(out, "  all-gather, reduce-scatter  {optimum:.2} GB/s of all data");
    let _ =
        writeln!(out, "  all-reduce                  {:.2} GB/s of each GPU's data", optimum / 2.0);
    let each = packing.trees_per_root;
    let (trees, reached) = (packing.trees.len(), gigabytes(packing.rate()));
    let _ = writeln!(
        out,
        "Packed: trees for each GPU: {each}, different ones: {trees}, links to the farthest GPU: \
         {depth}; all-gather {reached:.2} GB/s"
    );
    out
}

/// The ring in the order of ranks, and a better order if there is one.
pub fn rings(own: &Ring, best: Option<&Ring>) -> String {
    let list = |gpus: &[u32]| gpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let narrowest = |ring: &Ring| {
        let (from, to) = ring.narrowest;
        let gigabytes = ring.megabytes as f64 / 1000.0;
        format!("{gigabytes:.2} GB/s, {} from GPU {from} to {to}", ring.joined)
    };
    let mut out = format!("Ring {}: narrowest link {}\n", list(&own.gpus), narrowest(own));
    if let Some(best) = best.filter(|best| best.megabytes > own.megabytes) {
        let order = list(&best.gpus);
        let _ = writeln!(out, "Ring {order}: narrowest link {}", narrowest(best));
        let _ = writeln!(out, "  Communicators order their rings so (RINGDOVE_RING_ORDER=links);");
        let _ = writeln!(out, "  CUDA_VISIBLE_DEVICES={order} does it for other programs");
    }
    out
}
