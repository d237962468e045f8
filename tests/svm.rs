//! The example of a support vector machine, on virtual GPUs or on the real ones.

mod hardware;

use hardware::{is_real, on_virtual, run_bounded, tool};
use std::path::Path;
use std::process::{Command, ExitStatus};

/// Runs the example; gives its status and what it has said.
fn svm(folder: &Path, arguments: &[&str]) -> (ExitStatus, String) {
    let example = tool("examples/svm");
    let mut command = Command::new(&example);
    if !is_real() {
        command = on_virtual("dgx1v", &example);
    }
    command.arg(folder).args(arguments);
    run_bounded(command)
}

/// If this fails, an all-reduce of keys or of samples gives some GPU something else than others, or
/// samples that were let go come back with wrong values: the example compares the bits on all
/// numbers of GPUs, and every sample with what the host makes of the model.
#[test]
fn the_machine_is_the_same_on_any_number_of_gpus() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    for kernel in ["rbf", "linear"] {
        let arguments = format!(
            "--samples 120 --gpus 1,4 --cost 1 --eliminate none,2/single,100/multi --kernel \
             {kernel} --model {}",
            model.display()
        );
        let (status, output) =
            svm(folder.path(), &arguments.split_whitespace().collect::<Vec<_>>());
        assert!(status.success(), "{status}\n{output}");
        assert!(output.contains("the same model on any number of GPUs, bit for bit"), "{output}");
        // Without elimination, and with: early, and late.
        let least = |row: &str| row.split('|').nth(4).unwrap().trim().parse::<u32>().unwrap();
        let rows: Vec<&str> = output.lines().filter(|line| line.contains("/single")).collect();
        assert!(!rows.is_empty() && rows.iter().all(|row| least(row) < 120), "{output}");
        let text = std::fs::read_to_string(&model).unwrap();
        assert!(text.starts_with(&format!("svm_type c_svc\nkernel_type {kernel}\n")), "{text}");
    }
    for drawing in ["svm-samples.svg", "svm-times.svg"] {
        let text = std::fs::read_to_string(folder.path().join(drawing)).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"), "{drawing}");
    }
}

/// If this fails, somebody's broken file trains something, or says not where it is broken.
#[test]
fn broken_samples_are_named_by_file_line_and_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("samples");
    for (text, reason) in [
        ("+1 1:2\n-1 2\n", "line 2: \"2\" is not COLUMN:VALUE"),
        ("+1 1:2\n-1 2:x\n", "line 2: \"2:x\" is not COLUMN:VALUE"),
        ("+1 1:2\n-1 2:inf\n", "line 2: \"2:inf\" is not COLUMN:VALUE"),
        ("one 1:2\n", "line 1: label \"one\" is no number"),
        ("+1 0:2\n", "line 1: column 0 is not in 1 to"),
        ("+1 4294967295:2\n", "line 1: column 4294967295 is not in 1 to"),
        ("# none\n+1 3:2 3:1\n", "line 2: column 3 is not after the one before it"),
        ("+1 1:2\n+1 1:3\n", "line 2: all samples are of one class"),
        ("1 1:2\n2 1:3\n3 1:3\n", "line 3: three classes, 1, 2 and 3"),
        ("", "samples: no samples"),
        ("+1 1:2\n-1 1:\u{fffd}\n", "line 2: not UTF-8"),
    ] {
        // What no text of this source can hold.
        let bytes: Vec<u8> = match text.split_once('\u{fffd}') {
            Some((before, after)) => [before.as_bytes(), &[0xff], after.as_bytes()].concat(),
            None => text.into(),
        };
        std::fs::write(&path, bytes).unwrap();
        let (status, output) = svm(folder.path(), &["--data", path.to_str().unwrap()]);
        assert!(!status.success(), "{text:?}: {output}");
        assert!(output.contains("samples: ") && output.contains(reason), "{text:?}: {output}");
    }
    for (arguments, reason) in [
        (&["--gpus", "99"][..], "--gpus 99: there are"),
        (&["--cost", "0"], "--cost 0: expected a number above 0"),
        (&["--eliminate", "5"], "expected none, or AFTER/single or AFTER/multi"),
        (&["--samples", "1"], "--samples 1: expected 2 to 1048576"),
        (&["--samples", "99999999999"], "--samples 99999999999: expected 2 to 1048576"),
        (&["--samples", "2", "--gpus", "4"], "2 samples for 4 GPUs"),
        (&["--samples", "60", "--steps", "3"], "not done after"),
    ] {
        let (status, output) = svm(folder.path(), arguments);
        assert!(!status.success(), "{arguments:?}: {output}");
        assert!(output.contains(reason), "{arguments:?}: {output}");
    }
}
