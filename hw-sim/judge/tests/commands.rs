//! The command, on virtual hardware.

use std::path::PathBuf;
use std::process::{Command, Output};

fn judge() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_hwsim-judge"))
}

/// Runs the judge on a virtual GPU.
fn on_virtual_hardware(arguments: &[&str]) -> String {
    let hwsim = judge().parent().unwrap().join("hwsim");
    assert!(hwsim.is_file(), "{} is missing: build the workspace", hwsim.display());
    let mut command = Command::new(hwsim);
    command.args(["run", "--quiet", "--machine", "dgx-h100", "--"]).arg(judge()).args(arguments);
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{status}\n{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// If this fails, a question about the driver has no answer, or a fault ends more than its own
/// process. Which error it is, the driver decides: `compare` shows where it differs from another.
#[test]
fn questions_about_errors_are_answered_with_their_numbers() {
    let text = on_virtual_hardware(&["run", "--only", "driver.fault-in-shared-memory"]);
    let line = text.lines().find(|line| !line.starts_with('#')).unwrap();
    let number = line.strip_prefix("driver.fault-in-shared-memory = ").unwrap();
    assert!(number.parse::<u32>().unwrap() > 0, "{text}");
    let text = on_virtual_hardware(&["run", "--only", "driver.call-in-a-host-function"]);
    let line = text.lines().find(|line| !line.starts_with('#')).unwrap();
    assert!(line.rsplit(' ').next().unwrap().parse::<u32>().is_ok(), "{text}");
}

/// If this fails, two drivers that differ pass for one, or two that share no question do.
#[test]
fn files_are_compared() {
    let folder = std::env::temp_dir().join(format!("judge-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let known = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("known/h100-580.159.txt");
    let other = folder.join("other");
    let text = std::fs::read_to_string(&known).unwrap();
    let compare = |text: &str| {
        std::fs::write(&other, text).unwrap();
        let output = Command::new(judge()).arg("compare").args([&known, &other]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(compare(&text), (Some(0), "# 0 of 15 answers differ\n".to_owned()));
    let (status, output) = compare(&text.replace("= 717", "= 719"));
    let line = "driver.fault-in-shared-memory = 717 | 719\n";
    assert_eq!((status, output), (Some(1), format!("{line}# 1 of 15 answers differ\n")));
    assert_eq!(compare("ptx.add 1 = 2\n").0, Some(2));
    std::fs::remove_dir_all(&folder).unwrap();
}
