//! Fills inputs, poisons outputs, and compares every element of every rank with what it must be.

use super::backend::{Buffer, Collective, Operation, Rank};
use super::error::PerfError;
use super::pattern::{PERIOD, Pattern};
use super::threads;
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
            let input = pattern.input_table(rank.number(), operation.count);
            rank.fill(operation.input(), 0, bytes, &input)?;
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
    let shared = match pattern.collective {
        Collective::AllReduce => Some(pattern.expected_table(0, operation.count)),
        Collective::SendRecv => None,
    };
    let counts = threads::each(ranks, 1, |share| {
        let mut wrong = 0;
        for rank in share {
            let expected = match &shared {
                Some(table) => Cow::Borrowed(table.as_slice()),
                None => Cow::Owned(pattern.expected_table(rank.number(), operation.count)),
            };
            wrong += count_wrong_of(rank, &expected, operation)?;
        }
        Ok(wrong)
    })?;
    Ok(counts.into_iter().sum())
}

fn count_wrong_of<R: Rank>(
    rank: &mut R,
    expected: &[u8],
    operation: &Operation,
) -> Result<u64, PerfError> {
    let element_bytes = operation.data_type.size_bytes();
    let mut seen = vec![0; expected.len().max(GUARD_BYTES)];
    let mut wrong = 0;
    for start in (0..operation.count).step_by(PERIOD) {
        let bytes = PERIOD.min(operation.count - start) * element_bytes;
        rank.read(Buffer::Receive, start * element_bytes, &mut seen[..bytes])?;
        wrong += differing(&seen[..bytes], &expected[..bytes], element_bytes);
    }
    let guard = &mut seen[..GUARD_BYTES];
    rank.read(Buffer::Receive, operation.bytes(), guard)?;
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
