//! Thousands of connections and bytes from strangers, and other users of the machine. Each test
//! runs in its own process: the log is counted, descriptors are limited, users change.

use crate::support::{each_rank, entry, from_text, in_a_process_of_its_own, settings, to_text};
use crate::support::{ranks_possible, within};
use nix::unistd::{Uid, setuid};
use ringdove::bootstrap::{ControlPlane, Root, Secret, UniqueId};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A user who is not us, and owns nothing.
const OTHER_USER: u32 = 65_534;

struct Log(Mutex<Vec<u8>>);

impl Write for &Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What this process logs from now on.
fn log() -> &'static Log {
    let log: &'static Log = Box::leak(Box::new(Log(Mutex::default())));
    tracing_subscriber::fmt().with_ansi(false).with_writer(move || log).init();
    log
}

impl Log {
    fn warnings(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned();
        text.lines().filter(|line| line.contains("WARN")).map(str::to_owned).collect()
    }

    /// How many connections were refused, by lines and by what they say was left out.
    fn refused(&self) -> u64 {
        let count = |line: &String| {
            let after = line.split("left_out=").nth(1)?;
            let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
            // A sum names nobody; another line tells of one more than it left out.
            let own = u64::from(!line.contains("refused more"));
            digits.parse::<u64>().ok().map(|left_out| left_out + own)
        };
        self.warnings().iter().filter_map(count).sum()
    }
}

/// Connects, says a little that is none of the protocol, and goes: until told to stop.
fn knock_without_end(root: SocketAddr, stop: &AtomicBool, count: &AtomicU64) {
    while !stop.load(Ordering::Relaxed) {
        // Refused for want of ports or room at times; that is what a flood is like.
        let Ok(mut stranger) = TcpStream::connect(root) else { continue };
        let kind = count.fetch_add(1, Ordering::Relaxed) % 3;
        let bytes: &[u8] = match kind {
            0 => b"GET / HTTP/1.1\r\n\r\n",
            1 => b"RDOVE\r\n\0\x02\0\x01\0\x01\0\0\0 and a nonce of thirty-two bytes. and a proof",
            _ => &[0xff; 4096],
        };
        let _ = stranger.write_all(bytes);
    }
}

#[test]
fn a_flood_of_strangers_neither_stops_the_job_nor_fills_the_log() {
    in_a_process_of_its_own("floods::a_flood_of_strangers");
}

#[test]
#[ignore = "run by a_flood_of_strangers_neither_stops_the_job_nor_fills_the_log"]
fn a_flood_of_strangers() {
    // Both ends of each of them are in this process; more than one hall holds, if possible.
    let silent_count = ranks_possible(600) * 2;
    let log = log();
    let started = Instant::now();
    let settings = settings(60_000);
    let root = Root::open(&settings).unwrap();
    let address = root.id().addresses().unwrap()[0];
    let silent: Vec<_> = (0..silent_count).map(|_| TcpStream::connect(address).unwrap()).collect();
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| knock_without_end(address, &stop, &count));
        scope.spawn(|| knock_without_end(address, &stop, &count));
        while count.load(Ordering::Relaxed) < 2_000 {
            std::thread::yield_now();
        }
        within(Duration::from_secs(30), || {
            each_rank(0..8, |rank| {
                let plane = ControlPlane::join(entry(root.id(), rank, 8), &settings).unwrap();
                for _ in 0..10 {
                    let whole = plane.all_gather(&[rank as u8]).unwrap().concat();
                    assert_eq!(whole, [0, 1, 2, 3, 4, 5, 6, 7]);
                }
                plane.close().unwrap();
            });
        });
        stop.store(true, Ordering::Relaxed);
    });
    drop((silent, root));
    let warnings = log.warnings();
    let seconds = started.elapsed().as_secs() as usize;
    println!("{} connections, {} lines in {seconds} s", count.into_inner(), warnings.len());
    assert!(warnings.len() <= 2 * (seconds + 2), "a flood fills the log: {warnings:#?}");
    // Those who came after the job was assembled met a closed port.
    assert!(log.refused() >= 1_000, "not counted: {warnings:#?}");
}

/// This test program once more, as another user, running this test of it.
fn as_another_user(test: &str, argument: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env("RINGDOVE_TEST_ARGUMENT", argument)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The argument of the test that started us, once we are that other user.
fn become_another_user() -> String {
    setuid(Uid::from_raw(OTHER_USER)).unwrap();
    std::env::var("RINGDOVE_TEST_ARGUMENT").expect("started by another test")
}

/// The first line of a process that begins with this word, without it.
fn line_of(process: &mut Child, word: &str) -> String {
    let lines = BufReader::new(process.stdout.as_mut().unwrap()).lines();
    let found = lines.map_while(Result::ok).find_map(|line| Some(line.strip_prefix(word)?.into()));
    found.unwrap_or_else(|| panic!("no line that starts with {word:?}"))
}

fn cannot_change_user() -> bool {
    if Uid::effective().is_root() {
        return false;
    }
    tally::skip("root", "only root can start a process of another user");
    true
}

#[test]
fn another_user_of_the_machine_cannot_join_even_with_the_secret() {
    if !cannot_change_user() {
        in_a_process_of_its_own("floods::a_job_that_another_user_knows");
    }
}

#[test]
#[ignore = "run by another_user_of_the_machine_cannot_join_even_with_the_secret"]
fn a_job_that_another_user_knows() {
    let log = log();
    let settings = settings(60_000);
    let root = Root::open(&settings).unwrap();
    let mut stranger = as_another_user("floods::a_rank_of_another_user", &to_text(&root.id()));
    let said = line_of(&mut stranger, "seen: ");
    assert!(said.contains("closed the connection") || said.contains("reset"), "{said}");
    assert!(stranger.wait().unwrap().success());
    let warnings = log.warnings();
    let expected = "it belongs to user 65534 of this machine, and this process to user 0";
    assert!(warnings.iter().any(|line| line.contains(expected)), "{warnings:#?}");
    each_rank(0..2, |rank| {
        ControlPlane::join(entry(root.id(), rank, 2), &settings).unwrap().barrier().unwrap();
    });
}

#[test]
#[ignore = "the other process of another_user_of_the_machine_cannot_join_even_with_the_secret"]
fn a_rank_of_another_user() {
    let id = from_text(&become_another_user());
    let error = ControlPlane::join(entry(id, 0, 2), &settings(2_000)).unwrap_err();
    println!("\nseen: {error}");
}

#[test]
fn a_rank_proves_nothing_to_another_user_who_listens_in_the_roots_place() {
    if !cannot_change_user() {
        in_a_process_of_its_own("floods::a_root_of_another_user_is_met");
    }
}

#[test]
#[ignore = "run by a_rank_proves_nothing_to_another_user_who_listens_in_the_roots_place"]
fn a_root_of_another_user_is_met() {
    let mut false_root = as_another_user("floods::a_false_root_of_another_user", "");
    let address = line_of(&mut false_root, "listens at ").parse().unwrap();
    let id = UniqueId::with(&[address], Secret::random().unwrap());
    let error = ControlPlane::join(entry(id, 1, 2), &settings(2_000)).unwrap_err().to_string();
    assert!(error.contains("it belongs to user 65534 of this machine"), "{error}");
    drop(false_root.stdin.take());
    assert_eq!(line_of(&mut false_root, "bytes after the hello: "), "0");
    assert!(false_root.wait().unwrap().success());
}

#[test]
#[ignore = "the other process of a_rank_proves_nothing_to_another_user_who_listens"]
fn a_false_root_of_another_user() {
    become_another_user();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("\nlistens at {}", listener.local_addr().unwrap());
    let after_hello = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Until the other side connects and says nothing: see below.
            while let Ok((mut rank, _)) = listener.accept() {
                let mut hello = [0; 48];
                if rank.read_exact(&mut hello).is_err() {
                    return;
                }
                // As the root would answer, with a nonce of our own.
                hello[10] = 3;
                rank.write_all(&hello).unwrap();
                let mut more = Vec::new();
                // A reset ends it too.
                let _ = rank.read_to_end(&mut more);
                after_hello.fetch_add(more.len() as u64, Ordering::Relaxed);
            }
        });
        // Until the test that started us has seen enough, and closes our input.
        io::stdin().read_line(&mut String::new()).unwrap();
        drop(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
    });
    println!("bytes after the hello: {}", after_hello.into_inner());
}
