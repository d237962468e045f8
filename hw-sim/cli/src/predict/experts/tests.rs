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
    assert_eq!(all[0].load.rows, 128.0);
    assert_eq!(all[1].load.rows, 64.0);
    let header = 48 + 4 * 32;
    assert_eq!(all[0].load.message(Way::Dispatch), header + 128 * (2 * 7168 + 16));
    assert_eq!(all[0].load.crossed_bytes()[1], 0);
    // Of one expert a rank, each choice is another rank's: both modes have the same rows.
    let same = rows("-g 8 -K 4 -E 8 --mode throughput --nodes 1");
    assert!((same[0].load.rows - 64.0).abs() < 1e-9, "{}", same[0].load.rows);
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
                let bytes = |peers: u32| f64::from(peers) * row.load.message(way) as f64;
                let near = bytes(row.load.near - 1) / 450e9;
                let far = bytes(row.load.ranks - row.load.near) / 50e9;
                let seconds = time(parts).seconds();
                assert!(seconds > near.max(far), "{text}: {} ranks", row.load.ranks);
                assert!(seconds < 3.0 * near.max(far) + 60e-6, "{text}: {} ranks", row.load.ranks);
            }
        }
    }
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
    let published = [[37.5, 56.0], [101.4, 178.9], [142.2, 257.8], [162.6, 297.2]];
    let bars = [[50.5, 65.3], [110.0, 186.0], [f64::MAX; 2], [188.0, 309.0]];
    for ((row, published), bars) in all.iter().zip(published).zip(bars) {
        let times = [&row.dispatch, &row.combine].map(|parts| time(parts).us());
        for ((time, published), bar) in times.into_iter().zip(published).zip(bars) {
            assert!((time - published).abs() < 0.06, "{} ranks: {time}", row.load.ranks);
            assert!(time <= bar, "{} ranks: {time} above {bar}", row.load.ranks);
        }
    }
    let all = rows("-g 8,16 --mode throughput -T 4096 --fp8 f32");
    let published = [[520.9, 973.3], [2299.4, 4392.5]];
    for (row, published) in all.iter().zip(published) {
        let times = [&row.dispatch, &row.combine].map(|parts| time(parts).us());
        for (time, published) in times.into_iter().zip(published) {
            assert!((time - published).abs() < 0.06, "{} ranks: {time}", row.load.ranks);
        }
    }
}
