//! The name under which ranks find one another.

use super::layout::Geometry;
use super::world::World;
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Names one communicator before it exists: 128 random bytes. One rank makes it, all ranks pass it
/// to [`Communicator::init_rank`](super::Communicator::init_rank).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UniqueId([u8; Self::BYTES]);

impl UniqueId {
    /// Bytes of an id, as many as NCCL's has.
    pub const BYTES: usize = 128;

    /// A new id.
    ///
    /// # Errors
    /// [`Error::System`] where the operating system gives no random bytes.
    pub fn new() -> Result<Self> {
        let mut bytes = [0; Self::BYTES];
        getrandom::fill(&mut bytes).map_err(|cause| Error::System {
            what: "random bytes for a unique id".into(),
            cause: cause.to_string(),
        })?;
        Ok(Self(bytes))
    }

    /// The id with these bytes.
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// Its bytes, to hand to other ranks.
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

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

impl fmt::Debug for UniqueId {
    /// The first bytes only: an id is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UniqueId({:02x}{:02x}..)", self.0[0], self.0[1])
    }
}
