//! `ringdove topo` from outside: what it finds on virtual machines, and what it says of files.

mod hardware;

use hardware::{hwsim, is_left_out, run_bounded, tool};

/// `ringdove topo` on a virtual machine, with these arguments; its text if it succeeds.
fn topo_on(machine: &str, arguments: &[&str]) -> Result<String, String> {
    let mut command = hwsim();
    command.args(["run", "--quiet", "--machine", machine, "--"]).arg(tool("ringdove")).arg("topo");
    command.args(arguments);
    let (status, output) = run_bounded(command);
    if status.success() { Ok(output) } else { Err(output) }
}

fn cannot_run() -> bool {
    is_left_out("this test knows virtual machines only")
}

/// The rate that the links of these machines admit, from their data sheets: 48/7 and 24/7 NVLinks
/// of 25 GB/s each way, and what enters one GPU.
#[test]
fn machines_are_discovered_and_their_optimum_is_told() {
    if cannot_run() {
        return;
    }
    let machines = [
        ("dgx1v", "171.43 GB/s of all data", "NV2"),
        ("dgx-a100", "342.86 GB/s of all data", "NV12"),
        ("dgx-h100", "514.29 GB/s of all data", "NV18"),
        ("pcie4", "21.00 GB/s of all data", "PIX"),
    ];
    for (machine, rate, joined) in machines {
        let text = topo_on(machine, &[]).unwrap();
        assert!(text.contains(rate) && text.contains(joined), "{machine}: {text}");
    }
}

/// The mesh has rings of NVLinks alone, but not in the order of numbers. If this fails, a user pays
/// for links that could be avoided.
#[test]
fn a_better_order_of_gpus_is_proposed() {
    if cannot_run() {
        return;
    }
    let text = topo_on("dgx1v", &[]).unwrap();
    assert!(text.contains("narrowest link 15.75 GB/s, SYS from GPU 3 to 4"), "{text}");
    assert!(text.contains("Communicators order their rings so"), "{text}");
    let order = text.split("CUDA_VISIBLE_DEVICES=").nth(1).unwrap().split(' ').next().unwrap();
    let text = topo_on("dgx1v", &["--gpus", order]).unwrap();
    assert!(text.contains("narrowest link 50.00 GB/s, NV2"), "{text}");
    for machine in ["dgx-a100", "dgx-h100", "pcie4"] {
        let text = topo_on(machine, &[]).unwrap();
        assert!(!text.contains("CUDA_VISIBLE_DEVICES"), "{machine}: {text}");
    }
}

/// If this fails, what a machine says of itself is lost on the way through a file.
#[test]
fn an_exported_machine_is_the_same_machine() {
    if cannot_run() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for machine in ["dgx1v", "dgx-a100", "dgx-h100", "pcie4"] {
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (file, drawing) = (path(&format!("{machine}.xml")), path(&format!("{machine}.svg")));
        let found = topo_on(machine, &["--export", &file, "--svg", &drawing]).unwrap();
        // On another machine, which has nothing to do with it.
        assert_eq!(topo_on("one-gpu", &["--xml", &file]).unwrap(), found);
        let drawn = std::fs::read_to_string(&drawing).unwrap();
        assert!(drawn.starts_with("<svg") && drawn.contains("GPU 0"), "{drawn}");
    }
}

#[test]
fn parts_and_several_nodes_have_rates_of_their_own() {
    if cannot_run() {
        return;
    }
    // GPUs 0, 5 and 7 of the mesh: 5 and 7 share one link, and none reaches GPU 0, but PCI does.
    let text = topo_on("dgx1v", &["--gpus", "0,5,7"]).unwrap();
    assert!(text.contains("3 GPUs"), "{text}");
    // 300 GB/s to the switch and 25 by adapters: 1040/3 of 16 GPUs.
    let text = topo_on("dgx-a100", &["--nodes", "2"]).unwrap();
    assert!(text.contains("346.67 GB/s of all data"), "{text}");
    let text = topo_on("dgx-a100", &["--nodes", "2", "--trees", "1"]).unwrap();
    assert!(text.contains("all-gather 342.86 GB/s"), "{text}");
}

#[test]
fn what_is_wrong_is_named() {
    if cannot_run() {
        return;
    }
    let text = topo_on("dgx1v", &["--gpus", "0,8"]).unwrap_err();
    assert!(text.contains("one of 0 1 2 3 4 5 6 7") && text.contains("seen 8"), "{text}");
    let text = topo_on("dgx1v", &["--gpus", "0,0"]).unwrap_err();
    assert!(text.contains("0 twice"), "{text}");
    let text = topo_on("dgx1v", &["--xml", "/nowhere.xml"]).unwrap_err();
    assert!(text.contains("/nowhere.xml"), "{text}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broken.xml");
    std::fs::write(&file, "<system>\n<cpu>\n</system>").unwrap();
    let text = topo_on("dgx1v", &["--xml", file.to_str().unwrap()]).unwrap_err();
    assert!(text.contains("broken.xml") && text.contains("line 3"), "{text}");
}
