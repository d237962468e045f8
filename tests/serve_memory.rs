//! Where servers keep parameters, and who keeps them: memory of GPUs gives the bits that memory of
//! the host gives, and shards of three servers move while gradients come.

mod hardware;
mod serving;

use hardware::{on_machine_env, on_machine_with};
use ringdove::DataType;
use ringdove::serve::{Client, Job, Memory, Model, Optimizer, Role, Server, Tensor};
use serving::{PATIENCE, launch, settings};
use std::time::{Duration, Instant};

fn tensor(name: &str, data_type: DataType, count: u64) -> Tensor {
    Tensor { name: name.into(), data_type, shape: vec![count] }
}

const OPTIMIZERS: [Optimizer; 3] = [
    Optimizer::Sgd { rate: 0.3 },
    Optimizer::Momentum { rate: 0.07, momentum: 0.8 },
    Optimizer::Adam { rate: 0.01, beta1: 0.9, beta2: 0.99, epsilon: 1e-6 },
];
const GRADIENTS: u64 = 20;

/// What a gradient makes of a parameter, by the formulas, one operation after the other. `kept` is
/// what the optimiser keeps beside it.
fn descend(optimizer: Optimizer, step: i32, value: &mut f32, kept: &mut [f32; 2], gradient: f32) {
    match optimizer {
        Optimizer::Sgd { rate } => *value -= rate * gradient,
        Optimizer::Momentum { rate, momentum } => {
            kept[0] = momentum * kept[0] + gradient;
            *value -= rate * kept[0];
        }
        Optimizer::Adam { rate, beta1, beta2, epsilon } => {
            kept[0] = beta1 * kept[0] + (1.0 - beta1) * gradient;
            kept[1] = beta2 * kept[1] + (1.0 - beta2) * gradient * gradient;
            let mean = kept[0] / (1.0 - beta1.powi(step));
            let deviation = (kept[1] / (1.0 - beta2.powi(step))).sqrt();
            *value -= rate * mean / (deviation + epsilon);
        }
    }
}

/// If this fails, a model that is trained in memory of a GPU is not the one that memory of the host
/// gives, or a shard mixes up the two. In each run one server or both have a GPU's.
#[test]
fn memory_of_a_gpu_gives_the_bits_of_memory_of_the_host() {
    let wheres = [[Memory::Host; 2], [Memory::Gpu; 2], [Memory::Gpu, Memory::Host]];
    for (number, (optimizer, memory)) in
        OPTIMIZERS.into_iter().flat_map(|it| wheres.map(|memory| (it, memory))).enumerate()
    {
        let number = number.to_string();
        if let Ok(chosen) = std::env::var("RINGDOVE_TEST_NUMBER") {
            if chosen == number {
                bits(optimizer, memory);
            }
            continue;
        }
        println!("{optimizer}, in {memory:?}");
        let variables = [("RINGDOVE_TEST_NUMBER", &*number)];
        on_machine_env("pcie4 x 3", &["--procs", "3"], &variables, || {
            unreachable!("it runs alone")
        });
    }
}

fn bits(optimizer: Optimizer, memory: [Memory; 2]) {
    // Lengths that fill no line, and integers, which no gradient changes, between them.
    let tensors = vec![
        tensor("a", DataType::F32, 1003),
        tensor("b", DataType::F32, 1001),
        tensor("c", DataType::I32, 17),
        tensor("d", DataType::F32, 13),
        tensor("e", DataType::F32, 1),
    ];
    let model = Model::of("bits", tensors).unwrap();
    let rank = launch().rank as usize;
    let job = Job { optimizer, credits: 4, ..Job::new(model, 2, 1) };
    if let Some(memory) = memory.get(rank) {
        let job = Job { memory: *memory, ..job };
        Server::join(job, &launch(), &settings()).unwrap().run().unwrap();
        return;
    }
    let mut client = Client::join(job, Role::Worker, &launch(), &settings()).unwrap();
    let names = [("a", 1003), ("b", 1001), ("d", 13), ("e", 1)];
    let mut random = fastrand::Rng::with_seed(5);
    let mut expected: Vec<Vec<(f32, [f32; 2])>> = Vec::new();
    for (name, count) in names {
        let values: Vec<f32> = (0..count).map(|_| random.f32() - 0.5).collect();
        client.assign(name, 0, bytemuck::cast_slice(&values)).unwrap();
        expected.push(values.into_iter().map(|value| (value, [0.0; 2])).collect());
    }
    client.assign("c", 4, &[7; 61]).unwrap();
    for step in 1..=GRADIENTS {
        let mut gradient =
            |count: usize| -> Vec<f32> { (0..count).map(|_| (random.f32() - 0.5) * 3.0).collect() };
        let values: Vec<_> = names.map(|(name, count)| (name, gradient(count))).into();
        for (expected, (_, values)) in expected.iter_mut().zip(&values) {
            for ((value, kept), gradient) in expected.iter_mut().zip(values) {
                descend(optimizer, step as i32, value, kept, *gradient);
            }
        }
        let values: Vec<_> = values.iter().map(|(name, values)| (*name, &values[..])).collect();
        client.push(&values).unwrap();
        if step == GRADIENTS / 2 {
            // A write of some bytes, between gradients.
            client.settle().unwrap();
            client.assign("b", 400, &1.5_f32.to_le_bytes()).unwrap();
            expected[1][100].0 = 1.5;
        }
    }
    client.settle().unwrap();
    client.pull().unwrap();
    for ((name, _), expected) in names.iter().zip(&expected) {
        let seen: Vec<_> = client.floats(name).unwrap().into_iter().map(f32::to_bits).collect();
        let expected: Vec<_> = expected.iter().map(|(value, _)| value.to_bits()).collect();
        assert!(seen == expected, "{name}: other bits");
    }
    let mut integers = [0; 68];
    client.copy_out("c", &mut integers).unwrap();
    assert_eq!(integers, [[0; 4].as_slice(), &[7; 61], &[0; 3]].concat()[..]);
    client.leave().unwrap();
}

const STEPS: u64 = 40;
/// Each worker's gradients are digits of this base.
const BASE: u64 = STEPS + 1;

/// If this fails, gradients are lost or doubled where shards of three servers move, so that the
/// replica of one is the primary of another.
#[test]
fn shards_of_three_servers_move_and_lose_nothing() {
    on_machine_with("pcie4 x 5", &["--procs", "5"], || {
        let tensors: Vec<_> = (0..6)
            .map(|index| tensor(&format!("layer{index}"), DataType::F32, 4000 - index))
            .collect();
        let model = Model::of("counted", tensors).unwrap();
        let job = Job {
            shards: 6,
            balance: Some(Duration::from_millis(100)),
            optimizer: Optimizer::Sgd { rate: 1.0 },
            memory: if launch().rank == 1 { Memory::Gpu } else { Memory::Host },
            ..Job::new(model, 3, 2)
        };
        if launch().rank < 3 {
            let served = Server::join(job, &launch(), &settings()).unwrap().run().unwrap();
            println!("{served:?}");
            assert_eq!(served.taken_over, 0, "{served:?}");
            return;
        }
        let client = Client::join(job, Role::Worker, &launch(), &settings()).unwrap();
        count_while_shards_move(client);
    });
}

fn count_while_shards_move(mut client: Client) {
    let worker = client.worker();
    let value = BASE.pow(worker as u32) as f32;
    let names: Vec<String> = (0..6).map(|index| format!("layer{index}")).collect();
    let values: Vec<_> = (0..6).map(|index| vec![value; 4000 - index]).collect();
    let gradients: Vec<_> =
        names.iter().zip(&values).map(|(name, values)| (name.as_str(), &values[..])).collect();
    let start = Instant::now();
    let first = client.primaries().unwrap();
    let mut has_moved = false;
    for step in 0..STEPS {
        client.push(&gradients).unwrap();
        // What one server leads is read until one of it has moved: each server in its turn.
        if step % 10 == 5 {
            read_hot(&mut client, &names, (step / 10) as usize % 3);
        }
        has_moved |= client.primaries().unwrap() != first;
    }
    client.settle().unwrap();
    let all = (0..2).map(|worker| STEPS * BASE.pow(worker)).sum::<u64>() as f32;
    loop {
        client.pull().unwrap();
        let read: Vec<_> = names.iter().map(|name| client.floats(name).unwrap()).collect();
        for (name, values) in names.iter().zip(&read) {
            assert!(values.iter().all(|value| *value == values[0]), "{name}: a torn read");
            assert!(-values[0] <= all, "{name}: {} of {all}", -values[0]);
        }
        if read.iter().all(|values| -values[0] == all) {
            break;
        }
        assert!(start.elapsed() < 6 * PATIENCE, "the other worker does not end");
    }
    assert!(has_moved, "no shard has moved");
    client.leave().unwrap();
}

/// How long one server's shards are read, at most: where the workers read those of two servers, no
/// move may help.
const HOT: Duration = Duration::from_secs(10);

/// Reads the shards that a server leads until one has moved. A server that leads only one keeps it.
fn read_hot(client: &mut Client, names: &[String], hot: usize) {
    let (before, start) = (client.primaries().unwrap(), Instant::now());
    if before.iter().filter(|primary| **primary == hot).count() < 2 {
        return;
    }
    while client.primaries().unwrap() == before && start.elapsed() < HOT {
        for name in names {
            let (shard, _) = client.place(name).unwrap();
            // One of them is the hottest, so that to move another one helps.
            for _ in (0..1 + usize::from(shard < 3)).filter(|_| before[shard] == hot) {
                client.read(name, 0, &mut [0; 15_000]).unwrap();
            }
        }
    }
}
