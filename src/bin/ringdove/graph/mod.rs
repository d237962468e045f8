//! `ringdove graph`: which tensors of a graph cross ranks, and how.

mod drawing;

use clap::{Args, Subcommand};
use ringdove::graph::{Graph, TransferPlan};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Command line of `ringdove graph`.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Print the transfers of a graph, why each goes as it does, the registered memory of each
    /// rank, and what it does
    Explain {
        /// The graph, in JSON
        file: PathBuf,
        /// Draws the graph, its placement and its transfers into a file
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
}

/// Prints a plan.
pub fn run(arguments: Arguments) -> ExitCode {
    let Verb::Explain { file, svg } = arguments.verb;
    super::ended(show(&file, svg.as_deref()))
}

fn show(file: &Path, svg: Option<&Path>) -> Result<(), String> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).map_err(|error| format!("{name}: {error}"))?;
    let graph = Graph::read(&name, &text).map_err(|error| error.to_string())?;
    let plan = TransferPlan::of(graph);
    super::say(&plan.explain())?;
    let Some(path) = svg else { return Ok(()) };
    let drawing = drawing::draw(&plan)?;
    std::fs::write(path, drawing)
        .map_err(|error| format!("cannot write {}: {error}", path.display()))
}
