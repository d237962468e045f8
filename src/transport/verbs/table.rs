//! Which registration an address belongs to.

/// A range of addresses.
pub(super) trait Ranged {
    /// First address.
    fn base(&self) -> u64;
    /// Bytes.
    fn length_bytes(&self) -> u64;
    /// What tells it from others in the same place.
    fn key(&self) -> u32;
}

/// Ranges, sorted by their first address. They may overlap, and even be the same: users register
/// what they like.
pub(super) struct RangeTable<T> {
    entries: Vec<T>,
}

impl<T: Ranged> RangeTable<T> {
    pub(super) fn new() -> Self {
        Self { entries: Vec::new() }
    }

    pub(super) fn insert(&mut self, entry: T) {
        let at = self.entries.partition_point(|other| other.base() <= entry.base());
        self.entries.insert(at, entry);
    }

    /// Removes the range with this key.
    pub(super) fn remove(&mut self, key: u32) {
        self.entries.retain(|entry| entry.key() != key);
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

    fn key(&self) -> u32 {
        self.lkey
    }
}

impl Ranged for super::region::RemoteRegion {
    fn base(&self) -> u64 {
        self.base
    }

    fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    fn key(&self) -> u32 {
        self.rkey
    }
}

#[cfg(test)]
mod tests {
    use super::super::region::RemoteRegion;
    use super::*;
    use proptest::prelude::*;

    fn range(base: u64, length_bytes: u64, rkey: u32) -> RemoteRegion {
        RemoteRegion { base, length_bytes, rkey }
    }

    proptest! {
        #[test]
        fn a_range_is_found_exactly_if_some_range_holds_it(
            ranges in prop::collection::vec((0..64_u64, 1..64_u64), 0..12),
            removed in prop::collection::vec(0..12_u32, 0..4),
            (address, length) in (0..128_u64, 0..64_u64),
        ) {
            let mut table = RangeTable::new();
            let mut left = std::collections::BTreeMap::new();
            for (key, &(base, bytes)) in (0..).zip(&ranges) {
                table.insert(range(base, bytes, key));
                left.insert(key, (base, bytes));
            }
            for key in removed {
                table.remove(key);
                left.remove(&key);
            }
            let holds = |base: u64, bytes: u64| base <= address && address + length <= base + bytes;
            let found = table.find(address, length);
            let expected = left.values().any(|&(base, bytes)| holds(base, bytes));
            prop_assert_eq!(found.is_some(), expected);
            if let Some(found) = found {
                prop_assert!(holds(found.base, found.length_bytes));
            }
        }
    }

    #[test]
    fn addresses_at_the_end_of_the_address_space_do_not_wrap() {
        let mut table = RangeTable::new();
        table.insert(range(u64::MAX - 16, 16, 1));
        assert!(table.find(u64::MAX - 16, 16).is_some());
        assert!(table.find(u64::MAX - 8, 16).is_none());
    }
}
