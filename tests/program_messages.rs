//! Put, signal and wait in programs, before they run: what the verifier accepts and refuses across
//! ranks and iterations. No GPU takes part.

use ringdove::program::{
    Element, Expression, Graph, Origin, Program, ProgramError, RefusalKind, TileSize, View, verify,
    verify_same,
};
use std::collections::BTreeMap;

const ROWS: u32 = 6;
const COLUMNS: u32 = 4;

/// What may be left out of, or moved in, the graph of a rank.
#[derive(Clone, Copy, PartialEq)]
enum Change {
    None,
    /// The neighbour is not told when it may put.
    NoSignal,
    /// What was put is used before its message has come.
    UsedTooEarly,
    /// All ranks wait for what was put before they put.
    WaitsFirst,
    /// The rows that are waited for are not those that are put.
    OtherRows,
}

/// Ranks in a ring. Each iteration a rank puts what it has made of its state into its neighbour's
/// inbox, and takes over what lies in its own.
fn ring(rank: u32, ranks: u32, change: Change) -> Result<Graph, ProgramError> {
    let mut graph = Graph::new(TileSize { rows: 2, columns: 8 });
    let mut tensor = |name: &str, origin| -> Result<View, ProgramError> {
        graph.tensor_of(Element::F32, name, (ROWS, COLUMNS), origin)
    };
    let state = tensor("state", Origin::Host)?;
    let out = tensor("out", Origin::Tasks)?;
    let inbox = tensor("inbox", Origin::Tasks)?;
    let (right, left) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    let to = graph.remote(inbox, right)?;
    if change != Change::NoSignal {
        graph.signal("open the inbox", left, Some(inbox))?;
        graph.wait("may put", right, Some(to))?;
    }
    let next = Expression::new().load(1).constant(1.0).add().store(0);
    graph.elementwise("make", &[out, state], next)?;
    let awaited = match change {
        Change::OtherRows => inbox.rows(0..ROWS - 1),
        _ => inbox,
    };
    if change == Change::WaitsFirst {
        graph.wait("has come", left, Some(awaited))?;
        graph.put("give", to, out)?;
    } else {
        graph.put("give", to, out)?;
        if change != Change::UsedTooEarly {
            graph.wait("has come", left, Some(awaited))?;
        }
    }
    graph.elementwise("take", &[state, inbox], Expression::new().load(1).store(0))?;
    if change == Change::UsedTooEarly {
        graph.wait("has come", left, Some(awaited))?;
    }
    Ok(graph)
}

fn planned(ranks: u32, blocks: u32, change: Change) -> Vec<Program> {
    let plan = |rank| ring(rank, ranks, change).unwrap().plan(blocks, 32).unwrap();
    (0..ranks).map(plan).collect()
}

fn refusal(what: &str, programs: Vec<Program>) -> (RefusalKind, String) {
    match verify(programs) {
        Err(ProgramError::Refused(refusal)) => (refusal.kind, refusal.to_string()),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("accepted: {what}"),
    }
}

/// If this fails, the planner makes programs that the verifier refuses.
#[test]
fn what_is_planned_is_accepted() {
    for ranks in 1..6 {
        for blocks in [1, 2, 5] {
            let programs = planned(ranks, blocks, Change::None);
            let verified = verify(programs).unwrap_or_else(|error| panic!("{ranks}: {error}"));
            assert!(verified.iter().all(|one| one.rank_count() == Some(ranks)));
        }
    }
}

/// If this fails, a rank's memory is written while it is read there, or read before it is written;
/// or ranks wait for one another for ever.
#[test]
fn what_races_across_ranks_is_refused() {
    let cases = [
        (Change::NoSignal, RefusalKind::Put, "'give'"),
        (Change::UsedTooEarly, RefusalKind::Unwritten, "'take'"),
        (Change::WaitsFirst, RefusalKind::Deadlock, "'give'"),
        (Change::OtherRows, RefusalKind::Message, "'give'"),
    ];
    for (change, expected, name) in cases {
        let (kind, text) = refusal("a race", planned(3, 1, change));
        assert_eq!(kind, expected, "{text}");
        assert!(text.contains(name), "{text}");
        // One rank that differs from the others.
        let mut programs = planned(3, 1, Change::None);
        programs[1] = planned(3, 1, change).swap_remove(1);
        // Of a ring, one rank may well wait before it puts.
        if change != Change::WaitsFirst {
            let (kind, text) = refusal("one rank's race", programs);
            assert!(kind == expected || kind == RefusalKind::Message, "{text}");
        }
    }
    // As data that the host has written first, an inbox may be read before the first put: then it
    // is the race itself that is found.
    let mut programs = planned(3, 1, Change::UsedTooEarly);
    programs.iter_mut().for_each(|one| one.tensors[2].origin = Origin::Host);
    let (kind, text) = refusal("a race", programs);
    assert_eq!(kind, RefusalKind::Put, "{text}");
    assert!(text.contains("of rank"), "{text}");
}

/// Ring programs, each task on a block of its own, so that waits alone order them.
fn spread() -> Vec<Program> {
    let mut programs = planned(3, 1, Change::None);
    for program in &mut programs {
        program.blocks = program.blocks.concat().into_iter().map(|task| vec![task]).collect();
    }
    verify(programs.clone()).unwrap();
    programs
}

/// If this fails, a program with a wait too few runs. Where the verifier accepts one, messages say
/// what the wait said: they are named here.
#[test]
fn a_wait_that_is_dropped_is_missed() {
    let programs = spread();
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for operator in 0..programs[0].operators.len() as u32 {
        let (first, _) = programs[0].operators[operator as usize].tasks;
        for wait in programs[0].tasks[first as usize].waits.clone() {
            let mut mutants = programs.clone();
            for task in mutants.iter_mut().flat_map(|one| &mut one.tasks) {
                if task.operator == operator {
                    task.waits.retain(|own| own != &wait);
                }
            }
            let name = |number: u32| programs[0].operators[number as usize].name.clone();
            let what = format!("'{}' for '{}', {}", name(operator), name(wait.counter), wait.lag);
            let said = match verify(mutants) {
                Ok(_) => "accepted".to_owned(),
                Err(error) => error.to_string(),
            };
            found.insert(what, said);
        }
    }
    for (what, said) in &found {
        println!("{what}: {said}");
    }
    let accepted: Vec<&str> = found
        .iter()
        .filter_map(|(what, said)| (said == "accepted").then_some(what.as_str()))
        .collect();
    // The neighbour puts when it has been told that it may, and is told when the rank has taken
    // what it put before.
    let implied = ["'has come' for 'open the inbox', 0", "'may put' for 'give', 1"];
    assert_eq!((accepted, found.len()), (implied.to_vec(), 9));
}

type Mutation = fn(&mut [Program]);

/// If this fails, tasks of two ranks that mean different messages run.
#[test]
fn messages_that_do_not_belong_together_are_refused() {
    fn task<'p>(program: &'p mut Program, name: &str) -> &'p mut ringdove::program::Task {
        let operator = program.operators.iter().position(|one| one.name == name).unwrap();
        &mut program.tasks[program.operators[operator].tasks.0 as usize]
    }
    let cases: [(RefusalKind, Mutation); 8] = [
        // No rank 7.
        (RefusalKind::Peer, |programs| task(&mut programs[0], "open the inbox").option = 7),
        // To the wrong neighbour: one has a message too many.
        (RefusalKind::Message, |programs| task(&mut programs[0], "open the inbox").option = 1),
        // Into the memory of another rank than it tells.
        (RefusalKind::Message, |programs| task(&mut programs[0], "give").option = 2),
        // From and into rows that are not whole.
        (RefusalKind::Message, |programs| {
            let give = task(&mut programs[0], "give");
            for view in give.operands.iter_mut().flatten() {
                view.area.columns = (0, COLUMNS - 1);
            }
        }),
        // From rows that are fewer.
        (RefusalKind::Message, |programs| {
            let give = task(&mut programs[0], "give");
            give.operands[1].as_mut().unwrap().area.rows = (0, ROWS - 1);
        }),
        // Into another place of the peer's memory than the tensor has.
        (RefusalKind::Message, |programs| {
            let last = programs[0].memory.offsets.len() - 1;
            programs[0].memory.offsets[last] += 256;
        }),
        // A task that computes reads another rank's memory.
        (RefusalKind::Message, |programs| {
            let remote = task(&mut programs[0], "give").operands[0];
            task(&mut programs[0], "make").operands[1] = remote;
        }),
        // Where another tensor lies.
        (RefusalKind::Shared, |programs| {
            for program in programs {
                // `out` moves into the inbox, whose place the remote one has too.
                program.memory.offsets[1] = program.memory.offsets[2];
            }
        }),
    ];
    for (number, (expected, change)) in cases.into_iter().enumerate() {
        let mut mutants = planned(3, 1, Change::None);
        change(&mut mutants);
        let (kind, text) = refusal("a mutant", mutants);
        let memory = [RefusalKind::Unordered, RefusalKind::UnorderedIterations];
        let is_memory = expected == RefusalKind::Shared && memory.contains(&kind);
        assert!(kind == expected || is_memory, "number {number}: {text}");
    }
    match verify_same(planned(2, 1, Change::None).swap_remove(0)) {
        Err(ProgramError::Refused(refusal)) => assert_eq!(refusal.kind, RefusalKind::Peer),
        other => panic!("{other:?}"),
    }
}

/// If this fails, messages that make no sense are planned.
#[test]
fn messages_that_make_no_sense_are_refused_by_name() {
    let mut graph = Graph::new(TileSize::default());
    let own = graph.tensor("own", 4, 4, Origin::Host).unwrap();
    let half = graph.tensor_of(Element::F16, "half", (4, 4), Origin::Host).unwrap();
    let one = graph.remote(own, 1).unwrap();
    assert_eq!(graph.remote(own, 1).unwrap(), one, "named once");
    let nothing = Expression::new;
    let refused = [
        graph.put("to none", own, own),
        graph.put("from another", one, one),
        graph.put("of another type", one, half),
        graph.put("of columns", one.columns(0..2), own.columns(0..2)),
        graph.put("of fewer", one, own.rows(0..2)),
        graph.signal("opens another's", 1, Some(one)),
        graph.wait("for a third", 2, Some(one)),
        graph.elementwise("computes", &[one, own], nothing().load(1).store(0)),
        graph.elementwise("reads", &[own, one], nothing().load(1).store(0)),
    ];
    let names = [
        "to none",
        "from another",
        "of another type",
        "of columns",
        "of fewer",
        "opens another's",
        "for a third",
        "computes",
        "reads",
    ];
    for (result, name) in refused.into_iter().zip(names) {
        let text = result.unwrap_err().to_string();
        assert!(text.contains(&format!("'{name}'")), "{text}");
    }
    assert!(graph.remote(one, 2).is_err(), "another's of another");
    assert!(graph.remote(own.transpose(), 2).is_err());
    // Memory that is put into is used by no other tensor, even where it might be.
    let mut graph = ring(0, 2, Change::None).unwrap();
    graph.reuse_memory(&[]).unwrap();
    let mut other = ring(1, 2, Change::None).unwrap();
    other.reuse_memory(&[]).unwrap();
    let programs = [graph, other].map(|graph| graph.plan(2, 32).unwrap());
    verify(programs.to_vec()).unwrap();
}
