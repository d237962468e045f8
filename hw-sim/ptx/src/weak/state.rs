//! The steps of the model.

use std::ops::Range;
use std::rc::Rc;

use super::{
    Agent, AgentId, Cell, EVENTS_KEPT, Event, MemoryFault, Message, Order, Reader, SCOPES,
    Snapshot, State, Strength, View, WriteId, acquires, agent::Place, bits, distance,
    join_snapshot, releases, scope_index,
};

/// An access of up to eight bytes within one cell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word {
    pub cell: u64,
    pub mask: u8,
    pub shift: u32,
}

impl State {
    pub(super) fn tick(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    pub(super) fn log(&mut self, agent: AgentId, event: Event) {
        let serial = self.tick();
        let kept = self.options.events_kept.max(EVENTS_KEPT);
        let events = &mut self.events[agent as usize];
        if events.len() == kept {
            events.pop_front();
        }
        events.push_back((serial, event));
    }

    pub(super) fn cell(&mut self, cell: u64) -> &mut Cell {
        let (_, region) = self.regions.range_mut(..=cell).next_back().expect("checked before");
        &mut region.cells[((cell - region.start) / 8) as usize]
    }

    fn cell_of(&self, cell: u64) -> &Cell {
        let (_, region) = self.regions.range(..=cell).next_back().expect("checked before");
        &region.cells[((cell - region.start) / 8) as usize]
    }

    /// Checks that one allocation holds the bytes.
    fn check(&self, address: u64, length: usize) -> Result<(), MemoryFault> {
        let (_, region) =
            self.regions.range(..=address).next_back().ok_or(MemoryFault::OutOfBounds)?;
        let end = address.checked_add(length as u64).ok_or(MemoryFault::OutOfBounds)?;
        if end > region.start + region.bytes { Err(MemoryFault::OutOfBounds) } else { Ok(()) }
    }

    /// Calls `f` with each part of a range that lies in one cell: the cell's address, the cell,
    /// mask, shift, the part's bytes, and the first one's place in the cell.
    pub(super) fn each_part(
        &mut self,
        address: u64,
        length: usize,
        mut f: impl FnMut(u64, &mut Cell, u8, u32, Range<usize>, usize),
    ) -> Result<(), MemoryFault> {
        self.check(address, length)?;
        let mut done = 0;
        while done < length {
            let (word, count) = word_at(address + done as u64, length - done);
            let cell = self.cell(word.cell);
            f(word.cell, cell, word.mask, word.shift, done..done + count, word.shift as usize / 8);
            done += count;
        }
        Ok(())
    }

    /// One access of up to eight bytes. Gives how many newer values there were.
    pub(super) fn read_word(
        &mut self,
        agent: AgentId,
        address: u64,
        strength: Strength,
        bytes: &mut [u8],
    ) -> Result<usize, MemoryFault> {
        self.check(address, bytes.len())?;
        let (mut done, mut age) = (0, 0);
        while done < bytes.len() {
            let (word, count) = word_at(address + done as u64, bytes.len() - done);
            let (value, older) = self.read_cell(agent, word, strength);
            age = age.max(older);
            let raw = (value >> word.shift).to_le_bytes();
            bytes[done..done + count].copy_from_slice(&raw[..count]);
            done += count;
        }
        Ok(age)
    }

    fn read_cell(&mut self, agent: AgentId, word: Word, strength: Strength) -> (u64, usize) {
        if !self.late.is_empty() {
            self.late.settle_at(word.cell);
            self.late.end_reads(agent, word.cell);
        }
        let whole = {
            let own = &self.agents[agent as usize];
            let cell = self.cell_of(word.cell);
            match cell.history.as_slice() {
                [] => return (cell.base, 0),
                // The one that is known: no choice, and nothing new.
                [only]
                    if only.mask & word.mask == word.mask
                        && strength.order == Order::Weak
                        && (only.id.agent == agent || own.view.knows(word.cell, only.id)) =>
                {
                    return (only.data, 0);
                }
                _ => {}
            }
            let partial = |m: &Message| m.mask & word.mask != 0 && m.mask & word.mask != word.mask;
            !cell.history.iter().any(partial)
        };
        if !whole {
            return self.read_bytes(agent, word, strength);
        }
        let candidates = self.candidates(agent, word.cell, word.mask);
        let last = candidates.len() - 1;
        if last > 0
            && let Some(&one_in) = self.seldom.get(&word.cell)
            && self.choices.choose(one_in) + 1 < one_in
        {
            let value = self.cell(word.cell).value_at(candidates[last]);
            self.saw(agent, word, strength, candidates[last]);
            return (value, last);
        }
        let races = (self.options.tears || self.options.stalls)
            && candidates.len() > 1
            && !self.are_strong(agent, word, strength, &candidates);
        if races && self.options.tears && word.mask.count_ones() > 1 && self.choices.choose(8) == 7
        {
            return self.read_bytes(agent, word, strength);
        }
        let chosen = match races && self.options.stalls {
            true => last,
            false => self.choices.choose(candidates.len()),
        };
        let position = candidates[chosen];
        let value = self.cell(word.cell).value_at(position);
        self.saw(agent, word, strength, position);
        (value, chosen)
    }

    /// Is the read morally strong with every write that it may return? Then it is one piece.
    fn are_strong(
        &self,
        agent: AgentId,
        word: Word,
        strength: Strength,
        candidates: &[usize],
    ) -> bool {
        let own = scope_index(strength.scope);
        let history = &self.cell_of(word.cell).history;
        let messages = candidates.iter().filter_map(|at| history.get(at.checked_sub(1)?));
        strength.order != Order::Weak
            && messages.into_iter().all(|message| {
                let away = distance(self.place(agent), self.place(message.id.agent));
                let wide = message.scope.is_some_and(|scope| scope >= away) && own >= away;
                message.mask == word.mask && (wide || message.id.agent == agent)
            })
    }

    /// Is a read morally strong with the write at this place of the history?
    pub(super) fn is_strong_with(
        &self,
        agent: AgentId,
        word: Word,
        strength: Strength,
        place: usize,
    ) -> bool {
        let message = &self.cell_of(word.cell).history[place];
        let away = distance(self.place(agent), self.place(message.id.agent));
        strength.order != Order::Weak
            && message.mask == word.mask
            && message.scope.is_some_and(|scope| scope >= away)
            && scope_index(strength.scope) >= away
    }

    /// Byte by byte: where writes cover parts of what is read, or a race tears it.
    fn read_bytes(&mut self, agent: AgentId, word: Word, strength: Strength) -> (u64, usize) {
        let (mut value, mut age) = (0, 0);
        for byte in (0..8).filter(|byte| word.mask >> byte & 1 == 1) {
            let mask = 1 << byte;
            let candidates = self.candidates(agent, word.cell, mask);
            let chosen = self.choices.choose(candidates.len());
            age = age.max(chosen);
            let found = self.cell(word.cell).value_at(candidates[chosen]);
            value |= found & bits(mask);
            self.saw(agent, word, strength, candidates[chosen]);
        }
        (value, age)
    }

    pub(super) fn candidates(&mut self, agent: AgentId, address: u64, mask: u8) -> Vec<usize> {
        let view = Rc::clone(&self.agents[agent as usize].view);
        self.with_reader(agent, address, &view, |reader, cell| reader.candidates(cell, mask))
    }

    fn with_reader<T>(
        &mut self,
        agent: AgentId,
        address: u64,
        view: &View,
        f: impl FnOnce(&Reader<'_>, &Cell) -> T,
    ) -> T {
        let cell = self.cell_of(address);
        let agents = &self.agents;
        let far =
            |a: AgentId, b: AgentId| distance(agents[a as usize].place, agents[b as usize].place);
        f(&Reader { agent, cell: address, view, distance: &far }, cell)
    }

    /// A read took its value from the message before `position`: what follows if they are morally
    /// strong.
    pub(super) fn saw(&mut self, agent: AgentId, word: Word, strength: Strength, position: usize) {
        let Some(before) = position.checked_sub(1) else { return };
        // The last write at or before the position that touches the bytes.
        let message = {
            let cell = self.cell(word.cell);
            let found = cell.history[..=before].iter().rev().find(|m| m.mask & word.mask != 0);
            let Some(message) = found else { return };
            (message.id, message.mask, message.scope, message.releases.clone())
        };
        let (id, mask, scope, list) = message;
        if id.agent == agent || strength.order == Order::Weak || mask != word.mask {
            return;
        }
        let away = distance(self.place(agent), self.place(id.agent));
        let own_scope = scope_index(strength.scope);
        if scope.is_none_or(|scope| scope < away) || own_scope < away {
            return;
        }
        let own = &mut self.agents[agent as usize];
        if !own.view.knows(word.cell, id) {
            Rc::make_mut(&mut own.view).observe(word.cell, id);
        }
        own.note(word.cell, &list);
        if acquires(strength.order) {
            self.late.cross(agent);
            self.acquire_at(agent, word.cell, own_scope);
        }
    }

    pub(super) fn place(&self, agent: AgentId) -> Place {
        self.agents[agent as usize].place
    }

    fn acquire_at(&mut self, agent: AgentId, cell: u64, scope: usize) {
        let Self { agents, places, .. } = self;
        agents[agent as usize].acquire_at(cell, scope, |other| places[other as usize]);
    }

    pub(super) fn write_word(
        &mut self,
        agent: AgentId,
        address: u64,
        strength: Strength,
        bytes: &[u8],
    ) -> Result<(), MemoryFault> {
        self.check(address, bytes.len())?;
        let mut done = 0;
        while done < bytes.len() {
            let (word, count) = word_at(address + done as u64, bytes.len() - done);
            let mut raw = [0; 8];
            raw[..count].copy_from_slice(&bytes[done..done + count]);
            let data = u64::from_le_bytes(raw) << word.shift;
            let message = self.message(agent, word, strength, data);
            let view = Rc::clone(&message.past);
            let places = self
                .with_reader(agent, word.cell, &view, |reader, cell| reader.places(cell, &message));
            let place = places[self.choices.choose(places.len())];
            self.cell(word.cell).history.insert(place, message);
            if !self.late.is_empty() {
                self.late.settle_at(word.cell);
                self.late.end_reads(agent, word.cell);
                self.reach_late_reads(word.cell, place);
            }
            self.cell(word.cell).tidy();
            done += count;
        }
        Ok(())
    }

    /// The message of a write that happens now.
    fn message(&mut self, agent: AgentId, word: Word, strength: Strength, data: u64) -> Message {
        let serial = self.tick();
        let own = &mut self.agents[agent as usize];
        own.count += 1;
        let is_strong = strength.order != Order::Weak;
        let scope = scope_index(strength.scope);
        let mut list = Vec::new();
        if releases(strength.order) {
            self.late.cross(agent);
        }
        let own = &mut self.agents[agent as usize];
        if is_strong {
            let now = releases(strength.order).then(|| (scope, own.snapshot(serial)));
            list.extend(own.release_for((word.cell, word.mask), now));
        }
        Message {
            id: WriteId { agent, count: own.count },
            mask: word.mask,
            data,
            scope: is_strong.then_some(scope),
            is_attached: false,
            releases: list,
            past: Rc::clone(&own.view),
        }
    }

    /// A read-modify-write: old and new value.
    #[allow(clippy::too_many_arguments)] // All are words of one instruction.
    pub(super) fn modify(
        &mut self,
        agent: AgentId,
        address: u64,
        length: usize,
        strength: Strength,
        compare: Option<u64>,
        change: &dyn Fn(u64) -> u64,
    ) -> Result<(u64, u64), MemoryFault> {
        self.check(address, length)?;
        let (word, count) = word_at(address, length);
        if count != length {
            return Err(MemoryFault::Misaligned);
        }
        // Nothing is kept of reads where atomics are at work.
        self.late.end_all(word.cell);
        let keep = bits(word.mask);
        let view = Rc::clone(&self.agents[agent as usize].view);
        let probe = Message {
            id: WriteId { agent, count: u32::MAX },
            mask: word.mask,
            data: 0,
            scope: Some(scope_index(strength.scope)),
            is_attached: true,
            releases: Vec::new(),
            past: Rc::clone(&view),
        };
        // Whether the value at a position may be read, and whether a write may follow it there.
        let options = self.with_reader(agent, word.cell, &view, |reader, cell| {
            let places = reader.places(cell, &probe);
            let readable = reader.candidates(cell, word.mask);
            let fails = |position: usize| {
                let value = (cell.value_at(position) & keep) >> word.shift;
                compare.is_some_and(|compare| compare & (keep >> word.shift) != value)
            };
            let end = cell.history.len();
            readable
                .into_iter()
                .map(|position| {
                    // Behind it stand only writes to other bytes: that is the end, too.
                    let rest = &cell.history[position..];
                    let last = rest.iter().all(|later| later.mask & word.mask == 0);
                    (position, if last { end } else { position })
                })
                .filter(|(position, place)| fails(*position) || places.contains(place))
                .map(|(position, place)| (position, place, fails(position)))
                .collect::<Vec<_>>()
        });
        let (position, place, fails) = options[self.choices.choose(options.len())];
        let old = (self.cell(word.cell).value_at(position) & keep) >> word.shift;
        let read = Strength { order: read_order(strength.order), ..strength };
        self.saw(agent, word, read, position);
        if fails {
            return Ok((old, old));
        }
        let new = change(old);
        let carried = self.carried(agent, word, strength, position);
        let mut message = self.message(agent, word, strength, new << word.shift);
        message.is_attached = true;
        message.releases.extend(carried);
        let cell = self.cell(word.cell);
        cell.history.insert(place, message);
        cell.tidy();
        Ok((old, new))
    }

    /// What an atomic passes on of what it has read.
    fn carried(
        &mut self,
        agent: AgentId,
        word: Word,
        strength: Strength,
        position: usize,
    ) -> Vec<Rc<super::view::Release>> {
        let Some(before) = position.checked_sub(1) else { return Vec::new() };
        let message = &self.cell(word.cell).history[before];
        if message.mask != word.mask {
            return Vec::new();
        }
        let (other, scope, list) = (message.id.agent, message.scope, message.releases.clone());
        let away = distance(self.place(agent), self.place(other));
        let strong =
            scope.is_some_and(|scope| scope >= away) && scope_index(strength.scope) >= away;
        if strong || other == agent { list } else { Vec::new() }
    }

    pub(super) fn fence(&mut self, agent: AgentId, strength: Strength) {
        let scope = scope_index(strength.scope);
        self.late.cross(agent);
        if acquires(strength.order) {
            let Self { agents, places, .. } = self;
            agents[agent as usize].acquire_all(scope, |other| places[other as usize]);
        }
        if strength.order == Order::SequentiallyConsistent {
            self.take_turn(agent, scope);
        }
        if releases(strength.order) {
            let serial = self.tick();
            let own = &mut self.agents[agent as usize];
            let snapshot = own.snapshot(serial);
            own.released.raise(&snapshot, scope);
        }
    }

    /// `fence.sc`: it comes after all such fences so far whose scope holds this agent and whose
    /// agent this scope holds.
    fn take_turn(&mut self, agent: AgentId, scope: usize) {
        let place = self.place(agent);
        let narrowest = if place == Place::Outside { SCOPES - 1 } else { 0 };
        let holders: Vec<_> =
            (narrowest..=scope).map(|level| (level, holder(place, level))).collect();
        for holder in &holders {
            if let Some(view) = self.fences.get(holder).map(Rc::clone) {
                self.know(agent, &view);
            }
        }
        let serial = self.tick();
        let snapshot: Rc<Snapshot> = self.agents[agent as usize].snapshot(serial);
        for holder in holders {
            join_snapshot(self.fences.entry(holder).or_default(), &snapshot);
        }
    }

    pub(super) fn know(&mut self, agent: AgentId, view: &Rc<View>) {
        self.late.cross(agent);
        let own: &mut Agent = &mut self.agents[agent as usize];
        if !Rc::ptr_eq(&own.view, view) {
            Rc::make_mut(&mut own.view).join(view);
        }
    }
}

/// The order of an atomic's read.
fn read_order(order: Order) -> Order {
    if acquires(order) { Order::Acquire } else { Order::Relaxed }
}

/// Which instance of a scope an agent is in.
fn holder(place: Place, level: usize) -> Option<Place> {
    match (place, level) {
        (_, 3) => None,
        (Place::Block { gpu, .. }, 2) => Some(Place::Block { gpu, block: u32::MAX }),
        (place, _) => Some(place),
    }
}

const _: () = assert!(SCOPES == 4);

/// The part of an access that lies in the cell of its first byte, and its length.
pub(super) fn word_at(address: u64, length: usize) -> (Word, usize) {
    let first = (address % 8) as u32;
    let count = length.min(8 - first as usize);
    let mask = (((1_u16 << count) - 1) << first) as u8;
    (Word { cell: address - u64::from(first), mask, shift: 8 * first }, count)
}
