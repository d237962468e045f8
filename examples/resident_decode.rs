//! Decoding as a resident program: a small transformer, tensor-parallel over two GPUs, which takes
//! one token in each iteration. Its sequence grows: keys and values stay in a cache on the GPUs,
//! and each iteration's parameters say how long it is. One launch for all tokens; the logits come
//! back through the mailbox, and are compared with those of the host.
//!
//! Weights, caches and what products take are f16; sums are f32, and so is what goes from layer to
//! layer and over the GPUs. The host rounds at the same places.
//!
//! `cargo run --release --example resident_decode`, or on virtual hardware
//! `hwsim run --machine pcie4 -- target/release/examples/resident_decode`.

use half::f16;
use ringdove::program::{
    Element, Expression, Graph, Options, Origin, ProgramError, Resident, TileSize, Verified, View,
    verify_same,
};
use ringdove::{Communicator, ReduceOp, Settings, device_count, open_device};
use std::error::Error;

const RANKS: usize = 2;
/// Tokens, and how many there may be.
const TOKENS: usize = 20;
const TOKENS_MAX: usize = 40;
const VOCABULARY: usize = 24;
/// Values of a token; heads, of all ranks; values of a head; values between the layers of the MLP.
const MODEL: usize = 16;
const HEADS: usize = 4;
const HEAD: usize = 4;
const HIDDEN: usize = 32;
const EPSILON: f32 = 1e-5;
/// Parameters of an iteration: the token's position, and the length of the sequence with it.
const POSITION: u32 = 0;
const LENGTH: u32 = 1;

/// Heads and hidden values are divided among ranks.
const OWN: usize = HEADS * HEAD / RANKS;
const OWN_HIDDEN: usize = HIDDEN / RANKS;

/// The weights: name, rows, columns; and whether ranks divide its rows or its columns.
const WEIGHTS: [(&str, usize, usize, Division); 7] = [
    ("table", VOCABULARY, MODEL, Division::None),
    ("queries of", MODEL, HEADS * HEAD, Division::Columns),
    ("keys of", MODEL, HEADS * HEAD, Division::Columns),
    ("values of", MODEL, HEADS * HEAD, Division::Columns),
    ("out of", HEADS * HEAD, MODEL, Division::Rows),
    ("up", MODEL, HIDDEN, Division::Columns),
    ("down", HIDDEN, MODEL, Division::Rows),
];

#[derive(Clone, Copy, PartialEq)]
enum Division {
    None,
    Rows,
    Columns,
}

struct Weights(Vec<Vec<f32>>);

impl Weights {
    fn new() -> Self {
        let mut random = fastrand::Rng::with_seed(11);
        let mut matrix = |rows: usize, columns: usize| -> Vec<f32> {
            (0..rows * columns).map(|_| rounded((random.f32() - 0.5) * 1.5)).collect()
        };
        Self(WEIGHTS.iter().map(|&(_, rows, columns, _)| matrix(rows, columns)).collect())
    }

    /// A rank's part of one.
    fn part(&self, number: usize, rank: usize) -> Vec<f32> {
        let (_, rows, columns, division) = WEIGHTS[number];
        let all = &self.0[number];
        let own = |count: usize| rank * count / RANKS..(rank + 1) * count / RANKS;
        match division {
            Division::None => all.clone(),
            Division::Rows => {
                let rows = own(rows);
                all[rows.start * columns..rows.end * columns].to_vec()
            }
            Division::Columns => {
                all.chunks(columns).flat_map(|row| row[own(columns)].to_vec()).collect()
            }
        }
    }
}

fn rounded(value: f32) -> f32 {
    f16::from_f32(value).to_f32()
}

/// One token through the transformer, on one rank.
fn graph() -> Result<Graph, ProgramError> {
    let size = |count: usize| count as u32;
    let mut graph = Graph::new(TileSize { rows: 64, columns: 64 });
    let mut weights = Vec::new();
    for (name, rows, columns, division) in WEIGHTS {
        let divided =
            |count: usize, by: Division| size(if division == by { count / RANKS } else { count });
        let rows = divided(rows, Division::Rows);
        let columns = divided(columns, Division::Columns);
        weights.push(graph.tensor_of(Element::F16, name, (rows, columns), Origin::Host)?);
    }
    let [table, queries_of, keys_of, values_of, out_of, up, down] = weights[..] else {
        unreachable!("there are seven");
    };
    let tokens = graph.numbers("tokens", size(TOKENS_MAX))?;
    let row = graph.tensor("places in a row", 1, size(TOKENS_MAX), Origin::Host)?;
    let column = graph.tensor("places in a column", size(TOKENS_MAX), 1, Origin::Host)?;
    let tensor = |graph: &mut Graph, name: &str, rows: usize, columns: usize| {
        graph.tensor(name, size(rows), size(columns), Origin::Tasks)
    };
    let row_of = |graph: &mut Graph, name: &str, columns: usize| {
        graph.tensor_of(Element::F16, name, (1, size(columns)), Origin::Tasks)
    };
    let plain = Expression::new;
    let none = [None, None];

    // 1 at the token's place, 0 elsewhere.
    let here = plain().load(1).parameter(POSITION).constant(0.5).subtract().greater();
    let here = here.parameter(POSITION).constant(0.5).add().load(1).greater().multiply().store(0);
    let at_row = tensor(&mut graph, "here in a row", 1, TOKENS_MAX)?;
    graph.elementwise("place in a row", &[at_row, row], here.clone())?;
    let at_column = tensor(&mut graph, "here in a column", TOKENS_MAX, 1)?;
    graph.elementwise("place in a column", &[at_column, column], here)?;

    let embedded = tensor(&mut graph, "embedded", TOKENS_MAX, MODEL)?;
    graph.gather("embed", embedded, table, tokens)?;
    let x = tensor(&mut graph, "x", 1, MODEL)?;
    graph.matrix("token", x, [at_row, embedded], none, plain())?;

    let normal = normalised(&mut graph, "first norm", x)?;
    let project = |graph: &mut Graph, name: &str, by: View| -> Result<View, ProgramError> {
        let out = row_of(graph, name, OWN)?;
        graph.matrix(&format!("project {name}"), out, [normal, by], none, plain())?;
        Ok(out)
    };
    let query = project(&mut graph, "query", queries_of)?;
    let key = project(&mut graph, "key", keys_of)?;
    let value = project(&mut graph, "value", values_of)?;
    let mut caches = Vec::new();
    for (name, new) in [("key cache", key), ("value cache", value)] {
        let shape = (size(TOKENS_MAX), size(OWN));
        let cache = graph.tensor_of(Element::F16, name, shape, Origin::Host)?;
        let is_here = at_column.repeat_columns(size(OWN));
        let kept = plain().load(0).constant(1.0).load(2).subtract().multiply();
        let written = kept.load(1).load(2).multiply().add().store(0);
        let operands = [cache, new.repeat_rows(size(TOKENS_MAX)), is_here];
        graph.elementwise(&format!("add to {name}"), &operands, written)?;
        caches.push(cache);
    }
    let attended = row_of(&mut graph, "attended", OWN)?;
    let scale = 1.0 / (HEAD as f32).sqrt();
    for head in 0..OWN / HEAD {
        let own = size(head * HEAD)..size((head + 1) * HEAD);
        let [out, query, keys, values] =
            [attended, query, caches[0], caches[1]].map(|view| view.columns(own.clone()));
        let from = [query, keys, values];
        graph.attention(&format!("head {head}"), out, from, scale, Some(LENGTH))?;
    }
    let out = tensor(&mut graph, "out", 1, MODEL)?;
    graph.matrix("out", out, [attended, out_of], none, plain())?;
    graph.all_reduce("sum of heads", out, ReduceOp::Sum)?;
    let add = plain().load(1).load(2).add().store(0);
    let middle = tensor(&mut graph, "middle", 1, MODEL)?;
    graph.elementwise("add heads", &[middle, x, out], add.clone())?;

    let normal = normalised(&mut graph, "second norm", middle)?;
    let hidden = row_of(&mut graph, "hidden", OWN_HIDDEN)?;
    let positive = plain().constant(0.0).maximum();
    graph.matrix("up", hidden, [normal, up], none, positive)?;
    let back = tensor(&mut graph, "back", 1, MODEL)?;
    graph.matrix("down", back, [hidden, down], none, plain())?;
    graph.all_reduce("sum of hidden", back, ReduceOp::Sum)?;
    let end = tensor(&mut graph, "end", 1, MODEL)?;
    graph.elementwise("add hidden", &[end, middle, back], add)?;

    let normal = normalised(&mut graph, "last norm", end)?;
    let logits = tensor(&mut graph, "logits", 1, VOCABULARY)?;
    graph.matrix("logits", logits, [normal, table.transpose()], none, plain())?;
    graph.report("report", logits)?;
    Ok(graph)
}

fn normalised(graph: &mut Graph, name: &str, from: View) -> Result<View, ProgramError> {
    let (rows, columns) = from.shape();
    let out =
        graph.tensor_of(Element::F16, &format!("of {name}"), (rows, columns), Origin::Tasks)?;
    let kept = graph.tensor(&format!("kept of {name}"), rows, 2, Origin::Tasks)?;
    graph.norm(name, [out, kept], from, [None, None], (true, EPSILON))?;
    Ok(out)
}

fn prepare<'c>(
    communicator: &'c Communicator,
    program: &Verified,
    weights: &Weights,
    tokens: &[u32],
) -> Result<Resident<'c>, Box<dyn Error>> {
    let stream = communicator.context().new_stream()?;
    let resident = Resident::prepare(communicator, program, Options::default(), &stream)?;
    for (number, (name, ..)) in WEIGHTS.iter().enumerate() {
        resident.write(name, &weights.part(number, communicator.rank() as usize))?;
    }
    let mut padded = tokens.to_vec();
    padded.resize(TOKENS_MAX, 0);
    resident.write_numbers("tokens", &padded)?;
    let places: Vec<f32> = (0..TOKENS_MAX).map(|place| place as f32).collect();
    resident.write("places in a row", &places)?;
    resident.write("places in a column", &places)?;
    Ok(resident)
}

/// The logits of every token, by the host: sums in f64, rounded where the GPUs round to f16.
fn reference(weights: &Weights, tokens: &[u32]) -> Vec<Vec<f64>> {
    let halves = |values: Vec<f64>| -> Vec<f64> {
        values.into_iter().map(|value| f16::from_f64(value).to_f64()).collect()
    };
    let product = |from: &[f64], number: usize| -> Vec<f64> {
        let (_, _, columns, _) = WEIGHTS[number];
        let term = |column: usize| {
            let rows = from.iter().zip(weights.0[number].chunks(columns));
            rows.map(|(value, row)| value * f64::from(row[column])).sum()
        };
        (0..columns).map(term).collect()
    };
    let normal = |from: &[f64]| -> Vec<f64> {
        let square: f64 = from.iter().map(|it| it * it).sum::<f64>() / from.len() as f64;
        halves(from.iter().map(|it| it / (square + f64::from(EPSILON)).sqrt()).collect())
    };
    let sum = |a: &[f64], b: &[f64]| -> Vec<f64> { a.iter().zip(b).map(|(a, b)| a + b).collect() };
    let row = |token: u32| -> Vec<f64> {
        let table = &weights.0[0][token as usize * MODEL..(token as usize + 1) * MODEL];
        table.iter().map(|it| f64::from(*it)).collect()
    };
    let (mut keys, mut values): (Vec<Vec<f64>>, Vec<Vec<f64>>) = (Vec::new(), Vec::new());
    let mut step = |token: u32| {
        let x = row(token);
        let h = normal(&x);
        let query = halves(product(&h, 1));
        keys.push(halves(product(&h, 2)));
        values.push(halves(product(&h, 3)));
        let mut attended = vec![0.0; HEADS * HEAD];
        for head in 0..HEADS {
            let own = head * HEAD..(head + 1) * HEAD;
            let dot = |key: &Vec<f64>| -> f64 {
                query[own.clone()].iter().zip(&key[own.clone()]).map(|(a, b)| a * b).sum()
            };
            let scores: Vec<f64> =
                keys.iter().map(|key| (dot(key) / (HEAD as f64).sqrt()).exp()).collect();
            let all: f64 = scores.iter().sum();
            for place in own {
                attended[place] =
                    scores.iter().zip(&values).map(|(score, value)| score * value[place]).sum();
                attended[place] /= all;
            }
        }
        let middle = sum(&x, &product(&halves(attended), 4));
        let hidden = product(&normal(&middle), 5);
        let hidden = halves(hidden.iter().map(|value| value.max(0.0)).collect());
        let end = normal(&sum(&middle, &product(&hidden, 6)));
        let logit = |token: u32| end.iter().zip(row(token)).map(|(a, b)| a * b).sum();
        (0..VOCABULARY as u32).map(logit).collect()
    };
    tokens.iter().map(|token| step(*token)).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let devices = device_count()?;
    let contexts =
        (0..RANKS).map(|rank| open_device(rank % devices)).collect::<ringdove::Result<Vec<_>>>()?;
    let communicators = Communicator::init_all(&contexts, &Settings::from_env()?)?;
    let weights = Weights::new();
    let mut random = fastrand::Rng::with_seed(5);
    let tokens: Vec<u32> = (0..TOKENS).map(|_| random.u32(0..VOCABULARY as u32)).collect();
    let program = verify_same(graph()?.plan(2, 64)?)?;
    let mut residents = communicators
        .iter()
        .map(|communicator| prepare(communicator, &program, &weights, &tokens))
        .collect::<Result<Vec<_>, _>>()?;
    residents.iter_mut().try_for_each(Resident::start)?;
    for place in 0..TOKENS {
        for resident in &mut residents {
            resident.set_parameter(POSITION, place as f32)?;
            resident.set_parameter(LENGTH, (place + 1) as f32)?;
            resident.run(1)?;
        }
    }
    residents.iter_mut().try_for_each(Resident::wait)?;
    residents.iter_mut().try_for_each(Resident::stop)?;

    let expected = reference(&weights, &tokens);
    let all: Vec<_> = residents.iter_mut().map(Resident::take).collect();
    if all.iter().any(|rank| *rank != all[0]) {
        return Err("ranks have different logits".into());
    }
    let apart = |(seen, expected): (&Vec<f32>, &Vec<f64>)| {
        let each = seen.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).abs());
        each.fold(0.0, f64::max)
    };
    if all[0].len() != TOKENS {
        return Err(format!("{} tokens were decoded", all[0].len()).into());
    }
    let apart = all[0].iter().zip(&expected).map(apart).fold(0.0, f64::max);
    println!("{TOKENS} tokens in one launch on each of {RANKS} GPUs, in f16");
    println!("logits are those of the host within {apart:.1e}");
    // A sum in f32 may be on the other side of a tie of f16 than the host's. Some of the values,
    // all below 8, are then apart by the last of 11 bits, 0.004, and less in what is made of them.
    if apart.is_nan() || apart > 1e-2 {
        return Err(format!("logits are {apart} apart").into());
    }
    Ok(())
}
