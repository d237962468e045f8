//! How a worker reads: parts of shards, each of one version.

use super::{Client, Waiting};
use crate::error::{Error, Result};
use crate::id::Rank;
use crate::serve::layout::{LEADS, PUBLISHED, WRITING};
use crate::serve::words::{observe, put};

impl Client {
    /// Reads parts of shards, each of one version: (shard, first byte, bytes).
    pub(super) fn pull_parts(&mut self, parts: &[(usize, u64, u64)]) -> Result<()> {
        let mut wait = Waiting::new("a whole version", parts[0].0, 0);
        let mut left = parts.to_vec();
        loop {
            let removed = self.fabric.view.removed();
            match self.try_pull(&left) {
                Ok(torn) if torn.is_empty() => return Ok(()),
                Ok(torn) => left = torn,
                Err(Error::Transport { .. }) => self.wait_for_removal(removed)?,
                Err(error) => return Err(error),
            }
            wait.turn(self, left[0].0)?;
        }
    }

    /// Reads each part once; gives those that were overwritten meanwhile.
    fn try_pull(&mut self, parts: &[(usize, u64, u64)]) -> Result<Vec<(usize, u64, u64)>> {
        let mut begun = Vec::new();
        for (shard, ..) in parts {
            let (primary, _) = self.holders(*shard)?;
            let into = self.status[*shard].at(0);
            let from = self.fabric.room(primary, *shard, PUBLISHED);
            begun.push((primary, self.fabric.read(primary, into, from, 8)?));
        }
        self.wait_all(&begun)?;
        let primaries: Vec<_> = begun.drain(..).map(|(primary, _)| primary).collect();
        let mut published = Vec::new();
        for ((shard, start, length), primary) in parts.iter().zip(&primaries) {
            let room = self.room(*shard);
            let seen = observe(&self.status[*shard].region.word64(0)?);
            // A server publishes a version before it is reached.
            let version = seen.checked_sub(1).ok_or_else(|| {
                let rank = Rank(*primary as u32);
                Error::peer_value(rank, "its version of a shard", "1 or more", seen)
            })?;
            published.push(version);
            self.hold(*shard, *primary, version + 1)?;
            let into = self.mirror[*shard].at(*start);
            let from = self.fabric.room(*primary, *shard, room.parameters(version) + start);
            begun.push((*primary, self.fabric.read(*primary, into, from, *length)?));
        }
        self.wait_all(&begun)?;
        begun.clear();
        for ((shard, _, length), primary) in parts.iter().zip(&primaries) {
            let into = self.status[*shard].at(WRITING);
            let from = self.fabric.room(*primary, *shard, WRITING);
            // And `leads`, behind it.
            begun.push((*primary, self.fabric.read(*primary, into, from, 16)?));
            self.let_go(*shard, *primary, *length)?;
        }
        self.wait_all(&begun)?;
        let mut torn = Vec::new();
        for ((part, version), primary) in parts.iter().zip(published).zip(primaries) {
            let status = &self.status[part.0].region;
            let writing = observe(&status.word64(WRITING as usize)?);
            let leads = observe(&status.word64(LEADS as usize)?) == 1;
            if !leads {
                // It led when `published` was read, or not: what it has may be old.
                self.try_other(part.0, primary);
            }
            let still = leads && self.holders(part.0)?.0 == primary;
            // `writing` is 1 + the version that is being made; the one that was read is whole until
            // that is the one that takes its place.
            if writing > version + self.room(part.0).versions || !still {
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
        let here = 2 * room.status_bytes() + 8;
        put(&self.status[shard].region.word64(here as usize)?, value);
        let to = self.fabric.room(server, shard, room.hold(self.worker));
        self.fabric.write(server, self.status[shard].at(here), to, 8).map(drop)
    }

    /// Tells a server that nothing is being read any more, and how much was.
    fn let_go(&mut self, shard: usize, server: usize, bytes: u64) -> Result<()> {
        let room = self.room(shard);
        let read = &mut self.traffic[shard * self.fabric.terms.job.servers + server];
        *read += bytes;
        let (here, region) = (2 * room.status_bytes() + 16, &self.status[shard].region);
        put(&region.word64(here as usize)?, 0);
        put(&region.word64(here as usize + 8)?, *read);
        let to = self.fabric.room(server, shard, room.hold(self.worker));
        self.fabric.write(server, self.status[shard].at(here), to, 16).map(drop)
    }
}
