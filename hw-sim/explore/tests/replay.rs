//! A seed is one run: in every process, whatever its environment, its number of processors and the
//! addresses of its memory, and in every build.

use hwsim_explore::scenario::run_traced;
use hwsim_explore::{Description, Kernels, Options, Scenario, UserKernel};
use std::process::Command;

/// The test that prints digests, by which this file runs itself again.
const PRINTS: &str = "prints_the_digests_of_runs";

/// What stands before each digest.
const MARK: &str = "digest of ";

/// Scenarios whose agents differ in kind: kernels with proxies and hosts, stores alone, device
/// engines, plans, groups, several streams, jobs, adapters, and the library's words.
const SCENARIOS: [Scenario; 12] = [
    Scenario::Ring,
    Scenario::LowLatency,
    Scenario::Grants,
    Scenario::UserFaults,
    Scenario::BatchesFaults,
    Scenario::Collectives,
    Scenario::GroupsFaults,
    Scenario::DeviceFaults,
    Scenario::MembersFaults,
    Scenario::Communicators,
    Scenario::SeveralFaults,
    Scenario::Words,
];

/// Of each of them.
const SEED: u64 = 3;

/// All that a run shows: each access of each agent with its time and value, and how it ends.
fn digests() -> Vec<String> {
    let mut digests = Vec::new();
    for scenario in SCENARIOS {
        let options = Options::draw(scenario, SEED);
        let (outcome, trace) = run_traced(&Kernels::committed(), &options);
        let shown = blake3::hash(format!("{options}\n{outcome:?}\n{trace}").as_bytes());
        digests.push(format!("{MARK}{} {SEED}: {shown}", scenario.name()));
    }
    digests
}

#[test]
fn prints_the_digests_of_runs() {
    digests().iter().for_each(|line| println!("{line}"));
}

/// Runs this file's digests in a process of their own.
fn of_process(mut command: Command) -> Vec<String> {
    let output = command.args(["--exact", PRINTS, "--nocapture", "--test-threads=1"]).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {text}");
    let lines = text.lines().filter_map(|line| Some(&line[line.find(MARK)?..]));
    let lines: Vec<_> = lines.map(str::to_owned).collect();
    assert_eq!(lines.len(), SCENARIOS.len(), "{command:?}: {text}");
    lines
}

/// If this fails, a run depends on something that its seed does not fix: the order of a hash table,
/// an address, a variable of the environment, a folder, a clock or the number of processors. Then
/// the command that a failure prints does not replay it elsewhere.
#[test]
fn other_processes_replay_the_same_runs() {
    let here = std::env::current_exe().unwrap();
    let here = here.as_path();
    let first = digests();
    let mut bare = Command::new(here);
    bare.env_clear().env("TZ", "Pacific/Auckland").env("LC_ALL", "C").current_dir("/");
    bare.env("A_LONG_VARIABLE", "x".repeat(50_000)).env("RINGDOVE_TIMEOUT_MS", "17");
    let mut on_one = Command::new("taskset");
    on_one.args(["--cpu-list", "0"]).arg(here);
    for other in [bare, on_one] {
        let shown = format!("{other:?}");
        let again = of_process(other);
        let differ: Vec<_> = first.iter().zip(&again).filter(|(a, b)| a != b).collect();
        assert!(differ.is_empty(), "{:.80}: {differ:#?}", shown);
    }
    // Digests do tell runs apart.
    let mut all: Vec<_> = first.iter().filter_map(|line| line.split(": ").nth(1)).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), first.len());
}

/// One block hands data to another one, by a release and an acquire.
const HAND_OVER: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry hand_over(.param .u64 data, .param .u64 flag, .param .u64 out)
{
    .reg .pred %p<3>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [data];
    ld.param.u64 %rd2, [flag];
    ld.param.u64 %rd3, [out];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd4, %r2, 4;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra TAKE;
    add.u32 %r3, %r2, 7;
    add.u64 %rd5, %rd1, %rd4;
    st.global.u32 [%rd5], %r3;
    bar.sync 0;
    setp.ne.u32 %p2, %r2, 0;
    @%p2 bra END;
    fence.acq_rel.gpu;
    st.relaxed.gpu.global.u32 [%rd2], 1;
    bra END;
TAKE:
    ld.acquire.gpu.global.u32 %r4, [%rd2];
    setp.eq.u32 %p2, %r4, 0;
    @%p2 bra TAKE;
    add.u64 %rd5, %rd1, %rd4;
    ld.global.u32 %r5, [%rd5];
    add.u64 %rd6, %rd3, %rd4;
    st.global.u32 [%rd6], %r5;
END:
    ret;
}
";

/// Turns and warp instructions of seeds 0 to 7, as a release build for x86-64 counted them on
/// 2026-11-27.
const COUNTED: [[u64; 2]; 8] =
    [[15, 55], [11, 37], [7, 49], [75, 55], [14, 64], [6, 46], [10, 55], [8, 52]];

/// If this fails, the same seed is another run in this build, or on this machine, than it was in
/// that one; or how runs draw has changed, and the table is to be written again. The kernel is not
/// one of the library's, so that a change of those changes nothing here.
#[test]
fn seeds_are_the_runs_that_another_build_counted() {
    let hex = |words: std::ops::Range<u32>| {
        let bytes = words.flat_map(u32::to_le_bytes);
        bytes.map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let zeros = |count: usize| "00".repeat(4 * count);
    let description = serde_json::json!({
        "ptx": [HAND_OVER], "entry": "hand_over", "blocks": 2, "threads": 32, "shared_bytes": 0,
        "lanes": 1,
        "ranks": [{
            "arrays": [
                {"name": "data", "hex": zeros(32)},
                {"name": "flag", "hex": zeros(1)},
                {"name": "out", "hex": zeros(32), "expected": hex(7..39)},
            ],
            "launches": [[{"array": 0}, {"array": 1}, {"array": 2}]],
        }],
    });
    let kernel = Description::read(&description.to_string()).and_then(UserKernel::new).unwrap();
    let counted = [0, 1, 2, 3, 4, 5, 6, 7].map(|seed| {
        let stats = kernel.run(seed).unwrap_or_else(|reason| panic!("seed {seed}: {reason}"));
        [stats.turns, stats.instructions]
    });
    assert_eq!(counted, COUNTED);
}
