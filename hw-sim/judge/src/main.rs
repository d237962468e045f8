//! `hwsim-judge run`, `hwsim-judge compare A B`: see the crate's documentation.

use clap::{Parser, Subcommand};
use hwsim_judge::driver::Gpu;
use hwsim_judge::{Result, compare, forms, probes};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Asks any CUDA driver, real or virtual, the same questions.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Prints what this machine's driver answers, a line for each question
    Run {
        /// Only questions that begin like this: `ptx`, `ptx.add`, `driver`
        #[arg(long, default_value = "")]
        only: String,
    },
    /// Prints where two files of answers differ; 1: somewhere, 2: no question is in both
    Compare {
        /// A file that `run` has written
        a: PathBuf,
        /// Another one
        b: PathBuf,
        /// Only questions that begin like this
        #[arg(long, default_value = "")]
        only: String,
    },
    /// Prints the kernels of forms, to be read or assembled
    Kernels {
        /// Only forms that begin like this
        #[arg(long, default_value = "")]
        only: String,
    },
    /// Answers one question about the driver, in this process
    #[command(hide = true)]
    Probe {
        /// The question
        name: String,
    },
}

fn run(only: &str) -> Result<()> {
    let mut output = std::io::stdout().lock();
    {
        let gpu = Gpu::open()?;
        writeln!(output, "# {}, CUDA {}", gpu.name()?, gpu.version()?)?;
        for form in forms::all().iter().filter(|form| form.name.starts_with(only)) {
            output.write_all(form.ask()?.as_bytes())?;
        }
    }
    for probe in probes::ALL.iter().filter(|probe| probe.name.starts_with(only)) {
        writeln!(output, "{} = {}", probe.name, probes::in_a_process(probe)?)?;
        output.flush()?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Run { only } => run(&only).map(|()| ExitCode::SUCCESS),
        Command::Kernels { only } => {
            for form in forms::all().iter().filter(|form| form.name.starts_with(&only)) {
                println!("// {}\n{}", form.name, form.kernel());
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Probe { name } => probes::answer(&name).map(|answer| {
            println!("{answer}");
            ExitCode::SUCCESS
        }),
        Command::Compare { a, b, only } => {
            let read = |path: &PathBuf| {
                std::fs::read_to_string(path)
                    .map_err(|error| format!("{}: {error}", path.display()).into())
            };
            let files = read(&a).and_then(|a| Ok((a, read(&b)?)));
            files.map(|(a, b)| {
                let forms = forms::all();
                let (text, both) = compare::differences(&a, &b, &only, |question| {
                    let name = question.split(' ').next().unwrap_or_default();
                    forms.iter().find(|form| form.name == name).and_then(|form| form.open)
                });
                print!("{text}");
                match both {
                    0 => ExitCode::from(2),
                    _ if text.starts_with("# 0 of") => ExitCode::SUCCESS,
                    _ => ExitCode::FAILURE,
                }
            })
        }
    };
    result.unwrap_or_else(|error| {
        eprintln!("hwsim-judge: {error}");
        ExitCode::from(2)
    })
}
