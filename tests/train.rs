//! The example of training, on virtual GPUs.

mod hardware;

use hardware::{hwsim, run_bounded};

/// If this fails, the first program that an author of a framework looks at is wrong: weights differ
/// between GPUs, or the loss is not that of one GPU.
#[test]
fn data_parallel_training_follows_one_gpu() {
    let this = std::env::current_exe().unwrap();
    let example = this.parent().unwrap().parent().unwrap().join("examples/train");
    let missing = "run cargo build --release --workspace --examples";
    assert!(example.exists(), "no {}: {missing}", example.display());
    let folder = tempfile::tempdir().unwrap();
    for machine in ["pcie4", "dgx1v"] {
        let mut command = hwsim();
        command.args(["run", "--quiet", "--machine", machine, "--"]);
        command.arg(&example).arg(folder.path());
        let (status, output) = run_bounded(command);
        assert!(status.success(), "{machine}: {status}\n{output}");
        for line in ["the same weights on all", "the loss is that of one GPU within"] {
            assert!(output.contains(line), "{machine}: {output}");
        }
        for drawing in ["train-loss.svg", "train-timeline.svg"] {
            let text = std::fs::read_to_string(folder.path().join(drawing)).unwrap();
            assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"), "{drawing}");
        }
    }
}
