//! A graph from what a file says of its tensors and operators: the same checks for every form.

use super::attributes::AttributesEntry;
use super::error::GraphError;
use super::model::{
    Attributes, DIMENSIONS_MAX, Extent, Graph, KINDS, Kind, Memory, Operator, Tensor, bytes,
};
use super::shapes::{Known, infer, shown, unify};
use ringdove_kernels::element::DataType;
use serde::Deserialize;
use std::collections::HashMap;

/// The largest tensor: sums of any number of them fit.
const TENSOR_BYTES_MAX: u64 = 1 << 40;

/// Is the tensor larger than any may be, as far as its shape is known?
fn is_too_large(shape: &[Extent], data_type: DataType) -> bool {
    let known = |extent: &Extent| match extent {
        Extent::Fixed(count) => Extent::Fixed(*count),
        Extent::Unknown(_) => Extent::Fixed(1),
    };
    let least: Vec<_> = shape.iter().map(known).collect();
    bytes(&least, data_type).is_none_or(|bytes| bytes > TENSOR_BYTES_MAX)
}

/// What a file says of a tensor.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TensorEntry {
    pub name: String,
    #[serde(rename = "type")]
    pub data_type: Option<String>,
    pub shape: Option<Vec<ExtentEntry>>,
    pub rank: Option<u32>,
    #[serde(default)]
    pub memory: MemoryEntry,
    pub bytes_max: Option<u64>,
}

/// One dimension.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a dimension: expected a whole number, or a name for one unknown")]
pub(super) enum ExtentEntry {
    Fixed(u64),
    Unknown(String),
}

/// Whose memory a tensor is in.
#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum MemoryEntry {
    #[default]
    Planned,
    Foreign,
}

/// What a file says of an operator.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OperatorEntry {
    pub name: String,
    pub kind: String,
    pub rank: u32,
    pub inputs: Vec<String>,
    pub output: String,
    /// None: not known.
    pub attributes: Option<AttributesEntry>,
}

/// A file, as errors name it.
pub(super) struct Source<'a> {
    pub file: &'a str,
    /// Empty where the file is no text.
    pub text: &'a str,
}

pub(super) type Result<T> = std::result::Result<T, GraphError>;

impl Source<'_> {
    pub fn error(&self, line: usize, reason: impl Into<String>) -> GraphError {
        GraphError { file: self.file.to_owned(), line, reason: reason.into() }
    }
}

/// An operator whose inputs may not be declared yet.
struct Draft {
    name: String,
    kind: Kind,
    rank: u32,
    inputs: Vec<String>,
    output: usize,
    attributes: Option<AttributesEntry>,
    line: usize,
}

/// Puts a graph together, and checks it: errors name what they are about.
pub(super) struct Builder<'a> {
    source: &'a Source<'a>,
    ranks: u32,
    tensors: Vec<Tensor>,
    /// Whether a tensor's rank, and its type, were given.
    given: Vec<(Option<u32>, bool)>,
    by_name: HashMap<String, usize>,
    drafts: Vec<Draft>,
    operator_names: HashMap<String, usize>,
}

impl<'a> Builder<'a> {
    pub fn new(source: &'a Source<'a>, ranks: u32) -> Self {
        Self {
            source,
            ranks,
            tensors: Vec::new(),
            given: Vec::new(),
            by_name: HashMap::new(),
            drafts: Vec::new(),
            operator_names: HashMap::new(),
        }
    }

    #[cfg(feature = "onnx")]
    pub fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    fn rank(&self, name: &str, rank: u32, line: usize) -> Result<u32> {
        match rank < self.ranks {
            true => Ok(rank),
            false => {
                let reason = format!("'{name}' on rank {rank} of {} ranks", self.ranks);
                Err(self.source.error(line, reason))
            }
        }
    }

    pub fn declare(&mut self, entry: TensorEntry, line: usize) -> Result<()> {
        let error = |reason: String| Err(self.source.error(line, reason));
        if entry.name.is_empty() || self.by_name.contains_key(&entry.name) {
            return error(format!("tensor '{}': expected a name of its own", entry.name));
        }
        let named = entry.data_type.as_deref().unwrap_or("f32");
        let Some(data_type) = DataType::named(named) else {
            return error(format!("tensor '{}': unknown type '{named}'", entry.name));
        };
        let shape = entry.shape.map(|shape| {
            let extent = |entry| match entry {
                ExtentEntry::Fixed(count) => Extent::Fixed(count),
                ExtentEntry::Unknown(name) => Extent::Unknown(name),
            };
            shape.into_iter().map(extent).collect::<Vec<_>>()
        });
        if let Some(shape) = &shape {
            let has_none = shape.contains(&Extent::Fixed(0));
            if shape.len() > DIMENSIONS_MAX || has_none || is_too_large(shape, data_type) {
                let shape = shown(Some(shape));
                return error(format!(
                    "tensor '{}' of shape {shape}: expected up to {DIMENSIONS_MAX} dimensions, \
                     none of 0 elements, and 1 TiB at most",
                    entry.name
                ));
            }
        }
        if entry.bytes_max.is_some_and(|most| most > TENSOR_BYTES_MAX) {
            return error(format!("tensor '{}': bytes_max above 1 TiB", entry.name));
        }
        let rank = entry.rank.map(|rank| self.rank(&entry.name, rank, line)).transpose()?;
        self.by_name.insert(entry.name.clone(), self.tensors.len());
        self.given.push((rank, entry.data_type.is_some()));
        self.tensors.push(Tensor {
            name: entry.name,
            data_type,
            shape,
            producer: None,
            rank: rank.unwrap_or(0),
            memory: match entry.memory {
                MemoryEntry::Planned => Memory::Planned,
                MemoryEntry::Foreign => Memory::Foreign,
            },
            bytes_max: entry.bytes_max,
            line,
        });
        Ok(())
    }

    pub fn operator(&mut self, entry: OperatorEntry, line: usize) -> Result<()> {
        let error = |reason: String| Err(self.source.error(line, reason));
        let number = self.drafts.len();
        let twice = self.operator_names.insert(entry.name.clone(), number).is_some();
        if entry.name.is_empty() || twice {
            return error(format!("operator '{}': expected a name of its own", entry.name));
        }
        let Some((_, kind)) = KINDS.iter().find(|(name, _)| *name == entry.kind) else {
            let known: Vec<_> = KINDS.iter().map(|(name, _)| *name).collect();
            let (name, kind) = (&entry.name, &entry.kind);
            let known = known.join(", ");
            return error(format!("operator '{name}': unknown kind '{kind}'; known are {known}"));
        };
        let rank = self.rank(&entry.name, entry.rank, line)?;
        if entry.output.is_empty() {
            return error(format!("operator '{}': an output without a name", entry.name));
        }
        let known = self.by_name.get(&entry.output).copied();
        let output = known.unwrap_or_else(|| {
            self.by_name.insert(entry.output.clone(), self.tensors.len());
            self.given.push((None, false));
            self.tensors.push(Tensor {
                name: entry.output.clone(),
                data_type: DataType::F32,
                shape: None,
                producer: None,
                rank,
                memory: Memory::Planned,
                bytes_max: None,
                line,
            });
            self.tensors.len() - 1
        });
        let tensor = &mut self.tensors[output];
        if let Some(other) = tensor.producer.replace(number) {
            let (name, other) = (&entry.name, &self.drafts[other].name);
            let reason = format!("'{}' is written by '{other}' and by '{name}'", entry.output);
            return Err(self.source.error(line, reason));
        }
        if self.given[output].0.is_some_and(|given| given != rank) {
            let reason = format!(
                "'{}' is declared on rank {}, and '{}' writes it on rank {rank}",
                entry.output, tensor.rank, entry.name
            );
            return Err(self.source.error(line, reason));
        }
        tensor.rank = rank;
        let OperatorEntry { name, inputs, attributes, .. } = entry;
        self.drafts.push(Draft { name, kind: *kind, rank, inputs, output, attributes, line });
        Ok(())
    }

    pub fn finish(mut self) -> Result<Graph> {
        let mut inputs = Vec::new();
        for draft in &self.drafts {
            let find = |name: &String| {
                self.by_name.get(name).copied().ok_or_else(|| {
                    let reason = format!("'{}' reads '{name}', which is not there", draft.name);
                    self.source.error(draft.line, reason)
                })
            };
            inputs.push(draft.inputs.iter().map(find).collect::<Result<Vec<_>>>()?);
        }
        for (tensor, (rank, _)) in self.tensors.iter().zip(&self.given) {
            if tensor.producer.is_none() && rank.is_none() {
                let reason = format!(
                    "no operator writes '{}', so a rank must keep it (\"rank\")",
                    tensor.name
                );
                return Err(self.source.error(tensor.line, reason));
            }
        }
        let order = self.order(&inputs)?;
        let mut places = vec![0; order.len()];
        order.iter().enumerate().for_each(|(place, &number)| places[number] = place);
        for tensor in &mut self.tensors {
            tensor.producer = tensor.producer.map(|number| places[number]);
        }
        let mut operators = Vec::new();
        for number in order {
            let attributes = self.infer(number, &inputs[number])?;
            let Draft { name, kind, rank, output, line, .. } = &self.drafts[number];
            operators.push(Operator {
                name: name.clone(),
                kind: *kind,
                rank: *rank,
                inputs: inputs[number].clone(),
                output: *output,
                attributes,
                line: *line,
            });
        }
        Ok(Graph { ranks: self.ranks, tensors: self.tensors, operators })
    }

    /// An order in which all can run; of those that could run, the first of the file.
    fn order(&self, inputs: &[Vec<usize>]) -> Result<Vec<usize>> {
        let mut missing: Vec<usize> = Vec::new();
        let mut readers: HashMap<usize, Vec<usize>> = HashMap::new();
        for (number, inputs) in inputs.iter().enumerate() {
            let produced = inputs.iter().filter(|&&input| self.tensors[input].producer.is_some());
            missing.push(produced.clone().count());
            produced.for_each(|&input| readers.entry(input).or_default().push(number));
        }
        let is_ready = |&number: &usize| missing[number] == 0;
        let mut ready: std::collections::BTreeSet<usize> =
            (0..inputs.len()).filter(is_ready).collect();
        let mut order = Vec::new();
        while let Some(number) = ready.pop_first() {
            order.push(number);
            for &reader in readers.get(&self.drafts[number].output).into_iter().flatten() {
                missing[reader] -= 1;
                if missing[reader] == 0 {
                    ready.insert(reader);
                }
            }
        }
        if order.len() == inputs.len() {
            return Ok(order);
        }
        Err(self.cycle(inputs, &missing))
    }

    /// Goes back from an operator that cannot run until one comes again.
    fn cycle(&self, inputs: &[Vec<usize>], missing: &[usize]) -> GraphError {
        let mut way = vec![missing.iter().position(|&count| count > 0).unwrap_or(0)];
        loop {
            let last = way[way.len() - 1];
            let waits_for = inputs[last].iter().filter_map(|&input| self.tensors[input].producer);
            let before = waits_for.filter(|&number| missing[number] > 0).min().unwrap_or(last);
            if let Some(start) = way.iter().position(|&number| number == before) {
                let names: Vec<_> = way[start..]
                    .iter()
                    .rev()
                    .map(|&number| format!("'{}'", self.drafts[number].name))
                    .collect();
                let line = self.drafts[way[start]].line;
                let reason = format!("a cycle: {} wait for one another", names.join(", "));
                return self.source.error(line, reason);
            }
            way.push(before);
        }
    }

    /// Shape and type of an operator's output, and what it is told.
    fn infer(&mut self, number: usize, inputs: &[usize]) -> Result<Attributes> {
        let draft = &self.drafts[number];
        let error = |reason: String| {
            Err(self.source.error(draft.line, format!("operator '{}': {reason}", draft.name)))
        };
        let known: Vec<_> = inputs
            .iter()
            .map(|&input| {
                let tensor = &self.tensors[input];
                let Tensor { name, shape, data_type, .. } = tensor;
                Known { name, shape: shape.as_deref(), data_type: *data_type }
            })
            .collect();
        let (attributes, inferred) = match infer(draft.kind, draft.attributes.as_ref(), &known) {
            Ok(inferred) => inferred,
            Err(reason) => return error(reason),
        };
        let output = &self.tensors[draft.output];
        let data_type = known[0].data_type;
        if self.given[draft.output].1 && output.data_type != data_type {
            let (name, declared) = (&output.name, output.data_type.name());
            let becomes = data_type.name();
            return error(format!("'{name}' is declared {declared} and becomes {becomes}"));
        }
        let shape = match (inferred, &output.shape) {
            (Some(inferred), Some(declared)) => match unify(&inferred, declared) {
                Some(shape) => Some(shape),
                None => {
                    let (one, other) = (shown(Some(&inferred)), shown(Some(declared)));
                    let name = &output.name;
                    return error(format!("'{name}' is declared {other} and becomes {one}"));
                }
            },
            (inferred, declared) => inferred.or_else(|| declared.clone()),
        };
        let is_too_much =
            |shape: &&[Extent]| shape.len() > DIMENSIONS_MAX || is_too_large(shape, data_type);
        if let Some(shape) = shape.as_deref().filter(is_too_much) {
            let (name, shape) = (&output.name, shown(Some(shape)));
            return error(format!(
                "'{name}' becomes {shape}, more than {DIMENSIONS_MAX} dimensions or 1 TiB"
            ));
        }
        if matches!(draft.kind, Kind::Reshape | Kind::Transpose) {
            let before = &self.tensors[inputs[0]];
            let after = shape.as_deref().and_then(|shape| bytes(shape, data_type));
            if let (Some(before), Some(after)) = (before.bytes(), after)
                && before != after
            {
                return error(format!("{before} bytes become {after}"));
            }
        }
        let output = &mut self.tensors[draft.output];
        (output.shape, output.data_type) = (shape, data_type);
        Ok(attributes)
    }
}
