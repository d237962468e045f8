//! Fills inputs, poisons outputs, and compares every element of every rank with what it must be.

use super::backend::{Buffer, Operation, Rank};
use super::error::PerfError;
use super::pattern::{PERIOD, Pattern};
use super::threads;
use ringdove::plan::Delivery;
use std::borrow::Cow;

/// Bytes behind the message that must stay as they are.
pub const GUARD_BYTES: usize = 256;
/// What outputs hold before a checked run: an element that is not written cannot look right.
const POISON: u8 = 0xa5;
/// Poison is uploaded in pieces of this size.
const POISON_PERIOD_BYTES: usize = 64 << 10;

/// Makes ready for one checked run.
pub fn prepare<R: Rank>(
    ranks: &mut [R],
    pattern: &Pattern,
    operation: &Operation,
) -> Result<(), PerfError> {
    let bytes = operation.bytes();
    threads::each(ranks, 1, |share| {
        for rank in share {
            let poison = vec![POISON; POISON_PERIOD_BYTES.min(bytes + GUARD_BYTES)];
            rank.fill(Buffer::Receive, 0, bytes + GUARD_BYTES, &poison)?;
            let input = operation.input_range(rank.number());
            let elements = input.len() / operation.data_type.size_bytes();
            let table = pattern.input_table(rank.number(), elements);
            rank.fill(operation.input(), input.start, input.len(), &table)?;
        }
        Ok(())
    })
    .map(drop)
}

/// Counts the wrong elements of all ranks. Memory: one period for each rank, whatever the size.
pub fn count_wrong<R: Rank>(
    ranks: &mut [R],
    pattern: &Pattern,
    operation: &Operation,
) -> Result<u64, PerfError> {
    let shared = operation.gives_all_the_same().then(|| tables(pattern, operation, 0));
    let counts = threads::each(ranks, 1, |share| {
        let mut wrong = 0;
        for rank in share {
            let expected = match &shared {
                Some(tables) => Cow::Borrowed(tables.as_slice()),
                None => Cow::Owned(tables(pattern, operation, rank.number())),
            };
            wrong += count_wrong_of(rank, &expected, operation)?;
        }
        Ok(wrong)
    })?;
    Ok(counts.into_iter().sum())
}

/// What each part of a rank's output must hold, one period of it.
fn tables(pattern: &Pattern, operation: &Operation, rank: usize) -> Vec<Vec<u8>> {
    let table = |delivery: &Delivery| {
        let start = delivery.source as usize / operation.data_type.size_bytes();
        let from = delivery.from.map(|rank| rank as usize);
        pattern.expected_table(from, start, operation.count)
    };
    operation.deliveries(rank).iter().map(table).collect()
}

fn count_wrong_of<R: Rank>(
    rank: &mut R,
    expected: &[Vec<u8>],
    operation: &Operation,
) -> Result<u64, PerfError> {
    let element_bytes = operation.data_type.size_bytes();
    let output = operation.output_range(rank.number());
    let mut seen = vec![0; expected.iter().map(Vec::len).max().unwrap_or(0).max(GUARD_BYTES)];
    let mut wrong = 0;
    for (delivery, expected) in operation.deliveries(rank.number()).iter().zip(expected) {
        let part = output.start + delivery.offset as usize;
        for start in (0..operation.count).step_by(PERIOD) {
            let bytes = PERIOD.min(operation.count - start) * element_bytes;
            rank.read(Buffer::Receive, part + start * element_bytes, &mut seen[..bytes])?;
            wrong += differing(&seen[..bytes], &expected[..bytes], element_bytes);
        }
    }
    let end = if operation.in_place { operation.bytes() } else { output.end };
    let guard = &mut seen[..GUARD_BYTES];
    rank.read(Buffer::Receive, end, guard)?;
    Ok(wrong + differing(guard, &[POISON; GUARD_BYTES], element_bytes))
}

/// Counts elements that differ. Equal pieces, which are nearly all of them, cost one comparison of
/// memory.
fn differing(seen: &[u8], expected: &[u8], element_bytes: usize) -> u64 {
    if seen == expected {
        return 0;
    }
    let pairs = seen.chunks_exact(element_bytes).zip(expected.chunks_exact(element_bytes));
    pairs.filter(|(seen, expected)| seen != expected).count() as u64
}
