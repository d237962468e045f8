//! The world of a unique id: where the ranks of one process that hold it meet.

use super::layout::Geometry;
use super::world::World;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

pub use crate::bootstrap::UniqueId;

impl UniqueId {
    /// The world of this id in this process, made with `geometry` by whoever comes first.
    pub(super) fn world(&self, geometry: Geometry) -> Arc<World> {
        static WORLDS: Mutex<Option<HashMap<UniqueId, Weak<World>>>> = Mutex::new(None);
        let mut worlds = WORLDS.lock().unwrap_or_else(PoisonError::into_inner);
        let worlds = worlds.get_or_insert_default();
        worlds.retain(|_, world| world.strong_count() > 0);
        if let Some(world) = worlds.get(self).and_then(Weak::upgrade) {
            return world;
        }
        let world = Arc::new(World::new(geometry));
        worlds.insert(*self, Arc::downgrade(&world));
        world
    }
}
