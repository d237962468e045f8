//! Predictions of dispatch and combine.

use super::load::Way;
use super::*;
use clap::Parser;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    experts: ExpertsArguments,
}

fn arguments(text: &str) -> ExpertsArguments {
    Command::parse_from(std::iter::once("experts").chain(text.split_whitespace())).experts
}

fn rows(text: &str) -> Vec<Row> {
    let arguments = arguments(text);
    let scene = Scene::new(&arguments.common()).expect("machine and profile");
    let ranks = arguments.ranks(&scene).expect("ranks");
    ranks.into_iter().map(|ranks| arguments.row(&scene, ranks).expect("a row")).collect()
}

/// If this fails, a group is modelled that the library refuses, or one refused that it takes.
#[test]
fn groups_that_do_not_reach_each_other_are_refused() {
    let ranks = |text: &str| {
        let arguments = arguments(text);
        let scene = Scene::new(&arguments.common()).expect("machine and profile");
        arguments.ranks(&scene).map_err(|error| error.to_string())
    };
    let refused = ranks("-m dgx1v -g 8 --nodes 1").expect_err("pairs go through the host");
    assert!(refused.contains("GPUs 1 and 4 of dgx1v"), "{refused}");
    assert!(ranks("-m dgx1v --nodes 1").is_err());
    assert_eq!(ranks("-m dgx1v -g 2,4 --nodes 1"), Ok(vec![2, 4]));
    assert_eq!(ranks("-m dgx1v -g 8 --nodes 1 --engine device"), Ok(vec![8]));
}

/// If this fails, parts that run side by side are added up, or those in turn are not.
#[test]
fn parts_are_in_turn_or_beside_one_another() {
    let part = |ns: u64, is_beside| Part {
        name: "part",
        time: Time(ns * 1000),
        is_beside,
        limit: "latency".into(),
    };
    assert_eq!(time(&[part(3, false), part(5, false), part(7, true)]), Time(10_000));
    assert_eq!(time(&[part(3, false), part(5, false), part(2, true)]), Time(8_000));
    assert_eq!(time(&[part(5, false), part(7, true), part(4, false)]), Time(11_000));
}

/// If this fails, a message has other bytes than the library's, or choices of one rank count more
/// than once in throughput mode.
#[test]
fn rows_are_those_of_the_mode() {
    let all = rows("-g 8,16 -T 128 -K 8 -E 256 --nodes 2");
    // A row comes for each token that has one of 32 experts, and goes back for each choice.
    assert!((84.0..86.0).contains(&all[0].load.rows), "{}", all[0].load.rows);
    assert_eq!([all[0].load.returns, all[1].load.returns], [128.0, 64.0]);
    let (head, row) = (48 + 4 * 32, 2 * 7168 + 16 + 3 * 32);
    let message = all[0].load.message(Way::Dispatch);
    assert_eq!(message, head + (all[0].load.rows * f64::from(row)) as u64);
    assert_eq!(all[0].load.message(Way::Combine), 128 * 2 * 7168);
    assert_eq!(all[0].load.crossed_bytes()[1], 0);
    // Of one expert a rank, each choice is another rank's: both modes have the same rows.
    let same = rows("-g 8 -K 4 -E 8 --mode throughput --nodes 1");
    assert!((same[0].load.rows - 64.0).abs() < 1e-9, "{}", same[0].load.rows);
    assert_eq!(same[0].load.returns, same[0].load.rows);
    // Of all experts, every token goes to every rank once.
    let every = rows("-g 8 -K 16 -E 16 --mode throughput --nodes 1");
    assert_eq!(every[0].load.rows, 128.0);
}

/// If this fails, a prediction beats the wire: no operation is faster than its bytes through the
/// adapter or the NVLink of one GPU, as data sheets have them.
#[test]
fn no_time_is_below_the_floor_of_the_links() {
    for text in ["--nodes 8", "--nodes 8 --fp8 f32", "--nodes 8 --mode throughput -T 4096"] {
        for row in rows(text) {
            for (way, parts) in [(Way::Dispatch, &row.dispatch), (Way::Combine, &row.combine)] {
                let load = &row.load;
                let bytes = |peers: u32| f64::from(peers) * load.message(way) as f64;
                let near = bytes((load.near - 1) * load.nodes) / 450e9;
                let far = match load.is_relayed() {
                    true => f64::from(load.nodes - 1) * load.node_message(way) as f64 / 50e9,
                    false => bytes(load.ranks - load.near) / 50e9,
                };
                let seconds = time(parts).seconds();
                assert!(seconds > near.max(far), "{text}: {} ranks", load.ranks);
                assert!(seconds < 3.0 * near.max(far) + 60e-6, "{text}: {} ranks", load.ranks);
            }
        }
    }
}

/// If this fails, a token that chooses several ranks of a node crosses to it more than once, or the
/// relays' part of the work is free.
#[test]
fn tokens_cross_to_a_node_once_in_throughput_mode() {
    let all = rows("-g 16 -T 4096 -K 8 -E 256 --nodes 2 --mode throughput");
    let load = &all[0].load;
    assert_eq!(load.nodes, 2);
    // Eight choices of 256, none of which is one of a node's 128, are rare.
    assert!((4070.0..4096.0).contains(&load.node_rows), "{}", load.node_rows);
    let row = 2 * 7168 + 16 + 3 * 32;
    let head = 48 + 4 * 128 + 4 * 8;
    let message = load.node_message(Way::Dispatch);
    assert!(message.abs_diff(head + (load.node_rows * row as f64) as u64) <= 1, "{message}");
    assert!(load.crossed_bytes()[1] < 2 * 4096 * row);
    let names = |parts: &[Part]| parts.iter().map(|part| part.name).collect::<Vec<_>>();
    assert!(names(&all[0].dispatch).contains(&"relayed rows"));
    assert!(names(&all[0].combine).contains(&"additions at relays"));
    let flat = rows("-g 8 -T 4096 --nodes 1 --mode throughput");
    assert!(!names(&flat[0].dispatch).contains(&"relayed rows"));
}

/// If this fails, the library's choice of the mode is not that of the model: it takes one that the
/// model gives more than an eighth longer than the other.
#[test]
fn the_chosen_mode_is_the_faster_one() {
    let mut chosen = std::collections::BTreeSet::new();
    for shape in ["", "--fp8 f32", "-H 2048", "-K 2 -E 64", "-K 1 -E 64"] {
        for tokens in [1, 8, 32, 128, 1024, 4096] {
            let of = |mode: &str| {
                rows(&format!("-g 8,16,64 --nodes 8 -T {tokens} {shape} --mode {mode}"))
            };
            let [auto, low, high] = ["auto", "low-latency", "throughput"].map(of);
            for ((auto, low), high) in auto.iter().zip(&low).zip(&high) {
                let both = |row: &Row| (time(&row.dispatch) + time(&row.combine)).us();
                let fastest = both(low).min(both(high));
                let ranks = auto.load.ranks;
                assert!(
                    both(auto) <= 1.125 * fastest,
                    "{shape}, {tokens} tokens, {ranks} ranks: {:?} takes {}, the other {fastest}",
                    auto.mode,
                    both(auto)
                );
                chosen.insert((ranks, auto.mode.name()));
            }
        }
    }
    assert!(chosen.contains(&(64, "low-latency")) && chosen.contains(&(64, "throughput")));
}

/// If this fails, a device engine's rows are played by stores, or as the proxy's.
#[test]
fn device_engines_move_everything() {
    let all = rows("-g 4 -E 16 -H 1024 --machine ark --nodes 1 --engine device");
    assert_eq!(all[0].load.crossed_bytes()[0], 0);
    assert!(all[0].dispatch.iter().any(|part| part.name == "engines"));
}

/// If this fails, ranks that no machine has are played, or a part of a node is taken for a node.
#[test]
fn ranks_that_make_no_sense_are_refused() {
    for wrong in ["-g 12 --nodes 2", "-g 1", "-g 32 --nodes 2"] {
        let arguments = arguments(wrong);
        let scene = Scene::new(&arguments.common()).expect("machine and profile");
        assert!(arguments.ranks(&scene).is_err(), "{wrong}");
    }
}

/// If this fails, benches/README.md shows other times than the model gives. µs, dispatch in e4m3
/// and combine in bf16, 128 tokens; those of pplx-garden beside them are the bars.
#[test]
fn the_published_rows_are_those_of_the_model() {
    let all = rows("-g 8,16,32,64 --fp8 f32");
    let published = [[31.5, 56.0], [87.2, 178.9], [132.5, 257.8], [158.6, 297.2]];
    let bars = [[50.5, 65.3], [110.0, 186.0], [f64::MAX; 2], [188.0, 309.0]];
    for ((row, published), bars) in all.iter().zip(published).zip(bars) {
        let times = [&row.dispatch, &row.combine].map(|parts| time(parts).us());
        for ((time, published), bar) in times.into_iter().zip(published).zip(bars) {
            assert!((time - published).abs() < 0.06, "{} ranks: {time}", row.load.ranks);
            assert!(time <= bar, "{} ranks: {time} above {bar}", row.load.ranks);
        }
    }
    let all = rows("-g 8,16 --mode throughput -T 4096 --fp8 f32");
    let published = [[520.9, 973.3], [1061.4, 2468.6]];
    // 0.9 of DeepEP's, which counts pairs of a token and a node where there are several.
    let bars = [[153.0, 158.0], [43.0, 43.0]];
    for ((row, published), bars) in all.iter().zip(published).zip(bars) {
        let times = [&row.dispatch, &row.combine].map(|parts| time(parts).us());
        let rates = row.load.data_bytes();
        for at in [0, 1] {
            let (time, rate) = (times[at], rates[at] / times[at] / 1e3);
            assert!((time - published[at]).abs() < 0.06, "{} ranks: {time}", row.load.ranks);
            assert!(rate >= 0.9 * bars[at], "{} ranks: {rate} GB/s", row.load.ranks);
        }
    }
}
