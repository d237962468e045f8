//! What the tests on hardware share: a machine to run on, ranks, data with predictable results.
//!
//! A test that needs GPUs wraps its body in [`on_machine`]. The body runs in its own process
//! on a virtual machine, or, with `RINGDOVE_TEST_GPU=real`, in this process on the GPUs that the
//! CUDA driver shows (ranks then share them).

#![allow(dead_code)] // Each test binary uses its part.

pub mod adapter;
pub mod captures;
pub mod data;
pub mod drivers;
pub mod engines;
pub mod every;
pub mod perf;
pub mod victims;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use ringdove::bootstrap::Launch;
use ringdove::{Communicator, DataType, Error, ReduceOp, Settings};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Far above what any test takes: it turns a hang into a failure.
const PATIENCE: Duration = Duration::from_secs(if cfg!(debug_assertions) { 1800 } else { 300 });
const INSIDE: &str = "RINGDOVE_TEST_INSIDE";

/// Names the driver profile of virtual hardware.
const PROFILE: &str = "HWSIM_DRIVER_PROFILE";

/// `hwsim`, on [strict drivers](on_strict_drivers).
pub fn hwsim() -> Command {
    on_strict_drivers(Command::new(tool("hwsim")))
}

/// A program on a virtual machine, in one process. Nothing but what the program prints is seen.
pub fn on_virtual(machine: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = hwsim();
    command.args(["run", "--quiet", "--machine", machine, "--"]).arg(program);
    command
}

/// The command, with drivers that behave as the worst that real ones are known to do: what only a
/// lenient one survives is a bug. A test that needs another profile asks for it with
/// `--driver-profile`, and says why; whoever looks into something sets `HWSIM_DRIVER_PROFILE`.
pub fn on_strict_drivers(mut command: Command) -> Command {
    if std::env::var_os(PROFILE).is_none() {
        command.env(PROFILE, "strict");
    }
    command
}

/// Shall tests run on the GPUs of this machine?
pub fn is_real() -> bool {
    std::env::var("RINGDOVE_TEST_GPU").is_ok_and(|value| value == "real")
}

/// True, with a word about it, on real hardware, which a test leaves out for this reason.
pub fn is_left_out(why: &str) -> bool {
    let real = is_real();
    if real {
        tally::skip("virtual-only", why);
    }
    real
}

/// Runs `ringdove` on this machine; gives what it says, or what it fails with.
pub fn ringdove(arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(tool("ringdove"));
    command.args(arguments);
    let (status, output) = run_bounded(command);
    if status.success() { Ok(output) } else { Err(output) }
}

/// Runs the body of the current test on `machine`.
pub fn on_machine(machine: &str, body: impl FnOnce()) {
    on_machine_with(machine, &[], body);
}

/// As [`on_machine`], with extra arguments for `hwsim run`.
pub fn on_machine_with(machine: &str, options: &[&str], body: impl FnOnce()) {
    on_machine_env(machine, options, &[], body);
}

/// As [`on_machine_with`], with variables for the environment of the body's process.
pub fn on_machine_env(
    machine: &str,
    options: &[&str],
    variables: &[(&str, &str)],
    body: impl FnOnce(),
) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    if is_real() {
        if options.is_empty() {
            return body();
        }
        return tally::skip("virtual-only", "this test observes virtual hardware");
    }
    let thread = std::thread::current();
    let test = thread.name().expect("libtest names its threads");
    let mut command = hwsim();
    command.args(["run", "--quiet", "--machine", machine]).args(options).arg("--");
    command.arg(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(INSIDE, "1");
    command.envs(variables.iter().copied());
    let (status, output) = run_bounded(command);
    assert!(status.success(), "on {machine}: {status}\n{output}");
    assert!(output.contains("1 passed"), "the test did not run on {machine}\n{output}");
    // What it printed, for `--nocapture`.
    print!("{output}");
}

/// Runs the body of the current test on `machine`, with `variables` for its process, and hands the
/// trace of its driver calls to `check`: in the process that started the machine, after the body
/// has passed, so that a run without a trace fails.
pub fn on_traced_machine(
    machine: &str,
    variables: &[(&str, &str)],
    body: impl FnOnce(),
    check: impl FnOnce(&str),
) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    if perf::on_real_hardware() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let options = ["--trace", path.to_str().unwrap()];
    on_machine_env(machine, &options, variables, || unreachable!("the body runs elsewhere"));
    check(&read_trace(&path));
}

/// The trace that `hwsim run --trace` has written.
///
/// # Panics
/// If there is none, or nothing in it: what it should show would be taken for shown.
pub fn read_trace(path: &Path) -> String {
    let trace = std::fs::read_to_string(path);
    let trace = trace.unwrap_or_else(|error| panic!("no trace in {}: {error}", path.display()));
    assert!(trace.lines().next().is_some(), "the trace in {} is empty", path.display());
    trace
}

/// Runs the body of the current test in `processes` processes on virtual nodes, `ranks` ranks in
/// each, all of them in one communicator. Every process must get to the body's end.
pub fn on_processes(machine: &str, division: (u32, u32), body: impl FnOnce(Vec<Communicator>)) {
    on_processes_with(machine, &[], division, body);
}

/// As [`on_processes`], with extra arguments for `hwsim run`.
pub fn on_processes_with(
    machine: &str,
    options: &[&str],
    division: (u32, u32),
    body: impl FnOnce(Vec<Communicator>),
) {
    on_processes_env(machine, options, &[], division, body);
}

/// As [`on_processes_with`], with variables for the environment of the processes.
pub fn on_processes_env(
    machine: &str,
    options: &[&str],
    variables: &[(&str, &str)],
    (processes, ranks): (u32, u32),
    body: impl FnOnce(Vec<Communicator>),
) {
    if std::env::var_os(INSIDE).is_some() {
        return body(join(ranks));
    }
    if perf::on_real_hardware() {
        return;
    }
    let thread = std::thread::current();
    let test = thread.name().expect("libtest names its threads");
    let mut command = hwsim();
    command.args(["run", "--quiet", "--machine", machine, "--procs", &processes.to_string()]);
    command.args(options).arg("--").arg(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(INSIDE, "1");
    command.envs(variables.iter().copied());
    let (status, output) = run_bounded(command);
    assert!(status.success(), "on {machine}: {status}\n{output}");
    let passed = output.matches("1 passed").count();
    assert_eq!(passed, processes as usize, "on {machine}: not every process passed\n{output}");
}

/// This process's ranks in a communicator over all processes.
fn join(ranks: u32) -> Vec<Communicator> {
    try_join(ranks).unwrap()
}

/// This process's ranks in a communicator over all processes that `hwsim run --procs` started, or
/// why there is none.
pub fn try_join(ranks: u32) -> ringdove::Result<Vec<Communicator>> {
    try_join_with(ranks, settings())
}

/// As [`try_join`], with other settings than [`settings`].
pub fn try_join_with(ranks: u32, settings: Settings) -> ringdove::Result<Vec<Communicator>> {
    // All virtual nodes are one machine: hwsim tells their names.
    let host_id = Settings::from_env().unwrap().host_id;
    let settings = Settings { host_id, ..settings };
    let launch = Launch::from_env().unwrap().expect("hwsim sets torchrun's variables");
    let (id, _root) = launch.rendezvous(&settings).unwrap();
    let first = launch.rank * ranks;
    let devices = ringdove::device_count().unwrap();
    let on_node = launch.local_rank.unwrap_or(0) as usize * ranks as usize;
    let open = |rank| ringdove::open_device((on_node + rank) % devices).unwrap();
    let contexts: Vec<_> = (0..ranks as usize).map(open).collect();
    Communicator::init_ranks(&contexts, &id, first, launch.rank_count * ranks, &settings)
}

/// A folder that the processes of a test share.
pub const FOLDER: &str = "RINGDOVE_TEST_FOLDER";

/// A barrier of the program's own, as [`Communicator::finalize`] asks for: files in [`FOLDER`]. All
/// processes of the ranks make the same calls.
pub fn wait_for_all(communicators: &[Communicator]) {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let folder = PathBuf::from(std::env::var(FOLDER).unwrap());
    let file = |rank: u32| folder.join(format!("done-{call}-{rank}"));
    for communicator in communicators {
        std::fs::write(file(communicator.rank()), "").unwrap();
    }
    let deadline = Instant::now() + SOON;
    while !(0..communicators[0].rank_count()).all(|rank| file(rank).exists()) {
        assert!(Instant::now() < deadline, "not all ranks are done");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a command to its end, or kills it when it takes longer than any test should. Gives its
/// status and what it printed.
pub fn run_bounded(mut command: Command) -> (std::process::ExitStatus, String) {
    let (mut reader, writer) = std::io::pipe().unwrap();
    command.stdin(Stdio::null()).stdout(writer.try_clone().unwrap()).stderr(writer);
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let what = format!("{command:?}");
    // The command holds the pipe's other end; without it the reader would never see the end.
    drop(command);
    let output = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            let _ = child.wait();
            panic!("no end after {PATIENCE:?} of {what}:\n{}", output.join().unwrap());
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    (status, output.join().unwrap())
}

/// A command or an example (`examples/NAME`) of this workspace: above the test, where cargo has
/// built both, or beside it, where `./x gpu-pack` has put them.
pub fn tool(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let beside = test.parent().unwrap();
    let built = beside.parent().unwrap().join(name);
    let packed = beside.join(Path::new(name).file_name().unwrap());
    let found = [&built, &packed].into_iter().find(|path| path.is_file()).cloned();
    found.unwrap_or_else(|| {
        let how = "`cargo build --release --workspace --bins --examples` first";
        panic!("{} is missing: {how}", built.display())
    })
}

/// Ranks on this machine's GPUs, all driven by one thread.
pub struct World {
    pub communicators: Vec<Communicator>,
    pub streams: Vec<Arc<CudaStream>>,
}

impl World {
    /// `count` ranks; devices are dealt out in turn.
    pub fn new(count: usize) -> Self {
        Self::with(count, &settings())
    }

    /// As [`World::new`], with other settings.
    pub fn with(count: usize, settings: &Settings) -> Self {
        Self::on(&contexts(count), settings)
    }

    /// As [`World::with`], a rank on each of the contexts.
    pub fn on(contexts: &[Arc<CudaContext>], settings: &Settings) -> Self {
        let communicators = Communicator::init_all(contexts, settings).unwrap();
        let streams = contexts.iter().map(|context| context.new_stream().unwrap()).collect();
        Self { communicators, streams }
    }

    /// Each rank with its stream.
    pub fn ranks(&self) -> impl Iterator<Item = (&Communicator, &Arc<CudaStream>)> {
        self.communicators.iter().zip(&self.streams)
    }

    /// Copies one host buffer to each rank.
    pub fn upload(&self, buffers: &[Vec<u8>]) -> Vec<CudaSlice<u8>> {
        let pairs = self.streams.iter().zip(buffers);
        pairs.map(|(stream, bytes)| upload(stream, bytes)).collect()
    }

    /// Waits for all streams; the communicators must be well.
    pub fn finish(&self) {
        for (communicator, stream) in self.ranks() {
            stream.synchronize().unwrap();
            communicator.check().unwrap();
        }
    }
}

/// Has registered memory of other processes opened at once, where it is `true`.
pub const AT_ONCE: &str = "RINGDOVE_OPEN_BESIDE_KERNELS";

/// Entries of the registration cache.
pub const CACHE: &str = "RINGDOVE_REGISTRATION_CACHE";

/// Settings for tests: nothing waits for minutes.
pub fn settings() -> Settings {
    Settings {
        wait_timeout: Duration::from_secs(60),
        bootstrap_timeout: Duration::from_secs(60),
        engine: engines::engine(),
        algorithm: engines::algorithm(),
        registration_cache: std::env::var(CACHE).map_or(0, |value| value.parse().unwrap()),
        open_beside_kernels: std::env::var(AT_ONCE).is_ok_and(|value| value == "true"),
        ..Settings::default()
    }
}

/// One context for each of `count` ranks.
pub fn contexts(count: usize) -> Vec<Arc<CudaContext>> {
    let devices = ringdove::device_count().unwrap();
    assert!(devices > 0, "no GPU");
    (0..count).map(|rank| ringdove::open_device(rank % devices).unwrap()).collect()
}

/// A copy of `bytes` on the device, never empty.
pub fn upload(stream: &Arc<CudaStream>, bytes: &[u8]) -> CudaSlice<u8> {
    let padded = if bytes.is_empty() { &[0][..] } else { bytes };
    let slice = stream.clone_htod(padded).unwrap();
    stream.synchronize().unwrap();
    slice
}

/// The address of a device buffer.
pub fn address(slice: &CudaSlice<u8>) -> u64 {
    use cudarc::driver::DevicePtr;
    slice.device_ptr(slice.stream()).0
}

/// What a device buffer holds.
pub fn download(slice: &CudaSlice<u8>) -> Vec<u8> {
    let bytes = slice.stream().clone_dtoh(slice).unwrap();
    slice.stream().synchronize().unwrap();
    bytes
}

/// Far above every timeout that tests set, far below a hang.
pub const SOON: Duration = Duration::from_secs(60);

/// Enqueues a sum of the first `count` f32 of `buffer` in place, on one rank.
pub fn sum(
    world: &World,
    rank: usize,
    buffer: &mut CudaSlice<u8>,
    count: usize,
) -> ringdove::Result<()> {
    let (communicator, stream) = (&world.communicators[rank], &world.streams[rank]);
    let mut part = buffer.slice_mut(..4 * count);
    communicator.all_reduce_bytes_in_place(DataType::F32, &mut part, ReduceOp::Sum, stream)
}

/// Sums one number over all ranks of `communicator`. That it is well is not looked at: a rank may
/// end on purpose when it has its sum.
pub fn total(communicator: &Communicator, own: u32) -> u32 {
    // It exists already: creating one waits until the GPUs are idle.
    let stream = communicator.context().per_thread_stream();
    let send = stream.clone_htod(&[own]).unwrap();
    let mut receive = stream.alloc_zeros::<u32>(1).unwrap();
    communicator.all_reduce(&send, &mut receive, ReduceOp::Sum, &stream).unwrap();
    let seen = stream.clone_dtoh(&receive).unwrap();
    stream.synchronize().unwrap();
    seen[0]
}

/// The error that ends the communicator.
pub fn wait_for_error(communicator: &Communicator) -> Error {
    let started = Instant::now();
    loop {
        if let Err(error) = communicator.check() {
            return error;
        }
        assert!(started.elapsed() < SOON, "no error after {SOON:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
