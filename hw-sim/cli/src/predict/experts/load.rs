//! Rows and bytes between ranks, where every expert is chosen equally often.

use ringdove::experts::{Config, MessageBytes, Mode};

/// What each rank sends in a dispatch, and gets back in a combine.
pub(super) struct Load {
    pub ranks: u32,
    /// Ranks that stores reach, this one among them.
    pub near: u32,
    pub experts: u32,
    pub top_k: u32,
    pub tokens: u32,
    /// Rows of a message, on average.
    pub rows: f64,
    /// Rows that go back for it, one for each row of the output.
    pub returns: f64,
    /// Nodes, where rows to other nodes are relayed within them; else 1.
    pub nodes: u32,
    /// Rows of a message to another node, on average.
    pub node_rows: f64,
    bytes: MessageBytes,
    /// Bytes of a row's data in a dispatch, and in a combine.
    data: [u64; 2],
    /// What rows are numbered in: ranks, nodes where rows are relayed, and in low-latency mode
    /// experts.
    pub buckets: u32,
}

/// One of the two operations.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Dispatch,
    Combine,
}

impl Load {
    pub fn new(config: &Config, ranks: u32, near: u32) -> ringdove::Result<Self> {
        // As the library does, where stores reach the ranks of a node.
        let is_relayed = config.mode == Mode::Throughput && near > 1 && near < ranks;
        let node_ranks = if is_relayed { near } else { 0 };
        let nodes = if is_relayed { ranks / near } else { 1 };
        let bytes = config.message_bytes_on_nodes(ranks, node_ranks)?;
        let of_type = u64::from(config.hidden) * config.data_type.size_bytes() as u64;
        let data = [if config.fp8.is_some() { config.hidden.into() } else { of_type }, of_type];
        let by_expert = if config.mode == Mode::LowLatency { config.experts } else { 0 };
        Ok(Self {
            ranks,
            near,
            experts: config.experts,
            top_k: config.top_k,
            tokens: config.tokens_max,
            rows: f64::from(config.tokens_max) * config.rows_of_token(ranks),
            returns: f64::from(config.tokens_max) * config.returned_rows_of_token(ranks),
            nodes,
            node_rows: f64::from(config.tokens_max) * config.rows_of_token(nodes),
            bytes,
            data,
            buckets: by_expert + ranks + if is_relayed { nodes } else { 0 },
        })
    }

    /// Bytes of one message.
    pub fn message(&self, way: Way) -> u64 {
        match way {
            Way::Dispatch => self.bytes.header + (self.rows * self.bytes.row as f64) as u64,
            Way::Combine => (self.returns * self.bytes.return_row as f64) as u64,
        }
    }

    /// Bytes of the rows of one message as they lie in the output.
    pub fn output(&self) -> u64 {
        (self.returns * self.bytes.row as f64) as u64
    }

    /// Bytes of one message to another node, where rows are relayed.
    pub fn node_message(&self, way: Way) -> u64 {
        let MessageBytes { relayed_header, relayed_row, return_row, .. } = self.bytes;
        match way {
            Way::Dispatch => relayed_header + (self.node_rows * relayed_row as f64) as u64,
            Way::Combine => (self.node_rows * return_row as f64) as u64,
        }
    }

    /// Are rows to other nodes relayed within them?
    pub fn is_relayed(&self) -> bool {
        self.nodes > 1
    }

    /// Bytes of all rows' data in each operation: rows of the output from all ranks, or of all
    /// nodes where rows are relayed; the own one is among them.
    pub fn data_bytes(&self) -> [f64; 2] {
        let rows = match self.is_relayed() {
            true => self.node_rows * f64::from(self.nodes),
            false => self.returns * f64::from(self.ranks),
        };
        self.data.map(|bytes| rows * bytes as f64)
    }

    /// Bytes that leave a rank in both operations: by stores, and by engines.
    pub fn crossed_bytes(&self) -> [u64; 2] {
        let ways = [Way::Dispatch, Way::Combine];
        let both: u64 = ways.iter().map(|way| self.message(*way)).sum();
        if self.is_relayed() {
            // A relay stores to its node what each other node's rank sends, or gets it from there.
            let near = u64::from(self.near - 1) * u64::from(self.nodes) * both;
            let each: u64 = ways.iter().map(|way| self.node_message(*way)).sum();
            return [near, u64::from(self.nodes - 1) * each];
        }
        [self.near - 1, self.ranks - self.near].map(|peers| u64::from(peers) * both)
    }
}
