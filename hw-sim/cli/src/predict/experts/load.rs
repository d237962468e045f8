//! Rows and bytes between ranks, where every expert is chosen equally often.

use ringdove::experts::{Config, Mode};

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
    header: u64,
    row: u64,
    return_row: u64,
    /// Bytes of a row's data in a dispatch, and in a combine.
    data: [u64; 2],
    /// Numbers that rows are placed by: one for each expert, and in throughput mode for each rank.
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
        let bytes = config.message_bytes(ranks)?;
        let of_type = u64::from(config.hidden) * config.data_type.size_bytes() as u64;
        let data = [if config.fp8.is_some() { config.hidden.into() } else { of_type }, of_type];
        let by_rank = if config.mode == Mode::Throughput { ranks } else { 0 };
        Ok(Self {
            ranks,
            near,
            experts: config.experts,
            top_k: config.top_k,
            tokens: config.tokens_max,
            rows: f64::from(config.tokens_max) * rows_of_token(config, ranks),
            header: bytes.header,
            row: bytes.row,
            return_row: bytes.return_row,
            data,
            buckets: config.experts + by_rank,
        })
    }

    /// Bytes of one message.
    pub fn message(&self, way: Way) -> u64 {
        match way {
            Way::Dispatch => self.header + (self.rows * self.row as f64) as u64,
            Way::Combine => (self.rows * self.return_row as f64) as u64,
        }
    }

    /// Bytes of all rows' data in each operation.
    pub fn data_bytes(&self) -> [f64; 2] {
        self.data.map(|bytes| self.rows * f64::from(self.ranks) * bytes as f64)
    }

    /// Bytes that leave a rank in both operations: by stores, and by engines.
    pub fn crossed_bytes(&self) -> [u64; 2] {
        let both = self.message(Way::Dispatch) + self.message(Way::Combine);
        [self.near - 1, self.ranks - self.near].map(|peers| u64::from(peers) * both)
    }
}

/// Rows of one token for one rank, on average: its choices there, or whether there are any.
fn rows_of_token(config: &Config, ranks: u32) -> f64 {
    let [experts, top_k, own] =
        [config.experts, config.top_k, config.experts / ranks].map(f64::from);
    match config.mode {
        Mode::LowLatency => top_k / f64::from(ranks),
        // Choices are `top_k` different experts.
        Mode::Throughput => {
            let none =
                |nth: u32| (experts - own - f64::from(nth)).max(0.0) / (experts - f64::from(nth));
            1.0 - (0..config.top_k).map(none).product::<f64>()
        }
    }
}
