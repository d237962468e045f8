//! Resident programs on virtual GPUs, or on the real ones.

mod hardware;

use hardware::engines::on_engines;
use hardware::{
    World, hwsim, on_machine, on_machine_with, on_traced_machine, run_bounded, settings, tool,
    try_join_with,
};
use ringdove::program::{
    Driven, Graph, Options, Origin, Resident, TileSize, Verified, network, verify_same,
};
use ringdove::{Communicator, Error, Settings};
use std::time::{Duration, Instant};

const WIDTHS: [u32; 3] = [3, 20, 2];
const SAMPLES: u32 = 40;
const TILE: TileSize = TileSize { rows: 16, columns: 16 };

fn program(ranks: u32) -> Verified {
    let graph = network::step(&WIDTHS, (SAMPLES, SAMPLES * ranks), TILE).unwrap();
    verify_same(graph.plan(4, 64).unwrap()).unwrap()
}

fn random_values(count: u32, seed: u64) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| random.f32() * 2.0 - 1.0).collect()
}

fn prepare<'c>(communicator: &'c Communicator, program: &Verified, driven: Driven) -> Resident<'c> {
    let stream = communicator.context().new_stream().unwrap();
    let options = Options { driven, ..Options::default() };
    let resident = Resident::prepare(communicator, program, options, &stream).unwrap();
    let rank = u64::from(communicator.rank());
    resident.write("input", &random_values(SAMPLES * WIDTHS[0], 100 + rank)).unwrap();
    resident.write("target", &random_values(SAMPLES * WIDTHS[2], 200 + rank)).unwrap();
    for (number, widths) in WIDTHS.windows(2).enumerate() {
        let values = random_values((widths[0] + 1) * widths[1], number as u64);
        resident.write(&format!("parameters {number}"), &values).unwrap();
    }
    resident
}

fn prepare_all<'c>(
    communicators: &'c [Communicator],
    program: &Verified,
    driven: Driven,
) -> Vec<Resident<'c>> {
    communicators.iter().map(|one| prepare(one, program, driven)).collect()
}

/// Runs `iterations` with a rate that changes, with a pause in between; gives the bits of weights
/// and losses of each rank.
fn train(communicators: &[Communicator], driven: Driven, iterations: u64) -> Vec<Vec<u32>> {
    let program = program(communicators[0].rank_count());
    let mut all = prepare_all(communicators, &program, driven);
    for part in 0..2 {
        all.iter_mut().for_each(|one| one.start().unwrap());
        for step in 0..iterations / 2 {
            for one in &mut all {
                one.set_parameter(network::RATE, 0.1 + 0.01 * (part * 7 + step) as f32).unwrap();
                one.run(1).unwrap();
            }
        }
        all.iter_mut().for_each(|one| one.wait().unwrap());
        all.iter_mut().for_each(|one| one.pause().unwrap());
        all.iter().for_each(|one| assert_eq!(one.done().unwrap(), (part + 1) * (iterations / 2)));
    }
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    all.iter_mut()
        .map(|one| {
            one.stop().unwrap();
            let mut all = bits(one.take().concat());
            let count = iterations * u64::from(WIDTHS[2]);
            assert_eq!(all.len() as u64, count, "the losses of each iteration");
            for number in 0..WIDTHS.len() - 1 {
                all.extend(bits(one.read(&format!("parameters {number}")).unwrap()));
            }
            all
        })
        .collect()
}

fn same_bits(communicators: &[Communicator]) {
    let iterations = 12;
    let launched = train(communicators, Driven::Launches, iterations);
    let resident = train(communicators, Driven::Resident, iterations);
    assert!(launched == resident, "resident programs and launches differ");
    let captured = train(communicators, Driven::Graphs, iterations);
    assert!(launched == captured, "graphs of launches and launches differ");
    let losses = (iterations * u64::from(WIDTHS[2])) as usize;
    let first = &resident[0][losses..];
    assert!(resident.iter().all(|rank| rank[losses..] == *first), "ranks differ");
    let loss = |place: usize| f32::from_bits(resident[0][place]);
    assert!(loss(losses - 1) < loss(1), "nothing is learnt");
}

/// If this fails, a task reads what is not there yet, or what the next iteration has written; or
/// a parameter or a result belongs to another iteration.
#[test]
fn resident_programs_have_the_bits_of_launches() {
    on_engines("pcie4", || {
        let world = World::with(4, &settings());
        same_bits(&world.communicators);
        world.finish();
    });
}

/// As above, between nodes.
#[test]
fn resident_programs_have_the_bits_of_launches_on_two_nodes() {
    on_machine_with("pcie4 x 2", &["--procs", "2"], || {
        same_bits(&try_join_with(2, settings()).unwrap());
    });
}

/// If this fails, blocks that can never be resident are launched, and hang.
#[test]
fn what_cannot_be_resident_is_refused_with_the_numbers() {
    on_machine("pcie4", || {
        let world = World::with(1, &settings());
        let stream = &world.streams[0];
        let options = Options { blocks_beside: 1 << 20, ..Options::default() };
        let refused = Resident::prepare(&world.communicators[0], &program(1), options, stream);
        let text = refused.unwrap_err().to_string();
        for word in ["multiprocessors", "registers", "shared memory", "1048576"] {
            assert!(text.contains(word), "{text}");
        }
    });
}

/// If this fails, a call out of place hangs, or is taken for another one.
#[test]
fn calls_out_of_place_are_refused() {
    on_machine("pcie4", || {
        let world = World::with(2, &settings());
        let program = program(2);
        let mut all = prepare_all(&world.communicators, &program, Driven::Resident);
        let refused = |result: ringdove::Result<()>| {
            assert!(matches!(result, Err(Error::Argument { .. })), "{result:?}");
        };
        refused(all[0].run(1));
        all.iter_mut().for_each(|one| one.start().unwrap());
        refused(all[0].start());
        refused(all[0].write("input", &[0.0]));
        refused(all[0].run(1000));
        refused(all[0].set_parameter(16, 1.0));
        // Calls beside the program would wait for its end.
        let mut buffer = world.upload(&[vec![0; 64]]).remove(0);
        let (kind, op) = (ringdove::DataType::F32, ringdove::ReduceOp::Sum);
        let communicator = &world.communicators[0];
        refused(communicator.all_reduce_bytes_in_place(kind, &mut buffer, op, &world.streams[0]));
        all.iter_mut().for_each(|one| one.run(1).unwrap());
        all.iter_mut().for_each(|one| one.stop().unwrap());
        refused(all[0].run(1));
        refused(all[0].start());
        refused(all[0].write("nothing", &[]));
    });
}

/// If this fails, a length that is none reaches the GPU, where a task takes another one for it.
#[test]
fn a_length_beyond_its_bound_is_refused_with_the_task() {
    on_machine("one-gpu", || {
        let world = World::with(1, &settings());
        let mut graph = Graph::new(TileSize::default());
        let mut tensor = |name: &str, rows, origin| graph.tensor(name, rows, 4, origin).unwrap();
        let [query, keys] = [("query", 1), ("keys", 6)].map(|(n, r)| tensor(n, r, Origin::Host));
        let out = tensor("out", 1, Origin::Tasks);
        graph.attention("look back", out, [query, keys, keys], 1.0, Some(3)).unwrap();
        let program = verify_same(graph.plan(1, 32).unwrap()).unwrap();
        let (communicator, stream) = world.ranks().next().unwrap();
        for driven in [Driven::Resident, Driven::Launches] {
            let options = Options { driven, ..Options::default() };
            let mut one = Resident::prepare(communicator, &program, options, stream).unwrap();
            one.write("keys", &[1.0; 24]).unwrap();
            one.start().unwrap();
            for length in [0.0, 7.0, -1.0, 2.5, f32::NAN, f32::INFINITY] {
                one.set_parameter(3, length).unwrap();
                let error = one.run(1).unwrap_err();
                assert!(matches!(error, Error::Argument { .. }), "{error}");
                assert!(error.to_string().contains("'look back'"), "{error}");
                assert!(error.to_string().contains("1 to 6"), "{error}");
            }
            for length in [1.0, 6.0] {
                one.set_parameter(3, length).unwrap();
                one.run(1).unwrap();
            }
            one.stop().unwrap();
            assert_eq!((one.done().unwrap(), one.read("out").unwrap()), (2, vec![1.0; 4]));
        }
        world.finish();
    });
}

/// If this fails, a rank that does not take part hangs the others, or they do not say where.
#[test]
fn a_rank_that_stays_away_ends_the_others_with_names() {
    on_machine("pcie4", || {
        let limit = Duration::from_millis(500);
        let world = World::with(2, &Settings { wait_timeout: limit, ..settings() });
        let program = program(2);
        let mut all = prepare_all(&world.communicators, &program, Driven::Resident);
        all.iter_mut().for_each(|one| one.start().unwrap());
        all.iter_mut().for_each(|one| one.run(3).unwrap());
        all.iter_mut().for_each(|one| one.wait().unwrap());
        // Idle for longer than any wait may take.
        std::thread::sleep(3 * limit);
        all.iter_mut().for_each(|one| one.check().unwrap());
        all[0].run(1).unwrap();
        let error = all[0].wait().unwrap_err();
        match &error {
            Error::StuckTask(stuck) => {
                assert_eq!((stuck.iteration, stuck.done), (3, 3), "{error}");
                assert!(error.to_string().contains("'descend"), "{error}");
            }
            Error::WaitExpired(wait) => assert_eq!(wait.peer.map(|peer| peer.0), Some(1)),
            other => panic!("{other}"),
        }
        assert_eq!(all[0].done().unwrap(), 3, "a partial iteration is reported as done");
        assert!(all[1].wait().is_ok(), "it owes nothing");
        assert!(all[1].check().is_err(), "the communicator has ended for all");
    });
}

/// If this fails, an abort leaves blocks on the GPU.
#[test]
fn an_abort_ends_all_blocks() {
    on_machine("pcie4", || {
        let world = World::with(2, &settings());
        let program = program(2);
        let mut all = prepare_all(&world.communicators, &program, Driven::Resident);
        all.iter_mut().for_each(|one| one.start().unwrap());
        all.iter_mut().for_each(|one| one.run(2).unwrap());
        all.iter_mut().for_each(|one| one.wait().unwrap());
        // Rank 0 waits for rank 1 in a collective, and rank 1 for its host.
        all[0].run(1).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let began = Instant::now();
        world.communicators[1].abort("a test");
        for one in &mut all {
            let error = one.run(1).unwrap_err();
            assert!(matches!(error, Error::Aborted { .. }), "{error}");
        }
        drop(all);
        let took = began.elapsed();
        println!("blocks of both ranks ended within {took:?}");
        // 100 ms are meant; a machine under load gets more.
        assert!(took < Duration::from_secs(2), "{took:?}");
    });
}

/// If this fails, the host takes part in iterations: something is launched, copied or waited for by
/// the driver between the start of a program and its end.
#[test]
fn no_driver_call_is_made_for_a_hundred_iterations() {
    let body = || {
        let world = World::with(4, &settings());
        let program = program(4);
        let mut all = prepare_all(&world.communicators, &program, Driven::Resident);
        all.iter_mut().for_each(|one| one.start().unwrap());
        all.iter_mut().for_each(|one| one.run(100).unwrap());
        all.iter_mut().for_each(|one| one.wait().unwrap());
        all.iter_mut().for_each(|one| one.stop().unwrap());
        assert!(all.iter().all(|one| one.done().unwrap() == 100));
    };
    on_traced_machine(
        hardware::engines::MACHINE,
        &[(hardware::engines::ENGINE, "device")],
        body,
        |trace| {
            let words = |line: &str| {
                let mut words = line.split_whitespace().skip(1);
                Some((words.next()?.to_owned(), words.next()?.to_owned()))
            };
            let calls: Vec<_> = trace.lines().filter_map(words).collect();
            let is_launch =
                |(_, function): &(String, String)| function.starts_with("cuLaunchKernel");
            assert_eq!(calls.iter().filter(|call| is_launch(call)).count(), 4, "one for each rank");
            let last = calls.iter().rposition(is_launch).unwrap();
            // What belongs to the launch, and then the events by which `stop` waits for its end.
            let behind = &calls[last + 1..];
            let ends = |(_, function): &(String, String)| function.starts_with("cuEvent");
            let first_end = behind.iter().position(ends).expect("stop waits for the kernels");
            let between: Vec<_> =
                behind[..first_end].iter().filter(|(_, name)| !name.starts_with("cuCtx")).collect();
            assert!(between.is_empty(), "calls between start and stop: {between:?}");
            println!("{} driver calls in all, none in 100 iterations", calls.len());
        },
    );
}

/// If this fails, the programs that a user copies are wrong.
#[test]
fn the_examples_are_right() {
    if hardware::perf::on_real_hardware() {
        return;
    }
    let cases: [(&str, &[&str], &str, &str); 4] = [
        ("resident_train", &["--machine", "pcie4"], "proxy", "have the bits of ordinary launches"),
        ("resident_train", &["--machine", "ark"], "device", "have the bits of ordinary launches"),
        (
            "resident_train",
            &["--machine", "pcie4 x 2", "--procs", "2"],
            "proxy",
            "have the bits of ordinary launches",
        ),
        ("resident_decode", &["--machine", "pcie4"], "proxy", "logits are those of the host"),
    ];
    for (example, machine, engine, line) in cases {
        let mut command = hwsim();
        command.args(["run", "--quiet"]).args(machine).arg("--");
        command.arg(tool(&format!("examples/{example}"))).env("RINGDOVE_ENGINE", engine);
        let (status, output) = run_bounded(command);
        assert!(status.success(), "{example} on {machine:?}: {status}\n{output}");
        assert!(output.contains(line), "{example} on {machine:?}: {output}");
        let block = "a transformer block, 100 steps in one launch";
        assert!(example != "resident_train" || output.contains(block), "{machine:?}: {output}");
    }
}

/// If this fails, the command says nothing, or draws nothing, of what was planned.
#[test]
fn programs_are_explained_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let drawing = folder.path().join("step.svg");
    let mut command = std::process::Command::new(tool("ringdove"));
    command.args(["program", "explain", "--widths", "8,64,64,4", "--blocks", "6", "--svg"]);
    command.arg(&drawing);
    let (status, output) = run_bounded(command);
    assert!(status.success(), "{output}");
    for words in ["modelled", "critical path", "forward 2", "sum 0", "6 blocks, 3 collectives"] {
        assert!(output.contains(words), "no '{words}': {output}");
    }
    let mut command = std::process::Command::new(tool("ringdove"));
    command.args(["program", "explain", "--widths", "8,64,64,4", "--reuse-memory"]);
    let (status, reused) = run_bounded(command);
    assert!(status.success(), "{reused}");
    let bytes = |text: &str| -> Vec<u64> {
        let line = text.lines().find(|line| line.contains("bytes of tensors")).unwrap();
        line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    let (with, without) = (bytes(&reused), bytes(&output));
    assert_eq!((without[0], with[1]), (without[1], without[1]), "{output}{reused}");
    assert!(with[0] < with[1], "{reused}");
    let text = std::fs::read_to_string(&drawing).unwrap();
    assert!(text.contains("collectives") && text.trim_end().ends_with("</svg>"));
    let mut command = std::process::Command::new(tool("ringdove"));
    command.args(["program", "explain", "--tile", "0x4"]);
    let (status, output) = run_bounded(command);
    assert!(!status.success() && output.contains("ROWSxCOLUMNS"), "{output}");
}
