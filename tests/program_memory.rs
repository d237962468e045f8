//! Tensors that share the bytes of a program's memory: planner, verifier, and the same results on
//! virtual GPUs.

mod hardware;

use hardware::{World, on_machine, settings};
use ringdove::ReduceOp;
use ringdove::program::network::{PARAMETERS, RATE, Transformer};
use ringdove::program::{
    Driven, Expression, Graph, Memory, Options, Origin, Program, ProgramError, RefusalKind,
    Resident, TileSize, explain, verify_same,
};
use std::collections::HashSet;

const SIZES: Transformer = Transformer { tokens: 12, model: 16, heads: 2, hidden: 24, ranks: 2 };

fn planned(tile: TileSize, blocks: u32) -> Program {
    let mut graph = SIZES.step(tile).unwrap();
    graph.reuse_memory(&["total loss"]).unwrap();
    graph.plan(blocks, 64).unwrap()
}

fn refusal(what: &str, program: Program) -> RefusalKind {
    match verify_same(program) {
        Err(ProgramError::Refused(refusal)) => refusal.kind,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("accepted: {what}"),
    }
}

/// If this fails, the planner shares bytes that it must not, or none at all; or the verifier
/// refuses what is right.
#[test]
fn memory_is_used_again_and_what_is_planned_is_accepted() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..20 {
        let tile = TileSize { rows: random.u32(1..14), columns: random.u32(1..20) };
        let blocks = random.u32(1..20);
        let program = planned(tile, blocks);
        let apart = Memory::apart(&program.tensors).bytes;
        assert!(program.memory.bytes < apart, "{} of {apart}", program.memory.bytes);
        let text = explain(&program);
        let line = format!("{} bytes of tensors; {apart} where each", program.memory.bytes);
        assert!(text.contains(&line), "{text}");
        verify_same(program).unwrap_or_else(|error| panic!("{tile:?} {blocks}: {error}"));
    }
}

/// Each tile on a block of its own, so that waits alone order them.
fn spread(graph: Graph) -> Program {
    let mut program = graph.plan(1, 64).unwrap();
    program.blocks = program.blocks.concat().into_iter().map(|task| vec![task]).collect();
    verify_same(program.clone()).unwrap();
    program
}

fn transformer() -> Graph {
    let mut graph = SIZES.step(TileSize { rows: 8, columns: 16 }).unwrap();
    graph.reuse_memory(&["total loss"]).unwrap();
    graph
}

/// Copies by way of tensors that nothing orders but the bytes that they share.
fn branches() -> Graph {
    let mut graph = Graph::new(TileSize { rows: 8, columns: 16 });
    let from = graph.tensor("from", 12, 20, Origin::Host).unwrap();
    let copy = Expression::new().load(1).store(0);
    for number in 0..5 {
        let mut tensor =
            |what: &str, origin| graph.tensor(&format!("{what} {number}"), 12, 20, origin).unwrap();
        let (way, to) = (tensor("way", Origin::Tasks), tensor("to", Origin::Host));
        graph.elementwise(&format!("first {number}"), &[way, from], copy.clone()).unwrap();
        graph.elementwise(&format!("second {number}"), &[to, way], copy.clone()).unwrap();
    }
    graph
}

fn waits(program: &Program) -> usize {
    let first = program.operators.iter().map(|one| one.tasks.0 as usize);
    first.map(|task| program.tasks[task].waits.len()).sum()
}

/// If this fails, a task writes over data that is still read, now and then, because a wait for the
/// bytes is missing; or tasks wait for bytes in vain.
#[test]
fn a_wait_for_bytes_that_is_dropped_is_missed() {
    let mut shared = branches();
    shared.reuse_memory(&[]).unwrap();
    let branches = spread(branches());
    let shared = spread(shared);
    assert_eq!(shared.memory.bytes + 4 * 1024, branches.memory.bytes, "five ways in one place");
    // Each second waits for its first, and each first for its second of the iteration before; and
    // now each first for the second before it, of which one has waited already.
    assert_eq!((waits(&branches), waits(&shared)), (10, 10), "{:?}", shared.tasks);
    assert!(branches.tasks != shared.tasks);
    for program in [shared, spread(transformer())] {
        for operator in 0..program.operators.len() as u32 {
            let (first, _) = program.operators[operator as usize].tasks;
            for wait in program.tasks[first as usize].waits.clone() {
                let mut mutant = program.clone();
                for task in mutant.tasks.iter_mut().filter(|task| task.operator == operator) {
                    task.waits.retain(|one| *one != wait);
                }
                let name = |number: u32| program.operators[number as usize].name.clone();
                let what = format!("'{}' without '{}'", name(operator), name(wait.counter));
                let kind = refusal(&what, mutant);
                let expected =
                    [RefusalKind::Unordered, RefusalKind::UnorderedIterations, RefusalKind::Lanes];
                assert!(expected.contains(&kind), "{what}: {kind:?}");
            }
        }
    }
}

/// If this fails, tensors are given bytes that others need: of the host, or in the same part of an
/// iteration; or bytes beyond the memory.
#[test]
fn bytes_that_are_shared_too_early_are_refused() {
    let program = spread(transformer());
    let number =
        |name: &str| program.tensors.iter().position(|tensor| tensor.name == name).unwrap();
    let at = |one: &str, other: &str| {
        let mut mutant = program.clone();
        mutant.memory.offsets[number(one)] = mutant.memory.offsets[number(other)];
        refusal(&format!("{one} in {other}"), mutant)
    };
    // Which of the tensors that have those bytes is found first is not said.
    let early = [RefusalKind::Shared, RefusalKind::Unordered, RefusalKind::UnorderedIterations];
    assert!(early.contains(&at("attended", "first normal")));
    assert!(early.contains(&at("d hidden", "hidden")));
    assert_eq!(at("hidden", "input"), RefusalKind::Shared);
    assert_eq!(at("mask", "up"), RefusalKind::Shared);
    // Of two that are apart in an iteration, which nothing orders but what they compute.
    let mut kinds = HashSet::new();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let fits: Vec<usize> = (0..program.tensors.len())
        .filter(|&one| program.tensors[one].origin == Origin::Tasks)
        .collect();
    let mut accepted = 0;
    for _ in 0..200 {
        let (one, other) = (fits[random.usize(..fits.len())], fits[random.usize(..fits.len())]);
        let mut mutant = program.clone();
        mutant.memory.offsets[one] = mutant.memory.offsets[other];
        match verify_same(mutant) {
            Err(ProgramError::Refused(refusal)) => {
                kinds.insert(refusal.kind);
            }
            Err(other) => panic!("{other}"),
            Ok(_) => accepted += 1,
        }
    }
    println!("{accepted} of 200 were right by chance; refused as {kinds:?}");
    assert!(accepted < 100, "{accepted}");
    for change in [
        |memory: &mut Memory| memory.bytes -= 1,
        |memory: &mut Memory| memory.offsets[3] += 8,
        |memory: &mut Memory| memory.offsets[3] = u64::MAX - 255,
        |memory: &mut Memory| memory.offsets.truncate(3),
    ] {
        let mut mutant = program.clone();
        // The last place is that of some tensor.
        mutant.memory.bytes = (0..mutant.tensors.len())
            .map(|one| mutant.memory.offsets[one] + mutant.tensors[one].bytes())
            .max()
            .unwrap();
        change(&mut mutant.memory);
        assert_eq!(refusal("a place outside", mutant), RefusalKind::Memory);
    }
}

/// If this fails, the order of two tensors in the same bytes is not kept across iterations.
#[test]
fn the_next_iteration_waits_for_bytes() {
    let mut graph = Graph::new(TileSize::default());
    let host = graph.tensor("host", 4, 4, Origin::Host).unwrap();
    let end = graph.tensor("end", 4, 4, Origin::Host).unwrap();
    let first = graph.tensor("first", 4, 4, Origin::Tasks).unwrap();
    let second = graph.tensor("second", 4, 4, Origin::Tasks).unwrap();
    let copy = Expression::new().load(1).store(0);
    for (name, to, from) in [
        ("one", first, host),
        ("two", end.rows(0..4), first),
        ("three", second, host),
        ("four", end, second),
    ] {
        graph.elementwise(name, &[to, from], copy.clone()).unwrap();
    }
    graph.reuse_memory(&[]).unwrap();
    let mut program = graph.plan(4, 32).unwrap();
    assert_eq!(program.memory.offsets[2], program.memory.offsets[3]);
    program.blocks = program.blocks.concat().into_iter().map(|task| vec![task]).collect();
    verify_same(program.clone()).unwrap();
    let mut late = program.clone();
    late.tasks[0].waits.retain(|wait| wait.lag == 0);
    assert_eq!(refusal("one", late), RefusalKind::UnorderedIterations);
    let mut early = program;
    early.tasks[2].waits.retain(|wait| wait.lag == 1);
    assert_eq!(refusal("three", early), RefusalKind::Unordered);
}

fn train(world: &World, driven: Driven, reuses: bool) -> Vec<Vec<u32>> {
    let mut graph = SIZES.step(TileSize { rows: 8, columns: 16 }).unwrap();
    if reuses {
        graph.reuse_memory(&["gradients of up"]).unwrap();
    }
    let program = verify_same(graph.plan(3, 64).unwrap()).unwrap();
    let options = Options { driven, ..Options::default() };
    let prepare = |(communicator, stream)| {
        let mut one = Resident::prepare(communicator, &program, options, stream).unwrap();
        let draw = |count: u32, seed: u64, around: f32| -> Vec<f32> {
            let mut random = fastrand::Rng::with_seed(seed);
            (0..count).map(|_| around + (random.f32() - 0.5) * 0.8).collect()
        };
        let Transformer { tokens, model, .. } = SIZES;
        for (name, number) in [("input", 0), ("target", 1)] {
            let seed = 10 * u64::from(communicator.rank()) + number;
            one.write(name, &draw(tokens * model, seed, 0.0)).unwrap();
        }
        one.write("mask", &vec![0.0; (tokens * tokens) as usize]).unwrap();
        for (name, seed) in PARAMETERS.iter().zip(100..) {
            let (rows, columns) = SIZES.shape(name).unwrap();
            let around = if name.ends_with("factors") { 1.0 } else { 0.0 };
            one.write(name, &draw(rows * columns, seed, around)).unwrap();
        }
        one.set_parameter(RATE, 0.05).unwrap();
        one
    };
    let mut all: Vec<_> = world.ranks().map(prepare).collect();
    all.iter_mut().for_each(|one| one.start().unwrap());
    for _ in 0..4 {
        all.iter_mut().for_each(|one| one.run(2).unwrap());
        all.iter_mut().for_each(|one| one.wait().unwrap());
    }
    let end = |one: &mut Resident<'_>| {
        one.stop().unwrap();
        let mut values = one.take().concat();
        for name in PARAMETERS.iter().copied().chain(["gradients of up"]) {
            values.extend(one.read(name).unwrap());
        }
        let refused = one.read("attended").is_err();
        assert_eq!(refused, reuses, "bytes of another tensor are read as this one's");
        values.into_iter().map(f32::to_bits).collect()
    };
    all.iter_mut().map(end).collect()
}

/// If this fails, a tensor is overwritten while it is used; or the host is given another one's
/// bytes.
#[test]
fn programs_that_use_memory_again_have_the_same_bits() {
    on_machine("pcie4", || {
        let world = World::with(SIZES.ranks as usize, &settings());
        let apart = train(&world, Driven::Resident, false);
        for driven in [Driven::Resident, Driven::Launches] {
            let shared = train(&world, driven, true);
            assert!(shared == apart, "{driven:?}: memory that is used again changes results");
        }
        world.finish();
    });
}

/// If this fails, large programs with shared memory take too long to plan or to verify.
#[test]
fn large_programs_share_memory_in_seconds() {
    let (layers, width) = (20, 16 * 24);
    let mut graph = Graph::new(TileSize { rows: 16, columns: 16 });
    let square = |graph: &mut Graph, name: String, origin| {
        graph.tensor(&name, width, width, origin).unwrap()
    };
    let mut values = square(&mut graph, "input".into(), Origin::Host);
    for layer in 0..layers {
        let weights = square(&mut graph, format!("weights {layer}"), Origin::Host);
        let gradients = square(&mut graph, format!("gradients {layer}"), Origin::Tasks);
        let next = square(&mut graph, format!("values {layer}"), Origin::Tasks);
        let none = [None, None];
        let soft = Expression::new().softsign();
        graph.matrix(&format!("forward {layer}"), next, [values, weights], none, soft).unwrap();
        let factors = [values.transpose(), next];
        let name = format!("gradients {layer}");
        graph.matrix(&name, gradients, factors, none, Expression::new()).unwrap();
        graph.all_reduce(&format!("sum {layer}"), gradients, ReduceOp::Sum).unwrap();
        let operands = [weights, gradients];
        let name = format!("descend {layer}");
        graph.elementwise(&name, &operands, Expression::descend(0)).unwrap();
        values = next;
    }
    graph.reuse_memory(&[]).unwrap();
    let began = std::time::Instant::now();
    let program = graph.plan(108, 256).unwrap();
    let planned = began.elapsed();
    let (tasks, bytes) = (program.tasks.len(), program.memory.bytes);
    let apart = Memory::apart(&program.tensors).bytes;
    let began = std::time::Instant::now();
    verify_same(program).unwrap();
    let verified = began.elapsed();
    println!(
        "{tasks} tasks: planned in {planned:.2?}, verified in {verified:.2?}; {bytes} bytes of \
         tensors, {apart} apart"
    );
    assert!(tasks > 30_000 && bytes < apart * 3 / 4, "{tasks} {bytes} {apart}");
    assert!(verified.as_secs() < 10, "{verified:?}");
}
