//! Where tensors lie in a program's memory: each by itself, or several in the same bytes, one after
//! the other.

use super::tensor::{Origin, Tensor, TensorId};
use std::collections::BTreeSet;
use std::ops::Range;

/// Alignment of tensors and tables, in bytes.
pub(super) const ALIGN: u64 = 256;

/// Where the tensors of a program lie, by offsets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Of each tensor, by number: its first byte.
    pub offsets: Vec<u64>,
    /// Bytes of all.
    pub bytes: u64,
}

impl Memory {
    /// Each tensor has bytes of its own.
    pub fn apart(tensors: &[Tensor]) -> Self {
        Self::shared(tensors, &vec![None; tensors.len()])
    }

    /// Tensors with a lifetime, first and last moment, may share bytes with others whose lifetimes
    /// are apart from theirs. The largest are placed first, each at the lowest place that is free
    /// for as long as it lives.
    pub(super) fn shared(tensors: &[Tensor], lifetimes: &[Option<(u32, u32)>]) -> Self {
        let mut memory = Self { offsets: vec![0; tensors.len()], bytes: 0 };
        let mut sharing = Vec::new();
        for (number, (tensor, lifetime)) in tensors.iter().zip(lifetimes).enumerate() {
            match lifetime {
                Some(lifetime) => sharing.push((number, *lifetime)),
                // It lies in another rank's memory, as that one's tensor `of`, or is a batch.
                None if !tensor.is_placed() => {}
                None => {
                    memory.offsets[number] = memory.bytes;
                    memory.bytes += tensor.bytes().next_multiple_of(ALIGN);
                }
            }
        }
        let first = memory.bytes;
        sharing.sort_by_key(|&(number, _)| std::cmp::Reverse(tensors[number].bytes()));
        // Of those that have a place: where it is, and their lifetimes; by places.
        let mut placed: Vec<(Range<u64>, (u32, u32))> = Vec::new();
        for (number, (begin, end)) in sharing {
            let bytes = tensors[number].bytes().next_multiple_of(ALIGN);
            let mut at = first;
            for (range, other) in &placed {
                let lives_then = begin <= other.1 && other.0 <= end;
                if lives_then && range.start < at + bytes {
                    at = at.max(range.end);
                }
            }
            let behind = placed.partition_point(|(range, _)| range.start < at);
            placed.insert(behind, (at..at + bytes, (begin, end)));
            memory.offsets[number] = at;
            memory.bytes = memory.bytes.max(at + bytes);
        }
        for (number, tensor) in tensors.iter().enumerate() {
            if let Origin::Remote { of: TensorId(of), .. } = tensor.origin {
                memory.offsets[number] = memory.offsets[of as usize];
            }
        }
        memory
    }

    /// The bytes of a tensor, none of another rank's or of a batch; `None` where it has no place in
    /// this memory.
    pub(super) fn range(&self, tensors: &[Tensor], number: usize) -> Option<Range<u64>> {
        let (start, tensor) = (*self.offsets.get(number)?, tensors.get(number)?);
        if !tensor.is_placed() {
            return Some(0..0);
        }
        let end = start.checked_add(tensor.bytes())?;
        (start.is_multiple_of(ALIGN) && end <= self.bytes).then_some(start..end)
    }

    /// Does this tensor share bytes with another one?
    pub fn is_shared(&self, tensors: &[Tensor], TensorId(tensor): TensorId) -> bool {
        let meets = |other: usize| {
            let ranges = self.range(tensors, tensor as usize).zip(self.range(tensors, other));
            ranges.is_some_and(|(own, other)| own.start < other.end && other.start < own.end)
        };
        (0..tensors.len()).any(|other| other != tensor as usize && meets(other))
    }

    /// For each stretch of bytes that several tensors have, those tensors, in the order of `key`.
    pub(super) fn stretches<K: Ord>(
        &self,
        tensors: &[Tensor],
        key: impl Fn(usize) -> K,
    ) -> BTreeSet<Vec<usize>> {
        let ranges: Vec<Range<u64>> =
            (0..tensors.len()).map(|number| self.range(tensors, number).unwrap_or(0..0)).collect();
        let mut ends: Vec<u64> = ranges.iter().flat_map(|range| [range.start, range.end]).collect();
        ends.sort_unstable();
        ends.dedup();
        let mut stretches: Vec<Vec<usize>> = vec![Vec::new(); ends.len()];
        for (number, range) in ranges.iter().enumerate().filter(|(_, range)| !range.is_empty()) {
            let of = |end: u64| ends.partition_point(|other| *other < end);
            stretches[of(range.start)..of(range.end)].iter_mut().for_each(|one| one.push(number));
        }
        stretches.retain(|stretch| stretch.len() > 1);
        stretches.iter_mut().for_each(|stretch| stretch.sort_by_key(|number| key(*number)));
        stretches.into_iter().collect()
    }
}

/// May a tensor's bytes hold another one before its tasks write it, and when they have read it?
pub(super) fn may_share(tensor: &Tensor) -> bool {
    tensor.origin == Origin::Tasks
}
