//! Mutated machine files: a file is refused with its place and reason, or is a machine that answers
//! every question, in bounded time and memory. If this fails, a slip in a file takes down every
//! program that is started with it.
//!
//! See `tests/support/mutation.rs` at the root for the variables that make it longer, or play one
//! case again.

#[path = "../../../tests/support/mutation.rs"]
mod mutation;

use hwsim_machine::description::{ADAPTERS_MAX, Description, ENGINES_MAX};
use mutation::{Campaign, corpus, mutate};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::cell::Cell;
use std::path::Path;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// All that one file may ask for, freed or not.
const ALLOCATED_MAX: usize = 256 << 20;

/// Asks a machine what programs ask, of each GPU and each pair of them.
fn interrogate(machine: &Description) -> Result<(), String> {
    let gpus = machine.gpus.len();
    if !(1..=64).contains(&gpus) || !(1..=1024).contains(&machine.nodes) {
        return Err(format!("{gpus} GPUs, {} nodes", machine.nodes));
    }
    if machine.adapters.len() > ADAPTERS_MAX || machine.engines.len() > ENGINES_MAX {
        return Err("more adapters or engines than fit the fabric".into());
    }
    for (a, b) in (0..gpus).flat_map(|a| (0..gpus).map(move |b| (a, b))) {
        let same = machine.pci_path(a, b) == machine.pci_path(b, a)
            && machine.nv_link_count(a, b) == machine.nv_link_count(b, a)
            && machine.peer_access(a, b) == machine.peer_access(b, a);
        if !same {
            return Err(format!("GPUs {a} and {b} see one another in different ways"));
        }
    }
    for link in machine.all_links() {
        if !(link.gb_per_s > 0.0 && link.gb_per_s.is_finite()) {
            return Err(format!("a link of {} GB/s", link.gb_per_s));
        }
        for end in link.ends {
            machine.node_name(end);
        }
    }
    let last = machine.clone().at_node(machine.nodes - 1);
    let mut uuids: Vec<String> = last.gpus.iter().map(|gpu| gpu.uuid_text()).collect();
    uuids.sort_unstable();
    uuids.dedup();
    if uuids.len() != gpus {
        return Err("two GPUs with one UUID".into());
    }
    Ok(())
}

fn play(bytes: &[u8], accepted: &Cell<u64>) -> Result<(), String> {
    let before = Region::new(ALLOCATOR);
    let outcome = match std::str::from_utf8(bytes) {
        // What a file holds that is no text is said by who reads it.
        Err(_) => Ok(()),
        Ok(text) => match Description::parse(text, "mutated.toml") {
            Ok(machine) => {
                accepted.set(accepted.get() + 1);
                interrogate(&machine)
            }
            Err(error) => {
                let words = error.to_string();
                let fits =
                    words.starts_with("mutated.toml:") && words.len() < 2 * bytes.len() + 400;
                if fits { Ok(()) } else { Err(format!("an error without a place: {words}")) }
            }
        },
    };
    let allocated = before.change().bytes_allocated;
    if allocated > ALLOCATED_MAX {
        return Err(format!(
            "{allocated} bytes were allocated, at most {ALLOCATED_MAX} are needed"
        ));
    }
    outcome
}

/// One test, because what it allocates is counted over the process.
#[test]
fn mutated_machine_files_are_machines_or_refused() {
    let campaign = Campaign {
        target: "-p hwsim-machine --test fuzz",
        test: "mutated_machine_files_are_machines_or_refused",
        cases: 3000,
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = corpus(&root.join("machines"), "toml");
    let accepted = Cell::new(0);
    campaign.replay(&files, |bytes| play(bytes, &accepted));
    assert_eq!(accepted.get(), files.len() as u64, "every built-in machine is one");
    files.extend(corpus(&root.join("tests/corpus"), "toml"));
    campaign.replay(&files, |bytes| play(bytes, &accepted));
    accepted.set(0);
    campaign.run(|rng| mutate(rng, &files), |bytes| play(bytes, &accepted));
    println!("{} of them are machines", accepted.get());
}

/// A file of bytes that are no text is refused like any other, and so is a file without an end.
#[test]
fn files_that_are_no_text_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("machine.toml");
    std::fs::write(&path, b"name = \"\xff\"").unwrap();
    let error = Description::load(&path).unwrap_err().to_string();
    assert!(error.contains("machine.toml: cannot be read"), "{error}");
    let error = Description::load(Path::new("/dev/zero")).unwrap_err().to_string();
    assert!(error.contains("/dev/zero: cannot be read"), "{error}");
}
