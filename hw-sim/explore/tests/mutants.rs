//! `MUTANTS.md` is true: it lists every mutant of the committed code, the seed in each row notices
//! its mutant, and what nobody notices has a reason.

use hwsim_explore::mutant::{HOST, Mutant, Subject, is_copy, mutants, reason};
use hwsim_explore::scenario::run;
use hwsim_explore::{HostMutant, Kernels, Options, Scenario};

const TABLE: &str = include_str!("../MUTANTS.md");

/// Site, change and verdict of each row of a subject.
fn rows(subject: Subject) -> Vec<[&'static str; 3]> {
    let part = TABLE.split("\n## ").find(|part| part.starts_with(subject.title()));
    let rows = part.expect("the table has it").lines().filter(|line| line.starts_with("| "));
    rows.skip(1)
        .map(|row| {
            let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
            cells.try_into().unwrap_or_else(|_| panic!("not three cells: {row}"))
        })
        .collect()
}

/// The scenario and seed of a verdict.
fn seed_of(verdict: &str) -> Option<(Scenario, u64)> {
    let (name, seed) = verdict.split_once(' ')?;
    Some((Scenario::named(name)?, seed.parse().ok()?))
}

/// Does this seed of this scenario go wrong?
fn notices(mutant: &Mutant, scenario: Scenario, seed: u64) -> bool {
    let kernels = Kernels::load(mutant.text()).unwrap();
    run(&kernels, &Options::draw(scenario, seed)).is_err()
}

/// If this fails, an ordering of the device code can go without a test that fails, or the table is
/// older than the code: `cargo run --release -p hwsim-explore --example mutants` writes it anew.
#[test]
fn every_mutant_is_noticed_or_has_a_reason() {
    let mut wrong = Vec::new();
    for subject in Subject::ALL {
        let mutants = mutants(subject.text());
        let rows = rows(subject);
        assert!(mutants.len() > 50, "{} has many orderings", subject.title());
        let listed: Vec<_> = rows.iter().map(|[site, change, _]| [*site, *change]).collect();
        let expected: Vec<_> =
            mutants.iter().map(|it| [it.site.as_str(), it.change.as_str()]).collect();
        assert_eq!(listed, expected, "the table lists other mutants than there are");
        for (mutant, [site, change, verdict]) in mutants.iter().zip(&rows) {
            let fine = match seed_of(verdict) {
                Some((scenario, seed)) => notices(mutant, scenario, seed),
                None if verdict.starts_with("copy: ") || verdict.starts_with("rare: ") => {
                    let site = verdict.split_once("as ").map_or("", |(_, site)| site);
                    let twin = rows.iter().find(|[it, of, _]| *it == site && of == change);
                    let is_noticed = twin.is_some_and(|[.., verdict]| seed_of(verdict).is_some());
                    is_noticed && is_copy(mutant, verdict, &mutants)
                }
                None => *verdict == reason(subject, mutant) || *verdict == "not reached",
            };
            if !fine {
                wrong.push(format!("{}: {site}: {change}: {verdict}", subject.title()));
            }
        }
    }
    assert!(wrong.is_empty(), "not so any more:\n  {}", wrong.join("\n  "));
}

/// If this fails, a fence of the executor, which publishes or takes over data (R5, R9, R14, R15),
/// goes without a test.
#[test]
fn no_fence_of_the_executor_can_go() {
    let rows = rows(Subject::Executor);
    let removed = rows
        .iter()
        .filter(|[site, change, _]| site.starts_with("fence") && change.ends_with("removed"));
    let unnoticed = removed.clone().filter(|[_, _, verdict]| seed_of(verdict).is_none());
    let unnoticed: Vec<_> = unnoticed.map(|[site, _, verdict]| (*site, *verdict)).collect();
    assert_eq!(removed.count(), 6);
    assert_eq!(unnoticed, []);
}

/// If this fails, an ordering of the executor goes without a test, or one that runs come to, in
/// users' kernels and those of experts, goes without a run that notices it and without a reason.
#[test]
fn no_mutant_is_left_open() {
    let mut left = Vec::new();
    for subject in Subject::ALL {
        let is_decided = |verdict: &str| {
            let is_copy = subject != Subject::Executor && verdict.starts_with("copy: ");
            seed_of(verdict).is_some() || verdict.starts_with("equivalent: ") || is_copy
        };
        let open = rows(subject).into_iter().filter(|[.., verdict]| !is_decided(verdict));
        left.extend(open.map(|[site, ..]| site));
    }
    assert!(left.is_empty(), "open: {left:?}");
}

/// If this fails, an ordering of the ring's consumer, or of a transport's signals, goes without a
/// test; or one that is said to change nothing does.
#[test]
fn orderings_of_the_host_are_noticed_or_have_a_reason() {
    for (mutant, verdict) in HOST {
        let fails = |scenario, seed| {
            let options = Options { host: Some(mutant), ..Options::draw(scenario, seed) };
            run(&Kernels::committed(), &options).is_err()
        };
        match verdict {
            Ok((scenario, seed)) => assert!(fails(scenario, seed), "{mutant:?} goes unnoticed"),
            Err(reason) => {
                let seed = (0..10).find(|seed| fails(Scenario::Ring, *seed));
                assert_eq!(seed, None, "{mutant:?} is noticed, and not {reason}");
            }
        }
    }
}

/// If this fails, the scenarios of device engines, or of communicators, miss data that is not there
/// yet: what their engines do is not checked.
#[test]
fn device_engines_and_communicators_without_orderings_are_noticed() {
    for scenario in [Scenario::Device, Scenario::Communicators] {
        for mutant in [HostMutant::BothWords, HostMutant::Signal] {
            let fails = |seed: &u64| {
                let options = Options { host: Some(mutant), ..Options::draw(scenario, *seed) };
                run(&Kernels::committed(), &options).is_err()
            };
            let seed = (0..60).find(fails);
            assert!(seed.is_some(), "{mutant:?} goes unnoticed by 60 seeds of {scenario:?}");
        }
    }
}
