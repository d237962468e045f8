//! Listeners of the I/O thread, and the connections that they accept until these belong to a job.
//!
//! A connection that was accepted is first *unauthenticated*. Once it has shown that it holds the
//! secret it is *authenticated*, and may send short messages. It belongs to the job when its task
//! admits it ([`Net::admit`]): a rank joined, or took its place in the tree. Until then it is
//! *pending*: it has a deadline, and the number of pending connections is bounded.

use super::connection::{Connection, Identity};
use super::log_limit::LogLimit;
use super::net::{ConnectionId, Net, Slot, TaskId, canonical, fresh, tune};
use super::origins::ByOrigin;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Token};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Unauthenticated connections of one task, and of the process.
const UNAUTHENTICATED_MAX: usize = 1024;
const UNAUTHENTICATED_OF_PROCESS_MAX: usize = 4096;
/// Authenticated connections of one task that do not belong to its job yet.
const AUTHENTICATED_MAX: usize = 4096;
/// Connections accepted in a row before others get their turn.
const ACCEPTS_MAX: usize = 256;
/// When to try again after the system had no descriptor for a new connection.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A listener of a task.
pub(super) struct Listener {
    pub listener: TcpListener,
    pub owner: TaskId,
    pub own: Identity,
}

/// The pending connections of one task, and what is logged of those that were refused.
#[derive(Default)]
pub(super) struct Pending {
    unauthenticated: ByOrigin,
    authenticated: ByOrigin,
    log: LogLimit,
}

impl Pending {
    /// When the number of refusals that were not logged is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.log.deadline()
    }
}

impl Net {
    /// The connection belongs to the job now: it has no deadline, and may send messages of up to
    /// `message_bytes_max` bytes.
    pub fn admit(&mut self, connection: ConnectionId, message_bytes_max: usize) {
        let Some(slot) = self.slots.get_mut(&connection) else { return };
        slot.connection.admit(message_bytes_max);
        let pending = slot.pending_for.take();
        self.timers.set(connection, None);
        self.remove_pending(connection, pending);
    }

    /// Logs what a task refused, or counts it if something was logged less than a second ago. `log`
    /// gets the number of refusals that were only counted since the last line.
    pub fn log_limited(&mut self, owner: TaskId, log: impl FnOnce(u64)) {
        let Some(pending) = self.pending.get_mut(&owner) else { return log(0) };
        match pending.log.may_log(self.now) {
            Some(left_out) => log(left_out),
            None => drop(self.left_out.insert(owner)),
        }
    }

    pub(super) fn log_refusal(&mut self, owner: TaskId, address: SocketAddr, cause: &str) {
        self.log_limited(owner, |left_out| {
            tracing::warn!(%address, cause, left_out, "refused a connection to the bootstrap port");
        });
    }

    /// When the next number of refusals that were not logged is due.
    pub(super) fn log_deadline(&self) -> Option<Instant> {
        let pending = self.left_out.iter().filter_map(|owner| self.pending.get(owner));
        pending.filter_map(Pending::deadline).min()
    }

    /// Logs the numbers of refusals that are due.
    pub(super) fn log_left_out(&mut self) {
        let (pending, now) = (&mut self.pending, self.now);
        self.left_out.retain(|owner| {
            let Some(pending) = pending.get_mut(owner) else { return false };
            if let Some(left_out) = pending.log.overdue(now) {
                tracing::warn!(left_out, "refused more connections to the bootstrap port");
            }
            pending.log.deadline().is_some()
        });
    }

    /// Stops listening for a task.
    pub fn stop_listening(&mut self, owner: TaskId) {
        let registry = self.poll.registry();
        self.listeners.retain(|_, listener| {
            if listener.owner != owner {
                return true;
            }
            // A place where ranks meet keeps the socket open under another descriptor. Closing ours
            // would leave it registered, and the next to get its number could not be.
            if let Err(error) = registry.deregister(&mut listener.listener) {
                tracing::warn!(%error, "a listener stays registered");
            }
            false
        });
        // Nobody would answer them any more.
        let unauthenticated = self.pending.get(&owner).map(|pending| pending.unauthenticated.all());
        unauthenticated.into_iter().flatten().for_each(|token| drop(self.forget(token)));
    }

    pub(super) fn end_pending(&mut self, owner: TaskId) {
        let left_out = self.pending.remove(&owner).and_then(|pending| pending.log.end());
        if let Some(left_out) = left_out {
            tracing::warn!(left_out, "refused more connections to the bootstrap port");
        }
    }

    pub(super) fn remove_pending(&mut self, token: Token, pending: Option<TaskId>) {
        if let Some(pending) = pending.and_then(|owner| self.pending.get_mut(&owner)) {
            pending.unauthenticated.remove(token);
            pending.authenticated.remove(token);
        }
    }

    /// A connection took a step; perhaps it is authenticated now.
    pub(super) fn note_authenticated(&mut self, token: Token) {
        let Some(slot) = self.slots.get(&token) else { return };
        let Some(owner) = slot.pending_for.filter(|_| slot.connection.is_authenticated()) else {
            return;
        };
        let address = slot.connection.address.ip();
        let Some(pending) = self.pending.get_mut(&owner) else { return };
        pending.unauthenticated.remove(token);
        pending.authenticated.insert(token, address);
        let too_many = pending.authenticated.count() > AUTHENTICATED_MAX;
        if let Some(first) = pending.authenticated.first_to_close().filter(|_| too_many) {
            self.lose(first, "too many connections wait to join the job".into());
        }
    }

    /// Accepts what waits at a listener.
    pub(super) fn accept(&mut self, at: Token) {
        for _ in 0..ACCEPTS_MAX {
            let Some(Listener { listener, owner, own }) = self.listeners.get_mut(&at) else {
                return;
            };
            let (owner, own) = (*owner, *own);
            match listener.accept() {
                Ok((socket, address)) => self.take_in(owner, own, socket, canonical(address)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    // The one that matters: no descriptor is left. Somebody else must give one up.
                    self.log_limited(owner, |left_out| {
                        let advice = "is `ulimit -n` too low?";
                        tracing::warn!(%error, left_out, advice, "cannot accept a connection");
                    });
                    if self.close_oldest() {
                        continue;
                    }
                    // The event does not come again for those who already wait there.
                    self.timers.set(at, Some(self.now + ACCEPT_RETRY));
                    return;
                }
            }
        }
        // Others get their turn first.
        self.due.insert(at);
    }

    fn take_in(
        &mut self,
        owner: TaskId,
        own: Identity,
        mut socket: TcpStream,
        address: SocketAddr,
    ) {
        let here = socket.local_addr().map(canonical).map_err(|error| error.to_string());
        if let Err(cause) = here.and_then(|here| self.users.check(here, address)) {
            return self.log_refusal(owner, address, &cause);
        }
        let token = self.token();
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registered = self.poll.registry().register(&mut socket, token, interest);
        let own = match registered.and_then(|()| fresh(own)) {
            Ok(own) => own,
            Err(error) => return self.log_refusal(owner, address, &error.to_string()),
        };
        tune(&socket);
        self.make_room(owner);
        let connection = Connection::accepted(socket, address, own, self.now);
        self.timers.set(token, connection.deadline);
        self.slots.insert(token, Slot { connection, owner: Some(owner), pending_for: Some(owner) });
        if let Some(pending) = self.pending.get_mut(&owner) {
            pending.unauthenticated.insert(token, address.ip());
        }
        self.due.insert(token);
    }

    /// Closes unauthenticated connections where there are too many, before `owner` gets one more.
    fn make_room(&mut self, owner: TaskId) {
        let count = |pending: &Pending| pending.unauthenticated.count();
        if self.pending.get(&owner).map_or(0, count) >= UNAUTHENTICATED_MAX {
            self.close_oldest_of(owner);
        }
        // The sum is looked at only where it can be reached.
        if self.slots.len() >= UNAUTHENTICATED_OF_PROCESS_MAX
            && self.pending.values().map(count).sum::<usize>() >= UNAUTHENTICATED_OF_PROCESS_MAX
        {
            self.close_oldest();
        }
    }

    /// Closes one unauthenticated connection of the task that has most; false if there is none.
    fn close_oldest(&mut self) -> bool {
        let most = self.pending.iter().max_by_key(|(_, pending)| pending.unauthenticated.count());
        let most = most.map(|(&owner, _)| owner);
        most.is_some_and(|owner| self.close_oldest_of(owner))
    }

    fn close_oldest_of(&mut self, owner: TaskId) -> bool {
        let pending = self.pending.get(&owner);
        let first = pending.and_then(|pending| pending.unauthenticated.first_to_close());
        if let Some(first) = first {
            self.lose(first, "too many connections wait for their handshake".into());
        }
        first.is_some()
    }
}
