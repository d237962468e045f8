//! `ringdove tune`: measures a machine, and writes a profile that loads.

mod hardware;

use hardware::perf::{assert_right, perf};
use hardware::{is_left_out, on_virtual, ringdove, run_bounded, tool};
use ringdove::cost::Profile;
use ringdove::cost::profile::CONSTANTS;

/// What machines without device engines do not have, and what no pair of these GPUs crosses.
const NEVER: [&str; 5] =
    ["device_doorbell", "decode", "device_signal", "cpu_efficiency", "cpu_latency"];

/// If this fails, what was measured cannot be used, or a constant that was not measured looks as if
/// it had been.
#[test]
fn a_machine_is_measured_into_a_profile_that_loads() {
    if is_left_out("it starts virtual machines of its own") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (machine, measured, of_way) in [
        ("pcie4", "pcie_efficiency", "pcie_latency"),
        ("dgx-a100", "nvlink_efficiency", "nvlink_latency"),
    ] {
        let path = folder.path().join(format!("{machine}.toml"));
        let file = path.to_str().unwrap();
        let mut command = on_virtual(machine, tool("ringdove"));
        command.args(["tune", file, "--name", "mine"]);
        command.env("RINGDOVE_LOG", "ringdove=info").env("NO_COLOR", "1");
        let (status, output) = run_bounded(command);
        assert!(status.success(), "{output}");
        assert!(output.contains("no figures of GPUs"), "{output}");
        assert!(output.contains("not measured: device engines: no device engine"), "{output}");
        let text = std::fs::read_to_string(&path).unwrap();
        let profile = Profile::parse(file, &text).unwrap();
        assert_eq!(profile.name, "mine");
        let of = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(&format!("{name} = ")));
            line.unwrap_or_else(|| panic!("no {name}\n{text}"))
        };
        // Most are differences of times, which come to nothing where a machine is busy.
        let mut count = 0;
        for (name, ..) in CONSTANTS {
            let is_measured = of(name).contains("measured by ringdove tune");
            assert_ne!(is_measured, of(name).contains("not measured: as in"), "{}", of(name));
            let always = ["launch", "submit", "copy_engines"].contains(name);
            let others = ["nvlink_efficiency", "pcie_efficiency", "nvlink_latency", "pcie_latency"];
            let is_other = others.contains(name) && *name != measured && *name != of_way;
            let never = is_other || NEVER.contains(name);
            assert!(!always || is_measured, "{}", of(name));
            assert!(!never || !is_measured, "{}", of(name));
            count += usize::from(is_measured);
        }
        println!("{machine}: {count} of {} constants measured\n{output}", CONSTANTS.len());
        assert!(count >= 12, "{count} of {}", CONSTANTS.len());
        // A short one and a long one for each of nine differences.
        let plans = output.matches("by the plan of a file").count();
        assert_eq!(plans, 18, "a plan of the measurement did not run:\n{output}");
        // The command that explains choices takes the file as it takes built-in profiles.
        let mut explained = on_virtual(machine, tool("ringdove"));
        explained.args(["plan", "all-reduce", "-b", "1M", "--machine", "here", "--profile", file]);
        let (status, output) = run_bounded(explained);
        assert!(status.success() && output.contains("profile mine"), "{output}");
    }
}

/// If this fails, machines with device engines are priced with others' constants.
#[test]
fn device_engines_are_measured_where_there_are_any() {
    if is_left_out("it starts virtual machines of its own") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ark.toml");
    let mut command = on_virtual("ark", tool("ringdove"));
    command.arg("tune").arg(&path);
    command.env("RINGDOVE_LOG", "ringdove=info").env("NO_COLOR", "1");
    let (status, output) = run_bounded(command);
    assert!(status.success(), "{output}");
    assert!(!output.contains("not measured: device engines"), "{output}");
    let plans = output.matches("by the plan of a file").count();
    assert_eq!(plans, 22, "a plan of the measurement did not run:\n{output}");
    let text = std::fs::read_to_string(&path).unwrap();
    let profile = Profile::parse("ark.toml", &text).unwrap();
    assert_eq!(profile.name, "tuned");
}

/// If this fails, communicators choose by other constants than those that were asked for, or ranks
/// by different ones; and a broken file is found by nobody.
#[test]
fn communicators_choose_by_the_profile_that_a_setting_names() {
    if is_left_out("it starts virtual machines of its own") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let good = include_str!("../src/cost/profiles/a100.toml");
    let line = good.lines().find(|line| line.starts_with("store_block =")).unwrap();
    let slow = "store_block = { value = 0.001, unit = \"GB/s\", source = \"a test\" }";
    std::fs::write(path("slow.toml"), good.replace(line, slow)).unwrap();
    std::fs::write(path("broken.toml"), good.replace(line, "")).unwrap();
    let export = "export RINGDOVE_LOG=ringdove=info RINGDOVE_PROFILE=";
    let call = "all-reduce -b 8M -e 8M -n 1 -w 0";
    let chosen = |profile: &str| {
        let ended =
            perf(("dgx-a100", 1), "", &format!("{export}{profile}"), &format!("{call} -g 4"));
        assert_right(profile, &ended);
        // Between the name of the field and its value there are marks of terminals.
        let line = ended.1.lines().find(|line| line.contains("first call of this kind"));
        let line = line.unwrap_or_else(|| panic!("{}", ended.1));
        line.split("algorithm").nth(1).and_then(|rest| rest.split('"').nth(1)).unwrap().to_owned()
    };
    let usual = chosen("");
    assert_eq!(chosen("a100"), usual);
    assert_ne!(chosen(&path("slow.toml")), usual, "stores are slow there");
    let inside = format!("{export}a100; [ $RANK = 1 ] && {export}{}; true", path("slow.toml"));
    let (status, output) = perf(("dgx-a100", 2), "", &inside, &format!("{call} -g 1"));
    assert!(!status.success() && output.contains("RINGDOVE_PROFILE"), "{output}");
    for (profile, reason) in [(path("broken.toml"), "`store_block` is missing"), (path("none"), "")]
    {
        let inside = format!("{export}{profile}");
        let (status, output) = perf(("dgx-a100", 1), "", &inside, &format!("{call} -g 2"));
        let named = output.contains("RINGDOVE_PROFILE") && output.contains(reason);
        assert!(!status.success() && named, "{output}");
    }
}

/// If this fails, a mistake on the command line costs minutes before it is found, or a file is
/// written that nobody can load.
#[test]
fn what_cannot_be_tuned_is_refused() {
    let refused = ringdove(&["tune", "/nowhere/profile.toml", "--name", "a\"b"]).unwrap_err();
    assert!(refused.contains("--name"), "{refused}");
}
