//! Straight pieces of code, and the ways between them.

use super::function::Record;
use std::ops::Range;

/// The pieces of a function: whoever runs the first instruction of one runs them all.
pub struct Pieces {
    /// The instructions of each, in the order of the code.
    pub ranges: Vec<Range<usize>>,
    /// The pieces that may come behind each.
    pub next: Vec<Vec<usize>>,
}

impl Pieces {
    /// Cuts code into pieces.
    pub fn of(records: &[Record]) -> Self {
        let count = records.len();
        let mut leader = vec![false; count + 1];
        leader[0] = true;
        for (index, record) in records.iter().enumerate() {
            for &target in &record.targets {
                leader[target] = true;
            }
            if !record.targets.is_empty() || !record.falls_through {
                leader[index + 1] = true;
            }
        }
        let starts: Vec<usize> = (0..count).filter(|&index| leader[index]).collect();
        let ends = starts.iter().skip(1).copied().chain([count]);
        let ranges: Vec<_> = starts.iter().zip(ends).map(|(&start, end)| start..end).collect();
        let mut piece_of = vec![0; count];
        for (number, range) in ranges.iter().enumerate() {
            piece_of[range.clone()].fill(number);
        }
        let next = ranges.iter().map(|range| {
            let last = range.end - 1;
            let next = successors(last, &records[last], count);
            next.into_iter().map(|index| piece_of[index]).collect()
        });
        Self { next: next.collect(), ranges }
    }
}

/// Successors of an instruction, by index in the function.
fn successors(index: usize, record: &Record, count: usize) -> Vec<usize> {
    let mut next = record.targets.clone();
    if record.falls_through && index + 1 < count {
        next.push(index + 1);
    }
    next
}
