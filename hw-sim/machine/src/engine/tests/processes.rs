//! Links between processes: the test program starts itself again as the other one, on another node.

use super::host::{Bench, Host, REGION, fill, put, word};
use crate::fabric::Fabric;
use ringdove_kernels::bar::{ErrorCode, NONE, Peer, State};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The folder of the fabric, for the other process.
const FOLDER_VARIABLE: &str = "HWSIM_TEST_FABRIC";
/// What the other process says is marked, for the test harness says something, too.
const MARK: &str = "said: ";
/// Nothing here takes this long.
const PATIENCE: Duration = Duration::from_secs(20);

fn bench(node: u32, folder: &Path) -> (Bench, Host) {
    let fabric = Fabric::join(folder).unwrap();
    let mut bench = Bench::on_node(node, 1, fabric);
    let host = bench.host(0, node.into());
    (bench, host)
}

fn connect(bench: &mut Bench, host: &Host, peer: Peer) {
    host.connect_to(peer, 5, 0..4);
    host.listen(5, 0..4);
    host.run_with(&host.control());
    bench.run_until_idle();
    assert_eq!(host.state(), State::Running);
}

/// Steps until something is the case.
fn until(bench: &mut Bench, what: &str, met: impl Fn() -> bool) {
    let begin = Instant::now();
    while !met() {
        bench.node.step(&bench.memory, Instant::now());
        assert!(begin.elapsed() < PATIENCE, "waited too long for {what}");
        std::thread::yield_now();
    }
}

/// The other process, as the test sees it.
struct Other {
    child: Child,
    lines: Receiver<String>,
}

impl Other {
    /// Starts it, and makes both ends know each other.
    fn start(folder: &Path, bench: &mut Bench, host: &Host) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "engine::tests::processes::the_other_process"])
            .args(["--ignored", "--nocapture"])
            .env(FOLDER_VARIABLE, folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some((_, said)) = line.split_once(MARK) {
                    let _ = sender.send(said.to_owned());
                }
            }
        });
        let mut other = Self { child, lines };
        let own = host.peer_entry();
        let peer = other.ask(&format!("{} {} {}", own.link_address, own.channel, own.generation));
        let [link_address, channel, generation] = numbers(&peer);
        connect(bench, host, Peer { link_address, channel, generation, valid: 1 });
        other
    }

    fn ask(&mut self, question: &str) -> String {
        writeln!(self.child.stdin.as_mut().unwrap(), "{question}").unwrap();
        self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no answer to {question}"))
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn numbers(line: &str) -> [u64; 3] {
    let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

/// Not a test: what the others start. It answers each line of its input with one of its own.
#[test]
#[ignore = "the tests of this file start it"]
fn the_other_process() {
    let folder = std::env::var_os(FOLDER_VARIABLE).expect("started by a test of this file");
    let (mut bench, mut host) = bench(1, Path::new(&folder));
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    let say = |said: String| println!("{MARK}{said}");
    let [link_address, channel, generation] = numbers(&lines.recv().unwrap());
    connect(&mut bench, &host, Peer { link_address, channel, generation, valid: 1 });
    let own = host.peer_entry();
    say(format!("{} {} {}", own.link_address, own.channel, own.generation));
    let mut standing_still = false;
    loop {
        match lines.try_recv().as_deref() {
            Ok("send back") => {
                // What came, to where it came from.
                let mut asked = put(3, 0, REGION as u32);
                asked.route = 3;
                host.ring(&asked);
                say("rung".into());
            }
            Ok("stand still") => {
                standing_still = true;
                say("standing".into());
            }
            Ok("leave") => {
                bench.node.release(host.place);
                say("gone".into());
            }
            Ok(other) => panic!("{other}"),
            Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
            Err(std::sync::mpsc::TryRecvError::Empty) => {}
        }
        if !standing_still {
            bench.node.step(&bench.memory, Instant::now());
        }
        std::thread::yield_now();
    }
}

/// If this fails, nothing leaves a process; engines of other nodes are reached in the same way.
#[test]
fn data_and_signals_pass_between_processes() {
    let folder = tempfile::tempdir().unwrap();
    let (mut bench, mut host) = bench(0, folder.path());
    let mut other = Other::start(folder.path(), &mut bench, &host);
    fill(host.source, REGION, 3);
    host.ring(&put(1, 0, REGION as u32));
    until(&mut bench, "the acknowledgement", || host.status().completed == 1);
    assert_eq!((host.completions(1), host.status().in_flight), (1, 0));
    // The other's source is zero, and so is our window but for what we put there.
    fill(host.window, REGION, 9);
    other.ask("send back");
    until(&mut bench, "what comes back", || host.arrivals(3) == 1);
    assert!((0..REGION).step_by(8).all(|offset| word(host.window + offset) == 0));
    assert_eq!(host.status().bytes_received, REGION);
}

/// A killed peer is an error of the channel within moments, not a wait that expires.
#[test]
fn a_killed_peer_is_a_lost_link() {
    let folder = tempfile::tempdir().unwrap();
    let (mut bench, mut host) = bench(0, folder.path());
    let mut other = Other::start(folder.path(), &mut bench, &host);
    host.ring(&put(1, 0, 64));
    until(&mut bench, "the acknowledgement", || host.status().completed == 1);
    drop(other);
    until(&mut bench, "the loss of an idle link", || host.error().state == 1);
    let (code, record) = host.ended_by();
    assert_eq!(
        (code, record.peer, record.lane, record.position),
        (ErrorCode::LinkLost, 5, NONE, 1)
    );
    assert_eq!(record.detail, crate::engine::link_address(1, 0));
    drop(bench);

    let (mut bench, mut host) = self::bench(0, folder.path());
    let files = std::fs::read_dir(folder.path()).unwrap().flatten();
    let names: Vec<_> = files.map(|file| file.file_name().into_string().unwrap()).collect();
    let of_the_killed = |name: &&String| name.starts_with("channel-65") || name.starts_with("pipe");
    assert_eq!(names.iter().find(of_the_killed), None, "who joins tidies up after the dead");
    other = Other::start(folder.path(), &mut bench, &host);
    other.ask("stand still");
    host.ring(&put(2, 0, REGION as u32));
    bench.run_until_idle();
    assert!(host.status().in_flight == 1 && host.error().state == 0);
    drop(other);
    until(&mut bench, "the loss of a busy link", || host.error().state == 1);
    let (code, record) = host.ended_by();
    assert_eq!((code, record.peer, record.lane, record.position), (ErrorCode::LinkLost, 5, 2, 0));
}

/// A killed peer that only ever sent is missed, too; one that leaves in order is not.
#[test]
fn a_peer_may_leave_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let (mut bench, mut host) = bench(0, folder.path());
    let mut other = Other::start(folder.path(), &mut bench, &host);
    other.ask("send back");
    until(&mut bench, "what comes back", || host.arrivals(3) == 1);
    other.ask("leave");
    let begin = Instant::now();
    // Twice as long as the engines wait between questions.
    until(&mut bench, "a while", || begin.elapsed() > Duration::from_millis(120));
    assert_eq!((host.state(), host.error().state), (State::Running, 0));
    host.ring(&put(1, 0, 64));
    bench.run_until_idle();
    assert_eq!(host.ended_by().0, ErrorCode::LinkLost);
    drop(other);
    drop(bench);

    let (mut bench, host) = self::bench(0, folder.path());
    other = Other::start(folder.path(), &mut bench, &host);
    other.ask("send back");
    until(&mut bench, "what comes back", || host.arrivals(3) == 1);
    drop(other);
    until(&mut bench, "the loss of the sender", || host.error().state == 1);
    assert_eq!((host.ended_by().0, host.ended_by().1.peer), (ErrorCode::LinkLost, 5));
}
