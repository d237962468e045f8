//! Whoever knocks at the port without the secret is turned away and named, and the job goes on.

use crate::support::{each_rank, entry, from_text, hold_port, settings, to_text, within};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use ringdove::bootstrap::{ControlPlane, Launch, Root};
use ringdove::{Error, Settings};
use socket2::Socket;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

/// What was logged, by all tests of this process.
struct Log(Mutex<Vec<u8>>);

static LOG: LazyLock<&'static Log> = LazyLock::new(|| {
    let log: &'static Log = Box::leak(Box::new(Log(Mutex::default())));
    tracing_subscriber::fmt().with_ansi(false).with_writer(move || log).init();
    log
});

impl Write for &Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }

    /// The warnings that hold one of these texts.
    fn warnings(&self, texts: &[String]) -> Vec<String> {
        let text = self.text();
        let lines = text.lines().filter(|line| line.contains("WARN"));
        let about = lines.filter(|line| texts.iter().any(|text| line.contains(text)));
        about.map(str::to_owned).collect()
    }

    /// The warning about these strangers: one line in a second, so the first of them is named.
    fn about(&self, strangers: &[TcpStream]) -> String {
        let address = |stranger: &TcpStream| stranger.local_addr().unwrap().to_string();
        self.warnings(&strangers.iter().map(address).collect::<Vec<_>>()).join("\n")
    }
}

/// A job of 4 ranks that assembles while these strangers are at its root's port. They stay until
/// the job is done.
fn job_beside(knock: impl Fn(&mut TcpStream)) -> Vec<TcpStream> {
    LazyLock::force(&LOG);
    // Strangers may stand in the door for a quarter of it.
    let settings = Settings { bootstrap_fan_out: 2, ..settings(8_000) };
    let root = Root::open(&settings).unwrap();
    let address = root.id().addresses().unwrap()[0];
    let mut strangers: Vec<_> = (0..5).map(|_| TcpStream::connect(address).unwrap()).collect();
    strangers.iter_mut().for_each(&knock);
    within(Duration::from_secs(7), || {
        each_rank(0..4, |rank| {
            let plane = ControlPlane::join(entry(root.id(), rank, 4), &settings).unwrap();
            assert_eq!(plane.all_gather(&[rank as u8]).unwrap().concat(), [0, 1, 2, 3]);
        });
    });
    strangers
}

/// The end of a connection that the other side refused, which is no reason to fail.
fn sees_the_end(stranger: &mut TcpStream) -> Vec<u8> {
    stranger.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut answer = Vec::new();
    match stranger.read_to_end(&mut answer) {
        Ok(_) => answer,
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => answer,
        Err(error) => panic!("still connected: {error}"),
    }
}

#[test]
fn garbage_is_refused_by_its_first_bytes() {
    let mut strangers = job_beside(|stranger| stranger.write_all(b"GET / HTTP/1.1\r\n").unwrap());
    for stranger in &mut strangers {
        assert_eq!(sees_the_end(stranger), b"", "a stranger learns nothing");
    }
    let warning = LOG.about(&strangers);
    assert!(warning.contains("does not use this protocol"), "{warning}");
}

#[test]
fn a_silent_client_times_out_and_delays_no_other() {
    for mut stranger in job_beside(|_| {}) {
        // The root is gone with the job, or gives up on the handshake: both end the connection.
        assert_eq!(sees_the_end(&mut stranger), b"");
    }
}

#[test]
fn a_stranger_who_drips_bytes_is_shown_out() {
    let settings = settings(1_200);
    LazyLock::force(&LOG);
    let root = Root::open(&settings).unwrap();
    let mut stranger = TcpStream::connect(root.id().addresses().unwrap()[0]).unwrap();
    stranger.write_all(b"RDOVE\r\n").unwrap();
    within(Duration::from_secs(10), || assert_eq!(sees_the_end(&mut stranger), b""));
    let warning = LOG.about(&[stranger]);
    assert!(warning.contains("did not finish the handshake in time (7 bytes)"), "{warning}");
}

#[test]
fn an_opening_without_the_secret_gets_no_further() {
    // A well-formed hello of role "join" as rank 1, and then a length of 2 GiB instead of a proof.
    let mut hello = hello_as_rank_1(2);
    hello.extend_from_slice(&[0xff; 32]);
    let mut strangers = job_beside(|stranger| stranger.write_all(&hello).unwrap());
    for stranger in &mut strangers {
        // Whoever tests guesses of the secret needs something that was made with it.
        let answer = sees_the_end(stranger);
        assert!(answer.len() <= 48, "nothing but the root's own hello: {answer:02x?}");
    }
    let warning = LOG.about(&strangers);
    assert!(warning.contains("does not have the secret of this job"), "{warning}");
}

fn hello_as_rank_1(version: u8) -> Vec<u8> {
    let fixed = b"RDOVE\r\n\0";
    [fixed.as_slice(), &[version, 0, 1, 0, 1, 0, 0, 0], &[9; 32]].concat()
}

#[test]
fn the_layout_of_version_1_is_named_to_both_sides_users() {
    // Nobody can prove to it what it does not understand: the connection ends, the log says why.
    let strangers = job_beside(|stranger| stranger.write_all(&hello_as_rank_1(1)).unwrap());
    let warning = LOG.about(&strangers);
    assert!(warning.contains("it speaks version 1"), "{warning}");
}

/// Rank 0 of two as torchrun starts it, on a free port, with this secret.
fn launch(secret: Option<&'static str>) -> (Launch, Socket, String) {
    let (held, free) = hold_port();
    let launch = Launch::from_lookup(|name| match name {
        "RANK" => Some("0".into()),
        "WORLD_SIZE" => Some("2".into()),
        "MASTER_ADDR" => Some("127.0.0.1".into()),
        "MASTER_PORT" => Some(free.port().to_string()),
        "TORCHELASTIC_RUN_ID" => Some("a job's name".into()),
        "RINGDOVE_BOOTSTRAP_SECRET" => secret.map(Into::into),
        _ => None,
    });
    (launch.unwrap().unwrap(), held, format!("root={free}"))
}

#[test]
fn a_job_without_a_secret_says_so_in_a_warning_also_on_the_loopback() {
    LazyLock::force(&LOG);
    let (named, _held, its_root) = launch(None);
    let _ = named.rendezvous(&settings(1_000)).unwrap();
    let (secret, _held_too, silent_root) = launch(Some("0123456789abcdef-secret"));
    let _ = secret.rendezvous(&settings(1_000)).unwrap();
    let warnings = LOG.warnings(&[its_root]);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("RINGDOVE_BOOTSTRAP_SECRET"), "{warnings:?}");
    assert_eq!(LOG.warnings(&[silent_root]), [""; 0]);
}

#[test]
fn a_rank_with_a_foreign_id_does_not_disturb_two_jobs() {
    let settings = settings(1_500);
    let (one, other) = (Root::open(&settings).unwrap(), Root::open(&settings).unwrap());
    // The address of one job with the secret of the other.
    let mixed =
        ringdove::UniqueId::with(&one.id().addresses().unwrap(), other.id().secret().unwrap());
    std::thread::scope(|scope| {
        let lost = scope.spawn(|| ControlPlane::join(entry(mixed, 0, 1), &settings));
        for id in [one.id(), other.id()] {
            ControlPlane::join(entry(id, 0, 1), &settings).unwrap().barrier().unwrap();
        }
        assert!(matches!(lost.join().unwrap(), Err(Error::Bootstrap(_))));
    });
}

#[test]
fn strangers_who_take_every_descriptor_of_the_root_do_not_stop_the_job() {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "strangers::a_root_with_few_descriptors", "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    // Only the other process knows an id: that it comes shows that it runs.
    let id = lines.find_map(|line| line.strip_prefix("id ").map(from_text)).unwrap();
    let address = id.addresses().unwrap()[0];
    let strangers: Vec<_> = (0..150).map(|_| TcpStream::connect(address).unwrap()).collect();
    let settings = settings(60_000);
    // The root gives up on a silent stranger after 10 s; this must not take so long.
    within(Duration::from_secs(8), || {
        each_rank(0..4, |rank| {
            ControlPlane::join(entry(id, rank, 4), &settings).unwrap().barrier().unwrap();
        });
    });
    drop(strangers);
    drop(process.stdin.take());
    assert!(process.wait().unwrap().success());
}

#[test]
#[ignore = "the other process of strangers_who_take_every_descriptor_of_the_root"]
fn a_root_with_few_descriptors() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 64, hard).unwrap();
    let root = Root::open(&settings(60_000)).unwrap();
    println!("\nid {}", to_text(&root.id()));
    // Until the test that started us closes our input.
    io::stdin().read_line(&mut String::new()).unwrap();
}
