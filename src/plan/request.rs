//! Requests: which collective, of how much, and what each rank has and gets.

use super::Promise;
use super::selection::{PlanError, require};
use ringdove_kernels::element::ReduceOp;
use serde::{Deserialize, Serialize};

/// A collective. Those with a root name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Collective {
    /// Every rank gets the reduction of all ranks' inputs.
    AllReduce,
    /// Rank `r` gets part `r` of the reduction of all ranks' inputs.
    ReduceScatter,
    /// Every rank gets all ranks' inputs, in the order of ranks.
    AllGather,
    /// Every rank gets the root's input.
    Broadcast {
        /// The rank that has the input.
        root: u32,
    },
    /// The root gets the reduction of all ranks' inputs.
    Reduce {
        /// The rank that gets the output.
        root: u32,
    },
    /// Part `p` of rank `r`'s output is part `r` of rank `p`'s input.
    AllToAll,
    /// The root gets all ranks' inputs, in the order of ranks.
    Gather {
        /// The rank that gets the output.
        root: u32,
    },
    /// Rank `r` gets part `r` of the root's input.
    Scatter {
        /// The rank that has the input.
        root: u32,
    },
    /// No rank goes on before all ranks have come here.
    Barrier,
}

impl Collective {
    /// All of them, those that have a root with this one.
    pub const fn all(root: u32) -> [Self; 9] {
        [
            Self::AllReduce,
            Self::ReduceScatter,
            Self::AllGather,
            Self::AllToAll,
            Self::Broadcast { root },
            Self::Reduce { root },
            Self::Gather { root },
            Self::Scatter { root },
            Self::Barrier,
        ]
    }

    /// The name that messages and the command line use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllGather => "all-gather",
            Self::Broadcast { .. } => "broadcast",
            Self::Reduce { .. } => "reduce",
            Self::AllToAll => "all-to-all",
            Self::Gather { .. } => "gather",
            Self::Scatter { .. } => "scatter",
            Self::Barrier => "barrier",
        }
    }

    /// The root, if this collective has one.
    pub const fn root(self) -> Option<u32> {
        match self {
            Self::Broadcast { root }
            | Self::Reduce { root }
            | Self::Gather { root }
            | Self::Scatter { root } => Some(root),
            _ => None,
        }
    }

    /// True if there are plans that move data straight between registered buffers.
    pub const fn has_direct_plans(self) -> bool {
        matches!(self, Self::AllReduce | Self::AllGather | Self::AllToAll | Self::Broadcast { .. })
    }

    /// True if these plans send from the input too, and not from the output alone.
    pub const fn sends_input(self) -> bool {
        matches!(self, Self::AllReduce | Self::AllToAll)
    }

    /// True if inputs are combined, so that type and reduction matter.
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce { .. })
    }
}

/// What a call asks for; alike on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CollectiveRequest {
    /// Which collective.
    pub collective: Collective,
    /// Ranks of the communicator.
    pub rank_count: u32,
    /// Bytes of NCCL's `count` elements: of each rank's data where input and output have one size,
    /// else of one rank's part. 0 for a barrier.
    pub bytes: u64,
    /// Bytes of one element: 1, 2, 4 or 8.
    pub element_bytes: u32,
    /// The reduction. Means nothing where the collective does not reduce.
    #[serde(with = "super::file::reduction")]
    pub reduce_op: ReduceOp,
    /// Input and output are the same memory, as [`CollectiveRequest::in_place_offsets`] says. With
    /// a root, this is about the root alone: the other ranks' programs do not depend on it.
    pub in_place: bool,
    /// Input and output are registered on every rank, so that engines may reach them.
    pub registered: bool,
}

/// Data that a rank gets: a part of its output, and what it has to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Offset of the part in the output. Bytes.
    pub offset: u64,
    /// Offset in the inputs of the ranks that it comes from. Bytes.
    pub source: u64,
    /// Whose input it is; `None`: the reduction of all ranks' inputs.
    pub from: Option<u32>,
}

impl CollectiveRequest {
    /// Of elements of four bytes, which are added up where the collective reduces; out of place, in
    /// buffers that are not registered.
    pub fn new(collective: Collective, rank_count: u32, bytes: u64) -> Self {
        Self {
            collective,
            rank_count,
            bytes,
            element_bytes: 4,
            reduce_op: ReduceOp::Sum,
            in_place: false,
            registered: false,
        }
    }

    /// True if inputs are scaled before they are combined.
    pub fn scales(&self) -> bool {
        self.collective.reduces() && self.reduce_op == ReduceOp::PreMulSum
    }

    /// May a rank put from its registered input, for itself alone? Where it does not, it makes the
    /// request [`staged`](Self::staged), and sends and receives the same messages.
    pub(crate) fn may_send_from_input(&self) -> bool {
        let of_input =
            matches!(self.collective, Collective::ReduceScatter | Collective::Reduce { .. });
        self.registered && of_input && self.rank_count > 1 && !self.scales()
    }

    /// The same, with buffers that are not registered.
    pub(crate) fn staged(self) -> Self {
        Self { registered: false, ..self }
    }

    /// Bytes of `rank`'s input; 0 if it has none.
    pub fn input_bytes(&self, rank: u32) -> u64 {
        let all = self.bytes * u64::from(self.rank_count);
        match self.collective {
            Collective::AllReduce
            | Collective::AllGather
            | Collective::Reduce { .. }
            | Collective::Gather { .. } => self.bytes,
            Collective::ReduceScatter | Collective::AllToAll => all,
            Collective::Broadcast { root } if rank == root => self.bytes,
            Collective::Scatter { root } if rank == root => all,
            Collective::Broadcast { .. } | Collective::Scatter { .. } | Collective::Barrier => 0,
        }
    }

    /// Bytes of `rank`'s output; 0 if it has none.
    pub fn output_bytes(&self, rank: u32) -> u64 {
        let all = self.bytes * u64::from(self.rank_count);
        match self.collective {
            Collective::AllReduce
            | Collective::ReduceScatter
            | Collective::Broadcast { .. }
            | Collective::Scatter { .. } => self.bytes,
            Collective::AllGather | Collective::AllToAll => all,
            Collective::Reduce { root } if rank == root => self.bytes,
            Collective::Gather { root } if rank == root => all,
            Collective::Reduce { .. } | Collective::Gather { .. } | Collective::Barrier => 0,
        }
    }

    /// Where input and output start in the memory that they share when the call is in place on
    /// `rank`: the smaller one is the rank's own part of the larger. Bytes.
    pub fn in_place_offsets(&self, rank: u32) -> (u64, u64) {
        let part = self.bytes * u64::from(rank);
        match self.collective {
            Collective::AllGather | Collective::Gather { .. } => (part, 0),
            Collective::ReduceScatter | Collective::Scatter { .. } => (0, part),
            _ => (0, 0),
        }
    }

    /// Parts of [`CollectiveRequest::bytes`] in the larger of input and output.
    pub fn parts(&self) -> u64 {
        match self.collective {
            Collective::AllReduce | Collective::Broadcast { .. } | Collective::Reduce { .. } => 1,
            _ => u64::from(self.rank_count),
        }
    }

    /// True if input and output of `rank` share memory.
    pub fn in_place_on(&self, rank: u32) -> bool {
        self.in_place && self.collective.root().is_none_or(|root| root == rank)
    }

    /// What each part of `rank`'s output, of [`CollectiveRequest::bytes`] each, has to hold.
    pub fn deliveries(&self, rank: u32) -> Vec<Delivery> {
        let part = |number: u32| self.bytes * u64::from(number);
        let one = |source, from| vec![Delivery { offset: 0, source, from }];
        let each = |source: u64| {
            let from = |peer| Delivery { offset: part(peer), source, from: Some(peer) };
            (0..self.rank_count).map(from).collect()
        };
        match self.collective {
            Collective::AllReduce => one(0, None),
            Collective::ReduceScatter => one(part(rank), None),
            Collective::AllGather => each(0),
            Collective::AllToAll => each(part(rank)),
            Collective::Broadcast { root } => one(0, Some(root)),
            Collective::Scatter { root } => one(part(rank), Some(root)),
            Collective::Reduce { root } if rank == root => one(0, None),
            Collective::Gather { root } if rank == root => each(0),
            Collective::Reduce { .. } | Collective::Gather { .. } | Collective::Barrier => {
                Vec::new()
            }
        }
    }

    /// What a plan for this request has to achieve.
    pub fn promise(&self) -> Promise {
        Promise::Collective(*self)
    }

    /// Checks the numbers.
    pub(super) fn check(&self) -> Result<(), PlanError> {
        let (element, ranks) = (u64::from(self.element_bytes), u64::from(self.rank_count));
        require(ranks > 0, "ranks", "at least 1", 0)?;
        let root = self.collective.root().unwrap_or(0);
        let exists = root < self.rank_count;
        require(exists, "root", "less than the number of ranks", root.into())?;
        require(matches!(element, 1 | 2 | 4 | 8), "element bytes", "1, 2, 4 or 8", element)?;
        let whole = self.bytes.is_multiple_of(element);
        require(whole, "bytes", "a whole number of elements", self.bytes)?;
        let fits = self.bytes.checked_mul(self.parts()).is_some_and(|all| all < 1 << 40);
        require(fits, "bytes", "less than 1 TiB for all parts together", self.bytes)?;
        let empty = self.bytes == 0 || self.collective != Collective::Barrier;
        require(empty, "bytes", "0 for a barrier", self.bytes)
    }
}
