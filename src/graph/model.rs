//! A data-flow graph: tensors, and operators placed on ranks.

use ringdove_kernels::element::DataType;
use std::fmt;

/// A tensor, by its place in [`Graph::tensors`].
pub type TensorNumber = usize;
/// An operator, by its place in [`Graph::operators`].
pub type OperatorNumber = usize;

/// The most of each: nobody draws or plans more by hand, and all sums fit.
pub const TENSORS_MAX: usize = 1 << 16;
/// The most operators.
pub const OPERATORS_MAX: usize = 1 << 16;
/// The most ranks.
pub const RANKS_MAX: u32 = 1 << 16;
/// The most dimensions of a tensor.
pub const DIMENSIONS_MAX: usize = 8;

/// One dimension of a shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extent {
    /// So many elements.
    Fixed(u64),
    /// Known when the graph runs; the name is the user's.
    Unknown(String),
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(count) => write!(f, "{count}"),
            Self::Unknown(name) => write!(f, "{name}"),
        }
    }
}

/// Whose memory a tensor is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    /// It goes where the plan says.
    #[default]
    Planned,
    /// Somebody else allocates it, so it cannot be in registered memory.
    Foreign,
}

/// A tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Unique in its graph.
    pub name: String,
    /// Of its elements.
    pub data_type: DataType,
    /// None where nothing is known, not even how many dimensions there are.
    pub shape: Option<Vec<Extent>>,
    /// The operator that writes it; none for inputs and parameters.
    pub producer: Option<OperatorNumber>,
    /// Where it is produced, or, for inputs and parameters, kept.
    pub rank: u32,
    /// Whose memory it is in.
    pub memory: Memory,
    /// The most bytes that it ever has, where its shape is not known.
    pub bytes_max: Option<u64>,
    /// The line that declares it.
    pub line: usize,
}

impl Tensor {
    /// Bytes, where all dimensions are known.
    pub fn bytes(&self) -> Option<u64> {
        bytes(self.shape.as_deref()?, self.data_type)
    }
}

/// Bytes of a shape that is known.
pub(super) fn bytes(shape: &[Extent], data_type: DataType) -> Option<u64> {
    let counts = shape.iter().map(|extent| match extent {
        Extent::Fixed(count) => Some(*count),
        Extent::Unknown(_) => None,
    });
    let count = counts.collect::<Option<Vec<_>>>()?.into_iter().try_fold(1u64, u64::checked_mul);
    count?.checked_mul(data_type.size_bytes() as u64)
}

/// What an operator computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `x * w`, and `+ bias` where there is a third input: `[.., k]`, `[k, n]`, `[n]`; or a matrix
    /// for each of many: `[.., m, k]`, `[.., k, n]`.
    Dense,
    /// The sum of two tensors, element by element. Of this and the next three: dimensions count
    /// from the last, and one of 1, or that is not there, is taken again and again.
    Add,
    /// The product of two tensors, element by element.
    Multiply,
    /// The difference of two tensors.
    Subtract,
    /// The quotient of two tensors, element by element.
    Divide,
    /// The larger of each element and 0.
    Relu,
    /// The hyperbolic tangent of each element.
    Tanh,
    /// The logistic function of each element.
    Sigmoid,
    /// The shares of each element's exponential, along an axis.
    Softmax,
    /// As in inference: `(x - mean) / sqrt(variance + epsilon) * scale + bias` for each channel:
    /// `[n, c, ..]`, then scale, bias, mean and variance, `[c]` each.
    BatchNormalization,
    /// The same over dimensions from an axis on, with the mean and the variance of `x` there;
    /// scale, and bias where there is a third input, have the shape of those dimensions.
    LayerNormalization,
    /// The same values in another order of dimensions.
    Transpose,
    /// Tensors one behind the other, along an axis.
    Concatenate,
    /// A convolution of images, `[n, c, ..]`, with `[k, c, ..]`, and `+ bias`, `[k]`, where there
    /// is a third input.
    Convolution,
    /// The largest of the elements under a window.
    MaxPool,
    /// The mean of the elements under a window.
    AveragePool,
    /// The same values in another shape, in the same memory.
    Reshape,
    /// The rows of the first input, `[r, c]`, for which the second, `[r]`, is not 0: how many is
    /// known when the graph runs.
    Select,
    /// The rows of the first input, `[n, ..]`, with the numbers in the second, i32 or i64, of any
    /// shape: a look-up in a table.
    Gather,
}

/// All kinds, with the names that files use.
pub(super) const KINDS: [(&str, Kind); 19] = [
    ("dense", Kind::Dense),
    ("add", Kind::Add),
    ("multiply", Kind::Multiply),
    ("subtract", Kind::Subtract),
    ("divide", Kind::Divide),
    ("relu", Kind::Relu),
    ("tanh", Kind::Tanh),
    ("sigmoid", Kind::Sigmoid),
    ("softmax", Kind::Softmax),
    ("batch-normalization", Kind::BatchNormalization),
    ("layer-normalization", Kind::LayerNormalization),
    ("transpose", Kind::Transpose),
    ("concatenate", Kind::Concatenate),
    ("convolution", Kind::Convolution),
    ("max-pool", Kind::MaxPool),
    ("average-pool", Kind::AveragePool),
    ("reshape", Kind::Reshape),
    ("select", Kind::Select),
    ("gather", Kind::Gather),
];

impl Kind {
    /// Its name in files.
    pub fn name(self) -> &'static str {
        KINDS.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Is its output the memory of its first input?
    pub fn is_alias(self) -> bool {
        self == Self::Reshape
    }
}

/// What an operator is told beside its inputs; what a file leaves out has its default.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Attributes {
    /// Nothing; of an operator that needs some: they are not known, and neither is the shape that
    /// would follow.
    #[default]
    None,
    /// Of softmax and concatenate: the dimension along which they go.
    Axis(usize),
    /// Of transpose: the input's dimension that each one of the output is.
    Order(Vec<usize>),
    /// Of convolution, max-pool and average-pool.
    Sliding(Sliding),
    /// Of batch-normalization (the dimension of channels) and layer-normalization (the first one
    /// that it goes over).
    Normalized {
        /// A dimension.
        axis: usize,
        /// What is added to variances.
        epsilon: f32,
    },
}

/// A window that slides over images: a number for each of their dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sliding {
    /// Elements of the window.
    pub kernel: Vec<u64>,
    /// From one window to the next.
    pub strides: Vec<u64>,
    /// From one element of the window to the next.
    pub dilations: Vec<u64>,
    /// Elements of the edge in front of the image: zeros of a convolution, nothing of a pool.
    pub before: Vec<u64>,
    /// Elements of the edge behind it.
    pub after: Vec<u64>,
    /// Of a convolution: parts of the channels that know nothing of each other. 1 of pools.
    pub groups: u64,
    /// Of an average: its edge counts, as zeros. A part of a window behind the edge never does.
    pub counts_edges: bool,
}

/// An operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Operator {
    /// Unique in its graph.
    pub name: String,
    /// What it computes.
    pub kind: Kind,
    /// Where it runs.
    pub rank: u32,
    /// What it reads.
    pub inputs: Vec<TensorNumber>,
    /// What it writes.
    pub output: TensorNumber,
    /// What it is told beside that.
    pub attributes: Attributes,
    /// The line that declares it.
    pub line: usize,
}

/// A graph that was checked: names are unique, each tensor has one producer at most, nothing waits
/// for itself, and shapes agree.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    pub(super) ranks: u32,
    pub(super) tensors: Vec<Tensor>,
    /// In an order in which they can run.
    pub(super) operators: Vec<Operator>,
}

impl Graph {
    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// All tensors.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// All operators, each behind those whose outputs it reads.
    pub fn operators(&self) -> &[Operator] {
        &self.operators
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<TensorNumber> {
        self.tensors.iter().position(|tensor| tensor.name == name)
    }
}
