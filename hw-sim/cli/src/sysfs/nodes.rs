//! NUMA nodes. Machine files name those with devices; the host says how many processors and how
//! much memory there are, which are dealt out to the nodes.

use super::{HOST, Tree, Written};
use std::fs;
use std::path::Path;

/// Distances as Linux counts them: to itself, and to another node.
const NEAR: u32 = 10;
const FAR: u32 = 20;

/// The host's processors, as a list of Linux.
pub fn host_processors() -> String {
    let online = Path::new(HOST).join("devices/system/cpu/online");
    fs::read_to_string(online).unwrap_or_else(|_| "0\n".into())
}

/// The numbers of a list such as `0-3,8`.
pub fn numbers(list: &str) -> Vec<u32> {
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.trim().split(',').filter_map(range).flatten().collect()
}

/// A set of numbers as a list.
fn list(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// A list as a mask in groups of 32 bits, the highest first.
pub fn mask(list: &str) -> String {
    let numbers = numbers(list);
    let words = numbers.iter().max().map_or(1, |highest| highest / 32 + 1);
    let word = |index: u32| {
        let here = numbers.iter().filter(|number| *number / 32 == index);
        here.fold(0_u32, |word, number| word | 1 << (number % 32))
    };
    (0..words).rev().map(|index| format!("{:08x}", word(index))).collect::<Vec<_>>().join(",")
}

/// The host's memory in KiB.
fn memory_kib() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

impl Tree<'_> {
    /// `devices/system/node`.
    pub(super) fn nodes(&self) -> Written {
        // Those without devices, too: Linux counts from 0, and a process may always use node 0.
        let last = self.machine.root_complexes.iter().map(|root| root.numa_node).max();
        let all: Vec<u32> = (0..=last.unwrap_or(0)).collect();
        let processors = numbers(&host_processors());
        let kib = memory_kib() / all.len().max(1) as u64;
        let folder = "devices/system/node";
        let list_of_all = list(&all);
        let of = |index: usize| -> Vec<u32> {
            // In contiguous parts; where there are fewer processors than nodes, the last have none.
            let (count, nodes) = (processors.len(), all.len());
            let part = |index: usize| (index * count).div_ceil(nodes);
            processors[part(index)..part(index + 1)].to_vec()
        };
        let with: Vec<u32> =
            all.iter().enumerate().filter(|(i, _)| !of(*i).is_empty()).map(|(_, n)| *n).collect();
        for (name, content) in [
            ("online", &list_of_all),
            ("possible", &list_of_all),
            ("has_memory", &list_of_all),
            ("has_normal_memory", &list_of_all),
            ("has_cpu", &list(&with)),
        ] {
            self.file(&format!("{folder}/{name}"), content)?;
        }
        for (index, node) in all.iter().enumerate() {
            let own = format!("{folder}/node{node}");
            let processors = list(&of(index));
            let distances: Vec<_> =
                all.iter().map(|to| if to == node { NEAR } else { FAR }.to_string()).collect();
            self.files(&own, &[
                ("cpulist", &processors),
                ("cpumap", &mask(&processors)),
                ("distance", &distances.join(" ")),
                ("meminfo", &format!(
                    "Node {node} MemTotal: {kib:>14} kB\nNode {node} MemFree: {kib:>15} kB\n\
                     Node {node} MemUsed: {:>15} kB", 0
                )),
                ("numastat", &"numa_hit 0\nnuma_miss 0\nnuma_foreign 0\ninterleave_hit 0\n\
                               local_node 0\nother_node 0"),
            ])?;
            for processor in of(index) {
                // Where the host's processors are, in the same tree once it is shown.
                let link = self.root.join(&own).join(format!("cpu{processor}"));
                std::os::unix::fs::symlink(format!("../../cpu/cpu{processor}"), link)?;
            }
        }
        Ok(())
    }
}
