//! `ringdove graph`: which tensors of a graph cross ranks, and how.

mod drawing;

use clap::{Args, Subcommand};
use ringdove::graph::{Graph, Placement, TransferPlan};
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
        /// The graph, in JSON, or a model in ONNX (`.onnx`)
        file: PathBuf,
        /// Which rank runs what, in JSON, for a model that does not say it
        #[arg(long, value_name = "FILE")]
        placement: Option<PathBuf>,
        /// Draws the graph, its placement and its transfers into a file
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
}

/// Prints a plan.
pub fn run(arguments: Arguments) -> ExitCode {
    let Verb::Explain { file, placement, svg } = arguments.verb;
    super::ended(show(&file, placement.as_deref(), svg.as_deref()))
}

fn show(file: &Path, placement: Option<&Path>, svg: Option<&Path>) -> Result<(), String> {
    let plan = TransferPlan::of(read(file, placement)?);
    super::say(&plan.explain())?;
    let Some(path) = svg else { return Ok(()) };
    let drawing = drawing::draw(&plan)?;
    std::fs::write(path, drawing)
        .map_err(|error| format!("cannot write {}: {error}", path.display()))
}

fn read(file: &Path, placement: Option<&Path>) -> Result<Graph, String> {
    let name = file.display().to_string();
    let failed = |error: std::io::Error| format!("{name}: {error}");
    if !file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("onnx")) {
        if placement.is_some() {
            return Err(format!("{name}: a graph in JSON places its operators itself"));
        }
        let text = std::fs::read_to_string(file).map_err(failed)?;
        return Graph::read(&name, &text).map_err(|error| error.to_string());
    }
    let placement = placement.map(|path| {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
        Placement::read(&name, &text).map_err(|error| error.to_string())
    });
    let bytes = std::fs::read(file).map_err(failed)?;
    Graph::read_onnx(&name, bytes, placement.transpose()?.as_ref())
        .map_err(|error| error.to_string())
}
