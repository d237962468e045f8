//! Command lines and machine files that nobody should write: each run of `ringdove` and `hwsim`
//! ends in time, in bounded memory, with its own status and a message: no panic, no signal.

use crate::hardware::tool;
use crate::mutation::{Campaign, Input, corpus, mutate};
use fastrand::Rng;
use ringdove::settings::TABLE;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// KiB of address space for each command.
const ADDRESS_SPACE_KIB: u64 = 12 << 20;
/// Far above what any of these commands takes, on a busy machine too.
const COMMAND_TIME: Duration = Duration::from_secs(60);

/// What mutations put in the place of a word. Files are named in the working directory, or cannot
/// be written: nothing of the machine is touched.
const WORDS: &[&str] = &[
    "-b",
    "-e",
    "-f",
    "-g",
    "-n",
    "-t",
    "-i",
    "-c",
    "-R",
    "-T",
    "-m",
    "--nodes",
    "--ranks",
    "--slots",
    "--blocks",
    "--window",
    "--procs",
    "--grace",
    "--profile",
    "--leaf-nodes",
    "--",
    "-",
    "",
    "=",
    "0",
    "1",
    "2",
    "3",
    "63",
    "64",
    "65",
    "1024",
    "1025",
    "65535",
    "65536",
    "1048576",
    "1048577",
    "4294967295",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "-1",
    "0.0",
    "1e308",
    "nan",
    "inf",
    "1K",
    "16M",
    "1T",
    "1024G",
    "9999999999999G",
    "K",
    "é",
    "pcie4 x 0",
    "pcie4 x 3",
    "pcie4 x 1025",
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    ".",
    "no/such/file.toml",
    "out.json",
    "halving",
    "device",
    "cpu-driven",
    "stores",
    "half",
    "mulsum",
];

/// A command with its environment, a word a line: `NAME=VALUE` first.
fn command_line(rng: &mut Rng, lines: &[&str]) -> Vec<u8> {
    let mut words: Vec<Vec<u8>> = Vec::new();
    let line = rng.choice(lines).expect("a corpus");
    let mut tokens: Vec<Vec<u8>> = line.split(' ').map(|token| token.as_bytes().to_vec()).collect();
    let program = tokens.remove(0);
    for _ in 0..rng.u32(1..=3) {
        let is_number = |word: &[u8]| word.first().is_some_and(u8::is_ascii_digit);
        let numbers = (0..tokens.len()).filter(|at| is_number(&tokens[*at]));
        let number = rng.choice(numbers.collect::<Vec<_>>()).filter(|_| rng.bool());
        let at = number.unwrap_or_else(|| rng.usize(0..=tokens.len()));
        let words = WORDS.iter().filter(|word| number.is_none() || is_number(word.as_bytes()));
        let word = rng.choice(words.collect::<Vec<_>>()).unwrap().as_bytes().to_vec();
        match rng.u32(0..8) {
            0 => tokens.insert(at, word),
            1 if at < tokens.len() => drop(tokens.remove(at)),
            2 if at < tokens.len() => {
                let token = tokens[at].clone();
                tokens.insert(rng.usize(0..=tokens.len()), token);
            }
            3 => tokens.insert(at, vec![0xff, rng.u8(1..)]),
            4 if at < tokens.len() => tokens[at].extend(word),
            _ if at < tokens.len() => tokens[at] = word,
            _ => {}
        }
    }
    if rng.u32(0..4) == 0 {
        let name = rng.choice(TABLE).expect("there are settings").name;
        let value = rng.choice(WORDS).unwrap();
        words.push(format!("{name}={value}").into_bytes());
    }
    if rng.u32(0..8) == 0 {
        words.push(b"RINGDOVE_LOG=\xff=trace".to_vec());
    }
    words.push(program);
    // What runs is ours: nothing that a mutation makes is taken for a program.
    let is_run = tokens.first().is_some_and(|token| token == b"run");
    words.extend(tokens.into_iter().filter(|token| !is_run || token != b"--"));
    if is_run {
        words.extend([b"--".to_vec(), b"true".to_vec()]);
    }
    words.join(&b'\n')
}

/// How a command ended, and the first of what it said. `None`: not in time.
fn ended(mut command: Command) -> Option<(ExitStatus, String)> {
    // Files do not fill up as pipes do.
    let mut said = tempfile::tempfile().unwrap();
    let clone = |file: &File| Stdio::from(file.try_clone().unwrap());
    command.stdin(Stdio::null()).stdout(clone(&said)).stderr(clone(&said));
    let mut child = command.spawn().unwrap();
    let deadline = Instant::now() + COMMAND_TIME;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let mut bytes = Vec::new();
    said.rewind().unwrap();
    said.take(1 << 20).read_to_end(&mut bytes).unwrap();
    Some((status, String::from_utf8_lossy(&bytes).into_owned()))
}

/// A command in bounded address space, in its own folder.
fn bounded(folder: &Path, program: &Path, arguments: &[OsString]) -> Command {
    let mut command = Command::new("bash");
    command.arg("-c").arg(format!("ulimit -v {ADDRESS_SPACE_KIB}; exec \"$@\"")).arg("bash");
    command.arg(program).args(arguments).current_dir(folder);
    // Nobody's environment but the case's.
    for (name, _) in std::env::vars_os() {
        if ["RINGDOVE_", "HWSIM_"].iter().any(|it| name.to_string_lossy().starts_with(it)) {
            command.env_remove(name);
        }
    }
    command
}

fn verdict(ended: Option<(ExitStatus, String)>) -> Result<(), String> {
    let Some((status, said)) = ended else {
        return Err(format!("no end after {COMMAND_TIME:?}"));
    };
    let start: String = said.chars().take(2000).collect();
    if let Some(signal) = status.signal() {
        return Err(format!("ended by signal {signal}: {start}"));
    }
    if status.code() == Some(101) || said.contains("panicked at") {
        return Err(format!("panicked: {start}"));
    }
    if !status.success() && said.trim().is_empty() {
        return Err(format!("{status}, without a word"));
    }
    Ok(())
}

fn play(bytes: &[u8]) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let mut words = bytes.split(|byte| *byte == b'\n').map(|word| OsString::from_vec(word.into()));
    let mut variables = Vec::new();
    let program = loop {
        let word = words.next().ok_or("no program")?;
        if word == "ringdove" || word == "hwsim" {
            break tool(word.to_str().unwrap());
        }
        let bytes = word.into_vec();
        let at = bytes.iter().position(|byte| *byte == b'=').ok_or("no value")?;
        let value = OsString::from_vec(bytes[at + 1..].to_vec());
        variables.push((OsString::from_vec(bytes[..at].to_vec()), value));
    };
    // A word of the system's own cannot hold NUL.
    let arguments: Vec<OsString> = words.collect();
    let mut command = bounded(folder.path(), &program, &arguments);
    command.envs(variables);
    verdict(ended(command))
}

/// The command lines of the corpus.
fn lines() -> Vec<&'static str> {
    include_str!("corpus/commands.txt").lines().filter(|line| !line.is_empty()).collect()
}

#[test]
fn mutated_command_lines_end_with_a_message() {
    let campaign = Campaign {
        target: "-p ringdove --test hostile",
        test: "commands::mutated_command_lines_end_with_a_message",
        cases: 120,
    };
    let lines = lines();
    let input = |line: &&str| {
        let runs = if line.starts_with("hwsim run") { " -- true" } else { "" };
        Input { name: (*line).into(), bytes: format!("{line}{runs}").replace(' ', "\n").into() }
    };
    let inputs: Vec<Input> = lines.iter().map(input).collect();
    campaign.replay(&inputs, play);
    campaign.run(|rng| command_line(rng, &lines), play);
}

/// What is done with each machine file.
const USES: &[&str] = &[
    "machines machine.toml",
    "predict all-reduce -m machine.toml -b 8K -e 8K",
    "predict p2p -m machine.toml -b 8K -e 8K --engine device",
    "run -q -m machine.toml -- ringdove doctor",
    "run -q -m machine.toml -- ringdove perf all-reduce -g 2 -b 8K -e 8K -n 1 -w 0 -c 1 -T 20",
];

fn use_machine(bytes: &[u8]) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("machine.toml"), bytes).unwrap();
    let ringdove = tool("ringdove");
    for line in USES {
        let words = line.split(' ').map(|word| match word {
            "ringdove" => ringdove.clone().into(),
            other => OsString::from(other),
        });
        let words: Vec<OsString> = words.collect();
        let outcome = verdict(ended(bounded(folder.path(), &tool("hwsim"), &words)));
        outcome.map_err(|why| format!("hwsim {line}: {why}"))?;
        if words[0] == "machines" && std::str::from_utf8(bytes).is_err() {
            // Refused: the other commands would say the same.
            return Ok(());
        }
    }
    Ok(())
}

/// What a machine file says must not break what runs on the machine.
#[test]
fn programs_on_mutated_machines_end_with_a_message() {
    let campaign = Campaign {
        target: "-p ringdove --test hostile",
        test: "commands::programs_on_mutated_machines_end_with_a_message",
        cases: 8,
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("hw-sim/machine");
    let mut files = corpus(&root.join("machines"), "toml");
    files.extend(corpus(&root.join("tests/corpus"), "toml"));
    campaign.run(|rng| machine(rng, &files), use_machine);
}

/// A mutated machine, in most cases one that is accepted: else nothing runs on it.
fn machine(rng: &mut Rng, files: &[Input]) -> Vec<u8> {
    for _ in 0..200 {
        let text = mutate(rng, files);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("machine.toml");
        std::fs::write(&path, &text).unwrap();
        let mut show = Command::new(tool("hwsim"));
        show.arg("machines").arg(&path).stdout(Stdio::null()).stderr(Stdio::null());
        if show.status().is_ok_and(|status| status.success()) {
            return text;
        }
    }
    mutate(rng, files)
}
