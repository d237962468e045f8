//! A rank of the measurement: its buffers, its calls, and the comparison with the reference.

use super::routing::Routings;
use crate::perf::backend::gpu;
use crate::perf::error::PerfError;
use cudarc::driver::{CudaSlice, CudaStream, DeviceRepr, DriverError, ValidAsZeroBits};
use float8::F8E4M3;
use ringdove::experts::reference::{Routing, combined, quantised};
use ringdove::experts::{
    Combined, Config, Group, Handle, Received, Rows, SCALE_ELEMENTS, ScaleBufferMut, Scales, Tokens,
};
use ringdove::{Communicator, Element};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// A type of tokens.
pub trait Value: Element + DeviceRepr + ValidAsZeroBits + Copy + PartialEq + 'static {
    /// The nearest.
    fn of(value: f32) -> Self;

    /// The value again.
    fn value(self) -> f32;
}

impl Value for f32 {
    fn of(value: f32) -> Self {
        value
    }

    fn value(self) -> f32 {
        self
    }
}

impl Value for half::f16 {
    fn of(value: f32) -> Self {
        Self::from_f32(value)
    }

    fn value(self) -> f32 {
        self.to_f32()
    }
}

impl Value for half::bf16 {
    fn of(value: f32) -> Self {
        Self::from_f32(value)
    }

    fn value(self) -> f32 {
        self.to_f32()
    }
}

/// Values from -125 to 125, which every type holds; the step is prime to all strides.
fn value(rank: usize, token: usize, at: usize) -> f32 {
    ((rank * 31 + token * 7 + at * 13) % 251) as f32 - 125.0
}

/// Bytes of messages, with heads, scales and weights, each counted at one end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crossed {
    /// Between GPUs of one node, those of relays among them.
    pub in_nodes: u64,
    /// Between nodes.
    pub between_nodes: u64,
}

impl std::ops::Add for Crossed {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            in_nodes: self.in_nodes + other.in_nodes,
            between_nodes: self.between_nodes + other.between_nodes,
        }
    }
}

/// Received rows of 8 bits.
struct Fp8Rows {
    rows: CudaSlice<F8E4M3>,
    scales: ScaleSlice,
}

/// Scales of either form.
enum ScaleSlice {
    F32(CudaSlice<f32>),
    Ue8m0(CudaSlice<u8>),
}

impl Fp8Rows {
    fn new(rows: usize, config: &Config, form: Scales, stream: &CudaStreamRef) -> Made<Self> {
        let scales = rows * config.hidden.div_ceil(SCALE_ELEMENTS) as usize;
        let scales = match form {
            Scales::F32 => ScaleSlice::F32(stream.alloc_zeros(scales)?),
            Scales::Ue8m0 => ScaleSlice::Ue8m0(stream.alloc_zeros(scales)?),
        };
        Ok(Self { rows: stream.alloc_zeros(rows * config.hidden as usize)?, scales })
    }

    fn clear(&mut self, stream: &CudaStreamRef) -> Made<()> {
        stream.memset_zeros(&mut self.rows)?;
        match &mut self.scales {
            ScaleSlice::F32(slice) => stream.memset_zeros(slice),
            ScaleSlice::Ue8m0(slice) => stream.memset_zeros(slice),
        }
    }

    /// All rows, and their scales as f32.
    fn read(&self, stream: &CudaStreamRef) -> Made<(Vec<F8E4M3>, Vec<f32>)> {
        let scales = match &self.scales {
            ScaleSlice::F32(slice) => stream.clone_dtoh(slice)?,
            ScaleSlice::Ue8m0(slice) => {
                let bytes = stream.clone_dtoh(slice)?.into_iter();
                bytes.map(|byte| f32::from_bits(u32::from(byte) << 23)).collect()
            }
        };
        Ok((stream.clone_dtoh(&self.rows)?, scales))
    }
}

type CudaStreamRef = Arc<CudaStream>;
type Made<T> = Result<T, DriverError>;

/// One rank. Its experts return what they get; where rows have 8 bits, values of their place.
pub struct Rank<'c, T> {
    group: Group<'c>,
    handle: Handle,
    stream: Arc<CudaStream>,
    number: usize,
    tokens: u32,
    x: CudaSlice<T>,
    indices: CudaSlice<i64>,
    weights: CudaSlice<f32>,
    /// Results of rows; without fp8 the received rows themselves.
    rows: CudaSlice<T>,
    fp8: Option<Fp8Rows>,
    counts: CudaSlice<u32>,
    out: CudaSlice<T>,
}

impl<'c, T: Value> Rank<'c, T> {
    /// Allocates everything.
    pub fn new(
        group: Group<'c>,
        stream: Arc<CudaStream>,
        number: usize,
        routings: &Routings,
    ) -> Result<Self, PerfError> {
        let config = *group.config();
        let ranks = routings.indices.len();
        let hidden = config.hidden as usize;
        let tokens = routings.indices[number].len() / config.top_k as usize;
        let elements = (0..tokens).flat_map(|token| (0..hidden).map(move |at| (token, at)));
        let x: Vec<T> = elements.map(|(token, at)| T::of(value(number, token, at))).collect();
        let failed = gpu("allocate the buffers of a rank");
        let rows = config.output_rows(ranks as u32) as usize;
        let counts = config.output_counts(ranks as u32) as usize;
        let handle = group.handle()?;
        // Never empty.
        let or_one = |length: usize| length.max(1);
        let x = if x.is_empty() { vec![T::of(0.0)] } else { x };
        let pad = |mut indices: Vec<i64>| {
            indices.resize(or_one(indices.len()), -1);
            indices
        };
        let indices = pad(routings.indices[number].clone());
        let mut weights = routings.weights[number].clone();
        weights.resize(or_one(weights.len()), 0.0);
        Ok(Self {
            handle,
            number,
            tokens: tokens as u32,
            x: stream.clone_htod(&x).map_err(&failed)?,
            indices: stream.clone_htod(&indices).map_err(&failed)?,
            weights: stream.clone_htod(&weights).map_err(&failed)?,
            rows: match config.fp8 {
                None => stream.alloc_zeros(rows * hidden),
                Some(_) => {
                    let places = (0..rows).flat_map(|row| (0..hidden).map(move |at| (row, at)));
                    let results = places.map(|(row, at)| T::of(value(number, row, at)));
                    stream.clone_htod(&results.collect::<Vec<T>>())
                }
            }
            .map_err(&failed)?,
            fp8: config
                .fp8
                .map(|form| Fp8Rows::new(rows, &config, form, &stream))
                .transpose()
                .map_err(&failed)?,
            counts: stream.alloc_zeros(counts).map_err(&failed)?,
            out: stream.alloc_zeros(or_one(tokens * hidden)).map_err(&failed)?,
            group,
            stream,
        })
    }

    /// The send half of a dispatch.
    pub fn dispatch_send(&mut self) -> Result<(), PerfError> {
        let Self { x, indices, weights, tokens: count, .. } = self;
        let tokens = Tokens { x, scales: None, indices, weights: Some(weights), count: *count };
        Ok(self.group.dispatch_send(&mut self.handle, &tokens, &self.stream)?)
    }

    /// The receive half of a dispatch.
    pub fn dispatch_receive(&mut self) -> Result<(), PerfError> {
        let Self { group, handle, stream, rows, fp8, counts, .. } = self;
        let (indices, weights, sources) = (None, None, None);
        let Some(Fp8Rows { rows, scales }) = fp8 else {
            let received = Received { x: rows, scales: None, counts, indices, weights, sources };
            return Ok(group.dispatch_receive(handle, received, stream)?);
        };
        let scales = Some(match scales {
            ScaleSlice::F32(slice) => ScaleBufferMut::F32(slice),
            ScaleSlice::Ue8m0(slice) => ScaleBufferMut::Ue8m0(slice),
        });
        let received = Received { x: rows, scales, counts, indices, weights, sources };
        Ok(group.dispatch_receive(handle, received, stream)?)
    }

    /// The send half of a combine.
    pub fn combine_send(&mut self) -> Result<(), PerfError> {
        let rows = Rows { y: &self.rows, weights: None };
        Ok(self.group.combine_send(&self.handle, &rows, &self.stream)?)
    }

    /// The receive half of a combine.
    pub fn combine_receive(&mut self) -> Result<(), PerfError> {
        let combined = Combined { x: &mut self.out, weights: None, factors: None, missing: None };
        Ok(self.group.combine_receive(&self.handle, combined, &self.stream)?)
    }

    /// Waits for all that was enqueued.
    pub fn wait(&self) -> Result<(), PerfError> {
        self.stream.synchronize().map_err(gpu("wait for a rank"))?;
        Ok(self.group.check()?)
    }

    /// Forgets what was received: whatever the next step leaves out is seen.
    pub fn clear(&mut self) -> Result<(), PerfError> {
        let failed = gpu("clear the buffers of a rank");
        match &mut self.fp8 {
            None => self.stream.memset_zeros(&mut self.rows),
            Some(rows) => rows.clear(&self.stream),
        }
        .map_err(&failed)?;
        self.stream.memset_zeros(&mut self.counts).map_err(&failed)?;
        self.stream.memset_zeros(&mut self.out).map_err(&failed)
    }

    /// The routing of all ranks, in this group.
    fn routing<'a>(&'a self, routings: &'a Routings) -> Routing<'a> {
        let Routings { indices, weights, .. } = routings;
        let node_ranks = self.group.node_ranks() as usize;
        Routing { node_ranks, ..Routing::new(self.group.config(), indices, weights) }
    }

    /// How many elements of the last dispatch and combine, and counts, are wrong.
    pub fn wrong(&self, routings: &Routings) -> Result<u64, PerfError> {
        let config = self.group.config();
        let routing = self.routing(routings);
        let failed = gpu("read the results of a rank");
        let hidden = config.hidden as usize;
        let mut wrong = self.wrong_rows(&routing).map_err(&failed)?;
        let counts = self.stream.clone_dtoh(&self.counts).map_err(&failed)?;
        let expected = routing.counts(self.number);
        wrong +=
            counts.iter().zip(&expected).filter(|(seen, wanted)| seen != wanted).count() as u64;
        let out = self.stream.clone_dtoh(&self.out).map_err(&failed)?;
        let returned = Returned::new(&routing, self.number);
        for token in 0..routing.tokens(self.number) {
            let terms = routing.terms(self.number, token);
            let seen = out[token * hidden..][..hidden].iter().enumerate();
            let differs = |(at, seen): &(usize, &T)| {
                let of_choice = |choice| match self.fp8 {
                    None => value(self.number, token, *at),
                    Some(_) => {
                        let (owner, place) = returned.0[&(token, choice)];
                        value(owner, place, *at)
                    }
                };
                **seen != T::of(combined(&terms, of_choice, |sum| T::of(sum).value()))
            };
            wrong += seen.filter(differs).count() as u64;
        }
        Ok(wrong)
    }

    /// How many elements of received rows are wrong, and scales.
    fn wrong_rows(&self, routing: &Routing<'_>) -> Made<u64> {
        let hidden = routing.config.hidden as usize;
        let mut wrong = 0;
        let Some((form, fp8)) = routing.config.fp8.zip(self.fp8.as_ref()) else {
            let rows = self.stream.clone_dtoh(&self.rows)?;
            for row in routing.rows(self.number) {
                let seen = rows[row.place * hidden..][..hidden].iter().enumerate();
                let differs =
                    |(at, seen): &(usize, &T)| **seen != T::of(value(row.source, row.token, *at));
                wrong += seen.filter(differs).count() as u64;
            }
            return Ok(wrong);
        };
        let (rows, scales) = fp8.read(&self.stream)?;
        let blocks = hidden.div_ceil(SCALE_ELEMENTS as usize);
        for row in routing.rows(self.number) {
            let token: Vec<f32> = (0..hidden).map(|at| value(row.source, row.token, at)).collect();
            let expected = quantised(&token, form);
            let rows = rows[row.place * hidden..][..hidden].iter().zip(&expected.0);
            let scales = scales[row.place * blocks..][..blocks].iter().zip(&expected.1);
            wrong +=
                rows.filter(|(seen, wanted)| seen.to_bits() != wanted.to_bits()).count() as u64;
            wrong += scales.filter(|(seen, wanted)| seen != wanted).count() as u64;
        }
        Ok(wrong)
    }

    /// The messages of both operations between this GPU and others, `communicator`'s.
    pub fn crossed(
        &self,
        routings: &Routings,
        communicator: &Communicator,
    ) -> Result<Crossed, PerfError> {
        let (routing, config) = (self.routing(routings), self.group.config());
        let (ranks, near) = (routings.count() as usize, routing.node_ranks);
        let bytes = config.message_bytes_on_nodes(routings.count(), near as u32)?;
        let rows = routing.rows(self.number);
        let mut crossed = Crossed::default();
        let Some(nodes) = ranks.checked_div(near) else {
            for source in (0..ranks).filter(|source| *source != self.number) {
                let rows = || rows.iter().filter(|row| row.source == source);
                let tokens: BTreeSet<usize> = rows().map(|row| row.token).collect();
                let link = match communicator.is_on_another_node(source as u32) {
                    true => &mut crossed.between_nodes,
                    false => &mut crossed.in_nodes,
                };
                *link += bytes.header
                    + tokens.len() as u64 * bytes.row
                    + rows().count() as u64 * bytes.return_row;
            }
            return Ok(crossed);
        };
        let node = |rank: usize| rank / near;
        // Who stores rows of `source` here: itself, or its relay.
        let by = |source: usize| match node(source) == node(self.number) {
            true => source,
            false => node(self.number) * near + source % near,
        };
        let stored = (0..ranks).filter(|source| by(*source) != self.number).count() as u64;
        let rows = rows.iter().filter(|row| by(row.source) != self.number).count() as u64;
        let crossings = |token: usize| {
            let choices = &routing.indices[self.number][token * config.top_k as usize..];
            let owners = choices[..config.top_k as usize].iter().filter_map(|i| routing.owner(*i));
            let nodes: BTreeSet<usize> = owners.map(node).collect();
            nodes.iter().filter(|other| **other != node(self.number)).count() as u64
        };
        let tokens: u64 = (0..routing.tokens(self.number)).map(crossings).sum();
        crossed.in_nodes = stored * bytes.header + rows * (bytes.row + bytes.return_row);
        crossed.between_nodes = (nodes as u64 - 1) * bytes.relayed_header
            + tokens * (bytes.relayed_row + bytes.return_row);
        Ok(crossed)
    }

    /// Rows that this rank receives from itself, and from others.
    pub fn received_rows(&self, routings: &Routings) -> [u64; 2] {
        let routing = self.routing(routings);
        let rows = routing.rows(self.number);
        let own = rows.iter().filter(|row| row.source == self.number).count() as u64;
        [own, rows.len() as u64 - own]
    }
}

/// Where the rows of one rank's tokens lie at their experts: rank and place, by token and choice.
struct Returned(HashMap<(usize, usize), (usize, usize)>);

impl Returned {
    fn new(routing: &Routing<'_>, source: usize) -> Self {
        let owners = 0..routing.indices.len();
        let rows =
            owners.flat_map(|owner| routing.rows(owner).into_iter().map(move |row| (owner, row)));
        let own = rows.filter(|(_, row)| row.source == source);
        Self(own.map(|(owner, row)| ((row.token, row.choice), (owner, row.place))).collect())
    }
}

/// Bytes of a token's data in a dispatch, and in a combine.
pub fn token_bytes(config: &Config) -> [u64; 2] {
    let of_type = u64::from(config.hidden) * config.data_type.size_bytes() as u64;
    [if config.fp8.is_some() { config.hidden.into() } else { of_type }, of_type]
}
