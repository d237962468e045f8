//! The last lines of `./x test`.

use crate::list::List;
use crate::log::Section;
use std::collections::BTreeSet;
use std::fmt;

/// Something that did not run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Skipped {
    /// The test, as BINARY::NAME.
    pub test: String,
    /// What about it, or what stands in its `#[ignore]`.
    pub what: String,
    /// Why that is no loss; `None` if it is not listed.
    pub reason: Option<String>,
}

/// How all tests ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed, and test programs that did not come to their end.
    pub failed: u64,
    /// Test programs that did not come to their end.
    pub cut_short: Vec<String>,
    /// What did not run, each once.
    pub skipped: BTreeSet<Skipped>,
}

impl Report {
    /// Counts `sections`, and what `skips`, the lines of [`skip`](crate::skip), name.
    ///
    /// # Panics
    /// If a line of `skips` is none of that function's.
    pub fn of(sections: &[Section], skips: &str, list: &List) -> Self {
        let mut report = Self::default();
        for Section { binary, passed, failed, ignored, ended } in sections {
            report.passed += passed;
            report.failed += failed;
            if !ended {
                report.failed += 1;
                report.cut_short.push(binary.clone());
            }
            for (name, what) in ignored {
                let test = format!("{binary}::{name}");
                let reason = list.ignored.get(&test).cloned();
                report.skipped.insert(Skipped { test, what: what.clone(), reason });
            }
        }
        for line in skips.lines() {
            let fields: Vec<_> = line.trim_end().splitn(3, '\t').collect();
            let [test, cause, what] = fields[..] else { panic!("not a skip: {line:?}") };
            report.skipped.insert(Skipped {
                test: test.to_owned(),
                what: format!("{cause}: {what}"),
                reason: list.causes.get(cause).cloned(),
            });
        }
        report
    }

    /// What was skipped and is not listed.
    pub fn unlisted(&self) -> impl Iterator<Item = &Skipped> {
        self.skipped.iter().filter(|skipped| skipped.reason.is_none())
    }

    /// Whether the run is good: something passed, nothing failed, and in strict mode nothing was
    /// skipped that is not listed.
    pub fn is_good(&self, strict: bool) -> bool {
        let fine = self.passed > 0 && self.failed == 0;
        fine && (!strict || self.unlisted().next().is_none())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Skipped { test, what, reason } in &self.skipped {
            let reason = reason.as_deref().unwrap_or("NOT LISTED in tests/skips.toml");
            writeln!(f, "skipped: {test}: {what} ({reason})")?;
        }
        for binary in &self.cut_short {
            writeln!(f, "failed: {binary} did not come to its end")?;
        }
        let Self { passed, failed, skipped, .. } = self;
        write!(f, "{passed} passed, {failed} failed, {} skipped", skipped.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> List {
        List::parse("[causes]\ngpu = \"none here\"\n[ignored]\n\"a::helper\" = \"started\"\n")
    }

    fn section(passed: u64, failed: u64, ended: bool, ignored: &[&str]) -> Section {
        let ignored = ignored.iter().map(|name| ((*name).to_owned(), "by x".to_owned())).collect();
        Section { binary: "a".into(), passed, failed, ended, ignored }
    }

    #[test]
    fn what_is_skipped_is_named_once_with_its_reason() {
        let skips = "a::t\tgpu\tthe copy\na::t\tgpu\tthe copy\na::u\tweather\train\n";
        let report = Report::of(&[section(3, 0, true, &["helper", "new"])], skips, &list());
        let expected = "skipped: a::helper: by x (started)\n\
                        skipped: a::new: by x (NOT LISTED in tests/skips.toml)\n\
                        skipped: a::t: gpu: the copy (none here)\n\
                        skipped: a::u: weather: rain (NOT LISTED in tests/skips.toml)\n\
                        3 passed, 0 failed, 4 skipped";
        assert_eq!(report.to_string(), expected);
        assert!(report.is_good(false));
        assert!(!report.is_good(true), "strict mode lets unlisted skips pass");
    }

    #[test]
    fn listed_skips_are_good_in_strict_mode() {
        let report = Report::of(&[section(1, 0, true, &["helper"])], "x\tgpu\tall\n", &list());
        assert!(report.is_good(true), "{report}");
    }

    /// If this fails, a run in which nothing ran, or something broke off, counts as good.
    #[test]
    fn nothing_passed_a_failure_and_a_broken_program_are_bad() {
        assert!(!Report::of(&[], "", &list()).is_good(false));
        assert!(!Report::of(&[section(2, 1, true, &[])], "", &list()).is_good(false));
        let broken =
            Report::of(&[section(2, 0, true, &[]), section(0, 0, false, &[])], "", &list());
        assert!(!broken.is_good(false));
        assert!(broken.to_string().contains("failed: a did not come to its end"), "{broken}");
    }
}
