//! Which kernels an operator is, with their arguments.

use crate::executor::counts;
use cudarc::driver::DeviceRepr;
use ringdove::graph::{Attributes, Graph, Kind, Operator, Sliding};

/// Dimensions that kernels count with, as in the source.
const DIMENSIONS: usize = 8;

/// An argument by value: `Strides`, or, in its first words, `Sliding`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(transparent)]
pub struct Block([u32; 3 * DIMENSIONS]);

// SAFETY: it is plain numbers, and no shorter than what kernels declare.
unsafe impl DeviceRepr for Block {}

/// One launch: addresses come first, then a block, then numbers.
#[derive(Debug)]
pub struct Launch {
    pub kernel: &'static str,
    pub addresses: Vec<u64>,
    pub block: Option<Block>,
    pub numbers: Vec<u32>,
    pub threads: u32,
}

type OverNothing = fn(&'static str) -> Launch;

fn nothing<const ADDRESSES: usize, const BLOCKS: usize, const NUMBERS: usize>(
    kernel: &'static str,
) -> Launch {
    let block = (BLOCKS > 0).then(Block::default);
    Launch { kernel, addresses: vec![0; ADDRESSES], block, numbers: vec![0; NUMBERS], threads: 0 }
}

/// All kernels, with a launch of each that touches no memory.
pub const KERNELS: [(&str, OverNothing); 12] = [
    ("graph_dense", nothing::<4, 0, 4>),
    ("graph_pairs", nothing::<3, 0, 2>),
    ("graph_spread", nothing::<3, 1, 2>),
    ("graph_each", nothing::<2, 0, 2>),
    ("graph_gather", nothing::<3, 0, 2>),
    ("graph_transpose", nothing::<2, 1, 1>),
    ("graph_concatenate", nothing::<2, 0, 4>),
    ("graph_convolve", nothing::<4, 1, 1>),
    ("graph_pool", nothing::<2, 1, 2>),
    ("graph_softmax", nothing::<2, 0, 3>),
    ("graph_normalize_batch", nothing::<6, 0, 4>),
    ("graph_normalize_layer", nothing::<4, 0, 3>),
];

fn product(extents: &[usize]) -> u32 {
    u32::try_from(extents.iter().product::<usize>()).expect("fewer than 2^32 elements")
}

/// How far apart the elements of each dimension are, where they are behind one another.
fn strides(extents: &[usize]) -> Vec<usize> {
    (0..extents.len()).map(|at| extents[at + 1..].iter().product()).collect()
}

impl Block {
    fn strides(extents: &[usize], left: &[usize], right: &[usize]) -> Self {
        let mut block = Self::default();
        let free = DIMENSIONS - extents.len();
        block.0[..DIMENSIONS].fill(1);
        for (place, list) in [extents, left, right].into_iter().enumerate() {
            for (at, &value) in list.iter().enumerate() {
                block.0[place * DIMENSIONS + free + at] = value as u32;
            }
        }
        block
    }

    fn sliding(sliding: &Sliding, input: &[usize], output: &[usize]) -> Self {
        let pair = |list: &[u64]| [list[0] as u32, list[1] as u32];
        let mut numbers = [input, output].map(|shape| [shape[1], shape[2], shape[3]]).concat();
        let lists = [
            &sliding.kernel,
            &sliding.strides,
            &sliding.dilations,
            &sliding.before,
            &sliding.after,
        ];
        for list in lists {
            numbers.extend(pair(list).map(|number| number as usize));
        }
        numbers.extend([sliding.groups as usize, usize::from(sliding.counts_edges)]);
        let mut block = Self::default();
        block.0.iter_mut().zip(numbers).for_each(|(word, number)| *word = number as u32);
        block
    }
}

/// Strides of an input that is taken again along dimensions which it has not.
fn spread(input: &[usize], output: &[usize]) -> Vec<usize> {
    let free = output.len() - input.len();
    let own = strides(input);
    let stride = |at: usize| match at.checked_sub(free) {
        Some(at) if input[at] > 1 => own[at],
        _ => 0,
    };
    (0..output.len()).map(stride).collect()
}

/// The launches of an operator: one, but for concatenations.
///
/// # Panics
/// For operators without a kernel, attributes that are not known, images of other than two
/// dimensions, and tensors of unknown shape or of 2^32 elements.
pub fn of(graph: &Graph, operator: &Operator, inputs: &[u64], output: u64) -> Vec<Launch> {
    let shapes: Vec<_> = operator.inputs.iter().map(|&input| counts(graph, input)).collect();
    let shape = counts(graph, operator.output);
    let (first, count) = (&shapes[0][..], product(&shape));
    let name = &operator.name;
    let with_output = |inputs: &[u64]| [inputs, &[output]].concat();
    let launch = |kernel, addresses, block, numbers| Launch {
        kernel,
        addresses,
        block,
        numbers,
        threads: count,
    };
    // What an operator without a bias has in its place.
    let padded = |count: usize| {
        let missing = vec![0; count - inputs.len()];
        with_output(&[inputs, &missing].concat())
    };
    let pairs = |kind: u32| {
        let (left, right) = (&shapes[0], &shapes[1]);
        if left == right {
            return launch("graph_pairs", with_output(inputs), None, vec![count, kind]);
        }
        let block = Block::strides(&shape, &spread(left, &shape), &spread(right, &shape));
        launch("graph_spread", with_output(inputs), Some(block), vec![count, kind])
    };
    let each = |kind| launch("graph_each", with_output(inputs), None, vec![count, kind]);
    let images = |sliding: &Sliding| {
        assert_eq!((first.len(), sliding.kernel.len()), (4, 2), "'{name}': images of 2 dimensions");
        Some(Block::sliding(sliding, first, &shape))
    };
    let one = match (operator.kind, &operator.attributes) {
        (Kind::Dense, _) => {
            let (columns, inner) = (shape[shape.len() - 1], first[first.len() - 1]);
            let rows = product(&shape[..shape.len() - 1]);
            let matrices = product(&shapes[1][..shapes[1].len() - 2]);
            let numbers = vec![rows, inner as u32, columns as u32, rows / matrices];
            launch("graph_dense", padded(3), None, numbers)
        }
        (Kind::Add, _) => pairs(0),
        (Kind::Multiply, _) => pairs(1),
        (Kind::Subtract, _) => pairs(2),
        (Kind::Divide, _) => pairs(3),
        (Kind::Relu, _) => each(0),
        (Kind::Tanh, _) => each(1),
        (Kind::Sigmoid, _) => each(2),
        (Kind::Gather, _) => {
            let numbers = vec![count, product(&first[1..])];
            launch("graph_gather", with_output(inputs), None, numbers)
        }
        (Kind::Transpose, Attributes::Order(order)) => {
            let own = strides(first);
            let turned: Vec<_> = order.iter().map(|&axis| own[axis]).collect();
            let block = Some(Block::strides(&shape, &turned, &[]));
            launch("graph_transpose", with_output(inputs), block, vec![count])
        }
        (Kind::Concatenate, &Attributes::Axis(axis)) => {
            let (whole, mut start) = (product(&shape[axis..]), 0);
            let part = |(&input, shape): (&u64, &Vec<usize>)| {
                let (threads, own) = (product(shape), product(&shape[axis..]));
                let numbers = vec![threads, own, whole, start];
                start += own;
                let addresses = vec![input, output];
                Launch { kernel: "graph_concatenate", addresses, block: None, numbers, threads }
            };
            return inputs.iter().zip(&shapes).map(part).collect();
        }
        (Kind::Convolution, Attributes::Sliding(sliding)) => {
            launch("graph_convolve", padded(3), images(sliding), vec![count])
        }
        (Kind::MaxPool, Attributes::Sliding(sliding)) => {
            launch("graph_pool", with_output(inputs), images(sliding), vec![count, 0])
        }
        (Kind::AveragePool, Attributes::Sliding(sliding)) => {
            launch("graph_pool", with_output(inputs), images(sliding), vec![count, 1])
        }
        (Kind::Softmax, &Attributes::Axis(axis)) => {
            let (lines, apart) = (count / shape[axis] as u32, product(&shape[axis + 1..]));
            let numbers = vec![lines, shape[axis] as u32, apart];
            let launch = launch("graph_softmax", with_output(inputs), None, numbers);
            Launch { threads: lines, ..launch }
        }
        (Kind::BatchNormalization, &Attributes::Normalized { axis, epsilon }) => {
            let inner = product(&shape[axis + 1..]);
            let numbers = vec![count, shape[axis] as u32, inner, epsilon.to_bits()];
            launch("graph_normalize_batch", with_output(inputs), None, numbers)
        }
        (Kind::LayerNormalization, &Attributes::Normalized { axis, epsilon }) => {
            let columns = product(&shape[axis..]);
            let numbers = vec![count / columns, columns, epsilon.to_bits()];
            let launch = launch("graph_normalize_layer", padded(3), None, numbers);
            Launch { threads: count / columns, ..launch }
        }
        (kind, attributes) => panic!("'{name}': no kernel for {} of {attributes:?}", kind.name()),
    };
    vec![one]
}
