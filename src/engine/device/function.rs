//! A device engine as the host finds it: a file that is its BAR, and what its first page says.

use crate::error::{Error, Result, UnfitEngine};
use crate::shared::{Region, map_file};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use ringdove_kernels::bar::{
    self, Identity, Lane, MAGIC, PAGE_BYTES, Peer, RING_OFFSET, Route, Signal, VERSION, Window,
};
use ringdove_kernels::descriptor::DESCRIPTOR_BYTES;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// The upper half of a version: another one is another map.
const MAJOR_SHIFT: u32 = 32;

/// A device engine whose BAR is mapped.
#[derive(Debug)]
pub struct Function {
    name: String,
    path: PathBuf,
    region: Region,
    identity: Identity,
}

/// What a rank needs of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// The ring has two to this power slots.
    pub ring_log2: u32,
    /// Entries of the peer table.
    pub peers: u64,
    /// Entries of the lane table.
    pub lanes: u64,
    /// Entries of the signal table.
    pub signals: u64,
    /// Entries of the window table.
    pub windows: u64,
    /// Entries of the route table.
    pub routes: u64,
    /// Requests of one lane that may be under way.
    pub lane_depth: u64,
}

/// What is wrong with an engine; `needed` against `found`.
struct Complaint {
    what: &'static str,
    needed: String,
    found: String,
    advice: &'static str,
}

impl Function {
    /// Opens the engine whose BAR is the file at `path`. `name` is its bus id, for messages.
    ///
    /// # Errors
    /// [`Error::System`] where the file cannot be opened or mapped, [`Error::UnfitEngine`] where
    /// what it shows is no engine of this version; both name the file.
    pub fn open(name: &str, path: &Path) -> Result<Self> {
        let region = map_file(&open_file(path)?, path)?;
        let bytes = region.length_bytes() as u64;
        let fail = |complaint| Err(unfit(path, complaint));
        if bytes < size_of::<Identity>() as u64 {
            return fail(Complaint {
                what: "size of the BAR",
                needed: format!("{} bytes", size_of::<Identity>()),
                found: format!("{bytes} bytes"),
                advice: "Check that this is the first BAR of the function",
            });
        }
        let words = region.words64(0, size_of::<Identity>() / 8)?;
        // Constant while the function has power, so nothing needs an order.
        let words: [u64; size_of::<Identity>() / 8] =
            std::array::from_fn(|index| words.load(index, Ordering::Relaxed));
        let identity: Identity = bytemuck::cast(words);
        match complaint(&identity, bytes) {
            Some(complaint) => fail(complaint),
            None => Ok(Self { name: name.to_owned(), path: path.to_owned(), region, identity }),
        }
    }

    /// Its bus id.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it says of itself.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Checks that the engine has enough of everything.
    ///
    /// # Errors
    /// [`Error::UnfitEngine`] with the first that falls short, and both numbers.
    pub fn require(&self, need: &Need) -> Result<()> {
        let has = &self.identity;
        let rows = [
            ("slots of the ring, as a power of two", u64::from(need.ring_log2), has.ring_log2_max),
            ("entries of the peer table", need.peers, has.peer_count),
            ("entries of the lane table", need.lanes, has.lane_count),
            ("entries of the signal table", need.signals, has.signal_count),
            ("entries of the window table", need.windows, has.window_count),
            ("entries of the route table", need.routes, has.route_count),
            ("requests that one lane holds", need.lane_depth, has.lane_depth),
        ];
        match rows.into_iter().find(|(_, needed, found)| needed > found) {
            None => Ok(()),
            Some((what, needed, found)) => Err(self.unfit(what, needed, found)),
        }
    }

    /// The error for a number that is too large for this engine.
    pub(super) fn unfit(&self, what: &'static str, needed: u64, found: u64) -> Error {
        let advice = "Fewer ranks or lower settings (RINGDOVE_RING_LOG2, RINGDOVE_BLOCKS, \
                      RINGDOVE_SLOTS) need less; RINGDOVE_ENGINE=proxy has no such limit";
        let (needed, found) = (needed.to_string(), found.to_string());
        unfit(&self.path, Complaint { what, needed, found, advice })
    }

    /// Channels that nobody holds at this moment.
    ///
    /// # Errors
    /// [`Error::System`] where the system does not tell.
    pub fn free_channels(&self) -> Result<u64> {
        let file = open_file(&self.path)?;
        let mut free = 0;
        for index in 0..self.identity.channel_count {
            let mut lock = self.lock_of(index);
            fcntl(&file, FcntlArg::F_OFD_GETLK(&mut lock)).map_err(|e| self.no_locks(e))?;
            free += u64::from(lock.l_type == libc::F_UNLCK as libc::c_short);
        }
        Ok(free)
    }

    /// Takes channel `index`, if nobody has it: it is held for as long as the file stays open. An
    /// open file description of its own, since locks of one description do not exclude each other.
    pub(super) fn lock(&self, index: u64) -> Result<Option<File>> {
        let file = open_file(&self.path)?;
        match fcntl(&file, FcntlArg::F_OFD_SETLK(&self.lock_of(index))) {
            Ok(_) => Ok(Some(file)),
            Err(nix::Error::EAGAIN | nix::Error::EACCES) => Ok(None),
            Err(errno) => Err(self.no_locks(errno)),
        }
    }

    /// The byte at which the channel starts.
    fn lock_of(&self, index: u64) -> libc::flock {
        libc::flock {
            l_type: libc::F_WRLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: self.channel_offset(index) as libc::off_t,
            l_len: 1,
            l_pid: 0,
        }
    }

    fn no_locks(&self, errno: nix::Error) -> Error {
        let what = format!("lock of a channel in {}", self.path.display());
        Error::System { what, cause: errno.desc().to_owned() }
    }

    /// Where a channel starts. Inside of the BAR, as `open` has checked.
    fn channel_offset(&self, index: u64) -> u64 {
        self.identity.channels_offset + index * self.identity.channel_bytes
    }

    /// The registers, ring and tables of channel `index`.
    pub(super) fn channel_region(&self, index: u64) -> Result<Region> {
        let offset = self.channel_offset(index) as usize;
        self.region.part(offset, self.identity.channel_bytes as usize)
    }
}

fn open_file(path: &Path) -> Result<File> {
    let opened = File::options().read(true).write(true).open(path);
    opened.map_err(|cause| Error::System {
        what: format!("opening {} (the BAR of a device engine)", path.display()),
        cause: format!("{cause}; check that this user may write the file"),
    })
}

fn unfit(path: &Path, complaint: Complaint) -> Error {
    let Complaint { what, needed, found, advice } = complaint;
    Error::UnfitEngine(Box::new(UnfitEngine {
        file: path.display().to_string(),
        what: what.to_owned(),
        needed,
        found,
        advice: advice.to_owned(),
    }))
}

/// What makes a first page that of no engine with which this version can work.
fn complaint(identity: &Identity, bar_bytes: u64) -> Option<Complaint> {
    if identity.magic != MAGIC {
        return Some(Complaint {
            what: "magic number",
            needed: format!("{MAGIC:#018x}"),
            found: format!("{:#018x}", identity.magic),
            advice: "This PCI function is not a device engine; check RINGDOVE_ENGINE_IDS",
        });
    }
    if identity.version >> MAJOR_SHIFT != VERSION >> MAJOR_SHIFT {
        let version = |version: u64| format!("{}.{}", version >> MAJOR_SHIFT, version as u32);
        return Some(Complaint {
            what: "version of the register map",
            needed: version(VERSION),
            found: version(identity.version),
            advice: "Update the library or the engine's firmware",
        });
    }
    let fault = map_fault(identity, bar_bytes)?;
    let advice = "Its register map is inconsistent: report it to the maker";
    Some(Complaint { advice, ..fault })
}

/// The first part of the map that lies outside of what holds it.
fn map_fault(identity: &Identity, bar_bytes: u64) -> Option<Complaint> {
    let fault =
        |what, needed: String, found: String| Some(Complaint { what, needed, found, advice: "" });
    let Identity { channel_count, channels_offset, channel_bytes, .. } = *identity;
    if identity.link_address == 0 {
        return fault("link address", "not 0".into(), "0".into());
    }
    let end = channel_count
        .checked_mul(channel_bytes)
        .and_then(|bytes| bytes.checked_add(channels_offset))
        .filter(|_| channel_count > 0);
    if end.is_none_or(|end| end > bar_bytes) {
        let found = format!("{channel_count} of {channel_bytes} bytes from {channels_offset:#x}");
        return fault("channels", format!("some, inside of {bar_bytes} bytes"), found);
    }
    let aligned = |value: u64| value.is_multiple_of(PAGE_BYTES);
    if !aligned(channels_offset) || !aligned(channel_bytes) {
        let found = format!("{channels_offset:#x} and {channel_bytes:#x}");
        return fault("channels", format!("multiples of {PAGE_BYTES:#x}"), found);
    }
    let ring_bytes = (DESCRIPTOR_BYTES as u64).checked_shl(identity.ring_log2_max as u32);
    let parts = [
        ("ring", RING_OFFSET, ring_bytes.filter(|_| identity.ring_log2_max <= 32)),
        table("peer table", identity.peers_offset, identity.peer_count, size_of::<Peer>()),
        table("lane table", identity.lanes_offset, identity.lane_count, size_of::<Lane>()),
        table("signal table", identity.signals_offset, identity.signal_count, size_of::<Signal>()),
        table("window table", identity.windows_offset, identity.window_count, size_of::<Window>()),
        table("route table", identity.routes_offset, identity.route_count, size_of::<Route>()),
    ];
    let first = bar::RING_OFFSET;
    let outside = |&&(_, offset, bytes): &&(&str, u64, Option<u64>)| {
        let end = bytes.and_then(|bytes| offset.checked_add(bytes));
        offset < first || !aligned(offset) || end.is_none_or(|end| end > channel_bytes)
    };
    let &(what, offset, bytes) = parts.iter().find(outside)?;
    let found = match bytes {
        Some(bytes) => format!("{bytes} bytes from {offset:#x}"),
        None => format!("more than 64 bits can count, from {offset:#x}"),
    };
    let needed = format!("whole pages from {first:#x} to {channel_bytes:#x} of its channel");
    fault(what, needed, found)
}

fn table(
    what: &'static str,
    offset: u64,
    count: u64,
    size: usize,
) -> (&'static str, u64, Option<u64>) {
    (what, offset, count.checked_mul(size as u64))
}
