//! `tally LOG SKIPS [FAILED]`: the last lines of `./x test`. LOG is what `cargo test` printed,
//! SKIPS what `tally::skip` wrote, FAILED the phase that failed, if one did. The last line counts
//! tests.

use std::process::ExitCode;
use tally::{List, Report, is_strict, sections};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let (log, skips, failed) = match &arguments[..] {
        [log, skips] => (log, skips, None),
        [log, skips, failed] => (log, skips, Some(failed)),
        _ => {
            eprintln!("usage: tally LOG SKIPS [FAILED]");
            return ExitCode::from(2);
        }
    };
    let read = |path: &String| {
        let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        // Tests may print anything.
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let report = Report::of(&sections(&read(log)), &read(skips), &List::committed());
    let strict = is_strict();
    let unlisted = report.unlisted().count();
    let note = match failed {
        Some(phase) => format!("; failed in: {phase}"),
        None if strict && unlisted > 0 => format!("; {unlisted} of these not listed (strict)"),
        None => String::new(),
    };
    println!("{report}{note}");
    ExitCode::from(u8::from(failed.is_some() || !report.is_good(strict)))
}
