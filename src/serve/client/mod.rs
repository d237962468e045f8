//! A worker: it reads parameters out of the servers' memory, and writes gradients into its slots.

mod read;
mod send;

use super::fabric::{Fabric, Pause, Pinned};
use super::job::{Job, Terms};
use super::layout::{HEADER_BYTES, LEADS, LEFT, OBSERVER, Room, VERSION};
use super::shard::{Kind, REASONS};
use super::words::{observe, peek, set};
use crate::bootstrap::Launch;
use crate::error::{Error, Result, ServeError};
use crate::id::Rank;
use crate::lived::Lived;
use crate::settings::Settings;
use crate::shared::Region;
use crate::transport::verbs::RemoteAccess;
use ringdove_kernels::element::DataType;
use send::Sending;
use std::time::Duration;

/// What a client is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It trains: others wait for its gradients where staleness is bounded.
    Worker,
    /// It reads and assigns, and sends no gradients.
    Observer,
}

/// A worker of a job. Its calls block, each no longer than `RINGDOVE_TIMEOUT_MS` for one thing.
pub struct Client {
    fabric: Fabric,
    worker: u64,
    /// Writes that are not acknowledged, in slots as on the servers.
    staging: Vec<Pinned>,
    /// What was read of the parameters.
    mirror: Vec<Pinned>,
    /// The version of that.
    versions: Vec<u64>,
    /// For each shard: its status at the primary, and [`WORDS_BYTES`] of words.
    status: Vec<Pinned>,
    sent: Vec<u64>,
    acked: Vec<u64>,
    /// For each shard, the two that hold it where the second of them is taken to lead it.
    swapped: Vec<Option<(usize, usize)>>,
    /// Bytes of each shard that were read from each server.
    traffic: Vec<u64>,
    /// For each shard: the server that what is not acknowledged was sent to; none where that has
    /// failed.
    sent_to: Vec<Option<usize>>,
    role: Role,
}

/// Behind a status: what is read back, and thrown away; what a worker says there of its reads; the
/// version of what it reads.
const WORDS_BYTES: u64 = 64;
/// Between two looks at the versions of all shards.
const VERSIONS_LOOK: Duration = Duration::from_millis(1);

/// An access on its way: server, and its number there.
type Begun = (usize, u64);

impl Client {
    /// Meets the other members. The rank of `launch` is not below the job's number of servers.
    ///
    /// # Errors
    /// As [`Server::join`](super::Server::join).
    pub fn join(job: Job, role: Role, launch: &Launch, settings: &Settings) -> Result<Self> {
        let Some(worker) = (launch.rank as usize).checked_sub(job.servers) else {
            let expected = format_args!("{} or more", job.servers);
            return Err(Error::argument("rank of a worker", expected, launch.rank));
        };
        let fabric = Fabric::join(job, launch, settings)?;
        if role == Role::Observer {
            fabric.view.mark(OBSERVER);
        }
        let (mut staging, mut mirror, mut status) = (Vec::new(), Vec::new(), Vec::new());
        let (count, servers) = (fabric.terms.job.shards, fabric.terms.job.servers);
        for shard in 0..count {
            let room = fabric.terms.room(shard);
            let pinned = |bytes| Pinned::new(&fabric.adapter, bytes, RemoteAccess::None);
            staging.push(pinned(room.staged_bytes() * room.credits)?);
            mirror.push(pinned(room.bytes)?);
            status.push(pinned(room.status_bytes() + WORDS_BYTES)?);
        }
        Ok(Self {
            fabric,
            worker: worker as u64,
            staging,
            mirror,
            versions: vec![0; count],
            status,
            sent: vec![0; count],
            acked: vec![0; count],
            swapped: vec![None; count],
            traffic: vec![0; count * servers],
            sent_to: vec![None; count],
            role,
        })
    }

    /// The job.
    pub fn job(&self) -> &Job {
        &self.fabric.terms.job
    }

    /// This worker, from 0.
    pub fn worker(&self) -> usize {
        self.worker as usize
    }

    /// Servers that the members have removed.
    pub fn removed(&self) -> Vec<usize> {
        let removed = self.fabric.view.removed();
        (0..self.job().servers).filter(|server| removed >> server & 1 == 1).collect()
    }

    /// How often connections to servers had failed and were made anew.
    pub fn reconnected(&self) -> u64 {
        self.fabric.view.anew()
    }

    /// The server that leads each shard, as far as this worker has seen: one that was not read or
    /// written for a while may have been handed over since.
    ///
    /// # Errors
    /// [`ServeError::Lost`] where no server is left.
    pub fn primaries(&self) -> Result<Vec<usize>> {
        (0..self.swapped.len()).map(|shard| self.primary(shard)).collect()
    }

    /// Reads all parameters; gives the version of each shard, the number of writes that are in it.
    /// All tensors of a shard are of that version, and no number of it is torn.
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`] where no whole version can be read in time;
    /// [`ServeError::Lost`] where no server is left.
    pub fn pull(&mut self) -> Result<&[u64]> {
        let shards: Vec<_> =
            (0..self.mirror.len()).map(|shard| (shard, 0, self.room(shard).bytes)).collect();
        self.pull_parts(&shards)?;
        Ok(&self.versions)
    }

    /// The parameters of a tensor, as [`pull`](Self::pull), or [`read`](Self::read) of a part, has
    /// read them last.
    ///
    /// # Errors
    /// [`Error::Argument`] for a tensor that does not exist, or another number of bytes than its.
    pub fn copy_out(&self, tensor: &str, bytes: &mut [u8]) -> Result<()> {
        let (index, size) = self.find(tensor)?;
        if bytes.len() as u64 != size {
            return Err(Error::argument("bytes of a tensor", size, bytes.len()));
        }
        let place = self.fabric.terms.sharding.places[index];
        self.mirror[place.shard].region.copy_out(place.offset as usize, bytes)
    }

    /// The 32-bit floats of a tensor; otherwise as [`copy_out`](Self::copy_out).
    ///
    /// # Errors
    /// [`Error::Argument`] for a tensor that does not exist, or of another type.
    pub fn floats(&self, tensor: &str) -> Result<Vec<f32>> {
        let (index, bytes) = self.find(tensor)?;
        self.check_floats(index)?;
        let mut values = vec![0.0; bytes as usize / 4];
        self.copy_out(tensor, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }

    /// Reads a part of a tensor, of one version, which it gives: how many writes are in its shard.
    ///
    /// # Errors
    /// [`Error::Argument`] for a tensor that does not exist, or a part that is not inside;
    /// otherwise as [`pull`](Self::pull).
    pub fn read(&mut self, tensor: &str, offset: u64, bytes: &mut [u8]) -> Result<u64> {
        let (shard, start) = self.part(tensor, offset, bytes.len() as u64)?;
        if !bytes.is_empty() {
            // Remote reads of whole words.
            let (first, end) = (start & !7, (start + bytes.len() as u64).next_multiple_of(8));
            self.pull_parts(&[(shard, first, end - first)])?;
            self.mirror[shard].region.copy_out(start as usize, bytes)?;
        }
        Ok(self.versions[shard])
    }

    /// Writes a part of a tensor. It is acknowledged, and on two servers, when this returns; gives
    /// the number of the write among this worker's to that shard.
    ///
    /// # Errors
    /// As [`read`](Self::read), and as [`settle`](Self::settle).
    pub fn assign(&mut self, tensor: &str, offset: u64, bytes: &[u8]) -> Result<u64> {
        let (shard, start) = self.part(tensor, offset, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(self.acked[shard]);
        }
        let number = self.take_slot(shard)?;
        let length = bytes.len() as u64;
        self.stage_header((shard, number), Kind::Assign, (start, length))?;
        let at = self.staged(shard, number) + HEADER_BYTES + start;
        self.staging[shard].region.copy_in(at as usize, bytes)?;
        self.send(&[Sending { shard, number, start, length }])?;
        self.wait_acked(shard, number)?;
        Ok(number)
    }

    /// Sends a gradient, by tensor; what is not named has none (zeros). It waits for slots while as
    /// many as the job has credits are not acknowledged, also where this worker is too far ahead of
    /// others. It is acknowledged when [`settle`](Self::settle) has returned.
    ///
    /// # Errors
    /// [`Error::Argument`] for tensors that do not exist or are not of 32-bit floats, or other
    /// numbers of values; otherwise as [`settle`](Self::settle).
    pub fn push(&mut self, gradients: &[(&str, &[f32])]) -> Result<()> {
        let mut found = Vec::new();
        for (tensor, values) in gradients {
            let (index, bytes) = self.find(tensor)?;
            self.check_floats(index)?;
            if values.len() as u64 * 4 != bytes {
                return Err(Error::argument("values of a gradient", bytes / 4, values.len()));
            }
            found.push((self.fabric.terms.sharding.places[index], *values));
        }
        self.push_with(|shard, gradient| {
            let words = gradient.words64(0, gradient.length_bytes() / 8)?;
            (0..words.count()).for_each(|index| set(&words, index, 0));
            let here = found.iter().filter(|(place, _)| place.shard == shard);
            here.copied().try_for_each(|(place, values)| {
                gradient.copy_in(place.offset as usize, bytemuck::cast_slice(values))
            })
        })
    }

    /// As [`push`](Self::push), with a gradient that the slots hold already from the last time that
    /// they were used: for measurements.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn push_again(&mut self) -> Result<()> {
        self.push_with(|_, _| Ok(()))
    }

    fn push_with(&mut self, fill: impl Fn(usize, &Region) -> Result<()>) -> Result<()> {
        if self.role == Role::Observer {
            return Err(Error::argument("role of who sends a gradient", "worker", "observer"));
        }
        let mut all = Vec::new();
        for shard in 0..self.staging.len() {
            let has_floats = self.has_floats(shard);
            if !has_floats {
                continue;
            }
            let number = self.take_slot(shard)?;
            let length = self.room(shard).bytes;
            self.stage_header((shard, number), Kind::Gradient, (0, length))?;
            let at = self.staged(shard, number) + HEADER_BYTES;
            fill(shard, &self.staging[shard].region.part(at as usize, length as usize)?)?;
            all.push(Sending { shard, number, start: 0, length });
        }
        self.send(&all)
    }

    /// Waits until everything that was sent is acknowledged: it is applied, and on two servers
    /// where there are two.
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`] where that takes longer than the timeout: a worker is too far
    /// ahead of another, or servers do not answer and are not removed; [`ServeError::Refused`]
    /// where a server refused it; [`ServeError::Lost`] where no server is left.
    pub fn settle(&mut self) -> Result<()> {
        for shard in 0..self.sent.len() {
            self.wait_acked(shard, self.sent[shard])?;
        }
        Ok(())
    }

    /// The newest version of each shard, without its parameters.
    ///
    /// # Errors
    /// As [`pull`](Self::pull).
    pub fn latest(&mut self) -> Result<Vec<u64>> {
        let mut versions = Vec::new();
        for shard in 0..self.mirror.len() {
            let mut wait = Waiting::new("a version", shard, 0);
            while !self.look(shard)? {
                wait.turn(self, shard)?;
            }
            versions.push(observe(&self.status[shard].region.word64(VERSION as usize)?));
        }
        Ok(versions)
    }

    /// Waits until each shard has so many versions, or more, at most `limit`.
    ///
    /// # Errors
    /// As [`pull`](Self::pull); [`Error::HostWaitExpired`] after `limit`.
    pub fn wait_for_versions(&mut self, count: u64, limit: Duration) -> Result<()> {
        let mut lived = Lived::new();
        loop {
            let versions = self.latest()?;
            if versions.iter().all(|version| *version >= count) {
                return Ok(());
            }
            let waited = lived.look();
            if waited > limit {
                return Err(Error::HostWaitExpired {
                    what: "versions of all shards".into(),
                    expected: format!("{count} or more"),
                    seen: format!("{versions:?}"),
                    waited,
                });
            }
            std::thread::sleep(VERSIONS_LOOK);
        }
    }

    /// Writes that were acknowledged so far, by shard.
    pub fn acknowledged(&self) -> &[u64] {
        &self.acked
    }

    /// Leaves the job: nobody waits for this worker any more. What was acknowledged stays.
    ///
    /// # Errors
    /// As [`settle`](Self::settle), which comes first.
    pub fn leave(mut self) -> Result<()> {
        let settled = self.settle();
        self.fabric.view.mark(LEFT);
        self.fabric.leave();
        settled
    }

    fn room(&self, shard: usize) -> Room {
        self.fabric.terms.room(shard)
    }

    fn find(&self, tensor: &str) -> Result<(usize, u64)> {
        let model = &self.fabric.terms.job.model;
        let index = model.find(tensor).ok_or_else(|| {
            Error::argument("tensor", format_args!("one of model {}", model.name()), tensor)
        })?;
        Ok((index, model.tensors()[index].bytes()))
    }

    fn check_floats(&self, index: usize) -> Result<()> {
        let tensor = &self.fabric.terms.job.model.tensors()[index];
        let is_float = (tensor.data_type == DataType::F32).then_some(());
        is_float.ok_or_else(|| Error::argument("type of a tensor", "f32", tensor.data_type.name()))
    }

    fn has_floats(&self, shard: usize) -> bool {
        let Terms { job, sharding } = &*self.fabric.terms;
        let tensors = job.model.tensors().iter().zip(&sharding.places);
        tensors.into_iter().any(|(it, place)| place.shard == shard && it.data_type == DataType::F32)
    }

    /// Where a part of a tensor lies: shard, and first byte.
    fn part(&self, tensor: &str, offset: u64, length: u64) -> Result<(usize, u64)> {
        let (index, bytes) = self.find(tensor)?;
        if offset.checked_add(length).is_none_or(|end| end > bytes) {
            let seen = format!("{length} bytes from {offset}");
            return Err(Error::argument("part of a tensor", format_args!("{bytes} bytes"), seen));
        }
        let place = self.fabric.terms.sharding.places[index];
        Ok((place.shard, place.offset + offset))
    }

    /// The server that leads a shard, as far as this worker has seen.
    fn primary(&self, shard: usize) -> Result<usize> {
        let holders = self.fabric.terms.holders(shard, self.fabric.view.removed());
        let (first, second) = holders.ok_or(Error::Serve(ServeError::Lost { shard }))?;
        Ok(match second {
            Some(second) if self.swapped[shard] == Some((first, second)) => second,
            _ => first,
        })
    }

    /// This server does not lead the shard (or not yet): the other holder may.
    fn try_other(&mut self, shard: usize, server: usize) {
        let holders = self.fabric.terms.holders(shard, self.fabric.view.removed());
        if let Some((first, Some(second))) = holders {
            self.swapped[shard] = (server == first).then_some((first, second));
        }
    }

    /// Has what was read there just now come from the primary? Words of a status are read in any
    /// order, so this is a read of its own, after that of what it is about.
    fn still_leads(&mut self, shard: usize, server: usize) -> Result<bool> {
        let from = self.fabric.words(server, shard, LEADS);
        let into = self.status[shard].at(LEADS);
        let read = self.fabric.read(server, into, from, 8)?;
        self.fabric.wait(server, read)?;
        let leads = observe(&self.status[shard].region.word64(LEADS as usize)?) == 1;
        if !leads {
            self.try_other(shard, server);
        }
        Ok(leads)
    }

    /// Looks what the primary has acknowledged; false if it does not answer, or is it no more.
    fn look(&mut self, shard: usize) -> Result<bool> {
        let primary = self.primary(shard)?;
        match self.read_status(shard, primary) {
            Ok(()) => {}
            Err(error) => return Err(error).or_else(unanswered),
        }
        let (room, region) = (self.room(shard), &self.status[shard].region);
        let acked = observe(&region.word64(room.acked(self.worker) as usize)?);
        let refused = peek(&region.word64(room.refused(self.worker) as usize)?);
        let is_news = acked > self.acked[shard] || observe(&region.word64(LEADS as usize)?) != 1;
        if is_news {
            match self.still_leads(shard, primary) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => return Err(error).or_else(unanswered),
            }
        }
        // Nothing that a server says makes this worker believe more than it has sent.
        self.acked[shard] = self.acked[shard].max(acked.min(self.sent[shard]));
        if refused != 0 && refused >> 8 > 0 {
            let why = REASONS.get((refused & 0xff) as usize - 1).unwrap_or(&"for no known reason");
            let (worker, number) = (self.worker as usize, refused >> 8);
            return Err(Error::Serve(ServeError::Refused { shard, worker, number, why }));
        }
        if self.is_elsewhere(shard)? {
            self.send_again()?;
        }
        Ok(true)
    }

    /// Was something that is not acknowledged sent to a server that leads the shard no more?
    fn is_elsewhere(&self, shard: usize) -> Result<bool> {
        let is_sent = self.sent_to[shard] == Some(self.primary(shard)?);
        Ok(!is_sent && self.acked[shard] < self.sent[shard])
    }

    fn read_status(&mut self, shard: usize, server: usize) -> Result<()> {
        let bytes = self.room(shard).status_bytes();
        let from = self.fabric.words(server, shard, 0);
        let read = self.fabric.read(server, self.status[shard].at(0), from, bytes)?;
        self.fabric.wait(server, read)
    }

    fn wait_acked(&mut self, shard: usize, number: u64) -> Result<()> {
        let mut wait = Waiting::new("the acknowledgement of a write", shard, number);
        while self.acked[shard] < number {
            self.look(shard)?;
            if self.acked[shard] < number {
                wait.turn(self, shard)?;
            }
        }
        Ok(())
    }

    /// A server does not answer: its connection is made anew, or the members remove it, or this
    /// one is cut off.
    fn wait_for_server(&mut self, server: Rank, before: u64) -> Result<()> {
        let (mut lived, mut pause) = (Lived::new(), Pause::default());
        loop {
            if self.fabric.heals(server.index()) || self.fabric.view.removed() != before {
                return Ok(());
            }
            let waited = lived.look();
            if waited > self.fabric.timeout {
                let silent = self.fabric.view.silent();
                let seen = (0..self.job().servers).filter(|server| silent >> server & 1 == 1);
                let seen: Vec<_> = seen.map(|server| Rank(server as u32).to_string()).collect();
                return Err(Error::HostWaitExpired {
                    what: format!("{server}, which does not answer"),
                    expected: "a new connection, or more than half of the members to remove it"
                        .into(),
                    seen: format!("neither; {} do not answer this worker", seen.join(", ")),
                    waited,
                });
            }
            pause.pause();
        }
    }

    fn wait_all(&mut self, begun: &[Begun]) -> Result<()> {
        begun.iter().try_for_each(|(server, number)| self.fabric.wait(*server, *number))
    }
}

/// A wait of a worker, with its end.
struct Waiting {
    what: &'static str,
    shard: usize,
    number: u64,
    lived: Lived,
    pause: Pause,
}

impl Waiting {
    fn new(what: &'static str, shard: usize, number: u64) -> Self {
        Self { what, shard, number, lived: Lived::new(), pause: Pause::default() }
    }

    /// Another turn.
    fn turn(&mut self, client: &mut Client, shard: usize) -> Result<()> {
        let waited = self.lived.look();
        if waited < client.fabric.timeout {
            // A look is a read, which the server's adapter answers.
            self.pause.pause_after(waited);
            return Ok(());
        }
        let (acked, sent) = (client.acked[shard], client.sent[shard]);
        let primary = client.primary(shard)?;
        let staleness = client.job().staleness;
        let bound = staleness.map_or(String::new(), |most| {
            format!("; at most {most} gradients ahead of the slowest worker are taken")
        });
        Err(Error::HostWaitExpired {
            what: format!("{} of shard {}, write {}", self.what, self.shard, self.number),
            expected: "the server to go on".into(),
            seen: format!("{} of {sent} writes acknowledged by rank {primary}{bound}", acked),
            waited,
        })
    }
}

/// A server that does not answer may be reached or removed soon.
fn unanswered(error: Error) -> Result<bool> {
    match error {
        Error::Transport { .. } => {
            std::thread::sleep(Duration::from_millis(1));
            Ok(false)
        }
        other => Err(other),
    }
}

impl Client {
    /// The memory that [`pull`](Self::pull) reads a shard into.
    pub fn mirror(&self, shard: usize) -> Option<&Region> {
        self.mirror.get(shard).map(|pinned| &pinned.region)
    }

    /// The shard of a tensor, and its first byte there.
    pub fn place(&self, tensor: &str) -> Option<(usize, u64)> {
        let index = self.fabric.terms.job.model.find(tensor)?;
        let place = self.fabric.terms.sharding.places[index];
        Some((place.shard, place.offset))
    }
}
