//! Limits of the process, and settings beyond what the system can do: each is named as what it is,
//! with the way to raise it, and never blamed on the hardware.

mod hardware;
mod support;

use hardware::perf::on_real_hardware;
use hardware::{adapter, hwsim, run_bounded, tool};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use ringdove::Error;
use ringdove::transport::verbs::{Adapter, Near, list_ports};
use support::adapters::settings;

/// What `ringdove` says on one virtual GPU after these shell commands.
fn ringdove_after(shell: &str, variables: &[(&str, &str)], arguments: &str) -> (bool, String) {
    let mut command = hwsim();
    command.args(["run", "--quiet", "--machine", "one-gpu", "--", "sh", "-c"]);
    command.arg(format!("{shell}; exec {} {arguments}", tool("ringdove").display()));
    command.envs(variables.iter().copied());
    let (status, output) = run_bounded(command);
    assert!(status.code().is_some(), "it was killed: {status}\n{output}");
    (status.success(), output)
}

const PERF: &str = "perf all-reduce -g 1 -b 8 -e 8 -n 1 -w 1";

#[test]
fn a_limit_of_address_space_is_named_by_the_driver_and_by_the_library() {
    if on_real_hardware() {
        return;
    }
    let (succeeded, output) = ringdove_after("ulimit -v 4000000", &[], PERF);
    assert!(!succeeded, "{output}");
    let of = |start: &str| {
        let line = output.lines().find(|line| line.starts_with(start));
        line.unwrap_or_else(|| panic!("no line of {start}\n{output}"))
    };
    for line in [of("hwsim: "), of("ringdove: ")] {
        for part in ["address space", "3906 MiB", "ulimit -v"] {
            assert!(line.contains(part), "lacks {part:?}: {line}");
        }
    }
}

#[test]
fn a_processor_beyond_what_sets_of_processors_hold_is_an_error_and_no_abort() {
    if on_real_hardware() {
        return;
    }
    let (succeeded, output) = ringdove_after("true", &[("RINGDOVE_PROXY_CPUS", "1024")], PERF);
    assert!(!succeeded, "{output}");
    assert!(output.contains("RINGDOVE_PROXY_CPUS") && output.contains("0 to 1023"), "{output}");
    // One that may exist, and does not here.
    let (succeeded, output) = ringdove_after("true", &[("RINGDOVE_PROXY_CPUS", "1023")], PERF);
    assert!(!succeeded && output.contains("core 1023"), "{output}");
}

/// Every number of free descriptors, from none to more than are needed.
#[test]
fn too_few_descriptors_are_never_blamed_on_an_adapter() {
    adapter::run(settings(), None, |settings| {
        let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        // The libraries are loaded before anything is scarce.
        list_ports().unwrap();
        let (mut refused, mut opened) = (0, 0);
        for limit in 1..open + 40 {
            setrlimit(Resource::RLIMIT_NOFILE, limit, hard).unwrap();
            let near = Near::default();
            let results = [
                list_ports().map(|(ports, failures)| {
                    assert!(failures.is_empty(), "limit {limit}: {failures:?}");
                    let active = ports.iter().filter(|port| port.adapter == adapter::INFINIBAND);
                    active.for_each(|port| assert!(!port.gids.is_empty(), "limit {limit}"));
                }),
                Adapter::choose(&near, &settings).map(drop),
            ];
            for result in results {
                match result {
                    Ok(()) => opened += 1,
                    Err(error @ Error::System { .. })
                        if error.to_string().contains("ulimit -n") =>
                    {
                        assert!(error.to_string().contains("os error 24"), "{error}");
                        refused += 1;
                    }
                    Err(error) => panic!("limit {limit}: {error}"),
                }
            }
        }
        println!("{refused} times refused, {opened} times opened");
        assert!(refused > 0 && opened > 0, "{refused} refused, {opened} opened");
    });
}
