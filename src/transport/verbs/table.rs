//! Which registration an address belongs to.

/// A range of addresses.
pub(super) trait Ranged {
    /// First address.
    fn base(&self) -> u64;
    /// Bytes.
    fn length_bytes(&self) -> u64;
}

/// Ranges, sorted by their first address. They may overlap: users register what they like.
pub(super) struct RangeTable<T> {
    entries: Vec<T>,
}

impl<T: Ranged> RangeTable<T> {
    pub(super) fn new() -> Self {
        Self { entries: Vec::new() }
    }

    /// Adds a range, or replaces the one with the same first address and length.
    pub(super) fn insert(&mut self, entry: T) {
        self.remove(entry.base(), entry.length_bytes());
        let at = self.entries.partition_point(|other| other.base() <= entry.base());
        self.entries.insert(at, entry);
    }

    pub(super) fn remove(&mut self, base: u64, length_bytes: u64) {
        self.entries.retain(|entry| (entry.base(), entry.length_bytes()) != (base, length_bytes));
    }

    /// A range that holds all of `length` bytes from `address`. The nearest range below is nearly
    /// always the one; only overlaps make it look further.
    pub(super) fn find(&self, address: u64, length: u64) -> Option<&T> {
        let end = address.checked_add(length)?;
        let below = self.entries.partition_point(|entry| entry.base() <= address);
        self.entries[..below].iter().rev().find(|entry| end <= entry.base() + entry.length_bytes())
    }
}

impl Ranged for super::region::LocalRegion {
    fn base(&self) -> u64 {
        self.base
    }

    fn length_bytes(&self) -> u64 {
        self.length_bytes
    }
}

impl Ranged for super::region::RemoteRegion {
    fn base(&self) -> u64 {
        self.base
    }

    fn length_bytes(&self) -> u64 {
        self.length_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::region::RemoteRegion;
    use super::*;
    use proptest::prelude::*;

    fn range(base: u64, length_bytes: u64) -> RemoteRegion {
        RemoteRegion { base, length_bytes, rkey: (base ^ length_bytes) as u32 }
    }

    proptest! {
        #[test]
        fn a_range_is_found_exactly_if_some_range_holds_it(
            ranges in prop::collection::vec((0..64_u64, 1..64_u64), 0..12),
            removed in prop::collection::vec(0..12_usize, 0..4),
            (address, length) in (0..128_u64, 0..64_u64),
        ) {
            let mut table = RangeTable::new();
            let mut left = std::collections::BTreeSet::new();
            for (base, bytes) in &ranges {
                table.insert(range(*base, *bytes));
                left.insert((*base, *bytes));
            }
            for index in removed {
                if let Some((base, bytes)) = ranges.get(index) {
                    table.remove(*base, *bytes);
                    left.remove(&(*base, *bytes));
                }
            }
            let holds = |base: u64, bytes: u64| base <= address && address + length <= base + bytes;
            let found = table.find(address, length);
            prop_assert_eq!(
                found.is_some(),
                left.iter().any(|(base, bytes)| holds(*base, *bytes))
            );
            if let Some(found) = found {
                prop_assert!(holds(found.base, found.length_bytes));
            }
        }
    }

    #[test]
    fn addresses_at_the_end_of_the_address_space_do_not_wrap() {
        let mut table = RangeTable::new();
        table.insert(range(u64::MAX - 16, 16));
        assert!(table.find(u64::MAX - 16, 16).is_some());
        assert!(table.find(u64::MAX - 8, 16).is_none());
    }
}
