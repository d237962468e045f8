//! Deputies: queue pairs that play the receiving end of what another process has made
//! ([`super::sharing`]). A process has one when it gets the turn, or when a program opens the queue
//! pair by its number, and keeps it as long as the queue pair is there. It becomes the owner where
//! that one ends or it changes the queue pair itself ([`super::holding`]).

use super::completion::CompletionQueue;
use super::device::{AsyncEvent, Device};
use super::host::Host;
use super::link::Link;
use super::qp::{Capacity, Place, QueuePair, QueuePairRequest};
use super::receive::XrcDomain;
use super::responder::Responded;
use super::sharing::Nobody;
use super::transport::Transport;
use super::turns::Turns;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

impl QueuePair {
    /// Plays the receiving end of a queue pair of this adapter that another process has made, if it
    /// is there and takes turns.
    fn deputy(host: &Arc<Host>, device: &Arc<Device>, number: u32) -> Option<Arc<Self>> {
        let fabric = &host.fabric;
        let (link, owner) = Link::open(fabric, (device.endpoint, number))?;
        let name = link.domain().filter(|name| name.endpoint == device.endpoint)?;
        if owner == fabric.own_id || !link.lives_on(fabric) {
            return None;
        }
        let nothing = CompletionQueue::new(1, 0, Arc::new(Nobody));
        let none = 0;
        let request = QueuePairRequest {
            transport: Transport::XrcReceive,
            domain: 0,
            send_queue: Arc::clone(&nothing),
            receive_completions: nothing,
            shared: None,
            xrc: Some(host.domains.find(name)),
            capacity: Capacity {
                send_requests: none,
                receive_requests: none,
                send_pieces: none,
                receive_pieces: none,
                inline: none,
            },
            signal_all: false,
            events: Arc::new(Nobody),
            handle: 0,
        };
        // Faults count the queue pairs that programs make.
        let (ordinal, turns) = (u32::MAX, Some(Turns::Guest));
        Some(Self::build(host, device, request, Place { number, link, ordinal, turns }))
    }

    /// Does it receive for this domain?
    pub(super) fn receives_for(&self, domain: &Arc<XrcDomain>) -> bool {
        self.connection.xrc.as_ref().is_some_and(|own| Arc::ptr_eq(own, domain))
    }

    /// Leaves it to the owner to end the queue pair.
    pub(super) fn fail_as_deputy(&self, event: Option<AsyncEvent>) {
        let mut receive = self.receive.lock().unwrap();
        let failure = Some(event.unwrap_or(AsyncEvent::QueuePairFatal));
        let mut outcome = Responded { failure, ..Responded::default() };
        self.connection.report_to_owner(&mut receive, &mut outcome);
    }

    /// Is what it plays still there?
    fn is_over(&self) -> bool {
        let link = self.connection.link.read().unwrap();
        !link.lives_on(&self.connection.host.fabric)
    }

    /// Is it this one, and do processes share it?
    pub(super) fn is_shared_as(&self, device: &Device, number: u32) -> bool {
        self.number() == number
            && self.connection.turns.is_some()
            && self.connection.device.endpoint == device.endpoint
    }

    /// Ends a deputy.
    fn retire(&self) {
        self.close(u32::MAX);
        let mut receive = self.receive.lock().unwrap();
        self.connection.device.counters.collect(&mut receive.tally);
        self.connection.flush_begun(&mut receive);
        let link = self.connection.link.read().unwrap().clone();
        self.connection.give_back_turn(&mut receive, &link);
        // Relaxed: under the lock of the receive side, without which nothing is done.
        self.destroyed.store(true, Ordering::Relaxed);
        if let Some(xrc) = &self.connection.xrc {
            xrc.deputies.remove(self);
        }
    }
}

/// The deputies of a process.
#[derive(Default)]
pub(super) struct Deputies(Mutex<Vec<Arc<QueuePair>>>);

impl Deputies {
    /// The deputy of a queue pair, made if need be; true: it was.
    pub fn find(
        &self,
        host: &Arc<Host>,
        device: &Arc<Device>,
        number: u32,
    ) -> Option<(Arc<QueuePair>, bool)> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |pair: &&Arc<QueuePair>| {
            pair.number() == number && pair.connection.device.endpoint == device.endpoint
        };
        // A queue pair that was reset has a new file.
        if let Some(known) = all.iter().find(is_same).filter(|pair| !pair.is_over()) {
            return Some((Arc::clone(known), false));
        }
        let made = QueuePair::deputy(host, device, number)?;
        all.push(Arc::clone(&made));
        Some((made, true))
    }

    /// Ends those whose queue pairs are gone; all, where the process leaves.
    pub fn tidy(&self, leaves: bool) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|pair| {
            let ends = leaves || pair.is_over();
            if ends {
                pair.retire();
            }
            !ends
        });
    }

    /// Is there any?
    pub fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}
