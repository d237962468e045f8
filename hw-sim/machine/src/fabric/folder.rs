//! The fabric's folder: a file for each process, and files that two processes share.
//!
//! A process holds a lock on its file while it lives; the kernel drops the lock however it ends,
//! which is how peers learn of it. Shared files begin with a mark and with their owner, so that
//! what a killed process has left can be told from what is in use. `hwsim run` removes the folder.

use super::directory::Directory;
use super::error::{FabricError, Result};
use super::holders::{self, LIST_END, ProcessId};
use super::segment::Segment;
use super::wake::WakeWord;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

const PROCESS_BYTES: usize = 4096;
/// Where in a process's file the adapters' service thread says that it sleeps.
const ADAPTERS_ASLEEP: usize = 0;
/// Where others leave words for that thread, each not zero, and how many there is room for.
const MAIL: usize = 1024;
const MAIL_FLAG: usize = 128;
const MAIL_WORDS: usize = 64;
/// The same of the engines' thread.
const ENGINES_ASLEEP: usize = 64;
/// The first bytes of the mark at the beginning of each shared file.
const MARK: &[u8] = b"hwsim";

/// A process of the fabric.
#[derive(Debug)]
pub(crate) struct Process {
    segment: Arc<Segment>,
    /// Keeps the lock (our own file) or asks for it (others').
    file: File,
    own: bool,
}

impl Process {
    /// Where the thread that plays the process's adapters sleeps.
    pub fn adapters(&self) -> WakeWord {
        WakeWord::new(Arc::clone(&self.segment), ADAPTERS_ASLEEP)
    }

    /// Where the thread that plays the process's device engines sleeps.
    pub fn engines(&self) -> WakeWord {
        WakeWord::new(Arc::clone(&self.segment), ENGINES_ASLEEP)
    }

    /// Leaves a word, which is not zero, for the thread that plays the process's adapters, unless
    /// it lies there already. False if there is no room.
    pub fn post(&self, word: u64) -> bool {
        for index in 0..MAIL_WORDS {
            let place = self.segment.word64(MAIL + 8 * index);
            // Pairs with `take_mail`: whoever takes the word sees what it speaks of.
            let left = place.compare_exchange(0, word, Ordering::SeqCst, Ordering::SeqCst);
            if left.is_ok() || left == Err(word) {
                self.segment.word32(MAIL_FLAG).store(1, Ordering::SeqCst);
                return true;
            }
        }
        false
    }

    /// Has somebody left a word since the last [`Self::take_mail`]?
    pub fn has_mail(&self) -> bool {
        self.segment.word32(MAIL_FLAG).load(Ordering::Relaxed) != 0
    }

    /// Takes the words that others have left.
    pub fn take_mail(&self) -> Vec<u64> {
        // First: a word that comes to a place that was looked at already sets it again.
        self.segment.word32(MAIL_FLAG).store(0, Ordering::SeqCst);
        let take = |index| self.segment.word64(MAIL + 8 * index).swap(0, Ordering::SeqCst);
        (0..MAIL_WORDS).map(take).filter(|word| *word != 0).collect()
    }

    /// Does the process live?
    pub fn is_alive(&self) -> bool {
        self.own || lock_state(&self.file).is_none_or(|locked| locked)
    }
}

fn whole_file_lock() -> libc::flock {
    // SAFETY: a structure of plain numbers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as _;
    lock.l_whence = libc::SEEK_SET as _;
    lock
}

/// Is the file locked by another process? None if the system does not say.
fn lock_state(file: &File) -> Option<bool> {
    let mut lock = whole_file_lock();
    // SAFETY: the structure outlives the call.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) };
    (done == 0).then_some(i32::from(lock.l_type) != libc::F_UNLCK)
}

/// This process's view of the folder.
#[derive(Debug)]
pub(crate) struct Fabric {
    directory: Directory,
    pub own: Arc<Process>,
    pub own_id: ProcessId,
    /// Each process's file is opened once: closing any descriptor of a file drops our locks on it.
    processes: Mutex<HashMap<ProcessId, Arc<Process>>>,
    serial: AtomicU32,
}

/// What this process has joined. Once for each folder: it would take its own second file for
/// that of a process which has ended, since locks do not tell a process from itself.
static JOINED: Mutex<Vec<Weak<Fabric>>> = Mutex::new(Vec::new());

impl Fabric {
    /// Joins the fabric in a folder, unless this process has.
    pub fn join(folder: &Path) -> Result<Arc<Self>> {
        let directory = Directory::open(folder)?;
        let mut joined = JOINED.lock().unwrap_or_else(PoisonError::into_inner);
        // What a forked child has inherited is its parent's.
        let pid = std::process::id();
        joined.retain(|fabric| fabric.upgrade().is_some_and(|fabric| fabric.own_id.0 == pid));
        let same = |known: &Arc<Self>| known.directory.number() == directory.number();
        let known = joined.iter().filter_map(Weak::upgrade).find(same);
        if let Some(known) = known {
            return Ok(known);
        }
        let fabric = Arc::new(Self::enter(directory)?);
        joined.push(Arc::downgrade(&fabric));
        Ok(fabric)
    }

    /// Makes this process's file, and locks it.
    fn enter(directory: Directory) -> Result<Self> {
        sweep(&directory);
        let pid = std::process::id();
        // A number that is free (another PID namespace on this folder may know our id, too), and
        // that no process with our id had before: others may still remember that one.
        let now =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.subsec_nanos());
        for attempt in 0..1024 {
            let nonce = now.wrapping_add(attempt);
            let name = process_name((pid, nonce));
            let path = directory.path().join(&name);
            let making = || FabricError::system(format!("making {}", path.display()));
            // Locked before it has its name: a process that enters at the same time takes a file
            // without a lock for that of a dead one, and removes it.
            let draft = format!("draft-{pid}-{nonce}-process");
            let file = match directory.create(&draft, PROCESS_BYTES as u64) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                made => made.map_err(making())?,
            };
            let lock = whole_file_lock();
            // SAFETY: the structure outlives the call.
            if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) } != 0 {
                let cause = std::io::Error::last_os_error();
                return Err(FabricError::system(format!("locking {}", path.display()))(cause));
            }
            let named = fs::hard_link(directory.at(&draft), directory.at(&name));
            let _ = fs::remove_file(directory.at(&draft));
            match named {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                named => named.map_err(making())?,
            }
            let segment = Arc::new(Segment::map(&file, PROCESS_BYTES)?);
            let own = Arc::new(Process { segment, file, own: true });
            let own_id = (pid, nonce);
            let processes = Mutex::new(HashMap::from([(own_id, Arc::clone(&own))]));
            return Ok(Self { directory, own, own_id, processes, serial: AtomicU32::new(0) });
        }
        let folder = directory.path().display();
        Err(FabricError::Full(format!("{folder} has no free process slot")))
    }

    /// A process by its id, if it has a file.
    pub fn process(&self, id: ProcessId) -> Option<Arc<Process>> {
        let mut processes = self.processes.lock().unwrap();
        if let Some(process) = processes.get(&id) {
            return Some(Arc::clone(process));
        }
        let file = self.directory.file(&process_name(id)).ok()?;
        let segment = Arc::new(Segment::map(&file, PROCESS_BYTES).ok()?);
        let process = Arc::new(Process { segment, file, own: false });
        processes.insert(id, Arc::clone(&process));
        Some(process)
    }

    /// Does a process live? One that has no file has never been, or is gone.
    pub fn is_alive(&self, id: ProcessId) -> bool {
        self.process(id).is_some_and(|process| process.is_alive())
    }

    /// A number that this process has not had before.
    pub fn serial(&self) -> u32 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes a file that others can share, of so many zero bytes, with its header: `mark`, and this
    /// process. `place` may write more, and gives the draft its name; until then nobody can see it.
    pub fn make<T>(
        &self,
        bytes: usize,
        mark: u64,
        place: impl FnOnce(&Path, &Segment) -> Result<T>,
    ) -> Result<(T, Segment)> {
        let (pid, nonce) = self.own_id;
        let name = format!("draft-{pid}-{nonce}-{}", self.serial());
        let draft = self.directory.at(&name);
        let made = self.draft(&name, bytes, mark).and_then(|segment| {
            let placed = place(&draft, &segment)?;
            Ok((placed, segment))
        });
        // Gone if it was renamed.
        let _ = fs::remove_file(&draft);
        made
    }

    fn draft(&self, name: &str, bytes: usize, mark: u64) -> Result<Segment> {
        let path = self.directory.path().join(name);
        let making = FabricError::system(format!("making {}", path.display()));
        let file = self.directory.create(name, bytes as u64).map_err(making)?;
        let segment = Segment::map(&file, bytes)?;
        let (pid, nonce) = self.own_id;
        segment.word32(8).store(pid, Ordering::Relaxed);
        segment.word32(12).store(nonce, Ordering::Relaxed);
        // Release pairs with `open`.
        segment.word64(0).store(mark, Ordering::Release);
        Ok(segment)
    }

    /// Gives a draft a name, in place of what had it before.
    pub fn replace(&self, draft: &Path, name: &str) -> Result<()> {
        let path = self.path(name);
        fs::rename(draft, &path)
            .map_err(FabricError::system(format!("replacing {}", path.display())))
    }

    /// Gives a draft a name; false if it is taken.
    pub fn name(&self, draft: &Path, name: &str) -> Result<bool> {
        let path = self.path(name);
        match fs::hard_link(draft, &path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(FabricError::system(format!("making {}", path.display()))(error)),
        }
    }

    /// Opens a shared file with this mark: the file, and whose it is.
    pub fn open(&self, name: &str, bytes: usize, mark: u64) -> Option<(Segment, ProcessId)> {
        let file = self.directory.file(name).ok()?;
        let segment = Segment::map(&file, bytes).ok()?;
        // Acquire pairs with `draft`: a file with the mark has its owner.
        let marked = segment.word64(0).load(Ordering::Acquire) == mark;
        let owner = [8, 12].map(|at| segment.word32(at).load(Ordering::Relaxed));
        marked.then_some((segment, (owner[0], owner[1])))
    }

    /// Maps a file that no process of the fabric owns, if it is there.
    pub fn shared(&self, name: &str, bytes: usize) -> Option<Segment> {
        Segment::map(&self.directory.file(name).ok()?, bytes).ok()
    }

    /// The names of files that begin like this.
    pub fn names(&self, prefix: &str) -> Vec<String> {
        let names = self.directory.names().into_iter();
        names.filter(|name| name.starts_with(prefix)).collect()
    }

    /// Waits for the lock of a file, which is made if need be and stays. Who ends drops the lock.
    pub fn lock(&self, name: &str) -> Result<File> {
        let locking = || FabricError::system(format!("locking {name} of the fabric"));
        let file = self.directory.file_or_new(name).map_err(locking())?;
        file.lock().map_err(locking())?;
        Ok(file)
    }

    /// Removes a shared file's name.
    pub fn remove(&self, name: &str) {
        let _ = fs::remove_file(self.path(name));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.at(name)
    }

    /// Removes this process's own file: it is leaving.
    pub fn leave(&self) {
        let _ = fs::remove_file(self.path(&process_name(self.own_id)));
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        // What a forked child has inherited is its parent's.
        if self.own_id.0 == std::process::id() {
            self.leave();
        }
    }
}

fn process_name((pid, nonce): ProcessId) -> String {
    format!("process-{pid}-{nonce}")
}

/// Removes files of processes that ended without removing them: a folder that several runs name is
/// nobody's to remove as a whole.
fn sweep(directory: &Directory) {
    let (mut gone, mut others) = (Vec::new(), Vec::new());
    for name in directory.names() {
        if !name.starts_with("process-") {
            others.push(name);
        } else if let Ok(file) = directory.file(&name)
            && file.metadata().is_ok_and(|data| data.len() == PROCESS_BYTES as u64)
            && lock_state(&file) == Some(false)
        {
            gone.push(name);
        }
    }
    if gone.is_empty() {
        return;
    }
    for name in others {
        let owner = match name.strip_prefix("draft-").and_then(|rest| rest.rsplit_once('-')) {
            Some((owner, _)) => Some(format!("process-{owner}")),
            None => owner_of(directory, &name).map(process_name),
        };
        let is_held = || holders_of(directory, &name).any(|id| !gone.contains(&process_name(id)));
        if owner.is_some_and(|owner| gone.contains(&owner)) && !is_held() {
            let _ = fs::remove_file(directory.at(&name));
        }
    }
    for name in gone {
        let _ = fs::remove_file(directory.at(&name));
    }
}

/// Whose a shared file is.
fn owner_of(directory: &Directory, name: &str) -> Option<ProcessId> {
    let mut header = [0; 16];
    directory.file(name).ok()?.read_exact(&mut header).ok()?;
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
    header.starts_with(MARK).then(|| (word(8), word(12)))
}

/// Processes with files that hold a shared file.
fn holders_of(directory: &Directory, name: &str) -> impl Iterator<Item = ProcessId> {
    let mut bytes = [0; LIST_END];
    let file = directory.file(name).ok();
    let read = file.and_then(|mut file| file.read_exact(&mut bytes).ok());
    let holders: Vec<_> = read.iter().flat_map(|()| holders::in_bytes(&bytes)).collect();
    holders.into_iter().filter(|id| directory.file(&process_name(*id)).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// If this fails, a process does not learn that something waits for it.
    #[test]
    fn words_that_are_left_for_a_process_are_taken_once() {
        let folder = tempfile::tempdir().unwrap();
        let fabric = Fabric::join(folder.path()).unwrap();
        let own = &fabric.own;
        assert!(!own.has_mail());
        for word in [7, 9, 7] {
            assert!(own.post(word));
        }
        assert!(own.has_mail());
        assert_eq!(own.take_mail(), [7, 9]);
        assert!(!own.has_mail() && own.take_mail().is_empty());
        for word in 1..=MAIL_WORDS as u64 {
            assert!(own.post(word));
        }
        assert!(!own.post(1000), "there is no room");
        assert!(own.post(5), "it lies there already");
        assert_eq!(own.take_mail().len(), MAIL_WORDS);
        // Beside a thread that takes them, none is lost.
        const EACH: u64 = 2000;
        let mut taken = BTreeSet::new();
        std::thread::scope(|scope| {
            let writers = [0, 1].map(|writer| {
                scope.spawn(move || {
                    for word in 1..=EACH {
                        while !own.post(word + writer * EACH) {
                            std::thread::yield_now();
                        }
                    }
                })
            });
            while !writers.iter().all(|writer| writer.is_finished()) || own.has_mail() {
                taken.extend(own.take_mail());
            }
        });
        assert_eq!(taken.len() as u64, 2 * EACH);
    }
}
