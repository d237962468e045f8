//! What a job does under each fault: one table, of which the runs and `hw-sim/FAULTS.md` are made.
//! If this fails, a fault hangs a job, ends it without a word, or changes a result.
//!
//! `RINGDOVE_TEST_BLESS=1` writes the document anew.

mod hardware;
#[path = "faults/steps.rs"]
mod steps;

use hardware::perf::on_real_hardware;
use hardware::{hwsim, run_bounded, tool};
use std::fmt::Write;
use std::process::ExitStatus;

/// What must come of it.
enum Must {
    /// Every result is right.
    Right,
    /// Every result is right, and the output says all of this.
    Tell(&'static [&'static str]),
    /// The job ends with an error that says all of this.
    Fail(&'static [&'static str]),
}

use Must::{Fail, Right, Tell};

/// A fault, and the job that meets it.
struct Row {
    /// Arguments of `--fault`.
    faults: &'static [&'static str],
    /// Shell code in each process before the job: faults that are no device's.
    inside: &'static str,
    /// What it stands for.
    meaning: &'static str,
    job: Job,
    must: Must,
}

/// Machine, processes, and what `ringdove perf` is asked for.
#[derive(Clone, Copy)]
struct Job(&'static str, u32, &'static str);

const NODES: Job = Job("pcie4 x 2", 2, "all-reduce -g 1 -b 64K -e 64K -n 50 -w 1");
const LONG: Job = Job("pcie4 x 2", 2, "all-reduce -g 1 -b 64K -e 64K -n 2000 -w 0 -c 0");
const NODE: Job = Job("pcie4", 2, "all-reduce -g 1 -b 64K -e 64K -n 10 -w 1");
const THREE: Job = Job("pcie4", 3, "all-reduce -g 1 -b 64K -e 64K -n 50 -w 1");
const BRIEF: Job = Job("pcie4", 2, "all-reduce -g 1 -b 64K -e 64K -n 400 -w 1");
const ENDLESS: Job = Job("pcie4", 3, "all-reduce -g 1 -b 1M -e 1M -n 1000000 -w 1 -c 0");
const ENGINES: Job = Job("ark", 2, "all-reduce -g 1 -b 64K -e 64K -n 50 -w 1");

const HASTY: &str = "export RINGDOVE_TIMEOUT_MS=4000 RINGDOVE_RETRY_TIMEOUT_MS=500";
const IMPATIENT: &str = "export RINGDOVE_TIMEOUT_MS=10000 RINGDOVE_BOOTSTRAP_TIMEOUT_MS=8000";
/// Errors of transfers come long before anybody stops waiting, on a busy machine, too.
const FEW_RETRIES: &str = "export RINGDOVE_RETRY_TIMEOUT_MS=500";
const DEVICE: &str = "export RINGDOVE_ENGINE=device RINGDOVE_TIMEOUT_MS=8000";

const TABLE: &[Row] = &[
    Row {
        faults: &["node1/hwsim0:loss-at=200"],
        inside: FEW_RETRIES,
        meaning: "messages are lost until retries end",
        job: LONG,
        must: Fail(&["transfer to rank", "adapter hwsim0", "retr"]),
    },
    Row {
        faults: &["seed=3", "*:delay=300"],
        inside: "",
        meaning: "messages take long",
        job: NODES,
        must: Right,
    },
    Row {
        faults: &["seed=4", "*:reorder=200"],
        inside: "",
        meaning: "messages of other queue pairs overtake",
        job: NODES,
        must: Right,
    },
    Row {
        faults: &["seed=5", "*:receiver-not-ready=20", "*:delay=50"],
        inside: "",
        meaning: "messages find no receive request at first, and take long",
        job: NODES,
        must: Right,
    },
    Row {
        faults: &["node1/*:port-down-after=200"],
        inside: FEW_RETRIES,
        meaning: "a port goes down",
        job: LONG,
        must: Fail(&["transfer to rank", "port 1"]),
    },
    Row {
        faults: &["node0/*:port-flap=100:200000"],
        inside: "",
        meaning: "a port goes down and comes up before retries end",
        job: NODES,
        must: Right,
    },
    Row {
        faults: &["node0/*:port-flap=100:5000000"],
        inside: FEW_RETRIES,
        meaning: "a port goes down and comes up after retries have ended",
        job: LONG,
        must: Fail(&["transfer to rank", "adapter hwsim0", "port 1"]),
    },
    Row {
        faults: &["node0/*:reset-at=100"],
        inside: FEW_RETRIES,
        meaning: "an adapter is reset",
        job: LONG,
        must: Fail(&["transfer to rank", "adapter hwsim0", "the adapter needs a reset"]),
    },
    Row {
        faults: &["node0/*:qp-error-after=100"],
        inside: FEW_RETRIES,
        meaning: "a queue pair fails",
        job: LONG,
        must: Fail(&["transfer to rank", "queue pair", "0x65"]),
    },
    Row {
        faults: &["*:port-down"],
        inside: "",
        meaning: "no port is up",
        job: NODES,
        must: Fail(&["adapter", "down"]),
    },
    Row {
        faults: &["node0/*:registration-fails-at=0"],
        inside: "",
        meaning: "an adapter does not register a dma-buf: its address is registered",
        job: NODES,
        must: Right,
    },
    Row {
        faults: &["node0/*:registration-fails-at=2"],
        inside: "",
        meaning: "an adapter does not register memory that there is no other way for",
        job: NODES,
        must: Fail(&["ibv_reg_mr on hwsim0", "Cannot allocate memory"]),
    },
    Row {
        faults: &["gpu0:out-of-memory-at=1"],
        inside: "",
        meaning: "a GPU has no memory left at an allocation",
        job: NODE,
        must: Fail(&["CUDA_ERROR_OUT_OF_MEMORY"]),
    },
    Row {
        faults: &["host:out-of-memory-at=0"],
        inside: "",
        meaning: "the host has no pinned memory left",
        job: NODE,
        must: Fail(&["CUDA_ERROR_OUT_OF_MEMORY"]),
    },
    Row {
        faults: &["gpu1:stop-at=5"],
        inside: HASTY,
        meaning: "a GPU stops",
        job: NODE,
        must: Fail(&["timed out", "rank 1", "the GPU of rank 1 is late"]),
    },
    Row {
        faults: &["gpu1:slow=2000"],
        inside: "",
        meaning: "a GPU is slow",
        job: NODE,
        must: Right,
    },
    Row {
        faults: &["gpu1:slow=5000000"],
        inside: HASTY,
        meaning: "a GPU is slower than anybody waits",
        job: NODE,
        must: Fail(&["timed out", "rank 1", "the GPU of rank 1 is late"]),
    },
    Row {
        faults: &["gpu0:slow=50000", "gpu1:clock-leaps-at=10:1000000"],
        inside: "",
        meaning: "the clock of a GPU leaps while it waits, by less than the timeout",
        job: NODE,
        must: Right,
    },
    Row {
        faults: &["gpu0:slow=50000", "gpu1:clock-leaps-at=10:3600000000"],
        inside: "",
        meaning: "the clock of a GPU leaps while it waits, by more than the timeout",
        job: NODE,
        must: Fail(&["timed out", "rank 1"]),
    },
    Row {
        faults: &["gpu0:slow=50000", "gpu1:clock-leaps-at=10:-1000"],
        inside: "",
        meaning: "the clock of a GPU steps back while it waits",
        job: NODE,
        must: Right,
    },
    Row {
        faults: &["gpu0:slow=50000", "gpu1:clock-leaps-at=10:-3600000000"],
        inside: "",
        meaning: "the clock of a GPU steps back far behind the start of its wait",
        job: NODE,
        must: Right,
    },
    Row {
        faults: &["seed=7", "*:time-jumps=3600000000"],
        inside: "",
        meaning: "the time of day jumps by up to an hour at each look",
        job: NODES,
        must: Right,
    },
    Row {
        // Inside of a long message, not in a length before one.
        faults: &["seed=8", "rank1:flip-at=1900"],
        inside: IMPATIENT,
        meaning: "a bit of a message of the control plane flips",
        job: THREE,
        must: Fail(&["the connection to rank 1 was lost", "authentication code is wrong"]),
    },
    Row {
        faults: &["rank1:partition-at=2000"],
        inside: IMPATIENT,
        meaning: "a rank is cut off from the others",
        job: THREE,
        must: Fail(&["timed out", "no sign of rank 1"]),
    },
    Row {
        faults: &["rank1:connections-reset-at=2000"],
        inside: IMPATIENT,
        meaning: "a connection of the control plane is reset",
        job: THREE,
        must: Fail(&["the connection to rank", "was lost", "connection reset"]),
    },
    Row {
        faults: &["seed=9", "*:network-delay=10000"],
        inside: "",
        meaning: "messages of the control plane take long",
        job: THREE,
        must: Right,
    },
    Row {
        faults: &["seed=6", "*:delay=100"],
        inside: DEVICE,
        meaning: "requests of device engines take long",
        job: ENGINES,
        must: Right,
    },
    Row {
        faults: &["engine1:stall-after=20"],
        inside: DEVICE,
        meaning: "a device engine does nothing more",
        job: ENGINES,
        must: Fail(&["rank 1"]),
    },
    Row {
        faults: &["engine1:link-down-after=20"],
        inside: DEVICE,
        meaning: "the link of a device engine goes down",
        job: ENGINES,
        must: Fail(&["link", "rank"]),
    },
    Row {
        faults: &["engine0:fetch-fault-after=20"],
        inside: DEVICE,
        meaning: "a device engine cannot read a source",
        job: ENGINES,
        must: Fail(&["rank 0", "it could not read"]),
    },
    Row {
        faults: &["rank2:kill-at=2000"],
        inside: "",
        meaning: "a rank is killed",
        job: ENDLESS,
        must: Fail(&["the connection to rank 2 was lost"]),
    },
    Row {
        faults: &["rank1:freeze-at=2000"],
        inside: "export RINGDOVE_TIMEOUT_MS=10000",
        meaning: "a rank is stopped",
        job: ENDLESS,
        must: Fail(&["timed out", "rank 1 does not run"]),
    },
    Row {
        faults: &[],
        inside: "export RINGDOVE_BOOTSTRAP_TIMEOUT_MS=1500; [ $RANK = 1 ] && exec sleep 30",
        meaning: "a rank is cut off from the bootstrap",
        job: NODE,
        must: Fail(&["rank 1", "no sign of"]),
    },
    Row {
        faults: &[],
        inside: "export RINGDOVE_TRACE=/proc/no/such/folder/trace",
        meaning: "a file cannot be made",
        job: NODE,
        must: Fail(&["RINGDOVE_TRACE", "/proc/no/such/folder/trace"]),
    },
    Row {
        faults: &["rank1:disk-full-at=10000"],
        // What engines transfer is traced.
        inside: "export RINGDOVE_ALGORITHM=table RINGDOVE_TRACE=$(mktemp -d)/trace",
        meaning: "the disk is full while a trace is written",
        job: BRIEF,
        must: Tell(&["the trace ends here", "No space left on device"]),
    },
    Row {
        faults: &["*:unreadable=/sys/", "*:unreadable=/etc/", "*:unreadable=/proc/sys/"],
        inside: "",
        meaning: "nothing can be read of what the system says of itself",
        job: NODES,
        must: Right,
    },
];

impl Job {
    /// Runs it under these faults, with this shell code in each process before it. A process whose
    /// job was killed stays for a while, so that the others end by themselves.
    fn run(&self, faults: &[&str], inside: &str) -> (ExitStatus, String) {
        let Job(machine, processes, line) = self;
        let mut command = hwsim();
        command.args(["run", "--quiet", "--machine", machine, "--procs", &processes.to_string()]);
        for fault in faults {
            command.args(["--fault", fault]);
        }
        let perf = format!("{} perf {line}", tool("ringdove").display());
        let script = match faults.iter().any(|fault| fault.contains("kill-at")) {
            true => {
                format!("{inside}\n{perf}; status=$?; [ $status != 137 ] || sleep 30; exit $status")
            }
            false => format!("{inside}\nexec {perf}"),
        };
        command.args(["--", "bash", "-c", &script]);
        run_bounded(command)
    }
}

fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

impl Row {
    /// Runs the job; says what is wrong with what came of it.
    fn check(&self) -> Result<(), String> {
        let (status, output) = self.job.run(self.faults, self.inside);
        let wrong = match self.must {
            Right | Tell(_) if !status.success() => format!("{status}"),
            Right | Tell(_) if !output.contains("# Out of bounds values : 0 OK") => {
                "wrong results".into()
            }
            Fail(_) if status.success() => "it succeeded".into(),
            Fail(words) | Tell(words) => match words.iter().find(|word| !output.contains(**word)) {
                Some(missing) => format!("the output does not say `{missing}`"),
                None => return Ok(()),
            },
            Right => return Ok(()),
        };
        Err(format!("{} ({:?}): {wrong}\n{output}", self.meaning, self.faults))
    }

    /// Its row of the document.
    fn text(&self) -> String {
        let Job(machine, processes, line) = self.job;
        let faults: Vec<_> = self.faults.iter().map(|fault| format!("`--fault {fault}`")).collect();
        let mut how = faults.join(" ");
        if !self.inside.is_empty() {
            let separator = if how.is_empty() { "" } else { "; " };
            let inside = self.inside.replace('|', "\\|");
            write!(how, "{separator}`{inside}`").unwrap();
        }
        let must = match self.must {
            Right => "every result is right".to_owned(),
            Tell(words) => format!("every result is right, and a warning says {}", quoted(words)),
            Fail(words) => format!("an error, in time, which says {}", quoted(words)),
        };
        format!(
            "| {} | {how} | `{line}` in {processes} processes on `{machine}` | {must} |",
            self.meaning
        )
    }
}

#[test]
fn every_fault_leads_to_what_the_table_says() {
    if on_real_hardware() {
        return;
    }
    let wrong: Vec<String> = TABLE.iter().filter_map(|row| row.check().err()).collect();
    assert!(wrong.is_empty(), "{} of {} rows:\n{}", wrong.len(), TABLE.len(), wrong.join("\n"));
}

/// "Out of memory at any allocation": each of the first ones in turn, of a GPU and of the host.
#[test]
fn no_allocation_is_taken_for_granted() {
    if on_real_hardware() {
        return;
    }
    let (mut refused, mut right) = (0, 0);
    for place in ["gpu0", "host"] {
        for number in 0..16 {
            let fault = format!("{place}:out-of-memory-at={number}");
            let mut command = hwsim();
            command.args(["run", "--quiet", "--machine", "pcie4", "--fault", &fault, "--"]);
            command.arg(tool("ringdove"));
            command.args("perf all-reduce -g 2 -b 64K -e 64K -n 2 -w 0".split(' '));
            let (status, output) = run_bounded(command);
            if status.success() {
                right += 1;
                assert!(output.contains("# Out of bounds values : 0 OK"), "{fault}: {output}");
                continue;
            }
            refused += 1;
            assert_eq!(status.code(), Some(1), "{fault}: {status}\n{output}");
            assert!(output.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{fault}: {output}");
        }
    }
    println!("{refused} jobs ended with the error, {right} had no such allocation, or did without");
    assert!(refused >= 8, "{refused} jobs met their fault");
}

#[test]
fn the_document_is_made_from_the_table() {
    let mut text = "# What a job does under each fault\n\n".to_owned();
    text += "Generated from the table of `tests/faults.rs`, which runs every row; \
             `RINGDOVE_TEST_BLESS=1 cargo test\n--release -p ringdove --test faults the_document` \
             writes it anew. [README.md](README.md) lists the faults of devices.\n\n\
             | fault | how | job | what must come of it |\n|---|---|---|---|\n";
    TABLE.iter().for_each(|row| writeln!(text, "{}", row.text()).unwrap());
    text += "\nOut of memory: the same test refuses each of the first 16 allocations of a GPU and \
             of pinned memory in turn.\nFaults of the protocol itself (garbage in rings, stray \
             writes, plans that are refused, GPUs and engines that stop at any\nstep) are drawn by \
             `hwsim explore`. `tests/faults/steps.rs` kills ranks at driver calls, flips bits of \
             the control plane and cuts ranks off\nat bytes that are drawn from a seed; \
             `src/bootstrap` (`hostile_tests.rs`, `fuzz_tests.rs`) changes messages one by one.\n\
             Full disks below the virtual hardware itself: `tests/full_disk.rs`.\n";
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/hw-sim/FAULTS.md");
    if std::env::var_os("RINGDOVE_TEST_BLESS").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let seen = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(seen, text, "{path} is not what the table says");
}
