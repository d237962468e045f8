//! Operators of ONNX, as a graph has them.

use super::super::build::{OperatorEntry, Result};
use super::messages::{AttributeProto, NodeProto};
use super::{Known, RANK, Reader, number};
use std::collections::HashMap;

/// Operators of the default domain, and what they are here.
const OPERATORS: [(&str, &str); 25] = [
    ("Add", "add"),
    ("AveragePool", "average-pool"),
    ("BatchNormalization", "batch-normalization"),
    ("Concat", "concatenate"),
    ("Conv", "convolution"),
    ("Div", "divide"),
    ("Dropout", "reshape"),
    ("Flatten", "reshape"),
    ("Gather", "gather"),
    ("Gemm", "dense"),
    ("GlobalAveragePool", "average-pool"),
    ("Identity", "reshape"),
    ("LayerNormalization", "layer-normalization"),
    ("MatMul", "dense"),
    ("MaxPool", "max-pool"),
    ("Mul", "multiply"),
    ("Relu", "relu"),
    ("Reshape", "reshape"),
    ("Sigmoid", "sigmoid"),
    ("Softmax", "softmax"),
    ("Squeeze", "reshape"),
    ("Sub", "subtract"),
    ("Tanh", "tanh"),
    ("Transpose", "transpose"),
    ("Unsqueeze", "reshape"),
];

/// The value of an attribute that is a whole number, or what it is where it is not given.
fn whole(attributes: &[AttributeProto], name: &str, otherwise: i64) -> i64 {
    let given = attributes.iter().find(|attribute| attribute.name == name);
    given.and_then(|attribute| attribute.i).unwrap_or(otherwise)
}

impl Reader<'_> {
    /// Exporters write a layer as a product and a sum with its bias; here it is one operator.
    pub(super) fn add_biases(&mut self) {
        let mut readers: HashMap<&str, u32> = HashMap::new();
        for input in self.nodes.iter().flat_map(|node| &node.input) {
            *readers.entry(input).or_default() += 1;
        }
        let is_between = |name: &str| readers.get(name) == Some(&1) && !self.outputs.contains(name);
        let products: HashMap<&str, usize> = (self.nodes.iter().enumerate())
            .filter(|(_, node)| node.op_type == "MatMul" && node.input.len() == 2)
            .map(|(number, node)| (node.output[0].as_str(), number))
            .filter(|(output, _)| is_between(output))
            .collect();
        let is_bias = |name: &str| {
            let shape = self.known.get(name).and_then(|known| known.shape.as_ref());
            self.kept_names.contains(name) && shape.is_some_and(|shape| shape.len() == 1)
        };
        let mut joined = Vec::new();
        for (number, node) in self.nodes.iter().enumerate() {
            let [left, right] = node.input.as_slice() else { continue };
            if node.op_type != "Add" {
                continue;
            }
            for (product, bias) in [(left, right), (right, left)] {
                if let Some(&product) = products.get(product.as_str())
                    && is_bias(bias)
                {
                    joined.push((product, number, bias.clone()));
                    break;
                }
            }
        }
        for (product, sum, bias) in &joined {
            let output = self.nodes[*sum].output.clone();
            let node = &mut self.nodes[*product];
            node.input.push(bias.clone());
            node.output = output;
        }
        let gone: Vec<usize> = joined.into_iter().map(|(_, sum, _)| sum).collect();
        let mut number = 0;
        self.nodes.retain(|_| {
            number += 1;
            gone.binary_search(&(number - 1)).is_err()
        });
    }

    /// The operator, with its rank.
    pub(super) fn operator(&mut self, node: NodeProto) -> Result<OperatorEntry> {
        let name = node.name.clone();
        let Some((_, kind)) = OPERATORS.iter().find(|(word, _)| *word == node.op_type) else {
            let known: Vec<_> = OPERATORS.iter().map(|(word, _)| *word).collect();
            let (word, known) = (&node.op_type, known.join(", "));
            let reason = format!("unknown operator '{word}'; known are Constant, {known}");
            return self.error("node", &name, reason);
        };
        let given = match number(&node.metadata_props, RANK) {
            Ok(rank) => rank,
            Err(reason) => return self.error("node", &name, reason),
        };
        let placed = self.placement.and_then(|placement| placement.operator(&name));
        let only = (self.ranks == 1).then_some(0);
        let Some(rank) = placed.or(given).or(only) else {
            let reason = format!("no rank: neither the placement nor {RANK} says where it runs");
            return self.error("node", &name, reason);
        };
        if rank >= self.ranks {
            let reason = format!("on rank {rank} of {} ranks", self.ranks);
            return self.error("node", &name, reason);
        }
        let NodeProto { mut input, mut output, attribute, op_type, .. } = node;
        let output = output.pop().unwrap_or_default();
        match op_type.as_str() {
            "Gemm" => self.gemm(&name, &input, &attribute)?,
            "MatMul" => self.matrix(&name, input.get(1), usize::MAX)?,
            "Gather" if whole(&attribute, "axis", 0) != 0 => {
                return self.error("node", &name, "Gather of another axis than 0");
            }
            _ => {}
        }
        let attributes = match self.attributes(&op_type, &attribute, &input) {
            Ok(attributes) => attributes,
            Err(reason) => return self.error("node", &name, reason),
        };
        if *kind == "reshape" {
            // Of a shape the values are what counts.
            input.truncate(1);
        }
        let kind = (*kind).to_owned();
        Ok(OperatorEntry { name, kind, rank, inputs: input, output, attributes })
    }

    /// A product with something that is no matrix, nor many of them, is another operator than a
    /// dense layer.
    fn matrix(&self, name: &str, right: Option<&String>, most: usize) -> Result<()> {
        let known = right.and_then(|right| self.known.get(right));
        match known.and_then(|known| known.shape.as_ref()).map(Vec::len) {
            None => Ok(()),
            Some(dimensions) if (2..=most).contains(&dimensions) => Ok(()),
            Some(dimensions) => {
                let reason = format!("a product with a tensor of {dimensions} dimensions");
                self.error("node", name, reason)
            }
        }
    }

    fn gemm(&mut self, name: &str, inputs: &[String], given: &[AttributeProto]) -> Result<()> {
        for factor in ["alpha", "beta"] {
            let attribute = given.iter().find(|attribute| attribute.name == factor);
            if attribute.and_then(|attribute| attribute.f).is_some_and(|value| value != 1.0) {
                return self.error("node", name, format!("Gemm with an {factor} that is not 1"));
            }
        }
        if whole(given, "transA", 0) != 0 {
            return self.error("node", name, "Gemm that transposes its first input");
        }
        self.matrix(name, inputs.get(1), 2)?;
        if whole(given, "transB", 0) == 0 {
            return Ok(());
        }
        // Whoever keeps the parameter keeps it as it is read; what is computed has its own order.
        let right = inputs.get(1).map_or("", String::as_str);
        if !self.kept_names.contains(right) {
            let reason = format!("Gemm that transposes '{right}', which is no parameter");
            return self.error("node", name, reason);
        }
        if !self.transposed.insert(right.to_owned()) {
            return Ok(());
        }
        if let Some(Known { shape: Some(shape), .. }) = self.known.get_mut(right) {
            shape.reverse();
        }
        Ok(())
    }
}
