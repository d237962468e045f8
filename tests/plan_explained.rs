//! `ringdove plan --machine`: candidates for a collective, what each would cost, and the choice.

mod hardware;

use hardware::{is_left_out, on_virtual, ringdove, run_bounded, tool};
use std::path::Path;
use std::process::Command;

/// True, with a word about it, on real hardware.
fn cannot_run() -> bool {
    is_left_out("this test starts its own virtual machines")
}

/// The topology file of a virtual machine.
fn export(machine: &str, file: &Path) {
    let mut command = on_virtual(machine, tool("ringdove"));
    command.args(["topo", "--export"]).arg(file);
    let (status, output) = run_bounded(command);
    assert!(status.success(), "{output}");
}

fn plan(arguments: &[&str]) -> Result<String, String> {
    ringdove(&[&["plan"], arguments].concat())
}

/// If this fails, a user is told of another choice than the one that a communicator makes, or not
/// what limits it.
#[test]
fn candidates_are_listed_with_their_times_and_the_choice() {
    if cannot_run() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (mesh, switched, box_of_pcie) = (path("dgx1v.xml"), path("a100.xml"), path("pcie4.xml"));
    export("dgx1v", Path::new(&mesh));
    export("dgx-a100", Path::new(&switched));
    export("pcie4", Path::new(&box_of_pcie));
    let explained = |machine: &str, more: &[&str]| {
        plan(&[&["all-reduce", "--machine", machine], more].concat())
    };

    let text = explained(&mesh, &["-b", "16M"]).unwrap();
    assert!(text.contains("all times are modelled, profile v100"), "{text}");
    assert!(text.contains("in the order 0 3 2 1 5 6 7 4"), "{text}");
    let taken = text.lines().find(|line| line.starts_with("* packed trees")).expect(&text);
    assert!(taken.contains("NVLink") || taken.contains("blocks"), "{taken}");
    assert!(text.contains("  ring staged"), "{text}");
    assert!(text.contains("proved: every output"), "{text}");
    for (bytes, taken) in [("256", "* all pairs"), ("8K", "* two-shot, stores")] {
        let small = explained(&mesh, &["-b", bytes]).unwrap();
        assert!(small.lines().any(|line| line.starts_with(taken)), "{small}");
    }

    let text = explained(&switched, &["-b", "1M"]).unwrap();
    assert!(text.contains("profile a100") && text.contains("* two-shot, stores"), "{text}");
    let text = explained(&switched, &["-b", "16M"]).unwrap();
    assert!(text.contains("* packed trees") && text.contains("  two-shot, stores"), "{text}");
    assert!(!text.contains("in switches"), "A100's switches do not reduce: {text}");
    let reducing = path("h100.xml");
    export("dgx-h100", Path::new(&reducing));
    let text = explained(&reducing, &["-b", "64M"]).unwrap();
    let line = text.lines().find(|line| line.starts_with("  in switches")).expect(&text);
    assert!(line.contains("planned, not run") && text.contains("* packed trees"), "{text}");
    let text = explained(&box_of_pcie, &["-b", "16M", "--profile", "pcie4"]).unwrap();
    assert!(text.contains("* ring staged") && text.contains("PCI"), "{text}");
    assert!(!text.contains("packed trees"), "{text}");

    // A part of the machine, another candidate, and a drawing.
    let drawing = path("ring.svg");
    let part = ["-b", "4M", "--gpus", "0,1,4,5,7", "--algorithm", "ring staged", "--svg", &drawing];
    let text = explained(&mesh, &part).unwrap();
    assert!(text.contains("all-reduce of 4 MiB among 5 ranks: ring staged"), "{text}");
    let drawn = std::fs::read_to_string(&drawing).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("modelled"), "{drawn:.300}");
}

/// If this fails, what is explained is not what runs.
#[test]
fn communicators_take_what_is_explained() {
    if cannot_run() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pcie4.xml");
    export("pcie4", &file);
    let mut seen = std::collections::BTreeSet::new();
    for bytes in ["1K", "64K", "8M"] {
        let text = plan(&["all-reduce", "--machine", file.to_str().unwrap(), "-b", bytes]).unwrap();
        let (_, said) = text.split_once("among 4 ranks: ").expect(&text);
        let (name, _) = said.split_once(',').expect(&text);
        let mut command = on_virtual("pcie4", tool("ringdove"));
        command.args(["perf", "all-reduce", "-g", "4", "-n", "1", "-w", "0", "-c", "0", "-R", "0"]);
        command.args(["-b", bytes, "-e", bytes]);
        command.env("RINGDOVE_LOG", "ringdove=info").env("NO_COLOR", "1");
        let (status, output) = run_bounded(command);
        assert!(status.success(), "{output}");
        let taken = format!("algorithm=\"{name}\"");
        assert!(output.contains(&taken), "{bytes}: expected {taken}\n{output}");
        seen.insert(name.to_owned());
    }
    assert!(seen.len() > 2, "one way for all sizes: {seen:?}");
}

/// If this fails, a mistake in a file or a flag ends in a panic, or in another machine's plan.
#[test]
fn what_cannot_be_explained_is_refused_with_the_reason() {
    if cannot_run() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let machine = path("pcie4.xml");
    export("pcie4", Path::new(&machine));
    let (profile, broken) = (path("mine.toml"), path("broken.xml"));
    let toml = profile.clone();
    std::fs::write(&profile, "name = \"mine\"\nsummary = \"\"\n").unwrap();
    std::fs::write(&broken, "<system version=\"1\"><cpu>").unwrap();
    for (arguments, reasons) in [
        (vec!["-b", "1M", "--machine", "/nowhere.xml"], ["/nowhere.xml", "No such file"]),
        (vec!["-b", "1M", "--machine", "dgx1v"], ["cannot read dgx1v", "--machine dgx1v --"]),
        (vec!["-b", "1M", "--machine", &toml], ["mine.toml", "hwsim run --machine"]),
        (vec!["-b", "1M", "--machine", &broken], ["broken.xml", "line 1"]),
        (vec!["-b", "1M", "--machine", &machine, "--profile", "no"], ["profile no", "v100 a100"]),
        (
            vec!["-b", "1M", "--machine", &machine, "--profile", &profile],
            ["mine.toml", "`launch` is missing"],
        ),
        (vec!["-b", "1M", "--machine", &machine, "--gpus", "0,9"], ["no GPU", "9"]),
        (vec!["-b", "1M", "--machine", &machine, "-n", "3"], ["--ranks 3", "4"]),
        (vec!["-b", "1M", "--machine", &machine, "--algorithm", "x"], ["--algorithm", "doubling"]),
        (vec!["-b", "1M", "--machine", &machine, "--nodes", "32"], ["up to 64 ranks", "128"]),
        (vec!["-b", "1M"], ["--ranks", "--machine"]),
    ] {
        let text = plan(&[&["all-reduce"][..], &arguments].concat()).expect_err("refused");
        let all = reasons.iter().all(|reason| text.contains(reason));
        assert!(all && !text.contains("panicked"), "{arguments:?}: {text}");
    }
}

/// If this fails, whoever gives the name or the file of another command's machine is not told what
/// to do, or is told of machines that there are not.
#[test]
fn machines_of_one_command_are_told_apart_from_those_of_the_other() {
    if cannot_run() {
        return;
    }
    let refused = plan(&["all-reduce", "-b", "1M", "--machine", "dgx1v"]).expect_err("no file");
    let names = refused.split_once("Virtual machines (").and_then(|(_, rest)| rest.split_once(')'));
    let (names, _) = names.unwrap_or_else(|| panic!("no names: {refused}"));
    let mut unknown = Command::new(tool("hwsim"));
    let unknown = unknown.args(["run", "--machine", "nosuch", "--", "true"]).output().unwrap();
    let unknown = String::from_utf8_lossy(&unknown.stderr).into_owned();
    let built_in = unknown.split_once("machines ").and_then(|(_, rest)| rest.split_once(", or"));
    let (built_in, _) = built_in.unwrap_or_else(|| panic!("no names: {unknown}"));
    let of_hint = names.split_once(", or").map_or(names, |(names, _)| names);
    assert_eq!(of_hint.replace(" and ", ", "), built_in);

    let folder = tempfile::tempdir().unwrap();
    let xml = folder.path().join("machine.xml");
    std::fs::write(&xml, "<system version=\"1\"></system>\n").unwrap();
    let mut wrong = Command::new(tool("hwsim"));
    let wrong = wrong.args(["run", "--machine", xml.to_str().unwrap(), "--", "true"]).output();
    let wrong = wrong.unwrap();
    let text = String::from_utf8_lossy(&wrong.stderr);
    assert!(!wrong.status.success() && text.contains("expected TOML, found XML"), "{text}");
    assert!(text.contains("ringdove plan --machine"), "{text}");
}
