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
//! * `played`: how much of a plan is played
//! * [`profile`]: constants with units and sources, in files
//! * [`ways`]: links between ranks' GPUs
//! * `run`: one run of a plan

mod chooser;
mod played;
pub mod profile;
mod run;
#[cfg(test)]
mod tests;
pub mod ways;

use played::Until;

pub use chooser::{Means, TREES_BYTES_MIN, Way, largest_of_class};
pub use profile::Profile;
pub use run::{Moved, Span};
pub use ways::Ways;

use crate::error::Result;
use crate::plan::{Choice, Collective, CollectiveRequest, build};
use crate::topology::in_switch::InSwitch;
use crate::topology::ranks::RankGpu;

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
        self.play(choice, moved, Until::End)
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
        let table = candidates.first().and_then(|first| self.predict(first, moved));
        let Some(table) = table else { return 0 };
        self.cheapest(candidates, moved, SHARE_MAX * table.us).unwrap_or(0)
    }

    /// Of candidates, the one that costs least, and at most so much; of equals, the first. What is
    /// seen to cost more than one before is played no further.
    fn cheapest(&self, candidates: &[Choice], moved: Moved, us_max: f64) -> Option<usize> {
        let mut best = (us_max, None);
        for (nth, choice) in candidates.iter().enumerate() {
            // Of the last one it suffices that it costs less than all others.
            let until = match nth + 1 < candidates.len() || best.1.is_none() {
                true => Until::Above(best.0),
                false => Until::Decided(best.0),
            };
            let seen = self.play(choice, moved, until).map(|it| it.us);
            let is_better = |us: &f64| *us < best.0 || *us == best.0 && best.1.is_none();
            if let Some(us) = seen.filter(is_better) {
                best = (us, Some(nth));
            }
        }
        best.1
    }
}

/// The messages of a plan, and the links that carry them when, with the time at which all is done.
pub fn spans(choice: &Choice, profile: &Profile, ways: &Ways, moved: Moved) -> (Vec<Span>, f64) {
    let asked = run::Asked { spans: true, ..run::Asked::END };
    let run = run::run(&build(choice), profile, ways, moved, asked);
    (run.spans, run.end)
}
