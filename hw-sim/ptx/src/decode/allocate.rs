//! Gives registers their places.
//!
//! Compilers emit PTX with a fresh register for every value, thousands in an unrolled kernel. A
//! file that large would not stay in the host's cache, so registers whose values are never alive
//! together share a row. Lanes are independent: what counts is the way of one lane through the
//! code, so parted lanes change nothing.
//!
//! A register that is alive in several straight pieces of code has its place to itself in each of
//! them. One that lives within a piece takes, from its first instruction to its last, the lowest
//! place that is free there, so that the same few rows are used again and again.

use foldhash::{HashMap, HashMapExt};

use super::function::{Class, Record};
use super::pieces::Pieces;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Where each register of a function went, counted from the function's own start.
#[derive(Clone, Debug, Default)]
pub struct Allocation {
    /// Row, or predicate number, by register.
    pub places: Vec<u32>,
    /// Rows used.
    pub rows: u32,
    /// Predicates used.
    pub predicates: u32,
    /// Row and width in bytes of each place, for saving.
    pub spans: Vec<(u32, u8)>,
}

/// A straight piece of code, and what is alive around it.
struct Piece {
    start: usize,
    end: usize,
    next: Vec<usize>,
    /// Read before written.
    needs: Vec<u64>,
    /// Written for certain.
    kills: Vec<u64>,
    alive_in: Vec<u64>,
    alive_out: Vec<u64>,
}

fn set(bits: &mut [u64], register: u32) {
    bits[register as usize / 64] |= 1 << (register % 64);
}

fn get(bits: &[u64], register: u32) -> bool {
    bits[register as usize / 64] >> (register % 64) & 1 == 1
}

/// What each piece of code needs and gives.
fn pieces(records: &[Record], words: usize) -> Vec<Piece> {
    let piece = |(range, next): (Range<usize>, Vec<usize>)| {
        let Range { start, end } = range;
        let mut needs = vec![0; words];
        let mut kills = vec![0; words];
        for record in &records[start..end] {
            for &register in &record.uses {
                if !get(&kills, register) {
                    set(&mut needs, register);
                }
            }
            if !record.guarded {
                record.defs.iter().for_each(|&register| set(&mut kills, register));
            }
        }
        let alive_in = needs.clone();
        Piece { start, end, next, needs, kills, alive_in, alive_out: vec![0; words] }
    };
    let Pieces { ranges, next } = Pieces::of(records);
    ranges.into_iter().zip(next).map(piece).collect()
}

/// Finds what is alive where, to a fixed point; liveness only grows, so it ends.
fn flow(pieces: &mut [Piece], words: usize) {
    let mut changed = true;
    while changed {
        changed = false;
        for number in (0..pieces.len()).rev() {
            let mut out = vec![0_u64; words];
            for &next in &pieces[number].next {
                for (word, bits) in out.iter_mut().zip(&pieces[next].alive_in) {
                    *word |= bits;
                }
            }
            let piece = &mut pieces[number];
            if out == piece.alive_out {
                continue;
            }
            for (word, out) in out.iter().enumerate() {
                piece.alive_in[word] = piece.needs[word] | (out & !piece.kills[word]);
            }
            piece.alive_out = out;
            changed = true;
        }
    }
}

/// The members of a set, in order.
fn members(bits: impl Iterator<Item = u64>) -> impl Iterator<Item = u32> {
    (0..).step_by(64).zip(bits).flat_map(|(first, mut left)| {
        std::iter::from_fn(move || {
            let bit = (left != 0).then(|| left.trailing_zeros())?;
            left &= left - 1;
            Some(first + bit)
        })
    })
}

/// The registers that are alive around a piece.
fn around(piece: &Piece) -> impl Iterator<Item = u32> {
    members(piece.alive_in.iter().zip(&piece.alive_out).map(|(before, behind)| before | behind))
}

/// The registers that an instruction touches.
fn touched(record: &Record) -> impl Iterator<Item = u32> {
    record.uses.iter().chain(&record.defs).copied()
}

/// Where a register lives.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Home {
    /// Nowhere yet.
    Unseen,
    /// In one piece, and within it.
    Piece(u32),
    /// In several, or across the ends of one.
    Across,
}

fn homes(pieces: &[Piece], records: &[Record], registers: usize, kept: &[u32]) -> Vec<Home> {
    let mut homes = vec![Home::Unseen; registers];
    for register in kept.iter().copied().chain(pieces.iter().flat_map(around)) {
        homes[register as usize] = Home::Across;
    }
    for (number, piece) in (0..).zip(pieces) {
        for register in records[piece.start..piece.end].iter().flat_map(touched) {
            let home = &mut homes[register as usize];
            *home = match *home {
                Home::Unseen => Home::Piece(number),
                Home::Piece(same) if same == number => continue,
                _ => Home::Across,
            };
        }
    }
    homes
}

/// A place, and the pieces in which a register has it to itself.
struct Place {
    number: u32,
    taken: Vec<u64>,
}

/// What one piece has given out of a class.
#[derive(Default)]
struct Lent {
    /// Places that have not been looked at start here.
    next: usize,
    /// Places that were given back.
    free: BinaryHeap<Reverse<usize>>,
    /// The last instruction that needs each of the places that are lent.
    busy: BinaryHeap<Reverse<(usize, usize)>>,
}

impl Lent {
    /// The lowest place that is free in the piece from one instruction to another; a fresh one
    /// where that is behind all that there are.
    fn take(&mut self, places: &[Place], piece: u32, start: usize, end: usize) -> usize {
        // An instruction's destinations count together with its sources: no instruction has to
        // care about the order in which it uses them.
        while let Some(&Reverse((last, place))) = self.busy.peek()
            && last < start
        {
            self.busy.pop();
            self.free.push(Reverse(place));
        }
        let found = self.free.pop().map_or_else(
            || {
                let is_free = |place: &Place| !get(&place.taken, piece);
                let unseen = &places[self.next..];
                self.next += unseen.iter().position(is_free).unwrap_or(unseen.len()) + 1;
                self.next - 1
            },
            |Reverse(place)| place,
        );
        self.busy.push(Reverse((end, found)));
        found
    }
}

/// Gives out the places of one function.
struct Allocator<'a> {
    records: &'a [Record],
    classes: &'a [Class],
    pieces: Vec<Piece>,
    homes: Vec<Home>,
    /// By class.
    places: [Vec<Place>; 4],
    allocation: Allocation,
}

/// Allocates the registers of one function. What is in those of `kept` stays there to the end.
pub fn allocate(records: &[Record], classes: &[Class], kept: &[u32]) -> Allocation {
    let allocation = Allocation { places: vec![0; classes.len()], ..Allocation::default() };
    if records.is_empty() {
        return allocation;
    }
    let words = classes.len().div_ceil(64);
    let mut pieces = pieces(records, words);
    flow(&mut pieces, words);
    let homes = homes(&pieces, records, classes.len(), kept);
    let places = Default::default();
    let mut allocator = Allocator { records, classes, pieces, homes, places, allocation };
    allocator.across(kept);
    for number in 0..allocator.pieces.len() as u32 {
        allocator.within(number);
    }
    allocator.allocation
}

impl Allocator<'_> {
    /// An empty set of pieces.
    fn no_pieces(&self) -> Vec<u64> {
        vec![0; self.pieces.len().div_ceil(64)]
    }

    /// Gives a register the place with this index in its class, a fresh one behind all others.
    fn give(&mut self, register: u32, index: usize) {
        let class = self.classes[register as usize];
        if index == self.places[class as usize].len() {
            let (number, taken) = (fresh(&mut self.allocation, class), self.no_pieces());
            self.places[class as usize].push(Place { number, taken });
        }
        self.allocation.places[register as usize] = self.places[class as usize][index].number;
    }

    /// Gives places to the registers that live in several pieces, those that begin first first:
    /// each the lowest one that is free in all of these pieces.
    fn across(&mut self, kept: &[u32]) {
        let mut order: Vec<u32> = Vec::new();
        let mut lives: HashMap<u32, Vec<u64>> = HashMap::new();
        for &register in kept {
            // Everywhere: what the next block finds there, nothing else may write.
            let everywhere = self.no_pieces().iter().map(|_| u64::MAX).collect();
            if lives.insert(register, everywhere).is_none() {
                order.push(register);
            }
        }
        for (number, piece) in (0..).zip(&self.pieces) {
            let touched = self.records[piece.start..piece.end].iter().flat_map(touched);
            let is_across = |register: &u32| self.homes[*register as usize] == Home::Across;
            for register in around(piece).chain(touched.filter(is_across)) {
                let life = lives.entry(register).or_insert_with(|| {
                    order.push(register);
                    self.no_pieces()
                });
                set(life, number);
            }
        }
        for register in order {
            let (class, life) = (self.classes[register as usize] as usize, &lives[&register]);
            let is_free = |place: &Place| place.taken.iter().zip(life).all(|(a, b)| a & b == 0);
            let found = self.places[class].iter().position(is_free);
            let index = found.unwrap_or(self.places[class].len());
            self.give(register, index);
            let taken = self.places[class][index].taken.iter_mut();
            taken.zip(life).for_each(|(taken, pieces)| *taken |= pieces);
        }
    }

    /// Gives places to the registers that live within a piece.
    fn within(&mut self, number: u32) {
        let Piece { start, end, .. } = self.pieces[number as usize];
        let records = self.records;
        let mut last: HashMap<u32, usize> = HashMap::new();
        for (index, record) in (start..).zip(&records[start..end]) {
            let is_here = |register: &u32| self.homes[*register as usize] == Home::Piece(number);
            last.extend(touched(record).filter(is_here).map(|register| (register, index)));
        }
        let mut lent: [Lent; 4] = Default::default();
        for (index, record) in (start..).zip(&records[start..end]) {
            for register in touched(record) {
                // Only where it comes first.
                if let Some(end) = last.remove(&register) {
                    let class = self.classes[register as usize] as usize;
                    let found = lent[class].take(&self.places[class], number, index, end);
                    self.give(register, found);
                }
            }
        }
    }
}

/// A new place.
fn fresh(allocation: &mut Allocation, class: Class) -> u32 {
    if class == Class::Predicate {
        allocation.predicates += 1;
        return allocation.predicates - 1;
    }
    let place = allocation.rows;
    allocation.rows += if class == Class::Wide { 2 } else { 1 };
    allocation.spans.push((place, class.bytes()));
    place
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    const REGISTERS: u32 = 24;

    /// An instruction: what it reads and writes, whether it is guarded, where it may jump.
    fn instruction(count: usize) -> impl Strategy<Value = Record> {
        let registers = || prop::collection::vec(0..REGISTERS, 0..3);
        let ways = (any::<bool>(), prop::option::weighted(0.3, 0..count), 0..8_u8);
        (registers(), registers(), ways).prop_map(|(uses, defs, (guarded, target, ends))| Record {
            uses: uses.into(),
            defs: defs.into(),
            guarded,
            targets: target.into_iter().collect(),
            falls_through: ends > 0,
            ..Record::default()
        })
    }

    fn classes() -> Vec<Class> {
        let all = [Class::Narrow, Class::Word, Class::Wide, Class::Predicate];
        (0..REGISTERS as usize).map(|register| all[register % 4]).collect()
    }

    proptest! {
        /// A lane that goes any way through any code finds each register as it wrote it last. If
        /// this fails, kernels compute with other registers' values.
        #[test]
        fn what_a_lane_wrote_it_finds(
            records in (1..60_usize).prop_flat_map(|n| prop::collection::vec(instruction(n), n)),
            turns in prop::collection::vec(any::<u8>(), 200),
        ) {
            let classes = classes();
            let allocation = allocate(&records, &classes, &[]);
            // Predicates have numbers of their own.
            let place_of = |register: u32| {
                let class = classes[register as usize];
                (class == Class::Predicate, allocation.places[register as usize])
            };
            // Which register wrote each place last; and which registers were written at all.
            let (mut wrote, mut written) = (HashMap::new(), HashSet::new());
            let mut at = 0;
            for turn in turns {
                let Some(record) = records.get(at) else { break };
                for register in record.uses.iter().filter(|register| written.contains(*register)) {
                    prop_assert_eq!(wrote.get(&place_of(*register)), Some(register), "at {}", at);
                }
                // A guarded instruction writes or does not.
                if !record.guarded || turn & 1 == 1 {
                    for register in &record.defs {
                        wrote.insert(place_of(*register), *register);
                        written.insert(*register);
                    }
                }
                for (a, b) in record.uses.iter().chain(&record.defs).flat_map(|a| {
                    record.defs.iter().map(move |b| (a, b))
                }) {
                    prop_assert_eq!(place_of(*a) == place_of(*b), a == b, "at {}", at);
                }
                at = match record.targets.first() {
                    Some(target) if turn & 2 == 2 || !record.falls_through => *target,
                    _ if record.falls_through => at + 1,
                    _ => break,
                };
            }
        }

        /// If this fails, a block starts with what another one computed.
        #[test]
        fn what_is_kept_is_overwritten_by_nobody(
            records in (1..60_usize).prop_flat_map(|n| prop::collection::vec(instruction(n), n)),
            kept in prop::collection::vec(0..REGISTERS, 1..4),
        ) {
            let classes = classes();
            let allocation = allocate(&records, &classes, &kept);
            for other in 0..REGISTERS {
                let is_used = records.iter().any(|record| {
                    record.uses.contains(&other) || record.defs.contains(&other)
                });
                for register in kept.iter().filter(|register| **register != other && is_used) {
                    let class = |register: u32| classes[register as usize] == Class::Predicate;
                    let place = |register: u32| allocation.places[register as usize];
                    prop_assert!(
                        class(*register) != class(other) || place(*register) != place(other)
                    );
                }
            }
        }
    }

    /// If this fails, a long straight kernel has a row for every value.
    #[test]
    fn values_that_follow_one_another_share_a_place() {
        let step = |register: u32| Record {
            uses: [register].into_iter().collect(),
            defs: [register + 1].into_iter().collect(),
            falls_through: true,
            ..Record::default()
        };
        let records: Vec<_> = (0..1000).map(step).collect();
        let allocation = allocate(&records, &vec![Class::Word; 1001], &[]);
        // The first was written by nobody, and so is alive around the code.
        assert_eq!(allocation.rows, 3);
    }
}
