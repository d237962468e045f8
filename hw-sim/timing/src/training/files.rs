//! Models and clusters as TOML files.

use crate::text;
use serde::Deserialize;
use std::path::Path;
use toml::{Spanned, Table};

/// More are a slip.
const LAYERS_MAX: usize = 100_000;

const MODELS: [(&str, &str); 4] = [
    ("vgg-a", include_str!("../../models/vgg-a.toml")),
    ("overfeat-fast", include_str!("../../models/overfeat-fast.toml")),
    ("dnn-7", include_str!("../../models/dnn-7.toml")),
    ("transformer-70b", include_str!("../../models/transformer-70b.toml")),
];

const CLUSTERS: [(&str, &str); 4] = [
    ("haswell-aries", include_str!("../../clusters/haswell-aries.toml")),
    ("xeon-fdr", include_str!("../../clusters/xeon-fdr.toml")),
    ("cloud-10g", include_str!("../../clusters/cloud-10g.toml")),
    ("h100-400g", include_str!("../../clusters/h100-400g.toml")),
];

/// A file that is no model or no cluster.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Neither built in nor to be read.
    #[error("{name}: {reason}; built in are {known}")]
    Unreadable {
        /// What was asked for.
        name: String,
        /// Why it could not be read.
        reason: String,
        /// Names that are built in.
        known: String,
    },
    /// What it says is wrong.
    #[error("{name}: {reason}")]
    Wrong {
        /// Which file.
        name: String,
        /// Line, and what is wrong with it.
        reason: String,
    },
}

/// A network to train.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its name.
    pub name: String,
    /// Where its layers are published.
    pub source: String,
    /// Bytes of a gradient and of an activation on the wire.
    pub element_bytes: f64,
    /// Bytes that a parameter takes on each worker that has it, with its gradient.
    pub state_bytes: f64,
    /// Bytes of its optimiser's state that workers with the same parameters share out.
    pub sharded_bytes: f64,
    /// From the input on; repeated ones one by one.
    pub layers: Vec<Layer>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenModel {
    name: String,
    source: String,
    element_bytes: Spanned<f64>,
    state_bytes: Spanned<f64>,
    sharded_bytes: Option<Spanned<f64>>,
    layer: Vec<Spanned<Table>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "lowercase")]
enum WrittenLayer {
    Convolution {
        name: String,
        inputs: f64,
        outputs: f64,
        kernel: f64,
        size: f64,
    },
    Dense {
        name: String,
        inputs: f64,
        outputs: f64,
        /// Positions of a sample that it is applied to.
        positions: Option<f64>,
        repeat: Option<u32>,
    },
    Block {
        name: String,
        parameters: f64,
        flops: f64,
        activations: f64,
        /// How often workers that share it exchange its activations, in each direction.
        exchanges: f64,
        repeat: Option<u32>,
    },
}

/// One layer, by what it costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Its name.
    pub name: String,
    /// May several workers share it out?
    pub is_dense: bool,
    /// Floating-point operations forwards, for one sample.
    pub flops: f64,
    /// How many there are.
    pub parameters: f64,
    /// Elements of its input, for one sample.
    pub activations: f64,
    /// How often workers that share it exchange so many elements, in each direction.
    pub exchanges: f64,
}

/// A number with its origin.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Constant {
    value: f64,
    unit: String,
    source: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCluster {
    name: String,
    summary: String,
    worker: WrittenWorker,
    network: WrittenNetwork,
    group: Option<WrittenGroup>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenWorker {
    peak: Spanned<Constant>,
    convolution: Spanned<Constant>,
    dense: Spanned<Constant>,
    half_batch: Spanned<Constant>,
    memory: Spanned<Constant>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenNetwork {
    rate: Spanned<Constant>,
    reached: Spanned<Constant>,
    latency: Spanned<Constant>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenGroup {
    workers: Spanned<Constant>,
    rate: Spanned<Constant>,
    latency: Spanned<Constant>,
}

/// Workers that a network joins.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Its name.
    pub name: String,
    /// What it is.
    pub summary: String,
    /// Floating-point operations a second that convolutions reach on large batches.
    pub convolution: f64,
    /// The same of dense layers.
    pub dense: f64,
    /// Samples on a worker with which it reaches half of that.
    pub half_batch: f64,
    /// Bytes of a worker.
    pub memory: f64,
    /// The network between workers.
    pub network: Link,
    /// Workers that a faster network joins in groups, and that network.
    pub group: Option<(u32, Link)>,
}

/// What a worker sends over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bytes a second in each direction.
    pub rate: f64,
    /// Seconds of a message, besides.
    pub latency: f64,
}

impl Model {
    /// A built-in model, or one from a file.
    ///
    /// # Errors
    /// [`FileError`] with file, line or key, and reason.
    pub fn find(name: &str) -> Result<Self, FileError> {
        Self::parse(&find(name, "network", &MODELS)?, name)
    }

    /// From the text of a file of this name.
    ///
    /// # Errors
    /// As [`Model::find`].
    pub fn parse(text: &str, name: &str) -> Result<Self, FileError> {
        let written: WrittenModel = read(text, name)?;
        let wrong = |reason: String| FileError::Wrong { name: name.into(), reason };
        let bytes = |key: &str, value: &Spanned<f64>, low: f64| {
            within(key, *value.get_ref(), low, 1024.0)
                .map(|()| *value.get_ref())
                .map_err(|reason| wrong(at_line(text, value, &reason)))
        };
        let sharded = written.sharded_bytes.as_ref();
        let mut model = Self {
            element_bytes: bytes("element_bytes", &written.element_bytes, 0.125)?,
            state_bytes: bytes("state_bytes", &written.state_bytes, 0.125)?,
            sharded_bytes: sharded.map_or(Ok(0.0), |it| bytes("sharded_bytes", it, 0.0))?,
            layers: Vec::new(),
            name: written.name,
            source: written.source,
        };
        for written in written.layer {
            let line = text::line_of(text, written.span().start);
            // One by one: of a list of layers, errors name the first one's line.
            let start = written.span().start;
            let written = WrittenLayer::deserialize(written.into_inner())
                .map_err(|error| wrong(text::fault_at(text, start, &error)))?;
            let (layer, repeat) = written.cost();
            for (key, value) in [
                ("operations", layer.flops),
                ("parameters", layer.parameters),
                ("activations", layer.activations),
            ] {
                within(key, value, 1.0, 1e18).map_err(|reason| {
                    wrong(format!("line {line}: layer {}: {reason}", layer.name))
                })?;
            }
            within("exchanges", layer.exchanges, 0.0, 64.0)
                .and_then(|()| within("repeat", f64::from(repeat), 1.0, 10_000.0))
                .map_err(|reason| wrong(format!("line {line}: layer {}: {reason}", layer.name)))?;
            if model.layers.len() + repeat as usize > LAYERS_MAX {
                return Err(wrong(format!("more than {LAYERS_MAX} layers")));
            }
            model.layers.extend((0..repeat).map(|_| layer.clone()));
        }
        if model.layers.is_empty() {
            return Err(wrong("no layers".into()));
        }
        Ok(model)
    }
}

impl WrittenLayer {
    fn cost(&self) -> (Layer, u32) {
        match self.clone() {
            Self::Convolution { name, inputs, outputs, kernel, size } => {
                let parameters = inputs * outputs * kernel * kernel;
                let flops = 2.0 * parameters * size * size;
                // Not exchanged: each worker has all of it.
                let activations = inputs * size * size;
                let layer =
                    Layer { name, is_dense: false, flops, parameters, activations, exchanges: 0.0 };
                (layer, 1)
            }
            Self::Dense { name, inputs, outputs, positions, repeat } => {
                let (parameters, positions) = (inputs * outputs, positions.unwrap_or(1.0));
                let (flops, activations) = (2.0 * parameters * positions, inputs * positions);
                let layer =
                    Layer { name, is_dense: true, flops, parameters, activations, exchanges: 1.0 };
                (layer, repeat.unwrap_or(1))
            }
            Self::Block { name, parameters, flops, activations, exchanges, repeat } => {
                let layer =
                    Layer { name, is_dense: true, flops, parameters, activations, exchanges };
                (layer, repeat.unwrap_or(1))
            }
        }
    }
}

impl Cluster {
    /// A built-in cluster, or one from a file.
    ///
    /// # Errors
    /// [`FileError`] with file, line or key, and reason.
    pub fn find(name: &str) -> Result<Self, FileError> {
        Self::parse(&find(name, "cluster", &CLUSTERS)?, name)
    }

    /// From the text of a file of this name.
    ///
    /// # Errors
    /// As [`Cluster::find`].
    pub fn parse(text: &str, name: &str) -> Result<Self, FileError> {
        let written: WrittenCluster = read(text, name)?;
        let taken = |key: &str, written: &Spanned<Constant>, unit: &str, low: f64, high: f64| {
            let wrong = |reason: String| FileError::Wrong {
                name: name.into(),
                reason: at_line(text, written, &format!("{key}: {reason}")),
            };
            let constant = written.get_ref();
            if constant.unit != unit {
                return Err(wrong(format!(
                    "expected the unit \"{unit}\", got \"{}\"",
                    constant.unit
                )));
            }
            if constant.source.trim().is_empty() {
                return Err(wrong("source is missing: a publication, fit or assumed".into()));
            }
            within("value", constant.value, low, high).map_err(wrong)?;
            Ok(constant.value)
        };
        let WrittenCluster { worker, network, group, .. } = &written;
        let peak = taken("worker.peak", &worker.peak, "GFLOP/s", 1e-3, 1e9)? * 1e9;
        let ratio = |key: &str, it: &Spanned<Constant>| taken(key, it, "ratio", 1e-6, 1.0);
        let rate = |key: &str, it: &Spanned<Constant>| Ok(taken(key, it, "GB/s", 1e-6, 1e6)? * 1e9);
        let latency =
            |key: &str, it: &Spanned<Constant>| Ok(taken(key, it, "us", 0.0, 1e6)? * 1e-6);
        let reached = ratio("network.reached", &network.reached)?;
        let group = match group {
            None => None,
            Some(group) => {
                let workers = taken("group.workers", &group.workers, "count", 2.0, 1e6)? as u32;
                let rate = rate("group.rate", &group.rate)?;
                Some((workers, Link { rate, latency: latency("group.latency", &group.latency)? }))
            }
        };
        Ok(Self {
            convolution: peak * ratio("worker.convolution", &worker.convolution)?,
            dense: peak * ratio("worker.dense", &worker.dense)?,
            half_batch: taken("worker.half_batch", &worker.half_batch, "samples", 0.0, 1e6)?,
            memory: taken("worker.memory", &worker.memory, "GB", 1e-3, 1e6)? * 1e9,
            network: Link {
                rate: rate("network.rate", &network.rate)? * reached,
                latency: latency("network.latency", &network.latency)?,
            },
            group,
            name: written.name,
            summary: written.summary,
        })
    }
}

fn at_line<T>(text: &str, written: &Spanned<T>, reason: &str) -> String {
    format!("line {}: {reason}", text::line_of(text, written.span().start))
}

fn within(key: &str, value: f64, low: f64, high: f64) -> Result<(), String> {
    // Not the other way round: a value that is no number must be refused, too.
    let fine = value >= low && value <= high;
    if fine { Ok(()) } else { Err(format!("{key}: expected {low} to {high}, got {value}")) }
}

fn find(name: &str, what: &str, known: &[(&str, &str)]) -> Result<String, FileError> {
    if let Some((_, text)) = known.iter().find(|(known, _)| *known == name) {
        return Ok((*text).into());
    }
    text::read(Path::new(name), what).map_err(|error| {
        let known = known.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        FileError::Unreadable { name: name.into(), reason: error.to_string(), known }
    })
}

fn read<T: for<'de> Deserialize<'de>>(text: &str, name: &str) -> Result<T, FileError> {
    toml::from_str(text).map_err(|error| FileError::Wrong {
        name: name.into(),
        reason: text::syntax_error(text, &error),
    })
}
