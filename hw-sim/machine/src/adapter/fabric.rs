//! The fabric's folder: a file for each process, and one for each queue pair.
//!
//! A process holds a lock on its file while it lives; the kernel drops the lock however it ends,
//! which is how peers learn of it. `hwsim run` removes the folder.

use super::address::Endpoint;
use super::error::{Result, VerbsError};
use super::segment::Segment;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const PROCESS_BYTES: usize = 4096;
/// Where in a process's file the service thread says that it sleeps.
const ASLEEP: usize = 0;

/// A process of the fabric.
#[derive(Debug)]
pub(super) struct Process {
    segment: Segment,
    /// Keeps the lock (our own file) or asks for it (others').
    file: File,
    own: bool,
}

impl Process {
    /// Lets the process's service thread look at its queue pairs, if it sleeps.
    pub fn wake(&self) {
        // Pairs with the fence in `sleep`: either we see that it sleeps, or it sees what we did.
        fence(Ordering::SeqCst);
        let asleep = self.segment.word32(ASLEEP);
        if asleep.load(Ordering::Relaxed) == 1 && asleep.swap(0, Ordering::SeqCst) == 1 {
            // SAFETY: the word is in the mapping; the call looks at nothing else.
            unsafe {
                libc::syscall(libc::SYS_futex, asleep.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
            }
        }
    }

    /// Sleeps until woken or until the time is over, unless `busy` finds something to do.
    pub fn sleep(&self, time: Duration, busy: impl FnOnce() -> bool) {
        let asleep = self.segment.word32(ASLEEP);
        asleep.store(1, Ordering::SeqCst);
        // Pairs with the fence in `wake`.
        fence(Ordering::SeqCst);
        if !busy() {
            let time = time.min(Duration::from_secs(3600));
            let time = libc::timespec {
                tv_sec: time.as_secs() as libc::time_t,
                tv_nsec: time.subsec_nanos().into(),
            };
            // SAFETY: word and time outlive the call. It returns on a wake, on a signal, at once
            // if the word has changed, or when the time is over: all of them are fine.
            unsafe {
                let (word, wait) = (asleep.as_ptr(), libc::FUTEX_WAIT);
                libc::syscall(libc::SYS_futex, word, wait, 1, &raw const time);
            }
        }
        asleep.store(0, Ordering::SeqCst);
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

/// Names a process in other processes' files: its id, and the number of its file.
pub(super) type ProcessId = (u32, u32);

/// This process's view of the folder.
#[derive(Debug)]
pub(super) struct Fabric {
    folder: PathBuf,
    pub own: Arc<Process>,
    pub own_id: ProcessId,
    /// Each process's file is opened once: closing any descriptor of a file drops our locks on it.
    processes: Mutex<HashMap<ProcessId, Arc<Process>>>,
    serial: AtomicU32,
}

impl Fabric {
    /// Joins the fabric: makes this process's file, and locks it.
    pub fn join(folder: &Path) -> Result<Self> {
        sweep(folder);
        let pid = std::process::id();
        // A number that is free (another PID namespace on this folder may know our id, too), and
        // that no process with our id had before: others may still remember that one.
        let now =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.subsec_nanos());
        for attempt in 0..1024 {
            let nonce = now.wrapping_add(attempt);
            let path = folder.join(process_name((pid, nonce)));
            let opened = File::options().read(true).write(true).create_new(true).open(&path);
            let file = match opened {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                opened => {
                    opened.map_err(VerbsError::system(format!("making {}", path.display())))?
                }
            };
            file.set_len(PROCESS_BYTES as u64)
                .map_err(VerbsError::system(format!("growing {}", path.display())))?;
            let lock = whole_file_lock();
            // SAFETY: the structure outlives the call.
            if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) } != 0 {
                let cause = std::io::Error::last_os_error();
                return Err(VerbsError::system(format!("locking {}", path.display()))(cause));
            }
            let segment = Segment::map(&file, PROCESS_BYTES)?;
            let own = Arc::new(Process { segment, file, own: true });
            let own_id = (pid, nonce);
            let processes = Mutex::new(HashMap::from([(own_id, Arc::clone(&own))]));
            let folder = folder.to_owned();
            return Ok(Self { folder, own, own_id, processes, serial: AtomicU32::new(0) });
        }
        Err(VerbsError::Full(format!("{} is full of process files", folder.display())))
    }

    /// A process by its id, if it has a file.
    pub fn process(&self, id: ProcessId) -> Option<Arc<Process>> {
        let mut processes = self.processes.lock().unwrap();
        if let Some(process) = processes.get(&id) {
            return Some(Arc::clone(process));
        }
        let path = self.folder.join(process_name(id));
        let file = File::options().read(true).write(true).open(path).ok()?;
        let segment = Segment::map(&file, PROCESS_BYTES).ok()?;
        let process = Arc::new(Process { segment, file, own: false });
        processes.insert(id, Arc::clone(&process));
        Some(process)
    }

    /// A number that this process has not had before.
    pub fn serial(&self) -> u32 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes the file of a queue pair under the first free number, or anew under `number`. `fill`
    /// writes its header before anybody can see it.
    pub fn make_queue_pair(
        &self,
        endpoint: Endpoint,
        number: Option<u32>,
        bytes: usize,
        fill: impl FnOnce(&Segment),
    ) -> Result<(u32, Segment)> {
        let (pid, nonce) = self.own_id;
        let draft = self.folder.join(format!("draft-{pid}-{nonce}-{}", self.serial()));
        let made = self.draft(&draft, bytes, fill).and_then(|segment| {
            let number = match number {
                Some(number) => {
                    let path = self.queue_pair_path(endpoint, number);
                    fs::rename(&draft, &path)
                        .map_err(VerbsError::system(format!("replacing {}", path.display())))?;
                    number
                }
                None => self.link_to_free_number(&draft, endpoint)?,
            };
            Ok((number, segment))
        });
        // Gone if it was renamed.
        let _ = fs::remove_file(&draft);
        made
    }

    fn draft(&self, path: &Path, bytes: usize, fill: impl FnOnce(&Segment)) -> Result<Segment> {
        let failed = |what: &str| VerbsError::system(format!("{what} {}", path.display()));
        let file = File::options().read(true).write(true).create_new(true).open(path);
        let file = file.map_err(failed("making"))?;
        file.set_len(bytes as u64).map_err(failed("growing"))?;
        let segment = Segment::map(&file, bytes)?;
        fill(&segment);
        Ok(segment)
    }

    fn link_to_free_number(&self, draft: &Path, endpoint: Endpoint) -> Result<u32> {
        // Numbers of processes differ from the start, so that one of another process rarely fits.
        let start = self.own_id.0.wrapping_mul(64).wrapping_add(self.serial());
        for attempt in 0..1 << 20 {
            let number = 0x100 + start.wrapping_add(attempt) % 0xff_fe00;
            let path = self.queue_pair_path(endpoint, number);
            match fs::hard_link(draft, &path) {
                Ok(()) => return Ok(number),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(VerbsError::system(format!("making {}", path.display()))(error));
                }
            }
        }
        Err(VerbsError::Full("the adapter has no free queue pair number".into()))
    }

    /// Opens another queue pair's file.
    pub fn open_queue_pair(
        &self,
        endpoint: Endpoint,
        number: u32,
        bytes: usize,
    ) -> Option<Segment> {
        let path = self.queue_pair_path(endpoint, number);
        let file = File::options().read(true).write(true).open(path).ok()?;
        Segment::map(&file, bytes).ok()
    }

    /// Removes a queue pair's file.
    pub fn remove_queue_pair(&self, endpoint: Endpoint, number: u32) {
        let _ = fs::remove_file(self.queue_pair_path(endpoint, number));
    }

    fn queue_pair_path(&self, endpoint: Endpoint, number: u32) -> PathBuf {
        let Endpoint { node, adapter } = endpoint;
        self.folder.join(format!("qp-{node}-{adapter}-{number:06x}"))
    }

    /// Removes this process's own file: it is leaving.
    pub fn leave(&self) {
        let _ = fs::remove_file(self.folder.join(process_name(self.own_id)));
    }
}

fn process_name((pid, nonce): ProcessId) -> String {
    format!("process-{pid}-{nonce}")
}

/// Removes files of processes that ended without removing them: a folder that several runs name is
/// nobody's to remove as a whole.
fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut gone = Vec::new();
    let mut others = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("process-") {
            others.push(entry.path());
        } else if let Ok(file) = File::options().write(true).open(entry.path())
            && file.metadata().is_ok_and(|data| data.len() == PROCESS_BYTES as u64)
            && lock_state(&file) == Some(false)
        {
            gone.push((name, entry.path()));
        }
    }
    if gone.is_empty() {
        return;
    }
    for path in others {
        let Some(name) = path.file_name().map(|name| name.to_string_lossy().into_owned()) else {
            continue;
        };
        let owner = if name.starts_with("qp-") {
            super::link::owner_of(&path).map(process_name)
        } else {
            name.strip_prefix("draft-")
                .and_then(|rest| rest.rsplit_once('-'))
                .map(|(owner, _)| format!("process-{owner}"))
        };
        if owner.is_some_and(|owner| gone.iter().any(|(name, _)| *name == owner)) {
            let _ = fs::remove_file(path);
        }
    }
    for (_, path) in gone {
        let _ = fs::remove_file(path);
    }
}
