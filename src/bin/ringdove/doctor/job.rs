//! The system around a job: limits and traps of the host, the network, the launcher, settings.

use super::facts::{Facts, Source};
use super::report::{Level, Report};
use ringdove::Error;

/// What container engines give `/dev/shm` if nobody asks for more.
const SHARED_MEMORY_DEFAULT: u64 = 64 << 20;

/// Limits and traps that have nothing to do with adapters.
pub fn host(facts: &Facts, report: &mut Report) {
    report.section("host");
    let host = &facts.host;
    match &host.container {
        Some(why) => container(facts, why, report),
        None => report.ok("container", "none seen"),
    }
    match host.shared_memory_bytes {
        Some(bytes) if bytes <= SHARED_MEMORY_DEFAULT => report.complain(
            Level::Warning,
            "/dev/shm",
            format!("{} MiB: ringdove does not use it, but frameworks do", bytes >> 20),
            "in a container: `--shm-size=1g` or `--ipc=host`",
        ),
        Some(bytes) => report.ok("/dev/shm", format!("{} MiB", bytes >> 20)),
        None => report.complain(
            Level::Warning,
            "/dev/shm",
            "does not exist: ringdove does not use it, but frameworks do",
            "mount a tmpfs on it",
        ),
    }
    match host.ptrace_scope {
        Some(scope @ 2..) => report.complain(
            Level::Warning,
            "ptrace",
            format!("kernel.yama.ptrace_scope is {scope}: debuggers cannot attach to hung ranks"),
            "sysctl kernel.yama.ptrace_scope=1, or CAP_SYS_PTRACE",
        ),
        Some(scope) => report.ok("ptrace", format!("kernel.yama.ptrace_scope is {scope}")),
        None => report.ok("ptrace", "not restricted by yama"),
    }
    processors(facts, report);
}

fn container(facts: &Facts, why: &str, report: &mut Report) {
    let named = facts.settings.as_ref().is_ok_and(|settings| !settings.host_id.is_empty());
    let boot = facts.host.boot_id.as_deref().unwrap_or("unknown");
    if named {
        report.ok("container", format!("yes ({why}); RINGDOVE_HOST_ID names the node"));
        return;
    }
    report.ok(
        "container",
        format!(
            "yes ({why}); containers of one host share its boot id, {boot}, and count as one node: \
             if they cannot share device memory, give each its own RINGDOVE_HOST_ID"
        ),
    );
}

/// Each process has proxy threads, which must not wait for a processor.
fn processors(facts: &Facts, report: &mut Report) {
    let host = &facts.host;
    let allowed = host.cpus.len();
    let proxies = facts.settings.as_ref().map_or(1, |settings| settings.proxy_threads);
    let launch = facts.launch.as_ref().ok().and_then(Option::as_ref);
    let processes = launch.and_then(|launch| launch.local_count).unwrap_or(1) as usize;
    let wanted = processes * (proxies + 1);
    let quota = host.cpu_quota.map(|quota| format!(", quota of {quota:.1}"));
    let seen = format!(
        "{allowed} allowed{}, for {processes} process(es) with {proxies} proxy thread(s) each",
        quota.unwrap_or_default()
    );
    let granted = host.cpu_quota.unwrap_or(f64::INFINITY).min(allowed as f64);
    if allowed > 0 && granted < wanted as f64 {
        let advice = "proxies and callers share processors, which slows every call: raise the \
                      quota (`--cpus`), or the affinity (`taskset`, `--cpus-per-task`)";
        report.complain(Level::Warning, "processors", seen, advice);
    } else {
        report.ok("processors", seen);
    }
    let Ok(settings) = &facts.settings else { return };
    let outside: Vec<_> =
        settings.proxy_cpus.iter().filter(|cpu| !host.cpus.contains(cpu)).collect();
    if !outside.is_empty() {
        report.complain(
            Level::Warning,
            "RINGDOVE_PROXY_CPUS",
            format!("names {outside:?}, which this process may not use"),
            "name processors in the affinity mask of the process",
        );
    }
}

/// How ranks will find one another.
pub fn job(facts: &Facts, report: &mut Report) {
    report.section("job");
    match &facts.interface {
        Ok(choice) => {
            let addresses: Vec<_> =
                choice.addresses.iter().map(|address| address.ip().to_string()).collect();
            let seen = format!("{}: {}", choice.name, addresses.join(", "));
            if choice.is_loopback() && facts.several_nodes() {
                let advice = "other nodes cannot reach it: bring an interface up, or name one in \
                              RINGDOVE_BOOTSTRAP_INTERFACE";
                report.complain(Level::Missing, "bootstrap interface", seen, advice);
            } else {
                report.ok("bootstrap interface", seen);
            }
        }
        Err(Error::NotFound { looked_for, advice, .. }) => {
            report.complain(Level::Missing, "bootstrap interface", looked_for, advice);
        }
        Err(error) => {
            let advice = "check the output of `ip address`";
            report.complain(Level::Missing, "bootstrap interface", error, advice);
        }
    }
    launcher(facts, report);
}

fn launcher(facts: &Facts, report: &mut Report) {
    let launch = match &facts.launch {
        Ok(None) => {
            let seen = "none: this process would be a job with one rank";
            return report.ok("launcher", seen);
        }
        Ok(Some(launch)) => launch,
        Err(error) => {
            let advice = "start the ranks with torchrun, mpirun, mpiexec or srun, or set \
                          RINGDOVE_RANK and RINGDOVE_WORLD_SIZE for each";
            return report.complain(Level::Missing, "launcher", error, advice);
        }
    };
    let on_node = launch.local_rank.map(|rank| format!(", {rank} on its node"));
    let seen = format!(
        "{}: rank {} of {}{}; rendezvous at {} (from {})",
        launch.launcher,
        launch.rank,
        launch.rank_count,
        on_node.unwrap_or_default(),
        launch.root,
        launch.root_source,
    );
    report.ok("launcher", seen);
    if launch.secret.is_some() {
        report.ok("secret", "RINGDOVE_BOOTSTRAP_SECRET is set");
    } else if launch.rank_count == 1 {
        report.ok("secret", "not needed: the job has one rank");
    } else {
        let reach = match facts.several_nodes() {
            true => "anybody who can reach its port and knows the launcher's variables",
            false => "any process of this user that knows the launcher's variables",
        };
        report.complain(
            Level::Warning,
            "secret",
            format!("not set: {reach} can join the job or end it"),
            "set RINGDOVE_BOOTSTRAP_SECRET to the same random text on all ranks, such as the \
             output of `openssl rand -hex 32`; `hwsim run` does so",
        );
    }
}

/// Every setting and where it comes from.
pub fn settings(facts: &Facts, report: &mut Report) {
    report.section("settings");
    if let Err(error) = &facts.settings {
        let advice = "correct or unset it: programs do not start with it";
        report.complain(Level::Missing, "settings", error, advice);
    }
    for name in &facts.unknown_settings {
        let seen = "not a setting of ringdove; ignored";
        report.complain(
            Level::Warning,
            name,
            seen,
            "check its spelling; the README lists all settings",
        );
    }
    for Source { name, value, from } in &facts.sources {
        let value = if value.is_empty() { "(empty)" } else { value };
        report.ok(name, format!("{value} ({from})"));
    }
}
