//! The objects of MSCCL++'s execution plans, as far as they are read. What else a file holds is for
//! their executor alone (threads, alignment, reuse of resources), and is passed over.

use super::{CHUNKS_MAX, Channel, ImportError, Place, Space};
use ringdove_kernels::element::ReduceOp;
use serde::Deserialize;
use serde_json::value::RawValue;

/// A file.
#[derive(Deserialize)]
pub(super) struct File<'a> {
    #[serde(default)]
    pub(super) name: String,
    pub(super) collective: String,
    #[serde(default)]
    pub(super) inplace: bool,
    #[serde(default)]
    pub(super) root: u32,
    #[serde(default)]
    pub(super) min_message_size: u64,
    pub(super) max_message_size: Option<u64>,
    #[serde(borrow)]
    pub(super) gpus: Vec<Gpu<'a>>,
}

#[derive(Deserialize)]
pub(super) struct Gpu<'a> {
    pub(super) id: u32,
    pub(super) input_chunks: u32,
    pub(super) output_chunks: u32,
    #[serde(default)]
    pub(super) scratch_chunks: u32,
    #[serde(borrow)]
    pub(super) threadblocks: Vec<Threads<'a>>,
    #[serde(default)]
    pub(super) channels: Vec<Channels>,
    #[serde(default)]
    pub(super) remote_buffers: Vec<RemoteBuffer>,
}

#[derive(Deserialize)]
pub(super) struct Threads<'a> {
    pub(super) id: u32,
    #[serde(borrow)]
    pub(super) ops: Vec<&'a RawValue>,
    #[serde(default)]
    pub(super) channels: Vec<UsedChannels>,
    #[serde(default)]
    pub(super) remote_buffer_refs: Vec<UsedBuffers>,
}

#[derive(Deserialize)]
pub(super) struct Channels {
    pub(super) channel_type: String,
    #[serde(default)]
    pub(super) connected_to: Vec<u32>,
}

#[derive(Deserialize)]
pub(super) struct UsedChannels {
    pub(super) channel_type: String,
    pub(super) channel_ids: Vec<usize>,
}

#[derive(Deserialize)]
pub(super) struct RemoteBuffer {
    pub(super) rank: u32,
    #[serde(rename = "type")]
    pub(super) space: String,
}

#[derive(Deserialize)]
pub(super) struct UsedBuffers {
    pub(super) access_channel_type: String,
    pub(super) remote_buffer_ids: Vec<usize>,
}

/// An op.
#[derive(Deserialize)]
pub(super) struct Op {
    pub(super) name: String,
    #[serde(default)]
    pub(super) src_buff: Vec<Chunks>,
    #[serde(default)]
    pub(super) dst_buff: Vec<Chunks>,
    #[serde(default)]
    pub(super) channel_ids: Vec<usize>,
    pub(super) channel_type: Option<String>,
    pub(super) reduce_op: Option<String>,
    pub(super) tbg_info: Option<Group>,
    pub(super) barrier_id: Option<u32>,
    pub(super) num_threadblocks: Option<usize>,
}

/// Chunks of a buffer, of the rank's own or of another rank.
#[derive(Deserialize)]
pub(super) struct Chunks {
    #[serde(rename = "type")]
    pub(super) space: Option<String>,
    pub(super) buffer_id: Option<usize>,
    pub(super) switch_channel_id: Option<u32>,
    pub(super) index: u32,
    pub(super) size: u32,
}

/// A thread block's part of an op that several share.
#[derive(Clone, Copy, Deserialize)]
pub(super) struct Group {
    pub(super) tb_id: u32,
    pub(super) tbg_size: u32,
}

/// The kinds of channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum ChannelType {
    Memory,
    Port,
}

pub(super) fn channel_type(name: &str, line: u32) -> Result<ChannelType, ImportError> {
    match name {
        "memory" => Ok(ChannelType::Memory),
        "port" => Ok(ChannelType::Port),
        "switch" => Err(ImportError::new(
            line,
            "channels of switches (multicast and reduction in NVSwitches) have no counterpart",
        )),
        _ => Err(ImportError::new(line, format!("channel type {name:?}: memory or port"))),
    }
}

pub(super) fn space(name: &str, line: u32) -> Result<Space, ImportError> {
    match name {
        "i" => Ok(Space::Input),
        "o" => Ok(Space::Output),
        "s" => Ok(Space::Scratch),
        _ => Err(ImportError::new(line, format!("buffer type {name:?}: i, o or s is expected"))),
    }
}

pub(super) fn reduction(name: &str, line: u32) -> Result<ReduceOp, ImportError> {
    match name {
        "sum" => Ok(ReduceOp::Sum),
        "prod" => Ok(ReduceOp::Prod),
        "min" => Ok(ReduceOp::Min),
        "max" => Ok(ReduceOp::Max),
        _ => Err(ImportError::new(line, format!("reduction {name:?}: sum, prod, min or max"))),
    }
}

/// Chunks whose owner and buffer are known, in parts of which a chunk has as many as thread blocks
/// may share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// The rank; `None`: the own one.
    pub(super) rank: Option<u32>,
    space: Space,
    first: u32,
    pub(super) count: u32,
}

impl Span {
    /// `chunks`, or a thread block's part of them, where a chunk has `parts`.
    pub(super) fn of(
        (rank, space): (Option<u32>, Space),
        chunks: &Chunks,
        (parts, group): (u32, Option<Group>),
        line: u32,
    ) -> Result<Self, ImportError> {
        let end = u64::from(chunks.index) + u64::from(chunks.size);
        if chunks.size == 0 || end > u64::from(CHUNKS_MAX) {
            let (size, index) = (chunks.size, chunks.index);
            let reason = format!("{size} chunks from {index} on: 1 to {CHUNKS_MAX} are expected");
            return Err(ImportError::new(line, reason));
        }
        // Both below 2^16 and 2^12.
        let (first, count) = (chunks.index * parts, chunks.size * parts);
        let (first, count) = match group {
            None => (first, count),
            Some(Group { tb_id, tbg_size }) => {
                let part = count / tbg_size;
                (first + tb_id * part, part)
            }
        };
        Ok(Self { rank, space, first, count })
    }

    /// Its part of this number.
    pub(super) fn at(&self, number: u32) -> Place {
        Place { space: self.space, chunk: self.first + number }
    }
}

/// What a put leaves on its way: its message, and where the receiver stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) channel: Channel,
    pub(super) store: Place,
}
