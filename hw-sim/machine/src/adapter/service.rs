//! The service thread: simulates the process's adapters when no thread polls.

use super::address::Endpoint;
use super::deputy::Deputies;
use super::device::Device;
use super::error::{Result, VerbsError};
use super::host::Host;
use super::qp::QueuePair;
use crate::fabric::{WakeWord, ask_for_short_slices, block_signals};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::{Duration, Instant};

/// How often the thread looks whether those who polled still do. A message to a process that has
/// just stopped polling is late by this much at most.
const POLLERS_EVERY: Duration = Duration::from_millis(2);
/// How often it looks at what waits for a time: faults that hold messages back, peers that have not
/// come up yet.
const HELD_EVERY: Duration = Duration::from_micros(200);
/// How often it looks whether peers still live.
const PEERS_EVERY: Duration = Duration::from_millis(50);
/// Idle rounds before it sleeps: a wake costs both sides more than a few looks.
const IDLE_ROUNDS: u32 = 20;

/// The queue pairs that the thread looks after.
pub(super) struct Service {
    pairs: RwLock<Vec<Weak<QueuePair>>>,
    changed: AtomicBool,
    ended: AtomicBool,
    pollers_seen: Mutex<Option<Instant>>,
    wake_word: WakeWord,
    devices: Vec<Arc<Device>>,
    host: Arc<Host>,
    deputies: Deputies,
    deputies_seen: Mutex<Option<Instant>>,
}

impl Service {
    /// Starts the thread, which sleeps where other processes wake its adapters.
    pub fn start(host: &Arc<Host>, devices: Vec<Arc<Device>>) -> Result<Arc<Self>> {
        let service = Arc::new(Self {
            pairs: RwLock::default(),
            changed: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            pollers_seen: Mutex::default(),
            wake_word: host.fabric.own.adapters(),
            devices,
            host: Arc::clone(host),
            deputies: Deputies::default(),
            deputies_seen: Mutex::default(),
        });
        let thread = Arc::clone(&service);
        std::thread::Builder::new()
            .name("hwsim-adapter".into())
            .spawn(move || thread.run())
            .map_err(VerbsError::system("starting the adapters' service thread"))?;
        Ok(service)
    }

    /// Ends the thread.
    pub fn end(&self) {
        // Relaxed: the fences of the wake word order it.
        self.ended.store(true, Ordering::Relaxed);
        self.wake_word.wake();
    }

    /// Looks after a queue pair, as long as it lives.
    pub fn add(&self, pair: &Arc<QueuePair>) {
        let mut pairs = self.pairs.write().unwrap();
        pairs.retain(|pair| pair.strong_count() > 0);
        pairs.push(Arc::downgrade(pair));
        // Release pairs with the acquire of `has_changed`.
        self.changed.store(true, Ordering::Release);
        drop(pairs);
        self.wake_word.wake();
    }

    /// All queue pairs.
    pub fn pairs(&self) -> Vec<Arc<QueuePair>> {
        let pairs = self.pairs.read().unwrap();
        pairs.iter().filter_map(Weak::upgrade).filter(|pair| !pair.is_destroyed()).collect()
    }

    /// The queue pair of this adapter that processes share and that has this number, as far as this
    /// process takes part in it.
    pub fn deputy(&self, device: &Arc<Device>, number: u32) -> Option<Arc<QueuePair>> {
        let is_own = |pair: &Arc<QueuePair>| pair.is_shared_as(device, number);
        if let Some(own) = self.pairs().into_iter().find(is_own) {
            return Some(own);
        }
        let (pair, is_new) = self.deputies.find(&self.host, device, number)?;
        if is_new {
            self.add(&pair);
        }
        Some(pair)
    }

    /// Ends all deputies.
    pub fn leave(&self) {
        self.deputies.tidy(true);
    }

    /// Takes part in the queue pairs whose turn others have given to this process, and no longer in
    /// those that are gone.
    fn see_to_deputies(&self) {
        let own = &self.host.fabric.own;
        let mail = if own.has_mail() { own.take_mail() } else { Vec::new() };
        for (endpoint, number) in mail.into_iter().filter_map(Endpoint::unpack) {
            if let Some(device) = self.devices.iter().find(|device| device.endpoint == endpoint) {
                self.deputy(device, number);
            }
        }
        let mut seen = self.deputies_seen.lock().unwrap();
        if !self.deputies.is_empty() && seen.is_none_or(|seen| seen.elapsed() >= PEERS_EVERY) {
            *seen = Some(Instant::now());
            self.deputies.tidy(false);
        }
    }

    fn has_changed(&self) -> bool {
        self.changed.load(Ordering::Acquire)
    }

    /// Is it time to look after those who poll?
    fn pollers_are_due(&self, now: Instant) -> bool {
        let mut seen = self.pollers_seen.lock().unwrap();
        let due = seen.is_none_or(|seen| now - seen >= POLLERS_EVERY);
        if due {
            *seen = Some(now);
        }
        due
    }
    /// The thread.
    fn run(&self) {
        // Signals are for the program's own threads.
        block_signals();
        ask_for_short_slices();
        let mut idle = 0;
        while !self.ended.load(Ordering::Relaxed) {
            // Relaxed: a pair that is added later sets it again.
            self.changed.store(false, Ordering::Relaxed);
            self.see_to_deputies();
            let pairs = self.pairs();
            if self.round(&pairs) {
                idle = 0;
                continue;
            }
            idle += 1;
            if idle < IDLE_ROUNDS {
                std::thread::yield_now();
                continue;
            }
            let time = if pairs.iter().any(|pair| pair.is_held()) {
                HELD_EVERY
            } else if pairs.iter().any(|pair| pair.has_poller()) {
                POLLERS_EVERY
            } else if pairs.is_empty() {
                Duration::MAX
            } else {
                PEERS_EVERY
            };
            self.wake_word.sleep(time, || {
                let has_work = pairs.iter().any(|pair| pair.has_work());
                let has_mail = self.host.fabric.own.has_mail();
                self.ended.load(Ordering::Relaxed) || self.has_changed() || has_work || has_mail
            });
            // The rounds before the next sleep count again only if something came.
            idle = IDLE_ROUNDS - 2;
        }
    }

    /// Lets each queue pair go on. True if any did.
    fn round(&self, pairs: &[Arc<QueuePair>]) -> bool {
        let now = Instant::now();
        let look_at_pollers = self.pollers_are_due(now);
        let mut worked = false;
        for pair in pairs {
            if look_at_pollers {
                pair.look_at_poller();
            }
            // Who polls does the work; but a thread that polls one queue may have stopped.
            worked |= pair.progress_by_service(now);
        }
        if look_at_pollers {
            self.devices.iter().for_each(|device| device.counters.publish());
        }
        worked
    }
}
