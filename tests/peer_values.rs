//! A rank that holds the job's secret, keeps to the control plane's protocol, and lies about its
//! memory. If one of these tests fails, a broken or hostile peer chooses an address of this process
//! at which the engine then reads and writes: the process crashes, or something in it is
//! overwritten.
//!
//! Two processes on a virtual node: rank 0 is an honest program, rank 1 shows what `Lie` says.

mod hardware;

use hardware::perf::on_real_hardware;
use hardware::{hwsim, run_bounded, settings};
use ringdove::bootstrap::{ControlPlane, JoinRequest, Launch};
use ringdove::id::Rank;
use ringdove::{Communicator, Error, ReduceOp, Settings};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

const PLACE: &str = "RINGDOVE_TEST_PEER_VALUES";
/// More than two ranks need of each.
const SIGNAL_BYTES: u64 = 1 << 20;
const STAGING_BYTES: u64 = 64 << 20;
/// Two ranks are neighbours: nothing shrinks.
const PAIR_SLOT_BYTES: u64 = 128 << 10;
/// Nothing of any process is there.
const NOWHERE: u64 = 0x0dea_dbee_f000;

/// What each rank shows the others, in the form that the library writes.
#[derive(Clone, Serialize, Deserialize)]
struct PeerInfo {
    process: [u8; 16],
    above: Option<u32>,
    memory: Option<[Shared; 2]>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Shared {
    handle: Vec<u8>,
    offset: u64,
}

/// What each rank shows of a registered buffer.
#[derive(Serialize, Deserialize)]
struct Part {
    address: u64,
    bytes: u64,
    export: Option<Shared>,
    /// The name of host memory.
    host: Option<[u8; 16]>,
    /// For adapters of other nodes.
    region: Option<Vec<u8>>,
}

/// A list without an entry, no NVLink, and no place of the GPU (`None`).
const NOTHING_UNREACHED: [u8; 3] = [0, 0, 0];

/// What rank 1 says that is not so.
#[derive(Clone, Copy, Default)]
struct Lie {
    /// Sizes of what it exports for signals and staging memory.
    bytes: Option<[u64; 2]>,
    /// Where in them its memory begins.
    offsets: [u64; 2],
    /// It shows this handle of its signals.
    handle: Option<&'static [u8]>,
    /// It shows this name of host memory.
    host_memory: Option<[u8; 16]>,
    /// Its part of a registration: where in an allocation of its size, or at an address alone.
    part: Option<PartLie>,
}

#[derive(Clone, Copy)]
enum PartLie {
    Offset(u64),
    Address(u64),
    Host([u8; 16]),
}

/// Memory of a process that rank 1 has started, and the handles of it.
struct Exporter {
    process: Child,
    handles: Vec<Vec<u8>>,
}

impl Exporter {
    fn start(sizes: &[u64]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("exporter");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/exporter.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-Wall", "-Werror", "-o"]).arg(&program).args([source, "-ldl"]);
        let (status, output) = run_bounded(compiler);
        assert!(status.success(), "{output}");
        let mut command = Command::new(&program);
        command.args(sizes.iter().map(u64::to_string));
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines().take(sizes.len());
        let byte = |line: &str, at: usize| u8::from_str_radix(&line[at..at + 2], 16).unwrap();
        let handles = lines.map(|line| {
            let line = line.unwrap();
            (0..line.len()).step_by(2).map(|at| byte(&line, at)).collect()
        });
        let handles: Vec<Vec<u8>> = handles.collect();
        assert_eq!(handles.len(), sizes.len(), "the exporter has failed");
        Self { process, handles }
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn show<T: Serialize>(plane: &ControlPlane, thing: &T) {
    // The other side may have ended the job already; then there is nobody to lie to.
    let _ = plane.all_gather(&postcard::to_allocvec(thing).unwrap());
}

/// Rank 1: an authenticated peer that speaks for itself.
fn lie(lie: Lie) {
    let settings = rank_settings();
    let launch = Launch::from_env().unwrap().unwrap();
    let (id, _root) = launch.rendezvous(&settings).unwrap();
    let text = |name: &str, value: String| (name.to_owned(), value);
    let terms = vec![
        text("the number of ranks", "2".into()),
        text("RINGDOVE_ENGINE", settings.engine.to_string()),
        text("RINGDOVE_BLOCKS", settings.blocks_max.to_string()),
        text("RINGDOVE_SLOT_BYTES", settings.slot_bytes.to_string()),
        text("RINGDOVE_SLOTS", settings.slot_count.to_string()),
        text("bytes of a pair's slot (RINGDOVE_STAGING_BYTES)", PAIR_SLOT_BYTES.to_string()),
        text("RINGDOVE_LOW_LATENCY_BYTES", settings.low_latency_bytes.to_string()),
        text("RINGDOVE_STORES", "auto".into()),
        text("lanes of stores (RINGDOVE_STORE_BLOCKS)", settings.store_blocks.to_string()),
        text("RINGDOVE_USER_LANES", settings.user_lanes.to_string()),
        text("RINGDOVE_GRANTED_BYTES", settings.granted_bytes.unwrap().to_string()),
        text("RINGDOVE_REPRODUCIBLE", settings.reproducible.to_string()),
        text("RINGDOVE_PLAN_FILES", "none".into()),
        text("RINGDOVE_PROFILE", "none".into()),
        text("RINGDOVE_VERBS_ORDER", settings.verbs_order.to_string()),
        text("RINGDOVE_STORE_BLOCKS", settings.store_blocks.to_string()),
        text("RINGDOVE_ALGORITHM", settings.algorithm.to_string()),
        text("RINGDOVE_RING_ORDER", settings.ring_order.to_string()),
    ];
    let bytes = lie.bytes.unwrap_or([SIGNAL_BYTES, STAGING_BYTES]);
    let exporter = Exporter::start(&[bytes[0], bytes[1], COUNT as u64 * 4]);
    let entry = JoinRequest { id, rank: Rank(1), rank_count: 2, terms };
    let plane = ControlPlane::start(entry, &settings).unwrap();
    plane.assembled().unwrap();
    let process = *b"another process.";
    // Of two ranks nobody asks for the links of GPUs.
    show(&plane, &(&settings.host_id, process, None::<()>));
    // Where the others meet when this job has ended.
    show(&plane, &Vec::<SocketAddr>::new());
    let shared = |index: usize, offset| Shared { handle: exporter.handles[index].clone(), offset };
    let mut memory = [shared(0, lie.offsets[0]), shared(1, lie.offsets[1])];
    if let Some(handle) = lie.handle {
        memory[0].handle = handle.to_vec();
    }
    let memory = Some(memory);
    show(&plane, &PeerInfo { process, above: Some(0), memory });
    // What it does not reach; the name of its host memory, where rank 0 does not reach this one's.
    show(&plane, &NOTHING_UNREACHED);
    if let Some(name) = lie.host_memory {
        show(&plane, &Some(name));
    }
    show(&plane, &());
    let (address, export, host) = match lie.part {
        Some(PartLie::Address(address)) => (address, None, None),
        Some(PartLie::Offset(offset)) => (0, Some(shared(2, offset)), None),
        Some(PartLie::Host(name)) => (0, None, Some(name)),
        None => (0, None, None),
    };
    let part = Part { address, bytes: COUNT as u64 * 4, export, host, region: None };
    let is_host = part.host.is_some();
    show(&plane, &Some(part));
    if is_host {
        // Names go when all have opened what they name.
        show(&plane, &());
    }
    // The exporter's memory stays until the other side has said what it thinks of it.
    while plane.check().is_ok() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Elements of the registered buffer: so many that they go from buffer to buffer.
const COUNT: usize = 1 << 18;

fn rank_settings() -> Settings {
    // All virtual nodes are one machine: hwsim tells their names.
    let host_id = Settings::from_env().unwrap().host_id;
    Settings { host_id, ..settings() }
}

/// Rank 0: an honest program, until it fails.
fn believe() -> Error {
    let settings = rank_settings();
    let launch = Launch::from_env().unwrap().unwrap();
    let (id, _root) = launch.rendezvous(&settings).unwrap();
    let context = ringdove::open_device(0).unwrap();
    let communicator = match Communicator::init_rank(&context, &id, 0, 2, &settings) {
        Ok(communicator) => communicator,
        Err(error) => return error,
    };
    let stream = context.new_stream().unwrap();
    let buffer = stream.alloc_zeros::<f32>(COUNT).unwrap();
    let mut buffer = communicator.register(buffer).unwrap();
    let sum = communicator.all_reduce_in_place(&mut buffer, ReduceOp::Sum, &stream);
    let Err(error) = sum else {
        // What it believed does its work now.
        let _ = stream.synchronize();
        return hardware::wait_for_error(&communicator);
    };
    error
}

/// The honest rank must end with an error that names rank 1, `field`, and every part of `says`.
fn refused(test: &str, case: Lie, field: &str, says: &[&str]) {
    match std::env::var(PLACE).ok() {
        None if on_real_hardware() => return,
        None => {}
        Some(_) if std::env::var("RANK").unwrap() == "1" => return lie(case),
        Some(_) => {
            let error = believe();
            let Error::PeerValue { rank, field: seen, .. } = &error else { panic!("{error}") };
            assert_eq!(*rank, Rank(1), "{error}");
            assert!(seen.contains(field), "{error}");
            let message = error.to_string();
            says.iter().for_each(|part| assert!(message.contains(part), "{part} in: {message}"));
            return println!("refused: {error}");
        }
    }
    let mut command = hwsim();
    // cudarc takes buffers from a pool, which processes share nowhere else.
    command.args(["run", "--quiet", "--machine", "pcie4", "--procs", "2"]);
    command.args(["--driver-key", "pools=peer", "--"]).arg(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(PLACE, "inside");
    let (status, output) = run_bounded(command);
    assert!(status.success(), "{status}\n{output}");
    assert!(output.contains("refused: rank 1"), "the honest rank has not spoken\n{output}");
}

#[test]
fn signals_outside_of_the_exported_memory() {
    let case = Lie { offsets: [NOWHERE, 0], ..Lie::default() };
    let says = ["0xdeadbeef000", "1048576"];
    refused("signals_outside_of_the_exported_memory", case, "signal memory", &says);
}

#[test]
fn an_offset_that_wraps_around_to_memory_below() {
    let case = Lie { offsets: [0, u64::MAX - 0xffff], ..Lie::default() };
    let says = ["0xffffffffffff0000"];
    refused("an_offset_that_wraps_around_to_memory_below", case, "staging memory", &says);
}

#[test]
fn memory_that_is_smaller_than_the_layout() {
    let case = Lie { bytes: Some([SIGNAL_BYTES, 64 << 10]), ..Lie::default() };
    refused("memory_that_is_smaller_than_the_layout", case, "staging memory", &["65536"]);
}

#[test]
fn signals_that_no_word_can_be_written_to() {
    let case = Lie { offsets: [4, 0], ..Lie::default() };
    refused("signals_that_no_word_can_be_written_to", case, "signal memory", &["multiple of 8"]);
}

#[test]
fn a_handle_of_another_length() {
    let case = Lie { handle: Some(&[7; 63]), ..Lie::default() };
    refused("a_handle_of_another_length", case, "signal memory", &["64 bytes", "63 bytes"]);
}

#[test]
fn host_memory_that_is_not_there() {
    // A handle that no driver made looks like one of another container: messages would go through
    // host memory.
    let name = Some([0xab; 16]);
    let case = Lie { handle: Some(&[7; 64]), host_memory: name, ..Lie::default() };
    refused("host_memory_that_is_not_there", case, "host memory", &["/dev/shm/ringdove-abab"]);
}

#[test]
fn a_registered_buffer_that_is_an_address_alone() {
    let case = Lie { part: Some(PartLie::Address(NOWHERE)), ..Lie::default() };
    let test = "a_registered_buffer_that_is_an_address_alone";
    refused(test, case, "registration 0", &["a handle", "none"]);
}

#[test]
fn a_window_of_host_memory_that_is_not_there() {
    let case = Lie { part: Some(PartLie::Host([0xcd; 16])), ..Lie::default() };
    let test = "a_window_of_host_memory_that_is_not_there";
    refused(test, case, "host memory", &["/dev/shm/ringdove-cdcd"]);
}

#[test]
fn a_registered_buffer_that_begins_behind_its_memory() {
    let case = Lie { part: Some(PartLie::Offset(NOWHERE)), ..Lie::default() };
    let test = "a_registered_buffer_that_begins_behind_its_memory";
    refused(test, case, "registration 0", &["0xdeadbeef000"]);
}

#[test]
fn a_registered_buffer_that_ends_behind_its_memory() {
    let case = Lie { part: Some(PartLie::Offset(8)), ..Lie::default() };
    let test = "a_registered_buffer_that_ends_behind_its_memory";
    refused(test, case, "registration 0", &["1048576 bytes within"]);
}
