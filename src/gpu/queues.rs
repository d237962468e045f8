//! What the queues of a context hold: how many streams run beside each other, and how many commands
//! the driver takes before a call blocks. Driver, settings and services decide, and no call tells,
//! so it is tried: kernels hold up streams, and other streams go on, or do not.
//!
//! Each stream of the trial gets two kernels. The first marks that it runs, and holds the stream;
//! the second has to wait for it, which is what makes a hardware queue stand still, and the streams
//! that share it. (Copies between pinned memories would not do: a driver makes those while the
//! caller waits. Nor would host functions: one thread may call them all.)

use super::{Kernels, OwnStream, PinnedMemory};
use crate::error::{Error, Result};
use cudarc::driver::CudaContext;
use ringdove_kernels::mark::MarkCall;
use ringdove_kernels::ptx;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Commands of a context that drivers are known to take: about a thousand.
pub(crate) const COMMANDS_USUAL: u32 = 960;
/// A stream that goes on has done so by then.
const PATIENCE: Duration = Duration::from_secs(1);
/// A thread whose call has not returned for so long is blocked.
const QUIET: Duration = Duration::from_millis(500);
/// How long a stream is held up at most.
const HOLD_MAX: Duration = Duration::from_secs(10);
/// Another thread's call that waits for the device spoils a trial.
const TRIALS: usize = 2;
/// Between two looks.
const PAUSE: Duration = Duration::from_micros(50);
/// Bytes of a word of the trial's memory.
const WORD: u64 = size_of::<u64>() as u64;

/// What the queues of a context were seen to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queues {
    /// Streams that run beside each other, as far as that was tried.
    pub streams: u32,
    /// Commands that the driver takes before a call blocks; at most [`COMMANDS_USUAL`].
    pub commands: u32,
}

/// What was found of a context.
struct Measured {
    context: Weak<CudaContext>,
    wanted: u32,
    queues: Queues,
}

static MEASURED: Mutex<Vec<Measured>> = Mutex::new(Vec::new());

impl Queues {
    /// What the queues of `context` hold, as far as `wanted` streams need. Tried once, when nothing
    /// runs on the context that does not end by itself. The library's streams count where they are
    /// in this context.
    ///
    /// # Errors
    /// [`Error::Cuda`] with the driver's answer.
    pub fn of(context: &Arc<CudaContext>, wanted: u32) -> Result<Self> {
        let mut measured = MEASURED.lock().unwrap_or_else(PoisonError::into_inner);
        measured.retain(|one| one.context.strong_count() > 0);
        let is_known = |one: &&Measured| {
            let same = |other: Arc<CudaContext>| other.cu_ctx() == context.cu_ctx();
            one.wanted >= wanted && one.context.upgrade().is_some_and(same)
        };
        if let Some(known) = measured.iter().find(is_known) {
            return Ok(known.queues);
        }
        let queues = Self::measure(context, wanted)?;
        measured.push(Measured { context: Arc::downgrade(context), wanted, queues });
        Ok(queues)
    }

    /// Tries whether `wanted` streams run beside each other. Nothing may run on `context` that does
    /// not end by itself.
    ///
    /// # Errors
    /// [`Error::Cuda`] with the driver's answer.
    fn measure(context: &Arc<CudaContext>, wanted: u32) -> Result<Self> {
        let wanted = wanted.max(2) as usize;
        let streams = (0..wanted).map(|_| OwnStream::of_users_kind(context));
        let streams = streams.collect::<Result<Vec<_>>>()?;
        let kernel = Kernels::load(context, ptx::MARK, &[ptx::MARK_ENTRY])?;
        let mut found = Self { streams: 1, commands: 1 };
        for _ in 0..TRIALS {
            let words = Place::of(streams.len()).words();
            let memory = Arc::new(PinnedMemory::zeroed(context, words * size_of::<u64>())?);
            let trial = Trial { kernel: &kernel, streams: &streams, memory: &memory };
            let seen = trial.run()?;
            found.streams = found.streams.max(seen.streams);
            found.commands = found.commands.max(seen.commands);
            if found.streams >= wanted as u32 && found.commands == COMMANDS_USUAL {
                break;
            }
        }
        Ok(found)
    }
}

/// Where the words of a trial are: a mark of each stream first.
#[derive(Clone, Copy)]
struct Place {
    /// Opens for the kernel that holds the first stream.
    first: usize,
    /// Opens for those that hold the others.
    gate: usize,
    /// Is open.
    open: usize,
    /// The mark of all other kernels, at which nobody looks.
    other: usize,
}

impl Place {
    fn of(streams: usize) -> Self {
        Self { first: streams, gate: streams + 1, open: streams + 2, other: streams + 3 }
    }

    fn words(self) -> usize {
        self.other + 1
    }
}

/// One trial: every stream is held up, and a command stands behind.
struct Trial<'a> {
    kernel: &'a Kernels<MarkCall>,
    streams: &'a [OwnStream],
    memory: &'a Arc<PinnedMemory>,
}

impl Trial<'_> {
    fn run(&self) -> Result<Queues> {
        let place = Place::of(self.streams.len());
        let words = self.memory.region().words64(0, place.words())?;
        // Relaxed here and below: the kernels are enqueued after this, and the driver orders the
        // two; nothing else is read because of the marks and the gate.
        words.store(place.open, 1, Ordering::Relaxed);
        let others = Gate { open: &|| words.store(place.gate, 1, Ordering::Relaxed) };
        let first = Gate { open: &|| words.store(place.first, 1, Ordering::Relaxed) };
        for (index, stream) in self.streams.iter().enumerate() {
            let gate = if index == 0 { place.first } else { place.gate };
            self.enqueue(stream, index, gate)?;
            self.enqueue(stream, place.other, place.open)?;
        }
        // From here on no call of this thread: it would wait for one that blocks.
        let have_come = || {
            let marked = |&index: &usize| words.load(index, Ordering::Relaxed) != 0;
            (0..self.streams.len()).filter(marked).count()
        };
        let began = Instant::now();
        while have_come() < self.streams.len() && began.elapsed() < PATIENCE {
            std::thread::sleep(PAUSE);
        }
        let streams = have_come().max(1) as u32;
        // What they hold is not to count.
        drop(others);
        let commands = self.fill(&first);
        drop(first);
        self.streams.iter().try_for_each(OwnStream::synchronize)?;
        Ok(Queues { streams, commands: commands? })
    }

    /// Enqueues a kernel that marks this word, and ends when that one is not 0.
    fn enqueue(&self, stream: &OwnStream, mark: usize, gate: usize) -> Result<()> {
        let address = |word: usize| self.memory.address() + word as u64 * WORD;
        let timeout_ns = HOLD_MAX.as_nanos() as u64;
        let call = MarkCall { mark: address(mark), gate: address(gate), timeout_ns };
        self.kernel.launch_on(0, stream, (1, 1), &call)
    }

    /// How many commands the driver takes behind the one that is held up. Its thread is told to
    /// stop, and free to, before this returns: where it blocks, the stream goes on.
    fn fill(&self, gate: &Gate<'_>) -> Result<u32> {
        let place = Place::of(self.streams.len());
        let (taken, stop) = (AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let filler = scope.spawn(|| {
                while taken.load(Ordering::Relaxed) < COMMANDS_USUAL
                    && !stop.load(Ordering::Relaxed)
                {
                    self.enqueue(&self.streams[0], place.other, place.open)?;
                    taken.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<(), Error>(())
            });
            let (mut seen, mut since) = (0, Instant::now());
            while !filler.is_finished() && since.elapsed() < QUIET {
                std::thread::sleep(PAUSE);
                let now = taken.load(Ordering::Relaxed);
                if now != seen {
                    (seen, since) = (now, Instant::now());
                }
            }
            let commands = taken.load(Ordering::Relaxed).max(1);
            stop.store(true, Ordering::Relaxed);
            (gate.open)();
            filler.join().expect("the thread only makes calls")?;
            Ok(commands)
        })
    }
}

/// Holds streams up until it is opened, or dropped: nothing may be held for longer than a trial.
struct Gate<'a> {
    open: &'a dyn Fn(),
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        (self.open)();
    }
}
