//! Receive queues: a queue pair's own, shared between several, or of an XRC domain.

use super::completion::CompletionQueue;
use super::device::{AsyncEvent, Element, Events};
use super::error::{Result, VerbsError};
use super::users::Users;
use super::work::ReceiveRequest;
use super::xrc::{self, DomainName, DomainRequest, Membership};
use crate::fabric::{Fabric, ProcessId};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};

/// A queue pair, as the queue that it takes receive requests from knows it.
pub(super) trait Receiver: Send + Sync {
    /// Lets a message go on that waited for a receive request.
    fn resume(&self);
}

/// A queue of receive requests.
pub struct ReceiveQueue {
    state: Mutex<Waiting>,
    /// Pieces of one request at most.
    pub pieces_max: u32,
    events: Option<(u64, Arc<dyn Events>)>,
    /// Queue pairs that take from here.
    users: Users<dyn Receiver>,
    /// Where it is of an XRC domain.
    pub(super) xrc: Option<XrcPart>,
}

#[derive(Default)]
struct Waiting {
    requests: VecDeque<ReceiveRequest>,
    capacity: usize,
    limit: u32,
}

impl ReceiveQueue {
    /// The receive queue of one queue pair.
    pub fn own(capacity: u32, pieces_max: u32) -> Arc<Self> {
        Arc::new(Self::build(capacity, pieces_max, None))
    }

    /// A shared receive queue, with what its owner knows it by.
    pub fn shared(
        capacity: u32,
        pieces_max: u32,
        handle: u64,
        events: Arc<dyn Events>,
    ) -> Arc<Self> {
        Arc::new(Self::build(capacity, pieces_max, Some((handle, events))))
    }

    /// A shared receive queue of an XRC domain.
    pub(super) fn of_xrc(
        (capacity, pieces_max): (u32, u32),
        handle: u64,
        events: Arc<dyn Events>,
        xrc: XrcPart,
    ) -> Arc<Self> {
        let (number, domain) = (xrc.number, Arc::clone(&xrc.xrc_domain));
        let mut queue = Self::build(capacity, pieces_max, Some((handle, events)));
        queue.xrc = Some(xrc);
        let queue = Arc::new(queue);
        domain.enter(number, &queue);
        queue
    }

    /// Ends it: messages of its XRC domain do not find it any more.
    pub fn end(&self) {
        if let Some(xrc) = &self.xrc {
            xrc.xrc_domain.leave(xrc.number);
        }
    }

    /// Its number, where it is of an XRC domain.
    pub fn number(&self) -> Option<u32> {
        self.xrc.as_ref().map(|xrc| xrc.number)
    }

    fn build(capacity: u32, pieces_max: u32, events: Option<(u64, Arc<dyn Events>)>) -> Self {
        let state = Waiting { capacity: capacity as usize, ..Waiting::default() };
        let (state, users) = (Mutex::new(state), Users::default());
        Self { state, pieces_max, events, users, xrc: None }
    }

    /// Is it shared between queue pairs?
    pub fn is_shared(&self) -> bool {
        self.events.is_some()
    }

    pub(super) fn add_user(&self, user: Weak<dyn Receiver>) {
        self.users.add(user);
    }

    pub(super) fn remove_user(&self, user: &(dyn Receiver + 'static)) {
        self.users.remove(user);
    }

    /// Does a queue pair take from here?
    pub fn is_used(&self) -> bool {
        !self.users.is_empty()
    }

    /// Adds a request.
    pub fn post(&self, request: ReceiveRequest) -> Result<()> {
        if request.pieces.len() > self.pieces_max as usize {
            let (seen, most) = (request.pieces.len(), self.pieces_max);
            let text = format!("a receive request of {seen} pieces: at most {most}");
            return Err(VerbsError::Invalid(text));
        }
        let mut state = self.state.lock().unwrap();
        if state.requests.len() >= state.capacity {
            let text = format!("the receive queue is full: {} requests", state.capacity);
            return Err(VerbsError::Full(text));
        }
        state.requests.push_back(request);
        Ok(())
    }

    /// Lets queue pairs that waited for a request go on.
    pub fn resume_users(&self) {
        let of_domain = self.xrc.iter().flat_map(|xrc| xrc.xrc_domain.all_receivers());
        for user in self.users.all().chain(of_domain) {
            user.resume();
        }
    }

    /// Takes the oldest request.
    pub(super) fn take(&self) -> Option<ReceiveRequest> {
        let mut state = self.state.lock().unwrap();
        let taken = state.requests.pop_front()?;
        let left = state.requests.len() as u32;
        let fires = state.limit > left;
        if fires {
            // One event for each time that the limit is set.
            state.limit = 0;
        }
        drop(state);
        if let (true, Some((handle, events))) = (fires, &self.events) {
            events.raise(AsyncEvent::ReceiveQueueLimit, Element::ReceiveQueue(*handle));
        }
        Some(taken)
    }

    /// Is a request there?
    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().unwrap().requests.is_empty()
    }

    /// Takes all requests out.
    pub(super) fn drain(&self) -> Vec<ReceiveRequest> {
        self.state.lock().unwrap().requests.drain(..).collect()
    }

    /// Changes capacity, limit, or both.
    pub fn modify(&self, capacity: Option<u32>, limit: Option<u32>) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        if let Some(capacity) = capacity {
            if (capacity as usize) < state.requests.len() {
                return Err(VerbsError::Invalid(
                    "more requests are waiting than the new capacity holds".into(),
                ));
            }
            state.capacity = capacity as usize;
        }
        if let Some(limit) = limit {
            if limit as usize > state.capacity {
                return Err(VerbsError::Invalid("the limit is above the capacity".into()));
            }
            state.limit = limit;
        }
        Ok(())
    }

    /// Capacity and limit.
    pub fn query(&self) -> (u32, u32) {
        let state = self.state.lock().unwrap();
        (state.capacity as u32, state.limit)
    }
}

impl std::fmt::Debug for ReceiveQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReceiveQueue").field("shared", &self.is_shared()).finish_non_exhaustive()
    }
}

/// What joins receiving queue pairs and shared receive queues.
#[derive(Default)]
pub struct XrcDomain {
    /// None where it is of this process alone.
    pub(super) name: Option<DomainName>,
    queues: Mutex<HashMap<u32, Weak<ReceiveQueue>>>,
    /// Queue pairs that receive for any of the queues.
    pub(super) receivers: Users<dyn Receiver>,
    /// Those of other processes, as far as this one plays them.
    pub(super) deputies: Users<dyn Receiver>,
    membership: Mutex<Option<Membership>>,
}

impl XrcDomain {
    /// The queue of this process with this number.
    pub(super) fn queue(&self, number: u32) -> Option<Arc<ReceiveQueue>> {
        self.queues.lock().unwrap().get(&number).and_then(Weak::upgrade)
    }

    /// The other process that has the queue with this number in this domain.
    pub(super) fn queue_elsewhere(&self, fabric: &Fabric, number: u32) -> Option<ProcessId> {
        let owner = xrc::owner_of(fabric, self.name.as_ref()?, number)?;
        (owner != fabric.own_id).then_some(owner)
    }

    /// Brings a queue in, under its number.
    pub(super) fn enter(&self, number: u32, queue: &Arc<ReceiveQueue>) {
        self.queues.lock().unwrap().insert(number, Arc::downgrade(queue));
    }

    /// No message finds the queue any more.
    pub(super) fn leave(&self, number: u32) {
        self.queues.lock().unwrap().remove(&number);
    }

    /// All who receive for the queues here.
    pub(super) fn all_receivers(&self) -> Vec<Arc<dyn Receiver>> {
        self.receivers.all().chain(self.deputies.all()).collect()
    }

    /// Are there queues of this process, or queue pairs of it that receive for them?
    pub fn is_used(&self) -> bool {
        !self.queues.lock().unwrap().is_empty() || !self.receivers.is_empty()
    }

    /// This process has no handle on it any more.
    pub fn close(&self) {
        *self.membership.lock().unwrap() = None;
    }
}

/// The domains of this process that files name.
#[derive(Default)]
pub(super) struct Domains(Mutex<HashMap<DomainName, Weak<XrcDomain>>>);

impl Domains {
    /// The domain of this name, made if need be; this process is no member by that.
    pub fn find(&self, name: DomainName) -> Arc<XrcDomain> {
        let mut all = self.0.lock().unwrap();
        all.retain(|_, domain| domain.strong_count() > 0);
        if let Some(known) = all.get(&name).and_then(Weak::upgrade) {
            return known;
        }
        let made = Arc::new(XrcDomain { name: Some(name), ..XrcDomain::default() });
        all.insert(name, Arc::downgrade(&made));
        made
    }

    /// Opens the domain that a file names.
    pub fn open(&self, fabric: &Arc<Fabric>, request: DomainRequest) -> Result<Arc<XrcDomain>> {
        let (name, membership) = xrc::join(fabric, request)?;
        let domain = self.find(name);
        *domain.membership.lock().unwrap() = Some(membership);
        Ok(domain)
    }
}

/// What a shared receive queue of an XRC domain has that others leave to the queue pair.
pub(super) struct XrcPart {
    pub number: u32,
    pub xrc_domain: Arc<XrcDomain>,
    /// The protection domain.
    pub domain: u64,
    pub completions: Arc<CompletionQueue>,
    fabric: Arc<Fabric>,
}

impl XrcPart {
    /// With a number that no other queue of the fabric has.
    pub fn new(
        fabric: &Arc<Fabric>,
        xrc_domain: Arc<XrcDomain>,
        domain: u64,
        completions: Arc<CompletionQueue>,
    ) -> Result<Self> {
        let number = xrc::new_number(fabric, xrc_domain.name)?;
        Ok(Self { number, xrc_domain, domain, completions, fabric: Arc::clone(fabric) })
    }
}

impl Drop for XrcPart {
    fn drop(&mut self) {
        xrc::forget_number(&self.fabric, self.number);
    }
}
