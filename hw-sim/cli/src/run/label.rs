//! Output of many processes in one stream: every line whole, and marked with its rank.

use crate::error::Error;
use nix::fcntl::{FcntlArg, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// Bytes of a line at most. A longer one is passed on in parts, each of them marked: output without
/// any line end must not fill the memory.
const LINE_MAX: usize = 16 << 20;
/// Bytes that are read at once: what a pipe holds.
const CHUNK: usize = 64 << 10;

/// Where the lines of one kind of stream go.
#[derive(Clone, Copy)]
pub enum Sink {
    /// Our standard output.
    Output,
    /// Our standard error.
    Errors,
}

impl Sink {
    fn write(self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Output => {
                let mut output = io::stdout().lock();
                output.write_all(bytes)?;
                output.flush()
            }
            Self::Errors => io::stderr().lock().write_all(bytes),
        }
    }
}

/// The streams of all ranks, a thread each.
pub struct Labels {
    /// One for both sinks: they are often the same file, in which parts of lines must not mix.
    turn: Arc<Mutex<()>>,
    /// Readable once no process is left that could write.
    silence: Arc<EventFd>,
    /// Counts the streams that have ended.
    ended: Arc<EventFd>,
    threads: Vec<JoinHandle<()>>,
    open: usize,
}

impl Labels {
    /// No streams yet.
    pub fn new() -> Result<Self, Error> {
        let event = || {
            let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
            let event = EventFd::from_value_and_flags(0, flags).map_err(io::Error::from);
            event.map(Arc::new).map_err(Error::system("making an event descriptor"))
        };
        let (silence, ended) = (event()?, event()?);
        Ok(Self { turn: Arc::default(), silence, ended, threads: Vec::new(), open: 0 })
    }

    /// Passes a stream on, with `label` in front of each line.
    pub fn attach(&mut self, label: String, source: OwnedFd, sink: Sink) -> Result<(), Error> {
        let turn = Arc::clone(&self.turn);
        let (silence, ended) = (Arc::clone(&self.silence), Arc::clone(&self.ended));
        let pass_on = move || {
            let mut lines = Lines::new(label);
            // An error means that our own output is closed. The pipe is closed in turn, and the
            // rank learns of it as it would without us in between.
            let _ = pump(source, &silence, |bytes| {
                let text = lines.take(bytes);
                let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
                if text.is_empty() { Ok(()) } else { sink.write(&text) }
            });
            // The counter would have to reach 2^64 to fail.
            let _ = ended.write(1);
        };
        let thread = thread::Builder::new().name("hwsim-label".into()).spawn(pass_on);
        self.threads.push(thread.map_err(Error::system("starting a thread for output"))?);
        self.open += 1;
        Ok(())
    }

    /// Readable when a stream has ended; see [`Self::count_ended`].
    pub fn ended(&self) -> &EventFd {
        &self.ended
    }

    /// Takes note of streams that have ended, if any has.
    pub fn count_ended(&mut self) {
        self.open -= self.ended.read().unwrap_or(0) as usize;
    }

    /// Streams that may still bring something.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Writes a line of our own, between the ranks' lines.
    pub fn say(&self, line: &str) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody is left to be told of a closed standard error.
        let _ = Sink::Errors.write(format!("hwsim: {line}\n").as_bytes());
    }

    /// Passes on what is left in the pipes, after the last process ended. Waits for no writer, only
    /// for the readers of our own output.
    pub fn finish(&mut self) {
        let _ = self.silence.write(1);
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// Reads until the end, or until there is silence and the pipe is empty. Gives every chunk to `to`,
/// and an empty one at the end.
fn pump(
    source: OwnedFd,
    silence: &EventFd,
    mut to: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    // A process that escaped its group may write on and on: after silence, what the pipe can hold.
    let mut allowance = fcntl(&source, FcntlArg::F_GETPIPE_SZ)? as usize;
    let mut file = std::fs::File::from(source);
    while allowance > 0 {
        let [readable, silent] = wait_for(&file, silence)?;
        if !readable {
            break;
        }
        let bytes = file.read(&mut chunk)?;
        if bytes == 0 {
            break;
        }
        to(&chunk[..bytes])?;
        if silent {
            allowance = allowance.saturating_sub(bytes);
        }
    }
    to(&[])
}

/// Blocks until one of the two has something; says which.
fn wait_for(source: &impl AsFd, silence: &EventFd) -> io::Result<[bool; 2]> {
    let watched = |descriptor| PollFd::new(descriptor, PollFlags::POLLIN);
    let mut both = [watched(source.as_fd()), watched(silence.as_fd())];
    loop {
        match poll(&mut both, PollTimeout::NONE) {
            Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
            // A pipe whose last writer is gone says so by POLLHUP, which `any` includes.
            Ok(_) => return Ok(both.map(|one| one.any().unwrap_or(true))),
        }
    }
}

/// Cuts a stream into lines and marks them.
struct Lines {
    label: String,
    /// The beginning of a line whose end has not come yet.
    begun: Vec<u8>,
}

impl Lines {
    fn new(label: String) -> Self {
        Self { label, begun: Vec::new() }
    }

    /// The lines that `bytes` complete. An empty slice stands for the end of the stream, which
    /// completes what was begun: it gets a line end, for others write behind it.
    fn take(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut text = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(part);
            if self.begun.ends_with(b"\n") || self.begun.len() >= LINE_MAX {
                self.complete(&mut text);
            }
        }
        if bytes.is_empty() && !self.begun.is_empty() {
            self.complete(&mut text);
        }
        text
    }

    fn complete(&mut self, text: &mut Vec<u8>) {
        text.extend_from_slice(self.label.as_bytes());
        text.append(&mut self.begun);
        if !text.ends_with(b"\n") {
            text.push(b'\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(chunks: &[&str]) -> String {
        let mut lines = Lines::new("[3] ".into());
        let taken: Vec<_> = chunks.iter().flat_map(|chunk| lines.take(chunk.as_bytes())).collect();
        String::from_utf8(taken).unwrap()
    }

    /// A line that arrives in pieces must come out in one, or another rank's would be inside it.
    #[test]
    fn lines_are_whole_whatever_the_chunks() {
        assert_eq!(all(&["a\nb", "c", "\n\nd\n"]), "[3] a\n[3] bc\n[3] \n[3] d\n");
        assert_eq!(all(&["no", " end"]), "", "held back until it is whole");
        assert_eq!(all(&["no", " end", ""]), "[3] no end\n");
        assert_eq!(all(&[""]), "");
    }

    #[test]
    fn output_without_line_ends_does_not_pile_up() {
        let mut lines = Lines::new("[0] ".into());
        let chunk = vec![b'x'; LINE_MAX / 2];
        assert!(lines.take(&chunk).is_empty());
        assert_eq!(lines.take(&chunk).len(), 4 + LINE_MAX + 1);
        assert!(lines.begun.is_empty());
    }
}
