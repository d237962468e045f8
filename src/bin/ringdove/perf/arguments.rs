//! The options of `ringdove perf`, named as in nccl-tests, and what they add up to.

use super::backend::{Collective, DataType, ReduceOp};
use super::error::PerfError;
use super::pattern::RANKS_MAX;
use ringdove::id::EngineKind;
use ringdove_figures::size::parse_size;
use std::path::PathBuf;
use std::time::Duration;

/// More sizes than this in one sweep are a mistake in `-i`.
const SIZES_MAX: usize = 100_000;

/// Options of one measurement. Letters and names are those of nccl-tests.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Smallest size in bytes: 8192, 8K, 8KB, 1GiB
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", default_value = "32M",
        value_parser = parse_size)]
    pub minimum_bytes: usize,
    /// Largest size in bytes
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", default_value = "32M",
        value_parser = parse_size)]
    pub maximum_bytes: usize,
    /// From one size to the next: add this (unless -f is given)
    #[arg(short = 'i', long = "stepbytes", value_name = "SIZE", default_value = "1M",
        value_parser = parse_size)]
    pub step_bytes: usize,
    /// From one size to the next: multiply by this
    #[arg(short = 'f', long = "stepfactor", value_name = "FACTOR", default_value_t = 1)]
    pub step_factor: usize,
    /// Timed iterations for each size
    #[arg(short = 'n', long = "iters", value_name = "COUNT", default_value_t = 20,
        value_parser = positive)]
    pub iterations: usize,
    /// Operations in one iteration
    #[arg(short = 'm', long = "agg_iters", value_name = "COUNT", default_value_t = 1,
        value_parser = positive)]
    pub aggregated: usize,
    /// Iterations before the timed ones
    #[arg(short = 'w', long = "warmup_iters", value_name = "COUNT", default_value_t = 1)]
    pub warmup: usize,
    /// Check every element of this many further runs; 0 checks nothing
    #[arg(short = 'c', long = "check", value_name = "COUNT", default_value_t = 1)]
    pub check: usize,
    /// int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16,
    /// f8e4m3, f8e5m2 or all
    #[arg(short = 'd', long = "datatype", value_name = "TYPE", default_value = "float",
        value_parser = parse_types)]
    pub data_types: Types,
    /// sum, prod, max, min, avg, mulsum or all
    #[arg(short = 'o', long = "op", value_name = "OP", default_value = "sum",
        value_parser = parse_reductions)]
    pub reductions: Reductions,
    /// Root of broadcast, reduce, gather and scatter; -1: each rank in turn
    #[arg(
        short = 'r',
        long,
        value_name = "RANK",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    pub root: i32,
    /// Ranks that each thread drives, one on each GPU; with more ranks than GPUs they share
    #[arg(short = 'g', long = "ngpus", value_name = "COUNT", default_value_t = 1,
        value_parser = positive)]
    pub gpus: usize,
    /// Threads of this process
    #[arg(short = 't', long = "nthreads", value_name = "COUNT", default_value_t = 1,
        value_parser = positive)]
    pub threads: usize,
    /// 1: register the buffers, so that transfers read and write them directly (zero copy)
    #[arg(short = 'R', long = "local_register", value_name = "0|1", default_value_t = 0,
        value_parser = clap::value_parser!(u8).range(0..=1))]
    pub register: u8,
    /// Measure in place alone: one buffer for each rank instead of two
    #[arg(long)]
    pub in_place: bool,
    /// What drains the rings: proxy or device; without it, what RINGDOVE_ENGINE says
    #[arg(long, value_name = "ENGINE")]
    pub engine: Option<EngineKind>,
    /// Give up when nothing completes for this many seconds; 0: never
    #[arg(short = 'T', long, value_name = "SECONDS", default_value_t = 900)]
    pub timeout: u64,
    /// Write the results as JSON too, in nccl-tests' schema (version 3)
    #[arg(short = 'J', long = "output_file", value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw bus bandwidth against size
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// For each size, say what the GPUs rang and what the engines moved
    #[arg(short, long)]
    pub verbose: bool,
}

/// The data types to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Types(pub Vec<DataType>);

/// The reductions to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reductions(pub Vec<ReduceOp>);

const TYPE_NAMES: [(&str, DataType); 12] = [
    ("int8", DataType::I8),
    ("uint8", DataType::U8),
    ("int32", DataType::I32),
    ("uint32", DataType::U32),
    ("int64", DataType::I64),
    ("uint64", DataType::U64),
    ("half", DataType::F16),
    ("float", DataType::F32),
    ("double", DataType::F64),
    ("bfloat16", DataType::BF16),
    ("f8e4m3", DataType::F8E4M3),
    ("f8e5m2", DataType::F8E5M2),
];

const REDUCTION_NAMES: [(&str, ReduceOp); 6] = [
    ("sum", ReduceOp::Sum),
    ("prod", ReduceOp::Prod),
    ("max", ReduceOp::Max),
    ("min", ReduceOp::Min),
    ("avg", ReduceOp::Avg),
    ("mulsum", ReduceOp::PreMulSum),
];

/// nccl-tests' name of a data type.
pub fn type_name(data_type: DataType) -> &'static str {
    name_of(&TYPE_NAMES, data_type)
}

/// nccl-tests' name of a reduction.
pub fn reduction_name(reduction: ReduceOp) -> &'static str {
    name_of(&REDUCTION_NAMES, reduction)
}

fn name_of<T: PartialEq>(names: &[(&'static str, T)], value: T) -> &'static str {
    names.iter().find(|(_, named)| *named == value).map_or("unknown", |(name, _)| name)
}

fn parse_types(text: &str) -> Result<Types, String> {
    parse_names(&TYPE_NAMES, text).map(Types)
}

fn parse_reductions(text: &str) -> Result<Reductions, String> {
    parse_names(&REDUCTION_NAMES, text).map(Reductions)
}

fn parse_names<T: Copy>(names: &[(&str, T)], text: &str) -> Result<Vec<T>, String> {
    if text == "all" {
        return Ok(names.iter().map(|(_, value)| *value).collect());
    }
    match names.iter().find(|(name, _)| *name == text) {
        Some((_, value)) => Ok(vec![*value]),
        None => {
            let known: Vec<_> = names.iter().map(|(name, _)| *name).collect();
            Err(format!("expected one of {} or all, but saw {text:?}", known.join(", ")))
        }
    }
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err(format!("expected a whole number of at least 1, but saw {text:?}")),
        Ok(number) => Ok(number),
    }
}

/// The sizes and counts to measure, checked.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The operation.
    pub collective: Collective,
    /// Bytes of the larger buffer, ascending, before rounding down to whole elements and parts.
    pub sizes: Vec<usize>,
    /// Types and reductions, in the order in which they run.
    pub combinations: Vec<(DataType, ReduceOp)>,
    /// The root; below 0: each rank in turn. Ignored by operations without one.
    pub root: i32,
    /// Timed iterations for each size.
    pub iterations: usize,
    /// Operations in one iteration.
    pub aggregated: usize,
    /// Iterations before the timed ones.
    pub warmup: usize,
    /// Checked runs.
    pub check: usize,
    /// Ranks that each thread drives.
    pub ranks_per_thread: usize,
    /// Nothing is measured out of place.
    pub in_place_only: bool,
    /// How long nothing may complete.
    pub stall_limit: Option<Duration>,
}

impl Arguments {
    /// The engine that is asked for.
    pub fn engine(&self) -> EngineKind {
        self.engine.unwrap_or_default()
    }

    /// Number of ranks.
    pub fn rank_count(&self) -> usize {
        self.threads.saturating_mul(self.gpus)
    }

    /// Checks what one option alone cannot tell, and lists the sizes.
    pub fn sweep(&self, collective: Collective) -> Result<Sweep, PerfError> {
        if self.rank_count() > RANKS_MAX {
            return Err(PerfError::TooManyRanks { seen: self.rank_count() });
        }
        if self.in_place && !collective.has_in_place() {
            let expected = "an operation that works in place".to_owned();
            let seen = collective.name().to_owned();
            return Err(PerfError::Option { option: "--in-place", expected, seen });
        }
        let mut combinations = Vec::new();
        for &data_type in &self.data_types.0 {
            // Where nothing is combined: one pass for each type.
            let reductions = match collective.reduces() {
                true => self.reductions.0.as_slice(),
                false => &[ReduceOp::Sum],
            };
            combinations.extend(reductions.iter().map(|&reduction| (data_type, reduction)));
        }
        Ok(Sweep {
            collective,
            sizes: self.sizes()?,
            combinations,
            root: self.root,
            iterations: self.iterations,
            aggregated: self.aggregated,
            warmup: self.warmup,
            check: self.check,
            ranks_per_thread: self.gpus,
            in_place_only: self.in_place,
            stall_limit: (self.timeout > 0).then(|| Duration::from_secs(self.timeout)),
        })
    }

    fn sizes(&self) -> Result<Vec<usize>, PerfError> {
        let (minimum, maximum) = (self.minimum_bytes, self.maximum_bytes);
        let fail = |option, expected: &str, seen: String| {
            Err(PerfError::Option { option, expected: expected.to_owned(), seen })
        };
        if minimum > maximum {
            return fail("-b", "no more bytes than -e", format!("{minimum} > {maximum}"));
        }
        let multiplies = self.step_factor > 1;
        if minimum < maximum && multiplies && minimum == 0 {
            return fail("-b", "at least 1 byte, as -f multiplies it", "0".to_owned());
        }
        if minimum < maximum && !multiplies && self.step_bytes == 0 {
            return fail("-i", "at least 1 byte, or a factor -f above 1", "0".to_owned());
        }
        let next = |&size: &usize| {
            let next = if multiplies {
                size.checked_mul(self.step_factor)
            } else {
                size.checked_add(self.step_bytes)
            };
            next.filter(|&next| next <= maximum && next > size)
        };
        let sizes: Vec<_> =
            std::iter::successors(Some(minimum), next).take(SIZES_MAX + 1).collect();
        if sizes.len() > SIZES_MAX {
            return fail("-i", "at most 100000 sizes", format!("steps of {}", self.step_bytes));
        }
        Ok(sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        Command::try_parse_from(std::iter::once("perf").chain(line.split_whitespace()))
            .map(|command| command.arguments)
    }

    #[test]
    fn short_and_long_options_say_the_same() {
        let short = parse(
            "-b 8K -e 1G -f 2 -i 4K -n 5 -m 3 -w 2 -c 0 -d half -o max -r 1 -g 4 -t 2 -R 1 -T 9 \
             -J a.json",
        );
        let long = parse(
            "--minbytes 8K --maxbytes 1G --stepfactor 2 --stepbytes 4K --iters 5 --agg_iters 3 \
             --warmup_iters 2 --check 0 --datatype half --op max --root 1 --ngpus 4 --nthreads 2 \
             --local_register 1 --timeout 9 --output_file a.json",
        );
        let (short, long) = (short.expect("short options"), long.expect("long options"));
        assert_eq!(format!("{short:?}"), format!("{long:?}"));
        assert_eq!(short.maximum_bytes, 1 << 30);
        assert_eq!(short.rank_count(), 8);
    }

    #[test]
    fn every_root_in_turn_can_be_asked_for() {
        for line in ["-r -1", "--root -1", "--root=-1"] {
            assert_eq!(parse(line).expect(line).root, -1);
        }
    }

    #[test]
    fn sizes_step_by_factor_or_by_bytes() {
        let sizes = |line| {
            parse(line).expect(line).sweep(Collective::AllReduce).map(|sweep| sweep.sizes).ok()
        };
        let demo = sizes("-b 8K -e 1G -f 2").expect("the demo's sizes");
        assert_eq!((demo.len(), demo[0], demo[17]), (18, 8192, 1 << 30));
        assert_eq!(sizes("-b 1K -e 3K -i 1K"), Some(vec![1024, 2048, 3072]));
        assert_eq!(sizes("-b 0 -e 0 -f 2"), Some(vec![0]));
        assert_eq!(sizes("-b 5 -e 5"), Some(vec![5]));
        for endless in ["-b 0 -e 8 -f 2", "-b 1 -e 8 -i 0", "-b 8 -e 1", "-b 1 -e 1G -i 1"] {
            assert_eq!(sizes(endless), None, "{endless}");
        }
    }

    /// A message that arrives where another leaves from has no defined result.
    #[test]
    fn in_place_is_refused_where_there_is_no_such_form() {
        let arguments = parse("--in-place").expect("known");
        assert!(arguments.sweep(Collective::AllReduce).expect("a sweep").in_place_only);
        let error = arguments.sweep(Collective::SendRecv).expect_err("no such form");
        assert!(error.to_string().contains("--in-place"), "{error}");
    }

    #[test]
    fn unknown_names_and_zeros_are_refused_with_what_was_expected() {
        for (line, expected) in [
            ("-d fp64", "f8e5m2 or all"),
            ("-o mean", "mulsum or all"),
            ("-n 0", "at least 1"),
            ("-g x", "at least 1"),
            ("-b 8Q", "8192, 8K"),
            ("--engine fpga", "proxy or device"),
        ] {
            let message = parse(line).expect_err(line).to_string();
            assert!(message.contains(expected), "{line}: {message}");
        }
    }

    #[test]
    fn all_means_every_type_and_reduction() {
        let arguments = parse("-d all -o all").expect("all");
        let count = |collective| arguments.sweep(collective).expect("a sweep").combinations.len();
        assert_eq!(count(Collective::AllReduce), 72);
        assert_eq!(count(Collective::SendRecv), 12);
        assert_eq!(count(Collective::ReduceScatter), 72);
        assert_eq!(count(Collective::Broadcast), 12);
    }
}
