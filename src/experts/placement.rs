//! Which rank has which experts.

use crate::error::{Error, Result};

/// Experts lie in blocks of equal size, and each rank has one. Where ranks have died, their blocks
/// have no rank: the experts keep their numbers, and tokens that choose them are
/// [marked](super::Combined::missing).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Placement {
    owners: Vec<Option<u32>>,
}

impl Placement {
    /// Rank `r` has block `r`.
    pub fn even(ranks: u32) -> Self {
        Self { owners: (0..ranks).map(Some).collect() }
    }

    /// The rank of each block.
    pub fn new(owners: Vec<Option<u32>>) -> Self {
        Self { owners }
    }

    /// The rank of each block.
    pub fn owners(&self) -> &[Option<u32>] {
        &self.owners
    }

    /// After [`Communicator::survive`](crate::Communicator::survive): rank `n` is the one that was
    /// `members[n]`; those that are not among them have left their blocks.
    pub fn after(&self, members: &[u32]) -> Self {
        let now = |owner: u32| members.iter().position(|member| *member == owner);
        let owners = self.owners.iter().map(|owner| owner.and_then(now).map(|rank| rank as u32));
        Self { owners: owners.collect() }
    }

    /// After [`Communicator::grow`](crate::Communicator::grow): ranks that have no block yet, up to
    /// `ranks`, get those that nobody has, in their order.
    pub fn filled(&self, ranks: u32) -> Self {
        let mut new = (0..ranks).filter(|rank| !self.owners.contains(&Some(*rank)));
        let owners = self.owners.iter().map(|owner| owner.or_else(|| new.next()));
        Self { owners: owners.collect() }
    }

    /// Does each of `ranks` ranks have one block?
    pub(super) fn check(&self, ranks: u32) -> Result<()> {
        let mut owners: Vec<u32> = self.owners.iter().flatten().copied().collect();
        owners.sort_unstable();
        if owners.iter().copied().eq(0..ranks) {
            return Ok(());
        }
        let expected = format!("a block for each of {ranks} ranks");
        Err(Error::argument("experts: placement", expected, format!("those of {owners:?}")))
    }

    /// The block of a rank that has one.
    pub(super) fn block(&self, rank: u32) -> u32 {
        let block = self.owners.iter().position(|owner| *owner == Some(rank));
        block.expect("checked: each rank has a block") as u32
    }

    /// A number that differs where placements do, for their comparison between ranks.
    pub(super) fn signature(&self) -> u64 {
        // FNV-1a, a 32-bit number at a time.
        self.owners.iter().fold(0xcbf2_9ce4_8422_2325, |hash, owner| {
            (hash ^ u64::from(owner.unwrap_or(u32::MAX))).wrapping_mul(0x100_0000_01b3)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, an expert changes its number when a rank dies, or two ranks have one block.
    #[test]
    fn blocks_stay_where_they_are_and_replacements_fill_gaps() {
        let all = Placement::even(4);
        let fewer = all.after(&[0, 1, 3]);
        assert_eq!(fewer.owners(), [Some(0), Some(1), None, Some(2)]);
        assert_eq!(fewer.block(2), 3);
        let again = fewer.filled(4);
        assert_eq!(again.owners(), [Some(0), Some(1), Some(3), Some(2)]);
        assert_eq!(again.after(&[1, 2, 3]).owners(), [None, Some(0), Some(2), Some(1)]);
        assert!([&all, &again].iter().all(|placement| placement.check(4).is_ok()));
        assert!(fewer.check(3).is_ok() && fewer.check(4).is_err());
        assert!(Placement::new(vec![Some(0), Some(0)]).check(2).is_err());
        assert_ne!(all.signature(), again.signature());
    }
}
