//! Open files from process to process, through a socket in the fabric's folder.
//!
//! A memory file has no name that another process could open, and a look into `/proc` is refused
//! between processes of different user namespaces. So the process that exports memory listens on a
//! socket that its number names; who asks for a file by its number is sent a descriptor of it.

use crate::description::cluster::Fabric;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long either side waits for the other. Both answer at once, unless they are stopped.
const PATIENCE: Duration = Duration::from_secs(20);

/// Files that may be asked for, by number.
pub(super) type Files = Arc<Mutex<HashMap<u64, File>>>;

/// A process's socket, by a path that is short however long the folder's is: a socket's address
/// holds 108 bytes. It holds while `folder` is open.
fn socket_path(folder: &File, process: u32) -> PathBuf {
    format!("/proc/self/fd/{}/process-{process}", folder.as_raw_fd()).into()
}

/// Gives out `files` for as long as this process lives.
pub(super) fn serve(fabric: &Fabric, files: Files) -> io::Result<()> {
    let folder = File::open(&fabric.path)?;
    let path = socket_path(&folder, std::process::id());
    // From a process that had our number before us.
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    let serve = move || {
        for stream in listener.incoming().flatten() {
            // One that breaks off harms nobody but itself.
            let _ = answer(stream, &files);
        }
    };
    std::thread::Builder::new().name("hwsim-passing".into()).spawn(serve).map(drop)
}

fn answer(mut stream: UnixStream, files: &Files) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut number = [0; 8];
    stream.read_exact(&mut number)?;
    let files = files.lock().unwrap_or_else(PoisonError::into_inner);
    match files.get(&u64::from_le_bytes(number)) {
        Some(file) => {
            let descriptors = [file.as_raw_fd()];
            let rights = [ControlMessage::ScmRights(&descriptors)];
            let (socket, yes) = (stream.as_raw_fd(), [IoSlice::new(&[1])]);
            sendmsg::<()>(socket, &yes, &rights, MsgFlags::MSG_NOSIGNAL, None)?;
            Ok(())
        }
        None => stream.write_all(&[0]),
    }
}

/// A process's file of this number; None if it has no such file.
pub(super) fn ask(fabric: &Fabric, process: u32, number: u64) -> io::Result<Option<File>> {
    let folder = File::open(&fabric.path)?;
    let mut stream = UnixStream::connect(socket_path(&folder, process))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&number.to_le_bytes())?;
    let mut found = [0];
    let mut room = nix::cmsg_space!([RawFd; 1]);
    let mut parts = [IoSliceMut::new(&mut found)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(stream.as_raw_fd(), &mut parts, Some(&mut room), flags)?;
    if message.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
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

    #[test]
    fn a_file_without_a_name_is_found_by_its_number() {
        let folder = std::env::temp_dir().join(format!("hwsim-passing-{}", std::process::id()));
        // Longer than a socket's address may be.
        let path = folder.join("x".repeat(200));
        std::fs::create_dir_all(&path).unwrap();
        let fabric = Fabric { path, number: [0, 0] };
        let own = std::process::id();
        assert!(ask(&fabric, own, 1).is_err(), "nobody listens yet");
        let file = super::super::pages::memory_file(4096).unwrap();
        let number = file.metadata().unwrap().ino();
        let files = Files::default();
        serve(&fabric, Arc::clone(&files)).unwrap();
        assert!(ask(&fabric, own, number).unwrap().is_none());
        files.lock().unwrap().insert(number, file);
        let found = ask(&fabric, own, number).unwrap().unwrap();
        assert_eq!(found.metadata().unwrap().ino(), number);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
