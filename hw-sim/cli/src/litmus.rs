//! `hwsim litmus`: runs litmus tests on the weak memory, all of their executions.

use crate::error::Error;
use crate::output::print;
use clap::Args;
use hwsim_ptx::litmus::{Report, Test, parse};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What `hwsim litmus` is asked to do.
#[derive(Args)]
pub struct LitmusArguments {
    /// Files in the `.litmus` format of PTX, and folders of them
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Stop a test after this many runs, and say so
    #[arg(long, value_name = "N", default_value = "2000000")]
    runs: u64,
    /// Print one line for each file, without its outcomes
    #[arg(long, short)]
    quiet: bool,
    /// A list of what others found, a line `FILE,1` or `FILE,0` for each test whose claim holds or
    /// does not: tests are compared with the line whose file their path ends in
    #[arg(long, value_name = "CSV")]
    expected: Option<PathBuf>,
}

/// Runs them. The status says whether every file could be read, every claim was decided, and none
/// otherwise than expected; of a list, that it names some of the files.
pub fn litmus(arguments: &LitmusArguments) -> Result<ExitCode, Error> {
    let expected = arguments.expected.as_deref().map(read_expected).transpose()?;
    let (mut held, mut not_held, mut undecided) = (0_u32, 0_u32, 0_u32);
    let (mut alike, mut otherwise) = (0_u32, Vec::new());
    let files = all_files(&arguments.files)?;
    for path in &files {
        let verdict = one(path, arguments)?;
        match verdict {
            Some(true) => held += 1,
            Some(false) => not_held += 1,
            None => undecided += 1,
        }
        let known = expected.iter().flatten().find(|(name, _)| path.ends_with(name));
        if let (Some(verdict), Some((_, known))) = (verdict, known) {
            match verdict == *known {
                true => alike += 1,
                false => otherwise.push(path),
            }
        }
    }
    if files.len() > 1 {
        print(&format!("{held} hold, {not_held} do not, {undecided} undecided or unreadable\n"))?;
    }
    if arguments.expected.is_some() {
        print(&format!("{alike} are as expected, {} are not\n", otherwise.len()))?;
        if alike == 0 && otherwise.is_empty() {
            print("the list names none of these files\n")?;
        }
        for path in &otherwise {
            print(&format!("  not as expected: {}\n", path.display()))?;
        }
    }
    let is_compared = expected.is_none() || alike > 0;
    let fine = undecided == 0 && otherwise.is_empty() && !files.is_empty() && is_compared;
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The files that are named, and those below the folders that are, in the order of their names.
fn all_files(named: &[PathBuf]) -> Result<Vec<PathBuf>, Error> {
    let mut found = Vec::new();
    for path in named {
        if !path.is_dir() {
            found.push(path.clone());
            continue;
        }
        let (mut folders, before) = (vec![path.clone()], found.len());
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).map_err(|error| unreadable(&folder, &error))? {
                let entry = entry.map_err(|error| unreadable(&folder, &error))?;
                let kind = entry.file_type().map_err(|error| unreadable(&entry.path(), &error))?;
                // Links are not followed: they may lead back.
                if kind.is_dir() {
                    folders.push(entry.path());
                } else if entry.path().extension().is_some_and(|it| it == "litmus") {
                    found.push(entry.path());
                }
            }
        }
        if found.len() == before {
            return Err(Error::Litmus(format!("{}: no file NAME.litmus is in it", path.display())));
        }
        found[before..].sort();
    }
    Ok(found)
}

fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    Error::Litmus(format!("{}: {error}", path.display()))
}

/// Files and verdicts of a list.
fn read_expected(path: &Path) -> Result<Vec<(PathBuf, bool)>, Error> {
    let text = fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let read = |(number, line): (u32, &str)| match line.trim().rsplit_once(',') {
        Some((name, "1")) if !name.is_empty() => Ok((PathBuf::from(name), true)),
        Some((name, "0")) if !name.is_empty() => Ok((PathBuf::from(name), false)),
        _ => Err(Error::Litmus(format!(
            "{}, line {number}: expected `FILE,1` or `FILE,0`, found `{line}`",
            path.display()
        ))),
    };
    lines.map(read).collect()
}

fn one(path: &Path, arguments: &LitmusArguments) -> Result<Option<bool>, Error> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            print(&format!("{}: {error}\n", path.display()))?;
            return Ok(None);
        }
    };
    let test = match parse(&text) {
        Ok(test) => test,
        Err(error) => {
            print(&format!("{}: {error}\n", path.display()))?;
            return Ok(None);
        }
    };
    let report = test.enumerate(arguments.runs);
    show(path, &test, &report, arguments.quiet)
}

/// Prints outcomes and verdict. A condition that no run met is decided only if all runs were made,
/// and one came to its end.
fn show(path: &Path, test: &Test, report: &Report, quiet: bool) -> Result<Option<bool>, Error> {
    let Some((quantifier, formula)) = test.claim.as_ref() else { return Ok(None) };
    let met = report.outcomes.keys().any(|outcome| formula.holds(outcome));
    let missed = report.outcomes.keys().any(|outcome| !formula.holds(outcome));
    let seen = match quantifier {
        hwsim_ptx::litmus::Quantifier::Forall => missed,
        _ => met,
    };
    let decided = report.is_complete && report.runs > 0 || seen;
    let verdict = report.verdict(test).filter(|_| decided);
    let words = match verdict {
        Some(true) => "holds",
        Some(false) => "does not hold",
        None if report.is_complete => "undecided: no run ends",
        None => "undecided: more runs than --runs allows",
    };
    let mut text = format!("{}: {}: {quantifier} {words}\n", path.display(), test.name);
    if !quiet {
        for (outcome, runs) in &report.outcomes {
            let mark = if formula.holds(outcome) { '*' } else { ' ' };
            let values = outcome.iter().map(|(name, value)| format!("{name}={value}"));
            let values = values.collect::<Vec<_>>().join(" ");
            text += &format!("  {mark} {values} ({runs} runs)\n");
        }
        let all = if report.is_complete { "all" } else { "the first" };
        text += &format!("  {all} {} runs; {} were cut off or hang\n", report.runs, report.cut);
    }
    print(&text)?;
    Ok(verdict)
}
