//! Middleware that records what goes through it: in memory, or line by line in a file.

use super::{Polled, SignalWrite, Transfer, Transport, TransportError};
use crate::id::Rank;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// One call that went through a [`Traced`] transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A transfer was offered and taken.
    Accepted(Transfer),
    /// A transfer was offered first and not taken.
    Refused(Transfer),
    /// This many transfers ended.
    Completed(u64),
    /// The transport failed.
    Failed(TransportError),
}

/// Takes what a [`Traced`] transport saw.
pub trait Recorder: Send {
    /// One more event.
    fn record(&mut self, event: Event);
}

/// What was recorded; clones read the same record.
#[derive(Clone, Default)]
pub struct Trace {
    events: Arc<Mutex<Vec<Event>>>,
    events_max: usize,
}

impl Trace {
    /// All events so far, oldest first.
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The transfers that were taken, in order.
    pub fn accepted(&self) -> Vec<Transfer> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = |event: &Event| match event {
            Event::Accepted(transfer) => Some(*transfer),
            _ => None,
        };
        events.iter().filter_map(taken).collect()
    }
}

impl Recorder for Trace {
    /// Keeps the first `events_max` events: the beginning of a run explains the rest of it.
    fn record(&mut self, event: Event) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() < self.events_max {
            events.push(event);
        }
    }
}

/// A line of text for each transfer that was taken, in a file:
///
/// ```text
/// position 17 send port of lane 0->1 slots 0 bytes 4096 arrival 3 completion -
/// ```
///
/// The port is the one that rang; signals are running counts, and a receive port's arrival is the
/// credit that it returns.
pub struct TraceFile {
    path: PathBuf,
    file: BufWriter<File>,
    /// What ports are called, by the number of their lane.
    names: Vec<String>,
    line: String,
    failed: bool,
}

impl TraceFile {
    /// Appends to `PREFIX.RANK`. `names` are what ports are called, by the number of their lane.
    ///
    /// # Errors
    /// The system's, with the path that could not be opened.
    pub fn append(
        prefix: &Path,
        rank: Rank,
        names: Vec<String>,
    ) -> Result<Self, (PathBuf, io::Error)> {
        let mut path = prefix.as_os_str().to_owned();
        path.push(format!(".{}", rank.0));
        let path = PathBuf::from(path);
        match OpenOptions::new().append(true).create(true).open(&path) {
            Ok(file) => {
                let (file, line) = (BufWriter::new(file), String::new());
                Ok(Self { path, file, names, line, failed: false })
            }
            Err(error) => Err((path, error)),
        }
    }

    fn write(&mut self, transfer: &Transfer) -> io::Result<()> {
        let name = self.names.get(transfer.lane.0 as usize).map_or("unknown port", String::as_str);
        let value = |signal: Option<SignalWrite>| match signal {
            Some(signal) => signal.value.to_string(),
            None => "-".to_owned(),
        };
        self.line.clear();
        writeln!(
            self.line,
            "{} {name} bytes {} arrival {} completion {}",
            transfer.position,
            transfer.length,
            value(transfer.arrival),
            value(transfer.completion),
        )
        .expect("a string takes all");
        self.file.write_all(self.line.as_bytes())
    }
}

impl Recorder for TraceFile {
    /// A trace that cannot be written ends with a warning: the transfers go on.
    fn record(&mut self, event: Event) {
        let Event::Accepted(transfer) = event else { return };
        if self.failed {
            return;
        }
        if let Err(error) = self.write(&transfer) {
            self.failed = true;
            tracing::warn!(path = %self.path.display(), %error, "the trace ends here");
        }
    }
}

/// Records every call to the transport below.
pub struct Traced<T, R = Trace> {
    inner: T,
    recorder: R,
}

impl<T: Transport> Traced<T> {
    /// Records up to `events_max` events of `inner`.
    pub fn new(inner: T, events_max: usize) -> (Self, Trace) {
        let trace = Trace { events: Arc::default(), events_max };
        (Self { inner, recorder: trace.clone() }, trace)
    }
}

impl<T: Transport, R: Recorder> Traced<T, R> {
    /// Reports every call to `inner` to `recorder`.
    pub fn with(inner: T, recorder: R) -> Self {
        Self { inner, recorder }
    }
}

impl<T: Transport, R: Recorder> Transport for Traced<T, R> {
    fn submit(&mut self, batch: &[Transfer]) -> Result<usize, TransportError> {
        let result = self.inner.submit(batch);
        match &result {
            Ok(accepted) => {
                let accepted = (*accepted).min(batch.len());
                for transfer in &batch[..accepted] {
                    self.recorder.record(Event::Accepted(*transfer));
                }
                if let Some(refused) = batch.get(accepted) {
                    self.recorder.record(Event::Refused(*refused));
                }
            }
            Err(error) => self.recorder.record(Event::Failed(error.clone())),
        }
        result
    }

    fn listens(&self) -> bool {
        self.inner.listens()
    }

    fn poll(&mut self) -> Result<Polled, TransportError> {
        let result = self.inner.poll();
        match &result {
            Ok(polled) if polled.completed > 0 => {
                self.recorder.record(Event::Completed(polled.completed));
            }
            Ok(_) => {}
            Err(error) => self.recorder.record(Event::Failed(error.clone())),
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes everything.
    struct Sink;

    impl Transport for Sink {
        fn submit(&mut self, batch: &[Transfer]) -> Result<usize, TransportError> {
            Ok(batch.len())
        }

        fn poll(&mut self) -> Result<Polled, TransportError> {
            Ok(Polled::default())
        }
    }

    /// If this fails, whoever reads a trace reads something else than what was submitted.
    #[test]
    fn a_trace_file_has_a_line_for_each_transfer_and_keeps_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("trace");
        for position in [7, 8] {
            let file = TraceFile::append(&prefix, Rank(3), vec!["port a".into(), "port b".into()]);
            let mut traced = Traced::with(Sink, file.unwrap());
            let transfer = Transfer {
                length: 16,
                arrival: Some(SignalWrite { address: 64, value: 5 }),
                ..Transfer::empty(1, position)
            };
            traced.submit(&[transfer]).unwrap();
        }
        let text = std::fs::read_to_string(folder.path().join("trace.3")).unwrap();
        let line =
            |position| format!("position {position} port b bytes 16 arrival 5 completion -\n");
        assert_eq!(text, line(7) + &line(8));
    }

    #[test]
    fn a_trace_file_that_cannot_be_opened_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("missing").join("trace");
        let (path, _) = TraceFile::append(&prefix, Rank(0), Vec::new()).err().expect("no folder");
        assert!(path.ends_with("missing/trace.0"), "{}", path.display());
    }
}
