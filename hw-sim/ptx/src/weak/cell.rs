//! The history of eight bytes: their writes, in an order that extends the coherence order.
//!
//! PTX relates two overlapping writes in coherence order only if they are morally strong or one
//! causes the other. The list is a total order, but only pairs that are so related count, and what
//! follows by transitivity: a read may return either of two writes that race.

use std::rc::Rc;

use super::view::{AgentId, Release, View, WriteId};

/// Writes of one cell that are kept. Older ones are forgotten once newer ones cover them: fewer
/// old values can then be read, never wrong ones.
const KEPT_MAX: usize = 10;

/// A write to a part of a cell.
#[derive(Clone, Debug)]
pub struct Message {
    /// Which write.
    pub id: WriteId,
    /// Its bytes in the cell, a bit each.
    pub mask: u8,
    /// The cell with these bytes.
    pub data: u64,
    /// The index of its scope if it is strong.
    pub scope: Option<usize>,
    /// It is the write of an atomic that read what is before it in the list.
    pub is_attached: bool,
    /// What it passes on, and what it passes on of others (atomics only).
    pub releases: Vec<Rc<Release>>,
    /// What its writer knew.
    pub past: Rc<View>,
}

/// Eight bytes.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// What is before all messages.
    pub base: u64,
    /// Bytes of it that messages left which are forgotten. Nobody reads these any more: with the
    /// message went what it passes on, and a read without that would be weaker than any.
    forgotten: u8,
    /// Writes, oldest first.
    pub history: Vec<Message>,
}

/// Spreads a mask of bytes over the bits of a word.
pub fn bits(mask: u8) -> u64 {
    // Each byte: all ones where the mask has its bit.
    (0..8).filter(|byte| mask >> byte & 1 == 1).fold(0, |bits, byte| bits | 0xff << (8 * byte))
}

impl Cell {
    /// The bytes as the newest writes left them, up to and with the message at `position - 1`.
    pub fn value_at(&self, position: usize) -> u64 {
        self.history[..position].iter().fold(self.base, |value, message| {
            let bits = bits(message.mask);
            value & !bits | message.data & bits
        })
    }

    /// Forgets what nobody has to read any more.
    pub fn tidy(&mut self) {
        while self.history.len() > KEPT_MAX {
            let covered = self.history[1..].iter().fold(0, |covered, m| covered | m.mask);
            let first = &self.history[0];
            if first.mask & !covered != 0 {
                return;
            }
            let bits = bits(first.mask);
            self.base = self.base & !bits | first.data & bits;
            self.forgotten |= first.mask;
            self.history.remove(0);
        }
    }
}

/// Who asks: enough to tell which writes it knows, and with which it is morally strong.
pub struct Reader<'a> {
    /// The agent.
    pub agent: AgentId,
    /// The cell's address.
    pub cell: u64,
    /// What it knows.
    pub view: &'a View,
    /// The index of the narrowest scope that holds both agents.
    pub distance: &'a dyn Fn(AgentId, AgentId) -> usize,
}

impl Reader<'_> {
    /// Is the write in its causal past?
    pub fn knows(&self, message: &Message) -> bool {
        message.id.agent == self.agent || self.view.knows(self.cell, message.id)
    }

    /// Are the two writes related in coherence order (the first one being before the second)?
    fn related(&self, first: &Message, second: &Message) -> bool {
        if first.mask & second.mask == 0 {
            return false;
        }
        let causal = first.id.agent == second.id.agent || second.past.knows(self.cell, first.id);
        causal || self.strong(first, second)
    }

    /// Are two writes of different agents morally strong?
    pub fn strong(&self, first: &Message, second: &Message) -> bool {
        let Some((a, b)) = first.scope.zip(second.scope) else { return false };
        let distance = (self.distance)(first.id.agent, second.id.agent);
        first.mask == second.mask && distance <= a && distance <= b
    }

    /// The positions in the history that it may read `mask` from, newest first: 0 is the base, and
    /// `n` the message at `n - 1`. All messages must cover the mask or not touch it.
    pub fn candidates(&self, cell: &Cell, mask: u8) -> Vec<usize> {
        let touches = |message: &Message| message.mask & mask != 0;
        let mut barred = vec![false; cell.history.len()];
        let mut found = Vec::with_capacity(cell.history.len() + 1);
        let mut base_is_free = true;
        for position in (0..cell.history.len()).rev() {
            let message = &cell.history[position];
            if !touches(message) {
                continue;
            }
            barred[position] =
                cell.history[position + 1..].iter().zip(position + 1..).any(|(later, at)| {
                    touches(later)
                        && (barred[at] || self.knows(later))
                        && self.related(message, later)
                });
            base_is_free &= !self.knows(message) && !barred[position];
            if !barred[position] {
                found.push(position + 1);
            }
        }
        if base_is_free && cell.forgotten & mask == 0 {
            found.push(0);
        }
        found
    }

    /// Where a write to `mask` may come to stand: positions to insert at, last first.
    pub fn places(&self, cell: &Cell, message: &Message) -> Vec<usize> {
        let mut places = vec![cell.history.len()];
        for position in (0..cell.history.len()).rev() {
            let later = &cell.history[position];
            if later.mask & message.mask == 0 {
                continue;
            }
            if self.knows(later) {
                break;
            }
            // Nothing comes between what an atomic read and what it wrote.
            if !(later.is_attached && self.strong(message, later)) {
                places.push(position);
            }
        }
        places
    }
}
