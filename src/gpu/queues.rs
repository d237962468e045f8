//! What the queues of a context hold: how many streams run beside each other, and how many commands
//! the driver takes before a call blocks. Driver, settings and services decide, and no call tells,
//! so it is tried: a host function holds up one stream, and others go on, or do not.

use super::{Current, OwnStream, PinnedMemory};
use crate::error::{Error, Result};
use crate::shared::WordArray;
use cudarc::driver::{CudaContext, sys};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Commands of a context that drivers are known to take: about a thousand.
pub(crate) const COMMANDS_USUAL: u32 = 960;
/// A stream that goes on has done so by then.
const PATIENCE: Duration = Duration::from_millis(200);
/// A thread whose call has not returned for so long is blocked.
const QUIET: Duration = Duration::from_millis(500);
/// How long a stream is held up at most.
const HOLD_MAX: Duration = Duration::from_secs(5);
/// Another thread's call that waits for the device spoils a trial.
const TRIALS: usize = 2;
/// Between two looks.
const PAUSE: Duration = Duration::from_micros(50);

/// What the queues of a context were seen to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queues {
    /// Streams of a user that run beside each other, as far as that was tried.
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
    /// runs on the context that does not end by itself.
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
        let mut found = Self { streams: 1, commands: 1 };
        for _ in 0..TRIALS {
            let memory = Arc::new(PinnedMemory::zeroed(context, (wanted + 1) * size_of::<u64>())?);
            let trial = Trial { context, streams: &streams, memory: &memory };
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

/// One trial; the first stream is held up, the others write a word each.
struct Trial<'a> {
    context: &'a Arc<CudaContext>,
    streams: &'a [OwnStream],
    /// A word for each stream, and one more; the first is 1, and what the others become.
    memory: &'a Arc<PinnedMemory>,
}

impl Trial<'_> {
    fn run(&self) -> Result<Queues> {
        let words = self.memory.region().words64(0, self.streams.len())?;
        // Relaxed: the copies are enqueued after this, and the driver orders the two.
        words.store(0, 1, Ordering::Relaxed);
        let gate = Gate::hold(self.context, &self.streams[0])?;
        let enqueued = self.streams.iter().enumerate().skip(1);
        let enqueued = enqueued.map(|(index, stream)| self.copy(index, stream));
        enqueued.collect::<Result<()>>()?;
        // From here on no call of this thread: it would wait for one that blocks.
        let streams = beside(&words);
        let commands = self.fill(&gate);
        gate.open();
        self.streams.iter().try_for_each(OwnStream::synchronize)?;
        Ok(Queues { streams, commands: commands? })
    }

    /// Enqueues a copy of the first word to another one.
    fn copy(&self, index: usize, stream: &OwnStream) -> Result<()> {
        let current = Current::bind(self.context)?;
        let first = self.memory.address();
        let to = first + (index * size_of::<u64>()) as u64;
        // SAFETY: both are words of memory that outlives the trial, which waits for all streams.
        current.check("cuMemcpyAsync", unsafe {
            sys::cuMemcpyAsync(to, first, size_of::<u64>(), stream.handle())
        })
    }

    /// How many commands the driver takes behind the one that is held up. Its thread is told to
    /// stop, and free to, before this returns: where it blocks, the stream goes on.
    fn fill(&self, gate: &Gate) -> Result<u32> {
        let (taken, stop) = (AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let filler = scope.spawn(|| {
                while taken.load(Ordering::Relaxed) < COMMANDS_USUAL
                    && !stop.load(Ordering::Relaxed)
                {
                    self.copy(self.streams.len(), &self.streams[0])?;
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
            gate.open();
            filler.join().expect("the thread only makes calls")?;
            Ok(commands)
        })
    }
}

/// How many streams run beside the first one: those before the first that does not. Streams are
/// dealt to queues in turn.
fn beside(words: &WordArray) -> u32 {
    // Relaxed: nothing else is read because of the words.
    let have_come = || {
        let come =
            (1..words.count()).take_while(|&index| words.load(index, Ordering::Relaxed) != 0);
        1 + come.count()
    };
    let began = Instant::now();
    while have_come() < words.count() && began.elapsed() < PATIENCE {
        std::thread::sleep(PAUSE);
    }
    have_come() as u32
}

/// Holds up a stream until it is opened.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    /// A gate in `stream`.
    fn hold(context: &CudaContext, stream: &OwnStream) -> Result<Arc<Self>> {
        let gate = Arc::new(Self::default());
        let current = Current::bind(context)?;
        let argument = Arc::into_raw(gate.clone()).cast_mut().cast();
        // SAFETY: `pass` takes the reference over, and is called once; a driver that does not call
        // it leaks a few bytes.
        let status = unsafe { sys::cuLaunchHostFunc(stream.handle(), Some(pass), argument) };
        current.check("cuLaunchHostFunc", status)?;
        Ok(gate)
    }

    fn open(&self) {
        *self.is_open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.opened.notify_all();
    }
}

/// Waits at the gate whose reference it is given. It makes no driver call, as such functions must.
unsafe extern "C" fn pass(gate: *mut c_void) {
    // SAFETY: the reference that `Gate::hold` gave away, and nobody else takes it.
    let gate = unsafe { Arc::from_raw(gate.cast::<Gate>()) };
    let is_open = gate.is_open.lock().unwrap_or_else(PoisonError::into_inner);
    drop(gate.opened.wait_timeout_while(is_open, HOLD_MAX, |is_open| !*is_open));
}
