//! Plans from files, played.

use super::super::collective::Drafted;
use super::super::{Operation, Scene, predict};
use super::a100::parse;
use super::low_latency::request;
use hwsim_timing::simulate;
use ringdove::Settings;
use ringdove::plan::{Collective, Draft, Limits, PlanFile, build, select};
use serde_json::Value;
use std::path::Path;

/// Two GPUs that tell each other their chunk, as MSCCL's tools write it.
fn gather() -> String {
    let step = |number: u32, name: &str, to: u32| {
        format!(
            "<step s=\"{number}\" type=\"{name}\" srcbuf=\"i\" srcoff=\"0\" dstbuf=\"o\" \
             dstoff=\"{to}\" cnt=\"1\" depid=\"-1\" deps=\"-1\" hasdep=\"0\"/>\n"
        )
    };
    let gpu = |own: u32| {
        let other = 1 - own;
        format!(
            "<gpu id=\"{own}\" i_chunks=\"1\" o_chunks=\"2\" s_chunks=\"0\">\n\
             <tb id=\"0\" send=\"{other}\" recv=\"{other}\" chan=\"0\">\n{}{}{}</tb>\n</gpu>\n",
            step(0, "s", own),
            step(1, "r", other),
            step(2, "cpy", own)
        )
    };
    format!(
        "<algo name=\"two\" proto=\"Simple\" nchannels=\"1\" nchunksperloop=\"2\" ngpus=\"2\" \
         coll=\"allgather\" inplace=\"0\" outofplace=\"1\" minBytes=\"0\" maxBytes=\"0\">\n{}{}\
         </algo>\n",
        gpu(0),
        gpu(1)
    )
}

/// The results of `predict plan FILE` as JSON.
fn played(file: &Path, flags: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("out.json");
    let line = format!("plan {} {flags} --json {}", file.display(), json.display());
    predict(&parse(&line)).expect("it predicts");
    let text = std::fs::read_to_string(json).expect("written");
    let document: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&document["operation"], &document["modelled"]), (&"plan".into(), &true.into()));
    assert!(document["notice"].as_str().is_some_and(|it| it.contains("modelled, profile")));
    document["results"].as_array().expect("a list").clone()
}

/// A plan takes as long from its file as from the library. If this fails, a file is played as
/// another plan than it holds.
#[test]
fn a_written_plan_takes_what_the_librarys_own_takes() {
    let folder = tempfile::tempdir().expect("a folder");
    let Operation::AllReduce(arguments) = parse("all-reduce --machine dgx-a100").operation else {
        panic!("an all-reduce")
    };
    let scene = Scene::new(&arguments.common).expect("built in");
    let settings = Settings::default();
    for (collective, bytes, nvlink) in [
        (Collective::AllReduce, 1 << 20, true),
        (Collective::AllReduce, 4 << 10, true),
        (Collective::AllGather, 256 << 10, false),
        (Collective::Broadcast { root: 2 }, 1 << 20, false),
    ] {
        let request = request(collective, 8, bytes);
        let limits = Limits {
            low_latency_bytes: settings.low_latency_bytes,
            stores: true,
            store_blocks: if nvlink { settings.store_blocks } else { 0 },
            nvlink,
            ..Limits::new(settings.blocks_max, settings.slot_bytes, settings.slot_count)
        };
        let choice = select(&request, &limits).expect("valid");
        let file = folder.path().join("plan.json");
        let text = serde_json::to_string(&PlanFile::new(request, build(&choice))).expect("JSON");
        std::fs::write(&file, text).expect("written");
        let results = played(&file, "--machine dgx-a100");
        let draft = Draft::of(choice);
        let programs = Drafted { draft: &draft, stores: true, per_node: 8 };
        let outcome = simulate(scene.setup(&arguments.common), &programs).expect("it ends");
        let (seen, expected) = (results[0]["time"].as_f64().expect("a number"), outcome.end.us());
        assert_eq!(results.len(), 1, "a file of this library has one size");
        assert!((seen - expected).abs() < 1e-6 * expected, "{collective:?}: {seen}, {expected}");
    }
}

/// An imported plan is played in each size, and takes what its bytes take. If this fails, a plan of
/// MSCCL has no time, or the same for all sizes.
#[test]
fn an_imported_plan_is_played_in_each_size() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("two.xml");
    std::fs::write(&file, gather()).expect("written");
    for flags in ["--machine pcie4", "--machine dgx-a100", "--machine pcie4 --engine device"] {
        let results = played(&file, &format!("{flags} -b 64K -e 1M -f 4"));
        let time = |result: &Value| result["time"].as_f64().expect("a number");
        let times: Vec<_> = results.iter().map(time).collect();
        println!("{flags}: {times:?}");
        assert_eq!(times.len(), 3);
        assert!(times[0] < times[1] && times[1] < times[2], "{flags}: {times:?}");
    }
}

/// If this fails, a file that is no plan, or is for another machine, ends in a panic or a number.
#[test]
fn files_that_cannot_be_played_are_refused_with_the_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("plan.json");
    let refuse = |text: &str, flags: &str| {
        std::fs::write(&file, text).expect("written");
        let line = format!("plan {} {flags}", file.display());
        predict(&parse(&line)).expect_err(&line).to_string()
    };
    let choice = select(&request(Collective::AllReduce, 8, 1 << 16), &Limits::new(4, 1 << 20, 4));
    let mut plan =
        PlanFile::new(request(Collective::AllReduce, 8, 1 << 16), build(&choice.expect("valid")));
    let whole = serde_json::to_string(&plan).expect("JSON");
    let other = refuse(&whole, "--machine pcie4");
    assert!(other.contains("plan.json") && other.contains("for 8 ranks"), "{other}");
    assert!(other.contains("pcie4 has 4 GPUs"), "{other}");
    plan.plan.ranks[1].blocks[0].segments[0].ops.remove(0);
    let broken = refuse(&serde_json::to_string(&plan).expect("JSON"), "--machine ark");
    assert!(broken.contains("plan.json is refused") && broken.contains("rank 1"), "{broken}");
    let cut = refuse(&whole[..whole.len() / 2], "");
    assert!(cut.contains("plan.json is refused") && cut.contains("line 1"), "{cut}");
    let typed = refuse(&gather().replacen("type=\"cpy\"", "type=\"jump\"", 1), "");
    assert!(typed.contains("line 6") && typed.contains("jump"), "{typed}");
    let plotted = refuse(&gather(), "--plot /nowhere/x.svg");
    assert!(plotted.contains("--plot"), "{plotted}");
    let line = "plan /nowhere.json";
    let missing = predict(&parse(line)).expect_err(line).to_string();
    assert!(missing.contains("/nowhere.json"), "{missing}");
}
