//! Open files from process to process, through a socket in the fabric's folder.
//!
//! A memory file has no name that another process could open, and a look into `/proc` is refused
//! between processes of different user namespaces. So the process that exports memory listens on a
//! socket that its number names; who asks for a file by its number is sent a descriptor of it.
//!
//! One thread serves all who ask, and waits for none of them: a client that is silent, or was
//! stopped, delays no other.

use crate::fabric::Directory;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
    connect, getsockopt, recvmsg, sendmsg, socket, sockopt,
};
use nix::unistd::geteuid;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

/// How long either side waits for the other. Both answer at once, unless they are stopped.
const PATIENCE: Duration = Duration::from_secs(20);
/// Clients that are served at once; of more, the one that has been silent longest is dropped.
const CLIENTS_MAX: usize = 64;
/// How long the thread rests when it cannot take another connection, for want of descriptors.
const REST: Duration = Duration::from_millis(10);

/// Files that may be asked for, by number.
pub(super) type Files = Arc<Mutex<HashMap<u64, File>>>;

/// What the socket of a process is called.
fn socket_name(process: u32) -> String {
    format!("process-{process}")
}

/// Sockets of this process: its folder, and who made it (a forked child inherits the list).
static SERVED: Mutex<Vec<(Arc<Directory>, u32)>> = Mutex::new(Vec::new());

/// Removes this process's sockets when it ends in order.
extern "C" fn leave() {
    // Not waited for: the process ends, and somebody who holds the lock may have stopped.
    let Ok(served) = SERVED.try_lock() else { return };
    let own = std::process::id();
    for (directory, _) in served.iter().filter(|(_, process)| *process == own) {
        let _ = fs::remove_file(directory.at(&socket_name(own)));
    }
}

/// Gives out `files` for as long as this process lives.
pub(super) fn serve(directory: &Arc<Directory>, files: Files) -> io::Result<()> {
    static AT_EXIT: Once = Once::new();
    sweep(directory);
    let own = std::process::id();
    // Under another name first: whoever finds the socket finds it listening, and as it shall be.
    let draft = directory.at(&format!("draft-socket-{own}"));
    let _ = fs::remove_file(&draft);
    let listener = UnixListener::bind(&draft)?;
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    // In place of one of a process that had our number before us.
    fs::rename(&draft, directory.at(&socket_name(own)))?;
    SERVED.lock().unwrap_or_else(PoisonError::into_inner).push((Arc::clone(directory), own));
    AT_EXIT.call_once(|| {
        // SAFETY: the function may run at any time until the process ends.
        unsafe { libc::atexit(leave) };
    });
    let server = Server { listener, files, clients: Vec::new() };
    std::thread::Builder::new().name("hwsim-passing".into()).spawn(move || server.run()).map(drop)
}

/// Removes sockets without a listener: of processes that were killed.
fn sweep(directory: &Directory) {
    for name in directory.names() {
        let Some(process) = name.strip_prefix("process-").filter(|id| id.parse::<u32>().is_ok())
        else {
            continue;
        };
        let path = directory.at(&name);
        // One whose number is in use is mostly alive, and better left alone.
        if !Path::new("/proc").join(process).exists() && is_deserted(&path) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Is this a socket without a listener? Does not block.
fn is_deserted(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket());
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let (Ok(socket), Ok(address)) =
        (socket(AddressFamily::Unix, SockType::Stream, flags, None), UnixAddr::new(path))
    else {
        return false;
    };
    is_socket && connect(socket.as_raw_fd(), &address) == Err(Errno::ECONNREFUSED)
}

/// Who asks, and how much of the question has come.
struct Client {
    stream: UnixStream,
    deadline: Instant,
    number: [u8; 8],
    come: usize,
}

struct Server {
    listener: UnixListener,
    files: Files,
    /// The longest silent first.
    clients: Vec<Client>,
}

impl Server {
    fn run(mut self) {
        loop {
            self.wait();
            self.accept();
            let (now, files) = (Instant::now(), &self.files);
            self.clients.retain_mut(|client| client.goes_on(files) && now < client.deadline);
        }
    }

    /// Waits for somebody new, for a word of somebody known, or for the end of a patience.
    fn wait(&self) {
        let watched = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let clients = self.clients.iter().map(|client| watched(client.stream.as_fd()));
        let mut all: Vec<_> = [watched(self.listener.as_fd())].into_iter().chain(clients).collect();
        let timeout = self.clients.first().map_or(PollTimeout::NONE, |client| {
            // Rounded up, or the loop would turn without rest before the end.
            let left = client.deadline.saturating_duration_since(Instant::now());
            (left + Duration::from_millis(1)).try_into().unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut all, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => std::thread::sleep(REST),
        }
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) if is_own(&stream) && stream.set_nonblocking(true).is_ok() => {
                    if self.clients.len() >= CLIENTS_MAX {
                        self.clients.remove(0);
                    }
                    let deadline = Instant::now() + PATIENCE;
                    self.clients.push(Client { stream, deadline, number: [0; 8], come: 0 });
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return std::thread::sleep(REST),
            }
        }
    }
}

/// Does a process of this user ask? The folder's rights say so already; this holds where somebody
/// has given the folder away meanwhile.
fn is_own(stream: &UnixStream) -> bool {
    getsockopt(stream, sockopt::PeerCredentials).is_ok_and(|peer| peer.uid() == geteuid().as_raw())
}

impl Client {
    /// Does what can be done now; false when the client is done with, one way or another.
    fn goes_on(&mut self, files: &Files) -> bool {
        while self.come < self.number.len() {
            match self.stream.read(&mut self.number[self.come..]) {
                Ok(0) => return false,
                Ok(count) => self.come += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // One that breaks off harms nobody but itself.
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
        let _ = self.answer(files);
        false
    }

    /// One byte fits the socket: nothing is waited for.
    fn answer(&mut self, files: &Files) -> io::Result<()> {
        let files = files.lock().unwrap_or_else(PoisonError::into_inner);
        match files.get(&u64::from_le_bytes(self.number)) {
            Some(file) => {
                let descriptors = [file.as_raw_fd()];
                let rights = [ControlMessage::ScmRights(&descriptors)];
                let (stream, yes) = (self.stream.as_raw_fd(), [IoSlice::new(&[1])]);
                sendmsg::<()>(stream, &yes, &rights, MsgFlags::MSG_NOSIGNAL, None)?;
                Ok(())
            }
            None => self.stream.write_all(&[0]),
        }
    }
}

/// A process's file of this number; None if it has no such file.
pub(super) fn ask(directory: &Directory, process: u32, number: u64) -> io::Result<Option<File>> {
    let mut stream = UnixStream::connect(directory.at(&socket_name(process)))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&number.to_le_bytes())?;
    let mut found = [0];
    let mut room = nix::cmsg_space!([RawFd; 1]);
    let mut parts = [IoSliceMut::new(&mut found)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(stream.as_raw_fd(), &mut parts, Some(&mut room), flags)?;
    if message.bytes == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = control
            && let Some(&descriptor) = descriptors.first()
        {
            // SAFETY: the kernel opened it for us just now; nobody else owns it. The room holds one
            // descriptor, so there are no others.
            return Ok(Some(File::from(unsafe { OwnedFd::from_raw_fd(descriptor) })));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn folder() -> (tempfile::TempDir, Arc<Directory>) {
        let folder = tempfile::tempdir().unwrap();
        // Longer than a socket's address may be.
        let path = folder.path().join("x".repeat(200));
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        let directory = Arc::new(Directory::open(&path).unwrap());
        (folder, directory)
    }

    fn memory() -> (u64, File) {
        let file = super::super::pages::memory_file(c"hwsim-test", 4096).unwrap();
        (file.metadata().unwrap().ino(), file)
    }

    #[test]
    fn a_file_without_a_name_is_found_by_its_number() {
        let (_folder, directory) = folder();
        let own = std::process::id();
        assert!(ask(&directory, own, 1).is_err(), "nobody listens yet");
        let (number, file) = memory();
        let files = Files::default();
        serve(&directory, Arc::clone(&files)).unwrap();
        let status = fs::metadata(directory.at(&socket_name(own))).unwrap();
        assert_eq!(status.mode() & 0o777, 0o600, "others could ask for memory");
        assert!(ask(&directory, own, number).unwrap().is_none());
        files.lock().unwrap().insert(number, file);
        let found = ask(&directory, own, number).unwrap().unwrap();
        assert_eq!(found.metadata().unwrap().ino(), number);
        super::super::pages::check_sealed(&found).unwrap();
        assert!(found.set_len(1).is_err(), "who shrinks it ends whoever has it mapped");
    }

    /// If this fails, one process that was stopped between connecting and asking holds up all
    /// others of its node.
    #[test]
    fn silent_clients_delay_no_other() {
        let (_folder, directory) = folder();
        let (number, file) = memory();
        let files = Files::default();
        files.lock().unwrap().insert(number, file);
        serve(&directory, files).unwrap();
        let path = directory.at(&socket_name(std::process::id()));
        let mut silent = Vec::new();
        // More than are served at once: the first are dropped, and not those who ask.
        for count in 0..2 * CLIENTS_MAX {
            let mut client = UnixStream::connect(&path).unwrap();
            client.write_all(&[7; 7][..count % 8]).unwrap();
            silent.push(client);
        }
        let begin = Instant::now();
        let found = ask(&directory, std::process::id(), number).unwrap();
        assert!(found.is_some());
        assert!(begin.elapsed() < PATIENCE / 2, "it took {:?}", begin.elapsed());
        // Those that are served still get what they ask for, when they do.
        let last = silent.last_mut().unwrap();
        last.write_all(&[0; 8]).unwrap();
        let mut answer = [9];
        last.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [0]);
    }

    #[test]
    fn sockets_of_processes_that_were_killed_are_swept() {
        let (_folder, directory) = folder();
        let dead = directory.at("process-4000000");
        drop(UnixListener::bind(&dead).unwrap());
        let alive = directory.at("process-4000001");
        let _alive = UnixListener::bind(&alive).unwrap();
        serve(&directory, Files::default()).unwrap();
        assert!(!dead.exists() && alive.exists());
    }
}
