//! Which ranks of a node do not reach each other's memory, and why: all ranks of a communicator
//! know the same.

use crate::error::{Error, Result};
use crate::id::Rank;
use crate::topology::ranks::RankGpu;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Why a rank does not reach the memory of another one of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Obstacle {
    /// The setting says so.
    Setting,
    /// The driver gives the one GPU no access to the other.
    NoPeerAccess,
    /// The driver does not open the memory in another process.
    NotShared,
    /// The driver gives access, and what is written does not arrive.
    WritesLost,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Setting => "RINGDOVE_THROUGH_HOST says so",
            Self::NoPeerAccess => "the driver gives no peer access",
            Self::NotShared => "the driver does not share their memory between processes",
            Self::WritesLost => "writes between their GPUs are lost (PCI access control, IOMMU)",
        })
    }
}

/// What one rank does not reach.
pub(crate) type Obstacles = Vec<(Rank, Obstacle)>;

/// What one rank says of the others of its node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ReachRow {
    pub obstacles: Obstacles,
    /// NVLink joins its GPU to that of each other rank of its node.
    pub nvlink: bool,
    /// Its GPU and the links of that, where plans ask for them and it is known.
    pub gpu: Option<RankGpu>,
}

/// Pairs of ranks of one node whose messages go through host memory, in both directions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostPairs {
    /// The lower rank first.
    pairs: BTreeMap<(Rank, Rank), Obstacle>,
}

impl HostPairs {
    /// Of what each rank, in order, does not reach. `are_apart` says which two run on different
    /// nodes.
    ///
    /// # Errors
    /// [`Error::PeerValue`] where a rank names one that is not another rank of its node.
    pub fn of<'a>(
        rows: impl ExactSizeIterator<Item = &'a Obstacles>,
        are_apart: impl Fn(Rank, Rank) -> bool,
    ) -> Result<Self> {
        let (mut pairs, rank_count) = (BTreeMap::new(), rows.len());
        for (rank, row) in (0..).map(Rank).zip(rows) {
            for &(peer, obstacle) in row {
                if peer == rank || peer.index() >= rank_count || are_apart(rank, peer) {
                    let expected = "other ranks of its node";
                    return Err(Error::peer_value(rank, "what it does not reach", expected, peer));
                }
                // Both directions go one way. Of two reasons the first in the order is kept.
                let known = pairs.entry((rank.min(peer), rank.max(peer))).or_insert(obstacle);
                *known = obstacle.min(*known);
            }
        }
        Ok(Self { pairs })
    }

    /// Do all ranks of each node reach each other's memory?
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Why the pair's messages go through host memory, if they do.
    pub fn obstacle(&self, one: Rank, other: Rank) -> Option<Obstacle> {
        self.pairs.get(&(one.min(other), one.max(other))).copied()
    }

    /// Is there a pair whose GPUs lose writes?
    pub fn has_lost_writes(&self) -> bool {
        self.pairs.values().any(|obstacle| *obstacle == Obstacle::WritesLost)
    }

    /// Is there a rank whose messages to `rank` go through host memory?
    pub fn concerns(&self, rank: Rank) -> bool {
        self.pairs.keys().any(|&(low, high)| low == rank || high == rank)
    }

    /// The pairs by reason, for people: `0-5 1-4: the driver gives no peer access`.
    pub fn describe(&self) -> String {
        let mut reasons = BTreeMap::<Obstacle, Vec<String>>::new();
        for ((low, high), obstacle) in &self.pairs {
            reasons.entry(*obstacle).or_default().push(format!("{}-{}", low.0, high.0));
        }
        let described = reasons.iter().map(|(why, pairs)| format!("{}: {why}", pairs.join(" ")));
        described.collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, one end of a pair looks for messages in host memory and the other writes to
    /// the device.
    #[test]
    fn a_pair_goes_one_way_whichever_end_sees_the_obstacle() {
        let rows = [
            vec![],
            vec![(Rank(0), Obstacle::WritesLost)],
            vec![(Rank(3), Obstacle::WritesLost)],
            vec![(Rank(2), Obstacle::NotShared)],
        ];
        let pairs = HostPairs::of(rows.iter(), |_, _| false).unwrap();
        for (one, other, why) in [
            (0, 1, Obstacle::WritesLost),
            (1, 0, Obstacle::WritesLost),
            (2, 3, Obstacle::NotShared),
        ] {
            assert_eq!(pairs.obstacle(Rank(one), Rank(other)), Some(why));
        }
        assert_eq!(pairs.obstacle(Rank(0), Rank(2)), None);
        assert!(pairs.concerns(Rank(2)) && !HostPairs::default().concerns(Rank(2)));
        let text = pairs.describe();
        assert!(text.starts_with("2-3: the driver does not share") && text.contains("; 0-1: "));
    }

    /// If this fails, a false row makes ranks of two nodes look for each other in host memory.
    #[test]
    fn rows_that_name_no_other_rank_of_the_node_are_refused() {
        for (peer, apart) in [(0, false), (2, false), (1, true)] {
            let rows = [vec![(Rank(peer), Obstacle::NotShared)], vec![]];
            let error = HostPairs::of(rows.iter(), |_, _| apart).unwrap_err();
            assert!(matches!(error, Error::PeerValue { rank: Rank(0), .. }), "{error}");
        }
    }
}
