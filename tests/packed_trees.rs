//! Collectives along trees that are packed into a machine's NVLinks (`RINGDOVE_ALGORITHM=trees`):
//! results on every part of the mesh, behind NVSwitches and on two nodes, and what happens where
//! there are no such trees.
//!
//! Of the parts of the mesh a sample runs; `RINGDOVE_TEST_PARTS=all` runs every one that NVLink
//! connects (180), and `RINGDOVE_TEST_SEED` chooses another sample.

#[path = "collectives/case.rs"]
mod case;
mod hardware;
#[path = "collectives/told.rs"]
mod told;

use case::{Case, check};
use hardware::every::along_links;
use hardware::perf::{Ended, assert_right, on_real_hardware, perf};
use hardware::{World, on_machine_env, on_virtual, run_bounded, settings, tool};
use ringdove::{Algorithms, Collective, DataType, ReduceOp, Settings};
use told::told;

const PARTS: &str = "RINGDOVE_TEST_PARTS";
const SEED: &str = "RINGDOVE_TEST_SEED";
/// Parts of the mesh in a sample.
const SAMPLE: usize = 6;

fn with_trees() -> Settings {
    Settings { algorithm: Algorithms::Trees, low_latency_bytes: 0, ..settings() }
}

/// Each collective with these counts, out of place and in place; all of them go along trees.
fn check_all(world: &World, root: u32, counts: &[usize]) {
    let seen = told("algorithm", || {
        for collective in along_links(root) {
            for &count in counts {
                for in_place in [false, true] {
                    check(world, Case { in_place, ..Case::new(collective, count) });
                }
            }
        }
    });
    assert_eq!(seen, ["\"packed trees\""; 5]);
}

/// Links of the mesh, whatever their number.
const MESH: [(u32, u32); 16] = [
    (0, 3),
    (0, 4),
    (1, 2),
    (1, 5),
    (2, 3),
    (4, 7),
    (5, 6),
    (6, 7),
    (0, 1),
    (0, 2),
    (1, 3),
    (2, 6),
    (3, 7),
    (4, 5),
    (4, 6),
    (5, 7),
];

/// Do NVLinks of the mesh connect these GPUs, a bit for each?
fn is_connected(part: u32) -> bool {
    let mut reached = part & part.wrapping_neg();
    for _ in 0..8 {
        for (a, b) in MESH {
            let both = 1 << a | 1 << b;
            if part & both == both && reached & both != 0 {
                reached |= both;
            }
        }
    }
    reached == part
}

fn numbers(part: u32) -> Vec<usize> {
    (0..8).filter(|gpu| part >> gpu & 1 == 1).collect()
}

/// All eight GPUs of the mesh, and parts of it of three to seven. Others have no trees, and their
/// plans are those that they had.
#[test]
fn every_part_of_the_mesh_gets_right_results() {
    on_machine_env("dgx1v", &[], &[], || {
        let seed: u64 = std::env::var(SEED).map_or(17, |seed| seed.parse().unwrap());
        println!("{SEED}={seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut parts: Vec<u32> =
            (0..256).filter(|part: &u32| (3..8).contains(&part.count_ones())).collect();
        assert_eq!(parts.len(), 218);
        let connected = parts.iter().filter(|part| is_connected(**part)).count();
        assert_eq!(connected, 180);
        if std::env::var(PARTS).is_ok_and(|parts| parts == "all") {
            println!("all {} parts", parts.len());
        } else {
            random.shuffle(&mut parts);
            let mut kept = [0, 0];
            parts.retain(|part| {
                let kept = &mut kept[usize::from(is_connected(*part))];
                *kept += 1;
                *kept <= if is_connected(*part) { SAMPLE } else { 1 }
            });
        }
        for part in std::iter::once(255).chain(parts) {
            let gpus = numbers(part);
            println!("GPUs {gpus:?}");
            let contexts: Vec<_> =
                gpus.iter().map(|gpu| ringdove::open_device(*gpu).unwrap()).collect();
            let world = World::on(&contexts, &with_trees());
            let root = random.u32(..gpus.len() as u32);
            match is_connected(part) {
                true => check_all(&world, root, &[1, 20_011]),
                false => {
                    let seen = told("algorithm", || {
                        check(&world, Case::new(Collective::AllReduce, 20_011))
                    });
                    assert!(seen.len() == 1 && !seen[0].contains("trees"), "{seen:?}");
                }
            }
        }
    });
}

/// Many rounds, in which slots are used again and again; every type and reduction.
#[test]
fn rounds_types_and_reductions_are_right() {
    on_machine_env("dgx1v", &[], &[], || {
        let world = World::with(8, &with_trees());
        check_all(&world, 5, &[700_001]);
        for (data_type, op) in [
            (DataType::F16, ReduceOp::Avg),
            (DataType::BF16, ReduceOp::Max),
            (DataType::I8, ReduceOp::Sum),
            (DataType::U64, ReduceOp::Min),
            (DataType::F64, ReduceOp::Prod),
        ] {
            for collective in along_links(2) {
                let case = Case { data_type, op, ..Case::new(collective, 3_001) };
                check(&world, case);
            }
        }
    });
}

#[test]
fn gpus_behind_switches_get_right_results() {
    on_machine_env("dgx-a100", &[], &[], || {
        for ranks in [2, 5, 8] {
            let world = World::with(ranks, &with_trees());
            check_all(&world, ranks as u32 - 1, &[3, 20_011]);
        }
    });
}

const TREES: &str = "export RINGDOVE_ALGORITHM=trees RINGDOVE_LOG=ringdove=info";

/// `ringdove perf`, whose calls go along trees, or do not.
fn run(machine: (&str, u32), inside: &str, line: &str, trees: bool) -> Ended {
    let inside = format!("{TREES}; {inside}");
    let ended = perf(machine, "", &inside, line);
    assert_right(&format!("{machine:?}: {inside}; {line}"), &ended);
    assert_eq!(ended.1.contains("\"packed trees\""), trees, "{machine:?}: {line}: {}", ended.1);
    ended
}

/// Between nodes trees go along the rails; several processes of a node agree on them.
#[test]
fn two_nodes_and_several_processes_get_right_results() {
    if on_real_hardware() {
        return;
    }
    for collective in ["all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce"] {
        let line = format!("{collective} -g 2 -b 4 -e 1M -f 512 -n 2 -w 1");
        run(("dgx-a100 x 2", 2), "true", &line, true);
    }
    let line = "all-reduce -g 8 -b 256K -e 256K -n 1 -w 1";
    run(("dgx-a100 x 2", 2), "true", line, true);
    run(("dgx-a100 x 2", 4), "true", "all-reduce -g 1 -b 64K -e 64K -n 2 -w 1", true);
    run(("dgx1v", 8), "true", "all-reduce -g 1 -b 1M -e 1M -n 2 -w 1", true);
}

/// Over three nodes each rank has lanes of its rail to both others, and a rank may have children on
/// both: their sum is made in a slot of which the message comes later.
#[test]
fn three_nodes_get_right_results() {
    if on_real_hardware() {
        return;
    }
    for collective in ["all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce"] {
        let line = format!("{collective} -g 2 -b 4 -e 256K -f 256 -n 2 -w 1");
        run(("dgx-a100 x 3", 3), "true", &line, true);
    }
}

/// If this fails, a setting that cannot be followed is an error, a hang, or a wrong result.
#[test]
fn where_there_are_no_trees_plans_are_as_ever() {
    if on_real_hardware() {
        return;
    }
    let line = "all-reduce -g 2 -b 64K -e 1M -f 16 -n 2 -w 1";
    let (_, output) = run(("pcie4", 1), "true", line, false);
    assert!(output.contains("no packed trees"), "{output}");
    run(("dgx1v", 1), "export RINGDOVE_STORES=never", line, false);
    run(("dgx1v", 1), "export RINGDOVE_THROUGH_HOST=always", line, false);
    run(("dgx1v", 1), "export RINGDOVE_REPRODUCIBLE=true", line, false);
    run(("dgx-a100 x 5", 5), "true", line, false);
    run(("dgx1v", 1), "true", "all-to-all -g 4 -b 64K -e 64K -n 2 -w 1", false);
    // Ranks of one GPU.
    run(("dgx1v", 1), "export CUDA_VISIBLE_DEVICES=0", line, false);
}

/// If this fails, ranks with other settings wait for messages that nobody sends.
#[test]
fn ranks_that_want_other_plans_are_refused() {
    if on_real_hardware() {
        return;
    }
    let inside = "[ $RANK = 1 ] && export RINGDOVE_ALGORITHM=trees; true";
    let line = "all-reduce -g 1 -b 64K -e 64K -n 1";
    let (status, output) = perf(("dgx1v", 2), "", inside, line);
    assert!(!status.success() && output.contains("RINGDOVE_ALGORITHM"), "{output}");
}

/// A file's plan may be one along packed trees, of more blocks than there are lanes between two
/// ranks, on a machine of which not all ranks reach each other. If this fails, a plan that was
/// written to a file is not run where it came from, or its results are wrong.
#[test]
fn plans_of_files_go_along_trees_in_many_blocks() {
    if on_real_hardware() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trees.json");
    let mut made = on_virtual("dgx1v", tool("ringdove"));
    made.args(["plan", "all-reduce", "-b", "1M", "--machine", "here"]);
    made.args(["--algorithm", "packed trees", "--json"]).arg(&path);
    let (status, output) = run_bounded(made);
    assert!(status.success(), "{output}");
    let file: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let blocks = file["plan"]["ranks"][0]["blocks"].as_array().unwrap().len();
    assert!(blocks > 32, "{blocks}");
    let settings = "RINGDOVE_ALGORITHM=table RINGDOVE_LOG=ringdove=info";
    let inside = format!("export {settings} RINGDOVE_PLAN_FILES={}", path.display());
    let line = "all-reduce -g 8 -b 1M -e 1M -n 1 -w 0";
    let ended = perf(("dgx1v", 1), "", &inside, line);
    assert_right(&inside, &ended);
    assert!(ended.1.contains("by the plan of a file"), "{}", ended.1);
    // Without stores there are no such lanes, and the log says so.
    let inside = format!("{inside} RINGDOVE_STORES=never");
    let ended = perf(("dgx1v", 1), "", &inside, line);
    assert_right(&inside, &ended);
    assert!(ended.1.contains("the file's plan is not used"), "{}", ended.1);
    assert!(!ended.1.contains("by the plan of a file"), "{}", ended.1);
}
