//! What the cargo features of this crate take and give. Without these tests, a framework that
//! leaves RDMA out might need its tools all the same, or its ranks on other nodes might fail
//! unexplained.

mod hardware;

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

/// If this fails, a framework that links the crate builds a reader of models with it, or crates of
/// a benchmark.
#[test]
fn only_the_feature_onnx_brings_a_reader_of_models() {
    let has = |name: &str, options: &[&str]| crates(options).iter().any(|one| one == name);
    let verbs = ["--no-default-features", "--features", "verbs"];
    assert!(!has("prost", &verbs));
    assert!(has("prost", &["--no-default-features", "--features", "onnx"]));
    assert!(!has("tonic", &[]));
}

/// With the feature `cust` and none of the default ones: built by the tests with the default
/// features, which write what cust links with where there is no CUDA.
#[cfg(feature = "verbs")]
mod with_cust_alone {
    use crate::hardware::{hwsim, run_bounded};
    use std::path::{Path, PathBuf};
    use std::process::Command;

    /// What is built, as cargo names its kind and itself.
    const PROGRAMS: [(&str, &str); 3] =
        [("test", "features"), ("test", "cust"), ("example", "cust")];

    /// Builds [`PROGRAMS`]: their executables.
    fn build(sdk: &Path) -> [PathBuf; 3] {
        // What the rest of the workspace has compiled is used, if the profile is the same. Nothing
        // here is measured; without optimisation the library is compiled in a third of the time.
        // The commands need other features, so those that are there stay. cudarc is built apart:
        // its build depends on CUDA_PATH, and everything else would be built again without it.
        let (profile, options) = match cfg!(debug_assertions) {
            true => ("dev", &["--config=profile.dev.package.cudarc.opt-level=1"][..]),
            false => (
                "release",
                &[
                    "--config=profile.release.package.cudarc.opt-level=0",
                    "--config=profile.release.package.ringdove.opt-level=0",
                ][..],
            ),
        };
        let mut command = Command::new(env!("CARGO"));
        command.args(["build", "--package", "ringdove", "--no-default-features"]);
        command.args(["--features", "cust", "--profile", profile]).args(options);
        for (kind, name) in PROGRAMS {
            command.args([format!("--{kind}").as_str(), name]);
        }
        command.args(["--message-format", "json-render-diagnostics", "--target-dir"]).arg(target());
        command.envs([("CUDA_PATH", sdk), ("CUDA_LIBRARY_PATH", sdk)]);
        // With this, cust is built without the driver's library.
        command.env_remove("DOCS_RS").current_dir(env!("CARGO_MANIFEST_DIR"));
        let output = command.output().unwrap();
        let messages = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        PROGRAMS.map(|(kind, name)| {
            let (of_kind, named) =
                (format!("\"kind\":[\"{kind}\"]"), format!("\"name\":\"{name}\""));
            let is_ours = |line: &&str| line.contains(&of_kind) && line.contains(&named);
            let line = messages.lines().find(is_ours);
            let line = line.unwrap_or_else(|| panic!("cargo built no {kind} {name}:\n{messages}"));
            let (_, rest) = line.split_once("\"executable\":\"").unwrap();
            PathBuf::from(rest.split('"').next().unwrap())
        })
    }

    /// The target folder that this test was built in.
    fn target() -> &'static Path {
        Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap()
    }

    /// What the program prints; it must succeed.
    fn output(command: Command) -> String {
        let named = format!("{command:?}");
        let (status, output) = run_bounded(command);
        assert!(status.success(), "{named}: {status}\n{output}");
        output
    }

    fn on_virtual_gpus(program: &Path) -> Command {
        let mut command = hwsim();
        command.args(["run", "--quiet", "--machine", "pcie4", "--"]).arg(program);
        command
    }

    #[test]
    fn programs_are_built_against_virtual_hardware_and_run() {
        // Always at the same place: cargo builds cust again when its path has changed.
        let sdk = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sdk");
        let mut write = hwsim();
        write.arg("sdk").arg(&sdk);
        output(write);

        let [features, cust, example] = build(&sdk);
        let mut features = Command::new(features);
        features.arg("--nocapture");
        let lines = output(features);
        assert!(lines.contains("4 passed"), "not every test ran:\n{lines}");
        let mut cust = on_virtual_gpus(&cust);
        cust.args(["--test-threads=1", "--nocapture"]);
        let lines = output(cust);
        assert!(lines.contains("4 passed"), "not every test ran:\n{lines}");
        let expected: Vec<_> =
            (0..4).map(|rank| format!("rank {rank}: 0 wrong of 100000")).collect();
        assert_eq!(output(on_virtual_gpus(&example)).lines().collect::<Vec<_>>(), expected);
    }
}

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
