//! Batches of resident programs: tensors whose place each iteration brings.

mod hardware;

use cudarc::driver::{CudaSlice, CudaStream};
use hardware::{World, on_machine, settings};
use ringdove::ReduceOp;
use ringdove::program::{
    Driven, Element, Expression, Graph, Options, Origin, ProgramError, RefusalKind, Resident,
    TileSize, Verified, verify_same,
};
use std::sync::Arc;

const ROWS: u32 = 24;
const COLUMNS: u32 = 8;
const VALUES: usize = (ROWS * COLUMNS) as usize;
const ITERATIONS: usize = 40;
/// Elements before a batch, in its memory.
const FIRST: usize = 4;

/// Reports the sum over the batch of its values times those of `weights`, by rows of numbers that
/// are a batch as well, and adds it to `weights`, within bounds: an iteration that reads another
/// one's batch is wrong from then on.
fn program() -> Verified {
    let mut graph = Graph::new(TileSize { rows: 8, columns: 8 });
    let batch = graph.tensor("batch", ROWS, COLUMNS, Origin::Batch).unwrap();
    let numbers = graph.tensor_of(Element::U32, "numbers", (ROWS, 1), Origin::Batch).unwrap();
    let weights = graph.tensor("weights", COLUMNS, 1, Origin::Host).unwrap();
    let chosen = graph.tensor("chosen", ROWS, COLUMNS, Origin::Tasks).unwrap();
    let sums = graph.tensor("sums", ROWS, 1, Origin::Tasks).unwrap();
    let sum = graph.tensor("sum", 1, 1, Origin::Tasks).unwrap();
    graph.gather("choose", chosen, batch, numbers).unwrap();
    graph.matrix("products", sums, [chosen, weights], [None; 2], Expression::new()).unwrap();
    graph.reduce("sum", sum, sums.transpose(), ReduceOp::Sum).unwrap();
    graph.report("report", sum).unwrap();
    let sum_of = Expression::new().load(0).load(1).add();
    let step = sum_of.constant(8.0).minimum().constant(-8.0).maximum().store(0);
    let operands = [weights, sum.repeat_rows(COLUMNS)];
    graph.elementwise("learn", &operands, step).unwrap();
    verify_same(graph.plan(3, 32).unwrap()).unwrap()
}

/// Small whole numbers, so that every sum is exact; of iteration `number`.
fn batch(number: usize) -> (Vec<f32>, Vec<u32>) {
    let mut random = fastrand::Rng::with_seed(number as u64);
    let values = (0..VALUES).map(|_| random.i32(-2..3) as f32).collect();
    (values, (0..ROWS).map(|_| random.u32(..ROWS)).collect())
}

/// The reports that the host expects.
fn expected() -> Vec<f32> {
    let mut weights = [0.5f32; COLUMNS as usize];
    let step = |number| {
        let (values, numbers) = batch(number);
        let rows = numbers.iter().map(|&row| &values[row as usize * COLUMNS as usize..]);
        let sums: f32 =
            rows.map(|row| row.iter().zip(&weights).map(|(a, b)| a * b).sum::<f32>()).sum();
        weights.iter_mut().for_each(|weight| *weight = (*weight + sums).clamp(-8.0, 8.0));
        sums
    };
    (0..ITERATIONS).map(step).collect()
}

type Buffers = (Arc<CudaSlice<f32>>, Arc<CudaSlice<u32>>);

/// Fills buffers that nobody else has.
fn fill(stream: &Arc<CudaStream>, buffers: &mut Buffers, number: usize) {
    let (values, numbers) = batch(number);
    let to = Arc::get_mut(&mut buffers.0).expect("no iteration under way reads the batch");
    let rows = Arc::get_mut(&mut buffers.1).expect("nor its numbers");
    // A batch need not begin where its memory does.
    stream.memcpy_htod(&values, &mut to.slice_mut(FIRST..)).unwrap();
    stream.memcpy_htod(&numbers, rows).unwrap();
}

fn new_buffers(stream: &Arc<CudaStream>) -> Buffers {
    let values = stream.alloc_zeros::<f32>(FIRST + VALUES).unwrap();
    (Arc::new(values), Arc::new(stream.alloc_zeros::<u32>(ROWS as usize).unwrap()))
}

fn set(one: &mut Resident<'_>, (values, numbers): &Buffers) -> ringdove::Result<()> {
    one.set_batch("batch", values, FIRST)?;
    one.set_batch("numbers", numbers, 0)
}

/// The reports of all iterations, with the batches of some at a time on the GPU: those of the next
/// are filled while the program reads the last ones.
fn reports(world: &World, driven: Driven, at_a_time: usize) -> Vec<f32> {
    let (communicator, stream) = world.ranks().next().unwrap();
    let options = Options { driven, ..Options::default() };
    let mut one = Resident::prepare(communicator, &program(), options, stream).unwrap();
    one.write("weights", &[0.5; COLUMNS as usize]).unwrap();
    let copies = communicator.context().new_stream().unwrap();
    let mut sets: Vec<Vec<Buffers>> =
        (0..2).map(|_| (0..at_a_time).map(|_| new_buffers(&copies)).collect()).collect();
    one.start().unwrap();
    let mut reports = Vec::new();
    for (turn, first) in (0..ITERATIONS).step_by(at_a_time).enumerate() {
        let buffers = &mut sets[turn % 2];
        for (buffers, number) in buffers.iter_mut().zip(first..ITERATIONS) {
            fill(&copies, buffers, number);
        }
        // Those of the turn before are done, and let go of all but the last of their batches.
        one.wait().unwrap();
        for (buffers, _) in buffers.iter().zip(first..ITERATIONS) {
            set(&mut one, buffers).unwrap();
            one.run(1).unwrap();
        }
        reports.extend(one.take().concat());
    }
    one.stop().unwrap();
    reports.extend(one.take().concat());
    reports
}

/// If this fails, an iteration reads the batch of another one, or a batch is given back while it is
/// read.
#[test]
fn each_iteration_reads_its_own_batch() {
    on_machine("one-gpu", || {
        let world = World::with(1, &settings());
        let expected = expected();
        assert!(expected.iter().any(|sum| *sum != expected[0]), "{expected:?}");
        for driven in [Driven::Resident, Driven::Launches, Driven::Graphs] {
            for at_a_time in [1, 7] {
                let seen = reports(&world, driven, at_a_time);
                assert_eq!(seen, expected, "{driven:?}, {at_a_time} at a time");
            }
        }
    });
}

/// If this fails, a program reads what is no batch of its own, or waits for itself.
#[test]
fn batches_that_make_no_sense_are_refused() {
    on_machine("pcie4", || {
        let world = World::with(2, &settings());
        let (communicator, stream) = world.ranks().next().unwrap();
        let mut one =
            Resident::prepare(communicator, &program(), Options::default(), stream).unwrap();
        let copies = communicator.context().new_stream().unwrap();
        let (values, numbers) = new_buffers(&copies);
        let of = |stream: &Arc<CudaStream>| Arc::new(stream.alloc_zeros::<f32>(VALUES).unwrap());
        let elsewhere = world.communicators[1].context().new_stream().unwrap();
        one.start().unwrap();
        let refused = |result: ringdove::Result<()>, word: &str| {
            let text = result.unwrap_err().to_string();
            assert!(text.contains(word), "{word}: {text}");
        };
        refused(one.run(1), "batch");
        refused(one.set_batch("weights", &values, 0), "weights");
        refused(one.set_batch("batch", &numbers, 0), "F32");
        refused(one.set_batch("batch", &values, FIRST + 1), "192 elements");
        refused(one.set_batch("batch", &values, usize::MAX), "192 elements");
        refused(one.set_batch("batch", &of(stream), 0), "stream");
        refused(one.set_batch("batch", &of(&elsewhere), 0), "context");
        one.set_batch("batch", &values, 0).unwrap();
        refused(one.run(1), "numbers");
        set(&mut one, &(values, numbers)).unwrap();
        one.run(1).unwrap();
        one.pause().unwrap();
        refused(one.write("batch", &[0.0; VALUES]), "batch");
        refused(one.read("batch").map(drop), "batch");
    });
}

/// If this fails, tasks write memory that the caller was promised they only read.
#[test]
fn batches_are_only_read() {
    let refusal = |graph: Graph| match verify_same(graph.plan(1, 32).unwrap()) {
        Err(ProgramError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    let both = |graph: &mut Graph| {
        let batch = graph.tensor("batch", 4, 4, Origin::Batch).unwrap();
        (batch, graph.tensor("own", 4, 4, Origin::Host).unwrap())
    };
    let mut graph = Graph::new(TileSize::default());
    let (batch, own) = both(&mut graph);
    let operands = [batch, own];
    graph.elementwise("writes", &operands, Expression::new().load(1).store(0)).unwrap();
    let seen = refusal(graph);
    assert_eq!(seen.kind, RefusalKind::Batch);
    assert!(seen.to_string().contains("writes"), "{seen}");
    let mut graph = Graph::new(TileSize::default());
    let (batch, _) = both(&mut graph);
    graph.all_reduce("sums", batch, ReduceOp::Sum).unwrap();
    assert_eq!(refusal(graph).kind, RefusalKind::Batch);
    let mut graph = Graph::new(TileSize::default());
    let add = |number: u32| graph.tensor(&format!("batch {number}"), 1, 1, Origin::Batch);
    let results: Vec<_> = (0..9).map(add).collect();
    assert!(results[..8].iter().all(Result::is_ok));
    assert!(matches!(results[8], Err(ProgramError::Count { what: "batches", .. })));
}
