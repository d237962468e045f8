//! The control plane's end of an attachment: lanes, routes, statistics, the first failure.

use super::route::{LANES_MAX, Lane, Route};
use super::statistics::{Snapshot, Statistics};
use super::thread::Waker;
use crate::error::{Error, Result};
use crate::id::{LaneId, RouteId};
use crate::lived::receive;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use ringdove_kernels::descriptor::ROUTE_MAX;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// What both ends of an attachment share.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) statistics: Statistics,
    /// Commands sent so far: what the engine compares with those that it has applied.
    pub(super) commands_sent: AtomicU64,
    /// Launches whose kernels ring: those that have ended, those that run, and those to come.
    pub(super) launches_announced: AtomicU64,
    pub(super) failure: OnceLock<Error>,
    pub(super) waker: OnceLock<Waker>,
}

pub(super) enum Command {
    Lane(LaneId, Lane),
    Route(RouteId, Option<Route>),
    /// Everything sent before has been applied.
    Fence(Sender<()>),
    /// The ring is empty, and nothing waits or is in flight.
    WaitIdle(Sender<()>),
}

/// The control plane's end of an attachment. Clones reach the same one.
#[derive(Clone)]
pub struct AttachmentHandle {
    sender: Sender<Command>,
    shared: Arc<Shared>,
    known: Arc<Mutex<Known>>,
}

/// What was registered, so that mistakes are refused at the caller and not in the engine.
#[derive(Default)]
struct Known {
    lanes: BTreeSet<LaneId>,
    routes: BTreeMap<RouteId, LaneId>,
}

impl AttachmentHandle {
    /// A handle, and what the engine receives from it.
    pub(super) fn new() -> (Self, Receiver<Command>) {
        let (sender, commands) = unbounded();
        (Self { sender, shared: Arc::default(), known: Arc::default() }, commands)
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// Adds a lane. Its signals must be zero now, and only this engine may write them.
    ///
    /// # Errors
    /// [`Error::Argument`] if the lane exists or its number is too large,
    /// [`Error::EngineStopped`] if the engine is gone.
    pub fn add_lane(&self, id: LaneId, lane: Lane) -> Result<()> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if id.0 as usize >= LANES_MAX {
            return Err(Error::argument("lane", format!("less than {LANES_MAX}"), id));
        }
        if !known.lanes.insert(id) {
            return Err(Error::argument("lane", "a number that is not in use", id));
        }
        self.send(Command::Lane(id, lane))
    }

    /// Adds a route. Descriptors may name it as soon as this returns.
    ///
    /// # Errors
    /// [`Error::Argument`] if the route exists or its number is too large, its lane does not exist,
    /// or a region wraps around; [`Error::EngineStopped`] if the engine is gone.
    pub fn add_route(&self, id: RouteId, route: Route) -> Result<()> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if id.0 > ROUTE_MAX {
            return Err(Error::argument("route", format!("at most {ROUTE_MAX}"), id));
        }
        for region in [route.source, route.destination] {
            if region.base.checked_add(region.length_bytes).is_none() {
                let expected = "an end below 2^64";
                return Err(Error::argument("region of a route", expected, format!("{region:?}")));
            }
        }
        if !known.lanes.contains(&route.lane) {
            return Err(Error::argument("lane of a route", "a registered lane", route.lane));
        }
        if known.routes.contains_key(&id) {
            return Err(Error::argument("route", "a number that is not in use", id));
        }
        known.routes.insert(id, route.lane);
        self.send(Command::Route(id, Some(route)))
    }

    /// Removes a route, for memory that is about to be freed. Call
    /// [`wait_applied`](Self::wait_applied) afterwards; then no new transfer touches it. The caller
    /// knows that none is rung or in flight.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such route, [`Error::EngineStopped`] if the engine is
    /// gone.
    pub fn remove_route(&self, id: RouteId) -> Result<()> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.routes.remove(&id).is_none() {
            return Err(Error::argument("route", "a registered route", id));
        }
        self.send(Command::Route(id, None))
    }

    /// Waits until the engine has applied all that was added and removed before.
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`] after `timeout`, [`Error::EngineStopped`] if the engine is gone.
    pub fn wait_applied(&self, timeout: Duration) -> Result<()> {
        self.ask(Command::Fence, ["the engine's route table", "all changes applied"], timeout)
    }

    /// Waits until everything that was rung before has ended, credits to other ranks included. No
    /// kernel rings meanwhile.
    ///
    /// # Errors
    /// As [`wait_applied`](Self::wait_applied).
    pub fn wait_idle(&self, timeout: Duration) -> Result<()> {
        let words = ["the engine's work", "ring empty, nothing waiting or in flight"];
        self.ask(Command::WaitIdle, words, timeout)
    }

    fn ask(
        &self,
        command: impl FnOnce(Sender<()>) -> Command,
        [what, expected]: [&str; 2],
        timeout: Duration,
    ) -> Result<()> {
        let (reply, answer) = bounded(1);
        self.send(command(reply))?;
        self.wake();
        receive(&answer, timeout).map_err(|cause| match cause {
            RecvTimeoutError::Timeout => Error::HostWaitExpired {
                what: what.to_owned(),
                expected: expected.to_owned(),
                seen: "no answer from the engine's thread".to_owned(),
                waited: timeout,
            },
            RecvTimeoutError::Disconnected => engine_gone(),
        })
    }

    /// Says that launches up to number `count` are about to be enqueued, and wakes the engine's
    /// thread, which then rests no more until as many have ended.
    pub fn announce(&self, count: u64) {
        // Relaxed: the waker orders it before the thread's next look.
        self.shared.launches_announced.store(count, Ordering::Relaxed);
        if let Some(waker) = self.shared.waker.get() {
            waker.announce();
        }
    }

    /// Wakes the engine's thread if it is parked, and makes it look sharp for a while.
    pub fn wake(&self) {
        if let Some(waker) = self.shared.waker.get() {
            waker.wake();
        }
    }

    /// The counters as they are now.
    pub fn statistics(&self) -> Snapshot {
        self.shared.statistics.read()
    }

    /// The first failure of this attachment.
    pub fn failure(&self) -> Option<Error> {
        self.shared.failure.get().cloned()
    }

    fn send(&self, command: Command) -> Result<()> {
        self.sender.send(command).map_err(|_| engine_gone())?;
        // Release: after the command. Pairs with Attachment::serve.
        self.shared.commands_sent.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

fn engine_gone() -> Error {
    Error::EngineStopped {
        engine: "proxy".to_owned(),
        why: "the attachment was detached or its thread ended".to_owned(),
    }
}
