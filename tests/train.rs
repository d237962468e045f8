//! The example of training, on virtual GPUs or on the real ones.

mod hardware;

use hardware::{hwsim, is_real, run_bounded, tool};
use std::process::Command;

/// If this fails, the first program that an author of a framework looks at is wrong: weights differ
/// between GPUs, or the loss is not that of one GPU.
#[test]
fn data_parallel_training_follows_one_gpu() {
    let example = tool("examples/train");
    let folder = tempfile::tempdir().unwrap();
    let machines = if is_real() { &["this one"][..] } else { &["pcie4", "dgx1v"] };
    for machine in machines {
        let mut command = Command::new(&example);
        if !is_real() {
            command = hwsim();
            command.args(["run", "--quiet", "--machine", machine, "--"]).arg(&example);
        }
        command.arg(folder.path());
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
