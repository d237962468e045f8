//! One rank of one communicator on its channel.

use super::channel::Channel;
use super::watch::WatchThread;
use crate::engine::{Alarm, Snapshot, Watch};
use crate::error::{EngineFaultKind, Error, Result};
use crate::id::Rank;
use crate::shared::AtomicWord32;
use ringdove_kernels::bar::Status;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long an error that is likely to follow from another one waits for that other one: a peer
/// that refuses or is gone may have reported why, or its process's end may be on its way.
const CAUSE_PATIENCE: Duration = Duration::from_millis(300);
/// Between two looks while it waits.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// What a communicator gives for one of its ranks.
pub struct DeviceParts {
    /// The rank.
    pub rank: Rank,
    /// Its channel, which runs.
    pub channel: Arc<Channel>,
    /// The record of expired waits; `None` where no device waits (tests without GPUs).
    pub watch: Option<Watch>,
    /// The rank's abort word, as hosts see it.
    pub abort: AtomicWord32,
    /// Where failures go.
    pub alarm: Arc<dyn Alarm>,
}

/// What is watched of a rank.
pub(super) struct Watched {
    parts: DeviceParts,
    /// Set once nothing new can be learned: the alarm was raised.
    over: AtomicBool,
    /// When an error was seen first that waits for its cause.
    consequence: Mutex<Option<Instant>>,
}

/// One rank in the care of its channel. Dropping it ends the watch; the channel goes on.
pub struct DeviceAttachment {
    watched: Arc<Watched>,
    thread: Arc<WatchThread>,
}

impl DeviceAttachment {
    /// Watches the channel of a rank from now on.
    ///
    /// # Errors
    /// [`Error::System`] where the thread that watches does not start.
    pub fn new(parts: DeviceParts) -> Result<Self> {
        let watched = Arc::new(Watched {
            parts,
            over: AtomicBool::new(false),
            consequence: Mutex::new(None),
        });
        let thread = WatchThread::running()?;
        thread.add(watched.clone());
        Ok(Self { watched, thread })
    }

    /// The rank's channel.
    pub fn channel(&self) -> &Arc<Channel> {
        &self.watched.parts.channel
    }

    /// The counters as they are now. Each descriptor is a transfer of its own.
    pub fn statistics(&self) -> Snapshot {
        let status = self.channel().status();
        let Status { position, completed, bytes_sent, signals, occupancy_max, .. } = status;
        Snapshot {
            descriptors: position,
            transfers: completed,
            bytes: bytes_sent,
            signals,
            occupancy_max,
            ..Snapshot::default()
        }
    }

    /// Raises the alarm now for what the watch would find at its next look. Costs two loads of
    /// host memory while all is well.
    pub fn look(&self) {
        let watched = &self.watched;
        let deadline = Instant::now() + 2 * CAUSE_PATIENCE + LOOK_INTERVAL;
        while watched.is_suspicious() {
            watched.look(Instant::now());
            if watched.is_over() || Instant::now() > deadline {
                break;
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Ends the rank's use of its engine. `head` is what its kernels have rung, `None` if that is
    /// not known. Afterwards nothing is read for this rank any more; the channel still accepts
    /// what peers send, unless the communicator has failed, and is reset by its owner.
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`] if work was left after `limit`; it was dropped.
    pub fn detach(self, head: Option<u64>, limit: Duration) -> Result<()> {
        let channel = self.channel().clone();
        let ended = match head {
            Some(head) if !self.watched.parts.alarm.is_raised() => channel.wait_idle(head, limit),
            _ => {
                channel.halt();
                channel.stopped(limit)
            }
        };
        if ended.is_err() {
            channel.halt();
        }
        channel.clear_windows(1);
        ended
    }
}

impl Drop for DeviceAttachment {
    fn drop(&mut self) {
        self.thread.remove(&self.watched);
    }
}

impl Watched {
    fn is_over(&self) -> bool {
        // Relaxed: it guards nothing; a second look finds nothing new.
        self.over.load(Ordering::Relaxed)
    }

    /// Whether host memory shows that something has happened: the engine and hosts both write the
    /// abort word, the device its record.
    pub(super) fn is_suspicious(&self) -> bool {
        let waits = self.parts.watch.as_ref().and_then(Watch::poll);
        // Acquire: an engine fills its error record before. Pairs with the engine's write of the
        // abort word, R12.
        !self.is_over() && (waits.is_some() || self.parts.abort.load(Ordering::Acquire) != 0)
    }

    /// Raises the alarm for an error of the channel or an expired wait; halts the channel once it
    /// was raised by anybody.
    pub(super) fn look(&self, now: Instant) {
        if self.is_over() {
            return;
        }
        let Some(error) = self.find() else {
            if self.parts.alarm.is_raised() {
                self.end();
            }
            return;
        };
        if self.parts.alarm.is_raised() || !self.awaits_cause(&error, now) {
            self.parts.alarm.raise(error);
            self.end();
        }
    }

    fn end(&self) {
        self.parts.channel.halt();
        self.over.store(true, Ordering::Relaxed);
    }

    /// The channel's own error before the device's: kernels stop because the engine did.
    fn find(&self) -> Option<Error> {
        let waits = self.parts.watch.as_ref().and_then(Watch::poll);
        self.parts.channel.error(self.parts.rank).or(waits)
    }

    /// True while it may turn out that `error` only follows from another one.
    fn awaits_cause(&self, error: &Error, now: Instant) -> bool {
        let patience = match error {
            // A lost link may itself be the cause, so it is named before what only follows.
            Error::Engine(fault) if fault.kind == EngineFaultKind::LinkLost => CAUSE_PATIENCE,
            Error::Engine(fault) if fault.is_consequence() => 2 * CAUSE_PATIENCE,
            Error::Aborted { by: None, .. } => 2 * CAUSE_PATIENCE,
            _ => return false,
        };
        let mut since = self.consequence.lock().unwrap_or_else(PoisonError::into_inner);
        now.duration_since(*since.get_or_insert(now)) < patience
    }
}
