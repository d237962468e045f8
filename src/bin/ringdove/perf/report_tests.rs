//! The table's text, letter by letter.

use super::*;
use clap::Parser;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    arguments: Arguments,
}

fn outcome(seconds: f64, wrong: Option<u64>) -> Outcome {
    Outcome { seconds, wrong, work: Work::default(), operations: 20 }
}

fn sample() -> Row {
    Row {
        collective: Collective::AllReduce,
        root: None,
        rank_count: 4,
        bytes: 8192,
        count: 2048,
        data_type: DataType::F32,
        reduction: ReduceOp::Sum,
        out_of_place: Some(outcome(81.92e-6, Some(0))),
        in_place: Some(outcome(160e-6, Some(12))),
    }
}

fn device(name: &str) -> Device {
    Device {
        ordinal: 0,
        pci: "0000:07:00".into(),
        uuid: "07".into(),
        name: name.into(),
        memory_bytes: 1 << 34,
    }
}

/// The rows of nccl-tests: `%12li  %12li  %8s  %6s  %6i`, then `  %7s  %6s  %6s  %6g` twice.
#[test]
fn a_row_stands_in_the_columns_of_nccl_tests() {
    assert_eq!(
        row(&sample()),
        "        8192          2048     float     sum      -1    81.92    0.10    0.15       0\
         \u{20}  160.00    0.05    0.08      12"
    );
}

#[test]
fn an_unchecked_or_missing_half_says_so() {
    let send = Row {
        collective: Collective::SendRecv,
        out_of_place: Some(outcome(1.0, None)),
        in_place: None,
        ..sample()
    };
    let line = row(&send);
    assert_eq!(line.matches("N/A").count(), 5, "{line}");
    assert_eq!(line.len(), row(&sample()).len());
    assert!(line.contains("  none  "), "{line}");
}

#[test]
fn columns_end_where_the_rows_values_end() {
    let text = table::columns("");
    let names = text.lines().nth(2).expect("the line of names");
    let ends = |line: &str| -> Vec<usize> {
        let bytes = line.as_bytes();
        (1..=bytes.len())
            .filter(|&at| bytes[at - 1] != b' ' && bytes.get(at).is_none_or(|&next| next == b' '))
            .collect()
    };
    let names = ends(&names.replacen('#', " ", 1));
    assert_eq!(names, ends(&row(&sample())));
}

#[test]
fn the_header_names_ranks_sharing_and_simulation() {
    let line = ["perf", "-b", "8K", "-e", "1M", "-f", "2", "-g", "2"];
    let arguments = Command::try_parse_from(line).expect("arguments").arguments;
    let sweep = arguments.sweep(Collective::AllReduce).expect("a sweep");
    let virtual_gpu = device("Example (virtual)");
    let places: Vec<_> =
        (0..2).map(|rank| RankDevice { rank, process: 1, device: virtual_gpu.clone() }).collect();
    let text = header(&arguments, &sweep, &places, "host");
    assert!(text.contains(
        "# nThread 1 nGpus 2 minBytes 8192 maxBytes 1048576 step: 2(factor) warmup iters: 1 \
         iters: 20 agg iters: 1 validation: 1 graph: 0\n"
    ));
    assert!(text.contains("on       host device  0 [0000:07:00] Example (virtual)\n"), "{text}");
    assert!(text.contains("# 2 ranks share 1 GPU(s), round-robin\n"), "{text}");
    assert!(text.contains(VIRTUAL_NOTICE), "{text}");
    assert!(text.contains("# Engine proxy: "), "{text}");
    let real = [RankDevice { rank: 0, process: 1, device: device("Example") }];
    let text = header(&arguments, &sweep, &real, "host");
    assert!(!text.contains("virtual") && !text.contains("share"), "{text}");
    let device = Arguments { engine: Some(EngineKind::Device), ..arguments };
    let of_device = header(&device, &sweep, &real, "host");
    assert!(of_device.contains("# Engine device: "), "{of_device}");
    assert!(text.lines().all(|line| line.starts_with('#')));
}

#[test]
fn the_footer_sums_errors_and_averages_both_halves() {
    let totals = Totals::of(&[sample()]);
    assert_eq!(totals.wrong, 12);
    assert!((totals.average_bus_bandwidth - 0.1134).abs() < 1e-12);
    assert_eq!(
        footer(&totals, Collective::AllReduce),
        "# Out of bounds values : 12 FAILED\n# Avg bus bandwidth    : 0.1134 \n#\n\
         # Collective test concluded: all-reduce\n"
    );
    let none = footer(&Totals::of(&[]), Collective::AllReduce);
    assert!(none.contains("# Out of bounds values : 0 OK\n"), "{none}");
    assert!(none.contains("# Avg bus bandwidth    : 0 \n"), "{none}");
}

#[test]
fn bus_factors_are_those_of_nccl_tests() {
    assert_eq!(bus_factor(Collective::AllReduce, 1), 0.0);
    assert_eq!(bus_factor(Collective::AllReduce, 2), 1.0);
    assert_eq!(bus_factor(Collective::AllReduce, 4), 1.5);
    assert_eq!(bus_factor(Collective::AllReduce, 8), 1.75);
    assert_eq!(bus_factor(Collective::SendRecv, 8), 1.0);
}
