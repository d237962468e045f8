//! `ringdove plan`: plans as text and as files, and files that do not hold what they promise.

mod hardware;
#[path = "support/mutation.rs"]
mod mutation;

use hardware::ringdove;
use mutation::{Campaign, corpus, mutate};
use ringdove::plan::PlanFile;
use serde_json::Value;
use std::cell::Cell;
use std::path::Path;

fn plan(arguments: &[&str]) -> Result<String, String> {
    ringdove(&[&["plan"], arguments].concat())
}

fn checked(folder: &Path, document: &Value) -> Result<String, String> {
    let path = folder.join("changed.json");
    std::fs::write(&path, document.to_string()).unwrap();
    plan(&["check", path.to_str().unwrap()])
}

/// The published schema of plan files.
fn schema() -> jsonschema::Validator {
    let schema = serde_json::from_str(include_str!("../src/plan/plan.schema.json")).unwrap();
    jsonschema::draft202012::new(&schema).expect("a schema")
}

/// What is printed when a plan is made is what its file says, and the file fits its schema.
#[test]
fn every_collectives_plan_is_written_and_proved_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    let file = path.to_str().unwrap();
    let schema = schema();
    let collectives = [
        "all-reduce",
        "all-gather",
        "reduce-scatter",
        "broadcast",
        "reduce",
        "all-to-all",
        "gather",
        "scatter",
    ];
    for collective in collectives {
        for more in [&["-b", "96", "-n", "3"][..], &["-b", "1M", "-n", "4", "--nvlink"]] {
            let made = plan(&[&[collective, "--json", file], more].concat()).unwrap();
            let read = plan(&["check", file]).unwrap();
            let (choice, proved) = made.split_once('\n').unwrap();
            assert!(choice.starts_with(collective), "{choice}");
            assert_eq!(proved, read, "{collective}");
            let document = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            if let Err(error) = schema.validate(&document) {
                panic!("{collective}: {error} at {}", error.instance_path());
            }
        }
    }
}

/// Each change breaks the plan in its own way. If this fails, a wrong file passes.
#[test]
fn a_changed_plan_is_refused_with_the_place_and_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    plan(&["all-reduce", "-b", "256K", "-n", "4", "--json", path.to_str().unwrap()]).unwrap();
    let document: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    checked(folder.path(), &document).unwrap();

    let ops = "/plan/ranks/1/blocks/0/segments/0/ops";
    let count = document.pointer(ops).unwrap().as_array().unwrap().len();
    assert!(count > 10);
    for op in 0..count {
        let mut changed = document.clone();
        changed.pointer_mut(ops).unwrap().as_array_mut().unwrap().remove(op);
        let text = checked(folder.path(), &changed).expect_err(&format!("without op {op}"));
        assert!(text.contains("is refused: "), "without op {op}: {text}");
    }

    let changes: [(&str, Value, &str); 6] = [
        ("/format", 2.into(), "reads format 1"),
        ("/request/rank-count", 3.into(), "is refused: "),
        ("/request/collective", "all-gather".into(), "is refused: "),
        ("/request/reduce-op", "xor".into(), "expected one of sum prod"),
        ("/plan/thread-count", 33.into(), "a multiple of 32"),
        ("/plan/slots/bytes", 8.into(), "a multiple of 16"),
    ];
    for (place, value, reason) in changes {
        let mut changed = document.clone();
        *changed.pointer_mut(place).unwrap() = value;
        let text = checked(folder.path(), &changed).expect_err(place);
        assert!(text.contains(reason), "{place}: {text}");
    }
}

/// Work of switches fits the schema, and is refused by name. If this fails, somebody's plan for
/// NVLS is run without its reductions, or refused as a slip of the pen.
#[test]
fn work_of_switches_is_refused_as_planned() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    plan(&["all-reduce", "-b", "256K", "-n", "4", "--json", path.to_str().unwrap()]).unwrap();
    let document: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let place = serde_json::json!({"buffer": {"buffer": "output", "offset": 0}});
    let range = serde_json::json!({"extent": 0, "length": 4096});
    let schema = schema();
    for (name, word, memory) in
        [("multicast", "multicast", "source"), ("reduce", "reduction", "destination")]
    {
        let work = serde_json::json!({memory: place, "offset": 0, "range": range});
        let op = serde_json::json!({"in-switch": {name: work}});
        let mut changed = document.clone();
        let ops = changed.pointer_mut("/plan/ranks/2/blocks/0/segments/0/ops").unwrap();
        ops.as_array_mut().unwrap().insert(0, op);
        assert!(schema.is_valid(&changed), "{name}");
        let text = checked(folder.path(), &changed).expect_err(name);
        assert!(text.contains(&format!("{word} in a switch is planned")), "{text}");
        assert!(text.contains("rank 2"), "{text}");
    }
}

/// Numbers of any size, in every place: read and refused, or a plan that is still right.
#[test]
fn numbers_that_nobody_meant_are_refused() {
    fn numbers<'a>(value: &'a mut Value, found: &mut Vec<&'a mut Value>) {
        match value {
            Value::Number(_) => found.push(value),
            Value::Array(values) => values.iter_mut().for_each(|value| numbers(value, found)),
            Value::Object(map) => map.values_mut().for_each(|value| numbers(value, found)),
            _ => {}
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    plan(&["broadcast", "-b", "64K", "-n", "3", "--json", path.to_str().unwrap()]).unwrap();
    let document: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let seed = std::env::var("RINGDOVE_FUZZ_SEED").map_or(2026, |seed| seed.parse().unwrap());
    println!("RINGDOVE_FUZZ_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (schema, mut refused) = (schema(), 0);
    for _ in 0..60 {
        let mut changed = document.clone();
        let mut found = Vec::new();
        numbers(&mut changed, &mut found);
        let place = random.usize(0..found.len());
        *found[place] = match random.u8(0..4) {
            0 => u64::MAX.into(),
            1 => (u64::from(u32::MAX)).into(),
            2 => (-1).into(),
            _ => random.u32(0..1 << 20).into(),
        };
        let fits = schema.is_valid(&changed);
        match checked(folder.path(), &changed) {
            Ok(text) => assert!(fits && text.starts_with("proved"), "{text}"),
            Err(text) => {
                assert!(fits || text.contains("is no plan: "), "no plan by its schema: {text}");
                assert!(text.contains("is refused: ") || text.contains("is no plan: "), "{text}");
                refused += 1;
            }
        }
    }
    assert!(refused > 20, "{refused}");
}

/// If this fails, a file of somebody crashes a program that reads it, or an error has no reason.
#[test]
fn mutated_plans_are_proved_or_refused() {
    let campaign = Campaign {
        target: "--test plan_files",
        test: "mutated_plans_are_proved_or_refused",
        cases: 15000,
    };
    let folder = tempfile::tempdir().unwrap();
    for (collective, bytes, ranks) in [
        ("all-reduce", "4K", "3"),
        ("broadcast", "64K", "3"),
        ("gather", "96", "4"),
        ("all-to-all", "1K", "2"),
    ] {
        let path = folder.path().join(format!("{collective}.json"));
        let path = path.to_str().unwrap();
        plan(&[collective, "-b", bytes, "-n", ranks, "--json", path]).unwrap();
    }
    let files = corpus(folder.path(), "json");
    let proved = Cell::new(0);
    let play = |bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return Ok(()) };
        let words = match PlanFile::read(text) {
            Ok(None) => return Ok(()),
            Ok(Some(file)) => file.prove().map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match words {
            Ok(_) => proved.set(proved.get() + 1),
            Err(words) if words.is_empty() || words.contains("internal") => {
                return Err(format!("an error without a reason: {words:?}"));
            }
            Err(_) => {}
        }
        Ok(())
    };
    campaign.replay(&files, play);
    assert_eq!(proved.get(), files.len());
    campaign.run(|rng| mutate(rng, &files), play);
    println!("{} were proved", proved.get());
}
