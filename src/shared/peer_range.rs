//! Ranges that a peer names, checked against what this side knows by itself.
//!
//! This is the one place where an offset, an address or a length from another process becomes
//! an address (R8: bases are checked, too). A peer is authenticated, and still not trusted with
//! addresses of this process: it may be of another version, broken, or hostile.

use crate::error::{Error, Result};
use crate::id::Rank;

/// Memory whose place and size this side knows from its own driver or adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Address of the first byte.
    pub base: u64,
    /// Bytes.
    pub length_bytes: u64,
}

/// A range that a peer names in memory of a known [`Extent`].
#[derive(Clone, Copy, Debug)]
pub struct PeerRange<'a> {
    /// Who names it.
    pub rank: Rank,
    /// What of the peer it is, for messages: `its signal memory`.
    pub what: &'a str,
    /// Bytes that this side will use.
    pub length_bytes: u64,
    /// The address must be a multiple of this power of two.
    pub align: u64,
}

impl PeerRange<'_> {
    /// The address of the range, which the peer places `offset` bytes into `extent`.
    ///
    /// # Errors
    /// [`Error::PeerValue`] unless all of the range lies inside, aligned.
    pub fn at_offset(&self, extent: Extent, offset: u64) -> Result<u64> {
        let end = offset.checked_add(self.length_bytes);
        let address = extent.base.checked_add(offset);
        let inside = end.is_some_and(|end| end <= extent.length_bytes);
        match address.filter(|address| inside && address.is_multiple_of(self.align)) {
            Some(address) => Ok(address),
            None => Err(self.refused(extent, format_args!("an offset of {offset:#x}"))),
        }
    }

    /// The same for a range that the peer names by its `address`.
    ///
    /// # Errors
    /// As [`at_offset`](Self::at_offset).
    pub fn at_address(&self, extent: Extent, address: u64) -> Result<u64> {
        let offset = address.checked_sub(extent.base);
        let found = offset.and_then(|offset| self.at_offset(extent, offset).ok());
        found.ok_or_else(|| self.refused(extent, format_args!("the address {address:#x}")))
    }

    fn refused(&self, extent: Extent, seen: std::fmt::Arguments<'_>) -> Error {
        let Self { rank, what, length_bytes, align } = *self;
        let aligned = match align {
            1 => String::new(),
            align => format!(", at a multiple of {align}"),
        };
        let expected =
            format!("{length_bytes} bytes within {} bytes{aligned}", extent.length_bytes);
        Error::peer_value(rank, what, expected, seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(length_bytes: u64, align: u64) -> PeerRange<'static> {
        PeerRange { rank: Rank(3), what: "its signal memory", length_bytes, align }
    }

    proptest! {
        /// If this fails, a peer chooses addresses of this process.
        #[test]
        fn an_address_is_given_exactly_for_ranges_inside(
            base in prop_oneof![0..256_u64, any::<u64>()],
            bytes in prop_oneof![0..256_u64, any::<u64>()],
            offset in prop_oneof![0..300_u64, any::<u64>(), u64::MAX - 300..=u64::MAX],
            length in prop_oneof![0..300_u64, any::<u64>()],
        ) {
            let extent = Extent { base, length_bytes: bytes };
            let wide = |value: u64| u128::from(value);
            let end = wide(base) + wide(offset) + wide(length);
            let inside = wide(offset) + wide(length) <= wide(bytes)
                && wide(base) + wide(offset) <= wide(u64::MAX);
            match range(length, 1).at_offset(extent, offset) {
                Ok(address) => {
                    prop_assert!(inside);
                    prop_assert_eq!(wide(address) + wide(length), end);
                    prop_assert!(end <= wide(base) + wide(bytes));
                    let again = range(length, 1).at_address(extent, address);
                    prop_assert_eq!(again.unwrap(), address);
                }
                Err(_) => prop_assert!(!inside),
            }
        }
    }

    #[test]
    fn a_refusal_names_rank_field_expected_and_seen() {
        let extent = Extent { base: 0x1000, length_bytes: 64 };
        assert_eq!(range(64, 8).at_offset(extent, 0).unwrap(), 0x1000);
        assert_eq!(range(8, 8).at_address(extent, 0x1038).unwrap(), 0x1038);
        for (offset, length, align) in
            [(1, 64, 1), (64, 1, 1), (u64::MAX, 2, 1), (u64::MAX - 0xfff, 0, 1), (4, 8, 8)]
        {
            let error = range(length, align).at_offset(extent, offset).unwrap_err();
            let Error::PeerValue { rank, field, .. } = &error else { panic!("{error}") };
            assert_eq!((*rank, field.as_str()), (Rank(3), "its signal memory"));
            let message = error.to_string();
            for part in ["rank 3", "64", &format!("{offset:#x}")] {
                assert!(message.contains(part), "{message}");
            }
        }
        let error = range(8, 1).at_address(extent, 0xff8).unwrap_err().to_string();
        assert!(error.contains("0xff8"), "below the base: {error}");
    }
}
