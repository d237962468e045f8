//! Mutated litmus tests: a file is refused with its line and reason, or runs. If this fails, a slip
//! in one file of a folder ends `hwsim litmus` for all of them.
//!
//! See `tests/support/mutation.rs` at the root for the variables that make it longer, or play one
//! case again.

#[path = "../../../tests/support/mutation.rs"]
mod mutation;

use hwsim_ptx::litmus::parse;
use mutation::{Campaign, corpus, mutate};
use std::cell::Cell;
use std::path::Path;

/// Runs of each test that is one: some have millions.
const RUNS_MAX: u64 = 20;

fn play(bytes: &[u8], accepted: &Cell<u64>) -> Result<(), String> {
    // What is no text is refused by whoever reads the file.
    let Ok(text) = std::str::from_utf8(bytes) else { return Ok(()) };
    match parse(text) {
        Ok(test) => {
            accepted.set(accepted.get() + 1);
            let report = test.enumerate(RUNS_MAX);
            let counted: u64 = report.outcomes.values().sum();
            let _ = report.verdict(&test);
            match counted == report.runs && report.runs + report.cut <= RUNS_MAX {
                true => Ok(()),
                false => Err(format!("{counted} outcomes of {} runs", report.runs)),
            }
        }
        Err(error) => {
            let lines = text.lines().count() + 1;
            let in_text = (1..=lines).contains(&error.line);
            if in_text { Ok(()) } else { Err(format!("{error}: there are {lines} lines")) }
        }
    }
}

#[test]
fn mutated_litmus_tests_run_or_are_refused() {
    let campaign = Campaign {
        target: "-p hwsim-ptx --test litmus_fuzz",
        test: "mutated_litmus_tests_run_or_are_refused",
        cases: 3000,
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = corpus(&root.join("tests/corpus/litmus"), "litmus");
    let accepted = Cell::new(0);
    campaign.replay(&files, |bytes| play(bytes, &accepted));
    assert!(accepted.get() >= 2, "{} files of the corpus are tests", accepted.get());
    accepted.set(0);
    campaign.run(|rng| mutate(rng, &files), |bytes| play(bytes, &accepted));
    println!("{} of them are tests", accepted.get());
    assert!(accepted.get() > 100, "hardly a mutation is a test: {}", accepted.get());
}
