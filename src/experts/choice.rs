//! Which mode is faster, for a routing in which every expert is chosen as often.

use super::config::{Config, Mode};
use super::sizes::{Sizes, Spread};
use crate::communicator::Communicator;
use crate::error::Result;
use std::str::FromStr;

/// Bytes a second that stores of one GPU put into others of its node. This and the others are those
/// of the timing model for H100-like nodes with adapters of 400 Gb/s (`hwsim predict`, profile
/// `h100`), whose test holds the choice to its predictions.
const NEAR_RATE: f64 = 350e9;
/// Bytes a second that engines take to other nodes for one GPU.
const FAR_RATE: f64 = 46e9;
/// Seconds in which an engine posts one message.
const POST: f64 = 0.37e-6;
/// Bytes a second that kernels move within the memory of one GPU.
const LOCAL_RATE: f64 = 1.45e12;
/// Seconds that relays add to dispatch and combine beside their bytes: four launches of 3.2 µs, and
/// what is between them.
const RELAY: f64 = 20e-6;

/// A mode, or the faster one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModeChoice {
    /// This one.
    Fixed(Mode),
    /// That of [`Config::faster_mode`].
    Auto,
}

impl FromStr for ModeChoice {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let mode = text.parse().map_err(|expected| format!("{expected}, or auto"))?;
        Ok(Self::Fixed(mode))
    }
}

/// Where ranks are, as far as it matters for the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Ranks of the group.
    pub ranks: u32,
    /// Ranks that stores of a rank reach, itself among them.
    pub near: u32,
    /// Do nodes have as many ranks each, so that rows to other nodes are relayed?
    pub relays: bool,
}

impl Config {
    /// The mode that is predicted to be faster for dispatch and combine of
    /// [`tokens_max`](Config::tokens_max) tokens of each rank of `communicator`, where every expert
    /// is chosen as often; the same on all ranks. What is in [`mode`](Config::mode) does not count.
    ///
    /// The two give other outputs: whoever asks has kernels for both.
    ///
    /// # Errors
    /// As [`Group::register`](super::Group::register).
    pub fn faster_mode(&self, communicator: &Communicator) -> Result<Mode> {
        let (ranks, node_ranks) = (communicator.rank_count(), communicator.relayed_node_ranks());
        let near = match (communicator.stores_reach_all(), node_ranks) {
            (true, _) => ranks,
            (false, 0) => 1,
            (false, node_ranks) => node_ranks,
        };
        self.faster_mode_at(Reach { ranks, near, relays: node_ranks > 0 })
    }

    /// As [`Self::faster_mode`], for ranks that are placed like this.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) names what is out of range.
    pub fn faster_mode_at(&self, reach: Reach) -> Result<Mode> {
        let seconds = |mode| Config { mode, ..*self }.seconds(reach);
        match seconds(Mode::Throughput)? < seconds(Mode::LowLatency)? {
            true => Ok(Mode::Throughput),
            false => Ok(Mode::LowLatency),
        }
    }

    /// Rows of one token that a dispatch sends to one of so many ranks or nodes, on average:
    /// whether the token has a choice there.
    pub fn rows_of_token(&self, parts: u32) -> f64 {
        let [experts, own] = [self.experts, self.experts / parts.max(1)].map(f64::from);
        // Choices are `top_k` different experts.
        let none =
            |nth: u32| (experts - own - f64::from(nth)).max(0.0) / (experts - f64::from(nth));
        1.0 - (0..self.top_k).map(none).product::<f64>()
    }

    /// Rows of one token that a combine brings back from one of so many ranks or nodes, on average:
    /// in low-latency mode its choices there, else one, where it has any.
    pub fn returned_rows_of_token(&self, parts: u32) -> f64 {
        match self.mode {
            Mode::LowLatency => f64::from(self.top_k) / f64::from(parts.max(1)),
            Mode::Throughput => self.rows_of_token(parts),
        }
    }

    /// Seconds of dispatch and combine that the modes do not share.
    fn seconds(&self, reach: Reach) -> Result<f64> {
        let Reach { ranks, near, relays } = reach;
        let node_ranks = if relays && near < ranks { near } else { 0 };
        let sizes = Sizes::new(self, Spread { node_ranks, ..Spread::even(ranks) })?;
        let tokens = f64::from(self.tokens_max);
        let sent = tokens * self.rows_of_token(ranks);
        let returned = tokens * self.returned_rows_of_token(ranks);
        let [row, return_row] = [sizes.row_bytes, sizes.return_row_bytes].map(|it| it as f64);
        let [near_others, far] = [near - 1, ranks - near].map(f64::from);
        let nodes = f64::from(sizes.nodes());
        let store = |rows: f64, bytes: f64| rows * near_others * bytes / NEAR_RATE;
        let locally = |rows: f64, bytes: f64| rows * bytes / LOCAL_RATE;
        if sizes.node_ranks == 0 {
            let one_way = |rows: f64, bytes: f64| {
                let taken = (rows * bytes / FAR_RATE).max(POST) * far;
                // At the receiver each choice has a row.
                locally(returned * f64::from(ranks), bytes) + store(rows, bytes).max(taken)
            };
            return Ok(one_way(sent, row) + one_way(returned, return_row));
        }
        // Only in throughput mode, in which as many rows come back as were sent.
        let node_rows = tokens * self.rows_of_token(sizes.nodes()) * (nodes - 1.0);
        let taken = |bytes: f64| (node_rows * bytes / FAR_RATE).max(POST * (nodes - 1.0));
        let dispatch = taken(row).max(store(sent, row))
            + store(sent, row) * (nodes - 1.0)
            + locally(node_rows + sent * f64::from(ranks), row);
        let combine = store(sent, return_row) * nodes
            + taken(return_row)
            + locally(sent * f64::from(near) * nodes + node_rows, return_row);
        Ok(dispatch + combine + RELAY)
    }
}
