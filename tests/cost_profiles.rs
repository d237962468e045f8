//! Mutated profiles of the cost model.

#[path = "support/mutation.rs"]
mod mutation;

use mutation::{Campaign, corpus, mutate};
use ringdove::cost::Profile;
use std::cell::Cell;
use std::path::Path;

/// If this fails, a slip in somebody's profile crashes a program, or is no reason to refuse it.
#[test]
fn mutated_profiles_are_read_or_refused() {
    let campaign = Campaign {
        target: "--test cost_profiles",
        test: "mutated_profiles_are_read_or_refused",
        cases: 2000,
    };
    let read = Cell::new(0);
    let play = |bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return Ok(()) };
        match Profile::parse("mutated.toml", text) {
            Ok(_) => read.set(read.get() + 1),
            Err(error) => {
                let words = error.to_string();
                if !words.contains("mutated.toml") {
                    return Err(format!("an error without a place: {words}"));
                }
            }
        }
        Ok(())
    };
    let files = corpus(Path::new("src/cost/profiles"), "toml");
    campaign.replay(&files, play);
    assert_eq!(read.get(), files.len(), "every built-in profile is one");
    campaign.run(|rng| mutate(rng, &files), play);
}
