//! The engines of a node on a memory of somebody else's, a step at a time: for runs in which the
//! order of all steps is chosen. Channels reach each other within the node.

use super::dma::Dma;
use super::error::EngineError;
use super::node::EngineNode;
use crate::description::Description;
use std::fs::File;
use std::time::Instant;

/// Memory as an engine reaches it.
pub trait EngineMemory {
    /// Is all of a range there?
    fn holds(&self, address: u64, length: u64) -> bool;

    /// Copies data, from where one channel reads to where another, or the same, writes. Both ranges
    /// are there.
    fn copy(&self, target: u64, source: u64, length: u64);

    /// Writes an aligned count that is there, behind the data that was copied before (R9).
    fn write_count(&self, address: u64, count: u64);

    /// Writes 1 to an abort word that is there.
    fn raise(&self, address: u64);

    /// The two words of a slot in the ring of the channel whose turn it is, each loaded once (R6).
    fn slot(&self, slot: u64) -> [u64; 2];
}

/// The engines of a node. Their rings and what they copy lie in an [`EngineMemory`]; their
/// registers and tables lie in files, as always.
pub struct EngineModel(EngineNode);

impl EngineModel {
    /// The engines that a machine has, with faults as `HWSIM_FAULTS` lists them.
    ///
    /// # Errors
    /// [`EngineError`] for a fault that no engine has.
    pub fn new(description: &Description, faults: &str) -> Result<Self, EngineError> {
        EngineNode::new(description, faults, None).map(Self)
    }

    /// Serves a channel, which is reset by it, and gives its number among those that are served.
    ///
    /// # Errors
    /// [`EngineError`] where it is served already, or its file cannot be mapped.
    pub fn serve(&mut self, engine: usize, channel: u64, bar: File) -> Result<usize, EngineError> {
        self.0.serve(engine, channel, bar)?;
        Ok(self.0.channels.len() - 1)
    }

    /// Obeys the host of channel `number`, and takes what stands in its ring.
    pub fn look(&mut self, number: usize, memory: &dyn EngineMemory, now: Instant) -> bool {
        let worked = self.0.look(number, &Dma::Other(memory), now);
        self.0.show(number);
        worked
    }

    /// Sends one sub-request of channel `number`.
    pub fn fetch(&mut self, number: usize, memory: &dyn EngineMemory, now: Instant) -> bool {
        let worked = self.0.fetch(number, &Dma::Other(memory), now);
        self.0.show(number);
        worked
    }

    /// Are requests of channel `number` under way?
    pub fn is_busy(&self, number: usize) -> bool {
        self.0.channels[number].status.in_flight > 0
    }
}
