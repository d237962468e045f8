//! `ringdove topo` from outside: what it finds on virtual machines, and what it says of files.

mod hardware;

use hardware::{is_left_out, on_virtual, run_bounded, tool};

/// `ringdove topo` on a virtual machine, with these arguments; its text if it succeeds.
fn topo_on(machine: &str, arguments: &[&str]) -> Result<String, String> {
    let mut command = on_virtual(machine, tool("ringdove"));
    command.arg("topo");
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

/// A machine file of the fixtures.
fn fixture(name: &str) -> String {
    format!("{}/tests/fixtures/machines/{name}.toml", env!("CARGO_MANIFEST_DIR"))
}

/// If this fails, machines are found only as far as they are built in.
#[test]
fn machines_of_files_are_discovered() {
    if cannot_run() {
        return;
    }
    // 32/7 NVLinks of 20 GB/s; a GPU that hangs on others by PCIe 4 with eight lanes alone.
    let machines = [
        ("dgx1p", "91.43 GB/s of all data", "NV1", "8 GPUs"),
        ("lopsided", "GB/s of all data", "NV3", "5 GPUs"),
    ];
    for (name, rate, joined, gpus) in machines {
        let file = fixture(name);
        let text = topo_on(&file, &[]).unwrap();
        assert!(text.contains(rate) && text.contains(joined) && text.contains(gpus), "{text}");
        let folder = tempfile::tempdir().unwrap();
        let export = folder.path().join("machine.xml").to_str().unwrap().to_owned();
        topo_on(&file, &["--export", &export]).unwrap();
        assert_eq!(topo_on("one-gpu", &["--xml", &export]).unwrap(), text, "{name}");
    }
    // GPU 4 reaches the others by PCIe alone: what enters it is 15.75 GB/s, for four others.
    let text = topo_on(&fixture("lopsided"), &[]).unwrap();
    assert!(text.contains("19.69 GB/s of all data"), "{text}");
    // The four with NVLinks: three hear what GPU 3 has over the two links to it, 50 GB/s.
    let text = topo_on(&fixture("lopsided"), &["--gpus", "0,1,2,3"]).unwrap();
    assert!(text.contains("66.67 GB/s of all data"), "{text}");
}

/// Some GPUs of each machine; what NVLinks do not connect goes over PCI.
#[test]
fn allocations_of_each_machine_have_their_rates() {
    if cannot_run() {
        return;
    }
    let (dgx1p, lopsided) = (fixture("dgx1p"), fixture("lopsided"));
    let cases: [(&str, &str, &str); 8] = [
        // Four GPUs, each with three links of 20 GB/s to the others.
        (&dgx1p, "0,1,2,3", "80.00"),
        (&dgx1p, "0,4", "40.00"),
        ("dgx1v", "0,3", "100.00"),
        ("dgx-a100", "1,4,6", "450.00"),
        ("dgx-h100", "0,7", "900.00"),
        ("pcie4", "0,3", "31.51"),
        ("quad-pc", "1,2,3", "47.26"),
        (&lopsided, "2,3", "100.00"),
    ];
    for (machine, gpus, rate) in cases {
        let text = topo_on(machine, &["--gpus", gpus]).unwrap();
        let rate = format!("  all-gather, reduce-scatter  {rate} GB/s");
        assert!(text.contains(&rate), "{machine}, {gpus}: {text}");
    }
}

/// If this fails, a network between nodes is planned as one that holds nobody up.
#[test]
fn rails_and_leaf_switches_are_planned_with() {
    if cannot_run() {
        return;
    }
    let rate = |flags: &[&str]| {
        let text = topo_on("dgx-a100", &[&["--nodes", "4"], flags].concat()).unwrap();
        let line = text.lines().find(|line| line.contains("all-gather, reduce-scatter"));
        let words: Vec<_> = line.expect(&text).split_whitespace().map(str::to_owned).collect();
        words[2].parse::<f64>().unwrap()
    };
    // What enters a node of four is 200 GB/s, for the data of 24 GPUs.
    assert_eq!((rate(&[]), rate(&["--rails"])), (266.67, 266.67));
    // Two nodes below each leaf switch: an uplink of a quarter, 100 GB/s, for what 16 GPUs have.
    let leaf = ["--leaf-nodes", "2", "--oversubscription", "4"];
    assert_eq!(rate(&leaf), 200.0);
    assert_eq!(rate(&[&leaf[..], &["--rails"]].concat()), 200.0);
    assert_eq!(rate(&["--leaf-nodes", "2"]), 266.67, "no oversubscription");
    let error =
        topo_on("dgx-a100", &["--nodes", "2", "--leaf-nodes", "1", "--oversubscription", "0.5"]);
    assert!(error.unwrap_err().contains("from 1 to 1000"));
    let text = topo_on("dgx-h100", &[]).unwrap();
    assert!(text.contains("NVSwitches (planned, not run): all-reduce 450.00 GB/s"), "{text}");
    assert!(!topo_on("dgx-a100", &[]).unwrap().contains("planned, not run"));
}

/// CUDA shows fewer GPUs than NVML names. If this fails, a job on some GPUs of a machine ends, or
/// is planned with links that it does not have, or nobody is told.
#[test]
fn gpus_that_cuda_does_not_show_are_no_part_of_a_job() {
    if cannot_run() {
        return;
    }
    let run = |more: &str| {
        let mut command = on_virtual("dgx1v", tool("ringdove"));
        command.args([
            "perf",
            "all-reduce",
            "-b",
            "1M",
            "-e",
            "1M",
            "-n",
            "1",
            "-w",
            "0",
            "-R",
            "0",
        ]);
        command.args(["-g", more]).env("CUDA_VISIBLE_DEVICES", "1,4,6");
        command.env("RINGDOVE_LOG", "ringdove=info").env("NO_COLOR", "1");
        run_bounded(command)
    };
    let (status, output) = run("3");
    assert!(status.success() && output.contains("first call of this kind"), "{output}");
    assert!(output.contains("Out of bounds values : 0 OK"), "{output}");
    // More ranks than GPUs share those that are shown, and take no others.
    let (status, output) = run("4");
    assert!(status.success() && output.contains("Out of bounds values : 0 OK"), "{output}");
    let mut command = on_virtual("dgx1v", tool("ringdove"));
    command.arg("doctor").env("CUDA_VISIBLE_DEVICES", "1,4,6");
    let (_, output) = run_bounded(command);
    assert!(output.contains("3 of 8: CUDA_VISIBLE_DEVICES=1,4,6"), "{output}");
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
