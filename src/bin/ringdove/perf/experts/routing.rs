//! Routings: which experts tokens choose. All processes compute the same from the seed.

use super::arguments::Arguments;
use crate::perf::error::PerfError;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// How tokens choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Every expert is equally likely.
    Uniform,
    /// Expert `n` is chosen as often as 1 / (n + 1).
    Zipf,
    /// Every token's first choice is expert 0, and it has no other.
    One,
    /// As uniform, and every other rank has no token.
    Empty,
    /// As uniform, and a third of the choices are none.
    None,
    /// Lines of numbers, for tokens one after the other.
    File(PathBuf),
}

impl FromStr for Distribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "uniform" => Self::Uniform,
            "zipf" => Self::Zipf,
            "one" => Self::One,
            "empty" => Self::Empty,
            "none" => Self::None,
            _ => match text.strip_prefix("file:") {
                Some(path) => Self::File(path.into()),
                None => {
                    return Err("expected uniform, zipf, one, empty, none or file:PATH".to_owned());
                }
            },
        })
    }
}

/// Indices and weights of all ranks.
pub struct Routings {
    pub indices: Vec<Vec<i64>>,
    pub weights: Vec<Vec<f32>>,
}

impl Routings {
    /// Those of `ranks` ranks with so many tokens.
    pub fn new(arguments: &Arguments, tokens: u32, ranks: usize) -> Result<Self, PerfError> {
        let mut random = fastrand::Rng::with_seed(arguments.seed);
        let mut source = Source::new(arguments)?;
        let (mut indices, mut weights) = (Vec::new(), Vec::new());
        for rank in 0..ranks {
            let is_empty = arguments.distribution == Distribution::Empty && rank % 2 == 1;
            let tokens = if is_empty { 0 } else { tokens };
            let chosen: Vec<i64> = (0..tokens).flat_map(|_| source.choices(&mut random)).collect();
            weights.push(chosen.iter().map(|_| random.f32()).collect());
            indices.push(chosen);
        }
        Ok(Self { indices, weights })
    }
}

impl Routings {
    /// How many ranks.
    pub fn count(&self) -> u32 {
        self.indices.len() as u32
    }
}

/// Where choices come from.
struct Source {
    experts: usize,
    top_k: usize,
    distribution: Distribution,
    /// How many of the least numbers are below each expert, out of 1, for `Zipf`.
    below: Vec<f64>,
    /// What a file says.
    lines: Vec<Vec<i64>>,
    next_line: usize,
}

impl Source {
    fn new(arguments: &Arguments) -> Result<Self, PerfError> {
        let (experts, top_k) = (arguments.experts as usize, arguments.top_k as usize);
        let total: f64 = (1..=experts).map(|number| 1.0 / number as f64).sum();
        let mut sum = 0.0;
        let below = (1..=experts).map(|number| {
            sum += 1.0 / number as f64 / total;
            sum
        });
        let lines = match &arguments.distribution {
            Distribution::File(path) => read(path, top_k)?,
            _ => Vec::new(),
        };
        let (below, distribution) = (below.collect(), arguments.distribution.clone());
        Ok(Self { experts, top_k, distribution, below, lines, next_line: 0 })
    }

    /// One token's choices, no two of them equal.
    fn choices(&mut self, random: &mut fastrand::Rng) -> Vec<i64> {
        if !self.lines.is_empty() {
            self.next_line += 1;
            return self.lines[(self.next_line - 1) % self.lines.len()].clone();
        }
        let mut chosen = Vec::with_capacity(self.top_k);
        while chosen.len() < self.top_k.min(self.experts) {
            let index = match self.distribution {
                Distribution::One => -i64::from(!chosen.is_empty()),
                Distribution::None if random.f32() < 1.0 / 3.0 => -1,
                Distribution::Zipf => {
                    let at = random.f64();
                    let found = self.below.partition_point(|below| *below < at);
                    found.min(self.experts - 1) as i64
                }
                _ => random.usize(..self.experts) as i64,
            };
            if index == -1 || !chosen.contains(&index) {
                chosen.push(index);
            }
        }
        chosen
    }
}

/// The lines of a file of routings.
fn read(path: &Path, top_k: usize) -> Result<Vec<Vec<i64>>, PerfError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| PerfError::Input { path: path.to_owned(), source })?;
    parse(&text, path, top_k)
}

/// The lines of a text of routings, which is that of the file at `path`.
fn parse(text: &str, path: &Path, top_k: usize) -> Result<Vec<Vec<i64>>, PerfError> {
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let words = line.split_whitespace().map(str::parse);
        let indices: Result<Vec<i64>, _> = words.collect();
        match indices {
            Ok(indices) if indices.len() == top_k => lines.push(indices),
            _ => {
                let expected = format!("{top_k} whole numbers in each line (-K)");
                let seen = format!("line {} of {}: {line}", number + 1, path.display());
                return Err(PerfError::Option { option: "--distribution", expected, seen });
            }
        }
    }
    if lines.is_empty() {
        let expected = "a file with lines".to_owned();
        let seen = format!("none in {}", path.display());
        return Err(PerfError::Option { option: "--distribution", expected, seen });
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// If this fails, a file with a slip ends the command by a panic, or is taken for routings.
        #[test]
        fn any_text_is_routings_or_refused(
            text in "([-0-9 \\n]|9{19}|\\PC){0,60}",
            top_k in 0usize..4,
        ) {
            match parse(&text, Path::new("routings"), top_k) {
                Ok(lines) => prop_assert!(
                    !lines.is_empty() && lines.iter().all(|line| line.len() == top_k)
                ),
                Err(error) => prop_assert!(error.to_string().contains("routings"), "{error}"),
            }
        }
    }
}
