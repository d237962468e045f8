//! What the cargo features of this crate take and give. Without these tests, a framework that
//! leaves RDMA out might need its tools all the same, or its ranks on other nodes might fail
//! unexplained.

use std::process::Command;

/// The crates that `ringdove` is built with, with these features.
fn crates(options: &[&str]) -> Vec<String> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["tree", "--locked", "-p", "ringdove", "-e", "normal,build"]);
    command.args(["--prefix", "none", "--format", "{p}"]).args(options);
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo tree {options:?}: {said}");
    let lines = String::from_utf8(output.stdout).unwrap();
    lines.lines().filter_map(|line| Some(line.split_whitespace().next()?.to_owned())).collect()
}

/// Crates whose build runs cmake or translates headers.
const TOOLS: [&str; 4] = ["ibverbs-sys", "bindgen", "clang-sys", "cmake"];

/// If this fails, everybody who links the crate needs cmake, libclang and libnl again.
#[test]
fn only_the_feature_verbs_needs_more_than_rust_and_a_linker() {
    for options in [&["--no-default-features"][..], &["--no-default-features", "--features", "cli"]]
    {
        let crates = crates(options);
        assert!(crates.iter().any(|name| name == "cudarc"), "{options:?}: {crates:?}");
        let tools: Vec<_> = crates.iter().filter(|name| TOOLS.contains(&name.as_str())).collect();
        assert!(tools.is_empty(), "{options:?}: {tools:?}");
    }
    // The names above are those that the feature brings in.
    let crates = crates(&["--no-default-features", "--features", "verbs"]);
    for tool in TOOLS {
        assert!(crates.iter().any(|name| name == tool), "{tool}: {crates:?}");
    }
}

#[cfg(not(feature = "verbs"))]
mod hardware;

/// If this fails, ranks on two nodes hang or fail without a word about the build.
#[cfg(not(feature = "verbs"))]
#[test]
fn without_verbs_ranks_on_two_nodes_learn_which_feature_is_off() {
    use ringdove::Error;
    hardware::on_machine_with("pcie4 x 2", &["--procs", "2"], || {
        let error = hardware::try_join(1).map(drop).unwrap_err();
        assert!(matches!(&error, Error::FeatureOff { feature: "verbs", .. }), "{error:?}");
        let text = error.to_string();
        for part in ["other nodes", "`verbs`", "off in this build", "default features"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    });
}

/// If this fails, the build without RDMA tools is of no use on one node either.
#[cfg(not(feature = "verbs"))]
#[test]
fn without_verbs_ranks_on_one_node_work_across_processes() {
    use ringdove::ReduceOp;
    hardware::on_processes("pcie4", (2, 2), |ranks| {
        let mut sums = Vec::new();
        for rank in &ranks {
            let stream = rank.context().new_stream().unwrap();
            let mut slice = stream.clone_htod(&vec![1.0_f32; 10_000]).unwrap();
            rank.all_reduce_in_place(&mut slice, ReduceOp::Sum, &stream).unwrap();
            sums.push((stream, slice));
        }
        for (rank, (stream, slice)) in ranks.iter().zip(&sums) {
            assert_eq!(stream.clone_dtoh(slice).unwrap(), vec![4.0; 10_000]);
            rank.check().unwrap();
        }
    });
}
