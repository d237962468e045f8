//! Mutants: the executor with one ordering removed or weakened. Whatever the protocol relies on,
//! some scenario must miss; what none misses needs a reason.

use hwsim_ptx::Kernel;
use std::sync::Arc;

use crate::scenario::{self, Options, Scenario};

/// One change of one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// The line in the PTX, from 1 on.
    pub line: usize,
    /// The function that the line is in, and how many of its kind came before it there: a name
    /// that stays when other code changes.
    pub site: String,
    /// What is changed into what.
    pub change: String,
    text: String,
    /// The same text with a trap at the line.
    trap: String,
}

/// Who notices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    /// The scenario.
    pub scenario: Scenario,
    /// The first seed that does, from 0 on.
    pub seed: u64,
    /// How.
    pub reason: String,
}

/// What an instruction is weakened to: the start of its opcode, and each weaker form.
const WEAKER: [(&str, &[&str]); 9] = [
    ("fence.acq_rel.sys", &["", "fence.acq_rel.gpu"]),
    ("st.release.sys", &["st.relaxed.sys"]),
    ("st.release.gpu", &["st.relaxed.gpu", "st.release.cta"]),
    ("ld.acquire.gpu", &["ld.relaxed.gpu", "ld.acquire.cta"]),
    ("st.relaxed.sys", &["st.relaxed.gpu", "st"]),
    ("ld.relaxed.sys", &["ld.relaxed.gpu", "ld"]),
    ("ld.relaxed.gpu", &["ld.relaxed.cta"]),
    ("atom.relaxed.gpu", &["atom.relaxed.cta"]),
    ("bar.warp.sync", &[""]),
];

impl Mutant {
    /// The whole text with the change.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// All mutants of a PTX text, in the order of its lines.
pub fn mutants(original: &str) -> Vec<Mutant> {
    let mut found = Vec::new();
    let mut counts = std::collections::BTreeMap::<&str, usize>::new();
    for (number, line) in original.lines().enumerate() {
        let code = line.trim_start();
        let body = match code.strip_prefix('@') {
            Some(rest) => rest.split_once(char::is_whitespace).map_or("", |(_, rest)| rest.trim()),
            None => code,
        };
        let rule = WEAKER.iter().find(|(strong, _)| body.starts_with(strong));
        let mut changes: Vec<(String, String)> = Vec::new();
        let key = if let Some((strong, weaker)) = rule {
            for weak in *weaker {
                let changed = match *weak {
                    "" => String::new(),
                    weak => line.replacen(strong, weak, 1),
                };
                let words = if weak.is_empty() { "removed" } else { weak };
                changes.push((format!("{strong} -> {words}"), changed));
            }
            strong
        } else if let Some(changed) = without_barrier(body) {
            changes.push(("bar.red.or.pred -> the own predicate".to_owned(), changed));
            "bar.red.or.pred"
        } else {
            continue;
        };
        let count = counts.entry(key).or_default();
        *count += 1;
        for (change, changed) in changes {
            let site = format!("{key} {count}");
            let text = replaced(original, number, &changed);
            let trap = replaced(original, number, "trap;");
            found.push(Mutant { line: number + 1, site, change, text, trap });
        }
    }
    found
}

/// `bar.red.or.pred all, 0, mine;` as a block of one would have it.
fn without_barrier(body: &str) -> Option<String> {
    let operands = body.strip_prefix("bar.red.or.pred")?.trim().strip_suffix(';')?;
    let mut operands = operands.split(',').map(str::trim);
    let (all, _, mine) = (operands.next()?, operands.next()?, operands.next()?);
    Some(format!("mov.pred {all}, {mine};"))
}

fn replaced(text: &str, number: usize, changed: &str) -> String {
    let lines = text.lines().enumerate();
    let lines = lines.map(|(at, line)| if at == number { changed } else { line });
    let mut text: String = lines.collect::<Vec<_>>().join("\n");
    text.push('\n');
    text
}

/// Runs seeds of each scenario until one fails.
///
/// # Errors
///
/// The mutant cannot be loaded.
pub fn hunt(mutant: &Mutant, seeds: u64) -> Result<Option<Kill>, String> {
    first_kill(mutant.text(), seeds)
}

/// Does any of these runs come to the mutant's line?
///
/// # Errors
///
/// The text cannot be loaded.
pub fn is_reached(mutant: &Mutant, seeds: u64) -> Result<bool, String> {
    Ok(first_kill(&mutant.trap, seeds)?.is_some())
}

fn first_kill(text: &str, seeds: u64) -> Result<Option<Kill>, String> {
    let kernel: Arc<Kernel> = scenario::load(text)?;
    for seed in 0..seeds {
        for scenario in [Scenario::Ring, Scenario::Stores, Scenario::LowLatency] {
            if let Err(failure) = scenario::run(&kernel, Options::draw(scenario, seed)) {
                return Ok(Some(Kill { scenario, seed, reason: failure.reason }));
            }
        }
    }
    Ok(None)
}

/// Seeds that are tried of each scenario before a mutant counts as not noticed.
pub const SEEDS: u64 = 60;

/// Hunts all mutants of a text, and writes a line of the table for each.
///
/// # Errors
///
/// A mutant cannot be loaded.
pub fn print_table(text: &str, seeds: u64, mut write: impl FnMut(&str)) -> Result<(), String> {
    for line in HEAD.trim_end().lines() {
        write(line);
    }
    for mutant in mutants(text) {
        let found = match hunt(&mutant, seeds)? {
            Some(kill) => format!("{} {}", kill.scenario.name(), kill.seed),
            None if is_reached(&mutant, seeds)? => "nobody".to_owned(),
            None => "not reached".to_owned(),
        };
        write(&format!("| {} | {} | {found} |", mutant.site, mutant.change));
    }
    Ok(())
}

const HEAD: &str = "\
| site | change | scenario and first seed that notice |
|---|---|---|
";
