//! What an agent knows of the writes of others: its causal past.
//!
//! A write is known by base causality if its writer's count is within the view's clock for that
//! writer. Base causality takes along all that comes before in program order, so a count for each
//! agent says it exactly. An *observation* (a strong read of a strong write, without an acquire)
//! makes known the write alone; such writes are listed by location.

use std::collections::BTreeMap;
use std::rc::Rc;

/// An agent's number.
pub type AgentId = u32;

/// Which write: the writer, and how many writes it had made by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WriteId {
    /// The writer.
    pub agent: AgentId,
    /// Its count, from 1 on.
    pub count: u32,
}

/// What is known of the writes of all agents.
#[derive(Clone, Debug, Default)]
pub struct View {
    clocks: Vec<u32>,
    observed: BTreeMap<u64, Vec<WriteId>>,
}

impl View {
    fn clock(&self, agent: AgentId) -> u32 {
        self.clocks.get(agent as usize).copied().unwrap_or(0)
    }

    /// Is what this agent did by its `count`-th write in the past?
    pub fn knows_of(&self, agent: AgentId, count: u32) -> bool {
        count <= self.clock(agent)
    }

    /// Is this write to `cell` in the past?
    pub fn knows(&self, cell: u64, write: WriteId) -> bool {
        write.count <= self.clock(write.agent)
            || self.observed.get(&cell).is_some_and(|list| {
                list.iter().any(|seen| seen.agent == write.agent && write.count <= seen.count)
            })
    }

    /// Makes one write known, and the writer's earlier ones to the same place, but nothing else.
    pub fn observe(&mut self, cell: u64, write: WriteId) {
        if write.count <= self.clock(write.agent) {
            return;
        }
        let clocks = &self.clocks;
        let list = self.observed.entry(cell).or_default();
        list.retain(|seen| clocks.get(seen.agent as usize).is_none_or(|c| *c < seen.count));
        match list.iter_mut().find(|seen| seen.agent == write.agent) {
            Some(seen) => seen.count = seen.count.max(write.count),
            None => list.push(write),
        }
    }

    /// Makes known all of an agent's writes up to `count`.
    pub fn reach(&mut self, agent: AgentId, count: u32) {
        let index = agent as usize;
        if self.clocks.len() <= index {
            self.clocks.resize(index + 1, 0);
        }
        self.clocks[index] = self.clocks[index].max(count);
    }

    /// Makes known all that another view knows.
    pub fn join(&mut self, other: &Self) {
        if self.clocks.len() < other.clocks.len() {
            self.clocks.resize(other.clocks.len(), 0);
        }
        for (own, others) in self.clocks.iter_mut().zip(&other.clocks) {
            *own = (*own).max(*others);
        }
        for (&cell, list) in &other.observed {
            for &write in list {
                self.observe(cell, write);
            }
        }
    }

    /// Does it know all that the other one does by base causality? (A quick test before a copy.)
    fn covers(&self, other: &Self) -> bool {
        other.observed.is_empty()
            && other.clocks.iter().enumerate().all(|(agent, c)| *c <= self.clock(agent as u32))
    }
}

/// What an agent knew at some moment, its own writes included.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Whose.
    pub agent: AgentId,
    /// Its writes by then.
    pub count: u32,
    /// What it knew of others.
    pub view: Rc<View>,
    /// Grows with time, so that the later of two can be told.
    pub serial: u64,
}

/// Makes known to `view` all that a snapshot knows.
pub fn join_snapshot(view: &mut Rc<View>, snapshot: &Snapshot) {
    if view.clock(snapshot.agent) >= snapshot.count && view.covers(&snapshot.view) {
        return;
    }
    let view = Rc::make_mut(view);
    view.join(&snapshot.view);
    view.reach(snapshot.agent, snapshot.count);
}

/// What a strong write passes on to who reads it and acquires: for each scope, what its writer
/// knew at its last release of that scope or a wider one.
#[derive(Clone, Debug, Default)]
pub struct Release {
    /// By scope, narrowest first.
    pub by_scope: [Option<Rc<Snapshot>>; SCOPES],
}

/// Scopes: block, cluster, GPU, system.
pub const SCOPES: usize = 4;

impl Release {
    /// A release happens now, at `scope` (its index).
    pub fn raise(&mut self, snapshot: &Rc<Snapshot>, scope: usize) {
        for slot in &mut self.by_scope[..=scope] {
            *slot = Some(Rc::clone(snapshot));
        }
    }

    /// Takes the later of both, scope by scope. Both are of one agent.
    pub fn merge(&mut self, other: &Self) {
        for (slot, others) in self.by_scope.iter_mut().zip(&other.by_scope) {
            let later = match (&*slot, others) {
                (Some(own), Some(others)) => own.serial < others.serial,
                (None, Some(_)) => true,
                _ => false,
            };
            if later {
                slot.clone_from(others);
            }
        }
    }

    /// Whose it is, if it is one.
    pub fn agent(&self) -> Option<AgentId> {
        self.by_scope.iter().flatten().next().map(|snapshot| snapshot.agent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, a relaxed read makes known more than the write that it saw, or forgets it.
    #[test]
    fn an_observation_makes_known_one_place_alone() {
        let mut view = View::default();
        view.observe(8, WriteId { agent: 3, count: 5 });
        assert!(view.knows(8, WriteId { agent: 3, count: 5 }));
        assert!(view.knows(8, WriteId { agent: 3, count: 4 }));
        assert!(!view.knows(16, WriteId { agent: 3, count: 4 }));
        view.reach(3, 5);
        assert!(view.knows(16, WriteId { agent: 3, count: 4 }));
        let mut other = View::default();
        other.join(&view);
        assert!(other.knows(8, WriteId { agent: 3, count: 5 }));
    }
}
