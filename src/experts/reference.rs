//! What dispatch and combine give, computed on the CPU: every row and every bit. For tests of this
//! library and of programs that use it.

use super::Placement;
use super::config::{Config, Mode, SCALE_ELEMENTS, Scales};
use float8::F8E4M3;

/// The routing of all ranks, checked or not.
#[derive(Clone, Debug)]
pub struct Routing<'a> {
    /// The group.
    pub config: &'a Config,
    /// For each rank, `top_k` indices of each of its tokens.
    pub indices: &'a [Vec<i64>],
    /// As many weights.
    pub weights: &'a [Vec<f32>],
    /// [`Group::node_ranks`](super::Group::node_ranks).
    pub node_ranks: usize,
    /// Which rank has which experts.
    pub placement: Placement,
}

/// A received row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its place in the output.
    pub place: usize,
    /// The rank that it is from.
    pub source: usize,
    /// The token at that rank.
    pub token: usize,
    /// Which of its choices; in throughput mode, the first on this rank.
    pub choice: usize,
}

impl<'a> Routing<'a> {
    /// The routing of ranks with as many experts each, where no rows are relayed.
    pub fn new(config: &'a Config, indices: &'a [Vec<i64>], weights: &'a [Vec<f32>]) -> Self {
        let placement = Placement::even(indices.len() as u32);
        Self { config, indices, weights, node_ranks: 0, placement }
    }

    fn ranks(&self) -> usize {
        self.indices.len()
    }

    fn local_experts(&self) -> usize {
        self.config.experts as usize / self.placement.owners().len()
    }

    fn first_expert(&self, rank: usize) -> usize {
        self.placement.block(rank as u32) as usize * self.local_experts()
    }

    /// The indices of a token.
    fn choices(&self, rank: usize, token: usize) -> &[i64] {
        let top_k = self.config.top_k as usize;
        &self.indices[rank][token * top_k..][..top_k]
    }

    /// How many tokens a rank has.
    pub fn tokens(&self, rank: usize) -> usize {
        self.indices[rank].len() / self.config.top_k as usize
    }

    /// The rank of an expert; none for -1, and for an expert without a rank.
    pub fn owner(&self, index: i64) -> Option<usize> {
        let expert = usize::try_from(index).ok()?;
        self.placement.owners()[expert / self.local_experts()].map(|rank| rank as usize)
    }

    /// The rows that `rank` receives.
    pub fn rows(&self, rank: usize) -> Vec<Row> {
        let buckets: Vec<(usize, std::ops::Range<i64>)> = match self.config.mode {
            Mode::LowLatency => (0..self.local_experts())
                .map(|local| {
                    let expert = (self.first_expert(rank) + local) as i64;
                    let first = local * self.ranks() * self.config.tokens_max as usize;
                    (first, expert..expert + 1)
                })
                .collect(),
            Mode::Throughput => {
                let first = self.first_expert(rank) as i64;
                vec![(0, first..first + self.local_experts() as i64)]
            }
        };
        let mut rows = Vec::new();
        for (mut place, experts) in buckets {
            for source in 0..self.ranks() {
                for token in 0..self.tokens(source) {
                    let choices = self.choices(source, token);
                    if let Some(choice) = choices.iter().position(|index| experts.contains(index)) {
                        rows.push(Row { place, source, token, choice });
                        place += 1;
                    }
                }
            }
        }
        rows
    }

    /// The counts that `rank` receives.
    pub fn counts(&self, rank: usize) -> Vec<u32> {
        let first = self.first_expert(rank);
        let count = |expert: usize| {
            let all = self.indices.iter().flatten();
            let chosen = all.filter(|index| **index == expert as i64).count() as u32;
            chosen.next_multiple_of(self.config.alignment)
        };
        let mut counts: Vec<_> = (first..first + self.local_experts()).map(count).collect();
        if self.config.mode == Mode::Throughput {
            counts.push(self.rows(rank).len() as u32);
        }
        counts
    }

    /// The local experts of a received row, and their weights, in throughput mode.
    pub fn local_choices(&self, rank: usize, row: &Row) -> Vec<(i32, f32)> {
        let first = self.first_expert(rank) as i64;
        let weights = &self.weights[row.source][row.token * self.config.top_k as usize..];
        let choices = self.choices(row.source, row.token).iter().zip(weights);
        choices
            .map(|(index, weight)| match self.owner(*index) == Some(rank) {
                true => ((*index - first) as i32, *weight),
                false => (-1, 0.0),
            })
            .collect()
    }

    /// The rows that are added for a token, in their order: the choice that each stands for, and
    /// its factor. Those that another node adds first stand together.
    pub fn terms(&self, rank: usize, token: usize) -> Vec<Vec<(usize, f32)>> {
        let choices = self.choices(rank, token);
        let weights = &self.weights[rank][token * self.config.top_k as usize..];
        let node = |rank: usize| rank.checked_div(self.node_ranks);
        let mut terms: Vec<Vec<(usize, f32)>> = Vec::new();
        for (choice, index) in choices.iter().enumerate() {
            let Some(owner) = self.owner(*index) else { continue };
            if self.config.mode == Mode::LowLatency {
                terms.push(vec![(choice, weights[choice])]);
                continue;
            }
            let owners = || choices[..choice].iter().filter_map(|other| self.owner(*other));
            if owners().any(|other| other == owner) {
                continue;
            }
            let is_there = |sum: &Vec<(usize, f32)>| {
                let first = self.owner(choices[sum[0].0]);
                node(owner).is_some() && first.and_then(node) == node(owner)
            };
            match terms.iter_mut().find(|sum| node(owner) != node(rank) && is_there(sum)) {
                Some(sum) => sum.push((choice, 1.0)),
                None => terms.push(vec![(choice, 1.0)]),
            }
        }
        terms
    }

    /// A bit for each choice of a token whose expert has no rank.
    pub fn missing(&self, rank: usize, token: usize) -> u32 {
        let choices = self.choices(rank, token).iter().enumerate();
        let missing = choices.filter(|(_, index)| **index >= 0 && self.owner(**index).is_none());
        missing.map(|(choice, _)| 1 << choice).sum()
    }
}

/// One element of a combined token before it is rounded to the group's type: the sum over the
/// [`terms`](Routing::terms) of its token. `value` gives the element of the row for a choice;
/// `rounded` rounds to the group's type, as the sums of other nodes are.
pub fn combined(
    terms: &[Vec<(usize, f32)>],
    mut value: impl FnMut(usize) -> f32,
    rounded: impl Fn(f32) -> f32,
) -> f32 {
    let mut added = |rows: &[(usize, f32)]| {
        rows.iter().fold(0.0, |sum, (choice, factor)| sum + factor * value(*choice))
    };
    let sums = terms.iter().map(|rows| match rows.as_slice() {
        [one] => added(&[*one]),
        several => rounded(added(several)),
    });
    sums.fold(0.0, |sum, term| sum + term)
}

/// A token as e4m3, and its scales as f32, of blocks of 128 elements, the last of perhaps fewer: a
/// block's largest magnitude, 1e-4 at least, over 448;
/// for [`Scales::Ue8m0`] the next power of two. A value is divided by the scale in f32.
pub fn quantised(token: &[f32], scales: Scales) -> (Vec<F8E4M3>, Vec<f32>) {
    let blocks = token.chunks(SCALE_ELEMENTS as usize);
    let scale = |block: &[f32]| {
        let exact = block.iter().fold(1e-4_f32, |largest, value| largest.max(value.abs())) / 448.0;
        match scales {
            Scales::F32 => exact,
            Scales::Ue8m0 => f32::from_bits((exact.to_bits() + 0x7f_ffff) >> 23 << 23),
        }
    };
    let scales: Vec<f32> = blocks.clone().map(scale).collect();
    let blocks = blocks.zip(&scales);
    let values = blocks.flat_map(|(block, scale)| block.iter().map(move |value| value / scale));
    (values.map(F8E4M3::from_f32).collect(), scales)
}
