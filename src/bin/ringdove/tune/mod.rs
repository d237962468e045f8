//! `ringdove tune`: a profile of the cost model for this machine, as a file. What the machine does
//! not have, and what does not show by the host's clock, is as in a built-in profile, and the file
//! says which constants these are.

#[cfg(feature = "verbs")]
mod adapters;
mod kernels;
mod measure;
mod plans;

use clap::Args;
use measure::{Measured, measure};
use ringdove::cost::Profile;
use ringdove::cost::profile::CONSTANTS;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

/// Command line of `ringdove tune`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Where the profile is written, as TOML
    file: PathBuf,
    /// The built-in profile that has the constants which are not measured [default: by the GPU]
    #[arg(long, value_name = "NAME")]
    base: Option<String>,
    /// The profile's name
    #[arg(long, default_value = "tuned")]
    name: String,
}

/// Measures, and writes the file.
pub fn run(arguments: &Arguments) -> ExitCode {
    super::ended(tune(arguments))
}

fn tune(arguments: &Arguments) -> Result<(), String> {
    let words = |error: ringdove::Error| error.to_string();
    let plain =
        |text: &str| text.chars().all(|it| it.is_ascii_alphanumeric() || "-_.".contains(it));
    if arguments.name.is_empty() || !plain(&arguments.name) {
        return Err("--name: letters, digits and - _ . are expected".to_owned());
    }
    let found = measure(arguments.base.as_deref())?;
    let base = &found.base;
    let text = written(&arguments.name, base, &found.machine, &found.constants);
    // What nobody could load is not written.
    Profile::parse(&arguments.file.display().to_string(), &text).map_err(words)?;
    std::fs::write(&arguments.file, &text)
        .map_err(|error| format!("cannot write {}: {error}", arguments.file.display()))?;
    let mut out = format!("{}\n", found.machine);
    for Measured { name, value, unit, how } in &found.constants {
        let _ = writeln!(out, "{name:18} {value:10.4} {unit:6} {how}");
    }
    for reason in &found.failed {
        let _ = writeln!(out, "not measured: {}", reason.replace('\n', " "));
    }
    let rest = CONSTANTS.len() - found.constants.len();
    let _ = writeln!(out, "{rest} constants are those of the profile {}", base.name);
    let virtually = "these are times of virtual hardware, and no figures of GPUs";
    if found.is_virtual {
        let _ = writeln!(out, "{virtually}");
    }
    super::say(&out)
}

/// The file.
fn written(name: &str, base: &Profile, machine: &str, measured: &[Measured]) -> String {
    // Nothing of it can end a comment or a text of TOML.
    let machine: String =
        machine.chars().filter(|it| !it.is_control() && !matches!(it, '"' | '\\')).collect();
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let date = date(seconds / 86_400);
    let mut out = format!(
        "# Constants of the cost model, measured by `ringdove tune` on {date}.\n# {machine}\n\n\
         name = \"{name}\"\nsummary = \"measured on {machine}, {date}; the rest as in {}\"\n\n",
        base.name
    );
    for (constant, unit, _) in CONSTANTS {
        let (value, source) = match measured.iter().find(|it| it.name == *constant) {
            Some(it) => (it.value, format!("measured by ringdove tune, {date}: {}", it.how)),
            None => {
                (base.value(constant).unwrap_or(0.0), format!("not measured: as in {}", base.name))
            }
        };
        let _ = writeln!(
            out,
            "{constant} = {{ value = {value:?}, unit = \"{unit}\", source = \"{source}\" }}"
        );
    }
    out
}

/// The date of a day since 1970, by the rules of the Gregorian calendar.
fn date(day: u64) -> String {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let (mut year, mut rest) = (1970, day);
    while rest >= 365 + u64::from(is_leap(year)) {
        rest -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let days = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while rest >= days[month] {
        rest -= days[month];
        month += 1;
    }
    format!("{year}-{:02}-{:02}", month + 1, rest + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (day, text) in [(0, "1970-01-01"), (11_016, "2000-02-29"), (20_783, "2026-11-26")] {
            assert_eq!(date(day), text);
        }
    }

    /// If this fails, a file that was measured cannot be loaded, or hides what was not measured.
    #[test]
    fn the_file_is_a_profile_and_says_what_was_not_measured() {
        let base = Profile::built_in("pcie4").unwrap();
        let how = "a test".to_owned();
        let measured = [Measured { name: "copy", value: 12.5, unit: "GB/s", how }];
        let text = written("mine", &base, "a \"GPU\" \\ of \n mine", &measured);
        let profile = Profile::parse("mine.toml", &text).unwrap();
        assert_eq!(profile.value("copy"), Some(12.5));
        assert_eq!(profile.value("submit"), base.value("submit"));
        let kept = text.lines().filter(|line| line.contains("not measured: as in pcie4")).count();
        assert_eq!(kept, CONSTANTS.len() - 1);
    }

    /// If this fails, a constant changes on its way through a file.
    #[test]
    fn every_constant_comes_back_from_the_file() {
        let base = Profile::built_in("h100").unwrap();
        let plain = Profile::parse("a.toml", &written("a", &base, "a", &[])).unwrap();
        let measured = CONSTANTS.iter().enumerate().map(|(nth, (name, unit, _))| Measured {
            name,
            value: 1.0 / (nth as f64 + 1.5),
            unit,
            how: "a test".to_owned(),
        });
        let measured: Vec<_> = measured.collect();
        let text = written("b", &base, "a", &measured);
        let all = Profile::parse("b.toml", &text).unwrap();
        assert_eq!(text.matches("measured by ringdove tune").count(), CONSTANTS.len());
        for (it, (name, ..)) in measured.iter().zip(CONSTANTS) {
            assert_eq!(plain.value(name), base.value(name), "{name}");
            let seen = all.value(name).unwrap();
            assert!((seen - it.value).abs() < 1e-12, "{name}: {seen} of {}", it.value);
        }
    }
}
