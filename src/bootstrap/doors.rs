//! Listeners of the I/O thread, and the halls behind them: who is let in, how far, and who must go.
//!
//! A connection that was accepted is first a *stranger*. Once it has shown that it holds the secret
//! it is *proven*, and may send little. It belongs to the job when its task admits it
//! ([`Net::admit`]): a rank joined, or took its place in the tree. Until then it has a deadline, and
//! a place that others compete for.

use super::complaints::Complaints;
use super::connection::{Connection, Identity};
use super::net::{ConnectionId, Net, Slot, TaskId, canonical, fresh, tune};
use super::waiting::Waiting;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Token};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Strangers in one hall, and in all halls of the process.
pub(super) const STRANGERS_MAX: usize = 1024;
const STRANGERS_OF_PROCESS_MAX: usize = 4096;
/// Connections in one hall that hold the secret and do not belong to the job yet: ranks on their
/// way, unless one of them goes wrong.
const PROVEN_MAX: usize = 4096;
/// Connections accepted in a row before others get their turn.
const ACCEPTS_MAX: usize = 256;
/// When to try again after the system had no descriptor for a new connection.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A listener of a task.
pub(super) struct Door {
    pub listener: TcpListener,
    pub owner: TaskId,
    pub own: Identity,
}

/// Behind the doors of one task.
#[derive(Default)]
pub(super) struct Hall {
    strangers: Waiting,
    proven: Waiting,
    complaints: Complaints,
}

impl Hall {
    /// When the complaints that were left out are to be summed up.
    pub fn deadline(&self) -> Option<Instant> {
        self.complaints.deadline()
    }
}

impl Net {
    /// The connection belongs to the job now: it has no deadline, and may send messages of up to
    /// `message_bytes_max` bytes.
    pub fn admit(&mut self, connection: ConnectionId, message_bytes_max: usize) {
        let Some(slot) = self.slots.get_mut(&connection) else { return };
        slot.connection.admit(message_bytes_max);
        let hall = slot.waits_for.take();
        self.timers.set(connection, None);
        self.leave_hall(connection, hall);
    }

    /// Logs what is wrong at a task's door, or counts it if something was logged a moment ago.
    /// `say` gets the number of complaints that were left out since the last.
    pub fn complain(&mut self, owner: TaskId, say: impl FnOnce(u64)) {
        let Some(hall) = self.halls.get_mut(&owner) else { return say(0) };
        if let Some(left_out) = hall.complaints.may_say(self.now) {
            say(left_out);
        }
    }

    pub(super) fn complain_of(&mut self, owner: TaskId, address: SocketAddr, cause: &str) {
        self.complain(owner, |left_out| {
            tracing::warn!(%address, cause, left_out, "refused a connection to the bootstrap port");
        });
    }

    pub(super) fn sum_complaints_up(&mut self) {
        for hall in self.halls.values_mut() {
            if let Some(left_out) = hall.complaints.overdue(self.now) {
                tracing::warn!(left_out, "refused more connections to the bootstrap port");
            }
        }
    }

    /// Stops listening for a task.
    pub fn close_doors(&mut self, owner: TaskId) {
        self.doors.retain(|_, door| door.owner != owner);
        // Whoever still stands there has nobody to talk to.
        let strangers = self.halls.get(&owner).map(|hall| hall.strangers.all());
        strangers.into_iter().flatten().for_each(|token| drop(self.forget(token)));
    }

    pub(super) fn close_hall(&mut self, owner: TaskId) {
        let left_out = self.halls.remove(&owner).and_then(|hall| hall.complaints.end());
        if let Some(left_out) = left_out {
            tracing::warn!(left_out, "refused more connections to the bootstrap port");
        }
    }

    pub(super) fn leave_hall(&mut self, token: Token, hall: Option<TaskId>) {
        if let Some(hall) = hall.and_then(|owner| self.halls.get_mut(&owner)) {
            hall.strangers.leave(token);
            hall.proven.leave(token);
        }
    }

    /// A connection was moved: perhaps it is no stranger any more.
    pub(super) fn note_proven(&mut self, token: Token) {
        let Some(slot) = self.slots.get(&token).filter(|slot| slot.connection.is_proven()) else {
            return;
        };
        let address = slot.connection.address.ip();
        let Some(hall) = slot.waits_for.and_then(|owner| self.halls.get_mut(&owner)) else {
            return;
        };
        hall.strangers.leave(token);
        hall.proven.enter(token, address);
        let first = hall.proven.first_to_go().filter(|_| hall.proven.count() > PROVEN_MAX);
        if let Some(first) = first {
            self.lose(first, "too many connections wait to join the job".into());
        }
    }

    /// Takes in everybody who stands before a door.
    pub(super) fn accept(&mut self, door: Token) {
        for _ in 0..ACCEPTS_MAX {
            let Some(Door { listener, owner, own }) = self.doors.get_mut(&door) else {
                return;
            };
            let (owner, own) = (*owner, *own);
            match listener.accept() {
                Ok((socket, address)) => self.take_in(owner, own, socket, canonical(address)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    // The one that matters: no descriptor is left. A stranger gives up his.
                    self.complain(owner, |left_out| {
                        let advice = "is `ulimit -n` too low?";
                        tracing::warn!(%error, left_out, advice, "cannot accept a connection");
                    });
                    if self.show_out() {
                        continue;
                    }
                    // The event does not come again for those who already stand there.
                    self.timers.set(door, Some(self.now + ACCEPT_RETRY));
                    return;
                }
            }
        }
        // Others get their turn first.
        self.due.insert(door);
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
            return self.complain_of(owner, address, &cause);
        }
        let token = self.token();
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registered = self.poll.registry().register(&mut socket, token, interest);
        let own = match registered.and_then(|()| fresh(own)) {
            Ok(own) => own,
            Err(error) => return self.complain_of(owner, address, &error.to_string()),
        };
        tune(&socket);
        self.make_room(owner);
        let connection = Connection::accepted(socket, address, own, self.now);
        self.timers.set(token, connection.deadline);
        self.slots.insert(token, Slot { connection, owner: Some(owner), waits_for: Some(owner) });
        if let Some(hall) = self.halls.get_mut(&owner) {
            hall.strangers.enter(token, address.ip());
        }
        self.due.insert(token);
    }

    /// Sends strangers away where there are too many, before one more comes to `owner`.
    fn make_room(&mut self, owner: TaskId) {
        if self.halls.get(&owner).is_some_and(|hall| hall.strangers.count() >= STRANGERS_MAX) {
            self.show_out_of(owner);
        }
        // Fewer connections than that cannot hold more strangers than that.
        if self.slots.len() >= STRANGERS_OF_PROCESS_MAX {
            let strangers: usize = self.halls.values().map(|hall| hall.strangers.count()).sum();
            if strangers >= STRANGERS_OF_PROCESS_MAX {
                self.show_out();
            }
        }
    }

    /// Sends one stranger of the fullest hall away; false if there is none.
    fn show_out(&mut self) -> bool {
        let fullest = self.halls.iter().max_by_key(|(_, hall)| hall.strangers.count());
        let fullest = fullest.map(|(&owner, _)| owner);
        fullest.is_some_and(|owner| self.show_out_of(owner))
    }

    fn show_out_of(&mut self, owner: TaskId) -> bool {
        let first = self.halls.get(&owner).and_then(|hall| hall.strangers.first_to_go());
        if let Some(first) = first {
            self.lose(first, "too many connections wait for their handshake".into());
        }
        first.is_some()
    }
}
