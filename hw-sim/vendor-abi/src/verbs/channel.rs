//! Events: completion channels, and the device's asynchronous events. Each is a pair of sockets;
//! the program reads one end, as it would read the kernel's file.

use super::context::OpenDevice;
use super::pointer::{Source, Target};
use hwsim_machine::adapter::{AsyncEvent, Element, Events};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Bytes of the command that makes a completion channel.
pub(super) const COMMAND_BYTES: usize = 16;
/// Its number in the kernel's interface.
const CREATE_CHANNEL: u32 = 17;

/// `struct ib_uverbs_create_comp_channel` behind its header.
#[repr(C)]
#[derive(Clone, Copy)]
struct CreateChannel {
    command: u32,
    words: [u16; 2],
    response: u64,
}

/// The device files of open devices.
static OPEN: Mutex<Option<HashMap<i32, Weak<OpenDevice>>>> = Mutex::new(None);

/// From now on commands to this file are for this device.
pub(super) fn enter(fd: i32, device: &Arc<OpenDevice>) {
    OPEN.lock().unwrap().get_or_insert_default().insert(fd, Arc::downgrade(device));
}

/// The file will be closed.
pub(super) fn leave(fd: i32) {
    if let Some(open) = OPEN.lock().unwrap().as_mut() {
        open.remove(&fd);
    }
}

/// Carries out a command that was written to a device's file. None: it is not one of ours; false:
/// it failed, and `errno` says why.
pub(super) fn command(fd: i32, bytes: u64) -> Option<bool> {
    let device = OPEN.lock().unwrap().as_ref()?.get(&fd)?.upgrade()?;
    let request: CreateChannel = Source::<CreateChannel>::from_address(bytes).get();
    if request.command != CREATE_CHANNEL {
        super::pointer::set_errno(libc::EOPNOTSUPP);
        return Some(false);
    }
    let Some((reading, writing)) = pair() else { return Some(false) };
    let fd = std::os::fd::IntoRawFd::into_raw_fd(reading);
    let sender = Arc::new(Sender { socket: writing });
    device.channels.lock().unwrap().insert(fd, sender);
    Target::<u32>::from_address(request.response).set(fd as u32);
    Some(true)
}

/// Two ends of a channel that keeps messages apart: for reading, and for writing.
pub(super) fn pair() -> Option<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: room for two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: both were made just now and have no other owner.
    Some(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// The writing end of a channel.
#[derive(Debug)]
pub(super) struct Sender {
    pub socket: OwnedFd,
}

impl Sender {
    /// Sends one message. A reader that is gone, or has thousands unread, loses it.
    pub fn send(&self, message: &[u8]) {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the message is valid for its length; the descriptor is ours.
        unsafe {
            libc::send(self.socket.as_raw_fd(), message.as_ptr().cast(), message.len(), flags);
        }
    }
}

/// Takes out of a channel the unread events of an object that goes away: `is_its` knows them.
/// Gives how many there were.
pub(super) fn withdraw(reading: i32, sender: &Sender, is_its: impl Fn(u64) -> bool) -> u32 {
    let mut kept = Vec::new();
    let mut withdrawn = 0;
    let mut message = [0u8; 16];
    // Bounded by what a socket holds.
    for _ in 0..1 << 16 {
        // SAFETY: room for the message; the descriptor is the channel's.
        let length = unsafe {
            let room = message.as_mut_ptr().cast();
            libc::recv(reading, room, message.len(), libc::MSG_DONTWAIT)
        };
        let Ok(length @ 8..) = usize::try_from(length) else { break };
        let mut word = [0; 8];
        word.copy_from_slice(&message[..8]);
        if is_its(u64::from_ne_bytes(word)) {
            withdrawn += 1;
        } else {
            kept.push(message[..length].to_vec());
        }
    }
    for message in kept {
        sender.send(&message);
    }
    withdrawn
}

/// The events of one completion queue: they go to its channel, if it has one.
pub(super) struct QueueEvents {
    pub device: Arc<OpenDevice>,
    pub channel: Option<Arc<Sender>>,
    pub sent: AtomicU32,
}

impl Events for QueueEvents {
    fn raise(&self, event: AsyncEvent, element: Element) {
        self.device.raise(event, element);
    }

    fn completed(&self, queue: u64) {
        if let Some(channel) = &self.channel {
            self.sent.fetch_add(1, Ordering::Relaxed);
            // `struct ib_uverbs_comp_event_desc`.
            channel.send(&queue.to_ne_bytes());
        }
    }
}

impl Events for OpenDevice {
    fn raise(&self, event: AsyncEvent, element: Element) {
        let element = match element {
            Element::Queue(handle) | Element::QueuePair(handle) => handle,
            Element::ReceiveQueue(handle) => handle,
            Element::Port(port) => port.into(),
        };
        // `struct ib_uverbs_async_event_desc`.
        let mut message = [0; 16];
        message[..8].copy_from_slice(&element.to_ne_bytes());
        message[8..12].copy_from_slice(&(event as u32).to_ne_bytes());
        self.events.send(&message);
    }

    fn completed(&self, _queue: u64) {}
}
