//! One transformer block, trained by a resident program: its gradients, and the bits of launches.

mod hardware;

use hardware::{World, on_machine, on_machine_with, settings, try_join_with};
use ringdove::Communicator;
use ringdove::program::network::{PARAMETERS, RATE, Transformer};
use ringdove::program::{Driven, Options, Resident, TileSize, verify_same};

const TOKENS: u32 = 12;
const MODEL: u32 = 16;

fn prepare<'c>(communicator: &'c Communicator, driven: Driven) -> Resident<'c> {
    let ranks = communicator.rank_count();
    let sizes = Transformer { tokens: TOKENS, model: MODEL, heads: 2, hidden: 24, ranks };
    let graph = sizes.step(TileSize { rows: 8, columns: 16 }).unwrap();
    let program = verify_same(graph.plan(3, 64).unwrap()).unwrap();
    let stream = communicator.context().new_stream().unwrap();
    let options = Options { driven, ..Options::default() };
    let resident = Resident::prepare(communicator, &program, options, &stream).unwrap();
    let mut random = fastrand::Rng::with_seed(70 + u64::from(communicator.rank()));
    for name in ["input", "target"] {
        let values: Vec<f32> = (0..TOKENS * MODEL).map(|_| random.f32() * 2.0 - 1.0).collect();
        resident.write(name, &values).unwrap();
    }
    // No token looks at those behind it.
    let hidden = |at: u32| if at % TOKENS > at / TOKENS { -1e9 } else { 0.0 };
    let mask: Vec<f32> = (0..TOKENS * TOKENS).map(hidden).collect();
    resident.write("mask", &mask).unwrap();
    let mut random = fastrand::Rng::with_seed(3);
    for name in PARAMETERS {
        let (rows, columns) = sizes.shape(name).unwrap();
        let around = if name.ends_with("factors") { 1.0 } else { 0.0 };
        let draw = |_| around + (random.f32() - 0.5) * 0.8;
        let values: Vec<f32> = (0..rows * columns).map(draw).collect();
        resident.write(name, &values).unwrap();
    }
    resident
}

/// Bits of losses and parameters after some steps.
fn train(communicators: &[Communicator], driven: Driven) -> Vec<(Vec<f32>, Vec<u32>)> {
    const STEPS: usize = 6;
    let mut all: Vec<_> = communicators.iter().map(|one| prepare(one, driven)).collect();
    for one in &mut all {
        one.set_parameter(RATE, 0.05).unwrap();
        one.start().unwrap();
    }
    // As few at a time as launches may be ahead.
    for _ in 0..STEPS / 2 {
        all.iter_mut().for_each(|one| one.run(2).unwrap());
        all.iter_mut().for_each(|one| one.wait().unwrap());
    }
    let end = |one: &mut Resident<'_>| {
        one.stop().unwrap();
        let losses = one.take().concat();
        assert_eq!(losses.len(), STEPS);
        let read = |name: &str| one.read(name).unwrap().into_iter().map(f32::to_bits);
        (losses, PARAMETERS.into_iter().flat_map(read).collect())
    };
    all.iter_mut().map(end).collect()
}

fn same_bits(communicators: &[Communicator]) {
    let resident = train(communicators, Driven::Resident);
    let launched = train(communicators, Driven::Launches);
    assert!(resident == launched, "resident programs and launches differ");
    let captured = train(communicators, Driven::Graphs);
    assert!(resident == captured, "resident programs and graphs of launches differ");
    assert!(resident.iter().all(|(_, bits)| *bits == resident[0].1), "ranks differ");
    let losses = &resident[0].0;
    assert!(losses[losses.len() - 1] < losses[0], "nothing is learnt: {losses:?}");
}

/// If this fails, a task of a larger program runs before what it needs.
#[test]
fn a_transformer_block_has_the_bits_of_launches() {
    on_machine("pcie4", || same_bits(&World::with(4, &settings()).communicators));
}

/// As above, between nodes.
#[test]
fn a_transformer_block_has_the_bits_of_launches_on_two_nodes() {
    on_machine_with("pcie4 x 2", &["--procs", "2"], || {
        same_bits(&try_join_with(2, settings()).unwrap());
    });
}

/// If this fails, an operator of the way back, or the graph, is wrong: gradients are not the slopes
/// of the loss.
#[test]
fn gradients_are_slopes_of_the_loss() {
    on_machine("one-gpu", || {
        const STEP: f32 = 0.01;
        let world = World::with(1, &settings());
        let mut one = prepare(&world.communicators[0], Driven::Resident);
        // At a rate of 0 the parameters stay.
        let loss = |one: &mut Resident<'_>| {
            one.start().unwrap();
            one.run(1).unwrap();
            one.pause().unwrap();
            one.take().concat()[0]
        };
        loss(&mut one);
        let gradients: Vec<Vec<f32>> = PARAMETERS
            .iter()
            .map(|name| one.read(&format!("gradients of {name}")).unwrap())
            .collect();
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut largest: f32 = 0.0;
        for (name, gradients) in PARAMETERS.iter().zip(&gradients) {
            let before = one.read(name).unwrap();
            for _ in 0..3 {
                let place = random.usize(0..before.len());
                let mut at = |step: f32| {
                    let mut values = before.clone();
                    values[place] += step;
                    one.write(name, &values).unwrap();
                    loss(&mut one)
                };
                let slope = (at(STEP) - at(-STEP)) / (2.0 * STEP);
                let seen = gradients[place];
                largest = largest.max(seen.abs());
                // A loss of some tens has 20 bits behind the point; its third derivative is small.
                let most = 2e-3 + 0.02 * slope.abs();
                assert!((slope - seen).abs() < most, "{name}[{place}]: {seen}, slope {slope}");
            }
            one.write(name, &before).unwrap();
        }
        assert!(largest > 0.02, "nothing has a slope: {largest}");
    });
}
