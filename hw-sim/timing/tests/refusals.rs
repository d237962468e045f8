//! Bad input is refused with what was expected and what was seen.

mod worlds;

use hwsim_timing::p2p::Stream;
use hwsim_timing::{
    Edge, Engine, Leaf, LinkKind, Machine, Network, Profile, RankProgram, Setup, simulate,
};
use ringdove::plan::{Limits, Pattern};
use worlds::{draft, draft_within, machine, nvswitch, pcie, profile, programs};

fn text() -> &'static str {
    Profile::built_in_text("ark-v100").expect("built in")
}

/// If this fails, a slip in a profile passes for a constant.
#[test]
fn a_wrong_profile_names_file_key_and_reason() {
    let line = |key: &str| {
        let line = text().lines().find(|line| line.starts_with(&format!("{key} = ")));
        line.expect("a constant of the profile").to_owned()
    };
    let submit = line("submit");
    let other = |value: &str| submit.replace("value = 2.5", value);
    let cases = [
        (submit.clone(), String::new(), "proxy.submit: missing"),
        (submit.clone(), other("value = -2.5"), "proxy.submit: expected 0 to 1000000 us, got -2.5"),
        (submit.clone(), other("value = nan"), "proxy.submit: expected 0 to 1000000 us, got NaN"),
        (submit.clone(), other("value = \"2\""), "proxy.submit: value: not a number"),
        (submit.clone(), submit.replace("\"us\"", "\"ms\""), "expected the unit \"us\""),
        (submit.clone(), submit.replace("source", "origin"), "proxy.submit: source is missing"),
        (submit.clone(), submit.replace(" }", ", note = 1 }"), "proxy.submit.note: unknown key"),
        (submit.clone(), format!("{submit}\nsubmits = 3"), "proxy.submits: unknown key"),
        (submit.clone(), "submit = 2.5".into(), "proxy.submit: expected { value"),
        (line("batch"), line("batch").replace("64", "6.5"), "expected a whole number, got 6.5"),
        (line("unit"), line("unit").replace("12.66", "0.0"), "device.unit: expected 0.000001 to"),
        (line("depth"), String::new(), "adapter.depth: missing"),
        (line("name"), "name = 3".into(), "name: expected a text, got 3"),
        (line("name"), "name =".into(), "line "),
    ];
    for (old, new, expected) in cases {
        let changed = text().replacen(&old, &new, 1);
        assert_ne!(changed, text(), "{expected}");
        let error = Profile::parse(&changed, "mine.toml").expect_err(expected).to_string();
        assert!(error.starts_with("mine.toml: ") && error.contains(expected), "{error}");
    }
    let error = Profile::find("v100").expect_err("no such profile").to_string();
    assert!(error.contains("`v100`") && error.contains("ark-v100"), "{error}");
    let error = Profile::find("./none.toml").expect_err("no such file").to_string();
    assert!(error.contains("./none.toml: cannot be read"), "{error}");
}

#[test]
fn every_built_in_profile_is_sound() {
    for name in Profile::built_in_names() {
        assert_eq!(profile(name).name, name);
    }
}

/// If this fails, a plan for another machine gives a time instead of an error.
#[test]
fn a_plan_that_does_not_fit_the_machine_is_refused() {
    let profile = profile("ark-v100");
    let four = machine(&pcie(4), 1, &profile);
    let programs = programs(&draft(Pattern::Halving, 8, 4096, 1));
    let refuse = |machine: &Machine, profile: &Profile, engine, programs: &Vec<RankProgram>| {
        let outcome = simulate(Setup::new(machine, profile, engine), programs);
        outcome.expect_err("it does not fit").to_string()
    };
    let error = refuse(&four, &profile, Engine::Proxy, &programs);
    assert_eq!(error, "the plan has 8 ranks, and machine two switches has 4 GPUs");

    let mut cut = pcie(8);
    cut.edges.retain(|edge| !edge.ends.contains(&7));
    let error = refuse(&machine(&cut, 1, &profile), &profile, Engine::Proxy, &programs);
    assert!(error.contains("no path from gpu") && error.contains("7"), "{error}");

    let two = machine(&pcie(4), 2, &profile);
    let bare = text().split("\n[adapter]").next().expect("a part before it");
    let bare = Profile::parse(bare, "bare.toml").expect("the section may be left out");
    let error = refuse(&two, &bare, Engine::Proxy, &programs);
    assert!(error.contains("no section [adapter]"), "{error}");
    // As above, with the sections behind it.
    let (before, after) = text().split_once("\n[stores]").expect("it is there");
    let bare = format!("{before}\n[links]{}", after.split("[links]").nth(1).expect("behind it"));
    let bare = Profile::parse(&bare, "bare.toml").expect("the section may be left out");
    let error = refuse(&two, &bare, Engine::Stores, &programs);
    assert!(error.contains("no section [stores]"), "{error}");
}

#[test]
fn a_machine_out_of_range_is_refused() {
    let profile = profile("ark-v100");
    let refuse = |graph, nodes, network| {
        let machine = Machine::new(&graph, nodes, network, &profile).map(|it| it.name());
        machine.expect_err("out of range").to_string()
    };
    let plain = Network::default();
    let mut broken = pcie(2);
    broken.edges.push(Edge { ends: [0, 1], kind: LinkKind::NvLink, count: 0, gb_per_s: 25.0 });
    assert!(refuse(broken, 1, plain).contains("rate of gpu0 to gpu1: expected more than 0 GB/s"));
    assert!(refuse(pcie(2), 0, plain).contains("nodes: expected at least 1, got 0"));
    let adapter = Network { adapter_gb_per_s: Some(-1.0), ..plain };
    assert!(refuse(nvswitch(2), 2, adapter).contains("adapter rate: expected more than 0 GB/s"));
    let leaf =
        |nodes, oversubscription| Network { leaf: Some(Leaf { nodes, oversubscription }), ..plain };
    assert!(refuse(nvswitch(2), 2, leaf(0, 1.0)).contains("nodes of a leaf switch"));
    assert!(refuse(nvswitch(2), 2, leaf(1, 0.5)).contains("oversubscription"));
}

/// If this fails, bytes that are no plan panic, or worse, give a time.
#[test]
fn a_plan_that_makes_no_sense_is_an_error_that_names_rank_and_place() {
    let profile = profile("ark-v100");
    let machine = machine(&pcie(2), 1, &profile);
    let stream = Stream { from: 0, to: 1, bytes: 64, count: 2, window: 8, contiguous: false };
    let good = stream.programs();
    let run = |programs: &Vec<RankProgram>| {
        let setup = Setup::new(&machine, &profile, Engine::Proxy);
        simulate(Setup { steps_max: 10_000, ..setup }, programs)
    };
    assert!(run(&good).is_ok());
    let refuse = |change: &dyn Fn(&mut Vec<RankProgram>)| {
        let mut programs = good.clone();
        change(&mut programs);
        run(&programs).expect_err("it makes no sense").to_string()
    };
    let error = refuse(&|it| it[1].encoded[0] ^= 1);
    assert!(error.starts_with("plan of rank 1: magic number: expected"), "{error}");
    let error = refuse(&|it| it[0].encoded.truncate(100));
    assert!(error.starts_with("plan of rank 0: ") && error.contains("100 bytes"), "{error}");
    let error = refuse(&|it| it[0].ports.clear());
    assert!(error.contains("port: expected less than 0, got 0"), "{error}");
    let error = refuse(&|it| it[1].ports[0].sends = true);
    assert!(error.contains("each end of a lane at one block of its own rank"), "{error}");
    let error = refuse(&|it| it[1].ports[0].lane.index = 5);
    assert!(error.contains("expected a block at both ends"), "{error}");
    let last = good[0].encoded.len() - 80;
    let error = refuse(&|it| it[0].encoded[last] = 99);
    assert!(error.contains("op: expected a code of ringdove_kernels::op, got 99"), "{error}");
    let rounds = last - 80 - 24;
    let error = refuse(&|it| it[0].encoded[rounds + 3] = 0x7f);
    assert!(error.contains("not ended after 10000 ops and events"), "{error}");
    // Every single bit: an error or another plan, but no panic and no endless run.
    for good in [good, ll_programs()] {
        for bit in 0..good[0].encoded.len() * 8 {
            let mut programs = good.clone();
            programs[0].encoded[bit / 8] ^= 1 << (bit % 8);
            drop(run(&programs));
        }
    }
}

/// Two ranks that exchange LL messages.
fn ll_programs() -> Vec<RankProgram> {
    let limits = Limits { low_latency_bytes: 64, ..Limits::new(1, 64, 2) };
    programs(&draft_within(Pattern::Selected, 2, 64, &limits))
}

/// If this fails, a block collects from ports that it does not have.
#[test]
fn a_collect_of_other_ports_than_the_blocks_receive_ports_is_refused() {
    let profile = profile("ark-v100");
    let machine = machine(&pcie(2), 1, &profile);
    let mut programs = ll_programs();
    // Pack, put, collect, two advances, of 80 bytes each; the count stands 16 bytes into an op.
    let ports = programs[0].encoded.len() - 3 * 80 + 16;
    for count in [0, 2, 200] {
        programs[0].encoded[ports] = count;
        let error = simulate(Setup::new(&machine, &profile, Engine::Proxy), &programs);
        let error = error.expect_err("one receive port").to_string();
        let expected = format!(
            "ports of Collect: expected 1 to 1, the receive ports from there on, got {count}"
        );
        assert!(error.contains(&expected), "{error}");
    }
}

/// If this fails, a plan that waits for ever looks like one that ends.
#[test]
fn a_plan_that_is_stuck_says_who_waits_for_what() {
    let profile = profile("ark-v100");
    let machine = machine(&pcie(2), 1, &profile);
    let sends = Stream { from: 0, to: 1, bytes: 64, count: 2, window: 8, contiguous: false };
    let waits = Stream { count: 3, ..sends };
    let mut programs = sends.programs();
    programs[1] = waits.programs()[1].clone();
    let error = simulate(Setup::new(&machine, &profile, Engine::Device), &programs);
    let error = error.expect_err("the third message never comes").to_string();
    assert!(
        error.contains("rank 1") && error.contains("arrival 3 of lane 0 to 1, seen 2"),
        "{error}"
    );
}
