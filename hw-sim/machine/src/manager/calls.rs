//! What programs ask of the manager: each call is a command of the kernel's interface, with its
//! states and errors.

use super::channel::{EventKind, EventParameters};
use super::claim::{ANY_PORT, PortName};
use super::frame::{Frame, Kind, PRIVATE_MAX};
use super::identifier::{Identifier, PortSpace, State};
use super::{Due, Manager, Outcome, Parameters, QUEUE_KEY, Tables};
use crate::adapter::Endpoint;
use nix::errno::Errno;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Requests that may wait at a port at most.
const BACKLOG_MAX: u32 = 1024;
/// Nobody listens there (a reason of the specification for REJ, a status for SIDR).
const NO_SERVICE: [u32; 2] = [8, 1];
/// The program says no.
const REFUSED: [u32; 2] = [28, 2];
/// An option of the vendor is not supported: the other reason that a program may give.
const VENDOR_OPTION: u32 = 35;
/// The one who asked no longer waits.
const TIMED_OUT: u32 = 4;
/// How long a request waits for its answer. A kernel of the other side asks for patience (MRA) of
/// 4.096 µs times two to the 24th, beside the 4.3 s that an answer may take.
const ANSWER_TIME: Duration = Duration::from_secs(73);
/// How long a disconnection waits for its answer: 16 times 4.3 s.
const FAREWELL_TIME: Duration = Duration::from_secs(69);
/// How long a connection that is over may still have packets on the wire.
pub(super) const TIME_WAIT: Duration = Duration::from_secs(1);
/// When to look again at a port whose queue is full.
const AGAIN: Duration = Duration::from_millis(5);
/// How late a server may begin to listen.
const LATE: Duration = Duration::from_millis(250);
/// Ports that are tried where the program asks for any.
const TRIES: u32 = 64;

/// What [`Manager::resolve_address`] is asked for.
#[derive(Debug, Clone, Copy)]
pub struct AddressRequest {
    /// Our own address, if the program names one.
    pub source: Option<SocketAddr>,
    /// The peer's.
    pub destination: SocketAddr,
    /// How long to look for it.
    pub time: Duration,
}

impl Manager {
    /// Makes an identifier, which its program knows by `tag`. Gives its number.
    pub fn create(&self, channel: u64, tag: u64, space: u16) -> Outcome<u32> {
        let space = PortSpace::from_number(space).ok_or(Errno::EINVAL)?;
        let mut tables = self.tables();
        if !tables.channels.contains_key(&channel) {
            return Err(Errno::EBADF);
        }
        let number = tables.new_number()?;
        tables.identifiers.insert(number, Identifier::new(tag, channel, space));
        Ok(number)
    }

    /// Ends an identifier: its peer is told, its unread events are gone. Gives how many events the
    /// program was given.
    pub fn destroy(&self, channel: u64, number: u32) -> Outcome<u32> {
        let mut tables = self.tables();
        let identifier = tables.find(channel, number)?;
        let reported = identifier.reported;
        part(identifier);
        tables.forget(channel, number);
        drop(tables);
        self.waker.wake();
        Ok(reported)
    }

    /// Binds an address of this node, and a port of its space: 0 is any.
    pub fn bind(&self, channel: u64, number: u32, address: SocketAddr) -> Outcome {
        let mut tables = self.tables();
        let identifier = tables.find(channel, number)?;
        if identifier.state != State::Idle {
            return Err(Errno::EINVAL);
        }
        self.bind_to(identifier, address)?;
        let any = address.port() == 0;
        // Who shares a port has it when it listens.
        if any || !identifier.shares_port {
            self.claim(identifier, any)?;
        }
        tables.enter(number, State::Bound);
        drop(tables);
        self.waker.wake();
        Ok(())
    }

    /// Sets own address and adapter.
    fn bind_to(&self, identifier: &mut Identifier, address: SocketAddr) -> Outcome {
        identifier.port = match address.ip() {
            ip if ip.is_unspecified() => None,
            ip if ip.is_loopback() => return Err(Errno::ENODEV),
            ip => {
                let port = Endpoint::from_ip(ip).and_then(|endpoint| self.own_port(endpoint));
                Some(port.ok_or(Errno::EADDRNOTAVAIL)?)
            }
        };
        identifier.source = Some(address);
        Ok(())
    }

    /// Takes the port of the identifier's address, or any.
    fn claim(&self, identifier: &mut Identifier, any: bool) -> Outcome {
        let mut address = identifier.source.ok_or(Errno::EINVAL)?;
        let mut last = Errno::EADDRINUSE;
        for _ in 0..if any { TRIES } else { 1 } {
            if any {
                address.set_port(fastrand::u16(ANY_PORT));
            }
            let name = PortName {
                node: self.node,
                space: identifier.space,
                port: address.port(),
                adapter: identifier.port.map(|port| port as u32),
            };
            match name.claim(&self.directory) {
                Ok(claim) => {
                    (identifier.source, identifier.claim) = (Some(address), Some(claim));
                    return Ok(());
                }
                Err(errno) => last = errno,
            }
        }
        Err(last)
    }

    /// Listens on the bound port, or on any.
    pub fn listen(&self, channel: u64, number: u32, backlog: u32) -> Outcome {
        let mut tables = self.tables();
        let identifier = tables.find(channel, number)?;
        match identifier.state {
            State::Idle => identifier.source = Some((Ipv6Addr::UNSPECIFIED, 0).into()),
            State::Bound => {}
            _ => return Err(Errno::EINVAL),
        }
        if identifier.claim.is_none() {
            let any = identifier.source.is_none_or(|source| source.port() == 0);
            self.claim(identifier, any)?;
        }
        // As the kernel reads the number: signed, and no limit is the largest.
        identifier.backlog =
            if (1..BACKLOG_MAX).contains(&backlog) { backlog } else { BACKLOG_MAX };
        tables.enter(number, State::Listening);
        drop(tables);
        self.waker.wake();
        Ok(())
    }

    /// Finds the adapters that an address can be reached by. An event tells of it.
    pub fn resolve_address(&self, channel: u64, number: u32, asked: AddressRequest) -> Outcome {
        let mut tables = self.tables();
        let identifier = tables.find(channel, number)?;
        match (identifier.state, asked.source) {
            (State::Idle, Some(source)) => self.bind_to(identifier, source)?,
            (State::Idle | State::Bound, _) => {}
            _ => return Err(Errno::EINVAL),
        }
        let bound = identifier.port;
        identifier.destination = Some(asked.destination);
        let none = EventParameters::None;
        let Some((port, peer)) = self.way_to(asked.destination.ip(), bound) else {
            tables.enter(number, State::Idle);
            tables.raise(number, EventKind::AddressError, -(Errno::ENODEV as i32), none);
            return Ok(());
        };
        if !self.may_exist(peer) {
            tables.enter(number, State::Resolving);
            tables.at(Instant::now() + asked.time, number, Due::AddressError);
            drop(tables);
            self.waker.wake();
            return Ok(());
        }
        let own = self.ports[port].endpoint;
        let ip = |of: Endpoint| match asked.destination {
            SocketAddr::V6(to) if to.ip().to_ipv4_mapped().is_none() => {
                IpAddr::V6(Ipv6Addr::from(of.gids(self.ports[port].link_layer)[0].raw))
            }
            _ => IpAddr::V4(of.ip()),
        };
        let at_port = identifier.source.map_or(0, |source| source.port());
        let at_port = if at_port == 0 { fastrand::u16(ANY_PORT) } else { at_port };
        identifier.source = Some(SocketAddr::new(ip(own), at_port));
        if asked.destination.ip().is_unspecified() {
            identifier.destination = Some(SocketAddr::new(ip(peer), asked.destination.port()));
        }
        (identifier.port, identifier.peer) = (Some(port), Some(peer));
        tables.enter(number, State::AddressResolved);
        tables.raise(number, EventKind::AddressResolved, 0, none);
        Ok(())
    }

    /// Our port and the peer's, for an address: the peer's counterpart on this node, unless the
    /// program has chosen. None: no adapter leads there.
    fn way_to(&self, ip: IpAddr, bound: Option<usize>) -> Option<(usize, Endpoint)> {
        if ip.is_unspecified() {
            let port = bound.unwrap_or(0);
            return self.ports.get(port).map(|found| (port, found.endpoint));
        }
        let peer = Endpoint::from_ip(ip)?;
        let counterpart = (peer.adapter as usize).min(self.ports.len().checked_sub(1)?);
        Some((bound.unwrap_or(counterpart), peer))
    }

    /// Finds the route to the address. An event tells of it.
    pub fn resolve_route(&self, channel: u64, number: u32) -> Outcome {
        let mut tables = self.tables();
        if tables.find(channel, number)?.state != State::AddressResolved {
            return Err(Errno::EINVAL);
        }
        tables.enter(number, State::RouteResolved);
        tables.raise(number, EventKind::RouteResolved, 0, EventParameters::None);
        Ok(())
    }

    /// Asks the peer for a connection, or for a queue pair for datagrams.
    pub fn connect(&self, channel: u64, number: u32, own: Parameters) -> Outcome {
        let mut tables = self.tables();
        let identifier = tables.find(channel, number)?;
        if identifier.state != State::RouteResolved {
            return Err(Errno::EINVAL);
        }
        let kind = if identifier.space.has_datagrams() { Kind::Lookup } else { Kind::Request };
        check_private(&own, kind)?;
        (identifier.own, identifier.asked) = (own, Some(Instant::now()));
        tables.enter(number, State::Requested);
        self.request(&mut tables, number);
        drop(tables);
        self.waker.wake();
        Ok(())
    }

    /// Sends the request of an identifier.
    pub(super) fn request(&self, tables: &mut Tables, number: u32) {
        let Some(identifier) = tables.identifiers.get_mut(&number) else { return };
        let (Some(port), Some(peer)) = (identifier.port, identifier.peer) else { return };
        let (Some(source), Some(destination)) = (identifier.source, identifier.destination) else {
            return;
        };
        let is_datagram = identifier.space.has_datagrams();
        let name = PortName {
            node: peer.node,
            space: identifier.space,
            port: destination.port(),
            adapter: Some(peer.adapter),
        };
        let mut frame = Frame::new(if is_datagram { Kind::Lookup } else { Kind::Request });
        frame.address(self.ports[port].endpoint, source, destination);
        frame.packet_number = identifier.packet_numbers[0];
        frame.parameters = identifier.own;
        let sent = name.connect(&self.directory).and_then(|socket| {
            frame.send(&socket)?;
            Ok(socket)
        });
        match sent {
            Ok(socket) => {
                identifier.socket = Some(Arc::new(socket));
                tables.at(Instant::now() + ANSWER_TIME, number, Due::NoAnswer);
            }
            Err(Errno::EAGAIN) => tables.at(Instant::now() + AGAIN, number, Due::ConnectAgain),
            Err(_) => self.find_nobody(tables, number),
        }
    }

    /// Nobody listens there. A server may be about to: programs exist (perftest) that listen anew
    /// for each connection, and whose clients come later on hardware, where a connection
    /// takes its time.
    pub(super) fn find_nobody(&self, tables: &mut Tables, number: u32) {
        let Some(identifier) = tables.identifiers.get_mut(&number) else { return };
        identifier.socket = None;
        let waited = identifier.asked.map_or(LATE, |first| first.elapsed());
        tables.due.retain(|(_, of, ..)| *of != number);
        if waited < LATE {
            tables.at(Instant::now() + AGAIN, number, Due::ConnectAgain);
        } else {
            self.refuse(tables, number, NO_SERVICE, None);
        }
    }

    /// Tells an identifier that its request is refused.
    pub(super) fn refuse(
        &self,
        tables: &mut Tables,
        number: u32,
        reasons: [u32; 2],
        theirs: Option<Parameters>,
    ) {
        let Some(identifier) = tables.identifiers.get_mut(&number) else { return };
        let is_datagram = identifier.space.has_datagrams();
        identifier.socket = None;
        let mut parameters = theirs.unwrap_or_default();
        let (kind, event, status) = match is_datagram {
            true => (Kind::Answer, EventKind::Unreachable, reasons[1]),
            false => (Kind::Reject, EventKind::Rejected, reasons[0]),
        };
        parameters.private_length = kind.private_room() as u16;
        tables.enter(number, State::Closed);
        let parameters = match is_datagram {
            true => EventParameters::Datagram(parameters),
            false => EventParameters::Connection(parameters),
        };
        tables.raise(number, event, status as i32, parameters);
    }

    /// Grants a request; without parameters, says that we are ready for what was granted. `tag` is
    /// what the program knows the identifier by from now on.
    pub fn accept(&self, channel: u64, number: u32, tag: u64, own: Option<Parameters>) -> Outcome {
        let mut tables = self.tables();
        let identifier = tables.find(channel, number)?;
        let is_datagram = identifier.space.has_datagrams();
        let (kind, next) = match (identifier.state, own.is_some(), is_datagram) {
            (State::Asked, true, false) => (Kind::Reply, State::Granted),
            (State::Asked, true, true) => (Kind::Answer, State::Established),
            (State::Answered, false, false) => (Kind::Ready, State::Established),
            _ => return Err(Errno::EINVAL),
        };
        let mut frame = Frame::new(kind);
        if let Some(own) = own {
            check_private(&own, kind)?;
            (identifier.own, identifier.tag) = (own, tag);
            frame.parameters = own;
            if is_datagram {
                frame.parameters.queue_key = QUEUE_KEY;
            }
        }
        frame.packet_number = identifier.packet_numbers[0];
        let socket = identifier.socket.as_ref().ok_or(Errno::EINVAL)?;
        // A peer that is gone is told of by its socket.
        let _ = frame.send(socket);
        if kind == Kind::Answer {
            identifier.socket = None;
        }
        tables.enter(number, next);
        Ok(())
    }

    /// Refuses a request, or what was granted.
    pub fn reject(&self, channel: u64, number: u32, reason: u32, data: &[u8]) -> Outcome {
        let mut tables = self.tables();
        let identifier = tables.find(channel, number)?;
        let reason = match reason {
            0 => REFUSED[0],
            REFUSED_REASON | VENDOR_OPTION => reason,
            _ => return Err(Errno::EINVAL),
        };
        if !matches!(identifier.state, State::Asked | State::Answered) {
            return Err(Errno::EINVAL);
        }
        let mut own = Parameters { private_length: data.len() as u16, ..Parameters::default() };
        own.private.get_mut(..data.len()).ok_or(Errno::EINVAL)?.copy_from_slice(data);
        let is_datagram = identifier.space.has_datagrams();
        let kind = if is_datagram { Kind::Answer } else { Kind::Reject };
        check_private(&own, kind)?;
        send_refusal(identifier, [reason, REFUSED[1]], own);
        tables.enter(number, State::Closed);
        drop(tables);
        self.waker.wake();
        Ok(())
    }

    /// Ends a connection, or agrees that it has ended.
    pub fn disconnect(&self, channel: u64, number: u32) -> Outcome {
        let mut tables = self.tables();
        let identifier = tables.find(channel, number)?;
        match identifier.state {
            State::Established if identifier.space.has_datagrams() => {}
            State::Established | State::Granted => {
                tell(identifier, Kind::Disconnect);
                tables.enter(number, State::Leaving);
                tables.at(Instant::now() + FAREWELL_TIME, number, Due::NoFarewell);
            }
            State::Left => {
                tell(identifier, Kind::Farewell);
                tables.enter(number, State::Closed);
                tables.at(Instant::now() + TIME_WAIT, number, Due::TimeWaited);
            }
            State::Requested | State::Asked | State::Answered | State::Leaving | State::Closed => {}
            _ => return Err(Errno::EINVAL),
        }
        drop(tables);
        self.waker.wake();
        Ok(())
    }

    /// Several identifiers may bind one port, of which one listens.
    pub fn share_port(&self, channel: u64, number: u32, shares: bool) -> Outcome {
        self.tables().find(channel, number)?.shares_port = shares;
        Ok(())
    }

    /// How long the identifier's queue pair waits for an acknowledgement, as the verbs interface
    /// counts.
    pub fn set_timeout(&self, channel: u64, number: u32, timeout: u8) -> Outcome {
        if timeout > 31 {
            return Err(Errno::EINVAL);
        }
        self.tables().find(channel, number)?.timeout = Some(timeout);
        Ok(())
    }

    /// Is there such an identifier?
    pub fn check(&self, channel: u64, number: u32) -> Outcome {
        self.tables().find(channel, number).map(drop)
    }

    /// The program has seen a message of the peer: it was ready.
    pub fn notify_established(&self, channel: u64, number: u32) -> Outcome {
        let mut tables = self.tables();
        if tables.find(channel, number)?.state != State::Granted {
            return Err(Errno::EINVAL);
        }
        tables.enter(number, State::Established);
        tables.raise(number, EventKind::Established, 0, EventParameters::None);
        Ok(())
    }
}

/// [`REFUSED`] of a connection, as a pattern.
const REFUSED_REASON: u32 = REFUSED[0];

impl Tables {
    /// Removes an identifier with its unread events. Requests that nobody has seen are refused.
    fn forget(&mut self, channel: u64, number: u32) {
        self.identifiers.remove(&number);
        self.due.retain(|(_, of, ..)| *of != number);
        self.strangers.retain(|(_, of)| *of != number);
        let unread = self.channels.get_mut(&channel).map(|channel| channel.withdraw(number));
        let requests = unread.into_iter().flatten();
        for request in requests.filter(|event| event.kind == EventKind::ConnectRequest) {
            if let Some(mut asked) = self.identifiers.remove(&request.identifier) {
                part(&mut asked);
            }
        }
    }
}

/// Tells the peer that the identifier goes away, as far as it waits for anything.
pub(super) fn part(identifier: &mut Identifier) {
    let none = Parameters::default();
    match identifier.state {
        State::Requested if !identifier.space.has_datagrams() => {
            send_refusal(identifier, [TIMED_OUT, 0], none);
        }
        State::Asked | State::Answered | State::Granted => send_refusal(identifier, REFUSED, none),
        State::Established => tell(identifier, Kind::Disconnect),
        State::Left => tell(identifier, Kind::Farewell),
        _ => {}
    }
    identifier.socket = None;
}

/// Refuses, with the reason for a connection or for datagrams.
pub(super) fn send_refusal(identifier: &mut Identifier, reasons: [u32; 2], own: Parameters) {
    let is_datagram = identifier.space.has_datagrams();
    let mut frame = Frame::new(if is_datagram { Kind::Answer } else { Kind::Reject });
    frame.status = reasons[usize::from(is_datagram)];
    frame.parameters = own;
    if let Some(socket) = identifier.socket.take() {
        let _ = frame.send(&socket);
    }
}

/// Sends a message without content.
fn tell(identifier: &Identifier, kind: Kind) {
    if let Some(socket) = &identifier.socket {
        let _ = Frame::new(kind).send(socket);
    }
}

/// Is there room for the program's data?
fn check_private(own: &Parameters, kind: Kind) -> Outcome {
    let length = usize::from(own.private_length);
    if length <= kind.private_room().min(PRIVATE_MAX) { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Nobody listens on the port that a stranger has connected to.
pub(super) const NOBODY: [u32; 2] = NO_SERVICE;
/// More wait there than may, or the process is gone.
pub(super) const NOT_WANTED: [u32; 2] = REFUSED;
