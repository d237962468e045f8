//! Faults that `hwsim explore --fault` is given: texts that nobody meant are refused with words,
//! and those that are read are faults like any, in every scenario.

#[path = "../../../tests/support/mutation.rs"]
mod mutation;

use hwsim_explore::{Fault, Kernels, Options, Scenario, scenario};
use mutation::{Campaign, Input, mutate};
use std::cell::Cell;

/// One of each form, and of several numbers.
const CORPUS: &[&str] = &[
    "gpu0:stop-at=900",
    "gpu1:clock-leaps-at=3:-250",
    "engine1:stall-after=20",
    "engine0:link-down-after=3",
    "engine0:fetch-fault-after=1",
    "rank1:kill-at=2000",
    "rank0:abort-at=9",
    "rank1:no-alarm",
    "rank0:stray-claim-at=4",
    "rank1:ring-garbage-at=7",
    "rank1:bad-op=2:7",
    "rank0:bad-port=1",
    "rank1:partition-at=700",
    "rank0:connections-reset-at=80",
    "rank1:no-answer-at=12",
    "rank0:late",
    "rank1:disagrees",
    "rank0:no-call",
    "hwsim1:reset-at=400",
    "hwsim0:no-queue-pairs-at=1",
    "hwsim0:loss-at=3",
    "hwsim1:port-flap=2:3",
    "hwsim0:delay=40",
];

/// Scenarios whose runs take milliseconds, one of each kind.
const SCENARIOS: [&str; 8] =
    ["abort", "user", "members", "communicators", "connections", "collectives", "device", "words"];

/// Reads a fault, and has it in a run of each kind that takes it.
fn play(bytes: &[u8], tried: &Cell<u64>) -> Result<(), String> {
    let Ok(text) = std::str::from_utf8(bytes) else { return Ok(()) };
    let fault: Fault = match text.parse() {
        Ok(fault) => fault,
        Err(words) if words.contains("expected gpuN") || words.contains("no run here") => {
            return Ok(());
        }
        Err(words) => return Err(format!("refused without what there is: {words}")),
    };
    if fault.to_string().parse() != Ok(fault) {
        return Err(format!("printed as {fault}, which is another one"));
    }
    let kernels = Kernels::committed();
    for name in SCENARIOS {
        let scenario = Scenario::named(name).expect("there is such a scenario");
        let mut options = Options::draw(scenario, bytes.len() as u64 + tried.get());
        match options.add_fault(fault) {
            Ok(()) => {}
            Err(words) if words.is_empty() => return Err("refused without words".to_owned()),
            Err(_) => continue,
        }
        tried.set(tried.get() + 1);
        scenario::run(&kernels, &options).map_err(|failure| {
            format!("a fault fails the run: {}\nhwsim explore {}", failure.reason, failure.replay())
        })?;
    }
    Ok(())
}

#[test]
fn mutated_faults_are_refused_or_borne() {
    let campaign = Campaign {
        target: "-p hwsim-explore --test fault_lists",
        test: "mutated_faults_are_refused_or_borne",
        cases: 300,
    };
    let inputs: Vec<_> = CORPUS
        .iter()
        .map(|text| Input { name: (*text).to_owned(), bytes: (*text).into() })
        .collect();
    let tried = Cell::new(0);
    campaign.replay(&inputs, |bytes| play(bytes, &tried));
    let of_corpus = tried.get();
    assert!(of_corpus > CORPUS.len() as u64, "{of_corpus} runs of the corpus");
    campaign.run(|rng| mutate(rng, &inputs), |bytes| play(bytes, &tried));
    println!("{} runs had a fault", tried.get());
}
