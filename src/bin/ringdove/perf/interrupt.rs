//! Ctrl-C: the first stops after the iterations in flight, the second at once.

use super::error::PerfError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Exit status of a run that was interrupted, as shells count it: 128 + SIGINT.
pub const EXIT_INTERRUPTED: u8 = 130;

/// A second signal counts only this long after the first: Ctrl-C reaches a whole process group,
/// and a launcher in it may forward what it gets, so that one key press arrives twice.
const ECHO: Duration = Duration::from_millis(500);

/// Whether somebody asked for the end.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Installs the handler for SIGINT, SIGTERM and SIGHUP.
    pub fn install() -> Result<Self, PerfError> {
        let interrupt = Self::default();
        let asked = interrupt.clone();
        let mut first: Option<Instant> = None;
        ctrlc::set_handler(move || match first {
            None => {
                first = Some(Instant::now());
                // A flag alone: nothing else is published through it.
                asked.0.store(true, Ordering::Relaxed);
                eprintln!("\nstopping after the iterations in flight; once more stops at once");
            }
            Some(time) if time.elapsed() < ECHO => {}
            Some(_) => std::process::exit(i32::from(EXIT_INTERRUPTED)),
        })?;
        Ok(interrupt)
    }

    /// Whether somebody asked for the end.
    pub fn requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Asks for the end.
    #[cfg(test)]
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Lets threads that run the same iterations agree on where to stop: ranks that enqueued
/// different numbers of collectives would wait for one another.
#[derive(Debug)]
pub struct Agreement<'a> {
    interrupt: Option<&'a Interrupt>,
    state: Mutex<AgreementState>,
    failed: AtomicBool,
}

#[derive(Debug, Default)]
struct AgreementState {
    /// Iterations that some thread has begun, and that all must run.
    granted: usize,
    stopped: bool,
}

impl<'a> Agreement<'a> {
    /// For one run of iterations, which `interrupt` may end, if there is one.
    pub fn new(interrupt: Option<&'a Interrupt>) -> Self {
        Self { interrupt, state: Mutex::default(), failed: AtomicBool::new(false) }
    }

    /// Whether iteration `number` runs. Every thread gets the same answer.
    pub fn grants(&self, number: usize) -> bool {
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if number < state.granted {
            return true;
        }
        state.stopped |= self.interrupt.is_some_and(Interrupt::requested);
        if !state.stopped {
            state.granted = number + 1;
        }
        !state.stopped
    }

    /// This thread has failed: the others must not wait for it.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Another thread has failed, so what it has not enqueued never comes.
    pub fn check(&self) -> Result<(), PerfError> {
        if self.failed.load(Ordering::Relaxed) { Err(PerfError::OtherThread) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slower thread must run every iteration that a faster one has begun, and no more.
    #[test]
    fn a_slower_thread_stops_where_the_faster_one_did() {
        let interrupt = Interrupt::default();
        let agreement = Agreement::new(Some(&interrupt));
        assert!((0..3).all(|number| agreement.grants(number)));
        interrupt.request();
        assert!(!agreement.grants(3), "the faster thread stops");
        assert!((0..3).all(|number| agreement.grants(number)), "the slower one catches up");
        assert!(!agreement.grants(3), "and stops at the same place");
    }
}
