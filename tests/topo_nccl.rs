//! NCCL's topology detection reads `/sys`, NVML and verbs. On virtual machines it would find the
//! tree that `ringdove topo` exports: [the program](topo_nccl.py) takes NCCL's way to each device.

mod hardware;

use hardware::{hwsim, is_left_out, run_bounded, tool};

/// Runs both on a machine; what the comparison says at its end.
fn compare(machine: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/topo_nccl.py");
    let file = folder.path().join("ringdove.xml");
    let (ringdove, file) = (tool("ringdove"), file.display());
    let script = format!(
        "{} topo --export {file} >/dev/null && exec python3 {program} {file}",
        ringdove.display()
    );
    let mut command = hwsim();
    command.args(["run", "--quiet", "--machine", machine, "--", "sh", "-c", &script]);
    let (status, output) = run_bounded(command);
    assert!(status.success(), "{machine}: {status}\n{output}");
    output
}

/// If this fails, NCCL on a virtual machine takes devices for near that are far, or misses links.
#[test]
fn nccl_would_find_the_tree_that_is_printed() {
    if is_left_out("this test knows virtual machines only") {
        return;
    }
    let machines = [
        ("one-gpu", "2 devices, 0"),
        ("pcie4", "6 devices, 0"),
        ("dgx1v", "12 devices, 32"),
        ("dgx-a100", "16 devices, 48"),
        ("dgx-h100", "16 devices, 32"),
        ("quad-pc", "5 devices, 0"),
        ("ark", "10 devices, 0"),
    ];
    for (machine, seen) in machines {
        let expected = format!("same tree: {seen} ends of NVLinks\n");
        assert_eq!(compare(machine), expected, "{machine}");
    }
}

#[test]
fn it_would_without_adapters_too() {
    if is_left_out("this test knows virtual machines only") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bare.toml");
    let mut command = hwsim();
    let shown = command.args(["machines", "dgx-h100", "--toml"]).output().unwrap();
    let text = String::from_utf8(shown.stdout).unwrap();
    let kept = text.split("\n[[").filter(|part| !part.starts_with("adapters]]"));
    std::fs::write(&file, kept.collect::<Vec<_>>().join("\n[[")).unwrap();
    let seen = compare(file.to_str().unwrap());
    assert_eq!(seen, "same tree: 8 devices, 32 ends of NVLinks\n");
}
