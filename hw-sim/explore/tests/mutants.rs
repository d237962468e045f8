//! `MUTANTS.md` is true: it lists every mutant of the committed executor, the seed in each row
//! notices its mutant, and what nobody notices has a reason.

use hwsim_explore::mutant::{Mutant, mutants, reason};
use hwsim_explore::scenario::{committed, load, run};
use hwsim_explore::{Options, Scenario};

const TABLE: &str = include_str!("../MUTANTS.md");

/// Site, change and verdict of each row.
fn rows() -> Vec<[&'static str; 3]> {
    let rows = TABLE.lines().filter(|line| line.starts_with("| ")).skip(1);
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        cells.try_into().unwrap_or_else(|_| panic!("not three cells: {row}"))
    })
    .collect()
}

/// Does this seed of this scenario go wrong?
fn notices(mutant: &Mutant, scenario: Scenario, seed: u64) -> bool {
    let kernel = load(mutant.text()).unwrap();
    run(&kernel, Options::draw(scenario, seed)).is_err()
}

/// If this fails, an ordering of the device code can go without a test that fails, or the table is
/// older than the code: `cargo run --release -p hwsim-explore --example mutants` writes it anew.
#[test]
fn every_mutant_is_noticed_or_has_a_reason() {
    let mutants = mutants(committed());
    let rows = rows();
    assert!(mutants.len() > 50, "the executor has many orderings");
    let listed: Vec<[&str; 2]> = rows.iter().map(|[site, change, _]| [*site, *change]).collect();
    let expected: Vec<[&str; 2]> =
        mutants.iter().map(|mutant| [mutant.site.as_str(), mutant.change.as_str()]).collect();
    assert_eq!(listed, expected, "the table lists other mutants than there are");
    let mut wrong = Vec::new();
    for (mutant, [site, change, verdict]) in mutants.iter().zip(&rows) {
        let fine = match verdict.split_once(' ').map(|(name, seed)| (name, seed.parse())) {
            Some((name, Ok(seed))) if Scenario::named(name).is_some() => {
                notices(mutant, Scenario::named(name).unwrap(), seed)
            }
            _ => *verdict == reason(mutant) || *verdict == "not reached",
        };
        if !fine {
            wrong.push(format!("{site}: {change}: {verdict}"));
        }
    }
    assert!(wrong.is_empty(), "not so any more:\n  {}", wrong.join("\n  "));
}

/// Fences of transfers from and into registered memory (R15), to which no scenario comes yet.
const UNREACHED: [&str; 2] = ["fence.acq_rel.sys 5", "fence.acq_rel.sys 6"];

/// If this fails, the fences that publish and take over data (R5, R9, R14) go without a test.
#[test]
fn no_fence_that_runs_come_to_can_go() {
    let rows = rows();
    let removed: Vec<_> = rows
        .iter()
        .filter(|[site, change, _]| site.starts_with("fence") && change.ends_with("removed"))
        .collect();
    assert_eq!(removed.len(), 4 + UNREACHED.len());
    let is_seed = |verdict: &str| {
        let (name, seed) = verdict.split_once(' ').unwrap_or_default();
        Scenario::named(name).is_some() && seed.parse::<u64>().is_ok()
    };
    let unnoticed = removed.iter().filter(|[_, _, verdict]| !is_seed(verdict));
    let unnoticed: Vec<_> = unnoticed.map(|[site, _, verdict]| (*site, *verdict)).collect();
    assert_eq!(unnoticed, UNREACHED.map(|site| (site, "not reached")));
}
