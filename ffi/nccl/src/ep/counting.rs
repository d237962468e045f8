//! How many tokens will come, told before they are sent: a dispatch of tokens of 16 bytes.

use super::abi::LayoutInfo;
use super::group::{Group, Opened, Shape};
use super::state::{Routing, zeros};
use super::tensor::{self, Array};
use crate::result::{Failure, Result};
use cudarc::driver::{CudaSlice, CudaStream};
use half::bf16;
use ringdove::DataType;
use ringdove::experts::{Handle as Routed, Received, Tokens};
use std::sync::Arc;

/// Counts that a program wants when it gives a routing.
pub struct Counts {
    pub of_experts: Option<Array>,
    pub total: Option<Array>,
}

impl Counts {
    /// Those that a program asks for.
    ///
    /// # Safety
    /// As [`tensor::optional`].
    pub unsafe fn of(group: &Group, info: &LayoutInfo) -> Result<Self> {
        let flat = "in the flat layout";
        tensor::none("layout_info->src_rank_counters", info.source_rank_counters, flat)?;
        tensor::none("layout_info->expert_offsets", info.expert_offsets, flat)?;
        // SAFETY: the caller's promise.
        let [of_experts, total] = unsafe {
            let experts = tensor::optional("layout_info->expert_counters", info.expert_counters)?;
            let total = tensor::optional("layout_info->recv_total_counter", info.total_counter)?;
            [experts, total]
        };
        if let Some(counts) = &of_experts {
            counts.is("layout_info->expert_counters", DataType::I32, group.local_experts())?;
        }
        if let Some(total) = total.as_ref().filter(|total| total.data_type != DataType::I64) {
            total.is("layout_info->recv_total_counter", DataType::I32, 1)?;
        }
        Ok(Self { of_experts, total })
    }
}

/// Elements of such a token.
const ELEMENTS: u32 = 8;

/// What counting takes.
pub struct Counting {
    opened: Arc<Opened>,
    routed: Routed,
    tokens: CudaSlice<bf16>,
    rows: CudaSlice<bf16>,
    counts: CudaSlice<u32>,
    local_experts: usize,
}

impl Counting {
    /// The first time all ranks of a group call, and wait for one another.
    pub fn new(group: &Group, top_k: u32) -> Result<Self> {
        let shape = Shape { top_k, hidden: ELEMENTS, data_type: DataType::BF16 };
        let opened = group.opened(shape)?;
        let (routed, stream) = (opened.experts().handle()?, group.bridge.stream());
        let elements = group.tokens_max as usize * ELEMENTS as usize;
        let local_experts = group.local_experts();
        Ok(Self {
            opened,
            routed,
            tokens: zeros(stream, elements)?,
            rows: zeros(stream, elements * group.rank_count())?,
            counts: zeros(stream, local_experts + 1)?,
            local_experts,
        })
    }

    /// Writes the counts that are wanted.
    pub fn count(
        &mut self,
        routing: &Routing,
        wanted: &Counts,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let Self { opened, routed, tokens, rows, counts, local_experts } = self;
        let choices = routing.tokens as usize * routing.top_k as usize;
        macro_rules! send {
            ($index:ty) => {{
                let indices = routing.indices.as_view();
                // SAFETY: the copy has room for the widest.
                let indices = unsafe { indices.transmute::<$index>(choices) };
                let indices = indices.expect("aligned, and large enough");
                let tokens = Tokens {
                    x: &*tokens,
                    scales: None,
                    indices: &indices,
                    weights: None,
                    count: routing.tokens,
                };
                opened.experts().dispatch_send(routed, &tokens, stream)?;
            }};
        }
        if routing.is_wide {
            send!(i64)
        } else {
            send!(i32)
        }
        let received =
            Received { x: rows, scales: None, counts, indices: None, weights: None, sources: None };
        opened.experts().dispatch_receive(routed, received, stream)?;
        if let Some(of_experts) = &wanted.of_experts {
            copy(counts, 0..*local_experts, of_experts, stream)?;
        }
        if let Some(total) = &wanted.total {
            if total.data_type == DataType::I64 {
                let cleared = stream.memset_zeros(&mut total.raw::<u64>(stream));
                cleared.map_err(|error| Failure::cuda("cuMemsetD8Async", error.0))?;
            }
            // The low half of a number of 64 bits comes first.
            copy(counts, *local_experts..*local_experts + 1, total, stream)?;
        }
        Ok(())
    }
}

fn copy(
    counts: &CudaSlice<u32>,
    range: std::ops::Range<usize>,
    to: &Array,
    stream: &Arc<CudaStream>,
) -> Result<()> {
    let mut target = super::raw::Raw::<u32>::new(to.address, range.len(), stream);
    let copied = stream.memcpy_dtod(&counts.slice(range), &mut target);
    copied.map_err(|error| Failure::cuda("cuMemcpyDtoDAsync", error.0))
}
