//! The committed executor on the weak memory: fixed seeds, and fresh ones.

use hwsim_explore::scenario::{load, run};
use hwsim_explore::{Options, Scenario};
use ringdove_kernels::ptx::EXECUTOR;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Seeds of each scenario that are the same each time.
const FIXED: u64 = 40;
/// How long fresh ones are tried.
const FRESH: Duration = Duration::from_secs(5);

/// If this fails, the device code loses data, hangs, or lets a wait fail in an order of events that
/// PTX's memory model allows. The message ends with the command that replays it.
#[test]
fn the_executor_survives_every_fixed_seed() {
    let kernel = load(EXECUTOR).unwrap();
    for scenario in [Scenario::Ring, Scenario::Stores, Scenario::LowLatency] {
        for seed in 0..FIXED {
            if let Err(failure) = run(&kernel, Options::draw(scenario, seed)) {
                panic!("{failure}");
            }
        }
    }
}

/// The same with seeds that nobody has tried.
#[test]
fn the_executor_survives_fresh_seeds() {
    let kernel = load(EXECUTOR).unwrap();
    let began = SystemTime::now();
    let first = began.duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    for seed in first.. {
        if let Err(failure) = run(&kernel, Options::draw(Scenario::Random, seed)) {
            panic!("{failure}");
        }
        if began.elapsed().is_ok_and(|elapsed| elapsed > FRESH) {
            break;
        }
    }
}

/// If this fails, a seed that is printed does not replay what failed.
#[test]
fn a_seed_replays_exactly() {
    let kernel = load(EXECUTOR).unwrap();
    for seed in 0..6 {
        let options = Options::draw(Scenario::Random, seed);
        let first = run(&kernel, options).map_err(|failure| failure.to_string());
        let second = run(&kernel, options).map_err(|failure| failure.to_string());
        assert_eq!(first, second);
        assert!(first.unwrap().instructions > 0);
    }
}
