//! How all-reduces go, by the cost model: it is asked once for each class of sizes.

use super::sync::lock;
use crate::cost::{Way, largest_of_class};
use crate::plan::CollectiveRequest;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// What distinguishes all-reduces of a communicator to the model: the class of the size, and
/// whether buffers are registered and in place. There are some hundred classes.
type Kind = (u64, bool, bool);

/// The ways that were asked for.
#[derive(Debug, Default)]
pub(super) struct ChosenWays {
    made: Mutex<BTreeMap<Kind, Way>>,
}

impl ChosenWays {
    /// The way of an all-reduce; `make` asks the model.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn get<E>(
        &self,
        request: &CollectiveRequest,
        make: impl FnOnce() -> Result<Way, E>,
    ) -> Result<Way, E> {
        let kind = (largest_of_class(request).bytes, request.registered, request.in_place);
        // Held meanwhile: the other ranks of the process want the same way.
        let mut made = lock(&self.made);
        match made.get(&kind) {
            Some(way) => Ok(*way),
            None => {
                let way = make()?;
                made.insert(kind, way);
                Ok(way)
            }
        }
    }
}
