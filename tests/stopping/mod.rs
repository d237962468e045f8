//! What tests that stop processes share: marks of what each does, and signals to them.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Far above what anything here takes, also where the machine is busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the processes tell the test and one another: files in a folder.
pub struct Marks(pub PathBuf);

impl Marks {
    pub fn set(&self, name: &str, text: impl ToString) {
        let part = self.0.join(format!("{name}.part"));
        fs::write(&part, text.to_string()).unwrap();
        fs::rename(part, self.0.join(name)).unwrap();
    }

    pub fn get(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.0.join(name)).ok()
    }

    /// Waits for a mark, unless `is_over`.
    pub fn wait(&self, name: &str, is_over: &AtomicBool) -> Option<String> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE && !is_over.load(Ordering::Relaxed) {
            if let Some(text) = self.get(name) {
                return Some(text);
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
        None
    }

    /// Tells the test which process this is.
    pub fn set_process(&self, rank: u32) {
        self.set(&format!("pid-{rank}"), std::process::id());
    }

    /// The processes of so many ranks, once all have told.
    pub fn processes(&self, count: u32, is_over: &AtomicBool) -> Option<Vec<Pid>> {
        let pid =
            |rank| Some(Pid::from_raw(self.wait(&format!("pid-{rank}"), is_over)?.parse().ok()?));
        (0..count).map(pid).collect()
    }
}

pub fn send(signal: Signal, processes: &[Pid]) {
    for process in processes {
        kill(*process, signal).unwrap();
    }
}

/// Stops the processes for this time.
pub fn stop_for(time: Duration, processes: &[Pid]) {
    send(Signal::SIGSTOP, processes);
    let start = Instant::now();
    while start.elapsed() < time {
        std::thread::park_timeout(time - start.elapsed());
    }
    send(Signal::SIGCONT, processes);
}

/// What it names is over, however this ends.
pub struct Ending<'a>(pub &'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
