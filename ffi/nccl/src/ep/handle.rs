//! Handles: a routing, and the tokens that go and come by it.

use super::abi::{
    BACKWARD, CombineConfig, CombineTensors, DispatchConfig, DispatchInputs, DispatchOutputs,
    EXPERT_MAJOR, FLAT, LayoutInfo, RANK_MAJOR,
};
use super::absent;
use super::counting::Counts;
use super::group::{Group, Registry};
use super::raw::Raw;
use super::state::{CombineArrays, DispatchArrays, Pending, State, zeros};
use super::tensor::{self, Array};
use crate::communicator::lock;
use crate::result::{Failure, Result};
use cudarc::driver::CudaStream;
use ringdove::DataType;
use ringdove::experts::{Mode, TOP_K_MAX};
use ringdove::gpu::StreamHandle as Stream;
use std::ffi::c_int;
use std::sync::{Arc, Mutex};

pub static HANDLES: Registry<Handle> = Registry::new();

/// `ncclEpHandle_t`.
pub struct Handle {
    group: Arc<Group>,
    state: Mutex<State>,
}

impl Handle {
    /// A handle without a routing.
    pub fn new(group: &Arc<Group>, layout: c_int, top_k: c_int) -> Result<Self> {
        match (group.mode, layout) {
            (Mode::LowLatency, EXPERT_MAJOR) | (Mode::Throughput, FLAT) => {}
            (Mode::LowLatency, RANK_MAJOR) => {
                return Err(absent("the rank-major layout", "take NCCL_EP_LAYOUT_EXPERT_MAJOR"));
            }
            (Mode::Throughput, EXPERT_MAJOR) => {
                let instead = "take NCCL_EP_LAYOUT_FLAT";
                return Err(absent("the expert-major layout of high throughput", instead));
            }
            (mode, other) => {
                let expected = format!("a layout of {}", mode.name());
                return Err(Failure::argument("layout", &expected, other));
            }
        }
        let top_k = match (group.mode, u32::try_from(top_k)) {
            (_, Ok(top_k @ 1..=TOP_K_MAX)) => Some(top_k),
            (Mode::Throughput, _) if top_k < 1 => None,
            _ => return Err(Failure::argument("num_topk", "1 to 16", top_k)),
        };
        let counts = zeros(group.bridge.stream(), group.local_experts() + 1)?;
        let (ways, group) = (Vec::new(), group.clone());
        let (routing, counting, pending) = (None, None, None);
        let state = State { top_k, routing, ways, counts, counting, pending };
        Ok(Self { group, state: Mutex::new(state) })
    }

    /// Takes a routing. `info`: counts that the program wants already now, in throughput mode.
    ///
    /// # Safety
    /// As the function of NCCL EP.
    pub unsafe fn update(
        &self,
        indices: &Array,
        info: Option<&LayoutInfo>,
        stream: Stream,
    ) -> Result<()> {
        let group = &self.group;
        let [tokens, top_k] = indices.extents[..] else {
            let seen = format!("{:?}", indices.extents);
            return Err(Failure::argument("topk_idx", "extents [tokens, top-k]", seen));
        };
        let is_wide = match indices.data_type {
            DataType::I64 => true,
            DataType::I32 => false,
            other => {
                let seen = format!("{other:?}");
                return Err(Failure::argument("topk_idx", "ncclInt64 or ncclInt32", seen));
            }
        };
        if tokens > group.tokens_max as usize {
            let expected = format!("at most {} tokens", group.tokens_max);
            return Err(Failure::argument("topk_idx", &expected, tokens));
        }
        let top_k = u32::try_from(top_k).unwrap_or(u32::MAX);
        let mut state = lock(&self.state);
        if !(1..=TOP_K_MAX).contains(&top_k) || state.top_k.is_some_and(|known| known != top_k) {
            let expected = state.top_k.map_or("1 to 16".into(), |known| known.to_string());
            return Err(Failure::argument("top-k of topk_idx", &expected, top_k));
        }
        state.idle()?;
        if info.is_some() && group.mode == Mode::LowLatency {
            return Err(Failure::usage("layout_info: expected null in low-latency mode"));
        }
        let wanted = match info {
            // SAFETY: the caller's promise.
            Some(info) => Some(unsafe { Counts::of(group, info)? }),
            None => None,
        };
        // SAFETY: the caller names a stream.
        unsafe {
            on_stream(group, stream, |own| {
                let routing = state.routed(group, (tokens as u32, top_k, is_wide), own)?;
                let bytes = tokens * top_k as usize * if is_wide { 8 } else { 4 };
                if bytes > 0 {
                    let source = Raw::<u8>::new(indices.address, bytes, own);
                    let copied = own.memcpy_dtod(&source, &mut routing.indices);
                    copied.map_err(|error| Failure::cuda("cuMemcpyDtoDAsync", error.0))?;
                }
                match wanted {
                    Some(wanted) => state.count(group, &wanted, own),
                    None => Ok(()),
                }
            })
        }
    }

    /// Sends tokens, and receives them unless the second half comes later.
    ///
    /// # Safety
    /// As the function of NCCL EP.
    pub unsafe fn dispatch(
        &self,
        inputs: &DispatchInputs,
        outputs: &DispatchOutputs,
        info: Option<&LayoutInfo>,
        config: Option<&DispatchConfig>,
        stream: Stream,
    ) -> Result<()> {
        let group = &self.group;
        let is_backward = config.is_some_and(|config| config.direction == BACKWARD);
        let is_forward = group.mode == Mode::Throughput && !is_backward;
        let send_only = config.is_some_and(|config| config.send_only != 0);
        self.may_send_only(send_only)?;
        if config.is_some_and(|config| config.round_scales != 0) {
            return Err(absent("round_scales", "rows of 8 bits are there in `ringdove::experts`"));
        }
        // SAFETY: the caller's promise, here and below.
        let tokens = unsafe { tensor::required("inputs->tokens", inputs.tokens)? };
        tensor::none("inputs->scales", inputs.scales, "scales are reserved")?;
        tensor::none("outputs->scales", outputs.scales, "scales are reserved")?;
        // SAFETY: as above.
        let (weights, arrays) = unsafe {
            let weights = self.only(is_forward, "inputs->topk_weights", inputs.weights)?;
            let tokens = tensor::required("outputs->tokens", outputs.tokens)?;
            let indices = self.only(is_forward, "outputs->topk_idx", outputs.indices)?;
            let received = self.only(is_forward, "outputs->topk_weights", outputs.weights)?;
            let counts = self.counters(info)?;
            (weights, DispatchArrays { tokens, indices, weights: received, counts })
        };
        let mut state = lock(&self.state);
        state.idle()?;
        let shape = state.shape(&tokens)?;
        // SAFETY: as above.
        unsafe {
            on_stream(group, stream, |own| {
                state.send(group, shape, (&tokens, weights.as_ref(), is_backward), own)?;
                if send_only {
                    state.pending = Some(Pending::Dispatch { shape, outputs: arrays });
                    return Ok(());
                }
                state.receive(shape, &arrays, own)
            })
        }
    }

    /// Sends results back, and adds them unless the second half comes later.
    ///
    /// # Safety
    /// As the function of NCCL EP.
    pub unsafe fn combine(
        &self,
        inputs: &CombineTensors,
        outputs: &CombineTensors,
        config: Option<&CombineConfig>,
        stream: Stream,
    ) -> Result<()> {
        let group = &self.group;
        let is_backward = group.mode == Mode::Throughput
            && config.is_some_and(|config| config.direction == BACKWARD);
        let send_only = config.is_some_and(|config| config.send_only != 0);
        self.may_send_only(send_only)?;
        // SAFETY: the caller's promise.
        let (results, weights, arrays) = unsafe {
            let results = tensor::required("inputs->tokens", inputs.tokens)?;
            let weights = self.only(is_backward, "inputs->topk_weights", inputs.weights)?;
            let tokens = tensor::required("outputs->tokens", outputs.tokens)?;
            let (factors, sums) = match group.mode {
                Mode::LowLatency => {
                    (tensor::optional("outputs->topk_weights", outputs.weights)?, None)
                }
                Mode::Throughput => {
                    (None, self.only(is_backward, "outputs->topk_weights", outputs.weights)?)
                }
            };
            (results, weights, CombineArrays { tokens, factors, weights: sums })
        };
        let mut state = lock(&self.state);
        state.idle()?;
        let shape = state.shape(&results)?;
        // SAFETY: as above.
        unsafe {
            on_stream(group, stream, |own| {
                state.give_back(shape, &results, weights.as_ref(), own)?;
                if send_only {
                    state.pending = Some(Pending::Combine { shape, outputs: arrays });
                    return Ok(());
                }
                state.take_back(shape, &arrays, own)
            })
        }
    }

    /// The second half of a call that was only begun.
    ///
    /// # Safety
    /// As the function of NCCL EP.
    pub unsafe fn complete(&self, stream: Stream) -> Result<()> {
        let mut state = lock(&self.state);
        let Some(pending) = state.pending.take() else {
            return Err(Failure::usage("nothing to complete: no call with send_only came before"));
        };
        // SAFETY: the caller names a stream.
        unsafe {
            on_stream(&self.group, stream, |own| match &pending {
                Pending::Dispatch { shape, outputs } => state.receive(*shape, outputs, own),
                Pending::Combine { shape, outputs } => state.take_back(*shape, outputs, own),
            })
        }
    }

    fn may_send_only(&self, send_only: bool) -> Result<()> {
        match send_only && self.group.mode == Mode::Throughput {
            true => Err(Failure::usage("send_only: expected 0 in high-throughput mode")),
            false => Ok(()),
        }
    }

    /// A tensor that is wanted, or must not be there.
    ///
    /// # Safety
    /// As [`tensor::optional`].
    unsafe fn only(
        &self,
        is_wanted: bool,
        what: &str,
        at: *const super::abi::Tensor,
    ) -> Result<Option<Array>> {
        match is_wanted {
            // SAFETY: the caller's promise.
            true => Ok(Some(unsafe { tensor::required(what, at)? })),
            false => {
                tensor::none(what, at, "in this mode, layout and direction")?;
                Ok(None)
            }
        }
    }

    /// Where low latency counts received rows.
    ///
    /// # Safety
    /// As [`tensor::optional`].
    unsafe fn counters(&self, info: Option<&LayoutInfo>) -> Result<Option<Array>> {
        if self.group.mode == Mode::Throughput {
            return match info {
                None => Ok(None),
                Some(_) => {
                    let expected = "layout_info: expected null in high-throughput mode, where \
                                    ncclEpUpdateHandle takes it";
                    Err(Failure::usage(expected))
                }
            };
        }
        let Some(info) = info else {
            let expected = "one with expert_counters in the expert-major layout";
            return Err(Failure::argument("layout_info", expected, "null"));
        };
        for (what, at) in [
            ("layout_info->src_rank_counters", info.source_rank_counters),
            ("layout_info->expert_offsets", info.expert_offsets),
            ("layout_info->recv_total_counter", info.total_counter),
        ] {
            tensor::none(what, at, "in the expert-major layout of low latency")?;
        }
        // SAFETY: the caller's promise.
        let counts = unsafe { tensor::required("expert_counters", info.expert_counters)? };
        counts.is("expert_counters", DataType::I32, self.group.local_experts())?;
        Ok(Some(counts))
    }
}

/// Does `work` on the group's stream, behind what the program's has and before what follows there.
///
/// # Safety
/// `stream` is one of the caller's that was not destroyed, or a default stream.
unsafe fn on_stream(
    group: &Group,
    stream: Stream,
    work: impl FnOnce(&Arc<CudaStream>) -> Result<()>,
) -> Result<()> {
    let _turn = lock(&group.turn);
    // SAFETY: the caller's promise; the bridge has accepted the stream.
    unsafe {
        group.bridge.check(stream)?;
        group.bridge.enter(stream)?;
        let done = work(group.bridge.stream());
        group.bridge.leave(stream)?;
        done
    }
}
