//! Algorithms that are asked for by name (`RINGDOVE_ALGORITHM=ring`): results of every collective,
//! which plans run, and what happens where ranks have none of the kind.

#[path = "collectives/case.rs"]
mod case;
mod hardware;
#[path = "collectives/told.rs"]
mod told;

use case::{Case, check};
use hardware::perf::{assert_right, on_real_hardware, perf};
use hardware::{World, on_machine_env, on_virtual, run_bounded, settings, tool};
use ringdove::id::AlgorithmKind;
use ringdove::{Algorithms, Collective, Settings};
use told::told;

/// Kinds of algorithms, and by the name of a collective what runs for it with buffers that are not
/// registered. For what is not named the table of selection has its way.
const TAKEN: [(AlgorithmKind, &[(&str, &str)]); 13] = [
    (
        AlgorithmKind::Ring,
        &[
            ("all-reduce", "ring staged"),
            ("all-gather", "ring staged"),
            ("reduce-scatter", "ring staged"),
        ],
    ),
    (AlgorithmKind::AllPairs, &[]),
    (AlgorithmKind::Doubling, &[("all-reduce", "doubling")]),
    (AlgorithmKind::Halving, &[("all-reduce", "halving")]),
    (AlgorithmKind::TwoShot, &[("all-reduce", "two-shot")]),
    (AlgorithmKind::Symmetric, &[]),
    (AlgorithmKind::RingSymmetric, &[]),
    (AlgorithmKind::Hierarchical, &[]),
    (AlgorithmKind::Chain, &[("broadcast", "chain"), ("reduce", "chain")]),
    (
        AlgorithmKind::Exchange,
        &[("all-gather", "exchange"), ("reduce-scatter", "exchange"), ("all-to-all", "exchange")],
    ),
    (
        AlgorithmKind::Star,
        &[("broadcast", "star"), ("reduce", "star"), ("gather", "star"), ("scatter", "star")],
    ),
    (
        AlgorithmKind::Tree,
        &[("broadcast", "tree"), ("reduce", "tree"), ("gather", "tree"), ("scatter", "tree")],
    ),
    (
        AlgorithmKind::Bruck,
        &[("all-gather", "bruck"), ("reduce-scatter", "bruck"), ("all-to-all", "bruck")],
    ),
];

/// If this fails, a user who compares algorithms compares something else, or gets wrong results.
#[test]
fn every_collective_runs_by_the_algorithm_that_is_named() {
    on_machine_env("pcie4", &[], &[], || {
        assert!(TAKEN.iter().map(|(kind, _)| *kind).eq(AlgorithmKind::ALL), "a kind is missing");
        for (kind, taken) in TAKEN {
            // No LL messages, which would carry small data whatever the name.
            let algorithm = Algorithms::Only(kind);
            let world = World::with(4, &Settings { algorithm, low_latency_bytes: 0, ..settings() });
            for collective in Collective::all(2) {
                if collective == Collective::Barrier {
                    continue;
                }
                let seen = told("algorithm", || {
                    for in_place in [false, true] {
                        check(&world, Case { in_place, ..Case::new(collective, 2_003) });
                    }
                });
                let quoted = |(_, algorithm): &(&str, &str)| format!("{algorithm:?}");
                match taken.iter().find(|(name, _)| *name == collective.name()) {
                    Some(wanted) => assert_eq!(seen, [quoted(wanted)], "{kind}"),
                    None => {
                        let is_other = taken.iter().all(|it| !seen.contains(&quoted(it)));
                        let name = collective.name();
                        assert!(!seen.is_empty() && is_other, "{kind}: {name}: {seen:?}");
                    }
                }
            }
        }
    });
}

/// `ringdove perf` with an algorithm by name: what it says, with right results.
fn run(machine: (&str, u32), name: &str, more: &str, line: &str) -> String {
    let inside = format!(
        "export RINGDOVE_ALGORITHM={name} RINGDOVE_LOG=ringdove=info NO_COLOR=1 {more}; true"
    );
    let ended = perf(machine, "", &inside, line);
    assert_right(&format!("{machine:?}: {inside}; {line}"), &ended);
    ended.1
}

/// Registered buffers, low-latency messages, nodes: the member of a kind that fits the call.
#[test]
fn a_kind_has_plans_for_every_place() {
    if on_real_hardware() {
        return;
    }
    let of_64k = "all-reduce -g 4 -b 64K -e 64K -n 2 -w 1";
    for (machine, name, more, line, taken) in [
        (("pcie4", 1), "ring", "", "all-reduce -g 4 -b 1M -e 1M -n 2 -w 1 -R 1", "ring direct"),
        (("pcie4", 1), "all-pairs", "", "all-reduce -g 4 -b 4K -e 4K -n 2 -w 1", "all pairs"),
        (("dgx-a100", 1), "symmetric", "", "all-reduce -g 4 -b 1M -e 1M -n 2 -R 1", "symmetric"),
        (("pcie4", 1), "symmetric", "", "all-reduce -g 3 -b 1M -e 1M -n 2 -R 1", "symmetric"),
        (("pcie4", 1), "ring-symmetric", "", "all-reduce -g 4 -b 3M -e 3M -R 1", "ring symmetric"),
        (("dgx1v", 1), "ring-symmetric", "", "all-reduce -g 3 -b 1M -e 1M -R 1", "ring symmetric"),
        (("pcie4", 1), "two-shot", "", of_64k, "two-shot"),
        (("dgx-a100", 1), "ring", "", of_64k, "ring staged"),
        (("dgx-a100", 1), "two-shot", "", of_64k, "two-shot"),
        (("dgx-a100 x 2", 2), "hierarchical", "", of_64k, "hierarchical"),
        (("dgx-a100 x 2", 2), "doubling", "", of_64k, "doubling"),
    ] {
        let said = run(machine, name, more, line);
        assert!(said.contains(&format!("algorithm=\"{taken}\"")), "{machine:?}, {name}: {said}");
        assert!(!said.contains("no such plan"), "{machine:?}, {name}: {said}");
    }
}

/// If this fails, a name that fits no call is an error, a hang, or goes unnoticed.
#[test]
fn where_there_is_no_such_plan_a_warning_says_what_is_taken() {
    if on_real_hardware() {
        return;
    }
    let line = "all-reduce -g 3 -b 64K -e 1M -f 16 -n 2 -w 1";
    let said = run(("pcie4", 1), "halving", "", line);
    let warnings = said.lines().filter(|line| line.contains("ranks have no such plan"));
    let warnings: Vec<_> = warnings.collect();
    assert_eq!(warnings.len(), 1, "once for each kind of call: {said}");
    assert!(warnings[0].contains("asked=halving") && warnings[0].contains("taken="), "{said}");
    let said = run(("pcie4", 1), "ring", "RINGDOVE_REPRODUCIBLE=true", line);
    assert!(said.contains("ranks have no such plan"), "{said}");
}

/// If this fails, a name that was misspelt is another algorithm, or the error does not help.
#[test]
fn other_names_are_refused_with_those_that_there_are() {
    if on_real_hardware() {
        return;
    }
    let mut command = on_virtual("pcie4", tool("ringdove"));
    command.args(["perf", "all-reduce", "-g", "2", "-b", "8K", "-e", "8K"]);
    command.env("RINGDOVE_ALGORITHM", "rings");
    let (status, output) = run_bounded(command);
    assert!(!status.success() && output.contains("RINGDOVE_ALGORITHM"), "{output}");
    for kind in AlgorithmKind::ALL {
        assert!(output.contains(&kind.to_string()), "{kind}: {output}");
    }
}

/// If this fails, `ringdove plan` tells of another plan than the one that runs.
#[test]
fn what_is_explained_is_what_the_name_asks_for() {
    if on_real_hardware() {
        return;
    }
    let explain = |name: &str, bytes: &str| {
        let mut command = on_virtual("pcie4", tool("ringdove"));
        command.args(["plan", "all-reduce", "--machine", "here", "-b", bytes]);
        command.env("RINGDOVE_ALGORITHM", name);
        let (status, output) = run_bounded(command);
        assert!(status.success(), "{output}");
        output
    };
    let text = explain("halving", "1M");
    assert!(text.contains("among 4 ranks: halving"), "{text}");
    assert!(text.contains("RINGDOVE_ALGORITHM=halving asks for it"), "{text}");
    let text = explain("bruck", "1M");
    assert!(text.contains("no candidate is of the kind"), "{text}");
}
