//! Virtual adapters for tests that were not given one.

use super::{hwsim, is_real, run_bounded};
use ringdove::transport::verbs::VerbsSettings;

/// The machine on which tests run that were not given an adapter. Its first adapter is on
/// InfiniBand, its second on Ethernet.
const MACHINE: &str = "pcie4";
pub const INFINIBAND: &str = "hwsim0";
pub const ETHERNET: &str = "hwsim1";

/// In which order a virtual adapter places the data of one queue pair.
#[derive(Clone, Copy)]
pub enum Placement {
    /// That of the writes, as many adapters promise: for tests whose signals are such writes, below
    /// the code that asks the adapter and chooses another way.
    InOrder,
    /// Any, as with adaptive routing.
    OutOfOrder,
}

/// Runs the body of the current test on the adapter that `settings` name, else on a virtual one
/// that places data in order; with faults, only on a virtual one.
pub fn run(
    settings: Option<VerbsSettings>,
    faults: Option<&str>,
    body: impl FnOnce(VerbsSettings),
) {
    run_placing(Placement::InOrder, settings, faults, body);
}

/// As [`run`], with a virtual adapter that places data like this.
pub fn run_placing(
    placement: Placement,
    settings: Option<VerbsSettings>,
    faults: Option<&str>,
    body: impl FnOnce(VerbsSettings),
) {
    let on = |faults: &str| on_placing_adapter(placement, INFINIBAND, faults);
    match (settings, faults) {
        (Some(settings), None) => body(settings),
        (Some(settings), Some(_)) if std::env::var_os("HWSIM_FAULTS").is_some() => body(settings),
        (Some(_), Some(_)) => tally::skip("adapter-fault", "an adapter that fails on request"),
        (None, None) => on(&format!("{ETHERNET}:port-down")),
        (None, Some(faults)) => on(faults),
    }
}

/// Runs the current test once more, in its own process that sees virtual adapters, which place data
/// in order.
pub fn on_virtual_adapter(adapter: &str, faults: &str) {
    on_placing_adapter(Placement::InOrder, adapter, faults);
}

fn on_placing_adapter(placement: Placement, adapter: &str, faults: &str) {
    if is_real() {
        return tally::skip("virtual-only", "RINGDOVE_TEST_ADAPTER names no adapter");
    }
    let thread = std::thread::current();
    let test = thread.name().expect("libtest names its threads");
    let mut command = hwsim();
    command.args(["run", "--quiet", "--machine", MACHINE, "--driver-key"]);
    command.arg(match placement {
        Placement::InOrder => "place-out-of-order=off",
        Placement::OutOfOrder => "place-out-of-order=on",
    });
    command.arg("--").arg(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    command.env("RINGDOVE_TEST_ADAPTER", adapter).env("RINGDOVE_TEST_ADAPTER_DOWN", ETHERNET);
    if !faults.is_empty() {
        command.env("HWSIM_FAULTS", format!("seed=7,{faults}"));
    }
    let (status, output) = run_bounded(command);
    assert!(status.success(), "on {adapter}: {status}\n{output}");
    assert!(output.contains("1 passed"), "the test did not run on {adapter}\n{output}");
}
