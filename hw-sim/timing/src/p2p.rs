//! One GPU puts to another: the plans behind `hwsim predict p2p`, and ARK's Fig. 8.

use crate::encode::{Block, encode, put, wait_arrivals, wait_completions};
use crate::program::{Lane, Port, RankProgram};
use crate::report::{Limit, Outcome};
use crate::time::Time;
use crate::world::{ModelError, Setup, simulate};

/// A stream of puts from rank `from` to rank `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The rank that puts.
    pub from: u32,
    /// The rank that receives.
    pub to: u32,
    /// Bytes of one message. A message beyond what a descriptor carries is several puts.
    pub bytes: u64,
    /// Messages.
    pub count: u32,
    /// Messages in flight, at most: the block waits for the completion of an earlier one.
    pub window: u32,
    /// Each message follows the one before it in memory, so that a proxy may merge them; else all
    /// are the same piece of memory.
    pub contiguous: bool,
}

impl Stream {
    /// The programs of all ranks up to the greater of the two.
    pub fn programs(&self) -> Vec<RankProgram> {
        let lane = Lane { from: self.from, to: self.to, index: 0, stores: false };
        let mut sender = Vec::new();
        for message in 0..self.count {
            if message >= self.window {
                let value = i64::from(message - self.window) + 1;
                wait_completions(&mut sender, 0, value);
            }
            let start = if self.contiguous { u64::from(message) * self.bytes } else { 0 };
            put(&mut sender, 0, (start, self.bytes), true);
        }
        let value = i64::from(self.count);
        let mut receiver = Vec::new();
        wait_arrivals(&mut receiver, 0, value);
        let idle = encode(&[Block::default()]);
        let mut programs = vec![RankProgram { encoded: idle, ports: Vec::new() }];
        programs.resize(self.from.max(self.to) as usize + 1, programs[0].clone());
        for (rank, ops, sends) in [(self.from, sender, true), (self.to, receiver, false)] {
            let encoded = encode(&[Block { ports: vec![0], ops }]);
            programs[rank as usize] = RankProgram { encoded, ports: vec![Port { lane, sends }] };
        }
        programs
    }

    /// Plays it.
    ///
    /// # Errors
    /// Ranks that the machine does not have, an engine without constants.
    pub fn run(&self, setup: Setup<'_>) -> Result<Outcome, ModelError> {
        simulate(setup, &self.programs())
    }
}

/// What one pair of GPUs reaches with messages of one size.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Bytes of a message.
    pub bytes: u64,
    /// From the first op of the sender until the receiver has seen the signal, one message alone.
    pub latency: Time,
    /// Steady state of many messages, GB/s.
    pub gb_per_s: f64,
    /// What limits the steady state.
    pub limit: Limit,
}

/// Messages of the shorter of the two runs whose difference is the steady state.
const MESSAGES: u32 = 256;

/// Latency and throughput of one size. `stream.count` is not used.
///
/// # Errors
/// As [`Stream::run`].
pub fn measure(setup: Setup<'_>, stream: Stream) -> Result<Point, ModelError> {
    let quiet = Setup { spans_max: 0, notes: false, ..setup };
    let alone = Stream { count: 1, ..stream }.run(quiet)?;
    // Large messages reach their steady state soon, and are many puts each.
    let count = MESSAGES.min((1 << 30) / stream.bytes.max(1) as u32).max(4 * stream.window.min(8));
    let short = Stream { count, ..stream }.run(quiet)?;
    let long = Stream { count: 2 * count, ..stream }.run(quiet)?;
    let seconds = (long.end - short.end).seconds();
    Ok(Point {
        bytes: stream.bytes,
        latency: alone.end,
        gb_per_s: f64::from(count) * stream.bytes as f64 / seconds / 1e9,
        limit: long.limit(Some(&short), setup.machine),
    })
}
