//! How an all-reduce of one node is done: of all plans that its ranks could run, the one that costs
//! least in the model.
//!
//! The model is asked once for each class of sizes, eight of them between a size and its double; what
//! it prefers for the largest size of a class is taken for all of them.

use super::{Model, Moved};
use crate::plan::{
    Algorithm, Choice, CollectiveRequest, Forest, Limits, PlanError, candidates, select_packed,
    stored_all_reduces, GRANULE_BYTES,
};
use std::sync::Arc;

/// How an all-reduce goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// By which algorithm.
    pub algorithm: Algorithm,
    /// The most blocks of two hops over lanes of stores; `None`: not by these.
    pub stored: Option<u32>,
}

/// What the ranks of an all-reduce have.
#[derive(Clone, Copy, Debug)]
pub struct Means<'a> {
    /// Their limits.
    pub limits: Limits,
    /// Trees that are packed into the links between their GPUs.
    pub forest: Option<&'a Arc<Forest>>,
}

impl Means<'_> {
    /// All plans, with the way of each. That of the table of selection comes first.
    ///
    /// # Errors
    /// As [`candidates`].
    pub fn plans(&self, request: &CollectiveRequest) -> Result<Vec<(Way, Choice)>, PlanError> {
        let stored = stored_all_reduces(request, &self.limits)?;
        let of = |choice: Choice| {
            let blocks = || stored.iter().find(|(_, other)| *other == choice).map(|(most, _)| *most);
            let stored = match choice.stores && choice.algorithm == Algorithm::TwoShot {
                true => blocks().or(Some(self.limits.store_blocks)),
                false => None,
            };
            (Way { algorithm: choice.algorithm, stored }, choice)
        };
        let mut all: Vec<_> = candidates(request, &self.limits)?.into_iter().map(of).collect();
        let mut add = |way, choice| {
            if !all.iter().any(|(_, other)| *other == choice) {
                all.push((way, choice));
            }
        };
        for (blocks, choice) in &stored {
            add(Way { algorithm: choice.algorithm, stored: Some(*blocks) }, choice.clone());
        }
        let packed = self.forest.and_then(|it| select_packed(request, &self.limits, it).ok());
        if let Some(choice) = packed {
            add(Way { algorithm: choice.algorithm, stored: None }, choice);
        }
        Ok(all)
    }

    /// The plan that goes this way; where there is none, that of the table of selection.
    ///
    /// # Errors
    /// As [`candidates`].
    pub fn plan(&self, request: &CollectiveRequest, way: Way) -> Result<Choice, PlanError> {
        if let Some(blocks) = way.stored {
            let limits = Limits { store_blocks: blocks, ..self.limits };
            if let Some((_, choice)) = stored_all_reduces(request, &limits)?.pop() {
                return Ok(choice);
            }
        }
        let mut all = self.plans(request)?;
        let nth = all.iter().position(|(other, _)| *other == way).unwrap_or(0);
        Ok(all.swap_remove(nth).1)
    }
}

/// The largest size of the class of this one.
pub fn class_bytes(bytes: u64) -> u64 {
    let doubled = bytes.checked_next_power_of_two().unwrap_or(0);
    let step = (doubled / 2 / CLASSES_OF_DOUBLE).max(GRANULE_BYTES);
    bytes.checked_next_multiple_of(step).unwrap_or(bytes)
}

/// Classes between a size and its double.
const CLASSES_OF_DOUBLE: u64 = 8;

impl Model {
    /// The way that costs least, for all requests of a class.
    ///
    /// # Errors
    /// As [`candidates`].
    pub fn way(
        &self,
        request: &CollectiveRequest,
        means: &Means<'_>,
        moved: Moved,
    ) -> Result<Way, PlanError> {
        let largest = CollectiveRequest { bytes: class_bytes(request.bytes), ..*request };
        let all = means.plans(&largest)?;
        let cost = |choice: &Choice| self.predict(choice, moved).map_or(f64::MAX, |it| it.us);
        let costs: Vec<f64> = all.iter().map(|(_, choice)| cost(choice)).collect();
        let best = (0..all.len()).min_by(|a, b| costs[*a].total_cmp(&costs[*b]));
        Ok(all[best.expect("at least that of the table")].0)
    }
}
