//! Counters of one attachment. The engine writes, anybody reads, nobody waits.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters, as they were at one moment. Each is exact; together they may be a step apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Descriptors taken from the ring.
    pub descriptors: u64,
    /// Transfers handed to the transport, after coalescing; those of signals alone included.
    pub transfers: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// Signals asked for. Coalescing writes several of one lane at once.
    pub signals: u64,
    /// The most ring slots that were in use at once.
    pub occupancy_max: u64,
    /// Steps that did something.
    pub steps_busy: u64,
    /// Steps that found nothing to do.
    pub steps_idle: u64,
    /// Transfers that wait for the transport now.
    pub pending: u64,
    /// Transfers that the transport works on now.
    pub in_flight: u64,
    /// Lane of the last transfer that the transport took.
    pub lane: u64,
}

impl Snapshot {
    /// What happened since `earlier`. What is no count stays as it is now.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            descriptors: self.descriptors - earlier.descriptors,
            transfers: self.transfers - earlier.transfers,
            bytes: self.bytes - earlier.bytes,
            signals: self.signals - earlier.signals,
            steps_busy: self.steps_busy - earlier.steps_busy,
            steps_idle: self.steps_idle - earlier.steps_idle,
            ..*self
        }
    }
}

/// The shared copy. Aligned so that a reader's polling does not disturb the engine's other lines
/// (128: adjacent lines are fetched in pairs).
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Statistics {
    descriptors: AtomicU64,
    transfers: AtomicU64,
    bytes: AtomicU64,
    signals: AtomicU64,
    occupancy_max: AtomicU64,
    steps_busy: AtomicU64,
    steps_idle: AtomicU64,
    pending: AtomicU64,
    in_flight: AtomicU64,
    lane: AtomicU64,
}

impl Statistics {
    /// Shows the engine's own counters. Relaxed stores: there is one writer, and nobody infers
    /// anything else from a counter.
    pub(super) fn publish(&self, counters: &Snapshot) {
        self.descriptors.store(counters.descriptors, Ordering::Relaxed);
        self.transfers.store(counters.transfers, Ordering::Relaxed);
        self.bytes.store(counters.bytes, Ordering::Relaxed);
        self.signals.store(counters.signals, Ordering::Relaxed);
        self.occupancy_max.store(counters.occupancy_max, Ordering::Relaxed);
        self.steps_busy.store(counters.steps_busy, Ordering::Relaxed);
        self.pending.store(counters.pending, Ordering::Relaxed);
        self.in_flight.store(counters.in_flight, Ordering::Relaxed);
        self.lane.store(counters.lane, Ordering::Relaxed);
        self.publish_idle(counters.steps_idle);
    }

    /// As [`publish`](Self::publish), after a step that changed nothing else.
    pub(super) fn publish_idle(&self, steps_idle: u64) {
        self.steps_idle.store(steps_idle, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Snapshot {
        Snapshot {
            descriptors: self.descriptors.load(Ordering::Relaxed),
            transfers: self.transfers.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            signals: self.signals.load(Ordering::Relaxed),
            occupancy_max: self.occupancy_max.load(Ordering::Relaxed),
            steps_busy: self.steps_busy.load(Ordering::Relaxed),
            steps_idle: self.steps_idle.load(Ordering::Relaxed),
            pending: self.pending.load(Ordering::Relaxed),
            in_flight: self.in_flight.load(Ordering::Relaxed),
            lane: self.lane.load(Ordering::Relaxed),
        }
    }
}
