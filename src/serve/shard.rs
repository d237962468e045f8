//! One shard on one server: its versions, and the slots of its workers. What workers have written
//! is looked at here and not trusted.

use super::job::Terms;
use super::layout::{
    HANDED, HEADER_BYTES, LEADS, LOG_ENTRIES, PUBLISHED, Room, SYNCED, WRITING, read_log_entry,
};
use super::optimizer::{Optimizer, Weights};
use super::words::{CHUNK, copy, copy_range, get, observe, peek, publish, put, set, warn_before};
use crate::error::{Error, Result};
use crate::id::Rank;
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
    /// Servers that have got it from the worker, besides this one.
    pub(super) holders: u64,
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
pub(super) fn header(kind: Kind, holders: u64, start: u64, length: u64) -> [u64; 3] {
    let kind = match kind {
        Kind::Gradient => 1,
        Kind::Assign => 2,
    };
    [kind | holders << 8, start, length]
}

/// A shard in a server's room.
pub(super) struct Shard {
    pub(super) index: usize,
    pub(super) room: Room,
    region: Region,
    optimizer: Optimizer,
    /// The words of parameters that gradients change.
    floats: Vec<Range<usize>>,
    /// The version that is published.
    pub(super) version: u64,
    /// Of each worker: its writes that are in that version, and how many were gradients.
    pub(super) applied: Vec<u64>,
    pub(super) clocks: Vec<u64>,
    steps: u64,
}

impl Shard {
    pub(super) fn new(terms: &Terms, index: usize, region: Region) -> Result<Self> {
        let room = terms.room(index);
        let places = terms.job.model.tensors().iter().zip(&terms.sharding.places);
        let floats = places
            .filter(|(tensor, place)| place.shard == index && tensor.data_type == DataType::F32);
        let floats = floats.map(|(tensor, place)| {
            let end = place.offset + tensor.bytes();
            (place.offset / 8) as usize..end.div_ceil(8) as usize
        });
        let mut floats: Vec<_> = floats.collect();
        floats.sort_by_key(|range| range.start);
        let workers = terms.job.workers;
        Ok(Self {
            index,
            room,
            region,
            optimizer: terms.job.optimizer,
            floats,
            version: 0,
            applied: vec![0; workers],
            clocks: vec![0; workers],
            steps: 0,
        })
    }

    pub(super) fn word(&self, offset: u64) -> Result<AtomicWord64> {
        self.region.word64(offset as usize)
    }

    /// The next write of this worker, if it is there.
    pub(super) fn next_write(&self, worker: u64) -> Result<Option<Write>> {
        let number = self.applied[worker as usize] + 1;
        let slot = self.room.slot(worker, number);
        if observe(&self.word(slot)?) != number {
            return Ok(None);
        }
        let [first, start, length] = [8, 16, 24].map(|at| self.word(slot + at));
        let (first, start, length) = (peek(&first?), peek(&start?), peek(&length?));
        let inside = start.checked_add(length).is_some_and(|end| end <= self.room.bytes);
        let kind = match first & 0xff {
            1 | 2 if !inside || length == 0 => Err(1),
            1 if length != self.room.bytes => Err(2),
            1 if self.floats.is_empty() => Err(3),
            1 => Ok(Kind::Gradient),
            2 => Ok(Kind::Assign),
            _ => Err(0),
        };
        Ok(Some(Write { worker, number, kind, holders: first >> 8, start, length }))
    }

    /// Which write becomes the next version, by the log of the primary.
    ///
    /// # Errors
    /// [`Error::PeerValue`] where the log names a write that cannot be the next of its worker.
    pub(super) fn next_logged(&self, primary: usize) -> Result<Option<Write>> {
        let version = self.version + 1;
        let entry = observe(&self.word(self.room.log(version))?);
        let Some((worker, number)) = read_log_entry(entry, version) else { return Ok(None) };
        let next = self.applied.get(worker as usize).map(|applied| applied + 1);
        if next.map(|next| next as u32) != Some(number) {
            let field = format!("the order of shard {}", self.index);
            let expected = format!("the next write of a worker, for version {version}");
            let seen = format!("write {number} of worker {worker}");
            return Err(Error::peer_value(Rank(primary as u32), &field, expected, seen));
        }
        self.next_write(worker)
    }

    /// Tells workers whether this server is the primary.
    pub(super) fn set_leads(&self, leads: bool) -> Result<()> {
        publish(&self.word(LEADS)?, leads.into());
        Ok(())
    }

    /// The word by which the other holder hands the shard over.
    pub(super) fn handed(&self) -> Result<u64> {
        Ok(observe(&self.word(HANDED)?))
    }

    /// Empties the log, before another server writes to it: an entry that is old enough looks like
    /// a new one.
    pub(super) fn forget_log(&self) -> Result<()> {
        (0..LOG_ENTRIES).try_for_each(|version| {
            publish(&self.word(self.room.log(version))?, 0);
            Ok(())
        })
    }

    /// Bytes that workers say they have read here, modulo 2^64.
    pub(super) fn traffic(&self) -> Result<u64> {
        (0..self.room.workers).try_fold(0_u64, |sum, worker| {
            Ok(sum.wrapping_add(peek(&self.word(self.room.traffic(worker))?)))
        })
    }

    /// Is a worker reading the version that the next one replaces?
    pub(super) fn is_held(&self, alive: impl Fn(usize) -> bool) -> Result<bool> {
        let Some(replaced) = (self.version + 1).checked_sub(self.room.versions) else {
            return Ok(false);
        };
        for worker in (0..self.applied.len()).filter(|worker| alive(*worker)) {
            if peek(&self.word(self.room.hold(worker as u64))?) == replaced + 1 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes the next version of this write, publishes it, and acknowledges the write.
    pub(super) fn apply(&mut self, write: &Write) -> Result<()> {
        let (room, old, new) = (self.room, self.version, self.version + 1);
        warn_before(&self.word(WRITING)?, new + 1);
        let is_gradient = write.kind == Ok(Kind::Gradient);
        if is_gradient {
            self.steps += 1;
            self.clocks[write.worker as usize] += 1;
            self.change(room.slot(write.worker, write.number) + HEADER_BYTES)?;
        } else {
            let count = (room.buffer_bytes() - room.meta_bytes()) as usize / 8;
            let [from, to] = [room.parameters(old), room.parameters(new)]
                .map(|at| self.region.words64(at as usize, count));
            copy(&from?, &to?);
        }
        if write.kind == Ok(Kind::Assign) {
            let data = room.slot(write.worker, write.number) + HEADER_BYTES + write.start;
            let to = room.parameters(new) + write.start;
            let mut bytes = [0; 8 * CHUNK];
            for at in (0..write.length).step_by(bytes.len()) {
                let bytes = &mut bytes[..(write.length - at).min(8 * CHUNK as u64) as usize];
                self.region.copy_out((data + at) as usize, bytes)?;
                self.region.copy_in((to + at) as usize, bytes)?;
            }
        }
        self.applied[write.worker as usize] = write.number;
        self.write_meta(new)?;
        if let Err(code) = write.kind {
            let refused = write.number << 8 | (code + 1);
            publish(&self.word(room.refused(write.worker))?, refused);
        }
        self.version = new;
        publish(&self.word(PUBLISHED)?, new + 1);
        publish(&self.word(room.acked(write.worker))?, write.number);
        Ok(())
    }

    /// Parameters and states of the next version, by the gradient at `data`.
    fn change(&self, data: u64) -> Result<()> {
        let (room, old, new) = (self.room, self.version, self.version + 1);
        let count = (room.bytes / 8) as usize;
        let row = |version: u64, part: u64| {
            self.region.words64((room.parameters(version) + part * room.bytes) as usize, count)
        };
        let gradient = self.region.words64(data as usize, count)?;
        let (from, to) = (row(old, 0)?, row(new, 0)?);
        let mut states = Vec::new();
        for part in 1..=room.states {
            states.push((row(old, part)?, row(new, part)?));
        }
        let step = self.optimizer.at(self.steps);
        let (mut weights, mut changes) = (Weights::default(), [0; CHUNK]);
        let mut next = 0;
        for floats in self.floats.iter().cloned().chain(std::iter::once(count..count)) {
            copy_range(&from, &to, next..floats.start);
            next = floats.end;
            for start in floats.clone().step_by(CHUNK) {
                let words = CHUNK.min(floats.end - start);
                gradient.load_all(start, &mut changes[..words]);
                from.load_all(start, &mut weights.parameters[..words]);
                for ((from, _), state) in states.iter().zip(&mut weights.states) {
                    from.load_all(start, &mut state[..words]);
                }
                step.apply(&mut weights, &changes);
                to.store_all(start, &weights.parameters[..words]);
                for ((_, to), state) in states.iter().zip(&weights.states) {
                    to.store_all(start, &state[..words]);
                }
            }
        }
        Ok(())
    }

    fn write_meta(&self, version: u64) -> Result<()> {
        let workers = self.applied.len();
        let meta = self.region.words64(self.room.buffer(version) as usize, 2 * workers + 1)?;
        for worker in 0..workers {
            set(&meta, worker, self.applied[worker]);
            set(&meta, workers + worker, self.clocks[worker]);
        }
        set(&meta, 2 * workers, self.steps);
        Ok(())
    }

    /// Goes on from the version that a primary has copied here, if there is a newer one.
    pub(super) fn adopt(&mut self) -> Result<bool> {
        let synced = observe(&self.word(SYNCED)?);
        if synced <= self.version + 1 {
            return Ok(false);
        }
        let version = synced - 1;
        let workers = self.applied.len();
        let meta = self.region.words64(self.room.buffer(version) as usize, 2 * workers + 1)?;
        for worker in 0..workers {
            self.applied[worker] = get(&meta, worker);
            self.clocks[worker] = get(&meta, workers + worker);
            let acked = self.word(self.room.acked(worker as u64))?;
            publish(&acked, self.applied[worker]);
        }
        self.steps = get(&meta, 2 * workers);
        self.version = version;
        put(&self.word(WRITING)?, version + 1);
        publish(&self.word(PUBLISHED)?, version + 1);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::job::tests::terms;
    use proptest::prelude::*;

    fn shard() -> Shard {
        let terms = terms(2, 2);
        let region = Region::host(terms.room(0).room_bytes() as usize);
        Shard::new(&terms, 0, region).unwrap()
    }

    fn put_slot(shard: &Shard, (worker, number): (u64, u64), header: [u64; 3], data: &[f32]) {
        let slot = shard.room.slot(worker, number);
        for (at, word) in [8, 16, 24].into_iter().zip(header) {
            put(&shard.word(slot + at).unwrap(), word);
        }
        let bytes: Vec<u8> = data.iter().flat_map(|value| value.to_le_bytes()).collect();
        shard.region.copy_in((slot + HEADER_BYTES) as usize, &bytes).unwrap();
        publish(&shard.word(slot).unwrap(), number);
    }

    fn parameters(shard: &Shard) -> Vec<f32> {
        let mut bytes = vec![0; shard.room.bytes as usize];
        let at = shard.room.parameters(shard.version) as usize;
        shard.region.copy_out(at, &mut bytes).unwrap();
        let float = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
        bytes.chunks(4).map(float).collect()
    }

    #[test]
    fn writes_become_versions_in_their_order() {
        let mut shard = shard();
        let bytes = shard.room.bytes;
        assert_eq!(shard.next_write(0).unwrap(), None);
        put_slot(&shard, (1, 1), header(Kind::Assign, 2, 4, 8), &[9.0, 2.0, 3.0, 9.0]);
        let write = shard.next_write(1).unwrap().unwrap();
        assert_eq!((write.kind, write.holders), (Ok(Kind::Assign), 2));
        shard.apply(&write).unwrap();
        assert_eq!(parameters(&shard)[..5], [0.0, 2.0, 3.0, 0.0, 0.0]);
        put_slot(&shard, (0, 1), header(Kind::Gradient, 0, 0, bytes), &[100.0, 0.0, -100.0]);
        let write = shard.next_write(0).unwrap().unwrap();
        shard.apply(&write).unwrap();
        assert_eq!(parameters(&shard)[..5], [-1.0, 2.0, 4.0, 0.0, 0.0]);
        assert_eq!((shard.version, &shard.clocks[..]), (2, &[1, 0][..]));
        assert_eq!(peek(&shard.word(shard.room.acked(0)).unwrap()), 1);
    }

    /// If this fails, a replica takes an order that no primary can have given.
    #[test]
    fn an_order_of_what_is_not_next_is_refused() {
        let shard = shard();
        let log = |entry: u64| {
            put(&shard.word(shard.room.log(1)).unwrap(), entry);
            shard.next_logged(0)
        };
        use super::super::layout::log_entry;
        assert_eq!(log(0).unwrap(), None);
        assert_eq!(log(log_entry(2, 0, 1)).unwrap(), None, "of another version");
        assert_eq!(log(log_entry(1, 0, 1)).unwrap(), None, "its slot is not there yet");
        for entry in [log_entry(1, 0, 2), log_entry(1, 2, 1), log_entry(1, 0xffff, 1)] {
            assert!(matches!(log(entry), Err(Error::PeerValue { .. })), "{entry:#x}");
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
                let write = shard.next_write(0).unwrap().unwrap();
                shard.apply(&write).unwrap();
                let refused = peek(&shard.word(shard.room.refused(0)).unwrap());
                let expected = write.kind.err().map_or(0, |code| 1 << 8 | (code + 1));
                prop_assert_eq!(refused, expected);
                prop_assert!(write.kind.err().is_none_or(|code| code < REASONS.len() as u64));
                prop_assert_eq!((shard.version, &shard.applied[..]), (1, &[1, 0][..]));
                if write.kind.is_err() {
                    prop_assert!(parameters(&shard).iter().all(|value| *value == 0.0));
                }
            }
        }
    }
}
