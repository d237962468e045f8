//! `ringdove mount`: parameters of a running job as files, for programs that know nothing of us.

mod hardware;
mod serving;

use hardware::{is_left_out, on_machine_env, on_machine_with, tool};
use ringdove::bootstrap::Launch;
use ringdove::serve::{Client, Job, Model, Optimizer, Role, Server};
use serving::{PATIENCE, again, seeds, settings};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

const MODEL: &str = r#"{"ringdove_model": 1, "name": "net", "tensors": [
    {"name": "dense/w", "type": "f32", "shape": [300, 100]},
    {"name": "dense/b", "type": "f32", "shape": [100]},
    {"name": "steps", "type": "u64", "shape": []}]}"#;
const EFBIG: i32 = 27;
const EPERM: i32 = 1;

/// What a program says and how it ends.
fn run(program: &str, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(program).args(arguments).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

fn works(program: &str, arguments: &[&str]) -> String {
    let (success, said) = run(program, arguments);
    assert!(success, "{program} {arguments:?}: {said}");
    said
}

/// May a process here mount?
fn may_mount() -> bool {
    File::options().read(true).write(true).open("/dev/fuse").is_ok()
        && nix::unistd::geteuid().is_root()
}

fn job(workers: usize) -> Job {
    let model = Model::read("model.json", MODEL).unwrap();
    Job { optimizer: Optimizer::Sgd { rate: 1.0 }, ..Job::new(model, 2, workers) }
}

fn serve(launch: &Launch, workers: usize) {
    let served = Server::join(job(workers), launch, &settings()).unwrap().run().unwrap();
    assert!(served.led + served.followed > 0, "{served:?}");
}

/// Makes a folder, and mounts there; the model's description lies in `outside`.
fn mounted(outside: &Path, mount: &Path) -> Child {
    let model = outside.join("model.json");
    fs::write(&model, MODEL).unwrap();
    fs::create_dir(mount).unwrap();
    let mut command = Command::new(tool("ringdove"));
    command.arg("mount").arg(mount).arg("--model").arg(&model).stdin(Stdio::null());
    let mut process = command.spawn().unwrap();
    let start = Instant::now();
    while !mount.join("version").exists() {
        assert_eq!(process.try_wait().unwrap(), None, "the mount has ended");
        assert!(start.elapsed() < PATIENCE, "nothing was mounted");
        std::thread::yield_now();
    }
    process
}

/// If this fails, `cp`, `dd` or a memory map of tensors give something else than the parameters, or
/// files can be made to hold what a tensor cannot.
#[test]
fn programs_read_and_write_tensors_as_files() {
    if is_left_out("this test starts servers on virtual nodes") {
        return;
    }
    if !may_mount() {
        return tally::skip("fuse", "no /dev/fuse that this process may open");
    }
    on_machine_with("pcie4 x 3", &["--procs", "3"], || {
        let launch = Launch::from_env().unwrap().unwrap();
        if launch.rank < 2 {
            return serve(&launch, 1);
        }
        let folder = tempfile::tempdir().unwrap();
        let mount = folder.path().join("mount");
        let mut process = mounted(folder.path(), &mount);
        check_files(&mount, folder.path());
        works("umount", &[mount.to_str().unwrap()]);
        assert!(process.wait().unwrap().success());
    });
}

fn check_files(mount: &Path, outside: &Path) {
    let path = |name: &str| mount.join("net").join(name);
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let listed = works("ls", &["-R", &text(mount)]);
    for name in ["version", "net", "dense", "steps", "w", "b"] {
        assert!(listed.lines().any(|line| line == name), "{listed}");
    }
    assert_eq!(fs::metadata(path("dense/w")).unwrap().len(), 120_000);
    // cp, there and back.
    let values: Vec<u8> = (0..30_000).flat_map(|index| (index as f32).to_le_bytes()).collect();
    let (there, back) = (outside.join("there"), outside.join("back"));
    fs::write(&there, &values).unwrap();
    works("cp", &[&text(&there), &text(&path("dense/w"))]);
    works("cp", &[&text(&path("dense/w")), &text(&back)]);
    assert!(fs::read(&back).unwrap() == values, "cp gives something else");
    // dd, into the middle of a tensor.
    fs::write(&there, 7_u64.to_le_bytes()).unwrap();
    let (input, output) =
        (format!("if={}", text(&there)), format!("of={}", text(&path("dense/b"))));
    works("dd", &[&input, &output, "bs=4", "seek=50", "conv=notrunc,fsync"]);
    let file = File::open(path("dense/b")).unwrap();
    let mut word = [0; 12];
    file.read_exact_at(&mut word, 196).unwrap();
    assert_eq!(word, [0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
    // A memory map, and attributes.
    let script = format!(
        "import mmap, os, struct\n\
         with open({file:?}, 'rb') as f:\n    \
             with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:\n        \
                 print(struct.unpack_from('<f', m, 4 * 29999)[0])\n\
         print(os.getxattr({file:?}, 'user.ringdove.shape').decode(),\n      \
             os.getxattr({file:?}, 'user.ringdove.type').decode(), len(os.listxattr({file:?})))\n",
        file = text(&path("dense/w"))
    );
    assert_eq!(works("python3", &["-c", &script]), "29999.0\n300,100 f32 3\n");
    // A map that is written to, as of numpy.memmap with mode r+: a flush takes it to the servers.
    let script = format!(
        "import mmap, struct\n\
         with open({file:?}, 'r+b') as f, mmap.mmap(f.fileno(), 0) as m:\n    \
             struct.pack_into('<f', m, 4 * 29998, 0.5)\n    \
             m.flush()\n",
        file = text(&path("dense/w"))
    );
    let version = || fs::read_to_string(mount.join("version")).unwrap();
    let before = version();
    works("python3", &["-c", &script]);
    let mut word = [0; 4];
    File::open(path("dense/w")).unwrap().read_exact_at(&mut word, 4 * 29998).unwrap();
    assert_eq!(f32::from_le_bytes(word), 0.5);
    assert_ne!(version(), before, "what was written to a map has not reached the servers");
    // Versions rise with writes.
    let versions = || -> u64 {
        let read = fs::read_to_string(mount.join("version")).unwrap();
        read.split_whitespace().map(|word| word.parse::<u64>().unwrap()).sum()
    };
    let before = versions();
    let mut file = OpenOptions::new().write(true).open(path("steps")).unwrap();
    file.write_all(&[1; 8]).unwrap();
    file.sync_all().unwrap();
    assert_eq!(versions(), before + 1);
    // What a tensor cannot hold.
    let code = |result: std::io::Result<()>| result.unwrap_err().raw_os_error();
    assert_eq!(code(file.write_all_at(&[1], 8)), Some(EFBIG));
    assert_eq!(code(file.set_len(9)), Some(EFBIG));
    assert_eq!(fs::read(path("steps")).unwrap(), [1; 8]);
    assert_eq!(code(File::create_new(path("other")).map(drop)), Some(EPERM));
    assert_eq!(code(fs::remove_file(path("steps"))), Some(EPERM));
    assert_eq!(code(fs::rename(path("steps"), path("dense/x"))), Some(EPERM));
    assert!(fs::metadata(path("../net/dense/../steps")).is_ok(), "the kernel walks paths");
    assert!(fs::metadata(path("nothing")).is_err());
    // The files are of who mounted, and of nobody else.
    let facts = fs::metadata(path("steps")).unwrap();
    assert_eq!((facts.mode() & 0o777, facts.uid()), (0o600, nix::unistd::getuid().as_raw()));
    let mut stranger = Command::new("cat");
    stranger.arg(path("steps")).stdout(Stdio::null()).stderr(Stdio::null()).uid(65_534);
    // Where there is no other user, nobody else can look.
    if let Ok(status) = stranger.status() {
        assert!(!status.success(), "another user reads parameters");
    }
}

/// Without FUSE the command says what is missing, and ends with a status of its own. Where there is
/// one, an empty folder takes the place of `/dev`.
#[test]
fn a_machine_without_fuse_is_told_so() {
    let ringdove = tool("ringdove");
    let output = match may_mount() {
        true => Command::new("unshare")
            .args(["--mount", "sh", "-c"])
            .arg("mount -t tmpfs none /dev && exec \"$0\" mount /tmp --model 1M")
            .arg(&ringdove)
            .output(),
        false => Command::new(&ringdove).args(["mount", "/tmp", "--model", "1M"]).output(),
    };
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("/dev/fuse") && said.contains("module `fuse`"), "{said}");
}

/// What takes the mount from under a program that writes, by the seed.
#[derive(Clone, Copy, Debug)]
enum Loss {
    /// The file system that the mount point lies on is gone (detached, with all that is mounted
    /// on it).
    Disk,
    /// FUSE ends the connection (`umount -f`).
    Connection,
    /// The process that mounted is killed.
    Process,
}

/// Bytes of one write into the tensor `dense/w`, and how many there are. None crosses the border of
/// a page: Linux hands over what does as two writes.
const PIECE: usize = 1024;
const PIECES: usize = 100;

fn piece(number: usize) -> Vec<u8> {
    let value = (number + 1) as f32;
    (0..PIECE / 4).flat_map(|_| value.to_le_bytes()).collect()
}

/// If this fails, what a program was told is written is lost with the mount point, or half of a
/// write is there. `RINGDOVE_SERVE_SEEDS` asks for more seeds than a test run has.
#[test]
fn what_was_written_stays_when_the_mount_point_is_gone() {
    if is_left_out("this test starts servers on virtual nodes") {
        return;
    }
    if !may_mount() {
        return tally::skip("fuse", "no /dev/fuse that this process may open");
    }
    if let Ok(seed) = std::env::var("RINGDOVE_TEST_SEED") {
        return lose_the_mount(seed.parse().unwrap());
    }
    for seed in seeds() {
        println!("a mount is lost: seed {seed}; {}", again(seed));
        let (folder, seed) = (tempfile::tempdir().unwrap(), seed.to_string());
        let place = folder.path().to_str().unwrap();
        let variables = [("RINGDOVE_TEST_SEED", &*seed), ("RINGDOVE_TEST_FOLDER", place)];
        let options = ["--procs", "4"];
        let body = || unreachable!("the body runs inside alone");
        on_machine_env("pcie4 x 4", &options, &variables, body);
    }
}

fn lose_the_mount(seed: u64) {
    let launch = Launch::from_env().unwrap().unwrap();
    let folder = std::env::var("RINGDOVE_TEST_FOLDER").unwrap();
    let done = Path::new(&folder).join("done");
    match launch.rank {
        0 | 1 => serve(&launch, 2),
        2 => {
            let acknowledged = write_until_gone(Path::new(&folder), seed);
            let text = acknowledged.iter().map(|number| format!("{number}\n")).collect::<String>();
            fs::write(done.with_extension("part"), text).unwrap();
            fs::rename(done.with_extension("part"), done).unwrap();
        }
        _ => {
            let mut client = Client::join(job(2), Role::Observer, &launch, &settings()).unwrap();
            let start = Instant::now();
            while !done.exists() {
                assert!(start.elapsed() < 3 * PATIENCE, "the writer does not end");
                std::thread::yield_now();
            }
            let text = fs::read_to_string(&done).unwrap();
            let acknowledged: Vec<usize> = text.lines().map(|it| it.parse().unwrap()).collect();
            client.pull().unwrap();
            let mut bytes = vec![0; 120_000];
            client.copy_out("dense/w", &mut bytes).unwrap();
            for (number, seen) in bytes.chunks(PIECE).take(PIECES).enumerate() {
                let is_whole = seen == piece(number);
                let is_empty = seen.iter().all(|byte| *byte == 0);
                assert!(is_whole || is_empty, "half of write {number} is there");
                assert!(is_whole || !acknowledged.contains(&number), "write {number} is lost");
            }
            println!("seed {seed}: {} writes acknowledged, all there", acknowledged.len());
            client.leave().unwrap();
        }
    }
}

/// Gives the writes that were acknowledged.
fn write_until_gone(folder: &Path, seed: u64) -> Vec<usize> {
    let loss = [Loss::Disk, Loss::Connection, Loss::Process][(seed % 3) as usize];
    let moment = fastrand::Rng::with_seed(seed).usize(1..PIECES * 3 / 4);
    let disk = folder.join("disk");
    let mount = disk.join("mount");
    let [disk_text, mount_text] = [&disk, &mount].map(|path| path.to_str().unwrap().to_owned());
    fs::create_dir(&disk).unwrap();
    works("mount", &["-t", "tmpfs", "disk-of-a-test", &disk_text]);
    let mut process = mounted(folder, &mount);
    let file = OpenOptions::new().write(true).open(mount.join("net/dense/w")).unwrap();
    let written = AtomicUsize::new(0);
    let mut acknowledged = Vec::new();
    std::thread::scope(|scope| {
        let process = &mut process;
        scope.spawn(|| {
            let start = Instant::now();
            while written.load(Ordering::Relaxed) < moment {
                assert!(start.elapsed() < PATIENCE, "nothing is written");
                std::thread::yield_now();
            }
            match loss {
                Loss::Disk => drop(works("umount", &["--lazy", &disk_text])),
                // It says that the mount is busy, and has ended the connection.
                Loss::Connection => drop(run("umount", &["--force", &mount_text])),
                Loss::Process => process.kill().unwrap(),
            }
        });
        for number in 0..PIECES {
            match file.write_all_at(&piece(number), (number * PIECE) as u64) {
                Ok(()) => acknowledged.push(number),
                Err(_) => break,
            }
            written.fetch_add(1, Ordering::Relaxed);
        }
        // However few were written, the loss comes.
        written.store(PIECES, Ordering::Relaxed);
    });
    println!("seed {seed}: {loss:?} lost at write {moment}, {} acknowledged", acknowledged.len());
    match loss {
        // Who has the file open does not notice.
        Loss::Disk => assert_eq!(acknowledged.len(), PIECES),
        Loss::Connection | Loss::Process => assert!(acknowledged.len() >= moment),
    }
    drop(file);
    if !matches!(loss, Loss::Disk) {
        run("umount", &["--lazy", &mount_text]);
        works("umount", &["--lazy", &disk_text]);
    }
    // With the last file, the mount ends by itself.
    let status = process.wait().unwrap();
    assert!(status.success() || matches!(loss, Loss::Process), "{loss:?}: {status}");
    acknowledged
}
