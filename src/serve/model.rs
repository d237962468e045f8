//! Models: named tensors, and the shards that they are spread over.
//!
//! ```json
//! {
//!   "ringdove_model": 1,
//!   "name": "mnist",
//!   "tensors": [
//!     {"name": "dense/w", "type": "f32", "shape": [784, 10]},
//!     {"name": "dense/b", "type": "f32", "shape": [10]}
//!   ]
//! }
//! ```
//!
//! A name has parts between slashes. Each is a folder or a file in
//! [`ringdove mount`](super), so none is empty, `.` or `..`, and no tensor's name is a folder of
//! another's.

use crate::error::{json_reason, line_of};
use ringdove_kernels::element::DataType;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The format that this version reads.
const FORMAT: u32 = 1;
/// The largest description.
const TEXT_BYTES_MAX: usize = 16 << 20;
/// The most tensors.
const TENSORS_MAX: usize = 1 << 16;
/// The most dimensions of a tensor.
const DIMENSIONS_MAX: usize = 16;
/// The largest tensor, and the largest model: sums of them fit into 64 bits with ease.
const BYTES_MAX: u64 = 1 << 40;
/// The longest part of a name: what file systems take.
const PART_BYTES_MAX: usize = 255;
/// Where tensors begin in a shard.
pub(super) const ALIGNMENT: u64 = 64;

/// A description that makes no sense: where, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelError {
    /// The file, as it was named.
    pub file: String,
    /// Counted from 1; 0 where the file as a whole is meant.
    pub line: usize,
    /// What is wrong.
    pub reason: String,
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.reason),
            line => write!(f, "{}:{line}: {}", self.file, self.reason),
        }
    }
}

impl std::error::Error for ModelError {}

/// A tensor of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name, unique in the model.
    pub name: String,
    /// The type of its elements.
    pub data_type: DataType,
    /// Elements in each dimension; none for a single number.
    pub shape: Vec<u64>,
}

impl Tensor {
    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.data_type.size_bytes() as u64
    }
}

/// A list of tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    name: String,
    tensors: Vec<Tensor>,
}

/// Where a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) shard: usize,
    /// Its first byte in the shard.
    pub(super) offset: u64,
}

/// The tensors of a model in their shards.
#[derive(Clone, Debug)]
pub(super) struct Sharding {
    /// Of each tensor.
    pub(super) places: Vec<Place>,
    /// Of each shard; a multiple of [`ALIGNMENT`], at least that.
    pub(super) bytes: Vec<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File<'a> {
    ringdove_model: u32,
    name: String,
    #[serde(borrow)]
    tensors: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    #[serde(rename = "type")]
    data_type: String,
    shape: Vec<u64>,
}

impl Model {
    /// Reads a description. `file` is its name, for errors.
    ///
    /// # Errors
    /// [`ModelError`] with the line, where there is one, and what is wrong with it.
    pub fn read(file: &str, text: &str) -> Result<Self, ModelError> {
        let fault = |line: usize, reason: String| ModelError { file: file.into(), line, reason };
        if text.len() > TEXT_BYTES_MAX {
            let reason = format!("expected at most {TEXT_BYTES_MAX} bytes, seen {}", text.len());
            return Err(fault(0, reason));
        }
        let read: File<'_> =
            serde_json::from_str(text).map_err(|error| fault(error.line(), json_reason(&error)))?;
        if read.ringdove_model != FORMAT {
            let seen = read.ringdove_model;
            return Err(fault(0, format!("ringdove_model: expected {FORMAT}, seen {seen}")));
        }
        let (mut tensors, mut lines) = (Vec::new(), Vec::new());
        for raw in read.tensors {
            let line = line_of(text, raw.get());
            let entry: Entry = serde_json::from_str(raw.get())
                .map_err(|error| fault(line + error.line() - 1, json_reason(&error)))?;
            let data_type = DataType::named(&entry.data_type).ok_or_else(|| {
                let names = DataType::ALL.map(DataType::name).join(", ");
                let (tensor, seen) = (&entry.name, &entry.data_type);
                fault(line, format!("tensor {tensor:?}: type {seen:?}: expected one of {names}"))
            })?;
            tensors.push(Tensor { name: entry.name, data_type, shape: entry.shape });
            lines.push(line);
        }
        let line = |index: Option<usize>| index.map_or(0, |index| lines[index]);
        Self::check(&read.name, tensors).map_err(|(index, reason)| fault(line(index), reason))
    }

    /// A model of these tensors.
    ///
    /// # Errors
    /// What is wrong: a name that is no path below a folder or that is there twice, a size.
    pub fn of(name: &str, tensors: Vec<Tensor>) -> Result<Self, String> {
        Self::check(name, tensors).map_err(|(_, reason)| reason)
    }

    /// As [`of`](Self::of); the error begins with the tensor that is meant, if it is one.
    fn check(name: &str, tensors: Vec<Tensor>) -> Result<Self, (Option<usize>, String)> {
        let all_of_it = |reason| (None, reason);
        check_part(name).map_err(|why| all_of_it(format!("name of the model {name:?}: {why}")))?;
        if tensors.is_empty() || tensors.len() > TENSORS_MAX {
            let seen = tensors.len();
            return Err(all_of_it(format!("expected 1 to {TENSORS_MAX} tensors, seen {seen}")));
        }
        let mut all: u64 = 0;
        let (mut names, mut folders) = (BTreeSet::new(), BTreeSet::new());
        for (index, tensor) in tensors.iter().enumerate() {
            let of = |why| (Some(index), format!("tensor {:?}: {why}", tensor.name));
            tensor.name.split('/').try_for_each(check_part).map_err(of)?;
            if !names.insert(tensor.name.as_str()) {
                return Err(of("the name is there twice".into()));
            }
            let slashes = tensor.name.match_indices('/');
            folders.extend(slashes.map(|(at, _)| &tensor.name[..at]));
            if tensor.shape.len() > DIMENSIONS_MAX {
                let seen = tensor.shape.len();
                return Err(of(format!(
                    "expected at most {DIMENSIONS_MAX} dimensions, seen {seen}"
                )));
            }
            let size = tensor.data_type.size_bytes() as u64;
            let bytes = tensor.shape.iter().try_fold(size, |product: u64, count| {
                product.checked_mul(*count).filter(|bytes| (1..=BYTES_MAX).contains(bytes))
            });
            let shape = &tensor.shape;
            let expected = || of(format!("shape {shape:?}: expected 1 to {BYTES_MAX} bytes"));
            all += bytes.ok_or_else(expected)?.next_multiple_of(ALIGNMENT);
            if all > BYTES_MAX {
                let reason = format!("expected at most {BYTES_MAX} bytes in all tensors");
                return Err((Some(index), reason));
            }
        }
        match names.intersection(&folders).next() {
            Some(both) => {
                let index = tensors.iter().position(|tensor| tensor.name == *both);
                Err((index, format!("tensor {both:?}: it is a folder of another's name, too")))
            }
            None => Ok(Self { name: name.to_owned(), tensors }),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its tensors, in order.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The number of the tensor with this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.tensors.iter().position(|tensor| tensor.name == name)
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(Tensor::bytes).sum()
    }

    /// The tensors dealt out to `count` shards: the largest first, each to the shard that has
    /// least.
    pub(super) fn shard(&self, count: usize) -> Sharding {
        let mut order: Vec<usize> = (0..self.tensors.len()).collect();
        order.sort_by_key(|index| (u64::MAX - self.tensors[*index].bytes(), *index));
        let mut bytes = vec![0; count];
        let mut places = BTreeMap::new();
        for index in order {
            let (shard, offset) =
                bytes.iter().copied().enumerate().min_by_key(|(_, bytes)| *bytes).unwrap_or((0, 0));
            places.insert(index, Place { shard, offset });
            bytes[shard] = offset + self.tensors[index].bytes().next_multiple_of(ALIGNMENT);
        }
        let bytes = bytes.into_iter().map(|bytes| bytes.max(ALIGNMENT)).collect();
        Sharding { places: places.into_values().collect(), bytes }
    }

    /// A text that is equal for equal models, for members to compare.
    pub(super) fn term(&self) -> String {
        let mut hash = blake3::Hasher::new();
        for tensor in &self.tensors {
            let line =
                format!("{:?} {} {:?}\n", tensor.name, tensor.data_type.name(), tensor.shape);
            hash.update(line.as_bytes());
        }
        let (name, count) = (&self.name, self.tensors.len());
        format!("{name}: {count} tensors, {} bytes, {}", self.bytes(), hash.finalize().to_hex())
    }
}

/// Is this one part of a path, which stays in its folder?
fn check_part(part: &str) -> Result<(), String> {
    match part {
        "" | "." | ".." => Err(format!("{part:?} is no name of a file")),
        _ if part.len() > PART_BYTES_MAX => Err(format!("more than {PART_BYTES_MAX} bytes")),
        _ if part.contains(['/', '\\', '\0']) || part.chars().any(char::is_control) => {
            Err("a slash, backslash or control character in a name".into())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = r#"{"ringdove_model": 1, "name": "m", "tensors": [
        {"name": "a/w", "type": "f32", "shape": [3, 5]},
        {"name": "a/b", "type": "u8", "shape": [7]},
        {"name": "c", "type": "f64", "shape": []}]}"#;

    #[test]
    fn a_model_is_read_and_spread_over_shards() {
        let model = Model::read("m.json", GOOD).unwrap();
        assert_eq!((model.name(), model.bytes()), ("m", 60 + 7 + 8));
        assert_eq!(model.find("a/b"), Some(1));
        let sharding = model.shard(2);
        let place = |shard, offset| Place { shard, offset };
        assert_eq!(sharding.places, [place(0, 0), place(0, 64), place(1, 0)]);
        assert_eq!(sharding.bytes, [128, 64]);
        // More shards than tensors: none is empty, since each is registered memory.
        assert_eq!(model.shard(5).bytes, [64; 5]);
    }

    #[test]
    fn what_is_refused_is_named() {
        let refusal = |from: &str, to: &str| {
            let text = GOOD.replace(from, to);
            assert_ne!(text, GOOD);
            Model::read("m.json", &text).unwrap_err().to_string()
        };
        for (from, to, line, expected) in [
            ("a/w", "../w", 2, "no name of a file"),
            ("a/w", "/etc/passwd", 2, "no name of a file"),
            ("a/w", "a//w", 2, "no name of a file"),
            ("a/w", "a/b", 3, "there twice"),
            ("\"c\"", "\"a\"", 4, "a folder of another's name"),
            ("\"m\"", "\"..\"", 0, "name of the model"),
            ("\"f64\"", "\"f63\"", 4, "expected one of"),
            ("[7]", "[0]", 3, "expected 1 to"),
            ("[7]", "[18446744073709551615, 2]", 3, "expected 1 to"),
            ("[7]", "[-7]", 3, "invalid value"),
            ("[3, 5]", "[1099511627776]", 2, "expected 1 to"),
            ("\"f64\",", "\"f64\"\n", 5, "expected `,` or `}`"),
            (", \"shape\": [7]", "", 3, "missing field `shape`"),
            ("\"name\": \"m\",", "", 4, "missing field `name`"),
            ("\"ringdove_model\": 1", "\"ringdove_model\": 2", 0, "expected 1, seen 2"),
        ] {
            let message = refusal(from, to);
            let place = if line == 0 { "m.json: ".into() } else { format!("m.json:{line}: ") };
            assert!(message.starts_with(&place), "{to}: {message}");
            assert!(message.contains(expected), "{to}: {message}");
            // The place is said once.
            assert!(!message.contains(" at line "), "{to}: {message}");
        }
    }

    proptest! {
        /// If this fails, a text breaks the reader, or a model is taken whose files leave their
        /// folder.
        #[test]
        fn any_text_is_a_model_or_refused(
            at in 0..GOOD.len(),
            put in "[ -~]{0,8}",
            cut in 0..8_usize,
            garbage in ".{0,64}",
        ) {
            let end = (at + cut).min(GOOD.len());
            let text = format!("{}{put}{}", &GOOD[..at], &GOOD[end..]);
            for text in [text, garbage] {
                if let Ok(model) = Model::read("m.json", &text) {
                    prop_assert!(model.bytes() <= BYTES_MAX);
                    let leaves = |part: &str| ["", ".", ".."].contains(&part);
                    prop_assert!(!model.tensors().iter().any(|it| it.name.split('/').any(leaves)));
                    prop_assert_eq!(model.shard(3).places.len(), model.tensors().len());
                }
            }
        }
    }
}
