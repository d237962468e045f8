//! A model of what a plan costs, for the choice between plans and to explain it.
//!
//! A plan's blocks walk their programs against a machine's [`Ways`] with the constants of a
//! [`Profile`]: each pass, of the copies and sums that the executor carries in it, costs a fixed
//! time and its bytes at a block's rate; a doorbell goes to the engine of its rank, which serves
//! one after the other; a message of an engine takes the links of its way, each of which carries
//! one such message after the other at its rate; blocks that store share the links of their ways
//! fairly; a signal follows its data after the latency of its way and engine. What comes first is
//! played first. Of a plan of many rounds a few are played, and the others last as long as those.
//!
//! It leaves out what decides little: doorbells that a proxy merges, full rings, shares of an
//! engine's flows on one link, the parts of a device engine. `hwsim predict` has these; a test
//! compares the order in which both see plans (rank correlation over sizes and machines,
//! `hw-sim/cli`). All times are modelled, whatever machine they are printed on.
//!
//! * `chooser`: how all-reduces of a node are done
//! * [`profile`]: constants with units and sources, in files
//! * [`ways`]: links between ranks' GPUs
//! * `run`: one run of a plan

mod chooser;
pub mod profile;
mod run;
#[cfg(test)]
mod tests;
pub mod ways;

pub use chooser::{Means, TREES_BYTES_MIN, Way, has_mesh, largest_of_class};
pub use profile::Profile;
pub use run::{Moved, Span};
pub use ways::Ways;

use crate::error::Result;
use crate::plan::{Choice, Collective, CollectiveRequest, build};
use crate::topology::in_switch::InSwitch;
use crate::topology::ranks::RankGpu;

/// Messages of a lane after which rounds last as long as those before: there are as many slots.
const MESSAGES_PLAYED: u32 = 3;

/// What a plan costs in the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// µs from the call to the end of the last block.
    pub us: f64,
    /// What is busy for the most of the time.
    pub limit: Limit,
}

/// What limits a plan.
#[derive(Clone, Debug, PartialEq)]
pub enum Limit {
    /// Nothing is busy for half of the time.
    Latency,
    /// A block of a GPU, for this share of the time.
    Blocks(f64),
    /// An engine.
    Engine(f64),
    /// A link.
    Link(String, f64),
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Latency => f.write_str("latency"),
            Self::Blocks(share) => write!(f, "blocks {:.0} %", share * 100.0),
            Self::Engine(share) => write!(f, "issue {:.0} %", share * 100.0),
            Self::Link(name, share) => write!(f, "{name} {:.0} %", share * 100.0),
        }
    }
}

/// Another plan is taken where the model gives it this share of the time of what the table of
/// selection chooses, or less: the model errs by about as much.
const SHARE_MAX: f64 = 0.9;

/// A machine in the model.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its constants.
    pub profile: Profile,
    /// Its links.
    pub ways: Ways,
}

impl Model {
    /// That of ranks with these GPUs, so many on each node; without a profile, with the built-in
    /// one for the first GPU.
    ///
    /// # Errors
    /// As [`Ways::new`].
    pub fn of(gpus: &[RankGpu], per_node: u32, profile: Option<Profile>) -> Result<Self> {
        let fitting = || Profile::built_in(gpus.first().map_or("v100", Profile::for_gpu));
        let profile = profile.map_or_else(fitting, Ok)?;
        Ok(Self { ways: Ways::new(gpus, per_node, &profile)?, profile })
    }

    /// What a choice costs; `None` for another number of ranks than the machine has.
    pub fn predict(&self, choice: &Choice, moved: Moved) -> Option<Prediction> {
        predict(choice, &self.profile, &self.ways, moved)
    }

    /// µs of an all-reduce by multicast and reduction in switches between these GPUs, if they have
    /// such switches. *Planned*: no plan does it.
    pub fn in_switch(&self, gpus: &[RankGpu], request: &CollectiveRequest) -> Option<f64> {
        let switches =
            InSwitch::of(gpus).filter(|_| request.collective == Collective::AllReduce)?;
        let profile = &self.profile;
        let rate = switches.all_reduce_megabytes() as f64 * profile.nvlink_efficiency;
        // Up to the switch and back with the sums, and with a word that all have them.
        let hops = 2.0 * (2.0 * profile.nvlink_latency + profile.store_latency);
        Some(profile.launch + 2.0 * profile.op + hops + request.bytes as f64 / rate)
    }

    /// Of candidates, of which the first is what the table of selection has: the one that costs
    /// least, if it is so much better than the first that it is taken; of equals, the first.
    pub fn choose(&self, candidates: &[Choice], moved: Moved) -> usize {
        let costs = |(nth, choice)| Some((nth, self.predict(choice, moved)?.us));
        let all: Vec<(usize, f64)> = candidates.iter().enumerate().filter_map(costs).collect();
        let best = all.iter().min_by(|a, b| a.1.total_cmp(&b.1));
        match (all.first(), best) {
            (Some((0, table)), Some((nth, us))) if *us <= SHARE_MAX * table => *nth,
            _ => 0,
        }
    }
}

/// Predicts what a choice costs; `None` where there are no ways between so many ranks.
fn predict(choice: &Choice, profile: &Profile, ways: &Ways, moved: Moved) -> Option<Prediction> {
    if choice.request.rank_count != ways.rank_count() {
        return None;
    }
    let play = |choice: &Choice| run::run(&build(choice), profile, ways, moved, false);
    let [few, more] = rounds_played(choice.slices);
    if choice.rounds <= more {
        let run = play(choice);
        return Some(Prediction { us: run.end, limit: limit(&run, ways) });
    }
    let played = [few, more].map(|rounds| {
        let mut short = choice.clone();
        short.request.bytes = u64::from(rounds) * choice.round_bytes();
        short.set_slice_bytes(choice.slice_bytes);
        play(&short)
    });
    let [short, long] = played;
    let rounds = choice.request.bytes as f64 / choice.round_bytes() as f64;
    let us = long.end + (long.end - short.end) * (rounds - f64::from(more));
    Some(Prediction { us, limit: limit(&long, ways) })
}

/// Rounds that stand for those of a longer plan of so many messages a round: what one more costs is
/// the difference. The second number is one more than the first.
fn rounds_played(slices: u32) -> [u32; 2] {
    let few = MESSAGES_PLAYED.div_ceil(slices.max(1));
    [few, few + 1]
}

/// The messages of a plan, and the links that carry them when, with the time at which all is done.
pub fn spans(choice: &Choice, profile: &Profile, ways: &Ways, moved: Moved) -> (Vec<Span>, f64) {
    let run = run::run(&build(choice), profile, ways, moved, true);
    (run.spans, run.end)
}

fn limit(run: &run::Run, ways: &Ways) -> Limit {
    let share = |busy: f64| if run.end > 0.0 { busy / run.end } else { 0.0 };
    let busiest = (0..).zip(&run.links).max_by(|a, b| a.1.total_cmp(b.1));
    let link = busiest.map_or(Limit::Latency, |(number, busy)| {
        Limit::Link(ways.name(ways::LinkId(number)).to_owned(), share(*busy))
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
