//! Output of the command.

use super::super::{Operation, PredictError, Scene, all_reduce, json, p2p, plot, predict, table};
use super::a100::{parse, try_parse};
use hwsim_timing::p2p::{Stream, measure};
use serde_json::Value;

fn all_reduce_arguments(line: &str) -> super::super::AllReduceArguments {
    match parse(line).operation {
        Operation::AllReduce(arguments) => arguments,
        _ => panic!("{line} is no all-reduce"),
    }
}

/// If this fails, a modelled number passes for a measured one.
#[test]
fn everything_that_is_written_says_that_it_is_modelled_and_with_which_profile() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let outputs = format!(
        "--json {} --plot {} --trace {}",
        path("out.json"),
        path("out.svg"),
        path("trace.json")
    );
    for operation in ["all-reduce -b 8K -e 64K --table", "p2p -b 64 -e 4K --engine device"] {
        predict(&parse(&format!("{operation} {outputs}"))).expect("it predicts");
        for name in ["out.json", "out.svg", "trace.json"] {
            let text = std::fs::read_to_string(path(name)).expect(name);
            assert!(text.contains("modelled, profile ark-v100"), "{operation}: {name}");
        }
        let trace: Value =
            serde_json::from_str(&std::fs::read_to_string(path("trace.json")).expect("written"))
                .expect("JSON");
        let events = trace["traceEvents"].as_array().expect("a list");
        for group in ["GPU blocks", "engines", "links"] {
            let named = |event: &&Value| {
                let name = event["args"]["name"].as_str().unwrap_or("");
                event["name"] == "process_name" && name.starts_with(group)
            };
            let pid = &events.iter().find(named).expect("a named group")["pid"];
            let spans = events.iter().filter(|it| it["pid"] == *pid && it["ts"].is_number());
            assert!(spans.count() > 0, "{operation}: nothing happens in {group}");
        }
    }
    let arguments = all_reduce_arguments("all-reduce");
    let scene = Scene::new(&arguments.common).expect("built in");
    let header = table::header(&scene, &arguments.common, "all-reduce", Some(true));
    assert!(header.contains("# modelled, profile ark-v100"), "{header}");
}

/// Programs that read nccl-tests' table find its columns where they are used to.
#[test]
fn the_table_has_the_columns_of_nccl_tests() {
    let arguments = all_reduce_arguments("all-reduce -b 1M -e 1M");
    let scene = Scene::new(&arguments.common).expect("built in");
    let job = super::super::Job {
        scene: &scene,
        arguments: &arguments,
        ranks: 4,
        bytes: 1 << 20,
        forest: None,
    };
    let line = table::all_reduce_row(&job.row().expect("a plan"), 4);
    let columns: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(columns[..5], ["1048576", "262144", "float", "sum", "-1"]);
    let number = |column: usize| columns[column].parse::<f64>().expect("a number");
    let (time, algorithm, bus) = (number(5), number(6), number(7));
    assert!((algorithm - 1048576.0 / time / 1e3).abs() < 0.006, "{line}");
    assert!((bus - 1.5 * algorithm).abs() < 0.02, "{line}");
    assert_eq!(columns[8], "N/A", "nothing was checked");
    assert_eq!(columns[9..13], columns[5..9], "in place is the same plan");
}

/// If this fails, a column shows what nobody computed.
#[test]
fn in_place_is_computed_where_its_programs_differ() {
    let row = |line: &str| {
        let arguments = all_reduce_arguments(line);
        let scene = Scene::new(&arguments.common).expect("built in");
        let job = super::super::Job {
            scene: &scene,
            arguments: &arguments,
            ranks: 4,
            bytes: 4 << 20,
            forest: None,
        };
        job.row().expect("a plan")
    };
    assert!(row("all-reduce --algorithm selected").in_place.is_none(), "the same programs");
    // Symmetric rings push out of place, and pull in place.
    assert!(row("all-reduce --algorithm selected -R").in_place.is_some(), "other programs");
    // In place, the first half of the ring of engines goes through slots.
    let row = row("all-reduce --algorithm selected --table -R");
    let (out, inside) = (&row.out_of_place, row.in_place.as_ref().expect("other programs"));
    assert!(inside.outcome.end > out.outcome.end, "{} in place", inside.outcome.end);
    let line = table::all_reduce_row(&row, 4);
    let columns: Vec<&str> = line.split_whitespace().collect();
    assert_ne!(columns[9..12], columns[5..8], "{line}");
}

/// If this fails, a machine is priced with the constants of another.
#[test]
fn the_profile_is_the_one_for_the_machines_gpus_unless_another_is_named() {
    for (line, expected) in [
        ("all-reduce -m dgx-a100", "a100"),
        ("all-reduce -m dgx1v", "ark-v100"),
        ("all-reduce -m dgx-a100 -p ark-v100", "ark-v100"),
    ] {
        let scene = Scene::new(&all_reduce_arguments(line).common).expect("built in");
        assert_eq!(scene.profile.name, expected, "{line}");
    }
}

/// If this fails, a machine's engines are priced as others than its file describes.
#[test]
fn device_engines_have_the_limits_that_the_machine_file_gives_them() {
    let ark = include_str!("../../../../machine/machines/ark.toml");
    let mine = "gb_per_s = 6.0\nsub_request_bytes = 4096\nin_flight_max = 2\nlane_depth = 128";
    let text = ark.replacen("gb_per_s = 12.66", mine, 1);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("mine.toml");
    std::fs::write(&path, text).expect("written");
    let device = |machine: &str| {
        let arguments = all_reduce_arguments(&format!("all-reduce --engine device -m {machine}"));
        Scene::new(&arguments.common).expect("a machine").profile.device
    };
    let (usual, own) = (device("ark"), device(&path.display().to_string()));
    assert_eq!((usual.sub_request, usual.in_flight, usual.lane_depth), (20480, 64, 64));
    assert_eq!((own.sub_request, own.in_flight, own.lane_depth), (4096, 2, 64), "the least of all");
    assert_eq!((usual.unit.gb_per_s(), own.unit.gb_per_s()), (12.66, 6.0));
}

/// If this fails, small all-reduces are priced as a plan that the library does not run for them.
#[test]
fn below_the_low_latency_size_the_selected_plan_sends_low_latency_messages() {
    let time = |options: &str| {
        let line = format!("all-reduce --algorithm selected --table {options}");
        let arguments = all_reduce_arguments(&line);
        let scene = Scene::new(&arguments.common).expect("built in");
        let job = super::super::Job {
            scene: &scene,
            arguments: &arguments,
            ranks: 4,
            bytes: 8192,
            forest: None,
        };
        job.best(false).expect("a plan").outcome.end
    };
    let (all_pairs, doubling) = (time(""), time("--low-latency-bytes 0"));
    let (one, two) = (all_pairs.times(3), doubling.times(2));
    assert!(two > one, "one hop {all_pairs}, two hops {doubling}");
}

#[test]
fn json_and_plots_hold_every_point() {
    let arguments = match parse("p2p -b 64 -e 1K -f 4").operation {
        Operation::P2p(arguments) => arguments,
        _ => panic!("a p2p"),
    };
    let common = &arguments.common;
    let scene = Scene::new(common).expect("built in");
    let point = |bytes| {
        let stream = Stream { from: 0, to: 1, bytes, count: 1, window: 8, contiguous: false };
        measure(scene.setup(common), stream).expect("fits")
    };
    let points: Vec<_> = common.sizes().expect("sizes").into_iter().map(point).collect();
    assert_eq!(points.iter().map(|it| it.bytes).collect::<Vec<_>>(), [64, 256, 1024]);
    let document: Value = serde_json::from_str(&json::p2p(&scene, common, &points)).expect("JSON");
    assert_eq!(document["results"].as_array().map(Vec::len), Some(3));
    assert_eq!(document["modelled"], true);
    assert!(plot::p2p(&scene, common, &points).expect("draws").starts_with("<svg"));
}

/// If this fails, a size of thousands of ranks that does not fold runs for many minutes.
#[test]
fn more_ops_than_the_bound_are_refused_before_they_are_played() {
    let arguments = all_reduce_arguments("all-reduce -b 1M -e 2M --ops-max 1000");
    let error = all_reduce(&arguments).expect_err("each size has more ops").to_string();
    assert!(error.contains("at most 1000") && error.contains("--ops-max"), "{error}");
    let error = match parse("p2p --nodes 1048576").operation {
        Operation::P2p(arguments) => p2p(&arguments).expect_err("too many GPUs").to_string(),
        _ => panic!("p2p was asked for"),
    };
    assert!(error.contains("at most 131072, got 1048576 nodes of 4 GPUs"), "{error}");
}

/// If this fails, a slip on the command line is obeyed instead of refused.
#[test]
fn flags_out_of_range_are_refused_with_what_would_do() {
    let refuse = |line: &str| predict(&parse(line)).expect_err(line).to_string();
    let cases = [
        ("all-reduce -b 0", "--minimum: expected at least 1, got 0"),
        ("all-reduce -b 2M -e 1M", "--maximum: expected no less than --minimum"),
        ("all-reduce -f 1", "--factor: expected at least 2, got 1"),
        ("all-reduce -g 5", "--ranks: expected 2 to 4, the GPUs of pcie4, got 5"),
        ("experts -g 12", "--ranks: expected 2 to 8, or whole nodes of 8 up to 1024, got 12"),
        ("experts --engine stores", "--engine: expected proxy or device, got stores"),
        ("experts -H 7", "bytes of a token"),
        ("all-reduce -m nothing", "unknown machine `nothing`"),
        ("all-reduce -p nothing", "unknown profile `nothing`"),
        ("all-reduce -g 3 --algorithm halving", "no plan: ranks: expected a power of two"),
        ("all-reduce --slots 3", "slots of a lane: expected a power of two"),
        ("all-reduce --nodes 0", "nodes: expected at least 1, got 0"),
        ("all-reduce --adapter=-1 --nodes 2", "adapter rate: expected more than 0 GB/s, got -1"),
        ("p2p --to 9", "--to: expected less than 4, the GPUs of pcie4, got 9"),
        ("p2p --to 0", "--to: expected another GPU than --from, got 0"),
        ("p2p --window 0", "--window: expected 1 to 4096, got 0"),
    ];
    for (line, expected) in cases {
        let error = refuse(line);
        assert!(error.contains(expected), "{line}: {error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("without-stores.toml");
    let text = include_str!("../../../../timing/profiles/ark-v100.toml");
    let (before, rest) = text.split_once("[stores]\n").expect("the section");
    let (_, after) = rest.split_once("[links]\n").expect("the next one");
    std::fs::write(&profile, format!("{before}[links]\n{after}")).unwrap();
    for options in ["--engine stores", "--engine proxy"] {
        let error = refuse(&format!("all-reduce {options} -p {}", profile.display()));
        assert!(error.contains("has no section [stores]"), "{options}: {error}");
    }
    for blocks in ["0", "1025"] {
        let error = try_parse(&format!("all-reduce --blocks {blocks}")).map(drop);
        let error = error.unwrap_err().to_string();
        assert!(error.contains(&format!("{blocks} is not in 1..=1024")), "{error}");
    }
    let error = PredictError::Flag { flag: "-b", expected: "x".into(), seen: "y".into() };
    assert_eq!(error.to_string(), "-b: expected x, got y");
}
