//! The fabric's folder: only this user may have a say in what lies there.
//!
//! Processes map files of the folder as memory and take what is in it for true. Whoever could put a
//! file or a symbolic link there could have a process of another user, root's above all, write to a
//! file of his choice. So a folder of somebody else is refused, and one that others may write to;
//! files are made anew and for their owner alone, and no link is followed.
//!
//! What was checked stays what is used: paths begin at the open folder, not at its name, which may
//! come to mean another folder when one above it is renamed.

use super::error::{FabricError, Result};
use nix::errno::Errno;
use nix::fcntl::posix_fallocate;
use nix::unistd::geteuid;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Rights of files: the owner reads and writes.
const FILE_MODE: u32 = 0o600;
/// Rights that nobody else may have on folder or file: to write.
const OTHERS_WRITE: u32 = 0o022;
/// How often a call that a signal has interrupted is made again.
const INTERRUPTIONS_MAX: u32 = 1000;

/// A folder that was found to be this user's own.
#[derive(Debug)]
pub struct Directory {
    file: File,
    path: PathBuf,
    number: [u64; 2],
}

impl Directory {
    /// Opens a folder, which must belong to this user and be writable by no other user.
    ///
    /// # Errors
    /// [`FabricError::Untrusted`] says whose it is and who may write; [`FabricError::System`] where
    /// it cannot be opened.
    pub fn open(path: &Path) -> Result<Self> {
        let failed =
            || FabricError::system(format!("opening the fabric's folder {}", path.display()));
        let path = path.canonicalize().map_err(failed())?;
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let file = File::options().read(true).custom_flags(flags).open(&path).map_err(failed())?;
        let status = file.metadata().map_err(failed())?;
        let (user, owner, mode) = (geteuid().as_raw(), status.uid(), status.mode() & 0o7777);
        if owner != user || mode & OTHERS_WRITE != 0 {
            return Err(FabricError::Untrusted { path, user, owner, mode });
        }
        Ok(Self { file, path, number: [status.dev(), status.ino()] })
    }

    /// Where it is: absolute, without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Device and number of the folder: no other one has them at the same time.
    pub fn number(&self) -> [u64; 2] {
        self.number
    }

    /// The path of a file in the folder as it was checked. It holds while `self` lives, in this
    /// process alone, and is short, as addresses of sockets must be.
    pub fn at(&self, name: &str) -> PathBuf {
        format!("/proc/self/fd/{}/{name}", self.file.as_raw_fd()).into()
    }

    /// Makes a file of so many zero bytes, for this user alone. Its room is taken at once: a mapped
    /// file without would end the process by SIGBUS on the day that the disk is full.
    ///
    /// # Errors
    /// Those of the system: [`ErrorKind::AlreadyExists`] where there is anything by this name, be
    /// it a link that leads nowhere.
    pub fn create(&self, name: &str, bytes: u64) -> io::Result<File> {
        let path = self.at(name);
        let mut options = File::options();
        options.read(true).write(true).create_new(true).mode(FILE_MODE);
        let file = options.custom_flags(libc::O_NOFOLLOW).open(&path)?;
        take_room(&file, 0, bytes).inspect_err(|_| drop(fs::remove_file(path)))?;
        Ok(file)
    }

    /// Opens a file that a process of this user has made.
    ///
    /// # Errors
    /// Those of the system; [`ErrorKind::PermissionDenied`] for what is no file of this user.
    pub fn file(&self, name: &str) -> io::Result<File> {
        // Not blocking: a pipe of this name would wait for its other end.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file =
            File::options().read(true).write(true).custom_flags(flags).open(self.at(name))?;
        let status = file.metadata()?;
        if !status.is_file()
            || status.uid() != geteuid().as_raw()
            || status.mode() & OTHERS_WRITE != 0
        {
            let why = format!(
                "{} is not a file that only this user can access",
                self.path.join(name).display()
            );
            return Err(io::Error::new(ErrorKind::PermissionDenied, why));
        }
        Ok(file)
    }

    /// Opens a file, or makes it empty.
    ///
    /// # Errors
    /// Those of [`file`](Self::file) and [`create`](Self::create).
    pub fn file_or_new(&self, name: &str) -> io::Result<File> {
        match self.create(name, 0) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => self.file(name),
            made => made,
        }
    }

    /// The names of what is in the folder.
    pub fn names(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.at("")) else { return Vec::new() };
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

/// Has the file system set room aside for a part of a file, which grows where it must.
///
/// # Errors
/// [`ErrorKind::StorageFull`] where there is too little.
pub(crate) fn take_room(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let too_large = |_| io::Error::from(ErrorKind::FileTooLarge);
    let (offset, length) = (
        libc::off_t::try_from(offset).map_err(too_large)?,
        libc::off_t::try_from(bytes).map_err(too_large)?,
    );
    let mut taken = Err(Errno::EINTR);
    for _ in 0..INTERRUPTIONS_MAX {
        taken = posix_fallocate(file, offset, length);
        if taken != Err(Errno::EINTR) {
            break;
        }
    }
    taken.map_err(|errno| match errno {
        Errno::ENOSPC | Errno::EDQUOT => {
            let cause = io::Error::from(errno);
            let why = format!(
                "{bytes} bytes are needed: {cause}. Free some space, or set TMPDIR or HWSIM_FABRIC \
                 to another folder"
            );
            io::Error::new(ErrorKind::StorageFull, why)
        }
        errno => errno.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// If this fails, a user who may write to the folder decides what another one's processes map.
    #[test]
    fn folders_that_others_may_write_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for mode in [0o770, 0o707, 0o777, 0o1777, 0o720, 0o702] {
            set_mode(folder.path(), mode);
            let refused = Directory::open(folder.path()).unwrap_err();
            assert!(matches!(refused, FabricError::Untrusted { mode: seen, .. } if seen == mode));
            let message = refused.to_string();
            assert!(message.contains(&format!("{mode:04o}")), "{message}");
            assert!(message.contains("mkdir -m 700"), "what to do: {message}");
        }
        for mode in [0o700, 0o755, 0o711] {
            set_mode(folder.path(), mode);
            Directory::open(folder.path()).unwrap();
        }
    }

    /// A planted link must not lead a write out of the folder, whether its target exists or not.
    #[test]
    fn links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let (victim, absent) = (outside.path().join("victim"), outside.path().join("absent"));
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, folder.path().join("memory-node0")).unwrap();
        symlink(&absent, folder.path().join("draft")).unwrap();
        let directory = Directory::open(folder.path()).unwrap();
        for name in ["memory-node0", "draft"] {
            assert!(directory.file(name).is_err(), "{name}");
            assert!(directory.file_or_new(name).is_err(), "{name}");
            let error = directory.create(name, 4096).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        }
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        assert!(!absent.exists());
    }

    #[test]
    fn files_are_for_their_owner_alone_and_take_their_room_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let directory = Directory::open(folder.path()).unwrap();
        let file = directory.create("ring", 1 << 20).unwrap();
        let status = file.metadata().unwrap();
        assert_eq!((status.mode() & 0o7777, status.len()), (0o600, 1 << 20));
        assert!(status.blocks() * 512 >= 1 << 20, "sparse: {} blocks", status.blocks());
        directory.file("ring").unwrap().write_all(b"seen").unwrap();
        set_mode(&folder.path().join("ring"), 0o666);
        assert!(directory.file("ring").is_err(), "others may write it");
        nix::unistd::mkfifo(&directory.at("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(directory.file("pipe").is_err());
        fs::create_dir(directory.at("folder")).unwrap();
        assert!(directory.file("folder").is_err());
    }

    /// What was checked is used, also when the name has come to mean another folder.
    #[test]
    fn the_folder_that_was_checked_stays_in_use() {
        let around = tempfile::tempdir().unwrap();
        let named = around.path().join("fabric");
        fs::create_dir(&named).unwrap();
        set_mode(&named, 0o700);
        let directory = Directory::open(&named).unwrap();
        fs::rename(&named, around.path().join("moved")).unwrap();
        fs::create_dir(&named).unwrap();
        directory.create("file", 1).unwrap();
        assert_eq!(directory.names(), ["file"]);
        assert!(around.path().join("moved/file").exists() && !named.join("file").exists());
    }
}
