//! Mutants of the host's code: one ordering, lap bit, credit, flag or check at a time is weakened
//! in a copy of the source, all of them in one build; a variable says which one is in force. The
//! sites are listed in `host_sites.txt`.

use std::collections::{BTreeMap, BTreeSet};

/// The variable: the number of the mutant, from 1 on; without it none is in force.
pub const VARIABLE: &str = "RINGDOVE_HOST_MUTANT";

const SITES: &str = include_str!("host_sites.txt");
/// The file whose functions are constant, which what asks for a variable is not.
const CONSTANT: &str = "src/ring/cursor.rs";
/// Orderings that are stronger than relaxed, and fences.
const STRONG: [&str; 5] =
    ["Ordering::Acquire", "Ordering::Release", "Ordering::AcqRel", "Ordering::SeqCst", "fence("];

/// What is weakened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// The file, from the root of the repository.
    pub file: &'static str,
    /// In words.
    pub what: &'static str,
    /// What stands there, once in the file.
    pub text: String,
    /// What stands there instead; `{is}` says whether the mutant is in force.
    pub weaker: String,
    /// Why nobody notices it, if that is known.
    pub reason: Option<&'static str>,
}

/// All sites, in the order of their numbers.
///
/// # Errors
///
/// The line that says nothing.
pub fn sites() -> Result<Vec<Site>, String> {
    let (list, reasons) = SITES.split_once("\n;; ").ok_or("there are no reasons")?;
    let entries = reasons.split("\n;; ").filter_map(|entry| entry.split_once('\n'));
    let reasons: BTreeMap<_, _> = entries.map(|(name, reason)| (name, reason.trim())).collect();
    let (mut sites, mut file) = (Vec::<Site>::new(), "");
    for line in list.lines().filter(|line| !line.is_empty() && !line.starts_with(';')) {
        let last = sites.last_mut();
        match (line.split_once(' ').unwrap_or((line, "")), last) {
            (("##", name), _) => file = name,
            (("#", what), _) => sites.push(Site { file, what, ..Site::default() }),
            (("-", text), Some(site)) => add_line(&mut site.text, text),
            (("+", text), Some(site)) => add_line(&mut site.weaker, text),
            (("=", reason), Some(site)) => site.reason = Some(reason),
            ((name, ""), Some(site)) if name.starts_with('=') => {
                let reason = reasons.get(&name[1..]);
                site.reason = Some(*reason.ok_or_else(|| format!("no reason {name}"))?);
            }
            _ => return Err(format!("host_sites.txt: {line}")),
        }
    }
    for site in sites.iter_mut().filter(|site| site.weaker.is_empty()) {
        let order = STRONG[..4].iter().find(|order| site.text.contains(**order));
        let order = order.ok_or_else(|| format!("no ordering in {}", site.text))?;
        let weaker = format!("if {{is}} {{ Ordering::Relaxed }} else {{ {order} }}");
        site.weaker = site.text.replacen(order, &weaker, 1);
    }
    Ok(sites)
}

fn add_line(text: &mut String, line: &str) {
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(line);
}

/// A file with the sites of it that are weakened when their number is in force.
///
/// # Errors
///
/// A site is not there, or more than once.
pub fn rewrite(sites: &[Site], file: &str, text: &str) -> Result<String, String> {
    let mut changed = text.to_owned();
    for (number, site) in (1..).zip(sites).filter(|(_, site)| site.file == file) {
        // In the file as it was, and still with the other sites changed.
        let counts = [text, &changed].map(|text| text.matches(&site.text).count());
        if counts != [1, 1] {
            return Err(format!("{file}: expected once, found {counts:?} times: {}", site.text));
        }
        let weaker = site.weaker.replace("{is}", &format!("crate::host_mutant::is({number})"));
        changed = changed.replacen(&site.text, &weaker, 1);
    }
    let is_constant = file == CONSTANT;
    Ok(if is_constant { changed.replace("pub const fn", "pub fn") } else { changed })
}

/// Lines of a file, numbered from 1 on, with an ordering or a fence that no site weakens. Tests at
/// the end of a file are left out.
#[must_use]
pub fn unlisted(sites: &[Site], file: &str, text: &str) -> Vec<usize> {
    let mut listed = BTreeSet::new();
    for site in sites.iter().filter(|site| site.file == file) {
        let Some(at) = text.find(&site.text) else { continue };
        let first = text[..at].lines().count().max(1) + usize::from(text[..at].ends_with('\n'));
        listed.extend(first..first + site.text.lines().count());
    }
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let is_strong = |line: &str| {
        let code = line.split("//").next().unwrap_or_default();
        // A fence whose ordering is an argument is its caller's.
        let is_passed_on = code.contains("fn fence(") || code.contains("::fence(ordering)");
        let is_strong = STRONG.iter().any(|order| code.contains(order));
        is_strong && !is_passed_on && !code.trim_start().starts_with("use ")
    };
    let strong = (1..).zip(code.lines()).filter(|(_, line)| is_strong(line));
    strong.map(|(number, _)| number).filter(|number| !listed.contains(number)).collect()
}

/// The module by which the copy of the library knows which mutant is in force.
pub const MODULE: &str = r#"
//! Which mutant is in force.
use std::sync::OnceLock;

/// Is it this one?
pub fn is(number: u32) -> bool {
    static NUMBER: OnceLock<u32> = OnceLock::new();
    let read = || std::env::var("RINGDOVE_HOST_MUTANT").ok().and_then(|it| it.parse().ok());
    *NUMBER.get_or_init(|| read().unwrap_or(0)) == number
}
"#;
