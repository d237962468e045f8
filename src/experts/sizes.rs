//! The memory that follows from what a group is made for: parts of its window, and their sizes.

use super::config::VECTOR_BYTES;
use super::config::{Config, EXPERTS_MAX, Mode, OnLoss, Scales, TOP_K_MAX};
use crate::error::{Error, Result};
use ringdove_kernels::descriptor::OFFSET_MAX;
use ringdove_kernels::element::DataType;
use ringdove_kernels::experts::{EXPERTS_WORD_STRIDE, ExpertsHeader, ExpertsRow};

/// Parts of the window begin at multiples of this.
const PART_BYTES: u64 = 128;

/// Where the ranks of a group are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// How many.
    pub ranks: u32,
    /// Blocks of experts, of which each rank has one.
    pub blocks: u32,
    /// Ranks of each node, where rows to other nodes may be relayed; else 0.
    pub node_ranks: u32,
    /// Stores reach all ranks: nothing waits in a rank's memory for an engine.
    pub by_stores: bool,
}

impl Spread {
    /// So many ranks, somewhere.
    pub fn even(ranks: u32) -> Self {
        Self { ranks, blocks: ranks, node_ranks: 0, by_stores: false }
    }
}

/// What follows from a configuration, for a number of ranks. Bytes, and offsets in the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub config: Config,
    pub ranks: u32,
    pub blocks: u32,
    /// Ranks of a node, where rows are relayed; else 0.
    pub node_ranks: u32,
    pub local_experts: u32,
    pub rows_max: u32,
    pub return_rows_max: u32,
    pub home_rows_max: u32,
    pub header_bytes: u64,
    pub data_bytes: u64,
    pub scale_bytes: u64,
    pub choices_bytes: u64,
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
    pub relayed_header_bytes: u64,
    pub relayed_row_bytes: u64,
    pub relayed: u64,
    pub relayed_bytes: u64,
    pub gathered: u64,
    pub gathered_bytes: u64,
    pub window_bytes: u64,
}

fn refused(what: &str, expected: impl std::fmt::Display, seen: impl std::fmt::Display) -> Error {
    Error::argument(format!("experts: {what}").as_str(), expected, seen)
}

/// Offsets of parts that follow one another.
struct Parts(u64);

impl Parts {
    fn next(&mut self, bytes: u64) -> u64 {
        let begin = self.0;
        self.0 += bytes.next_multiple_of(PART_BYTES);
        begin
    }
}

/// Bytes of rows and heads, which do not depend on how many there are.
struct Rows {
    data: u64,
    scales: u64,
    choices: u64,
    return_data: u64,
    row: u64,
    return_row: u64,
    relayed_row: u64,
}

impl Rows {
    fn new(config: &Config) -> Self {
        let return_data = u64::from(config.hidden) * config.data_type.size_bytes() as u64;
        let scales = config.scale_count() * config.fp8.map_or(0, Scales::bytes);
        let scales = scales.next_multiple_of(VECTOR_BYTES);
        let data = if config.fp8.is_some() { config.hidden.into() } else { return_data };
        let choices = (4 * u64::from(config.top_k)).next_multiple_of(VECTOR_BYTES);
        let beside = match config.mode {
            Mode::LowLatency => [3 * choices, 0],
            Mode::Throughput => [2 * choices, choices],
        };
        let row = data + scales + size_of::<ExpertsRow>() as u64 + beside[0];
        let return_row = return_data + beside[1];
        Self { data, scales, choices, return_data, row, return_row, relayed_row: row + choices }
    }
}

/// Bytes of a message's head, with so many numbers behind it.
fn head_bytes(numbers: u64) -> u64 {
    (size_of::<ExpertsHeader>() as u64 + 4 * numbers).next_multiple_of(VECTOR_BYTES)
}

impl Sizes {
    /// The sizes for ranks that are spread like this.
    ///
    /// # Errors
    /// [`Error::Argument`] names what is out of range.
    pub fn new(config: &Config, spread: Spread) -> Result<Self> {
        config.check(spread.blocks)?;
        let Spread { ranks, blocks, by_stores, .. } = spread;
        // A group that goes on relays nothing: a relay's death would take its whole node with it.
        let may_relay = config.mode == Mode::Throughput && config.on_loss == OnLoss::End;
        let is_relayed = may_relay && (2..ranks).contains(&spread.node_ranks);
        let node_ranks = if is_relayed { spread.node_ranks } else { 0 };
        let nodes = ranks.checked_div(node_ranks).unwrap_or(0);
        let local_experts = config.experts / blocks;
        let [tokens, top_k, many] = [config.tokens_max, config.top_k, ranks].map(u64::from);
        let destinations = if is_relayed { node_ranks + nodes - 1 } else { ranks };
        // Of one token: rows that it sends, that come back for it, and that go back to its rank.
        let sent_rows = top_k.min(destinations.into());
        let (home_rows, return_rows) = match config.mode {
            Mode::LowLatency => (top_k, top_k.min(local_experts.into())),
            Mode::Throughput => (sent_rows, 1),
        };
        // Rows of the output are numbered in 32 bits, those of all local experts together.
        let output_rows = config.rows(ranks, local_experts);
        if output_rows.max(tokens * top_k) >= u32::MAX.into() {
            let expected = "less than 2^32 rows in the output";
            return Err(refused("tokens of a rank", expected, output_rows));
        }
        let rows = tokens;
        let [sent_rows, home_rows, return_rows] =
            [sent_rows, home_rows, return_rows].map(|of_token| tokens * of_token);
        let bytes = Rows::new(config);
        let header_bytes = head_bytes(local_experts.into());
        let numbers = u64::from(node_ranks) * u64::from(local_experts + 1);
        let relayed_header_bytes = if is_relayed { head_bytes(numbers) } else { 0 };
        let relayed_row_bytes = if is_relayed { bytes.relayed_row } else { 0 };
        let relayed_bytes = relayed_header_bytes + rows * relayed_row_bytes;
        let relayed_bytes = relayed_bytes.next_multiple_of(PART_BYTES);
        let message_bytes = (header_bytes + rows * bytes.row).next_multiple_of(PART_BYTES);
        let returned_bytes = (home_rows * bytes.return_row).next_multiple_of(PART_BYTES);
        let arrival_bytes = (2 * many * EXPERTS_WORD_STRIDE).next_multiple_of(PART_BYTES);
        let gathered_bytes = if is_relayed { many * rows * bytes.return_row } else { 0 };
        let gathered_bytes = gathered_bytes.next_multiple_of(PART_BYTES);
        // What waits for an engine: a message for each rank, or for each node.
        let [outgoing_bytes, returning_bytes] = match (by_stores, is_relayed) {
            (true, _) => [0, 0],
            (false, true) => {
                [relayed_bytes, rows * bytes.return_row].map(|of| u64::from(nodes) * of)
            }
            (false, false) => {
                [many * header_bytes + sent_rows * bytes.row, many * return_rows * bytes.return_row]
            }
        };
        let mut parts = Parts(0);
        let sizes = Self {
            config: *config,
            ranks,
            blocks,
            node_ranks,
            local_experts,
            rows_max: rows as u32,
            return_rows_max: return_rows as u32,
            home_rows_max: home_rows as u32,
            header_bytes,
            data_bytes: bytes.data,
            scale_bytes: bytes.scales,
            choices_bytes: bytes.choices,
            return_data_bytes: bytes.return_data,
            row_bytes: bytes.row,
            return_row_bytes: bytes.return_row,
            message_bytes,
            arrivals: parts.next(arrival_bytes),
            arrival_bytes,
            received: parts.next(2 * many * message_bytes),
            returned: parts.next(2 * returned_bytes),
            returned_bytes,
            outgoing: parts.next(outgoing_bytes),
            returning: parts.next(returning_bytes),
            relayed_header_bytes,
            relayed_row_bytes,
            relayed: parts.next(2 * u64::from(nodes) * relayed_bytes),
            relayed_bytes,
            gathered: parts.next(2 * gathered_bytes),
            gathered_bytes,
            window_bytes: parts.0,
        };
        if sizes.window_bytes > OFFSET_MAX {
            let expected = format!("a window of at most {OFFSET_MAX} bytes");
            return Err(refused("memory of a rank", expected, sizes.window_bytes));
        }
        Ok(sizes)
    }

    /// Nodes, where rows are relayed; else 0.
    pub fn nodes(&self) -> u32 {
        self.ranks.checked_div(self.node_ranks).unwrap_or(0)
    }

    /// Rows of a dispatch's output.
    pub fn output_rows(&self) -> u64 {
        self.config.rows(self.ranks, self.local_experts)
    }

    /// Entries of a dispatch's counts.
    pub fn output_counts(&self) -> u64 {
        self.config.counts(self.local_experts)
    }
}

impl Config {
    /// Is the configuration one that experts in so many blocks can have?
    fn check(&self, blocks: u32) -> Result<()> {
        let is = |name: &str, holds: bool, expected: &str, seen: u64| match holds {
            true => Ok(()),
            false => Err(refused(name, expected, seen)),
        };
        let Self { experts, top_k, hidden, tokens_max, data_type, alignment, .. } = *self;
        let experts_expected = format!("a multiple of {blocks} ranks, at most {EXPERTS_MAX}");
        let fits = experts > 0 && experts.is_multiple_of(blocks) && experts <= EXPERTS_MAX;
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
        let fits = self.fp8.is_none() || u64::from(hidden).is_multiple_of(VECTOR_BYTES);
        is("elements of a token", fits, "a multiple of 16, for fp8", hidden.into())?;
        is("tokens of a rank", tokens_max > 0, "1 at least", 0)?;
        is("alignment", alignment > 0, "1 at least", 0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::Surplus;
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
            on_loss: OnLoss::End,
        }
    }

    /// DeepEP V1's low-latency buffer (`LowLatencyLayout` of its `config.hpp`), for 16-bit tokens.
    fn deep_ep_bytes(config: &Config) -> u64 {
        let [tokens, hidden, experts] =
            [config.tokens_max, config.hidden, config.experts].map(u64::from);
        let scales = hidden / 128;
        let dispatch = 16 + (2 * hidden).max(hidden + 4 * scales);
        let combine = 4 * scales + 2 * hidden;
        let sent = (tokens * dispatch).max(experts * tokens * combine);
        let received = experts * tokens * dispatch.max(combine);
        2 * (sent + received + (4 * experts).next_multiple_of(128))
    }

    /// NCCL EP 0.1.0's, expert-major (`LowLatencyLayout` of its `common.hpp`, NCCL 5067397c), for
    /// 16-bit tokens, without the heads of its rows.
    fn nccl_ep_bytes(config: &Config, ranks: u64) -> u64 {
        let [tokens, hidden, experts, top_k] =
            [config.tokens_max, config.hidden, config.experts, config.top_k].map(u64::from);
        let combine = 2 * hidden + 4 * (hidden / 128);
        let dispatched = (1 + ranks) * tokens * 2 * hidden;
        let combined = (experts + top_k) * tokens * combine;
        2 * (dispatched.max(combined) + (4 * experts).next_multiple_of(128))
    }

    /// Bytes of a group whose nodes have eight ranks, which stores reach.
    fn bytes_on_nodes(config: &Config, ranks: u32) -> u64 {
        let by_stores = ranks <= 8;
        Sizes::new(config, Spread { by_stores, ..Spread::even(ranks) }).unwrap().window_bytes
    }

    /// benches/README.md has the first of these numbers. If this fails, a group takes more memory
    /// than DeepEP's buffer or NCCL EP's for the same sizes.
    #[test]
    fn a_group_takes_no_more_than_the_fields_buffers() {
        let first = config();
        let others = [
            Config { tokens_max: 512, ..first },
            Config { experts: 512, ..first },
            Config { hidden: 2048, ..first },
            Config { fp8: Some(Scales::F32), ..first },
        ];
        for config in std::iter::once(first).chain(others) {
            for ranks in [8, 16, 32, 64] {
                let bytes = bytes_on_nodes(&config, ranks);
                let theirs = [deep_ep_bytes(&config), nccl_ep_bytes(&config, ranks.into())];
                let mb = |bytes: u64| bytes as f64 / 1e6;
                println!("{ranks} ranks: {:.0} MB, {:.0?} MB", mb(bytes), theirs.map(mb));
                let least = theirs[0].min(theirs[1]);
                assert!(bytes <= least, "{ranks} ranks: {bytes}, {theirs:?}, {config:?}");
            }
        }
    }

    /// If this fails, parts of the window overlap, or the last one reaches past its end.
    #[test]
    fn parts_of_the_window_follow_one_another() {
        for (mode, node_ranks) in
            [(Mode::LowLatency, 0), (Mode::Throughput, 0), (Mode::Throughput, 2)]
        {
            let spread = Spread { node_ranks, ..Spread::even(8) };
            let sizes = Sizes::new(&Config { mode, ..config() }, spread).unwrap();
            let rows = u64::from(sizes.rows_max);
            let (outgoing, returning) = match node_ranks {
                0 => {
                    // Eight choices, each on a rank of its own, are eight rows.
                    let returns = u64::from(sizes.return_rows_max);
                    let outgoing = 8 * (sizes.header_bytes + rows * sizes.row_bytes);
                    (outgoing, 8 * returns * sizes.return_row_bytes)
                }
                _ => (4 * sizes.relayed_bytes, 4 * rows * sizes.return_row_bytes),
            };
            let parts = [
                (sizes.arrivals, sizes.arrival_bytes),
                (sizes.received, 16 * sizes.message_bytes),
                (sizes.returned, 2 * sizes.returned_bytes),
                (sizes.outgoing, outgoing),
                (sizes.returning, returning),
                (sizes.relayed, 2 * u64::from(sizes.nodes()) * sizes.relayed_bytes),
                (sizes.gathered, 2 * sizes.gathered_bytes),
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
            let text = Sizes::new(&wrong, Spread::even(8)).unwrap_err().to_string();
            assert!(text.contains(name), "{text}");
        }
    }
}
