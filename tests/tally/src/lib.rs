//! What tests skip, and how all of them ended.
//!
//! A test that cannot run where it is, or not all of it, calls [`skip`] with a cause. `./x test`
//! gathers these calls in a file and prints them in the end, each with the reason that
//! `tests/skips.toml` gives for its cause. In strict mode a cause that is not listed there fails.

mod list;
mod log;
mod report;

pub use list::List;
pub use log::{Section, sections};
pub use report::{Report, Skipped};

use std::fs::OpenOptions;
use std::io::Write;

/// The file that gathers what is skipped: a line for each call, test, cause and words between tabs.
pub const FILE_VARIABLE: &str = "RINGDOVE_TEST_SKIPS";
/// `1`: what is skipped and not listed fails.
pub const STRICT_VARIABLE: &str = "RINGDOVE_TEST_STRICT";

/// Whether this is strict mode.
pub fn is_strict() -> bool {
    std::env::var(STRICT_VARIABLE).is_ok_and(|value| value == "1")
}

/// Says that the current test, or the part of it that `what` names, does not run because of
/// `cause`, a key of `causes` in `tests/skips.toml`.
///
/// # Panics
/// In strict mode, if the cause is not listed; if the file that gathers skips cannot be written.
pub fn skip(cause: &str, what: &str) {
    eprintln!("skipped ({cause}): {what}");
    if let Some(path) = std::env::var_os(FILE_VARIABLE) {
        let line = format!("{}\t{cause}\t{what}\n", current_test());
        // One write of a short line in append mode is not torn by those of other processes.
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    refuse_unlisted(cause, what, is_strict(), &List::committed());
}

fn refuse_unlisted(cause: &str, what: &str, strict: bool, list: &List) {
    assert!(
        !strict || list.causes.contains_key(cause),
        "skipped, and `{cause}` is not listed in tests/skips.toml: {what}. Make the machine fit, \
         or list the cause with a reason"
    );
}

/// The test that runs on this thread, as BINARY::NAME.
fn current_test() -> String {
    let binary = std::env::current_exe().ok();
    let stem = binary.as_deref().and_then(|path| path.file_stem());
    let stem = stem.unwrap_or_default().to_string_lossy().into_owned();
    let thread = std::thread::current();
    // libtest names a test's thread after it, unless it runs tests one after the other.
    format!("{}::{}", log::without_hash(&stem), thread.name().unwrap_or("?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, strict mode passes whatever nobody has listed.
    #[test]
    #[should_panic(expected = "`weather` is not listed in tests/skips.toml")]
    fn strict_mode_refuses_a_cause_that_is_not_listed() {
        refuse_unlisted("weather", "it rains", true, &List::committed());
    }

    #[test]
    fn listed_causes_and_ordinary_runs_go_on() {
        refuse_unlisted("gpu", "no GPU", true, &List::committed());
        refuse_unlisted("weather", "it rains", false, &List::committed());
    }

    /// If this fails, the report cannot say which test was skipped.
    #[test]
    fn the_current_test_has_its_binary_and_its_name() {
        let name = current_test();
        // Run one after the other, tests have no thread of their own.
        assert!(
            name == "tally::tests::the_current_test_has_its_binary_and_its_name"
                || name == "tally::main",
            "{name}"
        );
    }
}
