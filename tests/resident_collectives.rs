//! Collectives of resident programs other than all-reduce, beside the host's values; and programs
//! that are for another number of ranks.

mod hardware;

use hardware::engines::on_engines;
use hardware::{World, on_machine, on_machine_with, settings, try_join_with};
use ringdove::program::{
    Driven, Element, Expression, Graph, Options, Origin, Program, ProgramError, RefusalKind,
    Resident, TileSize, View, verify, verify_same,
};
use ringdove::{Communicator, Error, ReduceOp};

const RANKS: u32 = 4;
const ROWS: u32 = 3;
const COLUMNS: u32 = 7;
const ITERATIONS: u64 = 5;

/// Each iteration makes new values of `seed`, and gives them to all collectives.
fn graph(element: Element) -> Graph {
    let mut graph = Graph::new(TileSize { rows: 4, columns: 16 });
    let mut tensor = |name: &str, rows, origin| -> View {
        graph.tensor_of(element, name, (rows, COLUMNS), origin).unwrap()
    };
    let all = RANKS * ROWS;
    let seed = tensor("seed", all, Origin::Host);
    let own = tensor("own", ROWS, Origin::Tasks);
    let gathered = tensor("gathered", all, Origin::Tasks);
    let reduced = tensor("reduced", ROWS, Origin::Tasks);
    let exchanged = tensor("exchanged", all, Origin::Tasks);
    let told = tensor("told", ROWS, Origin::Tasks);
    let end = tensor("end", all, Origin::Tasks);
    let next = Expression::new().load(0).constant(1.0).add().store(0);
    graph.elementwise("next", &[seed], next).unwrap();
    let copy = Expression::new().load(1).store(0);
    graph.elementwise("own", &[own, seed.rows(ROWS..2 * ROWS)], copy.clone()).unwrap();
    graph.all_gather("gather", gathered, own).unwrap();
    graph.reduce_scatter("scatter sums", reduced, seed, ReduceOp::Sum).unwrap();
    graph.all_to_all("exchange", exchanged, seed).unwrap();
    graph.elementwise("told", &[told, reduced], copy).unwrap();
    graph.broadcast("tell", told, 2).unwrap();
    // Something that needs all of them.
    let sum = Expression::new().load(1).load(2).add().store(0);
    graph.elementwise("end", &[end, gathered, exchanged], sum).unwrap();
    graph
}

/// Small whole numbers, which all types have.
fn seed(rank: u32, row: u32, column: u32) -> f32 {
    (rank * 5 + row * 3 + column) as f32
}

fn seeds(rank: u32) -> Vec<f32> {
    let rows = (0..RANKS * ROWS).flat_map(|row| (0..COLUMNS).map(move |column| (row, column)));
    rows.map(|(row, column)| seed(rank, row, column)).collect()
}

const OUTPUTS: [&str; 5] = ["gathered", "reduced", "exchanged", "told", "end"];

fn run(communicators: &[Communicator], element: Element, driven: Driven) -> Vec<Vec<Vec<f32>>> {
    let program = verify_same(graph(element).plan(3, 64).unwrap()).unwrap();
    assert_eq!(program.rank_count(), Some(RANKS));
    let prepare = |communicator| {
        let communicator: &Communicator = communicator;
        let stream = communicator.context().new_stream().unwrap();
        let options = Options { driven, ..Options::default() };
        let one = Resident::prepare(communicator, &program, options, &stream).unwrap();
        one.write("seed", &seeds(communicator.rank())).unwrap();
        one
    };
    let mut all: Vec<_> = communicators.iter().map(prepare).collect();
    all.iter_mut().for_each(|one| one.start().unwrap());
    all.iter_mut().for_each(|one| one.run(ITERATIONS).unwrap());
    let end = |one: &mut Resident<'_>| {
        one.stop().unwrap();
        OUTPUTS.iter().map(|name| one.read(name).unwrap()).collect()
    };
    all.iter_mut().map(end).collect()
}

/// What a rank has in the end.
fn expected(rank: u32) -> Vec<Vec<f32>> {
    let now = |rank, row, column| seed(rank, row, column) + ITERATIONS as f32;
    let rows = |rows: u32, value: &dyn Fn(u32, u32) -> f32| -> Vec<f32> {
        (0..rows).flat_map(|row| (0..COLUMNS).map(move |column| value(row, column))).collect()
    };
    let gathered = |row: u32, column| now(row / ROWS, ROWS + row % ROWS, column);
    let exchanged = |row: u32, column| now(row / ROWS, rank * ROWS + row % ROWS, column);
    let reduced = |of: u32, row: u32, column: u32| -> f32 {
        (0..RANKS).map(|other| now(other, of * ROWS + row, column)).sum()
    };
    let all = RANKS * ROWS;
    vec![
        rows(all, &gathered),
        rows(ROWS, &|row, column| reduced(rank, row, column)),
        rows(all, &exchanged),
        rows(ROWS, &|row, column| reduced(2, row, column)),
        rows(all, &|row, column| gathered(row, column) + exchanged(row, column)),
    ]
}

fn gives_what_the_host_says(communicators: &[Communicator]) {
    for element in [Element::F32, Element::F16, Element::BF16] {
        for driven in [Driven::Resident, Driven::Launches] {
            for (seen, one) in run(communicators, element, driven).iter().zip(communicators) {
                let expected = expected(one.rank());
                for ((name, seen), expected) in OUTPUTS.iter().zip(seen).zip(&expected) {
                    let what = format!("{name} of rank {}, {element:?}, {driven:?}", one.rank());
                    assert_eq!(seen, expected, "{what}");
                }
            }
        }
    }
}

/// If this fails, a collective of a program takes other rows than it says, or gives them too early
/// or too late: each iteration has other values.
#[test]
fn collectives_give_what_the_host_says() {
    on_engines("pcie4", || {
        let world = World::with(RANKS as usize, &settings());
        gives_what_the_host_says(&world.communicators);
        world.finish();
    });
}

/// As above, between nodes.
#[test]
fn collectives_give_what_the_host_says_on_two_nodes() {
    on_machine_with("pcie4 x 2", &["--procs", "2"], || {
        gives_what_the_host_says(&try_join_with(2, settings()).unwrap());
    });
}

/// If this fails, numbers do not go through collectives as they are.
#[test]
fn numbers_are_gathered() {
    on_machine("pcie4", || {
        let world = World::with(2, &settings());
        let mut graph = Graph::new(TileSize::default());
        let own = graph.numbers("own", 3).unwrap();
        let all = graph.numbers("all", 6).unwrap();
        graph.all_gather("gather", all, own).unwrap();
        let program = verify_same(graph.plan(1, 32).unwrap()).unwrap();
        let mut residents: Vec<_> = world
            .ranks()
            .map(|(one, stream)| Resident::prepare(one, &program, Options::default(), stream))
            .collect::<Result<_, _>>()
            .unwrap();
        let number = |rank: u32, row: u32| 0x7f80_0001 + rank * 100 + row;
        for (one, rank) in residents.iter_mut().zip(0..) {
            one.write_numbers("own", &[0, 1, 2].map(|row| number(rank, row))).unwrap();
        }
        residents.iter_mut().for_each(|one| one.start().unwrap());
        residents.iter_mut().for_each(|one| one.run(1).unwrap());
        for one in &mut residents {
            one.stop().unwrap();
            let expected: Vec<u32> = (0..6).map(|row| number(row / 3, row % 3)).collect();
            assert_eq!(one.read_numbers("all").unwrap(), expected);
        }
    });
}

/// If this fails, a program for another number of ranks reaches its communicator, or is refused
/// without the name of its task.
#[test]
fn programs_for_other_numbers_of_ranks_are_refused() {
    let program = graph(Element::F32).plan(2, 32).unwrap();
    verify(vec![program.clone(); RANKS as usize]).unwrap();
    match verify(vec![program.clone(); 3]) {
        Err(ProgramError::Refused(refusal)) => {
            assert_eq!(refusal.kind, RefusalKind::RankCount);
            assert!(refusal.to_string().contains("'gather'"), "{refusal}");
        }
        other => panic!("{other:?}"),
    }
    // A root beyond the ranks that another collective says.
    let mut far = graph(Element::F32);
    let told = far.view("told").unwrap();
    far.broadcast("tell of 4", told, RANKS).unwrap();
    match verify_same(far.plan(2, 32).unwrap()) {
        Err(ProgramError::Refused(refusal)) => {
            assert_eq!(refusal.kind, RefusalKind::RankCount);
            assert!(refusal.to_string().contains("'tell of 4'"), "{refusal}");
        }
        other => panic!("{other:?}"),
    }
    on_machine("pcie4", || {
        let world = World::with(2, &settings());
        let (communicator, stream) = world.ranks().next().unwrap();
        let refused = |graph: Graph, word: &str| {
            let program = verify_same(graph.plan(1, 32).unwrap()).unwrap();
            let options = Options::default();
            let error = Resident::prepare(communicator, &program, options, stream).unwrap_err();
            assert!(matches!(error, Error::Argument { .. }), "{error}");
            assert!(error.to_string().contains(word), "{error}");
        };
        refused(graph(Element::F32), "4 ranks");
        let three = |make: &dyn Fn(&mut Graph, [View; 2])| {
            let mut graph = Graph::new(TileSize::default());
            let views = ["a", "b"].map(|name| graph.tensor(name, 3, 2, Origin::Host).unwrap());
            make(&mut graph, views);
            graph
        };
        refused(three(&|graph, [a, b]| graph.all_to_all("exchange", a, b).unwrap()), "'exchange'");
        refused(three(&|graph, [a, _]| graph.broadcast("tell", a, 2).unwrap()), "'tell'");
    });
}

/// If this fails, collectives over rows that do not belong together are planned; or ranks make
/// different ones, each waiting for the other.
#[test]
fn collectives_that_make_no_sense_are_refused_by_name() {
    let mut graph = Graph::new(TileSize::default());
    let a = graph.tensor("a", 12, 4, Origin::Host).unwrap();
    let b = graph.tensor("b", 4, 4, Origin::Host).unwrap();
    let thin = graph.tensor("thin", 4, 2, Origin::Host).unwrap();
    graph.all_gather("of three", a, b).unwrap();
    let refused = [
        graph.all_gather("of two", a.rows(0..8), b),
        graph.reduce_scatter("no part", b, a.rows(0..7), ReduceOp::Sum),
        graph.all_gather("thinner", a, thin),
        graph.all_gather("itself", a, a.rows(4..8)),
        graph.all_to_all("shapes", a, b),
        graph.broadcast("columns", a.columns(1..3), 0),
        graph.reduce_scatter("across", b.transpose(), a.transpose(), ReduceOp::Sum),
    ];
    let names = ["of two", "no part", "thinner", "itself", "shapes", "columns", "across"];
    for (result, name) in refused.into_iter().zip(names) {
        let text = result.unwrap_err().to_string();
        assert!(text.contains(&format!("'{name}'")), "{text}");
    }
    let program = small_program();
    let mut other = program.clone();
    let last = other.operators.iter().rposition(|one| one.collective.is_some()).unwrap();
    other.operators[last].collective = Some(ringdove::Collective::Broadcast { root: 1 });
    let refused = |programs: Vec<Program>| match verify(programs) {
        Err(ProgramError::Refused(refusal)) => refusal.kind,
        other => panic!("{other:?}"),
    };
    let programs = vec![program.clone(), program.clone(), other.clone(), program.clone()];
    assert_eq!(refused(programs), RefusalKind::Ranks);
    // Known to be one, and not which.
    other.operators[last].collective = None;
    assert_eq!(refused(vec![other.clone(); 4]), RefusalKind::Service);
    // A task that computes, with the operator of a collective.
    let mut other = program.clone();
    let own = other.operators.iter().position(|one| one.name == "own").unwrap();
    other.operators[own].collective = Some(ringdove::Collective::AllToAll);
    assert_eq!(refused(vec![other; 4]), RefusalKind::Service);
    // A wait of the planner's that is dropped, where waits alone order tasks.
    let mut program = program;
    program.blocks = program.blocks.concat().into_iter().map(|task| vec![task]).collect();
    verify(vec![program.clone(); 4]).unwrap();
    let gather = program.operators.iter().position(|one| one.name == "gather").unwrap();
    for place in 0..program.tasks[program.operators[gather].tasks.0 as usize].waits.len() {
        let mut other = program.clone();
        other.tasks[program.operators[gather].tasks.0 as usize].waits.remove(place);
        let kind = refused(vec![other; 4]);
        let expected =
            [RefusalKind::Unordered, RefusalKind::UnorderedIterations, RefusalKind::Lanes];
        assert!(expected.contains(&kind), "wait {place}: {kind:?}");
    }
}

fn small_program() -> Program {
    graph(Element::F16).plan(2, 32).unwrap()
}
