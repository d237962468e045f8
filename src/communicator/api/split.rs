//! Communicators of some of a communicator's ranks.

use super::core::Communicator;
use crate::bootstrap::{Root, UniqueId};
use crate::error::{Error, Result};
use crate::settings::Settings;
use cudarc::driver::CudaStream;
use std::sync::Arc;

/// What each rank says in the first round: is it in a group, its color, its key.
type Choice = [u32; 3];
/// What ranks wait for each other in.
const WHAT: &str = "Communicator::split";

impl Communicator {
    /// Divides the ranks into groups, and makes a communicator of each: ranks with the same `color`
    /// form a group, in the order of their `key`s, and of their ranks where keys are equal. A rank
    /// without a color gets `None`. This communicator stays as it is.
    ///
    /// Every rank makes the call, between the same two others, and all wait for one another: a
    /// thread that drives several ranks cannot make it for one after the other. Like making a
    /// communicator, it allocates: no work of these GPUs may wait for the host, or for a rank that
    /// is in this call, meanwhile.
    ///
    /// # Errors
    /// As [`Communicator::init_rank`] and [`Communicator::all_gather`].
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Self>> {
        self.split_with(color, key, &self.connected.settings)
    }

    /// As [`Communicator::split`], with other settings.
    pub(super) fn split_with(
        &self,
        color: Option<u32>,
        key: i32,
        settings: &Settings,
    ) -> Result<Option<Self>> {
        let context = self.context();
        // Nothing is created before all ranks are here: it would wait for work of those that are
        // not, with locks of the driver that this work needs.
        let stream = context.per_thread_stream();
        // Keys in an order of unsigned numbers.
        let choice = [color.is_some().into(), color.unwrap_or(0), (key as u32) ^ (1 << 31)];
        let choices = self.gathered(choice, &stream)?;
        let members = members(&choices, color);
        let leads = members.first() == Some(&self.rank());
        let id = match leads {
            true => Some(self.id_for_a_group()?),
            false => None,
        };
        let own = id.as_ref().map_or([0; UniqueId::BYTES], |(id, _)| *id.as_bytes());
        let ids = self.gathered(own, &stream)?;
        // From here on the root serves without its handle.
        id.and_then(|(_, root)| root).into_iter().for_each(Root::detach);
        self.wait_for_gpus(WHAT)?;
        let group = self.join_group(&members, &ids, settings);
        // Nobody goes on, and enqueues work that waits for others, while some are still at it.
        self.meet(WHAT)?;
        group
    }

    fn join_group(
        &self,
        members: &[u32],
        ids: &[[u8; UniqueId::BYTES]],
        settings: &Settings,
    ) -> Result<Option<Self>> {
        let Some(leader) = members.first() else { return Ok(None) };
        let id = UniqueId::from_bytes(ids[*leader as usize]);
        let number = members.iter().position(|member| *member == self.rank());
        let number = number.expect("a rank with a color is in its group") as u32;
        let count = members.len() as u32;
        Self::init_rank(self.context(), &id, number, count, settings).map(Some)
    }

    /// Waits until the GPUs of all ranks of this process are idle, in a call of all of them.
    pub(super) fn wait_for_gpus(&self, what: &str) -> Result<()> {
        self.connected.state.wait_for_gpu()?;
        self.meet(what)
    }

    /// Waits for all ranks of this process, in a call of all of them.
    pub(super) fn meet(&self, what: &str) -> Result<()> {
        let (process, limit) = (&self.connected.process, self.connected.settings.bootstrap_timeout);
        process.barrier.wait(what, process.local_count(), limit)
    }

    /// A name under which a group's ranks find one another; its root, where they are processes.
    fn id_for_a_group(&self) -> Result<(UniqueId, Option<Root>)> {
        if self.connected.process.planes().is_empty() {
            return Ok((UniqueId::new()?, None));
        }
        let root = Root::open(&self.connected.settings)?;
        Ok((root.id(), Some(root)))
    }

    /// What every rank contributes. Waits for all of them.
    pub(super) fn gathered<T: bytemuck::Pod>(
        &self,
        own: T,
        stream: &Arc<CudaStream>,
    ) -> Result<Vec<T>> {
        let send = stream
            .clone_htod(bytemuck::bytes_of(&own))
            .map_err(Error::from_driver("cuMemcpyHtoD"))?;
        let bytes = size_of::<T>() * self.rank_count() as usize;
        let mut receive =
            stream.alloc_zeros::<u8>(bytes).map_err(Error::from_driver("cuMemAlloc"))?;
        self.all_gather(&send, &mut receive, stream)?;
        let all = stream.clone_dtoh(&receive).map_err(Error::from_driver("cuMemcpyDtoH"))?;
        stream.synchronize().map_err(Error::from_driver("cuStreamSynchronize"))?;
        // An error of the communicator ends its kernels, and what they should have written is not.
        self.check()?;
        Ok(all.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect())
    }
}

/// The ranks whose color is `color`, in the order of the group.
fn members(choices: &[Choice], color: Option<u32>) -> Vec<u32> {
    let ranks = (0..).zip(choices).filter(|(_, [has_color, its_color, _])| {
        color.is_some_and(|color| *has_color == 1 && *its_color == color)
    });
    let mut members: Vec<(u32, u32)> = ranks.map(|(rank, [_, _, key])| (*key, rank)).collect();
    members.sort_unstable();
    members.into_iter().map(|(_, rank)| rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_ordered_by_key_then_by_rank() {
        let choices = [[1, 5, 9], [1, 6, 0], [1, 5, 3], [0, 5, 0], [1, 5, 3]];
        assert_eq!(members(&choices, Some(5)), [2, 4, 0]);
        assert_eq!(members(&choices, Some(6)), [1]);
        assert_eq!(members(&choices, Some(7)), [0; 0]);
        assert_eq!(members(&choices, None), [0; 0]);
    }
}
