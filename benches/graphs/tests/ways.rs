//! Models over nodes, in every way: the values are those of one rank.

#[path = "../../../tests/hardware/mod.rs"]
mod hardware;

use hardware::{is_left_out, on_machine_with, settings, try_join_with};
use ringdove::Settings;
use ringdove::window::Windows;
use ringdove_graphs::models::NETWORKS;
use ringdove_graphs::ways::alone;
use ringdove_graphs::{MODELS, Measured, Model, Way};
use std::process::Command;

/// Each rank compares with what it computes alone, bit for bit; two steps, so that the second
/// cannot take what the first has left.
fn as_one_rank(model: &Model, nodes: u32) {
    if is_left_out("a rank on each virtual node") {
        return;
    }
    let machine = format!("pcie4 x {nodes}");
    on_machine_with(&machine, &["--procs", &nodes.to_string()], || {
        let ranks = try_join_with(1, Settings { user_lanes: 1, ..settings() }).unwrap();
        let rank = &ranks[0];
        let stream = rank.context().new_stream().unwrap();
        let expected = alone(model, rank, &stream);
        let some = |values: &[f32]| values.iter().any(|value| value.abs() > 1e-3);
        assert!(some(&expected), "zeros prove nothing");
        let windows = Windows::open(rank, 0).unwrap();
        let mut results = 0;
        for way in Way::ALL {
            let mut measured = Measured::new(rank, &windows, &stream, model, way);
            for step in 0..2 {
                measured.forget();
                measured.iterate();
                if let Some(seen) = measured.result() {
                    assert!(seen == expected, "{}, {}, step {step}", model.name, way.name());
                    results += 1;
                }
            }
            measured.finish();
        }
        // The last operator is on the last rank.
        assert_eq!(results, if rank.rank() + 1 == nodes { 2 * Way::ALL.len() } else { 0 });
        rank.barrier(&stream).unwrap();
        stream.synchronize().unwrap();
    });
}

#[test]
fn a_convolutional_network_is_the_same_on_two_nodes() {
    as_one_rank(&NETWORKS[0], 2);
}

#[test]
fn a_transformer_block_is_the_same_on_two_nodes() {
    as_one_rank(&NETWORKS[1], 2);
}

/// If this fails, look-ups and small tensors arrive as others, in one of the ways.
#[test]
fn a_recommender_is_the_same_on_two_nodes() {
    as_one_rank(&MODELS[0], 2);
}

#[test]
fn a_recommender_is_the_same_on_four_nodes() {
    as_one_rank(&MODELS[0], 4);
}

/// If this fails, parameters that are fetched in each step do, or what passes between layers.
#[test]
fn a_recurrent_network_is_the_same_on_two_nodes() {
    as_one_rank(&MODELS[1], 2);
}

#[test]
fn a_recurrent_network_is_the_same_on_four_nodes() {
    as_one_rank(&MODELS[1], 4);
}

/// If this fails, tensors of 64 MiB do.
#[test]
fn dense_layers_are_the_same_on_two_nodes() {
    as_one_rank(&MODELS[2], 2);
}

#[test]
fn dense_layers_are_the_same_on_four_nodes() {
    as_one_rank(&MODELS[2], 4);
}

/// If this fails, the kernels that run are not those of the source.
#[test]
fn the_kernels_are_what_the_compiler_makes_of_their_source() {
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang++-19".to_owned());
    if Command::new(&clang).arg("--version").output().is_err() {
        return tally::skip("clang", "kernels are compared where clang++-19 is");
    }
    let output = Command::new("src/kernels/generate").arg("--check").output().unwrap();
    let (said, failed) = (output.stdout, output.stderr);
    let text = String::from_utf8_lossy(&[said, failed].concat()).into_owned();
    assert!(output.status.success(), "{text}");
}
