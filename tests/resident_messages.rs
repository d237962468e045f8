//! Put, signal and wait as tasks of resident programs: between the GPUs of a node by stores, by the
//! proxy and by device engines, and between nodes.

mod hardware;

use hardware::engines::on_engines;
use hardware::{World, on_machine, on_machine_with, settings, try_join_with};
use ringdove::program::{
    Driven, Element, Expression, Graph, Options, Origin, Resident, TileSize, View, verify,
};
use ringdove::{Communicator, Error, Settings, Stores};
use std::time::Duration;

const RANKS: u32 = 4;
/// Odd, so that rows of 16-bit elements are no whole words.
const ROWS: u32 = 5;
const COLUMNS: u32 = 7;
const ITERATIONS: u64 = 6;

fn lanes(stores: Stores) -> Settings {
    Settings { user_lanes: 1, stores, ..settings() }
}

/// Ranks in a ring: `state` becomes one more than the left neighbour's, by its inbox. Another inbox
/// gets parts of two ranks: of the left neighbour and of the rank itself.
fn ring(rank: u32, element: Element) -> Graph {
    let mut graph = Graph::new(TileSize { rows: 2, columns: 8 });
    let mut tensor = |name: &str, rows, origin| -> View {
        graph.tensor_of(element, name, (rows, COLUMNS), origin).unwrap()
    };
    let state = tensor("state", ROWS, Origin::Host);
    let out = tensor("out", ROWS, Origin::Tasks);
    let inbox = tensor("inbox", ROWS, Origin::Tasks);
    let both = tensor("both", 2 * ROWS, Origin::Tasks);
    let copied = tensor("copied", 2 * ROWS, Origin::Tasks);
    let (right, left) = ((rank + 1) % RANKS, (rank + RANKS - 1) % RANKS);
    let to = graph.remote(inbox, right).unwrap();
    let [of_left, of_own] = [both.rows(0..ROWS), both.rows(ROWS..2 * ROWS)];
    let to_right = graph.remote(of_left, right).unwrap();
    let to_own = graph.remote(of_own, rank).unwrap();
    graph.signal("open the inbox", left, Some(inbox)).unwrap();
    graph.signal("open the first half", left, Some(of_left)).unwrap();
    graph.signal("open the second half", rank, Some(of_own)).unwrap();
    let next = Expression::new().load(1).constant(1.0).add().store(0);
    graph.elementwise("make", &[out, state], next).unwrap();
    graph.wait("may put", right, Some(to)).unwrap();
    graph.put("give", to, out).unwrap();
    graph.wait("may put half", right, Some(to_right)).unwrap();
    graph.put("give half", to_right, out).unwrap();
    graph.wait("may put here", rank, Some(to_own)).unwrap();
    graph.put("keep half", to_own, out).unwrap();
    graph.wait("inbox is there", left, Some(inbox)).unwrap();
    let copy = Expression::new().load(1).store(0);
    graph.elementwise("take", &[state, inbox], copy.clone()).unwrap();
    graph.wait("first half is there", left, Some(of_left)).unwrap();
    graph.wait("second half is there", rank, Some(of_own)).unwrap();
    graph.elementwise("copy both", &[copied, both], copy).unwrap();
    graph
}

fn seed(rank: u32, row: u32, column: u32) -> f32 {
    (rank * 3 + row * 2 + column) as f32
}

fn values(rows: u32, value: impl Fn(u32, u32) -> f32) -> Vec<f32> {
    let value = &value;
    (0..rows).flat_map(|row| (0..COLUMNS).map(move |column| value(row, column))).collect()
}

fn residents<'c>(
    communicators: &'c [Communicator],
    graph: impl Fn(u32) -> Graph,
    driven: Driven,
) -> Vec<Resident<'c>> {
    let ranks = communicators[0].rank_count();
    let programs = (0..ranks).map(|rank| graph(rank).plan(2, 64).unwrap()).collect();
    let verified = verify(programs).unwrap();
    let prepare = |communicator: &'c Communicator| {
        let stream = communicator.context().new_stream().unwrap();
        let program = &verified[communicator.rank() as usize];
        let options = Options { driven, ..Options::default() };
        Resident::prepare(communicator, program, options, &stream).unwrap()
    };
    let mut all: Vec<_> = communicators.iter().map(prepare).collect();
    all.iter_mut().for_each(|one| one.open().unwrap());
    all
}

fn gives_what_the_host_says(communicators: &[Communicator], element: Element) {
    for driven in [Driven::Resident, Driven::Launches] {
        let mut all = residents(communicators, |rank| ring(rank, element), driven);
        for (one, communicator) in all.iter().zip(communicators) {
            let rank = communicator.rank();
            one.write("state", &values(ROWS, |row, column| seed(rank, row, column))).unwrap();
        }
        // With a pause: counts of messages go on.
        for _ in 0..2 {
            all.iter_mut().for_each(|one| one.start().unwrap());
            // Some at a time, so that ranks may be ahead of one another.
            for _ in 0..ITERATIONS / 2 {
                all.iter_mut().for_each(|one| one.run(1).unwrap());
            }
            all.iter_mut().for_each(|one| one.wait().unwrap());
            all.iter_mut().for_each(|one| one.pause().unwrap());
        }
        let after = |rank: u32, iterations: u64, row: u32, column: u32| {
            let from = (u64::from(rank) + iterations * u64::from(RANKS - 1)) % u64::from(RANKS);
            seed(from as u32, row, column) + iterations as f32
        };
        for (one, communicator) in all.iter_mut().zip(communicators) {
            one.stop().unwrap();
            let (rank, end) = (communicator.rank(), ITERATIONS);
            let state = values(ROWS, |row, column| after(rank, end, row, column));
            assert_eq!(one.read("state").unwrap(), state, "{driven:?}, rank {rank}");
            let made = |rank: u32, row, column| after(rank, end - 1, row, column) + 1.0;
            let left = (rank + RANKS - 1) % RANKS;
            let copied = values(2 * ROWS, |row, column| match row < ROWS {
                true => made(left, row, column),
                false => made(rank, row - ROWS, column),
            });
            assert_eq!(one.read("copied").unwrap(), copied, "{driven:?}, rank {rank}");
            assert!(one.read(&format!("inbox of rank {}", (rank + 1) % RANKS)).is_err());
        }
    }
}

/// If this fails, a put comes too early or too late, or elsewhere: each iteration has other values.
#[test]
fn puts_give_what_the_host_says() {
    on_engines("pcie4", || {
        for stores in [Stores::Auto, Stores::Never] {
            let world = World::with(RANKS as usize, &lanes(stores));
            gives_what_the_host_says(&world.communicators, Element::F32);
            gives_what_the_host_says(&world.communicators, Element::BF16);
            world.finish();
        }
    });
}

/// As above, between nodes, where one neighbour is near and the other one far.
#[test]
fn puts_give_what_the_host_says_on_two_nodes() {
    on_machine_with("pcie4 x 2", &["--procs", "2"], || {
        let communicators = try_join_with(2, lanes(Stores::Auto)).unwrap();
        gives_what_the_host_says(&communicators, Element::F16);
    });
}

/// If this fails, a rank that does not send its message hangs the other, or nobody says which task
/// it was.
#[test]
fn a_message_that_does_not_come_is_named() {
    on_machine("pcie4", || {
        for stores in [Stores::Auto, Stores::Never] {
            let limit = Duration::from_millis(500);
            let world = World::with(2, &Settings { wait_timeout: limit, ..lanes(stores) });
            let graph = |rank: u32| {
                let mut graph = Graph::new(TileSize::default());
                let own = graph.tensor("own", 2, 2, Origin::Host).unwrap();
                if rank == 0 {
                    graph.wait("hear", 1, None).unwrap();
                } else {
                    let add = Expression::new().load(0).constant(1.0).add().store(0);
                    graph.elementwise("work", &[own], add).unwrap();
                    graph.signal("tell", 0, None).unwrap();
                }
                graph
            };
            let mut all = residents(&world.communicators, graph, Driven::Resident);
            all.iter_mut().for_each(|one| one.start().unwrap());
            all.iter_mut().for_each(|one| one.run(2).unwrap());
            all.iter_mut().for_each(|one| one.wait().unwrap());
            all[0].run(1).unwrap();
            let error = all[0].wait().unwrap_err();
            let Error::StuckTask(stuck) = &error else { panic!("{error}") };
            let sender = stuck.sender.as_deref().expect("a message has a sender");
            assert_eq!((stuck.rank.0, stuck.iteration, stuck.done), (0, 2, 2), "{error}");
            assert_eq!(stuck.waits.as_ref().unwrap().operator, "hear", "{error}");
            assert_eq!((sender.0.0, sender.1.operator.as_str()), (1, "tell"), "{error}");
            assert!(error.to_string().contains("'tell'"), "{error}");
            assert_eq!(all[0].done().unwrap(), 2);
        }
    });
}

/// If this fails, a program with messages runs where it cannot, or as another rank's.
#[test]
fn programs_with_messages_are_refused_where_they_cannot_run() {
    on_machine("pcie4", || {
        let world = World::with(RANKS as usize, &settings());
        let programs = (0..RANKS).map(|rank| ring(rank, Element::F32).plan(1, 32).unwrap());
        let verified = verify(programs.collect()).unwrap();
        let (communicator, stream) = world.ranks().next().unwrap();
        let refused = |program: usize| {
            let options = Options::default();
            let one = Resident::prepare(communicator, &verified[program], options, stream);
            let error = one.and_then(|mut one| one.open()).unwrap_err();
            assert!(matches!(error, Error::Argument { .. }), "{error}");
            error.to_string()
        };
        assert!(refused(1).contains("that of rank 1"));
        // No user lanes.
        assert!(refused(0).contains("RINGDOVE_USER_LANES"));
    });
}
