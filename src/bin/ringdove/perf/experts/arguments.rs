//! The options of `ringdove perf experts`.

use super::routing::Distribution;
use crate::perf::error::PerfError;
use ringdove::experts::{Config, Mode, ModeChoice, OnLoss, Scales, Surplus, token_type};
use ringdove::id::EngineKind;
use ringdove::{Communicator, DataType};
use std::path::PathBuf;

/// Options of one measurement.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Ranks of this process, one on each GPU; with more ranks than GPUs they share
    #[arg(short = 'g', long = "ngpus", value_name = "COUNT", default_value_t = 1)]
    pub gpus: usize,
    /// Tokens of each rank; several numbers, with commas, are measured one after the other
    #[arg(
        short = 'T',
        long,
        value_name = "COUNT,...",
        value_delimiter = ',',
        default_value = "128"
    )]
    pub tokens: Vec<u32>,
    /// Experts of all ranks
    #[arg(short = 'E', long, value_name = "COUNT", default_value_t = 64)]
    pub experts: u32,
    /// Choices of each token
    #[arg(short = 'K', long, value_name = "COUNT", default_value_t = 8)]
    pub top_k: u32,
    /// Elements of a token
    #[arg(short = 'H', long, value_name = "COUNT", default_value_t = 7168)]
    pub hidden: u32,
    /// half, float or bfloat16
    #[arg(short = 'd', long = "datatype", value_name = "TYPE", default_value = "bfloat16",
        value_parser = token_type)]
    pub data_type: DataType,
    /// Rows of a dispatch are e4m3, which the kernel makes, with scales: f32 or ue8m0
    #[arg(long, value_name = "SCALES")]
    pub fp8: Option<Scales>,
    /// low-latency, throughput, or auto: the one that is predicted to be faster
    #[arg(long, value_name = "MODE", default_value = "low-latency")]
    pub mode: ModeChoice,
    /// uniform, zipf, one (every token's first choice is expert 0, and the others are none), empty
    /// (every other rank has no token), none (a third of the choices are none), or file:PATH (lines
    /// of -K numbers, one for each token, used from rank to rank)
    #[arg(long, value_name = "NAME", default_value = "uniform")]
    pub distribution: Distribution,
    /// Seed of the routing
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// Timed iterations
    #[arg(short = 'n', long = "iters", value_name = "COUNT", default_value_t = 5)]
    pub iterations: u32,
    /// Iterations before the timed ones
    #[arg(short = 'w', long = "warmup_iters", value_name = "COUNT", default_value_t = 1)]
    pub warmup: u32,
    /// 0: check nothing; else every element of a further run
    #[arg(short = 'c', long = "check", value_name = "0|1", default_value_t = 1)]
    pub check: u32,
    /// What drains the rings: proxy or device; without it, what RINGDOVE_ENGINE says
    #[arg(long, value_name = "ENGINE")]
    pub engine: Option<EngineKind>,
    /// Write the results to this file, as JSON
    #[arg(short = 'J', long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw the times by numbers of tokens to this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

impl Arguments {
    /// The group that the options describe, for so many tokens of each rank of `communicator`.
    pub fn config(&self, tokens: u32, communicator: &Communicator) -> Result<Config, PerfError> {
        let config = self.config_of_mode(tokens, Mode::LowLatency);
        let mode = match self.mode {
            ModeChoice::Fixed(mode) => mode,
            ModeChoice::Auto => config.faster_mode(communicator)?,
        };
        Ok(Config { mode, ..config })
    }

    fn config_of_mode(&self, tokens: u32, mode: Mode) -> Config {
        Config {
            experts: self.experts,
            top_k: self.top_k,
            hidden: self.hidden,
            tokens_max: tokens,
            surplus: Surplus::Refuse,
            data_type: self.data_type,
            fp8: self.fp8,
            mode,
            alignment: 1,
            lane: 0,
            on_loss: OnLoss::End,
        }
    }

    /// Fails where options make no sense.
    pub fn check_counts(&self) -> Result<(), PerfError> {
        for (option, value) in [("-g", self.gpus as u64), ("-n", self.iterations.into())] {
            if value == 0 {
                let (expected, seen) = ("1 at least".to_owned(), "0".to_owned());
                return Err(PerfError::Option { option, expected, seen });
            }
        }
        Ok(())
    }
}
