//! Mutated topology files of NCCL's.

#[path = "support/mutation.rs"]
mod mutation;

use mutation::{Campaign, corpus, mutate};
use ringdove::topology::machine::Machine;
use std::cell::Cell;
use std::path::Path;

/// If this fails, a slip in somebody's topology file crashes a program, is no reason to refuse it,
/// or a machine that was read from one is another one once it was written and read again.
#[test]
fn mutated_topology_files_are_read_or_refused() {
    let campaign = Campaign {
        target: "-p ringdove --test topology_files",
        test: "mutated_topology_files_are_read_or_refused",
        cases: 1000,
    };
    let read = Cell::new(0);
    let play = |bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return Ok(()) };
        let machine = match Machine::from_nccl(text) {
            Ok(machine) => machine,
            Err(error) => {
                let words = error.to_string();
                return match words.contains("line") {
                    true => Ok(()),
                    false => Err(format!("an error without a line: {words}")),
                };
            }
        };
        read.set(read.get() + 1);
        match Machine::from_nccl(&machine.to_nccl()) {
            Ok(again) if again == machine => Ok(()),
            Ok(again) => Err(format!("written and read again: {again:?}, before: {machine:?}")),
            Err(error) => Err(format!("what was written is refused: {error}")),
        }
    };
    let files = corpus(Path::new("tests/fixtures/topology"), "xml");
    campaign.replay(&files, play);
    assert_eq!(read.get(), files.len(), "every file is a topology");
    campaign.run(|rng| mutate(rng, &files), play);
    assert!(read.get() > files.len(), "no mutated file is read");
}
