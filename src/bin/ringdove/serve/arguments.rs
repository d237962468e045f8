//! The command line of `ringdove serve`.

use clap::{Args, ValueEnum};
use ringdove::DataType;
use ringdove::serve::{Memory, Model, Optimizer, Tensor};
use std::path::PathBuf;

/// Command line of `ringdove serve`.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    pub job: JobArguments,
    /// The other processes send so many gradients, read after each, and check what they read
    #[arg(long, value_name = "COUNT")]
    pub steps: Option<u64>,
    /// They check nothing, and print how fast gradients went, and after them parameters
    #[arg(long)]
    pub measure: bool,
    /// With --measure, how often parameters are read; as often as there are steps without
    #[arg(long, value_name = "COUNT", requires = "measure")]
    pub reads: Option<u64>,
}

/// The job, which all members name alike.
#[derive(Args, Debug)]
pub struct JobArguments {
    /// The model, in JSON; or a size in bytes with a unit, such as 100M, for one of 16 equal
    /// tensors
    #[arg(long, value_name = "FILE|SIZE")]
    pub model: PathBuf,
    /// The first processes of the launcher, which serve; each but the last one's replica is the
    /// next
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    pub servers: usize,
    /// Parts that the tensors are dealt out to; as many as servers without
    #[arg(long, value_name = "COUNT")]
    pub shards: Option<usize>,
    /// How often servers compare their traffic, to hand shards over, in milliseconds; 0: never
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    pub balance_ms: u64,
    /// How gradients change parameters
    #[arg(long, value_enum, default_value_t = Kind::Sgd)]
    optimizer: Kind,
    /// The learning rate
    #[arg(long, default_value_t = 1.0)]
    rate: f32,
    /// What is kept of the sum of gradients (momentum)
    #[arg(long, default_value_t = 0.9)]
    momentum: f32,
    /// What is kept of the means of gradients and of their squares (adam)
    #[arg(long, value_name = "FIRST,SECOND", value_delimiter = ',', num_args = 2,
        default_values_t = [0.9, 0.999])]
    betas: Vec<f32>,
    /// Gradients that a worker may be ahead of the slowest one; any number without
    #[arg(long, value_name = "COUNT")]
    pub staleness: Option<u64>,
    /// Gradients of a worker that may be on their way to a server
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    pub credits: usize,
    /// Versions that a server keeps
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    pub versions: usize,
    /// Where a server keeps parameters; gpu: in the memory of its GPU, where a kernel applies
    /// gradients
    #[arg(long, value_enum, default_value_t = Place::Host)]
    memory: Place,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Place {
    Host,
    Gpu,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Sgd,
    Momentum,
    Adam,
}

impl JobArguments {
    pub fn memory(&self) -> Memory {
        match self.memory {
            Place::Host => Memory::Host,
            Place::Gpu => Memory::Gpu,
        }
    }

    pub fn optimizer(&self) -> Optimizer {
        let (rate, momentum) = (self.rate, self.momentum);
        match self.optimizer {
            Kind::Sgd => Optimizer::Sgd { rate },
            Kind::Momentum => Optimizer::Momentum { rate, momentum },
            Kind::Adam => {
                let (beta1, beta2) = (self.betas[0], self.betas[1]);
                Optimizer::Adam { rate, beta1, beta2, epsilon: 1e-8 }
            }
        }
    }
}

/// Tensors of a model that is given by its size.
const TENSORS: u64 = 16;

/// The model of a file, or of a size.
pub fn model_of(named: &std::path::Path) -> Result<Model, String> {
    let name = named.display().to_string();
    if let Some(bytes) = size(&name) {
        let tensor = |index: u64| Tensor {
            name: format!("tensor{index:02}"),
            data_type: DataType::F32,
            shape: vec![bytes / TENSORS / 4],
        };
        return Model::of("sized", (0..TENSORS).map(tensor).collect());
    }
    let text = std::fs::read_to_string(named).map_err(|error| {
        format!("{name}: {error}; expected a file, or a size with its unit, such as 100M")
    })?;
    Model::read(&name, &text).map_err(|error| error.to_string())
}

/// `100M` is 100,000,000 bytes.
fn size(text: &str) -> Option<u64> {
    let unit = match text.chars().last()? {
        'K' => 1_000,
        'M' => 1_000_000,
        'G' => 1_000_000_000,
        _ => return None,
    };
    let count: u64 = text[..text.len() - 1].parse().ok()?;
    count.checked_mul(unit).filter(|bytes| *bytes >= TENSORS * 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_a_file_or_a_size() {
        assert_eq!(model_of("100M".as_ref()).unwrap().bytes(), 100_000_000);
        assert_eq!(size("18446744073709551615G"), None);
        assert_eq!(size("3"), None);
        assert!(model_of("/no/such/M".as_ref()).unwrap_err().contains("/no/such/M"));
        assert!(model_of("3".as_ref()).unwrap_err().contains("such as 100M"));
    }
}
