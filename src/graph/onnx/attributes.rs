//! Attributes of ONNX operators, as a graph has them.

use super::super::attributes::{AttributesEntry, Side};
use super::Reader;
use super::messages::AttributeProto;

type Result<T> = std::result::Result<T, String>;

/// What a node is told. All that it is told is understood, or the node is refused.
struct Given<'a> {
    all: &'a [AttributeProto],
    taken: Vec<&'static str>,
}

impl<'a> Given<'a> {
    fn find(&mut self, name: &'static str) -> Option<&'a AttributeProto> {
        self.taken.push(name);
        self.all.iter().find(|attribute| attribute.name == name)
    }

    fn whole(&mut self, name: &'static str) -> Option<i64> {
        self.find(name).and_then(|attribute| attribute.i)
    }

    fn list(&mut self, name: &'static str) -> Option<Vec<i64>> {
        self.find(name).map(|attribute| attribute.ints.clone())
    }

    fn is_set(&mut self, name: &'static str) -> Option<bool> {
        self.whole(name).map(|value| value != 0)
    }

    /// Attributes of training are fine where they say that there is none.
    fn refuse(&mut self, name: &'static str, harmless: i64) -> Result<()> {
        match self.whole(name).filter(|&value| value != harmless) {
            Some(value) => Err(format!("{name} of {value}")),
            None => Ok(()),
        }
    }

    /// `pads`: those before all dimensions, then those behind. `auto_pad` says them in words.
    fn edges(&mut self, entry: &mut AttributesEntry) -> Result<()> {
        if let Some(pads) = self.list("pads") {
            if !pads.len().is_multiple_of(2) {
                return Err(format!("pads of {pads:?}; expected two for each dimension"));
            }
            let (before, after) = pads.split_at(pads.len() / 2);
            (entry.before, entry.after) = (Some(before.to_vec()), Some(after.to_vec()));
        }
        let word = self.find("auto_pad").and_then(|attribute| attribute.s.as_deref());
        entry.same = match word {
            None | Some(b"NOTSET" | b"") => return Ok(()),
            Some(b"VALID") => None,
            Some(b"SAME_UPPER") => Some(Side::After),
            Some(b"SAME_LOWER") => Some(Side::Before),
            Some(other) => {
                return Err(format!("auto_pad '{}'", String::from_utf8_lossy(other)));
            }
        };
        // Old exporters write zeros beside the word.
        if [&entry.before, &entry.after].into_iter().flatten().flatten().any(|&edge| edge != 0) {
            return Err("pads and auto_pad".to_owned());
        }
        (entry.before, entry.after) = (None, None);
        Ok(())
    }

    fn window(&mut self, entry: &mut AttributesEntry) -> Result<()> {
        entry.kernel = self.list("kernel_shape");
        entry.strides = self.list("strides");
        entry.dilations = self.list("dilations");
        self.edges(entry)
    }
}

impl Reader<'_> {
    /// What the operator is told; none where it has no attributes here, or where its shape is not
    /// known before it runs.
    ///
    /// # Errors
    /// What is not understood, without the node's name.
    pub(super) fn attributes(
        &self,
        op_type: &str,
        given: &[AttributeProto],
        inputs: &[String],
    ) -> Result<Option<AttributesEntry>> {
        let mut given = Given { all: given, taken: Vec::new() };
        let mut entry = AttributesEntry::default();
        match op_type {
            "Conv" => {
                given.window(&mut entry)?;
                entry.groups = given.whole("group");
            }
            "MaxPool" => {
                given.window(&mut entry)?;
                entry.ceiling = given.is_set("ceil_mode");
                given.refuse("storage_order", 0)?;
            }
            "AveragePool" => {
                given.window(&mut entry)?;
                entry.ceiling = given.is_set("ceil_mode");
                entry.counts_edges = given.is_set("count_include_pad");
            }
            "GlobalAveragePool" => entry.whole = Some(true),
            "Softmax" => {
                entry.axis = given.whole("axis");
                // Before, an axis meant all dimensions from there on.
                if self.operator_set.is_some_and(|version| version < 13) {
                    let axis = entry.axis.unwrap_or(1);
                    let shape = inputs.first().and_then(|input| self.known.get(input));
                    let last = shape.and_then(|known| known.shape.as_ref()).map(Vec::len);
                    if axis != -1 && last.is_none_or(|count| count as i64 - 1 != axis) {
                        return Err(
                            "Softmax of an operator set before 13 over more than its last \
                                    dimension"
                                .to_owned(),
                        );
                    }
                    entry.axis = Some(axis);
                }
            }
            "BatchNormalization" => {
                entry.epsilon = given.find("epsilon").and_then(|attribute| attribute.f);
                given.find("momentum");
                given.refuse("training_mode", 0)?;
                given.refuse("spatial", 1)?;
            }
            "LayerNormalization" => {
                entry.axis = given.whole("axis");
                entry.epsilon = given.find("epsilon").and_then(|attribute| attribute.f);
                given.refuse("stash_type", 1)?;
            }
            "Transpose" => entry.order = given.list("perm"),
            "Concat" => entry.axis = given.whole("axis"),
            "Flatten" => entry.axis = Some(given.whole("axis").unwrap_or(1)),
            // Dropout is given what it would do in training.
            "Identity" | "Dropout" => return Ok(Some(entry)),
            "Reshape" => {
                given.refuse("allowzero", 0)?;
                let shape = inputs.get(1).and_then(|shape| self.values.get(shape));
                let Some(shape) = shape else { return Ok(None) };
                entry.shape = Some(shape.clone());
            }
            _ => return Ok(None),
        }
        let mut unknown = given.all.iter().filter(|it| !given.taken.contains(&it.name.as_str()));
        match unknown.next() {
            Some(attribute) => Err(format!("unknown attribute '{}'", attribute.name)),
            None => Ok(Some(entry)),
        }
    }
}
