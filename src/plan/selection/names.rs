//! Names of algorithms.

use super::Algorithm;

impl Algorithm {
    /// A name of at most 16 bytes, for reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::RingStaged => "ring staged",
            Self::RingDirect => "ring direct",
            Self::RingHybrid => "ring hybrid",
            Self::AllPairs => "all pairs",
            Self::Hierarchical => "hierarchical",
            Self::HierarchicalHybrid => "hier. hybrid",
            Self::Chain => "chain",
            Self::ChainDirect => "chain direct",
            Self::Exchange => "exchange",
            Self::ExchangeDirect => "exchange direct",
            Self::Star => "star",
            Self::Dissemination => "dissemination",
            Self::Doubling => "doubling",
            Self::Halving => "halving",
            Self::TwoShot => "two-shot",
            Self::Symmetric => "symmetric",
            Self::RingSymmetric => "ring symmetric",
            Self::TwoShotNodes => "two-shot nodes",
            Self::Tree => "tree",
            Self::Bruck => "bruck",
            Self::InRankOrder => "in rank order",
            Self::Packed => "packed trees",
        }
    }
}
