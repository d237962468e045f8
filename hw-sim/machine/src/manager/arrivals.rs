//! What peers and time bring: requests at our ports, messages of connections, their ends.

use super::calls::{NOBODY, NOT_WANTED, TIME_WAIT};
use super::channel::{Event, EventKind, EventParameters};
use super::claim;
use super::frame::{Frame, Kind};
use super::identifier::{Identifier, State};
use super::{Due, Manager, Parameters, Tables};
use nix::errno::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// Connections that have asked for nothing yet, at most.
const STRANGERS_MAX: usize = 4096;

impl Manager {
    /// Takes the connections that have come to a port.
    pub(super) fn welcome(&self, port: &Arc<OwnedFd>, number: u32) {
        let mut tables = self.tables();
        while tables.strangers.len() < STRANGERS_MAX {
            let Ok(socket) = claim::accept(port) else { return };
            tables.strangers.push((Arc::new(socket), number));
        }
        // Dropped: who connects is told so by the end of the socket.
        let _ = claim::accept(port);
    }

    /// Takes what a connection says first: a request, or nothing of use.
    pub(super) fn listen_to(&self, socket: &Arc<OwnedFd>, number: u32) {
        let mut tables = self.tables();
        let Some(index) = tables.strangers.iter().position(|(s, _)| Arc::ptr_eq(s, socket)) else {
            return;
        };
        let frame = match Frame::receive(socket) {
            Err(Errno::EAGAIN | Errno::EINTR) => return,
            Ok(Some(frame)) => Some(frame),
            Ok(None) | Err(_) => None,
        };
        tables.strangers.swap_remove(index);
        if let Some(frame) = frame {
            self.ask(&mut tables, socket, number, &frame);
        }
    }

    /// A request for an identifier that listens.
    fn ask(&self, tables: &mut Tables, socket: &Arc<OwnedFd>, number: u32, frame: &Frame) {
        let kind = frame.kind();
        let refuse = |reasons: [u32; 2]| {
            let is_datagram = kind == Some(Kind::Lookup);
            let mut no = Frame::new(if is_datagram { Kind::Answer } else { Kind::Reject });
            no.status = reasons[usize::from(is_datagram)];
            let _ = no.send(socket);
        };
        let Some(listener) = tables.identifiers.get(&number) else { return refuse(NOBODY) };
        let expected = match listener.space.has_datagrams() {
            true => Kind::Lookup,
            false => Kind::Request,
        };
        if listener.state != State::Listening || kind != Some(expected) {
            return refuse(NOBODY);
        }
        let [source, destination] = frame.source_and_destination();
        let endpoint = crate::adapter::Endpoint::from_ip(destination.ip());
        let port = endpoint.and_then(|endpoint| self.own_port(endpoint));
        let (Some(port), true) = (port, self.may_exist(frame.from())) else {
            return refuse(NOBODY);
        };
        let (tag, channel, backlog) = (listener.tag, listener.channel, listener.backlog);
        let mut asked = Identifier::new(0, channel, listener.space);
        asked.state = State::Asked;
        (asked.source, asked.destination) = (Some(destination), Some(source));
        (asked.port, asked.peer) = (Some(port), Some(frame.from()));
        asked.packet_numbers[1] = frame.packet_number;
        asked.theirs = frame.parameters;
        asked.socket = Some(Arc::clone(socket));
        let Some(events) = tables.channels.get(&channel).map(|channel| &channel.events) else {
            return refuse(NOBODY);
        };
        let waiting = events
            .iter()
            .filter(|event| event.kind == EventKind::ConnectRequest && event.subject == number);
        let is_full = waiting.count() >= backlog as usize;
        let new = if is_full { None } else { tables.new_number().ok() };
        let Some(new) = new else { return refuse(NOT_WANTED) };
        let parameters = padded(frame.parameters, expected);
        tables.identifiers.insert(new, asked);
        let event = Event {
            tag,
            identifier: new,
            subject: number,
            kind: EventKind::ConnectRequest,
            status: 0,
            parameters: match expected {
                Kind::Lookup => EventParameters::Datagram(parameters),
                _ => EventParameters::Connection(swapped(parameters)),
            },
        };
        if let Some(channel) = tables.channels.get_mut(&channel) {
            channel.push(event);
        }
    }

    /// Takes what has come over an identifier's connection.
    pub(super) fn hear(&self, socket: &Arc<OwnedFd>, number: u32) {
        let mut tables = self.tables();
        let same = |identifier: &Identifier| {
            identifier.socket.as_ref().is_some_and(|own| Arc::ptr_eq(own, socket))
        };
        while tables.identifiers.get(&number).is_some_and(same) {
            match Frame::receive(socket) {
                Ok(Some(frame)) => self.receive(&mut tables, number, &frame),
                Err(Errno::EAGAIN | Errno::EINTR) => return,
                Ok(None) | Err(_) => {
                    self.peer_is_gone(&mut tables, number);
                    if let Some(identifier) = tables.identifiers.get_mut(&number) {
                        identifier.socket = None;
                    }
                }
            }
        }
    }

    /// A message of the peer.
    fn receive(&self, tables: &mut Tables, number: u32, frame: &Frame) {
        let Some(identifier) = tables.identifiers.get_mut(&number) else { return };
        let (state, Some(kind)) = (identifier.state, frame.kind()) else { return };
        match (state, kind) {
            (State::Requested, Kind::Reply) => {
                identifier.theirs = frame.parameters;
                identifier.packet_numbers[1] = frame.packet_number;
                tables.enter(number, State::Answered);
                let parameters = swapped(padded(frame.parameters, kind));
                let parameters = EventParameters::Connection(parameters);
                tables.raise(number, EventKind::ConnectResponse, 0, parameters);
            }
            (State::Requested, Kind::Answer) if frame.status == 0 => {
                identifier.theirs = frame.parameters;
                identifier.socket = None;
                tables.enter(number, State::Established);
                let parameters = EventParameters::Datagram(padded(frame.parameters, kind));
                tables.raise(number, EventKind::Established, 0, parameters);
            }
            (State::Requested, Kind::Reject) if frame.status == NOBODY[0] => {
                self.find_nobody(tables, number);
            }
            (State::Requested, Kind::Answer) if frame.status == NOBODY[1] => {
                self.find_nobody(tables, number);
            }
            (State::Requested | State::Answered | State::Granted, Kind::Reject)
            | (State::Requested, Kind::Answer) => {
                self.refuse(tables, number, [frame.status; 2], Some(frame.parameters));
            }
            (State::Granted, Kind::Ready) => {
                tables.enter(number, State::Established);
                tables.raise(number, EventKind::Established, 0, EventParameters::None);
            }
            // The one who asked no longer waits; the program learns of it when it accepts.
            (State::Asked, Kind::Reject) => tables.enter(number, State::Closed),
            (State::Established | State::Granted, Kind::Disconnect) => {
                tables.enter(number, State::Left);
                tables.raise(number, EventKind::Disconnected, 0, EventParameters::None);
            }
            (State::Leaving, Kind::Disconnect | Kind::Farewell) => {
                if kind == Kind::Disconnect
                    && let Some(socket) = &identifier.socket
                {
                    let _ = Frame::new(Kind::Farewell).send(socket);
                }
                end(tables, number, 0);
            }
            // Late, or nonsense: as a packet that fits no connection.
            _ => {}
        }
    }

    /// The peer's process has died, or closed the connection. Its kernel would still answer.
    fn peer_is_gone(&self, tables: &mut Tables, number: u32) {
        let Some(identifier) = tables.identifiers.get(&number) else { return };
        match identifier.state {
            State::Requested | State::Answered | State::Granted => {
                self.refuse(tables, number, NOT_WANTED, None);
            }
            State::Asked => tables.enter(number, State::Closed),
            State::Established => {
                tables.enter(number, State::Left);
                tables.raise(number, EventKind::Disconnected, 0, EventParameters::None);
            }
            State::Leaving => end(tables, number, 0),
            _ => {}
        }
    }

    /// Something is due.
    pub(super) fn happen(&self, number: u32, epoch: u32, what: Due) {
        let mut tables = self.tables();
        // A number that was given again may have another identifier by now.
        if tables.identifiers.get(&number).is_none_or(|identifier| identifier.epoch != epoch) {
            return;
        }
        let timed_out = -(Errno::ETIMEDOUT as i32);
        match what {
            Due::AddressError => {
                tables.enter(number, State::Idle);
                tables.raise(number, EventKind::AddressError, timed_out, EventParameters::None);
            }
            Due::ConnectAgain => self.request(&mut tables, number),
            Due::NoAnswer => {
                if let Some(identifier) = tables.identifiers.get_mut(&number) {
                    identifier.socket = None;
                }
                tables.enter(number, State::Closed);
                tables.raise(number, EventKind::Unreachable, timed_out, EventParameters::None);
            }
            Due::NoFarewell => end(&mut tables, number, timed_out),
            Due::TimeWaited => {
                tables.raise(number, EventKind::TimeWaitExit, 0, EventParameters::None);
            }
        }
    }
}

/// The connection that we have ended is over.
fn end(tables: &mut Tables, number: u32, status: i32) {
    tables.enter(number, State::Closed);
    tables.raise(number, EventKind::Disconnected, status, EventParameters::None);
    tables.at(Instant::now() + TIME_WAIT, number, Due::TimeWaited);
}

/// Parameters as the other side sees them: what one sends, the other receives.
fn swapped(theirs: Parameters) -> Parameters {
    Parameters {
        responder_resources: theirs.initiator_depth,
        initiator_depth: theirs.responder_resources,
        ..theirs
    }
}

/// Messages have a fixed size on the wire: data is followed by zeros, and looks as long as it may
/// be.
fn padded(mut theirs: Parameters, kind: Kind) -> Parameters {
    let length = usize::from(theirs.private_length).min(theirs.private.len());
    theirs.private[length..].fill(0);
    theirs.private_length = kind.private_room() as u16;
    theirs
}
