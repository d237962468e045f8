//! `ringdove topo`: what this node, or a machine described in a file, is made of, and how fast its
//! links can make collectives.

mod drawing;
mod text;

use clap::Args;
use ringdove::topology::graph::CapacityGraph;
use ringdove::topology::machine::Machine;
use ringdove::topology::packing::{Packing, Roots, pack};
use std::path::PathBuf;
use std::process::ExitCode;

/// Command line of `ringdove topo`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// A topology file of NCCL's (NCCL_TOPO_DUMP_FILE) instead of this node
    #[arg(long, value_name = "FILE")]
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
    /// So many trees for each GPU, instead of as many as the optimum takes
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1024))]
    trees: Option<u64>,
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
    let graph = machine.capacities(&gpus, arguments.nodes).map_err(words)?;
    let packing = pack(&graph, &Roots::all(&graph), arguments.trees).map_err(words)?;
    out += &format!("\n{}", text::rates(&graph, &packing));
    if arguments.nodes == 1 {
        let own = machine.ring(&gpus).map_err(words)?;
        out += &text::rings(&own, machine.best_ring(&gpus).map_err(words)?.as_ref());
    }
    if let Some(file) = &arguments.svg {
        write(file, &draw(&graph, &packing)?)?;
    }
    super::say(&out)
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
