//! Plans of MSCCL and MSCCL++: read, proved, refused, and run by communicators
//! (`RINGDOVE_PLAN_FILES`). The files are written here, in both formats.

#[path = "collectives/case.rs"]
mod case;
mod hardware;
#[path = "plan_import/msccl.rs"]
mod msccl;
#[path = "plan_import/mscclpp.rs"]
mod mscclpp;
#[path = "support/mutation.rs"]
mod mutation;
#[path = "collectives/told.rs"]
mod told;

use case::{Case, check};
use hardware::perf::{assert_right, on_real_hardware, perf};
use hardware::{World, on_machine, ringdove, settings};
use mutation::{Campaign, Input, mutate};
use ringdove::plan::{Collective as Planned, CollectiveRequest, ImportedPlan, LaneKind, Limits};
use ringdove::{Collective, ReduceOp, Settings, Stores};
use std::cell::Cell;
use told::told;

/// A file: its name, what it does, for so many ranks, and its text.
struct File {
    name: String,
    collective: Planned,
    ranks: u32,
    text: String,
}

fn files() -> Vec<File> {
    let mut all = Vec::new();
    let mut add = |name: &str, collective, ranks, text| {
        let name = format!("{name} of {ranks}");
        all.push(File { name, collective, ranks, text });
    };
    for ranks in [2, 4, 8] {
        let (reduce, gather) = (Planned::AllReduce, Planned::AllGather);
        add("msccl ring", reduce, ranks, msccl::ring(ranks, 2));
        add("msccl all-pairs", reduce, ranks, msccl::all_pairs(ranks));
        add("msccl all-gather", gather, ranks, msccl::all_gather(ranks));
        let scatter = Planned::ReduceScatter;
        add("msccl reduce-scatter", scatter, ranks, msccl::reduce_scatter(ranks));
        add("mscclpp reads", reduce, ranks, mscclpp::reads(ranks));
        add("mscclpp puts", gather, ranks, mscclpp::puts(ranks));
        add("mscclpp packets", reduce, ranks, mscclpp::packets(ranks));
    }
    add("msccl hierarchical", Planned::AllReduce, 4, msccl::hierarchical());
    add("msccl broadcast", Planned::Broadcast { root: 1 }, 3, msccl::broadcast());
    all
}

/// What a communicator has: engines alone, or stores as well.
fn limits(stores: bool) -> Limits {
    let settings = Settings::default();
    Limits {
        stores,
        store_blocks: if stores { settings.store_blocks } else { 0 },
        nvlink: stores,
        ..Limits::new(settings.blocks_max, settings.slot_bytes, settings.slot_count)
    }
}

/// If this fails, a plan that others have published is refused, or is not what they meant.
#[test]
fn files_of_both_formats_are_proved_for_every_size() {
    for File { name, collective, ranks, text } in files() {
        let plan = ImportedPlan::read(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!((plan.collective, plan.rank_count), (collective, ranks), "{name}");
        for stores in [false, true] {
            // One piece, an odd size, several rounds, and, where no scratch memory bounds it, more
            // rounds than are proved.
            let long = if plan.scratch_bytes_max() == 0 { 64 << 20 } else { 1 << 20 };
            for chunk in [4, 4100, 300 << 10, long] {
                let request = plan.request(chunk, 4);
                for in_place in [false, true] {
                    let request = CollectiveRequest { in_place, ..request };
                    if !plan.covers(&request) {
                        assert!(in_place && !plan.in_place, "{name}: {request:?}");
                        continue;
                    }
                    let proved = plan.prove(&request, &limits(stores));
                    let proved = proved.unwrap_or_else(|error| {
                        panic!("{name}, {chunk} bytes of a chunk, {stores}, {in_place}: {error}")
                    });
                    let kind = if stores { LaneKind::Stores } else { LaneKind::Slots };
                    assert!(proved.lanes().iter().all(|lane| lane.kind == kind), "{name}");
                }
            }
        }
    }
}

/// If this fails, a ring with channels of its own moves all data in one block.
#[test]
fn thread_blocks_that_do_not_wait_for_one_another_are_blocks() {
    let ring = ImportedPlan::read(&msccl::ring(4, 2)).unwrap();
    let request = ring.request(4096, 4);
    for stores in [false, true] {
        let plan = ring.build(&request, &limits(stores)).unwrap();
        assert_eq!(plan.ranks[1].blocks.len(), 2);
    }
    let pairs = ImportedPlan::read(&msccl::all_pairs(4)).unwrap();
    let plan = pairs.build(&pairs.request(4096, 4), &limits(true)).unwrap();
    assert_eq!(plan.ranks[1].blocks.len(), 1, "all of them wait for the reduction");
}

/// What the text is changed into, and what the refusal says. If this fails, a file that means
/// something else is taken, or its writer is not told where it is wrong.
#[test]
fn what_does_not_map_is_refused_with_line_and_reason() {
    let xml = msccl::all_pairs(2);
    let refused = |text: &str, from: &str, to: &str, says: &[&str]| {
        assert!(text.contains(from), "no {from:?}\n{text}");
        let changed = text.replacen(from, to, 1);
        let read = ImportedPlan::read(&changed)
            .and_then(|plan| plan.prove(&plan.request(4096, 4), &limits(true)).map(|_| ()));
        let error = read.expect_err(&format!("{from:?} as {to:?}")).to_string();
        assert!(says.iter().all(|part| error.contains(part)), "{from:?} as {to:?}: {error}");
    };
    let cases: &[(&str, &str, &[&str])] = &[
        ("<algo", "<plan", &["line ", "no XML"]),
        ("coll=\"allreduce\"", "coll=\"custom\"", &["line 1", "collective \"custom\""]),
        ("ngpus=\"2\"", "ngpus=\"3\"", &["line 1", "no <gpu> with id 2"]),
        ("ngpus=\"2\"", "ngpus=\"65536\"", &["line 1", "ngpus", "1 to 64"]),
        ("nchunksperloop=\"2\"", "nchunksperloop=\"-2\"", &["line 1", "nchunksperloop"]),
        ("nchunksperloop=\"2\"", "nchunksperloop=\"1\"", &["chunk 1 of i, which has 1"]),
        ("<gpu id=\"1\"", "<gpu id=\"0\"", &["a second <gpu> with id 0"]),
        ("recv=\"1\"", "recv=\"7\"", &["line 3", "recv of <tb>: -1 to 1"]),
        ("send=\"1\"", "send=\"0\"", &["send names the GPU itself"]),
        ("type=\"re\"", "type=\"ra\"", &["steps of type \"ra\" have no counterpart"]),
        ("recv=\"1\"", "recv=\"-1\"", &["line 5", "\"r\" in a thread block without recv"]),
        ("cnt=\"1\"", "", &["line 4", "lacks the attribute cnt"]),
        ("cnt=\"1\"", "cnt=\"4000000000\"", &["line 4", "cnt of <step>"]),
        ("srcoff=\"1\"", "srcoff=\"9\"", &["chunk 9 of i"]),
        ("srcbuf=\"i\"", "srcbuf=\"x\"", &["i, o or s is expected"]),
        ("deps=\"1\"", "deps=\"77\"", &["depends on step 77"]),
        // Right by its words, and wrong by what it does.
        ("type=\"re\"", "type=\"cpy\"", &["promised"]),
        ("type=\"s\"", "type=\"nop\"", &["waits for rank", "for ever"]),
    ];
    for (from, to, says) in cases {
        refused(&xml, from, to, says);
    }
    let json = mscclpp::reads(2);
    let cases: &[(&str, &str, &[&str])] = &[
        ("\"gpus\"", "\"gpu\"", &["no plan", "gpus"]),
        ("\"id\": 1", "\"id\": 7", &["id 7 stands in the place of 1"]),
        ("\"rres\"", "\"glres\"", &["line ", "multicast"]),
        ("\"rres\"", "\"sem_acquire\"", &["line ", "semaphores"]),
        ("\"rres\"", "\"frob\"", &["line ", "\"frob\" is no op"]),
        ("\"sum\"", "\"xor\"", &["line ", "reduction \"xor\""]),
        ("\"connected_to\": [1]", "\"connected_to\": [9]", &["a channel to rank 9, of 2"]),
        (
            "\"channel_type\": \"memory\", \"connected",
            "\"channel_type\": \"switch\", \"connected",
            &["NVSwitches"],
        ),
        ("\"name\": \"wait\"", "\"name\": \"nop\"", &["without having waited"]),
        ("\"name\": \"signal\"", "\"name\": \"nop\"", &["waits in \"wait\", for ever"]),
        ("\"index\": 0", "\"index\": 4294967295", &["chunks from 4294967295"]),
    ];
    for (from, to, says) in cases {
        refused(&json, from, to, says);
    }
}

/// If this fails, a file of somebody crashes a program that reads it, or an error has no reason.
#[test]
fn mutated_files_are_imported_or_refused() {
    let campaign = Campaign {
        target: "--test plan_import",
        test: "mutated_files_are_imported_or_refused",
        cases: 1500,
    };
    let files = files().into_iter().filter(|file| file.ranks < 8);
    let files: Vec<_> =
        files.map(|file| Input { name: file.name, bytes: file.text.into_bytes() }).collect();
    let proved = Cell::new(0);
    let play = |bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return Ok(()) };
        let read = ImportedPlan::read(text)
            .and_then(|plan| plan.prove(&plan.request(64, 4), &limits(true)));
        match read {
            Ok(_) => proved.set(proved.get() + 1),
            Err(error) if error.reason.is_empty() || error.to_string().contains("internal") => {
                return Err(format!("an error without a reason: {error:?}"));
            }
            Err(_) => {}
        }
        Ok(())
    };
    campaign.replay(&files, play);
    assert_eq!(proved.get(), files.len());
    campaign.run(|rng| mutate(rng, &files), play);
}

/// The command prints what it has proved, writes it, and what it has written is proved again.
#[test]
fn the_command_imports_and_saves() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("ring.xml"), msccl::ring(4, 2)).unwrap();
    std::fs::write(path("bad.xml"), msccl::ring(4, 2).replace("rrs", "rrz")).unwrap();
    let import =
        |file: &str, more: &[&str]| ringdove(&[&["plan", "import", &path(file)], more].concat());
    let said = import("ring.xml", &["-b", "1M", "--json", &path("ring.json")]).unwrap();
    assert!(said.starts_with("all-reduce of 1 MiB among 4 ranks"), "{said}");
    let again = ringdove(&["plan", "check", &path("ring.json")]).unwrap();
    assert_eq!(said.split_once('\n').unwrap().1, again);
    let refused = import("bad.xml", &[]).unwrap_err();
    assert!(refused.contains("bad.xml") && refused.contains("\"rrz\""), "{refused}");
    let odd = import("ring.xml", &["-b", "1000000", "--element", "8"]);
    assert!(odd.is_ok(), "{odd:?}");
    let odd = import("ring.xml", &["-b", "1001"]).unwrap_err();
    assert!(odd.contains("8 chunks of whole elements"), "{odd}");
}

/// How often files' plans were taken first for a kind of call.
fn used(body: impl FnOnce()) -> usize {
    told("file", body).len()
}

/// The call of this library that a file is for.
fn call(collective: Planned) -> Collective {
    match collective {
        Planned::AllReduce => Collective::AllReduce,
        Planned::AllGather => Collective::AllGather,
        Planned::ReduceScatter => Collective::ReduceScatter,
        Planned::Broadcast { root } => Collective::Broadcast { root },
        other => panic!("no file is a {other:?}"),
    }
}

/// Runs each file's plan with counts of one piece, of odd pieces and of several rounds.
fn run(machine: &str, stores: Stores) {
    on_machine(machine, || {
        let folder = tempfile::tempdir().unwrap();
        for (number, File { name, collective, ranks, text }) in (0..).zip(files()) {
            let path = folder.path().join(format!("{number}"));
            std::fs::write(&path, &text).unwrap();
            let plan_files = vec![path];
            let settings = Settings { stores, plan_files, low_latency_bytes: 0, ..settings() };
            let seen = used(|| {
                let world = World::with(ranks as usize, &settings);
                for count in [64, 64 * 33, 64 * 1024] {
                    for in_place in [false, true] {
                        check(&world, Case { in_place, ..Case::new(call(collective), count) });
                    }
                }
            });
            assert_eq!(seen, 1, "the communicator has not used {name}");
        }
    });
}

/// If this fails, an imported plan is proved and still gives wrong sums on GPUs.
#[test]
fn communicators_run_imported_plans_over_engines() {
    run("dgx-a100", Stores::Never);
}

/// The same over lanes of stores.
#[test]
fn communicators_run_imported_plans_over_stores() {
    run("dgx-a100", Stores::Auto);
}

/// If this fails, a plan file of this library is not used for its request, or for others.
#[test]
fn a_plan_of_this_library_serves_its_request_alone() {
    on_machine("pcie4", || {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.json");
        let made = ["plan", "all-reduce", "-b", "16K", "-n", "4", "--json"];
        ringdove(&[&made[..], &[path.to_str().unwrap()]].concat()).unwrap();
        let stores = Stores::Never;
        let settings = Settings { stores, plan_files: vec![path], ..settings() };
        let of = |count, op| {
            used(|| {
                let world = World::with(4, &settings);
                check(&world, Case { op, ..Case::new(Collective::AllReduce, count) });
            })
        };
        assert_eq!(of(4096, ReduceOp::Sum), 1);
        assert_eq!(of(4095, ReduceOp::Sum), 0);
        assert_eq!(of(4096, ReduceOp::Max), 0);
    });
}

/// If this fails, ranks with other files wait for messages that nobody sends, or a broken file is
/// found when data is already lost.
#[test]
fn ranks_with_other_files_and_broken_files_are_refused() {
    if on_real_hardware() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let ring = folder.path().join("ring.xml");
    std::fs::write(&ring, msccl::ring(2, 1)).unwrap();
    let pairs = folder.path().join("pairs.xml");
    std::fs::write(&pairs, msccl::all_pairs(2)).unwrap();
    let line = "all-reduce -g 1 -b 64K -e 64K -n 1";
    let name = "RINGDOVE_PLAN_FILES";
    let inside = format!(
        "export {name}={}; [ $RANK = 1 ] && export {name}={}; true",
        ring.display(),
        pairs.display()
    );
    let (status, output) = perf(("pcie4", 2), "", &inside, line);
    assert!(!status.success() && output.contains(name), "{output}");
    std::fs::write(&ring, msccl::ring(2, 1).replacen("rrcs", "rcs", 1)).unwrap();
    let inside = format!("export {name}={}", ring.display());
    let (status, output) = perf(("pcie4", 2), "", &inside, line);
    assert!(!status.success() && output.contains("ring.xml"), "{output}");
}

/// If this fails, a file that was made for another job goes unnoticed, or spoils a call.
#[test]
fn a_plan_for_other_communicators_is_left_out_and_the_log_says_so() {
    if on_real_hardware() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (ring, own) = (folder.path().join("ring.xml"), folder.path().join("own.json"));
    std::fs::write(&ring, msccl::ring(2, 1)).unwrap();
    let made = ["plan", "all-reduce", "-b", "64K", "-n", "3", "--json"];
    ringdove(&[&made[..], &[own.to_str().unwrap()]].concat()).unwrap();
    let files = format!("RINGDOVE_PLAN_FILES={},{}", ring.display(), own.display());
    let inside = format!("export {files} RINGDOVE_LOG=ringdove=info NO_COLOR=1");
    let line = "all-reduce -g 4 -b 64K -e 64K -n 1 -w 1";
    let ended = perf(("pcie4", 1), "", &inside, line);
    assert_right(line, &ended);
    for (file, ranks) in [("ring.xml", 2), ("own.json", 3)] {
        let told = |line: &str| {
            line.contains(file)
                && line.contains(&format!("ranks={ranks} rank_count=4"))
                && line.contains("for other communicators")
        };
        assert_eq!(ended.1.lines().filter(|line| told(line)).count(), 1, "{file}: {}", ended.1);
    }
    assert!(!ended.1.contains("by the plan of a file"), "{}", ended.1);
}
