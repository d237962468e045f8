//! Reads that may still come to see a store which comes later (load buffering).
//!
//! A read gives its value at once. It is kept as *late* for as long as nothing depends on the
//! value: nobody has looked at the register or the bytes that got it. When a write comes to the
//! same place meanwhile, and the reader has written something in between, the read may be taken to
//! have seen that write instead: the new value goes to where the old one went.
//!
//! PTX allows that unless the read comes before the write in causality order, or something that the
//! read sees would depend on it. The first is told by the write's past: each late read counts as a
//! write of its agent, so whoever knows of what the agent did behind it knows of the read. The
//! second is excluded, because a late read ends with the first look at its value.
//!
//! A read that would synchronise, or whose observation others may have been told of since, stays as
//! it was: fewer executions, never wrong ones.

use std::collections::HashMap;

use super::state::Word;
use super::view::AgentId;
use super::{Order, State, Strength, bits};

/// Late reads that are kept: the oldest become ordinary ones.
const KEPT_MAX: usize = 1024;

/// Who gets the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiver {
    /// Who asked, under this number.
    Asker(u64),
    /// A write of the same agent to this cell, and how far its bytes lie to the left there.
    Write { cell: u64, count: u32, shift: i32 },
}

/// A read whose value nobody has looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Late {
    agent: AgentId,
    /// What it counts as among the agent's writes.
    count: u32,
    word: Word,
    strength: Strength,
    /// What the agent had released and acquired by then.
    crossings: u64,
    receiver: Receiver,
}

/// All late reads of a memory.
#[derive(Default)]
pub(super) struct LateReads {
    list: Vec<Late>,
    /// New values of those who asked.
    pub news: Vec<(u64, u64)>,
    /// Releases, acquires, fences and barriers of each agent.
    crossings: HashMap<AgentId, u64>,
    next: u64,
}

impl LateReads {
    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// An agent has released or acquired something.
    pub fn cross(&mut self, agent: AgentId) {
        if !self.list.is_empty() {
            *self.crossings.entry(agent).or_default() += 1;
        }
    }

    /// A new number for who asks.
    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Keeps a read.
    pub fn add(&mut self, (agent, count): (AgentId, u32), read: (Word, Strength), to: Receiver) {
        let crossings = self.crossings.get(&agent).copied().unwrap_or(0);
        let (word, strength) = read;
        if self.list.len() == KEPT_MAX {
            self.list.remove(0);
        }
        self.list.push(Late { agent, count, word, strength, crossings, receiver: to });
    }

    /// Somebody looks at a cell: values that were written there stay as they are.
    pub fn settle_at(&mut self, cell: u64) {
        self.list.retain(
            |late| !matches!(late.receiver, Receiver::Write { cell: there, .. } if there == cell),
        );
    }

    /// Who asked looks at the value.
    pub fn settle(&mut self, number: u64) {
        self.list.retain(|late| late.receiver != Receiver::Asker(number));
    }

    /// Reads of a cell, and of what was written there, are over.
    pub fn end_all(&mut self, cell: u64) {
        self.settle_at(cell);
        self.list.retain(|late| late.word.cell != cell);
    }

    /// An agent comes to a place again: its reads there are over, so that they stay in order.
    pub fn end_reads(&mut self, agent: AgentId, cell: u64) {
        self.list.retain(|late| late.agent != agent || late.word.cell != cell);
    }
}

impl State {
    /// A write has come to a cell, at this place of its history: late reads may see it.
    pub(super) fn reach_late_reads(&mut self, cell: u64, place: usize) {
        let writer = self.cell(cell).history[place].id.agent;
        let list = std::mem::take(&mut self.late.list);
        for late in list {
            if late.word.cell != cell || late.agent == writer {
                self.late.list.push(late);
            } else if self.may_be_seen(&late, place) {
                if self.choices.choose(2) == 1 {
                    self.see_late(&late, place);
                }
                self.late.list.push(late);
            } else if !self.cell(cell).history[place].past.knows_of(late.agent, late.count) {
                self.late.list.push(late);
            }
            // Else the write comes behind the read, and so does what follows it in the history.
        }
    }

    fn may_be_seen(&mut self, late: &Late, place: usize) -> bool {
        // Without a write in between, another order of turns gives the same.
        if self.agents[late.agent as usize].count == late.count {
            return false;
        }
        let message = &self.cell(late.word.cell).history[place];
        let is_whole = message.mask & late.word.mask == late.word.mask;
        if !is_whole || message.past.knows_of(late.agent, late.count) {
            return false;
        }
        let candidates = self.candidates(late.agent, late.word.cell, late.word.mask);
        let crossings = self.late.crossings.get(&late.agent).copied().unwrap_or(0);
        let has_crossed = crossings != late.crossings;
        candidates.contains(&(place + 1))
            && !(has_crossed && self.is_strong_with(late.agent, late.word, late.strength, place))
    }

    fn see_late(&mut self, late: &Late, place: usize) {
        let value = self.cell(late.word.cell).value_at(place + 1) & bits(late.word.mask);
        self.saw(late.agent, late.word, late.strength, place + 1);
        match late.receiver {
            Receiver::Asker(number) => self.late.news.push((number, value >> late.word.shift)),
            Receiver::Write { cell, count, shift } => {
                let data = if shift < 0 { value >> -shift } else { value << shift };
                let history = &mut self.cell(cell).history;
                let written =
                    history.iter_mut().find(|it| it.id.agent == late.agent && it.id.count == count);
                if let Some(message) = written {
                    message.data = message.data & !bits(message.mask) | data & bits(message.mask);
                }
            }
        }
    }

    /// Keeps the read that an agent has just made as a late one.
    pub(super) fn keep_late(
        &mut self,
        agent: AgentId,
        word: Word,
        strength: Strength,
        receiver: Receiver,
    ) {
        // An acquire orders what comes behind it: its value is what it is.
        if !matches!(strength.order, Order::Weak | Order::Relaxed) {
            return;
        }
        let count = self.agents[agent as usize].count;
        debug_assert!(count > 0, "the read was counted");
        self.late.add((agent, count), (word, strength), receiver);
    }
}
