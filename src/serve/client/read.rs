//! How a worker reads: parts of shards, each of one version.

use super::{Client, Waiting};
use crate::error::{Error, Result};
use crate::id::Rank;
use crate::serve::layout::{LEADS, PUBLISHED, WRITING};
use crate::serve::words::{observe, peek, put};

/// Words behind a status: what is written into `hold`, once at the beginning and once, with the
/// traffic behind it, at the end; where the version is read to.
const HOLD: u64 = 8;
const LET_GO: u64 = 16;
const VERSION_READ: u64 = 32;

impl Client {
    /// Reads parts of shards, each of one version: (shard, first byte, bytes).
    pub(super) fn pull_parts(&mut self, parts: &[(usize, u64, u64)]) -> Result<()> {
        let mut wait = Waiting::new("a whole version", parts[0].0, 0);
        let mut left = parts.to_vec();
        loop {
            let removed = self.fabric.view.removed();
            match self.try_pull(&left) {
                Ok(torn) if torn.is_empty() => return self.send_what_moved(parts),
                Ok(torn) => left = torn,
                Err(Error::Transport { peer, .. }) => self.wait_for_server(peer, removed)?,
                Err(error) => return Err(error),
            }
            wait.turn(self, left[0].0)?;
        }
    }

    /// Who only reads from now on notices here that a shard has moved while a write of this worker
    /// was on its way to it.
    fn send_what_moved(&mut self, parts: &[(usize, u64, u64)]) -> Result<()> {
        for (shard, ..) in parts {
            if self.is_elsewhere(*shard)? {
                self.look(*shard)?;
            }
        }
        Ok(())
    }

    /// Reads each part once; gives those that were overwritten meanwhile.
    fn try_pull(&mut self, parts: &[(usize, u64, u64)]) -> Result<Vec<(usize, u64, u64)>> {
        let mut begun = Vec::new();
        for (shard, ..) in parts {
            let primary = self.primary(*shard)?;
            let into = self.status[*shard].at(0);
            let from = self.fabric.words(primary, *shard, PUBLISHED);
            begun.push((primary, self.fabric.read(primary, into, from, 8)?));
        }
        self.wait_all(&begun)?;
        let primaries: Vec<_> = begun.drain(..).map(|(primary, _)| primary).collect();
        let mut published = Vec::new();
        for ((shard, start, length), primary) in parts.iter().zip(&primaries) {
            let room = self.room(*shard);
            let seen = observe(&self.status[*shard].region.word64(0)?);
            // A server publishes a version before it is reached.
            let pass = seen.checked_sub(1).ok_or_else(|| {
                let rank = Rank(*primary as u32);
                Error::peer_value(rank, "its pass over a shard", "1 or more", seen)
            })?;
            published.push(pass);
            self.hold(*shard, *primary, pass + 1)?;
            let buffer = room.buffer(pass);
            let into = self.status[*shard].at(room.status_bytes() + VERSION_READ);
            let from = self.fabric.words(*primary, *shard, room.meta(buffer));
            begun.push((*primary, self.fabric.read(*primary, into, from, 8)?));
            let into = self.mirror[*shard].at(*start);
            let from = self.fabric.data(*primary, *shard, room.parameters(buffer) + start);
            begun.push((*primary, self.fabric.read(*primary, into, from, *length)?));
        }
        self.wait_all(&begun)?;
        begun.clear();
        for ((shard, _, length), primary) in parts.iter().zip(&primaries) {
            let into = self.status[*shard].at(WRITING);
            let from = self.fabric.words(*primary, *shard, WRITING);
            // And `leads`, behind it.
            begun.push((*primary, self.fabric.read(*primary, into, from, 16)?));
            self.let_go(*shard, *primary, *length)?;
        }
        self.wait_all(&begun)?;
        let mut torn = Vec::new();
        for ((part, pass), primary) in parts.iter().zip(published).zip(primaries) {
            let (room, status) = (self.room(part.0), &self.status[part.0].region);
            let writing = observe(&status.word64(WRITING as usize)?);
            let leads = observe(&status.word64(LEADS as usize)?) == 1;
            let version = peek(&status.word64((room.status_bytes() + VERSION_READ) as usize)?);
            if !leads {
                // It led when `published` was read, or not: what it has may be old.
                self.try_other(part.0, primary);
            }
            let still = leads && self.primary(part.0)? == primary;
            // `writing` is 1 + the pass that is being made; the one that was read is whole until
            // that is the one that takes its place.
            if writing > pass + room.versions || !still {
                torn.push(*part);
            } else {
                self.versions[part.0] = version;
            }
        }
        Ok(torn)
    }

    /// Tells a server that a version is being read. Nothing depends on whether it arrives in time.
    fn hold(&mut self, shard: usize, server: usize, value: u64) -> Result<()> {
        let room = self.room(shard);
        let here = room.status_bytes() + HOLD;
        put(&self.status[shard].region.word64(here as usize)?, value);
        let to = self.fabric.words(server, shard, room.hold(self.worker));
        self.fabric.write(server, self.status[shard].at(here), to, 8).map(drop)
    }

    /// Tells a server that nothing is being read any more, and how much was.
    fn let_go(&mut self, shard: usize, server: usize, bytes: u64) -> Result<()> {
        let room = self.room(shard);
        let read = &mut self.traffic[shard * self.fabric.terms.job.servers + server];
        *read += bytes;
        let (here, region) = (room.status_bytes() + LET_GO, &self.status[shard].region);
        put(&region.word64(here as usize)?, 0);
        put(&region.word64(here as usize + 8)?, *read);
        let to = self.fabric.words(server, shard, room.hold(self.worker));
        self.fabric.write(server, self.status[shard].at(here), to, 16).map(drop)
    }
}
