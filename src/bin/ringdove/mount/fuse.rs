//! A [`Tree`] behind FUSE: nothing but translation.

use super::tree::{Facts, Refusal, Store, Tree, VERSION};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, ReplyXattr, Request,
    TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long the kernel may believe what it was told of a file's facts: they do not change, apart
/// from those of the file of versions.
const TTL: Duration = Duration::from_secs(1);

/// The file system. Its files belong to whoever has mounted it.
pub struct Mounted<S> {
    tree: Mutex<Tree<S>>,
    owner: (u32, u32),
    /// What is printed when the files are there.
    greeting: String,
}

impl<S: Store> Mounted<S> {
    pub fn new(tree: Tree<S>, greeting: String) -> Self {
        let owner = (nix::unistd::getuid().as_raw(), nix::unistd::getgid().as_raw());
        Self { tree: Mutex::new(tree), owner, greeting }
    }

    fn tree(&self) -> MutexGuard<'_, Tree<S>> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attributes(&self, facts: Facts) -> FileAttr {
        let kind = if facts.is_folder { FileType::Directory } else { FileType::RegularFile };
        // Nobody but the owner.
        let perm = match (facts.is_folder, facts.is_writable) {
            (true, _) => 0o500,
            (false, true) => 0o600,
            (false, false) => 0o400,
        };
        FileAttr {
            ino: INodeNo(facts.number),
            size: facts.bytes,
            blocks: facts.bytes.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

fn errno(refusal: Refusal) -> Errno {
    Errno::from_i32(refusal)
}

fn ttl(facts: Facts) -> Duration {
    if facts.number == VERSION { Duration::ZERO } else { TTL }
}

fn text(name: &OsStr) -> &str {
    // A name that is no text is no tensor's.
    name.to_str().unwrap_or("")
}

fn empty(reply: ReplyEmpty, result: Result<(), Refusal>) {
    match result {
        Ok(()) => reply.ok(),
        Err(refusal) => reply.error(errno(refusal)),
    }
}

impl<S: Store + Send + 'static> Filesystem for Mounted<S> {
    fn init(&mut self, _request: &Request, _config: &mut KernelConfig) -> std::io::Result<()> {
        // A closed output is no reason to end.
        let _ = writeln!(std::io::stdout(), "{}", self.greeting);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.tree().look_up(parent.0, text(name)) {
            Ok(facts) => reply.entry(&ttl(facts), &self.attributes(facts), Generation(0)),
            Err(refusal) => reply.error(errno(refusal)),
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.tree().facts(number.0) {
            Ok(facts) => reply.attr(&ttl(facts), &self.attributes(facts)),
            Err(refusal) => reply.error(errno(refusal)),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(Errno::EPERM);
        }
        let mut tree = self.tree();
        let resized = size.map_or(Ok(()), |size| tree.resize(number.0, size));
        match resized.and_then(|()| tree.facts(number.0)) {
            Ok(facts) => reply.attr(&ttl(facts), &self.attributes(facts)),
            Err(refusal) => reply.error(errno(refusal)),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = match self.tree().list(number.0) {
            Ok(listed) => listed,
            Err(refusal) => return reply.error(errno(refusal)),
        };
        let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
        for (next, (number, is_folder, name)) in (1..).zip(listed).skip(skipped) {
            let kind = if is_folder { FileType::Directory } else { FileType::RegularFile };
            if reply.add(INodeNo(number), next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn open(&self, _: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let to_write = flags.acc_mode() != OpenAccMode::O_RDONLY;
        // Without FOPEN_KEEP_CACHE, what the kernel has kept of the file is dropped: whoever opens
        // it sees the version of now.
        let direct = match number.0 {
            VERSION => FopenFlags::FOPEN_DIRECT_IO,
            _ => FopenFlags::empty(),
        };
        match self.tree().open(number.0, to_write) {
            Ok(file) => reply.opened(FileHandle(file), direct),
            Err(refusal) => reply.error(errno(refusal)),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        file: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.tree().read(file.0, offset, size as usize) {
            Ok(bytes) => reply.data(&bytes),
            Err(refusal) => reply.error(errno(refusal)),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        file: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.tree().write(file.0, offset, data) {
            Ok(()) => reply.written(data.len() as u32),
            Err(refusal) => reply.error(errno(refusal)),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // Each write was acknowledged.
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        file: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.tree().close(file.0);
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, file: FileHandle, _: bool, reply: ReplyEmpty) {
        empty(reply, self.tree().sync(file.0));
    }

    fn getxattr(&self, _: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        match self.tree().attribute(number.0, text(name)) {
            Ok(value) => bounded(reply, size, value.as_bytes()),
            Err(refusal) => reply.error(errno(refusal)),
        }
    }

    fn listxattr(&self, _: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        match self.tree().attributes(number.0) {
            Ok(names) => {
                let all: String = names.iter().map(|name| format!("{name}\0")).collect();
                bounded(reply, size, all.as_bytes());
            }
            Err(refusal) => reply.error(errno(refusal)),
        }
    }

    // The files are those of the model.

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        reply.error(Errno::EPERM);
    }

    fn mkdir(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rmdir(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rename(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: INodeNo,
        _: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EPERM);
    }
}

/// An attribute's value, or its size if that was asked for.
fn bounded(reply: ReplyXattr, size: u32, value: &[u8]) {
    match value.len() as u32 {
        length if size == 0 => reply.size(length),
        length if length > size => reply.error(Errno::ERANGE),
        _ => reply.data(value),
    }
}
