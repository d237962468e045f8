//! Conditional nodes: their graphs run as often as a word in the GPU's memory says. Kernels set it.

use super::definition::Graph;
use super::kernel::OwnMemory;
use crate::copy;
use crate::error::Result;
use crate::memory::GlobalMemory;
use crate::wait_value::{Condition as Comparison, WaitValue};
use std::sync::Arc;

/// A condition. Its handle is the address of its word, to which `cudaGraphSetConditional` stores.
/// Launches of different executable graphs that were made of one graph share it.
pub struct Condition {
    word: OwnMemory,
    /// What it is at the start of each launch; else what it was.
    default: Option<u32>,
}

/// What a value of the word means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionalKind {
    /// Not 0: the first graph, once; 0: the second, if there is one.
    If,
    /// The graph again and again, until it is 0.
    While,
    /// The graph of this number, once, if there is one.
    Switch,
}

/// What a conditional node does.
pub struct Conditional {
    /// What it asks.
    pub condition: Arc<Condition>,
    /// How.
    pub kind: ConditionalKind,
    /// Its graphs, to which programs add nodes after the node is made.
    pub bodies: Vec<Arc<Graph>>,
}

impl Condition {
    /// A condition in the memory of a GPU, for a context of it.
    pub fn new(
        memory: &Arc<GlobalMemory>,
        (gpu, context): (usize, u64),
        default: Option<u32>,
    ) -> Result<Arc<Self>> {
        let image = default.unwrap_or(0).to_le_bytes();
        let word = OwnMemory::new(memory, (gpu, context), &image)?;
        Ok(Arc::new(Self { word, default }))
    }

    /// Its handle.
    pub fn handle(&self) -> u64 {
        self.word.address
    }

    /// Sets it as a launch begins.
    pub(super) fn begin(&self) -> Result<()> {
        match self.default {
            Some(value) => copy::staged(&self.word.memory, self.handle(), &value.to_le_bytes()),
            None => Ok(()),
        }
    }

    fn is(&self, value: u32) -> bool {
        let (address, condition) = (self.handle(), Comparison::Equal);
        let wait = WaitValue { address, value: value.into(), condition, wide: false };
        wait.is_met(&self.word.memory)
    }
}

impl Conditional {
    /// The number of the graph that runs next, after `rounds` that have run.
    pub(super) fn next(&self, rounds: usize) -> Option<usize> {
        let is_set = || !self.condition.is(0);
        let next = match self.kind {
            ConditionalKind::While => is_set().then_some(0),
            _ if rounds > 0 => None,
            ConditionalKind::If => Some(if is_set() { 0 } else { 1 }),
            ConditionalKind::Switch => {
                (0..self.bodies.len()).find(|&body| self.condition.is(body as u32))
            }
        };
        next.filter(|&body| body < self.bodies.len())
    }

    /// A copy with graphs of its own, about the same condition.
    pub(super) fn duplicate(&self) -> Arc<Self> {
        let Self { condition, kind, bodies } = self;
        let bodies = bodies.iter().map(|body| body.duplicate_within()).collect();
        Arc::new(Self { condition: Arc::clone(condition), kind: *kind, bodies })
    }
}
