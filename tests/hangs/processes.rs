//! Hangs of ranks of several processes, on one node and on several.

use super::hardware::{self, settings, try_join_with};
use super::{Outcome, choose, judge, report_of, seeds};
use fastrand::Rng;
use nix::sys::signal::{Signal, raise};
use ringdove::{Communicator, ReduceOp, Settings};
use std::time::Duration;

/// The seed of the hang that this process takes part in.
const SEED: &str = "RINGDOVE_TEST_HANG";
/// In the output of the process that speaks.
const VERDICT: &str = "the verdict names ";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// One process is killed in the middle of calls.
    Dies,
    /// One process is stopped in the middle of calls.
    Stops,
    /// One process makes fewer calls.
    NeverCalls,
    /// One process makes another call.
    OtherCall,
}

const KINDS: [Kind; 4] = [Kind::Dies, Kind::Stops, Kind::NeverCalls, Kind::OtherCall];

struct Drawn {
    kind: Kind,
    processes: u32,
    culprit: u32,
    calls: usize,
    count: usize,
}

impl Drawn {
    fn of(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let kind = KINDS[seed as usize % KINDS.len()];
        let processes = random.u32(3..=4);
        Self {
            kind,
            processes,
            culprit: random.u32(..processes),
            calls: random.usize(1..4),
            count: choose(&mut random, &[1, 1000, 100_000]),
        }
    }
}

#[test]
fn culprits_among_processes_are_named() {
    if let Ok(seed) = std::env::var(SEED) {
        return take_part(&Drawn::of(seed.parse().unwrap()));
    }
    if hardware::perf::on_real_hardware() {
        return;
    }
    let thread = std::thread::current();
    let test = thread.name().expect("libtest names its threads");
    let hang = |seed| {
        let Drawn { kind, processes, culprit, .. } = Drawn::of(seed);
        let mut command = hardware::hwsim();
        command.args(["run", "--quiet", "--machine", "pcie4", "--procs", &processes.to_string()]);
        // `hwsim run` ends all others soon after one is killed; the shell keeps that to itself.
        let script = "\"$@\"; status=$?; [ $status = 137 ] && sleep 30; exit $status";
        command.args(["--", "bash", "-c", script, "bash"]);
        command.arg(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
        command.env(SEED, u64::to_string(&seed));
        let (_, output) = hardware::run_bounded(command);
        let named = format!("{VERDICT}[Rank({culprit})]");
        let what = format!("{kind:?} of rank {culprit} of {processes}");
        Outcome::of(seed, what, output.contains(&named), output)
    };
    judge(test, &seeds(30).into_iter().map(hang).collect::<Vec<_>>());
}

/// The lowest rank that is not the culprit's speaks.
fn take_part(drawn: &Drawn) {
    let settings = Settings {
        wait_timeout: Duration::from_secs(4),
        drop_timeout: Duration::from_millis(400),
        ..settings()
    };
    let communicator = try_join_with(1, settings).unwrap().swap_remove(0);
    let rank = communicator.rank();
    let is_culprit = rank == drawn.culprit;
    for _ in 0..drawn.calls {
        let outcome = call(&communicator, drawn.count);
        if is_culprit {
            outcome.unwrap();
        } else if outcome.is_err() {
            // The culprit was done with it sooner, and died.
            break;
        }
    }
    if is_culprit {
        match drawn.kind {
            Kind::Dies => raise(Signal::SIGKILL).unwrap(),
            Kind::Stops => raise(Signal::SIGSTOP).unwrap(),
            Kind::NeverCalls => {}
            Kind::OtherCall => drop(call(&communicator, drawn.count + 1)),
        }
    } else {
        let _ = call(&communicator, drawn.count);
    }
    hardware::wait_for_error(&communicator);
    let speaker = if drawn.culprit == 0 { 1 } else { 0 };
    if rank == speaker {
        let report = report_of(drawn.processes as usize);
        println!("{report}{VERDICT}{:?}", report.verdict.cause.ranks());
        // The run ends here, also for who is stopped.
        std::process::exit(1);
    }
    // Until then the others' recorders are there.
    std::thread::sleep(Duration::from_secs(20));
}

fn call(communicator: &Communicator, count: usize) -> ringdove::Result<()> {
    let stream = communicator.context().per_thread_stream();
    let mut buffer = stream.clone_htod(&vec![1u32; count]).unwrap();
    communicator.all_reduce_in_place(&mut buffer, ReduceOp::Sum, &stream)?;
    stream.synchronize().map_err(|_| communicator.check().unwrap_err())?;
    communicator.check()
}

/// Between nodes an adapter's error names both ends of the way that is cut: one of them is where
/// the port is.
#[test]
fn ways_between_nodes_that_are_cut_are_named() {
    if hardware::perf::on_real_hardware() {
        return;
    }
    let hang = |seed| {
        let mut random = Rng::with_seed(seed);
        let nodes = random.u32(2..=3);
        let node = random.u32(..nodes);
        let after = random.u32(20..200);
        let machine = format!("pcie4 x {nodes}");
        let fault = match random.bool() {
            true => format!("node{node}/*:port-down-after={after}"),
            false => format!("node{node}/*:qp-error-after={after}"),
        };
        let inside = "export RINGDOVE_RETRY_TIMEOUT_MS=500";
        let line = "all-reduce -g 1 -b 64K -e 64K -n 2000 -w 0 -c 0";
        let (_, output) = hardware::perf::perf((&machine, nodes), &fault, inside, line);
        let what = format!("{fault} of {nodes} nodes");
        let end = format!("rank {node}");
        let named = output.lines().any(|line| {
            let ways =
                line.split("the way from ").nth(1).and_then(|way| way.split(" is cut").next());
            let gone = line.contains(&format!("{end} is gone"));
            gone || ways.is_some_and(|ranks| ranks.split(" to ").any(|rank| rank == end))
        });
        Outcome::of(seed, what, named, output)
    };
    let test = "ways_between_nodes_that_are_cut_are_named";
    judge(test, &seeds(10).into_iter().map(hang).collect::<Vec<_>>());
}
