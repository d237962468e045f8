//! The other sides of the engine, for tests and benches: transports without hardware, an alarm
//! that remembers, and a rank whose ring a test can ring.
#![allow(dead_code, reason = "each test binary uses its part")]

#[cfg(feature = "verbs")]
pub mod adapters;
pub mod faulty;
pub mod transports;

use ringdove::engine::{Alarm, Attachment, AttachmentHandle, AttachmentParts, EngineSettings};
use ringdove::error::Error;
use ringdove::id::{LaneId, Position, Rank, RouteId};
use ringdove::ring::{Consumer, Producer, RingMemory, RingSize};
use ringdove::transport::Transport;
use ringdove_kernels::descriptor::Descriptor;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Keeps everything that was raised.
#[derive(Default)]
pub struct RecordingAlarm {
    raised: AtomicBool,
    errors: Mutex<Vec<Error>>,
}

impl RecordingAlarm {
    pub fn errors(&self) -> Vec<Error> {
        self.errors.lock().unwrap().clone()
    }

    /// The one error that was raised.
    pub fn only_error(&self) -> Error {
        let errors = self.errors();
        assert_eq!(errors.len(), 1, "raised {errors:?}");
        errors[0].clone()
    }
}

impl Alarm for RecordingAlarm {
    fn raise(&self, error: Error) {
        self.errors.lock().unwrap().push(error);
        self.raised.store(true, Ordering::Relaxed);
    }

    fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }
}

/// A ring with both its ends.
pub struct TestRing {
    pub size: RingSize,
    pub memory: RingMemory,
    pub producer: Producer,
}

impl TestRing {
    pub fn new(log2: u32) -> (Self, Consumer) {
        Self::starting_at(log2, Position(0))
    }

    /// `start` must begin an even lap, since the slots are zero.
    pub fn starting_at(log2: u32, start: Position) -> (Self, Consumer) {
        let size = RingSize::new(log2).unwrap();
        let memory = RingMemory::host(size).unwrap();
        for word in [&memory.head, &memory.tail, &memory.tail_cache] {
            word.store(start.0, Ordering::Relaxed);
        }
        let consumer =
            Consumer::starting_at(&memory.slots, memory.tail.clone(), size, start).unwrap();
        let producer = Producer::new(&memory, size).unwrap();
        (Self { size, memory, producer }, consumer)
    }
}

/// One rank in the care of nobody yet.
pub struct TestRank {
    pub ring: TestRing,
    pub alarm: Arc<RecordingAlarm>,
    pub parts: Option<AttachmentParts>,
}

impl TestRank {
    pub fn new(rank: u32, log2: u32, transport: impl Transport + 'static) -> Self {
        let (ring, consumer) = TestRing::new(log2);
        let alarm = Arc::new(RecordingAlarm::default());
        let parts = AttachmentParts {
            rank: Rank(rank),
            consumer,
            transport: Box::new(transport),
            alarm: alarm.clone(),
            watch: None,
            launches_ended: None,
        };
        Self { ring, alarm, parts: Some(parts) }
    }

    pub fn attachment(&mut self, settings: &EngineSettings) -> (Box<Attachment>, AttachmentHandle) {
        let (attachment, handle) = Attachment::new(self.parts.take().unwrap(), settings);
        (Box::new(attachment), handle)
    }

    pub fn ring(&self, descriptor: &Descriptor) -> Position {
        self.ring.producer.try_push(descriptor).unwrap()
    }
}

/// A descriptor that moves `length` bytes and raises an arrival.
pub fn put(route: u32, source_offset: u64, destination_offset: u64, length: u32) -> Descriptor {
    Descriptor {
        route,
        source_offset,
        destination_offset,
        length,
        arrival: true,
        completion: false,
    }
}

/// A descriptor that only raises an arrival.
pub fn credit(route: u32) -> Descriptor {
    put(route, 0, 0, 0)
}

pub const LANE: LaneId = LaneId(0);
pub const ROUTE: RouteId = RouteId(0);

/// Yields until `done`, and fails the test if that takes longer than any healthy machine needs.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(60), "waited in vain for {what}");
        std::thread::yield_now();
    }
}
