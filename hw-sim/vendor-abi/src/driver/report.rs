//! The report of a process: `HWSIM_REPORT=FILE` appends one line of JSON when the process ends.

use super::code::{self, Code};
use crate::version;
use hwsim_machine::tally;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The variable by which `hwsim run` names the file.
const VARIABLE: &str = "HWSIM_REPORT";
/// Different refusals that are kept.
const REFUSALS_MAX: usize = 1000;
/// `CUDA_ERROR_NOT_READY`: an answer, and no refusal.
const NOT_READY: Code = 600;

/// What became of one function.
#[derive(Default)]
struct Calls {
    count: u64,
    failed: BTreeMap<Code, u64>,
}

/// All calls so far.
#[derive(Default)]
struct Seen {
    functions: BTreeMap<&'static str, Calls>,
    /// By function, result and words.
    refusals: BTreeMap<(&'static str, Code, String), u64>,
}

static ON: AtomicBool = AtomicBool::new(false);
static FILE: OnceLock<Option<(File, u32)>> = OnceLock::new();
static SEEN: Mutex<Option<Seen>> = Mutex::new(None);

/// Is a report wanted? One relaxed load.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Opens the file, once, and sees to it that the report is written when the process ends in order.
pub(crate) fn start() {
    FILE.get_or_init(|| {
        let path = std::env::var_os(VARIABLE).filter(|path| !path.is_empty())?;
        match File::options().create(true).append(true).open(&path) {
            Ok(file) => {
                // SAFETY: the function may run at any time until the process ends.
                unsafe { libc::atexit(write) };
                tally::start();
                ON.store(true, Ordering::Relaxed);
                Some((file, std::process::id()))
            }
            Err(cause) => {
                eprintln!("hwsim: {VARIABLE}={}: cannot be written: {cause}", path.display());
                None
            }
        }
    });
}

fn seen() -> MutexGuard<'static, Option<Seen>> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes a call.
#[cold]
pub(crate) fn call(name: &'static str, result: Code, words: &str) {
    let mut guard = seen();
    let seen = guard.get_or_insert_default();
    let calls = seen.functions.entry(name).or_default();
    calls.count += 1;
    if result == code::SUCCESS || result == NOT_READY {
        return;
    }
    *calls.failed.entry(result).or_default() += 1;
    let refusal = (name, result, words.to_owned());
    if seen.refusals.len() < REFUSALS_MAX || seen.refusals.contains_key(&refusal) {
        *seen.refusals.entry(refusal).or_default() += 1;
    }
}

fn result_name(result: Code) -> String {
    let name = code::name(result).and_then(|name| name.to_str().ok());
    name.map_or_else(|| result.to_string(), str::to_owned)
}

/// The report as it is now.
fn document() -> Value {
    let guard = seen();
    let none = Seen::default();
    let Seen { functions, refusals } = guard.as_ref().unwrap_or(&none);
    let function = |(name, calls): (&&str, &Calls)| {
        let failed = calls.failed.iter().map(|(code, count)| (result_name(*code), json!(count)));
        let failed: Map<String, Value> = failed.collect();
        ((*name).to_owned(), json!({ "calls": calls.count, "failed": failed }))
    };
    let refusal = |((function, result, words), count): (&(&str, Code, String), &u64)| {
        json!({
            "function": function, "result": result_name(*result), "why": words, "times": count,
        })
    };
    let kernels = tally::kernels();
    let kernel = |(name, tally): (&String, &tally::KernelTally)| {
        let value = json!({
            "launches": tally.launches, "blocks": tally.blocks,
            "instructions": tally.instructions,
        });
        (name.clone(), value)
    };
    let (copied, filled) = tally::bytes();
    json!({
        "process": std::process::id(),
        "command": std::env::args_os().next().map(|name| name.to_string_lossy().into_owned()),
        "rank": std::env::var("RANK").ok(),
        "driver": version::shown().name,
        "functions": functions.iter().map(function).collect::<Map<_, _>>(),
        "kernels": kernels.iter().map(kernel).collect::<Map<_, _>>(),
        "instructions": kernels.values().map(|tally| tally.instructions).sum::<u64>(),
        "bytes": { "copied": copied, "filled": filled },
        "refused": refusals.iter().map(refusal).collect::<Vec<_>>(),
    })
}

/// Writes the report. A child of a fork has nothing to report of its own.
extern "C" fn write() {
    let Some(Some((file, process))) = FILE.get() else { return };
    if *process != std::process::id() {
        return;
    }
    // Nothing may unwind into the C library; a full disk must not fail the program.
    let _ = std::panic::catch_unwind(|| {
        let line = format!("{}\n", document());
        let _ = (&*file).write_all(line.as_bytes());
    });
}
