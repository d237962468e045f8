//! Rows of 8-bit floats with scales, quantised by the caller or by the kernel.

use super::layer::{Load, Member, Step, Value, members};
use super::{MODES, config, seed, with_lanes};
use crate::hardware::World;
use crate::hardware::engines::on_engines;
use cudarc::driver::CudaSlice;
use float8::F8E4M3;
use half::bf16;
use ringdove::DataType;
use ringdove::experts::reference::{combined, quantised};
use ringdove::experts::{
    Combined, Config, Received, Rows, SCALE_ELEMENTS, ScaleBuffer, ScaleBufferMut, Scales, Tokens,
};

const RANKS: usize = 3;

/// Scales of either form on the device.
enum ScaleSlice {
    F32(CudaSlice<f32>),
    Ue8m0(CudaSlice<u8>),
}

impl ScaleSlice {
    fn new(member: &Member<'_>, scales: &[f32], form: Scales) -> Self {
        let padded = scales.iter().chain([&1.0]).copied();
        match form {
            Scales::F32 => {
                let all: Vec<f32> = padded.collect();
                Self::F32(member.stream.clone_htod(&all).unwrap())
            }
            Scales::Ue8m0 => {
                let all: Vec<u8> = padded.map(|scale| (scale.to_bits() >> 23) as u8).collect();
                Self::Ue8m0(member.stream.clone_htod(&all).unwrap())
            }
        }
    }

    fn buffer(&self) -> ScaleBuffer<'_> {
        match self {
            Self::F32(slice) => ScaleBuffer::F32(slice),
            Self::Ue8m0(slice) => ScaleBuffer::Ue8m0(slice),
        }
    }

    fn buffer_mut(&mut self) -> ScaleBufferMut<'_> {
        match self {
            Self::F32(slice) => ScaleBufferMut::F32(slice),
            Self::Ue8m0(slice) => ScaleBufferMut::Ue8m0(slice),
        }
    }

    /// As f32.
    fn download(&self, member: &Member<'_>) -> Vec<f32> {
        match self {
            Self::F32(slice) => member.stream.clone_dtoh(slice).unwrap(),
            Self::Ue8m0(slice) => {
                let bytes = member.stream.clone_dtoh(slice).unwrap();
                bytes.into_iter().map(|byte| f32::from_bits(u32::from(byte) << 23)).collect()
            }
        }
    }
}

/// All tokens of a rank, quantised.
fn quantised_tokens(step: &Step, config: &Config, rank: usize) -> (Vec<F8E4M3>, Vec<f32>) {
    let tokens = step.routing(config).tokens(rank);
    let (mut values, mut scales) = (Vec::new(), Vec::new());
    for token in 0..tokens {
        let of_token = quantised(step.token(config, rank, token), config.fp8.unwrap());
        values.extend(of_token.0);
        scales.extend(of_token.1);
    }
    (values, scales)
}

fn send(member: &mut Member<'_>, step: &Step, quantises: bool) {
    let config = *member.group.config();
    let (rank, stream) = (member.rank(), member.stream.clone());
    let count = step.routing(&config).tokens(rank) as u32;
    let (values, scales) = quantised_tokens(step, &config, rank);
    let indices: Vec<i64> = step.indices[rank].iter().chain([&0]).copied().collect();
    let weights: Vec<f32> = step.weights[rank].iter().chain([&0.0]).copied().collect();
    let indices = stream.clone_htod(&indices).unwrap();
    let weights = stream.clone_htod(&weights).unwrap();
    if quantises {
        let tokens = (0..count as usize).flat_map(|token| step.token(&config, rank, token));
        let x: Vec<bf16> = tokens.chain([&0.0]).map(|value| Value::of(*value)).collect();
        let x = stream.clone_htod(&x).unwrap();
        let tokens =
            Tokens { x: &x, scales: None, indices: &indices, weights: Some(&weights), count };
        member.group.dispatch_send(&mut member.handle, &tokens, &stream).unwrap();
    } else {
        let values: Vec<_> = values.into_iter().chain([F8E4M3::from_f32(0.0)]).collect();
        let x = stream.clone_htod(&values).unwrap();
        let scales = ScaleSlice::new(member, &scales, config.fp8.unwrap());
        let scales = Some(scales.buffer());
        let tokens = Tokens { x: &x, scales, indices: &indices, weights: Some(&weights), count };
        member.group.dispatch_send(&mut member.handle, &tokens, &stream).unwrap();
    }
}

/// The result of an expert for the row at this place of a rank.
fn result(rank: usize, place: usize, at: usize) -> f32 {
    ((rank * 5 + place * 3 + at) % 61) as f32 - 30.0
}

/// Receives, compares, and sends results back.
fn receive(member: &mut Member<'_>, step: &Step) {
    let config = *member.group.config();
    let (rank, stream) = (member.rank(), member.stream.clone());
    let (rows, hidden) = (config.output_rows(RANKS as u32) as usize, config.hidden as usize);
    let blocks = hidden.div_ceil(SCALE_ELEMENTS as usize);
    let mut x = stream.clone_htod(&vec![F8E4M3::from_f32(7.0); rows * hidden]).unwrap();
    let mut counts = stream.alloc_zeros::<u32>(64).unwrap();
    let form = config.fp8.unwrap();
    let mut scales = ScaleSlice::new(member, &vec![2.0; rows * blocks], form);
    let received = Received {
        x: &mut x,
        scales: Some(scales.buffer_mut()),
        counts: &mut counts,
        indices: None,
        weights: None,
        sources: None,
    };
    member.group.dispatch_receive(&mut member.handle, received, &stream).unwrap();
    stream.synchronize().unwrap();
    member.group.check().unwrap();
    let mut expected = vec![F8E4M3::from_f32(7.0); rows * hidden];
    let mut expected_scales = vec![2.0; rows * blocks + 1];
    expected_scales[rows * blocks] = 1.0;
    for row in step.routing(&config).rows(rank) {
        let token = step.token(&config, row.source, row.token);
        let (values, scales) = quantised(token, form);
        expected[row.place * hidden..][..hidden].copy_from_slice(&values);
        expected_scales[row.place * blocks..][..blocks].copy_from_slice(&scales);
    }
    let bits = |all: Vec<F8E4M3>| all.iter().map(F8E4M3::to_bits).collect::<Vec<u8>>();
    let seen = bits(stream.clone_dtoh(&x).unwrap());
    assert!(seen == bits(expected), "rows of rank {rank}, {config:?}");
    assert_eq!(scales.download(member), expected_scales, "scales of rank {rank}, {config:?}");

    let places = (0..rows).flat_map(|place| (0..hidden).map(move |at| (place, at)));
    let y: Vec<bf16> = places.map(|(place, at)| Value::of(result(rank, place, at))).collect();
    let y = stream.clone_htod(&y).unwrap();
    member.group.combine_send(&member.handle, &Rows { y: &y, weights: None }, &stream).unwrap();
}

fn finish(member: &Member<'_>, step: &Step) {
    let config = *member.group.config();
    let (rank, stream, hidden) = (member.rank(), &member.stream, config.hidden as usize);
    let routing = step.routing(&config);
    let tokens = routing.tokens(rank);
    let mut out = stream.alloc_zeros::<bf16>(tokens * hidden + 1).unwrap();
    let combine = Combined { x: &mut out, weights: None, factors: None, missing: None };
    member.group.combine_receive(&member.handle, combine, stream).unwrap();
    let seen = stream.clone_dtoh(&out).unwrap();
    let rows: Vec<_> = (0..RANKS).map(|rank| routing.rows(rank)).collect();
    for token in 0..tokens {
        let terms = routing.terms(rank, token);
        let place = |choice: usize| {
            let index = step.indices[rank][token * config.top_k as usize + choice];
            let owner = routing.owner(index).unwrap();
            let is_it = |row: &&ringdove::experts::reference::Row| {
                (row.source, row.token, row.choice) == (rank, token, choice)
            };
            (owner, rows[owner].iter().find(is_it).unwrap().place)
        };
        let places: Vec<_> = terms.iter().flatten().map(|(choice, _)| place(*choice)).collect();
        for at in 0..hidden {
            let mut next = places.iter();
            let of_next = |_| {
                let (owner, place) = next.next().unwrap();
                result(*owner, *place, at)
            };
            let sum = combined(&terms, of_next, |sum| bf16::from_f32(sum).to_f32());
            let expected: bf16 = Value::of(sum);
            assert_eq!(seen[token * hidden + at], expected, "token {token} of rank {rank}, {at}");
        }
    }
}

/// If this fails, a block has another scale than the reference, scales are another row's, or a row
/// of bytes is taken for one of 16-bit floats.
#[test]
fn tokens_of_8_bits_arrive_with_their_scales() {
    on_engines("pcie4", || {
        let world = World::with(RANKS, &with_lanes());
        let mut random = fastrand::Rng::with_seed(seed());
        for mode in MODES {
            for form in [Scales::F32, Scales::Ue8m0] {
                let config = Config {
                    // Any multiple of 16: most leave a block that is not whole.
                    hidden: 16 * random.u32(1..=72),
                    tokens_max: 20,
                    fp8: Some(form),
                    ..config(mode, RANKS as u32, DataType::BF16)
                };
                let mut members = members(&world.communicators, &config);
                for quantises in [true, false, true] {
                    let step = Step::random::<bf16>(&config, RANKS, Load::RandomNone, &mut random);
                    members.iter_mut().for_each(|member| send(member, &step, quantises));
                    members.iter_mut().for_each(|member| receive(member, &step));
                    members.iter().for_each(|member| finish(member, &step));
                }
            }
        }
        world.finish();
    });
}
