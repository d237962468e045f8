//! The parts of an iteration of a loop over memory, and what they come to together.

use crate::exec::registers::Row;
use crate::exec::swept::{Pair, PlainCopy, Span, Strip};

/// Small parts of an iteration are done together while they load no more rows: below that the way
/// into each costs more than its data.
const STRIP_ROWS_MAX: usize = 8;

/// Cuts an iteration into parts that share no rows.
pub fn strips(loads: Vec<Span>, pairs: Vec<Pair>, stores: Vec<Span>) -> Vec<Strip> {
    // All loads have as many rows, one behind the other.
    let load_at = |row: usize| row / loads[0].rows;
    // The number of each load's part. Those that are combined come into one.
    let mut parts: Vec<usize> = (0..loads.len()).collect();
    for pair in &pairs {
        let [a, b] = [pair.a, pair.b].map(|row| parts[load_at(row)]);
        let (into, from) = (a.min(b), a.max(b));
        parts.iter_mut().filter(|part| **part == from).for_each(|part| *part = into);
    }
    let mut strips: Vec<Strip> = vec![Strip::default(); loads.len()];
    let part_of = |row: usize| parts[load_at(row)];
    for pair in pairs {
        strips[part_of(pair.to)].pairs.push(pair);
    }
    for store in stores {
        strips[part_of(store.row)].stores.push(store);
    }
    for (load, part) in loads.iter().zip(&parts) {
        strips[*part].loads.push(load.clone());
    }
    let mut whole: Vec<Strip> = Vec::new();
    for strip in strips.into_iter().filter(|strip| !strip.loads.is_empty()) {
        match whole.last_mut() {
            Some(last) if rows(last) + rows(&strip) <= STRIP_ROWS_MAX => {
                last.loads.extend(strip.loads);
                last.pairs.extend(strip.pairs);
                last.stores.extend(strip.stores);
            }
            _ => whole.push(strip),
        }
    }
    for strip in &mut whole {
        strip.loads = joined(std::mem::take(&mut strip.loads));
        strip.stores = joined(std::mem::take(&mut strip.stores));
    }
    whole
}

/// The copy of adjacent bytes that all parts of an iteration come to together, if they do.
pub fn plain_copy(strips: &[Strip]) -> Option<PlainCopy> {
    let part = |strip: &Strip| match (&strip.loads[..], &strip.stores[..]) {
        ([load], [store]) if strip.pairs.is_empty() && load.row == store.row => {
            (load.rows == store.rows).then(|| (load.clone(), store.clone()))
        }
        _ => None,
    };
    let parts: Vec<(Span, Span)> = strips.iter().map(part).collect::<Option<_>>()?;
    let (loads, stores): (Vec<Span>, Vec<Span>) = parts.into_iter().unzip();
    let (loads, stores) = (joined(loads), joined(stores));
    let ([load], [store]) = (&loads[..], &stores[..]) else { return None };
    let bytes = load.rows * size_of::<Row>();
    Some(PlainCopy { from: (load.sum, load.offset), to: (store.sum, store.offset), bytes })
}

/// Rows that a strip loads.
fn rows(strip: &Strip) -> usize {
    strip.loads.iter().map(|load| load.rows).sum()
}

/// Spans that follow one another, in memory as in cargo, become one.
fn joined(spans: Vec<Span>) -> Vec<Span> {
    let mut joined: Vec<Span> = Vec::new();
    for span in spans {
        match joined.last_mut() {
            Some(last)
                if last.sum == span.sum
                    && last.row + last.rows == span.row
                    && last.offset + (last.rows * size_of::<Row>()) as u64 == span.offset =>
            {
                last.rows += span.rows;
            }
            _ => joined.push(span),
        }
    }
    joined
}
