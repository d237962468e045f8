//! The manager's thread: it waits for what peers send, and for time.

use super::{Due, Manager};
use crate::fabric::block_signals;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest wait.
const ROUND: Duration = Duration::from_secs(60);

/// Wakes the thread.
pub(super) struct Waker {
    ends: [OwnedFd; 2],
}

impl Waker {
    pub fn new() -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (one, other) = socketpair(AddressFamily::Unix, SockType::Stream, None, flags)?;
        Ok(Self { ends: [one, other] })
    }

    pub fn wake(&self) {
        // If there is no room, the thread is woken already.
        let _ = send(self.ends[0].as_raw_fd(), &[1], MsgFlags::MSG_DONTWAIT);
    }

    fn rest(&self) {
        let _ = recv(self.ends[1].as_raw_fd(), &mut [0; 64], MsgFlags::MSG_DONTWAIT);
    }
}

/// What a descriptor is, which the thread waits for.
#[derive(Debug, Clone, Copy)]
enum Source {
    /// The port that an identifier has bound.
    Claim(u32),
    /// A connection that has not yet asked for anything, to this identifier's port.
    Stranger(u32),
    /// An identifier's connection.
    Connection(u32),
}

/// Starts the thread. It lasts as long as the process, as the kernel's work would.
pub(super) fn start(manager: Arc<Manager>) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("hwsim-cm".into());
    thread.spawn(move || manager.run()).map(drop)
}

impl Manager {
    fn run(&self) {
        // Signals are for the program's own threads.
        block_signals();
        loop {
            let (sources, until) = self.what_to_wait_for();
            let wait = until.saturating_duration_since(Instant::now());
            // Rounded up, or the thread would spin for the last millisecond.
            let wait = PollTimeout::try_from(wait + Duration::from_millis(1));
            let mut polled: Vec<_> = [self.waker.ends[1].as_fd()]
                .into_iter()
                .chain(sources.iter().map(|(socket, _)| socket.as_fd()))
                .map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN))
                .collect();
            match poll(&mut polled, wait.unwrap_or(PollTimeout::MAX)) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => {
                    eprintln!("hwsim: the communication manager has stopped: poll: {errno}");
                    return;
                }
            }
            self.waker.rest();
            let ready = polled.iter().skip(1).map(|entry| entry.any().unwrap_or(false));
            let ready: Vec<bool> = ready.collect();
            for ((socket, source), _) in sources.iter().zip(ready).filter(|(_, ready)| *ready) {
                self.look_at(socket, *source);
            }
            self.look_at_time();
        }
    }

    /// All sockets, and when something is due.
    fn what_to_wait_for(&self) -> (Vec<(Arc<OwnedFd>, Source)>, Instant) {
        let tables = self.tables();
        let mut sources = Vec::new();
        for (number, identifier) in &tables.identifiers {
            let claim = identifier.claim.as_ref();
            sources.extend(claim.map(|c| (Arc::clone(&c.socket), Source::Claim(*number))));
            let socket = identifier.socket.as_ref();
            sources.extend(socket.map(|s| (Arc::clone(s), Source::Connection(*number))));
        }
        let strangers = tables.strangers.iter();
        sources.extend(strangers.map(|(s, of)| (Arc::clone(s), Source::Stranger(*of))));
        let latest = Instant::now() + ROUND;
        let until = tables.due.iter().map(|(time, ..)| *time).min().unwrap_or(latest);
        (sources, until.min(latest))
    }

    fn look_at(&self, socket: &Arc<OwnedFd>, source: Source) {
        match source {
            Source::Claim(number) => self.welcome(socket, number),
            Source::Stranger(number) => self.listen_to(socket, number),
            Source::Connection(number) => self.hear(socket, number),
        }
    }

    fn look_at_time(&self) {
        let now = Instant::now();
        let due: Vec<(u32, u32, Due)> = {
            let mut tables = self.tables();
            let (due, later) = tables.due.drain(..).partition(|(time, ..)| *time <= now);
            tables.due = later;
            let due: Vec<_> = due;
            due.into_iter().map(|(_, number, epoch, what)| (number, epoch, what)).collect()
        };
        for (number, epoch, what) in due {
            self.happen(number, epoch, what);
        }
    }
}
