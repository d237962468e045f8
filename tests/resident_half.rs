//! 16-bit elements of resident programs: the bits of the host's arithmetic, which accumulates in
//! f32 and rounds once; and training with weights of 16 bits beside those of 32.

mod hardware;

use half::{bf16, f16};
use hardware::{World, on_machine, on_machine_with, settings, try_join_with};
use ringdove::program::{
    Driven, Element, Expression, Graph, Options, Origin, ProgramError, Resident, TileSize, View,
    verify_same,
};
use ringdove::{Communicator, Error, ReduceOp};

const ROWS: u32 = 29;
const INNER: u32 = 37;
const COLUMNS: u32 = 45;
const TILE: TileSize = TileSize { rows: 8, columns: 16 };

fn rounded(element: Element, value: f32) -> f32 {
    match element {
        Element::F16 => f16::from_f32(value).to_f32(),
        Element::BF16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}

/// Of all sizes: those that f16 has as subnormal numbers, and those that it does not have.
fn values(count: u32, seed: u64) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut value = |_| (random.f32() * 2.0 - 1.0) * (random.f32() * 24.0 - 18.0).exp2();
    (0..count).map(&mut value).collect()
}

/// begin + left * right, with an activation.
fn product(types: [Element; 4], tile: TileSize) -> (Graph, [(&'static str, u32); 3]) {
    let [out, left, right, begin] = types;
    let mut graph = Graph::new(tile);
    let mut tensor =
        |name: &str, element, shape, origin| graph.tensor_of(element, name, shape, origin).unwrap();
    let left = tensor("left", left, (ROWS, INNER), Origin::Host);
    let right = tensor("right", right, (COLUMNS, INNER), Origin::Host).transpose();
    let begin = tensor("begin", begin, (1, COLUMNS), Origin::Host).repeat_rows(ROWS);
    let product = tensor("product", out, (ROWS, COLUMNS), Origin::Tasks);
    let sums = tensor("sums", out, (ROWS, 1), Origin::Tasks);
    let positive = Expression::new().constant(0.0).maximum();
    graph.matrix("product", product, [left, right], [Some(begin), None], positive).unwrap();
    graph.reduce("sums", sums, left, ReduceOp::Sum).unwrap();
    (graph, [("left", ROWS * INNER), ("right", COLUMNS * INNER), ("begin", COLUMNS)])
}

/// Products and row sums by the host, in the order of the device.
fn on_the_host([out, left, right, begin]: [Element; 4]) -> (Vec<f32>, Vec<f32>) {
    let of = |element, count, seed| -> Vec<f32> {
        values(count, seed).into_iter().map(|value| rounded(element, value)).collect()
    };
    let (left, right) = (of(left, ROWS * INNER, 0), of(right, COLUMNS * INNER, 1));
    let begin = of(begin, COLUMNS, 2);
    let inner = INNER as usize;
    let product = |row: &[f32], column: usize| {
        let terms = row.iter().zip(&right[column * inner..]);
        let sum = terms.fold(begin[column], |sum, (a, b)| sum + a * b);
        rounded(out, sum.max(0.0))
    };
    let columns = 0..COLUMNS as usize;
    let products = left.chunks(inner).flat_map(|row| columns.clone().map(|at| product(row, at)));
    let sums = left.chunks(inner).map(|row| rounded(out, row.iter().fold(0.0, |a, b| a + b)));
    (products.collect(), sums.collect())
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// If this fails, products of 16-bit factors are rounded before the end, or not to nearest even, or
/// one of their loops reads another type.
#[test]
fn products_and_sums_have_the_bits_of_the_host() {
    use Element::{BF16, F16, F32};
    on_machine("one-gpu", || {
        let world = World::with(1, &settings());
        let (communicator, stream) = world.ranks().next().unwrap();
        let cases = [
            [F16, F16, F16, F16],
            [BF16, BF16, BF16, BF16],
            [F32, F16, F16, F32],
            [F16, F16, F32, BF16],
            [BF16, F32, BF16, F32],
            [F32, BF16, F16, F16],
        ];
        // Tiles and threads: a thread has one, two, four and eight values at a time.
        let shapes = [(TILE, 96), (TILE, 64), (TILE, 32), (TileSize { rows: 64, ..TILE }, 32)];
        for (types, (tile, threads)) in
            cases.into_iter().flat_map(|types| shapes.map(|shape| (types, shape)))
        {
            let (graph, inputs) = product(types, tile);
            let program = verify_same(graph.plan(3, threads).unwrap()).unwrap();
            let options = Options::default();
            let mut one = Resident::prepare(communicator, &program, options, stream).unwrap();
            for ((name, count), seed) in inputs.into_iter().zip(0..) {
                one.write(name, &values(count, seed)).unwrap();
            }
            one.start().unwrap();
            one.run(1).unwrap();
            one.stop().unwrap();
            let (products, sums) = on_the_host(types);
            assert!(products.iter().any(|it| *it > 0.0) && products.contains(&0.0), "{types:?}");
            assert_eq!(bits(&one.read("product").unwrap()), bits(&products), "{types:?}");
            assert_eq!(bits(&one.read("sums").unwrap()), bits(&sums), "{types:?}");
        }
    });
}

/// Small whole numbers: any order of additions gives the same sum.
fn whole(count: u32, seed: u64) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| random.i32(-7..8) as f32).collect()
}

/// Products of all layouts, of tiles that tensor cores take and of others, with what the host says.
fn tensor_core_products(element: Element) -> (Graph, usize, Vec<(String, Vec<f32>)>) {
    // Tiles of 32 x 32 and, at the edges, of 8 rows.
    let (rows, inner, columns) = (72, 48, 64);
    let mut graph = Graph::new(TileSize { rows: 32, columns: 32 });
    graph.use_tensor_cores(true);
    let half = |graph: &mut Graph, name: &str, rows, columns| -> View {
        graph.tensor_of(element, name, (rows, columns), Origin::Host).unwrap()
    };
    let bias = half(&mut graph, "bias", 1, columns);
    let (left, right) = (whole(rows * inner, 0), whole(inner * columns, 1));
    let mut expected = Vec::new();
    for row in 0..rows as usize {
        for column in 0..columns as usize {
            let inner = inner as usize;
            let terms =
                (0..inner).map(|k| left[row * inner + k] * right[k * columns as usize + column]);
            let sum = terms.sum::<f32>() + whole(columns, 2)[column];
            expected.push(sum.max(0.0) + 0.5);
        }
    }
    let mut all = Vec::new();
    for (number, layout) in
        [(false, false), (false, true), (true, false), (true, true)].iter().enumerate()
    {
        let view =
            |graph: &mut Graph, name: String, shape: (u32, u32), transposed: bool| match transposed
            {
                true => half(graph, &name, shape.1, shape.0).transpose(),
                false => half(graph, &name, shape.0, shape.1),
            };
        let a = view(&mut graph, format!("left {number}"), (rows, inner), layout.0);
        let b = view(&mut graph, format!("right {number}"), (inner, columns), layout.1);
        let name = format!("product {number}");
        let out = graph.tensor(&name, rows, columns, Origin::Tasks).unwrap();
        let then = Expression::new().constant(0.0).maximum().constant(0.5).add();
        graph.matrix(&name, out, [a, b], [Some(bias.repeat_rows(rows)), None], then).unwrap();
        all.push((name, expected.clone()));
    }
    // Two times two tiles of each product are whole ones.
    (graph, 4 * 4, all)
}

fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|at| values.iter().skip(at).step_by(columns).copied()).collect()
}

/// If this fails, tensor cores are given other rows, columns or layouts than the factors have, or
/// their values go elsewhere; or tiles that they cannot take reach them.
#[test]
fn tensor_cores_multiply_what_the_host_does() {
    on_machine("one-gpu", || {
        products_equal_the_hosts(Element::F16);
        products_equal_the_hosts(Element::BF16);
    });
}

/// If this fails, a GPU without tensor cores for bf16 multiplies otherwise.
#[test]
fn older_gpus_multiply_what_the_host_does() {
    on_machine("pcie4", || products_equal_the_hosts(Element::BF16));
}

fn products_equal_the_hosts(element: Element) {
    let world = World::with(1, &settings());
    let (communicator, stream) = world.ranks().next().unwrap();
    let (graph, fitting, expected) = tensor_core_products(element);
    // More warps than have fragments, and fewer than a tile has parts.
    for threads in [32, 320] {
        let program = graph.clone().plan(3, threads).unwrap();
        assert_eq!(program.tensor_core_tasks(), fitting);
        let program = verify_same(program).unwrap();
        for driven in [Driven::Resident, Driven::Launches] {
            let options = Options { driven, ..Options::default() };
            let mut one = Resident::prepare(communicator, &program, options, stream).unwrap();
            one.write("bias", &whole(64, 2)).unwrap();
            for number in 0..4 {
                let (left, right) = (whole(72 * 48, 0), whole(48 * 64, 1));
                let left = if number < 2 { left } else { transposed(&left, 48) };
                let right = if number % 2 == 0 { right } else { transposed(&right, 64) };
                one.write(&format!("left {number}"), &left).unwrap();
                one.write(&format!("right {number}"), &right).unwrap();
            }
            one.start().unwrap();
            one.run(2).unwrap();
            one.stop().unwrap();
            for (name, expected) in &expected {
                let seen = one.read(name).unwrap();
                assert_eq!(
                    bits(&seen),
                    bits(expected),
                    "{name} of {element:?}, {driven:?}, {threads} threads"
                );
            }
        }
    }
    world.finish();
}

/// If this fails, tensor cores are given what they cannot read.
#[test]
fn tensor_cores_take_nothing_but_what_fits() {
    let count_of =
        |[element, of_right]: [Element; 2], shape: (u32, u32), from: (u32, u32), use_them: bool| {
            let mut graph = Graph::new(TileSize { rows: 16, columns: 16 });
            graph.use_tensor_cores(use_them);
            let (rows, columns) = shape;
            let a = graph.tensor_of(element, "a", (rows + from.0, columns + from.1), Origin::Host);
            let a = a.unwrap().rows(from.0..from.0 + rows).columns(from.1..from.1 + columns);
            let b = graph.tensor_of(of_right, "b", (columns, 16), Origin::Host).unwrap();
            let out = graph.tensor("out", rows, 16, Origin::Tasks).unwrap();
            graph.matrix("product", out, [a, b], [None, None], Expression::new()).unwrap();
            verify_same(graph.plan(1, 32).unwrap()).unwrap().program().tensor_core_tasks()
        };
    let half = Element::F16;
    let count = |element, shape, from, use_them| count_of([element; 2], shape, from, use_them);
    assert_eq!(count(half, (32, 32), (0, 0), true), 2);
    assert_eq!(count(half, (32, 32), (1, 16), true), 2);
    assert_eq!(count(half, (32, 32), (0, 0), false), 0);
    assert_eq!(count(half, (24, 32), (0, 0), true), 1);
    assert_eq!(count(half, (32, 24), (0, 0), true), 0);
    assert_eq!(count(half, (32, 32), (0, 8), true), 0);
    assert_eq!(count(half, (32, 32), (0, 4), true), 0);
    assert_eq!(count(half, (32, 32), (1, 8), true), 2);
    assert_eq!(count(half, (32, 32), (2, 8), true), 0);
    assert_eq!(count(Element::BF16, (32, 32), (0, 0), true), 2);
    assert_eq!(count_of([Element::BF16, half], (32, 32), (0, 0), true), 0);
    assert_eq!(count_of([half, Element::BF16], (32, 32), (0, 0), true), 0);
    assert_eq!(count(Element::F32, (32, 32), (0, 0), true), 0);
}

/// A step of descent on a linear model: weights of 32 bits, a copy of them and gradients of 16.
fn step(element: Element) -> Graph {
    let mut graph = Graph::new(TILE);
    let mut half = |name: &str, rows, columns, origin| -> View {
        graph.tensor_of(element, name, (rows, columns), origin).unwrap()
    };
    let input = half("input", ROWS, INNER, Origin::Host);
    let copy = half("copy", INNER, COLUMNS, Origin::Host);
    let output = half("output", ROWS, COLUMNS, Origin::Tasks);
    let delta = half("delta", ROWS, COLUMNS, Origin::Tasks);
    let gradients = half("gradients", INNER, COLUMNS, Origin::Tasks);
    let table = half("table", COLUMNS, INNER, Origin::Host);
    let weights = graph.tensor("weights", INNER, COLUMNS, Origin::Host).unwrap();
    let target = graph.tensor("target", ROWS, COLUMNS, Origin::Host).unwrap();
    let losses = graph.tensor("losses", ROWS, COLUMNS, Origin::Tasks).unwrap();
    let rows = graph.tensor("row losses", ROWS, 1, Origin::Tasks).unwrap();
    let loss = graph.tensor("loss", 1, 1, Origin::Tasks).unwrap();
    let classes = graph.numbers("classes", ROWS).unwrap();
    let none = [None, None];
    graph.matrix("forward", output, [input, copy], none, Expression::new()).unwrap();
    let error = Expression::new().load(2).load(3).subtract();
    let both = error.store(0).duplicate().multiply().store(1);
    graph.elementwise("errors", &[delta, losses, output, target], both).unwrap();
    graph.reduce("row losses", rows, losses, ReduceOp::Sum).unwrap();
    graph.reduce("loss", loss, rows.transpose(), ReduceOp::Sum).unwrap();
    graph.report("report", loss).unwrap();
    let factors = [input.transpose(), delta];
    graph.matrix("gradients", gradients, factors, none, Expression::new()).unwrap();
    graph.all_reduce("sum of gradients", gradients, ReduceOp::Sum).unwrap();
    let descent = Expression::descend(0).store(2);
    graph.elementwise("descend", &[weights, gradients, copy], descent).unwrap();
    graph.scatter_add("scatter", table, input, classes).unwrap();
    graph.keep(2, &["copy", "weights"]).unwrap();
    graph
}

struct Trained {
    losses: Vec<f32>,
    weights: Vec<f32>,
    copy: Vec<f32>,
    table: Vec<f32>,
    kept: Vec<f32>,
}

fn train(communicators: &[Communicator], element: Element, driven: Driven) -> Vec<Trained> {
    const STEPS: u64 = 12;
    let program = verify_same(step(element).plan(3, 64).unwrap()).unwrap();
    let uniform = |count: u32, seed: u64, scale: f32| -> Vec<f32> {
        let mut random = fastrand::Rng::with_seed(seed);
        (0..count).map(|_| (random.f32() * 2.0 - 1.0) * scale).collect()
    };
    let prepare = |communicator| {
        let communicator: &Communicator = communicator;
        let stream = communicator.context().new_stream().unwrap();
        let options = Options { driven, ..Options::default() };
        let mut one = Resident::prepare(communicator, &program, options, &stream).unwrap();
        let rank = u64::from(communicator.rank());
        let weights = uniform(INNER * COLUMNS, 5, 0.1);
        one.write("weights", &weights).unwrap();
        one.write("copy", &weights).unwrap();
        one.write("input", &uniform(ROWS * INNER, 10 + rank, 1.0)).unwrap();
        one.write("target", &uniform(ROWS * COLUMNS, 20 + rank, 1.0)).unwrap();
        let classes: Vec<u32> = (0..ROWS).map(|row| row * 5 % 7).collect();
        one.write_numbers("classes", &classes).unwrap();
        one.set_parameter(0, 0.003).unwrap();
        one
    };
    let mut all: Vec<_> = communicators.iter().map(prepare).collect();
    all.iter_mut().for_each(|one| one.start().unwrap());
    for _ in 0..STEPS / 2 {
        all.iter_mut().for_each(|one| one.run(2).unwrap());
        all.iter_mut().for_each(|one| one.wait().unwrap());
    }
    let end = |one: &mut Resident<'_>| {
        one.stop().unwrap();
        Trained {
            losses: one.take().concat(),
            weights: one.read("weights").unwrap(),
            copy: one.read("copy").unwrap(),
            table: one.read("table").unwrap(),
            kept: one.read_kept("copy", STEPS).unwrap(),
        }
    };
    all.iter_mut().map(end).collect()
}

fn trains(communicators: &[Communicator], element: Element) {
    let resident = train(communicators, element, Driven::Resident);
    let launched = train(communicators, element, Driven::Launches);
    for (one, other) in resident.iter().zip(&launched) {
        for (one, other) in [
            (&one.losses, &other.losses),
            (&one.weights, &other.weights),
            (&one.copy, &other.copy),
            (&one.table, &other.table),
            (&one.kept, &other.kept),
        ] {
            assert_eq!(bits(one), bits(other), "resident programs and launches differ");
        }
        assert_eq!(bits(&one.weights), bits(&resident[0].weights), "ranks differ");
        let copy: Vec<f32> = one.weights.iter().map(|value| rounded(element, *value)).collect();
        assert_eq!(bits(&one.copy), bits(&copy), "the copy is that of other weights");
        assert_ne!(bits(&one.weights), bits(&copy), "weights have lost their digits");
        assert_eq!(bits(&one.kept), bits(&copy), "another state was kept");
        let (first, last) = (one.losses[0], one.losses[one.losses.len() - 1]);
        assert!(last < 0.9 * first, "nothing is learnt: {:?}", one.losses);
    }
}

/// If this fails, training with 16-bit weights and gradients, whose sum over ranks is one of 16-bit
/// values, differs between launches and resident blocks, or forgets small steps.
#[test]
fn mixed_precision_has_the_bits_of_launches() {
    on_machine("pcie4", || {
        let world = World::with(4, &settings());
        trains(&world.communicators, Element::F16);
        trains(&world.communicators, Element::BF16);
        world.finish();
    });
}

/// As above, between nodes.
#[test]
fn mixed_precision_has_the_bits_of_launches_on_two_nodes() {
    on_machine_with("pcie4 x 2", &["--procs", "2"], || {
        trains(&try_join_with(2, settings()).unwrap(), Element::BF16);
    });
}

/// If this fails, rows that are added to a table of 16 bits are rounded one by one, and small ones
/// are lost.
#[test]
fn rows_of_one_number_are_added_before_they_are_rounded() {
    on_machine("one-gpu", || {
        const COUNT: u32 = 300;
        let world = World::with(1, &settings());
        let (communicator, stream) = world.ranks().next().unwrap();
        let mut graph = Graph::new(TILE);
        let table = graph.tensor_of(Element::BF16, "table", (2, 3), Origin::Host).unwrap();
        let rows = graph.tensor_of(Element::BF16, "rows", (COUNT, 3), Origin::Host).unwrap();
        let numbers = graph.numbers("numbers", COUNT).unwrap();
        graph.scatter_add("scatter", table, rows, numbers).unwrap();
        let program = verify_same(graph.plan(1, 32).unwrap()).unwrap();
        let options = Options::default();
        let mut one = Resident::prepare(communicator, &program, options, stream).unwrap();
        one.write("rows", &vec![1.0 / 256.0; COUNT as usize * 3]).unwrap();
        one.write("table", &[1.0; 6]).unwrap();
        // Every other row; some have no row in the table.
        let number = |row: u32| if row == 7 { 9 } else { row % 2 };
        one.write_numbers("numbers", &(0..COUNT).map(number).collect::<Vec<_>>()).unwrap();
        one.start().unwrap();
        one.run(1).unwrap();
        one.stop().unwrap();
        let sum = |count: u32| rounded(Element::BF16, 1.0 + count as f32 / 256.0);
        let (even, odd) = (sum(COUNT / 2), sum(COUNT / 2 - 1));
        assert_eq!(one.read("table").unwrap(), [even, even, even, odd, odd, odd]);
        assert!(even > 1.5, "{even}");
    });
}

/// If this fails, tensors of types that a task cannot use reach the kernel, or the host reads other
/// values than it has written.
#[test]
fn types_that_make_no_sense_are_refused_by_name() {
    let mut graph = Graph::new(TILE);
    let table = graph.tensor_of(Element::F16, "table", (4, 4), Origin::Host).unwrap();
    let wide = graph.tensor("wide", 4, 4, Origin::Host).unwrap();
    let numbers = graph.numbers("numbers", 4).unwrap();
    let part = graph.tensor("part", 2, 4, Origin::Host).unwrap();
    let refused = [
        graph.gather("gather", table, table, table.columns(0..1)),
        graph.elementwise("numbers", &[numbers], Expression::new().load(0).store(0)),
        graph.all_gather("gather ranks", table, part),
        graph.all_to_all("exchange", wide, table),
    ];
    for (result, name) in refused.into_iter().zip(["gather", "numbers", "gather ranks", "exchange"])
    {
        let error = result.unwrap_err();
        assert!(matches!(error, ProgramError::View { .. }), "{error}");
        assert!(error.to_string().contains(&format!("'{name}'")), "{error}");
    }
    on_machine("one-gpu", || {
        let world = World::with(1, &settings());
        let (communicator, stream) = world.ranks().next().unwrap();
        let mut graph = Graph::new(TILE);
        let x = graph.tensor_of(Element::BF16, "x", (3, 5), Origin::Host).unwrap();
        graph.numbers("n", 3).unwrap();
        graph.elementwise("same", &[x], Expression::new().load(0).store(0)).unwrap();
        let program = verify_same(graph.plan(1, 32).unwrap()).unwrap();
        let options = Options::default();
        let one = Resident::prepare(communicator, &program, options, stream).unwrap();
        let refused = |result: ringdove::Result<()>| {
            assert!(matches!(result, Err(Error::Argument { .. })), "{result:?}");
        };
        refused(one.write("x", &[0.0; 14]));
        refused(one.write("n", &[0.0; 3]));
        refused(one.write_numbers("x", &[0; 15]));
        refused(one.read("n").map(drop));
        refused(one.read_numbers("x").map(drop));
        let values = values(15, 3);
        one.write("x", &values).unwrap();
        let expected: Vec<f32> =
            values.iter().map(|value| rounded(Element::BF16, *value)).collect();
        assert_eq!(bits(&one.read("x").unwrap()), bits(&expected));
    });
}
