//! A rank of the measurement: its buffers, its calls, and the comparison with the reference.

use super::routing::Routings;
use crate::perf::backend::gpu;
use crate::perf::error::PerfError;
use cudarc::driver::{CudaSlice, CudaStream, DeviceRepr, ValidAsZeroBits};
use ringdove::Element;
use ringdove::experts::reference::{Routing, combined};
use ringdove::experts::{Combined, Group, Handle, Received, Rows, Tokens};
use std::sync::Arc;

/// A type of tokens.
pub trait Value: Element + DeviceRepr + ValidAsZeroBits + Copy + PartialEq + 'static {
    /// The nearest.
    fn of(value: f32) -> Self;
}

impl Value for f32 {
    fn of(value: f32) -> Self {
        value
    }
}

impl Value for half::f16 {
    fn of(value: f32) -> Self {
        Self::from_f32(value)
    }
}

impl Value for half::bf16 {
    fn of(value: f32) -> Self {
        Self::from_f32(value)
    }
}

/// Values from -125 to 125, which every type holds; the step is prime to all strides.
fn value(rank: usize, token: usize, at: usize) -> f32 {
    ((rank * 31 + token * 7 + at * 13) % 251) as f32 - 125.0
}

/// One rank, whose experts return what they get.
pub struct Rank<'c, T> {
    group: Group<'c>,
    handle: Handle,
    stream: Arc<CudaStream>,
    number: usize,
    tokens: u32,
    x: CudaSlice<T>,
    indices: CudaSlice<i64>,
    weights: CudaSlice<f32>,
    rows: CudaSlice<T>,
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
        let rows = config.output_rows(ranks as u32) as usize * hidden;
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
            rows: stream.alloc_zeros(rows).map_err(&failed)?,
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
        let Self { rows, counts, .. } = self;
        let received =
            Received { x: rows, scales: None, counts, indices: None, weights: None, sources: None };
        Ok(self.group.dispatch_receive(&mut self.handle, received, &self.stream)?)
    }

    /// The send half of a combine.
    pub fn combine_send(&mut self) -> Result<(), PerfError> {
        let rows = Rows { y: &self.rows, weights: None };
        Ok(self.group.combine_send(&self.handle, &rows, &self.stream)?)
    }

    /// The receive half of a combine.
    pub fn combine_receive(&mut self) -> Result<(), PerfError> {
        let combined = Combined { x: &mut self.out, weights: None };
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
        self.stream.memset_zeros(&mut self.rows).map_err(&failed)?;
        self.stream.memset_zeros(&mut self.counts).map_err(&failed)?;
        self.stream.memset_zeros(&mut self.out).map_err(&failed)
    }

    /// How many elements of the last dispatch and combine, and counts, are wrong.
    pub fn wrong(&self, routings: &Routings) -> Result<u64, PerfError> {
        let config = self.group.config();
        let routing = Routing { config, indices: &routings.indices, weights: &routings.weights };
        let failed = gpu("read the results of a rank");
        let hidden = config.hidden as usize;
        let rows = self.stream.clone_dtoh(&self.rows).map_err(&failed)?;
        let mut wrong = 0;
        for row in routing.rows(self.number) {
            let seen = rows[row.place * hidden..][..hidden].iter().enumerate();
            let differs =
                |(at, seen): &(usize, &T)| **seen != T::of(value(row.source, row.token, *at));
            wrong += seen.filter(differs).count() as u64;
        }
        let counts = self.stream.clone_dtoh(&self.counts).map_err(&failed)?;
        let expected = routing.counts(self.number);
        wrong +=
            counts.iter().zip(&expected).filter(|(seen, wanted)| seen != wanted).count() as u64;
        let out = self.stream.clone_dtoh(&self.out).map_err(&failed)?;
        for token in 0..routing.tokens(self.number) {
            let terms = routing.terms(self.number, token);
            let seen = out[token * hidden..][..hidden].iter().enumerate();
            let differs = |(at, seen): &(usize, &T)| {
                let own = value(self.number, token, *at);
                **seen != T::of(combined(&terms, |_| own))
            };
            wrong += seen.filter(differs).count() as u64;
        }
        Ok(wrong)
    }

    /// Rows that this rank receives from itself, and from others.
    pub fn received_rows(&self, routings: &Routings) -> [u64; 2] {
        let config = self.group.config();
        let routing = Routing { config, indices: &routings.indices, weights: &routings.weights };
        let rows = routing.rows(self.number);
        let own = rows.iter().filter(|row| row.source == self.number).count() as u64;
        [own, rows.len() as u64 - own]
    }
}

/// Bytes of a token's data.
pub fn token_bytes(group: &Group<'_>) -> u64 {
    let config = group.config();
    u64::from(config.hidden) * config.data_type.size_bytes() as u64
}
