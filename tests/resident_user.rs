//! Users' own tasks in resident programs; what is left of programs that fail; time stamps.

mod hardware;

use hardware::{World, on_machine, on_traced_machine, settings};
use ringdove::program::{
    Cut, Driven, Expression, Function, Graph, Options, Origin, ProgramError, RefusalKind, Resident,
    TileSize, Use, UserOperand, UserTask, Verified, View, network, verify_same,
};
use ringdove::{Communicator, Error, ReduceOp, Settings};
use ringdove_kernels::ptx::TEST_TASK;
use std::collections::HashSet;
use std::time::{Duration, Instant};

const ROWS: u32 = 11;
const WIDTH: u32 = 6;
const WORDS: u32 = 45;
const ITERATIONS: u64 = 9;

/// Adds the iteration's number and parameter 1 to operand 0: as another compiler might write it, of
/// an older version, with memory and a barrier of the block.
const ADD_STEP: &str = "
.version 6.4
.target sm_60
.address_size 64
.shared .align 4 .f32 step;
.visible .func add_step(.param .b64 t, .param .b64 i, .param .b64 p)
{
    .reg .pred %p<3>;
    .reg .b32 %r<9>;
    .reg .b64 %rd<5>;
    .reg .f32 %f<4>;
    ld.param.u64 %rd1, [t];
    ld.param.u64 %rd2, [i];
    ld.param.u64 %rd3, [p];
    mov.u32 %r1, %tid.x;
    mov.u32 %r5, %ntid.x;
    ld.u32 %r2, [%rd1+16];
    ld.u32 %r3, [%rd1+20];
    mul.lo.u32 %r4, %r2, %r3;
    cvt.rn.f32.u64 %f1, %rd2;
    ld.global.f32 %f2, [%rd3+4];
    add.f32 %f1, %f1, %f2;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 st.shared.f32 [step], %f1;
    bar.sync 0;
    ld.shared.f32 %f3, [step];
NEXT:
    setp.ge.u32 %p2, %r1, %r4;
    @%p2 bra DONE;
    div.u32 %r6, %r1, %r3;
    rem.u32 %r7, %r1, %r3;
    ld.u64 %rd4, [%rd1+32];
    ld.u32 %r8, [%rd1+40];
    mad.wide.u32 %rd4, %r6, %r8, %rd4;
    ld.u32 %r8, [%rd1+44];
    mad.wide.u32 %rd4, %r7, %r8, %rd4;
    ld.global.f32 %f2, [%rd4];
    add.f32 %f2, %f2, %f3;
    st.global.f32 [%rd4], %f2;
    add.u32 %r1, %r1, %r5;
    bra NEXT;
DONE:
    ret;
}
";

fn operand(view: View, cut: Cut, usage: Use) -> UserOperand {
    UserOperand { view, cut, usage }
}

fn task(function: Function, shape: (u32, u32), operands: Vec<UserOperand>) -> UserTask {
    UserTask { function, shape, tile: None, operands, inner: 0, option: 0, value: 0.0 }
}

/// Each iteration makes a token of the one before: a row of the table, its product with the
/// weights, and the largest of it. Beside that, steps are counted, and summed over ranks.
fn decoder() -> Graph {
    let mut graph = Graph::new(TileSize { rows: 4, columns: 16 });
    let tokens = graph.numbers("tokens", ROWS).unwrap();
    let table = graph.tensor("table", WORDS, WIDTH, Origin::Host).unwrap();
    let weights = graph.tensor("weights", WIDTH, WORDS, Origin::Host).unwrap();
    let rows = graph.tensor("rows", ROWS, WIDTH, Origin::Tasks).unwrap();
    let logits = graph.tensor("logits", ROWS, WORDS, Origin::Tasks).unwrap();
    graph.gather("look up", rows, table, tokens).unwrap();
    let expression = Expression::new();
    graph.matrix("logits", logits, [rows, weights], [None, None], expression).unwrap();
    let operands =
        vec![operand(tokens, Cut::Rows, Use::Writes), operand(logits, Cut::Rows, Use::Reads)];
    let largest = Function::new("test_largest", TEST_TASK).unwrap();
    let choose = UserTask { inner: WORDS, ..task(largest, (ROWS, 1), operands) };
    graph.user("choose", &choose).unwrap();
    let count = graph.tensor("count", ROWS, WIDTH, Origin::Host).unwrap();
    let sum = graph.tensor("sum", ROWS, WIDTH, Origin::Tasks).unwrap();
    let add = Function::new("add_step", ADD_STEP).unwrap();
    let changed = vec![operand(count, Cut::Both, Use::Changes)];
    graph.user("add", &task(add, (ROWS, WIDTH), changed)).unwrap();
    graph.elementwise("copy", &[sum, count], Expression::new().load(1).store(0)).unwrap();
    graph.all_reduce("sum over ranks", sum, ReduceOp::Sum).unwrap();
    graph
}

fn values(count: u32, seed: u64) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| random.f32() * 2.0 - 1.0).collect()
}

fn first_tokens(rank: u32) -> Vec<u32> {
    (0..ROWS).map(|row| (row * 7 + rank) % WORDS).collect()
}

/// What the host makes of a token, with the additions in the same order.
fn next_token(table: &[f32], weights: &[f32], token: u32) -> u32 {
    let row = &table[(token * WIDTH) as usize..][..WIDTH as usize];
    let logit = |word: usize| {
        let column = weights.iter().skip(word).step_by(WORDS as usize);
        row.iter().zip(column).fold(0f32, |sum, (x, w)| sum + x * w)
    };
    let logits: Vec<f32> = (0..WORDS as usize).map(logit).collect();
    let first = |best: usize, word: usize| if logits[word] > logits[best] { word } else { best };
    (1..WORDS as usize).fold(0, first) as u32
}

/// Tokens and sums of all ranks.
fn decode(communicators: &[Communicator], driven: Driven) -> Vec<(Vec<u32>, Vec<f32>)> {
    let program = verify_same(decoder().plan(3, 96).unwrap()).unwrap();
    let options = Options { driven, ..Options::default() };
    let prepare = |communicator| {
        let communicator: &Communicator = communicator;
        let stream = communicator.context().new_stream().unwrap();
        let mut one = Resident::prepare(communicator, &program, options, &stream).unwrap();
        one.write("table", &values(WORDS * WIDTH, 1)).unwrap();
        one.write("weights", &values(WORDS * WIDTH, 2)).unwrap();
        one.write_numbers("tokens", &first_tokens(communicator.rank())).unwrap();
        one.set_parameter(1, 0.5 + communicator.rank() as f32).unwrap();
        one
    };
    let mut all: Vec<_> = communicators.iter().map(prepare).collect();
    all.iter_mut().for_each(|one| one.start().unwrap());
    for _ in 0..ITERATIONS {
        all.iter_mut().for_each(|one| one.run(1).unwrap());
    }
    let end = |one: &mut Resident<'_>| {
        one.stop().unwrap();
        (one.read_numbers("tokens").unwrap(), one.read("sum").unwrap())
    };
    all.iter_mut().map(end).collect()
}

/// If this fails, users' functions are called with other tiles, parameters or iterations than they
/// are told, or before their data is there; or their link is made more than once.
#[test]
fn users_functions_run_between_other_tasks() {
    let body = || {
        let world = World::with(2, &settings());
        let resident = decode(&world.communicators, Driven::Resident);
        let launched = decode(&world.communicators, Driven::Launches);
        assert!(resident == launched, "resident programs and launches differ");
        let (table, weights) = (values(WORDS * WIDTH, 1), values(WORDS * WIDTH, 2));
        let steps: u64 = (0..ITERATIONS).sum();
        let sum = 2.0 * steps as f32 + 2.0 * ITERATIONS as f32;
        for ((tokens, sums), rank) in resident.iter().zip(0..) {
            let mut expected = first_tokens(rank);
            for token in (0..ITERATIONS).flat_map(|_| 0..ROWS as usize) {
                expected[token] = next_token(&table, &weights, expected[token]);
            }
            assert_eq!(*tokens, expected, "rank {rank}");
            assert!(sums.iter().all(|&seen| seen == sum), "rank {rank}: {sums:?}, not {sum}");
        }
        world.finish();
    };
    on_traced_machine("pcie4", &[], body, |trace| {
        let is_link = |line: &&str| {
            line.split_whitespace().nth(2).is_some_and(|call| call.starts_with("cuLinkComplete"))
        };
        let links = trace.lines().filter(is_link).count();
        assert_eq!(links, 1, "of two ranks and two ways to drive the program");
    });
}

fn program_of(function: Function) -> Verified {
    let mut graph = Graph::new(TileSize::default());
    let x = graph.tensor("x", ROWS, WIDTH, Origin::Host).unwrap();
    let changed = vec![operand(x, Cut::Both, Use::Changes)];
    graph.user("the user's", &task(function, (ROWS, WIDTH), changed)).unwrap();
    verify_same(graph.plan(2, 64).unwrap()).unwrap()
}

/// If this fails, a function that cannot be linked, or does not fit, is reported without the name
/// of its task, or is run.
#[test]
fn functions_that_cannot_be_linked_are_refused_by_name() {
    on_machine("one-gpu", || {
        let world = World::with(1, &settings());
        let shared = ADD_STEP.replace(".f32 step;", ".b8 step[400000];");
        let cases = [
            ("add_step", "this is no PTX".to_owned()),
            ("add_step", String::new()),
            ("add_step", ADD_STEP.replace("bar.sync", "bar.unknown")),
            ("add_stop", ADD_STEP.to_owned()),
            ("add_step", shared),
        ];
        for (name, text) in cases {
            let function = Function::new(name, text.as_str()).unwrap();
            let program = program_of(function);
            let (communicator, stream) = world.ranks().next().unwrap();
            let refused = Resident::prepare(communicator, &program, Options::default(), stream);
            let error = refused.expect_err(&text);
            println!("{error}");
            let is_named = error.to_string().contains("the user's") || name == "add_stop";
            let is_large = error.to_string().contains("shared memory");
            assert!(is_named || is_large, "{error}");
        }
        // The communicator is as good as before.
        let (communicator, stream) = world.ranks().next().unwrap();
        let program = program_of(Function::new("add_step", ADD_STEP).unwrap());
        let options = Options::default();
        let mut one = Resident::prepare(communicator, &program, options, stream).unwrap();
        one.start().unwrap();
        one.run(3).unwrap();
        one.stop().unwrap();
        assert_eq!(one.read("x").unwrap(), vec![3.0; (ROWS * WIDTH) as usize]);
        drop(one);
        world.finish();
    });
}

/// If this fails, what a graph says of a user's task is not checked.
#[test]
fn wrong_users_tasks_are_refused() {
    for name in ["", "1st", "$a", "a b", "a;b", "ringdove_task", "a\0"] {
        let refused = Function::new(name, ADD_STEP);
        assert!(matches!(refused, Err(ProgramError::Function { .. })), "{name:?}: {refused:?}");
    }
    assert!(matches!(Function::new("a", "\0"), Err(ProgramError::Function { .. })));
    let mut graph = Graph::new(TileSize { rows: 4, columns: 4 });
    let x = graph.tensor("x", ROWS, WIDTH, Origin::Host).unwrap();
    let y = graph.tensor("y", ROWS, WIDTH, Origin::Tasks).unwrap();
    let function = Function::new("add_step", ADD_STEP).unwrap();
    let shape = (ROWS, WIDTH);
    let mut add = |operands| graph.user("u", &task(function.clone(), shape, operands));
    let refused = add(vec![operand(x, Cut::Both, Use::Reads); 6]);
    assert!(matches!(refused, Err(ProgramError::Count { seen: 6, .. })), "{refused:?}");
    let refused = add(Vec::new());
    assert!(matches!(refused, Err(ProgramError::Count { seen: 0, .. })), "{refused:?}");
    let refused = add(vec![operand(x.transpose(), Cut::Both, Use::Reads)]);
    assert!(matches!(refused, Err(ProgramError::Shape { .. })), "{refused:?}");
    let refused = add(vec![operand(y, Cut::Whole, Use::Writes)]);
    assert!(matches!(refused, Err(ProgramError::Tiles { .. })), "{refused:?}");
    let mut graph = Graph::new(TileSize::default());
    let x = graph.tensor("x", ROWS, WIDTH, Origin::Tasks).unwrap();
    let changed = vec![operand(x, Cut::Both, Use::Changes)];
    graph.user("u", &task(function, shape, changed.clone())).unwrap();
    let other = Function::new("add_step", "another text").unwrap();
    let refused = graph.user("v", &task(other, shape, changed));
    assert!(matches!(refused, Err(ProgramError::Function { .. })), "{refused:?}");
    match verify_same(graph.plan(1, 64).unwrap()) {
        Err(ProgramError::Refused(refusal)) => assert_eq!(refusal.kind, RefusalKind::Unwritten),
        other => panic!("read before it is written: {other:?}"),
    }
    let mut graph = decoder();
    assert!(matches!(graph.keep(1, &["nothing"]), Err(ProgramError::NoTensor(_))));
    assert!(matches!(graph.keep(0, &["count"]), Err(ProgramError::Count { .. })));
    assert!(matches!(graph.keep(1, &[]), Err(ProgramError::Count { .. })));
    graph.keep(1, &["count"]).unwrap();
    assert!(matches!(graph.keep(1, &["count"]), Err(ProgramError::Count { .. })));
}

/// If this fails, the verifier does not see what users' tasks and tasks that keep tensors read or
/// write: a wait too few would be taken.
#[test]
fn waits_for_and_of_users_tasks_are_needed() {
    let mut graph = decoder();
    graph.keep(2, &["count", "tokens"]).unwrap();
    let mut program = graph.plan(1, 64).unwrap();
    program.blocks = program.blocks.concat().into_iter().map(|task| vec![task]).collect();
    verify_same(program.clone()).unwrap();
    let number = |name: &str| {
        let found = program.operators.iter().position(|operator| operator.name == name);
        found.unwrap_or_else(|| panic!("no operator {name}")) as u32
    };
    let names = ["choose", "add", "keep count", "keep tokens"].map(number);
    let mut changes = 0;
    for operator in 0..program.operators.len() as u32 {
        let first = program.operators[operator as usize].tasks.0 as usize;
        for wait in program.tasks[first].waits.clone() {
            if !names.contains(&operator) && !names.contains(&wait.counter) {
                continue;
            }
            let mut without = program.clone();
            for task in without.tasks.iter_mut().filter(|task| task.operator == operator) {
                task.waits.retain(|one| *one != wait);
            }
            assert!(verify_same(without).is_err(), "operator {operator} without {wait:?}");
            changes += 1;
        }
    }
    assert!(changes >= 8, "{changes}");
}

/// If this fails, a function that does not return in time hangs the program, or is not named.
#[test]
fn a_function_that_is_late_is_named() {
    on_machine("one-gpu", || {
        let limit = Duration::from_millis(300);
        let drop_timeout = Duration::from_secs(60);
        let settings = Settings { wait_timeout: limit, drop_timeout, ..settings() };
        let world = World::with(1, &settings);
        let mut graph = Graph::new(TileSize::default());
        let x = graph.tensor("x", ROWS, WIDTH, Origin::Host).unwrap();
        let y = graph.tensor("y", ROWS, WIDTH, Origin::Tasks).unwrap();
        let z = graph.tensor("z", ROWS, WIDTH, Origin::Tasks).unwrap();
        let operands = vec![operand(y, Cut::Both, Use::Writes), operand(x, Cut::Both, Use::Reads)];
        let function = Function::new("test_late", TEST_TASK).unwrap();
        // Five seconds: the function takes the bits for a number.
        let value = f32::from_bits(5);
        let late = UserTask { value, ..task(function, (ROWS, WIDTH), operands) };
        graph.user("late", &late).unwrap();
        let copy = || Expression::new().load(1).store(0);
        graph.elementwise("behind it", &[z, y], copy()).unwrap();
        let mut program = graph.plan(1, 64).unwrap();
        program.blocks = program.blocks.concat().into_iter().map(|task| vec![task]).collect();
        let program = verify_same(program).unwrap();
        let (communicator, stream) = world.ranks().next().unwrap();
        let options = Options::default();
        let mut one = Resident::prepare(communicator, &program, options, stream).unwrap();
        one.start().unwrap();
        one.run(1).unwrap();
        let error = one.wait().unwrap_err();
        match &error {
            Error::StuckTask(stuck) => {
                let raiser = stuck.raiser.as_ref().map(|task| task.operator.as_str());
                assert_eq!((raiser, stuck.done), (Some("late"), 0), "{error}");
            }
            other => panic!("{other}"),
        }
        assert!(one.stop().is_err() && one.read("x").is_err() && one.kept().unwrap().is_empty());
    });
}

const WIDTHS: [u32; 3] = [3, 20, 2];
const SAMPLES: u32 = 40;

fn prepare<'c>(communicator: &'c Communicator, every: u32, options: Options) -> Resident<'c> {
    let tile = TileSize { rows: 16, columns: 16 };
    let samples = (SAMPLES, SAMPLES * communicator.rank_count());
    let mut graph = network::step(&WIDTHS, samples, tile).unwrap();
    graph.keep(every, &["parameters 0", "parameters 1"]).unwrap();
    let program = verify_same(graph.plan(4, 64).unwrap()).unwrap();
    let stream = communicator.context().new_stream().unwrap();
    let mut one = Resident::prepare(communicator, &program, options, &stream).unwrap();
    let rank = u64::from(communicator.rank());
    one.write("input", &values(SAMPLES * WIDTHS[0], 100 + rank)).unwrap();
    one.write("target", &values(SAMPLES * WIDTHS[2], 200 + rank)).unwrap();
    for (number, widths) in WIDTHS.windows(2).enumerate() {
        let name = format!("parameters {number}");
        one.write(&name, &values((widths[0] + 1) * widths[1], number as u64)).unwrap();
    }
    one.set_parameter(network::RATE, 0.2).unwrap();
    one
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The bits of both layers' parameters after each number of iterations, by launches.
fn states(communicators: &[Communicator], iterations: u64) -> Vec<[Vec<u32>; 2]> {
    let options = Options { driven: Driven::Launches, ..Options::default() };
    let mut all: Vec<_> = communicators.iter().map(|one| prepare(one, 1, options)).collect();
    let parameters = |one: &Resident<'_>| {
        ["parameters 0", "parameters 1"].map(|name| bits(&one.read(name).unwrap()))
    };
    let mut found = vec![parameters(&all[0])];
    for _ in 0..iterations {
        all.iter_mut().for_each(|one| one.start().unwrap());
        all.iter_mut().for_each(|one| one.run(1).unwrap());
        all.iter_mut().for_each(|one| one.pause().unwrap());
        found.push(parameters(&all[0]));
    }
    found
}

/// If this fails, what a program keeps is not the state after an iteration that all blocks have
/// ended, or is lost with a failure.
#[test]
fn the_last_states_outlive_a_failure() {
    on_machine("pcie4", || {
        for (every, expected) in [(1, vec![7, 6, 5]), (3, vec![6, 3])] {
            let world = World::with(2, &settings());
            let states = states(&world.communicators, 7);
            let options = Options::default();
            let all = world.communicators.iter();
            let mut all: Vec<_> = all.map(|one| prepare(one, every, options)).collect();
            all.iter_mut().for_each(|one| one.start().unwrap());
            all.iter_mut().for_each(|one| one.run(7).unwrap());
            all.iter_mut().for_each(|one| one.wait().unwrap());
            assert!(all[0].kept().is_err(), "read while blocks may write it");
            // Rank 0 is amid an iteration when rank 1 ends them all.
            all[0].run(1).unwrap();
            let began = Instant::now();
            world.communicators[1].abort("a test");
            let stopped: Vec<_> = all.iter_mut().map(Resident::stop).collect();
            println!("both kernels were gone {:?} after the abort", began.elapsed());
            assert!(matches!(stopped[0], Err(Error::Aborted { .. })), "{stopped:?}");
            for one in &all {
                assert_eq!((one.done().unwrap(), one.kept().unwrap()), (7, expected.clone()));
                for &iterations in &expected {
                    for (layer, state) in states[iterations as usize].iter().enumerate() {
                        let name = format!("parameters {layer}");
                        let kept = one.read_kept(&name, iterations).unwrap();
                        assert!(bits(&kept) == *state, "{name} after {iterations}");
                    }
                }
                assert!(one.read_kept("parameters 0", 8).is_err());
                assert!(one.read_kept("input", expected[0]).is_err());
            }
            assert!(all[0].read("parameters 0").is_err(), "amid an iteration");
        }
    });
}

/// If this fails, stamps are lost, of another task, or out of order; or a ring has no bound.
#[test]
fn time_stamps_show_what_blocks_did() {
    on_machine("pcie4", || {
        let world = World::with(2, &settings());
        let mut times = Vec::new();
        for stamps in [0, 4, 1000] {
            let options = Options { stamps, ..Options::default() };
            let all = world.communicators.iter();
            let mut all: Vec<_> = all.map(|one| prepare(one, 1, options)).collect();
            all.iter_mut().for_each(|one| one.start().unwrap());
            all.iter_mut().for_each(|one| one.run(3).unwrap());
            all.iter_mut().for_each(|one| one.wait().unwrap());
            assert!(all[0].stamps().is_err(), "read while blocks write them");
            let began = Instant::now();
            all.iter_mut().for_each(|one| one.run(40).unwrap());
            all.iter_mut().for_each(|one| one.wait().unwrap());
            times.push(began.elapsed());
            all.iter_mut().for_each(|one| one.stop().unwrap());
            let found = all[0].stamps().unwrap();
            let blocks = all[0].shape().0;
            for block in 0..blocks {
                let count = found.iter().filter(|stamp| stamp.block == block).count();
                assert!(count <= stamps as usize && (stamps != 4 || count == 4), "{count}");
            }
            let trace = all[0].trace().unwrap();
            let trace: serde_json::Value = serde_json::from_str(&trace).unwrap();
            assert!(trace["traceEvents"].as_array().unwrap().len() >= found.len());
            if stamps != 1000 {
                continue;
            }
            // The last iteration is there as a whole: each task on its block, collectives on all
            // of theirs.
            let last: Vec<_> = found.iter().filter(|stamp| stamp.iteration == 42).collect();
            let tasks: HashSet<u32> = last.iter().map(|stamp| stamp.task.number).collect();
            let most = tasks.iter().max().unwrap() + 1;
            assert_eq!(tasks.len() as u32, most, "each task has a stamp");
            let begins = |name: &str| {
                let of = last.iter().filter(|stamp| stamp.task.operator == name);
                of.map(|stamp| stamp.began_ns).min().unwrap_or_else(|| panic!("no {name}"))
            };
            assert!(begins("forward 0") <= begins("forward 1"));
            assert!(begins("sum 0") <= begins("keep parameters 0"));
        }
        println!("40 iterations on virtual GPUs: {times:?} with 0, 4 and 1000 stamps a block");
        let options = Options { stamps: u32::MAX, ..Options::default() };
        let stream = &world.streams[0];
        let program = program_of(Function::new("add_step", ADD_STEP).unwrap());
        let refused = Resident::prepare(&world.communicators[0], &program, options, stream);
        assert!(matches!(refused, Err(Error::Argument { .. })), "{refused:?}");
        world.finish();
    });
}
