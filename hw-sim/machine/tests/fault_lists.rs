//! Mutated lists of faults: `hwsim run` refuses a list with its entry and what was expected, or
//! every device and process reads it. If this fails, a slip in a list ends a program by a panic, or
//! a fault that was asked for does not strike.
//!
//! See `tests/support/mutation.rs` at the root for the variables that make it longer, or play one
//! case again.

#[path = "../../../tests/support/mutation.rs"]
mod mutation;

use hwsim_machine::adapter::fault::AdapterFaults;
use hwsim_machine::engine::fault::EngineFaults;
use hwsim_machine::fault::{ProcessFaults, check_list, needs_libc, switch_faults};
use mutation::{Campaign, Input, mutate};
use std::cell::Cell;

/// What has failed once, and lists of all faults.
const CORPUS: &str = include_str!("corpus/faults.txt");

/// Does a reader refuse, and with which words?
fn refusals(list: &str) -> Vec<String> {
    let adapter = AdapterFaults::new(0, "hwsim0", &[], list).map(drop);
    let engine = EngineFaults::new(1, "engine0", &[], list).map(drop);
    let process = ProcessFaults::new(list, 1, 0).map(|faults| {
        let all = (0..9).filter(|call| faults.kills_at(*call) || faults.freezes_at(*call));
        let _ = (all.count(), faults.up_to(u64::MAX, 1, 1));
    });
    // What a program may switch on is less than what there is.
    let switched = switch_faults(list).or_else(|why| match check_list(list) {
        Ok(()) if why.contains("while a program runs") => Ok(()),
        _ => Err(why),
    });
    [adapter, engine, process, switched].into_iter().filter_map(Result::err).collect()
}

fn play(bytes: &[u8], accepted: &Cell<u64>) -> Result<(), String> {
    // Variables that are no text count as absent.
    let Ok(list) = std::str::from_utf8(bytes) else { return Ok(()) };
    let _ = needs_libc(list);
    let refusals = refusals(list);
    match check_list(list) {
        // Entries of a kind that names another kind's device: the device says so itself.
        Ok(()) => accepted.set(accepted.get() + 1),
        Err(words) if words.contains("expected") && words.contains("found `") => {}
        Err(words) => return Err(format!("an error without its entry: {words}")),
    }
    match refusals.iter().find(|words| !words.contains("expected") || !words.contains("found `")) {
        None => Ok(()),
        Some(words) => Err(format!("an error without its entry: {words}")),
    }
}

#[test]
fn mutated_lists_of_faults_are_read_or_refused() {
    let campaign = Campaign {
        target: "-p hwsim-machine --test fault_lists",
        test: "mutated_lists_of_faults_are_read_or_refused",
        cases: 5000,
    };
    let lines = CORPUS.lines().enumerate();
    let inputs: Vec<_> = lines
        .map(|(number, line)| Input { name: format!("line {}", number + 1), bytes: line.into() })
        .collect();
    let accepted = Cell::new(0);
    campaign.replay(&inputs, |bytes| play(bytes, &accepted));
    assert_eq!(accepted.get(), inputs.len() as u64, "every list of the corpus is one");
    for input in &inputs {
        let list = std::str::from_utf8(&input.bytes).unwrap();
        assert_eq!(refusals(list), Vec::<String>::new(), "{list}");
    }
    accepted.set(0);
    campaign.run(|rng| mutate(rng, &inputs), |bytes| play(bytes, &accepted));
    println!("{} of them are lists", accepted.get());
}
