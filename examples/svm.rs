//! A support vector machine, trained on several GPUs that share its samples: sequential minimal
//! optimisation, in which each step changes the two samples that contradict each other most. An
//! all-reduce of keys (value and number of a sample) finds them, another brings them to all GPUs:
//! very many small messages. Samples that seem to matter no more are let go, early or late by a
//! heuristic, and their values are rebuilt in the end.
//!
//! The model has the same bits on any number of GPUs. LIBSVM's `svm-predict` reads its file.
//!
//! `cargo run --release --example svm [FOLDER]`, or on virtual hardware
//! `hwsim run --machine pcie4 -- target/release/examples/svm [FOLDER]`, trains on samples that it
//! draws, prints steps, samples and times for numbers of GPUs and heuristics, and draws them to
//! FOLDER (`target`). `--data FILE` takes samples in LIBSVM's format; `--help` says what else.
//! `svm/solver.rs` is the method, `svm/worker.rs` one GPU; the kernels are in
//! `kernels/cuda/example_svm.cu`.

#[path = "svm/data.rs"]
mod data;
#[path = "svm/model.rs"]
mod model;
#[path = "svm/solver.rs"]
mod solver;
#[path = "svm/worker.rs"]
mod worker;

use clap::{Parser, ValueEnum};
use data::Problem;
use model::{Kernel, Model};
use ringdove::{Communicator, Settings, device_count, open_device};
use ringdove_figures::run::{Curve, curves_over};
use solver::{Heuristic, Options, Trained, train};
use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The most that a gamma may be from what the alphas make of it.
const DRIFT_MAX: f64 = 1e-8;

/// More samples than this are not drawn: training takes the square of their number.
const SAMPLES_MAX: usize = 1 << 20;

#[derive(Clone, Copy, Debug, ValueEnum)]
enum KernelName {
    Linear,
    Rbf,
}

/// Trains a support vector machine on several GPUs.
#[derive(Parser, Debug)]
struct Arguments {
    /// Folder for drawings.
    #[arg(default_value = "target")]
    folder: PathBuf,
    /// Samples in LIBSVM's format; without, samples are drawn.
    #[arg(long)]
    data: Option<PathBuf>,
    /// How many samples to draw.
    #[arg(long, default_value_t = 400)]
    samples: usize,
    /// Seed of the samples that are drawn.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Writes the samples here, in LIBSVM's format.
    #[arg(long)]
    save: Option<PathBuf>,
    /// Numbers of GPUs; without, 1, 2 and 4, as far as there are so many.
    #[arg(long, value_delimiter = ',')]
    gpus: Vec<usize>,
    /// When samples are let go: none, AFTER/single or AFTER/multi; AFTER is steps or N%.
    #[arg(long, value_delimiter = ',',
        default_values = ["none", "2/single", "100/multi", "50%/multi"])]
    eliminate: Vec<Heuristic>,
    #[arg(long, value_enum, default_value = "rbf")]
    kernel: KernelName,
    /// Of the kernel rbf: exp(-GAMMA |a - b|²). Without: 1 over the number of columns.
    #[arg(long)]
    gamma: Option<f64>,
    /// What an error costs.
    #[arg(long, default_value_t = 10.0)]
    cost: f64,
    /// How far two samples may contradict each other.
    #[arg(long, default_value_t = 1e-3)]
    tolerance: f64,
    /// The most steps.
    #[arg(long, default_value_t = 10_000_000)]
    steps: u32,
    /// Writes the model here, as LIBSVM does.
    #[arg(long)]
    model: Option<PathBuf>,
}

impl Arguments {
    fn problem(&self) -> Result<Problem> {
        let Some(path) = &self.data else {
            let samples = self.samples;
            if !(2..=SAMPLES_MAX).contains(&samples) {
                return Err(format!("--samples {samples}: expected 2 to {SAMPLES_MAX}").into());
            }
            return Ok(Problem::draw(self.samples, 12, self.seed));
        };
        let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let bytes = std::fs::read(path).map_err(|error| named(&error))?;
        Ok(Problem::read(&bytes).map_err(|error| named(&error))?)
    }

    fn options(&self, problem: &Problem, heuristic: Heuristic) -> Result<Options> {
        let width = self.gamma.unwrap_or(1.0 / f64::from(problem.width.max(1)));
        for (name, value) in
            [("--cost", self.cost), ("--tolerance", self.tolerance), ("--gamma", width)]
        {
            if !(value.is_finite() && value > 0.0) {
                return Err(format!("{name} {value}: expected a number above 0").into());
            }
        }
        Ok(Options {
            kernel: match self.kernel {
                KernelName::Linear => Kernel::Linear,
                KernelName::Rbf => Kernel::Radial { width },
            },
            cost: self.cost,
            tolerance: self.tolerance,
            heuristic,
            steps_max: self.steps,
        })
    }
}

/// Is it a model, and what all GPUs with all samples would say?
fn check(model: &Model, problem: &Problem, options: &Options) -> Result<()> {
    let (up, low) = model.extremes(problem);
    if low - up > options.tolerance {
        return Err(format!("two samples contradict each other by {}", low - up).into());
    }
    let sum: f64 = model.alphas.iter().zip(&problem.labels).map(|(alpha, y)| alpha * y).sum();
    if sum.abs() > DRIFT_MAX * options.cost * problem.len() as f64 {
        return Err(format!("the classes have different weights, by {sum}").into());
    }
    let drift = model.drift(problem, options.kernel) / options.cost.max(1.0);
    if drift > DRIFT_MAX {
        return Err(format!("a sample's value is wrong by {drift:e}").into());
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("svm: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments = Arguments::parse();
    let problem = arguments.problem()?;
    if let Some(path) = &arguments.save {
        std::fs::write(path, problem.file())?;
    }
    let available = device_count()?;
    let mut counts = arguments.gpus.clone();
    if counts.is_empty() {
        counts = [1, 2, 4].into_iter().filter(|count| *count <= available).collect();
    }
    if let Some(count) = counts.iter().find(|count| !(1..=available).contains(*count)) {
        return Err(format!("--gpus {count}: there are {available}").into());
    }
    let most = *counts.iter().max().ok_or("there is no GPU")?;
    let contexts = (0..most).map(open_device).collect::<std::result::Result<Vec<_>, _>>()?;
    let is_virtual = contexts[0].name()?.contains("(virtual)");
    println!("{} samples, {} columns", problem.len(), problem.width);
    if is_virtual {
        println!("virtual hardware: times are wall-clock times of a simulation");
    }
    println!(
        "| GPUs | eliminate | steps | least samples | rebuilt | vectors | objective | seconds |"
    );
    println!("|---|---|---|---|---|---|---|---|");

    let mut first: BTreeMap<String, Trained> = BTreeMap::new();
    let mut times: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for count in counts {
        let communicators = Communicator::init_all(&contexts[..count], &Settings::from_env()?)?;
        for heuristic in &arguments.eliminate {
            let options = arguments.options(&problem, *heuristic)?;
            let trained = train(&contexts[..count], &communicators, &problem, &options)?;
            check(&trained.model, &problem, &options)?;
            let least = trained.left.iter().map(|(_, left)| *left).min().unwrap_or(0);
            println!(
                "| {count} | {heuristic} | {} | {least} | {} | {} | {:.6} | {:.2} |",
                trained.steps,
                trained.rebuilds,
                trained.model.support_vectors(),
                trained.model.objective(&problem),
                trained.seconds,
            );
            let name = heuristic.to_string();
            let line = times.entry(name.clone()).or_insert_with(|| vec![0.0; most + 1]);
            line[count] = trained.seconds;
            let reference = first.entry(name).or_insert_with(|| trained.clone());
            if reference.model != trained.model || reference.steps != trained.steps {
                return Err(format!("{heuristic}: another model on {count} GPUs").into());
            }
        }
    }
    println!("the same model on any number of GPUs, bit for bit");
    let last = arguments.eliminate.last().ok_or("--eliminate: nothing to do")?;
    let model = &first[&last.to_string()].model;
    println!("right about its own samples: {:.2} %", 100.0 * model.accuracy(&problem));
    if let Some(path) = &arguments.model {
        let kernel = arguments.options(&problem, *last)?.kernel;
        std::fs::write(path, model.file(&problem, kernel))?;
        println!("model: {}", path.display());
    }
    draw(&arguments, &first, times)
}

/// Samples left over steps, and times over GPUs.
fn draw(
    arguments: &Arguments,
    trained: &BTreeMap<String, Trained>,
    times: BTreeMap<String, Vec<f64>>,
) -> Result<()> {
    let left = |(name, trained): (&String, &Trained)| {
        let mut values = Vec::new();
        for (number, (step, left)) in trained.left.iter().enumerate() {
            let end = trained.left.get(number + 1).map_or(trained.steps, |next| next.0);
            values.extend((*step..end).map(|_| *left as f64));
        }
        Curve { name: name.clone(), values }
    };
    let left: Vec<Curve> = trained.iter().map(left).collect();
    let times = times.into_iter().map(|(name, values)| Curve { name, values });
    let times: Vec<Curve> = times.collect();
    for (name, drawing) in [
        ("svm-samples.svg", curves_over("step", "Samples that take part", "samples", &left)?),
        ("svm-times.svg", curves_over("GPUs", "Training", "seconds", &times)?),
    ] {
        let path = arguments.folder.join(name);
        std::fs::write(&path, drawing)?;
        println!("drawn: {}", path.display());
    }
    Ok(())
}
