//! Processes of one `hwsim run`, with the real library: what they share on a node, and that nodes
//! share nothing. The program is one in C that knows the driver API alone.

mod sandbox;

use sandbox::{Sandbox, compile, library, text};
use std::collections::BTreeSet;
use std::process::{Command, Output};

/// A sandbox with the program, and the fifos that it speaks through.
struct Job {
    sandbox: Sandbox,
}

impl Job {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        compile("sharing.c", &sandbox.path("program"), &["-ldl"]);
        sandbox.fifo("there");
        sandbox.fifo("back");
        Self { sandbox }
    }

    /// `hwsim run`, ready to be started, with the library that cargo built for this test.
    fn hwsim(&self, options: &[&str], around: &[&str], job: &str) -> Command {
        let [program, folder] = ["program", ""].map(|name| self.sandbox.path(name));
        let mut command = self.sandbox.hwsim(&[&["run", "-q"], options, &["--"], around].concat());
        command.arg(program).arg(job).arg(folder);
        command.env("HWSIM_LIB", library()).env_remove("LD_LIBRARY_PATH");
        command
    }

    fn output(&self, options: &[&str], around: &[&str], job: &str) -> Output {
        self.hwsim(options, around, job).output().unwrap()
    }
}

/// Two kernels that wait for each other in two processes: that they end shows that stores cross
/// over, in order, and that a kernel which spins leaves the other process its turn. The second
/// time, every process has its own user namespace, as in a rootless container: there a look
/// into `/proc` is refused, and the memory must come another way.
#[test]
fn kernels_of_two_processes_synchronize_in_shared_memory() {
    let apart = Command::new("unshare").args(["-Ur", "true"]).output();
    let apart = apart.is_ok_and(|output| output.status.success());
    if !apart {
        tally::skip("namespaces", "processes with a user namespace each");
    }
    let job = Job::new();
    for around in [&[][..], &["unshare", "-Ur"]].iter().take(1 + usize::from(apart)) {
        let output = job.output(&["-n", "2"], around, "exchange");
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{out}\n{err}");
        let lines: BTreeSet<_> = out.lines().collect();
        assert_eq!(lines, ["[0] 300 rounds", "[1] 300 rounds"].into(), "{err}");
        job.sandbox.assert_nothing_left();
    }
}

#[test]
fn memory_of_another_node_cannot_be_opened() {
    let job = Job::new();
    let output = job.output(&["--machine", "pcie4 x 2"], &[], "elsewhere");
    assert_eq!(text(&output.stdout), "[1] code 1\n", "{}", text(&output.stderr));
    assert_eq!(
        text(&output.stderr),
        "[1] hwsim: cuIpcOpenMemHandle: the handle comes from node 0 of the cluster; this \
         process is on node 1: only processes of one node share device memory\n"
    );
}

#[test]
fn memory_of_another_machine_cannot_be_opened() {
    let job = Job::new();
    let start = |rank: &str| {
        let mut command = job.hwsim(&[], &[], "elsewhere");
        let streams = [std::process::Stdio::piped(), std::process::Stdio::piped()];
        let [out, err] = streams;
        command.env("RANK", rank).stdout(out).stderr(err).spawn().unwrap()
    };
    let (first, second) = (start("0"), start("1"));
    let output = second.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout), "code 1\n");
    assert!(text(&output.stderr).contains("another machine"), "{}", text(&output.stderr));
    assert!(first.wait_with_output().unwrap().status.success());
}

/// The second process's stream waits for a kernel of the first, which waits for a word that the
/// second writes later: were the event not waited for, the copy behind it would see an old number.
#[test]
fn a_stream_waits_for_an_event_of_another_process() {
    let job = Job::new();
    let output = job.output(&["-n", "2"], &[], "event");
    assert_eq!(text(&output.stdout), "[1] in order\n", "{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(0));
}

/// Were a GPU's memory counted by each process alone, what fits a virtual GPU would not fit a real
/// one. The first process is killed at the end, and what it took has to be free again.
#[test]
fn processes_share_the_memory_of_a_gpu() {
    let job = Job::new();
    let output = job.output(&["-n", "2", "--grace", "60"], &[], "memory");
    assert_eq!(text(&output.stdout), "[1] all free\n", "{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(128 + 9));
}

#[test]
fn each_node_has_gpus_of_its_own() {
    let job = Job::new();
    let output = job.output(&["--machine", "pcie4 x 2"], &[], "identities");
    let (mut uuids, mut bus_ids) = (BTreeSet::new(), BTreeSet::new());
    for line in text(&output.stdout).lines() {
        let words: Vec<_> = line.split(' ').collect();
        let nvml = words[2].trim_start_matches("GPU-").replace('-', "");
        assert_eq!(words[1], nvml, "the driver and NVML must agree");
        uuids.insert(nvml);
        bus_ids.insert(words[3].to_owned());
    }
    assert_eq!((uuids.len(), bus_ids.len()), (8, 4), "{}", text(&output.stderr));
}
