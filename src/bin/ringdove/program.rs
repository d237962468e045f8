//! `ringdove program`: what the planner makes of a graph, with modelled times.

use clap::{Args, Subcommand};
use ringdove::program::{Program, TileSize, explain, network, timeline, verify_same};
use ringdove_figures::run::{Span, timeline_in_colours};
use std::path::PathBuf;
use std::process::ExitCode;

/// Command line of `ringdove program`.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Plan and verify a step of training, and print its operators, when they run by the timing
    /// model, and the critical path
    Explain(Wanted),
}

/// The step, and how it is divided.
#[derive(Args, Debug)]
struct Wanted {
    /// Values of a sample before, between and after the layers
    #[arg(long, value_name = "COUNT,...", value_delimiter = ',',
        default_values_t = [2, 32, 32, 1])]
    widths: Vec<u32>,
    /// Samples of each rank
    #[arg(long, value_name = "COUNT", default_value_t = 64)]
    samples: u32,
    /// Rows and columns of a tile, at most
    #[arg(long, value_name = "ROWSxCOLUMNS", value_parser = parse_tile, default_value = "32x32")]
    tile: TileSize,
    /// Blocks that compute
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    blocks: u32,
    /// Threads of each block
    #[arg(long, value_name = "COUNT", default_value_t = 128)]
    threads: u32,
    /// Let tensors that tasks write share memory where their lifetimes permit
    #[arg(long)]
    reuse_memory: bool,
    /// Draws blocks over time into a file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

fn parse_tile(text: &str) -> Result<TileSize, String> {
    let fault = || format!("'{text}': expected ROWSxCOLUMNS, for example 32x32");
    let (rows, columns) = text.split_once('x').ok_or_else(fault)?;
    let number = |text: &str| text.parse().ok().filter(|count| *count > 0).ok_or_else(fault);
    Ok(TileSize { rows: number(rows)?, columns: number(columns)? })
}

/// Prints a program.
pub fn run(arguments: Arguments) -> ExitCode {
    let Verb::Explain(wanted) = arguments.verb;
    super::ended(show(&wanted))
}

fn show(wanted: &Wanted) -> Result<(), String> {
    let said = |error: ringdove::program::ProgramError| error.to_string();
    let samples = (wanted.samples, wanted.samples);
    let mut graph = network::step(&wanted.widths, samples, wanted.tile).map_err(said)?;
    if wanted.reuse_memory {
        graph.reuse_memory(&[]).map_err(said)?;
    }
    let program = graph.plan(wanted.blocks, wanted.threads).map_err(said)?;
    let verified = verify_same(program).map_err(said)?;
    super::say(&explain(verified.program()))?;
    let Some(path) = &wanted.svg else { return Ok(()) };
    let drawing = drawing(verified.program())?;
    std::fs::write(path, drawing)
        .map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Blocks over time: those that compute, and below them the collectives.
fn drawing(program: &Program) -> Result<String, String> {
    let computing = (0..program.blocks.len()).map(|block| format!("block {block}"));
    let rows: Vec<String> = computing.chain(["collectives".to_owned()]).collect();
    let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
    let span = |slot: &ringdove::program::Slot| {
        let operator = program.tasks[slot.task as usize].operator;
        let millis = |ns: u64| ns as f64 / 1e6;
        Span {
            row: slot.block as usize,
            name: program.operators[operator as usize].name.clone(),
            start: millis(slot.span_ns.0),
            end: millis(slot.span_ns.1),
        }
    };
    let spans: Vec<Span> = timeline(program).iter().map(span).collect();
    // Computation in one colour, transfers in another.
    let is_transfer = |span: &Span| usize::from(span.row == program.blocks.len());
    let drawn = timeline_in_colours("One iteration (modelled)", &rows, &spans, is_transfer);
    drawn.map_err(|error| error.to_string())
}
