//! Data that lands out of order, where the driver's profile has it: what the writes that arrive in
//! one pass bring is kept, cut, shuffled, and placed before it is reported.
//!
//! The promise of reliable connections stays: what came before a completion, an immediate, a send,
//! a read or an atomic has landed when that is seen. What breaks is the order of plain writes.

use fastrand::Rng;
use std::collections::HashSet;
use std::time::Duration;

/// Bytes of a part: what a PCI function writes at once.
const PART_BYTES: usize = 256;
/// Of so many placements one sleeps in its middle.
const PAUSES_TO_SLEEP: u32 = 16;

/// Data of writes that has arrived and not landed.
#[derive(Debug, Default)]
pub(super) struct Unplaced {
    bytes: Vec<u8>,
    parts: Vec<PlacementPart>,
    /// Regions and aligned ranges of a part's size in them that were written since the last end.
    windows: HashSet<(u32, u64)>,
    /// Parts before an end land before those after it.
    ends: Vec<usize>,
    random: Rng,
}

/// A part of a write.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlacementPart {
    /// The region.
    pub key: u32,
    /// Where in it.
    pub address: u64,
    /// Its first byte among those that are kept.
    at: usize,
    /// Its bytes.
    pub length: usize,
}

impl Unplaced {
    /// With this seed for the order.
    pub fn new(seed: u64) -> Self {
        Self { random: Rng::with_seed(seed), ..Self::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Room for the data of a write, cut where `address` is a multiple of a part's size.
    pub fn add(&mut self, key: u32, address: u64, length: usize) -> &mut [u8] {
        let start = self.bytes.len();
        self.bytes.resize(start + length, 0);
        let mut done = 0;
        while done < length {
            let address = address + done as u64;
            let to_boundary = PART_BYTES - address as usize % PART_BYTES;
            let length = to_boundary.min(length - done);
            if !self.windows.insert((key, address / PART_BYTES as u64)) {
                self.ends.push(self.parts.len());
                self.windows.clear();
                self.windows.insert((key, address / PART_BYTES as u64));
            }
            self.parts.push(PlacementPart { key, address, at: start + done, length });
            done += length;
        }
        &mut self.bytes[start..]
    }

    /// Whoever polls gets a chance to see what landed without what did not. Giving up the processor
    /// does not suffice on a busy machine, where this thread may be chosen again at once; sleeping
    /// takes longer, so it is done at times.
    fn pause(&mut self) {
        match self.random.u32(..PAUSES_TO_SLEEP) {
            0 => std::thread::sleep(Duration::from_micros(1)),
            _ => std::thread::yield_now(),
        }
    }

    /// Gives all parts to `land`, with the address of their bytes, in a random order; what was
    /// written twice keeps its order.
    pub fn place(&mut self, mut land: impl FnMut(&PlacementPart, u64)) {
        self.ends.push(self.parts.len());
        let mut start = 0;
        for end in std::mem::take(&mut self.ends) {
            self.random.shuffle(&mut self.parts[start..end]);
            start = end;
        }
        for index in 0..self.parts.len() {
            if index == self.parts.len() / 2 {
                self.pause();
            }
            let part = &self.parts[index];
            land(part, self.bytes.as_ptr() as u64 + part.at as u64);
        }
        self.parts.clear();
        self.bytes.clear();
        self.windows.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that went missing would be seen as a defect of the program under test; parts that
    /// always came in order would hide one.
    #[test]
    fn every_byte_lands_once_and_the_order_is_random() {
        let mut unplaced = Unplaced::new(7);
        for (address, length) in [(100usize, 5000usize), (6000, 8), (0, 100)] {
            let room = unplaced.add(3, address as u64, length);
            room.iter_mut().enumerate().for_each(|(i, byte)| *byte = (address + i) as u8);
        }
        let (mut memory, mut order) = (vec![0xeeu8; 6008], Vec::new());
        unplaced.place(|part, from| {
            assert_eq!(part.key, 3);
            order.push(part.address);
            for index in 0..part.length {
                // SAFETY: `place` gives the address of as many bytes.
                let byte = unsafe { *((from + index as u64) as *const u8) };
                memory[part.address as usize + index] = byte;
            }
        });
        assert!(unplaced.is_empty());
        for (address, byte) in memory.iter().enumerate() {
            let written = !(5100..6000).contains(&address);
            assert_eq!(*byte, if written { address as u8 } else { 0xee }, "at {address}");
        }
        assert!(!order.is_sorted(), "{order:?}");
    }

    #[test]
    fn what_is_written_twice_keeps_its_order() {
        for seed in 0..50 {
            let mut unplaced = Unplaced::new(seed);
            for value in 1..6u8 {
                unplaced.add(1, 4096 + 256 * u64::from(value), 8).fill(0xff);
                unplaced.add(1, 64, 8).fill(value);
            }
            let mut seen = Vec::new();
            unplaced.place(|part, from| {
                if part.address == 64 {
                    // SAFETY: `place` gives the address of the part's bytes.
                    seen.push(unsafe { *(from as *const u8) });
                }
            });
            assert_eq!(seen, [1, 2, 3, 4, 5], "seed {seed}");
        }
    }
}
