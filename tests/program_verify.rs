//! Planner and verifier of resident programs: what they accept, what they refuse, and how long they
//! take. No GPU takes part.

use ringdove::ReduceOp;
use ringdove::program::{
    Expression, Graph, Origin, Program, ProgramError, RefusalKind, TileSize, explain, network,
    timeline, verify, verify_same,
};
use std::time::{Duration, Instant};

const WIDTHS: [u32; 4] = [5, 40, 24, 3];

fn planned(tile: TileSize, blocks: u32) -> Program {
    network::step(&WIDTHS, (64, 256), tile).unwrap().plan(blocks, 128).unwrap()
}

fn refusal(what: &str, result: Result<impl Sized, ProgramError>) -> (RefusalKind, String) {
    match result {
        Err(ProgramError::Refused(refusal)) => (refusal.kind, refusal.to_string()),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("accepted: {what}"),
    }
}

/// If this fails, the planner makes programs that the verifier refuses, or one of the two is wrong.
#[test]
fn what_is_planned_is_accepted() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..40 {
        let tile = TileSize { rows: random.u32(1..70), columns: random.u32(1..50) };
        let blocks = random.u32(1..40);
        let program = planned(tile, blocks);
        verify_same(program.clone()).unwrap_or_else(|error| panic!("{tile:?} {blocks}: {error}"));
        let ends = timeline(&program).iter().map(|slot| slot.span_ns.1).max().unwrap();
        assert!(ends > 0 && explain(&program).contains("critical path"));
    }
}

/// Each tile on a block of its own, so that waits alone order them.
fn spread() -> Program {
    let mut program = planned(TileSize { rows: 16, columns: 16 }, 1);
    program.blocks = program.blocks.concat().into_iter().map(|task| vec![task]).collect();
    verify_same(program.clone()).unwrap();
    program
}

/// Changes the waits of one operator for one counter, for all of them in turn.
fn for_each_wait(mut change: impl FnMut(&mut Program, u32, u32, u32)) -> usize {
    let program = spread();
    let mut changes = 0;
    for operator in 0..program.operators.len() as u32 {
        let (first, _) = program.operators[operator as usize].tasks;
        for wait in program.tasks[first as usize].waits.clone() {
            change(&mut program.clone(), operator, wait.counter, wait.lag);
            changes += 1;
        }
    }
    changes
}

/// If this fails, a program with a wait too few runs, and computes something else now and then. No
/// wait of the planner's is superfluous, either.
#[test]
fn a_wait_that_is_dropped_is_missed() {
    let changes = for_each_wait(|program, operator, counter, lag| {
        for task in program.tasks.iter_mut().filter(|task| task.operator == operator) {
            task.waits.retain(|wait| (wait.counter, wait.lag) != (counter, lag));
        }
        let name = |number: u32| program.operators[number as usize].name.clone();
        let what = format!("'{}' without '{}' {lag} before", name(operator), name(counter));
        let (kind, text) = refusal(&what, verify_same(program.clone()));
        let expected =
            [RefusalKind::Unordered, RefusalKind::UnorderedIterations, RefusalKind::Lanes];
        assert!(expected.contains(&kind), "{what}: {text}");
        assert_eq!(text.matches("task ").count(), 2, "{text}");
    });
    assert!(changes > 20, "{changes}");
}

/// If this fails, a target that is off by one is taken.
#[test]
fn targets_that_are_off_by_one_are_refused() {
    for_each_wait(|program, operator, counter, lag| {
        let original = program.clone();
        for up in [false, true] {
            *program = original.clone();
            for task in program.tasks.iter_mut().filter(|task| task.operator == operator) {
                for wait in &mut task.waits {
                    if (wait.counter, wait.lag) == (counter, lag) {
                        wait.count = if up { wait.count + 1 } else { wait.count - 1 };
                    }
                }
            }
            let name = |number: u32| program.operators[number as usize].name.clone();
            let what =
                format!("'{}' for '{}', {lag} before, up: {up}", name(operator), name(counter));
            let (kind, text) = refusal(&what, verify_same(program.clone()));
            assert_eq!(kind == RefusalKind::Unsatisfiable, up, "{text}");
        }
    });
}

/// If this fails, blocks wait for one another for ever, or run tasks in a wrong order.
#[test]
fn tasks_that_are_swapped_are_refused() {
    let program = planned(TileSize { rows: 32, columns: 32 }, 1);
    let steps = &program.blocks[0];
    let mut swaps = 0;
    for place in 1..steps.len() {
        let operator = |place: usize| program.tasks[steps[place] as usize].operator;
        let own = &program.tasks[steps[place] as usize];
        let needs =
            own.waits.iter().any(|wait| wait.lag == 0 && wait.counter == operator(place - 1));
        if !needs {
            continue;
        }
        let mut mutant = program.clone();
        mutant.blocks[0].swap(place - 1, place);
        let (kind, text) = refusal("a swap", verify_same(mutant));
        assert_eq!(kind, RefusalKind::Deadlock, "{text}");
        swaps += 1;
    }
    assert!(swaps > 5, "{swaps}");
}

/// If this fails, memory that is still read is written, or what was never written is read.
#[test]
fn a_buffer_that_is_shared_too_early_is_refused() {
    let program = spread();
    let number = |name: &str| {
        let found = program.tensors.iter().position(|tensor| tensor.name == name);
        ringdove::program::TensorId(found.unwrap() as u32)
    };
    let mut shared = 0;
    for (from, to) in [("deltas 0", "outputs 0"), ("deltas 1", "outputs 1")] {
        let mut mutant = program.clone();
        for view in mutant.tasks.iter_mut().flat_map(|task| task.operands.iter_mut().flatten()) {
            if view.tensor == number(from) {
                view.tensor = number(to);
            }
        }
        let what = format!("{from} in {to}");
        let (kind, text) = refusal(&what, verify_same(mutant));
        assert!(
            [RefusalKind::Unordered, RefusalKind::UnorderedIterations].contains(&kind),
            "{what}: {text}"
        );
        shared += 1;
    }
    assert_eq!(shared, 2);
    let mut mutant = program.clone();
    mutant.tensors[number("input").0 as usize].origin = Origin::Tasks;
    let (kind, text) = refusal("an input", verify_same(mutant));
    assert_eq!(kind, RefusalKind::Unwritten, "{text}");
}

type Change = fn(&mut Program);

/// If this fails, lists of blocks that make no sense reach the kernel.
#[test]
fn lists_and_counters_that_make_no_sense_are_refused() {
    let program = planned(TileSize { rows: 32, columns: 32 }, 3);
    let mutants: [(RefusalKind, Change); 7] = [
        (RefusalKind::Place, |program| {
            program.blocks[0].pop();
        }),
        (RefusalKind::Place, |program| {
            let first = program.blocks[0][0];
            program.blocks[1].push(first);
        }),
        (RefusalKind::Place, |program| program.blocks[0].push(1 << 20)),
        (RefusalKind::Service, |program| {
            let first = program.service.remove(0);
            program.blocks[0].push(first);
        }),
        (RefusalKind::NoCounter, |program| {
            program.tasks.last_mut().unwrap().waits[0].counter = 1 << 20;
        }),
        (RefusalKind::NoCounter, |program| program.tasks[0].raises = Some(1 << 20)),
        (RefusalKind::Lag, |program| program.tasks.last_mut().unwrap().waits[0].lag = 2),
    ];
    for (expected, change) in mutants {
        let mut mutant = program.clone();
        change(&mut mutant);
        let (kind, text) = refusal(&format!("{expected:?}"), verify_same(mutant));
        assert_eq!(kind, expected, "{text}");
    }
}

/// If this fails, ranks wait in different collectives, each for the other.
#[test]
fn ranks_with_other_collectives_are_refused() {
    let program = planned(TileSize { rows: 32, columns: 32 }, 3);
    verify(vec![program.clone(); 3]).unwrap();
    let mut other = program.clone();
    other.service.swap(0, 1);
    let (kind, text) = refusal("ranks", verify(vec![program.clone(), other]));
    assert_eq!(kind, RefusalKind::Ranks, "{text}");
    let mut less = program.clone();
    let last = less.operators.iter().rposition(|one| one.reduction.is_some()).unwrap();
    less.operators[last].reduction = Some(ReduceOp::Max);
    let (kind, text) = refusal("ranks", verify(vec![program, less]));
    assert_eq!(kind, RefusalKind::Ranks, "{text}");
}

/// If this fails, operators that make no sense are planned.
#[test]
fn operators_that_make_no_sense_are_refused() {
    let mut graph = Graph::new(TileSize { rows: 4, columns: 4 });
    let a = graph.tensor("a", 8, 8, Origin::Host).unwrap();
    let b = graph.tensor("b", 8, 6, Origin::Host).unwrap();
    let none = Expression::new;
    assert!(matches!(graph.tensor("a", 1, 1, Origin::Host), Err(ProgramError::Name(_))));
    assert!(matches!(
        graph.tensor("large", 1 << 20, 1 << 12, Origin::Host),
        Err(ProgramError::Count { .. })
    ));
    let refused = [
        graph.matrix("shapes", a, [b, a], [None, None], none()),
        graph.elementwise("views", &[a, a.rows(0..9)], none()),
        graph.elementwise("depth", &[a], none().load(0).add()),
        graph.elementwise("operand", &[a], none().load(1).store(0)),
        graph.elementwise("parameter", &[a], none().parameter(16).store(0)),
        graph.elementwise("full", &[a], (0..7).fold(none(), |all, _| all.load(0))),
        graph.elementwise("tiles", &[a, a.transpose()], none().load(1).store(0)),
        graph.all_reduce("columns", a.columns(0..4), ReduceOp::Sum),
        graph.gather("numbers", a, a, a.columns(0..1)),
        graph.report("too many", a.rows(0..8)).and_then(|_| graph.report("more", b)).map(drop),
    ];
    for (place, result) in refused.into_iter().enumerate() {
        assert!(result.is_err(), "number {place}");
    }
    let graph = network::step(&WIDTHS, (64, 256), TileSize::default()).unwrap();
    assert!(graph.clone().plan(0, 128).is_err());
    assert!(graph.clone().plan(4, 100).is_err());
    assert!(graph.plan(4, 1024).is_err());
}

/// Layers whose deltas go back again, without biases.
fn large(layers: u32, width: u32, tile: TileSize) -> Graph {
    let mut graph = Graph::new(tile);
    let square = |graph: &mut Graph, name: String, origin| {
        graph.tensor(&name, width, width, origin).unwrap()
    };
    let mut values = square(&mut graph, "input".into(), Origin::Host);
    for layer in 0..layers {
        let weights = square(&mut graph, format!("weights {layer}"), Origin::Host);
        let gradients = square(&mut graph, format!("gradients {layer}"), Origin::Tasks);
        let next = square(&mut graph, format!("values {layer}"), Origin::Tasks);
        let softsign = Expression::new().softsign();
        let none = [None, None];
        graph.matrix(&format!("forward {layer}"), next, [values, weights], none, softsign).unwrap();
        let factors = [values.transpose(), next];
        let name = format!("gradients {layer}");
        graph.matrix(&name, gradients, factors, none, Expression::new()).unwrap();
        graph.all_reduce(&format!("sum {layer}"), gradients, ReduceOp::Sum).unwrap();
        let operands = [weights, gradients];
        let name = format!("descend {layer}");
        graph.elementwise(&name, &operands, Expression::descend(0)).unwrap();
        values = next;
    }
    graph
}

/// If this fails, large programs are not verified because it takes too long.
#[test]
fn a_hundred_thousand_tasks_are_verified_in_seconds() {
    for (layers, side) in [(4, 9), (12, 17), (33, 32)] {
        let tile = TileSize { rows: 16, columns: 16 };
        let began = Instant::now();
        let program = large(layers, side * 16, tile).plan(108, 256).unwrap();
        let planned = began.elapsed();
        let tasks = program.tasks.len();
        let began = Instant::now();
        verify_same(program).unwrap();
        let verified = began.elapsed();
        println!("{tasks} tasks: planned in {planned:.2?}, verified in {verified:.2?}");
        assert!(layers < 33 || tasks > 100_000, "{tasks}");
        assert!(verified < Duration::from_secs(10), "{verified:?}");
    }
}
