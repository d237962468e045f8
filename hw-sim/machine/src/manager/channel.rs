//! Channels: events that wait for their program, and a descriptor that can be read while there are
//! any.

use super::{Manager, Outcome, Parameters};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};

/// What happened; the numbers of the kernel's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum EventKind {
    /// An address was resolved.
    AddressResolved = 0,
    /// It could not be.
    AddressError = 1,
    /// A route was resolved.
    RouteResolved = 2,
    /// Somebody asks for a connection.
    ConnectRequest = 4,
    /// Our request was granted.
    ConnectResponse = 5,
    /// The peer cannot be reached.
    Unreachable = 7,
    /// Our request was refused.
    Rejected = 8,
    /// The connection stands.
    Established = 9,
    /// It has ended.
    Disconnected = 10,
    /// Its queue pair may be used again.
    TimeWaitExit = 15,
}

/// What an event says of the other side.
#[derive(Debug, Clone, Copy, Default)]
pub enum EventParameters {
    /// Nothing.
    #[default]
    None,
    /// Of a connection. The length of its data is what the message has room for.
    Connection(Parameters),
    /// Of a queue pair for datagrams.
    Datagram(Parameters),
}

/// An event.
#[derive(Debug, Clone, Copy)]
pub struct Event {
    /// What the program knows its identifier by; of a request, that which listens.
    pub tag: u64,
    /// The identifier's number; of a request, the new one's.
    pub identifier: u32,
    /// The identifier that counts it.
    pub(super) subject: u32,
    /// What happened.
    pub kind: EventKind,
    /// 0, a reason of the specification, or a number of `errno` below zero.
    pub status: i32,
    /// What it says of the other side.
    pub parameters: EventParameters,
}

/// A channel.
pub(super) struct Channel {
    pub events: VecDeque<Event>,
    /// The end that the program polls, by another descriptor.
    reader: OwnedFd,
    writer: OwnedFd,
}

impl Channel {
    fn new() -> Outcome<(Self, OwnedFd)> {
        let (reader, writer) =
            socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
        let programs = reader.try_clone().map_err(|_| Errno::EMFILE)?;
        Ok((Self { events: VecDeque::new(), reader, writer }, programs))
    }

    pub fn push(&mut self, event: Event) {
        self.events.push_back(event);
        if self.events.len() == 1 {
            // One byte, into an empty socket.
            let _ = send(self.writer.as_raw_fd(), &[1], MsgFlags::MSG_DONTWAIT);
        }
    }

    /// The byte is there as long as there are events.
    fn settle(&mut self) {
        if self.events.is_empty() {
            let _ = recv(self.reader.as_raw_fd(), &mut [0; 8], MsgFlags::MSG_DONTWAIT);
        }
    }

    fn pop(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        self.settle();
        event
    }

    /// Takes out the events that belong to an identifier.
    pub fn withdraw(&mut self, subject: u32) -> Vec<Event> {
        let (gone, kept) = self.events.drain(..).partition(|event| event.subject == subject);
        self.events = kept;
        self.settle();
        gone.into()
    }
}

impl Manager {
    /// Opens a channel: its number, and the descriptor for the program.
    pub fn open_channel(&self) -> Outcome<(u64, OwnedFd)> {
        let (channel, descriptor) = Channel::new()?;
        let mut tables = self.tables();
        tables.last_channel += 1;
        let number = tables.last_channel;
        tables.channels.insert(number, channel);
        Ok((number, descriptor))
    }

    /// Closes it: identifiers that are still on it end, as when their process does.
    pub fn close_channel(&self, channel: u64) {
        let of_channel: Vec<u32> = {
            let tables = self.tables();
            let all = tables.identifiers.iter();
            all.filter(|(_, found)| found.channel == channel).map(|(number, _)| *number).collect()
        };
        for number in of_channel {
            let _ = self.destroy(channel, number);
        }
        self.tables().channels.remove(&channel);
    }

    /// The next event, if there is one. Its program waits for the channel's descriptor else.
    pub fn next_event(&self, channel: u64) -> Outcome<Option<Event>> {
        let mut tables = self.tables();
        let found = tables.channels.get_mut(&channel).ok_or(Errno::EBADF)?;
        let event = found.pop();
        if let Some(subject) = event.and_then(|e| tables.identifiers.get_mut(&e.subject)) {
            subject.reported += 1;
        }
        Ok(event)
    }

    /// Moves an identifier and its events to another channel. Gives how many of its events the
    /// program was given before.
    pub fn migrate(&self, number: u32, from: u64, to: u64) -> Outcome<u32> {
        let mut tables = self.tables();
        if !tables.channels.contains_key(&to) {
            return Err(Errno::EBADF);
        }
        let identifier = tables.find(from, number)?;
        identifier.channel = to;
        let reported = identifier.reported;
        let moved = tables.channels.get_mut(&from).map(|channel| channel.withdraw(number));
        if let Some(channel) = tables.channels.get_mut(&to) {
            moved.into_iter().flatten().for_each(|event| channel.push(event));
        }
        Ok(reported)
    }
}
