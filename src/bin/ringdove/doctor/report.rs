//! What was found out, one line for each thing, and how it is shown.

use serde::Serialize;
use std::fmt;

/// How a thing stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Runs will work, but slower, or not in every case.
    Warning,
    /// Stops a run.
    Missing,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Missing => "missing",
        })
    }
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub level: Level,
    /// Its subject, such as `GPU 0`; the same word in every report.
    pub subject: String,
    /// The finding.
    pub seen: String,
    /// The advice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

/// The report: sections in the order in which they were opened.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    pub sections: Vec<Section>,
}

#[derive(Debug, Serialize)]
pub struct Section {
    pub title: &'static str,
    pub findings: Vec<Finding>,
}

impl Report {
    /// All that follows belongs here.
    pub fn section(&mut self, title: &'static str) {
        self.sections.push(Section { title, findings: Vec::new() });
    }

    /// Something is as it should be.
    pub fn ok(&mut self, subject: impl fmt::Display, seen: impl fmt::Display) {
        self.add(Level::Ok, subject, seen, None);
    }

    /// Something needs attention; `advice` says what to do.
    pub fn complain(
        &mut self,
        level: Level,
        subject: impl fmt::Display,
        seen: impl fmt::Display,
        advice: impl fmt::Display,
    ) {
        self.add(level, subject, seen, Some(advice.to_string()));
    }

    fn add(
        &mut self,
        level: Level,
        subject: impl fmt::Display,
        seen: impl fmt::Display,
        advice: Option<String>,
    ) {
        let finding =
            Finding { level, subject: subject.to_string(), seen: seen.to_string(), advice };
        if self.sections.is_empty() {
            self.section("findings");
        }
        self.sections.last_mut().expect("there is one now").findings.push(finding);
    }

    /// Every finding, in order.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.sections.iter().flat_map(|section| &section.findings)
    }

    /// How many findings stand at `level`.
    pub fn count(&self, level: Level) -> usize {
        self.findings().filter(|finding| finding.level == level).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.findings().map(|finding| finding.subject.len()).max().unwrap_or(0);
        for section in self.sections.iter().filter(|section| !section.findings.is_empty()) {
            writeln!(f, "{}", section.title)?;
            for Finding { level, subject, seen, advice } in &section.findings {
                write!(f, "  {level:<7}  {subject:<width$}  {seen}")?;
                match advice {
                    Some(advice) => writeln!(f, "; {advice}")?,
                    None => writeln!(f)?,
                }
            }
            writeln!(f)?;
        }
        let (missing, warnings) = (self.count(Level::Missing), self.count(Level::Warning));
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        if missing == 0 {
            return write!(f, "nothing is missing, {warnings} warning{}", plural(warnings));
        }
        let of = |finding: &&Finding| finding.level == Level::Missing;
        let names: Vec<_> = self.findings().filter(of).map(|f| f.subject.as_str()).collect();
        let (names, end) = (names.join(", "), plural(warnings));
        write!(f, "missing: {names}; a run cannot work ({warnings} warning{end})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finding_is_a_line_with_its_level_reason_and_advice() {
        let mut report = Report::default();
        report.section("first");
        report.ok("driver", "CUDA 12.4");
        report.complain(Level::Warning, "memlock", "64 KiB", "raise it");
        report.section("second");
        report.complain(Level::Missing, "GPU", "none", "plug one in");
        let text = report.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "first");
        assert_eq!(lines[1], "  ok       driver   CUDA 12.4");
        assert_eq!(lines[2], "  warning  memlock  64 KiB; raise it");
        assert_eq!(lines[5], "  missing  GPU      none; plug one in");
        assert_eq!(lines.last(), Some(&"missing: GPU; a run cannot work (1 warning)"));
    }
}
