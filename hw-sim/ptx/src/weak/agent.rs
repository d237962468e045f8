//! One agent: a GPU thread, or whoever else reads and writes.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::view::{AgentId, Release, SCOPES, Snapshot, View, join_snapshot};

/// Where an agent runs: which scopes hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// A thread of a GPU's block.
    Block {
        /// The GPU.
        gpu: u32,
        /// The block, numbered over all launches.
        block: u32,
    },
    /// Outside of GPUs: a host thread, a copy engine, an adapter. Nobody but the agent itself is
    /// in a scope with it that is narrower than the system.
    Outside,
}

/// The index of the narrowest scope that holds both. A block is its own cluster.
pub fn distance(a: Place, b: Place) -> usize {
    match (a, b) {
        (Place::Block { gpu: a, block: c }, Place::Block { gpu: b, block: d }) if a == b => {
            if c == d { 0 } else { 2 }
        }
        _ => SCOPES - 1,
    }
}

/// An agent's state.
#[derive(Debug)]
pub struct Agent {
    /// Its number.
    pub id: AgentId,
    /// Where it runs.
    pub place: Place,
    /// Writes so far.
    pub count: u32,
    /// What it knows of others.
    pub view: Rc<View>,
    /// What its fences have released.
    pub released: Release,
    /// What its release writes have released by location: a later strong write there carries it,
    /// too.
    released_at: BTreeMap<(u64, u8), Release>,
    /// What strong reads saw and no fence has acquired: by releaser.
    pending: BTreeMap<AgentId, Release>,
    /// The same by location, for an acquire load of the same one.
    pending_at: BTreeMap<(u64, AgentId), Release>,
}

impl Agent {
    /// One that has done nothing.
    pub fn new(id: AgentId, place: Place) -> Self {
        Self {
            id,
            place,
            count: 0,
            view: Rc::default(),
            released: Release::default(),
            released_at: BTreeMap::new(),
            pending: BTreeMap::new(),
            pending_at: BTreeMap::new(),
        }
    }

    /// What it knows now.
    pub fn snapshot(&self, serial: u64) -> Rc<Snapshot> {
        let (agent, count) = (self.id, self.count);
        Rc::new(Snapshot { agent, count, view: Rc::clone(&self.view), serial })
    }

    /// What a strong write to a location passes on; `now`: it is a release at that scope.
    pub fn release_for(
        &mut self,
        location: (u64, u8),
        now: Option<(usize, Rc<Snapshot>)>,
    ) -> Option<Rc<Release>> {
        if let Some((scope, snapshot)) = now {
            self.released_at.entry(location).or_default().raise(&snapshot, scope);
        }
        let mut release = self.released.clone();
        if let Some(here) = self.released_at.get(&location) {
            release.merge(here);
        }
        release.agent().is_some().then(|| Rc::new(release))
    }

    /// A strong read at `cell` saw what others have released.
    pub fn note(&mut self, cell: u64, releases: &[Rc<Release>]) {
        for release in releases {
            let Some(agent) = release.agent().filter(|agent| *agent != self.id) else { continue };
            self.pending.entry(agent).or_default().merge(release);
            self.pending_at.entry((cell, agent)).or_default().merge(release);
        }
    }

    /// A fence acquires at `scope`; `place_of` tells where agents run.
    pub fn acquire_all(&mut self, scope: usize, place_of: impl Fn(AgentId) -> Place) {
        let own = self.place;
        for (&agent, release) in &self.pending {
            join(&mut self.view, release, scope, distance(own, place_of(agent)));
        }
        // What this scope does not reach, a later and wider fence may.
        self.pending.retain(|&agent, _| distance(own, place_of(agent)) > scope);
        self.pending_at.retain(|&(_, agent), _| distance(own, place_of(agent)) > scope);
    }

    /// An acquire load at `cell`.
    pub fn acquire_at(&mut self, cell: u64, scope: usize, place_of: impl Fn(AgentId) -> Place) {
        let range = (cell, 0)..=(cell, AgentId::MAX);
        let own = self.place;
        for (&(_, agent), release) in self.pending_at.range(range) {
            join(&mut self.view, release, scope, distance(own, place_of(agent)));
        }
    }
}

/// Takes over what was released at a scope that holds both, if the acquire's scope does, too.
fn join(view: &mut Rc<View>, release: &Release, scope: usize, distance: usize) {
    if distance <= scope
        && let Some(snapshot) = &release.by_scope[distance]
    {
        join_snapshot(view, snapshot);
    }
}
