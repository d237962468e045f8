//! How a worker writes: into slots of its own on the server that leads a shard.

use super::{Begun, Client, Waiting};
use crate::error::{Error, Result};
use crate::serve::layout::HEADER_BYTES;
use crate::serve::shard::{Kind, header};
use crate::serve::words::{peek, put};
use std::ops::Range;

/// One write: shard, number, the part of its data.
#[derive(Clone, Copy)]
pub(super) struct Sending {
    pub(super) shard: usize,
    pub(super) number: u64,
    pub(super) start: u64,
    pub(super) length: u64,
}

impl Client {
    /// Where a write stands in this worker's staging memory.
    pub(super) fn staged(&self, shard: usize, number: u64) -> u64 {
        let room = self.room(shard);
        room.staged_bytes() * (number % room.credits)
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
        for (at, word) in (8..).step_by(8).zip(header(kind, start, length)) {
            put(&region.word64(slot as usize + at)?, word);
        }
        Ok(())
    }

    /// The next write's number, when its slots are free.
    pub(super) fn take_slot(&mut self, shard: usize) -> Result<u64> {
        let number = self.sent[shard] + 1;
        let credits = self.room(shard).credits;
        let mut wait = Waiting::new("a slot", shard, number);
        while number > self.acked[shard] + credits {
            self.look(shard)?;
            wait.turn(self, shard)?;
        }
        self.sent[shard] = number;
        Ok(number)
    }

    /// Writes into the slots of the primaries; and again, where one was not reached, to that one or
    /// to those that lead in its place.
    /// What a primary does not take since it leads no more is sent again by who waits for it.
    pub(super) fn send(&mut self, all: &[Sending]) -> Result<()> {
        let removed = self.fabric.view.removed();
        match self.try_send(all) {
            Err(Error::Transport { peer, .. }) => {
                self.wait_for_server(peer, removed)?;
                self.send_again()
            }
            other => other,
        }
    }

    /// Sends what is not acknowledged, and was sent to other servers or over a connection that has
    /// failed, to the primaries of now.
    pub(super) fn send_again(&mut self) -> Result<()> {
        let mut wait = Waiting::new("a server that takes what is sent again", 0, 0);
        loop {
            let mut all = Vec::new();
            for shard in 0..self.sent.len() {
                if !self.is_elsewhere(shard)? {
                    continue;
                }
                for number in self.acked[shard] + 1..=self.sent[shard] {
                    let slot = self.staged(shard, number) as usize;
                    let region = &self.staging[shard].region;
                    let [start, length] = [16, 24].map(|at| region.word64(slot + at));
                    let (start, length) = (peek(&start?), peek(&length?));
                    all.push(Sending { shard, number, start, length });
                }
            }
            let removed = self.fabric.view.removed();
            match self.try_send(&all) {
                Err(Error::Transport { peer, .. }) => self.wait_for_server(peer, removed)?,
                other => return other,
            }
            wait.turn(self, 0)?;
        }
    }

    /// Each step on all servers, then the next: header and data; a word of each read back, which
    /// pushes them into memory; the number.
    fn try_send(&mut self, all: &[Sending]) -> Result<()> {
        let (mut targets, mut sent_to) = (Vec::new(), self.sent_to.clone());
        for Sending { shard, number, .. } in all.iter().copied() {
            let target = self.primary(shard)?;
            // Where an earlier write went elsewhere, the shard stays such until all is sent again.
            if self.acked[shard] + 1 == number {
                sent_to[shard] = Some(target);
            } else if sent_to[shard] != Some(target) {
                sent_to[shard] = None;
            }
            targets.push(target);
            self.sent_to[shard] = None;
        }
        let sent = self.send_steps(all, &targets);
        match sent {
            Ok(()) => self.sent_to = sent_to,
            // Staging memory changes only when nothing reads it any more.
            Err(_) => (0..self.job().servers).for_each(|server| self.fabric.settle(server)),
        }
        sent
    }

    fn send_steps(&mut self, all: &[Sending], targets: &[usize]) -> Result<()> {
        let mut begun = Vec::new();
        for (sending, server) in all.iter().zip(targets) {
            begun.push(self.begin_words(sending, *server, 8..HEADER_BYTES)?);
            let Sending { shard, number, start, length } = *sending;
            let slot = self.room(shard).slot_data(self.worker, number);
            let to = self.fabric.data(*server, shard, slot + start);
            let from = self.staged(shard, number) + HEADER_BYTES + start;
            let from = self.staging[shard].at(from);
            begun.push((*server, self.fabric.write(*server, from, to, length)?));
        }
        self.wait_all(&begun)?;
        begun.clear();
        for (sending, server) in all.iter().zip(targets) {
            let Sending { shard, number, .. } = *sending;
            let room = self.room(shard);
            let words = self.fabric.words(*server, shard, room.header(self.worker, number) + 8);
            let data = self.fabric.data(*server, shard, room.slot_data(self.worker, number));
            for from in [words, data] {
                let into = self.status[shard].at(room.status_bytes());
                begun.push((*server, self.fabric.read(*server, into, from, 8)?));
            }
        }
        self.wait_all(&begun)?;
        begun.clear();
        for (sending, server) in all.iter().zip(targets) {
            begun.push(self.begin_words(sending, *server, 0..8)?);
        }
        self.wait_all(&begun)
    }

    /// Begins to write a part of a slot's header.
    fn begin_words(&mut self, sending: &Sending, server: usize, part: Range<u64>) -> Result<Begun> {
        let Sending { shard, number, .. } = *sending;
        let header = self.room(shard).header(self.worker, number);
        let to = self.fabric.words(server, shard, header + part.start);
        let from = self.staging[shard].at(self.staged(shard, number) + part.start);
        Ok((server, self.fabric.write(server, from, to, part.end - part.start)?))
    }
}
