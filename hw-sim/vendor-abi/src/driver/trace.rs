//! The call trace: `HWSIM_TRACE=FILE` writes one line a driver call.

use super::code::{self, Code};
use std::fs::File;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

static ON: AtomicBool = AtomicBool::new(false);
static FILE: OnceLock<Option<File>> = OnceLock::new();

/// Is a trace wanted? One relaxed load.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Reads `HWSIM_TRACE` and opens the file, once.
pub(crate) fn start() {
    FILE.get_or_init(|| {
        let path = std::env::var_os("HWSIM_TRACE").filter(|path| !path.is_empty())?;
        match File::options().create(true).append(true).open(&path) {
            Ok(file) => {
                ON.store(true, Ordering::Relaxed);
                Some(file)
            }
            Err(cause) => {
                eprintln!("hwsim: HWSIM_TRACE={}: cannot be written: {cause}", path.display());
                None
            }
        }
    });
}

/// Writes a line: nanoseconds since 1970, thread, function, result, and why it failed.
#[cold]
pub(crate) fn line(name: &str, code: Code, words: &str) {
    let Some(Some(file)) = FILE.get() else { return };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    // SAFETY: the call takes nothing and only returns this thread's number.
    let thread = unsafe { libc::gettid() };
    let result = code::name(code).and_then(|name| name.to_str().ok()).unwrap_or("?");
    let space = if words.is_empty() { "" } else { " " };
    // One write a line: lines of several threads do not mix. A full disk must not fail the call.
    let _ = (&*file).write_all(format!("{now} {thread} {name} {result}{space}{words}\n").as_bytes());
}
