//! `ringdove mount`: parameters of a running job as files, for programs that know nothing of us.

mod hardware;

use hardware::{is_left_out, on_machine_with, tool};
use ringdove::bootstrap::Launch;
use ringdove::serve::{Job, Model, Server};
use ringdove::{Settings, serve::Optimizer};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const MODEL: &str = r#"{"ringdove_model": 1, "name": "net", "tensors": [
    {"name": "dense/w", "type": "f32", "shape": [300, 100]},
    {"name": "dense/b", "type": "f32", "shape": [100]},
    {"name": "steps", "type": "u64", "shape": []}]}"#;
/// Far above what a mount takes.
const PATIENCE: Duration = Duration::from_secs(60);
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
            let model = Model::read("model.json", MODEL).unwrap();
            let optimizer = Optimizer::Sgd { rate: 1.0 };
            let job = Job { optimizer, ..Job::new(model, 2, 1) };
            let settings = Settings { wait_timeout: PATIENCE, ..Settings::from_env().unwrap() };
            let served = Server::join(job, &launch, &settings).unwrap().run().unwrap();
            assert!(served.led + served.followed > 0, "{served:?}");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (model, mount) = (folder.path().join("model.json"), folder.path().join("mount"));
        fs::write(&model, MODEL).unwrap();
        fs::create_dir(&mount).unwrap();
        let mut command = Command::new(tool("ringdove"));
        command.arg("mount").arg(&mount).arg("--model").arg(&model).stdin(Stdio::null());
        let mut process = command.spawn().unwrap();
        let start = Instant::now();
        while !mount.join("version").exists() {
            assert_eq!(process.try_wait().unwrap(), None, "the mount has ended");
            assert!(start.elapsed() < PATIENCE, "nothing was mounted");
            std::thread::yield_now();
        }
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
