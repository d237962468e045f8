//! Ports of a node that its processes have bound: sockets in the fabric's folder.

use super::{Outcome, PortSpace};
use crate::fabric::Directory;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, connect, listen, socket,
};
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Connections that wait to be looked at. The thread takes them at once.
const BACKLOG: i32 = 128;
/// Ports that are given to programs which ask for any, as Linux has them.
pub(super) const ANY_PORT: std::ops::Range<u16> = 32768..60999;
/// Who holds it may take ports.
const LOCK: &str = "cm-lock";

/// A port that is bound: nobody else on the node has it.
pub(super) struct Claim {
    /// Where connections come in.
    pub socket: Arc<OwnedFd>,
    path: PathBuf,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// A port of a node: of one of its adapters, or of all.
#[derive(Debug, Clone, Copy)]
pub(super) struct PortName {
    pub node: u32,
    pub space: PortSpace,
    pub port: u16,
    pub adapter: Option<u32>,
}

impl PortName {
    fn prefix(self) -> String {
        format!("cm-{}-{:x}-{}-", self.node, self.space as u16, self.port)
    }

    fn text(self) -> String {
        let adapter = self.adapter.map_or("any".into(), |adapter| adapter.to_string());
        self.prefix() + &adapter
    }

    /// Takes the port, unless somebody has it. A port of all adapters is not that of one.
    pub fn claim(self, directory: &Directory) -> Outcome<Claim> {
        let lock = directory.file_or_new(LOCK).map_err(errno)?;
        let _lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
        let (prefix, any) = (self.prefix(), Self { adapter: None, ..self }.text());
        for name in directory.names() {
            let clashes = name.starts_with(&prefix)
                && (self.adapter.is_none() || name == any || name == self.text());
            if !clashes {
                continue;
            }
            let path = directory.at(&name);
            match open(&path) {
                // Nobody listens: its process was killed.
                Err(Errno::ECONNREFUSED) => drop(fs::remove_file(&path)),
                Err(Errno::ENOENT) => {}
                _ => return Err(Errno::EADDRINUSE),
            }
        }
        let path = directory.at(&self.text());
        let socket = new_socket()?;
        bind(socket.as_raw_fd(), &UnixAddr::new(&path)?)?;
        listen(&socket, Backlog::new(BACKLOG)?)?;
        Ok(Claim { socket: Arc::new(socket), path })
    }

    /// Connects to the port, be it bound by one adapter or by all.
    pub fn connect(self, directory: &Directory) -> Outcome<OwnedFd> {
        let of_one = open(&directory.at(&self.text()));
        match of_one {
            Err(Errno::ENOENT | Errno::ECONNREFUSED) => {
                open(&directory.at(&Self { adapter: None, ..self }.text()))
            }
            found => found,
        }
    }
}

fn errno(error: std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

fn new_socket() -> Outcome<OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
}

fn open(path: &Path) -> Outcome<OwnedFd> {
    let socket = new_socket()?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(socket)
}

/// The next connection to a port.
pub(super) fn accept(socket: &OwnedFd) -> Outcome<OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let descriptor = accept4(socket.as_raw_fd(), flags)?;
    // SAFETY: the system made it just now, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
