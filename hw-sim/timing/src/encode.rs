//! Programs that no plan of the library stands behind, encoded as plans are.

use ringdove_kernels::descriptor::LENGTH_BYTES_MAX;
use ringdove_kernels::op::{
    BlockProgram, Op, OpCode, Operand, PLAN_MAGIC, PlanHeader, Segment, Space, flags,
};

/// What one block does, once.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// Its ports, as places in the rank's table; ops name them by their place in this list.
    pub ports: Vec<u32>,
    /// The ops, in order.
    pub ops: Vec<Op>,
}

/// One rank's program.
pub fn encode(blocks: &[Block]) -> Vec<u8> {
    let mut encoded = vec![0; size_of::<PlanHeader>() + blocks.len() * size_of::<BlockProgram>()];
    for (number, block) in blocks.iter().enumerate() {
        let ports = encoded.len() as u32;
        let port_count = block.ports.len() as u32;
        let mut listed = block.ports.clone();
        listed.resize(listed.len().next_multiple_of(4), 0);
        encoded.extend_from_slice(bytemuck::cast_slice(&listed));
        let segments = encoded.len() as u32;
        let segment = Segment {
            ops: segments + size_of::<Segment>() as u32,
            op_count: block.ops.len() as u32,
            rounds: 1,
            reserved: 0,
            round_stride: 0,
            limit: u64::MAX,
        };
        encoded.extend_from_slice(bytemuck::bytes_of(&segment));
        encoded.extend_from_slice(bytemuck::cast_slice(&block.ops));
        let program = BlockProgram { segments, segment_count: 1, ports, port_count };
        let at = size_of::<PlanHeader>() + number * size_of::<BlockProgram>();
        encoded[at..][..size_of::<BlockProgram>()].copy_from_slice(bytemuck::bytes_of(&program));
    }
    let header = PlanHeader {
        magic: PLAN_MAGIC,
        size_bytes: encoded.len() as u32,
        block_count: blocks.len() as u32,
        thread_count: 32,
        reserved: [0; 3],
    };
    encoded[..size_of::<PlanHeader>()].copy_from_slice(bytemuck::bytes_of(&header));
    encoded
}

/// Ops with this code that move `bytes` of one buffer to the same place of another, as many as it
/// takes.
fn pieces(ops: &mut Vec<Op>, code: OpCode, (start, bytes): (u64, u64), most: u64) {
    let mut done = 0;
    while done < bytes {
        let length = (bytes - done).min(most);
        let offset = start + done;
        let at = Operand { offset, space: Space::Buffer as u8, ..Operand::default() };
        ops.push(Op {
            code: code as u8,
            length: length as u32,
            extent: offset,
            destination: at,
            a: at,
            ..Op::default()
        });
        done += length;
    }
}

/// Puts a range of a buffer to the peer of a port: its start, and its bytes, 1 at least. The last
/// descriptor raises the arrival, and the completion too where that is wanted.
pub fn put(ops: &mut Vec<Op>, port: u16, range: (u64, u64), completes: bool) {
    let first = ops.len();
    pieces(ops, OpCode::Put, range, LENGTH_BYTES_MAX);
    ops[first..].iter_mut().for_each(|op| op.port = port);
    if let Some(last) = ops[first..].last_mut() {
        last.flags = flags::ARRIVAL | if completes { flags::COMPLETION } else { 0 };
    }
}

/// Moves `bytes` within the GPU.
pub fn copy(ops: &mut Vec<Op>, bytes: u64) {
    pieces(ops, OpCode::Copy, (0, bytes), 1 << 30);
}

/// Waits for so many arrivals at a port.
pub fn wait_arrivals(ops: &mut Vec<Op>, port: u16, value: i64) {
    ops.push(Op { code: OpCode::WaitSignal as u8, port, value, ..Op::default() });
}

/// Waits for so many completions at a port.
pub fn wait_completions(ops: &mut Vec<Op>, port: u16, value: i64) {
    ops.push(Op { code: OpCode::WaitCompletion as u8, port, value, ..Op::default() });
}
