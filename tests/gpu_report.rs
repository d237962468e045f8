//! The report of a GPU (`examples/gpu_report.rs`), on virtual GPUs or on the real ones.

mod hardware;

use hardware::{is_real, on_virtual, run_bounded, tool};
use std::process::Command;

/// Runs the example with small sizes. Gives whether it succeeded, what it said, and the report.
fn report(arguments: &[&str]) -> (bool, String, String) {
    let example = tool("examples/gpu_report");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.md");
    let mut command = Command::new(&example);
    if !is_real() {
        command = on_virtual("pcie4", &example);
        // The ranks share a GPU, as on a machine that has but one.
        command.env("CUDA_VISIBLE_DEVICES", "0");
    }
    command.arg("--short").args(arguments).arg(&file);
    // On a machine that is busy with other tests, parts take longer than on a GPU.
    command.env("RINGDOVE_TIMEOUT_MS", "200000");
    let (status, output) = run_bounded(command);
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{error}\n{output}"));
    (status.success(), output, text)
}

/// The sections of a report, each with the lines below its heading that are not empty.
fn sections(text: &str) -> Vec<Vec<&str>> {
    let sections = text.split("\n## ").skip(1);
    sections.map(|section| section.lines().filter(|line| !line.is_empty()).collect()).collect()
}

/// If this fails, the one command that measures a GPU, in the minutes for which there is one, loses
/// a part, or passes virtual times off as measured ones.
#[test]
fn a_report_has_all_its_rows_and_says_what_it_was_made_on() {
    let (succeeded, output, text) = report(&["--commit", "abc", "--limit", "240"]);
    assert!(succeeded, "{output}\n{text}");
    let first = text.lines().next().unwrap();
    assert_eq!(first.contains("Virtual hardware: times of a simulation"), !is_real(), "{text}");
    assert!(text.contains("commit abc") && text.contains("* driver "), "{text}");
    let sections = sections(&text);
    // Push, proxy, full ring, two kinds of trips, 2 and 4 ranks, graphs, the product. The sums of
    // 8 bytes to 64 KiB come by two ways.
    let rows: Vec<usize> = sections.iter().map(|section| section.len() - 3).collect();
    assert_eq!(rows, [4, 3, 2, 2, 2, 12, 12, 1, 4], "{text}");
    for row in sections.iter().flat_map(|section| &section[3..]) {
        let cells: Vec<&str> = row.trim_matches(['|', ' ']).split(" | ").collect();
        let numbers = cells.iter().filter_map(|cell| cell.trim_end_matches(" %").parse().ok());
        let numbers: Vec<f64> = numbers.collect();
        assert!(!numbers.is_empty(), "a row without a figure: {row}");
        assert!(numbers.iter().all(|&number| number >= 0.0), "{row}");
    }
}

/// If this fails, one part that hangs on a GPU takes the rest of the report with it.
#[test]
fn a_part_without_an_end_is_a_line_of_the_report() {
    let (succeeded, output, text) = report(&["--limit", "0"]);
    assert!(!succeeded, "{output}");
    let lines = text.matches("**Not complete: no end after 0 s.**").count();
    assert_eq!(lines, sections(&text).len(), "{text}");
    assert_eq!(lines, 9, "{text}");
}
