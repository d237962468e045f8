//! Gives registers their places.
//!
//! Compilers emit PTX with a fresh register for every value, thousands in an unrolled kernel. A
//! file that large would not stay in the host's cache, so registers whose values are never alive
//! together share a row. Lanes are independent: what counts is the way of one lane through the
//! code, so parted lanes change nothing.

use super::function::{Class, Record};
use super::pieces::Pieces;
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

/// First and last moment at which each register counts. An instruction's destinations count
/// together with its sources: no instruction has to care about the order in which it uses them.
fn intervals(records: &[Record], registers: usize) -> Vec<Option<(usize, usize)>> {
    let words = registers.div_ceil(64);
    let mut pieces = pieces(records, words);
    flow(&mut pieces, words);
    let mut intervals: Vec<Option<(usize, usize)>> = vec![None; registers];
    let mut extend = |register: u32, from: usize, to: usize| {
        let interval = &mut intervals[register as usize];
        *interval = Some(match *interval {
            None => (from, to),
            Some((start, end)) => (start.min(from), end.max(to)),
        });
    };
    let each = |bits: &[u64], f: &mut dyn FnMut(u32)| {
        for (word, &bits) in bits.iter().enumerate() {
            let mut left = bits;
            while left != 0 {
                f(word as u32 * 64 + left.trailing_zeros());
                left &= left - 1;
            }
        }
    };
    for piece in &pieces {
        each(&piece.alive_in, &mut |register| extend(register, piece.start, piece.start));
        each(&piece.alive_out, &mut |register| extend(register, piece.end, piece.end));
        for (index, record) in records.iter().enumerate().take(piece.end).skip(piece.start) {
            for &register in record.uses.iter().chain(record.defs.iter()) {
                extend(register, index, index);
            }
        }
    }
    intervals
}

/// Allocates the registers of one function. What is in those of `kept` stays there to the end.
pub fn allocate(records: &[Record], classes: &[Class], kept: &[u32]) -> Allocation {
    let mut allocation = Allocation { places: vec![0; classes.len()], ..Allocation::default() };
    if records.is_empty() {
        return allocation;
    }
    let mut intervals = intervals(records, classes.len());
    for &register in kept {
        // From the start: nothing that runs before may have the place, either.
        intervals[register as usize] = Some((0, usize::MAX));
    }
    let mut order: Vec<(usize, usize, usize)> = intervals
        .iter()
        .enumerate()
        .filter_map(|(register, interval)| interval.map(|(start, end)| (start, end, register)))
        .collect();
    order.sort_unstable();
    // Places of each class in use, with the moment at which they become free.
    let mut busy: [std::collections::BinaryHeap<std::cmp::Reverse<(usize, u32)>>; 4] =
        Default::default();
    for (start, end, register) in order {
        let class = classes[register];
        let heap = &mut busy[class as usize];
        let place = match heap.peek() {
            Some(std::cmp::Reverse((free_after, place))) if *free_after < start => {
                let place = *place;
                heap.pop();
                place
            }
            _ => fresh(&mut allocation, class),
        };
        heap.push(std::cmp::Reverse((end, place)));
        allocation.places[register] = place;
    }
    allocation
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
