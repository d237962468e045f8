//! Graphs in ONNX files.
//!
//! | ONNX | here |
//! |---|---|
//! | Gemm, MatMul with a matrix or with as many as rows have | dense |
//! | Add, Sub, Mul, Div, Relu, Tanh, Sigmoid, Softmax | the same |
//! | BatchNormalization (as in inference), LayerNormalization | the same |
//! | Gather (axis 0), Transpose, Concat | gather, transpose, concatenate |
//! | Conv, MaxPool, AveragePool, GlobalAveragePool | convolution, max-pool, average-pool |
//! | Reshape, Flatten, Squeeze, Unsqueeze, Identity, Dropout (as in inference) | reshape |
//! | Constant, initializers, inputs | parameters and inputs |
//!
//! Other operators are refused by name, with the node, and nodes with several outputs. Shapes are
//! those of the file's `value_info`, and what follows from them and from attributes; what is
//! reshaped to a shape that is no constant, squeezed or unsqueezed has an unknown one, if the file
//! does not say it. Attributes that are not understood, or disagree with shapes, are refused with
//! the node. Values are not read: whoever computes has them. A parameter that Gemm transposes
//! (`transB`) is declared as it is multiplied, `[k, n]`.
//!
//! A rank comes from the [`Placement`], or from the entry `ringdove.rank` in the metadata of a
//! node, an initializer or an input; the number of ranks from the placement, or from
//! `ringdove.ranks` in the model's. Inputs and parameters without one are kept where they are read
//! first. Errors name file, node and reason.

mod attributes;
mod messages;
mod operators;

use super::build::{Builder, ExtentEntry, Result, Source, TensorEntry};
use super::model::{Graph, OPERATORS_MAX, RANKS_MAX, TENSORS_MAX};
use super::placement::Placement;
use messages::{
    Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto,
    TensorProto, ValueInfoProto,
};
use prost::Message;
use prost::bytes::Bytes;
use std::collections::{HashMap, HashSet};
use std::fmt::Display;

/// The largest file: what protobuf allows.
const BYTES_MAX: usize = 2 << 30;
/// Of a node, an initializer or an input: on which rank.
const RANK: &str = "ringdove.rank";
/// Of a model: over how many.
const RANKS: &str = "ringdove.ranks";

/// Numbers of element types.
const TYPES: [(i32, &str); 13] = [
    (1, "f32"),
    (2, "u8"),
    (3, "i8"),
    (6, "i32"),
    (7, "i64"),
    (9, "u8"),
    (10, "f16"),
    (11, "f64"),
    (12, "u32"),
    (13, "u64"),
    (16, "bf16"),
    (17, "f8e4m3"),
    (19, "f8e5m2"),
];
/// Number of the type of shapes.
const INT64: i32 = 7;

impl Graph {
    /// The graph of an ONNX model: `bytes`, the contents of `file`, are taken, so that values need
    /// not be copied.
    ///
    /// # Errors
    /// [`GraphError`] with file, node and reason, for anything that is not a model, that has other
    /// operators than those above, or no ranks, and as [`Graph::read`].
    ///
    /// [`GraphError`]: super::GraphError
    pub fn read_onnx(file: &str, bytes: Vec<u8>, placement: Option<&Placement>) -> Result<Self> {
        let source = Source { file, text: "" };
        let said = |reason: String| source.error(0, reason);
        if bytes.len() > BYTES_MAX {
            return Err(said(format!("{} bytes; at most {BYTES_MAX}", bytes.len())));
        }
        let model = ModelProto::decode(Bytes::from(bytes))
            .map_err(|error| said(format!("no ONNX model: {error}")))?;
        let Some(graph) = model.graph.filter(|graph| !graph.node.is_empty()) else {
            return Err(said("no ONNX model: no graph with nodes in it".to_owned()));
        };
        let declared = graph.initializer.len() + graph.input.len() + graph.value_info.len();
        for (what, count, most) in
            [("nodes", graph.node.len(), OPERATORS_MAX), ("tensors", declared, TENSORS_MAX)]
        {
            if count > most {
                return Err(said(format!("{count} {what}; at most {most}")));
            }
        }
        let ranks = match (placement, number(&model.metadata_props, RANKS).map_err(said)?) {
            (Some(placement), _) => placement.ranks(),
            (None, Some(ranks)) if (1..=RANKS_MAX).contains(&ranks) => ranks,
            (None, Some(ranks)) => {
                return Err(said(format!("{RANKS} {ranks}; expected 1 to {RANKS_MAX}")));
            }
            (None, None) => {
                let reason = format!("no number of ranks: a placement or {RANKS} gives it");
                return Err(said(reason));
            }
        };
        let of_default = |set: &&OperatorSetIdProto| matches!(&*set.domain, "" | "ai.onnx");
        let operator_set = model.opset_import.iter().find(of_default).map(|set| set.version);
        Reader::new(&source, graph, placement, ranks, operator_set)?.read()
    }
}

/// A whole number in metadata.
fn number(
    metadata: &[StringStringEntryProto],
    key: &str,
) -> std::result::Result<Option<u32>, String> {
    let Some(entry) = metadata.iter().find(|entry| entry.key == key) else { return Ok(None) };
    let parsed = entry.value.parse();
    parsed.map(Some).map_err(|_| format!("{key} '{}': expected a number", entry.value))
}

/// What is known of a tensor.
#[derive(Clone)]
struct Known {
    data_type: i32,
    shape: Option<Vec<Dimension>>,
    rank: Option<u32>,
}

/// A model on its way into a [`Builder`].
struct Reader<'a> {
    source: &'a Source<'a>,
    placement: Option<&'a Placement>,
    ranks: u32,
    nodes: Vec<NodeProto>,
    /// Inputs and parameters, in the file's order.
    kept: Vec<String>,
    kept_names: HashSet<String>,
    parameters: HashSet<String>,
    /// What the graph gives its user.
    outputs: HashSet<String>,
    known: HashMap<String, Known>,
    /// Parameters that are declared as they are multiplied.
    transposed: HashSet<String>,
    /// Values of small parameters of whole numbers.
    values: HashMap<String, Vec<i64>>,
    /// The version of the operators; none where the file does not say it.
    operator_set: Option<i64>,
}

impl<'a> Reader<'a> {
    fn new(
        source: &'a Source<'a>,
        graph: GraphProto,
        placement: Option<&'a Placement>,
        ranks: u32,
        operator_set: Option<i64>,
    ) -> Result<Self> {
        let GraphProto { node, initializer, input, output, value_info } = graph;
        let mut reader = Self {
            source,
            placement,
            ranks,
            nodes: Vec::new(),
            kept: Vec::new(),
            kept_names: HashSet::new(),
            parameters: HashSet::new(),
            outputs: output.iter().map(|value| value.name.clone()).collect(),
            known: HashMap::new(),
            transposed: HashSet::new(),
            values: HashMap::new(),
            operator_set,
        };
        for value in value_info.into_iter().chain(output) {
            reader.value(value)?;
        }
        for value in input {
            reader.kept.push(value.name.clone());
            reader.kept_names.insert(value.name.clone());
            reader.value(value)?;
        }
        for tensor in initializer {
            let name = tensor.name.clone();
            reader.parameter(name, tensor)?;
        }
        for node in node {
            reader.node(node)?;
        }
        Ok(reader)
    }

    fn error<T>(&self, what: &str, name: &str, reason: impl Display) -> Result<T> {
        Err(self.source.error(0, format!("{what} '{name}': {reason}")))
    }

    fn value(&mut self, value: ValueInfoProto) -> Result<()> {
        let ValueInfoProto { name, r#type, metadata_props } = value;
        let rank = match number(&metadata_props, RANK) {
            Ok(rank) => rank,
            Err(reason) => return self.error("tensor", &name, reason),
        };
        let Some(tensor) = r#type.and_then(|given| given.tensor_type) else { return Ok(()) };
        let shape = tensor.shape.map(|shape| shape.dim);
        self.known.insert(name, Known { data_type: tensor.elem_type, shape, rank });
        Ok(())
    }

    fn parameter(&mut self, name: String, tensor: TensorProto) -> Result<()> {
        let rank = match number(&tensor.metadata_props, RANK) {
            Ok(rank) => rank,
            Err(reason) => return self.error("tensor", &name, reason),
        };
        if tensor.data_type == INT64 && tensor.dims.len() == 1 {
            let raw = tensor.raw_data.chunks_exact(8);
            let raw = raw.map(|bytes| i64::from_le_bytes(std::array::from_fn(|at| bytes[at])));
            // Shapes have few dimensions; other whole numbers are of no interest here.
            let values = tensor.int64_data.iter().copied().chain(raw).take(64).collect();
            self.values.insert(name.clone(), values);
        }
        let dimension = |&count| Dimension { dim_value: Some(count), dim_param: None };
        let shape = Some(tensor.dims.iter().map(dimension).collect());
        if !self.parameters.insert(name.clone()) {
            return self.error("tensor", &name, "two parameters of this name");
        }
        // Older files list parameters as inputs, too.
        if self.kept_names.insert(name.clone()) {
            self.kept.push(name.clone());
        }
        self.known.insert(name, Known { data_type: tensor.data_type, shape, rank });
        Ok(())
    }

    /// Keeps an operator, or takes the values of a constant.
    fn node(&mut self, mut node: NodeProto) -> Result<()> {
        while node.input.last().is_some_and(String::is_empty) {
            node.input.pop();
        }
        while node.output.last().is_some_and(String::is_empty) {
            node.output.pop();
        }
        if node.name.is_empty() {
            node.name = node.output.first().cloned().unwrap_or_default();
        }
        let [output] = node.output.as_slice() else {
            let reason = format!("{} outputs; expected one", node.output.len());
            return self.error("node", &node.name, reason);
        };
        if self.kept_names.contains(output) {
            let reason = format!("'{output}' is an input or a parameter, and it writes it");
            return self.error("node", &node.name, reason);
        }
        if !matches!(node.domain.as_str(), "" | "ai.onnx") {
            let reason = format!("operator '{}' of domain '{}'", node.op_type, node.domain);
            return self.error("node", &node.name, reason);
        }
        if node.op_type != "Constant" {
            self.nodes.push(node);
            return Ok(());
        }
        let output = output.clone();
        match node.attribute.into_iter().find(|attribute| attribute.name == "value") {
            Some(attribute) => self.parameter(output, attribute.t.unwrap_or_default()),
            None => self.error("node", &node.name, "a constant without a tensor 'value'"),
        }
    }
    /// Gives the builder what is read, and what was said of what is written.
    fn read(mut self) -> Result<Graph> {
        self.add_biases();
        let mut operators = Vec::new();
        for node in std::mem::take(&mut self.nodes) {
            operators.push(self.operator(node)?);
        }
        let mut first_reader: HashMap<&str, u32> = HashMap::new();
        for operator in &operators {
            for input in &operator.inputs {
                first_reader.entry(input).or_insert(operator.rank);
            }
        }
        let mut builder = Builder::new(self.source, self.ranks);
        for name in &self.kept {
            // Shapes, and what nobody reads, are no tensors of the graph.
            let Some(&reader) = first_reader.get(name.as_str()) else { continue };
            let known = self.known.get(name);
            let given = self.placement.and_then(|placement| placement.tensor(name));
            let rank = given.or_else(|| known.and_then(|known| known.rank)).unwrap_or(reader);
            builder.declare(self.entry(name, Some(rank))?, 0)?;
        }
        for operator in &operators {
            let output = &operator.output;
            // Of a name that is written twice the builder says so.
            if !builder.has(output) {
                builder.declare(self.entry(output, None)?, 0)?;
            }
        }
        for operator in operators {
            builder.operator(operator, 0)?;
        }
        builder.finish()
    }

    /// What the file says of a tensor.
    fn entry(&self, name: &str, rank: Option<u32>) -> Result<TensorEntry> {
        let bytes_max = self.placement.and_then(|placement| placement.bytes_max(name));
        let name = name.to_owned();
        let Some(known) = self.known.get(&name) else {
            return Ok(TensorEntry { name, rank, bytes_max, ..TensorEntry::default() });
        };
        // Where a type is not said, the operator's is taken.
        let data_type = match TYPES.iter().find(|(number, _)| *number == known.data_type) {
            Some((_, word)) => Some((*word).to_owned()),
            None if known.data_type == 0 => None,
            None => {
                let reason = format!("elements of type {}, which are not known", known.data_type);
                return self.error("tensor", &name, reason);
            }
        };
        let mut shape = None;
        if let Some(dimensions) = &known.shape {
            let mut extents = Vec::new();
            for (at, Dimension { dim_value, dim_param }) in dimensions.iter().enumerate() {
                extents.push(match (dim_value, dim_param) {
                    (Some(count), _) => match u64::try_from(*count) {
                        Ok(count) => ExtentEntry::Fixed(count),
                        Err(_) => {
                            let reason = format!("a dimension of {count} elements");
                            return self.error("tensor", &name, reason);
                        }
                    },
                    (None, Some(word)) => ExtentEntry::Unknown(word.clone()),
                    (None, None) => ExtentEntry::Unknown(format!("dimension {at} of {name}")),
                });
            }
            shape = Some(extents);
        }
        Ok(TensorEntry { name, data_type, shape, rank, bytes_max, ..TensorEntry::default() })
    }
}
