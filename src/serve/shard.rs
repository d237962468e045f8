//! One shard on one server: its versions, and the slots of its workers. What workers have written
//! is looked at here and not trusted.

use super::job::Terms;
use super::layout::{
    HANDED, LEADS, PUBLISHED, Room, SYNCED, VERSION, WRITING, read_synced, synced,
};
use super::optimizer::Optimizer;
use super::stale::Stale;
use super::store::{Change, GRADIENTS_MAX, Store};
use super::words::{get, observe, peek, publish, set, warn_before};
use crate::error::Result;
use crate::shared::{AtomicWord64, Region};
use ringdove_kernels::element::DataType;
use std::ops::Range;

/// What a write into a slot asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Apply the data as a gradient of the whole shard.
    Gradient,
    /// The data becomes the parameters.
    Assign,
}

/// Why a write is refused, by the code that the worker finds.
pub(super) const REASONS: [&str; 4] = [
    "its kind is neither gradient nor assignment",
    "its range is not inside of the shard",
    "a gradient is of the whole shard",
    "there is no such tensor of 32-bit floats to apply it to",
];

/// A write in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Write {
    pub(super) worker: u64,
    /// Counts the worker's writes to this shard, from 1.
    pub(super) number: u64,
    /// What it asks for, or the code of the reason why it is refused.
    pub(super) kind: std::result::Result<Kind, u64>,
    start: u64,
    length: u64,
}

impl Write {
    /// Bytes that it changes.
    pub(super) fn bytes(&self) -> u64 {
        self.kind.map_or(0, |_| self.length)
    }
}

/// The first words of a slot behind its number, which a worker writes.
pub(super) fn header(kind: Kind, start: u64, length: u64) -> [u64; 3] {
    let kind = match kind {
        Kind::Gradient => 1,
        Kind::Assign => 2,
    };
    [kind, start, length]
}

/// What is in a version. Each write makes one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) version: u64,
    /// Gradients of all workers.
    steps: u64,
    /// Of each worker: its writes, how many were gradients, and its last one that was refused.
    pub(super) applied: Vec<u64>,
    pub(super) clocks: Vec<u64>,
    refused: Vec<u64>,
}

impl Counts {
    fn new(workers: usize) -> Self {
        let [applied, clocks, refused] = [(); 3].map(|()| vec![0; workers]);
        Self { applied, clocks, refused, ..Self::default() }
    }

    /// Counts one more write.
    pub(super) fn take(&mut self, write: &Write) {
        let worker = write.worker as usize;
        self.version += 1;
        self.applied[worker] = write.number;
        match write.kind {
            Ok(Kind::Gradient) => {
                self.steps += 1;
                self.clocks[worker] += 1;
            }
            Ok(Kind::Assign) => {}
            Err(code) => self.refused[worker] = write.number << 8 | (code + 1),
        }
    }

    fn words(&self) -> impl Iterator<Item = u64> {
        let of_workers = [&self.applied, &self.clocks, &self.refused].into_iter().flatten();
        [self.version, self.steps].into_iter().chain(of_workers.copied())
    }

    fn words_mut(&mut self) -> impl Iterator<Item = &mut u64> {
        let of_workers = [&mut self.applied, &mut self.clocks, &mut self.refused];
        let all = [&mut self.version, &mut self.steps];
        all.into_iter().chain(of_workers.into_iter().flatten())
    }
}

/// A shard in a server's room.
pub(super) struct Shard {
    pub(super) room: Room,
    words: Region,
    store: Store,
    optimizer: Optimizer,
    /// The bytes of parameters that gradients change: whole words.
    floats: Vec<Range<u64>>,
    /// The newest version that was made here lies in the buffer of this pass.
    pass: u64,
    pub(super) counts: Counts,
    /// What the other buffers lack of it.
    stale: Vec<Stale>,
    /// It is not published yet.
    is_new: bool,
}

impl Shard {
    pub(super) fn new(terms: &Terms, index: usize, words: Region, store: Store) -> Self {
        let room = terms.room(index);
        let places = terms.job.model.tensors().iter().zip(&terms.sharding.places);
        let places = places.filter(|(_, place)| place.shard == index).map(|(tensor, place)| {
            let end = (place.offset + tensor.bytes()).next_multiple_of(8);
            (place.offset, end, tensor.data_type == DataType::F32)
        });
        let mut places: Vec<_> = places.collect();
        places.sort_unstable();
        let (mut floats, mut is_next) = (Vec::<Range<u64>>::new(), false);
        for (start, end, is_float) in places {
            match floats.last_mut().filter(|_| is_next && is_float) {
                // What fills the line between them belongs to no tensor.
                Some(last) => last.end = end,
                None if is_float => floats.push(start..end),
                None => {}
            }
            is_next = is_float;
        }
        Self {
            room,
            words,
            store,
            optimizer: terms.job.optimizer,
            floats,
            pass: 0,
            counts: Counts::new(terms.job.workers),
            stale: vec![Stale::default(); terms.job.versions],
            is_new: false,
        }
    }

    pub(super) fn word(&self, offset: u64) -> Result<AtomicWord64> {
        self.words.word64(offset as usize)
    }

    /// The buffer of the newest version.
    pub(super) fn buffer(&self) -> u64 {
        self.room.buffer(self.pass)
    }

    /// What a pass has made that is not published yet.
    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    /// The next write of this worker behind those that are counted, if it is there.
    pub(super) fn next_write(&self, counts: &Counts, worker: u64) -> Result<Option<Write>> {
        let number = counts.applied[worker as usize] + 1;
        let slot = self.room.header(worker, number);
        if observe(&self.word(slot)?) != number {
            return Ok(None);
        }
        let [kind, start, length] = [8, 16, 24].map(|at| self.word(slot + at));
        let (kind, start, length) = (peek(&kind?), peek(&start?), peek(&length?));
        let inside = start.checked_add(length).is_some_and(|end| end <= self.room.bytes);
        let kind = match kind {
            1 | 2 if !inside || length == 0 => Err(1),
            1 if length != self.room.bytes => Err(2),
            1 if self.floats.is_empty() => Err(3),
            1 => Ok(Kind::Gradient),
            2 => Ok(Kind::Assign),
            _ => Err(0),
        };
        Ok(Some(Write { worker, number, kind, start, length }))
    }

    /// May another write be made in one pass with these? Gradients may.
    pub(super) fn fits(writes: &[Write], next: &Write) -> bool {
        let is_gradient = |write: &Write| write.kind == Ok(Kind::Gradient);
        let all = writes.iter().chain([next]).all(is_gradient);
        writes.is_empty() || all && writes.len() < GRADIENTS_MAX
    }

    /// Tells workers whether this server is the primary.
    pub(super) fn set_leads(&self, leads: bool) -> Result<()> {
        publish(&self.word(LEADS)?, leads.into());
        Ok(())
    }

    /// Leads no more: what is here is what another primary goes on from, or this server, later.
    pub(super) fn give_up(&self) -> Result<()> {
        self.set_leads(false)?;
        publish(&self.word(SYNCED)?, synced(self.counts.version, self.buffer()));
        Ok(())
    }

    /// The word by which the other holder hands the shard over.
    pub(super) fn handed(&self) -> Result<u64> {
        Ok(observe(&self.word(HANDED)?))
    }

    /// The version that a primary has copied here last.
    pub(super) fn synced(&self) -> Result<u64> {
        Ok(read_synced(observe(&self.word(SYNCED)?)).0)
    }

    /// Bytes that workers say they have read here, modulo 2^64.
    pub(super) fn traffic(&self) -> Result<u64> {
        (0..self.room.workers).try_fold(0_u64, |sum, worker| {
            Ok(sum.wrapping_add(peek(&self.word(self.room.traffic(worker))?)))
        })
    }

    /// Is a worker reading the version that the next pass replaces?
    pub(super) fn is_held(&self, alive: impl Fn(usize) -> bool) -> Result<bool> {
        let Some(replaced) = (self.pass + 1).checked_sub(self.room.versions) else {
            return Ok(false);
        };
        for worker in (0..self.room.workers).filter(|worker| alive(*worker as usize)) {
            if peek(&self.word(self.room.hold(worker))?) == replaced + 1 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes the next versions, of one write or of several gradients, in one pass. Nobody sees
    /// them before [`publish`](Self::publish). Gives what of the parameters has changed.
    pub(super) fn make(&mut self, writes: &[Write]) -> Result<Stale> {
        let (room, new) = (self.room, self.pass + 1);
        let (from, to) = (self.buffer(), room.buffer(new));
        warn_before(&self.word(WRITING)?, new + 1);
        let step = self.counts.steps + 1;
        writes.iter().for_each(|write| self.counts.take(write));
        let mut changed = Stale::default();
        if writes.iter().all(|write| write.kind == Ok(Kind::Gradient)) {
            self.change(writes, step, (from, to))?;
            changed.add_all();
        } else if let [write] = writes {
            let (old, next) = (room.parameters(from), room.parameters(to));
            for part in self.stale[to as usize].pieces(room.buffer_bytes()) {
                self.store.copy(old + part.start, next + part.start, part.end - part.start)?;
            }
            if write.kind == Ok(Kind::Assign) {
                let data = room.slot_data(write.worker, write.number) + write.start;
                self.store.copy(data, next + write.start, write.length)?;
                changed.add(write.start..write.start + write.length);
            }
        }
        self.store.finish()?;
        for (buffer, stale) in (0..).zip(&mut self.stale) {
            if buffer == to { *stale = Stale::default() } else { stale.join(&changed) }
        }
        let meta = self.meta(to)?;
        (0..).zip(self.counts.words()).for_each(|(index, word)| set(&meta, index, word));
        (self.pass, self.is_new) = (new, true);
        Ok(changed)
    }

    /// Parameters and what the optimiser keeps, by gradients, from one buffer to another.
    fn change(&self, writes: &[Write], step: u64, (from, to): (u64, u64)) -> Result<()> {
        let room = self.room;
        let slot = |write: &Write| room.slot_data(write.worker, write.number);
        let gradients: Vec<_> = writes.iter().map(slot).collect();
        let (from, to) = (room.parameters(from), room.parameters(to));
        let mut next = 0;
        let end = room.bytes..room.bytes;
        for range in self.floats.iter().cloned().chain(std::iter::once(end)) {
            if range.start > next {
                self.store.copy(from + next, to + next, range.start - next)?;
            }
            next = range.end;
            if !range.is_empty() {
                let (optimizer, bytes) = (self.optimizer, room.bytes);
                let gradients = &gradients;
                let change = Change { optimizer, step, from, to, bytes, gradients, range };
                self.store.change(&change)?;
            }
        }
        Ok(())
    }

    /// Shows the newest version to workers, and acknowledges the writes that are in it.
    pub(super) fn publish(&mut self) -> Result<()> {
        publish(&self.word(PUBLISHED)?, self.pass + 1);
        publish(&self.word(VERSION)?, self.counts.version);
        for worker in 0..self.room.workers {
            let (refused, applied) =
                (self.counts.refused[worker as usize], self.counts.applied[worker as usize]);
            publish(&self.word(self.room.refused(worker))?, refused);
            publish(&self.word(self.room.acked(worker))?, applied);
        }
        self.is_new = false;
        Ok(())
    }

    fn meta(&self, buffer: u64) -> Result<crate::shared::WordArray> {
        let count = self.room.meta_bytes() / 8;
        self.words.words64(self.room.meta(buffer) as usize, count as usize)
    }

    /// Goes on from the version that a primary has copied here last, before this server leads.
    pub(super) fn adopt(&mut self) -> Result<()> {
        let room = self.room;
        let (_, buffer) = read_synced(observe(&self.word(SYNCED)?));
        let buffer = buffer % room.versions;
        let meta = self.meta(buffer)?;
        (0..).zip(self.counts.words_mut()).for_each(|(index, word)| *word = get(&meta, index));
        // Whoever began to read here when this server led before, in a buffer that may have changed
        // since, shall not take it for whole.
        let least = self.pass + room.versions;
        self.pass = least + (buffer + room.versions - room.buffer(least)) % room.versions;
        self.stale.iter_mut().for_each(Stale::add_all);
        self.stale[buffer as usize] = Stale::default();
        warn_before(&self.word(WRITING)?, self.pass + 1);
        self.publish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::job::tests::terms;
    use crate::serve::words::put;
    use proptest::prelude::*;

    fn shard() -> Shard {
        let terms = terms(2, 2);
        let room = terms.room(0);
        let [words, data] =
            [room.words_bytes(), room.data_bytes()].map(|bytes| Region::host(bytes as usize));
        Shard::new(&terms, 0, words, Store::Host(data))
    }

    fn data(shard: &Shard) -> &Region {
        let Store::Host(region) = &shard.store else { panic!("it is in memory of the host") };
        region
    }

    fn put_slot(shard: &Shard, (worker, number): (u64, u64), header: [u64; 3], values: &[f32]) {
        let slot = shard.room.header(worker, number);
        for (at, word) in [8, 16, 24].into_iter().zip(header) {
            put(&shard.word(slot + at).unwrap(), word);
        }
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        data(shard).copy_in(shard.room.slot_data(worker, number) as usize, &bytes).unwrap();
        publish(&shard.word(slot).unwrap(), number);
    }

    fn parameters(shard: &Shard) -> Vec<f32> {
        let mut bytes = vec![0; shard.room.bytes as usize];
        let at = shard.room.parameters(shard.buffer()) as usize;
        data(shard).copy_out(at, &mut bytes).unwrap();
        let float = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
        bytes.chunks(4).map(float).collect()
    }

    fn next(shard: &Shard, worker: u64) -> Option<Write> {
        shard.next_write(&shard.counts, worker).unwrap()
    }

    #[test]
    fn writes_become_versions_in_their_order() {
        let mut shard = shard();
        let bytes = shard.room.bytes;
        assert_eq!(next(&shard, 0), None);
        put_slot(&shard, (1, 1), header(Kind::Assign, 4, 8), &[9.0, 2.0, 3.0, 9.0]);
        let write = next(&shard, 1).unwrap();
        assert_eq!(write.kind, Ok(Kind::Assign));
        shard.make(&[write]).unwrap();
        assert_eq!(parameters(&shard)[..5], [0.0, 2.0, 3.0, 0.0, 0.0]);
        put_slot(&shard, (0, 1), header(Kind::Gradient, 0, bytes), &[100.0, 0.0, -100.0]);
        let write = next(&shard, 0).unwrap();
        shard.make(&[write]).unwrap();
        assert_eq!(parameters(&shard)[..5], [-1.0, 2.0, 4.0, 0.0, 0.0]);
        assert_eq!((shard.counts.version, &shard.counts.clocks[..]), (2, &[1, 0][..]));
        let acked = || peek(&shard.words.word64(shard.room.acked(0) as usize).unwrap());
        assert_eq!(acked(), 0, "nothing is acknowledged before it is published");
        assert!(shard.is_new());
        let mut published = shard;
        published.publish().unwrap();
        assert_eq!(peek(&published.word(published.room.acked(0)).unwrap()), 1);
    }

    /// If this fails, a part of a tensor that was written is lost with the next write, which copies
    /// only what has changed.
    #[test]
    fn small_writes_and_gradients_add_up() {
        let mut shard = shard();
        // Behind the last tensor nothing is kept.
        let count = shard.floats[0].end as usize / 4;
        let (mut random, mut model) = (fastrand::Rng::with_seed(7), vec![0.0_f32; count]);
        for number in 1..300 {
            let header = if random.u8(..) < 20 {
                let gradient: Vec<f32> = (0..count).map(|_| f32::from(random.i8(..))).collect();
                model.iter_mut().zip(&gradient).for_each(|(it, by)| *it -= 0.01 * by);
                (header(Kind::Gradient, 0, shard.room.bytes), gradient)
            } else {
                let at = random.usize(..count);
                let length = random.usize(1..=(count - at).min(5));
                let mut data = vec![0.0; count];
                data[at..at + length].fill_with(|| f32::from(random.i8(..)));
                model[at..at + length].copy_from_slice(&data[at..at + length]);
                (header(Kind::Assign, 4 * at as u64, 4 * length as u64), data)
            };
            put_slot(&shard, (1, number), header.0, &header.1);
            let write = next(&shard, 1).unwrap();
            shard.make(&[write]).unwrap();
            assert_eq!(parameters(&shard)[..count], model, "write {number}");
        }
    }

    /// If this fails, what several gradients make of parameters depends on whether they waited
    /// together.
    #[test]
    fn gradients_of_one_pass_are_those_of_one_pass_each() {
        let (mut one, mut all) = (shard(), shard());
        let mut random = fastrand::Rng::with_seed(11);
        let (mut counts, mut writes) = (all.counts.clone(), Vec::new());
        for (worker, number) in [(0, 1), (1, 1), (0, 2), (1, 2)] {
            let gradient: Vec<f32> = (0..one.room.bytes / 4).map(|_| random.f32() - 0.5).collect();
            let header = header(Kind::Gradient, 0, one.room.bytes);
            put_slot(&one, (worker, number), header, &gradient);
            let write = next(&one, worker).unwrap();
            one.make(&[write]).unwrap();
            put_slot(&all, (worker, number), header, &gradient);
            let write = all.next_write(&counts, worker).unwrap().unwrap();
            assert!(Shard::fits(&writes, &write));
            counts.take(&write);
            writes.push(write);
        }
        all.make(&writes).unwrap();
        assert_eq!((parameters(&one), &one.counts), (parameters(&all), &all.counts));
        assert_eq!(counts, all.counts);
    }

    /// If this fails, a server that takes over goes on from something else than its primary made,
    /// or a reader takes for whole what was overwritten while it read.
    #[test]
    fn a_replica_goes_on_from_what_was_copied() {
        let (mut primary, mut replica) = (shard(), shard());
        let bytes = primary.room.bytes;
        for number in 1..=3 {
            put_slot(&primary, (0, number), header(Kind::Gradient, 0, bytes), &[100.0, -1.0]);
            let write = next(&primary, 0).unwrap();
            primary.make(&[write]).unwrap();
        }
        // As a primary copies it.
        let (room, from) = (primary.room, primary.buffer());
        for to in [0, 1] {
            let mut copied = vec![0; room.buffer_bytes() as usize];
            data(&primary).copy_out(room.parameters(from) as usize, &mut copied).unwrap();
            data(&replica).copy_in(room.parameters(to) as usize, &copied).unwrap();
            let mut meta = vec![0; room.meta_bytes() as usize];
            primary.words.copy_out(room.meta(from) as usize, &mut meta).unwrap();
            replica.words.copy_in(room.meta(to) as usize, &meta).unwrap();
            publish(&replica.word(SYNCED).unwrap(), synced(3, to));
            let before = replica.pass;
            replica.adopt().unwrap();
            assert_eq!(parameters(&replica), parameters(&primary));
            assert_eq!(replica.counts, primary.counts);
            assert_eq!((replica.buffer(), replica.synced().unwrap()), (to, 3));
            assert!(replica.pass >= before + room.versions);
            assert_eq!(peek(&replica.word(room.acked(0)).unwrap()), 3);
        }
    }

    proptest! {
        /// If this fails, what a worker writes into its slot ends the server, or reaches what is
        /// not its slot's.
        #[test]
        fn any_slot_is_a_write_or_refused(
            header: [u64; 3],
            plain in prop::collection::vec(0..400_u64, 3),
            data in prop::collection::vec(any::<u32>(), 0..40),
        ) {
            let data: Vec<f32> = data.into_iter().map(f32::from_bits).collect();
            for header in [header, [plain[0], plain[1], plain[2]], [2, plain[1], plain[2]]] {
                let mut shard = shard();
                let data = &data[..data.len().min(shard.room.bytes as usize / 4)];
                put_slot(&shard, (0, 1), header, data);
                let write = next(&shard, 0).unwrap();
                shard.make(&[write]).unwrap();
                shard.publish().unwrap();
                let refused = peek(&shard.word(shard.room.refused(0)).unwrap());
                let expected = write.kind.err().map_or(0, |code| 1 << 8 | (code + 1));
                prop_assert_eq!(refused, expected);
                prop_assert!(write.kind.err().is_none_or(|code| code < REASONS.len() as u64));
                prop_assert_eq!(shard.counts.version, 1);
                prop_assert_eq!(&shard.counts.applied, &[1, 0]);
                if write.kind.is_err() {
                    prop_assert!(parameters(&shard).iter().all(|value| *value == 0.0));
                }
            }
        }
    }
}
