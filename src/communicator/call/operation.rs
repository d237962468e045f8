//! The table of collectives: everything that a call of one needs to know, besides its plan.
//!
//! A new collective is a plan, an [`Operation`] in this table, and a thin public method.

use crate::error::{Error, Result};
use crate::plan::{self, Choice, Collective, Limits, Plan, PlanError, Request};

/// A collective operation.
#[derive(Debug)]
pub(in crate::communicator) struct Operation {
    /// Its name in messages.
    pub name: &'static str,
    /// Its name in requests for plans.
    pub collective: Collective,
    /// Which ranks have an input, and of how many elements.
    pub input: BufferRule,
    /// Which ranks have an output, and of how many elements.
    pub output: BufferRule,
    /// How the two may overlap.
    pub in_place: InPlace,
    /// A call names a root, the same on all ranks.
    pub has_root: bool,
    /// A call names a reduction.
    pub reduces: bool,
    /// There are plans that move data straight between registered buffers.
    pub has_direct_plans: bool,
    /// Builds a plan.
    pub plan: fn(&Request, &Limits) -> std::result::Result<Plan, PlanError>,
}

/// The buffer of an operation, by rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::communicator) struct BufferRule {
    /// Which ranks have it.
    pub held_by: HeldBy,
    /// How many elements it has.
    pub extent: Extent,
}

/// Which ranks have a buffer. The others pass nothing, or what they pass is not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::communicator) enum HeldBy {
    /// All.
    All,
    /// The root alone.
    #[allow(dead_code)]
    Root,
    /// No rank.
    #[allow(dead_code)]
    None,
}

/// How many elements a buffer has, where a call names a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::communicator) enum Extent {
    /// As many as the count says.
    Count,
    /// So many for each rank of the communicator.
    #[allow(dead_code)]
    CountOfEachRank,
}

/// How a rank's input and output may overlap. Otherwise they must not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::communicator) enum InPlace {
    /// Both are the same memory.
    Same,
    /// The input is this rank's part of the output: it starts `rank * count` elements into it.
    #[allow(dead_code)]
    InputInOutput,
    /// The output is this rank's part of the input.
    #[allow(dead_code)]
    OutputInInput,
    /// In no way.
    #[allow(dead_code)]
    Never,
}

impl BufferRule {
    /// On every rank, of `count` elements.
    const EVERYWHERE: Self = Self { held_by: HeldBy::All, extent: Extent::Count };

    /// Does `rank` have the buffer, where `root` is the call's root?
    pub fn is_held_by(self, rank: u32, root: Option<u32>) -> bool {
        match self.held_by {
            HeldBy::All => true,
            HeldBy::Root => root == Some(rank),
            HeldBy::None => false,
        }
    }

    /// Elements of the buffer, where a call of `ranks` ranks names `count`; `None` where that
    /// overflows.
    pub fn elements(self, count: u64, ranks: u32) -> Option<u64> {
        match self.extent {
            Extent::Count => Some(count),
            Extent::CountOfEachRank => count.checked_mul(ranks.into()),
        }
    }
}

impl Extent {
    /// The count of a call of `ranks` ranks whose buffer `what` has so many elements.
    ///
    /// # Errors
    /// [`Error::Argument`] for a number of elements that is no multiple of `ranks` and has to be.
    pub fn count(self, (what, elements): (&str, usize), ranks: u32) -> Result<usize> {
        match self {
            Self::Count => Ok(elements),
            Self::CountOfEachRank if elements.is_multiple_of(ranks as usize) => {
                Ok(elements / ranks as usize)
            }
            Self::CountOfEachRank => {
                let expected =
                    format_args!("a multiple of {ranks} elements, one part for each rank");
                Err(Error::argument(what, expected, elements))
            }
        }
    }
}

impl InPlace {
    /// Bytes from the start of the input to the start of the output, of a call that is in place on
    /// `rank` and whose count is `bytes` bytes; `None` if the operation is never in place.
    pub fn output_offset(self, rank: u32, bytes: u64) -> Option<i64> {
        let part = i64::try_from(bytes.checked_mul(rank.into())?).ok()?;
        match self {
            Self::Same => Some(0),
            Self::InputInOutput => Some(-part),
            Self::OutputInInput => Some(part),
            Self::Never => None,
        }
    }

    /// The rule, for messages.
    pub fn expected(self) -> &'static str {
        match self {
            Self::Same => "the same memory, or no overlap",
            Self::InputInOutput => {
                "the send buffer at this rank's part of the other, or no overlap"
            }
            Self::OutputInInput => {
                "the receive buffer at this rank's part of the other, or no overlap"
            }
            Self::Never => "no overlap",
        }
    }
}

impl Operation {
    /// False for an operation that only synchronises: it runs although it has no data.
    pub fn moves_data(&self) -> bool {
        self.input.held_by != HeldBy::None || self.output.held_by != HeldBy::None
    }

    /// True if ranks agree on whether a call is in place: then the plan is told. On the root alone
    /// it may differ from the others, so plans of rooted operations hold either way.
    pub fn agrees_on_in_place(&self) -> bool {
        !self.has_root && self.in_place != InPlace::Never
    }
}

/// Selects an algorithm by the size of the request, and builds it.
fn selected(request: &Request, limits: &Limits) -> std::result::Result<Plan, PlanError> {
    let choice: Choice = plan::select(request, limits)?;
    Ok(plan::build(&choice))
}

/// Every rank gets the reduction of all ranks' inputs.
pub(in crate::communicator) static ALL_REDUCE: Operation = Operation {
    name: "all-reduce",
    collective: Collective::AllReduce,
    input: BufferRule::EVERYWHERE,
    output: BufferRule::EVERYWHERE,
    in_place: InPlace::Same,
    has_root: false,
    reduces: true,
    has_direct_plans: true,
    plan: selected,
};
