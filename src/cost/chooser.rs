//! How an all-reduce of one node is done: of all plans that its ranks could run, by the one that
//! costs least in the model.
//!
//! The model is asked once for each class of sizes, eight of them between a size and its double.
//! What it prefers for the largest size of a class is taken for all of them.

use super::{Model, Moved};
use crate::plan::{
    Algorithm, Choice, CollectiveRequest, Forest, GRANULE_BYTES, Limits, PlanError, candidates,
    select_packed,
};
use std::sync::Arc;

/// Classes between a size and its double.
const CLASSES_OF_DOUBLE: u64 = 8;

/// How an all-reduce goes, whatever its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// By which algorithm.
    algorithm: Algorithm,
    /// Over lanes of stores with slots.
    stores: bool,
    /// In so many blocks over lanes of stores at most.
    store_blocks: u32,
}

/// What the ranks of an all-reduce have.
#[derive(Clone, Copy, Debug)]
pub struct Means<'a> {
    /// Their limits.
    pub limits: Limits,
    /// Trees that are packed into the links between their GPUs.
    pub forest: Option<&'a Arc<Forest>>,
}

impl Way {
    /// Does a choice go this way?
    pub fn fits(&self, choice: &Choice) -> bool {
        (self.algorithm, self.stores) == (choice.algorithm, choice.stores)
    }
}

/// Blocks over lanes of stores take threads that others would compute with. So they are as few as
/// make a plan at most so much slower in the model than all of them.
const FEWER_BLOCKS_SHARE: f64 = 1.05;

impl Means<'_> {
    /// All plans; that of the table of selection comes first, that along trees last.
    ///
    /// # Errors
    /// As [`candidates`].
    pub fn plans(&self, request: &CollectiveRequest) -> Result<Vec<Choice>, PlanError> {
        let mut all = candidates(request, &self.limits)?;
        all.extend(self.forest.and_then(|it| select_packed(request, &self.limits, it).ok()));
        Ok(all)
    }

    /// The plan that goes this way; where there is none, that of the table of selection.
    ///
    /// # Errors
    /// As [`candidates`].
    pub fn plan(&self, request: &CollectiveRequest, way: Way) -> Result<Choice, PlanError> {
        let fewer = Limits { store_blocks: way.store_blocks, ..self.limits };
        let mut all = Means { limits: fewer, ..*self }.plans(request)?;
        let nth = all.iter().position(|choice| way.fits(choice)).unwrap_or(0);
        Ok(all.swap_remove(nth))
    }
}

/// From so many bytes on, packed trees are among the plans.
pub const TREES_BYTES_MIN: u64 = 64 << 10;

/// The largest request of the class of this one.
pub fn largest_of_class(request: &CollectiveRequest) -> CollectiveRequest {
    let bytes = request.bytes;
    let doubled = bytes.checked_next_power_of_two().unwrap_or(0);
    let step = (doubled / 2 / CLASSES_OF_DOUBLE).max(GRANULE_BYTES);
    CollectiveRequest { bytes: bytes.checked_next_multiple_of(step).unwrap_or(bytes), ..*request }
}

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
        let request = largest_of_class(request);
        let mut all = means.plans(&request)?;
        let best = all.swap_remove(self.cheapest(&all, moved, f64::MAX).unwrap_or(0));
        let Choice { algorithm, stores, .. } = best;
        let way = Way { algorithm, stores, store_blocks: means.limits.store_blocks };
        // Trees are as many as their packing has.
        match stores && algorithm != Algorithm::Packed {
            true => self.in_fewest_blocks(&request, means, moved, (way, &best)),
            false => Ok(way),
        }
    }

    /// The same way in half as many blocks, as often as that takes hardly longer than `best`.
    fn in_fewest_blocks(
        &self,
        request: &CollectiveRequest,
        means: &Means<'_>,
        moved: Moved,
        (mut way, best): (Way, &Choice),
    ) -> Result<Way, PlanError> {
        let us = |choice: &Choice| self.predict(choice, moved).map_or(f64::MAX, |it| it.us);
        let us_max = FEWER_BLOCKS_SHARE * us(best);
        let mut store_blocks = best.blocks / 2;
        while store_blocks > 0 {
            let fewer = Way { store_blocks, ..way };
            if us(&means.plan(request, fewer)?) > us_max {
                break;
            }
            (way, store_blocks) = (fewer, store_blocks / 2);
        }
        Ok(way)
    }
}
