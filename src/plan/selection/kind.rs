//! Algorithms as users ask for them by name.

use super::{Algorithm, Choice};
use crate::id::AlgorithmKind;

impl Algorithm {
    /// The kind by whose name users ask for it; `None` where nobody does.
    pub const fn kind(self) -> Option<AlgorithmKind> {
        Some(match self {
            Self::RingStaged | Self::RingDirect | Self::RingHybrid => AlgorithmKind::Ring,
            Self::AllPairs => AlgorithmKind::AllPairs,
            Self::Doubling => AlgorithmKind::Doubling,
            Self::Halving => AlgorithmKind::Halving,
            Self::TwoShot | Self::TwoShotNodes => AlgorithmKind::TwoShot,
            Self::Symmetric => AlgorithmKind::Symmetric,
            Self::RingSymmetric => AlgorithmKind::RingSymmetric,
            Self::Hierarchical | Self::HierarchicalHybrid => AlgorithmKind::Hierarchical,
            Self::Chain | Self::ChainDirect => AlgorithmKind::Chain,
            Self::Exchange | Self::ExchangeDirect => AlgorithmKind::Exchange,
            Self::Star => AlgorithmKind::Star,
            Self::Tree => AlgorithmKind::Tree,
            Self::Bruck => AlgorithmKind::Bruck,
            Self::Copy | Self::Dissemination | Self::InRankOrder | Self::Packed => return None,
        })
    }
}

/// Of candidates, of which the first is the choice of [`select`](super::select): the number of
/// the one to take. That is the first where it is of the kind; else the last that is, which
/// moves data the fewest times.
pub fn choose_of(kind: AlgorithmKind, candidates: &[Choice]) -> Option<usize> {
    let fits = |choice: &Choice| choice.algorithm.kind() == Some(kind);
    match candidates.first().is_some_and(fits) {
        true => Some(0),
        false => candidates.iter().rposition(fits),
    }
}
