//! Dispatch and combine: the halves, and what they are given.

use super::config::{Mode, OnLoss, Scales, Surplus, VECTOR_BYTES};
use super::group::{Entry, Group, blocks};
use super::handle::Handle;
use crate::communicator::Element;
use crate::error::{Error, Result};
use crate::gpu::{DeviceBuffer, DeviceBufferMut};
use cudarc::driver::{CudaStream, DeviceRepr, SyncOnDrop};
use ringdove_kernels::element::DataType;
use ringdove_kernels::experts::{
    EXPERTS_QUANTISE, EXPERTS_TOO_MANY, EXPERTS_WEIGHTS, EXPERTS_WIDE_INDICES, ExpertsCall,
};
use std::sync::Arc;

/// A type of indices: i32 or i64.
pub trait Index: private::Sealed + DeviceRepr {
    /// Is it i64?
    const IS_WIDE: bool;
}

mod private {
    pub trait Sealed {}
    impl Sealed for i32 {}
    impl Sealed for i64 {}
}

impl Index for i32 {
    const IS_WIDE: bool = false;
}

impl Index for i64 {
    const IS_WIDE: bool = true;
}

/// The scales of tokens that are e4m3, `hidden / 128` for each, rounded up.
#[derive(Clone, Copy)]
pub enum ScaleBuffer<'a> {
    /// For [`Scales::F32`].
    F32(&'a dyn DeviceBuffer<f32>),
    /// For [`Scales::Ue8m0`].
    Ue8m0(&'a dyn DeviceBuffer<u8>),
}

/// Where the scales of received rows go.
pub enum ScaleBufferMut<'a> {
    /// For [`Scales::F32`].
    F32(&'a mut dyn DeviceBufferMut<f32>),
    /// For [`Scales::Ue8m0`].
    Ue8m0(&'a mut dyn DeviceBufferMut<u8>),
}

/// Where the local experts of received rows go.
pub enum IndexBufferMut<'a> {
    /// As i32.
    I32(&'a mut dyn DeviceBufferMut<i32>),
    /// As i64.
    I64(&'a mut dyn DeviceBufferMut<i64>),
}

/// This rank's tokens in a dispatch.
pub struct Tokens<'a, T, I> {
    /// `count` times `hidden` elements, of the group's type; in a group with
    /// [`fp8`](super::Config::fp8) the kernel quantises them, or they are e4m3 with scales.
    pub x: &'a dyn DeviceBuffer<T>,
    /// The scales of tokens that are e4m3, and of no others.
    pub scales: Option<ScaleBuffer<'a>>,
    /// `count` times `top_k` experts, -1 for none. A token names an expert once at most.
    pub indices: &'a dyn DeviceBuffer<I>,
    /// As many weights; without them they are 1.
    pub weights: Option<&'a dyn DeviceBuffer<f32>>,
    /// How many tokens, also 0; ranks may differ. More than the group takes are a
    /// [fault](Group::check) on all ranks, or [dropped](Surplus::Drop).
    pub count: u32,
}

/// Where a dispatch puts what has arrived.
pub struct Received<'a, T> {
    /// [`output_rows`](super::Config::output_rows) rows. Low latency: those of local expert `e`
    /// begin at row `e * ranks * tokens_max`. In both modes they are ordered by source rank, then
    /// token.
    pub x: &'a mut dyn DeviceBufferMut<T>,
    /// In a group with [`fp8`](super::Config::fp8), whose rows are e4m3: the scales of each row.
    pub scales: Option<ScaleBufferMut<'a>>,
    /// [`output_counts`](super::Config::output_counts) numbers: rows of each local expert (in
    /// throughput mode, choices of it), rounded up to the group's alignment; and in throughput mode
    /// all rows, not rounded.
    pub counts: &'a mut dyn DeviceBufferMut<u32>,
    /// Throughput mode: for each row, `top_k` local experts, -1 for those of other ranks.
    pub indices: Option<IndexBufferMut<'a>>,
    /// Throughput mode: as many weights, 0 for choices on other ranks.
    pub weights: Option<&'a mut dyn DeviceBufferMut<f32>>,
    /// Four numbers for each row: the token at its rank, which of its choices (low latency), bits
    /// of that choice's weight, and 0.
    pub sources: Option<&'a mut dyn DeviceBufferMut<u32>>,
}

/// What a combine takes.
pub struct Rows<'a, T> {
    /// The rows of the dispatch's output, each replaced by its result.
    pub y: &'a dyn DeviceBuffer<T>,
    /// Throughput mode: `top_k` numbers for each row, which are summed beside.
    pub weights: Option<&'a dyn DeviceBuffer<f32>>,
}

/// Where a combine puts its result.
pub struct Combined<'a, T> {
    /// As many rows as the dispatch had tokens on this rank.
    pub x: &'a mut dyn DeviceBufferMut<T>,
    /// Throughput mode: the sums of weights, `top_k` for each token.
    pub weights: Option<&'a mut dyn DeviceBufferMut<f32>>,
    /// Low latency: factors of the rows, `top_k` for each token, in place of the weights of the
    /// dispatch.
    pub factors: Option<&'a dyn DeviceBuffer<f32>>,
    /// In a group that [goes on](OnLoss::GoOn): a number for each token, with a bit for each choice
    /// whose result is missing in its sum; 0 where it is whole.
    pub missing: Option<&'a mut dyn DeviceBufferMut<u32>>,
}

/// Addresses of a call's buffers, whose use ends when it is dropped: after the launches.
#[derive(Default)]
struct Uses<'a>(Vec<SyncOnDrop<'a>>);

impl<'a> Uses<'a> {
    fn reads<T>(
        &mut self,
        what: &str,
        buffer: &'a dyn DeviceBuffer<T>,
        elements: u64,
        stream: &'a CudaStream,
    ) -> Result<u64> {
        let (address, used) = buffer.device_ptr(stream);
        self.take(what, address, [buffer.len() as u64, elements], used)
    }

    fn writes<T>(
        &mut self,
        what: &str,
        buffer: &'a mut dyn DeviceBufferMut<T>,
        elements: u64,
        stream: &'a CudaStream,
    ) -> Result<u64> {
        let length = buffer.len() as u64;
        let (address, used) = buffer.device_ptr_mut(stream);
        self.take(what, address, [length, elements], used)
    }

    fn take(
        &mut self,
        what: &str,
        address: u64,
        [length, elements]: [u64; 2],
        used: SyncOnDrop<'a>,
    ) -> Result<u64> {
        self.0.push(used);
        if length < elements {
            let expected = format!("{elements} elements at least");
            return Err(Error::argument(format!("experts: {what}").as_str(), expected, length));
        }
        Ok(address)
    }
}

fn out_of_turn(call: &str, expected: &str, seen: &str) -> Error {
    Error::argument(format!("experts: {call}").as_str(), expected, seen)
}

/// Rows are moved 16 bytes at a time.
fn aligned(what: &str, address: u64) -> Result<u64> {
    if address.is_multiple_of(VECTOR_BYTES) {
        return Ok(address);
    }
    let expected = "an address that is a multiple of 16";
    Err(Error::argument(format!("experts: {what}").as_str(), expected, format!("{address:#x}")))
}

impl Group<'_> {
    /// Both halves of a dispatch.
    ///
    /// # Errors
    /// As [`Self::dispatch_send`] and [`Self::dispatch_receive`].
    pub fn dispatch<T: Element, R: Element, I: Index>(
        &self,
        handle: &mut Handle,
        tokens: &Tokens<'_, T, I>,
        received: Received<'_, R>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        self.dispatch_send(handle, tokens, stream)?;
        self.dispatch_receive(handle, received, stream)
    }

    /// Both halves of a combine.
    ///
    /// # Errors
    /// As [`Self::combine_send`] and [`Self::combine_receive`].
    pub fn combine<T: Element>(
        &self,
        handle: &Handle,
        rows: &Rows<'_, T>,
        combined: Combined<'_, T>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        self.combine_send(handle, rows, stream)?;
        self.combine_receive(handle, combined, stream)
    }

    /// Sends this rank's tokens to the ranks of their experts, and keeps in `handle` where they
    /// went. All ranks make the call. The tokens may be overwritten behind it, in the stream's
    /// order.
    ///
    /// # Errors
    /// [`Error::Argument`] for buffers that are too short, of another type or misaligned, for a
    /// handle of another group, and while another dispatch is under way: nothing was enqueued then.
    /// What is wrong with indices, weights and the number of tokens, [`Group::check`] says on all
    /// ranks.
    pub fn dispatch_send<T: Element, I: Index>(
        &self,
        handle: &mut Handle,
        tokens: &Tokens<'_, T, I>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let config = self.config();
        let (top_k, hidden) = (u64::from(config.top_k), u64::from(config.hidden));
        let surplus = tokens.count.saturating_sub(config.tokens_max);
        let is_too_many = surplus > 0 && config.surplus == Surplus::Refuse;
        let dropped = if is_too_many { 0 } else { surplus };
        // Of too many none is read.
        let count = if is_too_many { 0 } else { u64::from(tokens.count - dropped) };
        let mut launching = self.begin_dispatch::<T>(handle)?;
        let mut uses = Uses::default();
        let x = uses.reads("tokens", tokens.x, count * hidden, stream)?;
        let (scales, quantises) = self.scales::<T>(&mut uses, tokens.scales, count, stream)?;
        let indices = uses.reads("indices", tokens.indices, count * top_k, stream)?;
        let weights =
            tokens.weights.map(|weights| uses.reads("weights", weights, count * top_k, stream));
        let flag = |is_set: bool, flag: u32| u32::from(is_set) * flag;
        let call = ExpertsCall {
            routing: handle.routing,
            input: aligned("tokens", x)?,
            scales,
            indices,
            weights: weights.transpose()?.unwrap_or(0),
            tokens: tokens.count - dropped,
            flags: flag(I::IS_WIDE, EXPERTS_WIDE_INDICES)
                | flag(is_too_many, EXPERTS_TOO_MANY)
                | flag(tokens.weights.is_some(), EXPERTS_WEIGHTS)
                | flag(quantises, EXPERTS_QUANTISE),
            ..ExpertsCall::default()
        };
        // A warp for each bucket, and for each few tokens that it checks.
        let numbered = match config.mode {
            Mode::LowLatency => config.experts,
            Mode::Throughput => 0,
        };
        let buckets = [numbered, self.sizes.ranks, self.sizes.nodes()].map(u64::from);
        let buckets: u64 = buckets.iter().sum();
        let launches = [
            (Entry::Route, blocks(buckets + count.div_ceil(32 / top_k))),
            (Entry::Send, blocks(count * top_k)),
        ];
        self.launch(&mut launching, &launches, call, stream)?;
        launching.sent = Some(handle.number);
        launching.dropped += u64::from(dropped);
        (handle.tokens, handle.has_rows) = (Some(count as u32), false);
        handle.dropped = dropped;
        Ok(())
    }

    /// As [`Self::dispatch_send`], with the routing of the handle's last dispatch, and as many
    /// tokens.
    ///
    /// # Errors
    /// As [`Self::dispatch_send`]; for a handle without a dispatch.
    pub fn dispatch_again_send<T: Element>(
        &self,
        handle: &mut Handle,
        x: &dyn DeviceBuffer<T>,
        scales: Option<ScaleBuffer<'_>>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let mut launching = self.begin_dispatch::<T>(handle)?;
        let Some(tokens) = handle.tokens else {
            let expected = "a handle with the routing of an earlier dispatch";
            return Err(out_of_turn("dispatch with the same routing", expected, "a new handle"));
        };
        let config = self.config();
        let mut uses = Uses::default();
        let elements = u64::from(tokens) * u64::from(config.hidden);
        let x = uses.reads("tokens", x, elements, stream)?;
        let (scales, quantises) = self.scales::<T>(&mut uses, scales, tokens.into(), stream)?;
        let call = ExpertsCall {
            routing: handle.routing,
            input: aligned("tokens", x)?,
            scales,
            tokens,
            flags: if quantises { EXPERTS_QUANTISE } else { 0 },
            ..ExpertsCall::default()
        };
        let launches = [(Entry::Send, blocks(u64::from(tokens) * u64::from(config.top_k)))];
        self.launch(&mut launching, &launches, call, stream)?;
        launching.sent = Some(handle.number);
        launching.dropped += u64::from(handle.dropped);
        handle.has_rows = false;
        Ok(())
    }

    /// Waits, in the stream, for the tokens of all ranks, and lays them out. All ranks make the
    /// call after the send half with the same handle.
    ///
    /// # Errors
    /// [`Error::Argument`] for buffers that are too short, of another type or misaligned, and where
    /// no dispatch with this handle was sent.
    pub fn dispatch_receive<T: Element>(
        &self,
        handle: &mut Handle,
        received: Received<'_, T>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        self.owns(handle)?;
        self.is_row_type::<T>()?;
        let mut launching = self.launching();
        if launching.sent != Some(handle.number) {
            let seen = "none under way, or one with another handle";
            return Err(out_of_turn("receive of a dispatch", "a dispatch with this handle", seen));
        }
        let (config, ranks) = (self.config(), self.sizes.ranks);
        let rows = self.sizes.output_rows();
        let choices = rows * u64::from(config.top_k);
        let mut uses = Uses::default();
        let Received { x, scales, counts, indices, weights, sources } = received;
        if config.mode == Mode::LowLatency && (indices.is_some() || weights.is_some()) {
            let expected = "throughput mode: in low-latency mode a row has one choice";
            return Err(out_of_turn("indices or weights of rows", expected, "low latency"));
        }
        let x = uses.writes("received tokens", x, rows * u64::from(config.hidden), stream)?;
        let scales = self.output_scales(&mut uses, scales, rows, stream)?;
        let counts = uses.writes("counts", counts, self.sizes.output_counts(), stream)?;
        let is_wide = matches!(indices, Some(IndexBufferMut::I64(_)));
        let indices = match indices {
            Some(IndexBufferMut::I32(out)) => {
                Some(uses.writes("received indices", out, choices, stream)?)
            }
            Some(IndexBufferMut::I64(out)) => {
                Some(uses.writes("received indices", out, choices, stream)?)
            }
            None => None,
        };
        let weights = weights.map(|out| uses.writes("received weights", out, choices, stream));
        let weights = weights.transpose()?;
        let sources = sources.map(|out| uses.writes("sources", out, 4 * rows, stream));
        let sources = sources.transpose()?.map(|out| aligned("sources", out)).transpose()?;
        let call = ExpertsCall {
            routing: handle.routing,
            output: aligned("received tokens", x)?,
            output_scales: scales,
            output_counts: counts,
            output_indices: indices.unwrap_or(0),
            output_weights: weights.unwrap_or(0),
            output_sources: sources.unwrap_or(0),
            flags: if is_wide { EXPERTS_WIDE_INDICES } else { 0 },
            ..ExpertsCall::default()
        };
        let most = u64::from(ranks) * u64::from(self.sizes.rows_max);
        let launches = [(Entry::Await, 1), (Entry::Receive, blocks(most))];
        if self.sizes.node_ranks > 0 {
            let relayed = u64::from(self.sizes.nodes()) * u64::from(self.sizes.rows_max);
            let first = [(Entry::AwaitRelayed, 1), (Entry::Relay, blocks(relayed))];
            self.launch(&mut launching, &first, call, stream)?;
        }
        self.launch(&mut launching, &launches, call, stream)?;
        launching.sent = None;
        handle.has_rows = true;
        Ok(())
    }

    /// Sends the rows of the handle's dispatch back. All ranks make the call. The rows may be
    /// overwritten behind it, in the stream's order.
    ///
    /// # Errors
    /// [`Error::Argument`] as of [`Self::dispatch_send`], and for a handle whose dispatch was not
    /// received.
    pub fn combine_send<T: Element>(
        &self,
        handle: &Handle,
        rows: &Rows<'_, T>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        self.owns(handle)?;
        self.is_of_type::<T>()?;
        let mut launching = self.launching();
        if !handle.has_rows {
            let expected = "a handle whose dispatch was received";
            return Err(out_of_turn("combine", expected, "one without rows"));
        }
        if launching.returned.is_some() {
            let expected = "the earlier combine to be received first";
            return Err(out_of_turn("combine", expected, "a second one under way"));
        }
        let (config, ranks) = (self.config(), self.sizes.ranks);
        let most = self.sizes.output_rows();
        let mut uses = Uses::default();
        let y = uses.reads("results of rows", rows.y, most * u64::from(config.hidden), stream)?;
        let choices = most * u64::from(config.top_k);
        let weights = self.only_throughput(rows.weights)?;
        let weights = weights.map(|weights| uses.reads("weights", weights, choices, stream));
        let call = ExpertsCall {
            routing: handle.routing,
            input: aligned("results of rows", y)?,
            weights: weights.transpose()?.unwrap_or(0),
            ..ExpertsCall::default()
        };
        let most = u64::from(ranks) * u64::from(self.sizes.return_rows_max);
        self.launch(&mut launching, &[(Entry::Return, blocks(most))], call, stream)?;
        launching.returned = Some(handle.number);
        Ok(())
    }

    /// Waits, in the stream, for the rows of all ranks, and adds them for each token: in f32, in
    /// the order of the token's choices, from 0; a product with a weight is rounded before it is
    /// added, and the sum once at the end. Where rows are [relayed](Group::node_ranks), the rows of
    /// another node are added there, in the same way, and their sum takes the place of the first of
    /// these choices.
    ///
    /// # Errors
    /// [`Error::Argument`] as of [`Self::dispatch_receive`].
    pub fn combine_receive<T: Element>(
        &self,
        handle: &Handle,
        combined: Combined<'_, T>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        self.owns(handle)?;
        self.is_of_type::<T>()?;
        let mut launching = self.launching();
        if launching.returned != Some(handle.number) {
            let seen = "none under way, or one with another handle";
            return Err(out_of_turn("receive of a combine", "a combine with this handle", seen));
        }
        let config = self.config();
        let tokens = u64::from(handle.tokens.unwrap_or(0));
        let mut uses = Uses::default();
        let Combined { x, weights, factors, missing } = combined;
        let x = uses.writes("combined tokens", x, tokens * u64::from(config.hidden), stream)?;
        let sums = tokens * u64::from(config.top_k);
        let weights = self.only_throughput(weights)?;
        let weights = weights.map(|out| uses.writes("sums of weights", out, sums, stream));
        let factors = self.only_low_latency(factors)?;
        let factors = factors.map(|factors| uses.reads("factors", factors, sums, stream));
        let missing = self.only_where_it_goes_on(missing)?;
        let missing = missing.map(|out| uses.writes("marks of tokens", out, tokens, stream));
        let call = ExpertsCall {
            routing: handle.routing,
            output: aligned("combined tokens", x)?,
            weights: factors.transpose()?.unwrap_or(0),
            output_weights: weights.transpose()?.unwrap_or(0),
            output_missing: missing.transpose()?.unwrap_or(0),
            tokens: tokens as u32,
            ..ExpertsCall::default()
        };
        let parts = self.sizes.return_data_bytes.div_ceil(2048);
        let launches = [(Entry::AwaitReturns, 1), (Entry::Combine, blocks(tokens * parts))];
        if self.sizes.node_ranks > 0 {
            let relayed = u64::from(self.sizes.nodes()) * u64::from(self.sizes.rows_max);
            let first = [(Entry::AwaitGathered, 1), (Entry::Gather, blocks(relayed * parts))];
            self.launch(&mut launching, &first, call, stream)?;
        }
        self.launch(&mut launching, &launches, call, stream)?;
        launching.returned = None;
        Ok(())
    }

    /// May a dispatch be sent now, with this handle and type?
    fn begin_dispatch<T: Element>(
        &self,
        handle: &Handle,
    ) -> Result<std::sync::MutexGuard<'_, super::group::Launching>> {
        self.owns(handle)?;
        if self.config().fp8.is_none() || T::DATA_TYPE != DataType::F8E4M3 {
            self.is_of_type::<T>()?;
        }
        let launching = self.launching();
        if launching.sent.is_some() {
            let expected = "the earlier dispatch to be received first";
            return Err(out_of_turn("dispatch", expected, "a second one under way"));
        }
        if launching.returned == Some(handle.number) {
            let expected = "the combine of the handle to be received first";
            return Err(out_of_turn("dispatch", expected, "one under way"));
        }
        Ok(launching)
    }

    /// Address of a dispatch's scales, and whether the kernel makes them.
    fn scales<'a, T: Element>(
        &self,
        uses: &mut Uses<'a>,
        scales: Option<ScaleBuffer<'a>>,
        count: u64,
        stream: &'a CudaStream,
    ) -> Result<(u64, bool)> {
        let elements = count * self.config().scale_count();
        let given = T::DATA_TYPE == DataType::F8E4M3;
        match (self.config().fp8.filter(|_| given), scales) {
            (None, None) => Ok((0, self.config().fp8.is_some())),
            (Some(Scales::F32), Some(ScaleBuffer::F32(buffer))) => {
                Ok((uses.reads("scales", buffer, elements, stream)?, false))
            }
            (Some(Scales::Ue8m0), Some(ScaleBuffer::Ue8m0(buffer))) => {
                Ok((uses.reads("scales", buffer, elements, stream)?, false))
            }
            (wanted, _) => Err(other_scales(wanted)),
        }
    }

    /// Address of the scales of received rows.
    fn output_scales<'a, 'b: 'a>(
        &self,
        uses: &mut Uses<'a>,
        scales: Option<ScaleBufferMut<'b>>,
        rows: u64,
        stream: &'a CudaStream,
    ) -> Result<u64> {
        let elements = rows * self.config().scale_count();
        match (self.config().fp8, scales) {
            (None, None) => Ok(0),
            (Some(Scales::F32), Some(ScaleBufferMut::F32(buffer))) => {
                uses.writes("received scales", buffer, elements, stream)
            }
            (Some(Scales::Ue8m0), Some(ScaleBufferMut::Ue8m0(buffer))) => {
                uses.writes("received scales", buffer, elements, stream)
            }
            (wanted, _) => Err(other_scales(wanted)),
        }
    }

    /// Is it the type of a dispatch's rows?
    fn is_row_type<T: Element>(&self) -> Result<()> {
        match self.config().fp8 {
            Some(_) => is_type::<T>(DataType::F8E4M3),
            None => self.is_of_type::<T>(),
        }
    }

    /// Is it the type of tokens, and of rows of a combine?
    fn is_of_type<T: Element>(&self) -> Result<()> {
        is_type::<T>(self.config().data_type)
    }

    fn only_where_it_goes_on<W>(&self, missing: Option<W>) -> Result<Option<W>> {
        if missing.is_some() && self.config().on_loss == OnLoss::End {
            let expected = "a group that goes on (Config::on_loss)";
            return Err(out_of_turn("marks of tokens", expected, "one that ends"));
        }
        Ok(missing)
    }

    fn only_low_latency<W>(&self, factors: Option<W>) -> Result<Option<W>> {
        if factors.is_some() && self.config().mode != Mode::LowLatency {
            let expected = "low latency: in throughput mode the experts' kernels weigh";
            return Err(out_of_turn("factors of a combine", expected, "throughput mode"));
        }
        Ok(factors)
    }

    fn only_throughput<W>(&self, weights: Option<W>) -> Result<Option<W>> {
        if weights.is_some() && self.config().mode != Mode::Throughput {
            let expected = "throughput mode: low latency weighs the rows itself";
            return Err(out_of_turn("weights of a combine", expected, "low latency"));
        }
        Ok(weights)
    }
}

fn is_type<T: Element>(expected: DataType) -> Result<()> {
    if T::DATA_TYPE == expected {
        return Ok(());
    }
    let (expected, seen) = (format!("{expected:?}"), format!("{:?}", T::DATA_TYPE));
    Err(Error::argument("experts: type of tokens", expected, seen))
}

fn other_scales(wanted: Option<Scales>) -> Error {
    let expected = match wanted {
        Some(Scales::F32) => "scales of f32 beside e4m3",
        Some(Scales::Ue8m0) => "scales of u8 beside e4m3",
        None => "no scales: the tokens are not e4m3",
    };
    Error::argument("experts: scales", expected, "others, or none")
}
