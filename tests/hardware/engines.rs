//! The same test on every engine.

use super::{INSIDE, is_real, on_machine_env, on_machine_with, on_traced_machine};
use ringdove::id::EngineKind;

/// Which engine the ranks of a test use.
pub const ENGINE: &str = "RINGDOVE_TEST_ENGINE";
/// The machine with device engines.
pub const MACHINE: &str = "ark";

/// Runs the body of the current test on `machine` with the proxy, and then on [`MACHINE`] with
/// device engines; on real GPUs with the proxy alone. Where `machine` has one GPU, all ranks share
/// one of the other machine too. Settings for the ranks come from [`super::settings`].
pub fn on_engines(machine: &str, body: impl FnOnce()) {
    let real = is_real();
    if real {
        tally::skip("virtual-only", "the same on device engines");
    }
    if real || std::env::var_os(INSIDE).is_some() {
        return body();
    }
    on_machine_env(machine, &[], &[], || {});
    let one = [(ENGINE, "device"), ("CUDA_VISIBLE_DEVICES", "0")];
    let variables = if machine == "one-gpu" { &one[..] } else { &one[..1] };
    on_machine_env(MACHINE, &[], variables, || {});
}

/// Hardware queues of a context: the fewest that a user can ask for, what drivers give a context
/// that asks for nothing, and the most.
pub const CONNECTIONS: [u32; 3] = [1, 8, 32];

/// Runs the body of the current test with each number of hardware queues, with the proxy on
/// `machine` and with device engines on [`MACHINE`]; on real GPUs with the queues that there are.
pub fn on_connections(machine: &str, body: impl FnOnce()) {
    let real = is_real();
    if real || std::env::var_os(INSIDE).is_some() {
        return body();
    }
    for connections in CONNECTIONS {
        let key = format!("connections={connections}");
        let options = ["--driver-key", &key];
        on_machine_with(machine, &options, || {});
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
