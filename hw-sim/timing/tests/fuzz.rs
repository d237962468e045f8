//! Mutated timing profiles: a profile is refused with its key and reason, or gives times, in
//! bounded time. If this fails, a slip in a profile crashes the prediction, or makes it never end.
//!
//! See `tests/support/mutation.rs` at the root for the variables that make it longer, or play one
//! case again.

#[path = "../../../tests/support/mutation.rs"]
mod mutation;
mod worlds;

use hwsim_timing::p2p::Stream;
use hwsim_timing::{Engine, Machine, Network, Profile, RankProgram, Setup, simulate};
use mutation::{Campaign, Input, corpus, mutate};
use ringdove::plan::Pattern;
use std::cell::Cell;
use std::path::Path;
use worlds::{draft, nvswitch, programs};

/// Programs that the profiles are used for.
fn worlds() -> Vec<Vec<RankProgram>> {
    let stream = Stream { from: 0, to: 1, bytes: 3000, count: 4, window: 2, contiguous: true };
    vec![stream.programs(), programs(&draft(Pattern::Halving, 4, 6144, 1))]
}

/// Predicts with every engine, on one node and on two.
fn predict(profile: &Profile, worlds: &[Vec<RankProgram>]) -> Result<(), String> {
    for (nodes, gpus) in [(1, 4), (2, 2)] {
        let machine = Machine::new(&nvswitch(gpus), nodes, Network::default(), profile);
        let machine = machine.map_err(|error| format!("{nodes} nodes: {error}"))?;
        for (name, engine) in Engine::ALL {
            for programs in worlds {
                // An error says what the profile cannot do; a time has to be one.
                let Ok(outcome) = simulate(Setup::new(&machine, profile, engine), programs) else {
                    continue;
                };
                let seconds = outcome.end.seconds();
                if !(0.0..1e6).contains(&seconds) {
                    return Err(format!("{name}: {seconds} seconds"));
                }
            }
        }
    }
    Ok(())
}

fn play(bytes: &[u8], worlds: &[Vec<RankProgram>], accepted: &Cell<u64>) -> Result<(), String> {
    let Ok(text) = std::str::from_utf8(bytes) else { return Ok(()) };
    match Profile::parse(text, "mutated.toml") {
        Ok(profile) => {
            accepted.set(accepted.get() + 1);
            predict(&profile, worlds)
        }
        Err(error) => {
            let words = error.to_string();
            let fits = words.starts_with("mutated.toml: ") && words.len() < 2 * bytes.len() + 400;
            if fits { Ok(()) } else { Err(format!("an error without a place: {words}")) }
        }
    }
}

#[test]
fn mutated_profiles_give_times_or_are_refused() {
    let campaign = Campaign {
        target: "-p hwsim-timing --test fuzz",
        test: "mutated_profiles_give_times_or_are_refused",
        cases: 1000,
    };
    let worlds = worlds();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<Input> = corpus(&root.join("profiles"), "toml");
    let accepted = Cell::new(0);
    campaign.replay(&files, |bytes| play(bytes, &worlds, &accepted));
    assert_eq!(accepted.get(), files.len() as u64, "every built-in profile is one");
    files.extend(corpus(&root.join("tests/corpus"), "toml"));
    campaign.replay(&files, |bytes| play(bytes, &worlds, &accepted));
    accepted.set(0);
    campaign.run(|rng| mutate(rng, &files), |bytes| play(bytes, &worlds, &accepted));
    println!("{} of them are profiles", accepted.get());
}

/// If this fails, a prediction on a device in the place of a profile eats all memory.
#[test]
fn a_file_without_an_end_is_refused() {
    let error = Profile::find("/dev/zero").unwrap_err().to_string();
    assert!(error.contains("/dev/zero: cannot be read"), "{error}");
}
