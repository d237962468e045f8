//! Registered buffers. A *registration* is one buffer on each rank, registered by all of them in
//! the same order, so that every engine knows where its peers' buffers lie.

use super::exported::ExportedMemory;
use super::shared_file::{SharedFile, SharedName};
use super::sync::{lock, missing};
use crate::bootstrap::{ControlPlane, exchange};
use crate::error::{Error, Result};
use crate::gpu::{HostMemory, Import};
use crate::id::Rank;
use crate::lived::wait_while;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// The most registrations of one communicator at a time; each pair of them costs routes.
pub(crate) const REGISTRATIONS_MAX: usize = 1 << 12;

/// All registrations of a communicator, by number.
#[derive(Debug, Default)]
pub(crate) struct Registrations {
    entries: Mutex<BTreeMap<usize, Entry>>,
    changed: Condvar,
    /// Held while buffers travel between processes: registrations go in order of their numbers.
    /// How many have gone.
    exchanged: Mutex<usize>,
    /// Held while memory of other processes is opened.
    opening: Mutex<()>,
}

/// One registration.
#[derive(Debug)]
struct Entry {
    bytes: u64,
    first: Rank,
    /// By rank, what has been posted so far.
    buffers: Vec<Option<RankBuffer>>,
    /// Memory of other processes, as long as ranks of this one may use it.
    imports: Vec<Imported>,
    /// All ranks' addresses, as each rank of this process reaches them that has opened them.
    opened: BTreeMap<Rank, Vec<u64>>,
    /// Names of this process's parts in host memory, until all other processes have opened them.
    names: Vec<SharedFile>,
    /// Parts of other processes in host memory, from then on until the ranks of this process have
    /// mapped them; or why one cannot be opened, as none of another node can.
    files: BTreeMap<Rank, Result<Arc<File>>>,
    /// Ranks of this process that have taken it back.
    withdrawn: Vec<Rank>,
}

/// One rank's buffer of a registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RankBuffer {
    /// Device address on that rank.
    pub address: u64,
    /// Bytes, the same on every rank.
    pub bytes: u64,
    /// How other processes of its node reach it; `None` where all ranks are of one process.
    pub export: Option<ExportedMemory>,
    /// For pinned host memory, the name by which other processes of its node open it.
    pub host: Option<SharedName>,
    /// How adapters of other nodes reach it; `None` where there are no other nodes.
    pub region: Option<Vec<u8>>,
}

/// Memory of another process, open here until it is dropped.
#[derive(Debug)]
pub(crate) enum Imported {
    /// Of a GPU.
    Device { _import: Arc<Import> },
    /// Of the host.
    Host { _memory: HostMemory },
}

/// A registration as one rank's engine reaches it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RegisteredBuffer {
    /// Bytes, the same on every rank.
    pub bytes: u64,
    /// Device address of each rank's buffer.
    pub addresses: Vec<u64>,
}

impl Registrations {
    /// `rank` posts its buffer of registration `number`, and the file that it is, where other
    /// processes open it by a name.
    ///
    /// # Errors
    /// [`Error::Disagreement`] where another rank posted another size.
    pub fn post(
        &self,
        rank: Rank,
        rank_count: u32,
        number: usize,
        buffer: RankBuffer,
        file: Option<SharedFile>,
    ) -> Result<()> {
        let mut entries = lock(&self.entries);
        if entries.len() >= REGISTRATIONS_MAX && !entries.contains_key(&number) {
            let most = format_args!("at most {REGISTRATIONS_MAX} for one communicator").to_string();
            return Err(Error::argument("number of registrations", most, entries.len() + 1));
        }
        let entry = entries.entry(number).or_insert_with(|| Entry {
            bytes: buffer.bytes,
            first: rank,
            buffers: vec![None; rank_count as usize],
            imports: Vec::new(),
            opened: BTreeMap::new(),
            names: Vec::new(),
            files: BTreeMap::new(),
            withdrawn: Vec::new(),
        });
        if entry.bytes != buffer.bytes {
            return Err(Error::Disagreement {
                what: format!("bytes of registration {number}"),
                rank,
                value: buffer.bytes.to_string(),
                peer: entry.first,
                peer_value: entry.bytes.to_string(),
            });
        }
        entry.buffers[rank.index()] = Some(buffer);
        entry.names.extend(file);
        self.changed.notify_all();
        Ok(())
    }

    /// The buffers of registration `number`, once every rank has posted its own. `planes` are the
    /// control planes of the ranks of this process, none if all ranks are of it.
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`] or [`Error::Bootstrap`] names the ranks that have not;
    /// [`Error::Disagreement`] where a rank of another process posted another size.
    pub fn complete(
        &self,
        number: usize,
        limit: Duration,
        planes: &[Arc<ControlPlane>],
    ) -> Result<Vec<RankBuffer>> {
        if planes.is_empty() {
            let entries = self.wait(number, limit, |_| true)?;
            return Ok(entries[&number].buffers.iter().flatten().cloned().collect());
        }
        // Whoever comes first acts for all ranks of the process, which may share one thread.
        let mut exchanged = lock(&self.exchanged);
        while *exchanged <= number {
            self.exchange(*exchanged, limit, planes)?;
            *exchanged += 1;
        }
        let entries = lock(&self.entries);
        let entry = entries.get(&number).ok_or_else(|| taken_back(number))?;
        Ok(entry.buffers.iter().flatten().cloned().collect())
    }

    /// Nobody else opens memory before this is dropped.
    pub fn opening(&self) -> MutexGuard<'_, ()> {
        lock(&self.opening)
    }

    /// All ranks' addresses of registration `number` as `rank` reaches them, if it has opened them.
    pub fn opened(&self, number: usize, rank: Rank) -> Option<Vec<u64>> {
        lock(&self.entries).get(&number)?.opened.get(&rank).cloned()
    }

    /// Keeps what `rank` has opened until registration `number` is taken back.
    pub fn keep(&self, number: usize, rank: Rank, imports: Vec<Imported>, addresses: Vec<u64>) {
        if let Some(entry) = lock(&self.entries).get_mut(&number) {
            entry.imports.extend(imports);
            entry.opened.insert(rank, addresses);
        }
    }

    /// The file of `rank`, a rank of another process of this node whose part of registration
    /// `number` is host memory.
    ///
    /// # Errors
    /// Those of [`SharedFile::open`], which happened when the registration was complete.
    pub fn file(&self, number: usize, rank: Rank) -> Result<Arc<File>> {
        let entries = lock(&self.entries);
        let entry = entries.get(&number).ok_or_else(|| taken_back(number))?;
        entry.files.get(&rank).cloned().unwrap_or_else(|| Err(taken_back(number)))
    }

    /// All ranks of this process have mapped what they need of registration `number`.
    pub fn close_files(&self, number: usize) {
        if let Some(entry) = lock(&self.entries).get_mut(&number) {
            entry.files.clear();
        }
    }

    /// Takes registration `number` back for `rank`, whose launches have ended. What is returned
    /// closes the memory of other processes. `local` is the number of ranks of this process, and
    /// `planes` are their control planes, none if all ranks are of it.
    ///
    /// # Errors
    /// [`Error::Argument`] where it was taken back before; otherwise as
    /// [`complete`](Self::complete).
    pub fn withdraw(
        &self,
        rank: Rank,
        local: usize,
        number: usize,
        limit: Duration,
        planes: &[Arc<ControlPlane>],
    ) -> Result<Withdrawal<'_>> {
        if !planes.is_empty() {
            // All processes have exchanged it before, or none: calls have one order.
            self.complete(number, limit, planes)?;
        }
        // Whoever comes first acts for all ranks of the process, which may share one thread. What
        // the others have not ended yet writes nowhere: nobody's launch grants it a buffer.
        let turn = lock(&self.exchanged);
        let (is_first, imports) = {
            let mut entries = lock(&self.entries);
            let entry = entries.get_mut(&number).ok_or_else(|| taken_back(number))?;
            if entry.withdrawn.contains(&rank) {
                return Err(taken_back(number));
            }
            entry.withdrawn.push(rank);
            let first_and_all = (entry.withdrawn.len() == 1, std::mem::take(&mut entry.imports));
            if entry.withdrawn.len() == local {
                entries.remove(&number);
            }
            first_and_all
        };
        Ok(Withdrawal { rank, is_first, imports, _turn: turn })
    }

    /// Sends the other processes this one's buffers of registration `number`, and receives theirs.
    fn exchange(&self, number: usize, limit: Duration, planes: &[Arc<ControlPlane>]) -> Result<()> {
        let local = |rank: usize| planes.iter().any(|plane| plane.rank().index() == rank);
        let entries = self.wait(number, limit, local)?;
        let entry = &entries[&number];
        let buffer = |plane: &Arc<ControlPlane>| entry.buffers[plane.rank().index()].clone();
        let own: Vec<Option<RankBuffer>> = planes.iter().map(buffer).collect();
        let (first, bytes) = (entry.first, entry.bytes);
        // Not held meanwhile: others may go on posting.
        drop(entries);
        let mut buffers = Vec::new();
        for (rank, buffer) in (0..).zip(exchange(planes, &own)?) {
            if buffer.as_ref().map(|buffer| buffer.bytes) != Some(bytes) {
                let seen = buffer.map_or("nothing".into(), |buffer| buffer.bytes.to_string());
                return Err(Error::Disagreement {
                    what: format!("bytes of registration {number}"),
                    rank: Rank(rank),
                    value: seen,
                    peer: first,
                    peer_value: bytes.to_string(),
                });
            }
            buffers.push(buffer);
        }
        let files = open_files(planes, &buffers, bytes)?;
        // What came back of this process's own buffers has passed through others: the posted stay.
        let mut entries = lock(&self.entries);
        let entry = entries.get_mut(&number).ok_or_else(|| taken_back(number))?;
        for (own, received) in entry.buffers.iter_mut().zip(buffers) {
            *own = own.take().or(received);
        }
        entry.files = files;
        // Every other process has opened them, or never will.
        entry.names.clear();
        Ok(())
    }

    /// Waits until those ranks that `matters` have posted their buffers of registration `number`.
    fn wait(
        &self,
        number: usize,
        limit: Duration,
        matters: impl Fn(usize) -> bool,
    ) -> Result<MutexGuard<'_, BTreeMap<usize, Entry>>> {
        let lacks = |entry: &Entry| {
            (0..entry.buffers.len()).any(|rank| matters(rank) && entry.buffers[rank].is_none())
        };
        let (entries, waited) = wait_while(&self.changed, lock(&self.entries), limit, |entries| {
            entries.get(&number).is_none_or(lacks)
        });
        match entries.get(&number) {
            Some(entry) if !lacks(entry) => Ok(entries),
            entry => Err(Error::HostWaitExpired {
                what: format!("registration {number}, which is collective"),
                expected: "all ranks to register".into(),
                seen: match entry.and_then(|entry| missing(&entry.buffers)) {
                    Some(missing) => format!("nothing from {missing}"),
                    None => "nothing".into(),
                },
                waited,
            }),
        }
    }
}

/// A registration that a rank takes back. Registrations neither travel nor end elsewhere meanwhile.
#[derive(Debug)]
pub(crate) struct Withdrawal<'a> {
    rank: Rank,
    /// The first of its process, which acts for all of them.
    is_first: bool,
    imports: Vec<Imported>,
    _turn: MutexGuard<'a, usize>,
}

impl Withdrawal<'_> {
    /// Is there memory to close? The driver waits for the GPUs then.
    pub fn has_imports(&self) -> bool {
        !self.imports.is_empty()
    }

    /// Closes the memory of other processes, and waits until they have closed that of this one.
    ///
    /// # Errors
    /// [`Error::Bootstrap`] names ranks that are gone, [`Error::Disagreement`] one that takes
    /// another registration back.
    pub fn close(self, number: usize, planes: &[Arc<ControlPlane>]) -> Result<()> {
        drop(self.imports);
        if !self.is_first || planes.is_empty() {
            return Ok(());
        }
        for (peer, theirs) in (0..).zip(exchange(planes, &vec![number; planes.len()])?) {
            if theirs != number {
                return Err(Error::Disagreement {
                    what: "registration that is taken back".into(),
                    rank: self.rank,
                    value: number.to_string(),
                    peer: Rank(peer),
                    peer_value: theirs.to_string(),
                });
            }
        }
        Ok(())
    }
}

/// Opens those parts of other processes that are host memory, and waits until the other
/// processes have: no name need stay then, which a process that is killed could not remove.
fn open_files(
    planes: &[Arc<ControlPlane>],
    buffers: &[Option<RankBuffer>],
    bytes: u64,
) -> Result<BTreeMap<Rank, Result<Arc<File>>>> {
    let is_local = |rank: &Rank| planes.iter().any(|plane| plane.rank() == *rank);
    let name = |buffer: &Option<RankBuffer>| buffer.as_ref().and_then(|buffer| buffer.host);
    let named = (0..).map(Rank).zip(buffers.iter().map(name));
    let named: Vec<_> = named.filter(|(_, name)| name.is_some()).collect();
    if named.is_empty() {
        return Ok(BTreeMap::new());
    }
    let others = named.into_iter().filter(|(rank, _)| !is_local(rank));
    let open = |(rank, name)| (rank, SharedFile::open(rank, name, file_bytes(bytes)).map(Arc::new));
    let files = others.map(open).collect();
    exchange(planes, &vec![(); planes.len()])?;
    Ok(files)
}

/// Bytes of the file of a part of so many bytes in host memory: pages of any usual size, which
/// drivers pin as a whole.
pub(crate) fn file_bytes(bytes: u64) -> u64 {
    bytes.next_multiple_of(64 << 10)
}

fn taken_back(number: usize) -> Error {
    let seen = format!("registration {number}, which was taken back");
    Error::argument("registration", "one that is in use", seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(address: u64, bytes: u64) -> RankBuffer {
        RankBuffer { address, bytes, export: None, host: None, region: None }
    }

    #[test]
    fn a_registration_is_complete_when_every_rank_has_posted() {
        let registrations = Registrations::default();
        registrations.post(Rank(1), 2, 0, buffer(64, 8), None).unwrap();
        let missing = registrations.complete(0, Duration::ZERO, &[]).unwrap_err().to_string();
        assert!(missing.contains("rank 0"), "{missing}");
        registrations.post(Rank(0), 2, 0, buffer(32, 8), None).unwrap();
        let buffers = registrations.complete(0, Duration::ZERO, &[]).unwrap();
        assert_eq!(buffers, [buffer(32, 8), buffer(64, 8)]);
    }

    #[test]
    fn sizes_must_agree() {
        let registrations = Registrations::default();
        registrations.post(Rank(0), 2, 0, buffer(64, 8), None).unwrap();
        let message =
            registrations.post(Rank(1), 2, 0, buffer(64, 16), None).unwrap_err().to_string();
        assert!(message.contains("rank 1 says 16, rank 0 says 8"), "{message}");
    }

    /// If this fails, a registration is taken back twice, or stays in the table for ever.
    #[test]
    fn a_registration_is_taken_back_by_every_rank_once() {
        let registrations = Registrations::default();
        for rank in 0..2 {
            registrations.post(Rank(rank), 2, 0, buffer(64, 8), None).unwrap();
        }
        let withdraw = |rank| registrations.withdraw(Rank(rank), 2, 0, Duration::ZERO, &[]);
        withdraw(1).unwrap();
        withdraw(1).unwrap_err();
        withdraw(0).unwrap();
        assert!(lock(&registrations.entries).is_empty());
        withdraw(0).unwrap_err();
    }
}
