//! The examples of training, on virtual GPUs or on the real ones.

mod hardware;

use hardware::{is_left_out, is_real, on_virtual, run_bounded, tool};
use std::process::Command;

/// Runs an example on machines; gives what it has said, for each.
fn run_example(name: &str, machines: &[&str], drawings: &[&str]) -> Vec<String> {
    let example = tool(&format!("examples/{name}"));
    let folder = tempfile::tempdir().unwrap();
    let machines = if is_real() { &["this one"][..] } else { machines };
    let run = |machine: &&str| {
        let mut command = Command::new(&example);
        if !is_real() {
            command = on_virtual(machine, &example);
        }
        command.arg(folder.path());
        let (status, output) = run_bounded(command);
        assert!(status.success(), "{machine}: {status}\n{output}");
        for drawing in drawings {
            let text = std::fs::read_to_string(folder.path().join(drawing)).unwrap();
            assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"), "{drawing}");
        }
        output
    };
    machines.iter().map(run).collect()
}

/// If this fails, the first program that an author of a framework looks at is wrong: weights differ
/// between GPUs, or the loss is not that of one GPU.
#[test]
fn data_parallel_training_follows_one_gpu() {
    let drawings = ["train-loss.svg", "train-timeline.svg"];
    for output in run_example("train", &["pcie4", "dgx1v"], &drawings) {
        for line in ["the same weights on all", "the loss is that of one GPU within"] {
            assert!(output.contains(line), "{output}");
        }
        for ranks in [1, 2, 4, 8] {
            let line = format!("{ranks} ranks, reproducible: all weights have the bits of one GPU");
            assert!(output.contains(&line), "{output}");
        }
    }
}

/// If this fails, one of the ways in which workers share what they learn does not run, or with it a
/// network learns nothing.
#[test]
fn every_variant_of_distributed_training_learns() {
    if is_left_out("servers of parameters need an RDMA adapter") {
        return;
    }
    for output in run_example("variants", &["pcie4", "dgx-a100"], &["variants-loss.svg"]) {
        let line = "synchronous with and without servers: the same loss within";
        assert!(output.contains(line), "{output}");
    }
}

/// If this fails, somebody who asks for help waits for minutes, and has a folder of that name then.
#[test]
fn a_folder_that_cannot_be_is_refused_before_anything_is_trained() {
    for example in ["train", "variants", "convergence", "moe"] {
        let example = tool(&format!("examples/{example}"));
        for (folder, reason) in [("--help", "expected [FOLDER]"), ("/dev/null/a", "/dev/null/a: ")]
        {
            let mut command = Command::new(&example);
            if !is_real() {
                command = on_virtual("pcie4", &example);
            }
            command.arg(folder);
            let (status, output) = run_bounded(command);
            assert!(!status.success() && output.contains(reason), "{example:?} {folder}: {output}");
            assert!(!output.contains("loss"), "{example:?} {folder}: {output}");
        }
    }
}

/// If this fails, a network learns nothing any more where more workers share its samples.
#[test]
fn a_model_converges_with_any_number_of_workers() {
    if is_left_out("servers of parameters need an RDMA adapter") {
        return;
    }
    let drawings = ["convergence-stale-synchronous.svg", "convergence-asynchronous.svg"];
    for output in run_example("convergence", &["pcie4"], &drawings) {
        assert!(output.contains("asynchronous, 8"), "{output}");
    }
}

/// If this fails, a token or a gradient reaches a wrong expert, or is added in another order: the
/// experts of several GPUs do not learn what they learn on one.
#[test]
fn a_mixture_of_experts_on_many_gpus_is_that_of_one() {
    for output in run_example("moe", &["pcie4", "dgx-a100"], &["moe-loss.svg"]) {
        let line = "100 steps: outputs, gradients and weights are those of one GPU";
        assert!(output.contains(line), "{output}");
    }
}
