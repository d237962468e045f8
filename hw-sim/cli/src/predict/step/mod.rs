//! `hwsim predict step`: one step whose computation and collectives are driven by the CPU, by
//! graphs, or by a resident program.
//!
//! * `training`: an all-reduce beside the backward pass of BERT-Large, on ARK's machine
//! * `decode`: a token of a transformer of 8 billion parameters, on eight A100
//!
//! Transfers and all-reduces are played on the machine, with the profile's constants as they are.
//! What the profiles do not have is written here, with its source or as assumed; the output repeats
//! it.

mod decode;
mod training;

use super::arguments::{Common, EngineName, OPS_MAX, Size};
use super::{print, write};
use crate::error::Error;
use hwsim_timing::Engine;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(super) struct StepArguments {
    /// bert-large: an all-reduce of 32 MiB beside a training step, on `ark`; decode-8b: a token of
    /// a transformer with 8 billion parameters, on `dgx-a100`
    #[arg(long, value_enum)]
    what: Step,
    /// Draw the step to this file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Step {
    BertLarge,
    #[value(name = "decode-8b")]
    Decode8b,
}

/// Predicts a step.
pub(super) fn predict(arguments: &StepArguments) -> Result<ExitCode, Error> {
    let (text, drawing) = match arguments.what {
        Step::BertLarge => training::predict()?,
        Step::Decode8b => decode::predict()?,
    };
    print(&text)?;
    if let Some(path) = &arguments.plot {
        write(path, &drawing)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What the commands that sweep sizes have as flags.
fn common(machine: &str, engine: Engine) -> Common {
    Common {
        minimum: Size(1),
        maximum: Size(1),
        factor: 2,
        machine: machine.to_owned(),
        nodes: None,
        adapter: None,
        leaf_nodes: None,
        oversubscription: 1.0,
        engine: EngineName(engine),
        rested: false,
        profile: None,
        ops_max: OPS_MAX,
        json: None,
        plot: None,
        trace: None,
    }
}

#[cfg(test)]
mod tests;
