//! One GPU puts to another: the plans behind `hwsim predict p2p`, and ARK's Fig. 8.

use crate::program::{Lane, Port, RankProgram};
use crate::report::{Limit, Outcome};
use crate::time::Time;
use crate::world::{ModelError, Setup, simulate};
use ringdove_kernels::descriptor::LENGTH_BYTES_MAX;
use ringdove_kernels::op::{
    BlockProgram, Op, OpCode, Operand, PLAN_MAGIC, PlanHeader, Segment, Space, flags,
};

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
                sender.push(Op { code: OpCode::WaitCompletion as u8, value, ..Op::default() });
            }
            let start = if self.contiguous { u64::from(message) * self.bytes } else { 0 };
            self.put(&mut sender, start);
        }
        let value = i64::from(self.count);
        let receiver = vec![Op { code: OpCode::WaitSignal as u8, value, ..Op::default() }];
        let mut programs = vec![RankProgram { encoded: encode(&[], 0), ports: Vec::new() }];
        programs.resize(self.from.max(self.to) as usize + 1, programs[0].clone());
        for (rank, ops, sends) in [(self.from, sender, true), (self.to, receiver, false)] {
            let ports = vec![Port { lane, sends }];
            programs[rank as usize] = RankProgram { encoded: encode(&ops, 1), ports };
        }
        programs
    }

    fn put(&self, ops: &mut Vec<Op>, start: u64) {
        let mut done = 0;
        while done < self.bytes {
            let length = (self.bytes - done).min(LENGTH_BYTES_MAX);
            let offset = start + done;
            let at = Operand { offset, space: Space::Buffer as u8, ..Operand::default() };
            done += length;
            let raised = if done == self.bytes { flags::ARRIVAL | flags::COMPLETION } else { 0 };
            ops.push(Op {
                code: OpCode::Put as u8,
                flags: raised,
                length: length as u32,
                extent: offset,
                destination: at,
                a: at,
                ..Op::default()
            });
        }
    }

    /// Plays it.
    ///
    /// # Errors
    /// Ranks that the machine does not have, an engine without constants.
    pub fn run(&self, setup: Setup<'_>) -> Result<Outcome, ModelError> {
        simulate(setup, &self.programs())
    }
}

/// One block that runs `ops` once; `port_count` ports in the order of the table.
fn encode(ops: &[Op], port_count: u32) -> Vec<u8> {
    let ports_at = (size_of::<PlanHeader>() + size_of::<BlockProgram>()) as u32;
    let segments_at = ports_at + port_count.next_multiple_of(4) * 4;
    let ops_at = segments_at + size_of::<Segment>() as u32;
    let header = PlanHeader {
        magic: PLAN_MAGIC,
        size_bytes: ops_at + size_of_val(ops) as u32,
        block_count: 1,
        thread_count: 32,
        reserved: [0; 3],
    };
    let block =
        BlockProgram { segments: segments_at, segment_count: 1, ports: ports_at, port_count };
    let segment = Segment {
        ops: ops_at,
        op_count: ops.len() as u32,
        rounds: 1,
        reserved: 0,
        round_stride: 0,
        limit: u64::MAX,
    };
    let mut ports: Vec<u32> = (0..port_count).collect();
    ports.resize(port_count.next_multiple_of(4) as usize, 0);
    [
        bytemuck::bytes_of(&header),
        bytemuck::bytes_of(&block),
        bytemuck::cast_slice(&ports),
        bytemuck::bytes_of(&segment),
        bytemuck::cast_slice(ops),
    ]
    .concat()
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
