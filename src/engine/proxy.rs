//! The software engine, pure of threads and clocks.

use super::EngineSettings;
use super::attachment::Attachment;
use crate::error::Error;
use crate::ring::Committed;
use crate::shared::{AtomicWord64, Row64, Word64, WordArray};
use std::time::Duration;

/// Names an attachment of one proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttachmentKey(u64);

/// What a step did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Descriptors taken from rings.
    pub descriptors: u64,
    /// Transfers that transports took.
    pub submitted: u64,
    /// Transfers that ended.
    pub completed: u64,
    /// Transfers that transports still work on.
    pub in_flight: u64,
    /// Transfers that wait for a transport.
    pub pending: u64,
    /// A transport waits for what peers send.
    pub listens: bool,
    /// What may come by doorbells.
    pub expects: Expects,
}

/// Which doorbells an engine expects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Expects {
    /// None before the next launch, which is announced.
    #[default]
    Nothing,
    /// Any at any time: nobody announces launches.
    Anything,
    /// Those of a launch that has not ended.
    Launch,
}

impl Progress {
    /// True if the step changed nothing.
    pub const fn is_idle(&self) -> bool {
        self.descriptors == 0 && self.submitted == 0 && self.completed == 0
    }

    /// True if more will happen without any new doorbell, and somebody waits for it. What peers
    /// send is for kernels: without a launch it can lie.
    pub fn is_waiting(&self) -> bool {
        let awaits_peers = self.listens && self.expects != Expects::Nothing;
        self.in_flight > 0 || self.pending > 0 || awaits_peers
    }

    fn add(&mut self, other: &Self) {
        self.descriptors += other.descriptors;
        self.submitted += other.submitted;
        self.completed += other.completed;
        self.in_flight += other.in_flight;
        self.pending += other.pending;
        self.listens |= other.listens;
        self.expects = self.expects.max(other.expects);
    }
}

/// An attachment that has left its proxy.
pub struct Detached<S = WordArray, T = AtomicWord64> {
    /// Which one.
    pub key: AttachmentKey,
    /// The attachment. Dropping it drops its transport.
    pub attachment: Box<Attachment<S, T>>,
    /// What was left undone when its time was up; `None` if it drained.
    pub unfinished: Option<String>,
}

struct Entry<S, T> {
    key: AttachmentKey,
    attachment: Box<Attachment<S, T>>,
    /// Set while it is being detached: when to stop waiting for its ring to drain.
    leave_at: Option<Duration>,
}

/// Serves attachments. Each step gives each of them one bounded batch, so none can starve another.
pub struct Proxy<S = WordArray, T = AtomicWord64> {
    entries: Vec<Entry<S, T>>,
    inbox: Box<[Committed]>,
    next_key: u64,
    /// Entries with `leave_at`, so that the steady state looks for none.
    leaving: usize,
}

impl<S: Row64, T: Word64> Proxy<S, T> {
    /// A proxy without attachments.
    pub fn new(settings: &EngineSettings) -> Self {
        Self {
            entries: Vec::new(),
            inbox: vec![Committed::default(); settings.batch_max].into(),
            next_key: 0,
            leaving: 0,
        }
    }

    /// Begins to serve an attachment.
    pub fn attach(&mut self, attachment: Box<Attachment<S, T>>) -> AttachmentKey {
        let key = AttachmentKey(self.next_key);
        self.next_key += 1;
        self.entries.push(Entry { key, attachment, leave_at: None });
        key
    }

    /// Lets an attachment go once its ring is drained and its transfers have ended, or at
    /// `deadline`, whichever comes first. False if there is no such attachment.
    pub fn begin_detach(&mut self, key: AttachmentKey, deadline: Duration) -> bool {
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.key == key) else {
            return false;
        };
        if entry.leave_at.replace(deadline).is_none() {
            self.leaving += 1;
        }
        true
    }

    /// Takes out one attachment that is ready to leave.
    pub fn take_detached(&mut self, now: Duration) -> Option<Detached<S, T>> {
        if self.leaving == 0 {
            return None;
        }
        let (index, unfinished) = self.entries.iter().enumerate().find_map(|(index, entry)| {
            let deadline = entry.leave_at?;
            let unfinished = entry.attachment.unfinished();
            (unfinished.is_none() || now >= deadline).then_some((index, unfinished))
        })?;
        self.leaving -= 1;
        let Entry { key, attachment, .. } = self.entries.remove(index);
        Some(Detached { key, attachment, unfinished })
    }

    /// One round over all attachments. `now` is the time since any fixed moment. Does not block,
    /// allocate or log unless something fails or the control plane asked for something.
    pub fn step(&mut self, now: Duration) -> Progress {
        let mut progress = Progress::default();
        for entry in &mut self.entries {
            progress.add(&entry.attachment.serve(now, &mut self.inbox));
        }
        progress
    }

    /// Number of attachments.
    pub fn attachment_count(&self) -> usize {
        self.entries.len()
    }

    /// Ends service to all, with `error` (R12). Their transports are not called again.
    pub fn fail_all(&mut self, error: &Error) {
        for entry in &mut self.entries {
            entry.attachment.poison(error.clone());
        }
    }
}
