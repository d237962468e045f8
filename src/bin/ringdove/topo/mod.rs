//! `ringdove topo`: what this node, or a machine described in a file, is made of, and how fast its
//! links can make collectives.

mod drawing;
mod text;

use clap::Args;
use ringdove::topology::graph::CapacityGraph;
use ringdove::topology::in_switch::InSwitch;
use ringdove::topology::machine::Machine;
use ringdove::topology::network::{Leaf, Network};
use ringdove::topology::packing::{Packing, Rate, Roots, pack};
use ringdove::topology::ranks::RankGpu;
use std::path::PathBuf;
use std::process::ExitCode;

/// Command line of `ringdove topo`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// A topology file of NCCL's (NCCL_TOPO_DUMP_FILE) instead of this node
    #[arg(long, visible_alias = "machine", value_name = "FILE")]
    xml: Option<PathBuf>,
    /// Writes the machine as a topology file of NCCL's
    #[arg(long, value_name = "FILE")]
    export: Option<PathBuf>,
    /// Draws links, and the trees of the first GPU, into an SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Only these GPUs take part, by number: 0,1,5
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS")]
    gpus: Option<Vec<u32>>,
    /// So many nodes like this one, joined by their adapters
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=512))]
    nodes: u32,
    /// Rails: GPUs with the same place on their nodes share switches of their own
    #[arg(long, requires = "nodes")]
    rails: bool,
    /// So many nodes are below one leaf switch (with --rails: below one for each rail)
    #[arg(long, value_name = "COUNT", requires = "nodes",
        value_parser = clap::value_parser!(u32).range(1..=512))]
    leaf_nodes: Option<u32>,
    /// How many times the rate of what is below a leaf switch exceeds that of its uplinks
    #[arg(long, value_name = "RATIO", default_value = "1", requires = "leaf_nodes",
        value_parser = ratio)]
    oversubscription: Rate,
    /// So many trees for each GPU, instead of as many as the optimum takes
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1024))]
    trees: Option<u64>,
}

/// A ratio with up to three decimals.
fn ratio(text: &str) -> Result<Rate, String> {
    let expected = || "a number from 1 to 1000, with up to three decimals".to_owned();
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let whole: u64 = whole.parse().map_err(|_| expected())?;
    let digits: u64 = decimals.parse().map_err(|_| expected())?;
    let scale = 10u64.pow(decimals.len().min(4) as u32);
    let fits = decimals.len() <= 3 && (1..=1000).contains(&whole);
    if fits { Ok(Rate::new(whole * scale + digits, scale)) } else { Err(expected()) }
}

/// Shows the machine.
pub fn run(arguments: &Arguments) -> ExitCode {
    super::ended(show(arguments))
}

fn show(arguments: &Arguments) -> Result<(), String> {
    let machine = match &arguments.xml {
        None => Machine::discover()?,
        Some(file) => {
            let text = std::fs::read_to_string(file)
                .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
            Machine::from_nccl(&text).map_err(|error| format!("{}: {error}", file.display()))?
        }
    };
    if let Some(file) = &arguments.export {
        write(file, &machine.to_nccl())?;
    }
    let mut out = format!("{}\n{}", text::tree(&machine), text::matrix(&machine));
    let all = machine.gpus().iter().map(|(_, gpu)| gpu.number).collect();
    let gpus = arguments.gpus.clone().unwrap_or(all);
    if (gpus.len() * arguments.nodes as usize) < 2 {
        return super::say(&(out + "\nOne GPU alone: nothing to be moved.\n"));
    }
    let words = |error: ringdove::Error| error.to_string();
    let oversubscription = arguments.oversubscription;
    let leaf = arguments.leaf_nodes.map(|nodes| Leaf { nodes, oversubscription });
    let network = Network { rails: arguments.rails, leaf };
    let graph = machine.capacities_over(&gpus, arguments.nodes, network).map_err(words)?;
    let packing = pack(&graph, &Roots::all(&graph), arguments.trees).map_err(words)?;
    out += &format!("\n{}", text::rates(&graph, &packing));
    if arguments.nodes == 1 {
        out += &in_switch(&machine, &gpus);
        let own = machine.ring(&gpus).map_err(words)?;
        out += &text::rings(&own, machine.best_ring(&gpus).map_err(words)?.as_ref());
    }
    if let Some(file) = &arguments.svg {
        write(file, &draw(&graph, &packing)?)?;
    }
    super::say(&out)
}

/// What NVSwitches that reduce would admit, where there are such.
fn in_switch(machine: &Machine, numbers: &[u32]) -> String {
    let known = machine.gpus();
    let places = known.iter().filter(|(_, gpu)| numbers.contains(&gpu.number));
    let of = |place: usize| RankGpu::of(machine, machine.devices[place].address);
    let gpus: Vec<_> = places.filter_map(|(place, _)| of(*place)).collect();
    InSwitch::of(&gpus).map_or_else(String::new, |switches| {
        let gigabytes = switches.all_reduce_megabytes() as f64 / 1000.0;
        format!(
            "By multicast and reduction in NVSwitches (planned, not run): all-reduce \
             {gigabytes:.2} GB/s\n"
        )
    })
}

fn draw(graph: &CapacityGraph, packing: &Packing) -> Result<String, String> {
    if graph.len() > drawing::NODES_MAX {
        let limit = drawing::NODES_MAX;
        return Err(format!("a drawing has room for {limit} nodes, and these are {}", graph.len()));
    }
    Ok(drawing::draw(graph, packing))
}

fn write(file: &PathBuf, text: &str) -> Result<(), String> {
    std::fs::write(file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))
}
