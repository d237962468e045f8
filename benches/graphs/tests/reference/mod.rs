//! Operators on the CPU, written from their definitions; sums are added as kernels add them.

use ringdove::graph::{Attributes, Kind, Sliding};
use std::ops::Range;

/// A tensor with its values.
#[derive(Clone, Debug)]
pub struct Values {
    pub shape: Vec<usize>,
    pub data: Vec<f32>,
}

impl Values {
    fn at(&self, place: &[usize]) -> f32 {
        let flat = place.iter().zip(&self.shape).fold(0, |flat, (at, extent)| flat * extent + at);
        self.data[flat]
    }

    /// Where dimensions are missing, or 1, the same is taken again.
    fn spread(&self, place: &[usize]) -> f32 {
        let own = &place[place.len() - self.shape.len()..];
        let own: Vec<_> = own.iter().zip(&self.shape).map(|(at, extent)| at % extent).collect();
        self.at(&own)
    }
}

/// The places of a shape, the last dimension first.
fn places(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for &extent in shape {
        let longer = |place: Vec<usize>| (0..extent).map(move |at| [&place[..], &[at]].concat());
        all = all.into_iter().flat_map(longer).collect();
    }
    all
}

/// What lies under the window at `row` and `column`: the image's places with the window's own, and
/// how many elements of the edge.
fn under(
    sliding: &Sliding,
    size: (usize, usize),
    (row, column): (usize, usize),
) -> (Vec<[usize; 4]>, usize) {
    let place = |at: usize, window: usize, own: usize| {
        let [stride, dilation, before] =
            [&sliding.strides, &sliding.dilations, &sliding.before].map(|list| list[at] as i64);
        window as i64 * stride + own as i64 * dilation - before
    };
    let with_edges = |at: usize, size: usize| -> Range<i64> {
        -(sliding.before[at] as i64)..size as i64 + sliding.after[at] as i64
    };
    let (mut inside, mut edges) = (Vec::new(), 0);
    for i in 0..sliding.kernel[0] as usize {
        for j in 0..sliding.kernel[1] as usize {
            let (y, x) = (place(0, row, i), place(1, column, j));
            if (0..size.0 as i64).contains(&y) && (0..size.1 as i64).contains(&x) {
                inside.push([y as usize, x as usize, i, j]);
            } else if with_edges(0, size.0).contains(&y) && with_edges(1, size.1).contains(&x) {
                edges += 1;
            }
        }
    }
    (inside, edges)
}

/// The values of an operator's output.
pub fn compute(
    kind: Kind,
    attributes: &Attributes,
    inputs: &[Values],
    shape: &[usize],
) -> Vec<f32> {
    let first = &inputs[0];
    let each = |value: &dyn Fn(&[usize]) -> f32| -> Vec<f32> {
        places(shape).iter().map(|place| value(place)).collect()
    };
    let pairs = |combine: fn(f32, f32) -> f32| {
        each(&|place| combine(first.spread(place), inputs[1].spread(place)))
    };
    match (kind, attributes) {
        (Kind::Add, _) => pairs(|one, other| one + other),
        (Kind::Subtract, _) => pairs(|one, other| one - other),
        (Kind::Multiply, _) => pairs(|one, other| one * other),
        (Kind::Divide, _) => pairs(|one, other| one / other),
        (Kind::Relu, _) => each(&|place| first.at(place).max(0.0)),
        (Kind::Reshape, _) => first.data.clone(),
        (Kind::Dense, _) => each(&|place| {
            let (rows, column) = place.split_at(place.len() - 1);
            let mut sum = inputs.get(2).map_or(0.0, |bias| bias.at(column));
            for inner in 0..first.shape[first.shape.len() - 1] {
                let matrix = &rows[..inputs[1].shape.len() - 2];
                let weight = inputs[1].at(&[matrix, &[inner], column].concat());
                sum += first.at(&[rows, &[inner]].concat()) * weight;
            }
            sum
        }),
        (Kind::Transpose, Attributes::Order(order)) => each(&|place| {
            let mut from = vec![0; order.len()];
            order.iter().zip(place).for_each(|(&axis, &at)| from[axis] = at);
            first.at(&from)
        }),
        (Kind::Concatenate, &Attributes::Axis(axis)) => each(&|place| {
            let (mut place, mut inputs) = (place.to_vec(), inputs.iter());
            let mut input = inputs.next().unwrap();
            while place[axis] >= input.shape[axis] {
                place[axis] -= input.shape[axis];
                input = inputs.next().unwrap();
            }
            input.at(&place)
        }),
        (Kind::Convolution, Attributes::Sliding(sliding)) => each(&|place| {
            let [image, kernel, row, column] = place else { panic!("four dimensions") };
            let size = (first.shape[2], first.shape[3]);
            let (inside, _) = under(sliding, size, (*row, *column));
            let (depth, groups) = (inputs[1].shape[1], sliding.groups as usize);
            let group = kernel / (shape[1] / groups);
            let mut sum = inputs.get(2).map_or(0.0, |bias| bias.at(&[*kernel]));
            for channel in 0..depth {
                for [y, x, i, j] in &inside {
                    let value = first.at(&[*image, group * depth + channel, *y, *x]);
                    sum += value * inputs[1].at(&[*kernel, channel, *i, *j]);
                }
            }
            sum
        }),
        (Kind::MaxPool | Kind::AveragePool, Attributes::Sliding(sliding)) => each(&|place| {
            let [image, channel, row, column] = place else { panic!("four dimensions") };
            let size = (first.shape[2], first.shape[3]);
            let (inside, edges) = under(sliding, size, (*row, *column));
            let seen = inside.iter().map(|[y, x, ..]| first.at(&[*image, *channel, *y, *x]));
            if kind == Kind::MaxPool {
                return seen.fold(f32::NEG_INFINITY, f32::max);
            }
            let count = inside.len() + if sliding.counts_edges { edges } else { 0 };
            seen.fold(0.0, |sum, value| sum + value) / count as f32
        }),
        (Kind::BatchNormalization, &Attributes::Normalized { axis, epsilon }) => each(&|place| {
            let [scale, bias, mean, variance] =
                [1, 2, 3, 4].map(|at| inputs[at].at(&[place[axis]]));
            (first.at(place) - mean) / (variance + epsilon).sqrt() * scale + bias
        }),
        (Kind::LayerNormalization, &Attributes::Normalized { axis, epsilon }) => {
            let columns: usize = shape[axis..].iter().product();
            let row = |row: &[f32]| {
                let sum = row.iter().fold(0.0, |sum, value| sum + value);
                let mean = sum / columns as f32;
                let square = |sum: f32, value: &f32| sum + (value - mean) * (value - mean);
                let variance = row.iter().fold(0.0, square) / columns as f32;
                let own = |(at, value): (usize, &f32)| {
                    let scaled = (value - mean) / (variance + epsilon).sqrt() * inputs[1].data[at];
                    inputs.get(2).map_or(scaled, |bias| scaled + bias.data[at])
                };
                row.iter().enumerate().map(own).collect::<Vec<_>>()
            };
            first.data.chunks(columns).flat_map(row).collect()
        }
        (Kind::Softmax, &Attributes::Axis(axis)) => each(&|place| {
            let line = (0..shape[axis]).map(|at| {
                let mut place = place.to_vec();
                place[axis] = at;
                f64::from(first.at(&place))
            });
            let line: Vec<_> = line.collect();
            let largest = line.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let all: f64 = line.iter().map(|value| (value - largest).exp()).sum();
            ((line[place[axis]] - largest).exp() / all) as f32
        }),
        (kind, attributes) => panic!("{} of {attributes:?}", kind.name()),
    }
}
