//! Labelled sparse samples: read in LIBSVM's format, or drawn from a seed.

use std::fmt::{self, Write as _};

/// Samples of two classes, in sparse rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// +1 or -1 for each sample.
    pub labels: Vec<f64>,
    /// What the file calls the classes +1 and -1.
    pub names: [f64; 2],
    /// Sample i has entries `offsets[i]..offsets[i + 1]`.
    pub offsets: Vec<u32>,
    /// From 0; ascending in each sample. A file counts from 1.
    pub columns: Vec<u32>,
    pub values: Vec<f64>,
    /// Columns of all samples.
    pub width: u32,
}

/// A line that is no sample.
#[derive(Debug, PartialEq, Eq)]
pub struct BadData {
    /// Counted from 1; 0 where the file as a whole is meant.
    line: usize,
    reason: String,
}

impl fmt::Display for BadData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.reason),
            line => write!(f, "line {line}: {}", self.reason),
        }
    }
}

impl std::error::Error for BadData {}

/// More columns than this are taken for a mistake: each GPU keeps two rows with all columns.
const COLUMNS_MAX: u32 = 1 << 24;

impl Problem {
    /// Reads what a file has, as [`Problem::parse`] does.
    pub fn read(bytes: &[u8]) -> Result<Self, BadData> {
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let before = &bytes[..error.valid_up_to()];
            let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
            BadData { line, reason: "not UTF-8".into() }
        })?;
        Self::parse(text)
    }

    /// Reads lines of `LABEL COLUMN:VALUE...`, columns from 1 and ascending, `#` before a remark.
    pub fn parse(text: &str) -> Result<Self, BadData> {
        let mut rows = Self::empty();
        let mut raw = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let bad = |reason: String| BadData { line: number + 1, reason };
            let mut words = line.split_whitespace();
            let Some(label) = words.next() else { continue };
            raw.push(finite(label).ok_or_else(|| bad(format!("label \"{label}\" is no number")))?);
            let mut entries = Vec::new();
            for word in words {
                let entry = word.split_once(':').and_then(|(column, value)| {
                    Some((column.parse::<u32>().ok()?, finite(value)?))
                });
                let (column, value) =
                    entry.ok_or_else(|| bad(format!("\"{word}\" is not COLUMN:VALUE")))?;
                if column == 0 || column > COLUMNS_MAX {
                    return Err(bad(format!("column {column} is not in 1 to {COLUMNS_MAX}")));
                }
                if entries.last().is_some_and(|(last, _)| *last >= column - 1) {
                    return Err(bad(format!("column {column} is not after the one before it")));
                }
                entries.push((column - 1, value));
            }
            rows.push(&entries).map_err(bad)?;
        }
        let all = |reason: String| BadData { line: text.lines().count(), reason };
        rows.names = names(&raw).map_err(all)?;
        rows.labels = raw.iter().map(|it| if *it == rows.names[0] { 1.0 } else { -1.0 }).collect();
        Ok(rows)
    }

    /// Two clouds of points, one in three other columns each, that overlap a little.
    pub fn draw(samples: usize, width: u32, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut rows = Self::empty();
        rows.names = [1.0, -1.0];
        for number in 0..samples {
            let label = if number % 2 == 0 { 1.0 } else { -1.0 };
            let columns = (0..width).filter(|column| column % 3 == 0 || random.u32(0..3) == 0);
            let columns: Vec<u32> = columns.collect();
            let entries: Vec<(u32, f64)> = columns
                .into_iter()
                .map(|column| {
                    // The sum of four: about a normal distribution.
                    let noise: f64 = (0..4).map(|_| random.f64() - 0.5).sum();
                    (column, noise + label * if column < 4 { 0.4 } else { 0.05 })
                })
                .collect();
            rows.labels.push(label);
            rows.push(&entries).expect("few entries");
        }
        rows
    }

    /// As [`Problem::parse`] reads it.
    pub fn file(&self) -> String {
        let mut text = String::new();
        for (number, label) in self.labels.iter().enumerate() {
            let name = self.names[usize::from(*label < 0.0)];
            write!(text, "{name}").expect("a string takes it");
            for (column, value) in self.row(number) {
                write!(text, " {}:{value}", column + 1).expect("a string takes it");
            }
            text.push('\n');
        }
        text
    }

    fn empty() -> Self {
        let (labels, columns, values) = (Vec::new(), Vec::new(), Vec::new());
        Self { labels, names: [1.0, -1.0], offsets: vec![0], columns, values, width: 0 }
    }

    fn push(&mut self, entries: &[(u32, f64)]) -> Result<(), String> {
        let kept = entries.iter().filter(|(_, value)| *value != 0.0);
        for (column, value) in kept {
            self.columns.push(*column);
            self.values.push(*value);
            self.width = self.width.max(column + 1);
        }
        let end = u32::try_from(self.values.len()).map_err(|_| "more than 2^32 values")?;
        self.offsets.push(end);
        Ok(())
    }

    /// How many samples there are.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// The entries of a sample.
    pub fn row(&self, number: usize) -> impl Iterator<Item = (u32, f64)> {
        let range = self.offsets[number] as usize..self.offsets[number + 1] as usize;
        self.columns[range.clone()].iter().copied().zip(self.values[range].iter().copied())
    }

    /// The sum of the squares of a sample.
    pub fn square(&self, number: usize) -> f64 {
        self.row(number).map(|(_, value)| value * value).sum()
    }

    /// The most entries of one sample.
    pub fn longest(&self) -> usize {
        self.offsets.windows(2).map(|pair| (pair[1] - pair[0]) as usize).max().unwrap_or(0)
    }

    /// Part `number` of `count`, of samples that stand together.
    pub fn part(&self, number: usize, count: usize) -> std::ops::Range<usize> {
        self.len() * number / count..self.len() * (number + 1) / count
    }
}

fn finite(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value: &f64| value.is_finite())
}

/// The two classes: +1 and -1 by their sign, others in the order in which they come.
fn names(labels: &[f64]) -> Result<[f64; 2], String> {
    let first = *labels.first().ok_or("no samples")?;
    let other =
        labels.iter().find(|label| **label != first).ok_or("all samples are of one class")?;
    if let Some(third) = labels.iter().find(|label| **label != first && *label != other) {
        return Err(format!("three classes, {first}, {other} and {third}; two can be told apart"));
    }
    Ok(if (first, *other) == (-1.0, 1.0) { [1.0, -1.0] } else { [first, *other] })
}
