//! Mutants: the executor with one ordering removed or weakened. Whatever the protocol relies on,
//! some scenario must miss; what none misses needs a reason.

use hwsim_ptx::Kernel;
use std::collections::{BTreeMap, BTreeSet};
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
    let mut counts = BTreeMap::<&str, usize>::new();
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
            found.push(Mutant { line: number + 1, site, change, text });
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

/// The lines of mutants that none of these runs comes to.
///
/// # Errors
///
/// A text with traps cannot be loaded.
pub fn unreached(original: &str, seeds: u64) -> Result<BTreeSet<usize>, String> {
    let mut lines: BTreeSet<usize> = mutants(original).iter().map(|it| it.line).collect();
    // A trap at each: the first one that is come to is taken away, until none is come to.
    while let Some(kill) = first_kill(&trapped(original, &lines), seeds)? {
        let line = kill.reason.split("PTX line ").nth(1).and_then(|rest| {
            rest.split(':').next().and_then(|number| number.parse::<usize>().ok())
        });
        if !line.is_some_and(|line| lines.remove(&line)) {
            return Err(format!("not a trap: {}", kill.reason));
        }
    }
    Ok(lines)
}

fn trapped(original: &str, lines: &BTreeSet<usize>) -> String {
    let lines = original
        .lines()
        .enumerate()
        .map(|(number, line)| if lines.contains(&(number + 1)) { "trap;" } else { line });
    lines.collect::<Vec<_>>().join("\n") + "\n"
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
pub const SEEDS: u64 = 10;

/// So many times more where no reason is known.
const PATIENCE: u64 = 4;

/// Why nobody notices a mutant that runs come to: a kind of site and the change, or one site; the
/// reason. `gap` marks what no scenario shows yet; the others are equivalent. Sites are numbered in
/// the order of the PTX: whoever changes the executor looks at these again.
const REASONS: &[(&str, &str, &str)] = &[
    (
        "st.release.gpu",
        "st.release.gpu -> st.relaxed.gpu",
        "equivalent: the fence behind the wait for `tail` comes before it, and both are a release",
    ),
    (
        "bar.warp.sync",
        "bar.warp.sync -> removed",
        "equivalent: a barrier of the block follows; this one brings the warp together for it",
    ),
    (
        "ld.relaxed.gpu",
        "ld.relaxed.gpu -> ld.relaxed.cta",
        "gap: a look at the claim word, and no run fails a wait",
    ),
    // Of the block's waits: for room in the ring, for signals, for LL messages.
    ("ld.relaxed.sys 3", "", ABORT_WORD),
    ("ld.relaxed.sys 7", "", ABORT_WORD),
    ("ld.relaxed.sys 9", "", ABORT_WORD),
    ("ld.relaxed.sys 14", "", ABORT_WORD),
    ("ld.relaxed.sys 21", "", ABORT_WORD),
    ("ld.relaxed.sys 12", "", POLL),
    ("ld.relaxed.sys 13", "", POLL),
    (
        "bar.red.or.pred 4",
        "",
        "gap: words prove themselves behind it; it tells of a failed wait, and no run fails one",
    ),
    (
        "st.relaxed.sys 7",
        "",
        "gap: the end of the launch; the proxy reads it only to rest, and is not in these runs",
    ),
];

const ABORT_WORD: &str = "gap: a look at the abort word, and no run aborts";
const POLL: &str =
    "equivalent: one thread polls here for the block; all read the words again and check them";

/// What is said of a mutant that somebody should notice.
const UNKNOWN: &str = "gap: nobody notices";

/// Why nobody notices it, if that is known.
pub fn reason(mutant: &Mutant) -> &'static str {
    let found = REASONS.iter().find(|(sites, change, _)| {
        let rest = mutant.site.strip_prefix(sites);
        let at_one = rest == Some("");
        let at_all = rest.is_some_and(|rest| rest.starts_with(' ')) && mutant.change == *change;
        at_one || at_all
    });
    found.map_or(UNKNOWN, |(.., reason)| reason)
}

/// Hunts all mutants of a text, and writes a line of the table for each.
///
/// # Errors
///
/// A mutant cannot be loaded.
pub fn print_table(text: &str, seeds: u64, mut write: impl FnMut(&str)) -> Result<(), String> {
    for line in HEAD.trim_end().lines() {
        write(line);
    }
    let unreached = unreached(text, seeds)?;
    for mutant in mutants(text) {
        let found = if unreached.contains(&mutant.line) {
            "not reached".to_owned()
        } else {
            let reason = reason(&mutant);
            let seeds = if reason == UNKNOWN { seeds * PATIENCE } else { seeds };
            match hunt(&mutant, seeds)? {
                Some(kill) => format!("{} {}", kill.scenario.name(), kill.seed),
                None => reason.to_owned(),
            }
        };
        write(&format!("| {} | {} | {found} |", mutant.site, mutant.change));
    }
    Ok(())
}

const HEAD: &str = "\
# Mutants of the executor

Each row is the executor's PTX with one ordering removed or weakened: the n-th of its kind in
`kernels/ptx/executor.ptx`. The last column names the scenario and the first seed from 0 on that go
wrong with it, or says why none does. *Not reached*: no run comes to the line (most are copies of
the record of a failed wait, and no scenario fails a wait yet; others serve transfers from and into
registered memory, R15, of which no scenario has any yet). *Gap*: runs come to it, and nobody
notices. Written by `cargo run --release -p hwsim-explore --example mutants`; a test replays each
row that names a seed.

| site | change | scenario and first seed that notice |
|---|---|---|
";
