//! What groups of experts ask a communicator beside the device handle.

use super::core::Communicator;
use crate::bootstrap::agreement::{Value, signature};
use crate::error::Result;
use std::time::Duration;

impl Communicator {
    /// Compares the sizes of a group of experts with those of the other ranks; in the order of
    /// collective calls.
    ///
    /// # Errors
    /// [`Error::Disagreement`](crate::Error::Disagreement), which ends the communicator.
    pub(crate) fn agree_on_experts<const COUNT: usize>(
        &self,
        values: [(&'static str, u64); COUNT],
    ) -> Result<()> {
        let rank = &self.connected;
        rank.check()?;
        let number = rank.launcher().next_collective();
        let signature = signature(values.map(|(name, value)| (name, Value::Number(value))));
        let agreed =
            rank.process.compare_calls(|calls| calls.collective(rank.rank(), number, &signature));
        agreed.map_err(|error| rank.fail(error))
    }

    /// Does the rank with this number run on another node than this one? Nodes count as one where
    /// they do not have as many ranks each, one after the other.
    pub fn is_on_another_node(&self, rank: u32) -> bool {
        self.connected.process.geometry.are_apart(self.rank(), rank)
    }

    /// Do stores of every rank reach every other rank's windows, in whatever memory groups of
    /// experts place them? All ranks say the same.
    pub(crate) fn stores_reach_all(&self) -> bool {
        self.connected.process.stores_reach_all()
    }

    /// Must windows of experts lie in pinned host memory, because some GPUs of a node do not reach
    /// each other's, or an adapter not that of its GPU? All ranks say the same.
    pub(crate) fn windows_in_host_memory(&self) -> bool {
        self.connected.process.needs_host_windows()
    }

    /// Ranks of each node, where nodes have as many ranks each, several, and stores reach all ranks
    /// of a node: rows for another node may go to one of its ranks. Else 0. All ranks say the same.
    pub(crate) fn relayed_node_ranks(&self) -> u32 {
        let process = &self.connected.process;
        match process.stores_reach_nodes() {
            true => process.geometry.ranks_per_node(),
            false => 0,
        }
    }

    /// Lanes from each rank to each other for users' kernels.
    pub(crate) fn user_lanes(&self) -> u32 {
        self.connected.process.geometry.user_lanes
    }

    /// How long whoever drops something waits for its work.
    pub(crate) fn drop_timeout(&self) -> Duration {
        self.connected.settings.drop_timeout
    }
}
