//! Measures a GPU, and what this library does on it: pushes of descriptors, the proxy, messages to
//! and fro by stores, by the engine and driven by the host, all-reduces of ranks that share the
//! GPU, and a matrix product beside them. The report is one file of Markdown.
//!
//! `./x gpu-report [FILE]` runs it on a machine with a GPU, from what `./x gpu-pack` has made. On
//! virtual hardware, `hwsim run -- target/release/examples/gpu_report --short FILE` shows that it
//! works; the times are then those of a simulation, and the report begins with that.
//!
//! Each part runs in a process of its own with a time limit: one that hangs or fails is a line of
//! the report, and the others go on. The kernels are in `kernels/cuda/example_report.cu`.

#[path = "gpu_report/gpu.rs"]
mod gpu;
#[path = "gpu_report/pushes.rs"]
mod pushes;
#[path = "gpu_report/sums.rs"]
mod sums;
#[path = "gpu_report/trips.rs"]
mod trips;

use clap::Parser;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant, SystemTime};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Measures a GPU, and writes a report.
#[derive(Parser, Debug, Clone)]
struct Options {
    /// The report.
    #[arg(default_value = "gpu-report.md")]
    file: PathBuf,
    /// Small sizes and few rounds, for virtual hardware.
    #[arg(long)]
    short: bool,
    /// The commit that was built, for the report.
    #[arg(long, default_value = "not given")]
    commit: String,
    /// The most seconds that each part may take, in place of its own limit.
    #[arg(long)]
    limit: Option<u64>,
    /// Runs this part alone, and prints its rows.
    #[arg(long, hide = true)]
    part: Option<String>,
}

/// A section of the report.
struct Part {
    name: &'static str,
    title: &'static str,
    columns: &'static [&'static str],
    limit_s: u64,
    run: fn(&Options) -> Result<()>,
}

/// From what must work before all else to what may hang.
const PARTS: [Part; 9] = [
    Part {
        name: "push",
        title: "Push of a descriptor into a ring that has room",
        columns: &["what", "threads, one of each block", "ns"],
        limit_s: 60,
        run: pushes::with_room,
    },
    Part {
        name: "proxy",
        title: "Descriptors through the proxy, pushed by one thread",
        columns: &["bytes of each", "descriptors", "transfers", "descriptors/s"],
        limit_s: 60,
        run: pushes::through_the_proxy,
    },
    Part {
        name: "full",
        title: "Push into a ring that is full, by all multiprocessors",
        columns: &[
            "what",
            "threads, one of each block",
            "ns for each push of a thread",
            "pushes/s",
        ],
        limit_s: 60,
        run: pushes::full,
    },
    Part {
        name: "trip-kernels",
        title: "8 bytes to and fro between two kernels",
        columns: &["way", "rounds", "µs for a round"],
        limit_s: 60,
        run: trips::by_kernels,
    },
    Part {
        name: "trip-host",
        title: "The same, driven by the host: kernel, copy, event, and back",
        columns: &["way", "rounds", "µs for a round"],
        limit_s: 60,
        run: trips::by_the_host,
    },
    Part {
        name: "sums-2",
        title: "All-reduce of 2 ranks",
        columns: sums::COLUMNS,
        limit_s: 120,
        run: |options| sums::of(options, 2),
    },
    Part {
        name: "sums-4",
        title: "All-reduce of 4 ranks",
        columns: sums::COLUMNS,
        limit_s: 120,
        run: |options| sums::of(options, 4),
    },
    Part {
        name: "graph",
        title: "All-reduce of 8 bytes, 2 ranks, in CUDA graphs",
        columns: &["calls in a graph", "launches", "µs for a call"],
        limit_s: 60,
        run: sums::in_graphs,
    },
    Part {
        name: "beside",
        title: "A matrix product beside all-reduces of 2 ranks",
        columns: &["beside", "product, µs", "of its time alone", "all-reduces", "µs for each"],
        limit_s: 90,
        run: sums::beside_a_product,
    },
];

/// One row of a table. It is read by the process that writes the report, at once: what a part has
/// measured before it hangs is not lost.
fn row(cells: &[String]) -> Result<()> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "| {} |", cells.join(" | "))?;
    Ok(output.flush()?)
}

/// The head of the report, from a process of its own: the one that writes the report has no context
/// on the GPU.
fn machine(_: &Options) -> Result<()> {
    println!("{}", gpu::describe()?);
    Ok(())
}

/// Runs a part in another process. Gives what it has printed, and why it is not complete.
fn run_part(options: &Options, name: &str, limit: Duration) -> Result<(String, Option<String>)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--part", name]).stdin(Stdio::null()).stdout(Stdio::piped());
    if options.short {
        command.arg("--short");
    }
    let mut child = command.spawn()?;
    let pipe = child.stdout.take().ok_or("a pipe is missing")?;
    let reader = std::thread::spawn(move || {
        let lines = BufReader::new(pipe).lines().map_while(std::result::Result::ok);
        lines.fold(String::new(), |text, line| text + &line + "\n")
    });
    let began = Instant::now();
    let failure = loop {
        if let Some(status) = child.try_wait()? {
            break (!status.success()).then(|| format!("failed: {status}"));
        }
        if began.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            break Some(format!("no end after {} s", limit.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let text = reader.join().map_err(|_| "the reader of a part has failed")?;
    Ok((text, failure))
}

/// Writes the report as far as it has come: what kills this process leaves what was measured.
fn save(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()).into())
}

/// All parts. Gives how many are not complete.
fn report(options: &Options) -> Result<usize> {
    let (machine, failure) = run_part(options, "machine", Duration::from_secs(60))?;
    if let Some(failure) = failure {
        return Err(format!("no GPU can be measured: {failure}").into());
    }
    let mut text = String::new();
    if machine.contains("(virtual)") {
        text += "**Virtual hardware: times of a simulation, which are no figures of any GPU.**\n\n";
    }
    let date = humantime::format_rfc3339_seconds(SystemTime::now());
    let size = if options.short { ", short: few rounds of small sizes" } else { "" };
    text += &format!(
        "# Report of a GPU\n\n{machine}* {date}, ringdove {}, commit {}{size}\n",
        env!("CARGO_PKG_VERSION"),
        options.commit
    );
    save(&options.file, &text)?;
    let mut incomplete = 0;
    for part in &PARTS {
        let began = Instant::now();
        let limit = Duration::from_secs(options.limit.unwrap_or(part.limit_s));
        let (rows, failure) = run_part(options, part.name, limit)?;
        let columns = part.columns.join(" | ");
        let line = "---|".repeat(part.columns.len());
        text += &format!("\n## {}\n\n| {columns} |\n|{line}\n{rows}", part.title);
        let seconds = began.elapsed().as_secs();
        match failure {
            Some(failure) => {
                text += &format!("\n**Not complete: {failure}.**\n");
                incomplete += 1;
                println!("{}: {failure}, {seconds} s", part.name);
            }
            None => println!("{}: ok, {seconds} s", part.name),
        }
        save(&options.file, &text)?;
    }
    println!("{}: written", options.file.display());
    Ok(incomplete)
}

fn main() -> ExitCode {
    let options = Options::parse();
    let run = match &options.part {
        Some(name) if name == "machine" => machine(&options),
        Some(name) => match PARTS.iter().find(|part| part.name == name) {
            Some(part) => (part.run)(&options),
            None => Err(format!("there is no part {name}").into()),
        },
        None => match report(&options) {
            Ok(0) => Ok(()),
            Ok(count) => Err(format!("{count} parts are not complete").into()),
            Err(error) => Err(error),
        },
    };
    match run {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if options.part.is_some() {
                println!("\n{error}");
            }
            eprintln!("gpu_report: {error}");
            ExitCode::FAILURE
        }
    }
}
