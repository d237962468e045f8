//! A layer of experts on some ranks, compared with the reference bit for bit.

use cudarc::driver::{CudaStream, DeviceRepr, ValidAsZeroBits};
use half::{bf16, f16};
use ringdove::experts::reference::{Routing, Row, combined};
use ringdove::experts::{
    Combined, Config, Group, Handle, Index, IndexBufferMut, Mode, OnLoss, Placement, Received,
    Rows, Tokens,
};
use ringdove::{Communicator, Element};
use std::sync::Arc;

/// A type of tokens.
pub trait Value:
    Element + DeviceRepr + ValidAsZeroBits + Copy + PartialEq + std::fmt::Debug
{
    fn of(value: f32) -> Self;
    fn value(self) -> f32;
    fn bits(self) -> u32;
}

impl Value for f32 {
    fn of(value: f32) -> Self {
        value
    }
    fn value(self) -> f32 {
        self
    }
    fn bits(self) -> u32 {
        self.to_bits()
    }
}

macro_rules! halves {
    ($($half:ty),*) => {$(
        impl Value for $half {
            /// As kernels round: every NaN becomes the same one.
            fn of(value: f32) -> Self {
                if value.is_nan() { Self::from_bits(0x7fff) } else { Self::from_f32(value) }
            }
            fn value(self) -> f32 {
                self.to_f32()
            }
            fn bits(self) -> u32 {
                self.to_bits().into()
            }
        }
    )*};
}

halves!(f16, bf16);

/// How tokens choose.
#[derive(Clone, Copy, Debug)]
pub enum Load {
    Uniform,
    /// The first experts are chosen most, as s = 1.
    Zipf,
    /// Every token's first choice is expert 0, and it has no other.
    AllToOne,
    /// Some ranks have no token.
    EmptyRanks,
    /// Some choices are none.
    RandomNone,
}

pub const LOADS: [Load; 5] =
    [Load::Uniform, Load::Zipf, Load::AllToOne, Load::EmptyRanks, Load::RandomNone];

/// What all ranks bring to one step.
#[derive(Clone)]
pub struct Step {
    pub indices: Vec<Vec<i64>>,
    pub weights: Vec<Vec<f32>>,
    /// Tokens as f32 that the type holds exactly, by rank.
    x: Vec<Vec<f32>>,
}

/// One token's choices, of which no two are equal.
fn choices(config: &Config, load: Load, random: &mut fastrand::Rng) -> Vec<i64> {
    let mut chosen: Vec<i64> = Vec::new();
    while chosen.len() < config.top_k as usize {
        let index = match load {
            Load::AllToOne if chosen.is_empty() => 0,
            Load::AllToOne => -1,
            Load::RandomNone if random.f32() < 0.3 => -1,
            Load::Zipf => {
                let harmonic: f64 = (1..=config.experts).map(|n| 1.0 / f64::from(n)).sum();
                let mut left = random.f64() * harmonic;
                let found = (1..config.experts).find(|n| {
                    left -= 1.0 / f64::from(*n);
                    left < 0.0
                });
                i64::from(found.unwrap_or(config.experts) - 1)
            }
            _ => i64::from(random.u32(..config.experts)),
        };
        if index == -1 || !chosen.contains(&index) {
            chosen.push(index);
        }
    }
    chosen
}

impl Step {
    pub fn random<T: Value>(
        config: &Config,
        ranks: usize,
        load: Load,
        random: &mut fastrand::Rng,
    ) -> Self {
        let mut step = Self { indices: Vec::new(), weights: Vec::new(), x: Vec::new() };
        for _ in 0..ranks {
            let is_empty = matches!(load, Load::EmptyRanks) && random.bool();
            let tokens = if is_empty { 0 } else { random.u32(0..=config.tokens_max) as usize };
            let all = |length: usize, next: &mut dyn FnMut() -> f32| {
                (0..length).map(|_| next()).collect::<Vec<_>>()
            };
            step.indices.push((0..tokens).flat_map(|_| choices(config, load, random)).collect());
            let count = tokens * config.top_k as usize;
            step.weights.push(all(count, &mut || random.f32()));
            let count = tokens * config.hidden as usize;
            let mut value = || T::of(random.f32() * 8.0 - 4.0).value();
            step.x.push(all(count, &mut value));
        }
        step
    }

    /// The same with elements of `values`, at random.
    pub fn with_elements<T: Value>(mut self, values: &[f32], random: &mut fastrand::Rng) -> Self {
        for element in self.x.iter_mut().flatten() {
            *element = T::of(values[random.usize(..values.len())]).value();
        }
        self
    }

    /// Without the tokens that a group leaves out.
    pub fn first(&self, config: &Config) -> Self {
        let of_rank = |width: u32| config.tokens_max as usize * width as usize;
        let mut step = self.clone();
        let (choices, elements) = (of_rank(config.top_k), of_rank(config.hidden));
        step.indices.iter_mut().for_each(|indices| indices.truncate(choices));
        step.weights.iter_mut().for_each(|weights| weights.truncate(choices));
        step.x.iter_mut().for_each(|x| x.truncate(elements));
        step
    }

    pub fn routing<'a>(&'a self, config: &'a Config) -> Routing<'a> {
        Routing::new(config, &self.indices, &self.weights)
    }

    pub fn token(&self, config: &Config, rank: usize, token: usize) -> &[f32] {
        &self.x[rank][token * config.hidden as usize..][..config.hidden as usize]
    }
}

/// What the row of an expert (low latency) or a rank becomes there.
fn result<T: Value>(value: f32, by: usize) -> T {
    T::of(value * (1.0 + by as f32 * 0.375) + by as f32)
}

/// A rank of this process.
pub struct Member<'c> {
    pub group: Group<'c>,
    pub handle: Handle,
    pub stream: Arc<CudaStream>,
    rank: usize,
}

/// Members for ranks of this process, whose groups are open.
pub fn members<'c>(communicators: &'c [Communicator], config: &Config) -> Vec<Member<'c>> {
    members_placed(communicators, config, &Placement::even(communicators[0].rank_count()))
}

/// The same, where ranks have the experts that `placement` says.
pub fn members_placed<'c>(
    communicators: &'c [Communicator],
    config: &Config,
    placement: &Placement,
) -> Vec<Member<'c>> {
    let streams: Vec<_> =
        communicators.iter().map(|rank| rank.context().new_stream().unwrap()).collect();
    let register = |rank| Group::register_placed(rank, config, placement.clone()).unwrap();
    let registered: Vec<_> = communicators.iter().map(register).collect();
    let groups: Vec<_> = registered.into_iter().map(|group| group.open().unwrap()).collect();
    let ranks = communicators.iter().map(|rank| rank.rank() as usize);
    let members = groups.into_iter().zip(streams).zip(ranks);
    let member = |((group, stream), rank)| {
        let handle = Group::handle(&group).unwrap();
        Member { group, handle, stream, rank }
    };
    members.map(member).collect()
}

/// An index of this type.
pub trait Narrow: Index + ValidAsZeroBits + Copy {
    fn of(index: i64) -> Self;
}

impl Narrow for i32 {
    fn of(index: i64) -> Self {
        index as Self
    }
}

impl Narrow for i64 {
    fn of(index: i64) -> Self {
        index
    }
}

/// Device buffers of one step of a rank.
pub struct Buffers<T, I> {
    x: cudarc::driver::CudaSlice<T>,
    indices: cudarc::driver::CudaSlice<I>,
    weights: cudarc::driver::CudaSlice<f32>,
    rows: cudarc::driver::CudaSlice<T>,
    counts: cudarc::driver::CudaSlice<u32>,
    row_indices: cudarc::driver::CudaSlice<i32>,
    row_weights: cudarc::driver::CudaSlice<f32>,
    sources: cudarc::driver::CudaSlice<u32>,
    out: cudarc::driver::CudaSlice<T>,
    sums: cudarc::driver::CudaSlice<f32>,
    missing: cudarc::driver::CudaSlice<u32>,
}

/// Fills what nobody should write.
const POISON: f32 = -77.0;

impl<T: Value, I: Narrow> Buffers<T, I> {
    pub fn new(member: &Member<'_>, step: &Step, ranks: usize) -> Self {
        let (stream, config, rank) = (&member.stream, *member.group.config(), member.rank);
        // Never empty, and one more than is needed: nobody writes that.
        let upload = |values: Vec<T>| stream.clone_htod(&values).unwrap();
        let padded = |values: &[f32]| {
            values.iter().chain([&POISON]).map(|value| T::of(*value)).collect::<Vec<T>>()
        };
        let tokens = step.indices[rank].len() / config.top_k as usize;
        let local = config.experts as usize / member.group.placement().owners().len();
        let rows = match config.mode {
            Mode::LowLatency => ranks * config.tokens_max as usize * local,
            Mode::Throughput => ranks * config.tokens_max as usize,
        };
        let (hidden, top_k) = (config.hidden as usize, config.top_k as usize);
        let indices: Vec<I> = step.indices[rank].iter().chain([&0]).map(|i| I::of(*i)).collect();
        let weights: Vec<f32> = step.weights[rank].iter().chain([&POISON]).copied().collect();
        let counts = local + usize::from(config.mode == Mode::Throughput);
        let buffers = Self {
            x: upload(padded(&step.x[rank])),
            indices: stream.clone_htod(&indices).unwrap(),
            weights: stream.clone_htod(&weights).unwrap(),
            rows: upload(vec![T::of(POISON); rows * hidden]),
            counts: stream.clone_htod(&vec![u32::MAX; counts + 1]).unwrap(),
            row_indices: stream.clone_htod(&vec![-77; rows * top_k]).unwrap(),
            row_weights: stream.clone_htod(&vec![POISON; rows * top_k]).unwrap(),
            sources: stream.clone_htod(&vec![u32::MAX; rows * 4]).unwrap(),
            out: upload(vec![T::of(POISON); tokens * hidden + 1]),
            sums: stream.clone_htod(&vec![POISON; tokens * top_k + 1]).unwrap(),
            missing: stream.clone_htod(&vec![u32::MAX; tokens + 1]).unwrap(),
        };
        stream.synchronize().unwrap();
        buffers
    }
}

impl Member<'_> {
    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn send<T: Value, I: Narrow>(
        &mut self,
        buffers: &Buffers<T, I>,
        step: &Step,
    ) -> ringdove::Result<()> {
        let tokens = Tokens {
            x: &buffers.x,
            scales: None,
            indices: &buffers.indices,
            weights: Some(&buffers.weights),
            count: step.indices[self.rank].len() as u32 / self.group.config().top_k,
        };
        self.group.dispatch_send(&mut self.handle, &tokens, &self.stream)
    }

    pub fn send_again<T: Value, I: Narrow>(&mut self, buffers: &Buffers<T, I>) {
        self.group.dispatch_again_send(&mut self.handle, &buffers.x, None, &self.stream).unwrap();
    }

    pub fn receive<T: Value, I: Narrow>(&mut self, buffers: &mut Buffers<T, I>) {
        let is_throughput = self.group.config().mode == Mode::Throughput;
        let Buffers { rows, counts, row_indices, row_weights, sources, .. } = buffers;
        let received = Received {
            x: rows,
            scales: None,
            counts,
            indices: is_throughput.then_some(IndexBufferMut::I32(row_indices)),
            weights: is_throughput.then_some(row_weights as _),
            sources: Some(sources),
        };
        self.group.dispatch_receive(&mut self.handle, received, &self.stream).unwrap();
    }

    /// Compares what was received; replaces each row by its result.
    pub fn compare_rows<T: Value, I: Narrow>(&self, buffers: &mut Buffers<T, I>, step: &Step) {
        let config = self.group.config();
        let routing = self.routing(step, self.group.placement());
        let (hidden, top_k) = (config.hidden as usize, config.top_k as usize);
        let rows = routing.rows(self.rank);
        let seen = self.stream.clone_dtoh(&buffers.rows).unwrap();
        let mut results = vec![T::of(POISON); seen.len()];
        let mut expected = results.clone();
        let mut sources = vec![u32::MAX; seen.len() / hidden * 4];
        let mut local = vec![(-77, POISON); seen.len() / hidden * top_k];
        for row in &rows {
            let by = worker(config, &routing, self.rank, row);
            let token = step.token(config, row.source, row.token);
            for (at, value) in (row.place * hidden..).zip(token) {
                (expected[at], results[at]) = (T::of(*value), result(*value, by));
            }
            let weight = step.weights[row.source][row.token * top_k + row.choice];
            let source = [row.token as u32, row.choice as u32, weight.to_bits(), 0];
            sources[row.place * 4..][..4].copy_from_slice(&source);
            let choices = routing.local_choices(self.rank, row);
            local[row.place * top_k..][..top_k].copy_from_slice(&choices);
        }
        same(&seen, &expected, |value| value.bits(), "rows", self.rank);
        let mut counts = routing.counts(self.rank);
        counts.push(u32::MAX);
        let word = |value: &u32| *value;
        same(&self.download(&buffers.counts), &counts, word, "counts", self.rank);
        same(&self.download(&buffers.sources), &sources, word, "sources", self.rank);
        if config.mode == Mode::Throughput {
            let (indices, weights): (Vec<i32>, Vec<f32>) = local.into_iter().unzip();
            let indices_seen = self.download(&buffers.row_indices);
            same(&indices_seen, &indices, |index| *index as u32, "row indices", self.rank);
            let weights_seen = self.download(&buffers.row_weights);
            same(&weights_seen, &weights, |weight| weight.to_bits(), "row weights", self.rank);
        }
        self.stream.memcpy_htod(&results, &mut buffers.rows).unwrap();
        self.stream.synchronize().unwrap();
    }

    fn download<V: DeviceRepr + Clone>(&self, slice: &cudarc::driver::CudaSlice<V>) -> Vec<V> {
        self.stream.clone_dtoh(slice).unwrap()
    }

    pub fn give_back<T: Value, I: Narrow>(&self, buffers: &Buffers<T, I>) {
        let is_throughput = self.group.config().mode == Mode::Throughput;
        let weights = is_throughput.then_some(&buffers.row_weights as _);
        let rows = Rows { y: &buffers.rows, weights };
        self.group.combine_send(&self.handle, &rows, &self.stream).unwrap();
    }

    pub fn take_back<T: Value, I: Narrow>(&self, buffers: &mut Buffers<T, I>) {
        let is_throughput = self.group.config().mode == Mode::Throughput;
        let goes_on = self.group.config().on_loss != OnLoss::End;
        let Buffers { out, sums, missing, .. } = buffers;
        let combined = Combined {
            x: out,
            weights: is_throughput.then_some(sums as _),
            factors: None,
            missing: goes_on.then_some(missing as _),
        };
        self.group.combine_receive(&self.handle, combined, &self.stream).unwrap();
    }

    /// Compares what came back.
    pub fn compare_combined<T: Value, I: Narrow>(&self, buffers: &Buffers<T, I>, step: &Step) {
        self.compare_placed(buffers, step, self.group.placement());
    }

    /// Compares what came back, where ranks answered for the experts that `placement` says.
    pub fn compare_placed<T: Value, I: Narrow>(
        &self,
        buffers: &Buffers<T, I>,
        step: &Step,
        placement: &Placement,
    ) {
        self.compare_sums(buffers, step, placement, result::<T>);
        if self.group.config().on_loss == OnLoss::End {
            return;
        }
        let routing = self.routing(step, placement);
        let tokens = 0..routing.tokens(self.rank);
        let mut expected: Vec<_> = tokens.map(|token| routing.missing(self.rank, token)).collect();
        assert_eq!(self.group.missing(&self.handle).unwrap(), expected, "marks on the host");
        expected.push(u32::MAX);
        assert_eq!(self.download(&buffers.missing), expected, "marks on the device");
    }

    /// Compares what came back without the results that are marked as missing. Gives the marks.
    pub fn compare_marked<T: Value, I: Narrow>(
        &self,
        buffers: &Buffers<T, I>,
        step: &Step,
    ) -> Vec<u32> {
        let marks = self.group.missing(&self.handle).unwrap();
        let mut whole = step.clone();
        let choices = whole.indices[self.rank].chunks_mut(self.group.config().top_k as usize);
        for (choices, mark) in choices.zip(&marks) {
            let marked = choices.iter_mut().enumerate().filter(|(k, _)| mark >> k & 1 == 1);
            marked.for_each(|(_, index)| *index = -1);
        }
        self.compare_sums(buffers, &whole, self.group.placement(), result::<T>);
        marks
    }

    /// The routing of a step in this group.
    fn routing<'a>(&'a self, step: &'a Step, placement: &Placement) -> Routing<'a> {
        let node_ranks = self.group.node_ranks() as usize;
        Routing { node_ranks, placement: placement.clone(), ..step.routing(self.group.config()) }
    }

    /// Compares what came back, where experts return what they get.
    pub fn compare_unchanged<T: Value, I: Narrow>(&self, buffers: &Buffers<T, I>, step: &Step) {
        self.compare_sums(buffers, step, self.group.placement(), |value, _| T::of(value));
    }

    fn compare_sums<T: Value, I: Narrow>(
        &self,
        buffers: &Buffers<T, I>,
        step: &Step,
        placement: &Placement,
        result: impl Fn(f32, usize) -> T,
    ) {
        let config = self.group.config();
        let routing = self.routing(step, placement);
        let tokens = routing.tokens(self.rank);
        let mut expected = Vec::new();
        for token in 0..tokens {
            let terms = routing.terms(self.rank, token);
            for value in step.token(config, self.rank, token) {
                let of_choice = |choice: usize| {
                    let index = step.indices[self.rank][token * config.top_k as usize + choice];
                    let owner = routing.owner(index).unwrap();
                    let by = if config.mode == Mode::LowLatency { index as usize } else { owner };
                    result(*value, by).value()
                };
                let sum = combined(&terms, of_choice, |sum| T::of(sum).value());
                expected.push(T::of(sum));
            }
        }
        // Behind them nothing is written, also not for tokens that were left out.
        expected.resize(buffers.out.len(), T::of(POISON));
        let seen = self.download(&buffers.out);
        same(&seen, &expected, |value| value.bits(), "combined tokens", self.rank);
        if config.mode == Mode::Throughput {
            let is_there = |index: i64| routing.owner(index).is_some();
            let of_choice =
                |(weight, index): (&f32, &i64)| if is_there(*index) { *weight } else { 0.0 };
            let both = step.weights[self.rank].iter().zip(&step.indices[self.rank]);
            let mut sums: Vec<f32> = both.map(of_choice).collect();
            sums.resize(buffers.sums.len(), POISON);
            let seen = self.download(&buffers.sums);
            same(&seen, &sums, |weight| weight.to_bits(), "sums of weights", self.rank);
        }
    }
}

/// The expert or the rank by which a row's result differs from others.
fn worker(config: &Config, routing: &Routing<'_>, rank: usize, row: &Row) -> usize {
    let choice = row.token * config.top_k as usize + row.choice;
    match config.mode {
        Mode::LowLatency => routing.indices[row.source][choice] as usize,
        Mode::Throughput => rank,
    }
}

/// Every element, bit for bit.
fn same<V: std::fmt::Debug>(
    seen: &[V],
    expected: &[V],
    bits: impl Fn(&V) -> u32,
    what: &str,
    rank: usize,
) {
    assert_eq!(seen.len(), expected.len(), "{what} of rank {rank}");
    let pairs = seen.iter().zip(expected);
    let wrong: Vec<_> =
        pairs.enumerate().filter(|(_, (seen, expected))| bits(seen) != bits(expected)).collect();
    let (count, all) = (wrong.len(), expected.len());
    if let Some((at, (seen, expected))) = wrong.first() {
        panic!(
            "{what} of rank {rank}: {count} of {all} are wrong, the first at {at}: {seen:?} for \
             {expected:?}"
        );
    }
}

/// Dispatch, experts, combine: one step on all ranks of this process.
pub fn step<T: Value, I: Narrow>(members: &mut [Member<'_>], step: &Step, again: bool) {
    let ranks = step.indices.len();
    let mut buffers: Vec<_> =
        members.iter().map(|member| Buffers::<T, I>::new(member, step, ranks)).collect();
    for (member, buffers) in members.iter_mut().zip(&buffers) {
        if again {
            member.send_again(buffers);
        } else {
            member.send(buffers, step).unwrap();
        }
    }
    for (member, buffers) in members.iter_mut().zip(&mut buffers) {
        member.receive(buffers);
    }
    for (member, buffers) in members.iter().zip(&mut buffers) {
        member.stream.synchronize().unwrap();
        member.group.check().unwrap();
        member.compare_rows(buffers, step);
    }
    for (member, buffers) in members.iter().zip(&mut buffers) {
        member.give_back(buffers);
    }
    for (member, buffers) in members.iter().zip(&mut buffers) {
        member.take_back(buffers);
    }
    for (member, buffers) in members.iter().zip(&buffers) {
        member.stream.synchronize().unwrap();
        member.group.check().unwrap();
        member.compare_combined(buffers, step);
    }
}
