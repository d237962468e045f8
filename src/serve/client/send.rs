//! How a worker writes: into slots of its own on the servers that hold a shard.

use super::{Begun, Client, Waiting, unanswered};
use crate::error::{Error, Result, ServeError};
use crate::serve::layout::HEADER_BYTES;
use crate::serve::shard::{Kind, header};
use crate::serve::words::{observe, peek, put};

/// One write: shard, number, the part of its data.
#[derive(Clone, Copy)]
pub(super) struct Sending {
    pub(super) shard: usize,
    pub(super) number: u64,
    pub(super) start: u64,
    pub(super) length: u64,
    /// Every holder gets it from here; else the primary alone, which passes it on.
    pub(super) to_all: bool,
}

impl Client {
    /// Where a write stands in this worker's staging memory.
    pub(super) fn staged(&self, shard: usize, number: u64) -> u64 {
        let room = self.room(shard);
        room.slot_bytes() * (number % room.credits)
    }

    pub(super) fn stage_header(
        &self,
        (shard, number): (usize, u64),
        kind: Kind,
        (start, length): (u64, u64),
    ) -> Result<()> {
        let slot = self.staged(shard, number);
        let region = &self.staging[shard].region;
        put(&region.word64(slot as usize)?, number);
        for (at, word) in (8..).step_by(8).zip(header(kind, 0, start, length)) {
            put(&region.word64(slot as usize + at)?, word);
        }
        Ok(())
    }

    /// The next write's number, when its slots are free.
    pub(super) fn take_slot(&mut self, shard: usize) -> Result<u64> {
        let number = self.sent[shard] + 1;
        let credits = self.room(shard).credits;
        let mut wait = Waiting::new("a slot", shard, number);
        while number > self.acked[shard] + credits || !self.is_free(shard, number)? {
            self.look(shard)?;
            wait.turn(self, shard)?;
        }
        self.sent[shard] = number;
        Ok(number)
    }

    /// Has the replica applied what was in the slot before? The primary has, if it was
    /// acknowledged.
    fn is_free(&mut self, shard: usize, number: u64) -> Result<bool> {
        let room = self.room(shard);
        let Some(replica) = self.holders(shard)?.1.filter(|_| number > room.credits) else {
            return Ok(true);
        };
        let at = room.status_bytes();
        match self.read_status(shard, replica, at) {
            Ok(()) => {
                let acked = at + room.acked(self.worker);
                let acked = observe(&self.status[shard].region.word64(acked as usize)?);
                Ok(acked + room.credits >= number)
            }
            Err(error) => Err(error).or_else(unanswered),
        }
    }

    /// Writes into the slots of the holders; and again to others, where holders are removed
    /// meanwhile.
    pub(super) fn send(&mut self, all: &[Sending]) -> Result<()> {
        let removed = self.fabric.view.removed();
        if removed != self.sent_under {
            return self.send_again();
        }
        match self.try_send(all) {
            Err(Error::Transport { .. }) => {
                self.wait_for_removal(removed)?;
                self.send_again()
            }
            other => other,
        }
    }

    /// Sends what is not acknowledged to the primaries of now.
    pub(super) fn send_again(&mut self) -> Result<()> {
        for _ in 0..self.job().servers {
            let mut all = Vec::new();
            for shard in 0..self.sent.len() {
                for number in self.acked[shard] + 1..=self.sent[shard] {
                    let slot = self.staged(shard, number) as usize;
                    let region = &self.staging[shard].region;
                    let [start, length] = [16, 24].map(|at| region.word64(slot + at));
                    let (start, length) = (peek(&start?), peek(&length?));
                    all.push(Sending { shard, number, start, length, to_all: false });
                }
            }
            let removed = self.fabric.view.removed();
            match self.try_send(&all) {
                Err(Error::Transport { .. }) => self.wait_for_removal(removed)?,
                Ok(()) => {
                    self.sent_under = removed;
                    return Ok(());
                }
                other => return other,
            }
        }
        Err(Error::Serve(ServeError::Lost { shard: 0 }))
    }

    /// Each step on all servers, then the next: data; a word of it read back, which pushes it into
    /// memory; its number, at the replicas first.
    fn try_send(&mut self, all: &[Sending]) -> Result<()> {
        let sent = self.send_steps(all);
        if sent.is_err() {
            // Staging memory changes only when nothing reads it any more.
            (0..self.job().servers).for_each(|server| self.fabric.settle(server));
        }
        sent
    }

    fn send_steps(&mut self, all: &[Sending]) -> Result<()> {
        let mut begun = Vec::new();
        let mut targets = Vec::new();
        for sending in all {
            let (primary, replica) = self.holders(sending.shard)?;
            let replica = replica.filter(|_| sending.to_all);
            targets.push((primary, replica));
            // The primary copies it to a replica that does not have it from here. What was sent
            // before said so of others: true as well, as long as those are meant.
            let slot = self.staged(sending.shard, sending.number) as usize;
            let first = self.staging[sending.shard].region.word64(slot + 8)?;
            put(&first, peek(&first) & 0xff | replica.map_or(0, |replica| 1 << (8 + replica)));
        }
        for (sending, (primary, replica)) in all.iter().zip(&targets) {
            for server in replica.iter().chain([primary]) {
                begun.push(self.begin(sending, *server, 8, HEADER_BYTES - 8)?);
                let data = HEADER_BYTES + sending.start;
                begun.push(self.begin(sending, *server, data, sending.length)?);
            }
        }
        self.wait_all(&begun)?;
        begun.clear();
        for (sending, (primary, replica)) in all.iter().zip(&targets) {
            let room = self.room(sending.shard);
            for server in replica.iter().chain([primary]) {
                let slot = room.slot(self.worker, sending.number);
                let from = self.fabric.room(*server, sending.shard, slot + 8);
                let into = self.status[sending.shard].at(2 * room.status_bytes());
                begun.push((*server, self.fabric.read(*server, into, from, 8)?));
            }
        }
        self.wait_all(&begun)?;
        begun.clear();
        for (sending, (_, replica)) in all.iter().zip(&targets) {
            if let Some(server) = replica {
                begun.push(self.begin(sending, *server, 0, 8)?);
            }
        }
        self.wait_all(&begun)?;
        begun.clear();
        for (sending, (primary, _)) in all.iter().zip(&targets) {
            begun.push(self.begin(sending, *primary, 0, 8)?);
        }
        self.wait_all(&begun)
    }

    /// Begins to write a part of a slot.
    fn begin(&mut self, sending: &Sending, server: usize, at: u64, length: u64) -> Result<Begun> {
        let Sending { shard, number, .. } = *sending;
        let slot = self.room(shard).slot(self.worker, number);
        let to = self.fabric.room(server, shard, slot + at);
        let from = self.staged(shard, number) + at;
        Ok((server, self.fabric.write(server, self.staging[shard].at(from), to, length)?))
    }
}
