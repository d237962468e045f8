//! What a group is made for.

use super::sizes::{Sizes, Spread};
use crate::error::Result;
use ringdove_kernels::element::DataType;
use ringdove_kernels::experts::{
    EXPERTS_F32_SCALES, EXPERTS_LOW_LATENCY, EXPERTS_NO_SCALES, EXPERTS_SCALE_ELEMENTS,
    EXPERTS_THROUGHPUT, EXPERTS_UE8M0_SCALES,
};
use std::str::FromStr;
use std::time::Duration;

/// The most choices of a token.
pub const TOP_K_MAX: u32 = 16;
/// The most experts of all ranks together.
pub const EXPERTS_MAX: u32 = 65_536;
/// Elements of a token that share a scale.
pub const SCALE_ELEMENTS: u32 = EXPERTS_SCALE_ELEMENTS;
/// What sizes and addresses of rows are multiples of. Bytes.
pub(super) const VECTOR_BYTES: u64 = 16;

/// How often a token crosses to a rank; the module's page says which to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// A row of the output for each choice, which names one expert. Combine weighs the rows.
    LowLatency,
    /// A row for each rank that a token chooses, for all of its experts there. Combine adds what
    /// ranks return, and sums weights beside.
    Throughput,
}

impl Mode {
    /// Its name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::LowLatency => "low-latency",
            Self::Throughput => "throughput",
        }
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::LowLatency, Self::Throughput];
        let named = all.into_iter().find(|mode| mode.name() == text);
        named.ok_or_else(|| "expected low-latency or throughput".to_owned())
    }
}

/// The type of tokens with this name on command lines: half, float or bfloat16.
///
/// # Errors
/// The names that there are.
pub fn token_type(name: &str) -> std::result::Result<DataType, String> {
    match name {
        "half" => Ok(DataType::F16),
        "float" => Ok(DataType::F32),
        "bfloat16" => Ok(DataType::BF16),
        _ => Err("expected half, float or bfloat16".to_owned()),
    }
}

/// What becomes of tokens beyond [`Config::tokens_max`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Surplus {
    /// None of the rank's tokens is sent, and every rank's [`check`](super::Group::check) names it.
    #[default]
    Refuse,
    /// The last ones are not sent, and counted: [`Handle::dropped`](super::Handle::dropped),
    /// [`Group::dropped`](super::Group::dropped). No combine writes their results.
    Drop,
}

/// The form of the scales of 8-bit floats: one for each [`SCALE_ELEMENTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scales {
    /// An f32: the largest magnitude over 448.
    F32,
    /// A byte, the exponent of the next power of two, biased by 127.
    Ue8m0,
}

impl FromStr for Scales {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "f32" => Ok(Self::F32),
            "ue8m0" => Ok(Self::Ue8m0),
            _ => Err("expected f32 or ue8m0".to_owned()),
        }
    }
}

/// What becomes of a step, and of the group, when a rank does not answer; the
/// [module](super#when-a-rank-dies) has the whole story.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnLoss {
    /// The step ends without results, and the communicator with it, in an error that names the
    /// rank.
    #[default]
    End,
    /// The step ends without the rank, and each token says whether all of its experts answered.
    /// Rows are then sent once to each rank, and not relayed.
    GoOn {
        /// For how long other ranks are awaited once the control plane has reported that a rank has
        /// died or failed. Before that, a rank is awaited for
        /// [`Settings::wait_timeout`](crate::Settings::wait_timeout): one that is slower than this
        /// is given up, too. Longer than ranks are apart in a step.
        grace: Duration,
    },
}

/// What a group of experts is made for; the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Experts of all ranks; rank `r` of `R` has those from `r * experts / R` on, unless a
    /// [`Placement`](super::Placement) says otherwise. A multiple of the number of ranks.
    pub experts: u32,
    /// Choices of each token: 1 to [`TOP_K_MAX`].
    pub top_k: u32,
    /// Elements of a token; its bytes are a multiple of 16.
    pub hidden: u32,
    /// The most tokens that a rank brings to one dispatch.
    pub tokens_max: u32,
    /// What becomes of more.
    pub surplus: Surplus,
    /// f32, f16 or bf16: the type of tokens, and of the rows of a combine.
    pub data_type: DataType,
    /// Rows of a dispatch are e4m3 with scales; the caller or the kernel quantises. `hidden` is
    /// then a multiple of 16. Its last scale is of fewer than [`SCALE_ELEMENTS`] elements where
    /// they do not divide it.
    pub fp8: Option<Scales>,
    /// How often a token crosses.
    pub mode: Mode,
    /// Counts of received rows are rounded up to a multiple of this, as some kernels of experts
    /// want them; 1 gives the counts themselves.
    pub alignment: u32,
    /// The group uses this [user lane](crate::Settings::user_lanes) and the next, and nobody else
    /// does.
    pub lane: u32,
    /// What becomes of a step when a rank does not answer.
    pub on_loss: OnLoss,
}

/// Memory of one rank, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BytesNeeded {
    /// Of the group: messages on their way, at both ends.
    pub group: u64,
    /// Of each [`Handle`](super::Handle).
    pub handle: u64,
}

/// Bytes of what ranks send one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageBytes {
    /// The head of each message of a dispatch.
    pub header: u64,
    /// A row of a dispatch: data, scales and where it is from.
    pub row: u64,
    /// A row of a combine.
    pub return_row: u64,
    /// The head of a message to another node, where rows are relayed.
    pub relayed_header: u64,
    /// A row of such a message.
    pub relayed_row: u64,
}

impl Config {
    /// What ranks send one another, of `ranks` ranks.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) names what is out of range.
    pub fn message_bytes(&self, ranks: u32) -> Result<MessageBytes> {
        self.message_bytes_on_nodes(ranks, 0)
    }

    /// As [`Self::message_bytes`], where each node has `node_ranks` ranks and rows to other nodes
    /// are relayed; 0: they are not.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) names what is out of range.
    pub fn message_bytes_on_nodes(&self, ranks: u32, node_ranks: u32) -> Result<MessageBytes> {
        let sizes = Sizes::new(self, Spread { node_ranks, ..Spread::even(ranks) })?;
        Ok(MessageBytes {
            header: sizes.header_bytes,
            row: sizes.row_bytes,
            return_row: sizes.return_row_bytes,
            relayed_header: sizes.relayed_header_bytes,
            relayed_row: sizes.relayed_row_bytes,
        })
    }

    /// Scales of a token, where there are any.
    pub(super) fn scale_count(&self) -> u64 {
        u64::from(self.hidden.div_ceil(SCALE_ELEMENTS))
    }

    /// Rows of a dispatch's output on each of `ranks` ranks. In low-latency mode each local expert
    /// has `ranks * tokens_max` of them.
    pub fn output_rows(&self, ranks: u32) -> u64 {
        self.rows(ranks, self.experts / ranks.max(1))
    }

    /// The same, where each rank has `local_experts`.
    pub(super) fn rows(&self, ranks: u32, local_experts: u32) -> u64 {
        let of_one = u64::from(ranks) * u64::from(self.tokens_max);
        match self.mode {
            Mode::LowLatency => of_one * u64::from(local_experts),
            Mode::Throughput => of_one,
        }
    }

    /// Entries of a dispatch's counts: one for each local expert, and in throughput mode one more,
    /// for all rows.
    pub fn output_counts(&self, ranks: u32) -> u64 {
        self.counts(self.experts / ranks.max(1))
    }

    /// The same, where each rank has `local_experts`.
    pub(super) fn counts(&self, local_experts: u32) -> u64 {
        u64::from(local_experts) + u64::from(self.mode == Mode::Throughput)
    }
}

impl OnLoss {
    /// The grace in nanoseconds, where the group goes on.
    pub(super) fn grace_ns(self) -> Option<u64> {
        match self {
            Self::End => None,
            Self::GoOn { grace } => Some(u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX)),
        }
    }
}

impl Scales {
    /// Bytes of one.
    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::Ue8m0 => 1,
        }
    }

    /// As kernels know them.
    pub(super) fn code(scales: Option<Self>) -> u32 {
        match scales {
            None => EXPERTS_NO_SCALES,
            Some(Self::F32) => EXPERTS_F32_SCALES,
            Some(Self::Ue8m0) => EXPERTS_UE8M0_SCALES,
        }
    }
}

impl Mode {
    /// As kernels know it.
    pub(super) fn code(self) -> u32 {
        match self {
            Self::LowLatency => EXPERTS_LOW_LATENCY,
            Self::Throughput => EXPERTS_THROUGHPUT,
        }
    }
}
