//! The sizes of a group, and the memory that follows from them.

use crate::error::{Error, Result};
use ringdove_kernels::descriptor::OFFSET_MAX;
use ringdove_kernels::element::DataType;
use ringdove_kernels::experts::{
    EXPERTS_F32_SCALES, EXPERTS_LOW_LATENCY, EXPERTS_NO_SCALES, EXPERTS_SCALE_ELEMENTS,
    EXPERTS_THROUGHPUT, EXPERTS_UE8M0_SCALES, EXPERTS_WORD_STRIDE, ExpertsHeader, ExpertsRow,
};
use std::str::FromStr;

/// The most choices of a token.
pub const TOP_K_MAX: u32 = 16;
/// The most experts of all ranks together.
pub const EXPERTS_MAX: u32 = 65_536;
/// Elements of a token that share a scale.
pub const SCALE_ELEMENTS: u32 = EXPERTS_SCALE_ELEMENTS;
/// What sizes and addresses of rows are multiples of. Bytes.
pub(super) const VECTOR_BYTES: u64 = 16;
/// Parts of the window begin at multiples of this.
const PART_BYTES: u64 = 128;

/// How often a token crosses to a rank; the module's page says which to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// A row for each choice, which names one expert. Combine weighs the rows.
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

/// What a group of experts is made for; the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Experts of all ranks; rank `r` of `R` has those from `r * experts / R` on. A multiple of the
    /// number of ranks.
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
    /// then a multiple of [`SCALE_ELEMENTS`].
    pub fp8: Option<Scales>,
    /// How often a token crosses.
    pub mode: Mode,
    /// Counts of received rows are rounded up to a multiple of this, as some kernels of experts
    /// want them; 1 gives the counts themselves.
    pub alignment: u32,
    /// The group uses this [user lane](crate::Settings::user_lanes) and the next, and nobody else
    /// does.
    pub lane: u32,
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
}

/// What follows from a configuration, for a number of ranks. Bytes, and offsets in the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub config: Config,
    pub ranks: u32,
    pub local_experts: u32,
    pub rows_max: u32,
    pub home_rows_max: u32,
    pub header_bytes: u64,
    pub data_bytes: u64,
    pub scale_bytes: u64,
    pub return_data_bytes: u64,
    pub row_bytes: u64,
    pub return_row_bytes: u64,
    pub message_bytes: u64,
    pub arrivals: u64,
    pub arrival_bytes: u64,
    pub received: u64,
    pub returned: u64,
    pub returned_bytes: u64,
    pub outgoing: u64,
    pub returning: u64,
    pub window_bytes: u64,
}

fn refused(what: &str, expected: impl std::fmt::Display, seen: impl std::fmt::Display) -> Error {
    Error::argument(format!("experts: {what}").as_str(), expected, seen)
}

impl Config {
    /// Is the configuration one that this many ranks can have?
    fn check(&self, ranks: u32) -> Result<()> {
        let is = |name: &str, holds: bool, expected: &str, seen: u64| match holds {
            true => Ok(()),
            false => Err(refused(name, expected, seen)),
        };
        let Self { experts, top_k, hidden, tokens_max, data_type, alignment, .. } = *self;
        let experts_expected = format!("a multiple of {ranks} ranks, at most {EXPERTS_MAX}");
        let fits = experts > 0 && experts.is_multiple_of(ranks) && experts <= EXPERTS_MAX;
        is("experts", fits, &experts_expected, experts.into())?;
        let most = TOP_K_MAX.min(experts);
        let top_k_expected = format!("1 to {most}");
        is("top-k", (1..=most).contains(&top_k), &top_k_expected, top_k.into())?;
        let types = [DataType::F32, DataType::F16, DataType::BF16];
        if !types.contains(&data_type) {
            return Err(refused("data type", "f32, f16 or bf16", format!("{data_type:?}")));
        }
        let bytes = u64::from(hidden) * data_type.size_bytes() as u64;
        let fits = bytes > 0 && bytes.is_multiple_of(VECTOR_BYTES) && bytes <= 1 << 30;
        is("bytes of a token", fits, "a multiple of 16, at most 2^30", bytes)?;
        let fits = self.fp8.is_none() || hidden.is_multiple_of(SCALE_ELEMENTS);
        is("elements of a token", fits, "a multiple of 128, for fp8", hidden.into())?;
        is("tokens of a rank", tokens_max > 0, "1 at least", 0)?;
        is("alignment", alignment > 0, "1 at least", 0)
    }

    /// The sizes for `ranks` ranks. `by_stores`: nothing waits in this rank's memory for an engine.
    pub(super) fn sizes(&self, ranks: u32, by_stores: bool) -> Result<Sizes> {
        self.check(ranks)?;
        let local_experts = self.experts / ranks;
        let [tokens, top_k, many] = [self.tokens_max, self.top_k, ranks].map(u64::from);
        let (rows, home_rows) = match self.mode {
            Mode::LowLatency => (top_k.min(local_experts.into()), top_k),
            Mode::Throughput => (1, top_k.min(many)),
        };
        // Rows of the output are numbered in 32 bits, those of all local experts together.
        let output_rows = self.output_rows(ranks);
        if output_rows.max(tokens * top_k) >= u32::MAX.into() {
            let expected = "less than 2^32 rows in the output";
            return Err(refused("tokens of a rank", expected, output_rows));
        }
        let (rows, home_rows) = (tokens * rows, tokens * home_rows);
        let choices = (4 * top_k).next_multiple_of(VECTOR_BYTES);
        let beside = match self.mode {
            Mode::LowLatency => [0, 0],
            Mode::Throughput => [2 * choices, choices],
        };
        let counts = 4 * u64::from(local_experts);
        let header_bytes = size_of::<ExpertsHeader>() as u64 + counts;
        let header_bytes = header_bytes.next_multiple_of(VECTOR_BYTES);
        let return_data_bytes = u64::from(self.hidden) * self.data_type.size_bytes() as u64;
        let scale_bytes = self.scale_count() * self.fp8.map_or(0, Scales::bytes);
        let scale_bytes = scale_bytes.next_multiple_of(VECTOR_BYTES);
        let data_bytes = match self.fp8 {
            Some(_) => u64::from(self.hidden),
            None => return_data_bytes,
        };
        let row_bytes = data_bytes + scale_bytes + size_of::<ExpertsRow>() as u64 + beside[0];
        let return_row_bytes = return_data_bytes + beside[1];
        let message_bytes = (header_bytes + rows * row_bytes).next_multiple_of(PART_BYTES);
        let returned_bytes = (home_rows * return_row_bytes).next_multiple_of(PART_BYTES);
        let arrival_bytes = (2 * many * EXPERTS_WORD_STRIDE).next_multiple_of(PART_BYTES);
        let mut end = 0;
        let mut part = |bytes: u64| {
            let begin = end;
            end += bytes.next_multiple_of(PART_BYTES);
            begin
        };
        let arrivals = part(arrival_bytes);
        let received = part(2 * many * message_bytes);
        let returned = part(2 * returned_bytes);
        let waiting = |bytes: u64| if by_stores { 0 } else { bytes };
        let outgoing = part(waiting(many * header_bytes + home_rows * row_bytes));
        let returning = part(waiting(many * rows * return_row_bytes));
        if end > OFFSET_MAX {
            let expected = format!("a window of at most {OFFSET_MAX} bytes");
            return Err(refused("memory of a rank", expected, end));
        }
        Ok(Sizes {
            config: *self,
            ranks,
            local_experts,
            rows_max: rows as u32,
            home_rows_max: home_rows as u32,
            header_bytes,
            data_bytes,
            scale_bytes,
            return_data_bytes,
            row_bytes,
            return_row_bytes,
            message_bytes,
            arrivals,
            arrival_bytes,
            received,
            returned,
            returned_bytes,
            outgoing,
            returning,
            window_bytes: end,
        })
    }

    /// What ranks send one another, of `ranks` ranks.
    ///
    /// # Errors
    /// [`Error::Argument`] names what is out of range.
    pub fn message_bytes(&self, ranks: u32) -> Result<MessageBytes> {
        let Sizes { header_bytes: header, row_bytes: row, return_row_bytes: return_row, .. } =
            self.sizes(ranks, false)?;
        Ok(MessageBytes { header, row, return_row })
    }

    /// Scales of a token, where there are any.
    pub(super) fn scale_count(&self) -> u64 {
        u64::from(self.hidden / SCALE_ELEMENTS)
    }

    /// Rows of a dispatch's output on each of `ranks` ranks. In low-latency mode each local expert
    /// has `ranks * tokens_max` of them.
    pub fn output_rows(&self, ranks: u32) -> u64 {
        let of_one = u64::from(ranks) * u64::from(self.tokens_max);
        match self.mode {
            Mode::LowLatency => of_one * u64::from(self.experts / ranks.max(1)),
            Mode::Throughput => of_one,
        }
    }

    /// Entries of a dispatch's counts: one for each local expert, and in throughput mode one more,
    /// for all rows.
    pub fn output_counts(&self, ranks: u32) -> u64 {
        let total = u64::from(self.mode == Mode::Throughput);
        u64::from(self.experts / ranks.max(1)) + total
    }
}

impl Scales {
    /// Bytes of one.
    fn bytes(self) -> u64 {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config {
            experts: 256,
            top_k: 8,
            hidden: 7168,
            tokens_max: 128,
            surplus: Surplus::Refuse,
            data_type: DataType::BF16,
            fp8: None,
            mode: Mode::LowLatency,
            alignment: 1,
            lane: 0,
        }
    }

    /// If this fails, a group takes more memory than DeepEP's buffers for the same sizes: four
    /// times experts, tokens and row (1.9 GB with 256 experts).
    #[test]
    fn a_group_takes_no_more_than_the_fields_buffers() {
        for ranks in [8, 16, 32, 64] {
            let sizes = config().sizes(ranks, false).unwrap();
            let theirs = 4 * 256 * 128 * (2 * 7168 + 4 * 7168 / 128);
            assert!(sizes.window_bytes <= theirs, "{ranks} ranks: {}", sizes.window_bytes);
        }
    }

    /// If this fails, parts of the window overlap, or the last one reaches past its end.
    #[test]
    fn parts_of_the_window_follow_one_another() {
        for mode in [Mode::LowLatency, Mode::Throughput] {
            let sizes = Config { mode, ..config() }.sizes(8, false).unwrap();
            let parts = [
                (sizes.arrivals, sizes.arrival_bytes),
                (sizes.received, 16 * sizes.message_bytes),
                (sizes.returned, 2 * sizes.returned_bytes),
                (
                    sizes.outgoing,
                    8 * sizes.header_bytes + u64::from(sizes.home_rows_max) * sizes.row_bytes,
                ),
                (sizes.returning, 8 * u64::from(sizes.rows_max) * sizes.return_row_bytes),
                (sizes.window_bytes, 0),
            ];
            for pair in parts.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{mode:?}: {pair:?}");
            }
        }
    }

    /// If this fails, a size that a field cannot hold wraps in it.
    #[test]
    fn sizes_out_of_range_are_errors_that_name_them() {
        let ok = config();
        for (wrong, name) in [
            (Config { experts: 100, ..ok }, "experts"),
            (Config { experts: 1 << 20, ..ok }, "experts"),
            (Config { top_k: 17, ..ok }, "top-k"),
            (Config { top_k: 0, ..ok }, "top-k"),
            (Config { hidden: 7, ..ok }, "bytes of a token"),
            (Config { hidden: u32::MAX, ..ok }, "bytes of a token"),
            (Config { tokens_max: u32::MAX, ..ok }, "tokens of a rank"),
            (Config { tokens_max: 1 << 22, hidden: 1 << 14, ..ok }, "memory of a rank"),
            (Config { data_type: DataType::I32, ..ok }, "data type"),
            (Config { alignment: 0, ..ok }, "alignment"),
            (Config { hidden: 8, fp8: Some(Scales::F32), ..ok }, "elements of a token"),
        ] {
            let text = wrong.sizes(8, false).unwrap_err().to_string();
            assert!(text.contains(name), "{text}");
        }
    }
}
