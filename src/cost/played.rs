//! How much of a plan is played, and what is known of it before.
//!
//! Of a plan of many rounds a few are played, of many blocks that do the same a few, and none of a
//! plan whose links or hops alone take longer than another plan.

use super::run::{self, Asked, Moved, Run};
use super::ways::{LinkId, Ways};
use super::{Limit, Model, Prediction, Profile};
use crate::plan::{Algorithm, Choice, Collective, GRANULE_BYTES, SLICES_AHEAD, build};
use std::sync::Arc;

/// Messages of a lane after which rounds last as long as those before: there are as many slots.
const MESSAGES_PLAYED: u32 = 3;

/// Blocks that are played of those that do the same over lanes of stores.
const ALIKE_PLAYED: u32 = 4;
/// The same of blocks along trees: one of each tree at least.
const ALONG_TREES_PLAYED: u32 = 16;

/// Blocks over lanes of stores that do the same, with other data, share links and memory equally.
/// So a few of them with as large a part of links and memory take as long as all. `None` where
/// there are no more than that, and where engines move data.
pub(super) fn fewer_blocks(
    choice: &Choice,
    profile: &Profile,
    ways: &Ways,
) -> Option<(Choice, Profile, Ways)> {
    let is_stored = choice.stores && choice.ranks_per_node == choice.request.rank_count;
    let mut few = choice.clone();
    let ways = match choice.algorithm {
        _ if !is_stored => return None,
        Algorithm::Packed => match (choice.forest.as_ref()?.turning(), ways.folded()) {
            // Each rank has each place in one of the trees: so on the links of all ranks is what
            // one tree has on all of its links.
            (Some(tree), Some(ways)) => {
                (few.blocks, few.forest) = (choice.blocks_of_tree(), Some(Arc::new(tree)));
                ways
            }
            _ => {
                let trees = choice.forest.as_ref()?.trees().len() as u32;
                few.blocks = trees * (ALONG_TREES_PLAYED / trees).clamp(1, choice.blocks / trees);
                ways.shared(f64::from(few.blocks) / f64::from(choice.blocks))
            }
        },
        Algorithm::TwoShot | Algorithm::Symmetric | Algorithm::RingSymmetric => {
            few.blocks = ALIKE_PLAYED.min(choice.blocks);
            ways.shared(f64::from(few.blocks) / f64::from(choice.blocks))
        }
        _ => return None,
    };
    if few.blocks == choice.blocks {
        return None;
    }
    let share = f64::from(few.blocks) / f64::from(choice.blocks);
    let rounds = choice.request.bytes as f64 / choice.round_bytes() as f64;
    let bytes = (rounds * few.round_bytes() as f64).ceil() as u64;
    // Whole granules stay whole: of others, ops do not share a pass.
    few.request.bytes = match choice.request.bytes.is_multiple_of(GRANULE_BYTES) {
        true => bytes.next_multiple_of(GRANULE_BYTES),
        false => bytes,
    };
    few.set_slice_bytes(choice.slice_bytes);
    let mut profile = profile.clone();
    profile.memory *= share;
    profile.stagger /= share;
    Some((few, profile, ways))
}

/// How far a plan is played.
#[derive(Clone, Copy)]
pub(super) enum Until {
    /// To its end.
    End,
    /// Until it is seen to cost more than this. µs.
    Above(f64),
    /// The same, or until it is seen to cost no more: then it is said to cost what is sure.
    Decided(f64),
}

impl Until {
    fn us_max(self) -> f64 {
        match self {
            Self::End => f64::MAX,
            Self::Above(us) | Self::Decided(us) => us,
        }
    }
}

impl Model {
    /// What a choice costs; `None` for another number of ranks than the machine has, and for a
    /// choice that is seen to cost too much.
    pub(super) fn play(&self, choice: &Choice, moved: Moved, until: Until) -> Option<Prediction> {
        let (Self { profile, ways }, us_max) = (self, until.us_max());
        if choice.request.rank_count != ways.rank_count()
            || self.along_trees(choice, moved) > us_max
        {
            return None;
        }
        let fewer = fewer_blocks(choice, profile, ways);
        let (choice, profile, ways) = match &fewer {
            Some((choice, profile, ways)) => (choice, profile, ways),
            None => (choice, profile, ways),
        };
        let play = |choice: &Choice| {
            let asked = Asked { until: us_max, ..Asked::END };
            let run = run::run(&build(choice), profile, ways, moved, asked);
            Some(run).filter(|run| run.end <= us_max)
        };
        let (round, [few, more]) = rounds_played(choice);
        let rounds = choice.request.bytes as f64 / round.round_bytes() as f64;
        let is_decided = matches!(until, Until::Decided(_)) && rounds > f64::from(few);
        if rounds <= f64::from(more) && !is_decided {
            let run = play(choice)?;
            return Some(Prediction { us: run.end, limit: limit(&run, ways) });
        }
        let play_rounds = |rounds: u32| {
            let mut short = round.clone();
            short.request.bytes = u64::from(rounds) * round.round_bytes();
            short.set_slice_bytes(choice.slice_bytes);
            play(&short)
        };
        let short = play_rounds(few)?;
        // Each round more keeps the busiest link as long as one of these, and takes no longer than
        // it would alone.
        let busiest = short.links.iter().copied().fold(0.0, f64::max) / f64::from(few);
        if short.end + busiest * (rounds - f64::from(few)) > us_max {
            return None;
        }
        let us = short.end * rounds / f64::from(few);
        if is_decided && us <= us_max {
            return Some(Prediction { us, limit: limit(&short, ways) });
        }
        if rounds <= f64::from(more) {
            let run = play(choice)?;
            return Some(Prediction { us: run.end, limit: limit(&run, ways) });
        }
        let long = play_rounds(more)?;
        let us = long.end + (long.end - short.end) * (rounds - f64::from(more));
        Some(Prediction { us, limit: limit(&long, ways) })
    }

    /// No plan along packed trees costs less than this: on one node, what its busiest link takes
    /// for all data of the trees that have it, and what the hops of the deepest tree do. µs.
    fn along_trees(&self, choice: &Choice, moved: Moved) -> f64 {
        let Self { profile, ways } = self;
        let forest = match &choice.forest {
            Some(forest) if choice.ranks_per_node == choice.request.rank_count => forest,
            _ => return 0.0,
        };
        let collective = choice.request.collective;
        let is_both_ways = collective == Collective::AllReduce;
        let parts = match (is_both_ways, forest.root()) {
            (false, None) => forest.trees_per_root(),
            _ => forest.trees().len() as u32,
        };
        let bytes = choice.request.bytes as f64 / f64::from(parts);
        let mut busy = vec![0.0; ways.link_count()];
        for (above, below) in forest.trees().iter().flat_map(|tree| tree.links()) {
            let down = (!collective.reduces() || is_both_ways).then_some((above, below));
            let up = collective.reduces().then_some((below, above));
            for (from, to) in down.into_iter().chain(up) {
                for link in &ways.between(from, to, moved.by_device).links {
                    busy[link.0 as usize] += bytes / ways.rate(*link);
                }
            }
        }
        let hops = forest.trees().iter().map(|tree| tree.depth()).max().unwrap_or(0);
        let hop = profile.op + profile.step + profile.store_latency;
        let of_hops = f64::from(if is_both_ways { 2 * hops } else { hops }) * hop;
        profile.launch + busy.into_iter().fold(of_hops, f64::max)
    }
}

/// Rounds that stand for those of a longer plan, and how many of them: what one more costs is the
/// difference between the two. Rounds along trees are cut to the messages that a rank sends ahead.
fn rounds_played(choice: &Choice) -> (Choice, [u32; 2]) {
    let mut round = choice.clone();
    if let Some(forest) = &choice.forest {
        let depth = forest.trees().iter().map(|tree| tree.depth()).max().unwrap_or(0);
        round.slices = choice.slices.min((SLICES_AHEAD * depth).max(MESSAGES_PLAYED));
    }
    let few = MESSAGES_PLAYED.div_ceil(round.slices.max(1));
    (round, [few, few + 1])
}

/// What a run is busy with.
fn limit(run: &Run, ways: &Ways) -> Limit {
    let share = |busy: f64| if run.end > 0.0 { busy / run.end } else { 0.0 };
    let busiest = (0..).zip(&run.links).max_by(|a, b| a.1.total_cmp(b.1));
    let link = busiest.map_or(Limit::Latency, |(number, busy)| {
        Limit::Link(ways.name(LinkId(number)).to_owned(), share(*busy))
    });
    let of_link = busiest.map_or(0.0, |(_, busy)| *busy);
    let all = [
        (of_link, link),
        (run.engine, Limit::Engine(share(run.engine))),
        (run.block, Limit::Blocks(share(run.block))),
    ];
    let most = all.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).expect("three");
    if share(most.0) < 0.5 { Limit::Latency } else { most.1 }
}
