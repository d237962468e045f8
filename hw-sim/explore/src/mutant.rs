//! Mutants: device code with one ordering removed or weakened. Whatever the protocol relies on,
//! some scenario must miss; what none misses needs a reason.

pub mod host;
mod places;
mod reasons;

use std::collections::{BTreeMap, BTreeSet};

use ringdove_kernels::launch::RECORD_CLAIMED;
use ringdove_kernels::ptx;

use crate::engine::HostMutant;
use crate::scenario::{self, Kernels, Options, Scenario};
use places::Place;

/// Whose mutants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// `kernels/ptx/executor.ptx`.
    Executor,
    /// `ringdove.cuh`, as `kernels/ptx/test_calls.ptx` calls it.
    User,
    /// `kernels/ptx/experts.ptx`.
    Experts,
}

impl Subject {
    /// All, in the order of the table.
    pub const ALL: [Self; 3] = [Self::Executor, Self::User, Self::Experts];

    /// The title of its part of the table.
    pub fn title(self) -> &'static str {
        match self {
            Self::Executor => "The executor",
            Self::User => "Users' kernels",
            Self::Experts => "Kernels of experts",
        }
    }

    /// Its committed text.
    pub fn text(self) -> &'static str {
        match self {
            Self::Executor => ptx::EXECUTOR,
            Self::User => ptx::TEST_CALLS,
            Self::Experts => ptx::EXPERTS.sm_70,
        }
    }

    /// Scenarios that come to it.
    pub fn scenarios(self) -> &'static [Scenario] {
        match self {
            Self::Executor => &[
                Scenario::Ring,
                Scenario::Stores,
                Scenario::LowLatency,
                Scenario::Grants,
                Scenario::Refusal,
                Scenario::Abort,
                Scenario::Expiry,
                Scenario::Stray,
                Scenario::Corners,
            ],
            Self::User => {
                &[Scenario::User, Scenario::UserFaults, Scenario::Reuse, Scenario::Corners]
            }
            Self::Experts => &[
                Scenario::Experts,
                Scenario::Relays,
                Scenario::ExpertsFaults,
                Scenario::Batches,
                Scenario::BatchesFaults,
                Scenario::Claims,
                Scenario::Waits,
                Scenario::Rewrites,
                Scenario::Corners,
            ],
        }
    }
}

/// A scenario and a seed that notice a mutant, or why none does.
pub type Verdict = Result<(Scenario, u64), &'static str>;

/// Orderings of the host's code, and what becomes of each that is weakened: a scenario and a seed
/// that notice it, or why none does.
pub const HOST: [(HostMutant, Verdict); 6] = [
    (HostMutant::FirstWord, Err(ONE_WORD)),
    (HostMutant::SecondWord, Err(ONE_WORD)),
    (HostMutant::BothWords, Ok((Scenario::Ring, 0))),
    (HostMutant::Tail, Ok((Scenario::Ring, 0))),
    (HostMutant::Signal, Ok((Scenario::Ring, 0))),
    (HostMutant::Record, Ok((Scenario::Expiry, 0))),
];

const ONE_WORD: &str = "equivalent in this model: both words are stored behind the same fence, so \
                        the acquire of the other one suffices";
/// One change of one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// The line in the PTX, from 1 on.
    pub line: usize,
    /// The kind of instruction and how many of its kind came before it: in the module, or, where
    /// that has several entries, in the one that is named first.
    pub site: String,
    /// What is changed into what.
    pub change: String,
    /// The instruction and its neighbours, without the numbers of registers: alike for copies of an
    /// inlined function.
    shape: String,
    /// Why it is equivalent, where that follows from the inlined function that it is in.
    known: Option<&'static str>,
    /// Its place in a function that is inlined often.
    place: Option<Place>,
    /// The line with the change.
    changed: String,
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
    let module = Parts::of(original);
    let lines: Vec<&str> = original.lines().collect();
    let stray = of_stray_claims(&lines);
    let places = Place::all(&lines);
    let mut found = Vec::new();
    let mut counts = BTreeMap::<(Option<&str>, &str), usize>::new();
    for (number, line) in lines.iter().enumerate() {
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
        let part = module.name_at(number);
        let count = counts.entry((part, key)).or_default();
        *count += 1;
        for (change, changed) in changes {
            let site = match part {
                Some(part) => format!("{part}: {key} {count}"),
                None => format!("{key} {count}"),
            };
            let shape = shape_at(&lines, number);
            let known = stray.get(&number).copied();
            let place = places.get(&number).copied();
            let text = module.with_line(number, &changed);
            let line = number + 1;
            found.push(Mutant { line, site, change, shape, known, place, changed, text });
        }
    }
    found
}

/// A subject's text with all of these mutants at once. Of two that change one line the later one
/// counts. What a seed notices of it is one of them at least, or several together.
pub fn together(subject: Subject, mutants: &[Mutant]) -> String {
    let changed: BTreeMap<_, _> = mutants.iter().map(|it| (it.line, &*it.changed)).collect();
    let lines = (1..).zip(subject.text().lines());
    lines.map(|(number, line)| format!("{}\n", changed.get(&number).unwrap_or(&line))).collect()
}

/// The parts of a module: where each entry and function is.
struct Parts<'t> {
    lines: Vec<&'t str>,
    /// Name, lines, and whether it is an entry.
    parts: Vec<(String, std::ops::Range<usize>, bool)>,
}

impl<'t> Parts<'t> {
    fn of(text: &'t str) -> Self {
        let lines: Vec<&str> = text.lines().collect();
        let mut parts: Vec<(String, std::ops::Range<usize>, bool)> = Vec::new();
        let mut begun: Option<(String, usize, bool)> = None;
        let mut functions = 0;
        for (number, line) in lines.iter().enumerate() {
            let is_entry = line.contains(".entry ");
            if is_entry || line.contains(".func ") {
                let name = line.split(".entry ").nth(1).and_then(|rest| rest.split('(').next());
                begun = Some((name.unwrap_or_default().to_owned(), number, is_entry));
            } else if *line == ";" {
                // It was a declaration.
                begun = None;
            } else if *line == "}"
                && let Some((name, first, is_entry)) = begun.take()
            {
                functions += usize::from(!is_entry);
                let name = if is_entry { name } else { format!("function {functions}") };
                parts.push((name, first..number + 1, is_entry));
            }
        }
        Self { lines, parts }
    }

    /// The part that a line is in, of a module with several.
    fn name_at(&self, number: usize) -> Option<&str> {
        let is_one = self.parts.iter().filter(|(.., is_entry)| *is_entry).count() < 2;
        let part = self.parts.iter().find(|(_, lines, _)| lines.contains(&number))?;
        (!is_one).then_some(part.0.as_str())
    }

    /// The text with another line, without entries that do not have it: so it is read sooner.
    fn with_line(&self, number: usize, changed: &str) -> String {
        let own = self.parts.iter().find(|(_, lines, _)| lines.contains(&number));
        let is_entry = own.is_some_and(|(.., is_entry)| *is_entry);
        let is_left_out = |at: usize| {
            is_entry
                && self.parts.iter().any(|(_, lines, is_entry)| {
                    *is_entry && lines.contains(&at) && !lines.contains(&number)
                })
        };
        let mut text = String::new();
        for (at, line) in self.lines.iter().enumerate().filter(|(at, _)| !is_left_out(*at)) {
            text.push_str(if at == number { changed } else { line });
            text.push('\n');
        }
        text
    }
}

/// Lines of copies of `record_stray_claim` (wait.cuh), and why weakening them changes nothing: a
/// load of the claim, which is then compared with what threads write there, and the first exchange.
fn of_stray_claims(lines: &[&str]) -> BTreeMap<usize, &'static str> {
    let claimed = format!(", {RECORD_CLAIMED};");
    let mut found = BTreeMap::new();
    let mut load = None;
    for (number, line) in lines.iter().enumerate() {
        if line.contains("ld.relaxed.gpu") {
            load = Some((number, false));
        } else if line.contains("atom.relaxed.gpu") {
            if let Some((first, true)) = load.take() {
                found.insert(first, reasons::SEEN_BEFORE);
                found.insert(number, reasons::FIRST_EXCHANGE);
            }
        } else if WEAKER.iter().any(|(strong, _)| line.contains(strong)) {
            load = None;
        } else if line.contains("setp.") && line.contains(&claimed) {
            load = load.map(|(first, _)| (first, true));
        }
    }
    found
}

/// An instruction and the ones before and behind it, without the numbers of registers.
fn shape_at(lines: &[&str], number: usize) -> String {
    let is_code = |line: &&str| !line.ends_with(':');
    let before = lines[..number].iter().rev().copied().find(is_code).unwrap_or("");
    let behind = lines[number + 1..].iter().copied().find(is_code).unwrap_or("");
    let mut shape = String::new();
    for line in [before, lines[number], behind] {
        let mut in_name = false;
        for letter in line.trim().chars() {
            // Registers and labels end in numbers that differ from copy to copy.
            in_name = letter == '%' || letter == '$' || in_name && letter.is_alphanumeric();
            if !(in_name && letter.is_ascii_digit()) {
                shape.push(letter);
            }
        }
        shape.push('|');
    }
    shape
}

/// `bar.red.or.pred all, 0, mine;` as a block of one would have it.
fn without_barrier(body: &str) -> Option<String> {
    let operands = body.strip_prefix("bar.red.or.pred")?.trim().strip_suffix(';')?;
    let mut operands = operands.split(',').map(str::trim);
    let (all, _, mine) = (operands.next()?, operands.next()?, operands.next()?);
    Some(format!("mov.pred {all}, {mine};"))
}

/// Runs seeds of each scenario until one fails: `first` ones of the likely one, `others` of each
/// other.
///
/// # Errors
///
/// The mutant cannot be loaded.
pub fn hunt(
    subject: Subject,
    mutant: &Mutant,
    likely: Scenario,
    [first, others]: [u64; 2],
) -> Result<Option<Kill>, String> {
    let kernels = Kernels::load(mutant.text())?;
    let rest = subject.scenarios().iter().filter(|it| **it != likely).map(|it| (*it, others));
    for (scenario, seeds) in [(likely, first)].into_iter().chain(rest) {
        if let Some(kill) = (0..seeds).find_map(|seed| attempt(&kernels, scenario, seed)) {
            return Ok(Some(kill));
        }
    }
    Ok(None)
}

/// Where runs come to: for each line of a mutant the scenario that came there first, or none.
///
/// # Errors
///
/// A text with traps cannot be loaded.
pub fn reach(subject: Subject, seeds: u64) -> Result<BTreeMap<usize, Option<Scenario>>, String> {
    let original = subject.text();
    let mut lines: BTreeSet<usize> = mutants(original).iter().map(|it| it.line).collect();
    let mut found: BTreeMap<_, _> = lines.iter().map(|line| (*line, None)).collect();
    // A trap at each: one that is come to is taken away, and the run done again.
    let mut kernel = Kernels::load(&trapped(original, &lines))?;
    for seed in 0..seeds {
        for &scenario in subject.scenarios() {
            while let Some(kill) = attempt(&kernel, scenario, seed) {
                let line = kill.reason.split("PTX line ").nth(1).and_then(|rest| {
                    rest.split(':').next().and_then(|number| number.parse::<usize>().ok())
                });
                let Some(line) = line.filter(|line| lines.remove(line)) else {
                    return Err(format!("not a trap: {}", kill.reason));
                };
                found.insert(line, Some(scenario));
                kernel = Kernels::load(&trapped(original, &lines))?;
            }
        }
    }
    Ok(found)
}

fn attempt(kernel: &Kernels, scenario: Scenario, seed: u64) -> Option<Kill> {
    let failure = scenario::run(kernel, &Options::draw(scenario, seed)).err()?;
    Some(Kill { scenario, seed, reason: failure.reason })
}

fn trapped(original: &str, lines: &BTreeSet<usize>) -> String {
    let lines = original
        .lines()
        .enumerate()
        .map(|(number, line)| if lines.contains(&(number + 1)) { "trap;" } else { line });
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

/// Seeds that are tried of each scenario before a mutant counts as not noticed.
pub const SEEDS: u64 = 12;

/// So many times more of the likely scenario, and of the search for what runs come to.
const PATIENCE: u64 = 10;

/// What is said of a line that no run comes to.
const NOT_REACHED: &str = "not reached";

/// What is said of a mutant that somebody should notice.
const UNKNOWN: &str = "gap: nobody notices";

/// Why nobody notices it, if that is known.
pub fn reason(subject: Subject, mutant: &Mutant) -> &'static str {
    if let Some(known) = mutant.known {
        return known;
    }
    let found = reasons::of(subject).iter().find(|(sites, change, _)| {
        let kind = mutant.site.rsplit(": ").next().unwrap_or_default();
        let rest = mutant.site.strip_prefix(sites).or_else(|| kind.strip_prefix(sites));
        let at_one = rest == Some("");
        let at_all = rest.is_some_and(|rest| rest.starts_with(' ')) && mutant.change == *change;
        at_one || at_all
    });
    found.map_or(UNKNOWN, |(.., reason)| reason)
}

/// Hunts all mutants, and writes a line of the table for each.
///
/// # Errors
///
/// A mutant cannot be loaded.
pub fn print_table(seeds: u64, mut write: impl FnMut(&str)) -> Result<(), String> {
    for line in HEAD.trim_end().lines() {
        write(line);
    }
    Subject::ALL.into_iter().try_for_each(|subject| print_part(subject, seeds, &mut write))
}

/// The same for the mutants of one subject.
///
/// # Errors
///
/// A mutant cannot be loaded.
pub fn print_part(subject: Subject, seeds: u64, mut write: impl FnMut(&str)) -> Result<(), String> {
    write(&format!("\n## {}\n\n{COLUMNS}", subject.title()));
    let reach = reach(subject, seeds * PATIENCE)?;
    let mutants = mutants(subject.text());
    let mut verdicts = Vec::new();
    for mutant in &mutants {
        let verdict = verdict(subject, mutant, &reach, seeds)?;
        verdicts.push(verdict);
    }
    for (mutant, verdict) in mutants.iter().zip(&verdicts) {
        let copy = copied(mutant, verdict, &mutants, &verdicts);
        let verdict = copy.as_ref().unwrap_or(verdict);
        write(&format!("| {} | {} | {verdict} |", mutant.site, mutant.change));
    }
    Ok(())
}

/// The verdict of a mutant that no run notices, and whose copy is noticed.
fn copied(
    mutant: &Mutant,
    verdict: &str,
    mutants: &[Mutant],
    verdicts: &[String],
) -> Option<String> {
    let is_noticed = |verdict: &str| !verdict.contains(':') && verdict != NOT_REACHED;
    let is_alike = |other: &Mutant| other.shape == mutant.shape && other.change == mutant.change;
    let is_kin = |other: &Mutant| {
        other.place.is_some() && other.place == mutant.place && other.change == mutant.change
    };
    let twin = |is: &dyn Fn(&Mutant) -> bool| {
        let mut all = mutants.iter().zip(verdicts);
        all.find(|(other, verdict)| is(other) && is_noticed(verdict)).map(|(twin, _)| &twin.site)
    };
    let what = match verdict {
        NOT_REACHED => "copy",
        UNKNOWN => "rare",
        _ => return None,
    };
    let function = mutant.place.map_or("", Place::function);
    let copy = twin(&is_alike).map(|site| format!("{what}: as {site}"));
    copy.or_else(|| twin(&is_kin).map(|site| format!("{what}: in {function}, as {site}")))
}

/// The table as it was written last, with reasons and copies for what is open: without any run.
pub fn print_copies(mut write: impl FnMut(&str)) {
    for line in HEAD.trim_end().lines() {
        write(line);
    }
    for subject in Subject::ALL {
        write(&format!("\n## {}\n\n{COLUMNS}", subject.title()));
        let mutants = mutants(subject.text());
        let verdict = |it: &Mutant| written_before(subject, it).unwrap_or(NOT_REACHED).to_owned();
        let verdicts: Vec<_> = mutants.iter().map(verdict).collect();
        for (mutant, verdict) in mutants.iter().zip(&verdicts) {
            let is_open = verdict == NOT_REACHED || verdict == UNKNOWN;
            let known = reason(subject, mutant);
            let known = (is_open && known != UNKNOWN).then(|| known.to_owned());
            let copy = known.or_else(|| copied(mutant, verdict, &mutants, &verdicts));
            let verdict = copy.as_ref().unwrap_or(verdict);
            write(&format!("| {} | {} | {verdict} |", mutant.site, mutant.change));
        }
    }
}

/// Is `verdict`, which names another site as its copy, true: is it alike, and noticed?
pub fn is_copy(mutant: &Mutant, verdict: &str, all: &[Mutant]) -> bool {
    let twin = |site| all.iter().find(|it| it.site == site && it.change == mutant.change);
    let verdict = ["copy: ", "rare: "].iter().find_map(|it| verdict.strip_prefix(it));
    let alike = verdict.and_then(|it| twin(it.strip_prefix("as ")?));
    let kin = mutant.place.and_then(|place| {
        let start = format!("in {}, as ", place.function());
        twin(verdict?.strip_prefix(&start)?)
    });
    alike.is_some_and(|twin| twin.shape == mutant.shape)
        || kin.is_some_and(|twin| twin.place == mutant.place)
}

fn verdict(
    subject: Subject,
    mutant: &Mutant,
    reach: &BTreeMap<usize, Option<Scenario>>,
    seeds: u64,
) -> Result<String, String> {
    if let Some((scenario, seed)) = noticed_before(subject, mutant)
        && attempt(&Kernels::load(mutant.text())?, scenario, seed).is_some()
    {
        return Ok(format!("{} {seed}", scenario.name()));
    }
    let reason = reason(subject, mutant);
    Ok(match reach.get(&mutant.line).copied().flatten() {
        None if reason == UNKNOWN => NOT_REACHED.to_owned(),
        None => reason.to_owned(),
        Some(likely) => {
            // Long where nobody knows why none should notice.
            let tries = match reason == UNKNOWN {
                true => [seeds * PATIENCE, seeds * PATIENCE / 2],
                false => [seeds, seeds],
            };
            match hunt(subject, mutant, likely, tries)? {
                Some(kill) => format!("{} {}", kill.scenario.name(), kill.seed),
                None => reason.to_owned(),
            }
        }
    })
}

/// The scenario and seed that noticed it when the table was written last.
fn noticed_before(subject: Subject, mutant: &Mutant) -> Option<(Scenario, u64)> {
    let (name, seed) = written_before(subject, mutant)?.split_once(' ')?;
    Some((Scenario::named(name)?, seed.parse().ok()?))
}

/// What the table said of it when it was written last.
pub fn written_before(subject: Subject, mutant: &Mutant) -> Option<&'static str> {
    let part = LAST_TABLE.split("\n## ").find(|part| part.starts_with(subject.title()))?;
    let start = format!("| {} | {} | ", mutant.site, mutant.change);
    part.lines().find_map(|line| line.strip_prefix(&start)?.strip_suffix(" |"))
}

const LAST_TABLE: &str = include_str!("../MUTANTS.md");

const COLUMNS: &str = "\
| site | change | scenario and seed that notice |
|---|---|---|";

const HEAD: &str = "\
# Mutants of the device code

Each row is PTX with one ordering removed or weakened: the n-th of its kind in
`kernels/ptx/executor.ptx`, in `kernels/ptx/test_calls.ptx`, a kernel that makes the calls of
`ringdove.cuh`, and in each entry or function of `kernels/ptx/experts.ptx`. The last column names a
scenario and a seed that go wrong with it, or says why none does: *equivalent* ones change nothing
that the memory model lets anybody see; a *gap* is one that somebody should notice, and no run that
was tried does; *not reached* is a line to which no run of the first 120 seeds of each scenario
comes; a *copy* is not reached either, but the same instruction between the same neighbours, or at
the same place of the function that is named, is noticed elsewhere: both come from one inlined
function; a *rare* one is such a copy that these seeds come to, and no run that was tried notices.
Written by `cargo run --release -p hwsim-explore --example mutants`, which tries the seed of each
row first; a test replays each row that names one.
";
