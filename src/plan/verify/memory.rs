//! Symbolic memory: what each byte range holds, who wrote it, who has read it.

use super::clock::{Clock, Epoch};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

/// One rank's contribution to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Term {
    /// Whose input.
    pub(super) rank: u32,
    /// Offset in that rank's input, less the offset at which the value stands. Kept as a
    /// difference, a value needs no change when its range is split.
    pub(super) shift: i64,
    /// How often it was multiplied by the launch's scalar.
    pub(super) scaled: u8,
}

/// What a byte range holds: a reduction of terms, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) terms: Vec<Term>,
    /// How often the end of the reduction was applied.
    pub(super) finished: u8,
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reduction of")?;
        for Term { rank, shift, scaled } in &self.terms {
            write!(f, " [rank {rank}, {shift:+} bytes, scaled {scaled} times]")?;
        }
        write!(f, ", finished {} times", self.finished)
    }
}

/// `None`: nothing that anybody may rely on.
pub(super) type Value = Option<Rc<Sum>>;

/// A range with its value.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) value: Rc<Sum>,
}

/// Why an access is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// No memory at `at`.
    Unmapped { at: u64 },
    /// Read of a range that holds nothing.
    Undefined { start: u64, end: u64 },
    /// Nothing orders this access after another one that conflicts.
    Race { start: u64, end: u64, other: Epoch, other_wrote: bool },
}

/// Who accesses, when, knowing what.
#[derive(Clone, Copy)]
pub(super) struct Accessor<'a> {
    pub(super) epoch: Epoch,
    pub(super) clock: &'a Clock,
}

#[derive(Clone, Debug)]
struct Cell {
    end: u64,
    value: Value,
    write: Epoch,
    /// The last read of each agent since the write.
    reads: Vec<Epoch>,
}

/// One piece of memory: a buffer, or the slots at one end of a lane. Cells never overlap.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    cells: BTreeMap<u64, Cell>,
}

impl Memory {
    /// Maps a range (again), as written at `write`.
    pub(super) fn map(&mut self, start: u64, end: u64, value: Value, write: Epoch) {
        if start < end {
            self.split(start);
            self.split(end);
            self.remove(start, end);
            self.cells.insert(start, Cell { end, value, write, reads: Vec::new() });
        }
    }

    /// Reads a range; the pieces go to `pieces`, in order.
    pub(super) fn read(
        &mut self,
        Range { start, end }: Range<u64>,
        by: Accessor<'_>,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), Fault> {
        pieces.clear();
        self.split(start);
        self.split(end);
        let mut at = start;
        for (&cell_start, cell) in self.cells.range_mut(start..end) {
            if cell_start != at {
                return Err(Fault::Unmapped { at });
            }
            let fault = |other| Fault::Race { start: at, end: cell.end, other, other_wrote: true };
            if !by.clock.knows(cell.write) {
                return Err(fault(cell.write));
            }
            let Some(value) = cell.value.clone() else {
                return Err(Fault::Undefined { start: at, end: cell.end });
            };
            cell.reads.retain(|read| read.agent != by.epoch.agent);
            cell.reads.push(by.epoch);
            pieces.push(Piece { start: at, end: cell.end, value });
            at = cell.end;
        }
        if at < end { Err(Fault::Unmapped { at }) } else { Ok(()) }
    }

    /// Writes `pieces`, which cover the range in order.
    pub(super) fn write(
        &mut self,
        Range { start, end }: Range<u64>,
        by: Accessor<'_>,
        pieces: impl IntoIterator<Item = Piece>,
    ) -> Result<(), Fault> {
        self.split(start);
        self.split(end);
        let mut at = start;
        for (&cell_start, cell) in self.cells.range(start..end) {
            if cell_start != at {
                return Err(Fault::Unmapped { at });
            }
            unordered(at, cell, by.clock)?;
            at = cell.end;
        }
        if at < end {
            return Err(Fault::Unmapped { at });
        }
        self.remove(start, end);
        for Piece { start, end, value } in pieces {
            let cell = Cell { end, value: Some(value), write: by.epoch, reads: Vec::new() };
            self.cells.insert(start, cell);
        }
        Ok(())
    }

    /// An access that `clock` does not know of.
    pub(super) fn unfinished(&self, clock: &Clock) -> Result<(), Fault> {
        self.cells.iter().try_for_each(|(&start, cell)| unordered(start, cell, clock))
    }

    /// An access to the range that `clock` does not know of.
    pub(super) fn left(
        &self,
        Range { start, end }: Range<u64>,
        clock: &Clock,
    ) -> Result<(), Epoch> {
        let first = self.cells.range(..=start).next_back().map_or(start, |(&first, _)| first);
        let cells = self.cells.range(first..end).filter(|(_, cell)| cell.end > start);
        for (&at, cell) in cells {
            if let Err(Fault::Race { other, .. }) = unordered(at, cell, clock) {
                return Err(other);
            }
        }
        Ok(())
    }

    /// The cells of `start..end`: (start, end, value).
    pub(super) fn cells(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64, &Value)> {
        let first = self.cells.range(..=start).next_back().map_or(start, |(&first, _)| first);
        self.cells
            .range(first..end)
            .filter(move |(_, cell)| cell.end > start)
            .map(move |(&at, cell)| (at.max(start), cell.end.min(end), &cell.value))
    }

    fn split(&mut self, at: u64) {
        if let Some((&start, cell)) = self.cells.range_mut(..at).next_back()
            && start < at
            && cell.end > at
        {
            let upper = cell.clone();
            cell.end = at;
            self.cells.insert(at, upper);
        }
    }

    fn remove(&mut self, start: u64, end: u64) {
        while let Some((&first, _)) = self.cells.range(start..end).next() {
            self.cells.remove(&first);
        }
    }
}

fn unordered(start: u64, cell: &Cell, clock: &Clock) -> Result<(), Fault> {
    let end = cell.end;
    if !clock.knows(cell.write) {
        return Err(Fault::Race { start, end, other: cell.write, other_wrote: true });
    }
    match cell.reads.iter().find(|read| !clock.knows(**read)) {
        Some(&other) => Err(Fault::Race { start, end, other, other_wrote: false }),
        None => Ok(()),
    }
}

/// Moves pieces from where they were read to where they will stand: `from` becomes `to`.
pub(super) fn rebase(pieces: &mut [Piece], from: u64, to: u64) {
    let shift = from.wrapping_sub(to) as i64;
    for piece in pieces {
        piece.start = piece.start - from + to;
        piece.end = piece.end - from + to;
        if shift != 0 {
            for term in &mut Rc::make_mut(&mut piece.value).terms {
                term.shift = term.shift.wrapping_add(shift);
            }
        }
    }
}

/// The pieces on which both operands are of one value each, with `combine` applied.
pub(super) fn zip<E>(
    a: &[Piece],
    b: &[Piece],
    mut combine: impl FnMut(&Sum, &Sum) -> Result<Sum, E>,
) -> Result<Vec<Piece>, E> {
    let mut result = Vec::with_capacity(a.len().max(b.len()));
    let (mut i, mut j) = (0, 0);
    while i < a.len() && j < b.len() {
        let (start, end) = (a[i].start.max(b[j].start), a[i].end.min(b[j].end));
        let value = Rc::new(combine(&a[i].value, &b[j].value)?);
        result.push(Piece { start, end, value });
        i += usize::from(a[i].end == end);
        j += usize::from(b[j].end == end);
    }
    Ok(result)
}

/// A value that is one rank's input, which starts at `start`.
pub(super) fn input_of(rank: u32, start: u64) -> Value {
    let terms = vec![Term { rank, shift: start.wrapping_neg() as i64, scaled: 0 }];
    Some(Rc::new(Sum { terms, finished: 0 }))
}
