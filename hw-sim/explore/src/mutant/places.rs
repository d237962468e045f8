//! Places in inlined functions, of which a module has many copies: what is noticed in one of them
//! speaks for the others. They are told by their instruction and the orderings before and behind it
//! in the text; `.loc` lines of clang gave the same places on 2026-11-27.

use std::collections::{BTreeMap, HashSet};

use super::WEAKER;

/// A place in an inlined function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// `claim_record`: the exchange that claims a record that nobody has.
    Claim,
    /// `claim_record`: the exchange behind it, of a stray value.
    ClaimOfStray,
    /// `leave_record`: the store of its state.
    State,
    /// `poll_until`: the look at the claim.
    LookAtClaim,
    /// `poll_until`: the look at the abort word behind it.
    LookAtAbort,
    /// `wait_or_record`: the fence behind the look that saw what was awaited.
    Awaited,
    /// `wait_with_grace`: the same.
    AwaitedWithGrace,
    /// `release_payload`: its fence.
    Payload,
    /// `ring`: a position is taken.
    Head,
    /// `ring`: the cached tail is loaded.
    TailCache,
    /// `ring`: the first look at the engine's tail.
    Tail,
    /// `ring`: the tail is cached.
    TailCached,
    /// `ring`: the descriptor is stored.
    Slot,
}

impl Place {
    /// The function that it is in.
    pub(super) fn function(self) -> &'static str {
        match self {
            Self::Claim | Self::ClaimOfStray | Self::State => "leave_record",
            Self::LookAtClaim | Self::LookAtAbort => "poll_until",
            Self::Awaited => "wait_or_record",
            Self::AwaitedWithGrace => "wait_with_grace",
            Self::Payload => "release_payload",
            Self::Head | Self::TailCache | Self::Tail | Self::TailCached | Self::Slot => "ring",
        }
    }

    /// All places of a text, by line from 0 on.
    pub(super) fn all(lines: &[&str]) -> BTreeMap<usize, Self> {
        let mut sites = Vec::new();
        // Results of exchanges, in one function.
        let mut exchanged = HashSet::new();
        let mut second = HashSet::new();
        for (number, line) in lines.iter().enumerate() {
            let code = line.trim_start();
            if code.contains(".entry ") || code.contains(".func ") {
                exchanged.clear();
            }
            let code = match code.strip_prefix('@') {
                Some(rest) => rest.split_once(char::is_whitespace).map_or("", |(_, code)| code),
                None => code,
            };
            if !WEAKER.iter().any(|(strong, _)| code.starts_with(strong)) {
                continue;
            }
            if let Some((result, expected)) = exchange(code) {
                if exchanged.contains(expected) {
                    second.insert(number);
                }
                exchanged.insert(result);
            }
            sites.push((number, code));
        }
        let code_at = |at: Option<usize>| at.and_then(|at| sites.get(at)).map_or("", |(_, it)| *it);
        let mut found = BTreeMap::new();
        for (at, (number, code)) in sites.iter().enumerate() {
            let before = code_at(at.checked_sub(1));
            let next = [code_at(Some(at + 1)), code_at(Some(at + 2))];
            let place = match second.contains(number) {
                true => Some(Self::ClaimOfStray),
                false => Self::of(before, code, next),
            };
            found.extend(place.map(|place| (*number, place)));
        }
        found
    }

    /// The place of an instruction between these orderings.
    fn of(before: &str, code: &str, next: [&str; 2]) -> Option<Self> {
        let is_add = |code: &str| code.contains(".global.add.u64");
        let is_cache = |code: &str| code.starts_with("ld.acquire.gpu");
        let is_counter = |code: &str| code.starts_with("ld.relaxed.sys.global.u64");
        let is_word = |code: &str| code.starts_with("ld.relaxed.sys.global.u32");
        // Those stores have a barrier before them, or another one.
        let is_low_latency = before.starts_with("bar.red") || before.starts_with("st.relaxed.sys");
        let kind = code.split(".global").next().unwrap_or_default();
        match kind.trim_end_matches(';') {
            "atom.relaxed.gpu" if exchange(code).is_some() => Some(Self::Claim),
            "atom.relaxed.gpu" if is_add(code) && is_cache(next[0]) => Some(Self::Head),
            "st.release.sys" if code.contains(".u32") => Some(Self::State),
            "ld.acquire.gpu" => Some(Self::TailCache),
            "ld.relaxed.sys" if is_word(code) && before.starts_with("ld.relaxed.gpu") => {
                Some(Self::LookAtAbort)
            }
            "ld.relaxed.sys" if is_counter(code) && is_cache(before) => Some(Self::Tail),
            "ld.relaxed.gpu" if is_word(next[0]) => Some(Self::LookAtClaim),
            "st.release.gpu" => Some(Self::TailCached),
            "st.relaxed.sys" if code.contains(".v2.u64") && !is_low_latency => Some(Self::Slot),
            "fence.acq_rel.sys" if is_counter(before) && is_word(next[0]) => {
                Some(Self::AwaitedWithGrace)
            }
            "fence.acq_rel.sys" if is_counter(before) => Some(Self::Awaited),
            "fence.acq_rel.sys" if is_add(next[0]) && is_cache(next[1]) => Some(Self::Payload),
            _ => None,
        }
    }
}

/// Result and expected value of a compare-and-swap.
fn exchange(code: &str) -> Option<(&str, &str)> {
    let operands = code.strip_prefix("atom.relaxed.gpu.global.cas.b32")?;
    let mut operands = operands.split(',').map(str::trim);
    Some((operands.next()?, operands.nth(1)?))
}
