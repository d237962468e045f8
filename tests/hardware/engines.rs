//! The same test on every engine.

use super::{INSIDE, is_real, on_machine_env, on_traced_machine};
use ringdove::Algorithms;
use ringdove::id::EngineKind;

/// Which engine the ranks of a test use.
pub const ENGINE: &str = "RINGDOVE_TEST_ENGINE";
/// Which plans the ranks of a test take (`RINGDOVE_ALGORITHM`).
pub const ALGORITHM: &str = "RINGDOVE_TEST_ALGORITHM";
/// The plans of the table of selection: without NVLink, the engine moves all but the smallest sums.
pub const BY_TABLE: (&str, &str) = (ALGORITHM, "table");
/// The machine with device engines.
pub const MACHINE: &str = "ark";

/// Runs the body of the current test on `machine` with the proxy, whose plans are those
/// [of the table](BY_TABLE), and then on [`MACHINE`] with device engines; on real GPUs with the
/// proxy alone, and the plans that it has by default. Where `machine` has one GPU, all ranks share
/// one of the other machine too. Settings for the ranks come from [`super::settings`].
pub fn on_engines(machine: &str, body: impl FnOnce()) {
    let real = is_real();
    if real {
        tally::skip("virtual-only", "the same on device engines");
    }
    if real || std::env::var_os(INSIDE).is_some() {
        return body();
    }
    on_machine_env(machine, &[], &[BY_TABLE], || {});
    let one = [(ENGINE, "device"), ("CUDA_VISIBLE_DEVICES", "0")];
    let variables = if machine == "one-gpu" { &one[..] } else { &one[..1] };
    on_machine_env(MACHINE, &[], variables, || {});
}

/// As [`on_engines`], and on `machine` with the plans that ranks take by default, too: there, GPU
/// threads move most sums of a node.
pub fn on_every_way(machine: &str, body: impl FnOnce()) {
    if !is_real() && std::env::var_os(INSIDE).is_none() {
        on_machine_env(machine, &[], &[], || {});
    }
    on_engines(machine, body);
}

/// Hardware queues of a context: the fewest that a user can ask for, what drivers give a context
/// that asks for nothing, and the most.
pub const CONNECTIONS: [u32; 3] = [1, 8, 32];

/// Runs the body of the current test with each number of hardware queues, with the proxy on
/// `machine` (plans [of the table](BY_TABLE)) and with device engines on [`MACHINE`]; on real GPUs
/// with the queues that there are.
pub fn on_connections(machine: &str, body: impl FnOnce()) {
    let real = is_real();
    if real || std::env::var_os(INSIDE).is_some() {
        return body();
    }
    for connections in CONNECTIONS {
        let key = format!("connections={connections}");
        let options = ["--driver-key", &key];
        on_machine_env(machine, &options, &[BY_TABLE], || {});
        on_machine_env(MACHINE, &options, &[(ENGINE, "device")], || {});
    }
}

/// Runs the body of the current test on [`MACHINE`], with device engines. Options are those of
/// `hwsim run`, and variables those of the body's process.
pub fn on_device_engines(options: &[&str], variables: &[(&str, &str)], body: impl FnOnce()) {
    if is_real() {
        return tally::skip("virtual-only", "this test uses virtual engines");
    }
    let variables = [&[(ENGINE, "device")], variables].concat();
    on_machine_env(MACHINE, options, &variables, body);
}

/// As [`on_device_engines`]; afterwards, `check` gets the trace of the body's driver calls.
pub fn on_traced_device_engines(body: impl FnOnce(), check: impl FnOnce(&str)) {
    on_traced_machine(MACHINE, &[(ENGINE, "device")], body, check);
}

/// The engine that the current test runs on.
pub fn engine() -> EngineKind {
    let name = std::env::var(ENGINE).ok();
    name.map_or(EngineKind::Proxy, |name| name.parse().expect(ENGINE))
}

/// The plans that the current test takes.
pub fn algorithm() -> Algorithms {
    let name = std::env::var(ALGORITHM).ok();
    name.map_or(Algorithms::default(), |name| name.parse().expect(ALGORITHM))
}
